//! Sums of a file's blocks, which `hash@longhaul` answers: made in one way at both ends.

/// Shorter blocks would be more sums than data.
pub const LEAST_BLOCK: u32 = 512;
/// Longer ones no request may name, and no request may ask for more bytes of a file: so long one
/// client keeps the server from answering the others on its channel.
pub const MOST_HASHED: u32 = 64 << 20;
/// The sums of one answer, in bytes.
pub const MOST_SUMS: usize = 240 << 10;

/// What a block's sum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumKind {
    /// A [`BlockSum`]: one sum to find the block at any offset of another file, and one to know it
    /// by, which takes a key.
    Rolling,
    /// A [`Strong`] alone.
    Strong,
    /// BLAKE3, 32 bytes, of the block by itself.
    Blake3,
}

impl SumKind {
    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rolling => "rolling",
            Self::Strong => "blake3-128",
            Self::Blake3 => "blake3",
        }
    }

    /// The kind of that name.
    pub fn named(name: &[u8]) -> Option<Self> {
        let all = [Self::Rolling, Self::Strong, Self::Blake3];
        all.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Bytes of a block's sum.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Rolling => BlockSum::LEN,
            Self::Strong => 16,
            Self::Blake3 => 32,
        }
    }

    /// The longest block that may be asked for.
    pub const fn most(self) -> u32 {
        match self {
            Self::Rolling | Self::Strong => 1 << 20,
            Self::Blake3 => MOST_HASHED,
        }
    }
}

/// A key of keyed BLAKE3.
pub type SumKey = [u8; 32];

/// The first 128 bits of the keyed BLAKE3 of a block. Whoever chooses the contents of files does
/// not know the key, so that no two blocks can be made to have the same.
pub type Strong = [u8; 16];

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSum {
    /// [`rolling`].
    pub rolling: u32,
    /// [`strong`].
    pub strong: Strong,
}

impl BlockSum {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Of `block`.
    pub fn of(key: &SumKey, block: &[u8]) -> Self {
        Self {
            rolling: rolling(block),
            strong: strong(key, block),
        }
    }

    /// Reads the sums of an answer; what is left over at its end is no sum.
    pub fn read_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks::<{ Self::LEN }>().0.iter().map(|bytes| {
            let [a, b, c, d, strong @ ..] = *bytes;
            Self {
                rolling: u32::from_be_bytes([a, b, c, d]),
                strong,
            }
        })
    }

    /// Appends it as it is on the wire.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rolling.to_be_bytes());
        out.extend_from_slice(&self.strong);
    }
}

/// See [`Strong`].
pub fn strong(key: &SumKey, block: &[u8]) -> Strong {
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::keyed_hash(key, block).as_bytes()[..16]);
    first
}

/// The factor of the polynomial: odd, so that no byte is lost in the top bits.
const FACTOR: u32 = 0x9e37_79b1;
/// Added to each byte, so that blocks of zeros differ by their length.
const SHIFT: u32 = 0x1f;
/// Bytes that are taken together, ...
const CHUNK: usize = 256;
/// ... and those of them that one step of the vector units takes.
const STEP: usize = 16;
/// What stands for the bytes of a chunk is [`FACTOR`] to the power of how many are behind each, here
/// in two halves of 16 bits: vector units of every age are fast with those (pmaddwd, pmullw), and
/// SSE2, which is what there is for certain, multiplies 32 bits in six steps.
const LOW: [i16; CHUNK] = halves(false);
const HIGH: [i16; CHUNK] = halves(true);
/// What [`SHIFT`] comes to in a chunk.
const SHIFTS: u32 = shifts();

/// The polynomial of a block's bytes, modulo 2^32: the last byte's factor is 1. librsync found the
/// same kind of sum to collide less than rsync's two sums of 16 bits.
pub fn rolling(block: &[u8]) -> u32 {
    const PAST: u32 = power(FACTOR, CHUNK);
    let (chunks, rest) = block.as_chunks::<CHUNK>();
    let sum = chunks.iter().fold(0, |sum: u32, chunk| {
        sum.wrapping_mul(PAST).wrapping_add(of_chunk(chunk))
    });
    rest.iter().fold(sum, |sum, byte| push(sum, *byte))
}

