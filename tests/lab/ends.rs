//! End of a lab: all of its processes, namespaces and files are gone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::longhaul;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Run, Running};

use crate::{lab, processes};

/// Returns the lab's own processes, by the folder in their command lines.
fn of_lab(temporary: &Path) -> Vec<u32> {
    processes(&format!("{}/longhaul-lab-", temporary.display()))
}

fn one_of(temporary: &Path, part: &str) -> Option<u32> {
    let part = processes(part);
    of_lab(temporary).into_iter().find(|pid| part.contains(pid))
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process number");
    kill_process(pid, Signal::KILL).expect("a process of ours");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("our folder").next().is_none()
}

/// Starts a lab that runs until it is killed.
fn running(temporary: &Path) -> Option<Running> {
    let run = lab(temporary)?
        .args(["--rtt", "5ms", "--sshd", "--far", "sleep 1000 # ", "-q"])
        .args(["sh", "-c", "echo begun; sleep 1000"])
        .arg(temporary);
    let running = run.spawn();
    assert!(running.shows("begun"), "{}", running.wait());
    Some(running)
}

#[test]
fn the_exit_status_is_the_commands() {
    let temporary = tempfile::tempdir().unwrap();
    for (command, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 125", 125),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let outcome = lab.args(["-q", "--", "sh", "-c", command]).run();
        assert!(outcome.expect_code(code).err().is_empty(), "{command}");
    }
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_command_that_cannot_be_run_is_named() {
    let temporary = tempfile::tempdir().unwrap();
    for (command, code, why) in [
        ("no-such-command", 127, "no such program on the PATH"),
        ("/etc/passwd", 126, "permission denied"),
    ] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let outcome = lab.arg(command).run().expect_code(code);
        let said = format!("longhaul lab: cannot start the command {command}: {why}\n");
        assert_eq!(outcome.err(), said, "{outcome}");
    }
}

#[test]
fn what_cannot_be_is_one_sentence() {
    let temporary = tempfile::tempdir().unwrap();
    for (options, code, sentence) in [
        (&["--path", "nowhere"][..], 2, "transatlantic"),
        (&["--rate", "0bit"], 2, "--rate"),
        (&["--loss", "100%"], 2, "--loss"),
        (&["--sshd-option", "MaxSessions=1"], 2, "needs --sshd"),
        (&["--far-port", "1"], 2, "needs --far"),
        (&["--cc", "nonesuch"], 125, "cubic"),
        (&["--allow-cc", "nonesuch"], 125, "cubic"),
        (&["--sshd", "--sshd-option", "Bogus=1"], 125, "Bogus"),
        (
            &["--far", "exit 3"],
            125,
            "the far command exited with status 3",
        ),
    ] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let outcome = lab.args(options).args(["-q", "true"]).run();
        let first = outcome.err().lines().next().unwrap_or_default().to_owned();
        assert!(first.contains(sentence), "{options:?}: {outcome}");
        outcome.expect_code(code);
    }
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_far_command_that_dies_is_told_and_the_command_goes_on() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let (far, near) = ends_meanwhile(temporary.path(), 3, 4);
    let outcome = lab
        .args(["-q", "--far", &far, "--", "sh", "-c", &near])
        .run()
        .expect_code(4);
    outcome.expect_err(&["the far command exited with status 3 while the command ran"]);
}

/// The far command ends by itself, as `iperf3 -s -1` does after its client has left.
#[test]
fn a_far_command_that_has_done_its_work_is_not_told() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let (far, near) = ends_meanwhile(temporary.path(), 0, 0);
    let outcome = lab
        .args(["-q", "--far", &far, "--", "sh", "-c", &near])
        .run()
        .expect_code(0);
    assert!(outcome.err().is_empty(), "{outcome}");
}

/// Runs a far command that ends while the near command runs, and returns the output for both exit
/// codes. Neither ends before the other has started, independent of the speed of the lab.
fn ends_meanwhile(temporary: &Path, far: i32, near: i32) -> (String, String) {
    let begun = temporary.join("begun");
    let begun = begun.display();
    let far = format!("while [ ! -e {begun} ]; do sleep 0.05; done; exit {far}");
    let near = format!("touch {begun}; sleep 2; rm {begun}; exit {near}");
    (far, near)
}

