//! Small files in one request each, on a longhaul server.

use schedule::{Attributes, FileCopyOptions, FileCopyState, JobId, LaneError, ResumeData};
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile};

use crate::world::{Mode, RTT, World, bytes, config, info_of, link};
use sftp::StatusCode;

fn remembered() -> World {
    let mut config = config(Mode::Ours, 1);
    // The server may run behind any SSH server.
    config.openssh = false;
    config.remembered = Some(info_of(&SftpServerProfile::ours()));
    World::with(config, SftpServerProfile::ours(), link(), 1)
}

fn count(w: &World, name: &str) -> usize {
    w.model.log().iter().filter(|n| **n == name).count()
}

fn known(size: u64) -> Option<Attributes> {
    Some(Attributes {
        size: Some(size),
        mode: Some(0o100_644),
        ..Attributes::default()
    })
}

#[test]
fn a_small_file_stands_after_one_round_trip() {
    for old in [false, true] {
        let mut w = remembered();
        if old {
            w.place("a", b"old", 0o640);
        }
        let job = w.put(bytes(1024, 1), "a", FileCopyOptions::default());
        w.run();
        assert_eq!(w.reached(job, FileCopyState::Renamed), Some(RTT));
        assert_eq!(w.model.fs.data("a"), Some(bytes(1024, 1).as_slice()));
        let mode = if old { 0o640 } else { 0o644 };
        assert_eq!(w.model.fs.at("a").map(|n| n.mode), Some(mode));
        assert!(!w.model.log().contains(&"OPEN"));
    }
}

#[test]
fn two_thousand_are_two_thousand_requests_each_way() {
    let mut w = World::new(Mode::Ours);
    for i in 0..2000 {
        w.put(bytes(4096, i), &format!("f{i}"), FileCopyOptions::default());
    }
    w.run();
    assert!(w.now - w.start <= 5 * RTT, "{:?}", w.now - w.start);
    for i in 0..2000 {
        let data = w.model.fs.data(&format!("f{i}"));
        assert_eq!(data, Some(bytes(4096, i).as_slice()));
    }
    assert_eq!(count(&w, "put-file@longhaul"), 2000);
    assert!(w.model.log().len() <= 2001, "{}", w.model.log().len());

    let fs = w.model.fs.clone();
    let mut w = World::new(Mode::Ours);
    w.model.fs = fs;
    for i in 0..2000 {
        w.get(&format!("f{i}"), known(4096));
    }
    w.run();
    assert!(w.now - w.start <= 5 * RTT, "{:?}", w.now - w.start);
    for i in 0..2000 {
        assert_eq!(w.got(&format!("f{i}")), Some(bytes(4096, i).as_slice()));
    }
    let asked = ["get-file@longhaul", "get-file-zstd@longhaul"].map(|name| count(&w, name));
    assert_eq!(asked[0] + asked[1], 2000);
    assert!(w.model.log().len() <= 2001, "{}", w.model.log().len());
    assert_eq!((w.lane.stats().unwritten, w.disk.targets()), (0, 0));
}

#[test]
fn what_nothing_is_known_of_comes_without_being_asked_about() {
    let mut w = remembered();
    w.place("a", &bytes(4096, 1), 0o644);
    w.place("large", &bytes(1_000_000, 2), 0o644);
    w.model.fs.place("d", Kind::Dir, 0o755);
    let a = w.get("a", None);
    let large = w.get("large", None);
    let others = [w.get("/dev/null", None), w.get("d", None)];
    w.run();
    assert!(w.done(a) && w.done(large));
    assert!(
        w.reached(a, FileCopyState::Renamed)
            .is_some_and(|at| at == RTT)
    );
    assert!(w.got("large") == Some(bytes(1_000_000, 2).as_slice()));
    assert_eq!(count(&w, "STAT"), 0);
    assert_eq!(w.failed(others[0]), Some("not a regular file"));
    assert_eq!(
        w.failed(others[1]),
        Some("it is a directory: use -r to copy it")
    );
}

/// Only the small file is sent in one request.
#[test]
fn a_small_file_does_not_wait_for_a_large_one() {
    let mut w = remembered();
    let large = w.put(bytes(40 << 20, 1), "large", FileCopyOptions::default());
    let small = w.put(bytes(4096, 2), "small", FileCopyOptions::default());
    w.run();
    let at = |job| w.reached(job, FileCopyState::Renamed);
    assert!(at(small) < at(large), "{:?} {:?}", at(small), at(large));
    assert_eq!(count(&w, "put-file@longhaul"), 1);
}

