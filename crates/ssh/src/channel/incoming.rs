//! Messages 80 to 100 from the peer.

use std::time::Instant;

use bytes::Bytes;
use wire::Reader;

use super::outgoing::STDERR;
use super::window::{ReceiveWindow, SendWindow};
use super::{
    ASSUMED_WINDOW, Channel, ChannelEvent, ChannelId, Channels, LATE, MAX_CHANNELS, Queued,
    bound_control,
};
use crate::Role;
use crate::error::{Error, PeerMisbehaved};
use crate::msg::*;
use crate::text::escape;

impl Channels {
    /// Handles a message of the connection layer.
    pub fn handle(&mut self, now: Instant, payload: Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        match self.take(now, payload) {
            Err(Error::PeerMisbehaved(PeerMisbehaved::UnknownChannel(id)))
                if self.is_late(number, id) =>
            {
                Ok(())
            }
            done => done,
        }
    }

    fn take(&mut self, now: Instant, payload: Bytes) -> Result<(), Error> {
        bound_control(self.control.len())?;
        match payload.first().copied().unwrap_or_default() {
            ChannelData::NUMBER => self.handle_data(now, &payload),
            ChannelExtendedData::NUMBER => self.handle_extended(now, &payload),
            ChannelWindowAdjust::NUMBER => {
                let m = ChannelWindowAdjust::decode(&payload)?;
                let channel = self.live(m.recipient)?;
                if !std::mem::replace(&mut channel.predicted, false) {
                    return channel.send.adjust(m.bytes);
                }
                // The first grant takes the place of what was counted on. Where that was more, the
                // peer may have dropped what exceeded it.
                let most = channel.send.max_packet as u32;
                channel.send.confirm(m.bytes, most);
                if channel.send.is_exceeded() {
                    let id = ChannelId(m.recipient);
                    self.events.push_back(ChannelEvent::PredictionFailed(id));
                }
                Ok(())
            }
            GlobalRequest::NUMBER => {
                // Nothing here is granted; what asks for proofs of host keys does not come here.
                if GlobalRequest::decode(&payload)?.want_reply {
                    self.control.push_back(RequestFailure {}.to_bytes());
                }
                Ok(())
            }
            number @ (RequestSuccess::NUMBER | RequestFailure::NUMBER) => {
                if number == RequestFailure::NUMBER {
                    RequestFailure::decode(&payload)?;
                }
                self.asked = self.asked.checked_sub(1).ok_or(PeerMisbehaved::Unasked)?;
                self.events.push_back(ChannelEvent::Alive);
                Ok(())
            }
            ChannelOpen::NUMBER => self.handle_open(&payload),
            ChannelOpenConfirmation::NUMBER => self.handle_confirmation(&payload),
            ChannelOpenFailure::NUMBER => self.handle_open_failure(&payload),
            ChannelEof::NUMBER => {
                let id = ChannelEof::decode(&payload)?.recipient;
                let channel = self.live(id)?;
                if !std::mem::replace(&mut channel.eof_received, true) {
                    self.events.push_back(ChannelEvent::Eof(ChannelId(id)));
                }
                Ok(())
            }
            ChannelClose::NUMBER => self.handle_close(ChannelClose::decode(&payload)?.recipient),
            ChannelRequest::NUMBER => self.handle_request(&payload),
            ChannelSuccess::NUMBER => {
                let id = ChannelSuccess::decode(&payload)?.recipient;
                self.answered(id, ChannelEvent::RequestSucceeded(ChannelId(id)))
            }
            ChannelFailure::NUMBER => {
                let id = ChannelFailure::decode(&payload)?.recipient;
                self.answered(id, ChannelEvent::RequestFailed(ChannelId(id)))
            }
            number => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    /// Whether a message to what is no live channel is one that may come behind CLOSE.
    fn is_late(&mut self, number: u8, to: u32) -> bool {
        let written = matches!(
            number,
            ChannelData::NUMBER
                | ChannelExtendedData::NUMBER
                | ChannelWindowAdjust::NUMBER
                | ChannelEof::NUMBER
        );
        let closed = match self.channels.get(&to) {
            Some(channel) => channel.close_received,
            None => self.closed.contains(&to),
        };
        let late = written && closed;
        self.late += u32::from(late && self.late <= LATE);
        late && self.late <= LATE
    }

    /// An open channel that the peer has not closed. A client may use one that it has opened before
    /// we have confirmed it, by the number that it counts on: whoever may open channels is logged in
    /// ([`crate::Connection`] reads none of these messages before), and the owner is told of all in
    /// the order in which it came.
    fn live(&mut self, id: u32) -> Result<&mut Channel, Error> {
        let server = self.role == Role::Server;
        let theirs = |channel: &Channel| server && channel.remote.is_some();
        match self.channels.get_mut(&id) {
            Some(channel) if (channel.confirmed || theirs(channel)) && !channel.close_received => {
                Ok(channel)
            }
            _ => Err(PeerMisbehaved::UnknownChannel(id).into()),
        }
    }

    fn handle_data(&mut self, now: Instant, payload: &Bytes) -> Result<(), Error> {
        let m = ChannelData::decode(payload)?;
        if self.receive(now, m.recipient, m.data.len(), true)? {
            let event = ChannelEvent::Data(ChannelId(m.recipient), payload.slice_ref(m.data));
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Whether data for this one are accounted for and nothing else: there is such a channel, and its owner is to see
    /// them.
    pub(crate) fn hears(&mut self, id: u32) -> bool {
        let channel = self.live(id);
        channel.is_ok_and(|channel| !channel.left && !channel.eof_received)
    }

    /// `n` bytes of data have begun to come for one that [`Channels::hears`].
    ///
    /// # Errors
    /// They are more than was granted.
    pub(crate) fn begin_data(&mut self, now: Instant, id: u32, n: usize) -> Result<(), Error> {
        self.receive(now, id, n, true).map(|_| ())
    }

    /// Some of them have come to memory.
    pub(crate) fn hand_on(&mut self, id: u32, bytes: Bytes) {
        self.events
            .push_back(ChannelEvent::Data(ChannelId(id), bytes));
    }

    fn handle_extended(&mut self, now: Instant, payload: &Bytes) -> Result<(), Error> {
        let m = ChannelExtendedData::decode(payload)?;
        if self.receive(now, m.recipient, m.data.len(), m.code == STDERR)? {
            let data = payload.slice_ref(m.data);
            let event = ChannelEvent::ExtendedData(ChannelId(m.recipient), data);
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Accounts for `n` bytes; true when the owner is to see them. What it does not see must be
    /// granted again here, or the peer would be stuck and could not read our CLOSE.
    fn receive(&mut self, now: Instant, id: u32, n: usize, known: bool) -> Result<bool, Error> {
        // What was announced to one channel is not less than what another was told.
        let (rtt, most) = (self.rtt, self.config.max_packet as usize);
        let channel = self.live(id)?;
        if channel.eof_received {
            return Err(PeerMisbehaved::DataAfterEof.into());
        }
        if n > most {
            return Err(PeerMisbehaved::DataTooLong(n).into());
        }
        channel.receive.receive(n)?;
        let seen = known && !channel.left && n > 0;
        if !seen {
            channel.receive.consume(now, n, rtt);
        }
        Ok(seen)
    }

    fn handle_open(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = ChannelOpen::decode(payload)?;
        if m.max_packet == 0 {
            return Err(PeerMisbehaved::ZeroPacket.into());
        }
        self.expected = None;
        let agent = m.kind == b"auth-agent@openssh.com" && self.role == Role::Client;
        let session = m.kind == b"session" && self.role == Role::Server;
        if !(agent && self.agent_allowed || session) || self.channels.len() >= MAX_CHANNELS {
            self.refuse(m.sender, "not allowed here");
            return Ok(());
        }
        let id = self.take_number();
        let receive = ReceiveWindow::new(self.config.window, self.config.max_window);
        let mut channel = Channel::new(Some(m.sender), receive);
        channel.send.confirm(m.window, m.max_packet);
        self.channels.insert(id, channel);
        let id = ChannelId(id);
        self.events.push_back(match session {
            true => ChannelEvent::SessionOpened(id),
            false => ChannelEvent::AgentOpened(id),
        });
        Ok(())
    }

    /// A channel of ours that the peer has not answered yet.
    fn opening(&mut self, id: u32) -> Result<&mut Channel, Error> {
        match self.channels.get_mut(&id) {
            Some(channel)
                if !channel.confirmed && (channel.predicted || channel.remote.is_none()) =>
            {
                Ok(channel)
            }
            _ => Err(PeerMisbehaved::UnknownChannel(id).into()),
        }
    }

    fn handle_confirmation(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = ChannelOpenConfirmation::decode(payload)?;
        if m.max_packet == 0 {
            return Err(PeerMisbehaved::ZeroPacket.into());
        }
        let id = ChannelId(m.recipient);
        let channel = self.opening(m.recipient)?;
        let fits = channel.send.confirm(m.window, m.max_packet);
        let right = fits && channel.remote.is_none_or(|expected| expected == m.sender);
        channel.remote = Some(m.sender);
        channel.confirmed = true;
        // A window that is granted already is the first grant.
        channel.predicted &= m.window == 0;
        if channel.counts && m.window == 0 {
            channel.predicted = true;
            channel.send = SendWindow::assumed(ASSUMED_WINDOW, m.max_packet as usize);
        }
        self.events.push_back(match right {
            true => ChannelEvent::Opened(id),
            false => ChannelEvent::PredictionFailed(id),
        });
        Ok(())
    }

    fn handle_open_failure(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = ChannelOpenFailure::decode(payload)?;
        let id = ChannelId(m.recipient);
        let predicted = self.opening(m.recipient)?.predicted;
        self.remove(m.recipient);
        self.events.push_back(match predicted {
            // What was sent to the channel that is not there makes sshd disconnect.
            true => ChannelEvent::PredictionFailed(id),
            false => ChannelEvent::OpenFailed {
                id,
                reason: m.reason,
                description: escape(m.description),
            },
        });
        Ok(())
    }

    fn handle_close(&mut self, id: u32) -> Result<(), Error> {
        let channel = self.live(id)?;
        channel.close_received = true;
        // RFC 4254 section 5.3: a CLOSE is answered with a CLOSE, and data queued are void.
        channel.queue.clear();
        channel.queued = 0;
        if channel.close_sent {
            self.remove(id);
        } else {
            channel.queue.push_back(Queued::Close);
        }
        self.events.push_back(ChannelEvent::Closed(ChannelId(id)));
        Ok(())
    }

    fn handle_request(&mut self, payload: &Bytes) -> Result<(), Error> {
        let m = ChannelRequest::decode(payload)?;
        let id = ChannelId(m.recipient);
        self.live(m.recipient)?;
        let client = self.role == Role::Client;
        let mut r = Reader::new(m.data.0);
        match m.name {
            // Neither of the two ever wants a reply (RFC 4254 section 6.10).
            b"exit-status" if client => {
                let status = r.u32()?;
                r.finish()?;
                self.events.push_back(ChannelEvent::ExitStatus(id, status));
            }
            b"exit-signal" if client => {
                let signal = escape(r.string()?);
                let _core_dumped = r.u8()?;
                let (_message, _language) = (r.string()?, r.string()?);
                r.finish()?;
                self.events.push_back(ChannelEvent::ExitSignal(id, signal));
            }
            _ if client => {
                if m.want_reply {
                    self.answer(id, false);
                }
            }
            name => self.events.push_back(ChannelEvent::Request {
                id,
                name: name.to_vec(),
                data: payload.slice_ref(m.data.0),
                want_reply: m.want_reply,
            }),
        }
        Ok(())
    }

    fn answered(&mut self, id: u32, event: ChannelEvent) -> Result<(), Error> {
        let channel = self.live(id)?;
        channel.replies_due = channel
            .replies_due
            .checked_sub(1)
            .ok_or(PeerMisbehaved::Unasked)?;
        self.events.push_back(event);
        Ok(())
    }
}
