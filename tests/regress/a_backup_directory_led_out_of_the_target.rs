//! `sync --backup-dir` moved a symlink of the source into the backup directory, and later syncs
//! removed and created files through it. A file that could not be backed up was replaced anyway.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;

use longhaul_tests::Scene;
use testkit::tree::write_file;
use testkit::{Outcome, PeerKind};

struct Backup {
    scene: Scene,
    up: bool,
}

impl Backup {
    fn each(test: impl Fn(&Self)) {
        for up in [true, false] {
            let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
                return;
            };
            for dir in ["a", "b", "outside"] {
                fs::create_dir_all(scene.path(dir)).expect("ours");
            }
            test(&Self { scene, up });
        }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.scene.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("ours");
        write_file(&path, content.as_bytes());
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.scene.path(path)).expect("it is there")
    }

    fn sync(&self, backup: impl Into<OsString>) -> Outcome {
        let scene = &self.scene;
        let (from, to) = match self.up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        let run = scene.client.dir.run(longhaul_tests::longhaul()).arg("sync");
        let run = run.arg("-F").arg(scene.client.dir.config());
        let run = run.args(["--delete", "--yes", "--backup-dir"]);
        run.arg(backup.into()).arg(from).arg(to).run()
    }
}

#[test]
fn a_symlink_in_it_is_not_followed_and_what_cannot_be_kept_stays() {
    Backup::each(|test| {
        test.write("outside/f", "precious");
        test.write("outside/g", "precious");
        test.write("a/k", "k");
        symlink(test.scene.path("outside"), test.scene.path("a/d")).expect("ours");
        test.sync(".bak").expect_code(0);
        fs::remove_file(test.scene.path("a/d")).expect("ours");
        test.sync(".bak").expect_code(0);
        assert!(test.scene.path("b/.bak/d").is_symlink());
        test.write("a/d/f", "v1");
        test.write("a/d/g", "v1");
        test.sync(".bak").expect_code(0);
        test.write("a/d/f", "v2 changed");
        fs::remove_file(test.scene.path("a/d/g")).expect("ours");
        let outcome = test.sync(".bak").expect_code(1);
        outcome.expect_err(&[
            "d/f: not replaced or deleted, because it cannot be moved to the backup directory",
            "symlink",
        ]);
        assert_eq!(test.read("outside/f"), "precious");
        assert_eq!(test.read("outside/g"), "precious");
        assert_eq!(test.read("b/d/f"), "v1");
        assert_eq!(test.read("b/d/g"), "v1");
    });
}

#[test]
fn a_failed_backup_does_not_lose_the_old_file() {
    Backup::each(|test| {
        test.write("a/d/f", "new content");
        test.write("b/d/f", "old");
        // A file stands where a directory is needed.
        test.write("b/.bak/d", "x");
        let outcome = test.sync(".bak").expect_code(1);
        outcome.expect_err(&[
            "d/f: not replaced or deleted, because it cannot be moved to the backup directory",
        ]);
        assert_eq!(test.read("b/d/f"), "old");
        fs::remove_file(test.scene.path("b/.bak/d")).expect("ours");
        // A directory stands where the file would go.
        fs::create_dir_all(test.scene.path("b/.bak/d/f")).expect("ours");
        test.sync(".bak").expect_code(1);
        assert_eq!(test.read("b/d/f"), "old");
        assert!(test.scene.path("b/.bak/d/f").is_dir());
    });
}

#[test]
fn a_backup_directory_beside_the_target_is_used_and_replaces_older_backups() {
    Backup::each(|test| {
        for round in 0..3 {
            test.write("a/d/f", &"content".repeat(round + 1));
            test.write(&format!("a/d/gone-{round}"), &"gone".repeat(round + 1));
            test.sync(test.scene.path("bak")).expect_code(0);
            fs::remove_file(test.scene.path(&format!("a/d/gone-{round}"))).expect("ours");
        }
        assert_eq!(test.read("b/d/f"), "content".repeat(3));
        assert_eq!(test.read("bak/d/f"), "content".repeat(2));
        assert_eq!(test.read("bak/d/gone-0"), "gone");
        let kept = fs::read_dir(test.scene.path("bak/d")).expect("ours");
        assert_eq!(kept.count(), 3, "nothing is left beside the backups");
    });
}
