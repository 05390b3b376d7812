//! `longhaul sync`: the target becomes equal to the source, only what differs is sent, and nothing is
//! deleted by mistake.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use longhaul_tests::both_ends::events;
use testkit::process::{Run, must};
use testkit::tree::{Compare, Tree, assert_same, differences};
use testkit::{Outcome, PeerKind, Seed};

/// `longhaul sync` with the client's configuration.
pub(crate) fn sync(scene: &Scene, flags: &[&str]) -> Run {
    let program = longhaul_tests::longhaul();
    let run = scene.client.dir.run(program).arg("sync");
    run.arg("-F").arg(scene.client.dir.config()).args(flags)
}

/// Writes a file, with the folders above it.
pub(crate) fn write_file(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of our own");
    testkit::tree::write_file(path, content);
}

pub(crate) fn summary(outcome: &Outcome) -> serde_json::Value {
    events(outcome).pop().expect("there are events")
}

pub(crate) fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::open(path).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        .expect("a time");
}

/// Every entry below `root`, deepest last.
pub(crate) fn entries(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).expect("our folder").flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Writes a file with a time of its own: of two files of one size and one second, SFTP cannot tell
/// which is newer, and rsync can.
fn write_new(path: &Path, random: &mut Seed, size: usize) {
    write_file(path, &random.bytes(size));
    set_time(path, 1_100_000_000 + random.below(100_000_000));
}

/// Kinds of changes that [`change`] makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    All,
    WithoutMoves,
}

/// Changes a tree at random: new, removed and changed entries, other types, times and modes.
pub(crate) fn change(root: &Path, random: &mut Seed, changes: Changes) {
    for step in 0..12 {
        let all = entries(root);
        if all.is_empty() {
            return;
        }
        let at = &all[random.below(all.len() as u64) as usize];
        let Ok(meta) = fs::symlink_metadata(at) else {
            continue;
        };
        let dir = if meta.is_dir() {
            at.clone()
        } else {
            at.parent().expect("a folder").to_owned()
        };
        let remove = |path: &Path| match fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
            true => drop(fs::remove_dir_all(path)),
            false => drop(fs::remove_file(path)),
        };
        match random.below(8) {
            0 => remove(at),
            1 => {
                remove(at);
                write_new(at, random, 100);
            }
            2 => {
                remove(at);
                fs::create_dir(at).expect("a folder of our own");
                write_new(&at.join("inside"), random, 1);
            }
            3 => {
                remove(at);
                symlink("nowhere", at).expect("a symlink of our own");
            }
            4 if meta.is_file() => {
                let mode = 0o600 | (random.below(0o100) as u32);
                fs::set_permissions(at, fs::Permissions::from_mode(mode)).expect("a mode");
            }
            5 if meta.is_file() => set_time(at, 1_000_000_000 + random.below(1000)),
            6 if meta.is_file() && changes == Changes::All => {
                let to = dir.join(format!("moved-{step}"));
                let _ = fs::rename(at, to);
            }
            _ => write_new(&dir.join(format!("new-{step}")), random, 3000),
        }
    }
}

/// Makes two trees that differ at random, and compares the result of a sync with rsync's.
fn like_rsync(kind: PeerKind, seeds: std::ops::Range<u64>) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    if testkit::missing::find_program("rsync").is_none() {
        return testkit::missing::skip("rsync", "apt-get install rsync");
    }
    for seed in seeds {
        let mut random = Seed::new(seed);
        let name = |of: &str| scene.path(&format!("{of}-{seed}"));
        let (source, target, expected) = (name("source"), name("target"), name("expected"));
        Tree::full(seed).with_folder_links().make(&source);
        must("cp", &["-a".as_ref(), source.as_ref(), target.as_ref()]);
        change(&source, &mut random, Changes::All);
        change(&target, &mut random, Changes::All);
        must("cp", &["-a".as_ref(), target.as_ref(), expected.as_ref()]);
        must(
            "rsync",
            &[
                "-aH".as_ref(),
                "--delete".as_ref(),
                source.join("").as_ref(),
                expected.join("").as_ref(),
            ],
        );
        let up = seed % 2 == 0;
        let remote = |path: &Path| longhaul_tests::remote("peer", path);
        let (from, to) = match up {
            true => (source.clone().into_os_string(), remote(&target)),
            false => (remote(&source), target.clone().into_os_string()),
        };
        let outcome = sync(&scene, &["--delete", "--yes"])
            .arg(&from)
            .arg(&to)
            .run();
        let outcome = outcome.expect_code(0);
        let differ = differences(&expected, &target, Compare::PRESERVED);
        assert!(
            differ.is_empty(),
            "seed {seed}, up {up}:\n{}\n{outcome}",
            differ.join("\n")
        );
        let again = sync(&scene, &["--delete", "--json", "-q"])
            .arg(&from)
            .arg(&to)
            .run();
        let again = again.expect_code(0);
        let planned = events(&again);
        let planned: Vec<_> = planned.iter().filter(|e| e["event"] == "planned").collect();
        assert!(
            planned.is_empty(),
            "seed {seed}: a second sync would change {planned:?}"
        );
        for path in [source, target, expected] {
            fs::remove_dir_all(path).expect("ours");
        }
    }
}

