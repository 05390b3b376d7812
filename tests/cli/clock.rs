//! Jumps of the wall clock under `longhaul serve --listen`.
//!
//! An ordinary user's server has everything except the process before the login in one process,
//! whose clock can be replaced (tests/peers/other_clock.c). That does not work for the processes
//! that root's server starts, which do not inherit its environment; they run the same code.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::time::Duration;

use testkit::tree::write_file;
use testkit::{Run, Seed, missing};

use crate::accounts::Machine;

const YEAR: i64 = 365 * 86_400;

/// A jump of the clock disconnects no existing client and delays none; new clients are checked
/// against the new time.
#[test]
fn a_clock_that_jumps_ends_nothing_and_is_what_keys_expire_by() {
    let Some(cc) = missing::find_program("cc") else {
        missing::not_here("there is no C compiler to make another clock with");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), all).expect("ours");
    let (library, clock) = (folder.path().join("clock.so"), folder.path().join("clock"));
    let source = missing::checkout().join("tests/peers/other_clock.c");
    let made = Run::new(cc).args(["-shared", "-fPIC", "-O1", "-o"]);
    made.arg(&library).arg(source).run().expect_code(0);
    write_file(&clock, &0_i64.to_ne_bytes());
    let config = folder.path().join("serve.toml");
    write_file(
        &config,
        b"idle-time = 60\nslow-time = 60\nlogin-time = 60\n",
    );
    for file in [&library, &clock, &config] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let environment = [("LD_PRELOAD", &*library), ("OTHER_CLOCK", &*clock)];
    let flags = ["--config", &config.display().to_string()];
    let Some(machine) = Machine::start_in(Some("alice"), &environment, &flags) else {
        return;
    };
    let keys = machine.home("alice").join(".ssh/authorized_keys");
    let line = format!("expiry-time=\"20900101\" {}\n", machine.key.public_line());
    fs::write(keys, line).expect("ours");
    let content = Seed::new(8).bytes(3_000_000);
    let file = machine.home("alice").join("file");
    write_file(&file, &content);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let back = folder.path().join("back");
    let session = |options: &[&str]| machine.sftp_with(&machine.key, "alice", options);
    let mut idle = session(&[]).in_terminal().spawn();
    assert!(idle.shows("sftp>"), "{}", machine.daemon.log());
    let mut stranger = TcpStream::connect(("127.0.0.1", machine.port)).expect("it listens");
    // At 8 Mbit/s the transfer takes three seconds.
    let slow = session(&["-l", "8000", "-b", "-"]);
    let running = slow.stdin(format!("get file {}\n", back.display())).spawn();
    let begun = || fs::metadata(&back).is_ok_and(|m| m.len() > 0);
    assert!(running.until(begun), "{}", machine.daemon.log());
    let jump = |years: i64| {
        let clock = fs::OpenOptions::new().write(true).open(&clock);
        let ahead = (years * YEAR).to_ne_bytes();
        clock.and_then(|c| c.write_all_at(&ahead, 0)).expect("ours");
        // The server has worked with the new time once the running transfer has gone on.
        let len = || fs::metadata(&back).map_or(0, |m| m.len());
        let before = len();
        testkit::wait::until(
            Duration::from_secs(20),
            || len() > before || len() == content.len() as u64,
            || machine.daemon.log(),
        );
    };
    for (years, is_let_in) in [
        (10, true),
        (100, false),
        (-20, true),
        (-70, true),
        (0, true),
    ] {
        jump(years);
        let outcome = session(&["-b", "-"]).stdin("pwd\n").run();
        assert_eq!(outcome.success(), is_let_in, "{years}: {outcome}");
    }
    let log = machine.daemon.log();
    assert!(log.contains("has expired (expiry-time=)"), "{log}");
    running.wait().expect_code(0);
    assert!(fs::read(&back).expect("it") == content);
    idle.type_in("pwd\n");
    assert!(idle.shows("Remote working directory"), "{log}");
    // A client that has sent nothing yet has a minute, independent of the clock.
    stranger.write_all(b"SSH-2.0-x\r\n").expect("it is there");
    let time = Some(Duration::from_secs(20));
    stranger.set_read_timeout(time).expect("a timeout");
    stranger.read_exact(&mut [0; 300]).expect("its KEXINIT");
    assert!(
        !log.contains("panic") && !log.contains("idle timeout"),
        "{log}"
    );
}
