//! Listings of a server's directories that tell what an earlier run has left there.
//!
//! The next worker of a killed shard asked for each complete file, and sent removals of all names
//! that a temporary can have: 112,000 requests, a tenth of the data. One listing of each directory
//! answers both.

use std::collections::BTreeSet;
use std::sync::Arc;

use schedule::journal::JournalState;
use schedule::{JobKind, ResumeData};

use crate::copy::basename;
use crate::copy::entry_listing::{LISTED, LISTINGS, listing};
use crate::copy::jobs::{
    JobsInFlight, ListedFile, ListingFilter, PathQueryAnswer, TemporaryRemoval,
};
use crate::walk::join;

/// Number of files with temporaries in a directory from which it is listed. Each may have 16 names, so
/// a removal of all that can be there takes 1.7 kB.
const MANY: usize = 8;
/// Number of requests in place of which the search for one temporary is counted.
const REMOVALS: usize = 4;

/// Removal of what an earlier run has left.
pub(in crate::copy) struct LeftoverRemoval {
    is_begun: bool,
    searches: Vec<DirectorySearch>,
}

impl LeftoverRemoval {
    /// `is_begun`: there are temporaries to remove.
    pub(super) fn new(is_begun: bool, searches: Vec<DirectorySearch>) -> Self {
        Self { is_begun, searches }
    }

    /// True if there is something to remove, which is to be waited for.
    pub(in crate::copy) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Directories to list first, in groups that are listed together.
    pub(in crate::copy) fn searches(&self) -> impl Iterator<Item = &[DirectorySearch]> {
        self.searches.chunks(LISTINGS)
    }
}

/// Search in one directory of a server.
pub(in crate::copy) struct DirectorySearch {
    dir: Vec<u8>,
    /// Files whose temporaries are looked for: the place of the temporary, and its tag.
    files: Vec<(Vec<u8>, u64)>,
    /// Numbers in the journal of complete files.
    complete: Vec<u64>,
    /// True for the last attempt, after which temporaries that stay are named.
    is_last: bool,
}

impl DirectorySearch {
    pub(super) fn new(
        dir: Vec<u8>,
        files: Vec<(Vec<u8>, u64)>,
        complete: Vec<u64>,
        is_last: bool,
    ) -> Self {
        Self {
            dir,
            files,
            complete,
            is_last,
        }
    }

    /// True if a listing costs less than a request for each file.
    pub(super) fn is_worth_a_listing(&self) -> bool {
        self.files.len() >= MANY || self.complete.len() >= LISTED
    }

    /// Request that lists the directory, and the record that collects what is looked for.
    pub(super) fn listing(
        &self,
        jobs: &JobsInFlight,
        state: &JournalState,
    ) -> (JobKind, PathQueryAnswer) {
        let temporaries = self.temporaries().map(|(path, _)| path);
        let complete = self.complete.iter().filter_map(|id| state.entry(*id));
        let complete = complete.map(|entry| entry.target.clone());
        let names: BTreeSet<Vec<u8>> = temporaries
            .chain(complete)
            .map(|path| basename(&path).to_vec())
            .collect();
        let saved = self.complete.len() + REMOVALS * self.files.len();
        let wanted = ListingFilter::Names(Arc::new(names));
        (listing(&self.dir, saved), jobs.answer_of_names(wanted))
    }

    /// Paths that a temporary can have, each with true if it is the most likely one of its file.
    fn temporaries(&self) -> impl Iterator<Item = (Vec<u8>, bool)> {
        self.files.iter().flat_map(|(place, tag)| {
            let names = ResumeData::names(place, *tag).enumerate();
            names.map(|(number, path)| (path, number == 0))
        })
    }

    /// Removals of all temporaries that there may be.
    pub(super) fn all_temporaries(&self) -> Vec<TemporaryRemoval> {
        let temporaries = self.temporaries();
        let removals =
            temporaries.map(|(path, likely)| TemporaryRemoval::new(path, self.is_last && likely));
        removals.collect()
    }

    /// Removals of the temporaries in a listing, and the files with other names.
    pub(super) fn found(
        &self,
        answer: PathQueryAnswer,
    ) -> (Vec<TemporaryRemoval>, Vec<ListedFile>) {
        let (names, files) = answer.into_names_and_files();
        // A server may list a name again and again.
        let names: BTreeSet<Vec<u8>> = names.into_iter().collect();
        let is_found = |path: &[u8]| names.contains(basename(path));
        let is_any = self.temporaries().any(|(path, _)| is_found(&path));
        // A server that lists no name with a dot may have the most likely ones.
        let may_be = |path: &[u8], likely: bool| is_found(path) || likely && !is_any;
        let temporaries = self.temporaries();
        let removals = temporaries
            .filter(|(path, likely)| may_be(path, *likely))
            .map(|(path, _)| TemporaryRemoval::new(path, self.is_last));
        let files = files.into_iter();
        let files = files.map(|(name, file)| (join(&self.dir, &name), file));
        (removals.collect(), files.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: 199 temporaries stayed at a server that lists no name with a dot.
    #[test]
    fn a_listing_without_temporaries_proves_nothing() {
        let files = vec![(b"d/a".to_vec(), 1), (b"d/b".to_vec(), 2)];
        let search = DirectorySearch::new(b"d".to_vec(), files, Vec::new(), false);
        let (removals, files) = search.found(PathQueryAnswer::default());
        let removed: Vec<Vec<u8>> = removals.into_iter().map(|removal| removal.path).collect();
        let likely = |place: &[u8], tag| ResumeData::names(place, tag).next().expect("a name");
        assert_eq!(removed, [likely(b"d/a", 1), likely(b"d/b", 2)]);
        assert!(files.is_empty());
    }
}
