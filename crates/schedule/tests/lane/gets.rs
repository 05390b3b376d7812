use std::time::Duration;

use schedule::{Attributes, FileCopyOptions, FileCopyState, LaneEvent, LocalEnd};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile, VirtualLinkOptions};

use crate::world::{MODES, Mode, World, bytes, config, link};

fn known(size: u64) -> Option<Attributes> {
    Some(Attributes {
        size: Some(size),
        mode: Some(0o100_644),
        ..Attributes::default()
    })
}

#[test]
fn sizes_around_every_boundary_arrive_whole() {
    for mode in MODES {
        let sizes = [0, 1, 4096, 258_047, 258_048, 258_049, 516_096, 3_000_000];
        let mut w = World::new(mode);
        for size in sizes {
            let name = format!("f{size}");
            w.place(&name, &bytes(size, size as u64), 0o640);
            w.get(&name, known(size as u64));
            w.place(&format!("u{size}"), &bytes(size, size as u64), 0o640);
            w.get(&format!("u{size}"), None);
        }
        w.run();
        for size in sizes {
            let data = bytes(size, size as u64);
            assert!(
                w.got(&format!("f{size}")) == Some(data.as_slice()),
                "{mode:?} {size}"
            );
            assert!(
                w.got(&format!("u{size}")) == Some(data.as_slice()),
                "{mode:?} {size}"
            );
        }
        assert_eq!(w.model.open_handles().0, 0);
        assert_eq!((w.lane.stats().unwritten, w.disk.targets()), (0, 0));
        assert_eq!(w.warnings(), Vec::<&str>::new());
    }
}

#[test]
fn short_reads_are_asked_for_again() {
    for mode in MODES {
        for fragment in [1, 40_000] {
            let mut server = SftpServerProfile::openssh();
            server.read = 10_000;
            // Its extensions imply 255 KiB, and limits are not requested before.
            server.extensions.truncate(6);
            let mut config = config(mode, 1);
            let mut info = crate::world::info();
            info.extensions.truncate(6);
            config.remembered = (mode == Mode::Remembered).then_some(info);
            let mut w = World::with(config, server, VirtualLinkOptions { fragment, ..link() }, 3);
            w.place("a", &bytes(200_001, 5), 0o644);
            w.get("a", known(200_001));
            w.run();
            assert!(w.got("a") == Some(bytes(200_001, 5).as_slice()), "{mode:?}");
        }
    }
}

#[test]
fn other_servers_work_too() {
    let mut config = config(Mode::Predicting, 1);
    config.openssh = false;
    let mut w = World::with(config, SftpServerProfile::other(), link(), 1);
    for i in 0..20 {
        let name = format!("f{i}");
        w.place(&name, &bytes(100_000, i), 0o644);
        w.get(&name, None);
    }
    w.run();
    for i in 0..20 {
        assert!(w.got(&format!("f{i}")) == Some(bytes(100_000, i).as_slice()));
    }
    assert!(w.model.open_handles().1 > 1);
}

#[test]
fn a_file_that_differs_from_its_listing_is_read_to_its_end() {
    for mode in MODES {
        for said in [10, 299_999, 300_001, 2_000_000] {
            let mut w = World::new(mode);
            w.place("a", &bytes(300_000, 5), 0o644);
            w.place("b", b"b", 0o644);
            w.get("a", known(said));
            w.get("b", known(1));
            w.run();
            assert!(
                w.got("a") == Some(bytes(300_000, 5).as_slice()),
                "{mode:?} {said}"
            );
            assert_eq!(w.got("b"), Some(b"b".as_slice()));
        }
    }
}

#[test]
fn a_file_that_shrinks_or_grows_while_it_is_read() {
    for mode in MODES {
        for (at, len) in [(6, 100_000), (6, 2_500_000), (8, 1_200_000)] {
            let mut w = World::new(mode);
            w.place("a", &bytes(2_000_000, 5), 0o644);
            w.model.change_before(at, move |fs| {
                let mut data = bytes(2_000_000, 5);
                data.resize(len, 7);
                fs.at_mut("a").unwrap().kind = Kind::File(data);
            });
            let job = w.get("a", known(2_000_000));
            w.run();
            assert!(w.done(job), "{mode:?}");
            let shrank = w.warnings().iter().any(|t| t.contains("shrank"));
            assert_eq!(shrank, len < 2_000_000, "{mode:?} {at} {len}");
            // Bytes read before the change stay, as with scp.
            let got = w.got("a").unwrap();
            let old = bytes(2_000_000, 5);
            if shrank {
                assert!(
                    got.len() >= len && old.starts_with(got),
                    "{mode:?} {at} {len}"
                );
            } else {
                assert!(got.starts_with(&old), "{mode:?} {at} {len}");
            }
        }
    }
}

