//! Uploads of files of which the far end has an older version.

use std::time::Duration;

use schedule::{FileCopyOptions, FileCopyState, JobId, JobKind, LaneEvent};
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile, VirtualLinkOptions};

use crate::disk::Source;
use crate::world::{Mode, RTT, World, bytes, config, link, remote};

const SIZE: usize = 3 << 20;

fn world(mode: Mode) -> World {
    let mut config = config(mode, 1);
    config.remembered = None;
    World::with(config, SftpServerProfile::ours(), link(), 1)
}

fn put(w: &mut World, data: &[u8], options: FileCopyOptions) -> JobId {
    let source = std::path::PathBuf::from("/src/delta");
    let data = Source::new(data.to_vec());
    w.disk.sources.insert(source.clone(), data);
    w.job(JobKind::PutDelta {
        source,
        target: remote("old"),
        options,
        always: false,
    })
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
    assert_eq!(w.temporaries(), Vec::<String>::new());
    assert_eq!(w.disk.open_sources(), 0);
    assert_eq!(w.model.open_handles().0, 0);
}

fn abandoned(w: &World, id: JobId) -> bool {
    w.at(&LaneEvent::Abandoned(id)).is_some()
}

#[test]
fn only_what_changed_is_sent_and_the_file_is_the_source() {
    for mode in [Mode::Predicting, Mode::Plain] {
        let old = bytes(SIZE, 5);
        let new = changed(&old);
        let mut w = world(mode);
        w.place("old", &old, 0o640);
        let preserve = FileCopyOptions {
            preserve: true,
            fsync: true,
            ..FileCopyOptions::default()
        };
        let id = put(&mut w, &new, preserve);
        w.run();
        assert!(w.done(id), "{:?}", w.events);
        assert!(w.model.fs.data("old") == Some(new.as_slice()));
        let sent = new.len() as u64 - w.model.copied;
        assert!((21_000..80_000).contains(&sent), "{sent}");
        let node = w.model.fs.at("old").unwrap();
        assert_eq!((node.mode, node.times), (0o664, (1111, 2222)));
        let total: u64 = w
            .events
            .iter()
            .map(|(_, e)| match e {
                LaneEvent::Progress(_, n) => *n,
                _ => 0,
            })
            .sum();
        assert_eq!(total, new.len() as u64);
        nothing_is_left(&w);
    }
}

/// The decision of a copy without `--delta`, by the round trip. Over real processes a busy machine
/// answered late enough for a long path.
#[test]
fn between_near_machines_a_file_is_sent_whole() {
    for (rtt, reused) in [(100, true), (11, true), (9, false), (1, false)] {
        let old = bytes(SIZE, 5);
        let new = changed(&old);
        let link = VirtualLinkOptions {
            delay: Duration::from_millis(rtt) / 2,
            ..link()
        };
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        let mut w = World::with(config, SftpServerProfile::ours(), link, 1);
        w.place("old", &old, 0o640);
        let id = put(&mut w, &new, FileCopyOptions::default());
        w.run();
        let done = (w.done(id), w.model.copied > 0, abandoned(&w, id));
        assert_eq!(done, (reused, reused, !reused), "{rtt} ms: {:?}", w.events);
        nothing_is_left(&w);
    }
}

#[test]
fn the_mode_of_what_is_there_stays() {
    let old = bytes(SIZE, 5);
    let mut w = world(Mode::Predicting);
    w.place("old", &old, 0o600);
    let id = put(&mut w, &old, FileCopyOptions::default());
    let other = w.put(bytes(10, 1), "other", FileCopyOptions::default());
    w.run();
    assert!(w.done(id) && w.done(other));
    assert_eq!(w.model.copied, SIZE as u64);
    assert_eq!(w.model.fs.at("old").map(|n| n.mode), Some(0o600));
    nothing_is_left(&w);
}

/// Counts the round trips: VERSION, LSTAT, both OPENs with the sums, the copies with their sums and
/// CLOSE, and the rename.
#[test]
fn sums_leave_with_the_open_and_the_mode_with_the_close() {
    for (mode, trips) in [(Mode::Predicting, 5), (Mode::Plain, 6)] {
        let old = bytes(SIZE, 5);
        let mut w = world(mode);
        w.place("old", &old, 0o600);
        let id = put(&mut w, &old, FileCopyOptions::default());
        w.run();
        let named = w.reached(id, FileCopyState::Renamed);
        assert_eq!(named, Some(trips * RTT), "{mode:?}: {:?}", w.events);
        assert_eq!(w.model.fs.at("old").map(|n| n.mode), Some(0o600));
        nothing_is_left(&w);
    }
}

/// A mode that cannot be set through the handle is tried by name, and reported.
#[test]
fn a_mode_that_cannot_be_set_is_told() {
    let old = bytes(SIZE, 5);
    let mut w = world(Mode::Predicting);
    w.place("old", &old, 0o600);
    for kind in ["FSETSTAT", "SETSTAT"] {
        w.model.inject(InjectedFault {
            kind: Some(kind),
            nth: 0,
            act: Act::Status(sftp::StatusCode::FAILURE),
        });
    }
    let id = put(&mut w, &old, FileCopyOptions::default());
    w.run();
    assert!(w.done(id), "{:?}", w.events);
    let told = |(_, event): &(_, LaneEvent)| matches!(event, LaneEvent::NotKept(..));
    assert!(w.events.iter().any(told), "{:?}", w.events);
    nothing_is_left(&w);
}

