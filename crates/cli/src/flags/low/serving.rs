//! The arguments of `longhaul serve`.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;

use clap::ArgMatches;
use ssh::transport::DisabledProtection;

use super::{OPERANDS, UsageError, from_rows, usage_of};
use crate::flags::argument_error::ArgumentError;
use crate::flags::table::serve_rows;

/// Arguments of `longhaul serve`, before they are merged with the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeArgs {
    pub(crate) stdio: bool,
    pub(crate) once: bool,
    /// The ports that `--once` may listen on.
    pub(crate) ports: Option<(u16, u16)>,
    /// Protocol version of the client that requested the marker.
    pub(crate) marker: Option<u32>,
    /// Checksum that this program must have.
    pub(crate) sum: Option<String>,
    pub(crate) listen: Option<String>,
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// The configuration file to check.
    pub(crate) check: Option<PathBuf>,
    pub(crate) authorized_keys: Option<PathBuf>,
    pub(crate) host_keys: Vec<PathBuf>,
    pub(crate) old_clients: bool,
    pub(crate) root: Option<PathBuf>,
    pub(crate) access: Option<serve::Access>,
    pub(crate) renounced: DisabledProtection,
    pub(crate) no_window_poll: bool,
    /// Programs that clients may run.
    pub(crate) allow: Vec<String>,
    pub(crate) verbose: u8,
}

impl ServeArgs {
    /// Takes `--read-only` or `--write-only`.
    pub(crate) fn limit_access(&mut self, access: serve::Access) -> Result<(), ArgumentError> {
        match self.access.replace(access) {
            None => Ok(()),
            Some(other) if other == access => Ok(()),
            Some(_) => Err("--read-only and --write-only exclude each other".into()),
        }
    }
}

pub(super) fn serve_args(matches: &ArgMatches) -> Result<ServeArgs, UsageError> {
    let mut args: ServeArgs =
        from_rows(serve_rows(), matches).map_err(|what| serve_usage(&what))?;
    let words: Vec<_> = matches
        .get_many::<OsString>(OPERANDS)
        .unwrap_or_default()
        .collect();
    match words.as_slice() {
        [] => {}
        [check, file] if *check == "check" => args.check = Some(PathBuf::from(file)),
        [check] if *check == "check" => {
            return Err(serve_usage("check takes a file: longhaul serve check FILE"));
        }
        _ => {
            return Err(serve_usage(
                "unexpected operand: the only form with operands is longhaul serve check FILE",
            ));
        }
    }
    if args.check.is_some() {
        return Ok(args);
    }
    let of_listen = args.authorized_keys.is_some() || !args.host_keys.is_empty();
    let listens = args.listen.is_some() || args.config.is_some();
    if args.once {
        let wrong = match () {
            () if args.stdio || listens => {
                "--once cannot be combined with --stdio, --listen or --config"
            }
            () if args.renounced != DisabledProtection::Nothing => {
                "--insecure-none-cipher needs --listen: --once always encrypts"
            }
            () if !args.allow.is_empty() => "--allow needs --listen",
            () if args.old_clients => "--old-clients needs --listen",
            () if of_listen => {
                "--authorized-keys and --host-key need --listen: with --once, both ends create \
                 keys for the copy"
            }
            () => return Ok(args),
        };
        return Err(serve_usage(wrong));
    }
    if args.ports.is_some() {
        return Err(serve_usage("--port-range needs --once"));
    }
    match (args.stdio, listens) {
        (true, _) if args.config.is_some() => {
            Err(serve_usage("--stdio cannot be combined with --config"))
        }
        (true, true) => Err(serve_usage("--stdio cannot be combined with --listen")),
        (false, false) => Err(serve_usage(
            "no mode given: use --listen ADDR, --config FILE or --stdio",
        )),
        (false, true) if args.marker.is_some() => Err(serve_usage("--marker needs --stdio")),
        (true, false) if args.renounced != DisabledProtection::Nothing => Err(serve_usage(
            "--insecure-none-cipher needs --listen: with --stdio, sshd encrypts",
        )),
        (true, false) if !args.allow.is_empty() => Err(serve_usage(
            "--allow needs --listen: with --stdio, sshd runs programs",
        )),
        (true, false) if args.old_clients => Err(serve_usage(
            "--old-clients needs --listen: with --stdio, sshd chooses the algorithms",
        )),
        (true, false) if of_listen => Err(serve_usage(
            "--authorized-keys and --host-key need --listen: with --stdio, sshd handles keys",
        )),
        _ => Ok(args),
    }
}

/// A usage error of `longhaul serve`.
fn serve_usage(what: impl Display) -> UsageError {
    usage_of(
        "serve",
        "--stdio|--once|--listen ADDR|--config FILE [flags]",
        what,
    )
}
