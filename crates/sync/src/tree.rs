use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Type of an entry, from the listing of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TreeEntryKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Device, socket or FIFO, which is never copied.
    Other,
    /// Unfinished file of a running or interrupted copy. It takes no part in a sync, and goes with
    /// its directory.
    Temporary,
}

/// Modification time in the precision that the listing end reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModifiedTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second; `None` if the end reports whole seconds.
    pub nanoseconds: Option<u32>,
}

/// Attributes of an entry that a sync compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Type.
    pub kind: TreeEntryKind,
    /// Size in bytes; 0 for what has none.
    pub size: u64,
    /// Modification time, if known.
    pub modified: Option<ModifiedTime>,
    /// Permission bits, if known.
    pub mode: Option<u16>,
    /// Numeric owner and group, if known.
    pub owner: Option<(u32, u32)>,
    /// Text of a symlink, once read.
    pub link: Option<Box<[u8]>>,
}

impl TreeEntry {
    /// Returns an entry of which only the type is known.
    pub fn new(kind: TreeEntryKind) -> Self {
        Self {
            kind,
            size: 0,
            modified: None,
            mode: None,
            owner: None,
            link: None,
        }
    }

    /// Returns a file of `size` bytes, modified at `seconds` since 1970.
    pub fn file(size: u64, seconds: i64) -> Self {
        let nanoseconds = None;
        Self {
            size,
            modified: Some(ModifiedTime {
                seconds,
                nanoseconds,
            }),
            ..Self::new(TreeEntryKind::File)
        }
    }
}

/// Identifies an entry of one [`EntryTree`] by the order in which it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeEntryId(u32);

impl TreeEntryId {
    /// The lowest number: the root's.
    pub const MIN: Self = Self(0);
    /// The highest number.
    pub const MAX: Self = Self(u32::MAX);

    /// Returns the number of the entry: 0 for the root, at most [`EntryTree::len`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Entries of one end, added in the order of a listing. A directory is added before its entries.
#[derive(Clone, Debug)]
pub struct EntryTree {
    nodes: Vec<TreeNode>,
    names: Vec<u8>,
    /// Directories with entries that the filter excluded, which must stay.
    protected: Vec<bool>,
    /// Names by which the end knows entries that have another name in this tree.
    own_names: BTreeMap<TreeEntryId, Box<[u8]>>,
    /// Memory that the own names take, in bytes.
    own_bytes: usize,
    /// Memory that entries and names may take, in bytes.
    most_bytes: usize,
}

/// Memory in bytes that an own name takes beside its bytes.
const OWN_NAME: usize = 48;

/// Entry of a tree; `name` is its range in the tree's buffer of names.
#[derive(Clone, Debug)]
struct TreeNode {
    parent: TreeEntryId,
    name: Range<u32>,
    entry: TreeEntry,
}

impl Default for EntryTree {
    fn default() -> Self {
        Self::new()
    }
}

impl EntryTree {
    /// The directory that is synced.
    pub const ROOT: TreeEntryId = TreeEntryId(0);
    /// Number of entries and total length of names that a tree holds at most.
    pub const MOST: usize = u32::MAX as usize;

    /// Returns a tree with a root and no entries.
    pub fn new() -> Self {
        Self::with_limit(usize::MAX)
    }

    /// Returns a tree with a root and no entries, whose entries and names take at most `most_bytes`.
    pub fn with_limit(most_bytes: usize) -> Self {
        let root = TreeNode {
            parent: Self::ROOT,
            name: 0..0,
            entry: TreeEntry::new(TreeEntryKind::Directory),
        };
        Self {
            nodes: vec![root],
            names: Vec::new(),
            protected: vec![false],
            own_names: BTreeMap::new(),
            own_bytes: 0,
            most_bytes,
        }
    }

    /// Adds an entry of the directory `parent`. Returns `None` if the tree is full
    /// ([`EntryTree::MOST`], [`EntryTree::with_limit`]).
    pub fn add(
        &mut self,
        parent: TreeEntryId,
        name: &[u8],
        entry: TreeEntry,
    ) -> Option<TreeEntryId> {
        let nodes = (self.nodes.len() + 1).saturating_mul(size_of::<TreeNode>());
        let names = self.names.len() + name.len();
        let bytes = nodes.saturating_add(names).saturating_add(self.own_bytes);
        if bytes > self.most_bytes {
            return None;
        }
        let id = TreeEntryId(u32::try_from(self.nodes.len()).ok()?);
        let start = u32::try_from(self.names.len()).ok()?;
        let end = u32::try_from(self.names.len() + name.len()).ok()?;
        self.names.extend_from_slice(name);
        self.nodes.push(TreeNode {
            parent,
            name: start..end,
            entry,
        });
        self.protected.push(false);
        Some(id)
    }

