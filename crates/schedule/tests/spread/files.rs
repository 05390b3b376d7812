//! Files copied over several lanes arrive whole, as over one lane.

use std::time::Duration;

use schedule::{FileCopyOptions, FileCopyState, JobKind, LaneEvent, ResumeData, SchedulerEvent};

use crate::world::{World, bytes, link, remote, small};

const MB: usize = 1 << 20;

#[test]
fn one_file_goes_up_over_four_lanes() {
    let mut w = World::with_lanes(4);
    let data = bytes(7 * MB + 12_345, 1);
    let job = w.put(data.clone(), "big", FileCopyOptions::default());
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.fs.data("big") == Some(&data));
    assert_eq!(w.lanes_with_parts().len(), 4);
    assert_eq!(w.progress(job), data.len() as u64);
    let states: Vec<FileCopyState> = w
        .events
        .iter()
        .filter_map(|(_, e)| match e {
            SchedulerEvent::Lane(LaneEvent::State(_, state)) => Some(*state),
            _ => None,
        })
        .collect();
    use FileCopyState::{Closed, Created, Renamed, Written};
    assert_eq!(states, [Created, Written, Closed, Renamed]);
    w.assert_clean();
}

#[test]
fn one_file_comes_down_over_four_lanes() {
    let mut w = World::with_lanes(4);
    let data = bytes(7 * MB + 12_345, 2);
    w.place("big", &data, 0o644);
    let job = w.get("big");
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.got("big") == Some(&data));
    assert_eq!(w.lanes_with_parts().len(), 4);
    assert_eq!(w.progress(job), data.len() as u64);
    w.assert_clean();
}

#[test]
fn four_lanes_are_nearly_four_times_as_fast() {
    let time = |lanes| {
        let mut w = World::with_lanes(lanes);
        let job = w.put(bytes(24 * MB, 3), "big", FileCopyOptions::default());
        w.run();
        w.at(&LaneEvent::Done(job)).unwrap().as_secs_f64()
    };
    let (one, four) = (time(1), time(4));
    // Five round trips and the slow start do not get faster.
    assert!(
        four < one / 4.0 + 0.7,
        "{one} s with one lane, {four} s with four"
    );
}

#[test]
fn files_of_all_sizes_at_once() {
    let mut w = World::with_lanes(3);
    let mut jobs = Vec::new();
    for n in 0..60usize {
        let len = match n % 6 {
            0 => 0,
            1 => 1,
            2 => 4096,
            3 => 255 * 1024,
            4 => 256 * 1024 + n,
            _ => MB + n * 1000,
        };
        let data = bytes(len, n as u64);
        let name = format!("f{n}");
        jobs.push((
            w.put(data.clone(), &name, FileCopyOptions::default()),
            name,
            data,
        ));
    }
    w.run();
    for (job, name, data) in jobs {
        assert!(w.done(job), "{name}: {:?}", w.failed(job));
        assert!(w.fs.data(&name) == Some(&data), "{name}");
        assert_eq!(w.progress(job), data.len() as u64, "{name}");
    }
    w.assert_clean();
}

#[test]
fn what_stood_there_decides_as_with_one_lane() {
    let mut w = World::with_lanes(3);
    let data = bytes(MB, 4);
    w.place("old", b"old", 0o640);
    w.place("protected", b"old", 0o444);
    w.place("behind", b"old", 0o600);
    w.fs.place(
        "link",
        testkit::sftp_model::Kind::Symlink(b"behind".to_vec()),
        0o777,
    );
    w.fs.place(
        "dangling",
        testkit::sftp_model::Kind::Symlink(b"new".to_vec()),
        0o777,
    );
    w.fs.place("dir", testkit::sftp_model::Kind::Dir, 0o755);
    let mut put = |name: &str| w.put(data.clone(), name, FileCopyOptions::default());
    let (old, protected, link) = (put("old"), put("protected"), put("link"));
    let (dangling, dir) = (put("dangling"), put("dir"));
    w.run();
    assert!(w.done(old) && w.done(link) && w.done(dangling));
    assert!(w.fs.data("old") == Some(&data));
    assert_eq!(w.fs.at("old").unwrap().mode & 0o777, 0o640);
    assert!(w.fs.data("behind") == Some(&data), "through the link");
    assert!(
        w.fs.data("new") == Some(&data),
        "what a dangling link points to"
    );
    assert!(w.failed(protected).unwrap().contains("read-only"));
    assert!(w.failed(dir).unwrap().contains("directory"));
    w.assert_clean();
}

