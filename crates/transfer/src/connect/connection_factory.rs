//! Opens the first connection to a host and further connections beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use schedule::{LearnedConcurrency, LoginCost, RefusedOperations, TransferDirection};
use ssh::transport::DisabledProtection;
use tracing::debug;
use zeroize::Zeroizing;

use super::direct::{DirectConnectionConfig, DirectConnector};
use super::error::{ConnectError, ConnectStep};
use super::host::{
    AttemptSettings, FirstConnectionMatch, FirstHostKey, OpeningLink, SharedConnectSettings,
    establish, start,
};
use super::host_auth_handler::SharedPrompt;
use super::host_auth_handler::{memory_name, remembered};
use super::preopened_connections::{self, PreopenedConnections};
use super::proposing::{cipher_order, secured};
use super::remote_use::{self, RemoteLonghaulPolicy};
use super::server_kind::DetectedServerKind;
use super::ssh_link::{ConnectionFacts, FirstJobTime, LoginUserInput, SshLink};
use crate::config::{HostConfig, ProxyMethod};
use crate::escape;
use crate::memory::HostMemory;
use crate::prompt::{EchoMode, Prompt, PromptError};
use crate::report::DecisionOrigin;
use crate::session::{ConnectionOpener, DirectServerLauncher, FurtherConnectionError, Link};

/// The time limit for one attempt to reconnect. A SYN sent while the path was down may be repeated
/// only half a minute after the path is up, so a new attempt is faster.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for one attempt to reconnect that may prompt the user.
const ASKED_TIMEOUT: Duration = Duration::from_secs(100);
/// The start time of an SFTP server, in milliseconds beyond a round trip, up to which it is not
/// remembered.
const USUAL_START_UP_MS: u32 = 250;
/// The maximum number of connections to a host that is reached through other hosts, each of which
/// sees a login per connection.
const THROUGH_OTHERS: u32 = 4;

/// Connects to a host; the returned [`ConnectionFactory`] makes further connections to it.
///
/// If an earlier visit taught everything that is needed, the link returns before the host has
/// answered, so that the first requests leave in one flight with authentication; errors then appear
/// later. Otherwise the link returns authenticated.
pub fn connect(
    config: HostConfig,
    around: &SharedConnectSettings,
) -> Result<(SshLink, ConnectionFactory), ConnectError> {
    let first = Arc::new(OnceLock::new());
    let asked = Arc::new(AtomicBool::new(false));
    let asked_again = AtomicBool::new(false);
    let mut again = ConnectionFactory {
        plain: AtomicBool::new(false),
        direct: direct(&config, around, &first),
        config: config.clone(),
        around: around.clone(),
        first: Arc::clone(&first),
        asked: Arc::clone(&asked),
        asked_again,
        serving: DetectedServerKind::default(),
        ahead: None,
    };
    let opened = Arc::clone(&around.opened);
    let around = SharedConnectSettings {
        opened: Arc::new(move |facts: ConnectionFacts| {
            let _ = first.set(facts.clone());
            opened(facts);
        }),
        prompt: Arc::new(Mutex::new(SecretRequestRecorder {
            inner: Arc::clone(&around.prompt),
            asked,
        })),
        ..around.clone()
    };
    let name = config.host.clone();
    let OpeningLink { mut link, proven } = start(config, &around, 0)?;
    again.ahead = again.begin_ahead(&link);
    if around.far != RemoteLonghaulPolicy::Direct {
        link.set_for_session();
    }
    establish(&mut link, &name, proven && !around.attempt.awaits_login)?;
    Ok((link, again))
}

