//! Opens a session with each host that the operands name.

mod answers;
mod detour;
mod half;
mod program;
mod query;
mod questions;
mod waiting;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use schedule::{CompressionMode, Told};
use transfer::bootstrap::{self, BootstrapError};
use transfer::cancel::CancelToken;
use transfer::config::{HostConfig, LocalUser, ProxyMethod, SshOptionFlags};
use transfer::connect::{
    self, AttemptSettings, BulkDirection, ConnectError, ConnectStep, ConnectionFacts, DataSampler,
    PlannedUpload, RemoteLonghaulPolicy, SharedConnectSettings, SharedPrompt,
};
use transfer::copy::{CopyLocation, CopyRequest, HostId, SessionConnector, TransferEstimate};
use transfer::escape;
use transfer::memory::HostMemoryStore;
use transfer::memory::findings::BenchFindings;
use transfer::operand::SshDestination;
use transfer::prompt::NoPrompt;
use transfer::report::{
    CopyOutcome, CopySummary, Decision, DecisionOrigin, DecisionSubject, EscapedName,
    SessionReport, ZlibReason,
};
use transfer::session::{
    ConnectionOpener, Link, LinkError, RESUME_FROM, Session, SessionOptions, SftpProgramLink,
    SharedRateLimit, ssh_arguments,
};
use transfer::sums::ChecksumLedger;
use transfer::{pace, sample, shards};

use self::detour::{DetourRequest, Detours};
use self::questions::ConsolePrompt;
use self::waiting::until_cancelled;
use crate::command_error::CommandError;
use crate::flags::low::{CopyArgs, TerminalSetting};
use crate::output::RunReporter;
use crate::output::json::HostInfo;
use crate::running::RunningTransferFile;

/// Time in which one of several hosts must answer up to its host key, unless ConnectTimeout is set:
/// TCP gives up after two minutes, for which the hosts behind it would wait.
const ONE_OF_SEVERAL: Duration = Duration::from_secs(20);

/// Origin of the decision about compression if the flag was given.
const COMPRESS: DecisionOrigin = DecisionOrigin::Flag("--compress");

/// The hosts of a run, and the flags for reaching them.
pub(crate) struct Hosts {
    hosts: Vec<SshDestination>,
    flags: CopyArgs,
    output: Arc<RunReporter>,
    /// Collects checksums, if `--verify` or `--manifest` asks for them.
    ledger: Option<Arc<ChecksumLedger>>,
    /// The host that is copied to.
    target: Option<HostId>,
    /// The host that local files are sent to, and the files.
    sent: Option<(HostId, Vec<PathBuf>)>,
    /// Files are copied from hosts to this machine.
    downloads: bool,
    /// All paths on hosts are absolute.
    absolute: bool,
    /// Set if copies are made by `longhaul bench`.
    measured: Option<MeasurementSessionSettings>,
    /// Copies that share the rate limit, at most.
    sharing: u64,
    /// The limit that they share.
    shared_limit: Option<SharedRateLimit>,
    /// This is the host of one of several copies.
    among: bool,
    /// Set while nothing but lost connections of a run is waited for.
    awaited: Arc<AtomicBool>,
    /// Figures for `longhaul doctor --watch`.
    running: Arc<RunningTransferFile>,
    /// Login names on the hosts that were connected to.
    logins: Mutex<BTreeMap<SshDestination, String>>,
    /// Passwords and passphrases that the user has entered.
    answers: answers::AnswerCache,
    detours: Detours,
}

/// Settings of the sessions that a measurement opens.
#[derive(Clone)]
pub(crate) struct MeasurementSessionSettings {
    /// Compression mode of a longhaul at the host.
    pub(crate) pack: CompressionMode,
    /// Use and store host memories. Otherwise every login is like the first one.
    pub(crate) remembers: bool,
    /// Called for each connection.
    pub(crate) opened: Arc<dyn Fn(&ConnectionFacts) + Send + Sync>,
}

