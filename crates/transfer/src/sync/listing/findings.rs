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
const FULL: &str = "it has more entries that are never copied than one sync can note; sync its \
    directories one by one";

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
    probes: Vec<Vec<u8>>,
    /// Bytes of memory that all of this may take, and those that it takes.
    most_bytes: usize,
    bytes: usize,
    is_full: bool,
}

impl ListingFindings {
    pub(super) fn new(filter: Filter, most_bytes: usize) -> Self {
        Self {
            filter,
            most_bytes,
            ..Self::default()
        }
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
        if self.has_room(LINK) {
            self.links.insert(file, link);
        }
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
        let hiding = |(path, problem): &&(Vec<u8>, ListingProblem)| {
            path.is_empty() && problem.hides_entries()
        };
        assert_eq!(findings.problems().iter().filter(hiding).count(), 1);
    }
}
