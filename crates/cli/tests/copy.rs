//! Copies with the real program and a real sftp-server (`-D`), without a network: output, exit
//! codes and the effects of signals.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Time limit of a run; far longer than any takes on a busy machine.
const LONGEST: Duration = Duration::from_secs(30);

fn sftp_server() -> &'static str {
    let places = [
        "/usr/lib/openssh/sftp-server",
        "/usr/libexec/openssh/sftp-server",
    ];
    let found = places.into_iter().find(|path| Path::new(path).exists());
    found.expect("openssh's sftp-server is needed: install openssh-sftp-server")
}

fn longhaul(dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command
        .arg("cp")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Exit code and output of a finished run.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Waits for the end, up to [`LONGEST`].
fn end(mut child: Child) -> Ended {
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let out = thread::spawn(move || text(stdout.as_mut()));
    let err = thread::spawn(move || text(stderr.as_mut()));
    let Some(status) = testkit::wait::exit(&mut child, LONGEST) else {
        child.kill().expect("the child can be killed");
        panic!("longhaul did not end within {LONGEST:?}");
    };
    Ended {
        code: status.code(),
        stdout: out.join().expect("stdout is read"),
        stderr: err.join().expect("stderr is read"),
    }
}

fn text(from: Option<&mut impl Read>) -> String {
    let mut text = String::new();
    if let Some(from) = from {
        from.read_to_string(&mut text).expect("output is text");
    }
    text
}

fn run(dir: &TempDir, args: &[&str]) -> Ended {
    end(longhaul(dir, args).spawn().expect("longhaul starts"))
}

fn scratch() -> TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    fs::create_dir(dir.path().join("to")).expect("a folder in it");
    dir
}

fn to(dir: &TempDir, name: &str) -> String {
    format!("h:{}/to/{name}", dir.path().display())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the folder can be read");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn events(stdout: &str) -> Vec<Value> {
    let event = |line| serde_json::from_str(line).expect("every line is JSON");
    stdout.lines().map(event).collect()
}

#[test]
fn an_upload_says_how_it_went_and_nothing_more() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"some bytes").unwrap();
    let ended = run(&dir, &["-D", sftp_server(), "a", &to(&dir, "b")]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), ""),
        "{}",
        ended.stderr
    );
    assert_eq!(fs::read(dir.path().join("to/b")).unwrap(), b"some bytes");
    let line = ended.stderr.trim_end();
    assert!(line.starts_with("copied 1 file, 10 B in "), "{line}");
    assert!(
        line.ends_with(", written and renamed") && !line.contains('\n'),
        "{line}"
    );

    let quiet = run(&dir, &["-q", "-D", sftp_server(), "a", &to(&dir, "c")]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

#[test]
fn events_tell_the_run() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"some bytes").unwrap();
    let ended = run(
        &dir,
        &["--json", "--fsync", "-D", sftp_server(), "a", &to(&dir, "")],
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let events = events(&ended.stdout);
    let named = |name: &str| events.iter().find(|event| event["event"] == name).unwrap();
    assert_eq!(events[0]["event"], "start");
    assert_eq!(events[0]["sources"][0], "a");
    assert_eq!(named("file_done")["bytes"], 10);
    assert_eq!(named("file_done")["synced"], true);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["event"], &last["exit"]),
        (&"summary".into(), &0.into())
    );
    assert_eq!(
        (&last["outcome"], &last["files"]),
        (&"complete".into(), &1.into())
    );
}

#[test]
fn one_failed_file_does_not_stop_the_rest_and_is_named_at_the_end() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"a").unwrap();
    let ended = run(
        &dir,
        &["-D", sftp_server(), "no\u{1b}[2Jsuch", "a", &to(&dir, "")],
    );
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(names(&dir.path().join("to")), ["a"]);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("error: no\\x1b[2Jsuch: "), "{lines:?}");
    assert!(
        lines[1].ends_with("written and renamed, 1 failed: no\\x1b[2Jsuch"),
        "{lines:?}"
    );
}

#[test]
fn no_connection_is_exit_255() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"a").unwrap();
    for program in ["/bin/false", "/no/such/program"] {
        let ended = run(&dir, &["-S", program, "a", "h:"]);
        assert_eq!(ended.code, Some(255), "{program}: {}", ended.stderr);
        assert!(ended.stderr.contains("error: h: "), "{}", ended.stderr);
        assert!(!ended.stderr.contains("copied"), "{}", ended.stderr);
    }
}

/// A program for `-S` that neither connects nor prints.
fn silent(dir: &TempDir) -> String {
    let path = dir.path().join("silent");
    fs::write(&path, "#!/bin/sh\nexec sleep 60\n").expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable one");
    path.to_string_lossy().into_owned()
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("the process is there");
}

/// Starts a copy and waits until standard output has an event with this name.
fn start_until(dir: &TempDir, args: &[&str], name: &str) -> Child {
    let mut child = longhaul(dir, args).spawn().expect("longhaul starts");
    let stdout = child.stdout.take().expect("stdout is a pipe");
    let wanted = format!("\"event\":\"{name}\"");
    let (found, seen) = mpsc::channel();
    thread::spawn(move || {
        // Keep reading, since a closed pipe would end the run.
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.contains(&wanted) {
                let _ = found.send(());
            }
        }
    });
    if seen.recv_timeout(LONGEST).is_err() {
        child.kill().expect("the child can be killed");
        panic!("there was no event {name}");
    }
    child
}