#[test]
fn what_cannot_be_rebuilt_is_left_to_a_plain_upload() {
    type Prepare = fn(&mut World);
    let cases: [(&str, Prepare); 5] = [
        ("nothing is there", |_| {}),
        ("it is small", |w| w.place("old", b"old", 0o644)),
        ("it is a symlink", |w| {
            w.model
                .fs
                .place("old", Kind::Symlink(b"else".to_vec()), 0o777);
        }),
        ("it is read-only", |w| {
            w.place("old", &bytes(SIZE, 5), 0o444)
        }),
        ("it has nothing of it", |w| {
            w.place("old", &bytes(13 * SIZE, 6), 0o644);
        }),
    ];
    for (what, prepare) in cases {
        let mut w = world(Mode::Predicting);
        prepare(&mut w);
        let before = w.model.fs.data("old").map(<[u8]>::to_vec);
        let id = put(&mut w, &bytes(SIZE, 5), FileCopyOptions::default());
        w.run();
        assert!(abandoned(&w, id), "{what}: {:?}", w.events);
        assert!(
            w.model.fs.data("old").map(<[u8]>::to_vec) == before,
            "{what}"
        );
        nothing_is_left(&w);
    }
    // A stock server is not asked for sums.
    let mut w = World::with(
        config(Mode::Plain, 1),
        SftpServerProfile::openssh(),
        link(),
        1,
    );
    w.place("old", &bytes(SIZE, 5), 0o644);
    let id = put(&mut w, &bytes(SIZE, 5), FileCopyOptions::default());
    w.run();
    assert!(abandoned(&w, id));
    assert!(!w.model.log().contains(&"LSTAT"));
}

#[test]
fn a_server_that_lies_about_sums_is_found_out_before_the_name() {
    let old = bytes(SIZE, 5);
    let mut w = world(Mode::Plain);
    w.place("old", &old, 0o644);
    w.model.lies_about_sums = true;
    let id = put(&mut w, &changed(&old), FileCopyOptions::default());
    w.run();
    assert!(abandoned(&w, id), "{:?}", w.events);
    assert!(w.model.fs.data("old") == Some(old.as_slice()));
    nothing_is_left(&w);
}

#[test]
fn an_older_form_that_changes_meanwhile_is_found_out() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    let first_copy = {
        let mut w = world(Mode::Plain);
        w.place("old", &old, 0o644);
        put(&mut w, &new, FileCopyOptions::default());
        w.run();
        let log = w.model.log();
        log.iter().position(|name| *name == "copy-data").unwrap()
    };
    let mut w = world(Mode::Plain);
    w.place("old", &old, 0o644);
    w.model.change_before(first_copy, |fs| {
        if let Some(node) = fs.at_mut("old")
            && let Kind::File(data) = &mut node.kind
        {
            data[600_000] ^= 1;
        }
    });
    let id = put(&mut w, &new, FileCopyOptions::default());
    w.run();
    assert!(abandoned(&w, id), "{:?}", w.events);
    nothing_is_left(&w);
}

#[test]
fn whatever_fails_nothing_is_left_and_the_old_file_stands() {
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    for request in [
        "LSTAT",
        "OPEN",
        "hash@longhaul",
        "copy-data",
        "WRITE",
        "CLOSE",
    ] {
        for nth in 0..2 {
            let mut w = world(Mode::Predicting);
            w.place("old", &old, 0o644);
            w.model.inject(InjectedFault {
                kind: Some(request),
                nth,
                act: Act::Status(sftp::StatusCode::FAILURE),
            });
            let id = put(&mut w, &new, FileCopyOptions::default());
            w.run();
            let over = w.done(id) || abandoned(&w, id) || w.failed(id).is_some();
            assert!(over, "{request} {nth}: {:?}", w.events);
            let now = w.model.fs.data("old");
            match w.done(id) {
                true => assert!(now == Some(new.as_slice()), "{request} {nth}"),
                false => assert!(now == Some(old.as_slice()), "{request} {nth}"),
            }
            assert_eq!(w.temporaries(), Vec::<String>::new(), "{request} {nth}");
            assert_eq!(w.disk.open_sources(), 0, "{request} {nth}");
        }
    }
}

#[test]
fn cancelled_at_any_moment_it_leaves_nothing() {
    let old = bytes(SIZE, 5);
    for step in 0..14 {
        let mut w = world(Mode::Predicting);
        w.place("old", &old, 0o644);
        let id = put(&mut w, &changed(&old), FileCopyOptions::default());
        w.run_for(Duration::from_millis(60 * step));
        w.lane.cancel(w.now, "interrupted");
        w.run();
        let whole = w.model.fs.data("old") == Some(changed(&old).as_slice());
        assert!(whole || w.model.fs.data("old") == Some(old.as_slice()));
        assert_eq!(whole, w.done(id), "{step}");
        nothing_is_left(&w);
    }
}
