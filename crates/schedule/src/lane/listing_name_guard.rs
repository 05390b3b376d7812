//! Limits the size of one listing.
//!
//! A server may answer READDIR forever, with new names or with repeated ones (a loop in a
//! directory's cookies does that on some NFS servers). Real directories have millions of entries,
//! so names are counted and not kept; a sample of their hashes shows when no new names come.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Maximum number of names in one directory.
const MOST_NAMES: u64 = 1 << 24;
/// Maximum number of bytes of all names in one directory: those of [`MOST_NAMES`] ordinary ones.
const MOST_BYTES: u64 = 512 << 20;
/// Maximum number of names in one tree, over all its directories.
const MOST_IN_TREE: u64 = 1 << 32;
/// Maximum number of impossible names in one listing; each is reported.
const MOST_IMPOSSIBLE: u32 = 1000;
/// Maximum length of a name in bytes. Linux allows 255, other systems up to 1,023 in UTF-8.
const LONGEST_NAME: usize = 1023;
/// Number of hashes kept: 64 Ki take about a megabyte.
const SAMPLE: usize = 1 << 16;
/// Number of consecutive known names after which a listing counts as repeating itself. A directory
/// that changes while it is read may repeat some.
const REPEATED: u64 = 4096;
/// Minimum number of consecutive known hashes in the sample for such a verdict.
const LEAST_REPEATED: u64 = 32;

/// Error text: the server lists more names than a directory can have.
pub const TOO_MANY_NAMES: &str =
    "the server lists more than 16,777,216 names in one directory: listing stopped";
/// Error text: the names of one directory take more memory than those of a real one.
const TOO_LONG_NAMES: &str =
    "the server lists more than 512 MiB of names in one directory: listing stopped";
/// Error text: the server lists the same names repeatedly.
pub const REPEATED_NAMES: &str = "the server lists the same names repeatedly: listing stopped; \
    check the file system there";
/// Error text: the server lists too many names that no file can have.
const IMPOSSIBLE_NAMES: &str = "the server lists more than 1,000 invalid names: listing stopped";
/// Error text: the tree has too many entries.
const TOO_LARGE_TREE: &str =
    "the server lists more than 4,294,967,296 entries in one tree: listing stopped";

/// Counts the names of one listing, and stops it if there are too many, if they repeat, or if too
/// many are impossible.
#[derive(Debug, Default)]
pub(super) struct ListingNameGuard {
    names: u64,
    /// Bytes of the names of a directory.
    bytes: u64,
    impossible: u32,
    /// Sampled hashes: those that end in at least `zeros` zero bits.
    sample: HashSet<u64>,
    zeros: u32,
    /// Number of sampled names since the last new one.
    repeated: u64,
}

impl ListingNameGuard {
    /// Counts a name of a directory.
    ///
    /// # Errors
    ///
    /// Reason why the listing must end.
    pub(super) fn note(&mut self, name: &[u8]) -> Result<(), &'static str> {
        self.names += 1;
        if self.names > MOST_NAMES {
            return Err(TOO_MANY_NAMES);
        }
        self.bytes += name.len() as u64;
        if self.bytes > MOST_BYTES {
            return Err(TOO_LONG_NAMES);
        }
        self.note_hash(&name)
    }

    /// Counts a step of a tree within directory number `directory`.
    ///
    /// # Errors
    ///
    /// Reason why the listing must end.
    pub(super) fn note_in(&mut self, directory: u64, name: &[u8]) -> Result<(), &'static str> {
        self.names += 1;
        if self.names > MOST_IN_TREE {
            return Err(TOO_LARGE_TREE);
        }
        self.note_hash(&(directory, name))
    }

    /// Counts a name that no file can have.
    ///
    /// # Errors
    ///
    /// Reason why the listing must end.
    pub(super) fn note_impossible(&mut self) -> Result<(), &'static str> {
        self.impossible += 1;
        match self.impossible > MOST_IMPOSSIBLE {
            true => Err(IMPOSSIBLE_NAMES),
            false => Ok(()),
        }
    }

    fn note_hash(&mut self, what: &impl Hash) -> Result<(), &'static str> {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let hash = hasher.finish();
        if hash.trailing_zeros() < self.zeros {
            return Ok(());
        }
        if self.sample.insert(hash) {
            self.repeated = 0;
        } else {
            self.repeated += 1;
        }
        while self.sample.len() > SAMPLE {
            self.zeros += 1;
            let zeros = self.zeros;
            self.sample.retain(|hash| hash.trailing_zeros() >= zeros);
        }
        let most = (REPEATED >> self.zeros.min(63)).max(LEAST_REPEATED);
        match self.repeated >= most {
            true => Err(REPEATED_NAMES),
            false => Ok(()),
        }
    }
}

/// Returns true if a directory entry can have the name `name`: other names could lead out of the
/// directory (CVE-2019-6111), or are longer than any name.
pub(super) fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.iter().any(|b| matches!(b, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bounds: &mut ListingNameGuard, of: std::ops::Range<u64>) -> Result<(), &'static str> {
        of.into_iter()
            .try_for_each(|n| bounds.note(format!("name{n}").as_bytes()))
    }

    #[test]
    fn two_million_names_are_a_folder() {
        let mut bounds = ListingNameGuard::default();
        assert_eq!(names(&mut bounds, 0..2_000_000), Ok(()));
        assert!(bounds.sample.len() <= SAMPLE);
    }

    #[test]
    fn names_without_end_are_an_error() {
        let mut bounds = ListingNameGuard {
            names: MOST_NAMES - 10,
            ..ListingNameGuard::default()
        };
        assert_eq!(names(&mut bounds, 0..10), Ok(()));
        assert_eq!(names(&mut bounds, 10..11), Err(TOO_MANY_NAMES));
    }

    #[test]
    fn long_names_without_end_are_an_error() {
        let mut bounds = ListingNameGuard {
            bytes: MOST_BYTES - 30,
            ..ListingNameGuard::default()
        };
        assert_eq!(names(&mut bounds, 0..6), Ok(()));
        assert_eq!(names(&mut bounds, 6..7), Err(TOO_LONG_NAMES));
    }

    #[test]
    fn a_folder_that_changes_may_repeat_some_names() {
        let mut bounds = ListingNameGuard::default();
        for n in 0..20 {
            assert_eq!(names(&mut bounds, n * 900..n * 900 + 1800), Ok(()));
        }
    }

    #[test]
    fn a_listing_that_repeats_itself_is_an_error() {
        for cycle in [1, 7, 5000, 36_000, 400_000] {
            let mut bounds = ListingNameGuard::default();
            assert_eq!(names(&mut bounds, 0..cycle), Ok(()));
            let mut more = 0;
            let ended = loop {
                if let Err(why) = names(&mut bounds, more % cycle..more % cycle + 1) {
                    break why;
                }
                more += 1;
                assert!(more < 100_000, "no end with {cycle} names");
            };
            assert_eq!(ended, REPEATED_NAMES);
        }
    }

    #[test]
    fn equal_names_of_different_directories_are_different() {
        let mut bounds = ListingNameGuard::default();
        for directory in 0..100_000 {
            assert_eq!(bounds.note_in(directory, b"index.html"), Ok(()));
        }
        let again = (0..10_000).try_for_each(|_| bounds.note_in(7, b"index.html"));
        assert_eq!(again, Err(REPEATED_NAMES));
    }
}
