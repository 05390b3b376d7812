//! `longhaul bootstrap`: sends this program to a host, or removes it there.

use std::sync::Arc;

use transfer::bootstrap;
use transfer::copy::{HostId, SessionConnector as _};

use crate::connect::Hosts;
use crate::exit::Exit;
use crate::flags::high::ResolvedCopyArgs;
use crate::output::RunReporter;
use crate::output::console::Console;
use crate::{cp, failed};

/// Sends or removes the program.
pub(crate) fn run(args: ResolvedCopyArgs, remove: bool) -> Exit {
    let console = Arc::new(Console::new(args.colors));
    cp::log_to(&console, args.level);
    let cancel = cp::watch_signals(&console);
    let quiet = args.flags.quiet;
    let output = Arc::new(RunReporter::new(
        Arc::clone(&console),
        None,
        quiet,
        cancel.clone(),
    ));
    let hosts = Hosts::new(args.hosts, args.flags, output);
    let host = HostId(0);
    let done = match remove {
        true => bootstrap::remove(host, &hosts, &cancel).map(|removed| match removed {
            true => "longhaul removed",
            false => "longhaul is not installed",
        }),
        false => hosts.send_longhaul(host, &cancel).map(|sent| match sent {
            true => "longhaul installed",
            false => "longhaul is already installed",
        }),
    };
    match done {
        Ok(what) => {
            if remove {
                hosts.remember_longhaul(host, None);
            }
            if !quiet {
                console.line(&format!("{}: {what}", hosts.name(host)));
            }
            Exit::Done
        }
        Err(error) => {
            let exit = Exit::from(&error);
            failed(error.at(&hosts.name(host)));
            exit
        }
    }
}
