//! Reads from the socket and handles the events of the SSH engine, during and after the login.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ssh::auth::ClientAuthEvent;
use ssh::channel::{ChannelEvent, ChannelId as SshChannel, LARGE_DATA};
use ssh::transport::{DisabledProtection, Identification, PeerExtensions, TransportEvent};
use ssh::{ConnectionEvent, EarlyMessages};
use tracing::{debug, info};
use wire::BorrowPolicy;

use super::channels::{ChannelEndReason, ChannelProgram, RemoteChannelState};
use super::moving::TURN;
use super::{
    FirstJobTime, InputState, LinkRole, SocketReadiness, SshLink, broken, engine_error, error,
    input_error,
};
use crate::connect::auth_handler::AgentBinding;
use crate::connect::error::ConnectError;
use crate::session::{Link, LinkChannelId, LinkError, LinkEvent};
use crate::timeline::TimelineStep;

/// The maximum channel window with servers that support large ones: 2.5 Gbit/s at 200 ms.
const LARGE_WINDOW: u32 = 64 << 20;

/// The interval at which the kernel is polled for the round trip.
const RTT_INTERVAL: Duration = Duration::from_millis(50);

/// The longest wait for proofs of host keys at the end of a copy.
const PROOFS: Duration = Duration::from_secs(1);

/// True for environment variables that only select a language (locale(7)).
fn is_locale(name: &[u8]) -> bool {
    matches!(name, b"LANG" | b"LANGUAGE") || name.starts_with(b"LC_")
}

impl SshLink {
    /// Handles all pending events of the engine.
    fn pump(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        while let Some(event) = self.conn.poll_event() {
            match event {
                ConnectionEvent::Transport(event) => self.handle_transport(now, event)?,
                ConnectionEvent::Auth(event) => {
                    if self.handle_auth(event, events)? {
                        return Ok(());
                    }
                }
                // A direct connection's key was valid for one login only, and a further connection
                // would make the session wait.
                ConnectionEvent::Channel(ChannelEvent::PredictionFailed(_))
                    if !self.restarts.are_allowed() =>
                {
                    return Err(error("the server uses other channel numbers than expected"));
                }
                ConnectionEvent::Channel(ChannelEvent::PredictionFailed(_)) => {
                    return self.restart(
                        events,
                        "the server uses other channel numbers than expected",
                    );
                }
                ConnectionEvent::Channel(event) => self.handle_channel(now, event, events),
                // Only a server's connection emits these.
                ConnectionEvent::Login(_) => {}
                ConnectionEvent::HostKeysAnnounced(blobs) => {
                    let keys = self.auth_handler.host_keys_announced(&blobs);
                    self.conn.ask_for_proofs(keys);
                }
                ConnectionEvent::HostKeysProven(proven) => {
                    self.auth_handler.host_keys_proven(proven)
                }
                ConnectionEvent::Retracted => {
                    debug!("{}: waiting for another login step", self.config.name);
                    self.first.forget();
                    self.channels.clear();
                }
            }
        }
        Ok(())
    }

    fn handle_transport(&mut self, now: Instant, event: TransportEvent) -> Result<(), LinkError> {
        match event {
            TransportEvent::Identified(ident) => {
                debug!("{}: {}", self.config.name, ident.as_str());
                self.mark(TimelineStep::Identified);
                self.suit(&ident);
                self.server_facts.banner = ident.as_str().to_owned();
            }
            TransportEvent::Negotiated {
                chosen,
                favourites,
                offers,
            } => {
                debug!(
                    "{}: key exchange {}, host key {}, ciphers {} (sent) and {} (received){}",
                    self.config.name,
                    chosen.kex.name,
                    chosen.host_key,
                    chosen.c2s.cipher.name,
                    chosen.s2c.cipher.name,
                    if chosen.guess_right {
                        ", guessed correctly"
                    } else {
                        ""
                    },
                );
                self.server_facts.kex = favourites.0;
                self.server_facts.host_key_algorithm = favourites.1;
                self.offers = offers;
            }
            TransportEvent::HostKey(blob) => self.handle_host_key(now, &blob)?,
            TransportEvent::Keys { first } => {
                self.update_borrow_policy();
                if first {
                    self.mark(TimelineStep::Keys);
                } else {
                    self.tell_renounced();
                }
            }
            TransportEvent::Debug(text) => debug!(
                "{}: debug message from the server: {text}",
                self.config.name
            ),
            TransportEvent::Extensions | TransportEvent::Pong => {}
        }
        Ok(())
    }

