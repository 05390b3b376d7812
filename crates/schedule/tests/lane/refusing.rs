//! Servers that refuse any set of requests: the final name holds the old content or all of the new
//! one in every case, unless a message says that the file is written in place.

use schedule::{ExistingTargetPolicy, FileCopyOptions, LaneEvent, LocalEnd, ReadOnlyFilePolicy};
use sftp::StatusCode;
use testkit::sftp_model::{
    Act, InjectedFault, Kind, ModelServerRestrictions, Rng, SftpServerProfile,
};

use crate::world::{Mode, World, bytes, config, link};

const OLD: &[u8] = b"what was there before";
const REFUSED: [&str; 10] = [
    "RENAME",
    "posix-rename@openssh.com",
    "SETSTAT",
    "FSETSTAT",
    "REMOVE",
    "LSTAT",
    "STAT",
    "FSTAT",
    "REALPATH",
    "fsync@openssh.com",
];
const CODES: [StatusCode; 5] = [
    StatusCode::FAILURE,
    StatusCode::PERMISSION_DENIED,
    StatusCode::OP_UNSUPPORTED,
    StatusCode::BAD_MESSAGE,
    StatusCode::NO_SUCH_FILE,
];

fn restricted(rng: &mut Rng) -> ModelServerRestrictions {
    let mut one_in = |n| rng.below(n) == 0;
    let mut restrictions = ModelServerRestrictions {
        in_order: one_in(3),
        locks: one_in(3),
        ..ModelServerRestrictions::default()
    };
    let (exclusive, suffix) = (one_in(4), one_in(4));
    let code = |rng: &mut Rng| CODES[rng.below(CODES.len() as u64) as usize];
    for name in REFUSED {
        if rng.below(3) == 0 {
            // REMOVE never gets NO_SUCH_FILE, since a server that reports a file as missing is
            // believed.
            let code = match (name, code(rng)) {
                ("REMOVE", StatusCode::NO_SUCH_FILE) => StatusCode::FAILURE,
                (_, code) => code,
            };
            restrictions.refused.insert(name, code);
        }
    }
    restrictions.exclusive = exclusive.then_some(StatusCode::OP_UNSUPPORTED);
    restrictions.suffix = suffix.then(|| (".dat", code(rng)));
    restrictions
}

fn world(restrictions: &ModelServerRestrictions, openssh: bool, seed: u64) -> World {
    let base = match openssh {
        true => SftpServerProfile::openssh(),
        false => SftpServerProfile::other(),
    };
    let server = SftpServerProfile {
        restrictions: restrictions.clone(),
        ..base
    };
    let mut config = config(Mode::Plain, seed);
    config.openssh = false;
    World::with(config, server, link(), seed)
}

/// Returns true if writing in place was reported, for this file or for all.
fn told_in_place(w: &World, job: schedule::JobId) -> bool {
    w.events.iter().any(|(_, event)| match event {
        LaneEvent::Refused(_, found, _) => found.in_place_somewhere(),
        LaneEvent::WhyInPlace(id, _) => *id == job,
        _ => false,
    })
}

