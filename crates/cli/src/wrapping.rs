//! `longhaul wrap`: runs a program with the library before it.

mod library;
mod program;
mod report;
mod rules;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use transfer::escape;

use self::program::{Checked, Found};
use crate::flags::low::{Report, UsageError, WrapArgs, wrap_usage};
use crate::{congestion, show};

/// It is not run, for a reason of ours.
const FAILED: u8 = 125;
/// It is there, and cannot be run or not be wrapped.
const CANNOT: u8 = 126;
/// It is not there.
const NONE: u8 = 127;

/// Why the program is not run.
enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// What to say, and the exit code.
    Exit(u8, String),
}

/// Becomes the program, or stays to tell what its connections did.
///
/// # Errors
/// A rule makes no sense.
pub(crate) fn run(args: &WrapArgs) -> Result<ExitCode, UsageError> {
    match act(args) {
        Ok(code) => Ok(code),
        Err(Failure::Usage(why)) => Err(wrap_usage(&why)),
        Err(Failure::Exit(code, why)) => {
            drop(writeln!(io::stderr(), "longhaul wrap: {why}"));
            Ok(code.into())
        }
    }
}

fn act(args: &WrapArgs) -> Result<ExitCode, Failure> {
    if let Some(name) = &args.congestion {
        congestion::permitted(name).map_err(Failure::Usage)?;
    }
    let failed = |why| Failure::Exit(FAILED, why);
    let Some((name, words)) = args.command.split_first() else {
        let library = library::find().map_err(failed)?;
        let line = [library.as_os_str().as_encoded_bytes(), b"\n"].concat();
        return Ok(show(&line).into());
    };
    let found = program::find(name).map_err(|why| Failure::Exit(NONE, why))?;
    let checked = program::check(&found);
    if args.check {
        return Ok(tell(&found, &checked));
    }
    if let Checked::No(why) = &checked
        && !args.anyway
    {
        let path = escape::path(&found.path);
        let why = format!("{path} {why}; it was not run (--anyway runs it as it is)");
        return Err(Failure::Exit(CANNOT, why));
    }
    let rules = rules::build(args).map_err(Failure::Usage)?;
    let library = library::find().map_err(failed)?;
    let mut command = Command::new(&found.path);
    command.arg0(name).args(words);
    command.env("LD_PRELOAD", preload(&library));
    let file = match &args.report {
        Some(Report::Shown) => return shown(command, rules, &found),
        Some(Report::Written(file)) => {
            let file = std::path::absolute(file);
            Some(file.map_err(|e| failed(format!("--report: {e}")))?)
        }
        None => None,
    };
    command.env("LONGHAUL_WRAP", with(rules, file.as_deref()));
    Err(not_run(&found, &command.exec()))
}

fn tell(found: &Found, checked: &Checked) -> ExitCode {
    let path = escape::path(&found.path);
    let (text, code) = match checked {
        Checked::Yes(how) => (format!("{path} can be wrapped: {how}\n"), 0),
        Checked::No(why) => (format!("{path} {why}\n"), 1),
    };
    let _ = show(text.as_bytes());
    code.into()
}

fn not_run(found: &Found, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => NONE,
        _ => CANNOT,
    };
    Failure::Exit(code, format!("{}: {error}", escape::path(&found.path)))
}

/// What is there already, and ours behind it.
fn preload(library: &Path) -> OsString {
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let there = before.as_encoded_bytes();
    let mut names = there.split(|b| matches!(b, b':' | b' '));
    if before.is_empty() {
        return library.into();
    }
    if names.any(|name| name == library.as_os_str().as_encoded_bytes()) {
        return before;
    }
    let mut all = before.clone();
    all.push(":");
    all.push(library);
    all
}

/// The file is last among the rules, since its name may have commas.
fn with(mut rules: String, report: Option<&Path>) -> OsString {
    let Some(file) = report else {
        return rules.into();
    };
    if !rules.is_empty() {
        rules.push(',');
    }
    let mut all = OsString::from(rules + "report=");
    all.push(file);
    all
}

/// Runs it below this process, which tells at the end what was written.
fn shown(mut command: Command, rules: String, found: &Found) -> Result<ExitCode, Failure> {
    let failed = |why: String| Failure::Exit(FAILED, format!("--report: {why}"));
    let room = library::room().map_err(failed)?;
    let file = room.join(format!("report-{}", std::process::id()));
    // Of a process that had this number before.
    drop(fs::remove_file(&file));
    command.env("LONGHAUL_WRAP", with(rules, Some(&file)));
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    let mut signals = signals.map_err(|e| failed(e.to_string()))?;
    let mut child = command.spawn().map_err(|error| not_run(found, &error))?;
    let pid = Pid::from_child(&child);
    let passing = thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            // What a terminal sends, the program has had from there.
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            let _ = kill_process(pid, signal);
        }
    });
    passing.map_err(|e| failed(e.to_string()))?;
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    let lines = fs::read(&file).unwrap_or_default();
    drop(fs::remove_file(&file));
    drop(io::stderr().write_all(report::shown(&lines).as_bytes()));
    Ok(code(status).into())
}

fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status
        .code()
        .or(signal)
        .and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(FAILED)
}

/// For messages.
fn named(name: &OsStr) -> String {
    escape::os(name).to_string()
}