    /// Notes that the end knows an entry by another name than the one by which it is compared.
    pub fn set_own_name(&mut self, id: TreeEntryId, name: &[u8]) {
        self.own_bytes += OWN_NAME + name.len();
        self.own_names.insert(id, name.into());
    }

    /// Returns the name by which the end knows an entry.
    pub fn own_name(&self, id: TreeEntryId) -> &[u8] {
        match self.own_names.get(&id) {
            Some(name) => name,
            None => self.name(id),
        }
    }

    /// Notes that `dir` contains an excluded entry, so that `dir` cannot be removed.
    pub fn protect(&mut self, dir: TreeEntryId) {
        let mut at = dir;
        loop {
            match self.protected.get_mut(at.index()) {
                Some(protected) if !*protected => *protected = true,
                _ => return,
            }
            at = self.parent(at);
        }
    }

    /// Replaces the root's attributes.
    pub fn set_root(&mut self, entry: TreeEntry) {
        if let Some(root) = self.nodes.first_mut() {
            root.entry = entry;
        }
    }

    pub(crate) fn set_link(&mut self, id: TreeEntryId, text: Vec<u8>) {
        if let Some(node) = self.nodes.get_mut(id.index()) {
            node.entry.link = Some(text.into_boxed_slice());
        }
    }

    /// Number of entries without the root.
    pub fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Returns true if there is no entry besides the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entries of a type.
    pub fn of_kind(&self, kind: TreeEntryKind) -> impl Iterator<Item = TreeEntryId> {
        let nodes = (0u32..).zip(&self.nodes);
        nodes
            .filter(move |(_, node)| node.entry.kind == kind)
            .map(|(at, _)| TreeEntryId(at))
    }

    /// Returns the modification times of the files.
    pub(crate) fn file_times(&self) -> impl Iterator<Item = ModifiedTime> {
        let files = self.nodes.iter().map(|node| &node.entry);
        let files = files.filter(|entry| entry.kind == TreeEntryKind::File);
        files.filter_map(|entry| entry.modified)
    }

    /// Returns the path of an entry relative to the root.
    pub fn path(&self, id: TreeEntryId) -> Vec<u8> {
        self.path_by(id, Self::name)
    }

    /// Returns the path by which the end knows an entry, relative to the root.
    pub fn own_path(&self, id: TreeEntryId) -> Vec<u8> {
        self.path_by(id, Self::own_name)
    }

