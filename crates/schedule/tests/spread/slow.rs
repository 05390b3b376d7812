//! Lanes that are slow or stalled.

use std::time::Duration;

use schedule::{
    FileCopyOptions, JobFailureKind, JobHint, JobId, LaneEvent, RefusedOperations, ResumeData,
    SchedulerEvent,
};
use sftp::StatusCode;
use testkit::sftp_model::SftpServerProfile;

use crate::world::{World, bytes, link, small};

const MB: usize = 1 << 20;

/// Returns four lanes, one of them slower by `factor`.
fn uneven(factor: u64) -> World {
    let mut w = World::new(small(), 9);
    for n in 0..4 {
        let rate = 8_000_000 / if n == 1 { factor } else { 1 };
        w.lane(link(60, rate), true);
    }
    w
}

#[test]
fn the_end_does_not_wait_for_a_slow_lane() {
    let time = |factor| {
        let mut w = uneven(factor);
        let data = bytes(20 * MB, 1);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.fs.data("up") == Some(&data));
        assert_eq!(w.progress(job), data.len() as u64);
        w.assert_clean();
        w.at(&LaneEvent::Done(job)).unwrap().as_secs_f64()
    };
    let (even, slow) = (time(1), time(40));
    // Three lanes instead of four; the slow lane's window still has to drain.
    assert!(
        slow < even * 4.0 / 3.0 + 2.5,
        "{even} s, with a slow lane {slow} s"
    );
}

/// Lanes that lost packets at the end of slow start were taken for slow ones: 30 % of 16 MiB were
/// sent twice over the path that all lanes shared.
#[test]
fn a_lane_that_is_a_little_slower_keeps_its_work() {
    for factor in [3, 4, 7, 8] {
        let mut w = uneven(factor);
        let data = bytes(8 * MB, 1);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.fs.data("up") == Some(&data));
        assert_eq!(w.progress(job), data.len() as u64);
        assert_eq!(w.spread.stats().overtaken, 0, "slower by {factor}");
        w.assert_clean();
    }
}

#[test]
fn a_lane_that_stops_is_overtaken_and_then_closed() {
    for ms in [100, 300, 500, 700] {
        let mut w = uneven(1);
        let data = bytes(20 * MB, 2);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run_for(Duration::from_millis(ms));
        let lane = w.lanes.keys().nth(2).copied().unwrap_or_default();
        if let Some(at) = w.lanes.get_mut(&lane) {
            at.stalled = true;
        }
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.fs.data("up") == Some(&data), "after {ms} ms");
        assert_eq!(w.progress(job), data.len() as u64);
        let at = w.at(&LaneEvent::Done(job)).unwrap();
        assert!(at < Duration::from_secs(8), "stopped after {ms} ms: {at:?}");
        // A lane that had not started anything need not be closed.
        assert!(w.closed.is_empty() || w.closed == [lane]);
        assert!(ms < 200 || w.closed == [lane], "after {ms} ms");
        w.assert_clean();
    }
}

/// Tests every kind of work that the lane may have: data, or the rename of a file whose data others
/// have moved.
#[test]
fn whichever_lane_stops_and_whenever_nobody_waits_for_minutes() {
    for (nth, ms) in (0..4).flat_map(|nth| (25..1200).step_by(75).map(move |ms| (nth, ms))) {
        let mut w = uneven(1);
        let data = bytes(20 * MB, 2);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run_for(Duration::from_millis(ms));
        let lane = w.lanes.keys().nth(nth).copied().unwrap_or_default();
        if let Some(at) = w.lanes.get_mut(&lane) {
            at.stalled = true;
        }
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.fs.data("up") == Some(&data), "lane {nth} after {ms} ms");
        let at = w.at(&LaneEvent::Done(job)).unwrap();
        let most = Duration::from_secs(25);
        assert!(at < most, "lane {nth} stopped after {ms} ms: {at:?}");
    }
}