#[test]
fn a_signal_before_there_is_an_answer_ends_the_run() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"a").unwrap();
    for which in [Signal::INT, Signal::TERM, Signal::HUP] {
        let child = start_until(&dir, &["--json", "-S", &silent(&dir), "a", "h:"], "start");
        signal(&child, which);
        assert_eq!(end(child).code, Some(130), "{which:?}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = scratch();
    fs::write(dir.path().join("a"), b"a").unwrap();
    let child = start_until(&dir, &["--json", "-S", &silent(&dir), "a", "h:"], "start");
    signal(&child, Signal::INT);
    // Two pending signals would be one. The run may have ended by then.
    let pending = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let sets = status.lines().filter_map(|line| {
            let set = line
                .strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(set.trim(), 16).ok()
        });
        sets.fold(0, |all, set| all | set) & (1 << (Signal::INT.as_raw() - 1)) != 0
    };
    testkit::wait::until(LONGEST, || !pending(), || "SIGINT stays pending".to_owned());
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .unwrap();
    let _ = kill_process(pid, Signal::INT);
    assert_eq!(end(child).code, Some(130));
}

/// Large enough for a copy at 8000 kbit/s to take a while, and too small for a journal.
const LARGE: usize = 14_000_000;

#[test]
fn an_interrupted_copy_leaves_neither_temporary_nor_target() {
    let dir = scratch();
    fs::write(dir.path().join("large"), vec![7; LARGE]).unwrap();
    let args = [
        "--json",
        "-l",
        "8000",
        "-D",
        sftp_server(),
        "large",
        &to(&dir, ""),
    ];
    let child = start_until(&dir, &args, "progress");
    assert_eq!(
        names(&dir.path().join("to")).len(),
        1,
        "a temporary while it runs"
    );
    signal(&child, Signal::INT);
    let ended = end(child);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert_eq!(names(&dir.path().join("to")), Vec::<String>::new());
}

#[test]
fn a_run_whose_events_nobody_reads_stops_quietly() {
    let dir = scratch();
    fs::write(dir.path().join("large"), vec![7; LARGE]).unwrap();
    let args = [
        "--json",
        "-l",
        "8000",
        "-D",
        sftp_server(),
        "large",
        &to(&dir, ""),
    ];
    let mut child = longhaul(&dir, &args).spawn().unwrap();
    drop(child.stdout.take());
    let ended = end(child);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(130), ""));
    assert_eq!(names(&dir.path().join("to")), Vec::<String>::new());
}

#[test]
fn a_log_gets_a_line_a_second_only_when_asked() {
    let dir = scratch();
    fs::write(dir.path().join("large"), vec![7; 3_000_000]).unwrap();
    let limited = ["-l", "8000", "-D", sftp_server(), "large", &to(&dir, "")];
    let asked = run(&dir, &[&["--progress"], &limited[..]].concat());
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    let lines: Vec<&str> = asked.stderr.lines().collect();
    assert!((2..=8).contains(&lines.len()), "{lines:?}");
    assert!(
        lines[0].contains(" of 3.0 MB  ") && lines[0].ends_with("large"),
        "{lines:?}"
    );
    let plain = run(&dir, &limited);
    let closing = ["copied 1 file", "limited by the rate of --limit"];
    let lines: Vec<&str> = plain.stderr.lines().collect();
    assert_eq!(lines.len(), closing.len(), "{lines:?}");
    for (line, begins) in lines.iter().zip(closing) {
        assert!(line.starts_with(begins), "{lines:?}");
    }
}

/// Runs a copy on a terminal made by `script` of util-linux, and returns the terminal's output.
fn on_a_terminal(dir: &TempDir, args: &str) -> Ended {
    let mut script = Command::new("script");
    let longhaul = env!("CARGO_BIN_EXE_longhaul");
    script
        .args([
            "-qec",
            &format!("{longhaul} cp -D {} {args}", sftp_server()),
            "/dev/null",
        ])
        .current_dir(dir)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    end(script.spawn().expect("script(1) of util-linux starts"))
}

#[test]
fn on_a_terminal_there_is_a_bar_while_it_lasts() {
    let dir = scratch();
    fs::write(dir.path().join("large"), vec![7; 3_000_000]).unwrap();
    let ended = on_a_terminal(&dir, &format!("-v -l 12000 large {}", to(&dir, "")));
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    for part in [" of 3.0 MB  ", "large", "===", " left"] {
        assert!(
            ended.stdout.contains(part),
            "{part} is missing: {:?}",
            ended.stdout
        );
    }
    // The bar is removed before the closing line, which a slow machine gives a second part.
    let text = ended.stdout.trim_end();
    let closing = text.rfind("copied 1 file, 3.0 MB in ");
    let closing = closing.unwrap_or_else(|| panic!("{text:?}"));
    let line = text[..closing].rfind(['\n', '\r']).map_or(0, |at| at + 1);
    assert!(!text[line..].contains("==="), "{text:?}");

    fs::write(dir.path().join("small"), b"x").unwrap();
    let short = on_a_terminal(&dir, &format!("small {}", to(&dir, "")));
    assert!(!short.stdout.contains("left"), "{:?}", short.stdout);
    let error = on_a_terminal(&dir, &format!("none {}", to(&dir, "")));
    assert_eq!(error.code, Some(1));
    assert!(
        error.stdout.contains("\u{1b}[1;31merror:\u{1b}[0m none: "),
        "{:?}",
        error.stdout
    );
    let plain = on_a_terminal(&dir, &format!("--color never none {}", to(&dir, "")));
    assert!(
        plain.stdout.starts_with("error: none: "),
        "{:?}",
        plain.stdout
    );
}
