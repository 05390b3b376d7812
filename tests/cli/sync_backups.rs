//! Places of `sync --backup-dir`: what is replaced or deleted is kept there, or nothing is changed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use longhaul_tests::both_ends::BothEnds;
use longhaul_tests::{Scene, names_in};
use testkit::tree::{Compare, assert_same};
use testkit::{Outcome, PeerKind};

use crate::sync::{set_time, sync, write_file};
use crate::sync_harm::contents;

/// Ends of a sync.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Up,
    Down,
    Remote,
}

struct Backup {
    scene: Scene,
    ends: Ends,
}

impl Backup {
    fn each(test: impl Fn(&Self)) {
        for ends in [Ends::Up, Ends::Down, Ends::Remote] {
            let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
                return;
            };
            write_file(&scene.path("a/changed"), b"new content");
            write_file(&scene.path("a/x/y"), b"y");
            write_file(&scene.path("top/b/changed"), b"old");
            write_file(&scene.path("top/b/dir/gone"), b"gone");
            write_file(&scene.path("top/changed"), b"of somebody else");
            symlink(scene.path("top/b"), scene.path("link")).expect("ours");
            symlink(".", scene.path("top/b/self")).expect("ours");
            symlink(".", scene.path("a/self")).expect("ours");
            test(&Self { scene, ends });
        }
    }

    fn sync(&self, backup: impl Into<OsString>, flags: &[&str]) -> Outcome {
        let scene = &self.scene;
        let (from, to) = (scene.path("a"), scene.path("top/b"));
        let (from, to) = match self.ends {
            Ends::Up => (from.into(), scene.remote("top/b")),
            Ends::Down => (scene.remote("a"), to.into()),
            Ends::Remote => (scene.remote("a"), scene.remote("top/b")),
        };
        let run = sync(scene, &["--delete", "--yes", "--backup-dir"]);
        run.arg(backup.into()).args(flags).arg(from).arg(to).run()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scene.path(name)
    }
}

/// Regression: with longhaul at the target, a directory beside it could not be reached (EXDEV).
#[test]
fn a_directory_beside_the_target_is_reached_through_longhaul_too() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let scene = &ends.scene;
    write_file(&scene.path("a/changed"), b"new content");
    write_file(&scene.path("b/changed"), b"old");
    write_file(&scene.path("b/dir/gone"), b"gone");
    let run = sync(scene, &["--far-end=exec", "--delete", "--yes"]);
    let run = run.args(["--backup-dir", "../kept"]).arg(scene.path("a"));
    run.arg(scene.remote("b")).run().expect_code(0);
    assert_same(&scene.path("a"), &scene.path("b"), Compare::CONTENT);
    let kept = |name: &str| fs::read(scene.path("kept").join(name)).expect("it is kept");
    assert_eq!(kept("changed"), b"old");
    assert_eq!(kept("dir/gone"), b"gone");
}

/// Regression: a file was reported as deleted if the backup directory had an older version of it, or
/// the server made no hard links.
#[test]
fn a_file_that_replaces_an_older_backup_is_not_reported_as_deleted() {
    Backup::each(|test| {
        test.sync(".old", &[]).expect_code(0);
        write_file(&test.path("top/b/changed"), b"changed at the target");
        let outcome = test.sync(".old", &[]).expect_code(0);
        assert!(!outcome.err().contains("deleted"), "{outcome}");
        let kept = fs::read(test.path("top/b/.old/changed")).expect("it is kept");
        assert_eq!(kept, b"changed at the target");
    });
}

