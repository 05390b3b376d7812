//! `longhaul wrap`: runs a program with the preloaded library.

mod carrier;
mod events;
mod go;
mod library;
mod program;
mod report;
mod rules;

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use sys::SocketTuning;
use transfer::disk::os_words;
use transfer::escape;

use self::carrier::CarrierServer;
use self::program::{ProgramFile, WrapCheck};
use crate::flags::argument_error::ArgumentError;
use crate::flags::low::{ReportDestination, UsageError, WrapArgs, wrap_usage};
use crate::{congestion, show};

/// Exit code if wrapping itself failed.
const FAILED: u8 = 125;
/// Exit code if the program exists but cannot be run or wrapped.
const CANNOT: u8 = 126;
/// Exit code if the program does not exist.
const NONE: u8 = 127;

/// The reason why the program was not run.
enum WrapFailure {
    /// Invalid command line.
    Usage(ArgumentError),
    /// Exit code and cause.
    Exit(u8, Box<dyn Error + Send + Sync>),
}

impl WrapFailure {
    /// Names `--report` in the message.
    fn of_report(self) -> Self {
        match self {
            Self::Exit(code, why) => Self::Exit(code, format!("--report: {why}").into()),
            usage @ Self::Usage(_) => usage,
        }
    }
}

/// Something that wrapping needs is missing.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for WrapFailure {
    fn from(cause: E) -> Self {
        Self::Exit(FAILED, cause.into())
    }
}

/// Replaces this process by the program, or runs it as a child to report and carry its connections.
///
/// # Errors
/// A rule is invalid.
pub(crate) fn run(args: &WrapArgs) -> Result<ExitCode, UsageError> {
    match act(args) {
        Ok(code) => Ok(code),
        Err(WrapFailure::Usage(why)) => Err(wrap_usage(&why)),
        Err(WrapFailure::Exit(code, why)) => {
            let why = crate::output::console::for_user(&why.to_string());
            drop(writeln!(io::stderr(), "longhaul wrap: {why}"));
            Ok(code.into())
        }
    }
}

fn act(args: &WrapArgs) -> Result<ExitCode, WrapFailure> {
    if let Some(name) = &args.congestion {
        congestion::permitted(name).map_err(|error| WrapFailure::Usage(error.into()))?;
    }
    let Some((name, words)) = args.command.split_first() else {
        let library = library::find()?;
        let line = [library.as_os_str().as_encoded_bytes(), b"\n"].concat();
        return Ok(show(&line).into());
    };
    let found = program::find(name)?;
    let checked = program::check(&found);
    if args.check {
        return Ok(tell(&found, &checked));
    }
    if let WrapCheck::Unsupported(why) = &checked
        && !args.anyway
    {
        let path = escape::path(&found.path);
        let why = format!("{path} {why}; it was not run (--anyway runs it unchanged)");
        return Err(WrapFailure::Exit(CANNOT, why.into()));
    }
    let library = library::find()?;
    let file = match &args.report {
        Some(ReportDestination::Shown) => Some(own_file()?),
        Some(ReportDestination::Written(file)) => Some(report_file(file)?),
        None => None,
    };
    let carrier = carrier(args, file.as_deref())?;
    let rule = carrier.as_ref().map(CarrierServer::rule);
    let rules = rules::build(args, rule.as_deref()).map_err(WrapFailure::Usage)?;
    let mut command = Command::new(&found.path);
    command.arg0(name).args(words);
    command.env("LD_PRELOAD", preload(&library));
    command.env("LONGHAUL_WRAP", with(rules, file.as_deref()));
    if program::wants_to_be_first(&found) {
        command.env("ASAN_OPTIONS", not_first());
    }
    let shown = file.filter(|_| matches!(args.report, Some(ReportDestination::Shown)));
    if carrier.is_none() && shown.is_none() {
        return Err(not_run(&found, &command.exec()));
    }
    let status = run_below(command, &found)?;
    // Processes that the program has left behind may still have connections.
    if let Some(carrier) = carrier {
        carrier.finish();
    }
    if let Some(file) = shown {
        let lines = fs::read(&file).unwrap_or_default();
        drop(fs::remove_file(&file));
        drop(io::stderr().write_all(report::shown(&lines).as_bytes()));
    }
    Ok(code(status).into())
}

/// `ASAN_OPTIONS` with the permission to load a library before the sanitizer appended.
fn not_first() -> OsString {
    let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

/// Absolute path of the user's report file, which the program appends to. It is opened once, since
/// nobody hears of an error later.
fn report_file(file: &Path) -> Result<PathBuf, WrapFailure> {
    let path = std::path::absolute(file).map_err(|e| format!("--report: {e}"))?;
    let mut options = fs::OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(&path);
    opened.map_err(|e| format!("--report: {}: {}", escape::path(&path), os_words(&e)))?;
    Ok(path)
}

/// Path of the temporary file of report lines, until they are printed.
fn own_file() -> Result<PathBuf, WrapFailure> {
    let room = library::library_folder().map_err(WrapFailure::of_report)?;
    let file = room.join(format!("report-{}", std::process::id()));
    // Left by an earlier process with this number.
    drop(fs::remove_file(&file));
    Ok(file)
}

/// Starts the carrier if a route or filter needs one.
fn carrier(args: &WrapArgs, report: Option<&Path>) -> Result<Option<CarrierServer>, WrapFailure> {
    if !rules::need_a_carrier(args) {
        return Ok(None);
    }
    let tuning = SocketTuning {
        dscp: args.dscp.value(),
        congestion: args.congestion.clone(),
        ..SocketTuning::default()
    };
    let carrier = CarrierServer::start(report.map(Path::to_owned), tuning, !args.no_tune);
    let carrier = carrier.map_err(|e| {
        format!(
            "cannot start the process that carries the connections: {e}; check the limits of this \
             machine (ulimit -n and -u)"
        )
    })?;
    Ok(Some(carrier))
}

fn tell(found: &ProgramFile, checked: &WrapCheck) -> ExitCode {
    let path = escape::path(&found.path);
    let (text, code) = match checked {
        WrapCheck::Supported(how) => (format!("{path} can be wrapped: {how}\n"), 0),
        WrapCheck::Unsupported(why) => (format!("{path} {why}\n"), 1),
    };
    let _ = show(text.as_bytes());
    code.into()
}

fn not_run(found: &ProgramFile, error: &io::Error) -> WrapFailure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => NONE,
        _ => CANNOT,
    };
    let why = format!("{}: {error}", escape::path(&found.path));
    WrapFailure::Exit(code, why.into())
}

/// `LD_PRELOAD` with our library appended.
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

/// Appends the report file to the rules. It is the last one, since its name may contain commas.
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

/// Runs the program as a child and passes signals on to it.
fn run_below(mut command: Command, found: &ProgramFile) -> Result<ExitStatus, WrapFailure> {
    let failed = |e: io::Error| format!("cannot wait for the program: {e}");
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(failed)?;
    let mut child = command.spawn().map_err(|error| not_run(found, &error))?;
    let pid = Pid::from_child(&child);
    let passing = thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            // The terminal sends SIGINT and SIGQUIT to the program as well.
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            let _ = kill_process(pid, signal);
        }
    });
    passing.map_err(failed)?;
    Ok(child.wait().map_err(failed)?)
}

fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status
        .code()
        .or(signal)
        .and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(FAILED)
}

/// Escapes a name for messages.
fn named(name: &OsStr) -> String {
    escape::os(name).to_string()
}
