//! `cp` to a server went through symlinks below its target: a directory was filled and got its mode
//! and times through one, and a file overwrote another one outside.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use longhaul_tests::{Scene, longhaul};
use testkit::process::Run;
use testkit::tree::write_file;
use testkit::{PeerBuilder, PeerKind};

struct Links(Scene);

impl Links {
    /// Creates `from` with a directory and a file, `to` with symlinks in their places, and
    /// `outside`.
    fn start(peer: PeerBuilder) -> Option<Self> {
        let scene = Scene::with(peer)?;
        if scene.client.is_scp() {
            return None;
        }
        for dir in ["to", "outside", "from/dir"] {
            fs::create_dir_all(scene.path(dir)).expect("ours");
        }
        write_file(&scene.path("from/dir/planted"), b"planted");
        write_file(&scene.path("from/file"), b"new");
        mode(&scene, "from/dir", 0o755);
        mode(&scene, "outside", 0o700);
        write_file(&scene.path("outside/file"), b"mine");
        symlink(scene.path("outside"), scene.path("to/dir")).expect("ours");
        symlink(scene.path("outside/file"), scene.path("to/file")).expect("ours");
        Some(Self(scene))
    }

    fn cp(&self, flags: &[&str], from: &str, to: &str) -> Run {
        let run = self.0.client.cp().args(flags);
        run.arg(self.0.path(from)).arg(self.0.remote(to))
    }

    fn nothing_came_out(&self, flags: &[&str]) {
        let file = fs::read(self.0.path("outside/file")).expect("it is there");
        assert_eq!(file, b"mine", "{flags:?}");
        assert!(!self.0.path("outside/planted").exists(), "{flags:?}");
        let outside = fs::metadata(self.0.path("outside")).expect("it is there");
        assert_eq!(outside.permissions().mode() & 0o777, 0o700, "{flags:?}");
    }
}

fn mode(scene: &Scene, path: &str, mode: u32) {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(scene.path(path), mode).expect("ours");
}

fn peers() -> [PeerBuilder; 2] {
    let ours = PeerBuilder::longhaul(longhaul(), [""; 0]);
    [PeerBuilder::new(PeerKind::OpenSsh), ours]
}

#[test]
fn a_directory_meets_a_symlink_and_a_file_replaces_one() {
    for flags in [&["-r"][..], &["-a"], &["-r", "--inplace"], &["-pr"]] {
        for peer in peers() {
            let Some(links) = Links::start(peer) else {
                continue;
            };
            let outcome = links.cp(flags, "from/.", "to").run().expect_code(1);
            outcome
                .expect_err(&["to/dir: cannot create the directory: a symlink is in the way"])
                .expect_err(&["--keep-dirlinks"]);
            links.nothing_came_out(flags);
            let file = links.0.path("to/file");
            assert!(!file.is_symlink(), "{flags:?}");
            assert_eq!(fs::read(file).expect("it is there"), b"new");
        }
    }
}

#[test]
fn one_file_in_the_target_replaces_a_symlink() {
    for flags in [&[][..], &["--inplace"], &["-p"]] {
        for peer in peers() {
            let Some(links) = Links::start(peer) else {
                continue;
            };
            links.cp(flags, "from/file", "to/").run().expect_code(0);
            links.nothing_came_out(flags);
            assert!(!links.0.path("to/file").is_symlink(), "{flags:?}");
        }
    }
}

#[test]
fn a_symlink_that_the_user_names_is_followed() {
    for peer in peers() {
        let Some(links) = Links::start(peer) else {
            continue;
        };
        links
            .cp(&["-r"], "from/dir/.", "to/dir")
            .run()
            .expect_code(0);
        assert!(links.0.path("outside/planted").exists());
        assert!(links.0.path("to/dir").is_symlink());
        links.cp(&[], "from/file", "to/file").run().expect_code(0);
        let file = fs::read(links.0.path("outside/file")).expect("it is there");
        assert_eq!(file, b"new");
        assert!(links.0.path("to/file").is_symlink());
    }
}

#[test]
fn symlinks_to_directories_are_followed_where_that_is_asked() {
    for peer in peers() {
        let Some(links) = Links::start(peer) else {
            continue;
        };
        let flags = ["-r", "--keep-dirlinks"];
        links.cp(&flags, "from/.", "to").run().expect_code(0);
        assert!(links.0.path("outside/planted").exists());
        assert!(links.0.path("to/dir").is_symlink());
    }
}
