use arbitrary::{Result, Unstructured};

/// Numbers that parsers often mishandle.
const EDGES: [u32; 10] = [
    0,
    1,
    4,
    0x7f,
    0x80,
    0xffff,
    0x10_000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
];

/// Valid inputs, each with a name.
pub struct Corpus(pub Vec<(&'static str, Vec<u8>)>);

impl Corpus {
    /// Returns one of the inputs with a few changes, sometimes with a piece of another.
    pub fn mutant(&self, u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let (_, seed) = u.choose(&self.0)?;
        let (_, other) = u.choose(&self.0)?;
        let mut bytes = mutate(u, seed)?;
        if u.ratio(1, 8)? {
            let from = u.int_in_range(0..=other.len())?;
            let at = u.int_in_range(0..=bytes.len())?;
            let tail = other.get(from..).unwrap_or_default();
            bytes.truncate(at);
            bytes.extend_from_slice(tail);
        }
        Ok(bytes)
    }
}

/// Returns `seed` with up to eight changes: flipped bits, other bytes or lengths, pieces removed or
/// doubled. One time in eight it stays unchanged.
pub fn mutate(u: &mut Unstructured<'_>, seed: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = seed.to_vec();
    if u.ratio(1, 8)? {
        return Ok(bytes);
    }
    for _ in 0..u.int_in_range(1..=8)? {
        change(u, &mut bytes)?;
    }
    Ok(bytes)
}

fn change(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    let at = u.int_in_range(0..=bytes.len())?;
    let few = u.int_in_range(1..=16)?;
    let end = (at + few).min(bytes.len());
    match u.int_in_range(0..=7)? {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << u.int_in_range(0..=7)?;
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u.arbitrary()?;
            }
        }
        2 => {
            let edge = u.choose(&EDGES)?.to_be_bytes();
            if let Some(four) = bytes.get_mut(at..at + 4) {
                four.copy_from_slice(&edge);
            }
        }
        3 => {
            // A length that is slightly wrong.
            let delta: i8 = u.arbitrary()?;
            if let Some(four) = bytes.get_mut(at..at + 4).and_then(|b| b.first_chunk_mut()) {
                *four = u32::from_be_bytes(*four)
                    .wrapping_add_signed(delta.into())
                    .to_be_bytes();
            }
        }
        4 => {
            bytes.drain(at..end);
        }
        5 => {
            let piece = bytes.get(at..end).unwrap_or_default().to_vec();
            bytes.splice(at..at, piece);
        }
        6 => {
            let piece = u.bytes(few.min(u.len()))?.to_vec();
            bytes.splice(at..at, piece);
        }
        _ => bytes.truncate(at),
    }
    Ok(())
}