    fn path_by(&self, id: TreeEntryId, name: fn(&Self, TreeEntryId) -> &[u8]) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = id;
        while at != Self::ROOT {
            names.push(name(self, at));
            at = self.parent(at);
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Returns the attributes of an entry.
    pub fn entry(&self, id: TreeEntryId) -> &TreeEntry {
        &self.nodes[id.index()].entry
    }

    /// Sorts the entries of each directory by name.
    pub fn sorted(self) -> SortedTree {
        let mut first = self.first_children();
        let mut order = self.by_directory(&first);
        let mut joined = Vec::new();
        let mut kept = 0;
        let mut end = 0;
        for dir in 0..self.nodes.len() {
            let range = end..at(&first, dir + 1);
            end = range.end;
            let Some(children) = order.get_mut(range.clone()) else {
                continue;
            };
            let name = |at: u32| self.name(TreeEntryId(at));
            children.sort_unstable_by(|a, b| name(*a).cmp(name(*b)).then(a.cmp(b)));
            // One name listed twice is one entry. Two that have become one are told.
            let begin = kept;
            for from in range {
                let Some(id) = order.get(from).copied() else {
                    continue;
                };
                let last = order.get(begin..kept).and_then(|kept| kept.last().copied());
                match last
                    .filter(|last| self.name(TreeEntryId(*last)) == self.name(TreeEntryId(id)))
                {
                    Some(last) => {
                        let (last, id) = (TreeEntryId(last), TreeEntryId(id));
                        if self.own_name(last) != self.own_name(id) {
                            joined.push((last, id));
                        }
                    }
                    None => {
                        if let Some(slot) = order.get_mut(kept) {
                            *slot = id;
                            kept += 1;
                        }
                    }
                }
            }
            if let Some(first) = first.get_mut(dir + 1) {
                *first = u32::try_from(kept).unwrap_or(u32::MAX);
            }
        }
        order.truncate(kept);
        SortedTree {
            tree: self,
            order,
            first,
            joined,
        }
    }

    /// Position of each directory's first entry in an order by directories, and the number of all
    /// entries.
    fn first_children(&self) -> Vec<u32> {
        let mut first = vec![0u32; self.nodes.len() + 1];
        for node in self.nodes.iter().skip(1) {
            if let Some(count) = first.get_mut(node.parent.index() + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for count in &mut first {
            sum += *count;
            *count = sum;
        }
        first
    }

    /// Returns the entries of each directory together, in the order in which they were added.
    fn by_directory(&self, first: &[u32]) -> Vec<u32> {
        let mut next = first.to_vec();
        let mut order = vec![0u32; self.len()];
        for (id, node) in (0u32..).zip(&self.nodes).skip(1) {
            if let Some(next) = next.get_mut(node.parent.index()) {
                if let Some(slot) = order.get_mut(*next as usize) {
                    *slot = id;
                }
                *next += 1;
            }
        }
        order
    }

    /// Returns the user and group IDs of all entries.
    pub fn owner_ids(&self) -> [BTreeSet<u32>; 2] {
        let owners = self.nodes.iter().filter_map(|node| node.entry.owner);
        let (users, groups) = owners.unzip();
        [users, groups]
    }

    /// Returns the directory of an entry.
    pub fn parent(&self, id: TreeEntryId) -> TreeEntryId {
        self.nodes.get(id.index()).map_or(Self::ROOT, |n| n.parent)
    }

    /// Returns the name of an entry in its directory.
    pub fn name(&self, id: TreeEntryId) -> &[u8] {
        let name = self.nodes.get(id.index()).map(|node| node.name.clone());
        let name = name.unwrap_or_default();
        self.names
            .get(name.start as usize..name.end as usize)
            .unwrap_or_default()
    }

    pub(crate) fn is_protected(&self, id: TreeEntryId) -> bool {
        self.protected.get(id.index()).copied().unwrap_or(false)
    }
}

fn at(first: &[u32], index: usize) -> usize {
    first.get(index).copied().unwrap_or(0) as usize
}

/// A [`EntryTree`] whose directories have their entries in the order of their names' bytes.
#[derive(Clone, Debug)]
pub struct SortedTree {
    tree: EntryTree,
    order: Vec<u32>,
    first: Vec<u32>,
    joined: Vec<(TreeEntryId, TreeEntryId)>,
}

impl SortedTree {
    /// Returns the entries of `dir`, sorted by name.
    pub fn children(&self, dir: TreeEntryId) -> impl ExactSizeIterator<Item = TreeEntryId> {
        let range = at(&self.first, dir.index())..at(&self.first, dir.index() + 1);
        self.order
            .get(range)
            .unwrap_or_default()
            .iter()
            .map(|at| TreeEntryId(*at))
    }

    /// Finds the entry at a path relative to the root.
    pub fn find(&self, path: &[u8]) -> Option<TreeEntryId> {
        let mut at = EntryTree::ROOT;
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            at = self.child(at, name)?;
        }
        Some(at)
    }

    /// Finds the entry of `dir` with this name.
    pub fn child(&self, dir: TreeEntryId, name: &[u8]) -> Option<TreeEntryId> {
        let range = at(&self.first, dir.index())..at(&self.first, dir.index() + 1);
        let children = self.order.get(range)?;
        let found = children.binary_search_by(|id| self.tree.name(TreeEntryId(*id)).cmp(name));
        children.get(found.ok()?).map(|id| TreeEntryId(*id))
    }

    /// Returns pairs of entries that the end knows by two names and that have one name here. Only
    /// the first of each pair is in the tree.
    pub fn joined(&self) -> &[(TreeEntryId, TreeEntryId)] {
        &self.joined
    }

    /// Notes that something at `path` takes no part, so that the directories above it cannot be
    /// removed.
    pub fn protect_above(&mut self, path: &[u8]) {
        let mut above = path;
        while let Some(end) = above.iter().rposition(|byte| *byte == b'/') {
            above = above.get(..end).unwrap_or_default();
            if let Some(dir) = self.find(above) {
                return self.tree.protect(dir);
            }
        }
    }

    /// Replaces the root's attributes.
    pub fn set_root(&mut self, entry: TreeEntry) {
        self.tree.set_root(entry);
    }

    /// Sets the text of a symlink.
    pub fn set_link(&mut self, id: TreeEntryId, text: Vec<u8>) {
        self.tree.set_link(id, text);
    }

    /// Returns the tree.
    pub fn tree(&self) -> &EntryTree {
        &self.tree
    }
}

/// Returns the path of the directory that contains `path`; empty for a path of one name.
pub fn parent_path(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    path.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_sorted_and_know_their_paths() {
        let mut tree = EntryTree::new();
        let dir = tree
            .add(
                EntryTree::ROOT,
                b"d",
                TreeEntry::new(TreeEntryKind::Directory),
            )
            .unwrap();
        tree.add(dir, b"z", TreeEntry::new(TreeEntryKind::File));
        tree.add(EntryTree::ROOT, b"a", TreeEntry::new(TreeEntryKind::File));
        tree.add(dir, b"b", TreeEntry::new(TreeEntryKind::File));
        tree.add(dir, b"b", TreeEntry::new(TreeEntryKind::File));
        let sorted = tree.sorted();
        let paths = |of| {
            let ids = sorted.children(of);
            ids.map(|id| String::from_utf8(sorted.tree().path(id)).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(paths(EntryTree::ROOT), ["a", "d"]);
        assert_eq!(paths(dir), ["d/b", "d/z"]);
    }

    /// Bug: a server with long names and directories without end took all memory.
    #[test]
    fn a_tree_takes_no_more_memory_than_its_limit() {
        let most = 1 << 20;
        let mut tree = EntryTree::with_limit(most);
        let name = [b'x'; 255];
        let file = || TreeEntry::new(TreeEntryKind::File);
        let added = (0..most).take_while(|_| tree.add(EntryTree::ROOT, &name, file()).is_some());
        let added = added.count();
        assert!(added * 255 < most && (added + 2) * (255 + size_of::<TreeNode>()) > most);
        // A shorter name may still fit.
        assert_eq!(tree.add(EntryTree::ROOT, &name, file()), None);
        let mut tree = EntryTree::with_limit(most);
        let with_own_name = |_: &usize| {
            let id = tree.add(EntryTree::ROOT, &name, file());
            if let Some(id) = id {
                tree.set_own_name(id, &name);
            }
            id.is_some()
        };
        let both = (0..most).take_while(with_own_name).count();
        assert!((added / 3..added * 2 / 3).contains(&both), "{added} {both}");
    }

    #[test]
    fn names_listed_twice_are_one_entry_and_joined_ones_are_told() {
        let mut tree = EntryTree::new();
        let mut add = |dir, name: &[u8], kind| tree.add(dir, name, TreeEntry::new(kind)).unwrap();
        let late = add(EntryTree::ROOT, b"z", TreeEntryKind::Directory);
        let dir = add(EntryTree::ROOT, b"d", TreeEntryKind::Directory);
        let one = add(dir, b"x", TreeEntryKind::File);
        add(late, b"c", TreeEntryKind::File);
        add(dir, b"a", TreeEntryKind::File);
        let other = add(dir, b"x", TreeEntryKind::File);
        add(late, b"b", TreeEntryKind::File);
        add(late, b"c", TreeEntryKind::File);
        tree.set_own_name(other, b"X");
        let sorted = tree.sorted();
        let names = |of| -> Vec<&[u8]> {
            let ids = sorted.children(of);
            ids.map(|id| sorted.tree().name(id)).collect()
        };
        assert_eq!(names(EntryTree::ROOT), [b"d", b"z"]);
        assert_eq!(names(dir), [b"a", b"x"]);
        assert_eq!(names(late), [b"b", b"c"]);
        assert_eq!(sorted.joined(), [(one, other)]);
        assert_eq!(sorted.find(b"d/x"), Some(one));
    }

    #[test]
    fn a_directory_above_an_excluded_entry_is_protected_as_well() {
        let mut tree = EntryTree::new();
        let a = tree
            .add(
                EntryTree::ROOT,
                b"a",
                TreeEntry::new(TreeEntryKind::Directory),
            )
            .unwrap();
        let b = tree
            .add(a, b"b", TreeEntry::new(TreeEntryKind::Directory))
            .unwrap();
        let c = tree
            .add(a, b"c", TreeEntry::new(TreeEntryKind::Directory))
            .unwrap();
        tree.protect(b);
        assert!(tree.is_protected(a) && tree.is_protected(b) && !tree.is_protected(c));
    }
}
