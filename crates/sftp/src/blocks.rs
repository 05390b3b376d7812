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
/// Bytes that are taken together: as many sums side by side keep the vector units busy.
const LANES: usize = 32;

/// The polynomial of a block's bytes, modulo 2^32: the last byte's factor is 1. librsync found the
/// same kind of sum to collide less than rsync's two sums of 16 bits.
pub fn rolling(block: &[u8]) -> u32 {
    const STEP: u32 = power(FACTOR, LANES);
    let mut sums = [0u32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, byte) in sums.iter_mut().zip(chunk) {
            *sum = sum
                .wrapping_mul(STEP)
                .wrapping_add(u32::from(*byte) + SHIFT);
        }
    }
    let sum = sums.iter().fold(0, |sum: u32, lane| {
        sum.wrapping_mul(FACTOR).wrapping_add(*lane)
    });
    rest.iter().fold(sum, |sum, byte| push(sum, *byte))
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
        for len in [1, 31, 32, 33, 512, 1000] {
            let mut window = Window::new(&data[..len]);
            for at in 0..data.len() - len {
                assert_eq!(window.sum(), rolling(&data[at..at + len]), "{len} at {at}");
                window.slide(data[at], data[at + len]);
            }
        }
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
