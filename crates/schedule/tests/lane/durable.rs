//! Durable names on a longhaul server.

use schedule::{FileCopyOptions, FileCopyState, JobKind, LaneEvent, RemotePath, directory_of};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault};

use crate::world::{Mode, World, bytes, remote};

const SYNC: &str = "fsync-set@longhaul";
const RENAME: &str = "posix-rename@openssh.com";

fn fsync() -> FileCopyOptions {
    FileCopyOptions {
        fsync: true,
        ..FileCopyOptions::default()
    }
}

fn count(w: &World, name: &str) -> usize {
    w.model.log().iter().filter(|n| **n == name).count()
}

#[test]
fn the_name_of_a_large_file_is_synced_in_the_flight_of_its_rename() {
    let mut took = Vec::new();
    for (mode, options, synced) in [
        (Mode::Ours, fsync(), 1),
        (Mode::Ours, FileCopyOptions::default(), 0),
        (Mode::Remembered, fsync(), 0),
    ] {
        let mut w = World::new(mode);
        let job = w.put(bytes(300_000, 1), "dir/a", options);
        w.model
            .fs
            .place("dir", testkit::sftp_model::Kind::Dir, 0o755);
        w.run();
        assert!(w.done(job), "{mode:?}");
        let log = w.model.log();
        let renamed = log.iter().position(|name| *name == RENAME).expect("it");
        assert_eq!(log.get(renamed + 1) == Some(&SYNC), synced == 1);
        assert_eq!(count(&w, SYNC), synced, "{mode:?}");
        took.push(w.now - w.start);
        if synced == 1 {
            let both =
                [FileCopyState::Synced, FileCopyState::Renamed].map(|state| w.reached(job, state));
            assert_eq!(both, [Some(w.now - w.start); 2]);
        }
    }
    assert_eq!(took[0], took[1], "it costs no round trip");
}

#[test]
fn a_file_whose_name_is_not_durable_has_failed_or_says_so() {
    for (code, fails) in [
        (StatusCode::FAILURE, true),
        (StatusCode::PERMISSION_DENIED, false),
    ] {
        let mut w = World::new(Mode::Ours);
        w.model.inject(InjectedFault {
            kind: Some(SYNC),
            nth: 0,
            act: Act::Status(code),
        });
        let job = w.put(bytes(300_000, 1), "a", fsync());
        w.run();
        assert_eq!(w.failed(job).is_some(), fails, "{code:?}");
        assert_eq!(w.warnings().len(), usize::from(!fails));
        assert!(w.model.fs.data("a").is_some(), "it stands");
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
    // If posix-rename@openssh.com is refused, another rename names the file, and that name is
    // durable.
    let mut w = World::new(Mode::Ours);
    for kind in [RENAME, SYNC] {
        w.model.inject(InjectedFault {
            kind: Some(kind),
            nth: 0,
            act: Act::Status(StatusCode::FAILURE),
        });
    }
    let job = w.put(bytes(300_000, 1), "a", fsync());
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert_eq!(count(&w, SYNC), 2);
    assert_eq!(w.temporaries(), Vec::<String>::new());
}

#[test]
fn directories_are_made_durable_where_somebody_can_be_asked() {
    for (mode, code, asked, fails) in [
        (Mode::Ours, StatusCode::OK, 1, false),
        (Mode::Ours, StatusCode::PERMISSION_DENIED, 1, false),
        (Mode::Ours, StatusCode::FAILURE, 1, true),
        (Mode::Plain, StatusCode::OK, 0, false),
    ] {
        let mut w = World::new(mode);
        w.model.inject(InjectedFault {
            kind: Some(SYNC),
            nth: 0,
            act: Act::Status(code),
        });
        let paths = vec![remote("dir/."), remote(".")];
        let job = w.job(JobKind::MakeDurable { paths });
        w.run();
        assert_eq!(count(&w, SYNC), asked);
        let ends = match fails {
            true => w.failed(job).is_some(),
            false => w.at(&LaneEvent::Done(job)).is_some(),
        };
        assert!(ends, "{mode:?} {code:?}");
        let warned = usize::from(code == StatusCode::PERMISSION_DENIED);
        assert_eq!(w.warnings().len(), warned);
    }
}

#[test]
fn where_a_name_lies() {
    for (path, directory) in [
        ("a", "."),
        ("/a", "/."),
        ("x/a", "x/."),
        ("x/y/a//", "x/y/."),
        ("/", "."),
        ("", "."),
    ] {
        let found = RemotePath(directory_of(path.as_bytes()));
        assert_eq!(found, remote(directory), "{path}");
    }
}
