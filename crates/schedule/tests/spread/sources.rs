//! Sources that change while their parts are being copied.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{FileCopyOptions, LaneEvent, SchedulerEvent};
use testkit::sftp_model::{Act, InjectedFault, Kind};

use crate::world::{World, bytes};

const MB: usize = 1 << 20;

fn warned(w: &World, text: &str) -> bool {
    w.events.iter().any(|(_, e)| match e {
        SchedulerEvent::Lane(LaneEvent::Warning(_, said)) => said.contains(text),
        SchedulerEvent::Lane(LaneEvent::SourceShrank(_)) => schedule::SOURCE_SHRANK.contains(text),
        SchedulerEvent::Lane(LaneEvent::SourceGrew(_)) => schedule::SOURCE_GREW.contains(text),
        _ => false,
    })
}

#[test]
fn a_source_that_shrinks_is_cut_where_it_ended() {
    for ms in [200, 300, 400, 500] {
        for len in [0, 100_000, MB, 3 * MB + 77] {
            let mut w = World::with_lanes(3);
            let data = bytes(6 * MB, 1);
            let job = w.put(data.clone(), "up", FileCopyOptions::default());
            w.run_for(Duration::from_millis(ms));
            let source = w.disk.sources.get_mut(&PathBuf::from("/src/up"));
            source.expect("the source").data.truncate(len);
            w.run();
            assert!(w.done(job), "{:?}", w.failed(job));
            let got = w.fs.data("up").expect("it stands").to_vec();
            assert!(got.len() >= len, "{len}: {}", got.len());
            assert!(data.starts_with(&got), "after {ms} ms, cut to {len}");
            assert!(warned(&w, "shrank") || got.len() == data.len());
            w.assert_clean();
        }
    }
}

#[test]
fn a_source_that_grows_is_sent_with_what_was_added() {
    let mut w = World::with_lanes(3);
    let data = bytes(6 * MB, 1);
    let job = w.put(data.clone(), "up", FileCopyOptions::default());
    // The end has not been read yet.
    w.run_for(Duration::from_millis(180));
    let more = [data, bytes(2 * MB, 9)].concat();
    let source = w.disk.sources.get_mut(&PathBuf::from("/src/up"));
    source.expect("the source").data.clone_from(&more);
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("up") == Some(&more));
    assert_eq!(w.progress(job), more.len() as u64);
    w.assert_clean();
}

#[test]
fn a_disk_that_breaks_fails_the_file_once() {
    let mut w = World::with_lanes(3);
    w.place("up", b"old", 0o644);
    w.disk.bad_from = Some(4 * MB as u64);
    let job = w.put(bytes(6 * MB, 1), "up", FileCopyOptions::default());
    w.run();
    assert_eq!(w.failed(job), Some("input/output error"));
    assert!(w.fs.data("up") == Some(b"old"));
    w.assert_clean();
}

#[test]
fn a_full_disk_here_fails_the_download_once() {
    let mut w = World::with_lanes(3);
    w.disk.full_at = Some(2 * MB as u64);
    w.place("down", &bytes(6 * MB, 2), 0o644);
    let job = w.get("down");
    w.run();
    assert_eq!(w.failed(job), Some("no space left on device"));
    assert_eq!(w.got("down"), None);
    w.assert_clean();
}

/// The journal went on listing the bytes of a file whose temporary was removed.
#[test]
fn a_failed_file_tells_if_its_temporary_was_removed() {
    let keep = FileCopyOptions {
        keep: Some(Box::default()),
        ..FileCopyOptions::default()
    };
    let mut w = World::with_lanes(3);
    w.fs.capacity = 2 * MB as u64;
    let job = w.put(bytes(6 * MB, 1), "up", keep);
    w.run();
    assert!(w.failed(job).is_some() && w.has_removed(job));
    w.assert_clean();

    let mut w = World::with_lanes(3);
    w.disk.full_at = Some(2 * MB as u64);
    w.place("down", &bytes(6 * MB, 2), 0o644);
    let job = w.get("down");
    w.run();
    assert!(w.failed(job).is_some() && w.has_removed(job));
}

