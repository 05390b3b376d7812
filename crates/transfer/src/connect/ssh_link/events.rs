//! Handles the events of the SSH engine, during and after the login.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use ssh::auth::AuthEvent;
use ssh::channel::{ChannelEvent, ChannelId as SshChannel, LARGE_DATA};
use ssh::transport::{DisabledProtection, Extensions, Ident, TransportEvent};
use ssh::{Early, Event};
use tracing::{debug, info};
use wire::BorrowPolicy;

use super::{Far, RemoteProgram, SshLink, engine_error, error};
use crate::connect::auth_handler::Binding;
use crate::session::{ChannelId, Link, LinkError, LinkEvent};
use crate::timeline::TimelineStep;

/// The maximum channel window with servers that support large ones: 2.5 Gbit/s at 200 ms.
const LARGE_WINDOW: u32 = 64 << 20;

/// True for environment variables that only select a language (locale(7)).
fn is_locale(name: &[u8]) -> bool {
    matches!(name, b"LANG" | b"LANGUAGE") || name.starts_with(b"LC_")
}

impl SshLink {
    /// Handles all pending events of the engine.
    pub(super) fn pump(
        &mut self,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), LinkError> {
        while let Some(event) = self.conn.poll_event() {
            match event {
                Event::Transport(event) => self.handle_transport(now, event)?,
                Event::Auth(event) => {
                    if self.handle_auth(event, events)? {
                        return Ok(());
                    }
                }
                // The key was valid for one login only, so there is no restart.
                Event::Channel(ChannelEvent::PredictionFailed(_)) if self.config.straight => {
                    return Err(error("the server numbers its channels otherwise"));
                }
                Event::Channel(ChannelEvent::PredictionFailed(_)) => {
                    return self.restart(events, "the server numbers its channels otherwise");
                }
                Event::Channel(event) => self.handle_channel(now, event, events),
                // Only a server's connection emits these.
                Event::Login(_) => {}
                Event::Retracted => {
                    debug!("{}: the session waits for another login", self.config.name);
                    self.opened_early = None;
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
                self.visit.banner = ident.as_str().to_owned();
            }
            TransportEvent::Negotiated {
                chosen,
                favourites,
                offers,
            } => {
                debug!(
                    "{}: kex {}, host key {}, cipher {} and {}{}",
                    self.config.name,
                    chosen.kex.name,
                    chosen.host_key,
                    chosen.c2s.cipher.name,
                    chosen.s2c.cipher.name,
                    if chosen.guess_right {
                        ", guessed right"
                    } else {
                        ""
                    },
                );
                self.visit.kex = favourites.0;
                self.visit.host_key_algorithm = favourites.1;
                self.offers = offers;
            }
            TransportEvent::HostKey(blob) => self.handle_host_key(now, &blob)?,
            TransportEvent::Keys { first } => {
                self.let_files_lie();
                if first {
                    self.mark(TimelineStep::Keys);
                } else {
                    self.tell_renounced();
                }
            }
            TransportEvent::Debug(text) => debug!("{} says: {text}", self.config.name),
            TransportEvent::Extensions | TransportEvent::Pong => {}
        }
        Ok(())
    }

    /// Raises packet and window sizes above OpenSSH's limits for servers that accept more.
    fn suit(&mut self, ident: &Ident) {
        let channels = self.conn.channels();
        if ident.is_longhaul() {
            channels.set_max_packet(LARGE_DATA as u32);
        }
        if ident.takes_large_windows() {
            channels.set_max_window(LARGE_WINDOW);
        }
    }

    /// Sets how far packets may borrow file data with the new keys (copied into packets, encrypted in
    /// place, or sent from the page cache), and logs it.
    fn let_files_lie(&self) {
        let outlying = self.conn.outlying();
        debug!(
            "{}: new keys; file data are {}",
            self.config.name,
            match outlying {
                BorrowPolicy::Never => "copied into packets",
                BorrowPolicy::UntilSealed => "encrypted from where the kernel has them",
                BorrowPolicy::UntilSent => "sent from where the kernel has them",
            }
        );
        self.pool.set_outlying(outlying);
        self.large.set_outlying(outlying);
    }

    /// Reports once whether data are sent without encryption.
    fn tell_renounced(&mut self) {
        let asked = std::mem::replace(&mut self.config.renounced, DisabledProtection::Nothing);
        let Some(n) = self.conn.negotiated().filter(|_| !self.config.again) else {
            return;
        };
        let (clear, mac) = (n.c2s.cipher.is_none(), n.c2s.mac.is_some());
        let name = &self.config.name;
        let text = match (asked, clear, mac) {
            (DisabledProtection::Nothing, ..) => return,
            (_, true, true) => format!(
                "WARNING: data to and from {name} are NOT ENCRYPTED (--insecure-none-cipher)"
            ),
            (_, true, false) => format!(
                "WARNING: data to and from {name} are NOT ENCRYPTED and NOT AUTHENTICATED \
                 (--insecure-none-mac)"
            ),
            (_, false, _) => {
                format!("{name} was not told to do without encryption: data are encrypted as ever")
            }
        };
        match clear {
            true => self.gate.danger(&text),
            false => self.gate.banner(&text),
        }
    }

    fn handle_host_key(&mut self, now: Instant, blob: &Bytes) -> Result<(), LinkError> {
        let address = self.stream.address();
        let address = address.and_then(|a| a.parse().ok());
        let address = address.map(|a: SocketAddr| a.ip());
        self.gate.host_key(blob, address).map_err(LinkError::Lost)?;
        self.visit.host_key = blob.to_vec();
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
        let binding = Binding {
            host_key: &host_key,
            session_id: &session_id,
            signature: &signature,
        };
        if self.gate.holds() {
            self.conn.request_service().map_err(|e| engine_error(&e))?;
            self.flush(now)?;
            self.mark(TimelineStep::Held);
        }
        let credentials = self.gate.credentials(binding).map_err(LinkError::Lost)?;
        if self.gate.holds() {
            self.mark(TimelineStep::Wanted);
        }
        let opens = self.for_session && self.agents.is_none();
        // Jobs go to authenticated connections only: a further connection requests just its channel
        // early.
        let further = self.only_once && self.config.serving.is_some();
        // Most systems send the locale (SendEnv LANG LC_*), which is not secret. Other variables
        // are sent only after authentication.
        let harmless = self.config.env.iter().all(|(name, _)| is_locale(name));
        let likely = credentials.is_likely() && harmless;
        let early = match self.predicts() {
            _ if !credentials.verified => Early::Nothing,
            true if credentials.proven && !further => Early::Everything,
            true if opens && (likely || credentials.proven) => {
                Early::Opening(sftp::INIT.len() as u32)
            }
            _ => Early::Nothing,
        };
        let peer = self.conn.peer();
        let mut extensions = self.conn.extensions().clone();
        // After a guessed key exchange, Nagle's algorithm holds EXT_INFO until KEXINIT is
        // acknowledged; constrained keys in an agent sign only host-bound requests.
        let unheard = extensions == Extensions::default();
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
        self.conn
            .start_auth(config, early)
            .map_err(|e| engine_error(&e))
    }

    /// True if the next channel's number and window can be predicted.
    pub(super) fn predicts(&self) -> bool {
        let known = |peer: &Ident| match self.config.straight {
            true => self.is_what_was_started(peer),
            false => peer.openssh().is_some(),
        };
        !self.step_by_step && self.conn.peer().is_some_and(known)
    }

    /// True if the peer is the longhaul that was started over another connection, in this version.
    fn is_what_was_started(&self, peer: &Ident) -> bool {
        let remembered = self.config.remembered.as_ref();
        let said = remembered.is_some_and(|(banner, _)| banner == peer.as_str());
        peer.is_longhaul() && said
    }

    /// Handles an authentication event; true if the connection was restarted.
    fn handle_auth(
        &mut self,
        event: AuthEvent,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, LinkError> {
        match event {
            AuthEvent::Sign {
                identity,
                algorithm,
                data,
            } => {
                let signature = self.gate.sign(identity, &algorithm, &data);
                self.other_method |= self.signed.is_some() && !self.conn.is_early();
                self.signed = Some((identity, algorithm));
                if let Some(auth) = self.conn.auth() {
                    auth.sign(signature.as_deref());
                }
            }
            AuthEvent::Password { attempt } => {
                let password = self.gate.password(attempt);
                self.other_method = true;
                if let Some(auth) = self.conn.auth() {
                    auth.password(password.as_ref());
                }
            }
            AuthEvent::Prompts {
                name,
                instruction,
                prompts,
            } => {
                let answers = self.gate.answers(&name, &instruction, &prompts);
                self.other_method = true;
                if let Some(auth) = self.conn.auth() {
                    auth.answers(answers.as_deref());
                }
            }
            AuthEvent::Banner(text) => self.gate.banner(&text),
            AuthEvent::Success => {
                info!("{}: authenticated", self.config.name);
                self.mark(TimelineStep::Authenticated);
                // Compression begins here.
                self.let_files_lie();
                self.visit.rtt = self.stream.tcp_info().map(|tcp| tcp.min_rtt);
                self.visit.addresses = self.stream.addresses();
                let key = self.signed.as_ref().filter(|_| !self.other_method);
                self.gate
                    .authenticated(key.map(|(i, a)| (*i, a.as_str())), &self.visit);
                if let Some(opened) = &self.config.opened {
                    opened(self.facts());
                }
            }
            AuthEvent::Failed { server, why } => {
                if self.conn.is_early() && !self.only_once {
                    self.restart(events, "the key that worked before was refused")?;
                    return Ok(true);
                }
                self.denied = true;
                let text = why.unwrap_or_else(|| self.gate.denied(&server));
                return Err(LinkError::Lost(text));
            }
        }
        Ok(false)
    }

    fn handle_channel(&mut self, now: Instant, event: ChannelEvent, events: &mut Vec<LinkEvent>) {
        match event {
            ChannelEvent::Data(id, bytes) => {
                self.heard_channel = true;
                // A lane requests only as much as it has room for, so the window is returned at
                // once.
                let channels = self.conn.channels();
                channels.consumed(now, id, bytes.len());
                let agent = self
                    .agents
                    .as_mut()
                    .is_some_and(|a| a.data(id, &bytes, channels));
                if !agent {
                    events.push(LinkEvent::Data(ChannelId(id.0), bytes));
                }
            }
            ChannelEvent::ExtendedData(id, bytes) => {
                self.conn.channels().consumed(now, id, bytes.len());
                match self.channels.get_mut(&id.0) {
                    Some(far) if far.at == RemoteProgram::Sftp => far.hear(&bytes, events),
                    // Messages of shells and startup files if the remote longhaul did not start.
                    Some(far) if far.at == RemoteProgram::Served => {
                        let text = crate::escape::text(&bytes).to_string();
                        debug!("{}: {}", self.config.name, text.trim_end());
                    }
                    _ => {}
                }
            }
            ChannelEvent::RequestSucceeded(id) => {
                if let Some(far) = self.channels.get_mut(&id.0) {
                    far.granted = true;
                }
            }
            ChannelEvent::RequestFailed(id) => {
                let why = match self.channels.get(&id.0).map(|far| far.at) {
                    Some(RemoteProgram::Sftp) => "the server has no SFTP subsystem",
                    _ => "the server runs no command",
                };
                self.end_channel(id, why, events);
            }
            ChannelEvent::OpenFailed {
                id, description, ..
            } => {
                let before = events.len();
                let why = format!("the server refused a channel: {description}");
                self.end_channel(id, &why, events);
                for event in &mut events[before..] {
                    if let LinkEvent::Closed(channel, _) = event {
                        *event = LinkEvent::Refused(*channel, why.clone());
                    }
                }
            }
            ChannelEvent::ExitStatus(id, status) => {
                if let Some(far) = self.channels.get_mut(&id.0) {
                    far.status = Some(status);
                }
            }
            ChannelEvent::ExitSignal(id, signal) => {
                let what = match self.channels.get(&id.0).map(|far| far.at) {
                    Some(RemoteProgram::Sftp) => "SFTP server",
                    _ => "command",
                };
                let why = format!("the {what} was ended by signal {signal}");
                self.end_channel(id, &why, events);
            }
            ChannelEvent::Eof(id) | ChannelEvent::Closed(id)
                if self.agents.as_mut().is_some_and(|a| a.closed(id)) =>
            {
                self.conn.channels().close(id);
            }
            ChannelEvent::Eof(id) | ChannelEvent::Closed(id) => {
                if let Some(far) = self
                    .channels
                    .get(&id.0)
                    .filter(|far| far.at == RemoteProgram::Command)
                {
                    if matches!(event, ChannelEvent::Closed(_)) {
                        events.push(LinkEvent::Exited(ChannelId(id.0), Ok(far.status)));
                        self.close_channel(ChannelId(id.0));
                    }
                    return;
                }
                let known = self.channels.contains_key(&id.0);
                if !known && matches!(event, ChannelEvent::Closed(_)) {
                    events.push(LinkEvent::Over(ChannelId(id.0)));
                }
                let far = self.channels.get(&id.0);
                let served = far.is_some_and(|far| far.at == RemoteProgram::Served);
                let why = match far.and_then(|far| far.status) {
                    Some(status) if served => format!("the command ended with status {status}"),
                    Some(status) => format!("the SFTP server ended with status {status}"),
                    None => "the server closed the SFTP channel".to_owned(),
                };
                // The exit status may follow EOF; only CLOSE ends the channel.
                if matches!(event, ChannelEvent::Closed(_)) {
                    self.end_channel(id, &why, events);
                }
            }
            ChannelEvent::AgentOpened(id) => {
                let binding = self.conn.binding();
                let channels = self.conn.channels();
                match &mut self.agents {
                    Some(agents) => agents.opened(id, channels, binding),
                    None => channels.reject(id, "no agent is forwarded"),
                }
            }
            ChannelEvent::Opened(_)
            | ChannelEvent::Alive
            | ChannelEvent::PredictionFailed(_)
            | ChannelEvent::SessionOpened(_)
            | ChannelEvent::Request { .. } => {}
        }
    }

    fn end_channel(&mut self, id: SshChannel, why: &str, events: &mut Vec<LinkEvent>) {
        if let Some(mut far) = self.channels.remove(&id.0) {
            if far.at == RemoteProgram::Sftp {
                far.hear(b"\n", events);
            }
            self.conn.channels().close(id);
            // The lowest free channel number no longer equals the number of opened channels.
            self.step_by_step = true;
            events.push(far.ended(ChannelId(id.0), why));
        }
    }
}

impl Far {
    /// Returns the event that reports the end of the channel with this reason.
    pub(super) fn ended(&self, id: ChannelId, why: &str) -> LinkEvent {
        match self.at {
            RemoteProgram::Command => LinkEvent::Exited(id, Err(why.to_owned())),
            _ => LinkEvent::Closed(id, Some(why.to_owned())),
        }
    }

    /// Passes standard error on line by line; a line without a newline is passed on at 1,000 bytes.
    fn hear(&mut self, bytes: &[u8], events: &mut Vec<LinkEvent>) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.errors.extend_from_slice(part);
            if part.ends_with(b"\n") || self.errors.len() > 1000 {
                let line = std::mem::take(&mut self.errors);
                let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                if !text.is_empty() {
                    events.push(LinkEvent::Says(text));
                }
            }
        }
    }
}