#[test]
fn the_result_is_rsyncs_over_openssh() {
    like_rsync(PeerKind::OpenSsh, 0..10);
}

#[test]
fn the_result_is_rsyncs_over_longhaul() {
    like_rsync(PeerKind::Longhaul, 100..106);
}

#[test]
fn a_slash_at_the_end_changes_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    for (from, to) in [("a", "b1"), ("a/", "b2"), ("a", "b3/"), ("a/", "b4/")] {
        let mut source = scene.path("a").into_os_string();
        source.push(from.strip_prefix('a').unwrap_or_default());
        sync(&scene, &[])
            .arg(source)
            .arg(scene.remote(to))
            .run()
            .expect_code(0);
        let to = to.trim_end_matches('/');
        assert_same(&scene.path("a"), &scene.path(to), Compare::PRESERVED);
    }
    // A second run does not nest either.
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b1"))
        .run()
        .expect_code(0);
    assert_same(&scene.path("a"), &scene.path("b1"), Compare::PRESERVED);
}

#[test]
fn without_delete_what_only_the_target_has_stays() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    write_file(&scene.path("b/other"), b"mine");
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(fs::read(scene.path("b/other")).expect("kept"), b"mine");
    assert_eq!(fs::read(scene.path("b/f")).expect("copied"), b"one");
}

#[test]
fn a_dry_run_names_every_change_and_makes_none() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/new"), b"n");
    write_file(&scene.path("a/changed"), b"longer");
    write_file(&scene.path("b/changed"), b"old");
    write_file(&scene.path("b/gone/deep"), b"g");
    must(
        "cp",
        &[
            "-a".as_ref(),
            scene.path("b").as_ref(),
            scene.path("before").as_ref(),
        ],
    );
    let outcome = sync(&scene, &["-n", "--delete"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    let outcome = outcome.run().expect_code(0);
    let out = outcome.out();
    for line in ["+ new", "- gone/deep", "- gone/"] {
        assert!(out.lines().any(|l| l == line), "{line} in {out}");
    }
    assert!(
        out.lines().any(|l| l.starts_with("~ changed (size")),
        "{out}"
    );
    assert!(
        out.lines()
            .next()
            .is_some_and(|l| l.contains("/a/ -> peer:")),
        "{out}"
    );
    assert_same(&scene.path("before"), &scene.path("b"), Compare::PRESERVED);
}

#[test]
fn a_moved_folder_is_renamed_and_not_sent_again() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let mut random = Seed::new(1);
    for n in 0..8 {
        write_file(
            &scene.path(&format!("a/old/deep/{n}")),
            &random.bytes(1 << 20),
        );
    }
    write_file(&scene.path("a/stays"), b"x");
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    let inode = |path: &str| fs::metadata(scene.path(path)).expect("there").ino();
    let before = inode("b/old/deep/3");
    fs::rename(scene.path("a/old"), scene.path("a/new")).expect("ours");
    let outcome = sync(&scene, &["--delete", "--json", "-q"]);
    let outcome = outcome
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(summary(&outcome)["bytes"], 0, "{outcome}");
    assert_eq!(inode("b/new/deep/3"), before, "renamed, not copied");
    assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
}

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

#[test]
fn a_directory_that_cannot_be_listed_forbids_all_deletions() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    write_file(&scene.path("b/other"), b"x");
    // Deeper than a path may be long: the walk reaches it and cannot enter.
    let name = "d".repeat(200);
    let mut dir = fs::File::open(scene.path("a")).expect("ours");
    for _ in 0..25 {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkdirat(&dir, &name, mode).expect("a folder of our own");
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        let below = rustix::fs::openat(&dir, &name, flags, mode).expect("it was made");
        dir = fs::File::from(below);
    }
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
            let line = format!("/source/{name}: not copied: a socket, FIFO or device");
            assert_eq!(said.matches(&line).count(), 1, "{outcome}");
        }
        let left = fs::read(target.join("dir/pipe")).expect("its counterpart stays");
        assert_eq!(left, b"target/dir/pipe");
        assert!(target.join("dir/file").exists() && !target.join("dir/extra").exists());
        assert!(!target.join("new").exists());
    }
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

#[test]
fn gitignore_files_of_the_source_decide_at_both_ends() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for (file, content) in [
        ("a/.gitignore", "*.log\n/target/\n"),
        ("a/sub/.gitignore", "!important.log\n"),
        ("a/x.log", ""),
        ("a/sub/important.log", ""),
        ("a/target/big", ""),
        ("a/main.rs", ""),
    ] {
        write_file(&scene.path(file), content.as_bytes());
    }
    write_file(&scene.path("b/target/cache"), b"theirs");
    let run = sync(&scene, &["--delete", "--gitignore"]);
    run.arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert!(scene.path("b/target/cache").exists() && !scene.path("b/target/big").exists());
    assert!(scene.path("b/sub/important.log").exists() && !scene.path("b/x.log").exists());
}

