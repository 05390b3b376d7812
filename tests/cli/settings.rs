//! Settings of `longhaul serve` from its command line and configuration that were once
//! misinterpreted or ignored.

use std::fs;
use std::os::unix::fs::chown;

use crate::operating::configured;
use longhaul_tests::longhaul;
use rustix::process::{Pid, Signal, kill_process};
use testkit::Run;
use testkit::background_process::BackgroundProcess;
use testkit::tree::write_file;

use crate::accounts::Machine;

fn reload(server: &BackgroundProcess) {
    let pid = Pid::from_raw(server.pid().cast_signed()).expect("it runs");
    kill_process(pid, Signal::HUP).expect("it runs");
}

/// Waits for a line in the server's log.
#[track_caller]
fn says(server: &BackgroundProcess, what: &str) {
    testkit::wait::until(
        std::time::Duration::from_secs(20),
        || server.log().contains(what),
        || server.log(),
    );
}

/// A server of one user had changed to the home folder by SIGHUP, and served relative paths from
/// there.
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
    says(&machine.daemon, "reloaded");
    let after = lists().expect_code(0);
    assert_eq!(after.out(), before.out());
}

/// Runs `serve check` on a file with this text and these flags.
fn check(text: &str, flags: &[&str]) -> testkit::Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.toml");
    write_file(&file, text.as_bytes());
    let run = Run::new(longhaul()).args(["serve", "check"]).arg(&file);
    run.args(flags).run()
}

const KEY: &str = "[[key]]\nfingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n";

/// A key got the access of the file in spite of the flag.
#[test]
fn a_key_was_given_more_than_the_command_line_allows() {
    let full = format!("{KEY}access = \"full\"\n");
    let all = format!("{KEY}root = \"/\"\n");
    check(&full, &[]).expect_code(0);
    let refused = check(&full, &["--read-only"]).expect_code(1);
    refused.expect_err(&["serve.toml:1: ", "SHA256:47DEQ", "--read-only"]);
    let refused = check(&all, &["--root", "/usr"]).expect_code(1);
    refused.expect_err(&["serve.toml:1: ", "SHA256:47DEQ", "--root /usr"]);
    let (folder, file) = (tempfile::tempdir().expect("a folder"), "serve.toml");
    write_file(&folder.path().join(file), full.as_bytes());
    let run = Run::new(longhaul()).args(["serve", "--listen", "127.0.0.1:0", "--write-only"]);
    let run = run.arg("--config").arg(folder.path().join(file));
    run.run().expect_code(1).expect_err(&["--write-only"]);
}

#[test]
fn hangup_took_a_root_that_is_not_there() {
    let root = tempfile::tempdir().expect("a folder");
    let served = format!("root = \"{}\"\n", root.path().display());
    let (scene, file, _folder) = configured(&served);
    write_file(&scene.path("file"), b"content");
    let none = root.path().join("none").display().to_string();
    write_file(&file, format!("root = \"{none}\"\n").as_bytes());
    let pid = Pid::from_raw(scene.peer.pid().cast_signed()).expect("it runs");
    kill_process(pid, Signal::HUP).expect("it runs");
    scene.logs("the previous configuration stays in use");
    assert!(scene.peer.log().contains(&none));
    crate::operating::put(&scene, "one").expect_code(0);
    assert!(root.path().join("one").exists());
}

#[test]
fn check_passed_what_no_server_can_do() {
    for (text, what) in [
        (format!("{KEY}{KEY}"), "serve.toml:3: fingerprint = "),
        (
            "listen = \"20222022\"\n".to_owned(),
            "serve.toml:1: listen = \"20222022\": must be",
        ),
        (
            "\nroot = \"/no/such\"\n".to_owned(),
            "serve.toml:2: root = \"/no/such\": does not exist",
        ),
        (
            "allow = [\"nosuchprogram\"]\n".to_owned(),
            "serve.toml:1: allow = \"nosuchprogram\": ",
        ),
        (
            "lisen = 1\nacess = 1\n".to_owned(),
            "serve.toml:2: unknown option `acess`",
        ),
    ] {
        check(&text, &[]).expect_code(1).expect_err(&[what]);
    }
    // A setting that a flag overrides is not checked.
    check("root = \"/no/such\"\n", &["--root", "/"]).expect_code(0);
}

/// Invalid addresses were accepted, and the error came after everything else was set up.
#[test]
fn an_address_without_a_port_was_found_out_late() {
    for address in ["222222", "127.0.0.1", ":x", ""] {
        let run = Run::new(longhaul())
            .args(["serve", "--listen", address])
            .run();
        let said = run.expect_code(2).expect_err(&["HOST:PORT"]);
        assert!(!said.err().contains("host key"), "{said}");
    }
}

#[test]
fn what_was_of_no_use_was_ignored_without_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), all).expect("ours");
    let file = folder.path().join("serve.toml");
    write_file(&file, b"users = [\"bob\"]\n");
    let config = file.display().to_string();
    let flags = ["--authorized-keys", "/no/such/file", "--config", &config];
    let Some(machine) = Machine::start_as(Some("alice"), &flags) else {
        return;
    };
    says(
        &machine.daemon,
        "/no/such/file: cannot read the authorized keys (no such file",
    );
    says(&machine.daemon, "users has no effect");
}

/// IPv4 clients are logged as IPv4. A socket for both families showed them as ::ffff:127.0.0.1.
#[test]
fn the_log_told_ipv4_as_ipv6() {
    let Some(machine) = Machine::start(&["--listen", ":0"]) else {
        return;
    };
    let run = machine.sftp_with(&machine.key, "alice", &["-b", "-"]);
    run.stdin("pwd\n").run().expect_code(0);
    says(&machine.daemon, "peer=127.0.0.1:");
    assert!(
        !machine.daemon.log().contains("::ffff:"),
        "{}",
        machine.daemon.log()
    );
}