/// Limits the time until a host answers, unless ConnectTimeout is set or a proxy, which may ask the
/// user something, is on the way.
fn limit_connecting(config: &mut HostConfig) {
    if matches!(config.proxy, ProxyMethod::Direct) {
        config.set_default_connect_timeout(ONE_OF_SEVERAL);
    }
}

impl Hosts {
    pub(crate) fn new(
        hosts: Vec<SshDestination>,
        flags: CopyArgs,
        output: Arc<RunReporter>,
    ) -> Self {
        let ledger = flags
            .sums()
            .map(|wants| Arc::new(ChecksumLedger::new(wants)));
        let detours = Detours::new(flags.via.clone(), Arc::clone(&output));
        Self {
            sent: None,
            downloads: false,
            target: None,
            absolute: false,
            hosts,
            flags,
            output,
            ledger,
            measured: None,
            sharing: 1,
            shared_limit: None,
            among: false,
            awaited: Arc::default(),
            running: Arc::default(),
            logins: Mutex::default(),
            answers: answers::AnswerCache::default(),
            detours,
        }
    }

    /// The destinations of all hosts, indexed by [`HostId`].
    pub(crate) fn destinations(&self) -> &[SshDestination] {
        &self.hosts
    }

    /// Returns the rate limit for copies that share it.
    pub(crate) fn shared_limit(&self) -> Option<SharedRateLimit> {
        self.flags.limit().map(SharedRateLimit::new)
    }

    /// Returns one of these hosts as the only one of a copy, which shares the rate limit with
    /// others: `copies` at most.
    pub(crate) fn alone(
        &self,
        host: HostId,
        copies: usize,
        shared_limit: Option<SharedRateLimit>,
    ) -> Self {
        let hosts = self.hosts.get(host.0).cloned().into_iter().collect();
        Self {
            sharing: copies.max(1) as u64,
            shared_limit,
            among: true,
            awaited: Arc::clone(&self.awaited),
            running: Arc::clone(&self.running),
            answers: Arc::clone(&self.answers),
            ..Self::new(hosts, self.flags.clone(), Arc::clone(&self.output))
        }
    }

