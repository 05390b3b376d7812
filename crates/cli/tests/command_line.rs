//! Tests of the program as a user starts it, without a host.

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn longhaul(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("NO_COLOR");
    command
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = longhaul(args).output().expect("longhaul starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_command_line_that_makes_no_sense_is_exit_2_and_says_so_on_standard_error() {
    for (args, part) in [
        (
            &["cp"][..],
            "no destination given: name at least one source and a destination",
        ),
        (
            &["cp", "only-one"],
            "no destination given: name at least one source and a destination",
        ),
        (&["cp", "-O", "a", "h:"], "-O: the old scp protocol"),
        (&["cp", "-X", "buffer=1", "a", "h:"], "-X: "),
        (&["cp", "--port=x", "a", "h:"], "-P: 'x' is not a port"),
        (&["cp", "--no-such-flag", "a", "h:"], "--no-such-flag"),
        (&["cp", "a", "-J", "x", "scp://h:0/"], "port"),
        (&["no-such-command"], "no-such-command"),
        (&["man", "no-such-page"], "no such man page"),
        (&[], "Usage: longhaul"),
    ] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
        assert!(!stderr.contains('\u{1b}'), "colours in a pipe: {stderr:?}");
    }
}

#[test]
fn help_and_version_are_exit_0_on_standard_output() {
    let (code, stdout, stderr) = run(&["cp", "--help"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for part in [
        "--recursive",
        "SFTP carries times in whole seconds",
        "Exit codes:",
        "  130  ",
    ] {
        assert!(stdout.contains(part), "{part} is missing");
    }
    assert!(!stdout.contains('\u{1b}'));
    let (code, stdout, _) = run(&["cp", "-h"]);
    assert!(
        code == Some(0) && stdout.contains("-r, --recursive") && !stdout.contains("Exit codes")
    );
    let (code, stdout, _) = run(&["--version"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stdout,
        concat!("longhaul ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn man_pages_and_completions_are_printed() {
    let (code, stdout, _) = run(&["man", "cp"]);
    assert!(
        code == Some(0) && stdout.contains(".TH LONGHAUL-CP 1"),
        "{stdout}"
    );
    let (code, stdout, _) = run(&["completions", "bash"]);
    assert!(
        code == Some(0) && stdout.contains("complete -F _longhaul"),
        "{stdout}"
    );
    assert_eq!(run(&["completions", "sh"]).0, Some(2));
}

#[test]
fn completions_are_valid_bash() {
    let script = run(&["completions", "bash"]).1;
    let mut check = Command::new("bash");
    let status = check.args(["-n", "-c", &script]).status();
    // A machine without bash skips this.
    assert!(status.is_err() || status.is_ok_and(|status| status.success()));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = longhaul(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before anything is read, so that writing fails with a broken pipe.
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}
