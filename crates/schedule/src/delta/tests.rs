use arbtest::arbitrary::{self, Unstructured};
use arbtest::arbtest;

use super::*;

const KEY: BlockSumKey = [9; 32];

/// Result of an upload by delta: matching ranges are copied, all others are sent.
struct Rebuilt {
    bytes: Vec<u8>,
    sent: usize,
}

fn sums(basis: &[u8], block: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for bytes in basis.chunks(block as usize) {
        BasisBlockChecksums::of(&KEY, bytes).write(&mut out);
    }
    out
}

fn rebuild(basis: &[u8], source: &[u8], block: u32, segment: usize) -> Rebuilt {
    let known = sums(basis, block);
    let mut differs: Vec<(u64, u64)> = Vec::new();
    for (n, bytes) in source.chunks(segment).enumerate() {
        let offset = n * segment;
        let from = (offset / block as usize * BasisBlockChecksums::LEN).min(known.len());
        let here = &known[from..];
        let here = &here[..here
            .len()
            .min(segment / block as usize * BasisBlockChecksums::LEN)];
        differs.extend(compare(&KEY, block, offset as u64, bytes, here).differs);
    }
    let mut bytes = vec![0xee; source.len()];
    let mut have = vec![false; source.len()];
    let mut same = 0;
    for (from, to) in differs.iter().copied().chain([(source.len() as u64, 0)]) {
        for at in same..from as usize {
            (bytes[at], have[at]) = (basis[at], true);
        }
        same = to as usize;
    }
    let all = BasisBlockChecksums::read_all(&known).collect();
    let basis_of = BasisIndex::new(KEY, block, basis.len() as u64, all);
    for (from, to) in differs {
        let (from, to) = (from as usize, to as usize);
        for at in (from..to).step_by(segment) {
            let end = to.min(at + segment);
            let seen = source.len().min(end + basis_of.ahead());
            let ends = seen == source.len();
            for f in basis_of.search(at as u64, &source[at..seen], end - at, ends) {
                for n in 0..f.len as usize {
                    bytes[f.at as usize + n] = basis[f.basis as usize + n];
                    have[f.at as usize + n] = true;
                }
            }
        }
    }
    let mut sent = 0;
    for at in 0..source.len() {
        if !have[at] {
            bytes[at] = source[at];
            sent += 1;
        }
    }
    Rebuilt { bytes, sent }
}

/// Generates bytes with repetitions, so that blocks occur in several places.
fn content(u: &mut Unstructured<'_>, most: usize) -> arbitrary::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut state = u.int_in_range(1..=u32::MAX)?;
    for _ in 0..u.int_in_range(0..=6)? {
        let len = u.int_in_range(0..=most / 6)?;
        match u.int_in_range(0..=3)? {
            0 => bytes.resize(bytes.len() + len, u.arbitrary()?),
            1 if !bytes.is_empty() => {
                let from = u.choose_index(bytes.len())?;
                let again = bytes[from..(from + len).min(bytes.len())].to_vec();
                bytes.extend(again);
            }
            _ => bytes.extend((0..len).map(|_| next(&mut state))),
        }
    }
    Ok(bytes)
}

fn next(state: &mut u32) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state as u8
}

fn edited(u: &mut Unstructured<'_>, basis: &[u8]) -> arbitrary::Result<Vec<u8>> {
    let mut source = basis.to_vec();
    for _ in 0..u.int_in_range(0..=5)? {
        let at = u.int_in_range(0..=source.len())?;
        let new = content(u, 600)?;
        let gone = u.int_in_range(0..=(source.len() - at).min(300))?;
        source.splice(at..at + gone, new);
    }
    Ok(source)
}

#[test]
fn whatever_the_two_contents_the_rebuilt_file_is_the_source() {
    arbtest(|u| {
        let basis = content(u, 12_000)?;
        let source = match u.ratio(2, 3)? {
            true => edited(u, &basis)?,
            false => content(u, 12_000)?,
        };
        let block = 1 << u.int_in_range(4..=9)?;
        let segment = block as usize * u.int_in_range(1..=9)?;
        let rebuilt = rebuild(&basis, &source, block, segment);
        assert!(
            rebuilt.bytes == source,
            "{} and {}",
            basis.len(),
            source.len()
        );
        if basis == source {
            assert_eq!(rebuilt.sent, 0);
        }
        Ok(())
    })
    .budget_ms(2_000);
}

fn random(len: usize, mut seed: u32) -> Vec<u8> {
    (0..len).map(|_| next(&mut seed)).collect()
}

#[test]
fn little_is_sent_for_a_little_change() {
    let basis = random(1 << 20, 7);
    let mut overwritten = basis.clone();
    for at in (5000..1 << 20).step_by(100_000) {
        overwritten[at..at + 1000].copy_from_slice(&random(1000, at as u32 | 1));
    }
    let sent = rebuild(&basis, &overwritten, 4096, 1 << 16).sent;
    assert!((10_000..11 * 8192).contains(&sent), "{sent}");
    // An insertion moves all bytes behind it; segment limits cost nothing.
    let mut inserted = basis.clone();
    inserted.splice(777..777, *b"thirteen more");
    let sent = rebuild(&basis, &inserted, 4096, 1 << 16).sent;
    assert!((13..2 * 4096).contains(&sent), "{sent}");
    let sent = rebuild(&basis, &basis[5000..], 4096, 1 << 16).sent;
    assert!(sent < 4096, "{sent}");
    // The file ends with a partial block.
    let sent = rebuild(&basis[..1_000_000], &inserted[..1_000_013], 4096, 1 << 16).sent;
    assert!(sent < 2 * 4096, "{sent}");
}

#[test]
fn sums_that_lie_cost_a_bounded_search() {
    let source = random(1 << 16, 3);
    // Sums that claim every rolling sum of the source without having any of its blocks.
    let claimed = (0..source.len() - 64).map(|at| BasisBlockChecksums {
        rolling: sftp::blocks::rolling(&source[at..at + 64]),
        strong: [0; 16],
    });
    let claimed: Vec<BasisBlockChecksums> = claimed.collect();
    let size = claimed.len() as u64 * 64;
    let basis = BasisIndex::new(KEY, 64, size, claimed);
    assert_eq!(basis.search(0, &source, source.len(), true), []);
    // Fewer sums than the size says, and more.
    let few = vec![BasisBlockChecksums::of(&KEY, &source[..64])];
    let basis = BasisIndex::new(KEY, 64, u64::MAX, few.clone());
    let found = basis.search(5, &source, source.len(), true);
    assert_eq!(
        found,
        [MatchedRange {
            basis: 0,
            at: 5,
            len: 64
        }]
    );
    let basis = BasisIndex::new(KEY, 64, 0, few);
    assert_eq!(basis.search(0, &source, source.len(), true), []);
}

#[test]
fn blocks_are_near_half_the_root_of_the_size() {
    assert_eq!(block_len(1 << 20), Some(4 << 10));
    assert_eq!(block_len(1 << 30), Some(16 << 10));
    assert_eq!(block_len(1 << 40), Some(1 << 20));
    assert_eq!(block_len(1 << 41), None);
    for size in [1_u64 << 20, 3 << 30, (1 << 40) - 5] {
        let block = u64::from(block_len(size).unwrap());
        assert!(size.div_ceil(block) <= MOST_BLOCKS && SEGMENT.is_multiple_of(block));
    }
}