    /// Notes if a run waits for nothing but lost connections, which are then given up earlier.
    pub(crate) fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Set while a run waits for nothing but lost connections.
    pub(crate) fn awaited(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.awaited)
    }

    /// Opens sessions for a measurement.
    pub(crate) fn measured(self, measured: MeasurementSessionSettings) -> Self {
        Self {
            measured: Some(measured),
            ..self
        }
    }

    /// Notes the sources and the target of the copy.
    pub(crate) fn expect(&mut self, request: &CopyRequest) {
        let mut all = request.sources.iter().chain([&request.target]);
        self.absolute = all.all(|place| match place {
            CopyLocation::Local(_) => true,
            CopyLocation::Remote { path, .. } => path.starts_with(b"/"),
        });
        self.downloads = matches!(request.target, CopyLocation::Local(_));
        self.target = match &request.target {
            CopyLocation::Local(_) => None,
            CopyLocation::Remote { host, .. } => Some(*host),
        };
        let local = request.sources.iter().map(|source| match source {
            CopyLocation::Local(path) => Some(path.clone()),
            CopyLocation::Remote { .. } => None,
        });
        if let (CopyLocation::Remote { host, .. }, Some(sources)) =
            (&request.target, local.collect())
        {
            self.sent = Some((*host, sources));
        }
    }

    /// Reports the decisions that are made before any connection.
    pub(crate) fn decide(&self) {
        let flags = &self.flags;
        let flag = |given: bool, name| match given {
            true => DecisionOrigin::Flag(name),
            false => DecisionOrigin::Default,
        };
        let dscp = flags.dscp.value();
        let mut decided = vec![Decision::new(
            DecisionSubject::Dscp(dscp),
            flag(dscp != 0, "--dscp"),
        )];
        let name = flags.congestion.clone();
        let origin = flag(name.is_some(), "--congestion");
        let losses = false;
        decided.push(Decision::new(
            DecisionSubject::Congestion { name, losses },
            origin,
        ));
        decided.extend(self.detours.given());
        self.output.decided(decided);
    }

    /// Sends this program to hosts that have none, if `--bootstrap` asks for it. A failure is a
    /// warning, and the copy continues without.
    pub(crate) fn bootstrap(&mut self, cancel: &CancelToken) {
        if !self.flags.bootstrap {
            return;
        }
        for at in 0..self.hosts.len() {
            match self.send_longhaul(HostId(at), cancel) {
                Ok(_) => {}
                Err(BootstrapError::Interrupted) => return,
                Err(error) => {
                    let name = SessionConnector::name(self, HostId(at));
                    self.output.warning(error.warning(&name));
                }
            }
        }
        // Having sent it, ask for it at each copy.
        self.flags.far = RemoteLonghaulPolicy::Exec;
    }

    /// Measures this processor's ciphers after a copy over our own SSH that took long enough to be
    /// worth it.
    pub(crate) fn learn_processor(&self, summary: &CopySummary) {
        let foreign = self.flags.program.is_some() || self.flags.sftp_server.is_some();
        let whole = summary.outcome == CopyOutcome::Complete && !self.hosts.is_empty();
        if let Some(memories) = HostMemoryStore::of_user()
            && whole
            && !foreign
        {
            pace::learn(&memories, summary.elapsed);
        }
    }

    /// Sends this program to a host. Returns false if it was there already.
    pub(crate) fn send_longhaul(
        &self,
        host: HostId,
        cancel: &CancelToken,
    ) -> Result<bool, BootstrapError> {
        let placed = bootstrap::place(host, self, cancel)?;
        self.remember_longhaul(host, Some(placed.sum));
        Ok(placed.sent)
    }

    /// Stores the findings about a host, for copies to and from it.
    pub(crate) fn remember_findings(
        &self,
        host: HostId,
        findings: BenchFindings,
    ) -> Result<(), CommandError> {
        let user = LocalUser::current();
        let memories = HostMemoryStore::of_user();
        let destination = self.hosts.get(host.0);
        let config = destination.map(|d| query::query(&self.flags, d).resolve(&user));
        if let (Some(memories), Some(Ok(config))) = (memories, config) {
            connect::remember_findings(&config, &memories, findings)?;
        }
        Ok(())
    }

    /// Stores the checksum of the program that was sent to a host, or removes it with `None`.
    pub(crate) fn remember_longhaul(&self, host: HostId, sum: Option<String>) {
        let user = LocalUser::current();
        let memories = HostMemoryStore::of_user();
        let destination = self.hosts.get(host.0);
        let config = destination.map(|d| query::query(&self.flags, d).resolve(&user));
        if let (Some(memories), Some(Ok(config))) = (memories, config)
            && let Err(error) = connect::remember_placed(&config, &memories, sum)
        {
            tracing::debug!("cannot save what was learned of this host: {error}");
        }
    }

    fn options(&self) -> SessionOptions {
        SessionOptions {
            timeline: self.output.timeline(),
            limit: self.flags.limit().map(|rate| (rate / self.sharing).max(1)),
            shared_limit: self.shared_limit.clone(),
            connections: match self.flags.background {
                true => Some(1),
                false => self.flags.connections,
            },
            channels: self.flags.channels,
            requests: self.flags.requests,
            buffer: self.flags.buffer,
            min_in_flight: self.flags.shard.map(|_| shards::MIN_IN_FLIGHT),
            // BBR would keep its share against the traffic that a background copy yields to.
            bear_losses: self.flags.congestion.is_none() && !self.flags.background,
            background: self.flags.background,
            // A host of several has moved only its share.
            resume_from: match self.among {
                true => 1,
                false => RESUME_FROM,
            },
            awaited: Some(Arc::clone(&self.awaited)),
            pack: match (&self.measured, self.flags.compress) {
                (Some(measured), _) => measured.pack,
                (None, Some(TerminalSetting::Always)) => CompressionMode::Always,
                (None, Some(TerminalSetting::Never)) => CompressionMode::Never,
                (None, Some(TerminalSetting::Auto) | None) => CompressionMode::Auto,
            },
            ledger: self.ledger.clone(),
            told: Told::default()
                .with(Told::NANOSECONDS, self.keeps_times())
                .with(Told::LINKS, self.flags.hard_links || self.flags.links)
                // A directory that gets attributes is compared with the listed one.
                .with(Told::DEVICES, self.flags.devices || self.keeps_times()),
            ..SessionOptions::default()
        }
    }

    fn keeps_times(&self) -> bool {
        self.flags.preserve || self.flags.archive || self.flags.acls
    }

    /// Asks for a longhaul at the far end if the flags need more than SFTP offers.
    fn far_use(&self) -> RemoteLonghaulPolicy {
        match self.flags.far {
            RemoteLonghaulPolicy::Auto if self.flags.wants_longhaul() => {
                RemoteLonghaulPolicy::Wanted
            }
            far => far,
        }
    }

    /// Opens a session over the standard streams of a program: an SFTP server (`-D`) or an ssh
    /// (`-S`).
    fn over_program(&self, host: &SshDestination) -> Option<Result<Session, ConnectError>> {
        if let Some(server) = &self.flags.sftp_server {
            return Some(
                self.over_streams(host, SftpProgramLink::spawn(server.clone(), Vec::new())),
            );
        }
        let ssh = self.flags.program.clone()?;
        if let Err(error) = query::query(&self.flags, host).check() {
            return Some(Err(error.into()));
        }
        let arguments = program_arguments(host, &[], &self.flags);
        Some(self.over_streams(host, SftpProgramLink::spawn(ssh, arguments)))
    }

    /// Opens a session through an ssh that shares its connection at `socket`, since longhaul's
    /// `own` login is refused or would ask, for example for a second factor.
    fn over_master(
        &self,
        host: &SshDestination,
        socket: &Path,
        own: &ConnectError,
    ) -> Result<Session, ConnectError> {
        tracing::info!("{own}");
        self.output.warning(format!(
            "{}: using only the open ssh connection at {}, because another login would need your \
             input; -o ControlPath=none logs in anew",
            self.shown(host),
            escape::path(socket)
        ));
        query::query(&self.flags, host).check()?;
        self.over_streams(
            host,
            SftpProgramLink::spawn("ssh".into(), self.master_arguments(host)),
        )
    }

    /// Arguments for an ssh that uses an open connection to a host.
    fn master_arguments(&self, host: &SshDestination) -> Vec<OsString> {
        // -v is for this program: ssh's own lines of it would be shown as warnings.
        let flags = CopyArgs {
            verbose: 0,
            ..self.flags.clone()
        };
        // If that connection ends meanwhile, ssh fails instead of asking.
        let only = ["-oControlMaster=no", "-oBatchMode=yes"];
        program_arguments(host, &only, &flags)
    }

    /// Begins a session over the standard streams of a program.
    fn over_streams(
        &self,
        host: &SshDestination,
        spawned: Result<SftpProgramLink, LinkError>,
    ) -> Result<Session, ConnectError> {
        let link =
            spawned.map_err(|e| ConnectError::this_machine(ConnectStep::Reach, e.into_words()))?;
        self.output.host(HostInfo {
            host: self.shown(host),
            ..HostInfo::default()
        });
        self.started(host, link, self.options())
    }

    /// Prepares a sample of the files that are sent to a host, shared by all connections to it.
    fn look(&self, destination: &SshDestination, user: &LocalUser) -> Option<Arc<DataSampler>> {
        // With a rate limit, a saving by zlib has no use.
        let held = self.flags.limit().is_some() || self.flags.background;
        let (host, sources) = self.sent.clone()?;
        if held || self.hosts.get(host.0) != Some(destination) {
            return None;
        }
        let query = query::query(&self.flags, destination);
        let (user, flags) = (user.clone(), self.flags.clone());
        let seen = OnceLock::new();
        Some(Arc::new(move || {
            let look = || {
                let allowed = flags.compress == Some(TerminalSetting::Auto);
                if !allowed && query.refuses_compression(&user) {
                    return Err(ZlibReason::Set);
                }
                let one = matches!(sources.as_slice(), [file] if file.is_file());
                if !allowed && !one {
                    return Err(ZlibReason::Several);
                }
                sample::look(&sources, flags.recursive || flags.archive)
            };
            seen.get_or_init(look).clone()
        }))
    }

    /// Estimates in which direction so much is copied that slow start matters. Not with a rate
    /// limit, where it never does.
    fn bulk_direction(&self, destination: &SshDestination) -> BulkDirection {
        let held = self.flags.limit().is_some() || self.flags.background;
        let is = |host: &HostId| self.hosts.get(host.0) == Some(destination);
        let much = |sources: &[PathBuf]| {
            sample::is_much(sources, self.flags.recursive || self.flags.archive)
        };
        match &self.sent {
            _ if held => BulkDirection::Neither,
            Some((host, sources)) if is(host) && much(sources) => BulkDirection::Upload,
            None if self.downloads => BulkDirection::Download,
            _ => BulkDirection::Neither,
        }
    }

    /// Resolves a host's configuration, and collects what a connection to it needs.
    fn prepare(
        &self,
        destination: &SshDestination,
    ) -> Result<(HostConfig, SharedConnectSettings), ConnectError> {
        let user = LocalUser::current();
        let mut config = query::query(&self.flags, destination).resolve(&user)?;
        for warning in config.warnings.drain(..) {
            self.output.warning(warning);
        }
        self.override_compression(&mut config);
        self.detours.apply(destination, &mut config);
        if self.among {
            limit_connecting(&mut config);
        }
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        logins.insert(destination.clone(), config.user.clone());
        drop(logins);
        let (hop_flags, hop_user) = (self.flags.clone(), user.clone());
        let measured = self.measured.as_ref();
        let remembers = measured.is_none_or(|m| m.remembers);
        let around = SharedConnectSettings {
            prompt: self.prompt(destination, &config),
            opened: self.report_opened(destination, &config),
            memories: HostMemoryStore::of_user().filter(|_| remembers),
            forward_agent: self.flags.forward_agent,
            dscp: self.flags.dscp.value(),
            congestion: self.flags.congestion.clone(),
            renounced: self.flags.renounced,
            window_poll: !self.flags.no_window_poll,
            far: self.far_use(),
            absolute: self.absolute,
            sends: None,
            beside: None,
            attempt: AttemptSettings::default(),
            masters: Arc::default(),
            timeline: self.output.timeline(),
            look: self.look(destination, &user),
            bulk: self.bulk_direction(destination),
            // A background copy uses a single connection, whose queue is visible at this end.
            direct: !self.flags.background,
            hop: Arc::new(move |hop| {
                let query = query::hop(&hop_flags, hop);
                query.resolve(&hop_user).map_err(ConnectError::from)
            }),
        };
        Ok((config, around))
    }

    /// Applies `--compress`, which overrides ssh_config.
    fn override_compression(&self, config: &mut HostConfig) {
        let compression = match self.flags.compress {
            Some(TerminalSetting::Auto) => None,
            Some(TerminalSetting::Never) => Some(false),
            Some(TerminalSetting::Always) | None => return,
        };
        (config.compression, config.compression_from) = (compression, COMPRESS);
    }

    /// Returns the prompt for a host: none in batch mode.
    fn prompt(&self, destination: &SshDestination, config: &HostConfig) -> SharedPrompt {
        if config.has(SshOptionFlags::BATCH_MODE) {
            return Arc::new(Mutex::new(NoPrompt));
        }
        let person = ConsolePrompt::new(Arc::clone(&self.output), self.shown(destination));
        let answers = Arc::clone(&self.answers);
        let whole = destination.to_string();
        Arc::new(Mutex::new(answers::CachedAnswerPrompt::new(
            person, whole, answers,
        )))
    }

    /// Returns the function that reports each new connection to a host.
    fn report_opened(
        &self,
        destination: &SshDestination,
        config: &HostConfig,
    ) -> Arc<dyn Fn(ConnectionFacts) + Send + Sync> {
        let (output, host) = (Arc::clone(&self.output), self.shown(destination));
        let via = match &config.proxy {
            ProxyMethod::Via(through) => Some(detour::listed(through)),
            _ => None,
        };
        let login = config.user.clone();
        let measured = self.measured.clone();
        Arc::new(move |facts| {
            if let Some(measured) = &measured {
                (measured.opened)(&facts);
            }
            let name = EscapedName(host.clone().into_bytes());
            output.decided(facts.decisions.into_iter().map(|decision| Decision {
                host: Some(name.clone()),
                ..decision
            }));
            output.host(HostInfo {
                host: host.clone(),
                user: Some(login.clone()),
                via: via.clone(),
                address: facts.address,
                banner: facts.banner,
                kex: facts.kex,
                host_key: facts.host_key,
                cipher: facts.cipher,
                auth: facts.method,
                guessed: facts.guessed,
            });
        })
    }

    /// Opens a session over our own SSH. If a relaying host that `--via auto` has chosen fails, the
    /// direct way is taken.
    fn over_ssh(
        &self,
        destination: &SshDestination,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError> {
        (self.detours).choose(destination, cancel, || self.detour_question(destination))?;
        match self.on_one_way(destination, coming.clone(), cancel) {
            Err(error) if !cancel.is_cancelled() && self.drop_detour(destination, &error) => {
                self.on_one_way(destination, coming, cancel)
            }
            opened => opened,
        }
    }

    /// Prepares the choice of `--via auto` for a host.
    fn detour_question(&self, destination: &SshDestination) -> Result<DetourRequest, ConnectError> {
        let (config, settings) = self.prepare(destination)?;
        let at = self.hosts.iter().position(|h| h == destination);
        Ok(DetourRequest {
            config,
            settings,
            up: self.target == at.map(HostId),
            background: self.flags.background,
            sources: self.sent.as_ref().map(|(_, sources)| sources.clone()),
        })
    }

    /// Goes back to the direct way after the relaying host that `--via auto` has chosen failed;
    /// false if the failed way was the direct one.
    fn drop_detour(&self, destination: &SshDestination, error: &ConnectError) -> bool {
        if !self.detours.drop_chosen(destination) {
            return false;
        }
        if let Ok((config, settings)) = self.prepare(destination)
            && let Some(memories) = &settings.memories
        {
            connect::forget_detour(&config, memories);
        }
        self.detours.report_failed(destination, error);
        true
    }

    fn on_one_way(
        &self,
        destination: &SshDestination,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError> {
        let (mut config, mut around) = self.prepare(destination)?;
        let master = config.control_master.take();
        if master.is_some() {
            config.switches.insert(SshOptionFlags::BATCH_MODE);
            around.prompt = Arc::new(Mutex::new(NoPrompt));
            around.attempt.awaits_login = true;
        }
        // A ProxyCommand may ask on the terminal without notice.
        let program = matches!(config.proxy, ProxyMethod::Command(_));
        let _held = program.then(|| self.output.console().hold());
        around.sends = coming.map(|coming| PlannedUpload {
            coming,
            options: self.options(),
        });
        let connect = move || connect::connect(config, &around);
        let connected = until_cancelled(self.output.console(), cancel, connect);
        let (link, again) = match (connected, master) {
            (Err(own), Some(socket)) if own.allows_shared_connection() => {
                return self.over_master(destination, &socket, &own);
            }
            (connected, _) => connected?,
        };
        // Measuring with one connection ends when that is lost: a reconnected run is no valid
        // figure.
        let alone = self.measured.is_some() && self.flags.connections == Some(1);
        let options = SessionOptions {
            connection_source: (!alone).then(|| Arc::new(again) as Arc<dyn ConnectionOpener>),
            ..self.options()
        };
        self.started(destination, link, options)
    }

    /// The host for messages: as in an operand, with the port if that of another one differs in it.
    fn shown(&self, host: &SshDestination) -> String {
        let is_alike =
            |other: &SshDestination| other.port != host.port && name(other) == name(host);
        match self.hosts.iter().any(is_alike) {
            true => host.to_string(),
            false => name(host),
        }
    }

    /// Begins a session over a link.
    fn started(
        &self,
        host: &SshDestination,
        link: impl Link + 'static,
        mut options: SessionOptions,
    ) -> Result<Session, ConnectError> {
        // A file that is written twice a second would disturb a measurement.
        if self.measured.is_none() {
            let (running, shown) = (
                Arc::clone(&self.running),
                EscapedName(self.shown(host).into_bytes()),
            );
            options.live = Some(Arc::new(move |report| {
                running.note(&SessionReport {
                    host: shown.clone(),
                    ..report
                });
            }));
        }
        Session::start(Box::new(link), options).map_err(|error| {
            let why = format!(
                "{}: this machine cannot start the threads of a connection: {error}; check its \
                 limits (ulimit -n and -u)",
                self.shown(host)
            );
            ConnectError::this_machine(ConnectStep::Session, why)
        })
    }

    /// The host of this number.
    fn host(&self, host: HostId) -> Result<&SshDestination, ConnectError> {
        let unknown = || ConnectError::configuration("internal error: unknown host number");
        self.hosts.get(host.0).ok_or_else(unknown)
    }
}

impl SessionConnector for Hosts {
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError> {
        let destination = self.host(host)?;
        // The program of `-S` may ask on the terminal without notice.
        let held = self.output.console().hold();
        if let Some(session) = self.over_program(destination) {
            return session;
        }
        drop(held);
        let _connecting = self.output.console().connecting(self.shown(destination));
        self.over_ssh(destination, coming, cancel)
    }

    fn warn(&self, host: HostId, line: String) {
        let name = self.name(host);
        self.output.warning(format!("{name}: {line}"));
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        self.ledger.clone()
    }

    fn login(&self, host: HostId) -> Option<String> {
        let host = self.hosts.get(host.0)?;
        let logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        logins.get(host).cloned().or_else(|| host.user.clone())
    }

    fn name(&self, host: HostId) -> String {
        let shown = |host| self.shown(host);
        self.hosts.get(host.0).map_or_else(String::new, shown)
    }

    fn identity(&self, host: HostId) -> String {
        let whole = |host: &SshDestination| host.to_string();
        self.hosts.get(host.0).map_or_else(String::new, whole)
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        let user = LocalUser::current();
        let login = |host: HostId| {
            let destination = self.hosts.get(host.0)?;
            let config = query::query(&self.flags, destination).resolve(&user).ok()?;
            // A jump host may know another host by this name.
            Some((config.host_name, config.port, config.user, config.proxy))
        };
        one == other || login(one).is_some_and(|one| login(other) == Some(one))
    }
}

/// Arguments for an ssh program, with options that go before the user's.
fn program_arguments(host: &SshDestination, first: &[&str], flags: &CopyArgs) -> Vec<OsString> {
    let mut options: Vec<OsString> = first.iter().map(OsString::from).collect();
    options.extend(program::options(flags));
    let user = host.user.as_deref().map(AsRef::as_ref);
    ssh_arguments(&options, user, host.port, host.host.as_ref())
}

/// The host as in an operand. The port is left out because a path follows after the colon.
fn name(host: &SshDestination) -> String {
    let without_port = SshDestination {
        port: None,
        ..host.clone()
    };
    without_port.to_string()
}
