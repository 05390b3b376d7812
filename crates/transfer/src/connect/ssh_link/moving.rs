//! Moves bytes between socket, engine and session.

use std::io;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use sftp::{Output, ServerInfo};
use ssh::channel::{ChannelId as SshChannel, Request};
use ssh::transport::Ident;
use tracing::debug;
use wire::Pool;

use super::{QUEUE, RemoteEnd, RemoteProgram, SshLink, broken, engine_error, error};
use crate::session::{
    ChannelId, Link, LinkError, LinkEvent, LinkSample, Peer, ProbeResult, RemoteKnowledge,
    SendWindow,
};

/// Sealed bytes queued for the socket: enough for one large writev, and little enough to stay in
/// the cache.
const BATCH: usize = 256 << 10;
/// Bytes written or read per turn of the loop, so that neither direction starves the other.
const TURN: usize = 1 << 20;
/// The interval at which the kernel is polled for the round trip.
const RTT_INTERVAL: Duration = Duration::from_millis(50);
/// The reason code SSH_DISCONNECT_BY_APPLICATION.
const BY_APPLICATION: u32 = 11;

impl Link for SshLink {
    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.stream.register(registry, first)?;
        self.registered = Some((registry.try_clone()?, first));
        if let Some(agents) = &mut self.agents {
            agents.register(registry, first)?;
        }
        // Data that arrived before the registration raise no event.
        self.readable = true;
        self.writable = true;
        Ok(())
    }

    fn expects_trees(&self) -> bool {
        let lists = |info: &ServerInfo| info.has("list-tree@longhaul");
        match &self.config.far {
            RemoteKnowledge::Hoped => true,
            RemoteKnowledge::Serves(info) => lists(info),
            _ => false,
        }
    }

    fn is_straight(&self) -> bool {
        self.config.straight
    }

    fn has_own_choice(&self) -> bool {
        self.uses_chosen_zlib()
    }

    fn peer(&self) -> Option<Peer> {
        let ident = self.conn.peer()?;
        let remembered = self.config.remembered.as_ref();
        let same = remembered.filter(|(banner, _)| banner == ident.as_str());
        Some(Peer {
            openssh: ident.openssh().is_some(),
            remembered: same
                .filter(|_| !self.step_by_step)
                .map(|(_, info)| info.clone()),
            far: self.known()?,
            deflates: self
                .conn
                .negotiated()
                .is_some_and(|n| n.c2s.compress || n.s2c.compress),
        })
    }

    fn pool(&self) -> Pool {
        match self.conn.peer().is_some_and(Ident::is_longhaul) {
            true => self.large.clone(),
            false => self.pool.clone(),
        }
    }

    fn server_seen(&mut self, info: &ServerInfo) {
        self.gate.server(info);
    }

    fn far_seen(&mut self, seen: &ProbeResult) {
        self.gate.far(seen);
    }

    fn open_channel(&mut self) -> Option<ChannelId> {
        let alone = self.conn.peer().is_some_and(Ident::takes_one_channel);
        if alone && !self.channels.is_empty() {
            return None;
        }
        self.take_opened_early(false).or_else(|| self.open(false))
    }

    fn open_served(&mut self) -> Option<ChannelId> {
        self.take_opened_early(true).or_else(|| self.open(true))
    }

    fn open_exec(&mut self, command: &[u8]) -> Option<ChannelId> {
        let id = self.open_session();
        let request = Request::Exec(command.to_vec());
        self.conn.channels().request(id, request, true);
        let far = RemoteEnd {
            at: RemoteProgram::Command,
            ..RemoteEnd::default()
        };
        self.channels.insert(id.0, far);
        Some(ChannelId(id.0))
    }

    fn end_input(&mut self, channel: ChannelId) {
        if self.channels.contains_key(&channel.0) {
            self.conn.channels().send_eof(SshChannel(channel.0));
        }
    }

    fn close_channel(&mut self, channel: ChannelId) {
        if self.channels.remove(&channel.0).is_some() {
            self.step_by_step = true;
            // Further data of this channel would arrive too late to be useful.
            self.conn.channels().discard(SshChannel(channel.0));
            self.conn.channels().close(SshChannel(channel.0));
        }
    }

    fn ready(&mut self, token: Token, readable: bool, writable: bool) {
        // An agent's socket: every turn handles all agent sockets.
        if self
            .registered
            .as_ref()
            .is_some_and(|(_, first)| token.0 > first.0)
        {
            return;
        }
        self.readable |= readable;
        self.writable |= writable;
    }

    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        if let Some(opened) = self.opened_early.as_mut().filter(|opened| opened.taken) {
            events.append(&mut opened.events);
        }
        let read = self.read(now, events);
        let read = read.and_then(|more| match self.write_error.take_if(|_| !more) {
            Some(e) => Err(broken(&e)),
            None => Ok(more),
        });
        match read {
            // The connection ends if too much was sent early to a server that poses as OpenSSH or
            // no longer accepts the key. It then restarts, but no automatic setting may fail twice.
            Err(e) if !self.only_once && (self.says_much_early() || self.may_begin_plainly()) => {
                self.restart(events, &e.to_string())?;
                Ok(true)
            }
            done => {
                self.keep_for_session(events);
                done
            }
        }
    }

    fn limit_receive(&mut self, bytes: usize) {
        self.segments.set_limit(Some(bytes));
    }

    fn room(&self, channel: ChannelId) -> usize {
        match self.channels.contains_key(&channel.0) {
            true => match self.conn.queued(SshChannel(channel.0)) {
                queued if queued > QUEUE / 2 => 0,
                queued => QUEUE - queued,
            },
            false => 0,
        }
    }

    fn bear_losses(&mut self) -> bool {
        self.stream.bear_losses()
    }

    fn is_one_machine(&self) -> bool {
        self.stream.is_one_machine()
    }

    fn sample(&self) -> LinkSample {
        LinkSample {
            // Padding sent by IGNORE messages does not measure the path.
            sent: self.sent_bytes.saturating_sub(self.filled as u64),
            received: self.received_bytes,
            unwritten: self.sending.bytes() as u64,
            tcp: self.stream.tcp_info(),
        }
    }

    fn send_window(&mut self, channel: ChannelId) -> SendWindow {
        let id = SshChannel(channel.0);
        SendWindow {
            largest: self.conn.channels().largest_window(id),
            stalled: self.conn.channels().is_stalled(id),
            queued: self.conn.queued(id) as u64,
        }
    }

    fn expect(&mut self, channel: ChannelId, bytes: u64) {
        self.conn.channels().expect(SshChannel(channel.0), bytes);
    }

    fn send(&mut self, channel: ChannelId, output: Output) {
        let id = SshChannel(channel.0);
        match output {
            Output::Bytes(bytes) => {
                let bytes = self.without_init(channel, &bytes);
                self.conn.channels().write(id, bytes);
            }
            Output::Block(block) => self.conn.channels().write_block(id, block),
        }
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        if self.spoiled {
            return Ok(false);
        }
        if let Some(agents) = &mut self.agents {
            agents.turn(self.conn.channels());
        }
        let mut total = 0;
        while total < TURN {
            let filled = self.sending.fill(&mut self.conn, BATCH);
            filled.map_err(|e| engine_error(&e))?;
            // Real output goes before IGNORE messages.
            if self.sending.is_empty() && self.open_congestion_window()? {
                continue;
            }
            if self.sending.is_empty() || !self.writable {
                break;
            }
            let pages = self.conn.peer().is_some_and(Ident::is_longhaul);
            match self.stream.write(&self.sending, pages) {
                Ok(n) => {
                    total += n;
                    self.sent_bytes += n as u64;
                    self.sending.written(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                // The started write can neither be continued nor followed by another.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    self.spoiled = true;
                    return Err(LinkError::Torn(crate::disk::os_words(&e)));
                }
                // The reason may be in unread input, a DISCONNECT message, and that path also
                // decides on a restart.
                Err(e) => {
                    debug!("{}: {e}", self.config.name);
                    self.writable = false;
                    self.write_error = Some(e);
                    return Ok(true);
                }
            }
        }
        if total < TURN {
            let settled = self.sending.settle(&mut self.conn);
            settled.map_err(|e| engine_error(&e))?;
        }
        Ok(total > 0)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.conn.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError> {
        self.conn.handle_timeout(now).map_err(|e| engine_error(&e))
    }

    fn finish(mut self: Box<Self>) {
        if self.conn.disconnect(BY_APPLICATION, "done").is_ok() {
            self.writable = true;
            let _ = self.flush(Instant::now());
        }
    }

    fn cuts(&self) -> bool {
        self.stream.cuts()
    }

    fn cut(self: Box<Self>) {
        self.stream.cut();
    }
}

impl SshLink {
    /// Opens a channel with an SFTP server: the stock one, or with `served` a longhaul started by
    /// command.
    pub(super) fn open(&mut self, served: bool) -> Option<ChannelId> {
        let id = self.open_session();
        let channels = self.conn.channels();
        if self.agents.is_some() && self.gate.may_forward() {
            channels.request(id, Request::AgentForwarding, false);
        }
        for (name, value) in &self.config.env {
            channels.request(id, Request::Env(name.clone(), value.clone()), false);
        }
        let (request, at) = match served {
            true => (
                Request::Exec(self.config.served_by.clone()),
                RemoteProgram::Served,
            ),
            false => (Request::Subsystem(b"sftp".to_vec()), RemoteProgram::Sftp),
        };
        channels.request(id, request, true);
        let far = RemoteEnd {
            at,
            ..RemoteEnd::default()
        };
        self.channels.insert(id.0, far);
        Some(ChannelId(id.0))
    }

    fn open_session(&mut self) -> SshChannel {
        // MaxSessions may be 1, and sshd ends a connection that makes requests on a refused
        // channel. Before authentication only a login is lost by that.
        let predicts = self.predicts();
        let alone = self.channels.is_empty() || self.conn.is_early();
        let channels = self.conn.channels();
        match predicts {
            true if alone => channels.open_session_predicted(),
            true => channels.open_session_counting(),
            false => channels.open_session(),
        }
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
    fn ended(&mut self, what: &str) -> LinkError {
        let carrier = self.stream.why_ended();
        let what = carrier.as_deref().unwrap_or(what);
        let rest: &[u8] = match self.conn.peer() {
            Some(_) => &[],
            // The last line may lack a newline.
            None => self.segments.received(),
        };
        let said = [self.conn.preamble(), rest].concat();
        match self
            .conn
            .peer()
            .is_none()
            .then(|| in_one_line(&said))
            .flatten()
        {
            Some(said) => error(&format!("{what}; its last message: {said}")),
            None => error(what),
        }
    }

    fn read(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        let mut total = 0;
        let turn = self.segments.limit().unwrap_or(TURN).min(TURN);
        while self.readable && !self.ended && total < turn {
            match self.segments.read(&self.stream, self.conn.wanted()) {
                Ok(0) => {
                    self.ended = true;
                    return Err(self.ended("the server closed the connection"));
                }
                Ok(n) => {
                    total += n;
                    self.received_bytes += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if self.conn.peer().is_none() => {
                    let why = crate::disk::os_words(&e);
                    return Err(self.ended(&format!("the connection broke: {why}")));
                }
                Err(e) => return Err(broken(&e)),
            }
            let restarts = self.restarts;
            let handled = self.conn.handle_input(now, self.segments.received());
            self.pump(now, events)?;
            if self.restarts != restarts {
                // Errors of the connection before the restart no longer matter.
                return Ok(true);
            }
            handled.map_err(|e| engine_error(&e))?;
        }
        if total > 0 {
            self.ask_rtt(now);
        }
        Ok(self.readable && !self.ended)
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
