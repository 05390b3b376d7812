//! Downloads of files with an older local version.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{Attributes, FileCopyOptions, FileCopyState, JobId, JobKind, LaneEvent};
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile, VirtualLinkOptions};

use crate::world::{Mode, RTT, World, bytes, config, link, remote};

const SIZE: usize = 3 << 20;

fn world(mode: Mode) -> World {
    let mut config = config(mode, 1);
    config.remembered = None;
    World::with(config, SftpServerProfile::ours(), link(), 1)
}

fn target() -> PathBuf {
    PathBuf::from("/dst/new")
}

fn older(w: &mut World, data: &[u8]) {
    let file = (data.to_vec(), Attributes::default());
    w.disk.files.insert(target(), file);
}

fn get(w: &mut World) -> JobId {
    w.job(JobKind::GetDelta {
        source: remote("new"),
        target: target().into(),
        known: None,
        options: FileCopyOptions::default(),
        always: false,
    })
}

fn here(w: &World) -> &[u8] {
    &w.disk.files[&target()].0
}

/// Returns `old` with some places overwritten, an insertion, and its end cut.
fn changed(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    for at in [0, 100_000, 1_500_000] {
        new[at..at + 3000].copy_from_slice(&bytes(3000, at as u64 + 9));
    }
    new.splice(2_000_000..2_000_000, bytes(12_345, 77));
    new.truncate(SIZE - 50_000);
    new
}

fn nothing_is_left(w: &World) {
    assert_eq!(w.disk.targets(), 0);
    assert_eq!(w.model.open_handles().0, 0);
}

fn abandoned(w: &World, id: JobId) -> bool {
    w.at(&LaneEvent::Abandoned(id)).is_some()
}

/// The decision of a copy without `--delta`, by the round trip. Over real processes a busy machine
/// answered late enough for a long path.
#[test]
fn between_near_machines_a_file_is_read_whole() {
    for (rtt, rebuilt) in [(100, true), (11, true), (9, false), (1, false)] {
        let old = bytes(SIZE, 5);
        let link = VirtualLinkOptions {
            delay: Duration::from_millis(rtt) / 2,
            ..link()
        };
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        let mut w = World::with(config, SftpServerProfile::ours(), link, 1);
        older(&mut w, &old);
        w.place("new", &changed(&old), 0o640);
        let id = get(&mut w);
        w.run();
        let done = (w.done(id), abandoned(&w, id));
        assert_eq!(done, (rebuilt, !rebuilt), "{rtt} ms: {:?}", w.events);
        nothing_is_left(&w);
    }
}

fn moved(w: &World) -> (u64, u64) {
    let mut moved = (0, 0);
    for (_, event) in &w.events {
        match event {
            LaneEvent::Progress(_, n) => moved.0 += n,
            LaneEvent::Reused(_, n) => moved.1 += n,
            _ => {}
        }
    }
    moved
}

#[test]
fn only_what_changed_is_read_and_the_file_is_the_source() {
    type Change = fn(&[u8]) -> Vec<u8>;
    let block = 4096;
    let cases: [(&str, Change, u64); 9] = [
        ("some of everything", changed, 80_000),
        ("nothing", <[u8]>::to_vec, 0),
        (
            "a hundredth",
            |old| {
                let mut new = old.to_vec();
                for at in (0..SIZE - 400).step_by(SIZE / 80) {
                    new[at..at + 400].copy_from_slice(&bytes(400, at as u64 + 3));
                }
                new
            },
            81 * 2 * block,
        ),
        (
            "inserted at the front",
            |old| [b"front", old].concat(),
            2 * block,
        ),
        ("cut at the front", |old| old[5000..].to_vec(), 2 * block),
        ("shrunk", |old| old[..SIZE / 2 + 77].to_vec(), block),
        (
            "grown",
            |old| [old, &bytes(70_000, 8)].concat(),
            70_000 + 2 * block,
        ),
        ("the same twice", |old| [old, old].concat(), 2 * block),
        (
            "a block over and over",
            |old| [&old[8192..], &old[4096..8192].repeat(64), &bytes(9, 9)].concat(),
            2 * block,
        ),
    ];
    for mode in [Mode::Predicting, Mode::Plain] {
        for (what, change, most) in &cases {
            let old = bytes(SIZE, 5);
            let new = change(&old);
            let mut w = world(mode);
            older(&mut w, &old);
            w.place("new", &new, 0o644);
            let id = get(&mut w);
            w.run();
            assert!(w.done(id), "{what}: {:?}", w.events);
            assert!(here(&w) == new, "{what}");
            let read = new.len() as u64 - w.disk.copied;
            assert!(read <= *most, "{what}: {read} bytes were read");
            let all = new.len() as u64;
            assert_eq!(moved(&w), (all, w.disk.copied), "{what}");
            nothing_is_left(&w);
        }
    }
}