/// Prepares direct connections; `None` if the login's address is not known, as with a jump host or
/// a proxy command.
fn direct(
    config: &HostConfig,
    around: &SharedConnectSettings,
    first: &Arc<OnceLock<ConnectionFacts>>,
) -> Option<Arc<DirectConnector>> {
    let wanted = matches!(
        around.far,
        RemoteLonghaulPolicy::Auto | RemoteLonghaulPolicy::Wanted | RemoteLonghaulPolicy::Direct
    );
    let encrypts = around.renounced == DisabledProtection::Nothing;
    if config.proxy != ProxyMethod::Direct || !wanted || !around.direct || !encrypts {
        return None;
    }
    let insisted = around.far == RemoteLonghaulPolicy::Direct;
    let (host, port, user) = memory_name(config);
    let memory = remembered(config, around.memories.as_ref());
    let barred = |m: &HostMemory| remote_use::is_barred(m, SystemTime::now());
    if !insisted && memory.as_ref().is_some_and(barred) {
        debug!("{host}: no direct connection: it failed within the last day");
        return None;
    }
    let first = Arc::clone(first);
    // The first connection reports errors in these settings.
    let secured = secured(config, &cipher_order(config, around, memory.as_ref())).ok()?;
    let direct = DirectConnectionConfig::beside(config, around, secured, memory.as_ref());
    let memories = around.memories.clone();
    let (host, user) = (host.to_owned(), user.to_owned());
    let noted = Box::new(move |is_possible: bool| {
        let now = SystemTime::now();
        let Some(memories) = &memories else { return };
        let bar = |memory: &mut HostMemory| remote_use::bar(memory, !is_possible, now);
        let known = memories.load(&host, port, &user, now);
        let note = |memory: &mut HostMemory| {
            bar(memory);
        };
        if known.is_some_and(|mut memory| bar(&mut memory))
            && let Err(e) = memories.change((&host, port, &user), now, note)
        {
            debug!("{host}: cannot save the host memory: {e}");
        }
    });
    let peer = Box::new(move || first.get()?.address.as_ref()?.parse().ok());
    Some(Arc::new(DirectConnector::new(direct, peer, noted)))
}

/// Opens further connections to one host. No prompts are shown for them, except once after the last
/// connection is lost.
pub struct ConnectionFactory {
    config: HostConfig,
    around: SharedConnectSettings,
    /// Facts of the first connection, set once it is authenticated.
    first: Arc<OnceLock<ConnectionFacts>>,
    /// True if a secret was requested, perhaps by a jump host.
    asked: Arc<AtomicBool>,
    /// True if the user was prompted again and no connection resulted.
    asked_again: AtomicBool,
    /// True after a connection failed with a setting that the user had not requested, such as zlib:
    /// further connections use none of them.
    plain: AtomicBool,
    /// Direct connections to `longhaul serve --once`, which need no login at the server's sshd.
    direct: Option<Arc<DirectConnector>>,
    serving: DetectedServerKind,
    /// Connections that were started before the first one had logged in.
    ahead: Option<PreopenedConnections>,
}

impl ConnectionFactory {
    fn open(&self) -> Option<&ConnectionFacts> {
        let first = self.first.get();
        let first = first.filter(|facts| facts.user_input == LoginUserInput::None);
        first.filter(|_| !self.asked.load(Ordering::SeqCst))
    }
}

impl ConnectionFactory {
    /// Loads the host memory.
    fn memory(&self) -> Option<HostMemory> {
        remembered(&self.config, self.around.memories.as_ref())
    }

    /// Selects the entry of host memory for the path of the first connection.
    fn take_path(&self, memory: &mut HostMemory) {
        if let Some(first) = self.first.get() {
            memory.on_connection(first.addresses, first.rtt);
        }
    }

    /// Changes the stored host memory.
    fn change(&self, change: impl FnOnce(&mut HostMemory)) {
        let Some(memories) = &self.around.memories else {
            return;
        };
        let (name, now) = (memory_name(&self.config), SystemTime::now());
        if let Err(e) = memories.change(name, now, change) {
            debug!("{}: cannot save the host memory: {e}", self.config.host);
        }
    }

    /// Starts further connections beside the first one, which `link` has just opened.
    fn begin_ahead(&self, link: &SshLink) -> Option<PreopenedConnections> {
        let tcp = link.stream().tcp_info()?;
        let address: std::net::SocketAddr = link.stream().address()?.parse().ok()?;
        if self.config.proxy != ProxyMethod::Direct {
            return None;
        }
        let first = preopened_connections::FirstConnectionFacts::new(
            address.ip(),
            tcp.rtt,
            link.stream().is_one_machine(),
            self.serving.clone(),
            Arc::clone(&self.first),
        );
        let around = further(&self.around, Arc::new(Mutex::new(SilentPrompt)));
        PreopenedConnections::begin(self.config.clone(), around, first, self.direct.is_some())
    }

    fn another_of(
        &self,
        config: HostConfig,
        brief: bool,
        jobs: FirstJobTime,
    ) -> Result<Box<dyn Link>, FurtherConnectionError> {
        if self.open().is_none() {
            let why = "another login would need your input again".to_owned();
            return Err(FurtherConnectionError::Login(why));
        }
        let prompt = Arc::new(Mutex::new(SilentPrompt));
        self.connect_with(config, prompt, brief, jobs)
    }