    /// Raises packet and window sizes above OpenSSH's limits for servers that accept more.
    fn suit(&mut self, ident: &Identification) {
        let channels = self.conn.channels();
        if ident.is_longhaul() {
            channels.set_max_packet(LARGE_DATA as u32);
        }
        if ident.takes_large_windows() {
            channels.set_max_window(LARGE_WINDOW);
        }
    }

    /// Sets how far packets may borrow file data with the new keys (copied into packets, encrypted
    /// in place, or sent from the page cache), and logs it.
    fn update_borrow_policy(&self) {
        let borrow_policy = self.conn.borrow_policy();
        debug!(
            "{}: new session keys; file data is {}",
            self.config.name,
            match borrow_policy {
                BorrowPolicy::Never => "copied into packets",
                BorrowPolicy::UntilSealed => "encrypted directly from the page cache",
                BorrowPolicy::UntilSent => "sent directly from the page cache",
            }
        );
        self.pool.set_borrow_policy(borrow_policy);
        self.large.set_borrow_policy(borrow_policy);
    }

    /// Reports once whether data are sent without encryption.
    fn tell_renounced(&mut self) {
        let asked = std::mem::replace(&mut self.config.renounced, DisabledProtection::Nothing);
        let Some(n) = self
            .conn
            .negotiated()
            .filter(|_| self.config.role == LinkRole::First)
        else {
            return;
        };
        let (clear, mac) = (n.c2s.cipher.is_none(), n.c2s.mac.is_some());
        let name = &self.config.name;
        let text = match (asked, clear, mac) {
            (DisabledProtection::Nothing, ..) => return,
            (_, true, true) => format!(
                "WARNING: data to and from {name} is NOT ENCRYPTED (--insecure-none-cipher)"
            ),
            (_, true, false) => format!(
                "WARNING: data to and from {name} is NOT ENCRYPTED and NOT AUTHENTICATED \
                 (--insecure-none-mac)"
            ),
            (asked, false, _) => {
                let (flag, options) = match asked {
                    DisabledProtection::CipherAndMac => (
                        "--insecure-none-mac",
                        "NoneEnabled yes and NoneMacEnabled yes",
                    ),
                    _ => ("--insecure-none-cipher", "NoneEnabled yes"),
                };
                format!(
                    "{name}: the server refused to turn encryption off, so the data is encrypted: \
                     start it with longhaul serve {flag}, or set {options} in HPN-SSH"
                )
            }
        };
        match clear {
            true => self.auth_handler.danger(&text),
            false => self.auth_handler.banner(&text),
        }
    }

