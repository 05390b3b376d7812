//! What `longhaul serve` makes of its command line and its configuration, where they were once
//! taken for something else, or for nothing.

use std::fs;
use std::os::unix::fs::chown;

use rustix::process::{Pid, Signal, kill_process};
use testkit::daemon::Daemon;
use testkit::tree::write_file;

use crate::accounts::Machine;

fn reload(server: &Daemon) {
    let pid = Pid::from_raw(server.pid().cast_signed()).expect("it runs");
    kill_process(pid, Signal::HUP).expect("it runs");
}

/// Waits until the server has said that.
#[track_caller]
fn says(server: &Daemon, what: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !server.log().contains(what) {
        assert!(std::time::Instant::now() < until, "{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A server of one user has gone home by then, and served what had the same name there.
#[test]
fn hangup_looked_for_relative_paths_at_home() {
    let keys = "home/alice/.ssh/authorized_keys";
    let flags = ["--root", "home", "--authorized-keys", keys];
    let Some(machine) = Machine::start_as(Some("alice"), &flags) else {
        return;
    };
    let decoy = machine.home("alice").join("home");
    fs::create_dir_all(decoy.join("alice/.ssh")).expect("root may");
    chown(&decoy, Some(54_001), Some(54_001)).expect("root may");
    write_file(&decoy.join("alice/.ssh/authorized_keys"), b"");
    let lists = || {
        let run = machine.sftp_with(&machine.key, "alice", &["-b", "-"]);
        run.stdin("ls -1\n").run()
    };
    let before = lists().expect_code(0);
    assert!(before.out().contains("bob"), "{before}");
    reload(&machine.daemon);
    says(&machine.daemon, "were read again");
    let after = lists().expect_code(0);
    assert_eq!(after.out(), before.out());
}