    fn connect_with(
        &self,
        config: HostConfig,
        prompt: SharedPrompt,
        brief: bool,
        jobs: FirstJobTime,
    ) -> Result<Box<dyn Link>, FurtherConnectionError> {
        let first = self.first.get();
        let address: Option<std::net::SocketAddr> =
            first.and_then(|f| f.address.as_ref()?.parse().ok());
        let around = SharedConnectSettings {
            beside: first.map(|first| FirstConnectionMatch {
                address: address.map(|a| a.ip()),
                host_key: FirstHostKey::Known(first.host_key_blob.clone()),
                serving: self.serving.clone(),
                rtt: first.rtt.filter(|_| brief),
            }),
            attempt: AttemptSettings {
                plain: self.plain.load(Ordering::SeqCst),
                ..self.around.attempt
            },
            ..further(&self.around, prompt)
        };
        connect_further(config, &around, jobs)
    }

    /// Opens a connection with the prompts of the first login, at most once.
    fn ask_again(&self, config: HostConfig) -> Result<Box<dyn Link>, FurtherConnectionError> {
        if self.asked_again.load(Ordering::SeqCst) {
            let why = "the login was refused, and passwords and codes are asked for the first \
                 connection only"
                .to_owned();
            return Err(FurtherConnectionError::Login(why));
        }
        let asked = Arc::new(AtomicBool::new(false));
        let prompt = Arc::new(Mutex::new(SecretRequestRecorder {
            inner: Arc::clone(&self.around.prompt),
            asked: Arc::clone(&asked),
        }));
        let link = self.connect_with(config, prompt, false, FirstJobTime::AfterLogin);
        let failed = link.is_err() && asked.load(Ordering::SeqCst);
        self.asked_again.store(failed, Ordering::SeqCst);
        link
    }
}

impl ConnectionOpener for ConnectionFactory {
    fn is_open(&self) -> bool {
        self.open().is_some() || self.direct.as_ref().is_some_and(|d| d.is_open())
    }

    fn straight(&self) -> Option<Arc<dyn DirectServerLauncher>> {
        let direct = self.direct.clone()?;
        Some(direct)
    }

    fn most(&self) -> Option<u32> {
        match self.config.proxy {
            // The user asked for the relaying hosts to carry as much as pays.
            ProxyMethod::Direct | ProxyMethod::Via(_) => None,
            ProxyMethod::Jump(_) | ProxyMethod::Command(_) => Some(THROUGH_OTHERS),
        }
    }

    fn preconnected(&self) -> u32 {
        self.ahead.as_ref().map_or(0, PreopenedConnections::waiting)
    }

    fn another(&self, brief: bool) -> Result<Box<dyn Link>, FurtherConnectionError> {
        if let Some(direct) = self.direct.as_ref().filter(|d| d.is_open()) {
            return direct.connect();
        }
        if let (Some(ahead), Some(first)) = (&self.ahead, self.open())
            && let Some(link) = ahead.take(&first.host_key_blob)
        {
            return link;
        }
        self.another_of(self.config.clone(), brief, FirstJobTime::WithLogin)
    }

    fn reconnect(&self) -> Result<Box<dyn Link>, FurtherConnectionError> {
        let mut config = self.config.clone();
        if self.open().is_none() {
            // The user may need time to answer the prompt.
            config.set_default_connect_timeout(ASKED_TIMEOUT);
            return self.ask_again(config);
        }
        config.cap_connect_timeout(AGAIN_TIMEOUT);
        self.another_of(config, false, FirstJobTime::AfterLogin)
    }

    fn choose_nothing(&self, at_fault: bool) {
        self.plain.store(true, Ordering::SeqCst);
        if at_fault {
            self.change(|memory| memory.note_zlib_failed(SystemTime::now()));
        }
    }

    fn asks(&self) -> bool {
        self.first.get().is_some() && self.open().is_none()
    }

    fn note_serving(&self, ours: bool) {
        self.serving.note(ours);
    }

    fn far_origin(&self) -> DecisionOrigin {
        let age = || self.memory()?.far?.age(SystemTime::now());
        match self.around.far {
            RemoteLonghaulPolicy::Stock => DecisionOrigin::Flag("--far-end"),
            _ => age().map_or(DecisionOrigin::Default, DecisionOrigin::Memory),
        }
    }

    fn learned(&self, direction: TransferDirection) -> Option<LearnedConcurrency> {
        let mut memory = self.memory()?;
        self.take_path(&mut memory);
        memory.learned(direction)
    }

    /// Stores the learned rates in addition to the facts stored at login; does nothing for a host
    /// without an entry.
    fn learn(&self, learned: LearnedConcurrency) {
        self.change(|memory| {
            self.take_path(memory);
            memory.learn(learned);
        });
    }

