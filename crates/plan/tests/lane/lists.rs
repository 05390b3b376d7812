use plan::{Attributes, EntryKind, Job, JobId, JobKind, LaneEvent};
use testkit::sftp_model::{Act, Inject, Kind, Personality};

use crate::world::{Mode, World, config, link, remote};
use sftp::StatusCode;

fn entries(w: &World, job: JobId) -> Vec<(Vec<u8>, Attributes)> {
    let of = |e: &LaneEvent| match e {
        LaneEvent::Entries(id, entries) if *id == job => entries.clone(),
        _ => Vec::new(),
    };
    let mut all: Vec<_> = w.events.iter().flat_map(|(_, e)| of(e)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn several_directories_are_listed_side_by_side() {
    let mut w = World::new(Mode::Plain);
    for d in 0..10 {
        w.model.fs.place(&format!("d{d}"), Kind::Dir, 0o755);
        for f in 0..250 {
            w.place(&format!("d{d}/f{f:03}"), b"x", 0o644);
        }
    }
    let jobs: Vec<JobId> = (0..10)
        .map(|d| {
            let path = remote(&format!("d{d}"));
            w.job(JobKind::List { path })
        })
        .collect();
    w.run();
    for job in jobs {
        let found = entries(&w, job);
        assert_eq!(found.len(), 250);
        assert_eq!(found[7].0, b"f007");
        assert_eq!(found[7].1.kind(), EntryKind::File);
        assert!(w.done(job));
    }
    assert_eq!(w.model.open_handles(), (0, 10));
}

#[test]
fn hostile_names_are_told_and_never_passed_on() {
    let mut w = World::new(Mode::Plain);
    w.model.fs.place("d", Kind::Dir, 0o755);
    w.place("d/good", b"x", 0o644);
    let hostile: [&[u8]; 5] = [b"../x", b"/etc/passwd", b"", b"a\0b", b"a/\x1b[2J"];
    w.model.add_hostile_names(&hostile);
    let job = w.job(JobKind::List { path: remote("d") });
    w.run();
    assert_eq!(entries(&w, job).len(), 1);
    assert_eq!(w.warnings().len(), 5);
    assert!(w.warnings().iter().all(|t| !t.contains('\x1b')));
}

#[test]
fn a_listing_that_fails_says_so() {
    let mut w = World::new(Mode::Plain);
    let none = w.job(JobKind::List {
        path: remote("none"),
    });
    w.run();
    assert!(w.failed(none).is_some_and(|t| t.contains("no such file")));

    let mut w = World::new(Mode::Plain);
    w.model.inject(Inject {
        kind: Some("READDIR"),
        nth: 0,
        act: Act::Status(StatusCode::FAILURE),
    });
    let job = w.job(JobKind::List { path: remote(".") });
    w.run();
    assert!(w.failed(job).is_some());
    assert_eq!(w.model.open_handles().0, 0);
}

#[test]
fn a_predicting_lane_takes_no_listing() {
    let mut w = World::new(Mode::Remembered);
    let job = Job {
        id: JobId(99),
        kind: JobKind::List { path: remote(".") },
    };
    assert_eq!(w.lane.push(w.now, job.clone()), Err(job.clone()));
    // Nor while it may still come to predict.
    let mut w = World::new(Mode::Predicting);
    assert_eq!(w.lane.push(w.now, job.clone()), Err(job));
}

#[test]
fn directories_links_and_attributes() {
    for server in [Personality::openssh(), Personality::other()] {
        let mut config = config(Mode::Plain, 1);
        let openssh = !server.draft_symlink;
        config.openssh = openssh;
        if !openssh {
            config.symlink_order = sftp::SymlinkOrder::Draft;
        }
        let mut w = World::with(config, server, link(), 1);
        w.place("file", b"x", 0o644);
        w.model.fs.place("dir", Kind::Dir, 0o755);
        let mkdir = |p: &str| JobKind::MakeDir {
            path: remote(p),
            mode: 0o750,
            follow: true,
        };
        let made = w.job(mkdir("new"));
        let there = w.job(mkdir("dir"));
        let clash = w.job(mkdir("file"));
        let symlink = |p: &str, to: &str| JobKind::MakeSymlink {
            path: remote(p),
            points_to: to.as_bytes().to_vec(),
        };
        let linked = w.job(symlink("link", "file"));
        w.run();
        let again = w.job(symlink("link", "dir"));
        let over_dir = w.job(symlink("dir", "file"));
        w.run();
        let read = w.job(JobKind::ReadSymlink {
            path: remote("link"),
        });
        let real = w.job(JobKind::RealPath {
            path: remote("~/link/../file"),
        });
        let home = w.job(JobKind::RealPath { path: remote("~") });
        let times = Attributes {
            times: Some((5, 6)),
            mode: Some(0o100_600),
            ..Attributes::default()
        };
        let set = w.job(JobKind::SetAttributes {
            path: remote("file"),
            attributes: times,
            follow: true,
        });
        let stat = w.job(JobKind::Stat {
            path: remote("file"),
            follow: true,
        });
        w.run();
        for job in [made, there, linked, again, read, real, home, set, stat] {
            assert!(w.done(job), "{job:?} {:?}", w.failed(job));
        }
        assert!(w.failed(clash).is_some_and(|t| t.contains("no directory")));
        assert!(
            w.failed(over_dir)
                .is_some_and(|t| t.contains("a directory stands there"))
        );
        assert_eq!(w.model.fs.at("new").map(|n| n.mode), Some(0o750));
        assert!(w.at(&LaneEvent::Path(read, b"dir".to_vec())).is_some());
        assert!(w.at(&LaneEvent::Path(home, b"/home/u".to_vec())).is_some());
        assert!(
            w.at(&LaneEvent::Path(real, b"/home/u/file".to_vec()))
                .is_some()
        );
        assert_eq!(
            w.model.fs.at("file").map(|n| (n.mode, n.times)),
            Some((0o600, (5, 6)))
        );
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
}

/// Between two hosts the source may have made it (CVE-2019-6111).
#[test]
fn a_symlink_to_a_directory_counts_only_where_it_may() {
    for follow in [true, false] {
        let mut w = World::new(Mode::Plain);
        w.model.fs.place("d", Kind::Dir, 0o755);
        w.model
            .fs
            .place("link", Kind::Symlink(b"d".to_vec()), 0o777);
        let job = w.job(JobKind::MakeDir {
            path: remote("link"),
            mode: 0o755,
            follow,
        });
        w.run();
        assert_eq!(w.done(job), follow, "{:?}", w.failed(job));
    }
}
