//! Processing of messages 80 to 100 from the peer.

use std::time::Instant;

use bytes::Bytes;
use wire::FieldReader;

use super::outgoing::{IncomingDataState, InitialWindowState, STDERR};
use super::window::{ReceiveWindow, SendWindow};
use super::{
    ASSUMED_WINDOW, ChannelEvent, ChannelId, ChannelState, Channels, LATE, MAX_CHANNELS,
    PendingGlobalRequest, QueuedMessage, bound_control,
};
use crate::EndpointRole;
use crate::error::{Error, PeerMisbehaved};
use crate::msg::*;
use crate::text::escape;

impl Channels {
    /// Processes a message of the connection protocol.
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
                if std::mem::replace(&mut channel.grant, InitialWindowState::Told)
                    != InitialWindowState::Assumed
                {
                    return channel.send.adjust(m.bytes);
                }
                // The first grant replaces the assumed window. If less was granted than was sent,
                // the peer may have dropped the excess.
                let most = channel.send.max_packet as u32;
                channel.send.confirm(m.bytes, most);
                if channel.send.is_exceeded() {
                    let id = ChannelId(m.recipient);
                    self.events.push_back(ChannelEvent::PredictionFailed(id));
                }
                Ok(())
            }
            GlobalRequest::NUMBER => {
                // No global request is granted here; requests for proofs of host keys are handled
                // elsewhere.
                if GlobalRequest::decode(&payload)?.want_reply {
                    self.control.push_back(RequestFailure {}.to_bytes());
                }
                Ok(())
            }
            number @ (RequestSuccess::NUMBER | RequestFailure::NUMBER) => {
                if number == RequestFailure::NUMBER {
                    RequestFailure::decode(&payload)?;
                }
                let asked = self.asked.pop_front().ok_or(PeerMisbehaved::Unsolicited)?;
                let granted = number == RequestSuccess::NUMBER;
                self.events.push_back(match asked {
                    PendingGlobalRequest::Alive => ChannelEvent::Alive,
                    PendingGlobalRequest::Proofs => {
                        ChannelEvent::ProofsAnswered(granted.then_some(payload))
                    }
                });
                Ok(())
            }
            ChannelOpen::NUMBER => self.handle_open(&payload),
            ChannelOpenConfirmation::NUMBER => self.handle_confirmation(&payload),
            ChannelOpenFailure::NUMBER => self.handle_open_failure(&payload),
            ChannelEof::NUMBER => {
                let id = ChannelEof::decode(&payload)?.recipient;
                let channel = self.live(id)?;
                if channel.incoming == IncomingDataState::Open {
                    channel.incoming = IncomingDataState::Ended;
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

    /// Returns true for a message that may follow CLOSE, if `to` is a recently closed channel.
    fn is_late(&mut self, number: u8, to: u32) -> bool {
        let written = matches!(
            number,
            ChannelData::NUMBER
                | ChannelExtendedData::NUMBER
                | ChannelWindowAdjust::NUMBER
                | ChannelEof::NUMBER
        );
        let closed = match self.channels.get(&to) {
            Some(channel) => channel.is_closed_by_peer(),
            None => self.closed.contains(&to),
        };
        let late = written && closed;
        self.late += u32::from(late && self.late <= LATE);
        late && self.late <= LATE
    }

    /// Returns an open channel that the peer has not closed. A client may use a channel that it has
    /// opened before our confirmation, by the number that it predicts: only authenticated clients
    /// can open channels ([`crate::Connection`] processes none of these messages before), and the
    /// owner gets all events in order of arrival.
    fn live(&mut self, id: u32) -> Result<&mut ChannelState, Error> {
        let server = self.role == EndpointRole::Server;
        let theirs = |channel: &ChannelState| server && channel.remote.is_some();
        match self.channels.get_mut(&id) {
            Some(channel)
                if (channel.confirmed || theirs(channel)) && !channel.is_closed_by_peer() =>
            {
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

    /// Returns true if received data of channel `id` goes to its owner: the channel is open and the
    /// owner has not closed it.
    pub(crate) fn hears(&mut self, id: u32) -> bool {
        let channel = self.live(id);
        channel
            .is_ok_and(|channel| !channel.is_left() && channel.incoming == IncomingDataState::Open)
    }

    /// Accounts for `n` bytes of data that have begun to arrive on a channel for which
    /// [`Channels::hears`] is true.
    ///
    /// # Errors
    /// The data exceeds the window or the maximum packet.
    pub(crate) fn begin_data(&mut self, now: Instant, id: u32, n: usize) -> Result<(), Error> {
        self.receive(now, id, n, true).map(|_| ())
    }

    /// Passes on a part of the data of [`Channels::begin_data`] that is in memory.
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

    /// Accounts for `n` received bytes; returns true if the owner is to see them. Bytes that it
    /// does not see are granted again here, or else the peer could be blocked and never read our
    /// CLOSE.
    fn receive(&mut self, now: Instant, id: u32, n: usize, known: bool) -> Result<bool, Error> {
        // The packet limit never shrinks, so it is at least what each channel announced.
        let (rtt, most) = (self.rtt, self.config.max_packet as usize);
        let channel = self.live(id)?;
        if channel.incoming != IncomingDataState::Open {
            return Err(PeerMisbehaved::DataAfterEof.into());
        }
        if n > most {
            return Err(PeerMisbehaved::DataTooLong(n).into());
        }
        channel.receive.receive(n)?;
        let seen = known && !channel.is_left() && n > 0;
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
        let agent = m.kind == b"auth-agent@openssh.com" && self.role == EndpointRole::Client;
        let session = m.kind == b"session" && self.role == EndpointRole::Server;
        if !(agent && self.agent_allowed || session) || self.channels.len() >= MAX_CHANNELS {
            self.refuse(m.sender, "not allowed here");
            return Ok(());
        }
        let id = self.take_number();
        let receive = ReceiveWindow::new(self.config.window, self.config.max_window);
        let mut channel = ChannelState::new(Some(m.sender), receive);
        channel.send.confirm(m.window, m.max_packet);
        self.channels.insert(id, channel);
        let id = ChannelId(id);
        self.events.push_back(match session {
            true => ChannelEvent::SessionOpened(id),
            false => ChannelEvent::AgentOpened(id),
        });
        Ok(())
    }

    /// Returns a channel of ours that the peer has not confirmed or refused.
    fn opening(&mut self, id: u32) -> Result<&mut ChannelState, Error> {
        match self.channels.get_mut(&id) {
            Some(channel)
                if !channel.confirmed && (channel.is_predicted() || channel.remote.is_none()) =>
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
        channel.grant = match channel.grant {
            // A nonzero window in the confirmation is itself the first grant.
            _ if m.window > 0 => InitialWindowState::Told,
            InitialWindowState::AssumedLater => {
                channel.send = SendWindow::assumed(ASSUMED_WINDOW, m.max_packet as usize);
                InitialWindowState::Assumed
            }
            known => known,
        };
        self.events.push_back(match right {
            true => ChannelEvent::Opened(id),
            false => ChannelEvent::PredictionFailed(id),
        });
        Ok(())
    }

    fn handle_open_failure(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = ChannelOpenFailure::decode(payload)?;
        let id = ChannelId(m.recipient);
        let predicted = self.opening(m.recipient)?.is_predicted();
        self.remove(m.recipient);
        self.events.push_back(match predicted {
            // sshd disconnects on data for a channel that does not exist.
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
        channel.incoming = IncomingDataState::Closed;
        // RFC 4254 section 5.3: CLOSE is answered with CLOSE, and queued data is void.
        channel.queue.clear();
        channel.queued = 0;
        if channel.close_sent {
            self.remove(id);
        } else {
            channel.queue.push_back(QueuedMessage::Close);
        }
        self.events.push_back(ChannelEvent::Closed(ChannelId(id)));
        Ok(())
    }

    fn handle_request(&mut self, payload: &Bytes) -> Result<(), Error> {
        let m = ChannelRequest::decode(payload)?;
        let id = ChannelId(m.recipient);
        self.live(m.recipient)?;
        let client = self.role == EndpointRole::Client;
        let mut r = FieldReader::new(m.data.0);
        match m.name {
            // Neither request ever wants a reply (RFC 4254 section 6.10).
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
            .ok_or(PeerMisbehaved::Unsolicited)?;
        self.events.push_back(event);
        Ok(())
    }
}
