//! `longhaul sync --one-file-system` with a source at the far end.

use std::fs;

use longhaul_tests::{Scene, longhaul};
use testkit::{PeerBuilder, PeerKind, missing};

use crate::hindered::{Disk, write_script};
use crate::resumed::is_scp;
use crate::sync::{sync, write_file};

/// Regression: -x was refused for a remote source, although a longhaul there can tell devices.
#[test]
fn a_remote_source_is_left_at_its_mount_points() {
    if is_scp() || !missing::can_unshare_mounts() {
        return missing::not_here("only root can mount a small file system");
    }
    let folder = longhaul_tests::scratch();
    let disk = Disk::new(&folder.path().join("a/deep/mounted"), 4);
    let script = folder.path().join("server");
    let (enter, program) = (disk.enter().join(" "), longhaul());
    let text = format!("#!/bin/sh\nexec {enter} {} \"$@\"\n", program.display());
    write_script(&script, &text);
    let Some(scene) = Scene::with(PeerBuilder::longhaul(script, [] as [&str; 0])) else {
        return;
    };
    // A chain that is deeper than one request for a tree goes.
    let deep = (0..40).fold(folder.path().join("a/deep"), |path, _| path.join("d"));
    write_file(&folder.path().join("a/file"), b"content");
    write_file(&deep.join("file"), b"content");
    write_file(&disk.path("mounted-file"), b"other");
    let source = format!("peer:{}", folder.path().join("a").display());
    for (flags, crosses) in [(&["-x"][..], false), (&[], true)] {
        let target = scene.path(if crosses { "all" } else { "one" });
        write_file(&target.join("deep/gone"), b"x");
        write_file(&target.join("deep/mounted/mine"), b"mine");
        let run = sync(&scene, flags).arg("--delete").arg(&source);
        run.arg(&target).run().expect_code(0);
        let has = |name: &str| target.join(name).exists();
        assert!(has("file") && !has("deep/gone"));
        assert!(
            target
                .join(deep.strip_prefix(folder.path().join("a")).expect("below"))
                .join("file")
                .exists()
        );
        // The mount point's counterpart stays as it is.
        assert_eq!(has("deep/mounted/mounted-file"), crosses);
        assert_eq!(has("deep/mounted/mine"), !crosses);
    }
}

#[test]
fn a_stock_server_cannot_tell_file_systems_and_nothing_is_changed() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/file"), b"content");
    write_file(&scene.path("b/only"), b"here");
    let run = sync(&scene, &["-x", "--delete"]).arg(scene.remote("a"));
    run.arg(scene.path("b"))
        .run()
        .expect_code(1)
        .expect_err(&["--one-file-system needs longhaul on this host"]);
    assert!(scene.path("b/only").exists() && !scene.path("b/file").exists());
    // A source on this machine needs nothing of the server.
    let run = sync(&scene, &["-x"]).arg(scene.path("a"));
    run.arg(scene.remote("c")).run().expect_code(0);
    assert_eq!(fs::read(scene.path("c/file")).expect("copied"), b"content");
}
