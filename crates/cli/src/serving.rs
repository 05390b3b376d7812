//! `longhaul serve`: one client over standard input and output, or an SSH server.

mod host_keys;

use std::env;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::path;

use serve::Export;
use serve::listen::{Server, Settings, Users, stopping};
use ssh::transport::Renounced;
use tracing::{Level, info, warn};

use crate::exit::Exit;
use crate::flags::low::ServeArgs;
use crate::{failed, signals};

/// Serves until the client goes, or until a signal ends the server.
pub(crate) fn run(args: &ServeArgs) -> Exit {
    log(args);
    let served = export(args).and_then(|export| match &args.listen {
        Some(address) => listen(args, address, export),
        None => stdio(&export),
    });
    match served {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

fn export(args: &ServeArgs) -> Result<Export, String> {
    match &args.root {
        Some(root) => Export::beneath(root, args.access).map_err(|e| e.to_string()),
        None => Ok(Export::everything(args.access)),
    }
}

fn stdio(export: &Export) -> Result<(), String> {
    let streams = streams().map_err(|e| format!("standard input and output: {e}"));
    let (input, output) = streams?;
    serve::stdio(input, output, export).map_err(|e| e.to_string())
}

/// Standard input and output as they are: the library's look for the ends of lines.
fn streams() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

fn listen(args: &ServeArgs, address: &str, export: Export) -> Result<(), String> {
    let keys = args.authorized_keys.as_ref().map(path::absolute);
    let keys = keys.transpose().map_err(|e| e.to_string())?;
    let settings = Settings {
        export,
        users: Users::this(keys).map_err(|e| e.to_string())?,
        host_keys: host_keys::load(&args.host_keys)?,
        renounced: args.renounced,
        window_poll: !args.no_window_poll,
    };
    if args.renounced != Renounced::Nothing {
        warn!(
            "clients that were told the same will NOT BE ENCRYPTED once they have logged in: \
             whoever is on the path can read what they copy"
        );
    }
    for key in &settings.host_keys {
        let public = key.public();
        info!("host key {} {}", public.key_type(), public.fingerprint());
    }
    // Where a session of sshd begins, and a path that is not absolute. Home may be missing.
    if let Err(e) = env::set_current_dir(settings.users.home()) {
        warn!("{}: {e}", settings.users.home().display());
    }
    let wrong = |e: io::Error| format!("{address} cannot be listened at: {e}");
    let server = Server::bind(&resolve(address).map_err(wrong)?, settings).map_err(wrong)?;
    let (running, stopping) = stopping().map_err(wrong)?;
    // The second signal ends what is still being transferred.
    signals::watch(move || drop(running), || {}).map_err(wrong)?;
    let told = writeln!(
        io::stdout(),
        "listening at {}",
        server.address().map_err(wrong)?
    );
    told.map_err(|e| format!("standard output: {e}"))?;
    server.run(&stopping).map_err(wrong)
}

/// `HOST:PORT`, or `:PORT` for all addresses of this machine, IPv4 alone where there is no IPv6.
fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let named = match address.strip_prefix(':') {
        Some(port) => vec![format!("[::]:{port}"), format!("0.0.0.0:{port}")],
        None => vec![address.to_owned()],
    };
    let mut all = Vec::new();
    for name in named {
        all.extend(name.to_socket_addrs()?);
    }
    Ok(all)
}

fn log(args: &ServeArgs) {
    let level = match (args.verbose, &args.listen) {
        (0, None) => return,
        // Who comes and goes nobody else would say.
        (0, Some(_)) => Level::INFO,
        (1, _) => Level::DEBUG,
        _ => Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
}
