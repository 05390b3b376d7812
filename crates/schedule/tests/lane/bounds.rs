//! Servers that answer forever: the data accepted and held from them are bounded.

use schedule::{Attributes, FileCopyOptions, JobKind, LaneEvent, REPEATED_NAMES, TOO_MANY_NAMES};
use testkit::sftp_model::{Kind, SftpServerProfile, VirtualLinkOptions};

use crate::world::{MODES, Mode, World, bytes, config, link, remote};

fn known(size: u64) -> Option<Attributes> {
    Some(Attributes {
        size: Some(size),
        mode: Some(0o100_644),
        ..Attributes::default()
    })
}

/// A path on which answers arrive unfragmented, so that ten million names are quick.
fn quick() -> VirtualLinkOptions {
    VirtualLinkOptions {
        fragment: 1 << 30,
        ..link()
    }
}

fn listing(cycle: u64) -> World {
    let mut w = World::with(
        config(Mode::Plain, 1),
        SftpServerProfile::openssh(),
        quick(),
        1,
    );
    w.model.fs.place("d", Kind::Dir, 0o755);
    w.model.endless_names = Some(cycle);
    w
}

#[test]
fn a_listing_that_repeats_itself_ends_with_an_error() {
    for cycle in [1, 150, 36_000] {
        let mut w = listing(cycle);
        let job = w.job(JobKind::List {
            path: remote("d"),
            most: None,
        });
        w.run();
        assert_eq!(w.failed(job), Some(REPEATED_NAMES), "{cycle}");
        assert!(w.model.named < 2 * cycle + 10_000, "{}", w.model.named);
    }
}

#[test]
fn a_listing_without_end_ends_with_an_error_and_is_not_held() {
    let mut w = listing(u64::MAX);
    let job = w.job(JobKind::List {
        path: remote("d"),
        most: None,
    });
    let mut told = 0;
    // Events are drained regularly, as the copy does.
    while w.failed(job).is_none() {
        w.run_for(crate::world::RTT);
        for (_, event) in std::mem::take(&mut w.events) {
            match event {
                LaneEvent::Entries(_, entries) => told += entries.len(),
                LaneEvent::Failed(_, fault) => {
                    assert_eq!(fault.what, TOO_MANY_NAMES);
                    assert_eq!(told, 1 << 24);
                    return;
                }
                _ => {}
            }
        }
        assert!(told <= 1 << 24);
    }
}

#[test]
fn a_listing_stops_asking_while_it_is_held() {
    let mut w = listing(u64::MAX);
    w.job(JobKind::List {
        path: remote("d"),
        most: None,
    });
    w.run_for(5 * crate::world::RTT);
    w.lane.hold_lists(w.now, true);
    w.run_for(2 * crate::world::RTT);
    let before = w.model.named;
    w.lane.hold_lists(w.now, true);
    assert_eq!(w.lane.stats().requests_in_flight, 0);
    assert_eq!(w.model.named, before);
    w.lane.hold_lists(w.now, false);
    w.run_for(2 * crate::world::RTT);
    assert!(w.model.named > before);
}

#[test]
fn a_file_that_never_ends_is_copied_up_to_its_size_and_a_margin() {
    for mode in MODES {
        let mut config = config(mode, 1);
        config.growth = 1 << 20;
        let server = match mode {
            Mode::Ours => SftpServerProfile::ours(),
            _ => SftpServerProfile::openssh(),
        };
        let mut w = World::with(config, server, link(), 1);
        w.model.endless_data = true;
        w.place("small", &[7; 10], 0o644);
        w.place("large", &vec![7; 20 << 20], 0o644);
        let jobs = [
            w.get("small", known(300_000)),
            w.get("large", known(20 << 20)),
        ];
        w.run();
        assert!(
            jobs.iter().all(|job| w.done(*job)),
            "{mode:?} {:?}",
            w.events.last()
        );
        let len = |name: &str| w.got(name).map_or(0, <[u8]>::len);
        assert!(len("small") < (2 << 20), "{mode:?} {}", len("small"));
        assert!(len("large") < (24 << 20), "{mode:?} {}", len("large"));
        // The longhaul model compresses its READ answers, so it reads the real file.
        let grows = w.warnings().iter().any(|t| t.contains("grew from"));
        assert!(grows || mode == Mode::Ours, "{mode:?}");
    }
}

#[test]
fn a_file_whose_size_is_not_stated_fails_beyond_a_limit() {
    let mut config = config(Mode::Plain, 1);
    config.unstated = 4 << 20;
    let mut w = World::with(config, SftpServerProfile::openssh(), link(), 1);
    w.model.endless_data = true;
    w.place("f", b"", 0o644);
    let job = w.get("f", known(0));
    w.run();
    let why = w.failed(job).unwrap_or_default();
    assert!(why.contains("at most 4194304 bytes"), "{why}");
    assert_eq!(w.disk.targets(), 0);
}

