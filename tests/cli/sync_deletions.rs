//! `longhaul sync --delete`: what is deleted at the target, what forbids all deletions, and what takes
//! no part.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::process::must;
use testkit::tree::{Compare, assert_same};

use crate::sync::{each_way, entries, sync, write_file};

#[test]
fn most_of_the_target_is_deleted_after_a_confirmation_only() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    for n in 0..150 {
        write_file(&scene.path(&format!("b/{n}")), b"x");
    }
    let run = |flags: &[&str]| {
        let run = sync(&scene, flags)
            .arg(scene.path("a"))
            .arg(scene.remote("b"));
        run.run()
    };
    run(&["--delete"])
        .expect_code(25)
        .expect_err(&["150 of 150", "--yes"]);
    run(&["--delete", "--max-delete", "149"])
        .expect_code(25)
        .expect_err(&["--max-delete"]);
    assert_eq!(entries(&scene.path("b")).len(), 151);
    run(&["--delete", "--max-delete", "150"]).expect_code(0);
    assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
}

#[test]
fn an_empty_source_deletes_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("a")).expect("ours");
    write_file(&scene.path("b/f"), b"x");
    let run = sync(&scene, &["--delete"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    run.run()
        .expect_code(25)
        .expect_err(&["the source is empty"]);
    assert!(scene.path("b/f").exists());
}

/// Bug: the dry run said "look at --dry-run", and listed no deletions without `--yes`.
#[test]
fn a_dry_run_did_not_list_what_awaits_a_confirmation() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    for n in 0..150 {
        write_file(&scene.path(&format!("b/{n}")), b"x");
    }
    let run = sync(&scene, &["-n", "--delete"]).arg(scene.path("a"));
    let dry = run.arg(scene.remote("b")).run().expect_code(25);
    let out = dry.out();
    let deleted = out.lines().filter(|line| line.starts_with("- "));
    assert_eq!(deleted.count(), 150, "{dry}");
    assert!(dry.err().contains("confirm with --yes"), "{dry}");
    assert_eq!(entries(&scene.path("b")).len(), 150);
}

/// Makes directories below `top` that are deeper than a path may be long: a walk reaches the last one
/// and cannot enter it.
fn make_unlistable(top: &Path) {
    let name = "d".repeat(200);
    let mut dir = fs::File::open(top).expect("ours");
    for _ in 0..25 {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkdirat(&dir, &name, mode).expect("a folder of our own");
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        let below = rustix::fs::openat(&dir, &name, flags, mode).expect("it was made");
        dir = fs::File::from(below);
    }
}

/// Bug: without `--delete`, a directory of the target that cannot be listed failed the sync, though the
/// source does not have it.
#[test]
fn a_directory_that_the_source_lacks_need_not_be_listed() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            continue;
        };
        write_file(&scene.path("a/dir/f"), b"one");
        write_file(&scene.path("b/other/g"), b"x");
        make_unlistable(&scene.path("b/other"));
        let run = |from: OsString, to: OsString| {
            let run = sync(&scene, &[]).arg(from).arg(to);
            run.run().expect_code(0).expect_err(&["1 file"]);
        };
        run(scene.path("a").into(), scene.remote("b"));
        assert!(scene.path("b/dir/f").exists() && scene.path("b/other/g").exists());
        fs::remove_file(scene.path("b/dir/f")).expect("it was copied");
        run(scene.remote("a"), scene.path("b").into());
        assert!(scene.path("b/dir/f").exists() && scene.path("b/other/g").exists());
    }
}