#[test]
fn no_old_file_disappears_and_none_is_cut_in_secret() {
    let (mut done, mut failed, mut in_place) = (0, 0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let restrictions = restricted(&mut rng);
        let mut w = world(&restrictions, seed % 2 == 0, seed);
        w.place("old.dat", OLD, 0o600);
        w.place("other.dat", OLD, 0o644);
        if rng.below(2) == 0 {
            w.model.inject(InjectedFault {
                kind: None,
                nth: rng.below(40) as usize,
                act: Act::Status(CODES[rng.below(4) as usize]),
            });
        }
        let mut puts = Vec::new();
        for (n, name) in ["old.dat", "new.dat", "other.dat", "late.dat"]
            .into_iter()
            .enumerate()
        {
            let data = bytes([100, 400_000, 0, 70_000][n], seed + 1);
            let options = FileCopyOptions {
                preserve: rng.below(3) == 0,
                fsync: rng.below(4) == 0,
                ..FileCopyOptions::default()
            };
            puts.push((w.put(data.clone(), name, options), name, data));
        }
        w.run();
        let which = format!("{seed}: {restrictions:?}\n{:?}", w.model.log());
        assert_eq!(w.error, None, "{which}");
        let left = w.temporaries();
        let said = |name: &str| {
            w.warnings().iter().any(|text| text.contains(name))
                || puts
                    .iter()
                    .any(|(job, ..)| w.failed(*job).is_some_and(|t| t.contains(name)))
        };
        for name in &left {
            assert!(said(name), "{name} is left in secret; {which}");
        }
        for (job, name, data) in &puts {
            assert!(w.done(*job) != w.failed(*job).is_some(), "{name}; {which}");
            let stands = w.model.fs.data(name);
            if w.done(*job) {
                done += 1;
                assert!(stands == Some(data.as_slice()), "{name}; {which}");
                continue;
            }
            failed += 1;
            let replaces = matches!(*name, "old.dat" | "other.dat");
            let as_it_was = match replaces {
                true => stands == Some(OLD),
                false => stands.is_none(),
            };
            let told = w
                .failed(*job)
                .is_some_and(|text| text.contains("the file at the target "));
            // Bug: a file to which nothing had been written was called incomplete.
            let is_written = w
                .failed(*job)
                .is_some_and(|text| text.contains("the file at the target is incomplete"));
            assert!(
                !is_written || stands.is_some_and(|bytes| !bytes.is_empty()),
                "{name}; {which}"
            );
            let beside = left.iter().any(|name| w.model.fs.data(name) == Some(OLD));
            let safe = as_it_was || told_in_place(&w, *job) && told || replaces && beside;
            assert!(safe, "{name}: {:?}; {which}", w.failed(*job));
        }
        in_place += puts
            .iter()
            .filter(|(job, ..)| told_in_place(&w, *job))
            .count();
        assert_eq!(w.model.open_handles().0, 0, "{which}");
        assert_eq!(
            (w.disk.open_sources(), w.lane.stats().reading),
            (0, 0),
            "{which}"
        );
    }
    let enough = done > 600 && failed > 20 && in_place > 150;
    assert!(enough, "{done} {failed} {in_place}");
}

/// Each file used to take the permissions of its source: others could read a file that only its
/// owner could read before.
#[test]
fn a_file_that_is_replaced_grants_no_more_where_permissions_cannot_be_set() {
    let mut restrictions = ModelServerRestrictions::default();
    for name in ["SETSTAT", "FSETSTAT"] {
        let code = StatusCode::OP_UNSUPPORTED;
        restrictions.refused.insert(name, code);
    }
    for openssh in [false, true] {
        let mut w = world(&restrictions, openssh, 1);
        let names = ["a", "b", "c"];
        for name in names {
            w.place(name, OLD, 0o600);
        }
        let puts = names.map(|name| w.put(bytes(50_000, 1), name, FileCopyOptions::default()));
        w.run();
        for (job, name) in puts.into_iter().zip(names) {
            assert!(w.done(job), "{:?}", w.failed(job));
            assert_eq!(w.model.fs.at(name).map(|n| n.mode), Some(0o600));
            assert!(w.model.fs.data(name) == Some(bytes(50_000, 1).as_slice()));
        }
    }
}

/// A file used to be refused by its permission bits alone, which root and the file's group may
/// override.
#[test]
fn the_server_decides_whether_a_read_only_file_may_be_written() {
    let mut w = World::new(Mode::Plain);
    // A file that its group may write.
    w.place("shared", OLD, 0o464);
    w.model.fs.ignores_modes = true;
    let job = w.put(bytes(50_000, 1), "shared", FileCopyOptions::default());
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert!(w.model.fs.data("shared") == Some(bytes(50_000, 1).as_slice()));
    assert_eq!(w.model.fs.at("shared").map(|n| n.mode), Some(0o464));
    assert_eq!(w.temporaries(), Vec::<String>::new());
}

/// Bug: `cp -a` between two hosts failed for a read-only file that the account may replace.
#[test]
fn a_read_only_file_is_replaced_if_that_is_wanted() {
    let size = OLD.len() as u64;
    for (read_only, replaces) in [
        (ReadOnlyFilePolicy::Replace, true),
        (ReadOnlyFilePolicy::ReplaceOfSize(size), true),
        (ReadOnlyFilePolicy::ReplaceOfSize(size + 1), false),
        (ReadOnlyFilePolicy::AskServer, false),
    ] {
        let mut w = World::new(Mode::Plain);
        w.place("old", OLD, 0o444);
        let options = FileCopyOptions {
            existing: ExistingTargetPolicy {
                read_only,
                ..ExistingTargetPolicy::default()
            },
            ..FileCopyOptions::default()
        };
        let job = w.put(bytes(50_000, 1), "old", options);
        w.run();
        assert_eq!(w.done(job), replaces, "{:?}", w.failed(job));
    }
}

