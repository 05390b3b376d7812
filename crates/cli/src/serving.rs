//! `longhaul serve`: one client over standard input and output, or an SSH server.

pub(crate) mod address;
mod bounds;
mod config;
mod host_keys;
mod merged;
pub(crate) mod options;
mod paths;
mod validate;

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;

use serve::ExportedTree;
use serve::sshd::{
    AccountLogSender, ForkServer, LiveSettings, ProcessRole, ServerSettings,
    SingleCopyServerSettings, SshServer, hide_memory, preauth, stopping,
};
use ssh::transport::DisabledProtection;
use sys::ListenAddressKind;
use tracing::{Level, Metadata, info, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use transfer::disk::os_words;

use self::address::{ipv6_loopback, resolve};
use self::merged::MergedServeSettings;
use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::flags::low::ServeArgs;
use crate::http::{self, HttpResponse};
use crate::{config_file, failed, signals, systemd};

/// Serves until the client disconnects, or until a signal ends the server.
pub(crate) fn run(args: &ServeArgs) -> Exit {
    let args = &match args.absolute() {
        Ok(args) => args,
        Err(e) => return failed(format!("cannot find the current directory: {e}")),
    };
    if let Some(file) = &args.check {
        return config_file::checked(config::read(file, args));
    }
    if let Some(why) = args.sum.as_deref().and_then(is_another_program) {
        return failed(&why);
    }
    log(args);
    let caught = signals::too_long_is_an_error()
        .map_err(|e| CommandError::from(format!("cannot handle SIGXFSZ (file size limit): {e}")));
    let served = caught.and_then(|()| match (args.stdio, args.once) {
        (true, _) => MergedServeSettings::of(args)
            .and_then(|settled| settled.export())
            .and_then(|e| stdio(&e, args.marker)),
        (false, true) => once(args),
        (false, false) => listen(args),
    });
    match served {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

/// Returns an error if the SHA-256 of this program's own file is not `wanted`.
fn is_another_program(wanted: &str) -> Option<String> {
    let file = env::current_exe().unwrap_or_else(|_| "longhaul".into());
    let file = transfer::escape::path(&file);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    match transfer::bootstrap::own_sum() {
        Ok(sum) if sum == wanted => None,
        Ok(_) => Some(format!(
            "the longhaul on {host} ({file}) is not the one that was sent there (its SHA-256 \
             differs): run longhaul bootstrap again on the machine that starts the copy"
        )),
        Err(e) => Some(format!(
            "cannot read the longhaul on {host} ({file}) to check its SHA-256: {}",
            os_words(&e)
        )),
    }
}

/// Runs a helper process that the server has started for one connection.
pub(crate) fn inside(role: ProcessRole) -> ExitCode {
    match role {
        ProcessRole::Preauth => preauth(),
        ProcessRole::ForkServer => account().unwrap_or(ExitCode::FAILURE),
    }
}

/// Runs the process of an account. Its log lines go to the server, which writes them.
fn account() -> io::Result<ExitCode> {
    let template = ForkServer::inherited()?;
    // A signal to the whole process group is meant for the server, which passes it on.
    signals::leave_to_others()?;
    signals::too_long_is_an_error()?;
    let log = AccountLogSender::default();
    tracing_subscriber::fmt()
        .with_max_level(ProcessRole::log_level())
        .with_target(false)
        .with_ansi(false)
        .with_level(false)
        .without_time()
        .with_writer(LogWriterFactory(log.clone()))
        .init();
    match template.run()? {
        Some(process) => Ok(process.run(&log)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Sends each log line as a message.
struct LogWriterFactory(AccountLogSender);

/// Writer of one log line, with its level as the number of `-v` flags that show it.
struct LogMessageWriter(AccountLogSender, u8);

impl<'a> MakeWriter<'a> for LogWriterFactory {
    type Writer = LogMessageWriter;

    fn make_writer(&'a self) -> LogMessageWriter {
        LogMessageWriter(self.0.clone(), 1)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LogMessageWriter {
        let level = match *meta.level() {
            Level::ERROR | Level::WARN => 0,
            Level::INFO => 1,
            Level::DEBUG => 2,
            Level::TRACE => 3,
        };
        LogMessageWriter(self.0.clone(), level)
    }
}

impl io::Write for LogMessageWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.tell(self.1, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves SFTP over standard streams. If a client of ours has asked for the marker, it is written
/// first, in the newest version that both ends speak.
fn stdio(export: &ExportedTree, marker: Option<u32>) -> Result<(), CommandError> {
    hide_memory()?;
    let streams = streams().map_err(|e| format!("cannot use standard input and output: {e}"));
    let (input, mut output) = streams?;
    if let Some(theirs) = marker {
        let told = serve::show_marker(&mut output, theirs, env!("CARGO_PKG_VERSION"));
        told.map_err(|e| format!("cannot write to standard output: {e}"))?;
    }
    Ok(serve::stdio(input, output, export)?)
}

/// Serves one direct copy. Its threads end with the process, which exits when this returns.
fn once(args: &ServeArgs) -> Result<(), CommandError> {
    let settled = MergedServeSettings::of(args)?;
    let once = SingleCopyServerSettings {
        served: settled.served(),
        ports: args.ports,
        connection: env::var("SSH_CONNECTION").ok(),
    };
    let (input, output) =
        streams().map_err(|e| format!("cannot use standard input and output: {e}"))?;
    Ok(once.serve(input, output)?)
}

/// Standard input and output as files, since the standard library's types buffer by line.
fn streams() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

fn listen(args: &ServeArgs) -> Result<(), CommandError> {
    let settled = MergedServeSettings::of(args)?;
    if args.renounced != DisabledProtection::Nothing {
        warn!(
            "--insecure-none-cipher: clients that request it are NOT ENCRYPTED after the login: \
             anyone on the path can read what they copy"
        );
    }
    let settings = ready(&settled)?;
    tell_at_the_start(&settled, &settings);
    // sshd starts sessions in the home folder too, and relative paths begin there. It may be
    // missing.
    if let Some(home) = settings.entrance.home()
        && let Err(e) = env::set_current_dir(home)
    {
        let why = os_words(&e);
        warn!(
            "cannot begin in the home directory {}: {why}",
            home.display()
        );
    }
    let (server, at) = bind(&settled, settings)?;
    let wrong = |e: io::Error| cannot_listen(&at, &e);
    let tell = |address| {
        let figures = server.metrics();
        let told = http::tell(address, move |path| {
            (path == "/metrics").then(|| HttpResponse::figures(figures()))
        });
        told.map_err(|e| {
            format!(
                "cannot serve metrics at the address of the option metrics: {}",
                address.listen_words(&e)
            )
        })
    };
    let telling = settled.metrics.as_ref().map(tell).transpose()?;
    let (running, stopping) = stopping().map_err(wrong)?;
    let (current, again) = (server.settings(), args.clone());
    // The second signal interrupts the remaining transfers.
    signals::watch_and_reload(
        move || {
            systemd::notify("STOPPING=1");
            // Frees the address of the metrics for a successor with the same configuration.
            if let Some(telling) = telling {
                telling.stop();
            }
            drop(running);
        },
        || {},
        move || reload(&again, &current),
    )
    .map_err(wrong)?;
    let told = writeln!(
        io::stdout(),
        "listening on {}",
        server.address().map_err(wrong)?
    );
    told.map_err(|e| format!("cannot write to standard output: {e}"))?;
    systemd::notify("READY=1");
    Ok(server.run(&stopping).map_err(wrong)?)
}

/// Creates the server on systemd's socket or the address of the settings, with what to call that place
/// in messages.
fn bind(
    settled: &MergedServeSettings,
    settings: ServerSettings,
) -> Result<(SshServer, String), CommandError> {
    let handed_on =
        systemd::only_listener().map_err(|e| format!("cannot use the socket from systemd: {e}"))?;
    match (handed_on, &settled.listen) {
        (Some(listener), _) => {
            let wrong = |e: io::Error| format!("cannot use the socket from systemd: {e}");
            let server = SshServer::with_listener(listener, settings).map_err(wrong)?;
            Ok((server, "the socket from systemd".to_owned()))
        }
        (None, Some(address)) => {
            let wrong = |e: io::Error| cannot_listen(address, &e);
            let addresses = resolve(address).map_err(wrong)?;
            let mut server = SshServer::bind(&addresses, settings).map_err(wrong)?;
            let port = server.address().map_err(wrong)?.port();
            if let Some(beside) = ipv6_loopback(address, port) {
                server.listen_beside(beside).map_err(wrong)?;
            }
            Ok((server, address.clone()))
        }
        (None, None) => Err(
            "no address to listen on: use --listen, or the option listen in the configuration file"
                .into(),
        ),
    }
}

fn cannot_listen(at: &str, e: &io::Error) -> String {
    let why = sys::listen_words(ListenAddressKind::Port, e);
    format!("cannot listen on {at}: {why}")
}

/// Builds the server's settings, and checks that the files can be served.
fn ready(settled: &MergedServeSettings) -> Result<ServerSettings, CommandError> {
    // Each login opens the folder again; errors that exist already are reported now.
    if !settled.root_is_a_pattern() {
        drop(settled.export()?);
    }
    settled.settings()
}

/// Applies the current files to new connections, if they are valid.
fn reload(args: &ServeArgs, current: &LiveSettings) {
    systemd::reloading();
    let read = MergedServeSettings::of(args);
    match read.and_then(|settled| Ok((ready(&settled)?, settled))) {
        Ok((settings, settled)) => {
            tell_at_the_start(&settled, &settings);
            current.replace(settings);
            info!("configuration and host keys reloaded");
        }
        Err(why) => warn!("reload failed, the previous configuration stays in use: {why}"),
    }
    systemd::notify("READY=1");
}

/// Logs surprising settings, and the fingerprints of the host keys.
fn tell_at_the_start(settled: &MergedServeSettings, settings: &ServerSettings) {
    if let Some(file) = settings.entrance.listed()
        && let Err(e) = fs::metadata(&file)
    {
        warn!(
            "{}: cannot read the authorized keys ({}); no key is accepted until the file exists (it \
             is read at each login)",
            file.display(),
            os_words(&e)
        );
    }
    if let Some(name) = settings.entrance.name() {
        for option in settled.for_root_alone() {
            warn!(
                "{option} has no effect: this server admits only {name}, because it does not \
                 run as root"
            );
        }
    }
    if settings.to_old_clients.is_none() {
        warn!(
            "--old-clients: key exchanges without post-quantum protection are allowed: traffic that \
             is recorded today could be decrypted by a later quantum computer; remove the option \
             once all clients are upgraded"
        );
    }
    for key in &settings.host_keys {
        let public = key.public();
        info!("host key {} {}", public.key_type(), public.fingerprint());
    }
}

fn log(args: &ServeArgs) {
    let level = match (args.verbose, args.stdio || args.once) {
        (0, true) => return,
        // At the default level logins and logouts are logged, since no other program reports them.
        (0, false) => Level::INFO,
        (1, _) => Level::DEBUG,
        _ => Level::TRACE,
    };
    log_at(level.into());
}

/// Logs to standard error, one line for each event.
pub(crate) fn log_at(level: LevelFilter) {
    tracing_subscriber::fmt()
        // If standard error cannot be written, reporting that there would panic.
        .log_internal_errors(false)
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
}