/// A small download behind such a part kept the lane open, and delayed the end of a copy that
/// others had finished by 12 s of 25.
#[test]
fn a_slow_lane_is_not_kept_for_something_small_behind_what_others_have_done() {
    let mut w = World::new(small(), 9);
    w.lane(link(60, 10_000), true);
    w.place("small", b"a few bytes", 0o644);
    let data = bytes(20 * MB, 1);
    let job = w.put(data.clone(), "up", FileCopyOptions::default());
    w.run_for(Duration::from_secs(2));
    let small = w.get("small");
    w.run_for(Duration::from_millis(200));
    for _ in 0..3 {
        w.lane(link(60, 2_000_000), true);
    }
    w.run();
    assert!(w.fs.data("up") == Some(&data));
    assert_eq!(w.got("small"), Some(b"a few bytes".as_slice()));
    for job in [job, small] {
        let at = w.at(&LaneEvent::Done(job)).unwrap();
        // The time was 11.5 s before.
        assert!(at < Duration::from_secs(8), "{at:?}");
    }
}

/// The rename is not requested while data sent on a closed lane may still be written: they would
/// overwrite changes that others make to the finished file.
#[test]
fn nothing_is_written_once_the_name_was_asked_for() {
    for factor in [25, 33, 40] {
        let mut w = uneven(factor);
        w.zombies = true;
        let data = bytes(20 * MB, 2);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.fs.data("up") == Some(&data));
        assert_eq!((w.closed.len(), w.late), (1, 0), "a lane of a {factor}th");
        let at = w.at(&LaneEvent::Done(job)).unwrap();
        assert!(at < Duration::from_secs(9), "{at:?}");
    }
}

/// Requests of a closed lane are executed after its end: temporaries that other lanes had looked
/// for in vain appeared after all, eight of them beside 1,500 small files.
#[test]
fn nothing_is_left_of_small_files_on_a_lane_that_was_closed() {
    let mut closed = 0;
    for ms in (60..500).step_by(40) {
        let mut w = World::new(small(), 9);
        w.zombies = true;
        w.lane(link(60, 40_000), true);
        for _ in 0..3 {
            w.lane(link(60, 2_000_000), true);
        }
        let data = bytes(4 * MB, 1);
        let large = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run_for(Duration::from_millis(ms));
        let small =
            (0..200).map(|n| w.put(bytes(3000, n), &format!("f{n}"), FileCopyOptions::default()));
        let small: Vec<_> = small.collect();
        w.run();
        assert!(w.done(large) && small.iter().all(|job| w.done(*job)));
        assert!(w.fs.data("up") == Some(&data));
        w.assert_clean();
        closed += w.closed.len();
    }
    assert!(closed > 0, "no lane was closed");
}

/// A jump host passes on all data that it has received. A lane with half a second of such data was
/// closed, and the rename waited four seconds for the server's confirmation.
#[test]
fn a_lane_whose_bytes_arrive_in_any_case_is_let_finish() {
    let closed = |cuts| {
        let mut w = uneven(16);
        w.spread.set_cuts(cuts);
        w.zombies = true;
        let data = bytes(20 * MB, 2);
        let job = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.done(job) && w.fs.data("up") == Some(&data));
        assert_eq!(w.late, 0);
        w.closed.len()
    };
    assert_eq!((closed(true), closed(false)), (1, 0));
}

/// A server that does not report the end of a channel delays the rename by seconds only, and
/// without a closed lane nothing delays it.
#[test]
fn a_name_waits_for_a_lost_lane_no_longer_than_it_must() {
    let mut w = uneven(1);
    let data = bytes(20 * MB, 2);
    let job = w.put(data.clone(), "up", FileCopyOptions::default());
    w.run_for(Duration::from_millis(550));
    let lane = w.lanes.keys().nth(2).copied().unwrap_or_default();
    if let Some(at) = w.lanes.get_mut(&lane) {
        at.stalled = true;
    }
    w.run();
    assert!(w.done(job) && w.closed == [lane]);
    let silent = w.at(&LaneEvent::Done(job)).unwrap();
    assert!(silent < Duration::from_secs(8), "{silent:?}");

    let mut w = uneven(1);
    let data = bytes(20 * MB, 2);
    let job = w.put(data, "up", FileCopyOptions::default());
    w.run();
    let whole = w.at(&LaneEvent::Done(job)).unwrap();
    assert!(
        w.closed.is_empty() && whole < Duration::from_millis(1500),
        "{whole:?}"
    );
}

