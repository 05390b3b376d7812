//! Channels (RFC 4254 section 5) for either role: flow-controlled byte streams over one transport.
//! No I/O: [`crate::Connection`] feeds it and takes its packets.

mod event;
mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use wire::{Field, PacketBuf, PacketPool, PayloadBlock, RemainingBytes};

pub use event::{ChannelEvent, ChannelId, OutgoingRequest};
use outgoing::{ChannelState, InitialWindowState, OutgoingDataState, QueuedMessage};
use window::{ReceiveWindow, SendWindow};

use crate::EndpointRole;
use crate::error::Error;
use crate::msg::{
    ChannelFailure, ChannelOpen, ChannelOpenConfirmation, ChannelOpenFailure, ChannelSuccess,
    GlobalRequest,
};

/// Default maximum data payload in bytes: OpenSSH's CHAN_SES_PACKET_DEFAULT. sshd silently drops
/// larger packets.
const MAX_DATA: usize = 32 * 1024;
/// Largest data payload in bytes that fits into the longest packet (PACKET_MAX_SIZE of OpenSSH's
/// packet.c, 256 KiB): an SFTP reply or WRITE in one piece.
pub const LARGE_DATA: usize = 256 * 1024 - 512;
/// Window in bytes that sshd grants a session channel once a program runs: CHAN_SES_WINDOW_DEFAULT.
const ASSUMED_WINDOW: u32 = 2 << 20;
/// Maximum length in bytes of a block that is copied behind other data if there is room.
const SMALL: usize = 8 * 1024;
/// Reason code SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254 section 5.1).
const PROHIBITED: u32 = 1;
/// Maximum number of queued replies and control messages; a peer that sends more requests without
/// reading the replies is broken or hostile.
const MAX_CONTROL: usize = 4096;
/// Maximum number of channels that a peer may have open.
const MAX_CHANNELS: usize = 1024;

/// Window and packet sizes that this end grants to the sender on each channel (RFC 4254 sections
/// 5.1 and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelsConfig {
    /// Initial window of a channel in bytes.
    pub window: u32,
    /// Maximum window of a channel in bytes. At most 15 MiB towards OpenSSH 8.4 and later, whose
    /// sender moves its whole buffer for each packet above that.
    pub max_window: u32,
    /// Maximum data payload accepted in one packet, in bytes: at most [`LARGE_DATA`].
    pub max_packet: u32,
}

impl Default for ChannelsConfig {
    fn default() -> Self {
        Self {
            window: 2 << 20,
            max_window: 15 << 20,
            max_packet: MAX_DATA as u32,
        }
    }
}

/// Number of closed channels that are remembered.
const CLOSED: usize = 16;
/// Maximum number of messages to closed channels per connection. In paramiko, several threads write
/// to a channel, each under a lock that is released before the packet is sent
/// (`ChannelState._send`, channel.py), so a packet may follow CLOSE.
const LATE: u32 = 64;

/// All channels of a connection. Assigns their numbers, accounts for windows in both directions,
/// and lets the channels send in turn.
pub struct Channels {
    role: EndpointRole,
    config: ChannelsConfig,
    pool: PacketPool,
    rtt: Option<Duration>,
    channels: BTreeMap<u32, ChannelState>,
    next: u32,
    /// Channels closed by both sides, most recent last, for which late messages are tolerated.
    closed: VecDeque<u32>,
    /// Number of late messages so far.
    late: u32,
    /// Predicted number of the peer's next channel; `None` once it cannot be known.
    expected: Option<u32>,
    /// Window in bytes that is assumed before the peer confirms a predicted channel.
    assumed: u32,
    /// Number of the channel that sends next.
    turn: u32,
    control: VecDeque<Vec<u8>>,
    /// Outstanding global requests, which are answered in order.
    asked: VecDeque<PendingGlobalRequest>,
    agent_allowed: bool,
    events: VecDeque<ChannelEvent>,
}

