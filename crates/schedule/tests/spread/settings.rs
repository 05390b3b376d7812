//! Attributes of directories, which must be set in order.

use std::collections::BTreeSet;
use std::time::Duration;

use schedule::{Attributes, FileCopyOptions, JobId, JobKind, LaneId, LinkLimit, ListedEntry};
use testkit::sftp_model::SftpServerProfile;

use crate::world::{World, bytes, link, remote, small};

fn set(w: &mut World, path: &str, mode: u32) -> JobId {
    let attributes = Attributes {
        mode: Some(mode),
        ..Attributes::default()
    };
    let path = remote(path);
    let kind = JobKind::SetAttributes {
        path,
        attributes,
        follow: true,
        xattrs: None,
        expected: Default::default(),
    };
    w.job(kind, None)
}

fn lanes_that_set(w: &World) -> Vec<LaneId> {
    let sets = |kind: &JobKind| matches!(kind, JobKind::SetAttributes { .. });
    let given = w.given.iter().filter(|(_, job)| sets(&job.kind));
    given.map(|(lane, _)| *lane).collect()
}

/// A directory may become inaccessible once its mode is set.
#[test]
fn the_directory_above_comes_after_the_one_below() {
    for lost in [None, Some(150), Some(200), Some(260), Some(320)] {
        let mut w = World::new(small(), 3);
        for ms in [150, 40, 90, 20] {
            w.lane(link(ms, 10_000_000), true);
        }
        for dir in ["a", "a/b", "a/b/c", "a/b/c/d"] {
            let path = remote(dir);
            let (mode, follow) = (0o755, false);
            w.job(JobKind::MakeDir { path, mode, follow }, None);
        }
        w.run();
        let mut jobs = Vec::new();
        for (n, dir) in ["a/b/c/d", "a/b/c", "a/b", "a"].into_iter().enumerate() {
            w.put(
                bytes(3000, n as u64),
                &format!("f{n}"),
                FileCopyOptions::default(),
            );
            jobs.push(set(&mut w, dir, 0o600));
            w.run_for(Duration::from_millis(10));
        }
        if let Some(ms) = lost {
            w.run_for(Duration::from_millis(ms - 140));
            let lane = lanes_that_set(&w)
                .first()
                .copied()
                .expect("some were given");
            w.lose(lane);
        }
        w.run();
        for job in &jobs {
            assert!(w.done(*job), "lost at {lost:?}: {:?}", w.failed(*job));
        }
        let lanes: BTreeSet<LaneId> = lanes_that_set(&w).into_iter().collect();
        assert!(lanes.len() <= 1 + usize::from(lost.is_some()), "{lanes:?}");
    }
}

/// Bug: the lost request had set owner and time, and the repeated one found another owner and time than
/// the listed ones.
#[test]
fn a_repeated_request_does_not_name_the_listed_entry() {
    let mut w = World::new(small(), 3);
    for _ in 0..2 {
        w.lane(link(100, 10_000_000), true);
    }
    w.place("file", b"old", 0o600);
    let entry = ListedEntry {
        modified: Some(3),
        ..ListedEntry::ANY
    };
    let attributes = Attributes {
        times: Some((9, 9)),
        ..Attributes::default()
    };
    let job = w.job(
        JobKind::SetAttributes {
            path: remote("file"),
            attributes,
            follow: false,
            xattrs: None,
            expected: attributes.expected(LinkLimit::AtMost(1), entry),
        },
        None,
    );
    w.run_for(Duration::from_millis(20));
    let lane = lanes_that_set(&w).first().copied().expect("it was given");
    w.lose(lane);
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    let listed = w.given.iter().filter_map(|(_, job)| match &job.kind {
        JobKind::SetAttributes { expected, .. } => Some(expected.listed),
        _ => None,
    });
    assert_eq!(listed.collect::<Vec<_>>(), [entry, ListedEntry::ANY]);
}

/// If the server does not keep requests in order, the caller waits for each answer, and lanes share
/// the work.
#[test]
fn servers_that_keep_no_order_share_them() {
    let mut w = World::new(small(), 3);
    for _ in 0..3 {
        w.lane_of(link(100, 10_000_000), false, SftpServerProfile::other());
    }
    for n in 0..30 {
        w.place(&format!("f{n}"), b"data", 0o644);
    }
    let jobs: Vec<JobId> = (0..30)
        .map(|n| set(&mut w, &format!("f{n}"), 0o600))
        .collect();
    w.run();
    assert!(jobs.iter().all(|job| w.done(*job)));
    let lanes: BTreeSet<LaneId> = lanes_that_set(&w).into_iter().collect();
    assert!(lanes.len() > 1, "{lanes:?}");
}