/// Bug: the upload of a relayed file found out after its first blocks that it may not write the file
/// at the target, and began again with data that were gone.
#[test]
fn a_relayed_upload_reads_its_source_once() {
    for mode in [Mode::Plain, Mode::Predicting, Mode::Remembered] {
        for target in ["read-only", "link"] {
            let mut w = World::new(mode);
            w.place("read-only", OLD, 0o444);
            w.model.fs.ignores_modes = true;
            let kind = Kind::Symlink(b"read-only".to_vec());
            w.model.fs.place("link", kind, 0o777);
            let options = FileCopyOptions {
                local_end: LocalEnd::OtherHost,
                ..FileCopyOptions::default()
            };
            let job = w.put(bytes(600_000, 1), target, options);
            w.run();
            assert!(w.done(job), "{:?}", w.failed(job));
            assert_eq!(w.disk.opened, 1, "{mode:?} {target}");
        }
    }
}

/// Bug: in a sticky directory, each file of another user that was overwritten kept a second name
/// beside it, since OpenSSH's RENAME is a link and an unlink.
#[test]
fn a_file_of_another_user_in_a_sticky_directory_gets_no_second_name() {
    for len in [50_000, 400_000] {
        let mut w = world(&ModelServerRestrictions::default(), true, 1);
        w.model.fs.sticky = true;
        w.model.fs.only_group = Some(1000);
        w.place("old", OLD, 0o666);
        let old = w.model.fs.at_mut("old").expect("it was placed");
        old.owner = (7, 7);
        let job = w.put(bytes(len, 1), "old", FileCopyOptions::default());
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        assert!(told_in_place(&w, job), "{:?}", w.warnings());
        assert!(w.model.fs.data("old") == Some(bytes(len, 1).as_slice()));
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
}

/// One directory that permits no renames made every later file of the server go in place.
#[test]
fn renames_are_tried_in_other_directories_until_several_have_refused() {
    let mut restrictions = ModelServerRestrictions::default();
    for name in ["RENAME", "posix-rename@openssh.com"] {
        restrictions.refused.insert(name, StatusCode::FAILURE);
    }
    for openssh in [false, true] {
        let mut w = world(&restrictions, openssh, 1);
        for dir in ["a", "b", "c", "d"] {
            w.model.fs.place(dir, Kind::Dir, 0o755);
        }
        // The first file of a directory finds the refusal, and the next one expects it.
        for (n, (path, tells)) in [
            ("a/1", true),
            ("a/2", false),
            ("b/1", true),
            ("b/2", false),
            ("c/1", true),
            ("d/1", false),
        ]
        .into_iter()
        .enumerate()
        {
            let before = w.events.len();
            let data = bytes(50_000, n as u64);
            let job = w.put(data.clone(), path, FileCopyOptions::default());
            w.run();
            assert!(w.done(job), "{path}: {:?}", w.failed(job));
            assert!(w.model.fs.data(path) == Some(data.as_slice()), "{path}");
            let found = w.events[before..]
                .iter()
                .find_map(|(_, event)| match event {
                    LaneEvent::Refused(_, found, _) => Some(found),
                    _ => None,
                });
            assert_eq!(found.is_some(), tells, "{path}: {found:?}");
            assert_eq!(w.lane.refusals().renames, path >= "c", "{path}");
        }
    }
}

/// `C:\dir\file` has its temporary in that directory.
#[test]
fn a_backslash_may_separate_directories() {
    let name = sftp::temp_name(br"C:\dir\file", &mut |bytes| bytes.fill(0));
    assert_eq!(name, br"C:\dir\.file.0000000000.longhaul");
}

/// Bug: uploads whose temporaries had been refused for the flag EXCL went in place if another one had
/// learned meanwhile that the server does not know it.
#[test]
fn a_flag_that_another_upload_has_found_missing_is_left_out_too() {
    let restrictions = ModelServerRestrictions {
        exclusive: Some(StatusCode::FAILURE),
        ..ModelServerRestrictions::default()
    };
    for end in [LocalEnd::File, LocalEnd::OtherHost] {
        let mut w = world(&restrictions, false, 1);
        let options = FileCopyOptions {
            local_end: end,
            ..FileCopyOptions::default()
        };
        // Some begin when the others have been answered.
        let jobs: Vec<_> = (0..40)
            .map(|n| {
                w.put(
                    bytes(40_000 * (n % 5), n as u64),
                    &format!("f{n}"),
                    options.clone(),
                )
            })
            .collect();
        w.run();
        assert!(w.warnings().is_empty(), "{:?}", w.warnings());
        if end == LocalEnd::File {
            assert!(jobs.iter().all(|job| w.done(*job)));
        }
    }
}
