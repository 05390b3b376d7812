//! Generates data of known kinds, identical in every run, and measures their compression.

use std::io::{self, Read, Write};
use std::time::Instant;

use sftp::packed::BlockCompressor;
use ssh::compress::Deflate;

/// The number of bytes that are generated. Longer data repeat them, at a distance beyond the window
/// of any compression used here.
pub const PIECE: usize = 4 << 20;
/// The file data bytes of a packet.
pub const PACKET: usize = 32 * 1024;
/// The bytes of a block that zstd compresses.
const BLOCK: usize = 128 * 1024;
/// The bytes whose compression is measured.
const LOOK: usize = 2 << 20;

/// A seeded random number generator: xorshift64*.
struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        // The lowest bits are the weakest.
        ((self.next() >> 33) as usize) % bound
    }
}

/// Returns [`PIECE`] incompressible bytes.
pub fn random() -> Vec<u8> {
    let mut numbers = SeededRandom(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes
}

/// Returns [`PIECE`] bytes of English words, common ones often; zlib reduces them to about a third.
pub fn text() -> Vec<u8> {
    const WORDS: &str = "the of and to in is that it was for on are as with his they at be this \
        from have or by one had not but what all were when we there can an your which their said \
        if do will each about how up out them then she many some so these would other into has \
        more her two like him see time could no make than first been its who now people my made \
        over did down only way find use may water long little very after words called just where \
        most know transfer channel window packet server client latency throughput directory";
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut numbers = SeededRandom(4);
    let mut text = Vec::with_capacity(PIECE + 64);
    while text.len() < PIECE {
        let (a, b) = (numbers.below(words.len()), numbers.below(words.len()));
        let word = words.get(a.min(b)).copied().unwrap_or_default();
        text.extend_from_slice(word.as_bytes());
        match numbers.below(14) {
            0 => text.extend_from_slice(b".\n"),
            1 => text.extend_from_slice(format!(" {}", numbers.below(10_000)).as_bytes()),
            _ => text.push(b' '),
        }
    }
    text.truncate(PIECE);
    text
}

/// Returns [`PIECE`] bytes of already compressed data: text after deflate, as in a gzip file.
pub fn gzipped() -> Vec<u8> {
    let mut deflate = Deflate::new();
    let mut bytes = Vec::with_capacity(PIECE + BLOCK);
    let mut words = text();
    while bytes.len() < PIECE {
        // Rotated words, so that no data repeat.
        words.rotate_left(12_345);
        for block in words.chunks(BLOCK) {
            if deflate.deflate(block, &mut bytes).is_err() || bytes.len() >= PIECE {
                break;
            }
        }
    }
    bytes.truncate(PIECE);
    bytes
}

/// Returns the first [`PIECE`] bytes of a file.
///
/// # Errors
/// The file cannot be read, or is empty.
pub fn of_file(path: &std::path::Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(PIECE as u64)
        .read_to_end(&mut bytes)?;
    match bytes.is_empty() {
        true => Err(io::Error::other("the file is empty: name one with data")),
        false => Ok(bytes),
    }
}

/// Writes the bytes from `from` to `len` of a file that repeats `piece`.
///
/// # Errors
/// Those of the writer.
pub fn write(piece: &[u8], mut from: u64, len: u64, out: &mut impl Write) -> io::Result<()> {
    let size = piece.len().max(1) as u64;
    while from < len {
        let at = (from % size) as usize;
        let rest = piece.get(at..).unwrap_or_default();
        let end = rest.len().min((len - from) as usize);
        let rest = rest.get(..end).unwrap_or_default();
        out.write_all(rest)?;
        from += rest.len().max(1) as u64;
    }
    Ok(())
}

/// The compression ratio of data, and this machine's compression rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressionSample {
    /// Compressed size divided by original size.
    pub ratio: f64,
    /// Bytes per second on one core.
    pub rate: f64,
}

/// Compresses with zlib, packet by packet, as SSH does.
pub fn by_zlib(data: &[u8]) -> CompressionSample {
    let mut deflate = Deflate::new();
    let mut out = Vec::with_capacity(PACKET);
    looked(data, PACKET, |packet| {
        out.clear();
        match deflate.deflate(packet, &mut out) {
            Ok(()) => out.len(),
            Err(_) => packet.len(),
        }
    })
}

/// Compresses with zstd, block by block, as two longhauls do; incompressible blocks count as sent
/// unchanged.
pub fn by_zstd(data: &[u8]) -> CompressionSample {
    let mut packer = BlockCompressor::new();
    let mut out = Vec::new();
    looked(data, BLOCK, |block| {
        let packed = packer
            .as_mut()
            .is_some_and(|packer| packer.pack(block, &mut out));
        if packed { out.len() } else { block.len() }
    })
}

fn looked(data: &[u8], block: usize, mut pack: impl FnMut(&[u8]) -> usize) -> CompressionSample {
    let data = data.get(..data.len().min(LOOK)).unwrap_or_default();
    let start = Instant::now();
    let packed: usize = data.chunks(block).map(&mut pack).sum();
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    CompressionSample {
        ratio: packed as f64 / data.len().max(1) as f64,
        rate: data.len() as f64 / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_as_small_as_it_says() {
        for (data, least, most) in [
            (random(), 0.99, 1.01),
            (text(), 0.25, 0.45),
            (gzipped(), 0.97, 1.01),
        ] {
            assert_eq!(data.len(), PIECE);
            let ratio = by_zlib(&data).ratio;
            assert!((least..=most).contains(&ratio), "{ratio}");
        }
        assert_eq!(by_zstd(&random()).ratio, 1.0);
        assert!(by_zstd(&text()).ratio < 0.6);
    }

    #[test]
    fn a_file_that_grows_is_the_same_as_one_written_at_once() {
        let piece: Vec<u8> = (0..100).collect();
        let (mut whole, mut grown) = (Vec::new(), Vec::new());
        write(&piece, 0, 1234, &mut whole).unwrap();
        write(&piece, 0, 321, &mut grown).unwrap();
        write(&piece, 321, 1234, &mut grown).unwrap();
        assert_eq!(whole.len(), 1234);
        assert!(whole == grown);
        write(&[], 0, 10, &mut whole).unwrap();
    }
}
