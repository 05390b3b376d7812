//! `longhaul sync` to file systems that take names for one that differ in case or normalization.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_tests::Scene;
use testkit::process::must;
use testkit::tree::{Compare, assert_same};
use testkit::{PeerBuilder, PeerKind};

use crate::sync::{each_way, entries, sync, write_file};

/// A scene whose server takes names that differ in case or normalization for one.
fn folding_scene() -> Option<Scene> {
    const SERVER: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/peers/restricted_sftp_server.py"
    );
    if testkit::missing::find_program("python3").is_none() {
        testkit::missing::skip("python3", "apt-get install python3");
        return None;
    }
    let subsystem = format!("sftp /usr/bin/env python3 {SERVER} folds=");
    let scene = Scene::with(PeerBuilder::openssh().option("Subsystem", subsystem))?;
    (!scene.client.is_scp()).then_some(scene)
}

/// On a file system that ignores case, the file that was copied as `name` was deleted as `NAME`.
/// Where case counts, it goes, as with rsync.
#[test]
fn a_file_whose_name_differs_in_case_is_kept_where_case_does_not_count() {
    for folds in [false, true] {
        let scene = match folds {
            true => folding_scene(),
            false => Scene::beyond_scp(PeerKind::OpenSsh),
        };
        let Some(scene) = scene else { return };
        write_file(&scene.path("source/name"), b"new content");
        for name in ["NAME", "extra"] {
            write_file(&scene.path("target").join(name), b"old");
        }
        for flags in [&["--delete", "-n"][..], &["--delete"]] {
            let run = sync(&scene, flags).arg(scene.path("source"));
            let outcome = run.arg(scene.remote("target")).run().expect_code(0);
            let said = outcome.err().contains("/target/NAME: not renamed to");
            assert_eq!(said, folds, "{outcome}");
        }
        let left: Vec<PathBuf> = entries(&scene.path("target"));
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(fs::read(&left[0]).expect("ours"), b"new content");
    }
}

/// Regression: the second of two names that the target takes for one replaced the first, in
/// silence.
#[test]
fn names_that_are_one_at_the_target_stop_a_sync_before_anything_is_copied() {
    for (one, other) in [
        ("name", "NAME"),
        ("caf\u{e9}", "cafe\u{301}"),
        ("dir/x", "dir/X"),
    ] {
        let Some(scene) = folding_scene() else { return };
        write_file(&scene.path("source").join(one), b"one");
        write_file(&scene.path("source").join(other), b"other");
        for target in ["target", "target", "new"] {
            if target == "target" {
                write_file(&scene.path("target/there"), b"x");
            }
            let run = sync(&scene, &[]).arg(scene.path("source"));
            let outcome = run.arg(scene.remote(target)).run().expect_code(1);
            let outcome = outcome.expect_err(&["has the same name at the target"]);
            let left = match target {
                "target" => vec![scene.path("target/there")],
                _ => Vec::new(),
            };
            let found = match scene.path(target).exists() {
                true => entries(&scene.path(target)),
                false => Vec::new(),
            };
            assert_eq!(found, left, "{outcome}");
        }
        // The one that is there shows it, in a dry run as well.
        write_file(&scene.path("target").join(other), b"old");
        let run = sync(&scene, &["-n"]).arg(scene.path("source"));
        let outcome = run.arg(scene.remote("target")).run().expect_code(1);
        outcome.expect_err(&["has the same name at the target"]);
    }
    // Where they are two, both are copied, at once and again.
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    // Other pairs of the same names, and three that are alike, are asked about apart.
    for name in [
        "name", "NAME", "dir/x", "dir/X", "other/x", "other/X", "d/NAME", "d/Name", "d/name",
    ] {
        write_file(&scene.path("source").join(name), name.as_bytes());
    }
    for _ in 0..2 {
        let run = sync(&scene, &["--delete"]).arg(scene.path("source"));
        run.arg(scene.remote("target")).run().expect_code(0);
        assert_same(
            &scene.path("source"),
            &scene.path("target"),
            Compare::PRESERVED,
        );
    }
}