#[test]
fn a_download_overtakes_as_well() {
    for ms in [150, 400, 800] {
        let mut w = uneven(1);
        let data = bytes(20 * MB, 3);
        w.place("down", &data, 0o644);
        let job = w.get("down");
        w.run_for(Duration::from_millis(ms));
        let lane = w.lanes.keys().nth(1).copied().unwrap_or_default();
        if let Some(at) = w.lanes.get_mut(&lane) {
            at.stalled = true;
        }
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.got("down") == Some(&data), "after {ms} ms");
        let at = w.at(&LaneEvent::Done(job)).unwrap();
        assert!(at < Duration::from_secs(8), "stopped after {ms} ms: {at:?}");
        w.assert_clean();
    }
}

#[test]
fn small_files_on_a_lane_that_stopped_are_done_elsewhere() {
    let mut w = uneven(1);
    let jobs: Vec<_> = (0..400)
        .map(|n| w.put(bytes(3000, n), &format!("f{n}"), FileCopyOptions::default()))
        .collect();
    w.run_for(Duration::from_millis(130));
    let lane = w.lanes.keys().next().copied().unwrap_or_default();
    if let Some(at) = w.lanes.get_mut(&lane) {
        at.stalled = true;
    }
    w.run();
    assert!(jobs.iter().all(|job| w.done(*job)));
    w.assert_clean();
}

#[test]
fn a_lane_that_is_alone_is_left_alone() {
    let mut w = World::new(small(), 9);
    let lane = w.lane(link(60, 0), true);
    let job = w.put(bytes(MB, 1), "up", FileCopyOptions::default());
    w.run_for(Duration::from_millis(200));
    if let Some(at) = w.lanes.get_mut(&lane) {
        at.stalled = true;
    }
    w.run_for(Duration::from_secs(100));
    assert!(w.closed.is_empty() && !w.done(job));
    if let Some(at) = w.lanes.get_mut(&lane) {
        at.stalled = false;
    }
    w.run();
    assert!(w.done(job));
}

/// Each lane that was closed because others had done its work counted as one that the file may have
/// broken: an upload over a hundred lanes, of which most fell behind, failed as the 40th was closed.
#[test]
fn a_file_is_not_blamed_for_lanes_that_were_closed_as_needless() {
    let mut w = World::new(small(), 9);
    for n in 0..60 {
        let rate = if n < 4 { 8_000_000 } else { 4_000 };
        w.lane(link(60, rate), true);
    }
    let data = bytes(20 * MB, 2);
    let job = w.put(data.clone(), "up", FileCopyOptions::default());
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("up") == Some(&data));
    assert!(w.closed.len() > 40, "{} lanes closed", w.closed.len());
    let at = w.at(&LaneEvent::Done(job)).unwrap();
    assert!(at < Duration::from_secs(12), "{at:?}");
}

/// Submits the upload to `up` of a file between two hosts.
fn put_relayed(w: &mut World, data: Vec<u8>) -> JobId {
    let options = FileCopyOptions {
        keep: Some(Box::new(ResumeData::default())),
        ..FileCopyOptions::default()
    };
    let hint = JobHint {
        size: Some(data.len() as u64),
        relayed: true,
    };
    w.put_hinted(data, "up", options, hint)
}