/// Counts the round trips: STAT, OPEN with the sums, and the READs of differences.
#[test]
fn sums_leave_with_the_open() {
    for (mode, trips) in [(Mode::Predicting, 4), (Mode::Plain, 5)] {
        let old = bytes(SIZE, 5);
        let mut w = world(mode);
        older(&mut w, &old);
        w.place("new", &changed(&old), 0o644);
        let id = get(&mut w);
        w.run();
        let named = w.reached(id, FileCopyState::Renamed).expect("it is there");
        assert!(named <= trips * RTT, "{mode:?}: {named:?}");
        nothing_is_left(&w);
    }
}

#[test]
fn what_cannot_be_rebuilt_is_left_to_a_plain_download() {
    let old = bytes(SIZE, 5);
    for (what, old, new) in [
        ("nothing is here", None, bytes(SIZE, 5)),
        ("it is small here", Some(bytes(5000, 1)), bytes(SIZE, 5)),
        ("it is small there", Some(old.clone()), bytes(5000, 5)),
        ("it is empty there", Some(old.clone()), Vec::new()),
        (
            "it is of another length",
            Some(old.clone()),
            bytes(13 << 20, 6),
        ),
    ] {
        let mut w = world(Mode::Predicting);
        if let Some(old) = &old {
            older(&mut w, old);
        }
        w.place("new", &new, 0o644);
        let id = get(&mut w);
        w.run();
        assert!(abandoned(&w, id), "{what}: {:?}", w.events);
        assert!(old.is_none_or(|old| here(&w) == old), "{what}");
        nothing_is_left(&w);
    }
    // A stock server is not asked for sums.
    let mut w = World::with(
        config(Mode::Plain, 1),
        SftpServerProfile::openssh(),
        link(),
        1,
    );
    older(&mut w, &old);
    w.place("new", &old, 0o644);
    let id = get(&mut w);
    w.run();
    assert!(abandoned(&w, id));
    assert!(!w.model.log().contains(&"OPEN"));
}

#[test]
fn a_file_in_which_nothing_is_found_is_read_plainly() {
    let mut w = world(Mode::Predicting);
    older(&mut w, &bytes(90 << 20, 1));
    w.place("new", &bytes(90 << 20, 2), 0o644);
    let id = get(&mut w);
    w.run();
    assert!(abandoned(&w, id), "{:?}", w.events);
    nothing_is_left(&w);
}

#[test]
fn a_server_that_lies_about_sums_is_found_out_before_the_name() {
    let old = bytes(SIZE, 5);
    let mut w = world(Mode::Plain);
    older(&mut w, &old);
    w.place("new", &changed(&old), 0o644);
    w.model.lies_about_sums = true;
    let id = get(&mut w);
    w.run();
    assert!(abandoned(&w, id), "{:?}", w.events);
    assert!(here(&w) == old);
    nothing_is_left(&w);
}