/// Bug: of two files of an upload whose names the server takes for one, the second replaced the
/// first without a word.
#[test]
fn names_that_are_one_at_the_server_do_not_replace_each_other_in_an_upload() {
    for (one, other) in [
        ("name", "NAME"),
        ("caf\u{e9}", "cafe\u{301}"),
        ("dir/x", "dir/X"),
        ("dir/x", "DIR/y"),
    ] {
        let Some(scene) = folding_scene() else { return };
        write_file(&scene.path("source").join(one), b"one");
        write_file(&scene.path("source").join(other), b"other");
        write_file(&scene.path("source/more/file"), b"more");
        let run = scene.client.cp().arg("-r").arg(scene.path("source"));
        let outcome = run.arg(scene.remote("new")).run().expect_code(1);
        outcome.expect_err(&["not copied: it would overwrite", "rename one of them"]);
        let mut left = entries(&scene.path("new"));
        left.retain(|path| path.is_file());
        let contents = left.iter().map(|path| fs::read(path).expect("ours"));
        let mut contents: Vec<Vec<u8>> = contents.collect();
        contents.sort_unstable();
        let first = [b"one".to_vec(), b"other".to_vec()].contains(&contents[1]);
        assert!(contents.len() == 2 && first, "{left:?}");
    }
    // Operands, too.
    let Some(scene) = folding_scene() else { return };
    for name in ["a/name", "b/NAME"] {
        write_file(&scene.path(name), name.as_bytes());
    }
    fs::create_dir(scene.path("target")).expect("ours");
    let run = scene.client.cp().arg(scene.path("a/name"));
    let run = run.arg(scene.path("b/NAME")).arg(scene.remote("target"));
    let outcome = run.run().expect_code(1);
    outcome.expect_err(&["b/NAME: not copied: it would overwrite"]);
    let left = entries(&scene.path("target"));
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read(&left[0]).expect("ours"), b"a/name");
    // Where they are two, both are copied, and nothing else stays.
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for name in [
        "name",
        "NAME",
        "dir/x",
        "dir/X",
        "DIR/x",
        "caf\u{e9}",
        "cafe\u{301}",
    ] {
        write_file(&scene.path("source").join(name), name.as_bytes());
    }
    for _ in 0..2 {
        let run = scene.client.cp().arg("-r").arg(scene.path("source/."));
        run.arg(scene.remote("target")).run().expect_code(0);
        assert_same(
            &scene.path("source"),
            &scene.path("target"),
            Compare::CONTENT,
        );
    }
}

/// A source on macOS lists decomposed names. With `--unicode=nfc` the copies have composed ones,
/// and a second run finds them.
#[test]
fn with_unicode_nfc_copies_have_composed_names() {
    for up in [true, false] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let (nfd, nfc) = ("cafe\u{301}", "caf\u{e9}");
        let below = |root: &str, name: &str| scene.path(root).join(name).join(name);
        write_file(&below("a", nfd), b"content");
        write_file(&below("b", nfd), b"old");
        let (from, to) = match up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        let run = |flags: &[&str]| sync(&scene, flags).arg(&from).arg(&to).run();
        // Without the flag, equal looks hide why the file is copied and deleted.
        write_file(&scene.path("b").join(format!("{nfc}.txt")), b"x");
        write_file(&scene.path("a").join(format!("{nfd}.txt")), b"another");
        let outcome = run(&["--delete", "-n"]).expect_code(0);
        outcome.expect_err(&["cafe\\u{301}", "--unicode=nfc"]);
        fs::remove_file(scene.path("b").join(format!("{nfc}.txt"))).expect("ours");
        fs::remove_file(scene.path("a").join(format!("{nfd}.txt"))).expect("ours");
        run(&["--unicode=nfc", "--delete"]).expect_code(0);
        assert_eq!(
            fs::read(below("b", nfc)).expect("it was copied"),
            b"content"
        );
        assert!(!scene.path("b").join(nfd).exists(), "up {up}");
        let again = run(&["--unicode=nfc", "--delete", "-n"]).expect_code(0);
        assert!(again.out().contains("0 files to copy"), "{again}");
        // Both forms in one directory would become one file.
        write_file(&scene.path("a").join(nfc), b"another");
        // Regression: other files were copied first, and both names looked the same.
        write_file(&scene.path("a/later"), b"new");
        for flags in [&["--unicode=nfc", "--delete"][..], &["--unicode=nfc", "-n"]] {
            let outcome = run(flags).expect_code(1);
            outcome.expect_err(&[
                "after Unicode normalization (NFC): rename one",
                "nothing was copied",
                "cafe\\u{301}",
                "caf\\u{e9}",
            ]);
        }
        assert!(!scene.path("b/later").exists(), "up {up}");
        assert_eq!(fs::read(below("b", nfc)).expect("it is kept"), b"content");
    }
}

