//! Runs listening relays: start, reload, handover and end.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use relay::status::StatusMonitor;
use relay::{InheritedSockets, RelayControl, RelayEndpoint, RelayServer, RelaySettings};
use rustix::process::{Resource, getrlimit, setrlimit};
use sys::ListenAddressKind;
use tracing::{info, warn};

use super::handover;
use super::route::{self, RelayRoute};
use super::{config, page, prometheus, settle};
use crate::command_error::CommandError;
use crate::config_file::is_nearby;
use crate::flags::low::RelayArgs;
use crate::http::{self, HttpEndpoint, HttpResponse, HttpServer};
use crate::{signals, systemd};

/// Interval for checking keys and certificates.
const LOOK: Duration = Duration::from_secs(2);

/// Merged settings of command line and file.
pub(super) struct MergedRelaySettings {
    pub(super) relays: Vec<RelaySettings>,
    /// Routes over ssh.
    routes: Vec<RelayRoute>,
    /// Stamps of keys and certificates, taken before they were read.
    files: Vec<FileStamp>,
    status: Option<SocketAddr>,
    metrics: Option<HttpEndpoint>,
    handover: Option<PathBuf>,
    drain_timeout: Option<Duration>,
    threads: Option<usize>,
}

impl MergedRelaySettings {
    /// Reads the file, if there is one. Flags override it.
    ///
    /// # Errors
    /// Invalid settings, with their place.
    pub(super) fn of(args: &RelayArgs) -> Result<Self, CommandError> {
        let (all, relays) = match &args.config {
            Some(file) => config::read(file, settled)?,
            None => (RelayArgs::default(), vec![settled(args)?]),
        };
        let (mut all_relays, mut routes, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for ResolvedRelay {
            relay,
            route,
            files: of,
        } in relays
        {
            all_relays.push(relay);
            routes.extend(route);
            files.extend(of);
        }
        let metrics = args.metrics.clone().or(all.metrics);
        if metrics.as_deref().is_some_and(|at| !is_nearby(at)) {
            return Err(
                "metrics: needs a loopback address such as 127.0.0.1:9100, or the path of a \
                 UNIX socket"
                    .into(),
            );
        }
        let status = args.status.clone().or(all.status);
        let status = status.map(|text| {
            let address: Option<SocketAddr> = text.parse().ok();
            address.filter(|at| at.ip().is_loopback()).ok_or(
                "status: needs a loopback address such as 127.0.0.1:9090; from other machines \
                 use ssh -L",
            )
        });
        Ok(Self {
            relays: all_relays,
            routes,
            files,
            status: status.transpose()?,
            metrics: metrics.as_deref().map(HttpEndpoint::of),
            handover: args.handover.clone().or(all.handover),
            drain_timeout: args.drain_timeout.or(all.drain_timeout),
            threads: args.threads.or(all.threads),
        })
    }

    /// Sets up the routes over ssh that are not running yet.
    ///
    /// # Errors
    /// A route cannot be set up.
    pub(super) fn on_its_way(self, args: &RelayArgs) -> Result<Self, CommandError> {
        let mut new = false;
        for route in &self.routes {
            if route.way().is_none() {
                route.begin()?;
                new = true;
            }
        }
        // Resolve again: the new routes have targets now.
        if new { Self::of(args) } else { Ok(self) }
    }

    /// Returns true if the relay serves the single connection of standard input and output.
    pub(super) fn is_of_streams(&self) -> bool {
        let mut places = self.relays.iter().map(|relay| &relay.entrance.place);
        places.any(|place| *place == RelayEndpoint::Streams)
    }
}

/// One relay, its route over ssh if it has one, and the files that it depends on.
struct ResolvedRelay {
    relay: RelaySettings,
    route: Option<RelayRoute>,
    files: Vec<FileStamp>,
}

fn settled(args: &RelayArgs) -> Result<ResolvedRelay, CommandError> {
    let tls = &args.tls;
    let files = [&tls.cert, &tls.key, &tls.ca, &tls.client_ca];
    let files = files.into_iter().flatten().cloned().map(FileStamp::new);
    Ok(ResolvedRelay {
        files: files.collect(),
        route: RelayRoute::of(args)?,
        relay: settle(args)?,
    })
}

/// A file, with inode, size and time by which a change is noticed.
#[derive(PartialEq)]
struct FileStamp {
    path: PathBuf,
    stamp: Option<(u64, u64, Option<SystemTime>)>,
}

impl FileStamp {
    fn new(path: PathBuf) -> Self {
        let meta = fs::metadata(&path).ok();
        let stamp = meta.map(|meta| (meta.ino(), meta.len(), meta.modified().ok()));
        Self { path, stamp }
    }

