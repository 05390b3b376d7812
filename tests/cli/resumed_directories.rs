//! Directories of an upload that was killed and runs again.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use rustix::process::{Pid, Signal, kill_process};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed};

const DIRECTORIES: u64 = 30;
const FILES: u64 = 50;
/// Size in bytes of a large file.
const LARGE: usize = 40_000_000;

/// Bug: the temporaries of the killed run were removed last, so that their directories got the time of
/// that; and a plain account could not remove them from directories that are read-only by then, where
/// they stayed for ever, without a word.
#[test]
fn directories_of_a_killed_upload_keep_their_times() {
    let Some(mut scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(Duration::from_millis(20));
    let proxy = proxy.rate(400_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    let (from, to) = (scene.path("from"), scene.path("to"));
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for dir in 0..DIRECTORIES {
        let dir = from.join(dir.to_string());
        fs::create_dir_all(&dir).expect("our folder");
        for n in 0..FILES {
            write_file(&dir.join(n.to_string()), &Seed::new(n).bytes(2000));
        }
        let dir = fs::File::open(&dir).expect("our folder");
        dir.set_modified(old).expect("ours");
    }
    let cp = || {
        let cp = scene.client.cp().args(["--far-end=stock", "-a"]);
        cp.arg(&from).arg(scene.remote("to"))
    };
    let temporaries = || {
        let dirs = fs::read_dir(&to).into_iter().flatten().flatten();
        let names = dirs.flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten());
        let is_temporary = |name: &[u8]| name.ends_with(b".longhaul");
        names
            .filter(|entry| is_temporary(entry.file_name().as_encoded_bytes()))
            .count()
    };
    let running = cp().spawn();
    // A journal names the files once there are many.
    assert!(running.until(|| to.join("10").is_dir() && temporaries() > 0));
    let pid = Pid::from_raw(running.pid().cast_signed()).expect("a process number");
    kill_process(pid, Signal::KILL).expect("our process");
    running.wait();
    cp().run().expect_code(0);
    assert_eq!(temporaries(), 0);
    assert_same(&from, &to, Compare::PRESERVED);
}

/// Bug: a large temporary of the killed run, whose source is gone, was removed after its directory had
/// got its times, so that only the third run left the right ones; and a plain account could not remove
/// it from a directory that is read-only by then, where it stayed without a word.
#[test]
fn a_large_temporary_without_a_source_left_its_directory_with_a_wrong_time() {
    for up in [true, false] {
        let Some(mut scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let proxy = DelayProxy::to(scene.peer.addr()).rate(20_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let (from, to) = (scene.path("from"), scene.path("to"));
        let dir = from.join("dir");
        fs::create_dir_all(&dir).expect("our folder");
        write_file(&dir.join("large"), &Seed::new(1).bytes(LARGE));
        write_file(&dir.join("small"), b"small");
        let set_old = || {
            let dir = fs::File::open(&dir).expect("our folder");
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
            dir.set_modified(old).expect("ours");
        };
        set_old();
        let cp = || {
            let cp = scene.client.cp().args(["--far-end=stock", "-a"]);
            match up {
                true => cp.arg(&from).arg(scene.remote("to")),
                false => cp.arg(scene.remote("from")).arg(&to),
            }
        };
        let temporaries = || {
            let names = fs::read_dir(to.join("dir")).into_iter().flatten().flatten();
            let paths = names.map(|entry| entry.path());
            let is_temporary = |path: &PathBuf| path.extension().is_some_and(|e| e == "longhaul");
            paths.filter(is_temporary).collect::<Vec<_>>()
        };
        let is_large = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.len() > 8_000_000);
        let running = cp().spawn();
        assert!(running.until(|| temporaries().iter().any(is_large)));
        let pid = Pid::from_raw(running.pid().cast_signed()).expect("a process number");
        kill_process(pid, Signal::KILL).expect("our process");
        running.wait();
        fs::remove_file(dir.join("large")).expect("our file");
        set_old();
        let outcome = cp().run().expect_code(0);
        assert!(
            outcome.err().contains("resuming the earlier copy"),
            "{outcome}"
        );
        assert_eq!(temporaries(), [""; 0].map(PathBuf::from));
        assert_same(&from, &to, Compare::PRESERVED);
    }
}

/// Several sources are merged into one directory: what an interrupted run has left of a file
/// whose source is gone stays until the end: a later source may have that file. A second
/// interruption leaves its own temporary as well, and the journal has both, so that the run that
/// completes the copy removes them.
#[test]
fn what_two_interrupted_runs_of_merged_sources_left_is_removed_by_the_third() {
    for up in [true, false] {
        let Some(mut scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let proxy = DelayProxy::to(scene.peer.addr()).rate(20_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let to = scene.path("to");
        fs::create_dir(&to).expect("our folder");
        for (folder, name, seed) in [("one", "one/a", 1), ("two", "two/b", 2)] {
            fs::create_dir(scene.path(folder)).expect("our folder");
            write_file(&scene.path(name), &Seed::new(seed).bytes(LARGE));
        }
        let cp = || {
            let cp = scene.client.cp().args(["--far-end=stock", "-r"]);
            let cp = cp.args(["--connections=1", "--channels=1"]);
            match up {
                true => cp
                    .args([scene.path("one/."), scene.path("two/.")])
                    .arg(scene.remote("to")),
                false => cp
                    .args([scene.remote("one/."), scene.remote("two/.")])
                    .arg(&to),
            }
        };
        let temporaries = |of: &str| {
            let names = fs::read_dir(&to).into_iter().flatten().flatten();
            let paths = names.map(|entry| entry.path());
            let start = format!(".{of}.");
            let is_of = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                name.starts_with(start.as_bytes()) && name.ends_with(b".longhaul")
            };
            paths.filter(is_of).collect::<Vec<_>>()
        };
        let is_large = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.len() > 8_000_000);
        let begin = |of: &str| {
            let running = cp().spawn();
            let is_begun = running.until(|| temporaries(of).iter().any(is_large));
            assert!(is_begun, "{}", running.wait());
            running
        };
        let running = begin("a");
        let pid = Pid::from_raw(running.pid().cast_signed()).expect("a process number");
        kill_process(pid, Signal::KILL).expect("our process");
        running.wait();
        fs::remove_file(scene.path("one/a")).expect("our file");
        let running = begin("b");
        running.terminate();
        let outcome = running.wait();
        let left = (temporaries("a").len(), temporaries("b").len());
        assert_eq!(left, (1, 1), "{outcome}");
        let outcome = cp().run().expect_code(0);
        let left = (temporaries("a").len(), temporaries("b").len());
        assert_eq!(left, (0, 0), "{outcome}");
        assert!(to.join("b").exists() && !to.join("a").exists());
    }
}