#[test]
fn a_source_that_is_not_there_fails() {
    let mut w = World::with_lanes(2);
    w.place("down", &bytes(MB, 2), 0o644);
    let get = w.get("down");
    let put = w.put(bytes(MB, 2), "up", FileCopyOptions::default());
    w.disk.sources.clear();
    w.fs = testkit::sftp_model::Fs::default();
    w.run();
    assert_eq!(w.failed(put), Some("no such file"));
    assert!(w.failed(get).is_some_and(|why| why.contains("cannot open")));
    w.assert_clean();
}

#[test]
fn a_remote_file_replaced_under_way_is_read_from_one_opening() {
    for ms in [300, 400, 500, 600] {
        let mut w = World::with_lanes(3);
        w.place("down", &bytes(6 * MB, 2), 0o644);
        let job = w.get("down");
        w.run_for(Duration::from_millis(ms));
        let (old, new) = (bytes(6 * MB, 2), bytes(5 * MB, 3));
        w.fs.place("down", Kind::File(new.clone()), 0o644);
        if let Some(node) = w.fs.at_mut("down") {
            node.times = (77, 77);
        }
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        let got = w.got("down").expect("it stands");
        assert!(got == old || got == new, "after {ms} ms: a mixture");
        assert_eq!(w.progress(job), got.len() as u64);
        w.assert_clean();
    }
}

#[test]
fn a_listing_that_lies_about_the_size() {
    for (said, really) in [(6 * MB, MB), (MB, 6 * MB), (MB, 10), (MB, 0)] {
        let mut w = World::with_lanes(3);
        w.place("down", &bytes(said, 2), 0o644);
        let job = w.get("down");
        let data = bytes(really, 5);
        w.place("down", &data, 0o644);
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.got("down") == Some(&data), "said {said}, had {really}");
        w.assert_clean();
    }
}

#[test]
fn sizes_of_a_lying_listing_add_up_without_overflow() {
    let mut w = World::with_lanes(2);
    w.place("one", b"short", 0o644);
    w.place("two", b"short", 0o644);
    w.place("three", &bytes(MB, 3), 0o644);
    for (name, size) in [
        ("one", u64::MAX),
        ("two", u64::MAX),
        ("three", u64::MAX - 7),
    ] {
        w.get_sized(name, size);
    }
    assert_eq!(w.spread.remaining(), u64::MAX);
    w.run();
    assert_eq!(w.spread.remaining(), 0);
    for name in ["one", "two", "three"] {
        let whole = w.got(name) == w.fs.data(name);
        assert!(whole || w.got(name).is_none(), "{name}");
    }
}

/// A part that ended early was taken for a file that had shrunk.
#[test]
fn a_part_that_ends_early_fails_the_file_unless_it_has_shrunk() {
    for nth in [0, 3, 7] {
        for lane in 0..3 {
            for all in [true, false] {
                let mut w = World::with_lanes(3);
                let data = bytes(6 * MB, 2);
                w.place("down", &data, 0o644);
                let ids: Vec<_> = w.lanes.keys().copied().collect();
                for nth in nth..if all { nth + 200 } else { nth + 1 } {
                    let (kind, act) = (Some("READ"), Act::Data(Vec::new()));
                    w.inject(ids[lane], InjectedFault { kind, nth, act });
                }
                let job = w.get("down");
                w.run();
                match w.done(job) {
                    true => assert!(w.got("down") == Some(&data), "{nth} {lane} {all}"),
                    false => {
                        let why = w.failed(job).unwrap_or_default();
                        assert!(
                            why.contains("the server still reports the full size"),
                            "{why}"
                        );
                        assert_eq!(w.got("down"), None);
                    }
                }
                w.assert_clean();
            }
        }
    }
}