/// Such a file was reported as renamed.
#[test]
fn a_file_that_nothing_can_be_made_beside_is_told_to_be_written_in_place() {
    for mode in MODES {
        for len in [10, 300_000] {
            let mut w = World::new(mode);
            w.disk.unwritable = true;
            w.place("a", &bytes(len, 5), 0o644);
            let job = w.get("a", known(len as u64));
            w.run();
            assert!(w.done(job), "{mode:?}");
            assert!(w.reached(job, FileCopyState::Closed).is_some());
            assert_eq!(w.reached(job, FileCopyState::Renamed), None, "{mode:?}");
            assert!(w.at(&LaneEvent::InPlace(job)).is_some(), "{mode:?}");
            assert_eq!(w.whys_in_place(), [schedule::UNWRITABLE]);
            assert_eq!(w.warnings(), [""; 0]);
        }
    }
}

#[test]
fn what_is_no_file_is_never_opened() {
    let mut w = World::new(Mode::Plain);
    w.model.fs.place("d", Kind::Dir, 0o755);
    let jobs = [
        w.get("d", None),
        w.get("/dev/null", None),
        w.get("none", None),
    ];
    w.run();
    assert_eq!(
        w.failed(jobs[0]),
        Some("it is a directory: use -r to copy it")
    );
    assert_eq!(w.failed(jobs[1]), Some("not a regular file"));
    assert_eq!(w.failed(jobs[2]), Some("no such file or directory"));
    assert!(!w.model.log().contains(&"OPEN"));
}

#[test]
fn a_slow_disk_holds_reads_back() {
    for mode in MODES {
        let fast = VirtualLinkOptions {
            delay: Duration::from_millis(1),
            bandwidth: 1_000_000_000,
            ..link()
        };
        let mut config = config(mode, 1);
        config.unwritten = 1 << 20;
        let most = config.bytes.max + config.unwritten + (1 << 18);
        let mut w = World::with(config, SftpServerProfile::openssh(), fast, 1);
        w.disk.latency = Duration::from_millis(500);
        w.place("a", &bytes(60_000_000, 5), 0o644);
        w.get("a", None);
        w.run();
        assert!(w.got("a") == Some(bytes(60_000_000, 5).as_slice()));
        assert!(w.unwritten <= most, "{}", w.unwritten);
        assert!(w.lane.stats().stalls_disk > 0);
    }
}

#[test]
fn a_full_disk_here_discards_and_goes_on() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.disk.full_at = Some(1_000_000);
        w.place("a", &bytes(5_000_000, 5), 0o644);
        w.place("e", b"", 0o644);
        let job = w.get("a", None);
        let empty = w.get("e", None);
        w.run();
        assert_eq!(w.failed(job), Some("no space left on device"));
        assert!(w.done(empty));
        assert!(w.got("a").is_none());
        assert_eq!((w.disk.targets(), w.lane.stats().unwritten), (0, 0));
        assert_eq!(w.model.open_handles().0, 0);
    }
}

/// Such a file was stored with exit code 0, as if it had shrunk.
#[test]
fn a_file_that_ends_before_its_stated_size_is_not_stored() {
    let acts = [Act::Status(StatusCode::EOF), Act::Data(Vec::new())];
    for (mode, act) in MODES
        .into_iter()
        .flat_map(|m| acts.iter().map(move |a| (m, a)))
    {
        for (len, nth, listed) in [(10, 0, true), (10, 0, false), (2_000_000, 3, true)] {
            let mut w = World::new(mode);
            w.place("a", &bytes(len, 5), 0o644);
            w.place("b", b"b", 0o644);
            for kind in ["READ", "read-zstd@longhaul"].map(Some) {
                let act = act.clone();
                w.model.inject(InjectedFault { kind, nth, act });
            }
            w.model.cut_at = Some(4);
            let job = w.get("a", listed.then(|| known(len as u64)).flatten());
            w.run();
            let why = w.failed(job).unwrap_or_default();
            assert!(
                why.contains("the server still reports the full size"),
                "{mode:?} {len}: {why}"
            );
            let other = w.get("b", known(1));
            w.run();
            assert!(w.done(other) && w.got("a").is_none(), "{mode:?} {len}");
            assert_eq!(w.disk.targets(), 0);
        }
    }
}

