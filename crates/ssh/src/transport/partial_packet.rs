//! A packet of channel data whose end nobody has to wait for.

use bytes::{Buf as _, BytesMut};

use super::Transport;
use super::open::Inbound;
use crate::cipher::MIN_PADDING;
use crate::msg::{ChannelData, Phase};

/// packet_length, padding_length, message number, recipient and length of the data.
pub(crate) const HEAD: usize = 14;

/// What the front of the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// Not known before it has [`HEAD`] bytes.
    Short,
    /// Nothing that may be begun.
    Other,
    /// Channel data.
    Data(StartedPacket),
}

/// A packet of channel data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartedPacket {
    /// The channel's number here.
    pub(crate) recipient: u32,
    /// Bytes of data.
    pub(crate) len: usize,
    /// Bytes of padding.
    pub(crate) padding: usize,
}

impl Inbound {
    /// What comes next, as far as it may be looked at before all of it is there: where it is
    /// authenticated it may not.
    pub(crate) fn front(&self, buf: &BytesMut) -> Front {
        if !self.opens_free() {
            return Front::Other;
        }
        let Some(head) = buf.first_chunk::<HEAD>() else {
            return Front::Short;
        };
        let &[
            l0,
            l1,
            l2,
            l3,
            padding,
            number,
            r0,
            r1,
            r2,
            r3,
            d0,
            d1,
            d2,
            d3,
        ] = head;
        let Ok(whole) = self.whole_len(&[l0, l1, l2, l3]) else {
            return Front::Other;
        };
        let begun = StartedPacket {
            recipient: u32::from_be_bytes([r0, r1, r2, r3]),
            len: u32::from_be_bytes([d0, d1, d2, d3]) as usize,
            padding: usize::from(padding),
        };
        let fits = HEAD.checked_add(begun.len + begun.padding) == Some(whole);
        match fits && number == ChannelData::NUMBER && begun.padding >= MIN_PADDING {
            true => Front::Data(begun),
            // Whatever is wrong with it is found out once it is whole.
            false => Front::Other,
        }
    }

    /// The packet at the front is begun: its head is taken from `buf`.
    pub(crate) fn begin(&mut self, begun: StartedPacket, buf: &mut BytesMut) {
        buf.advance(HEAD);
        self.pass(HEAD + begun.len + begun.padding);
    }
}

impl Transport {
    /// What the front of the input is, of a peer that is logged in and in no key exchange.
    pub(crate) fn front(&self, buf: &BytesMut) -> Front {
        match self.authenticated && self.phase() == Phase::Connection {
            true => self.inbound.front(buf),
            false => Front::Other,
        }
    }

    /// [`Inbound::begin`].
    pub(crate) fn begin(&mut self, begun: StartedPacket, buf: &mut BytesMut) {
        self.inbound.begin(begun, buf);
    }

    /// Whether packets are neither enciphered nor authenticated.
    pub(crate) fn hears_clear(&self) -> bool {
        self.authenticated && self.inbound.opens_free()
    }
}