#[test]
fn a_directory_that_cannot_be_listed_forbids_all_deletions() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    write_file(&scene.path("b/other"), b"x");
    make_unlistable(&scene.path("a"));
    let run = sync(&scene, &["--delete", "--yes"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    let outcome = run.run();
    assert_ne!(outcome.code, Some(0), "{outcome}");
    assert!(outcome.err().contains("nothing is deleted"), "{outcome}");
    assert!(scene.path("b/other").exists());
    must(
        "rm",
        &[
            "-rf".as_ref(),
            scene.path("a").as_ref(),
            scene.path("b").as_ref(),
        ],
    );
}

/// A socket or FIFO of the source made the whole sync fail, and nothing was deleted. rsync skips
/// them with a note.
#[test]
fn a_fifo_of_the_source_is_skipped_and_deletions_go_on() {
    for up in [true, false] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let (source, target) = (scene.path("source"), scene.path("target"));
        for name in ["source/dir/file", "target/dir/pipe", "target/dir/extra"] {
            write_file(&scene.path(name), name.as_bytes());
        }
        for name in ["dir/pipe", "new"] {
            must("mkfifo", &[source.join(name).as_ref()]);
        }
        let operands = match up {
            true => [source.as_os_str().to_owned(), scene.remote("target")],
            false => [scene.remote("source"), target.as_os_str().to_owned()],
        };
        let run = operands
            .iter()
            .fold(sync(&scene, &["--delete"]), |run, word| run.arg(word));
        let outcome = run.run().expect_code(0);
        let said = outcome.err();
        for name in ["dir/pipe", "new"] {
            let line = format!("/source/{name}: not copied: it is a socket, a FIFO or a device");
            assert_eq!(said.matches(&line).count(), 1, "{outcome}");
        }
        let left = fs::read(target.join("dir/pipe")).expect("its counterpart stays");
        assert_eq!(left, b"target/dir/pipe");
        assert!(target.join("dir/file").exists() && !target.join("dir/extra").exists());
        assert!(!target.join("new").exists());
    }
}

/// Each of 100,000 FIFOs with a path of 10 kB had its warning, 1 GB of them.
#[test]
fn no_more_than_a_thousand_fifos_have_a_warning_each() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let source = scene.path("source");
    write_file(&source.join("file"), b"content");
    let fifo = rustix::fs::FileType::Fifo;
    for n in 0..1100 {
        let path = source.join(n.to_string());
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, path, fifo, mode, 0).expect("a FIFO");
    }
    let run = sync(&scene, &["--delete"])
        .arg(source)
        .arg(scene.remote("target"));
    let outcome = run.run().expect_code(0);
    let said = outcome.err();
    let each = |line: &&str| line.contains("/source/") && line.contains("not copied");
    assert_eq!(said.lines().filter(each).count(), 1000);
    let more = "100 more entries: not copied: it is a socket, a FIFO or a device (-v names them)";
    assert_eq!(said.matches(more).count(), 1, "{outcome}");
    assert!(scene.path("target/file").exists());
}

/// The temporary of a killed copy counted as an entry of the target: one here was deleted beside the
/// copy that resumed it, and one at the far end kept a directory that the source no longer had.
#[test]
fn a_temporary_is_no_entry_of_the_target_and_goes_with_its_directory() {
    for up in [true, false] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let temporary = ".big.0123456789.longhaul";
        for name in ["source/dir/file", "target/dir/file", "target/gone/file"] {
            write_file(&scene.path(name), b"content");
        }
        for dir in ["dir", "gone"] {
            write_file(&scene.path("target").join(dir).join(temporary), b"half");
        }
        let [source, target] = [("source", !up), ("target", up)].map(|(name, remote)| {
            let path = scene.path(name).into_os_string();
            if remote { scene.remote(name) } else { path }
        });
        let run = sync(&scene, &["--delete", "-n"]).arg(&source).arg(&target);
        let planned = run.run().expect_code(0).out();
        assert!(!planned.contains("dir/.big"), "{planned}");
        let run = sync(&scene, &["--delete"]).arg(&source).arg(&target);
        let outcome = run.run().expect_code(0);
        assert!(!scene.path("target/gone").exists(), "{outcome}");
        assert!(
            scene.path("target/dir").join(temporary).exists(),
            "{outcome}"
        );
    }
}

/// Bug: a file of the source with such a name was left out without a word.
#[test]
fn a_file_of_the_source_named_like_a_temporary_is_left_out_with_a_warning() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let temporary = ".big.0123456789.longhaul";
    for name in ["file", temporary] {
        write_file(&scene.path("source").join(name), b"content");
    }
    let run = sync(&scene, &["--delete"]).arg(scene.path("source"));
    let outcome = run.arg(scene.remote("target")).run().expect_code(0);
    outcome.expect_err(&[
        temporary,
        "not copied: its name says that it is an unfinished file",
    ]);
    assert!(scene.path("target/file").exists() && !scene.path("target").join(temporary).exists());
}

