//! Session channel of the sshd model: its window is closed until the subsystem runs, then 2 MiB.

use std::time::Instant;

use bytes::Bytes;
use ssh::Error;
use ssh::channel::ChannelEvent;
use ssh::msg::{ChannelData, ChannelFailure, ChannelOpenConfirmation, ChannelWindowAdjust};

use super::{SshdModel, Step};

/// Window in bytes: CHAN_SES_WINDOW_DEFAULT.
const WINDOW: u32 = 2 << 20;

impl SshdModel {
    pub(super) fn handle_channels(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(event) = self.channels.poll_event() {
            match event {
                ChannelEvent::SessionOpened(id) if self.session.is_some() => {
                    self.channels.reject(id, "open failed");
                }
                ChannelEvent::SessionOpened(id) => {
                    self.session = Some(id);
                    self.channels.accept(id);
                    self.send_channels(now)?;
                    self.reach(Step::Confirmed)?;
                }
                ChannelEvent::Request {
                    id,
                    name,
                    data,
                    want_reply,
                } => {
                    let granted = name == b"subsystem" && data.ends_with(b"sftp");
                    if granted {
                        self.nodelay = true;
                        let adjust = ChannelWindowAdjust {
                            recipient: self.peer_number(),
                            bytes: WINDOW,
                        };
                        self.say(&adjust.to_bytes())?;
                    }
                    if want_reply {
                        self.channels.answer(id, granted);
                        self.send_channels(now)?;
                    }
                    if granted {
                        self.reach(Step::Subsystem)?;
                    }
                }
                ChannelEvent::Data(id, bytes) => {
                    self.sftp.handle_input(&bytes);
                    self.channels.consumed(now, id, bytes.len());
                    let answers = self.sftp.take_output();
                    self.channels.write(id, &answers);
                }
                ChannelEvent::Eof(id) => self.channels.close(id),
                ChannelEvent::Closed(_) => self.session = None,
                _ => {}
            }
        }
        Ok(())
    }

    /// Converts the channel number of a message for our channel to the one that the channel layer
    /// uses.
    pub(super) fn renumber(&self, payload: Bytes) -> Bytes {
        let number = payload.first().copied().unwrap_or_default();
        let offset = self.config.channel_offset;
        let addressed = (ChannelWindowAdjust::NUMBER..=ChannelFailure::NUMBER).contains(&number);
        let Some(to) = payload.get(1..5).and_then(|n| n.first_chunk()) else {
            return payload;
        };
        if !addressed || offset == 0 {
            return payload;
        }
        let known = u32::from_be_bytes(*to).wrapping_sub(offset);
        let mut payload = payload.to_vec();
        payload[1..5].copy_from_slice(&known.to_be_bytes());
        payload.into()
    }

    /// Returns the client's number of the session; longhaul numbers its first channel 0.
    fn peer_number(&self) -> u32 {
        0
    }

    /// Passes pending channel messages to the transport, unless a key exchange is under way.
    pub(super) fn send_channels(&mut self, now: Instant) -> Result<(), Error> {
        while self.auth.done && self.transport.may_send() {
            let Some(mut packet) = self.channels.poll_packet() else {
                break;
            };
            let payload = packet.payload_mut();
            if payload.first() == Some(&ChannelOpenConfirmation::NUMBER) {
                let number = self.session.map_or(0, |id| id.0);
                let number = number.wrapping_add(self.config.channel_offset);
                payload[5..9].copy_from_slice(&number.to_be_bytes());
                payload[9..13].copy_from_slice(&0u32.to_be_bytes());
            }
            let data = payload.first() == Some(&ChannelData::NUMBER);
            self.transport.send(packet)?;
            if data {
                self.reach(Step::Data)?;
            }
            self.transport.handle_timeout(now)?;
        }
        self.take_output();
        Ok(())
    }
}
