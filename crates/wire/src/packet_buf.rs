use std::sync::Arc;

use crate::Pool;
use crate::external_payload::{ExternalPayload, ExternalSource, Part};

/// Bytes free in front of a packet's payload: packet_length, padding_length (RFC 4253 section 6)
/// and the CHANNEL_DATA header (RFC 4254 section 5.2).
pub const HEADROOM: usize = 4 + 1 + 9;
/// Bytes free behind it: up to 31 of padding and the longest tag (hmac-sha2-512).
pub const TAILROOM: usize = 31 + 64;
/// What stands before bytes that lie outside is no longer than this: headers.
const LONGEST_HEAD: usize = 256;

/// One packet's payload, with room around it so that it can be sealed and sent where it lies.
///
/// ```text
///  | HEADROOM | reserve | payload .. room | TAILROOM |
///              <- prepend()   append() ->
/// ```
///
/// Bytes that nobody has read may follow the payload in memory ([`PacketBuf::lie_outside`]).
#[derive(Debug)]
pub struct PacketBuf {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    pool: Option<Pool>,
    outside: Option<ExternalPayload>,
}

impl PacketBuf {
    pub(crate) fn new(
        mut memory: Vec<u8>,
        reserve: usize,
        room: usize,
        slot: usize,
        pool: Option<Pool>,
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

    /// Bytes of memory of a packet with room for `slot` bytes of payload and what is in front of it.
    pub(crate) fn memory_for(slot: usize) -> usize {
        HEADROOM + slot + TAILROOM
    }

    /// A packet of its own memory, for a message without a pool.
    pub fn from_payload(payload: &[u8]) -> Self {
        Self::with_tail(payload, 0)
    }

    /// The same with `tail` bytes beyond [`TAILROOM`], for padding that hides a length.
    pub fn with_tail(payload: &[u8], tail: usize) -> Self {
        let slot = payload.len() + tail;
        let mut packet = Self::new(Vec::new(), 0, payload.len(), slot, None);
        packet.append(payload);
        packet
    }

    /// Payload bytes.
    pub fn len(&self) -> usize {
        self.inside() + self.outside.as_ref().map_or(0, |outside| outside.len)
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Payload bytes in memory.
    pub fn inside(&self) -> usize {
        self.end - self.start
    }

    /// Whether some of the payload is not in memory.
    pub fn lies_outside(&self) -> bool {
        self.outside.is_some()
    }

    /// `len` more bytes of payload, which stay where they lie, `at` bytes behind its beginning. Nothing can
    /// be appended behind them.
    pub(crate) fn lie_outside(&mut self, lie: Arc<dyn ExternalSource>, at: usize, len: usize) {
        self.limit = self.end;
        self.outside = Some(ExternalPayload { lie, at, len });
    }

    /// Reads what lies outside into memory.
    ///
    /// # Errors
    /// It is not to be had any more, and what is to be said of that. Nothing has changed.
    pub fn gather(&mut self) -> Result<(), String> {
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
            return Err(missed);
        }
        (self.end, self.limit) = (end, end);
        Ok(())
    }

    /// Has `seal` bring what lies outside into memory: it is given the payload in memory with `front` bytes
    /// before it, what lies outside with `more` bytes that follow it there, and room for these and `back`
    /// bytes. False where the packet has no such room, or it was not lent, and then the payload is as it was,
    /// whatever `seal` has made of it.
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

    /// Payload bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// The payload, all of which must be in memory.
    pub fn payload(&self) -> &[u8] {
        debug_assert!(self.outside.is_none(), "some of it was not read");
        self.in_memory()
    }

    fn in_memory(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// The same, to change in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.outside.is_none(), "some of it was not read");
        &mut self.memory[self.start..self.end]
    }

    /// Takes `n` more payload bytes, at most [`PacketBuf::room`], and returns them to be filled.
    pub fn grow(&mut self, n: usize) -> &mut [u8] {
        let from = self.end;
        self.end += n.min(self.room());
        &mut self.memory[from..self.end]
    }

    /// Appends as much of `bytes` as there is room for; returns how much.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let to = self.grow(bytes.len());
        let n = to.len();
        to.copy_from_slice(&bytes[..n]);
        n
    }

    /// Drops payload behind the first `len` bytes.
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

    /// Takes the first `n` payload bytes, or all, as a packet of their own: a copy, of what is in memory.
    pub fn split_front(&mut self, n: usize, pool: &Pool) -> Self {
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

    /// Puts `header` in front of the payload; panics when it exceeds the room in front.
    pub fn prepend(&mut self, header: &[u8]) {
        assert!(
            header.len() <= self.start,
            "a header of {} bytes does not fit",
            header.len()
        );
        self.start -= header.len();
        self.memory[self.start..self.start + header.len()].copy_from_slice(header);
    }

    /// The payload in memory with `front` bytes before it and `back` bytes behind it, to build and seal
    /// the packet in. At most [`HEADROOM`] and [`TAILROOM`] are there for every packet.
    pub fn with_room(&mut self, front: usize, back: usize) -> &mut [u8] {
        &mut self.memory[self.start - front..self.end + back]
    }

    /// What [`PacketBuf::with_room`] gives, in order: what lies outside goes before the `back` bytes.
    pub fn parts(&self, front: usize, back: usize) -> [Part<'_>; 3] {
        let whole = &self.memory[self.start - front..self.end + back];
        let (before, behind) = match self.outside {
            Some(_) => whole.split_at(front + self.inside()),
            None => (whole, &[][..]),
        };
        let outside = self.outside.as_ref().map_or(Part::Here(&[]), Part::from);
        [Part::Here(before), outside, Part::Here(behind)]
    }
}

impl Drop for PacketBuf {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}
