//! Finds runs of zeros in data that are written.

use bytes::Bytes;

/// The block size of most file systems, which is the unit of a hole.
const BLOCK: u64 = 4096;

/// Zeros that are handled at a time: each 64 KiB of them takes one slice in memory.
const AT_ONCE: u64 = 16 << 20;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Returns `len` zeros as slices of one static buffer.
pub(super) fn zeros(len: u64) -> Vec<Bytes> {
    let whole = len / ZEROS.len() as u64;
    let rest = (len % ZEROS.len() as u64) as usize;
    let all = Bytes::from_static(&ZEROS);
    let mut pieces = vec![all.clone(); usize::try_from(whole).unwrap_or(0)];
    pieces.push(all.slice(..rest));
    pieces
}

/// Cuts `len` bytes at `offset` into chunks of at most [`AT_ONCE`] bytes, as offset and length.
pub(super) fn chunks(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset.saturating_add(len);
    let step = usize::try_from(AT_ONCE).unwrap_or(usize::MAX);
    (offset..end)
        .step_by(step)
        .map(move |at| (at, AT_ONCE.min(end - at)))
}

/// Cuts `bytes`, located at `offset` of a file, into runs of whole zero blocks and data between
/// them: the start within `bytes`, the length, and true for zeros.
pub(super) fn runs(offset: u64, bytes: &[u8]) -> Vec<(usize, usize, bool)> {
    let mut runs: Vec<(usize, usize, bool)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let to_block = BLOCK - (offset + at as u64) % BLOCK;
        let len = (to_block as usize).min(bytes.len() - at);
        let zeros = len as u64 == BLOCK && bytes[at..at + len] == ZEROS[..len];
        match runs.last_mut() {
            Some((_, before, same)) if *same == zeros => *before += len,
            _ => runs.push((at, len, zeros)),
        }
        at += len;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_of_zeros_are_holes_and_nothing_else() {
        assert_eq!(runs(0, &[]), []);
        assert_eq!(runs(0, &[0; 8192]), [(0, 8192, true)]);
        assert_eq!(
            runs(1, &[0; 8192]),
            [(0, 4095, false), (4095, 4096, true), (8191, 1, false)]
        );
        let mut bytes = vec![0; 3 * 4096];
        bytes[5000] = 1;
        let cut = [(0, 4096, true), (4096, 4096, false), (8192, 4096, true)];
        assert_eq!(runs(4096, &bytes), cut);
    }

    #[test]
    fn zeros_are_as_many_as_asked_for() {
        for len in [0, 1, 65_536, 200_000] {
            let sum: usize = zeros(len).iter().map(Bytes::len).sum();
            assert_eq!(sum as u64, len);
        }
        let cut: Vec<_> = chunks(5, AT_ONCE + 1).collect();
        assert_eq!(cut, [(5, AT_ONCE), (5 + AT_ONCE, 1)]);
        assert_eq!(chunks(5, 0).count(), 0);
    }
}
