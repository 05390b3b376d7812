//! Runs that are left unfinished: data that have arrived stay, and all of them were reported.

use std::collections::BTreeSet;
use std::time::Duration;

use schedule::{
    Attributes, DiskReply, DiskRequest, FileCopyOptions, FileCopyState, Job, JobHint, JobId,
    JobKind, LaneEvent, LaneId, LaneOrder, LaneReport, PartialFile, ResumeData, Scheduler,
    SchedulerEvent, SharedTemp, SourceFileMeta, UploadTemp,
};
use testkit::sftp_model::Kind;

use crate::world::{World, bytes, remote, small};

const MB: usize = 1_000_000;
/// Block size of the comparison in bytes.
const BLOCK: usize = 4096;

/// Returns the blocks within the reported ranges, whole or (`touched`) in part.
fn blocks(told: &[(u64, u64)], touched: bool) -> BTreeSet<u64> {
    let block = BLOCK as u64;
    let mut merged: Vec<(u64, u64)> = Vec::new();
    let mut told = told.to_vec();
    told.sort_unstable();
    for (from, to) in told {
        match merged.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => merged.push((from, to)),
        }
    }
    let of = |(from, to): &(u64, u64)| match touched {
        true => from / block..to.div_ceil(block),
        false => from.div_ceil(block)..to / block,
    };
    merged.iter().flat_map(of).collect()
}

/// After an interrupt by the user at any moment, 84 to 154 MB were sent again: data answered after
/// the cancellation were not reported, and a file that was being synced before its rename was
/// removed with all of its data.
#[test]
fn what_has_arrived_when_the_run_is_left_stays_and_is_told() {
    let (mut kept, mut naming) = (0, 0);
    for ms in (150..2000).step_by(30) {
        let mut w = World::with_lanes(3);
        let data = bytes(6 * MB, ms);
        let options = FileCopyOptions {
            fsync: true,
            keep: Some(Box::new(ResumeData::default())),
            ..FileCopyOptions::default()
        };
        let job = w.put(data.clone(), "up", options);
        w.run_for(Duration::from_millis(ms));
        w.spread.cancel_resumable(w.now, "interrupted");
        for at in w.lanes.values_mut() {
            at.lane.cancel_resumable(w.now, "interrupted");
        }
        let finish = |kind: &JobKind| matches!(kind, JobKind::FinishTemp { .. });
        naming += u32::from(w.given.iter().any(|(_, job)| finish(&job.kind)) && !w.done(job));
        w.run();
        if w.done(job) {
            assert!(w.fs.data("up") == Some(&data), "{ms} ms");
            continue;
        }
        assert!(w.failed(job).is_some(), "{ms} ms");
        let mut told = Vec::new();
        for (_, event) in &w.events {
            if let SchedulerEvent::Lane(LaneEvent::Kept(_, kept)) = event {
                told.extend(kept.ranges.iter().copied());
            }
        }
        let made = |e: &SchedulerEvent| matches!(e, SchedulerEvent::Lane(LaneEvent::Temp(..)));
        let left = w.temporaries();
        let removed = w.has_removed(job);
        assert!(!removed || left.is_empty(), "{ms} ms: {left:?}");
        if !w.events.iter().any(|(_, event)| made(event)) {
            // The temporary was only being created, so its lane has removed it.
            assert_eq!(left, Vec::<String>::new(), "{ms} ms");
            assert_eq!(told, [], "{ms} ms: told of what is not there");
            continue;
        }
        let there = left.first().and_then(|name| w.fs.data(name));
        let there = there.unwrap_or_default();
        let same = |n: &u64| {
            let at = *n as usize * BLOCK..(*n as usize + 1) * BLOCK;
            there.get(at.clone()).is_some_and(|b| b == &data[at])
        };
        let arrived: BTreeSet<u64> = (0..(data.len() / BLOCK) as u64).filter(same).collect();
        let there_not = blocks(&told, false).difference(&arrived).count();
        assert_eq!(there_not, 0, "{ms} ms: told of what is not there");
        let untold = arrived.difference(&blocks(&told, true)).count();
        assert_eq!(
            untold, 0,
            "{ms} ms: blocks that are there and were not told"
        );
        kept += u32::from(!arrived.is_empty());
    }
    assert!(kept > 10 && naming > 2, "{kept} kept, {naming} being named");
}

