//! `longhaul lab`: builds the lab from the command line and turns its end into an exit code.

mod estimate;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use lab::{FAILED, LabError, LabSpec, NetworkPathSpec};

use crate::flags::low::{self, LabArgs, ParsedCommandLine, UsageError, lab_usage};

/// Runs the lab. `words` is the command line after `longhaul lab`.
///
/// # Errors
/// There is no such path.
pub(crate) fn run(args: LabArgs, words: &[OsString]) -> Result<ExitCode, UsageError> {
    let estimated = args.estimate;
    let lab = lab(args)?;
    if let Some(bytes) = estimated {
        let _ = io::stdout().write_all(estimate::table(&lab.path, bytes).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(code(lab::run(&lab, words)))
}

/// Performs the internal part of a lab that its helper processes are started for, if this is one.
pub(crate) fn inside(words: &[OsString]) -> Option<ExitCode> {
    if let [_, part, file] = words
        && part == lab::KEY
    {
        let made = serve::sshd::generate_pair(Path::new(file));
        return Some(match made {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        });
    }
    let (part, scratch, words) = match words {
        [_, part, scratch, words @ ..] if part == lab::WORLD || part == lab::EMULATOR => {
            (part, Path::new(scratch), words)
        }
        _ => return None,
    };
    let done = again(words).and_then(|lab| {
        if part == lab::WORLD {
            lab::inside(&lab, scratch, words)
        } else {
            lab::emulate(&lab, scratch).map(|()| 0)
        }
    });
    Some(code(done))
}

/// Rebuilds the lab from the words that the parent process parsed.
fn again(words: &[OsString]) -> Result<LabSpec, LabError> {
    let before = ["longhaul".into(), "lab".into()];
    let all = before.into_iter().chain(words.iter().cloned());
    match low::parse(all, clap::ColorChoice::Never) {
        Ok(ParsedCommandLine::Lab(args)) => {
            lab(*args).map_err(|error| LabError::new(error.0.trim_end()))
        }
        _ => Err(LabError::new(
            "lab-run: only longhaul lab can start this command: run longhaul lab",
        )),
    }
}

fn lab(args: LabArgs) -> Result<LabSpec, UsageError> {
    let options = args
        .options
        .iter()
        .map(|(name, value)| (*name, value.as_str()));
    let path = NetworkPathSpec::build(args.path.as_deref(), options).map_err(lab_usage)?;
    let command = if args.shell {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        vec![shell.unwrap_or_else(|| "/bin/sh".into())]
    } else {
        args.command
    };
    Ok(LabSpec {
        path,
        sshd: args.sshd.then_some(args.sshd_options),
        far: args.far,
        far_port: args.far_port,
        far_start: args.far_start,
        far_cpu: args.far_cpu.map(|percent| f64::from(percent) / 100.0),
        far_disk: args.far_disk,
        allow_cc: args.allow_cc,
        command,
        quiet: args.quiet,
        figures: args.figures,
    })
}

fn code(done: Result<u8, LabError>) -> ExitCode {
    let code = done.unwrap_or_else(|error| {
        let error = crate::output::console::for_user(&error.to_string());
        let _ = writeln!(io::stderr(), "longhaul lab: {error}");
        FAILED
    });
    code.into()
}