#[test]
fn excluded_entries_are_neither_copied_nor_deleted() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for file in [
        "a/x.o",
        "a/keep.o",
        "a/src/y.c",
        "a/build/z",
        "a/sub/build/z",
    ] {
        write_file(&scene.path(file), b"s");
    }
    for file in ["b/old.o", "b/build/old", "b/gone.c", "b/dir/inner.o"] {
        write_file(&scene.path(file), b"t");
    }
    let flags = [
        "--delete",
        "--exclude",
        "*.o",
        "--include",
        "keep.o",
        "--exclude",
        "/build/",
    ];
    sync(&scene, &flags)
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    let root = scene.path("b");
    let names: BTreeSet<String> = entries(&root)
        .iter()
        .filter(|path| path.is_file())
        .map(|path| {
            path.strip_prefix(&root)
                .expect("below")
                .display()
                .to_string()
        })
        .collect();
    let expected = [
        "build/old",
        "dir/inner.o",
        "keep.o",
        "old.o",
        "src/y.c",
        "sub/build/z",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}

/// Regression test: a dry run named a directory that a file replaces, and none of the files in it
/// that the sync deletes.
#[test]
fn a_dry_run_names_what_a_change_of_type_deletes() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/d"), b"a file");
    write_file(&scene.path("b/d/sub/f"), b"content");
    let run = |flags: &[&str]| {
        let run = sync(&scene, flags).arg(scene.path("a"));
        run.arg(scene.remote("b")).run().expect_code(0)
    };
    let dry = run(&["-n", "--delete"]);
    assert!(dry.out().contains("2 to delete"), "{dry}");
    for line in ["~ d (type)", "- d/sub/", "- d/sub/f"] {
        assert!(dry.out().lines().any(|said| said == line), "{line}: {dry}");
    }
    let done = run(&["--delete"]);
    assert!(done.err().contains("2 deleted"), "{done}");
    assert!(done.err().contains("1 replaced"), "{done}");
}

/// An absolute --backup-dir of a target on this machine was refused once.
#[test]
fn replaced_and_deleted_files_go_to_the_backup_folder() {
    for (up, folder) in [(true, ".old"), (false, ".old"), (true, ""), (false, "")] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        write_file(&scene.path("a/changed"), b"new content");
        write_file(&scene.path("b/changed"), b"old");
        write_file(&scene.path("b/dir/gone"), b"gone");
        let (from, to) = match up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        let (folder, backup) = match folder {
            "" => (scene.path("old"), scene.path("old").into_os_string()),
            inside => (scene.path("b").join(inside), inside.into()),
        };
        for _ in 0..2 {
            let run = sync(&scene, &["--delete", "--backup-dir"]).arg(&backup);
            run.arg(&from).arg(&to).run().expect_code(0);
        }
        for (path, content) in [
            (scene.path("b/changed"), "new content"),
            (folder.join("changed"), "old"),
            (folder.join("dir/gone"), "gone"),
        ] {
            let found = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(found, content.as_bytes(), "{}, up {up}", path.display());
        }
        assert!(!scene.path("b/dir").exists());
        if folder == scene.path("old") {
            assert_same(&scene.path("a"), &scene.path("b"), Compare::MODES);
        }
    }
}

#[test]
fn sockets_and_fifos_of_the_source_keep_what_has_their_name_and_forbid_no_deletion() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            continue;
        };
        for up in [true, false] {
            let name = |of: &str| scene.path(&format!("{of}-{up}"));
            write_file(&name("a").join("f"), b"one");
            must("mkfifo", &[name("a").join("pipe").as_ref()]);
            let socket = std::os::unix::net::UnixListener::bind(name("a").join("s"));
            write_file(&name("b").join("gone"), b"x");
            write_file(&name("b").join("s"), b"stays");
            fs::create_dir(name("b").join("dir")).expect("ours");
            must("mkfifo", &[name("b").join("dir/other").as_ref()]);
            let remote = |path: PathBuf| longhaul_tests::remote("peer", &path);
            let (from, to) = match up {
                true => (name("a").into_os_string(), remote(name("b"))),
                false => (remote(name("a")), name("b").into_os_string()),
            };
            let run = sync(&scene, &["--delete"]).arg(from).arg(to);
            run.run()
                .expect_code(0)
                .expect_err(&["pipe: not copied: it is a socket, a FIFO or a device"]);
            drop(socket);
            let left: Vec<PathBuf> = entries(&name("b"));
            let expected = ["f", "s"].map(|path| name("b").join(path));
            assert_eq!(left, expected, "up {up}");
            assert_eq!(fs::read(name("b").join("s")).expect("kept"), b"stays");
        }
    }
}

