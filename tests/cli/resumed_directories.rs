//! Directories of an upload that was killed and runs again.

use std::fs;
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use rustix::process::{Pid, Signal, kill_process};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed};

const DIRECTORIES: u64 = 30;
const FILES: u64 = 50;

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