    fn has_changed(&self) -> bool {
        Self::new(self.path.clone()) != *self
    }
}

/// Relays until a signal or a successor ends the process.
pub(super) fn listen(args: &RelayArgs, told: MergedRelaySettings) -> Result<(), CommandError> {
    let connections = told.relays.iter().map(|relay| {
        // A pair may use several connections for one of a client.
        let legs = if relay.facing.is_some() { 4 } else { 1 };
        relay.limits.connections.saturating_mul(legs)
    });
    raise_descriptors(connections.fold(0, usize::saturating_add));
    let wrong = |e: io::Error| format!("cannot serve status or metrics: {e}");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = told.threads.unwrap_or(cores);
    let (predecessor, handed_on) = inherited(told.handover.as_deref())?;
    let facing = told.relays.iter().filter_map(|relay| relay.facing.as_ref());
    let keys: BTreeSet<_> = facing
        .map(|facing| facing.fingerprint().to_owned())
        .collect();
    let relays = RelayServer::start(told.relays, threads, handed_on)?;
    for fingerprint in keys {
        info!("the key of this relay for --pair-allow of its peers is {fingerprint}");
    }
    let succeeds = predecessor.is_some();
    if let (Some(predecessor), Some(path)) = (predecessor, &told.handover) {
        predecessor.release(path)?;
    }
    let ending = ShutdownHandler {
        handle: relays.handle(),
        after: told.drain_timeout,
    };
    let figures = tell(&relays, told.status.as_ref(), told.metrics.as_ref());
    let figures = match figures {
        Ok(figures) => figures,
        // A successor does not exit because its status page or metrics cannot be served.
        Err(why) if succeeds => {
            warn!("{why}");
            Vec::new()
        }
        Err(why) => return Err(why),
    };
    let shown = told.status.is_some().then(|| figures.first());
    let shown = shown.flatten().and_then(HttpServer::address);
    let offer = |path: &PathBuf| {
        let ending = ending.clone();
        let offered = handover::offer(path, relays.handle(), move || {
            figures.into_iter().for_each(HttpServer::stop);
            ending.begin(true);
        });
        offered.map_err(|e| no_handover(path, &e))
    };
    let offered = told.handover.as_ref().map(offer).transpose()?;
    let reloading = Arc::new(ReloadHandler {
        args: args.clone(),
        handle: relays.handle(),
        files: Mutex::new(told.files),
    });
    reloading.watch().map_err(wrong)?;
    let moved = Arc::downgrade(&reloading);
    route::when_changed(move || {
        if let Some(reloading) = moved.upgrade() {
            reloading.reload();
        }
    });
    signals::watch_and_reload(
        move || ending.begin(false),
        || {},
        move || reloading.reload(),
    )
    .map_err(wrong)?;
    announce(&relays, shown).map_err(|e| format!("cannot write to standard output: {e}"))?;
    systemd::notify("READY=1");
    relays.wait();
    if let (Some(path), Some(offered)) = (told.handover, offered)
        && !offered.was_taken()
    {
        // Another process may have removed it.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn no_handover(path: &Path, e: &io::Error) -> String {
    format!(
        "cannot create the handover socket {} (--handover): {}",
        path.display(),
        sys::listen_words(ListenAddressKind::Path, e)
    )
}

/// Takes the sockets of the running relay that waits at `handover`, or else those of systemd.
fn inherited(
    handover: Option<&Path>,
) -> Result<(Option<handover::PredecessorRelay>, InheritedSockets), CommandError> {
    let predecessor = handover.map(handover::meet).transpose()?;
    if let Some((predecessor, sockets)) = predecessor.flatten() {
        let sockets = InheritedSockets::ByPredecessor(sockets);
        return Ok((Some(predecessor), sockets));
    }
    let wrong = |e: io::Error| format!("cannot use the sockets from systemd: {e}");
    let sockets = systemd::listeners().map_err(wrong)?;
    Ok((None, InheritedSockets::ByStarter(sockets)))
}

/// Prints the addresses of the relays and of the status page.
fn announce(relays: &RelayServer, status: Option<SocketAddr>) -> io::Result<()> {
    let listening = relays.listening();
    let listening = listening.iter().map(|at| format!("listening on {at}\n"));
    let status = status.map(|at| format!("status at http://{at}/\n"));
    let lines: String = listening.chain(status).collect();
    io::stdout().lock().write_all(lines.as_bytes())
}

/// Raises the limit of open files: a connection needs two descriptors, and pipes while it is busy.
fn raise_descriptors(connections: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = (connections as u64).saturating_mul(2).saturating_add(512);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        if let Err(e) = setrlimit(Resource::Nofile, limit) {
            warn!("cannot raise the limit of open files: {e}");
        }
    }
}

/// Starts the HTTP servers of the status page and of the metrics; the page comes first.
fn tell(
    relays: &RelayServer,
    status: Option<&SocketAddr>,
    metrics: Option<&HttpEndpoint>,
) -> Result<Vec<HttpServer>, CommandError> {
    if status.is_none() && metrics.is_none() {
        return Ok(Vec::new());
    }
    let wrong = |e: io::Error| format!("cannot serve status or metrics: {e}");
    let watch = relays.handle().watch().map_err(wrong)?;
    let mut all = Vec::new();
    if let Some(address) = status {
        let watch = watch.clone();
        let at = HttpEndpoint::Loopback(*address);
        let telling = http::tell(&at, move |path| page::answer(&watch, path));
        all.push(telling.map_err(|e| {
            format!(
                "cannot serve the status page at {address}: {}",
                at.listen_words(&e)
            )
        })?);
    }
    if let Some(at) = metrics {
        let telling = http::tell(at, move |path| {
            (path == "/metrics").then(|| figures(&watch))
        });
        all.push(telling.map_err(|e| {
            format!(
                "cannot serve metrics at the address of --metrics: {}",
                at.listen_words(&e)
            )
        })?);
    }
    Ok(all)
}

/// The metrics in Prometheus' format.
pub(super) fn figures(watch: &StatusMonitor) -> HttpResponse {
    HttpResponse::figures(prometheus::text(&watch.status()))
}

/// Drains the relays at a signal or a successor.
#[derive(Clone)]
struct ShutdownHandler {
    handle: RelayControl,
    /// Time after which remaining connections are reset.
    after: Option<Duration>,
}

impl ShutdownHandler {
    fn begin(self, succeeded: bool) {
        systemd::notify("STOPPING=1");
        match succeeded {
            true => self.handle.drain_for_successor(),
            false => self.handle.drain(),
        }
        let Some(after) = self.after else {
            return;
        };
        let thread = thread::Builder::new().name("ending".to_owned());
        let started = thread.spawn(move || {
            thread::sleep(after);
            self.handle.cut_off();
        });
        if let Err(e) = started {
            warn!("cannot start the timer of --drain-timeout, so open connections may finish: {e}");
        }
    }
}

/// Reloads configuration and keys.
struct ReloadHandler {
    args: RelayArgs,
    handle: RelayControl,
    files: Mutex<Vec<FileStamp>>,
}

impl ReloadHandler {
    /// Applies the current files to connections from now on, if they are valid.
    fn reload(&self) {
        systemd::reloading();
        let told = MergedRelaySettings::of(&self.args).and_then(|told| told.on_its_way(&self.args));
        let told = told.and_then(|told| {
            let replaced = self.handle.replace(told.relays);
            replaced?;
            Ok(told.files)
        });
        match told {
            Ok(files) => {
                *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
                info!("configuration, keys and certificates reloaded");
            }
            Err(why) => warn!("reload failed, the previous configuration stays in use: {why}"),
        }
        systemd::notify("READY=1");
    }

    /// Rereads keys and certificates when they change.
    fn watch(self: &Arc<Self>) -> io::Result<()> {
        let this = Arc::downgrade(self);
        let thread = thread::Builder::new().name("keys".to_owned());
        thread.spawn(move || {
            loop {
                thread::sleep(LOOK);
                let Some(this) = this.upgrade() else {
                    return;
                };
                if this.note_changes() {
                    this.reload();
                }
            }
        })?;
        Ok(())
    }

    /// Returns true if a file has changed. One that cannot be read is tried again at its next
    /// change.
    fn note_changes(&self) -> bool {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        for file in files.iter_mut().filter(|file| file.has_changed()) {
            *file = FileStamp::new(file.path.clone());
            changed = true;
        }
        changed
    }
}
