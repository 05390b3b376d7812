//! Zeros in what is written.

use bytes::Bytes;

/// What a hole of most file systems is made of.
const BLOCK: u64 = 4096;

/// Zeros that are handled at a time, which take some memory by their number.
const AT_ONCE: u64 = 16 << 20;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// `len` zeros, which take no memory of their own.
pub(super) fn zeros(len: u64) -> Vec<Bytes> {
    let whole = len / ZEROS.len() as u64;
    let rest = (len % ZEROS.len() as u64) as usize;
    let all = Bytes::from_static(&ZEROS);
    let mut pieces = vec![all.clone(); usize::try_from(whole).unwrap_or(0)];
    pieces.push(all.slice(..rest));
    pieces
}

/// Cuts `len` bytes at `offset` into as many as are held at a time: where each begins, and how long it
/// is.
pub(super) fn chunks(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset.saturating_add(len);
    let step = usize::try_from(AT_ONCE).unwrap_or(usize::MAX);
    (offset..end)
        .step_by(step)
        .map(move |at| (at, AT_ONCE.min(end - at)))
}

/// Cuts `bytes`, which stand at `offset` of a file, into runs of whole blocks of zeros and what lies
/// between: where each begins in `bytes`, its length, and whether it is zeros.
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
