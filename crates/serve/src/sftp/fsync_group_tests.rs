use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use sftp::{Attrs, MOST_SYNCED, OpenFlags, PutFlags, Request, Response, StatusCode};
use wire::{Field as _, RemainingBytes};

use super::MOST;
use crate::testing::{answers, at, both, code, input, names, put, statuses};
use crate::{Access, SftpServer};

const FSYNC: PutFlags = PutFlags::FSYNC;

fn codes(got: &[(StatusCode, String)]) -> Vec<StatusCode> {
    got.iter().map(|(code, _)| *code).collect()
}

fn temporaries(folder: &Path) -> usize {
    let is = |name: &String| name.ends_with(".longhaul");
    names(folder).iter().filter(|name| is(name)).count()
}

#[test]
fn files_of_many_sets_come_whole_and_in_their_order() {
    both(Access::Full, |export, before, folder| {
        let count = 2 * MOST + 7;
        for n in 0..3 {
            fs::create_dir(folder.join(n.to_string())).expect("ours");
        }
        let paths: Vec<Vec<u8>> = (0..count)
            .map(|n| at(before, &format!("{}/{n}", n % 3)))
            .collect();
        let mut requests: Vec<Request<'_>> = Vec::new();
        for path in &paths {
            requests.push(put(path, FSYNC, path));
        }
        // Answers have the IDs of the requests, in their order.
        let got = statuses(export, &requests);
        assert!(got.iter().all(|s| s == &(StatusCode::OK, "Success".into())));
        for (n, path) in paths.iter().enumerate() {
            let file = folder.join((n % 3).to_string()).join(n.to_string());
            assert_eq!(&fs::read(file).expect("it"), path);
        }
        for n in 0..3 {
            assert_eq!(temporaries(&folder.join(n.to_string())), 0);
        }
    });
}

#[test]
fn a_set_is_held_until_it_is_full_or_something_else_comes() {
    both(Access::Full, |export, before, folder| {
        let paths: Vec<Vec<u8>> = (0..=MOST).map(|n| at(before, &n.to_string())).collect();
        let puts: Vec<Request<'_>> = paths.iter().map(|p| put(p, FSYNC, b"x")).collect();
        let mut server = SftpServer::new(export);
        let mut serve = |received: &[Request<'_>], fresh| {
            let mut received = input(received, fresh);
            while !received.is_empty() {
                server.handle(&mut received).expect("sound requests");
                let Ok(()) = server.take_answers(|_| Ok::<_, Infallible>(()));
            }
            server.holds()
        };
        assert!(serve(&puts[..MOST - 1], true));
        assert_eq!(temporaries(folder), MOST - 1);
        assert!(!serve(&puts[MOST - 1..MOST], false), "that was the last");
        assert_eq!((temporaries(folder), names(folder).len()), (0, MOST));
        assert!(serve(&puts[MOST..], false));
        assert!(!serve(&[Request::Limits {}], false));
        assert_eq!((temporaries(folder), names(folder).len()), (0, MOST + 1));
        // Large files fill a group sooner.
        let large = vec![7; 250 << 10];
        let puts: Vec<Request<'_>> = paths.iter().map(|p| put(p, FSYNC, &large)).collect();
        assert!(serve(&puts[..16], false));
        assert!(!serve(&puts[16..17], false));
        // A lost connection leaves nothing behind.
        assert!(serve(&puts[..3], false));
        assert_eq!(temporaries(folder), 3);
        drop(server);
        assert_eq!((temporaries(folder), names(folder).len()), (0, MOST + 1));
    });
}

#[test]
fn one_name_twice_is_put_one_after_the_other() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        symlink("dir", folder.join("link")).expect("ours");
        let (a, same) = (at(before, "dir/a"), at(before, "link//../dir/./a"));
        let (through, b) = (at(before, "link/a"), at(before, "dir/b"));
        let kept = Request::PutFile {
            path: &a,
            flags: FSYNC,
            tag: 7,
            mode: 0o600,
            attrs: Attrs::with_permissions(0o640),
            data: b"1",
        };
        // The first file's tag is reused: its temporary is gone by then.
        let got = statuses(
            export,
            &[
                kept,
                put(&b, FSYNC, b"b"),
                put(&same, FSYNC, b"2"),
                put(&through, FSYNC, b"3"),
            ],
        );
        assert_eq!(codes(&got), [StatusCode::OK; 4]);
        let stat = fs::metadata(folder.join("dir/a")).expect("it");
        assert_eq!(fs::read(folder.join("dir/a")).expect("it"), b"3");
        // Each file found its predecessor.
        assert_eq!(stat.permissions().mode() & 0o777, 0o640);
        assert_eq!(names(&folder.join("dir")), ["a", "b"]);
        // A link to a directory was replaced by a file before the second request.
        let link = at(before, "link");
        let replaces = PutFlags::FSYNC.with(PutFlags::REPLACE_LINK, true);
        let got = statuses(
            export,
            &[put(&link, replaces, b"file"), put(&through, FSYNC, b"4")],
        );
        let none = StatusCode::NO_SUCH_FILE;
        assert_eq!(codes(&got), [StatusCode::OK, none]);
        assert_eq!(fs::read(folder.join("dir/a")).expect("it"), b"3");
    });
}

