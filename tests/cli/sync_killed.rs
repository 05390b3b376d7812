//! `longhaul sync --delete` that is killed at any moment loses nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::Scene;
use testkit::process::must;
use testkit::tree::{Compare, assert_same};
use testkit::{PeerKind, Seed};

use crate::sync::{entries, sync, write_file};

#[test]
fn a_sync_that_is_killed_at_any_moment_loses_nothing() {
    kill_syncs(9, 20);
}

#[test]
#[ignore = "takes a minute: cargo test --test cli -- --ignored two_hundred_killed"]
fn two_hundred_killed_syncs_lose_nothing() {
    let threads: Vec<_> = (0..4)
        .map(|seed| std::thread::spawn(move || kill_syncs(100 + seed, 50)))
        .collect();
    for thread in threads {
        thread.join().expect("every round has passed");
    }
}

/// Kills syncs with --delete at random moments, and looks at both ends after each.
fn kill_syncs(seed: u64, rounds: usize) {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let mut random = Seed::new(seed);
    for n in 0..60 {
        write_file(
            &scene.path(&format!("a/{}/{n}", n % 7)),
            &random.bytes(20_000),
        );
    }
    must(
        "cp",
        &[
            "-a".as_ref(),
            scene.path("a").as_ref(),
            scene.path("original").as_ref(),
        ],
    );
    let both: BTreeSet<String> = (0..20).map(|n| format!("{}/{n}", n % 7)).collect();
    for round in 0..rounds {
        let _ = fs::remove_dir_all(scene.path("b"));
        for name in &both {
            let from = scene.path(&format!("a/{name}"));
            let to = scene.path(&format!("b/{name}"));
            fs::create_dir_all(to.parent().expect("a folder")).expect("ours");
            must("cp", &["-p".as_ref(), from.as_ref(), to.as_ref()]);
        }
        write_file(&scene.path("b/gone"), b"x");
        let run = sync(&scene, &["--delete"])
            .arg(scene.path("a"))
            .arg(scene.remote("b"));
        let running = run.spawn();
        let after = Duration::from_millis(random.below(400));
        let until = std::time::Instant::now() + after;
        running.until(|| std::time::Instant::now() >= until);
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(running.pid() as i32).expect("a process"),
            rustix::process::Signal::KILL,
        );
        running.wait();
        // What was equal before is still there, and no file is incomplete under its name.
        for name in &both {
            let (from, to) = (
                scene.path(&format!("a/{name}")),
                scene.path(&format!("b/{name}")),
            );
            assert_eq!(
                fs::read(from).ok(),
                fs::read(to).ok(),
                "round {round}: {name}"
            );
        }
        for path in entries(&scene.path("b")) {
            let below = path
                .strip_prefix(scene.path("b"))
                .expect("below")
                .to_owned();
            let temporary = below.to_string_lossy().contains(".longhaul");
            if path.is_file() && !temporary && below != Path::new("gone") {
                let from = scene.path("a").join(&below);
                assert_eq!(
                    fs::read(from).ok(),
                    fs::read(&path).ok(),
                    "round {round}: {below:?}"
                );
            }
        }
        let run = sync(&scene, &["--delete"])
            .arg(scene.path("a"))
            .arg(scene.remote("b"));
        run.run().expect_code(0);
        // The second run has taken or removed the temporaries of the killed one.
        assert_same(&scene.path("a"), &scene.path("b"), Compare::MODES);
    }
    assert_same(
        &scene.path("original"),
        &scene.path("a"),
        Compare::PRESERVED,
    );
}
