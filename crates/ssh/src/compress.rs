//! Compression with zlib@openssh.com: each payload is deflated before it is sealed. One stream
//! spans all packets of a direction and is flushed after each (RFC 4253 section 6.2), so packets
//! must be processed in order.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::error::PeerName;

/// Reason why a payload could not be deflated or inflated. It ends the connection, because later
/// packets depend on the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressError {
    /// The peer's data is not a deflate stream, or ends the stream in the middle of the connection.
    BadStream,
    /// The payload inflates to more bytes than allowed.
    TooLarge {
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The library failed to deflate.
    Local,
}

impl CompressError {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadStream => write!(f, "{peer} sent a packet that cannot be decompressed"),
            Self::TooLarge { limit } => {
                write!(
                    f,
                    "{peer} sent a packet that decompresses to more than {limit} bytes"
                )
            }
            Self::Local => f.write_str("the compression library failed"),
        }
    }
}

impl fmt::Display for CompressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

impl std::error::Error for CompressError {}

/// Deflate stream for the payloads of one direction.
#[derive(Debug)]
pub struct Deflate {
    stream: Compress,
}

impl Deflate {
    /// Creates a stream with zlib's level 6, as OpenSSH.
    pub fn new() -> Self {
        Self {
            stream: Compress::new(Compression::new(6), true),
        }
    }

    /// Appends the deflated `payload` to `out`.
    ///
    /// Incompressible data grows by about 5 bytes per 16 KiB, and by 10 for the flush.
    pub fn deflate(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), CompressError> {
        let mut left = payload;
        loop {
            out.reserve(left.len() / 2 + 64);
            let before = self.stream.total_in();
            let status = self
                .stream
                .compress_vec(left, out, FlushCompress::Partial)
                .map_err(|_| CompressError::Local)?;
            let consumed = usize::try_from(self.stream.total_in() - before)
                .map_err(|_| CompressError::Local)?;
            left = left.get(consumed..).ok_or(CompressError::Local)?;
            // Output room to spare means that the flush is complete.
            if left.is_empty() && (out.len() < out.capacity() || status == Status::BufError) {
                return Ok(());
            }
        }
    }
}

impl Default for Deflate {
    fn default() -> Self {
        Self::new()
    }
}

/// Inflate stream for the payloads of one direction.
#[derive(Debug)]
pub struct Inflate {
    stream: Decompress,
    limit: usize,
}

impl Inflate {
    /// Creates a stream that inflates each payload to at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            stream: Decompress::new(true),
            limit,
        }
    }

    /// Appends the inflated `payload` to `out`, which grows by at most the limit.
    ///
    /// # Errors
    /// The data is malformed, ends the stream, or inflates to more than the limit.
    pub fn inflate(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), CompressError> {
        let mut chunk = [0; 8192];
        let mut left = payload;
        let mut room = self.limit;
        loop {
            let (consumed_before, made_before) = (self.stream.total_in(), self.stream.total_out());
            let status = self
                .stream
                .decompress(left, &mut chunk, FlushDecompress::Sync)
                .map_err(|_| CompressError::BadStream)?;
            let count = |after: u64, before: u64| usize::try_from(after - before);
            let consumed = count(self.stream.total_in(), consumed_before);
            let made = count(self.stream.total_out(), made_before);
            let (Ok(consumed), Ok(made)) = (consumed, made) else {
                return Err(CompressError::BadStream);
            };
            left = left.get(consumed..).ok_or(CompressError::BadStream)?;
            room = room
                .checked_sub(made)
                .ok_or(CompressError::TooLarge { limit: self.limit })?;
            out.extend_from_slice(chunk.get(..made).ok_or(CompressError::BadStream)?);
            let stuck = consumed == 0 && made == 0;
            if status == Status::StreamEnd || (stuck && !left.is_empty()) {
                return Err(CompressError::BadStream);
            }
            if left.is_empty() && (stuck || made < chunk.len()) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 256 * 1024;

    /// Returns incompressible bytes.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn deflated(deflate: &mut Deflate, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        deflate.deflate(payload, &mut out).unwrap();
        out
    }

    #[test]
    fn payloads_come_back_one_by_one() {
        let mut deflate = Deflate::new();
        let mut inflate = Inflate::new(LIMIT);
        for len in (0..600).chain([8191, 8192, 8193, 16384, 32768, 100_000, LIMIT]) {
            for payload in [noise(len), vec![7; len]] {
                let packet = deflated(&mut deflate, &payload);
                let mut back = Vec::new();
                inflate.inflate(&packet, &mut back).unwrap();
                assert!(back == payload, "{len} bytes");
            }
        }
    }

    #[test]
    fn a_packet_repeated_is_told_in_few_bytes() {
        let mut deflate = Deflate::new();
        let payload = noise(2000);
        let first = deflated(&mut deflate, &payload).len();
        let second = deflated(&mut deflate, &payload).len();
        assert!(first > 2000 && second < 100, "{first}, {second}");
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut deflate = Deflate::new();
        let bomb = deflated(&mut deflate, &vec![0; 64 * 1024 * 1024]);
        assert!(bomb.len() < LIMIT);
        let mut out = Vec::new();
        let refused = Inflate::new(LIMIT).inflate(&bomb, &mut out);
        assert_eq!(refused, Err(CompressError::TooLarge { limit: LIMIT }));
        assert!(out.len() <= LIMIT);
    }

    #[test]
    fn one_byte_over_the_limit_is_refused() {
        for (len, fits) in [(1000, true), (1001, false)] {
            let packet = deflated(&mut Deflate::new(), &vec![1; len]);
            let result = Inflate::new(1000).inflate(&packet, &mut Vec::new());
            assert_eq!(result.is_ok(), fits);
        }
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        let mut out = Vec::new();
        let refused = Inflate::new(LIMIT).inflate(&[0xff; 20], &mut out);
        assert_eq!(refused, Err(CompressError::BadStream));
    }

    #[test]
    fn a_stream_that_ends_is_refused() {
        let mut packet = Vec::with_capacity(100);
        Compress::new(Compression::new(6), true)
            .compress_vec(b"the end", &mut packet, FlushCompress::Finish)
            .unwrap();
        let refused = Inflate::new(LIMIT).inflate(&packet, &mut Vec::new());
        assert_eq!(refused, Err(CompressError::BadStream));
    }
}