#[test]
fn a_refusal_is_told_in_the_servers_words() {
    let mut w = remembered();
    w.model.fs.capacity = 1000;
    let job = w.put(bytes(4096, 1), "a", FileCopyOptions::default());
    let none = w.put(bytes(10, 1), "none/a", FileCopyOptions::default());
    let get = w.get("b", known(10));
    w.run();
    for (job, words) in [
        (job, "failure"),
        (none, "no such file"),
        (get, "no such file"),
    ] {
        let told = w.failed(job).map(str::to_lowercase);
        assert!(told.as_ref().is_some_and(|t| t.contains(words)), "{told:?}");
    }
    assert_eq!(w.model.fs.names(), Vec::<String>::new());
}

#[test]
fn a_server_that_cannot_is_asked_plainly() {
    let mut w = remembered();
    for kind in ["put-file@longhaul", "get-file@longhaul"] {
        let act = Act::Status(StatusCode::OP_UNSUPPORTED);
        let nth = 0;
        w.model.inject(InjectedFault {
            kind: Some(kind),
            nth,
            act,
        });
    }
    w.place("b", &bytes(100, 2), 0o644);
    let put = w.put(bytes(4096, 1), "a", FileCopyOptions::default());
    let get = w.get("b", known(100));
    w.run();
    assert!(w.done(put) && w.done(get));
    assert_eq!(w.model.fs.data("a"), Some(bytes(4096, 1).as_slice()));
    assert_eq!(w.got("b"), Some(bytes(100, 2).as_slice()));
    assert_eq!(w.temporaries(), Vec::<String>::new());
}

#[test]
fn a_file_that_differs_from_its_listing_is_read_to_its_end() {
    for (said, has) in [
        (10, 100_000),
        (10, 200_000),
        (100_000, 10),
        (10, 131_072),
        (1, 0),
    ] {
        let mut w = World::new(Mode::Ours);
        w.place("a", &bytes(has, 5), 0o644);
        let job = w.get("a", known(said));
        w.run();
        assert!(w.done(job), "{said} {has}");
        assert!(w.got("a") == Some(bytes(has, 5).as_slice()), "{said} {has}");
    }
}

/// A server that sends more than requested could otherwise choose the memory used here.
#[test]
fn more_than_was_asked_for_ends_the_lane() {
    let mut w = World::new(Mode::Ours);
    w.model.excess = 1 << 20;
    w.place("a", &bytes(200_000, 5), 0o644);
    w.get("a", known(10));
    w.run();
    let error = w.error.clone();
    assert!(
        matches!(
            error,
            Some(LaneError::Protocol(sftp::Error::TooMuchData { .. }))
        ),
        "{error:?}"
    );
    assert_eq!(w.got("a"), None);
}

/// A resumed copy must find the temporary if the far machine dies before the rename.
#[test]
fn a_temporary_has_the_name_that_was_written_down() {
    let keep = ResumeData {
        tag: 0x1234_5678,
        again: 1,
        ..ResumeData::default()
    };
    let names: Vec<Vec<u8>> = ResumeData::names(b"a", keep.tag).collect();
    let mut w = remembered();
    for name in names.iter().skip(3).take(1) {
        let name = String::from_utf8(name.clone()).unwrap();
        w.place(&name, b"left", 0o600);
    }
    let options = FileCopyOptions {
        keep: Some(Box::new(keep)),
        ..FileCopyOptions::default()
    };
    let job = w.put(bytes(10, 1), "a", options);
    w.run();
    // The model server tries one name, which is taken.
    assert!(w.failed(job).is_some(), "{:?}", w.events);
}

#[test]
fn a_cancel_waits_for_what_may_stand() {
    let mut w = remembered();
    let jobs: Vec<JobId> = (0..50)
        .map(|i| w.put(bytes(4096, i), &format!("f{i}"), FileCopyOptions::default()))
        .collect();
    w.run_for(RTT / 4);
    w.lane.cancel(w.now, "interrupted");
    w.jobs.clear();
    w.run();
    for (i, job) in jobs.into_iter().enumerate() {
        let stands = w.model.fs.data(&format!("f{i}")).is_some();
        assert_eq!(w.done(job), stands, "{:?}", w.failed(job));
    }
    assert_eq!(w.temporaries(), Vec::<String>::new());
    assert_eq!(w.disk.open_sources(), 0);
}

#[test]
fn a_lost_channel_is_done_again() {
    let mut w = remembered();
    for i in 0..50 {
        w.put(bytes(4096, i), &format!("f{i}"), FileCopyOptions::default());
    }
    w.run_for(RTT / 4);
    let again = {
        let mut config = config(Mode::Ours, 2);
        config.remembered = Some(info_of(&SftpServerProfile::ours()));
        config
    };
    w.reconnect(again);
    w.run();
    for i in 0..50 {
        let data = w.model.fs.data(&format!("f{i}"));
        assert_eq!(data, Some(bytes(4096, i).as_slice()));
    }
}