/// The boot ID of a server lies in /proc, where the stated size is 0: a server that answers READ forever
/// filled the disk with 256 MiB of it.
#[test]
fn the_answer_to_a_question_is_bounded_although_its_size_is_not_stated() {
    let ask = |content: Option<usize>| {
        let mut w = World::new(Mode::Plain);
        w.model.endless_data = content.is_none();
        // The stated size of each is 0.
        let kind = match content {
            Some(len) => Kind::Device(vec![b'x'; len]),
            None => Kind::File(Vec::new()),
        };
        w.model.fs.place("f", kind, 0o644);
        let options = FileCopyOptions {
            most: Some(37),
            ..FileCopyOptions::default()
        };
        let job = w.get_with("f", known(0), options);
        w.run();
        assert_eq!(w.disk.targets(), 0, "open targets");
        assert_eq!(w.done(job), w.failed(job).is_none());
        w.failed(job).map(str::to_owned)
    };
    assert_eq!(ask(Some(37)), None);
    let endless = ask(None);
    assert!(endless.is_some_and(|why| why.contains("at most 37 bytes")));
}

/// Holes were not counted, and a file of 10 bytes was read forever.
#[test]
fn a_file_of_holes_that_never_ends_is_bounded() {
    for hole in [4096, 258_048, 1 << 40, u64::MAX] {
        for stated in [0, 10] {
            let mut config = config(Mode::Ours, 1);
            (config.growth, config.unstated) = (1 << 20, 1 << 20);
            let mut w = World::with(config, SftpServerProfile::ours(), link(), 1);
            w.model.endless_holes = Some(hole);
            w.place("f", &vec![0; stated], 0o644);
            let options = FileCopyOptions {
                sparse: true,
                ..FileCopyOptions::default()
            };
            // A file that is larger than one answer is not requested as a whole.
            let job = w.get_with("f", known(1 << 20), options);
            w.run();
            if stated == 0 {
                let why = w.failed(job).unwrap_or_default();
                assert!(why.contains("its size of 0 bytes"), "{hole}: {why}");
                assert_eq!(w.disk.targets(), 0);
            } else {
                assert!(w.done(job), "{hole}");
                let len = w.got("f").map_or(0, <[u8]>::len);
                assert!(len < 2 << 20, "{hole}: {len}");
                let grows = w.warnings().iter().any(|t| t.contains("grew from"));
                // A hole that ends within the first answer ends the file.
                assert_eq!(grows, hole > 4096, "{hole}");
            }
        }
    }
}

/// Disk reads under way were not counted, and their WRITEs exceeded the limit: a server with a queue
/// of 70 requests received 130 and dropped 60, each time that the upload was repeated. Requests that
/// follow an answer (FSTAT, SETSTAT, CLOSE) exceeded the limit too. Counted at each request.
#[test]
fn no_more_requests_than_permitted_are_in_flight() {
    for mode in MODES {
        for most in [1, 2, 8] {
            let mut w = World::new(mode);
            w.lane.limit_requests(most);
            w.place("down", &bytes(2_000_000, 1), 0o644);
            w.model.fs.place("d", Kind::Dir, 0o755);
            let mut jobs = vec![
                w.put(bytes(2_000_000, 2), "up", FileCopyOptions::default()),
                w.get("down", known(2_000_000)),
                w.job(JobKind::List {
                    path: remote("d"),
                    most: None,
                }),
            ];
            for n in 0..30 {
                let name = format!("d/{n}");
                jobs.push(w.put(bytes(3000, n), &name, FileCopyOptions::default()));
            }
            w.run();
            assert!(jobs.iter().all(|job| w.done(*job)), "{mode:?} {most}");
            let seen = w.witness.take_most_in_flight();
            assert_eq!(seen as u64, most, "{mode:?}");
        }
    }
}

/// Requests queued before the limit was set had been joined into one buffer.
#[test]
fn a_limit_that_is_set_later_counts_for_queued_requests() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.room = 0;
        let jobs: Vec<_> = (0..50)
            .map(|n| w.put(bytes(3000, n), &n.to_string(), FileCopyOptions::default()))
            .collect();
        w.run_for(crate::world::RTT);
        w.lane.limit_requests(5);
        w.room = usize::MAX;
        w.run();
        assert!(jobs.iter().all(|job| w.done(*job)), "{mode:?}");
        assert_eq!(w.witness.take_most_in_flight(), 5, "{mode:?}");
    }
}
