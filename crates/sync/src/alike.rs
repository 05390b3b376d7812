//! Names that some file systems take for one: those that differ in case, in the normalization of
//! Unicode, or in dots and spaces at the end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::tree::{EntryTree, SortedTree, TreeEntryId, TreeEntryKind};

/// Longest name of any usual file system, in bytes.
const LONGEST_NAME: usize = 255;

/// Returns pairs of entries of one directory that some file system may take for one. The comparison
/// is coarser than that of any file system, so the target is asked about each pair.
pub fn alike_entries(tree: &SortedTree) -> Vec<(TreeEntryId, TreeEntryId)> {
    let mut pairs = Vec::new();
    let mut open = vec![EntryTree::ROOT];
    let mut keys: Vec<(u64, TreeEntryId)> = Vec::new();
    while let Some(dir) = open.pop() {
        keys.clear();
        for id in tree.children(dir) {
            if tree.tree().entry(id).kind == TreeEntryKind::Directory {
                open.push(id);
            }
            keys.push((key_hash(tree.tree().name(id)), id));
        }
        keys.sort_unstable();
        for pair in keys.windows(2) {
            if let [(first, one), (second, other)] = pair
                && first == second
                && key(tree.tree().name(*one)) == key(tree.tree().name(*other))
            {
                pairs.push((*one, *other));
            }
        }
    }
    pairs
}

/// Returns the places of pairs of names that differ and that some file system may take for one: each
/// name with the earlier ones that are like it.
pub fn alike_names<'a>(names: &[&'a [u8]]) -> impl Iterator<Item = (usize, usize)> + use<'a> {
    let hashed = names.iter().enumerate();
    let mut hashed: Vec<(u64, usize)> = hashed.map(|(at, name)| (key_hash(name), at)).collect();
    hashed.sort_unstable();
    let groups = hashed.chunk_by(|one, other| one.0 == other.0);
    let named = |(_, place): &(u64, usize)| Some((*place, *names.get(*place)?));
    let groups: Vec<Vec<(usize, &'a [u8])>> = groups
        .filter(|group| group.len() > 1)
        .map(|group| group.iter().filter_map(named).collect())
        .collect();
    groups.into_iter().flat_map(|group| {
        let of = move |later: usize| {
            let (place, name) = *group.get(later)?;
            let earlier = group.get(..later).unwrap_or_default().to_vec();
            let alike = move |other: &'a [u8]| other != name && key(other) == key(name);
            let earlier = earlier.into_iter().filter(move |(_, other)| alike(other));
            Some(earlier.map(move |(other, _)| (other, place)))
        };
        (1..).map_while(of).flatten()
    })
}

/// Returns a path that is equal for all paths that a file system may take for one.
pub fn alike_path(path: &[u8]) -> Vec<u8> {
    let keys = path.split(|byte| *byte == b'/').map(key);
    keys.collect::<Vec<_>>().join("/").into_bytes()
}

/// Returns true if the tree has an entry at this path, or one that some file system may take for it.
pub fn has_alike(tree: &SortedTree, path: &[u8]) -> bool {
    let mut at = EntryTree::ROOT;
    for name in path.split(|byte| *byte == b'/') {
        let alike = || {
            let hash = key_hash(name);
            let mut children = tree.children(at);
            children.find(|id| key_hash(tree.tree().name(*id)) == hash)
        };
        match tree.child(at, name).or_else(alike) {
            Some(found) => at = found,
            None => return false,
        }
    }
    true
}

/// Finds entries of a tree by names that some file system may take for one.
#[derive(Debug)]
pub(crate) struct AlikeNames<'a> {
    tree: &'a SortedTree,
    /// Entries by directory and key, of the directories that were asked for.
    dirs: BTreeMap<TreeEntryId, BTreeMap<String, TreeEntryId>>,
}

impl<'a> AlikeNames<'a> {
    pub(crate) fn of(tree: &'a SortedTree) -> Self {
        let dirs = BTreeMap::new();
        Self { tree, dirs }
    }

    /// Returns the entry whose path may be taken for `path`.
    pub(crate) fn find(&mut self, path: &[u8]) -> Option<TreeEntryId> {
        let mut at = EntryTree::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            let tree = self.tree;
            let names = self.dirs.entry(at).or_insert_with(|| {
                let children = tree.children(at);
                children.map(|id| (key(tree.tree().name(id)), id)).collect()
            });
            at = *names.get(&key(name))?;
        }
        Some(at)
    }
}

/// Returns a name in Unicode's form NFC, if it is in another form. A name that is not UTF-8 stays.
pub fn to_nfc(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return None;
    }
    let text = std::str::from_utf8(name).ok()?;
    match is_nfc(text) {
        true => None,
        false => Some(text.nfc().collect::<String>().into_bytes()),
    }
}

/// Returns a hash that is equal for all names that a file system may take for one. It is no secret,
/// so whoever chooses names can make them collide.
pub fn alike_hash(name: &[u8]) -> u64 {
    key_hash(name)
}

/// Hashes the key of a name. Names are almost always ASCII, and of a million names the keys
/// themselves would take a third of a second.
fn key_hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut lower = [0; LONGEST_NAME];
    let short = without_end(name);
    match lower.get_mut(..short.len()).filter(|_| short.is_ascii()) {
        Some(lower) => {
            lower.copy_from_slice(short);
            lower.make_ascii_lowercase();
            hasher.write(lower);
        }
        None => hasher.write(key(name).as_bytes()),
    }
    hasher.finish()
}

/// Returns a name without dots and spaces at its end.
fn without_end(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
    let name = name.get(..end.map_or(name.len(), |end| end + 1));
    name.unwrap_or_default()
}

/// Returns a text that is equal for all names that a file system may take for one.
fn key(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(without_end(name));
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let upper = text.nfkd().flat_map(char::to_uppercase);
    let folded = upper.flat_map(char::to_lowercase);
    folded.nfkd().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeEntry;

    fn found(names: &[&str]) -> usize {
        let mut tree = EntryTree::new();
        let dir = TreeEntry::new(TreeEntryKind::Directory);
        let dir = tree.add(EntryTree::ROOT, b"dir", dir).unwrap();
        for name in names {
            tree.add(dir, name.as_bytes(), TreeEntry::file(1, 1));
        }
        alike_entries(&tree.sorted()).len()
    }

    #[test]
    fn each_name_is_paired_with_the_earlier_ones_like_it() {
        let names = ["x", "b", "X", "x", "X."].map(str::as_bytes);
        let mut pairs: Vec<_> = alike_names(&names).collect();
        pairs.sort_unstable();
        assert_eq!(pairs, [(0, 2), (0, 4), (2, 3), (2, 4), (3, 4)]);
        assert_eq!(
            alike_path(b"/d/A./caf\xc3\xa9"),
            alike_path("/D/a/cafe\u{301}".as_bytes())
        );
        assert_ne!(alike_path(b"/d/a"), alike_path(b"/d/b"));
    }

    #[test]
    fn names_that_a_file_system_may_take_for_one_are_alike() {
        for (one, other) in [
            ("README", "readme"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("STRASSE", "stra\u{df}e"),
            ("\u{3a3}", "\u{3c2}"),
            ("a", "a."),
        ] {
            assert_eq!(found(&[one, "b", other]), 1, "{one} {other}");
        }
        assert_eq!(
            found(&["a", "b", "a b", ".a", "...", "\u{e4}", "a\u{30a}"]),
            0
        );
    }
}
