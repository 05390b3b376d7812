//! The command line of longhaul: `longhaul cp` and the other subcommands.
//!
//! Flags are parsed without looking anything up (`flags::low`), then resolved against the
//! environment (`flags::high`). The copy runs (`cp`) and reports what happens (`output`). One place
//! turns the result into an exit code (`exit`).

mod benching;
mod bootstrap;
mod client_config;
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
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

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
    let exit = match low::parse(words.iter().cloned(), world.help_colors()) {
        Ok(ParsedCommandLine::Copy(args)) if args.plan.is_some() => sharding::copy(*args, &world),
        Ok(ParsedCommandLine::Plan(args)) => sharding::run(*args, &world),
        Ok(ParsedCommandLine::Copy(args)) => {
            let args = several::resolve(*args, &world).and_then(congestion::check);
            match args.and_then(selecting::select) {
                Ok(args) => cp::run(args),
                Err(error) => usage(&error),
            }
        }
        Ok(ParsedCommandLine::Sync(args)) => {
            let copy =
                ResolvedCopyArgs::resolve(args.copy.clone(), &world).and_then(congestion::check);
            match copy.and_then(|copy| syncing::ResolvedSyncArgs::new(*args, copy)) {
                Ok(args) => syncing::run(args),
                Err(error) => usage(&error),
            }
        }
        Ok(ParsedCommandLine::Bootstrap { args, remove }) => {
            match ResolvedCopyArgs::resolve(*args, &world) {
                Ok(args) => bootstrap::run(args, remove),
                Err(error) => usage(&error),
            }
        }
        Ok(ParsedCommandLine::Lab(args)) if args.list => show(named_paths().as_bytes()),
        #[cfg(target_os = "linux")]
        Ok(ParsedCommandLine::Lab(args)) => match lab::run(*args, &words[2..]) {
            Ok(code) => return code,
            Err(error) => usage(&error),
        },
        #[cfg(not(target_os = "linux"))]
        Ok(ParsedCommandLine::Lab(_)) => failed("longhaul lab needs Linux"),
        Ok(ParsedCommandLine::Serve(args)) => serving::run(&args),
        Ok(ParsedCommandLine::Dial(args)) => dialing::run(&args),
        Ok(ParsedCommandLine::SshConfig(args)) => ssh_config::run(&args),
        Ok(ParsedCommandLine::Wrap(args)) => match wrapping::run(&args) {
            Ok(code) => return code,
            Err(error) => usage(&error),
        },
        Ok(ParsedCommandLine::Relay(args)) => match relaying::run(&args) {
            Ok(exit) => exit,
            Err(error) => usage(&error),
        },
        Ok(ParsedCommandLine::Bench(args)) => benching::run(*args, &world),
        // Connections that the server did not admit may still be under way in threads.
        Ok(ParsedCommandLine::Doctor(args)) => {
            sys::exit_at_once(diagnosing::run(*args, &world).code())
        }
        Ok(ParsedCommandLine::Completions(shell)) => show(&docs::completions(shell)),
        Ok(ParsedCommandLine::Man {
            command,
            write: None,
        }) => match docs::man(command.as_deref()) {
            Some(page) => show(&page),
            None => usage(&UsageError(
                "error: no such man page: name a subcommand; see longhaul --help\n".to_owned(),
            )),
        },
        Ok(ParsedCommandLine::Man {
            write: Some(dir), ..
        }) => match docs::write_documents(&dir) {
            Ok(()) => Exit::Done,
            Err(error) => failed(&format!("{}: {error}", dir.display())),
        },
        Ok(ParsedCommandLine::Show(text)) => show(text.as_bytes()),
        Err(error) => usage(&error),
    };
    exit.into()
}

/// Writes to standard output. A closed pipe is not an error.
///
/// # Errors
/// One sentence about standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
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
    drop(io::stderr().write_all(error.0.as_bytes()));
    Exit::Usage
}

pub(crate) fn failed(what: &str) -> Exit {
    let what = output::console::without_numbers(what);
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
