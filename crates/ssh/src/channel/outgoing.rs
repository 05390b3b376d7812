//! One channel, and the order of its outgoing messages.

use std::collections::VecDeque;

use wire::{PacketBuf, PacketPool, RemainingBytes};

use super::event::OutgoingRequest;
use super::window::{ReceiveWindow, SendWindow};
use crate::msg::{
    ChannelClose, ChannelData, ChannelEof, ChannelExtendedData, ChannelRequest, ChannelWindowAdjust,
};

/// SSH_EXTENDED_DATA_STDERR (RFC 4254 section 5.2).
pub(super) const STDERR: u32 = 1;

/// State of one channel from CHANNEL_OPEN until both sides have sent CHANNEL_CLOSE, with its queue
/// of messages to send.
pub(super) struct ChannelState {
    /// The peer's channel number, possibly predicted.
    pub(super) remote: Option<u32>,
    /// Knowledge of the window that the peer grants.
    pub(super) grant: InitialWindowState,
    pub(super) confirmed: bool,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    pub(super) queue: VecDeque<QueuedMessage>,
    pub(super) queued: usize,
    pub(super) replies_due: usize,
    /// Data from the owner of the channel to the peer.
    pub(super) outgoing: OutgoingDataState,
    /// Data from the peer to the owner of the channel.
    pub(super) incoming: IncomingDataState,
    pub(super) close_sent: bool,
}

/// State of the first window that the peer grants: told by the peer, or assumed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialWindowState {
    /// The peer's messages tell it.
    Told,
    /// The window is to be assumed once the channel is confirmed.
    AssumedLater,
    /// The window is assumed, and before the confirmation the channel number too; data may already
    /// have been sent.
    Assumed,
}

/// State of the data from the owner of a channel to the peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OutgoingDataState {
    Open,
    /// EOF is queued or sent: nothing may be written behind it.
    Ended,
    /// The owner has closed the channel and ignores further data.
    Closed,
}

/// State of the data from the peer to the owner of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IncomingDataState {
    Open,
    /// EOF was received.
    Ended,
    /// CLOSE was received.
    Closed,
}

/// Message of a channel that waits for the peer's window or for the transport. Messages of a
/// channel keep their order.
pub(super) enum QueuedMessage {
    Request {
        request: OutgoingRequest,
        want_reply: bool,
    },
    Data(PacketBuf),
    /// Data for standard error.
    Stderr(Vec<u8>),
    Eof,
    Close,
}

impl ChannelState {
    pub(super) fn new(remote: Option<u32>, receive: ReceiveWindow) -> Self {
        Self {
            remote,
            grant: InitialWindowState::Told,
            confirmed: false,
            send: SendWindow::closed(),
            receive,
            queue: VecDeque::new(),
            queued: 0,
            replies_due: 0,
            outgoing: OutgoingDataState::Open,
            incoming: IncomingDataState::Open,
            close_sent: false,
        }
    }

    /// Returns true while number or window are predicted.
    pub(super) fn is_predicted(&self) -> bool {
        self.grant == InitialWindowState::Assumed
    }

    /// Returns true once the owner has closed the channel.
    pub(super) fn is_left(&self) -> bool {
        self.outgoing == OutgoingDataState::Closed
    }

    /// Returns true once the peer's CLOSE was received.
    pub(super) fn is_closed_by_peer(&self) -> bool {
        self.incoming == IncomingDataState::Closed
    }

    /// Returns the next message, if the window permits one.
    pub(super) fn poll_packet(&mut self, pool: &PacketPool) -> Option<PacketBuf> {
        let recipient = self.remote?;
        if self.close_sent || !(self.confirmed || self.is_predicted()) {
            return None;
        }
        if !self.is_closed_by_peer()
            && self.confirmed
            && let Some(bytes) = self.receive.take_grant()
        {
            let adjust = ChannelWindowAdjust { recipient, bytes };
            return Some(PacketBuf::from_payload(&adjust.to_bytes()));
        }
        let message = match self.queue.front()? {
            QueuedMessage::Data(packet) => {
                let n = self.send.allows(packet.len());
                return (n > 0).then(|| self.data(recipient, n, pool)).flatten();
            }
            QueuedMessage::Stderr(text) => {
                if self.send.allows(text.len()) < text.len() {
                    return None;
                }
                self.send.take(text.len());
                self.queued -= text.len();
                ChannelExtendedData {
                    recipient,
                    code: STDERR,
                    data: text,
                }
                .to_bytes()
            }
            QueuedMessage::Request {
                request,
                want_reply,
            } => {
                self.replies_due += usize::from(*want_reply);
                ChannelRequest {
                    recipient,
                    name: request.name(),
                    want_reply: *want_reply,
                    data: RemainingBytes(&request.data()),
                }
                .to_bytes()
            }
            QueuedMessage::Eof => ChannelEof { recipient }.to_bytes(),
            QueuedMessage::Close => {
                self.close_sent = true;
                ChannelClose { recipient }.to_bytes()
            }
        };
        self.queue.pop_front();
        Some(PacketBuf::from_payload(&message))
    }

    /// Returns the first `n` bytes of the packet in front as CHANNEL_DATA.
    fn data(&mut self, recipient: u32, n: usize, pool: &PacketPool) -> Option<PacketBuf> {
        let mut packet = match self.queue.front_mut()? {
            QueuedMessage::Data(packet) if packet.len() > n => packet.split_front(n, pool),
            _ => match self.queue.pop_front()? {
                QueuedMessage::Data(packet) => packet,
                _ => return None,
            },
        };
        self.send.take(n);
        self.queued -= n;
        let mut header = [0; 9];
        header[0] = ChannelData::NUMBER;
        header[1..5].copy_from_slice(&recipient.to_be_bytes());
        header[5..].copy_from_slice(&(n as u32).to_be_bytes());
        packet.prepend(&header);
        Some(packet)
    }
}
