//! Compression of file data with zstd, block by block, for `write-zstd@longhaul`,
//! `read-zstd@longhaul` and their relatives.

use std::fmt;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Longest block in bytes before compression. A longer declared length is refused before memory is
/// allocated for it.
pub const LONGEST_UNPACKED: u32 = 256 << 10;
/// Smallest file in bytes that is compressed as a whole; below that, most of the transferred bytes
/// are not file data.
pub const LEAST_FILE: u64 = 1 << 10;
/// Compression level of zstd: 0.4 GB/s of text on a core at 2.6 GHz, and a better part of the ratio
/// than higher levels add.
const LEVEL: i32 = 1;
/// Shortest match searched for in long blocks. It is a tenth faster on text and a twentieth on
/// source code and programs, at 2 to 3 % more output. The level's default is 6, which short blocks
/// keep: they have few long matches.
const LEAST_MATCH: u32 = 7;
/// Length in bytes from which a block is long.
const LONG: usize = 64 << 10;

/// Compressor for blocks, one after the other.
pub struct BlockCompressor {
    compressor: Compressor<'static>,
    /// Current setting of [`LEAST_MATCH`], or 0 for the level's default.
    least_match: u32,
}

impl BlockCompressor {
    /// Creates a compressor; `None` if there is no memory for it.
    pub fn new() -> Option<Self> {
        let mut compressor = Compressor::new(LEVEL).ok()?;
        // The request contains the length, and the channel has a MAC.
        compressor.include_contentsize(false).ok()?;
        compressor.include_checksum(false).ok()?;
        Some(Self {
            compressor,
            least_match: 0,
        })
    }

    /// Compresses `block` into `out`, which is cleared first; returns false if that saves less than
    /// an eighth.
    pub fn pack(&mut self, block: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let worth = block.len() - block.len() / 8;
        out.reserve(worth);
        self.look_for(if block.len() < LONG { 0 } else { LEAST_MATCH });
        // Output that does not fit saves too little.
        let packed = self.compressor.compress_to_buffer(block, out);
        packed.is_ok_and(|n| n > 0 && n <= worth)
    }

    fn look_for(&mut self, least_match: u32) {
        if self.least_match != least_match {
            // Best effort: compression works with any value.
            let set = self
                .compressor
                .set_parameter(CParameter::MinMatch(least_match));
            debug_assert!(set.is_ok(), "zstd knows it");
            self.least_match = least_match;
        }
    }
}

impl fmt::Debug for BlockCompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockCompressor")
    }
}

/// Decompressor for blocks, each independent of the ones before; one decompressor serves many.
pub struct BlockDecompressor(Decompressor<'static>);

impl BlockDecompressor {
    /// Creates a decompressor; `None` if there is no memory for it.
    pub fn new() -> Option<Self> {
        Decompressor::new().ok().map(Self)
    }

    /// Decompresses `packed` to `len` bytes; `None` if it is malformed, has another length, or
    /// `len` exceeds [`LONGEST_UNPACKED`]. The call allocates at most `len` bytes: the output is
    /// zstd's window.
    pub fn unpack(&mut self, packed: &[u8], len: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.unpack_to(packed, len, &mut out).then_some(out)
    }

    /// Decompresses like [`BlockDecompressor::unpack`] into `out`, whose memory is reused; returns false on
    /// failure, which leaves `out` with undefined content.
    pub fn unpack_to(&mut self, packed: &[u8], len: u32, out: &mut Vec<u8>) -> bool {
        if len > LONGEST_UNPACKED {
            return false;
        }
        out.clear();
        out.reserve_exact(len as usize);
        // Output beyond `len` does not fit and is an error.
        let unpacked = self.0.decompress_to_buffer(packed, out);
        unpacked.is_ok_and(|n| n == len as usize)
    }
}

impl fmt::Debug for BlockDecompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockDecompressor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize) -> Vec<u8> {
        let words = b"the quick brown fox jumps over the lazy dog, again and again. ";
        words.iter().copied().cycle().take(len).collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn what_was_packed_comes_back_and_noise_is_left_alone() {
        let (mut packer, mut unpacker) = (
            BlockCompressor::new().unwrap(),
            BlockDecompressor::new().unwrap(),
        );
        let mut packed = Vec::new();
        for len in [1000, 4096, 255 * 1024, LONGEST_UNPACKED as usize] {
            let data = text(len);
            assert!(packer.pack(&data, &mut packed), "{len}");
            assert!(packed.len() < len / 2);
            assert_eq!(unpacker.unpack(&packed, len as u32), Some(data));
            assert!(!packer.pack(&noise(len), &mut packed), "{len}");
        }
        assert!(!packer.pack(&[], &mut packed));
    }

    #[test]
    fn a_long_block_changes_nothing_for_a_short_one() {
        let (mut packer, mut fresh) = (
            BlockCompressor::new().unwrap(),
            BlockCompressor::new().unwrap(),
        );
        let (mut packed, mut alone) = (Vec::new(), Vec::new());
        // Repeats of six bytes, which are too short for the search in long blocks.
        let short: Vec<u8> = (0..2000_u32)
            .flat_map(|n| {
                [
                    b'a' + (n * 7 % 5) as u8,
                    b'q',
                    b'u',
                    b'i',
                    b'c',
                    b'k',
                    n as u8,
                ]
            })
            .collect();
        assert!(fresh.pack(&short, &mut alone));
        assert!(packer.pack(&text(LONG), &mut packed));
        assert!(packer.pack(&short, &mut packed));
        assert_eq!(packed, alone);
    }

    #[test]
    fn a_block_that_is_not_as_long_as_it_claims_is_refused() {
        let (mut packer, mut unpacker) = (
            BlockCompressor::new().unwrap(),
            BlockDecompressor::new().unwrap(),
        );
        let mut packed = Vec::new();
        assert!(packer.pack(&vec![0; 1 << 24], &mut packed));
        for claim in [0, 1, 4096, LONGEST_UNPACKED, LONGEST_UNPACKED + 1, u32::MAX] {
            assert_eq!(unpacker.unpack(&packed, claim), None, "{claim}");
        }
        assert!(packer.pack(&text(5000), &mut packed));
        assert_eq!(unpacker.unpack(&packed, 5001), None);
        assert_eq!(unpacker.unpack(&packed, 4999), None);
        packed.truncate(packed.len() - 1);
        assert_eq!(unpacker.unpack(&packed, 5000), None);
        assert_eq!(unpacker.unpack(b"no frame at all", 5000), None);
        assert!(unpacker.unpack(&[], 1).is_none());
    }
}