/// The lane of a file between two hosts is silent while the other host is, and no other lane can do
/// its work.
#[test]
fn a_lane_that_waits_for_the_other_host_is_left_alone() {
    let mut w = uneven(1);
    let data = bytes(MB, 1);
    let job = put_relayed(&mut w, data.clone());
    w.run_for(Duration::from_millis(100));
    w.disk.latency = Duration::from_secs(60);
    w.run_for(Duration::from_secs(50));
    assert!(w.closed.is_empty() && !w.done(job));
    w.disk.latency = Duration::ZERO;
    w.run();
    assert!(w.done(job) && w.fs.data("up") == Some(&data));
}

/// Bug: a request of a file between two hosts that was never answered kept the copy alive for ever.
#[test]
fn a_lane_of_a_file_between_hosts_that_gets_no_answer_is_lost() {
    let mut w = World::with_lanes(2);
    let data = bytes(20 * MB, 1);
    let job = put_relayed(&mut w, data);
    w.run_for(Duration::from_millis(700));
    let lane = w.given.last().expect("it is being moved").0;
    w.lanes.get_mut(&lane).expect("it is there").stalled = true;
    w.run_for(Duration::from_secs(55));
    assert!(w.closed.is_empty() && w.failed(job).is_none());
    w.run_for(Duration::from_secs(10));
    assert_eq!(w.closed, [lane]);
    assert!(w.failed(job).is_some(), "the copy begins it again");
}

/// Bug: the upload of a large file between two hosts to a server that renames nothing began again as if
/// its connection had been lost, and the copy failed after its last attempt.
#[test]
fn a_relayed_file_that_cannot_be_renamed_is_read_again_for_its_final_name() {
    let mut server = SftpServerProfile::openssh();
    let refused = &mut server.restrictions.refused;
    for request in ["RENAME", "posix-rename@openssh.com"] {
        refused.insert(request, StatusCode::PERMISSION_DENIED);
    }
    let mut w = World::new(small(), 1);
    for _ in 0..2 {
        w.lane_of(link(100, 10_000_000), true, server.clone());
    }
    let data = bytes(5 * MB, 1);
    let job = put_relayed(&mut w, data);
    w.run();
    let kinds = w.events.iter().filter_map(|(_, event)| match event {
        SchedulerEvent::Restarted(_) => panic!("it waits for a failed connection"),
        SchedulerEvent::Lane(LaneEvent::Failed(id, fault)) if *id == job => Some(fault.kind),
        _ => None,
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [JobFailureKind::ReadAgainInPlace]
    );
    w.assert_clean();
}

/// Bug: a read-only file of several lanes could not be copied to a server of which it is known that it
/// sets no permissions: the other lanes could not open its temporary.
#[test]
fn a_large_read_only_file_failed_where_permissions_cannot_be_set() {
    let mut server = SftpServerProfile::openssh();
    for request in ["SETSTAT", "FSETSTAT"] {
        let refused = &mut server.restrictions.refused;
        refused.insert(request, StatusCode::PERMISSION_DENIED);
    }
    let mut w = World::new(small(), 1);
    for _ in 0..3 {
        let lane = w.lane_of(link(100, 10_000_000), true, server.clone());
        let known = RefusedOperations {
            attributes: true,
            ..RefusedOperations::default()
        };
        w.lanes
            .get_mut(&lane)
            .expect("new")
            .lane
            .note_refusals(known);
    }
    let data = bytes(8 * MB, 1);
    let job = w.put(data.clone(), "up", FileCopyOptions::default());
    let source = w.disk.sources.values_mut().next().expect("placed");
    source.meta.attributes.mode = Some(0o100_444);
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("up") == Some(&data));
    let not_kept = |(_, event): &(_, SchedulerEvent)| {
        matches!(event, SchedulerEvent::Lane(LaneEvent::NotKept(..)))
    };
    let mode = w.fs.at("up").map(|node| node.mode);
    assert!(
        mode == Some(0o444) || w.events.iter().any(not_kept),
        "{mode:?}"
    );
    w.assert_clean();
}
