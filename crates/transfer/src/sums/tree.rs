//! Computes BLAKE3 of a whole file from pieces in any order: its hash tree has a place for each
//! chunk.

use std::collections::BTreeMap;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::Digest;

/// Bytes of a chunk (BLAKE3, section 2.1).
const CHUNK: u64 = 1024;

/// The known nodes of a file's hash tree.
///
/// Adjacent nodes are merged as they come, so that memory grows with the number of gaps and not
/// with the file. Nodes at the start are not merged: one of them may cover the whole file and be
/// the root, which is finalized differently.
#[derive(Debug, Default)]
pub(super) struct HashTree {
    /// Nodes by offset: length and chaining value.
    nodes: BTreeMap<u64, (u64, ChainingValue)>,
    /// The first chunk, needed for a file that has no other.
    head: Vec<u8>,
    /// True if a piece began within a chunk.
    crooked: bool,
}

/// Hashes of the BLAKE3 tree of one piece of a file, from which the hash of the whole file is made.
pub(super) struct HashTreeNodes {
    nodes: Vec<(u64, u64, ChainingValue)>,
    head: Option<Vec<u8>>,
    crooked: bool,
}

impl HashTreeNodes {
    /// Hashes the piece at `offset`, given as several slices.
    pub(super) fn of<'a>(offset: u64, slices: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let len: u64 = slices.clone().map(|s| s.len() as u64).sum();
        let mut made = Self {
            nodes: Vec::new(),
            head: None,
            crooked: !offset.is_multiple_of(CHUNK),
        };
        if made.crooked || len == 0 {
            return made;
        }
        if offset == 0 {
            let bytes = slices.clone().flatten().copied();
            made.head = Some(bytes.take(CHUNK as usize).collect());
        }
        let (mut from, mut at) = (offset, offset);
        let mut hasher = begin(at);
        let mut until = at + node_len(at, len);
        for mut slice in slices {
            while !slice.is_empty() {
                let n = slice.len().min((until - at) as usize);
                hasher.update(&slice[..n]);
                slice = &slice[n..];
                at += n as u64;
                if at == until {
                    made.nodes
                        .push((from, until - from, hasher.finalize_non_root()));
                    let left = offset + len - at;
                    if left == 0 {
                        return made;
                    }
                    from = at;
                    hasher = begin(at);
                    until = at + node_len(at, left);
                }
            }
        }
        made
    }
}

fn begin(at: u64) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(at);
    hasher
}

/// Returns the length of the largest subtree at `at` of at most `left` bytes; less than a chunk
/// occurs at the end of a file only.
fn node_len(at: u64, left: u64) -> u64 {
    if left < CHUNK {
        return left;
    }
    let aligned = if at == 0 {
        CHUNK
    } else {
        1 << at.trailing_zeros()
    };
    let fits = 1 << (63 - left.leading_zeros());
    aligned.min(fits)
}

impl HashTree {
    pub(super) fn add(&mut self, piece: HashTreeNodes) {
        self.crooked |= piece.crooked;
        if let Some(head) = piece.head {
            self.head = head;
        }
        for (from, len, value) in piece.nodes {
            self.insert(from, len, value);
        }
    }

    fn insert(&mut self, mut from: u64, mut len: u64, mut value: ChainingValue) {
        // Data that arrive twice were transferred twice; the first copy may already be merged.
        if let Some((start, (has, _))) = self.nodes.range(..=from).next_back()
            && start + has >= from + len
        {
            return;
        }
        let within: Vec<u64> = self.nodes.range(from..from + len).map(|n| *n.0).collect();
        for start in within {
            self.nodes.remove(&start);
        }
        while len.is_power_of_two() && len >= CHUNK {
            let (parent, is_left) = (from & !(2 * len - 1), from & len == 0);
            let other = if is_left { from + len } else { parent };
            let same = self.nodes.get(&other).is_some_and(|(l, _)| *l == len);
            if parent == 0 || !same {
                break;
            }
            let Some((_, beside)) = self.nodes.remove(&other) else {
                break;
            };
            value = match is_left {
                true => merge_subtrees_non_root(&value, &beside, Mode::Hash),
                false => merge_subtrees_non_root(&beside, &value, Mode::Hash),
            };
            (from, len) = (parent, 2 * len);
        }
        self.nodes.insert(from, (len, value));
    }