/// Regression: `--backup-dir .` renamed each file to itself, kept nothing, and exited with 0; in a
/// directory above the target it replaced files of others.
#[test]
fn a_directory_that_can_keep_nothing_is_refused_before_anything_changes() {
    Backup::each(|test| {
        let top = test.path("top");
        let before = (contents(&top), contents(&test.path("a")));
        for (dir, says) in [
            (OsString::from("."), "is DST itself"),
            ("./x/..".into(), "is DST itself"),
            ("../b".into(), "is DST itself"),
            ("self".into(), "is DST itself"),
            (test.path("top/b").into(), "is DST itself"),
            (test.path("link").into(), "is DST itself"),
            ("..".into(), "contains DST"),
            ("../../top/".into(), "contains DST"),
            ("/".into(), "contains DST"),
            (test.path("a").into(), "is SRC"),
            ("../../a/x".into(), "lies in SRC"),
            ("../../a/new".into(), "lies in SRC"),
        ] {
            // A dry run creates nothing to find out that both ends are one machine.
            let of_source = says.ends_with("SRC") && !matches!(test.ends, Ends::Remote);
            for flags in [&[][..], &["-n"]] {
                if of_source && flags == ["-n"] {
                    continue;
                }
                let outcome = test.sync(&dir, flags).expect_code(1);
                let outcome = outcome.expect_err(&["--backup-dir", says]);
                let after = (contents(&top), contents(&test.path("a")));
                assert_eq!(after, before, "{dir:?}: {outcome}");
            }
        }
    });
}

/// Regression: a backup directory in the target that was not a plain relative path was deleted with
/// the rest of the target by the next sync.
#[test]
fn a_directory_in_the_target_keeps_its_files_whatever_its_path_looks_like() {
    Backup::each(|test| {
        for (number, dir) in [
            OsString::from("kept"),
            test.path("top/b/kept").into(),
            "../b/kept".into(),
            test.path("link/kept").into(),
            "x/../kept/../kept".into(),
        ]
        .into_iter()
        .enumerate()
        {
            write_file(
                &test.path("top/b/changed"),
                format!("old {number}").as_bytes(),
            );
            write_file(&test.path("top/b/dir/gone"), b"gone");
            for _ in 0..2 {
                test.sync(&dir, &[]).expect_code(0);
            }
            let kept = fs::read_to_string(test.path("top/b/kept/changed")).expect("it is kept");
            assert_eq!(kept, format!("old {number}"), "{dir:?} {:?}", test.ends);
            let gone = fs::read(test.path("top/b/kept/dir/gone")).expect("it is kept");
            assert_eq!(gone, b"gone");
            assert_eq!(
                names_in(&test.path("top/b")),
                ["changed", "kept", "self", "x"]
            );
            fs::remove_dir_all(test.path("top/b/kept")).expect("ours");
        }
    });
}

/// Bug: a file or symlink that a directory replaced was moved to the backup directory twice. The
/// second time failed, so the directory was not made and nothing was deleted.
#[test]
fn a_file_in_the_way_of_a_directory_is_kept_and_the_directory_is_copied() {
    Backup::each(|test| {
        write_file(&test.path("a/was_file/inner"), b"inner");
        fs::create_dir(test.path("a/was_link")).expect("ours");
        write_file(&test.path("a/was_dir"), b"file");
        write_file(&test.path("top/b/was_file"), b"old file");
        symlink("nowhere", test.path("top/b/was_link")).expect("ours");
        write_file(&test.path("top/b/was_dir/inner"), b"old inner");
        test.sync("kept", &[]).expect_code(0);
        fs::rename(test.path("top/b/kept"), test.path("kept")).expect("it is kept");
        assert_same(&test.path("a"), &test.path("top/b"), Compare::CONTENT);
        let kept = |name: &str| test.path("kept").join(name);
        let file = fs::read(kept("was_file")).expect("it is kept");
        let inner = fs::read(kept("was_dir/inner")).expect("it is kept");
        assert_eq!((&*file, &*inner), (&b"old file"[..], &b"old inner"[..]));
        let link = fs::read_link(kept("was_link")).expect("it is kept");
        assert_eq!(link, PathBuf::from("nowhere"));
    });
}

