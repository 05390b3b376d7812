//! Read-only files. `cp -r host:repo .` of files with mode 0444, as git has them, failed the second
//! time: longhaul checked access(2) of the file, though a rename needs only permission for the
//! directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::tree::write_file;

#[test]
fn a_second_copy_replaces_them() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    for dir in ["to", "repo"] {
        fs::create_dir(scene.path(dir)).expect("ours");
    }
    for flags in ["-r", "-a"] {
        for content in [b"one", b"two"] {
            let _ = fs::remove_file(scene.path("repo/object"));
            write_file(&scene.path("repo/object"), content);
            let bits = Permissions::from_mode(0o444);
            fs::set_permissions(scene.path("repo/object"), bits).expect("ours");
            let run = scene.client.cp().arg(flags).arg(scene.remote("repo"));
            run.arg(scene.path("to")).run().expect_code(0);
            let there = fs::read(scene.path("to/repo/object")).expect("it is there");
            assert_eq!(there, content, "{flags}");
        }
    }
}