/// Bug: what only its owner could reach was readable by everybody in the backup directory.
#[test]
fn a_backup_directory_is_as_private_as_the_target() {
    for (up, backup) in [(true, ".old"), (false, ".old"), (true, ""), (false, "")] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        write_file(&scene.path("a/home/key"), b"new key");
        for (path, content) in [("b/home/key", "old"), ("b/home/sub/gone", "gone")] {
            write_file(&scene.path(path), content.as_bytes());
        }
        for (dir, mode) in [("b", 0o711), ("b/home", 0o710), ("b/home/sub", 0o2555)] {
            set_mode(&scene.path(dir), mode);
        }
        let (from, to) = match up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        let (place, named) = match backup {
            "" => (
                scene.path("new/old"),
                scene.path("new/old").into_os_string(),
            ),
            inside => (scene.path("b").join(inside), inside.into()),
        };
        fs::create_dir(scene.path("new")).expect("our folder");
        let run = sync(&scene, &["--delete", "--yes", "--backup-dir"]).arg(named);
        run.arg(from).arg(to).run().expect_code(0);
        let kept = fs::read(place.join("home/sub/gone")).expect("it is kept");
        assert_eq!(kept, b"gone");
        for (dir, mode) in [("", 0o711), ("home", 0o700), ("home/sub", 0o755)] {
            let meta = fs::metadata(place.join(dir)).expect("it is made");
            let found = meta.permissions().mode() & 0o777;
            assert_eq!(found, mode, "{dir:?} {found:o}, up {up}");
        }
    }
}

/// Bug: directories that stay, since they contain an excluded file, kept write permission of their
/// owner, which they got so that the other files could be deleted.
#[test]
fn read_only_directories_have_their_modes_again_after_deletions() {
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        write_file(&source.join("both/file"), b"content");
        for path in ["both/gone", "extra/gone", "extra/kept", "whole/gone"] {
            write_file(&target.join(path), b"content");
        }
        for (dir, mode) in [
            (source.join("both"), 0o555),
            (target.join("both"), 0o755),
            (target.join("extra"), 0o1540),
            (target.join("whole"), 0o555),
        ] {
            set_mode(&dir, mode);
        }
        let flags = ["--delete", "--yes", "--exclude", "kept"];
        way.run(&flags).expect_code(0);
        let left: Vec<PathBuf> = entries(target);
        let expected = ["both", "both/file", "extra", "extra/kept"];
        let expected = expected.map(|path| target.join(path));
        assert_eq!(left, expected, "{way}");
        let mode = |dir: &str| {
            let meta = fs::metadata(target.join(dir)).expect("it is there");
            meta.permissions().mode() & 0o7777
        };
        assert_eq!(mode("both"), 0o555, "{way}");
        assert_eq!(mode("extra"), 0o1540, "{way}");
    });
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Bug: such entries of the target stayed for ever, without a word, and so did their directories.
#[test]
fn fifos_of_the_target_are_deleted_and_make_room_for_directories() {
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        write_file(&source.join("becomes/file"), b"content");
        for fifo in ["becomes", "extra", "gone/extra", "kept"] {
            let fifo = target.join(fifo);
            fs::create_dir_all(fifo.parent().expect("a folder")).expect("our folder");
            must("mkfifo", &[fifo.as_ref()]);
        }
        let flags = ["--delete", "--yes", "--exclude", "kept"];
        way.run(&flags).expect_code(0);
        let left = longhaul_tests::names_in(target);
        assert_eq!(left, ["becomes", "kept"], "{way}");
        assert!(target.join("becomes/file").exists(), "{way}");
    });
}
