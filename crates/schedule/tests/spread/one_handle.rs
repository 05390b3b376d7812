//! Servers that are not known to support several handles on one file.

use schedule::LaneEvent;
use schedule::{FileCopyOptions, JobKind, PartialFile, ResumeData, SchedulerEvent};
use sftp::StatusCode;
use std::time::Duration;
use testkit::sftp_model::{ModelServerRestrictions, SftpServerProfile};

use crate::world::{World, bytes, link, small};

const MB: usize = 1 << 20;

fn world(restrictions: ModelServerRestrictions, lanes: usize) -> World {
    let mut w = World::new(small(), 1);
    for _ in 0..lanes {
        let server = SftpServerProfile {
            restrictions: restrictions.clone(),
            ..SftpServerProfile::other()
        };
        w.lane_of(link(100, 10_000_000), false, server);
    }
    w
}

fn in_order() -> ModelServerRestrictions {
    ModelServerRestrictions {
        in_order: true,
        locks: true,
        ..ModelServerRestrictions::default()
    }
}

/// From 8 MiB on, the parts of a file used to be written through one handle each, in any order.
#[test]
fn a_file_is_open_once_and_written_in_order() {
    for preserve in [false, true] {
        let mut w = world(in_order(), 3);
        w.place("down", &bytes(5 * MB, 2), 0o644);
        let options = FileCopyOptions {
            preserve,
            fsync: preserve,
            ..FileCopyOptions::default()
        };
        let data = bytes(6 * MB, 1);
        let up = w.put(data.clone(), "up", options);
        let down = w.get("down");
        w.run();
        assert!(w.done(up) && w.done(down), "{:?}", w.failed(up));
        assert!(w.fs.data("up") == Some(&data));
        assert_eq!(w.progress(up), data.len() as u64);
        let opens = w.given.iter().filter(|(_, job)| match &job.kind {
            JobKind::CreateTemp { alone, .. } => *alone,
            JobKind::PutRange { .. } | JobKind::GetRange { .. } => true,
            JobKind::FinishTemp { set, .. } => !*set,
            _ => false,
        });
        assert_eq!(opens.count(), 2, "{:?}", w.given);
        w.assert_clean();
    }
}

#[test]
fn a_lane_that_is_lost_gives_its_file_to_another() {
    for ms in (150..900).step_by(50) {
        let mut w = world(in_order(), 2);
        w.place("down", &bytes(5 * MB, 2), 0o644);
        let data = bytes(5 * MB, 1);
        let up = w.put(data.clone(), "up", FileCopyOptions::default());
        let down = w.get("down");
        w.run_for(Duration::from_millis(ms));
        let first = *w.lanes.keys().next().expect("a lane");
        w.lose(first);
        w.run();
        assert!(w.done(up) && w.done(down), "{ms}: {:?}", w.failed(up));
        assert!(w.fs.data("up") == Some(&data), "{ms}");
        w.assert_clean();
    }
}

/// The refusal of a rename is known only at the end of a file.
#[test]
fn a_large_file_is_written_in_place_where_nothing_is_renamed() {
    let mut restrictions = in_order();
    restrictions
        .refused
        .insert("RENAME", StatusCode::OP_UNSUPPORTED);
    let mut w = world(restrictions, 2);
    w.place("old", b"old", 0o640);
    let data = bytes(3 * MB, 1);
    let jobs = ["old", "new"].map(|name| w.put(data.clone(), name, FileCopyOptions::default()));
    w.run();
    for (job, name) in jobs.into_iter().zip(["old", "new"]) {
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.fs.data(name) == Some(&data), "{name}");
    }
    let told = |(_, event): &(_, SchedulerEvent)| matches!(event, SchedulerEvent::Lane(LaneEvent::Refused(_, found, _)) if found.renames);
    assert!(w.events.iter().any(told));
    w.assert_clean();
}

/// Bug: when somebody removed a temporary, or the directory, the server counted as one that renames
/// nothing: every later copy to it was written in place.
#[test]
fn a_temporary_that_is_gone_says_nothing_about_the_server() {
    let mut restrictions = in_order();
    restrictions
        .refused
        .insert("RENAME", StatusCode::NO_SUCH_FILE);
    let mut w = world(restrictions, 2);
    let data = bytes(MB, 1);
    let job = w.put(data.clone(), "new", FileCopyOptions::default());
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("new") == Some(&data));
    let told = |(_, event): &(_, SchedulerEvent)| {
        matches!(event, SchedulerEvent::Lane(LaneEvent::Refused(..)))
    };
    assert!(!w.events.iter().any(told), "{:?}", w.events);
    let warns = |(_, event): &(_, SchedulerEvent)| {
        matches!(event, SchedulerEvent::Lane(LaneEvent::WhyInPlace(..)))
    };
    assert!(w.events.iter().any(warns), "{:?}", w.events);
    w.assert_clean();
}

/// A server that takes data in order only refused the first WRITE behind the end of an earlier run,
/// and the copy failed.
#[test]
fn an_upload_of_an_earlier_run_is_continued_or_else_sent_from_the_start() {
    for in_order in [false, true] {
        let restrictions = ModelServerRestrictions {
            in_order,
            locks: true,
            ..ModelServerRestrictions::default()
        };
        let mut w = world(restrictions, 1);
        let data = bytes(3 * MB, 5);
        let keep = ResumeData {
            tag: 7,
            left: Some(PartialFile {
                ranges: vec![(0, MB as u64)],
                mtime: 0,
                source: (0, 0),
            }),
            ..ResumeData::default()
        };
        let temp = String::from_utf8(keep.temporary(b"up", 0)).expect("letters");
        // Other bytes than the source's, to see which of them stay.
        let old = bytes(MB, 6);
        w.place(&temp, &old, 0o600);
        let options = FileCopyOptions {
            keep: Some(Box::new(keep)),
            ..FileCopyOptions::default()
        };
        let up = w.put(data.clone(), "up", options);
        w.run();
        assert!(w.done(up), "in order {in_order}: {:?}", w.failed(up));
        let there = w.fs.data("up").unwrap_or_default();
        let front = if in_order { &data[..MB] } else { &old };
        assert!(
            there[..MB] == *front && there[MB..] == data[MB..],
            "in order {in_order}"
        );
        let told = w.events.iter().any(|(_, event)| {
            matches!(event, SchedulerEvent::Lane(LaneEvent::Warning(_, text))
                if text.contains("cannot resume this file"))
        });
        assert_eq!(told, in_order);
        assert_eq!(w.progress(up), data.len() as u64, "in order {in_order}");
        w.assert_clean();
    }
}