    fn handle_host_key(&mut self, now: Instant, blob: &Bytes) -> Result<(), LinkError> {
        let address = self.stream.address();
        let address = address.and_then(|a| a.parse().ok());
        let address = address.map(|a: SocketAddr| a.ip());
        let accepted = self.auth_handler.host_key(blob, address);
        accepted.map_err(|e| self.refused(e))?;
        self.server_facts.host_key = blob.to_vec();
        let done = self
            .conn
            .accept_host_key()
            // NEWKEYS and EXT_INFO usually arrive together with the reply, and EXT_INFO lists the
            // signature algorithms that the server accepts.
            .and_then(|()| self.conn.handle_input(now, self.segments.received()));
        done.map_err(|e| engine_error(&e))?;
        let Some((session_id, host_key, signature)) = self.conn.binding() else {
            return Ok(());
        };
        let binding = AgentBinding {
            host_key: &host_key,
            session_id: &session_id,
            signature: &signature,
        };
        if self.auth_handler.holds() {
            self.conn.request_service().map_err(|e| engine_error(&e))?;
            self.flush(now)?;
            self.mark(TimelineStep::Held);
        }
        let credentials = self.auth_handler.credentials(binding);
        let credentials = credentials.map_err(|e| self.refused(e))?;
        if self.auth_handler.holds() {
            self.mark(TimelineStep::Wanted);
        }
        let opens = self.first.is_wanted() && self.agents.is_none();
        // Without jobs, a further connection still requests its channel with the login.
        let has_jobs = match self.config.role {
            LinkRole::Further => self.first_jobs == FirstJobTime::WithLogin,
            LinkRole::First | LinkRole::Direct => true,
        };
        // Most systems send the locale (SendEnv LANG LC_*), which is not secret. Other variables
        // are sent only after authentication.
        let harmless = self.config.env.iter().all(|(name, _)| is_locale(name));
        let likely = credentials.is_likely() && harmless;
        let early = match self.predicts() {
            _ if !credentials.verified => EarlyMessages::Nothing,
            true if credentials.proven && has_jobs => EarlyMessages::Everything,
            true if opens && (likely || credentials.proven) => {
                EarlyMessages::Opening(sftp::INIT.len() as u32)
            }
            _ => EarlyMessages::Nothing,
        };
        let peer = self.conn.peer();
        let mut extensions = self.conn.extensions().clone();
        // After a guessed key exchange, Nagle's algorithm holds EXT_INFO until KEXINIT is
        // acknowledged; constrained keys in an agent sign only host-bound requests.
        let unheard = extensions == PeerExtensions::default();
        let since_8_9 = peer.and_then(|p| p.openssh()).is_some_and(|v| v >= (8, 9));
        extensions.hostbound |= unheard && since_8_9;
        let mut config = credentials.config(binding, &extensions);
        if peer.is_some_and(|p| p.software().starts_with("libssh")) {
            // Servers based on libssh 0.10 check for the end of the key exchange only between reads
            // of the socket (server.c, ssh_server_kex_termination). An authentication that succeeds
            // in the flight of NEWKEYS passes that check and the server waits forever; a key that
            // is only queried does not.
            for identity in &mut config.identities {
                identity.direct = false;
            }
        }
        self.denied = false;
        self.conn
            .start_auth(config, early)
            .map_err(|e| engine_error(&e))
    }

    /// Notes that this end goes no further with the server.
    fn refused(&mut self, error: ConnectError) -> LinkError {
        self.refused = Some((error.fault(), error.check()));
        LinkError::Lost(error.into())
    }

    /// True if the next channel's number and window can be predicted.
    pub(super) fn predicts(&self) -> bool {
        let known = |peer: &Identification| match self.config.role {
            LinkRole::Direct => self.is_what_was_started(peer),
            LinkRole::First | LinkRole::Further => peer.openssh().is_some(),
        };
        self.restarts.may_predict() && self.conn.peer().is_some_and(known)
    }

    /// True if the peer is the longhaul that was started over another connection, in this version.
    fn is_what_was_started(&self, peer: &Identification) -> bool {
        let remembered = self.config.remembered.as_ref();
        let said = remembered.is_some_and(|(banner, _)| banner == peer.as_str());
        peer.is_longhaul() && said
    }

