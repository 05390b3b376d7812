//! Moves bytes between socket, engine and session.

use std::io;
use std::time::Instant;

use mio::{Registry, Token};
use sftp::{ClientOutput, ServerInfo};
use ssh::channel::{ChannelId as SshChannel, OutgoingRequest};
use ssh::transport::Identification;
use tracing::debug;
use wire::PacketPool;

use super::channels::{ChannelProgram, RemoteChannelState};
use super::login::LoginEffect;
use super::{LinkRole, OutputState, QUEUE, SocketReadiness, SshLink, broken, engine_error};
use crate::session::{
    InitialServerFacts, Link, LinkChannelId, LinkError, LinkEvent, LinkSample, LonghaulProbeResult,
    RemoteLonghaulKnowledge, RemoteWindowState,
};
use crate::timeline::{ConnectionTimeline, TimelineStep};

/// Sealed bytes queued for the socket: enough for one large writev, and little enough to stay in
/// the cache.
const BATCH: usize = 256 << 10;
/// Bytes written or read per turn of the loop, so that neither direction starves the other.
pub(super) const TURN: usize = 1 << 20;
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
        self.readiness = SocketReadiness::UNKNOWN;
        Ok(())
    }

    fn expects_trees(&self) -> bool {
        let lists = |info: &ServerInfo| info.has("list-tree@longhaul");
        match &self.config.far {
            RemoteLonghaulKnowledge::UserAsserted => true,
            RemoteLonghaulKnowledge::SeenBefore(info) => lists(info),
            _ => false,
        }
    }

    fn is_straight(&self) -> bool {
        self.config.role == LinkRole::Direct
    }

    fn has_own_choice(&self) -> bool {
        self.uses_chosen_zlib()
    }

    fn was_denied(&self) -> bool {
        self.denied
    }

    fn was_never_served(&self) -> bool {
        self.login_effect == LoginEffect::Nothing
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        let ident = self.conn.peer()?;
        let remembered = self.config.remembered.as_ref();
        let same = remembered.filter(|(banner, _)| banner == ident.as_str());
        Some(InitialServerFacts {
            openssh: ident.openssh().is_some(),
            remembered: same
                .filter(|_| self.restarts.may_predict())
                .map(|(_, info)| info.clone()),
            far: self.known()?,
            deflates: self
                .conn
                .negotiated()
                .is_some_and(|n| n.c2s.compress || n.s2c.compress),
        })
    }

    fn pool(&self) -> PacketPool {
        match self.conn.peer().is_some_and(Identification::is_longhaul) {
            true => self.large.clone(),
            false => self.pool.clone(),
        }
    }

    fn track(&self) -> Option<ConnectionTimeline> {
        self.config.track.clone()
    }

    fn server_seen(&mut self, info: &ServerInfo) {
        self.auth_handler.server(info);
    }

    fn far_seen(&mut self, seen: &LonghaulProbeResult) {
        self.auth_handler.far(seen);
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        let alone = self
            .conn
            .peer()
            .is_some_and(Identification::takes_one_channel);
        if alone && !self.channels.is_empty() {
            return None;
        }
        let program = ChannelProgram::Sftp;
        let early = self.take_opened_early(program);
        Some(early.unwrap_or_else(|| self.open(program)))
    }

    fn open_served(&mut self) -> Option<LinkChannelId> {
        let program = ChannelProgram::Served;
        let early = self.take_opened_early(program);
        Some(early.unwrap_or_else(|| self.open(program)))
    }

    fn open_exec(&mut self, command: &[u8]) -> Option<LinkChannelId> {
        let id = self.open_session();
        let request = OutgoingRequest::Exec(command.to_vec());
        self.conn.channels().request(id, request, true);
        let far = RemoteChannelState::new(ChannelProgram::Command);
        self.channels.insert(id, far);
        Some(LinkChannelId(id.0))
    }

    fn end_input(&mut self, channel: LinkChannelId) {
        let channel = SshChannel(channel.0);
        if self.channels.contains(channel) {
            self.conn.channels().send_eof(channel);
        }
    }

    fn pause_output(&mut self, now: Instant, channel: LinkChannelId, paused: bool) {
        let channel = SshChannel(channel.0);
        if let Some(far) = self.channels.get_mut(channel) {
            let returned = far.pause_output(paused);
            self.conn.channels().consumed(now, channel, returned);
        }
    }

    fn close_channel(&mut self, channel: LinkChannelId) {
        let channel = SshChannel(channel.0);
        if self.channels.close(channel) {
            self.restarts.stop_predicting();
            // Further data of this channel would arrive too late to be useful.
            self.conn.channels().discard(channel);
            self.conn.channels().close(channel);
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
        self.readiness.readable |= readable;
        self.readiness.writable |= writable;
    }

    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        self.first.release(events);
        let read = self.read(now, events);
        let read = match (read, &self.output) {
            (Ok(false), OutputState::Failed(e)) => {
                let what = broken(e).to_string();
                Err(self.ended(&what))
            }
            (read, _) => read,
        };
        match read {
            // The connection ends if too much was sent early to a server that poses as OpenSSH or
            // no longer accepts the key. It then restarts, but no automatic setting may fail twice.
            Err(e)
                if self.restarts.are_allowed()
                    && (self.says_much_early() || self.may_begin_plainly()) =>
            {
                self.restart(events, &e.to_string())?;
                Ok(true)
            }
            done => {
                self.first.keep(events);
                done
            }
        }
    }

    fn limit_receive(&mut self, bytes: usize) {
        self.segments.set_limit(Some(bytes));
    }

    fn room(&self, channel: LinkChannelId) -> usize {
        let channel = SshChannel(channel.0);
        match self.channels.contains(channel) {
            true => match self.conn.queued(channel) {
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
            sent: self.sent_bytes.saturating_sub(self.window.filled()),
            received: self.received_bytes,
            unwritten: self.sending.bytes() as u64,
            tcp: self.stream.tcp_info(),
        }
    }

    fn ask_alive(&mut self) -> bool {
        self.conn.channels().send_keepalive();
        true
    }

    fn alive_answers(&self) -> u64 {
        self.alive_answers
    }

    fn send_window(&mut self, channel: LinkChannelId) -> RemoteWindowState {
        let id = SshChannel(channel.0);
        RemoteWindowState {
            largest: self.conn.channels().largest_window(id),
            stalled: self.conn.channels().is_stalled(id),
            queued: self.conn.queued(id) as u64,
        }
    }

    fn expect(&mut self, channel: LinkChannelId, bytes: u64) {
        self.conn.channels().expect(SshChannel(channel.0), bytes);
    }

    fn send(&mut self, channel: LinkChannelId, output: ClientOutput) {
        let id = SshChannel(channel.0);
        match output {
            ClientOutput::Bytes(bytes) => {
                let bytes = self.first.without_init(channel, &bytes);
                self.conn.channels().write(id, bytes);
            }
            ClientOutput::Block(block) => self.conn.channels().write_block(id, block),
        }
    }

    fn flush(&mut self, now: Instant) -> Result<bool, LinkError> {
        if matches!(self.output, OutputState::Corrupted) {
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
            if self.sending.is_empty() && self.open_congestion_window(now)? {
                continue;
            }
            if self.sending.is_empty() {
                break;
            }
            self.window.note_output();
            if !self.readiness.writable {
                break;
            }
            let pages = self.conn.peer().is_some_and(Identification::is_longhaul);
            let most = self.key_exchange_segment();
            match self.stream.write(&self.sending, pages, most) {
                Ok(n) => {
                    total += n;
                    self.sent_bytes += n as u64;
                    self.sending.written(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readiness.writable = false;
                }
                // The started write can neither be continued nor followed by another.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    self.output = OutputState::Corrupted;
                    return Err(LinkError::SourceTruncated(crate::disk::os_words(&e)));
                }
                // The reason may be in unread input, a DISCONNECT message, and that path also
                // decides on a restart.
                Err(e) => {
                    debug!("{}: {e}", self.config.name);
                    self.readiness.writable = false;
                    self.output = OutputState::Failed(e);
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
        [self.conn.poll_timeout(), self.window.due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError> {
        self.conn.handle_timeout(now).map_err(|e| engine_error(&e))
    }

    fn finish(mut self: Box<Self>) {
        self.mark(TimelineStep::Closed);
        self.await_proofs();
        if self.conn.disconnect(BY_APPLICATION, "done").is_ok() {
            self.readiness.writable = true;
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
