//! Answers to longhaul's own extensions that no server of ours sends: wrong lengths, counts, kinds
//! and offsets. Each ends the lane or the job with an error, or the file is still the source.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{
    Attributes, ByteRange, CompressionMode, FileCopyOptions, JobId, JobKind, LaneEvent,
};
use sftp::{Attrs, MetadataFlags};
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile};
use wire::Field as _;

use crate::world::{Mode, World, bytes, config, link, remote};

const SIZE: usize = 2_000_000;

const EXTENSIONS: [&str; 9] = [
    "get-file@longhaul",
    "get-file-zstd@longhaul",
    "list-tree@longhaul",
    "hash@longhaul",
    "read-zstd@longhaul",
    "read-sparse@longhaul",
    "get-xattrs@longhaul",
    "ids-by-name@longhaul",
    "users-groups-by-id@openssh.com",
];

/// Bodies of EXTENDED_REPLY: all zeros, all ones, counts and lengths that are too large, noise.
fn bodies() -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    for len in [
        0,
        1,
        4,
        5,
        8,
        12,
        13,
        19,
        20,
        21,
        32,
        64,
        100,
        5000,
        240 << 10,
    ] {
        bodies.extend([vec![0; len], vec![0xff; len], bytes(len, len as u64)]);
        for first in [
            &[0, 0, 0, 1][..],
            &[0x7f, 0xff, 0xff, 0xff],
            &[6, 0xff, 0xff, 0xff, 0xff],
        ] {
            let body = first.iter().copied().chain(std::iter::repeat(0)).take(len);
            bodies.push(body.collect());
        }
    }
    bodies
}

fn world() -> World {
    let mut config = config(Mode::Predicting, 1);
    config.pack = CompressionMode::Always;
    let mut w = World::with(config, SftpServerProfile::ours(), link(), 1);
    w.place("small", &bytes(5000, 1), 0o644);
    w.place("zeros", &[0; 5000], 0o644);
    w.place("big", &with_zeros(), 0o644);
    w.model.fs.place("d", Kind::Dir, 0o755);
    w.place("d/f", b"f", 0o644);
    let old = bytes(SIZE, 5);
    let attributes = Attributes {
        size: Some(SIZE as u64),
        mode: Some(0o100_644),
        ..Attributes::default()
    };
    w.disk
        .files
        .insert(PathBuf::from("/dst/new"), (old.clone(), attributes));
    w.place("new", &changed(&old), 0o644);
    w.place("old", &old, 0o644);
    w
}

fn changed(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new[700_000..700_100].fill(1);
    new
}

fn with_zeros() -> Vec<u8> {
    [vec![0; 600_000], bytes(300_000, 2), vec![0; 100_000]].concat()
}

fn known(size: usize) -> Option<Attributes> {
    Some(Attributes {
        size: Some(size as u64),
        mode: Some(0o100_644),
        ..Attributes::default()
    })
}

fn sparse() -> FileCopyOptions {
    FileCopyOptions {
        sparse: true,
        ..FileCopyOptions::default()
    }
}

/// Queues jobs that use every extension.
fn all_jobs(w: &mut World) -> Vec<JobId> {
    let options = FileCopyOptions::default;
    let always = true;
    let source = PathBuf::from("/src/delta");
    let data = changed(&bytes(SIZE, 5));
    w.disk
        .sources
        .insert(source.clone(), crate::disk::Source::new(data));
    let span = ByteRange {
        offset: 0,
        len: Some(3000),
    };
    vec![
        w.get("small", known(5000)),
        w.get("zeros", None),
        w.get("big", known(1_000_000)),
        w.get_with("big", known(1_000_000), sparse()),
        w.job(JobKind::GetDelta {
            source: remote("new"),
            target: PathBuf::from("/dst/new").into(),
            known: None,
            options: options(),
            always,
        }),
        w.job(JobKind::PutDelta {
            source,
            target: remote("old"),
            options: options(),
            always,
        }),
        w.job(JobKind::ListTree {
            path: remote("d"),
            count: true,
            same_device: false,
        }),
        w.job(JobKind::Sum {
            path: remote("small"),
            span,
            size: Some(5000),
        }),
        w.job(JobKind::GetXattrs {
            path: remote("small"),
            flags: MetadataFlags::XATTRS,
        }),
        w.job(JobKind::Names {
            users: vec![0, 1],
            groups: vec![0],
        }),
        w.job(JobKind::Ids {
            users: vec![b"root".to_vec()],
            groups: vec![b"root".to_vec()],
        }),
    ]
}

/// Fails unless each job has ended or the lane has, and all files that are there are the sources.
fn check(w: &World, jobs: &[JobId], what: &str) {
    let ended = |id: JobId| w.events.iter().any(|(_, e)| e.job() == id && e.is_last());
    assert!(
        w.error.is_some() || jobs.iter().all(|id| ended(*id)),
        "{what}"
    );
    let sources = [
        ("small", bytes(5000, 1)),
        ("zeros", vec![0; 5000]),
        ("big", with_zeros()),
    ];
    for (name, data) in sources {
        assert!(w.got(name).is_none_or(|got| got == data), "{what}: {name}");
    }
    let old = bytes(SIZE, 5);
    let new = changed(&old);
    assert!(
        w.got("new") == Some(&old) || w.got("new") == Some(&new),
        "{what}"
    );
    let there = w.model.fs.data("old").map(<[u8]>::to_vec);
    assert!(
        there.as_ref() == Some(&old) || there.as_ref() == Some(&new),
        "{what}"
    );
    if w.error.is_none() {
        assert_eq!(
            (w.disk.targets(), w.lane.stats().unwritten),
            (0, 0),
            "{what}"
        );
    }
}