/// A copy used to be resumed from a source that had changed between its check and its OPEN: half of
/// the file was of one version, half of the other. If nothing could be resumed, no message said so.
#[test]
fn what_is_left_of_another_state_of_the_source_is_not_gone_on_with() {
    let size = 3 * MB as u64;
    let second = 1_000_000_000;
    for (there, source, goes_on) in [
        (true, (size, 2222 * second), true),
        (true, (0, 0), true),
        (true, (size, 2221 * second), false),
        (true, (size + 1, 2222 * second), false),
        (false, (size, 2222 * second), false),
    ] {
        let mut w = World::with_lanes(2);
        let data = bytes(3 * MB, 5);
        let left = PartialFile {
            ranges: vec![(0, size / 3)],
            mtime: 0,
            source,
        };
        let keep = ResumeData {
            tag: 7,
            left: Some(left),
            ..ResumeData::default()
        };
        let temp = String::from_utf8(keep.temporary(b"up", 0)).expect("letters");
        let old = bytes(MB, 6);
        if there {
            w.fs.place(&temp, Kind::File(old.clone()), 0o600);
        }
        let options = FileCopyOptions {
            keep: Some(Box::new(keep)),
            ..FileCopyOptions::default()
        };
        let job = w.put(data.clone(), "up", options);
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        let begins_with = if goes_on { &old } else { &data[..MB] };
        let up = w.fs.data("up").unwrap_or_default();
        assert!(
            up[..MB] == *begins_with && up[MB..] == data[MB..],
            "{source:?}"
        );
        let restarted = |e: &SchedulerEvent| matches!(e, SchedulerEvent::Restarted(_));
        let told = |e: &SchedulerEvent| matches!(e, SchedulerEvent::Lane(LaneEvent::Warning(_, text)) if text.contains("starting this file over"));
        for said in [restarted, told] {
            let said = w.events.iter().any(|(_, event)| said(event));
            assert_eq!(said, !goes_on, "{there} {source:?}");
        }
        assert_eq!(w.progress(job), size, "{source:?}");
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
}

/// Puts `data` to `up` as one of the processes that write its temporary, which has `there`.
fn put_shared(w: &mut World, data: &[u8], there: Option<Vec<u8>>, work: SharedTemp) -> JobId {
    let size = data.len() as u64;
    let (from, to) = match work {
        SharedTemp::Range(from, to) => (from, to),
        SharedTemp::Seal => (size, size),
    };
    let mut ranges = vec![(0, from), (to, size)];
    ranges.retain(|(from, to)| from < to);
    let keep = ResumeData {
        tag: 7,
        again: 0,
        left: Some(PartialFile {
            ranges,
            ..PartialFile::default()
        }),
        shared: Some(work),
    };
    let temp = String::from_utf8(keep.temporary(b"up", 0)).expect("letters");
    if let Some(there) = there {
        w.fs.place(&temp, Kind::File(there), 0o600);
    }
    let options = FileCopyOptions {
        keep: Some(Box::new(keep)),
        ..FileCopyOptions::default()
    };
    let job = w.put(data.to_vec(), "up", options);
    w.run();
    job
}

#[test]
fn a_range_of_a_shared_temporary_is_written_and_nothing_else() {
    let data = bytes(3 * MB, 5);
    for (from, to) in [(0, MB), (MB, 2 * MB + 7), (2 * MB, 3 * MB), (0, 3 * MB)] {
        let mut w = World::with_lanes(2);
        let others = bytes(3 * MB, 6);
        let work = SharedTemp::Range(from as u64, to as u64);
        let job = put_shared(&mut w, &data, Some(others.clone()), work);
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(w.fs.data("up").is_none());
        let left = w.temporaries();
        let written = w.fs.data(&left[0]).unwrap_or_default();
        let expected = [&others[..from], &data[from..to], &others[to..]].concat();
        assert!(written == expected, "{from} to {to}");
        assert_eq!(w.progress(job), (to - from) as u64);
    }
}

#[test]
fn a_complete_shared_temporary_gets_its_name_unread() {
    let data = bytes(3 * MB, 5);
    let mut w = World::with_lanes(2);
    let others = bytes(3 * MB, 6);
    let job = put_shared(&mut w, &data, Some(others.clone()), SharedTemp::Seal);
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("up").is_some_and(|up| up == others));
    assert_eq!(w.temporaries(), Vec::<String>::new());
    assert_eq!(w.progress(job), 0);
}