/// Bug: directories in which an interrupted run had asked about names stayed at the target, and were
/// copied to the next one.
#[test]
fn directories_of_an_interrupted_question_about_names_are_removed_and_never_copied() {
    let left = [".longhaul-0123456789-one", "dir/.longhaul-abcdef0123-two"];
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        let copy = way.path("c");
        write_file(&source.join("dir/file"), b"content");
        must("cp", &["-a".as_ref(), source.as_ref(), target.as_ref()]);
        for path in left {
            fs::create_dir_all(target.join(path)).expect("our folder");
        }
        let run = |from: &Path, to: &Path, flags: &[&str]| way.sync(from, to, flags).expect_code(0);
        run(target, &copy, &[]);
        assert_same(source, &copy, Compare::CONTENT);
        let dry = run(source, target, &["-n", "--delete"]);
        assert!(!dry.out().contains(".longhaul-"), "{way}: {dry}");
        run(source, target, &["--delete"]);
        assert_same(source, target, Compare::PRESERVED);
    });
}

/// Bug: such entries of a remote source were left out without a word, and those of this machine were
/// copied and deleted.
#[test]
fn names_that_are_reserved_take_no_part_at_either_end() {
    let reserved = [
        ".longhaul-file",
        ".longhaul-dir/file",
        "dir/.name.0123456789.longhaul/file",
    ];
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        for path in reserved {
            write_file(&source.join(path), b"not copied");
        }
        write_file(&source.join("dir/file"), b"content");
        write_file(&target.join(".longhaul-file"), b"stays");
        write_file(&target.join(".longhaul-other/file"), b"stays");
        let run = way.run(&["--delete"]);
        let outcome = run.expect_code(0);
        outcome.expect_err(&[
            ".longhaul-file: not copied",
            ".longhaul-dir: not copied",
            ".name.0123456789.longhaul: not copied",
        ]);
        let left: BTreeSet<PathBuf> = entries(target).into_iter().collect();
        let expected = [
            ".longhaul-file",
            ".longhaul-other",
            ".longhaul-other/file",
            "dir",
            "dir/file",
        ];
        let expected = expected.map(|path| target.join(path)).into();
        assert_eq!(left, expected, "{way}");
        let kept = fs::read(target.join(".longhaul-file")).expect("kept");
        assert_eq!(kept, b"stays");
    });
}

/// Bug: a symlink that had the name of such a directory was followed: directories were made at its
/// end, and empty ones removed.
#[test]
fn a_symlink_with_the_name_of_our_directory_at_the_target_is_not_followed() {
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        let outside = way.path("outside");
        for name in ["name", "NAME"] {
            write_file(&source.join("dir").join(name), b"content");
        }
        fs::create_dir_all(outside.join("0/name")).expect("our folder");
        fs::create_dir_all(target.join("dir")).expect("our folder");
        for name in [
            ".longhaul-names",
            ".longhaul-0123456789-name",
            "dir/.longhaul-names",
            "dir/.longhaul-0123456789-name",
        ] {
            std::os::unix::fs::symlink(&outside, target.join(name)).expect("our symlink");
        }
        let filled = target.join(".longhaul-0123456789-NAME/0/name");
        let excluded = target.join(".longhaul-9876543210-name");
        for dir in [&filled, &excluded] {
            fs::create_dir_all(dir).expect("our folder");
        }
        let flags = ["--exclude", ".longhaul-9*"];
        way.run(&flags).expect_code(0);
        for dir in [outside.join("0/name"), filled, excluded] {
            assert!(dir.exists(), "{dir:?} {way}");
        }
        let outside = longhaul_tests::names_in(&outside);
        assert_eq!(outside, ["0"], "{way}");
    });
}