#[test]
fn the_closing_figures_begin_a_line_of_their_own() {
    let temporary = tempfile::tempdir().unwrap();
    for (command, expected) in [
        (
            "stty cols 20; printf abc",
            format!("abc{:20}\rthe path over", ""),
        ),
        ("stty cols 0; printf abc", "abc\r\nthe path over".to_owned()),
    ] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let outcome = lab.args(["--", "sh", "-c", command]).in_terminal().run();
        assert!(outcome.out().contains(&expected), "{outcome}");
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let outcome = lab.args(["--", "printf", "abc"]).run().expect_code(0);
    assert!(outcome.err().starts_with("the path over"), "{outcome}");
}

#[test]
fn a_killed_parent_takes_everything_with_it() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(parent) = running(temporary.path()) else {
        return;
    };
    // The parent, the first process inside, the emulator, and sshd.
    assert!(of_lab(temporary.path()).len() >= 3);
    kill(parent.pid());
    // Its output ends with it, while the kernel is still ending the others.
    let all = || processes(&temporary.path().display().to_string());
    testkit::wait::up_to(Duration::from_secs(20), || all().is_empty());
    assert!(all().is_empty(), "{:?} still run", of_lab(temporary.path()));
    drop(parent.wait());
    assert!(
        !is_empty(temporary.path()),
        "the folder is the next lab's to remove"
    );
    let next = lab(temporary.path()).expect("there was one");
    next.args(["-q", "true"]).run().expect_code(0);
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_killed_emulator_ends_the_command_and_is_told() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(parent) = running(temporary.path()) else {
        return;
    };
    kill(one_of(temporary.path(), "lab-emulator").expect("the emulator"));
    let outcome = parent.wait().expect_code(125);
    outcome.expect_err(&["the lab's emulator was killed by signal 9"]);
    assert!(processes(&temporary.path().display().to_string()).is_empty());
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_killed_first_process_takes_everything_with_it() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(parent) = running(temporary.path()) else {
        return;
    };
    kill(one_of(temporary.path(), "lab-world").expect("the first process"));
    let outcome = parent.wait().expect_code(125);
    outcome.expect_err(&["the lab and all its processes were killed by signal 9"]);
    assert!(processes(&temporary.path().display().to_string()).is_empty());
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_terminated_lab_terminates_its_command() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(parent) = running(temporary.path()) else {
        return;
    };
    parent.terminate();
    parent.wait().expect_code(143);
    assert!(is_empty(temporary.path()));
}

#[test]
fn ctrl_c_is_the_commands() {
    let temporary = tempfile::tempdir().unwrap();
    if lab(temporary.path()).is_none() {
        return;
    }
    let script = "trap 'echo caught; exit 5' INT; echo begun; while :; do sleep 0.1; done";
    // A shell that survives reports the exit code, which `script` would take for that of its own
    // shell.
    let mut running = Run::new("sh")
        .args(["-c", "trap : INT; \"$@\"; echo status $?", "sh"])
        .arg(longhaul())
        .args(["lab", "-q", "--", "sh", "-c", script])
        .env("TMPDIR", temporary.path())
        .in_terminal()
        .spawn();
    assert!(running.shows("begun"), "{}", running.wait());
    running.type_in("\x03");
    assert!(running.shows("status 5"), "{}", running.wait());
    let outcome = running.wait();
    assert!(outcome.out().contains("caught"), "{outcome}");
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_shell_has_the_terminal() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let Some(bash) = testkit::missing::find_program("bash") else {
        testkit::missing::skip("bash", "Debian: bash");
        return;
    };
    let lab = lab.args(["-q", "--shell"]).in_terminal();
    // `script` also runs the program that SHELL names. Without a ~/.bashrc, which may be slow.
    let lab = lab.env("SHELL", bash).env("HOME", temporary.path());
    let mut running = lab.spawn();
    running.type_in("echo in $LONGHAUL_LAB\n");
    assert!(running.shows("in near"), "{}", running.wait());
    // Ctrl-C ends the command and not the shell. The command owns the terminal before it prints;
    // the quotes distinguish its output from the echo of the typed text.
    running.type_in(
        "sh -c 'trap \"echo wo\"\"ken; exit\" INT; echo as\"\"leep; while :; do sleep 0.1; done'\n",
    );
    assert!(running.shows("asleep"), "{}", running.wait());
    running.type_in("\x03");
    assert!(running.shows("woken"), "{}", running.wait());
    running.type_in("exit 9\n");
    running.wait().expect_code(9);
}