/// A process that copied the whole file instead would give it its name before the others end.
#[test]
fn without_the_shared_temporary_nothing_is_copied() {
    let data = bytes(3 * MB, 5);
    for work in [SharedTemp::Range(0, MB as u64), SharedTemp::Seal] {
        for there in [None, Some(bytes(MB, 6))] {
            let mut w = World::with_lanes(2);
            let left = there.iter().count();
            let job = put_shared(&mut w, &data, there, work);
            let why = w.failed(job).unwrap_or_default();
            assert!(why.contains("make a new plan"), "{why}");
            assert!(w.fs.data("up").is_none());
            assert_eq!(w.temporaries().len(), left);
        }
    }
}

/// Takes the jobs that the lane gets, and the requests for the disk side.
fn taken(spread: &mut Scheduler) -> (Vec<Job>, Vec<DiskRequest>) {
    let orders = std::iter::from_fn(|| spread.poll_order());
    let jobs = orders.filter_map(|order| match order {
        LaneOrder::Push(_, job) => Some(job),
        _ => None,
    });
    let jobs = jobs.collect();
    (jobs, std::iter::from_fn(|| spread.poll_disk()).collect())
}

/// Bug: a resumed copy between two hosts stood still for ever. The upload of the continued file held
/// the lane. Its download was queued behind that of another large file, which waited for its own
/// upload, queued behind the first one.
#[test]
fn an_upload_that_waited_for_its_download_held_the_lane() {
    let (now, lane, size) = (testkit::sftp_model::epoch(), LaneId::default(), 8 << 20);
    let mut spread = Scheduler::new(small(), now);
    let report = LaneReport {
        wants: 64,
        shares_files: Some(true),
        ..LaneReport::default()
    };
    spread.lane_opened(now, lane, false, report);
    let left = PartialFile {
        ranges: vec![(0, 1 << 20)],
        ..PartialFile::default()
    };
    let keep = ResumeData {
        left: Some(left),
        ..ResumeData::default()
    };
    let put = |name: &str, keep| JobKind::Put {
        source: "".into(),
        target: remote(name),
        options: FileCopyOptions {
            keep: Some(Box::new(keep)),
            ..FileCopyOptions::default()
        },
    };
    let (file, other) = (JobId(1), JobId(2));
    let hint = JobHint {
        size: Some(size),
        relayed: true,
    };
    let kind = put("up", keep);
    spread.push(now, Job { id: file, kind }, hint);
    taken(&mut spread);
    let meta = SourceFileMeta {
        attributes: Attributes {
            size: Some(size),
            ..Attributes::default()
        },
        stream: false,
    };
    let opened = DiskReply::Opened {
        job: file,
        meta,
        first: wire::PayloadBlock::default(),
        packed: None,
        eof: false,
    };
    spread.handle_disk(now, opened);
    let (jobs, _) = taken(&mut spread);
    let adopts = jobs.first().map(|job| job.id).expect("a check");
    let temp = UploadTemp {
        temp: remote(".up"),
        target: remote("up"),
        replaces: false,
        mode: None,
        owner: None,
    };
    spread.handle_lane(now, lane, LaneEvent::Temp(adopts, temp));
    spread.handle_lane(now, lane, LaneEvent::Done(adopts));
    let created = LaneEvent::State(file, FileCopyState::Created);
    let told = |event| event == SchedulerEvent::Lane(created.clone());
    assert!(std::iter::from_fn(|| spread.poll_event()).any(told));
    let (jobs, requests) = taken(&mut spread);
    assert_eq!(jobs, [], "its download has not begun");
    let awaits = |request: &DiskRequest| matches!(request, DiskRequest::AwaitSource { .. });
    assert!(requests.iter().any(awaits), "{requests:?}");

    let kind = put("other", ResumeData::default());
    let hint = JobHint {
        size: Some(1000),
        ..hint
    };
    spread.push(now, Job { id: other, kind }, hint);
    let (jobs, _) = taken(&mut spread);
    assert_eq!(jobs.first().map(|job| job.id), Some(other));
    spread.handle_disk(now, DiskReply::SourceReady { job: file });
    let (jobs, _) = taken(&mut spread);
    let kinds: Vec<_> = jobs.iter().map(|job| &job.kind).collect();
    assert!(matches!(kinds[..], [JobKind::PutRange { .. }]), "{kinds:?}");
}
