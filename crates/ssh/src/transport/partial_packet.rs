//! Data packets that are processed before their end has arrived.

use bytes::{Buf as _, BytesMut};

use super::Transport;
use super::open::InboundState;
use crate::cipher::MIN_PADDING;
use crate::msg::{ChannelData, ConnectionPhase};

/// Bytes in front of the data: packet_length, padding_length, message number, recipient and data
/// length.
pub(crate) const HEAD: usize = 14;

/// Kind of the packet at the front of the input, as far as its first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontPacketKind {
    /// The input has fewer than [`HEAD`] bytes.
    Short,
    /// A packet that must be received as a whole.
    Other,
    /// A CHANNEL_DATA packet.
    Data(PlainDataPacketHeader),
}

/// Header of a CHANNEL_DATA packet without encryption and MAC, whose data may still be arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainDataPacketHeader {
    /// Our channel number.
    pub(crate) recipient: u32,
    /// Data length in bytes.
    pub(crate) len: usize,
    /// Padding length in bytes.
    pub(crate) padding: usize,
}

impl InboundState {
    /// Examines the packet at the front of `buf`. An authenticated packet must be complete before
    /// any of it is used, so it is [`FrontPacketKind::Other`].
    pub(crate) fn front(&self, buf: &BytesMut) -> FrontPacketKind {
        if !self.opens_free() {
            return FrontPacketKind::Other;
        }
        let Some(head) = buf.first_chunk::<HEAD>() else {
            return FrontPacketKind::Short;
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
            return FrontPacketKind::Other;
        };
        let begun = PlainDataPacketHeader {
            recipient: u32::from_be_bytes([r0, r1, r2, r3]),
            len: u32::from_be_bytes([d0, d1, d2, d3]) as usize,
            padding: usize::from(padding),
        };
        let fits = HEAD.checked_add(begun.len + begun.padding) == Some(whole);
        match fits && number == ChannelData::NUMBER && begun.padding >= MIN_PADDING {
            true => FrontPacketKind::Data(begun),
            // Errors are reported once the packet is complete.
            false => FrontPacketKind::Other,
        }
    }

    /// Starts the packet at the front: removes its header from `buf`.
    pub(crate) fn begin(&mut self, begun: PlainDataPacketHeader, buf: &mut BytesMut) {
        buf.advance(HEAD);
        self.pass(HEAD + begun.len + begun.padding);
    }
}

impl Transport {
    /// Examines the front of the input of an authenticated peer outside of a key exchange.
    pub(crate) fn front(&self, buf: &BytesMut) -> FrontPacketKind {
        match self.authenticated && self.phase() == ConnectionPhase::Connection {
            true => self.inbound.front(buf),
            false => FrontPacketKind::Other,
        }
    }

    /// Starts the packet at the front, see [`InboundState::begin`].
    pub(crate) fn begin(&mut self, begun: PlainDataPacketHeader, buf: &mut BytesMut) {
        self.inbound.begin(begun, buf);
    }

    /// Returns true if received packets are neither encrypted nor authenticated.
    pub(crate) fn hears_clear(&self) -> bool {
        self.authenticated && self.inbound.opens_free()
    }
}
