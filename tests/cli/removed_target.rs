//! Interrupted copies whose target folder is removed before the same command runs again.

use std::fs;

use longhaul_tests::Scene;
use rustix::process::{Pid, Signal, kill_process};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{PeerKind, Seed};

use crate::sync::sync;

/// Bug: the journal said that the target folder had been there at first, so that every later copy
/// failed with "cannot create the directory", also with `--no-resume`.
#[test]
fn a_target_folder_that_was_removed_after_an_interruption_is_made_again() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let (from, to) = (scene.path("from"), scene.path("to"));
    fs::create_dir(&from).expect("our folder");
    write_file(&from.join("large"), &Seed::new(1).bytes(40_000_000));
    write_file(&from.join("small"), b"small");
    let local = [from.clone().into_os_string(), to.clone().into_os_string()];
    let ways = [
        [local[0].clone(), scene.remote("to")],
        [scene.remote("from"), local[1].clone()],
    ];
    for way in ways {
        fs::create_dir(&to).expect("our folder");
        let cp = || scene.client.cp().arg("-r").args(way.iter());
        let running = cp().args(["--limit", "16MB/s"]).spawn();
        // The first bytes of a large file are claimed by a journal.
        let arrived = || {
            let files = fs::read_dir(to.join("from")).into_iter().flatten();
            let sizes = files.flatten().filter_map(|file| file.metadata().ok());
            sizes.map(|file| file.len()).sum::<u64>()
        };
        assert!(running.until(|| arrived() > 16_000_000));
        let pid = Pid::from_raw(running.pid().cast_signed()).expect("a process number");
        kill_process(pid, Signal::INT).expect("our process");
        running.wait().expect_err(&["to resume:"]);
        fs::remove_dir_all(&to).expect("our folder");
        cp().run().expect_code(0);
        // The folder is missing now, so that the copy gets its name.
        assert_same(&from, &to, Compare::CONTENT);
        fs::remove_dir_all(&to).expect("our folder");
    }
}

/// Bug: the same sync said that it resumed from all of the files, and copied every one of them again.
#[test]
fn files_that_are_gone_were_resumed_from() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let (from, to) = (scene.path("from"), scene.path("to"));
    fs::create_dir(&from).expect("our folder");
    for number in 0..400 {
        write_file(&from.join(number.to_string()), b"source");
    }
    write_file(&from.join("blocked"), b"source");
    let sync = || {
        let run = sync(&scene, &[]).arg(&from);
        run.arg(scene.remote("to")).run()
    };
    for stays in [0, 100] {
        fs::create_dir_all(to.join("blocked/by")).expect("our folder");
        sync().expect_code(1);
        for number in stays..400 {
            fs::remove_file(to.join(number.to_string())).expect("copied");
        }
        fs::remove_dir_all(to.join("blocked")).expect("our folder");
        let outcome = sync().expect_code(0);
        let said = match stays {
            0 => "resuming the earlier copy: it left no complete or partial file to continue from",
            _ => "resuming the earlier copy: 100 files recorded as complete",
        };
        assert!(outcome.err().contains(said), "{outcome}");
        assert_same(&from, &to, Compare::CONTENT);
        fs::remove_dir_all(&to).expect("our folder");
    }
}
