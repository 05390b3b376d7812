//! `longhaul sync --link-dest`: what an earlier copy has already becomes a further name of it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::process::must;
use testkit::tree::{Compare, assert_same};

use crate::sync::{set_time, sync, write_file};

/// A source with an equal, a changed and a new file, and an earlier copy of the first two.
fn fill(scene: &Scene) {
    for name in ["dir/equal", "dir/changed"] {
        write_file(&scene.path("a").join(name), b"content");
        set_time(&scene.path("a").join(name), 1_100_000_000);
    }
    let (from, to) = (scene.path("a"), scene.path("earlier"));
    must("cp", &["-a".as_ref(), from.as_ref(), to.as_ref()]);
    write_file(&scene.path("a/dir/changed"), b"changed");
    write_file(&scene.path("a/new"), b"new");
}

#[test]
fn a_file_of_an_earlier_copy_is_linked_as_rsync_links_it() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        for up in [true, false] {
            let Some(scene) = Scene::beyond_scp(kind) else {
                return;
            };
            fill(&scene);
            let (from, to) = match up {
                true => (scene.path("a").into_os_string(), scene.remote("b")),
                false => (scene.remote("a"), scene.path("b").into_os_string()),
            };
            let flags = ["--link-dest=../earlier"];
            let dry = [flags[0], "-n"];
            let run = sync(&scene, &dry).arg(&from).arg(&to).run();
            let run = run.expect_code(0);
            assert!(run.out().contains("+ dir/equal (linked)"), "{run}");
            let run = sync(&scene, &flags).arg(&from).arg(&to).run();
            run.expect_code(0).expect_err(&["1 linked"]);
            assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
            let source = format!("{}/", scene.path("a").display());
            let theirs = scene.path("rsync");
            must(
                "rsync",
                &["-a", flags[0], &source, &theirs.to_string_lossy()].map(AsRef::as_ref),
            );
            for target in ["b", "rsync"] {
                let inode = |name: &str| {
                    let path = scene.path(name);
                    fs::metadata(path).expect("it was copied").ino()
                };
                for (name, linked) in [("dir/equal", true), ("dir/changed", false)] {
                    let both = (
                        inode(&format!("{target}/{name}")),
                        inode(&format!("earlier/{name}")),
                    );
                    assert_eq!(both.0 == both.1, linked, "{kind:?} up {up} {target}/{name}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_linked_is_copied_and_one_sentence_says_why() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fill(&scene);
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let device = |path: &std::path::Path| fs::metadata(path).expect("a folder").dev();
    if device(elsewhere.path()) == device(&scene.path("a")) {
        return;
    }
    let (from, to) = (scene.path("earlier"), elsewhere.path().join("earlier"));
    must("cp", &["-a".as_ref(), from.as_ref(), to.as_ref()]);
    for (flag, says) in [
        (to, "1 file is copied instead of linked (--link-dest)"),
        (scene.path("none"), "none: no such directory"),
    ] {
        let _ = fs::remove_dir_all(scene.path("b"));
        let flag = format!("--link-dest={}", flag.display());
        let run = sync(&scene, &[&flag]).arg(scene.remote("a"));
        let run = run.arg(scene.path("b")).run();
        run.expect_code(0).expect_err(&[says]);
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
    }
}
