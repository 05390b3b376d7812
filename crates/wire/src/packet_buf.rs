use std::sync::Arc;

use crate::PacketPool;
use crate::external_payload::{
    ExternalPayload, ExternalPayloadSource, MissingPayloadError, OutputPart,
};

/// Bytes free in front of a packet's payload: packet_length, padding_length (RFC 4253 section 6)
/// and the CHANNEL_DATA header (RFC 4254 section 5.2).
pub const HEADROOM: usize = 4 + 1 + 9;
/// Bytes free behind the payload: up to 31 of padding and the longest MAC (hmac-sha2-512).
pub const TAILROOM: usize = 31 + 64;
/// Upper bound in bytes of the headers that a packet holds in front of a borrowed payload.
const LONGEST_HEAD: usize = 256;

/// Payload of one packet, with room around it so that the packet can be sealed and sent in place.
///
/// ```text
///  | HEADROOM | reserve | payload .. room | TAILROOM |
///              <- prepend()   append() ->
/// ```
///
/// Borrowed payload (`PacketBuf::lie_outside`) may follow the bytes in memory.
#[derive(Debug)]
pub struct PacketBuf {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    pool: Option<PacketPool>,
    outside: Option<ExternalPayload>,
}

impl PacketBuf {
    pub(crate) fn new(
        mut memory: Vec<u8>,
        reserve: usize,
        room: usize,
        slot: usize,
        pool: Option<PacketPool>,
    ) -> Self {
        let start = HEADROOM + reserve;
        let limit = start + room;
        let needed = (limit + TAILROOM).max(Self::memory_for(slot));
        if memory.len() < needed {
            memory.resize(needed, 0);
        }
        Self {
            memory,
            start,
            end: start,
            limit,
            pool,
            outside: None,
        }
    }

    /// Returns the memory in bytes of a packet with room for `slot` bytes of payload and header.
    pub(crate) fn memory_for(slot: usize) -> usize {
        HEADROOM + slot + TAILROOM
    }

    /// Creates a packet with its own memory for a message, without a pool.
    pub fn from_payload(payload: &[u8]) -> Self {
        Self::with_tail(payload, 0)
    }

    /// Creates a packet as [`PacketBuf::from_payload`] does, with `tail` bytes beyond [`TAILROOM`]
    /// for padding that hides the payload's length.
    pub fn with_tail(payload: &[u8], tail: usize) -> Self {
        let slot = payload.len() + tail;
        let mut packet = Self::new(Vec::new(), 0, payload.len(), slot, None);
        packet.append(payload);
        packet
    }

    /// Returns the number of payload bytes, borrowed ones included.
    pub fn len(&self) -> usize {
        self.inside() + self.outside.as_ref().map_or(0, |outside| outside.len)
    }

    /// Returns true if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of payload bytes in the packet's own memory.
    pub fn inside(&self) -> usize {
        self.end - self.start
    }

    /// Returns true if some of the payload is borrowed.
    pub fn lies_outside(&self) -> bool {
        self.outside.is_some()
    }

    /// Borrows `len` more payload bytes at offset `at` of `lie`. Nothing can be appended behind
    /// them.
    pub(crate) fn lie_outside(
        &mut self,
        lie: Arc<dyn ExternalPayloadSource>,
        at: usize,
        len: usize,
    ) {
        self.limit = self.end;
        self.outside = Some(ExternalPayload { lie, at, len });
    }

    /// Copies the borrowed payload into the packet's memory.
    ///
    /// # Errors
    /// The source no longer has the bytes. The packet is unchanged.
    pub fn gather(&mut self) -> Result<(), MissingPayloadError> {
        let Some(ExternalPayload { lie, at, len }) = self.outside.take() else {
            return Ok(());
        };
        let end = self.end + len;
        if self.memory.len() < end + TAILROOM {
            self.memory.resize(end + TAILROOM, 0);
        }
        let read = lie.copy(at, &mut self.memory[self.end..end]);
        if !read {
            let missed = lie.missed();
            self.outside = Some(ExternalPayload { lie, at, len });
            return Err(MissingPayloadError(missed));
        }
        (self.end, self.limit) = (end, end);
        Ok(())
    }