    fn login_cost(&self) -> LoginCost {
        let memory = self.memory();
        memory.map_or_else(LoginCost::default, |m| m.login_cost(SystemTime::now()))
    }

    fn note_login_cost(&self, cost: LoginCost) {
        let noted = self.memory().and_then(|m| m.logins);
        // A cost that is as usual needs no record.
        let usual = LoginCost {
            start_up_ms: cost.start_up_ms.min(USUAL_START_UP_MS),
            ..LoginCost::default()
        };
        if noted.is_some() || cost != usual {
            self.change(|memory| memory.note_login_cost(cost, SystemTime::now()));
        }
    }

    fn refusals(&self) -> RefusedOperations {
        let memory = self.memory();
        memory.map_or_else(RefusedOperations::default, |m| {
            m.refusals(SystemTime::now())
        })
    }

    fn note_refusals(&self, found: RefusedOperations) {
        self.change(|memory| memory.note_refusals(found, SystemTime::now()));
    }

    fn was_file(&self, path: &[u8]) -> bool {
        let memory = self.memory();
        memory.is_some_and(|memory| memory.was_file(path))
    }

    fn note_place(&self, path: &[u8], file: bool) {
        self.change(|memory| memory.note_place(path, file));
    }
}

/// Returns the settings for a further connection, whose questions go to `prompt`.
fn further(around: &SharedConnectSettings, prompt: SharedPrompt) -> SharedConnectSettings {
    SharedConnectSettings {
        prompt,
        opened: Arc::new(|_| {}),
        forward_agent: false,
        ..around.clone()
    }
}

/// Opens a connection beside the first one to the host. With [`FirstJobTime::WithLogin`] it returns
/// before the server has answered the login, if the key is one that worked before: sshd has
/// admitted the connection by then (MaxStartups), since it has exchanged keys. Otherwise the
/// connection is authenticated.
pub(crate) fn connect_further(
    config: HostConfig,
    around: &SharedConnectSettings,
    jobs: FirstJobTime,
) -> Result<Box<dyn Link>, FurtherConnectionError> {
    // The session's messages name the host.
    let name = escape::name(config.host.as_bytes()).to_string();
    let lost = |e: ConnectError| FurtherConnectionError::Connection(e.said_of(&name));
    let mut link = begin_further(config, around, jobs).map_err(lost)?;
    match link.establish(jobs == FirstJobTime::WithLogin) {
        Ok(()) => Ok(Box::new(link)),
        Err(e) if e.check() == ConnectStep::Login => {
            Err(FurtherConnectionError::Login(e.said_of(&name)))
        }
        Err(e) => Err(lost(e)),
    }
}

/// Opens and authenticates a connection that is only measured. Unlike that of [`connect_further`],
/// its error says who is at fault.
pub(crate) fn connect_measured(
    config: HostConfig,
    around: &SharedConnectSettings,
) -> Result<Box<dyn Link>, ConnectError> {
    let mut link = begin_further(config, around, FirstJobTime::AfterLogin)?;
    link.establish(false)?;
    Ok(Box::new(link))
}

fn begin_further(
    config: HostConfig,
    around: &SharedConnectSettings,
    jobs: FirstJobTime,
) -> Result<SshLink, ConnectError> {
    let mut link = start(config, around, 0)?.link;
    link.try_once(jobs);
    if around.far != RemoteLonghaulPolicy::Direct {
        link.set_for_session();
    }
    Ok(link)
}

/// A prompt that notes whether a login asked for a secret.
struct SecretRequestRecorder {
    inner: SharedPrompt,
    asked: Arc<AtomicBool>,
}

impl Prompt for SecretRequestRecorder {
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<Zeroizing<String>, PromptError> {
        // Accepting a new host key is not a login question.
        if kind == EchoMode::Secret {
            self.asked.store(true, Ordering::SeqCst);
        }
        match self.inner.lock() {
            Ok(mut inner) => inner.ask(question, kind),
            Err(_) => Err(PromptError::Unavailable(
                "internal error: the thread that asks for passwords has failed",
            )),
        }
    }

    fn show(&mut self, text: &str) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.show(text);
        }
    }

    fn note_wait(&mut self, awaited: &str) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.note_wait(awaited);
        }
    }
}

/// A prompt that refuses every question and shows nothing, since the first connection has already
/// shown the messages.
struct SilentPrompt;

impl Prompt for SilentPrompt {
    fn ask(&mut self, _: &str, _: EchoMode) -> Result<Zeroizing<String>, PromptError> {
        Err(PromptError::Unavailable(
            "passwords and codes are asked for the first connection only",
        ))
    }

    fn show(&mut self, _: &str) {}
}
