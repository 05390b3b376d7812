//! File data made smaller for the way by zstd, block by block: what `write-zstd@longhaul` carries
//! and `read-zstd@longhaul` answers.

use std::fmt;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// The longest block, in bytes of the file. What claims to be longer is refused before anything is
/// allocated for it.
pub const LONGEST_UNPACKED: u32 = 256 << 10;
/// Whole files below this are not packed: most of what they take on the way is not their data.
pub const LEAST_FILE: u64 = 1 << 10;
/// The level: 0.4 GB/s of text on a core of 2.6 GHz, and more of the ratio than higher ones add.
const LEVEL: i32 = 1;
/// In long blocks only matches from this length on are looked for: a tenth quicker on words and a
/// twentieth on sources and programs, for 2 to 3 % more to carry. The level's own choice would be 6,
/// which short blocks keep: they have few long matches.
const LEAST_MATCH: u32 = 7;
/// What a long block is.
const LONG: usize = 64 << 10;

/// Makes blocks smaller, one after the other.
pub struct Packer {
    compressor: Compressor<'static>,
    /// Of [`LEAST_MATCH`], or 0 for the level's own.
    least_match: u32,
}

impl Packer {
    /// One that has done nothing yet; `None` where there is no memory for it.
    pub fn new() -> Option<Self> {
        let mut compressor = Compressor::new(LEVEL).ok()?;
        // The length stands in the request, and the channel has a MAC.
        compressor.include_contentsize(false).ok()?;
        compressor.include_checksum(false).ok()?;
        Some(Self {
            compressor,
            least_match: 0,
        })
    }

    /// `block` made smaller, in `out`, which is emptied first; false where that saves less than an
    /// eighth.
    pub fn pack(&mut self, block: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let worth = block.len() - block.len() / 8;
        out.reserve(worth);
        self.look_for(if block.len() < LONG { 0 } else { LEAST_MATCH });
        // Where it does not fit it does not pay.
        let packed = self.compressor.compress_to_buffer(block, out);
        packed.is_ok_and(|n| n > 0 && n <= worth)
    }

    fn look_for(&mut self, least_match: u32) {
        if self.least_match != least_match {
            // Without it, it packs all the same.
            let set = self
                .compressor
                .set_parameter(CParameter::MinMatch(least_match));
            debug_assert!(set.is_ok(), "zstd knows it");
            self.least_match = least_match;
        }
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Packer")
    }
}

/// Restores blocks.
pub struct Unpacker(Decompressor<'static>);

impl Unpacker {
    /// One that has done nothing yet; `None` where there is no memory for it.
    pub fn new() -> Option<Self> {
        Decompressor::new().ok().map(Self)
    }

    /// The `len` bytes that were packed; `None` if they are not that many, or more than
    /// [`LONGEST_UNPACKED`]. Never more than `len` bytes are allocated, nor is any window beside
    /// them: they are it.
    pub fn unpack(&mut self, packed: &[u8], len: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.unpack_to(packed, len, &mut out).then_some(out)
    }

    /// The same into `out`, whose memory is used again; false if it is not what was packed, and `out`
    /// is worth nothing then.
    pub fn unpack_to(&mut self, packed: &[u8], len: u32, out: &mut Vec<u8>) -> bool {
        if len > LONGEST_UNPACKED {
            return false;
        }
        out.clear();
        out.reserve_exact(len as usize);
        // What it becomes beyond that fits nowhere.
        let unpacked = self.0.decompress_to_buffer(packed, out);
        unpacked.is_ok_and(|n| n == len as usize)
    }
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unpacker")
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
        let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
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
        let (mut packer, mut fresh) = (Packer::new().unwrap(), Packer::new().unwrap());
        let (mut packed, mut alone) = (Vec::new(), Vec::new());
        // Repeats of six bytes, which are too short for long blocks.
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
        let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
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
