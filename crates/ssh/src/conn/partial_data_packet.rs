//! Incremental reception of data packets that are neither encrypted nor authenticated.

use std::time::Instant;

use bytes::{Buf as _, BytesMut};

use super::Connection;
use crate::channel::ChannelId;
use crate::error::Error;
use crate::transport;

/// Bytes that [`Connection::begin_data`] examines; no packet is shorter.
pub const DATA_HEAD: usize = transport::HEAD;

/// Result of [`Connection::begin_data`] for the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPacketStart {
    /// The input has fewer than [`DATA_HEAD`] bytes.
    Short,
    /// Input for [`Connection::handle_input`].
    Other,
    /// A data packet, whose header was consumed.
    DataStarted,
}

/// Rest of a data packet that is still to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialDataPacket {
    channel: u32,
    data: usize,
    padding: usize,
}

impl Connection {
    /// Returns true if received packets are neither encrypted nor authenticated, so that their data
    /// can be used before the whole packet has arrived.
    pub fn hears_clear(&self) -> bool {
        self.transport.hears_clear()
    }

    /// Starts the packet at the front of `buf` if it carries data for a channel. Its data is then
    /// taken as it arrives, by [`Connection::handle_input`], which passes on what is in memory, or
    /// by a caller that reads it elsewhere and reports it with [`Connection::passed`].
    ///
    /// # Errors
    /// The peer exceeds its window or the maximum packet.
    pub fn begin_data(
        &mut self,
        now: Instant,
        buf: &mut BytesMut,
    ) -> Result<DataPacketStart, Error> {
        let begun = match self.transport.front(buf) {
            transport::FrontPacketKind::Short => return Ok(DataPacketStart::Short),
            transport::FrontPacketKind::Data(begun)
                if self.coming.is_none()
                    && begun.len > 0
                    && self.channels.hears(begun.recipient) =>
            {
                begun
            }
            _ => return Ok(DataPacketStart::Other),
        };
        self.channels.begin_data(now, begun.recipient, begun.len)?;
        self.transport.begin(begun, buf);
        self.coming = Some(PartialDataPacket {
            channel: begun.recipient,
            data: begun.len,
            padding: begun.padding,
        });
        Ok(DataPacketStart::DataStarted)
    }

    /// Returns the channel of the started packet and the data bytes still to come.
    pub fn coming(&self) -> Option<(ChannelId, usize)> {
        self.coming.map(|c| (ChannelId(c.channel), c.data))
    }

    /// Returns the bytes, padding included, to receive before the next packet begins.
    pub fn behind(&self) -> usize {
        self.coming.map_or(0, |c| c.data + c.padding)
    }

    /// Reports that `n` data bytes of [`Connection::coming`] were moved elsewhere than to memory.
    pub fn passed(&mut self, n: usize) {
        if let Some(coming) = &mut self.coming {
            coming.data = coming.data.saturating_sub(n);
        }
    }

    /// Consumes the received part of a started packet; returns true if another packet may follow.
    pub(super) fn goes_on(&mut self, buf: &mut BytesMut) -> bool {
        let Some(coming) = &mut self.coming else {
            return true;
        };
        let n = coming.data.min(buf.len());
        if n > 0 {
            coming.data -= n;
            let bytes = buf.split_to(n).freeze();
            self.channels.hand_on(coming.channel, bytes);
        }
        if coming.data > 0 {
            return false;
        }
        let n = coming.padding.min(buf.len());
        buf.advance(n);
        coming.padding -= n;
        if coming.padding > 0 {
            return false;
        }
        self.coming = None;
        true
    }
}