    /// Lets `seal` move the borrowed payload into the packet. `seal` gets the payload in memory
    /// with `front` bytes before it, the borrowed bytes with the `more` bytes that follow them in
    /// the source, and output room for both and `back` bytes. Returns false if the packet lacks the
    /// room or the source did not lend the bytes; the payload is then unchanged, whatever `seal`
    /// has written.
    pub fn take_in(
        &mut self,
        front: usize,
        (more, back): (usize, usize),
        mut seal: impl FnMut(&mut [u8], &[u8], &mut [u8]),
    ) -> bool {
        let Some(ExternalPayload { lie, at, len }) = &self.outside else {
            return false;
        };
        let (at, len) = (*at, *len);
        let from = self.start - front;
        let Some(whole) = self.memory.get_mut(from..self.end + len + more + back) else {
            return false;
        };
        let (head, room) = whole.split_at_mut(self.end - from);
        let mut before = [0; LONGEST_HEAD];
        let Some(before) = before.get_mut(..head.len()) else {
            return false;
        };
        before.copy_from_slice(head);
        let lent = lie.lend(at, len, more, &mut |lent| seal(head, lent, room));
        match lent {
            true => {
                self.outside = None;
                self.end += len;
                self.limit = self.end;
            }
            false => head.copy_from_slice(before),
        }
        lent
    }

    #[cfg(test)]
    pub(crate) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the number of payload bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// Returns the payload, all of which must be in the packet's memory.
    pub fn payload(&self) -> &[u8] {
        debug_assert!(self.outside.is_none(), "some of it was not read");
        self.in_memory()
    }

    fn in_memory(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Returns the payload for changes in place; all of it must be in the packet's memory.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.outside.is_none(), "some of it was not read");
        &mut self.memory[self.start..self.end]
    }

    /// Adds `n` payload bytes, at most [`PacketBuf::room`], and returns them to be filled.
    pub fn grow(&mut self, n: usize) -> &mut [u8] {
        let from = self.end;
        self.end += n.min(self.room());
        &mut self.memory[from..self.end]
    }

    /// Appends as much of `bytes` as fits; returns the number of bytes.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let to = self.grow(bytes.len());
        let n = to.len();
        to.copy_from_slice(&bytes[..n]);
        n
    }

    /// Drops the payload behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let behind = len.saturating_sub(self.inside());
        self.outside = self.outside.take().filter(|_| behind > 0);
        if let Some(outside) = &mut self.outside {
            outside.len = outside.len.min(behind);
        }
        self.end = self.end.min(self.start + len);
    }

    /// Drops the first `n` payload bytes.
    pub fn advance(&mut self, n: usize) {
        let inside = self.inside().min(n);
        self.start += inside;
        if let Some(outside) = &mut self.outside {
            outside.advance(n - inside);
        }
    }

    /// Splits off the first `n` payload bytes, or all, as a packet of their own. Bytes in memory
    /// are copied, borrowed ones stay borrowed.
    pub fn split_front(&mut self, n: usize, pool: &PacketPool) -> Self {
        let inside = self.inside().min(n);
        let mut front = pool.packet(
            0,
            inside + pool.room_for_outlying(self.len().min(n) - inside),
        );
        front.append(&self.in_memory()[..inside]);
        if let Some(outside) = self.outside.as_ref().filter(|_| n > inside) {
            front.limit = front.end;
            front.outside = Some(outside.front(n - inside));
        }
        self.advance(n);
        front
    }

    /// Puts `header` in front of the payload; panics if it exceeds the free room there.
    pub fn prepend(&mut self, header: &[u8]) {
        assert!(
            header.len() <= self.start,
            "a header of {} bytes does not fit",
            header.len()
        );
        self.start -= header.len();
        self.memory[self.start..self.start + header.len()].copy_from_slice(header);
    }

    /// Returns the payload in memory with `front` bytes before it and `back` bytes behind it, in
    /// which the packet is built and sealed. Every packet has at least [`HEADROOM`] and
    /// [`TAILROOM`].
    pub fn with_room(&mut self, front: usize, back: usize) -> &mut [u8] {
        &mut self.memory[self.start - front..self.end + back]
    }

    /// Returns the bytes of [`PacketBuf::with_room`] in order of sending: the borrowed payload goes
    /// before the `back` bytes.
    pub fn parts(&self, front: usize, back: usize) -> [OutputPart<'_>; 3] {
        let whole = &self.memory[self.start - front..self.end + back];
        let (before, behind) = match self.outside {
            Some(_) => whole.split_at(front + self.inside()),
            None => (whole, &[][..]),
        };
        let outside = self
            .outside
            .as_ref()
            .map_or(OutputPart::Inline(&[]), OutputPart::from);
        [
            OutputPart::Inline(before),
            outside,
            OutputPart::Inline(behind),
        ]
    }
}

impl Drop for PacketBuf {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}
