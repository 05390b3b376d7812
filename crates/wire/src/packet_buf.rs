use crate::Pool;

/// Bytes free in front of a packet's payload: packet_length, padding_length (RFC 4253 section 6)
/// and the CHANNEL_DATA header (RFC 4254 section 5.2).
pub const HEADROOM: usize = 4 + 1 + 9;
/// Bytes free behind it: up to 31 of padding and the longest tag (hmac-sha2-512).
pub const TAILROOM: usize = 31 + 64;

/// One packet's payload, with room around it so that it can be sealed and sent where it lies.
///
/// ```text
///  | HEADROOM | reserve | payload .. room | TAILROOM |
///              <- prepend()   append() ->
/// ```
#[derive(Debug)]
pub struct PacketBuf {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    pool: Option<Pool>,
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
        self.end - self.start
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    #[cfg(test)]
    pub(crate) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Payload bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// The payload, to change in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
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
        self.end = self.end.min(self.start + len);
    }

    /// Drops the first `n` payload bytes.
    pub fn advance(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
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

    /// The payload with `front` bytes before it and `back` bytes behind it, to build and seal
    /// the packet in. At most [`HEADROOM`] and [`TAILROOM`] are there for every packet.
    pub fn with_room(&mut self, front: usize, back: usize) -> &mut [u8] {
        &mut self.memory[self.start - front..self.end + back]
    }

    /// What [`PacketBuf::with_room`] gives, to read.
    pub fn around(&self, front: usize, back: usize) -> &[u8] {
        &self.memory[self.start - front..self.end + back]
    }
}

impl Drop for PacketBuf {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}