#[test]
fn what_fails_fails_alone() {
    both(Access::Full, |export, before, folder| {
        for name in ["dir", "taken", "locked"] {
            fs::create_dir(folder.join(name)).expect("ours");
        }
        let locked = fs::Permissions::from_mode(0o500);
        fs::set_permissions(folder.join("locked"), locked).expect("ours");
        let root = testkit::missing::is_root();
        let denied = match root {
            true => StatusCode::OK,
            false => StatusCode::PERMISSION_DENIED,
        };
        let fresh = FSYNC.with(PutFlags::FRESH, true);
        let cases = [
            ("dir/a", FSYNC, StatusCode::OK),
            ("taken", FSYNC, StatusCode::FAILURE),
            ("b", FSYNC, StatusCode::OK),
            // The name is checked only by the rename, after the fsync.
            ("taken", fresh, StatusCode::FAILURE),
            ("locked/c", FSYNC, denied),
            ("dir/d", FSYNC, StatusCode::OK),
            ("none/e", FSYNC, StatusCode::NO_SUCH_FILE),
            ("f", PutFlags(FSYNC.0 | 0x100), StatusCode::OP_UNSUPPORTED),
            ("g", FSYNC, StatusCode::OK),
        ];
        let paths: Vec<Vec<u8>> = cases.iter().map(|case| at(before, case.0)).collect();
        let puts = paths.iter().zip(&cases);
        let puts: Vec<Request<'_>> = puts.map(|(path, case)| put(path, case.1, b"x")).collect();
        let got = statuses(export, &puts);
        assert_eq!(codes(&got), cases.map(|case| case.2), "{got:?}");
        assert_eq!(names(folder), ["b", "dir", "g", "locked", "taken"]);
        assert_eq!(names(&folder.join("dir")), ["a", "d"]);
        assert_eq!(names(&folder.join("taken")), Vec::<String>::new());
        let open = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder.join("locked"), open).expect("ours");
    });
}

#[test]
fn where_names_cannot_be_made_durable_that_is_said() {
    if testkit::missing::is_root() {
        return;
    }
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        let unread = fs::Permissions::from_mode(0o300);
        fs::set_permissions(folder.join("dir"), unread).expect("ours");
        let path = at(before, "dir/a");
        let got = statuses(export, &[put(&path, FSYNC, b"x")]);
        assert_eq!(codes(&got), [StatusCode::OK]);
        assert!(
            got[0].1.contains("cannot sync its directory"),
            "{}",
            got[0].1
        );
        let open = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder.join("dir"), open).expect("ours");
        assert_eq!(names(&folder.join("dir")), ["a"]);
    });
}

#[test]
fn what_comes_behind_a_set_finds_all_of_it() {
    both(Access::Full, |export, before, folder| {
        let (a, b, c) = (at(before, "a"), at(before, "b"), at(before, "c"));
        let plain = put(&a, PutFlags(0), b"plain");
        for behind in [
            Request::Lstat { path: &b },
            Request::GetFile { path: &b, len: 9 },
            Request::Open {
                path: &b,
                flags: OpenFlags::READ,
                attrs: Attrs::default(),
            },
            Request::Remove { path: &b },
            Request::Rename { from: &b, to: &c },
            plain,
        ] {
            let got = answers(
                export,
                &[put(&a, FSYNC, b"a"), put(&b, FSYNC, b"b"), behind],
            );
            let ended = got.iter().all(|answer| match Response::decode(answer) {
                Ok((_, Response::Status { code, .. })) => code == StatusCode::OK,
                other => other.is_ok(),
            });
            assert!(ended, "{behind:?}");
            let _ = fs::remove_file(folder.join("b"));
            let _ = fs::remove_file(folder.join("c"));
        }
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"plain");
    });
}