#[test]
fn answers_of_no_sense_are_errors_and_never_data() {
    let mut errors = 0;
    for kind in EXTENSIONS {
        for (n, body) in bodies().into_iter().enumerate() {
            let mut w = world();
            for nth in 0..40 {
                let act = Act::Reply(body.clone());
                let kind = Some(kind);
                w.model.inject(InjectedFault { kind, nth, act });
            }
            let jobs = all_jobs(&mut w);
            w.run();
            errors += usize::from(w.error.is_some());
            check(&w, &jobs, &format!("{kind} {n} of {} bytes", body.len()));
        }
    }
    assert!(errors > 100, "{errors}");
}

#[test]
fn true_answers_of_another_place_are_errors_or_true_data() {
    // Answers are right in themselves, and each has the place of the one before.
    for kind in EXTENSIONS {
        for first in 0..3 {
            let mut w = world();
            for (nth, act) in [(first, Act::OtherId), (first + 1, Act::Truncated)] {
                let kind = Some(kind);
                w.model.inject(InjectedFault { kind, nth, act });
            }
            let jobs = all_jobs(&mut w);
            w.run();
            check(&w, &jobs, &format!("{kind} {first}"));
        }
    }
}

/// Bug: data that came before the answer to OPEN went to a target that was not open yet, and the file
/// failed with an internal error.
#[test]
fn data_of_a_file_that_is_not_open_yet_are_not_written() {
    let mut w = World::with(
        config(Mode::Predicting, 1),
        SftpServerProfile::openssh(),
        link(),
        1,
    );
    w.place("down", &bytes(3000, 1), 0o644);
    let job = w.get("down", known(3000));
    w.run();
    assert!(w.done(job), "the next handle is predicted");
    for (kind, act) in [("OPEN", Act::Silence), ("READ", Act::Data(vec![7]))] {
        let (kind, nth) = (Some(kind), 0);
        w.model.inject(InjectedFault { kind, nth, act });
    }
    let job = w.get("down", known(3000));
    w.run_for(Duration::from_secs(5));
    assert!(!w.done(job) && w.disk.unopened == 0);
}

/// Such an answer was stored as a file, with the mode of a directory.
#[test]
fn a_whole_file_that_is_no_file_is_not_stored() {
    for mode in [0o040_755, 0o120_777, 0o010_644] {
        for listed in [true, false] {
            let mut w = world();
            let mut body = Vec::new();
            let mut attrs = Attrs::with_permissions(mode);
            attrs.size = Some(4);
            attrs.write(&mut body);
            (true, b"data".as_slice()).write(&mut body);
            for kind in ["get-file@longhaul", "get-file-zstd@longhaul"] {
                w.model.inject(InjectedFault {
                    kind: Some(kind),
                    nth: 0,
                    act: Act::Reply(body.clone()),
                });
            }
            let job = w.get("small", listed.then(|| known(5000)).flatten());
            w.run();
            let why = w.failed(job).unwrap_or_default();
            assert!(
                why.contains("directory") || why.contains("not a regular file"),
                "{why}"
            );
            assert_eq!(w.got("small"), None);
        }
    }
}

/// Hashes of zeros for every block say that nothing is alike, or that all is.
#[test]
fn sums_that_are_all_alike_rebuild_no_wrong_file() {
    for fill in [0, 1, 0xff] {
        let mut w = world();
        for nth in 0..200 {
            // The first segment of 2,000,000 bytes has 489 blocks of 4 KiB, of 20 bytes each.
            let act = Act::Reply(vec![fill; 489 * 20]);
            let kind = Some("hash@longhaul");
            w.model.inject(InjectedFault { kind, nth, act });
        }
        let jobs = all_jobs(&mut w);
        w.run();
        check(&w, &jobs, &format!("{fill}"));
        let told = |id: JobId| w.at(&LaneEvent::Abandoned(id)).is_some() || w.done(id);
        assert!(told(jobs[4]) && told(jobs[5]), "{fill}");
    }
}

/// The answer to a question about the server filled the disk: a small file was expected, and all that
/// the server sent was written.
#[test]
fn a_file_larger_than_wanted_is_not_downloaded() {
    let options = || FileCopyOptions {
        most: Some(37),
        ..FileCopyOptions::default()
    };
    for (size, known) in [(37, true), (38, true), (1 << 20, true), (38, false)] {
        let mut w = World::new(Mode::Plain);
        w.place("f", &bytes(size, 1), 0o644);
        let expected = Attributes {
            size: Some(37),
            mode: Some(0o100_644),
            ..Attributes::default()
        };
        let id = w.get_with("f", known.then_some(expected), options());
        w.run();
        assert_eq!(w.done(id), size == 37, "{size} {known}");
        assert_eq!(w.got("f").is_some(), size == 37, "{size} {known}");
    }
}