#[test]
fn a_file_over_max_size_keeps_its_counterpart() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/large"), &[7; 5000]);
    write_file(&scene.path("a/small"), b"s");
    write_file(&scene.path("b/large"), b"older and small");
    let run = sync(&scene, &["--delete", "--max-size", "1kB"]);
    run.arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(
        fs::read(scene.path("b/large")).expect("kept"),
        b"older and small"
    );
    assert!(scene.path("b/small").exists());
}

#[test]
fn files_from_syncs_what_is_listed_and_names_what_is_missing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for file in ["a/one", "a/dir/two", "a/dir/three", "a/other"] {
        write_file(&scene.path(file), b"x");
    }
    write_file(&scene.path("list"), b"one\ndir\nmissing\n");
    let list = scene.path("list");
    let list = list.to_str().expect("plain");
    let run = sync(&scene, &["--files-from", list])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    run.run()
        .expect_code(1)
        .expect_err(&["missing: no such file or directory"]);
    assert!(scene.path("b/dir/three").exists() && scene.path("b/one").exists());
    assert!(!scene.path("b/other").exists());
}

#[test]
fn a_filter_file_that_cannot_be_read_or_parsed_names_file_and_line() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("rules"), b"*.o\n[z-a]\n");
    fs::create_dir(scene.path("a")).expect("ours");
    for (file, says) in [("rules", "rules, line 2"), ("nothing", "no such file")] {
        let file = scene.path(file);
        let file = file.to_str().expect("plain");
        let run = sync(&scene, &["--filter-from", file]).arg(scene.path("a"));
        run.arg(scene.remote("b"))
            .run()
            .expect_code(2)
            .expect_err(&[says]);
    }
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
fn sockets_and_fifos_stay_at_the_target_and_forbid_no_deletion() {
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
                .expect_err(&["pipe: not copied: a socket, FIFO or device"]);
            drop(socket);
            let left: Vec<PathBuf> = entries(&name("b"));
            let expected = ["dir", "dir/other", "f", "s"].map(|path| name("b").join(path));
            assert_eq!(left, expected, "up {up}");
            assert_eq!(fs::read(name("b").join("s")).expect("kept"), b"stays");
        }
    }
}

#[test]
fn a_sync_of_equal_trees_plans_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for n in 0..3000 {
        write_file(&scene.path(&format!("a/{}/{n}", n % 30)), b"");
    }
    must(
        "cp",
        &[
            "-a".as_ref(),
            scene.path("a").as_ref(),
            scene.path("b").as_ref(),
        ],
    );
    let run = sync(&scene, &["--json", "-q"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    let outcome = run.run().expect_code(0);
    let planned = events(&outcome);
    let planned = planned
        .iter()
        .find(|e| e["event"] == "sync_planned")
        .expect("a plan");
    assert_eq!(
        (&planned["files"], &planned["equal"]),
        (&0.into(), &3030.into())
    );
}

#[test]
fn operands_that_cannot_be_synced_are_one_sentence() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"x");
    let a = || scene.path("a").into_os_string();
    for (from, to, code, says) in [
        (
            a(),
            scene.path("b").into_os_string(),
            2,
            "both directories are on this machine",
        ),
        (
            scene.remote("a"),
            scene.remote("a"),
            2,
            "the same directory",
        ),
        (
            scene.path("a/f").into_os_string(),
            scene.remote("b"),
            1,
            "use longhaul cp for a file",
        ),
        (
            scene.path("none").into_os_string(),
            scene.remote("b"),
            1,
            "no such directory",
        ),
        (a(), scene.remote("a/f"), 1, "not a directory"),
    ] {
        sync(&scene, &[])
            .arg(from)
            .arg(to)
            .run()
            .expect_code(code)
            .expect_err(&[says]);
    }
}

/// Regression: `-i` took the `n` behind it as the name of a key file, and `-in --delete`, rsync's dry
/// run with itemized changes, deleted.
#[test]
fn an_itemized_dry_run_in_rsyncs_letters_deletes_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/kept"), b"x");
    write_file(&scene.path("b/gone"), b"y");
    let go = |flags: &[&str]| {
        let run = sync(&scene, flags).arg("--delete");
        run.arg(scene.path("a")).arg(scene.remote("b")).run()
    };
    for letters in ["-in", "-ni", "-avhin", "-n"] {
        let outcome = go(&[letters]);
        let outcome = outcome
            .expect_code(0)
            .expect_err(&["nothing was changed (--dry-run)"]);
        let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert!(printed.contains("- gone"), "{letters}: {outcome}");
        assert!(scene.path("b/gone").exists(), "{letters}");
        assert!(!scene.path("b/kept").exists(), "{letters}");
    }
    // A key before the operands, as scp's -i: three operands, and nothing happens.
    let outcome = sync(&scene, &["-i", "key", "--delete"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run();
    outcome
        .expect_code(2)
        .expect_err(&["--identity FILE names a key file"]);
    assert!(scene.path("b/gone").exists());
    go(&["-avhi"]).expect_code(0);
    assert!(!scene.path("b/gone").exists() && scene.path("b/kept").exists());
}