/// A global request of ours that the peer has to answer.
#[derive(Clone, Copy, Debug)]
enum PendingGlobalRequest {
    /// A keepalive.
    Alive,
    /// A request for proofs of host keys.
    Proofs,
}

impl Channels {
    /// Creates a connection's channels, none of them open.
    pub fn new(role: EndpointRole, config: ChannelsConfig, pool: PacketPool) -> Self {
        Self {
            role,
            config,
            pool,
            rtt: None,
            channels: BTreeMap::new(),
            next: 0,
            closed: VecDeque::new(),
            late: 0,
            expected: Some(0),
            assumed: ASSUMED_WINDOW,
            turn: 0,
            control: VecDeque::new(),
            asked: VecDeque::new(),
            agent_allowed: false,
            events: VecDeque::new(),
        }
    }

    /// Sets the path's round trip, which decides if windows grow.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = Some(rtt);
    }

    /// Sets the maximum window of channels in bytes.
    pub fn set_max_window(&mut self, bytes: u32) {
        self.config.max_window = bytes.max(self.config.window);
    }

    /// Sets the maximum data payload for channels opened from now on, in bytes.
    pub fn set_max_packet(&mut self, bytes: u32) {
        self.config.max_packet = bytes.min(LARGE_DATA as u32);
    }

    /// Sets the assumed window in bytes for predicted channels that have sent nothing and are not
    /// confirmed; `None` restores the window that sshd is known to grant.
    pub(crate) fn set_assumed(&mut self, bytes: Option<u32>) {
        self.assumed = bytes.unwrap_or(ASSUMED_WINDOW);
        for channel in self.channels.values_mut() {
            if bytes.is_some() && channel.is_predicted() {
                channel.send = SendWindow::assumed(self.assumed, MAX_DATA);
            }
        }
    }

    /// Resets all channels, since the peer has accepted nothing of what was sent.
    pub(crate) fn retract(&mut self) {
        self.channels.clear();
        self.control.clear();
        self.next = 0;
        self.expected = Some(0);
        self.set_assumed(None);
    }

    /// Returns the pool of the channels' packets.
    pub fn pool(&self) -> PacketPool {
        self.pool.clone()
    }

    /// Returns the maximum payload in bytes of a packet on this channel.
    pub fn packet_room(&self, id: ChannelId) -> usize {
        let most = self.channels.get(&id.0).map(|c| c.send.max_packet);
        most.filter(|most| *most > MAX_DATA)
            .map_or(MAX_DATA, |most| most.min(self.pool.slot()))
    }

    /// Opens a session channel (RFC 4254 section 6.1).
    pub fn open_session(&mut self) -> ChannelId {
        self.open(b"session", &[], false)
    }

    /// Opens a session and predicts the peer's channel number, so that requests and data can follow
    /// at once. Only for OpenSSH, which assigns the lowest free number.
    ///
    /// The session is opened without prediction if the number cannot be known: after a channel of
    /// this connection has ended, after the peer has opened one, or with agent forwarding, which
    /// takes a channel number at the peer.
    pub fn open_session_predicted(&mut self) -> ChannelId {
        self.open(b"session", &[], true)
    }

    /// Opens a session and predicts its window but not its number: data follows the first request
    /// at once. Only for OpenSSH, which confirms with an empty window, grants 2 MiB once it has
    /// started the program (session.c), and drops data for a refused request (channels.c).
    pub fn open_session_counting(&mut self) -> ChannelId {
        let id = self.open_session();
        if let Some(channel) = self.channels.get_mut(&id.0) {
            channel.grant = InitialWindowState::AssumedLater;
        }
        id
    }

    /// Opens a forwarded TCP connection from the peer to `host` (RFC 4254 section 7.2).
    pub fn open_direct_tcpip(&mut self, host: &str, port: u16) -> ChannelId {
        let mut data = Vec::new();
        host.as_bytes().write(&mut data);
        u32::from(port).write(&mut data);
        b"127.0.0.1".as_slice().write(&mut data);
        0u32.write(&mut data);
        self.open(b"direct-tcpip", &data, false)
    }

    fn open(&mut self, kind: &[u8], data: &[u8], predict: bool) -> ChannelId {
        let expected = self.expected;
        self.expected = expected.map(|n| n + 1);
        let id = self.take_number();
        let receive = ReceiveWindow::new(self.config.window, self.config.max_window);
        let open = ChannelOpen {
            kind,
            sender: id,
            window: receive.size(),
            max_packet: self.config.max_packet,
            data: RemainingBytes(data),
        };
        self.control.push_back(open.to_bytes());
        let mut channel = ChannelState::new(expected.filter(|_| predict), receive);
        if channel.remote.is_some() {
            channel.grant = InitialWindowState::Assumed;
            channel.send = SendWindow::assumed(self.assumed, MAX_DATA);
        }
        self.channels.insert(id, channel);
        ChannelId(id)
    }

    /// Removes a channel; from now on the peer's lowest free number is unknown.
    fn remove(&mut self, id: u32) -> Option<ChannelState> {
        self.expected = None;
        let channel = self.channels.remove(&id);
        if channel
            .as_ref()
            .is_some_and(ChannelState::is_closed_by_peer)
        {
            if self.closed.len() == CLOSED {
                self.closed.pop_front();
            }
            self.closed.push_back(id);
        }
        channel
    }

    fn take_number(&mut self) -> u32 {
        while self.channels.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        id
    }

    /// Accepts the channel of [`ChannelEvent::AgentOpened`] or [`ChannelEvent::SessionOpened`].
    pub fn accept(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id.0) else {
            return;
        };
        channel.confirmed = true;
        let confirmation = ChannelOpenConfirmation {
            recipient: channel.remote.unwrap_or_default(),
            sender: id.0,
            window: channel.receive.size(),
            max_packet: self.config.max_packet,
            data: RemainingBytes(&[]),
        };
        self.control.push_back(confirmation.to_bytes());
    }

    /// Refuses the channel of [`ChannelEvent::AgentOpened`] or [`ChannelEvent::SessionOpened`].
    pub fn reject(&mut self, id: ChannelId, why: &str) {
        if let Some(channel) = self.remove(id.0) {
            self.refuse(channel.remote.unwrap_or_default(), why);
        }
    }

    fn refuse(&mut self, recipient: u32, why: &str) {
        let failure = ChannelOpenFailure {
            recipient,
            reason: PROHIBITED,
            description: why.as_bytes(),
            language: b"",
        };
        self.control.push_back(failure.to_bytes());
    }

    /// Queues a channel request; the reply arrives as an event if one is wanted.
    pub fn request(&mut self, id: ChannelId, request: OutgoingRequest, want_reply: bool) {
        if request == OutgoingRequest::AgentForwarding {
            self.agent_allowed = true;
            self.expected = None;
        }
        if let Some(channel) = self.channels.get_mut(&id.0)
            && !channel.is_left()
            && !channel.is_closed_by_peer()
        {
            channel.queue.push_back(QueuedMessage::Request {
                request,
                want_reply,
            });
        }
    }

    /// Replies to [`ChannelEvent::Request`]: success if `granted`, else failure.
    pub fn answer(&mut self, id: ChannelId, granted: bool) {
        // Nothing may follow our CLOSE (RFC 4254 section 5.3), which may have crossed the request.
        let open = self.channels.get(&id.0).filter(|c| !c.close_sent);
        let Some(recipient) = open.and_then(|c| c.remote) else {
            return;
        };
        self.control.push_back(match granted {
            true => ChannelSuccess { recipient }.to_bytes(),
            false => ChannelFailure { recipient }.to_bytes(),
        });
    }

    /// Queues a copy of `bytes`; short writes share packets. Ignored after [`Channels::send_eof`]
    /// or [`Channels::close`].
    pub fn write(&mut self, id: ChannelId, mut bytes: &[u8]) {
        let pool = self.pool.clone();
        let Some(channel) = self.writable(id) else {
            return;
        };
        channel.queued += bytes.len();
        while !bytes.is_empty() {
            if !matches!(channel.queue.back(), Some(QueuedMessage::Data(p)) if p.room() > 0) {
                let slot = pool.slot().min(MAX_DATA);
                channel
                    .queue
                    .push_back(QueuedMessage::Data(pool.packet(0, slot)));
            }
            if let Some(QueuedMessage::Data(packet)) = channel.queue.back_mut() {
                let n = packet.append(bytes);
                bytes = bytes.get(n..).unwrap_or_default();
            }
        }
    }

    /// Queues a block, whose packets are sealed in place. A small block is copied behind data that
    /// waits: a packet of its own costs both ends more than the copy.
    pub fn write_block(&mut self, id: ChannelId, mut block: PayloadBlock) {
        let Some(channel) = self.writable(id) else {
            return;
        };
        let len = block.len();
        if len <= SMALL
            && !block.lies_outside()
            && let Some(QueuedMessage::Data(tail)) = channel.queue.back_mut()
            && tail.room() >= len
        {
            for packet in block.packets() {
                tail.append(packet.payload());
            }
            channel.queued += len;
            return;
        }
        while let Some(packet) = block.pop_front() {
            if !packet.is_empty() {
                channel.queued += packet.len();
                channel.queue.push_back(QueuedMessage::Data(packet));
            }
        }
    }

    /// Queues text for the channel's standard error (SSH_EXTENDED_DATA_STDERR).
    pub fn write_stderr(&mut self, id: ChannelId, text: &[u8]) {
        if let Some(channel) = self.writable(id) {
            channel.queued += text.len();
            channel
                .queue
                .push_back(QueuedMessage::Stderr(text.to_vec()));
        }
    }

    fn writable(&mut self, id: ChannelId) -> Option<&mut ChannelState> {
        let channel = self.channels.get_mut(&id.0)?;
        let writable = channel.outgoing == OutgoingDataState::Open && !channel.is_closed_by_peer();
        writable.then_some(channel)
    }

    /// Queues EOF: no more data will be written.
    pub fn send_eof(&mut self, id: ChannelId) {
        if let Some(channel) = self.writable(id) {
            channel.outgoing = OutgoingDataState::Ended;
            channel.queue.push_back(QueuedMessage::Eof);
        }
    }

    /// Drops data that was written and not yet sent.
    pub fn discard(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id.0) {
            channel
                .queue
                .retain(|q| !matches!(q, QueuedMessage::Data(_)));
            channel.queued = 0;
        }
    }

    /// Closes the channel once everything queued has been sent. Data that still arrives is dropped.
    pub fn close(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id.0)
            && std::mem::replace(&mut channel.outgoing, OutgoingDataState::Closed)
                != OutgoingDataState::Closed
            && !channel.is_closed_by_peer()
        {
            channel.queue.push_back(QueuedMessage::Close);
        }
    }

    /// Copies borrowed payload of queued packets into memory. Payload that is no longer available
    /// is reported when the packet is sealed.
    pub fn gather(&mut self) {
        for channel in self.channels.values_mut() {
            for queued in &mut channel.queue {
                if let QueuedMessage::Data(packet) = queued {
                    let _ = packet.gather();
                }
            }
        }
    }

    /// Returns the bytes written and not yet sent.
    pub fn queued(&self, id: ChannelId) -> usize {
        self.channels.get(&id.0).map_or(0, |c| c.queued)
    }

    /// Returns the bytes that the peer's window still permits.
    pub fn window(&self, id: ChannelId) -> u64 {
        self.channels.get(&id.0).map_or(0, |c| c.send.left())
    }

    /// Returns true if data waits only for the peer's window.
    pub fn is_stalled(&self, id: ChannelId) -> bool {
        self.channels
            .get(&id.0)
            .is_some_and(|c| match c.queue.front() {
                Some(QueuedMessage::Data(p)) => c.remote.is_some() && c.send.allows(p.len()) == 0,
                _ => false,
            })
    }

    /// Returns the largest window in bytes that the peer had open at once; 0 before it granted any.
    pub fn largest_window(&self, id: ChannelId) -> u64 {
        self.channels.get(&id.0).map_or(0, |c| c.send.largest())
    }

    /// Returns true if the channel exists: neither refused nor closed by both sides.
    pub fn exists(&self, id: ChannelId) -> bool {
        self.channels.contains_key(&id.0)
    }

    /// Reports that `n` bytes of received data were processed, so that they can be granted again.
    pub fn consumed(&mut self, now: Instant, id: ChannelId, n: usize) {
        if let Some(channel) = self.channels.get_mut(&id.0) {
            channel.receive.consume(now, n, self.rtt);
        }
    }

    /// Raises the windows of channels in use to the socket's receive window of `bytes`, as the
    /// kernel advertises it, within their maximum.
    pub fn follow_socket(&mut self, bytes: u32) {
        for channel in self.channels.values_mut() {
            if channel.receive.is_used() {
                channel.receive.follow(bytes);
            }
        }
    }

    /// Raises the window to the `bytes` that were requested and are about to arrive, within its
    /// maximum.
    pub fn expect(&mut self, id: ChannelId, bytes: u64) {
        if let Some(channel) = self.channels.get_mut(&id.0) {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            channel.receive.at_least(bytes);
        }
    }

    /// Sends a keepalive, which the peer has to answer.
    pub fn send_keepalive(&mut self) {
        self.asked.push_back(PendingGlobalRequest::Alive);
        let ask = GlobalRequest {
            name: b"keepalive@openssh.com",
            want_reply: true,
            data: RemainingBytes(&[]),
        };
        self.control.push_back(ask.to_bytes());
    }

    /// Requests proofs of host keys, which arrive as [`ChannelEvent::ProofsAnswered`].
    pub(crate) fn ask_for_proofs(&mut self, name: &[u8], blobs: &[u8]) {
        self.asked.push_back(PendingGlobalRequest::Proofs);
        let ask = GlobalRequest {
            name,
            want_reply: true,
            data: RemainingBytes(blobs),
        };
        self.control.push_back(ask.to_bytes());
    }

    /// Sends a global request without a reply.
    pub(crate) fn tell(&mut self, request: &GlobalRequest<'_>) {
        self.control.push_back(request.to_bytes());
    }

    /// Sends the reply to a global request that was handled elsewhere, in order.
    ///
    /// # Errors
    /// Too many replies are queued.
    pub(crate) fn answer_global(&mut self, answer: Vec<u8>) -> Result<(), Error> {
        bound_control(self.control.len())?;
        self.control.push_back(answer);
        Ok(())
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ChannelEvent> {
        self.events.pop_front()
    }

    /// Returns the next message to send, in a packet.
    pub fn poll_packet(&mut self) -> Option<PacketBuf> {
        if let Some(message) = self.control.pop_front() {
            return Some(PacketBuf::from_payload(&message));
        }
        // Round robin, one packet of each channel, so that no channel waits for another's file.
        let turn = self.turn;
        let order: [std::ops::RangeInclusive<u32>; 2] =
            [turn..=u32::MAX, 0..=turn.saturating_sub(1)];
        for range in order {
            let mut gone = None;
            let mut packet = None;
            for (id, channel) in self.channels.range_mut(range) {
                packet = channel.poll_packet(&self.pool);
                if packet.is_some() {
                    self.turn = id.wrapping_add(1);
                    gone = (channel.close_sent && channel.is_closed_by_peer()).then_some(*id);
                    break;
                }
            }
            if let Some(id) = gone {
                self.remove(id);
            }
            if packet.is_some() {
                return packet;
            }
            if turn == 0 {
                break;
            }
        }
        None
    }
}

/// Fails if more than [`MAX_CONTROL`] control messages are queued.
fn bound_control(waiting: usize) -> Result<(), Error> {
    match waiting > MAX_CONTROL {
        true => Err(
            crate::error::PeerMisbehaved::TooMany("requests without reading the replies").into(),
        ),
        false => Ok(()),
    }
}
