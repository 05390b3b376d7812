//! Symlinks chosen by a server. `cp -a host:top to` created one, and a later `cp -r host:top to`
//! wrote through it, outside of the target.

use std::fs;
use std::os::unix::fs::symlink;

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::process::Run;
use testkit::tree::write_file;

struct Links(Scene);

impl Links {
    /// Creates `first/top` with symlinks that lead outside, `second/top` with a directory and a
    /// file in their places, `to` and `outside`.
    fn start() -> Option<Self> {
        let scene = Scene::start(PeerKind::OpenSsh)?;
        if scene.client.is_scp() {
            return None;
        }
        for dir in ["to", "outside", "first/top", "second/top/dir"] {
            fs::create_dir_all(scene.path(dir)).expect("ours");
        }
        write_file(&scene.path("outside/file"), b"mine");
        symlink(scene.path("outside"), scene.path("first/top/dir")).expect("ours");
        symlink(scene.path("outside/file"), scene.path("first/top/file")).expect("ours");
        write_file(&scene.path("second/top/dir/authorized_keys"), b"planted");
        write_file(&scene.path("second/top/file"), b"new");
        Some(Self(scene))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path(name)
    }

    fn cp(&self, flags: &[&str], from: &str, to: &str) -> Run {
        let run = self.0.client.cp().args(flags);
        run.arg(self.0.remote(from)).arg(self.0.path(to))
    }

    fn nothing_came_out(&self) {
        let file = fs::read(self.path("outside/file")).expect("it is there");
        assert_eq!(file, b"mine");
        assert!(!self.path("outside/authorized_keys").exists());
    }
}

#[test]
fn a_directory_meets_a_symlink_and_a_file_replaces_one() {
    for flags in [&["-r"][..], &["-a"], &["-r", "--inplace"], &["-pr"]] {
        let Some(scene) = Links::start() else { return };
        scene.cp(&["-a"], "first/top", "to").run().expect_code(0);
        assert!(scene.path("to/top/dir").is_symlink());
        let outcome = scene.cp(flags, "second/top", "to").run().expect_code(1);
        outcome
            .expect_err(&["to/top/dir: cannot create the directory: a symlink is in the way"])
            .expect_err(&["--keep-dirlinks"]);
        scene.nothing_came_out();
        let file = scene.path("to/top/file");
        assert!(!file.is_symlink(), "{flags:?}");
        assert_eq!(fs::read(file).expect("it is there"), b"new");
    }
}

#[test]
fn one_file_does_not_go_through_it_either() {
    for flags in [&[][..], &["--inplace"], &["-p"]] {
        let Some(scene) = Links::start() else { return };
        scene.cp(&["-a"], "first/top", "to").run().expect_code(0);
        let run = scene.cp(flags, "second/top/file", "to/top");
        run.run().expect_code(0);
        scene.nothing_came_out();
        assert!(!scene.path("to/top/file").is_symlink(), "{flags:?}");
    }
}

#[test]
fn symlinks_to_directories_are_gone_through_where_that_is_asked() {
    let Some(scene) = Links::start() else { return };
    symlink(scene.path("outside"), scene.path("to/top")).expect("ours");
    let run = scene.cp(&["-r", "--keep-dirlinks"], "second/top", "to");
    run.run().expect_code(0);
    assert!(scene.path("outside/dir/authorized_keys").exists());
    // A symlink that the user names is followed without the flag.
    let run = scene.cp(&["-r"], "second/top/dir", "to/top");
    run.run().expect_code(0);
    assert!(scene.path("to/top").is_symlink());
}

#[test]
fn symlinks_that_lead_outside_are_not_made_where_that_is_asked() {
    let Some(scene) = Links::start() else { return };
    symlink("../file", scene.path("second/top/dir/in")).expect("ours");
    symlink("../../../outside", scene.path("second/top/dir/out")).expect("ours");
    let run = scene.cp(&["-a", "--safe-links"], "first/top", "to");
    let outcome = run.run().expect_code(0);
    outcome.expect_err(&["--safe-links: skipped 2 symlinks"]);
    assert!(!scene.path("to/top/dir").is_symlink());
    let run = scene.cp(&["-a", "--safe-links"], "second/top", "to");
    run.run().expect_code(0);
    assert!(scene.path("to/top/dir/in").is_symlink());
    assert!(!scene.path("to/top/dir/out").is_symlink());
}