/// The size is asked for again, and the answer may be an error.
#[test]
fn a_file_that_vanishes_while_it_is_read_short_is_an_error() {
    let mut w = World::new(Mode::Remembered);
    w.place("a", &bytes(1000, 5), 0o644);
    w.model.inject(InjectedFault {
        kind: Some("READ"),
        nth: 0,
        act: Act::Data(Vec::new()),
    });
    w.model.inject(InjectedFault {
        kind: Some("STAT"),
        nth: 0,
        act: Act::Status(StatusCode::NO_SUCH_FILE),
    });
    let job = w.get("a", known(1000));
    w.run();
    let why = w.failed(job).unwrap_or_default();
    assert!(
        why.contains(
            "the end of the file after 0 of 1000 bytes: its size cannot be read again: no such file"
        ),
        "{why} {:?}",
        w.model.log()
    );
}

/// A server that answers out of order sends the end of the file before its size.
#[test]
fn the_size_counts_however_late_it_comes() {
    for seed in 0..20 {
        let server = SftpServerProfile {
            shuffles: true,
            ..SftpServerProfile::other()
        };
        let mut config = config(Mode::Plain, 1);
        config.openssh = false;
        let mut w = World::with(config, server, link(), seed);
        w.place("a", &bytes(1000, 5), 0o644);
        for nth in 0..4 {
            let (kind, act) = (Some("READ"), Act::Status(StatusCode::EOF));
            w.model.inject(InjectedFault { kind, nth, act });
        }
        let job = w.get("a", known(0));
        w.run();
        assert!(w.failed(job).is_some(), "{seed}");
    }
}

/// Bug: a source that was overwritten under way was copied as a mix of both versions without a word.
#[test]
fn a_file_that_changes_while_it_is_read_is_reported_with_what_it_is_now() {
    for mode in MODES {
        for (changes, len) in [(false, 2_000_000), (true, 2_000_000), (true, 2_500_000)] {
            let mut w = World::new(mode);
            w.place("a", &bytes(2_000_000, 5), 0o644);
            w.model.change_before(6, move |fs| {
                let node = fs.at_mut("a").unwrap();
                if changes {
                    node.times.1 += 9;
                    node.kind = Kind::File(bytes(len, 6));
                }
            });
            let job = w.get("a", known(2_000_000));
            w.run();
            assert!(w.done(job), "{mode:?}");
            let is_reported = |event: &LaneEvent| matches!(event, LaneEvent::Attributes(..));
            let reports = w.events.iter().filter(|(_, e)| is_reported(e)).count();
            let grew = w.warnings().iter().any(|t| t.contains("grew"));
            assert_eq!(grew, len > 2_000_000, "{mode:?} {len}");
            assert_eq!(reports, usize::from(changes && !grew), "{mode:?} {len}");
        }
    }
}

/// A download between two hosts may wait for its upload, which may be queued behind that of another
/// file: the download of that file goes on.
#[test]
fn a_download_that_waits_for_its_upload_leaves_the_lane_to_others() {
    let mut config = config(Mode::Predicting, 1);
    config.openssh = false;
    config.unwritten = 1 << 20;
    let mut w = World::with(config, SftpServerProfile::other(), link(), 1);
    let relayed = || FileCopyOptions {
        local_end: LocalEnd::OtherHost,
        ..FileCopyOptions::default()
    };
    let files = [("waits", 20_000_000), ("moves", 3_000_000)];
    for (name, size) in files {
        w.place(name, &bytes(size, size as u64), 0o644);
    }
    let [waits, _] = files.map(|(name, size)| w.get_with(name, known(size as u64), relayed()));
    w.disk.slow = Some(waits);
    w.run_for(Duration::from_secs(30));
    let got = |w: &World, (name, size)| w.got(name) == Some(&bytes(size, size as u64)[..]);
    assert!(got(&w, files[1]) && !w.done(waits));
    assert!(w.disk.held < 4_000_000, "{} bytes", w.disk.held);
    w.disk.slow = None;
    w.run();
    assert!(got(&w, files[0]));
}