#[test]
fn a_file_that_changes_meanwhile_is_found_out() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    let reads = {
        let mut w = world(Mode::Plain);
        older(&mut w, &old);
        w.place("new", &new, 0o644);
        get(&mut w);
        w.run();
        let log = w.model.log();
        log.iter()
            .rposition(|name| name.starts_with("read-zstd") || *name == "READ")
    };
    for shorter in [false, true] {
        let mut w = world(Mode::Plain);
        older(&mut w, &old);
        w.place("new", &new, 0o644);
        w.model
            .change_before(reads.expect("something was read"), move |fs| {
                if let Some(node) = fs.at_mut("new")
                    && let Kind::File(data) = &mut node.kind
                {
                    match shorter {
                        true => data.truncate(10),
                        false => data.iter_mut().for_each(|byte| *byte ^= 1),
                    }
                }
            });
        let id = get(&mut w);
        w.run();
        assert!(abandoned(&w, id), "{:?}", w.events);
        assert!(here(&w) == old);
        nothing_is_left(&w);
    }
}

#[test]
fn whatever_fails_there_nothing_is_left_and_the_old_file_stands() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    for request in ["STAT", "OPEN", "FSTAT", "hash@longhaul", "READ", "CLOSE"] {
        for nth in 0..2 {
            let mut w = world(Mode::Predicting);
            older(&mut w, &old);
            w.place("new", &new, 0o644);
            w.model.inject(InjectedFault {
                kind: Some(request),
                nth,
                act: Act::Status(sftp::StatusCode::FAILURE),
            });
            let id = get(&mut w);
            w.run();
            let over = w.done(id) || abandoned(&w, id) || w.failed(id).is_some();
            assert!(over, "{request} {nth}: {:?}", w.events);
            let is = if w.done(id) { &new } else { &old };
            assert!(here(&w) == is, "{request} {nth}");
            nothing_is_left(&w);
        }
    }
}

#[test]
fn whatever_fails_here_nothing_is_left_and_the_old_file_stands() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    for nth in 0..24 {
        let mut w = world(Mode::Predicting);
        older(&mut w, &old);
        w.place("new", &new, 0o644);
        w.disk.faults.insert(nth);
        let id = get(&mut w);
        w.run();
        let over = w.done(id) || abandoned(&w, id) || w.failed(id).is_some();
        assert!(over, "{nth}: {:?}", w.events);
        let is = if w.done(id) { &new } else { &old };
        assert!(here(&w) == is, "{nth}");
        nothing_is_left(&w);
    }
}

#[test]
fn cancelled_at_any_moment_it_leaves_nothing() {
    let old = bytes(SIZE, 5);
    for step in 0..14 {
        let mut w = world(Mode::Predicting);
        older(&mut w, &old);
        w.place("new", &changed(&old), 0o644);
        let id = get(&mut w);
        w.run_for(Duration::from_millis(40 * step));
        w.lane.cancel(w.now, "interrupted");
        w.run();
        let is = match w.done(id) {
            true => changed(&old),
            false => old.clone(),
        };
        assert!(here(&w) == is, "{step}");
        nothing_is_left(&w);
    }
}

#[test]
fn after_a_connection_that_was_lost_in_the_middle_it_is_begun_again() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    for step in 1..8 {
        let mut w = world(Mode::Predicting);
        older(&mut w, &old);
        w.place("new", &new, 0o644);
        let id = get(&mut w);
        w.run_for(Duration::from_millis(60 * step));
        w.reconnect(config(Mode::Plain, 2));
        w.run();
        assert!(w.done(id), "{step}: {:?}", w.events);
        assert!(here(&w) == new, "{step}");
        nothing_is_left(&w);
    }
}

/// A hostile server's claims are checked against the request: too many or too few sums for the
/// range, an answer longer than its READ, an impossible size.
#[test]
fn what_a_hostile_far_end_claims_ends_the_rebuild_or_the_channel() {
    let old = bytes(SIZE, 5);
    for body in [0, 19, 20, 20 * 767, 20 * 769, 250_000] {
        let mut w = world(Mode::Plain);
        older(&mut w, &old);
        w.place("new", &changed(&old), 0o644);
        w.model.inject(InjectedFault {
            kind: Some("hash@longhaul"),
            nth: 0,
            act: Act::Reply(vec![7; body]),
        });
        let id = get(&mut w);
        w.run();
        let over = abandoned(&w, id) || w.failed(id).is_some() || w.error.is_some();
        assert!(over, "{body}: {:?}", w.events);
        assert!(here(&w) == old, "{body}");
    }
}
