//! Findings of a listing beside the entries, in bounded memory: the lister of a server chooses how many
//! there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sftp::InodeId;
use sync::{Filter, TreeEntryId};

/// Memory in bytes that a path takes beside its own bytes and the text of its problem.
const PATH: usize = 96;
/// Memory in bytes that the identity of a file with several hard links takes.
const LINK: usize = 48;
const FULL: &str = "it has more entries that are not copied than one sync can note; sync its \
    directories one by one";
const LINKED: &str = "it has more files with several hard links than one sync can note; sync its \
    directories one by one";

/// Device and inode of directories.
pub(crate) type DirectoryInodes = BTreeMap<TreeEntryId, (u64, u64)>;

/// Findings of a listing beside the entries. Paths are relative to the root.
#[derive(Default)]
pub(super) struct ListingFindings {
    /// The filter with the rules of `.gitignore` files.
    pub filter: Filter,
    /// Number of entries that the filter left out.
    pub excluded: u64,
    problems: Vec<(Vec<u8>, ListingProblem)>,
    kept: BTreeSet<Vec<u8>>,
    links: BTreeMap<TreeEntryId, InodeId>,
    /// Device and inode of directories, as far as they are told and there is memory.
    directories: DirectoryInodes,
    probes: Vec<Vec<u8>>,
    /// Bytes of memory that the paths may take, and those that they take.
    most_bytes: usize,
    bytes: usize,
    is_full: bool,
    /// Number of files with several hard links that are noted at most.
    most_links: usize,
    has_more_links: bool,
}

impl ListingFindings {
    /// Findings of which the paths take at most `most_bytes`.
    pub(super) fn new(filter: Filter, most_bytes: usize) -> Self {
        Self {
            filter,
            most_bytes,
            ..Self::default()
        }
    }

    /// Notes the identities of files with several hard links, which take at most `bytes`.
    pub(super) fn note_links(&mut self, bytes: usize) {
        self.most_links = bytes / LINK;
    }

    /// Adds the reason why a path takes no part.
    pub(super) fn add_problem(&mut self, path: Vec<u8>, problem: ListingProblem) {
        if self.has_room(path.len() + problem.text.len() + PATH) {
            self.problems.push((path, problem));
        }
    }

    /// Adds a path that is not copied, and whose counterpart stays.
    pub(super) fn keep(&mut self, path: Vec<u8>) {
        if self.has_room(path.len() + PATH) {
            self.kept.insert(path);
        }
    }

    /// Adds the identity of a file with several hard links.
    pub(super) fn add_link(&mut self, file: TreeEntryId, link: InodeId) {
        if self.links.len() < self.most_links {
            self.links.insert(file, link);
        } else if self.most_links > 0 && !std::mem::replace(&mut self.has_more_links, true) {
            let problem = ListingProblem::hiding(LINKED);
            self.problems.push((Vec::new(), problem));
        }
    }

    /// Adds the identity of a directory.
    pub(super) fn add_directory(&mut self, dir: TreeEntryId, identity: InodeId) {
        if self.directories.len() < self.most_bytes / LINK {
            let inode = (identity.device, identity.inode);
            self.directories.insert(dir, inode);
        }
    }

    pub(super) fn take_directories(&mut self) -> DirectoryInodes {
        std::mem::take(&mut self.directories)
    }

    /// Adds the path of what may be a directory in which an interrupted run asked about names.
    pub(super) fn add_probe(&mut self, path: Vec<u8>) {
        if self.has_room(path.len() + PATH) {
            self.probes.push(path);
        }
    }

    /// Counts memory. When there is no more, what is left out counts as hidden, so that nothing is
    /// deleted for the want of it.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let has_room = self.bytes <= self.most_bytes;
        if !has_room && !std::mem::replace(&mut self.is_full, true) {
            self.problems
                .push((Vec::new(), ListingProblem::hiding(FULL)));
        }
        has_room
    }

    /// Forgets the problems of other paths than those that `keeps` names. One of the whole tree stays.
    pub(super) fn keep_problems(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        self.problems
            .retain(|(path, _)| path.is_empty() || keeps(path));
    }

    pub(super) fn problems(&self) -> &[(Vec<u8>, ListingProblem)] {
        &self.problems
    }

    /// Returns the paths that are not copied, and whose counterparts stay.
    pub(super) fn kept(&self) -> &BTreeSet<Vec<u8>> {
        &self.kept
    }

    pub(super) fn into_kept(self) -> BTreeSet<Vec<u8>> {
        self.kept
    }

    pub(super) fn take_probes(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.probes)
    }

    pub(super) fn take_links(&mut self) -> BTreeMap<TreeEntryId, InodeId> {
        std::mem::take(&mut self.links)
    }
}

/// Reason why a path takes no part in a sync or plan: one sentence without the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListingProblem {
    text: String,
    hides_entries: bool,
}

impl ListingProblem {
    /// Returns the problem of a path that may have more entries than are listed.
    pub(super) fn hiding(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            hides_entries: true,
        }
    }

    /// Returns the problem of an entry that is never copied.
    pub(super) fn never_copied(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            hides_entries: false,
        }
    }

    /// Returns true if entries may be missing from the listing. The text does not tell, since a
    /// server may have chosen it.
    pub(super) fn hides_entries(&self) -> bool {
        self.hides_entries
    }
}

impl fmt::Display for ListingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sync::EntryTree;

    /// Bug: 100,000 FIFOs below a path of 10 kB took 2 GB, which no bound counted.
    #[test]
    fn fifos_below_a_long_path_take_bounded_memory() {
        let most = 1 << 20;
        let mut findings = ListingFindings::new(Filter::default(), most);
        for n in 0..1000 {
            let path = [vec![b'd'; 10_000], format!("/{n}").into_bytes()].concat();
            findings.add_problem(path.clone(), ListingProblem::never_copied("a FIFO"));
            findings.keep(path);
        }
        let noted = findings.problems.iter().map(|(path, _)| path.len());
        let noted = noted.chain(findings.kept().iter().map(Vec::len));
        assert!((most / 2..most).contains(&noted.sum::<usize>()));
        // Links that nobody needs are not noted.
        let link = InodeId {
            device: 1,
            inode: 1,
            names: 2,
        };
        findings.add_link(EntryTree::ROOT, link);
        assert!(findings.take_links().is_empty());
        let hiding = |(path, problem): &&(Vec<u8>, ListingProblem)| {
            path.is_empty() && problem.hides_entries()
        };
        assert_eq!(findings.problems().iter().filter(hiding).count(), 1);
    }

    #[test]
    fn more_linked_files_than_can_be_noted_are_said_once() {
        let mut findings = ListingFindings::new(Filter::default(), 1 << 20);
        findings.note_links(10 * LINK);
        let mut tree = EntryTree::new();
        for inode in 0..20 {
            let entry = sync::TreeEntry::new(sync::TreeEntryKind::File);
            let name = inode.to_string();
            let file = tree
                .add(EntryTree::ROOT, name.as_bytes(), entry)
                .expect("room");
            let link = InodeId {
                device: 1,
                inode,
                names: 2,
            };
            findings.add_link(file, link);
        }
        assert_eq!(findings.take_links().len(), 10);
        let [(path, problem)] = findings.problems() else {
            panic!("{:?}", findings.problems());
        };
        assert!(path.is_empty() && problem.hides_entries());
    }
}