#[test]
fn times_and_modes_are_kept_and_data_made_durable() {
    let mut w = World::with_lanes(3);
    let data = bytes(MB, 5);
    let options = FileCopyOptions {
        preserve: true,
        fsync: true,
        ..FileCopyOptions::default()
    };
    let job = w.put(data.clone(), "kept", options);
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    let node = w.fs.at("kept").unwrap();
    assert_eq!(node.mode & 0o777, 0o664);
    assert_eq!(node.times, (1111, 2222));
    assert!(
        w.at(&LaneEvent::State(job, FileCopyState::Synced))
            .is_some()
    );
}

#[test]
fn a_directory_comes_before_what_is_in_it() {
    let mut w = World::new(small(), 3);
    // Each lane is faster than the one before.
    for n in 0..5 {
        w.lane(link(200 - 40 * n, 0), true);
    }
    w.run_for(Duration::from_millis(500));
    let mut jobs = Vec::new();
    let mut path = String::from("top");
    for depth in 0..40 {
        let kind = JobKind::MakeDir {
            path: remote(&path),
            mode: 0o755,
            follow: true,
        };
        jobs.push(w.job(kind, None));
        let name = format!("{path}/file{depth}");
        jobs.push(w.put(bytes(100, depth), &name, FileCopyOptions::default()));
        path.push_str("/d");
    }
    w.run();
    for job in jobs {
        assert!(w.done(job), "{job:?}: {:?}", w.failed(job));
    }
    assert!(w.at(&LaneEvent::Done(schedule::JobId(80))).unwrap() < Duration::from_secs(3));
}

/// The second of two sources that are merged into one directory makes the directory once more. What the
/// first one has below it waited for the second MKDIR, which stood behind in the queue: a deadlock.
#[test]
fn two_sources_that_make_one_directory_do_not_wait_for_each_other() {
    let before = (0..400).step_by(20);
    let all = before.flat_map(|before| [(1, before, true), (3, before, true), (2, before, false)]);
    for (lanes, before, predict) in all {
        let mut w = World::new(small(), lanes);
        for n in 0..lanes {
            w.lane(link(100 - 20 * n, 0), predict);
        }
        w.run_for(Duration::from_millis(before));
        let mut jobs = Vec::new();
        for source in 0..3 {
            for path in ["to", "to/out", "to/out/in"] {
                let kind = JobKind::MakeDir {
                    path: remote(path),
                    mode: 0o755,
                    follow: true,
                };
                jobs.push(w.job(kind, None));
                w.run_for(Duration::ZERO);
            }
            let name = format!("to/out/in/{source}");
            jobs.push(w.put(bytes(100, source), &name, FileCopyOptions::default()));
        }
        w.run();
        for job in jobs {
            let why = w.failed(job);
            assert!(w.done(job), "{lanes} {before} {predict} {job:?}: {why:?}");
        }
    }
}

#[test]
fn the_last_part_may_be_open_ended_on_a_target_without_order() {
    let mut w = World::with_lanes(3);
    w.disk.seekable = false;
    let data = bytes(3 * MB, 6);
    w.place("pipe", &data, 0o644);
    let job = w.get("pipe");
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.got("pipe") == Some(&data));
    assert_eq!(w.lanes_with_parts().len(), 1, "bytes must come in order");
}

#[test]
fn cancelling_leaves_nothing() {
    for ms in (0..1500).step_by(90) {
        let mut w = World::with_lanes(3);
        w.place("down", &bytes(4 * MB, 8), 0o644);
        let jobs = [
            w.put(bytes(6 * MB, 7), "up", FileCopyOptions::default()),
            w.get("down"),
            w.put(bytes(100, 7), "small", FileCopyOptions::default()),
        ];
        w.run_for(Duration::from_millis(ms));
        w.spread.cancel(w.now, "interrupted");
        for at in w.lanes.values_mut() {
            at.lane.cancel(w.now, "interrupted");
        }
        w.run();
        for job in jobs {
            assert!(
                w.done(job) || w.failed(job).is_some(),
                "after {ms} ms: {job:?}"
            );
        }
        w.assert_clean();
    }
}