/// [`rolling`] of a chunk: 1.9 to 2.3 times as fast with SSE2 as with multiplications of 32 bits.
fn of_chunk(chunk: &[u8; CHUNK]) -> u32 {
    // The compiler knows the shape of this form; of others, pairs of arrays among them, it does not.
    let mut low = [0i32; STEP / 2];
    let mut high = [0i16; STEP];
    let (bytes, _) = chunk.as_chunks::<STEP>();
    let lows = LOW.as_chunks::<STEP>().0;
    let highs = HIGH.as_chunks::<STEP>().0;
    for ((bytes, l), h) in bytes.iter().zip(lows).zip(highs) {
        let bytes: [i16; STEP] = std::array::from_fn(|n| i16::from(bytes[n]));
        for n in 0..STEP / 2 {
            let (a, b) = (i32::from(bytes[2 * n]), i32::from(bytes[2 * n + 1]));
            let both = (a * i32::from(l[2 * n])).wrapping_add(b * i32::from(l[2 * n + 1]));
            low[n] = low[n].wrapping_add(both);
        }
        // Of the upper halves no more is left than 16 bits.
        for n in 0..STEP {
            high[n] = high[n].wrapping_add(bytes[n].wrapping_mul(h[n]));
        }
    }
    let low = low.iter().fold(0i32, |sum, n| sum.wrapping_add(*n));
    let high = high.iter().fold(0i16, |sum, n| sum.wrapping_add(*n));
    // Modulo 2^32, whatever the signs.
    let high = u32::from(high as u16) << 16;
    (low as u32).wrapping_add(high).wrapping_add(SHIFTS)
}

/// The lower halves of the factors, taken as signed, or what is left above those.
const fn halves(upper: bool) -> [i16; CHUNK] {
    let mut halves = [0; CHUNK];
    let mut at = 0;
    while at < CHUNK {
        let factor = power(FACTOR, CHUNK - 1 - at);
        let low = factor as i16;
        halves[at] = match upper {
            true => (factor.wrapping_sub(low as u32) >> 16) as i16,
            false => low,
        };
        at += 1;
    }
    halves
}

const fn shifts() -> u32 {
    let (mut sum, mut at) = (0u32, 0);
    while at < CHUNK {
        sum = sum.wrapping_mul(FACTOR).wrapping_add(SHIFT);
        at += 1;
    }
    sum
}

fn push(sum: u32, byte: u8) -> u32 {
    sum.wrapping_mul(FACTOR)
        .wrapping_add(u32::from(byte) + SHIFT)
}

/// The rolling sum of a window that moves by one byte at a time.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    sum: u32,
    /// What the first byte's factor will be when it leaves.
    leaves: u32,
}

impl Window {
    /// Over `block`.
    pub fn new(block: &[u8]) -> Self {
        Self {
            sum: rolling(block),
            leaves: power(FACTOR, block.len()),
        }
    }

    /// Its [`rolling`].
    pub fn sum(self) -> u32 {
        self.sum
    }

    /// Moves by one byte.
    pub fn slide(&mut self, leaving: u8, coming: u8) {
        let left = (u32::from(leaving) + SHIFT).wrapping_mul(self.leaves);
        self.sum = push(self.sum, coming).wrapping_sub(left);
    }
}

const fn power(mut base: u32, mut exponent: usize) -> u32 {
    let mut result = 1u32;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * n / 7 + n / 251) as u8).collect()
    }

    #[test]
    fn a_window_that_slid_has_the_sum_of_what_it_covers() {
        let data = bytes(3000);
        for len in [1, 31, 255, 256, 257, 512, 1000] {
            let mut window = Window::new(&data[..len]);
            for at in 0..data.len() - len {
                assert_eq!(window.sum(), rolling(&data[at..at + len]), "{len} at {at}");
                window.slide(data[at], data[at + len]);
            }
        }
    }

    /// As docs/PROTOCOL.md has it.
    fn plain(block: &[u8]) -> u32 {
        block.iter().fold(0, |sum, byte| push(sum, *byte))
    }

    #[test]
    fn the_sum_is_the_polynomial_whatever_the_bytes() {
        for data in [bytes(5000), vec![0; 5000], vec![255; 5000]] {
            for len in [0, 1, 255, 256, 257, 512, 767, 4096, 5000] {
                assert_eq!(rolling(&data[..len]), plain(&data[..len]), "{len}");
            }
        }
        // So that both ends of any two versions agree.
        assert_eq!(rolling(b"longhaul"), plain(b"longhaul"));
    }

    #[test]
    fn sums_are_read_as_they_were_written() {
        let key = [7; 32];
        let data = bytes(5000);
        let mut out = Vec::new();
        for block in data.chunks(1024) {
            BlockSum::of(&key, block).write(&mut out);
        }
        let read: Vec<BlockSum> = BlockSum::read_all(&out).collect();
        assert_eq!(out.len(), 5 * BlockSum::LEN);
        assert_eq!(read[4], BlockSum::of(&key, &data[4096..]));
        assert_ne!(
            read[0].strong,
            strong(&[8; 32], &data[..1024]),
            "the key counts"
        );
    }

    #[test]
    fn zeros_of_different_length_differ() {
        assert_ne!(rolling(&[0; 32]), rolling(&[0; 64]));
        assert_ne!(rolling(&[0; 32]), rolling(&[0; 33]));
    }
}