/// Name of a change, and what makes it in the target.
type Change = (&'static str, fn(&Path));

fn modified(path: &Path) -> SystemTime {
    let meta = fs::metadata(path).expect("it is there");
    meta.modified().expect("a time")
}

/// Bug: a backup directory in the target was made in directories whose times were set before, or
/// not at all, so that they differed from the source's in each later sync.
#[test]
fn a_backup_directory_in_the_target_leaves_the_times_of_directories_above_it() {
    Backup::each(|test| {
        test.sync("kept", &[]).expect_code(0);
        fs::remove_dir_all(test.path("top/b/kept")).expect("ours");
        let roots = ["a", "top/b"].map(|root| test.path(root));
        let changes: [Change; 2] = [
            ("a file that is gone", |b| {
                write_file(&b.join("x/gone"), b"gone")
            }),
            ("a file that differs", |b| {
                write_file(&b.join("changed"), b"other")
            }),
        ];
        for (change, make) in changes {
            for dir in [".old", "x/.old", "x/new/.old"] {
                make(&roots[1]);
                for root in &roots {
                    set_time(&root.join("x"), 1_200_000_000);
                    set_time(root, 1_300_000_000);
                }
                test.sync(dir, &[]).expect_code(0);
                for below in ["", "x"] {
                    let times = roots.each_ref().map(|root| modified(&root.join(below)));
                    assert_eq!(times[0], times[1], "{change}, {dir}: {below:?}");
                }
                let made = dir.trim_end_matches("/.old");
                let made = if dir == "x/new/.old" { made } else { dir };
                fs::remove_dir_all(roots[1].join(made)).expect("it was made");
            }
        }
    });
}

/// Bug: the backup is a second name of the file that is replaced, and a download warned that other
/// names of it keep the old contents.
#[test]
fn the_name_that_a_backup_gives_a_file_is_no_reason_for_a_warning() {
    Backup::each(|test| {
        let outcome = test.sync(".old", &[]).expect_code(0);
        assert!(!outcome.err().contains("hard links"), "{outcome}");
        let kept = fs::read(test.path("top/b/.old/changed")).expect("it is kept");
        assert_eq!(kept, b"old");
        if !matches!(test.ends, Ends::Down) {
            return;
        }
        // A name that somebody else has made.
        write_file(&test.path("a/changed"), b"changed again");
        fs::hard_link(test.path("top/b/changed"), test.path("other")).expect("ours");
        let outcome = test.sync(".older", &[]).expect_code(0);
        assert!(
            outcome.err().contains("hard links: other names"),
            "{outcome}"
        );
    });
}

/// Bug: a file with a name of more than 239 bytes whose older version was in the backup directory
/// already could not be moved there, and so was neither replaced nor deleted.
#[test]
fn files_with_the_longest_names_replace_their_older_backups() {
    Backup::each(|test| {
        let names = ["1", "2"].map(|last| format!("{}{last}", "ä".repeat(127)));
        for version in ["first", "second"] {
            for name in &names {
                assert_eq!(name.len(), 255);
                write_file(&test.path("a").join(name), version.as_bytes());
                write_file(
                    &test.path("top/b").join(name),
                    format!("before {version}").as_bytes(),
                );
            }
            test.sync("kept", &[]).expect_code(0);
            for name in &names {
                let kept = fs::read_to_string(test.path("top/b/kept").join(name));
                assert_eq!(kept.expect("it is kept"), format!("before {version}"));
            }
        }
        assert_same(
            &test.path("a/changed"),
            &test.path("top/b/changed"),
            Compare::CONTENT,
        );
    });
}

/// Bug, found by attack: a source brought a symlink into DST, and a backup directory behind it that was
/// written in another way than DST was taken for one outside: old versions, of which the source chose
/// content and name, replaced the user's own files.
#[test]
fn a_backup_directory_behind_a_symlink_of_the_source_replaced_files_elsewhere() {
    Backup::each(|test| {
        let dir = test.path("top/b/.bak");
        let home = test.path("home");
        for planted in ["a/.bak", "top/b/.bak"] {
            symlink(&home, test.path(planted)).expect("ours");
        }
        let spellings = [
            dir.clone().into_os_string(),
            "../b/.bak".into(),
            test.path("top/./b/../b/.bak").into(),
            test.path("link/.bak").into(),
        ];
        for (round, backup) in spellings.into_iter().enumerate() {
            write_file(&home.join("changed"), b"of the user");
            write_file(&test.path("top/b/changed"), b"chosen by the source");
            write_file(&test.path("a/changed"), format!("{round}").as_bytes());
            let out = test.sync(backup.clone(), &[]);
            assert_ne!(out.code, Some(0), "{backup:?}: {out:?}");
            assert_eq!(
                fs::read(home.join("changed")).expect("ours"),
                b"of the user",
                "{backup:?}"
            );
            assert_eq!(
                fs::read(test.path("top/b/changed")).expect("ours"),
                b"chosen by the source"
            );
        }
    });
}