/// The only work is one delta, for which further connections are useless.
#[test]
fn a_file_that_is_rebuilt_and_nothing_else_is_known() {
    let mut w = World::new(small(), 1);
    assert!(!w.spread.only_rebuilds_one());
    let rebuild = |name: &str| JobKind::PutDelta {
        source: name.into(),
        target: remote(name),
        options: FileCopyOptions::default(),
        always: true,
    };
    w.job(rebuild("one"), Some(5 << 20));
    assert!(w.spread.only_rebuilds_one());
    let path = remote("one");
    w.job(JobKind::Stat { path, follow: true }, None);
    assert!(
        w.spread.only_rebuilds_one(),
        "a question is answered beside it"
    );
    w.job(rebuild("two"), Some(5 << 20));
    assert!(!w.spread.only_rebuilds_one());
    let mut w = World::new(small(), 1);
    w.put(bytes(MB, 1), "sent", FileCopyOptions::default());
    assert!(!w.spread.only_rebuilds_one());
}

/// A new connection was given a directory to make, behind the files of its slow start, and no other
/// lane could continue with the files in that directory.
#[test]
fn a_directory_is_made_before_its_turn_and_not_by_a_lane_that_has_just_come() {
    let mut w = World::new(small(), 4);
    let tree = |w: &mut World, name: &str, files: u64| {
        let kind = JobKind::MakeDir {
            path: remote(name),
            mode: 0o755,
            follow: true,
        };
        let mut jobs = vec![w.job(kind, None)];
        jobs.extend((0..files).map(|n| {
            let target = format!("{name}/{n}");
            w.put(bytes(4096, n), &target, FileCopyOptions::default())
        }));
        jobs
    };
    let quick = w.lane(link(100, 4_000_000), true);
    let mut jobs = tree(&mut w, "first", 1000);
    w.run_for(Duration::from_millis(1500));
    let before = w.given.len();
    w.lane(link(100, 50_000), true);
    for name in ["a", "b", "c", "d"] {
        jobs.extend(tree(&mut w, name, 300));
    }
    w.run();
    for job in jobs {
        assert!(w.done(job), "{job:?}: {:?}", w.failed(job));
    }
    let given = &w.given[before..];
    let makes = |(_, job): &&(_, schedule::Job)| matches!(job.kind, JobKind::MakeDir { .. });
    let lanes: Vec<_> = given.iter().filter(makes).map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [quick; 4]);
    let last = given.iter().rposition(|on| makes(&on)).expect("four");
    assert!(last < 300, "behind {last} others");
}

/// Bug: the temporary of a read-only source had the source's permissions, so that the server let only
/// root open it on a second lane: files of 16 MB and more could not be uploaded by anybody else.
#[test]
fn a_read_only_file_could_not_be_opened_by_a_second_lane() {
    for (lanes, size) in [(4, 7 * MB), (1, 2 * MB), (1, 1000)] {
        for (preserve, kept) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut w = World::with_lanes(lanes);
            let data = bytes(size, 3);
            let options = FileCopyOptions {
                preserve,
                keep: kept.then(|| Box::new(ResumeData::default())),
                ..FileCopyOptions::default()
            };
            let job = w.put(data.clone(), "big", options);
            for source in w.disk.sources.values_mut() {
                source.meta.attributes.mode = Some(0o100_464);
            }
            w.run();
            assert!(w.done(job), "{lanes} {preserve}: {:?}", w.failed(job));
            assert!(w.fs.data("big") == Some(&data));
            let inode = w.fs.lookup(b"big", true).expect("there");
            let mode = w.fs.stat(inode).expect("there").permissions;
            // The server's umask applies without --preserve.
            let expected = if preserve { 0o100_464 } else { 0o100_444 };
            assert_eq!(mode, Some(expected), "{lanes} {size} {preserve} {kept}");
            w.assert_clean();
        }
    }
}