    /// Returns the digest of a file of `size` bytes if all of it has arrived.
    pub(super) fn root(&self, size: u64) -> Option<Digest> {
        if self.crooked {
            return None;
        }
        if size <= CHUNK {
            let whole = self.head.len() as u64 == size;
            return whole.then(|| Digest::new(blake3::hash(&self.head).as_bytes()));
        }
        let left = left_len(size);
        let (left, right) = (self.value(0, left)?, self.value(left, size - left)?);
        let root = merge_subtrees_root(&left, &right, Mode::Hash);
        Some(Digest::new(root.as_bytes()))
    }

    fn value(&self, from: u64, len: u64) -> Option<ChainingValue> {
        if let Some((has, value)) = self.nodes.get(&from)
            && *has == len
        {
            return Some(*value);
        }
        if len <= CHUNK {
            return None;
        }
        let left = left_len(len);
        let (left, right) = (
            self.value(from, left)?,
            self.value(from + left, len - left)?,
        );
        Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
    }
}

/// Returns the length of a node's left child: the largest power of two of chunks that leaves data
/// for the right child (BLAKE3, section 2.1).
fn left_len(len: u64) -> u64 {
    let half = len.next_power_of_two() / 2;
    half.max(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * n / 7 + n / 251) as u8).collect()
    }

    /// Hashes pieces of `piece` bytes, every third of them late, in slices of uneven length.
    fn in_pieces(data: &[u8], piece: usize) -> Option<String> {
        let mut tree = HashTree::default();
        let pieces: Vec<(u64, &[u8])> = data
            .chunks(piece)
            .enumerate()
            .map(|(n, bytes)| ((n * piece) as u64, bytes))
            .collect();
        let late = |n: &(usize, &(u64, &[u8]))| n.0 % 3 == 1;
        let first = pieces.iter().enumerate().filter(|n| !late(n));
        let second = pieces.iter().enumerate().filter(late).rev();
        for (_, (offset, bytes)) in first.chain(second) {
            tree.add(HashTreeNodes::of(*offset, bytes.chunks(777)));
        }
        tree.root(data.len() as u64).map(|d| d.to_string())
    }

    #[test]
    fn pieces_in_any_order_give_the_sum_of_the_whole() {
        for len in [
            0, 1, 1023, 1024, 1025, 2048, 4096, 5000, 65_536, 258_048, 1_000_000,
        ] {
            let data = bytes(len);
            let whole = blake3::hash(&data).to_hex().to_string();
            for piece in [1024, 4096, 7 * 1024, 258_048, 1 << 20] {
                let made = in_pieces(&data, piece);
                assert_eq!(made.as_ref(), Some(&whole), "{len} bytes by {piece}");
            }
        }
    }

    #[test]
    fn what_comes_twice_changes_nothing_and_what_is_missing_is_noticed() {
        let data = bytes(300_000);
        let mut tree = HashTree::default();
        let add = |tree: &mut HashTree, from: usize, to: usize| {
            tree.add(HashTreeNodes::of(
                from as u64,
                data[from..to].chunks(1 << 15),
            ));
        };
        add(&mut tree, 0, 102_400);
        add(&mut tree, 204_800, 300_000);
        assert_eq!(tree.root(300_000), None);
        add(&mut tree, 51_200, 204_800);
        add(&mut tree, 0, 300_000);
        let whole = blake3::hash(&data).to_hex().to_string();
        assert_eq!(tree.root(300_000).map(|d| d.to_string()), Some(whole));
        assert_eq!(tree.root(299_999), None);
    }

    #[test]
    fn a_long_file_is_held_in_few_nodes() {
        let mut tree = HashTree::default();
        let piece = bytes(256 << 10);
        for n in 0..64_u64 {
            tree.add(HashTreeNodes::of(
                n * (256 << 10),
                std::iter::once(piece.as_slice()),
            ));
        }
        assert!(tree.nodes.len() < 40, "{}", tree.nodes.len());
    }
}