    /// Handles an authentication event; true if the connection was restarted.
    fn handle_auth(
        &mut self,
        event: ClientAuthEvent,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, LinkError> {
        match event {
            ClientAuthEvent::Sign {
                identity,
                algorithm,
                data,
            } => {
                let signature = self.auth_handler.sign(identity, &algorithm, &data);
                if let Some(auth) = self.conn.auth() {
                    self.login.signed(identity, algorithm, auth.steps());
                    auth.sign(signature.as_deref());
                }
            }
            ClientAuthEvent::Password { attempt } => {
                let password = self.auth_handler.password(attempt);
                self.login.asked();
                if let Some(auth) = self.conn.auth() {
                    auth.password(password.as_ref());
                }
            }
            ClientAuthEvent::Prompts {
                name,
                instruction,
                prompts,
            } => {
                let answers = self.auth_handler.answers(&name, &instruction, &prompts);
                self.login.asked();
                if let Some(auth) = self.conn.auth() {
                    auth.answers(answers.as_deref());
                }
            }
            ClientAuthEvent::Banner(text) => self.auth_handler.banner(&text),
            ClientAuthEvent::Success => {
                info!("{}: authenticated", self.config.name);
                self.mark(TimelineStep::Authenticated);
                self.denied = false;
                self.login_effect.succeeded();
                // Compression begins here.
                self.update_borrow_policy();
                self.server_facts.rtt = self.stream.tcp_info().map(|tcp| tcp.min_rtt);
                self.server_facts.addresses = self.stream.addresses();
                self.auth_handler
                    .authenticated(self.login.key(), &self.server_facts);
                if let Some(opened) = &self.config.opened {
                    opened(self.facts());
                }
            }
            ClientAuthEvent::Failed { server, why } => {
                self.denied = true;
                self.login_effect.ended();
                if self.conn.is_early() && self.restarts.are_allowed() {
                    self.restart(events, "the key that worked last time was refused")?;
                    return Ok(true);
                }
                let text = why.unwrap_or_else(|| self.auth_handler.denied(&server));
                return Err(LinkError::Lost(text));
            }
        }
        Ok(false)
    }

    fn handle_channel(&mut self, now: Instant, event: ChannelEvent, events: &mut Vec<LinkEvent>) {
        match event {
            ChannelEvent::Data(id, bytes) => self.handle_data(now, id, bytes, events),
            ChannelEvent::ExtendedData(id, bytes) => self.handle_stderr(now, id, &bytes, events),
            ChannelEvent::RequestFailed(id) => {
                let why = match self.program(id) {
                    Some(ChannelProgram::Sftp) => {
                        "the server has no SFTP subsystem: set Subsystem sftp in its sshd_config"
                    }
                    _ => "the server does not run commands",
                };
                self.end_channel(id, ChannelEndReason::Closed(why), events);
            }
            ChannelEvent::OpenFailed {
                id,
                reason,
                description,
            } => {
                let why = format!("{description}; see MaxSessions in its sshd_config");
                self.refused_channel = Some((reason, description));
                self.end_channel(id, ChannelEndReason::Refused(&why), events);
            }
            ChannelEvent::ExitStatus(id, status) => self.channels.note_status(id, status),
            ChannelEvent::ExitSignal(id, signal) => {
                let what = match self.program(id) {
                    Some(ChannelProgram::Sftp) => "SFTP server",
                    _ => "command",
                };
                let why = killed(what, &signal);
                self.end_channel(id, ChannelEndReason::Closed(&why), events);
            }
            // The exit status may follow EOF; only CLOSE ends the channel.
            ChannelEvent::Eof(id) => {
                self.close_agent(id);
            }
            ChannelEvent::Closed(id) => self.handle_close(id, events),
            ChannelEvent::AgentOpened(id) => {
                let binding = self.conn.binding();
                let channels = self.conn.channels();
                match &mut self.agents {
                    Some(agents) => agents.opened(id, channels, binding),
                    None => channels.reject(id, "agent forwarding is off"),
                }
            }
            ChannelEvent::Alive => self.alive_answers += 1,
            ChannelEvent::Opened(_)
            | ChannelEvent::RequestSucceeded(_)
            | ChannelEvent::ProofsAnswered(_)
            | ChannelEvent::PredictionFailed(_)
            | ChannelEvent::SessionOpened(_)
            | ChannelEvent::Request { .. } => {}
        }
    }

    fn program(&self, id: SshChannel) -> Option<ChannelProgram> {
        self.channels.get(id).map(RemoteChannelState::program)
    }

    fn handle_data(
        &mut self,
        now: Instant,
        id: SshChannel,
        bytes: Bytes,
        events: &mut Vec<LinkEvent>,
    ) {
        self.restarts.note_data();
        // A lane requests only as much as it has room for, so the window is returned at once.
        let far = self.channels.get_mut(id);
        let returned = far.map_or(bytes.len(), |far| far.note_received(bytes.len()));
        let channels = self.conn.channels();
        channels.consumed(now, id, returned);
        let agent = self
            .agents
            .as_mut()
            .is_some_and(|a| a.data(id, &bytes, channels));
        if !agent {
            events.push(LinkEvent::Data(LinkChannelId(id.0), bytes));
        }
    }

    fn handle_stderr(
        &mut self,
        now: Instant,
        id: SshChannel,
        bytes: &[u8],
        events: &mut Vec<LinkEvent>,
    ) {
        self.conn.channels().consumed(now, id, bytes.len());
        let Some(far) = self.channels.get_mut(id) else {
            return;
        };
        match far.program() {
            ChannelProgram::Sftp => far.hear(bytes, events),
            // Messages of shells and startup files if the remote longhaul did not start.
            ChannelProgram::Served => {
                let text = crate::escape::text(bytes).to_string();
                debug!("{}: {}", self.config.name, text.trim_end());
            }
            ChannelProgram::Command => {}
        }
    }

    /// Closes the channel of a forwarded agent whose other end is closed. Returns false for any
    /// other channel.
    fn close_agent(&mut self, id: SshChannel) -> bool {
        let agent = self.agents.as_mut().is_some_and(|a| a.closed(id));
        if agent {
            self.conn.channels().close(id);
        }
        agent
    }

    /// Handles the other side's close of a channel.
    fn handle_close(&mut self, id: SshChannel, events: &mut Vec<LinkEvent>) {
        if self.close_agent(id) {
            return;
        }
        let Some(far) = self.channels.get(id) else {
            return events.push(LinkEvent::Ended(LinkChannelId(id.0)));
        };
        let why = match (far.program(), far.status()) {
            (ChannelProgram::Command, status) => {
                events.push(LinkEvent::Exited(LinkChannelId(id.0), Ok(status)));
                return self.close_channel(LinkChannelId(id.0));
            }
            (_, Some(status)) => far.exit_words(status),
            (_, None) => "the server closed the SFTP channel".to_owned(),
        };
        self.end_channel(id, ChannelEndReason::Closed(&why), events);
    }

    fn end_channel(
        &mut self,
        id: SshChannel,
        end: ChannelEndReason<'_>,
        events: &mut Vec<LinkEvent>,
    ) {
        if self.channels.end(id, end, events) {
            self.conn.channels().close(id);
            // The lowest free channel number no longer equals the number of opened channels.
            self.restarts.stop_predicting();
        }
    }

    /// Opens the congestion window in advance. True if there is something to write.
    pub(super) fn open_congestion_window(&mut self, now: Instant) -> Result<bool, LinkError> {
        let (sent, first) = (self.sent_bytes, self.restarts.count() == 0);
        let tcp = || self.stream.tcp_info();
        if !self.channels.is_empty() && self.window.ask(&mut self.conn, tcp) {
            return Ok(true);
        }
        let filled = self.window.fill(now, &mut self.conn, tcp, sent, first);
        filled.map_err(|e| engine_error(&e))
    }

    /// Largest write, in bytes, while the key exchange opens the congestion window; `None` is no
    /// limit.
    pub(super) fn key_exchange_segment(&mut self) -> Option<usize> {
        let first = self.conn.binding().is_none() && self.restarts.count() == 0;
        let remembered = self.config.remembered.as_ref();
        let openssh = match self.conn.peer() {
            Some(peer) => peer.openssh().is_some(),
            None => remembered.is_some_and(|(banner, _)| banner.contains("OpenSSH_")),
        };
        let queued = self.sending.bytes();
        (first && openssh)
            .then(|| self.window.segment(queued, || self.stream.tcp_info()))
            .flatten()
    }

    fn ask_rtt(&mut self, now: Instant) {
        let asked = self.rtt_asked;
        let due = asked.is_none_or(|at| now.duration_since(at) >= RTT_INTERVAL);
        if due && self.config.window_poll {
            self.rtt_asked = Some(now);
            if let Some(tcp) = self.stream.tcp_info() {
                if !tcp.rtt.is_zero() {
                    self.conn.channels().set_rtt(tcp.rtt);
                }
                self.conn.channels().follow_socket(tcp.rcv_wnd);
            }
        }
    }

    /// Returns the reason for the end of the connection: the carrier's error, or the server's text
    /// in place of an identification (RFC 4253 section 4.2), or `what`.
    pub(super) fn ended(&mut self, what: &str) -> LinkError {
        let carrier = self.stream.why_ended();
        let is_identified = self.conn.peer().is_some();
        let rest: &[u8] = match is_identified {
            true => &[],
            // The last line may lack a newline.
            false => self.segments.received(),
        };
        let said = [self.conn.preamble(), rest].concat();
        let said = in_one_line(&said).filter(|_| !is_identified);
        let is_unverified = self.conn.binding().is_none();
        match (said, carrier) {
            (said, None) if is_unverified => {
                let said = said.as_deref();
                error(&self.early_closes.note_closed(what, said, is_identified))
            }
            (Some(said), carrier) => {
                let what = carrier.as_deref().unwrap_or(what);
                error(&format!("{what}; its last message: {said}"))
            }
            (None, Some(carrier)) => error(&carrier),
            (None, None) => error(what),
        }
    }

    /// Receives the answer to a pending request for proofs of host keys, which a copy shorter than
    /// a round trip would miss. Gives up after a second.
    pub(super) fn await_proofs(&mut self) {
        let deadline = Instant::now() + PROOFS;
        let mut events = Vec::new();
        loop {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            self.readiness = SocketReadiness::UNKNOWN;
            if !self.auth_handler.awaits_proofs() || left.is_zero() || self.flush(now).is_err() {
                return;
            }
            let Ok(timeout) = Timespec::try_from(left) else {
                return;
            };
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            let polled = poll(&mut fds, Some(&timeout));
            if matches!(polled, Err(e) if e != Errno::INTR)
                || self.receive(now, &mut events).is_err()
            {
                return;
            }
            events.clear();
        }
    }

    pub(super) fn read(
        &mut self,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, LinkError> {
        let mut total = 0;
        let turn = self.segments.limit().unwrap_or(TURN).min(TURN);
        while self.readiness.readable && self.input != InputState::Ended && total < turn {
            match self.segments.read(&self.stream, self.conn.wanted()) {
                Ok(0) => {
                    self.input = InputState::Ended;
                    // Later the end may be that of a proxy, in the middle of the server's answer.
                    if self.conn.binding().is_none() {
                        self.login_effect.ended();
                    }
                    return Err(self.ended("the server closed the connection"));
                }
                Ok(n) => {
                    total += n;
                    self.received_bytes += n as u64;
                    if self.window.acknowledges(self.received_bytes) {
                        self.stream.acknowledge_at_once();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readiness.readable = false;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.ended(&broken(&e).to_string())),
            }
            let restarts = self.restarts.count();
            let handled = self.conn.handle_input(now, self.segments.received());
            self.pump(now, events)?;
            if self.restarts.count() != restarts {
                // Errors of the connection before the restart no longer matter.
                return Ok(true);
            }
            if let Err(ssh::Error::Disconnected { reason, .. }) = &handled {
                self.login_effect.ended();
                if self.conn.binding().is_none() {
                    self.early_closes.note_disconnect(*reason);
                }
            }
            handled.map_err(|e| input_error(&e, self.config.port))?;
        }
        if total > 0 {
            self.ask_rtt(now);
        }
        Ok(self.readiness.readable && self.input != InputState::Ended)
    }
}

/// Formats a server's text as one escaped line for use within a sentence.
fn in_one_line(said: &[u8]) -> Option<String> {
    const MOST: usize = 200;
    let text = String::from_utf8_lossy(said);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let all = lines.collect::<Vec<_>>().join("; ");
    let some: String = all.chars().take(MOST).collect();
    let cut = if some.len() < all.len() { "..." } else { "" };
    (!all.is_empty()).then(|| format!("{}{cut}", crate::escape::name(some.as_bytes())))
}

/// Describes the end of a program by a signal. A signal that RFC 4254 does not name has a local
/// name with `@` (SIG@openssh.com); SIGXFSZ is one.
fn killed(program: &str, signal: &str) -> String {
    match signal.contains('@') {
        true => format!(
            "the {program} was killed by a signal that SSH has no name for: a file size limit of \
             the account (ulimit -f) is one cause: check its limits, then copy again"
        ),
        false => format!("the {program} was killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_shown_in_a_line_and_moves_no_terminal() {
        assert_eq!(in_one_line(b" \r\n\n"), None);
        let said = in_one_line(b"\r\nToo many\x1b[2J users\r\nGo away");
        assert_eq!(said.as_deref(), Some("Too many\\x1b[2J users; Go away"));
        let long = in_one_line(&[b'x'; 1000]).unwrap_or_default();
        assert!(long.len() == 203 && long.ends_with("x..."), "{long}");
    }
}
