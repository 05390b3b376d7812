//! Data that are taken as they come, rather than a packet at a time.

use std::time::Instant;

use bytes::{Buf as _, BytesMut};

use super::Connection;
use crate::channel::ChannelId;
use crate::error::Error;
use crate::transport;

/// What [`Connection::begin_data`] looks at: no packet is shorter.
pub const DATA_HEAD: usize = transport::HEAD;

/// What the front of the input is to [`Connection::begin_data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Not known before it has [`DATA_HEAD`] bytes.
    Short,
    /// Something for [`Connection::handle_input`].
    Other,
    /// A packet of data, which is begun now.
    Begun,
}

/// What is still to come of a packet of data.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPacket {
    channel: u32,
    data: usize,
    padding: usize,
}

impl Connection {
    /// Whether what comes is neither enciphered nor authenticated, so that nobody has to see all of a packet
    /// before any of it.
    pub fn hears_clear(&self) -> bool {
        self.transport.hears_clear()
    }

    /// Begins the packet at the front of `buf`, if it carries data for a channel: they are taken as they come then, by [`Connection::handle_input`], which hands on those that are in
    /// memory, or by somebody else who says so ([`Connection::passed`]).
    ///
    /// # Errors
    /// The peer sends more than it was granted.
    pub fn begin_data(&mut self, now: Instant, buf: &mut BytesMut) -> Result<Front, Error> {
        let begun = match self.transport.front(buf) {
            transport::Front::Short => return Ok(Front::Short),
            transport::Front::Data(begun)
                if self.coming.is_none()
                    && begun.len > 0
                    && self.channels.hears(begun.recipient) =>
            {
                begun
            }
            _ => return Ok(Front::Other),
        };
        self.channels.begin_data(now, begun.recipient, begun.len)?;
        self.transport.begin(begun, buf);
        self.coming = Some(PartialPacket {
            channel: begun.recipient,
            data: begun.len,
            padding: begun.padding,
        });
        Ok(Front::Begun)
    }

    /// The channel, and how many bytes of data are still to come of the packet that was begun.
    pub fn coming(&self) -> Option<(ChannelId, usize)> {
        self.coming.map(|c| (ChannelId(c.channel), c.data))
    }

    /// What is to be received before another packet begins, in bytes.
    pub fn behind(&self) -> usize {
        self.coming.map_or(0, |c| c.data + c.padding)
    }

    /// `n` bytes of the data that [`Connection::coming`] tells of went elsewhere than to memory.
    pub fn passed(&mut self, n: usize) {
        if let Some(coming) = &mut self.coming {
            coming.data = coming.data.saturating_sub(n);
        }
    }

    /// Takes what has come of a packet that was begun; whether another one may follow.
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
