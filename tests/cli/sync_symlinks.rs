//! `longhaul sync` never follows a symlink below its target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_tests::Scene;
use longhaul_tests::both_ends::{BothEnds, far_end};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use testkit::PeerKind;
use testkit::tree::{Compare, assert_same};

use crate::sync::{entries, sync, write_file};

#[test]
fn a_symlink_at_the_target_is_deleted_and_never_followed() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("outside/precious"), b"p");
    fs::create_dir_all(scene.path("b")).expect("ours");
    symlink(scene.path("outside"), scene.path("b/link")).expect("ours");
    symlink(scene.path("outside"), scene.path("b/dir")).expect("ours");
    write_file(&scene.path("a/dir/precious"), b"other");
    write_file(&scene.path("a/dir/more"), b"other");
    for up in [false, true] {
        let (from, to) = match up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        sync(&scene, &["--delete"])
            .arg(from)
            .arg(to)
            .run()
            .expect_code(0);
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
        assert_eq!(
            fs::read(scene.path("outside/precious")).expect("there"),
            b"p"
        );
        assert!(!scene.path("outside/more").exists());
    }
}

#[test]
fn a_process_that_swaps_directories_for_symlinks_leads_no_deletion_outside() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"x");
    for n in 0..40 {
        write_file(&scene.path(&format!("outside/{n}")), b"precious");
    }
    for round in 0..6 {
        for n in 0..40 {
            write_file(&scene.path(&format!("b/dir/{n}")), b"to be deleted");
        }
        let over = AtomicBool::new(false);
        let (dir, aside) = (scene.path("b/dir"), scene.path(&format!("aside-{round}")));
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&dir, &aside, &scene.path("outside"), &over));
            let run = sync(&scene, &["--delete", "--yes"]).arg(scene.remote("a"));
            let outcome = run.arg(scene.path("b")).run();
            over.store(true, Ordering::Relaxed);
            assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
        });
        assert_eq!(entries(&scene.path("outside")).len(), 40, "round {round}");
        let _ = fs::remove_dir_all(scene.path("b"));
    }
}

/// Replaces a directory by a symlink to `outside` and back, until `over`.
fn swap(dir: &Path, aside: &Path, outside: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let _ = fs::rename(dir, aside);
        let _ = symlink(outside, dir);
        let _ = fs::remove_file(dir);
        let _ = fs::rename(aside, dir);
    }
}

/// Copies, renames and backups of a sync go through the directories that it has opened, not through
/// paths that another process can change.
#[test]
fn a_process_that_swaps_directories_for_symlinks_leads_no_copy_outside() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for n in 0..40 {
        // Changed files, and files that were moved from another name.
        write_file(&scene.path(&format!("a/dir/{n}")), b"content of the source");
        let moved = scene.path(&format!("a/dir/moved-{n}"));
        write_file(&moved, format!("moved {n} {}", "x".repeat(n)).as_bytes());
        crate::sync::set_time(&moved, 1_100_000_000 + n as u64);
        write_file(&scene.path(&format!("outside/{n}")), b"precious");
    }
    for round in 0..6 {
        for n in 0..40 {
            write_file(&scene.path(&format!("b/dir/{n}")), b"old");
            let moved = scene.path(&format!("b/dir/old-{n}"));
            write_file(&moved, format!("moved {n} {}", "x".repeat(n)).as_bytes());
            crate::sync::set_time(&moved, 1_100_000_000 + n as u64);
        }
        let over = AtomicBool::new(false);
        let (dir, aside) = (scene.path("b/dir"), scene.path(&format!("aside-{round}")));
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&dir, &aside, &scene.path("outside"), &over));
            let flags = ["--delete", "--yes", "--backup-dir", ".old"];
            let run = sync(&scene, &flags).arg(scene.remote("a"));
            let outcome = run.arg(scene.path("b")).run();
            over.store(true, Ordering::Relaxed);
            assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
        });
        let outside = entries(&scene.path("outside"));
        assert_eq!(outside.len(), 40, "round {round}: {outside:?}");
        for path in outside {
            let content = fs::read(&path).expect("ours");
            assert_eq!(content, b"precious", "round {round}: {path:?}");
        }
        let _ = fs::remove_dir_all(scene.path("b"));
        let _ = fs::remove_dir_all(&aside);
    }
}

/// Exchanges a directory with a symlink, until `over`.
fn exchange(dir: &Path, link: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let _ = renameat_with(CWD, dir, CWD, link, RenameFlags::EXCHANGE);
    }
}

/// True if these requests name a root.
fn holds_root(requests: &[u8], root: &Path) -> bool {
    let path = root.as_os_str().as_encoded_bytes();
    let length = u32::try_from(path.len()).expect("short").to_be_bytes();
    let request = [b"hold-root@longhaul", &length[..], path].concat();
    requests.windows(request.len()).any(|w| w == request)
}

/// Bug: `longhaul serve` resolved every path by its name, so that a local user of the server could
/// have `sync --delete`, an upload or a backup change files outside the target.
#[test]
fn a_process_that_swaps_directories_at_a_longhaul_server_leads_nothing_outside() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    let scene = &ends.scene;
    // The race is seldom lost; that each channel names the target is seen in any case.
    let log = scene.path("requests");
    let real = longhaul_tests::longhaul();
    ends.install_script(&format!(
        "tee -a {} | {} \"$@\"",
        log.display(),
        real.display()
    ));
    for n in 0..30 {
        write_file(&scene.path(&format!("a/dir/{n}")), b"content of the source");
        write_file(&scene.path(&format!("outside/{n}")), b"precious");
        write_file(&scene.path(&format!("outside/extra-{n}")), b"precious");
    }
    let outside = scene.path("outside");
    let before = entries(&outside);
    let runs: [&[&str]; 3] = [
        &["sync", "--delete", "--yes"],
        &["sync", "--delete", "--yes", "--backup-dir", ".old"],
        &["cp", "-rp"],
    ];
    for round in 0..18 {
        for n in 0..30 {
            write_file(&scene.path(&format!("b/dir/{n}")), b"old");
            write_file(&scene.path(&format!("b/dir/extra-{n}")), b"to be deleted");
        }
        let over = AtomicBool::new(false);
        let (dir, link) = (scene.path("b/dir"), scene.path(&format!("link-{round}")));
        symlink(&outside, &link).expect("ours");
        std::thread::scope(|scope| {
            scope.spawn(|| exchange(&dir, &link, &over));
            let run = scene.client.dir.run(longhaul_tests::longhaul());
            let run = run.args(runs[round % runs.len()]);
            let run = run.arg("-F").arg(scene.client.dir.config());
            let run = run.args(["--json", "--far-end=exec"]);
            let run = run.arg(scene.path("a/.")).arg(scene.remote("b"));
            let outcome = run.run();
            over.store(true, Ordering::Relaxed);
            assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
            assert_eq!(far_end(&outcome)["depth"], "exec", "{outcome}");
        });
        let requests = fs::read(&log).expect("the server has started");
        assert!(holds_root(&requests, &scene.path("b")), "round {round}");
        fs::remove_file(&log).expect("ours");
        assert_eq!(entries(&outside), before, "round {round}");
        for path in &before {
            assert_eq!(
                fs::read(path).expect("ours"),
                b"precious",
                "round {round}: {path:?}"
            );
        }
        let _ = fs::remove_dir_all(scene.path("b"));
        let _ = fs::remove_file(&link);
        let _ = fs::remove_dir_all(&link);
    }
}
