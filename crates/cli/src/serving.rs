//! `longhaul serve`: one client over standard input and output, or an SSH server.

mod host_keys;

use std::env;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::path;
use std::process::ExitCode;

use serve::Export;
use serve::listen::{
    AccountProcess, Entrance, Log, Role, Rules, Served, Server, Settings, preauth, stopping,
};
use tracing::{Level, Metadata, info, warn};
use tracing_subscriber::fmt::MakeWriter;

use crate::exit::Exit;
use crate::flags::low::ServeArgs;
use crate::{failed, signals};

/// Serves until the client goes, or until a signal ends the server.
pub(crate) fn run(args: &ServeArgs) -> Exit {
    log(args);
    let served = match &args.listen {
        Some(address) => listen(args, address),
        None => export(args).and_then(|export| stdio(&export)),
    };
    match served {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

/// A process that the server has started for one connection.
pub(crate) fn inside(role: Role) -> ExitCode {
    match role {
        Role::Preauth => preauth(),
        Role::Account => account().unwrap_or(ExitCode::FAILURE),
    }
}

/// Its lines go to the server, which writes them down.
fn account() -> io::Result<ExitCode> {
    let process = AccountProcess::inherited()?;
    let log = Lines(process.log());
    tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_target(false)
        .with_ansi(false)
        .with_level(false)
        .without_time()
        .with_writer(log)
        .init();
    let (running, stopping) = stopping()?;
    signals::watch(move || drop(running), || {})?;
    Ok(process.run(&stopping))
}

/// Makes each line a message.
struct Lines(Log);

struct Line(Log, u8);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(self.0.clone(), 1)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        let level = match *meta.level() {
            Level::ERROR | Level::WARN => 0,
            Level::INFO => 1,
            Level::DEBUG => 2,
            Level::TRACE => 3,
        };
        Line(self.0.clone(), level)
    }
}

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.tell(self.1, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn served(args: &ServeArgs) -> Result<Served, String> {
    let root = args.root.as_ref().map(path::absolute).transpose();
    Ok(Served {
        root: root.map_err(|e| e.to_string())?,
        access: args.access,
    })
}

fn export(args: &ServeArgs) -> Result<Export, String> {
    served(args)?.open().map_err(|e| e.to_string())
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

fn listen(args: &ServeArgs, address: &str) -> Result<(), String> {
    // It is opened again for each login; what is wrong already is told now.
    drop(export(args)?);
    let keys = args.authorized_keys.as_ref().map(path::absolute);
    let keys = keys.transpose().map_err(|e| e.to_string())?;
    let settings = Settings {
        served: served(args)?,
        entrance: Entrance::open(keys, Rules::default()).map_err(|e| e.to_string())?,
        host_keys: host_keys::load(&args.host_keys)?,
    };
    for key in &settings.host_keys {
        let public = key.public();
        info!("host key {} {}", public.key_type(), public.fingerprint());
    }
    // Where a session of sshd begins, and a path that is not absolute. Home may be missing.
    if let Some(home) = settings.entrance.home()
        && let Err(e) = env::set_current_dir(home)
    {
        warn!("{}: {e}", home.display());
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
