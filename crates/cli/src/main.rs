//! The command line of longhaul: `longhaul cp` and the other subcommands.
//!
//! Flags are parsed without looking anything up (`flags::low`), then resolved against the
//! environment (`flags::high`). The copy runs (`cp`) and reports what happens (`output`). One place
//! turns the result into an exit code (`exit`).

mod benching;
mod bootstrap;
mod client_config;
mod command_error;
mod config_file;
mod congestion;
mod connect;
mod cp;
mod diagnosing;
mod dialing;
mod exit;
mod flags;
mod host_to_host;
mod http;
#[cfg(target_os = "linux")]
mod lab;
mod output;
mod relaying;
mod running;
mod selecting;
mod serving;
mod setting_error;
mod several;
mod sharding;
mod signals;
mod ssh_config;
mod syncing;
mod systemd;
mod wrapping;

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use command_error::CommandError;
use exit::Exit;
use flags::command::named_paths;
use flags::docs;
use flags::high::{Environment, ResolvedCopyArgs};
use flags::low::{self, ParsedCommandLine, UsageError};

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    #[cfg(target_os = "linux")]
    if let Some(code) = lab::inside(&words) {
        return code;
    }
    if let Some(role) = serve::sshd::ProcessRole::of(&words) {
        return serving::inside(role);
    }
    if let [_, word] = words.as_slice()
        && word == "receive"
    {
        return host_to_host::receive().into();
    }
    let world = Environment::look();
    match low::parse(words.iter().cloned(), world.help_colors()) {
        Ok(command) => run(command, &words, &world),
        Err(error) => usage(&error).into(),
    }
}

/// Runs a command to its end.
fn run(command: ParsedCommandLine, words: &[OsString], world: &Environment) -> ExitCode {
    let exit = match command {
        ParsedCommandLine::Copy(args) if args.plan.is_some() => sharding::copy(*args, world),
        ParsedCommandLine::Plan(args) => sharding::run(*args, world),
        ParsedCommandLine::Copy(args) => {
            let args = several::resolve(*args, world).and_then(congestion::check);
            or_usage(args.and_then(selecting::select).map(cp::run))
        }
        ParsedCommandLine::Sync(args) => {
            let copy =
                ResolvedCopyArgs::resolve(args.copy.clone(), world).and_then(congestion::check);
            let args = copy.and_then(|copy| syncing::ResolvedSyncArgs::new(*args, copy));
            or_usage(args.map(syncing::run))
        }
        ParsedCommandLine::Bootstrap { args, remove } => {
            let args = ResolvedCopyArgs::resolve(*args, world);
            or_usage(args.map(|args| bootstrap::run(args, remove)))
        }
        ParsedCommandLine::Lab(args) if args.list => show(named_paths().as_bytes()),
        #[cfg(target_os = "linux")]
        ParsedCommandLine::Lab(args) => match lab::run(*args, &words[2..]) {
            Ok(code) => return code,
            Err(error) => usage(&error),
        },
        #[cfg(not(target_os = "linux"))]
        ParsedCommandLine::Lab(_) => failed("longhaul lab needs Linux"),
        ParsedCommandLine::Serve(args) => serving::run(&args),
        ParsedCommandLine::Dial(args) => dialing::run(&args),
        ParsedCommandLine::SshConfig(args) => ssh_config::run(&args),
        ParsedCommandLine::Wrap(args) => match wrapping::run(&args) {
            Ok(code) => return code,
            Err(error) => usage(&error),
        },
        ParsedCommandLine::Relay(args) => {
            or_usage(relaying::run(&args).map_err(|why| low::relay_usage(&why)))
        }
        ParsedCommandLine::Bench(args) => benching::run(*args, world),
        // Connections that the server did not admit may still be under way in threads.
        ParsedCommandLine::Doctor(args) => sys::exit_at_once(diagnosing::run(*args, world).code()),
        ParsedCommandLine::Completions(shell) => show(&docs::completions(shell)),
        ParsedCommandLine::Man { command, write } => man(command.as_deref(), write.as_deref()),
        ParsedCommandLine::Show(text) => show(text.as_bytes()),
    };
    exit.into()
}

/// Shows a man page, or writes all documents below a directory.
fn man(command: Option<&str>, write: Option<&Path>) -> Exit {
    if let Some(dir) = write {
        return match docs::write_documents(dir) {
            Ok(()) => Exit::Done,
            Err(error) => failed(format!("{}: {error}", dir.display())),
        };
    }
    match docs::man(command) {
        Some(page) => show(&page),
        None => usage(&UsageError(format!(
            "error: no such man page: {}: name a subcommand; see longhaul --help\n",
            wire::escape::name(command.unwrap_or_default().as_bytes())
        ))),
    }
}

/// Returns the exit code of a command, after reporting a usage error.
fn or_usage(result: Result<Exit, UsageError>) -> Exit {
    result.unwrap_or_else(|error| usage(&error))
}

/// Writes to standard output. A closed pipe is not an error.
///
/// # Errors
/// One sentence about standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Writes a command's result to standard output; reports a failure.
pub(crate) fn show(bytes: &[u8]) -> Exit {
    match print(bytes) {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

pub(crate) fn usage(error: &UsageError) -> Exit {
    let text = output::console::without_numbers(&error.0);
    drop(io::stderr().write_all(text.as_bytes()));
    Exit::Usage
}

pub(crate) fn failed(what: impl Display) -> Exit {
    let what = output::console::for_user(&what.to_string());
    drop(writeln!(io::stderr(), "error: {what}"));
    Exit::SomeFailed
}

impl Environment {
    fn look() -> Self {
        let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        Self {
            is_root: rustix::process::geteuid().is_root(),
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
            no_color: set("NO_COLOR"),
            dumb: env::var_os("TERM").is_some_and(|term| term == "dumb"),
        }
    }
}