#[test]
fn a_drop_box_keeps_its_rules() {
    both(Access::WriteOnly, |export, before, folder| {
        fs::write(folder.join("theirs"), "theirs").expect("ours");
        let (new, theirs) = (at(before, "new"), at(before, "theirs"));
        let got = statuses(
            export,
            &[
                put(&new, FSYNC, b"1"),
                put(&theirs, FSYNC, b"x"),
                put(&new, FSYNC, b"2"),
            ],
        );
        let [first, refused, again] = codes(&got)[..] else {
            panic!("{got:?}")
        };
        assert_eq!([first, again], [StatusCode::OK; 2]);
        assert_ne!(refused, StatusCode::OK);
        assert_eq!(fs::read(folder.join("theirs")).expect("it"), b"theirs");
        assert_eq!(fs::read(folder.join("new")).expect("it"), b"2");
        assert_eq!(names(folder), ["new", "theirs"]);
    });
}

/// Encodes the paths of fsync-set@longhaul.
fn paths(paths: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for path in paths {
        path.as_slice().write(&mut out);
    }
    out
}

fn set(export: &crate::ExportedTree, of: &[Vec<u8>]) -> (StatusCode, String) {
    let of = paths(of);
    statuses(
        export,
        &[Request::FsyncSet {
            paths: RemainingBytes(&of),
        }],
    )
    .remove(0)
}

#[test]
fn a_set_of_paths_is_synced_or_the_first_that_is_not_is_named() {
    for access in [Access::Full, Access::ReadOnly] {
        both(access, |export, before, folder| {
            fs::create_dir(folder.join("dir")).expect("ours");
            fs::write(folder.join("dir/file"), "x").expect("ours");
            symlink("file", folder.join("dir/link")).expect("ours");
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            let fifo = folder.join("fifo");
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("ours");
            let path = |name: &str| at(before, name);
            let ok = (StatusCode::OK, "Success".to_owned());
            assert_eq!(set(export, &[]), ok);
            assert_eq!(set(export, &[path("dir"), path("dir/file"), path("")]), ok);
            for bad in ["none", "dir/link", "fifo"] {
                let (code, words) = set(export, &[path("dir"), path(bad), path("x")]);
                assert_ne!(code, StatusCode::OK, "{bad}");
                let named = String::from_utf8_lossy(&path(bad)).into_owned();
                assert!(words.ends_with(&named), "{words}");
            }
            let many = vec![path("dir"); MOST_SYNCED];
            assert_eq!(set(export, &many), ok);
            let bad = StatusCode::BAD_MESSAGE;
            assert_eq!(set(export, &[many, vec![path("dir")]].concat()).0, bad);
            let short = paths(&[path("dir"), path("dir/file")]);
            let short = RemainingBytes(&short[..short.len() - 1]);
            assert_eq!(code(export, Request::FsyncSet { paths: short }), bad);
        });
    }
}

#[test]
fn a_drop_box_syncs_what_its_client_knows() {
    both(Access::WriteOnly, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        fs::write(folder.join("theirs"), "x").expect("ours");
        let [new, theirs, dir] = ["new", "theirs", "dir"].map(|name| at(before, name));
        let own = paths(&[dir.clone(), new.clone()]);
        let other = paths(&[dir, theirs]);
        let got = statuses(
            export,
            &[
                put(&new, FSYNC, b"1"),
                Request::FsyncSet {
                    paths: RemainingBytes(&own),
                },
                Request::FsyncSet {
                    paths: RemainingBytes(&other),
                },
            ],
        );
        let denied = StatusCode::PERMISSION_DENIED;
        assert_eq!(codes(&got), [StatusCode::OK, StatusCode::OK, denied]);
        assert_eq!(fs::metadata(folder.join("new")).expect("it").size(), 1);
    });
}

#[test]
fn a_root_is_not_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir(&root).expect("ours");
    fs::write(folder.path().join("secret"), "secret").expect("ours");
    symlink("..", root.join("up")).expect("ours");
    let export = crate::ExportedTree::beneath(&root, Access::Full).expect("openat2");
    for path in ["../secret", "up/secret", "/../secret"] {
        let (code, _) = set(&export, &[path.as_bytes().to_vec()]);
        assert_eq!(code, StatusCode::NO_SUCH_FILE, "{path}");
    }
}
