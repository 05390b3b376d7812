use std::fmt;

/// Limits that protect a target from deletions that look like a mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionLimits {
    /// Largest number of deletions (`--max-delete`).
    pub most: Option<u64>,
    /// The user has confirmed the deletion of most of the target (`--yes`).
    pub confirmed: bool,
}

/// Numbers that decide if deletions are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionCount {
    /// Entries to delete.
    pub deletions: u64,
    /// Entries at the target.
    pub target_entries: u64,
    /// Entries at the source.
    pub source_entries: u64,
    /// Entries of either end that could not be listed.
    pub unlisted: u64,
    /// The source lies on another file system than in the sync before.
    pub moved_source: bool,
    /// The target is the home directory of the account, or the root of the file system.
    pub is_home: bool,
}

/// Deletions below this number are never suspicious.
const FEW: u64 = 100;

/// Reason why a sync deletes nothing although entries are to be deleted. Copies are made
/// nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionRefusal {
    /// A directory could not be listed completely.
    IncompleteListing(u64),
    /// The source has no entries.
    EmptySource,
    /// The source lies on another file system than in the sync before.
    MovedSource,
    /// The target is the home directory of the account, or the root of the file system.
    WholeHome,
    /// More deletions than `--max-delete` permits.
    TooMany {
        /// Entries to delete.
        deletions: u64,
        /// Permitted number.
        most: u64,
    },
    /// More than half of the target, and more than 100 entries.
    MostOfTarget {
        /// Entries to delete.
        deletions: u64,
        /// Entries at the target.
        of: u64,
    },
}

impl fmt::Display for DeletionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IncompleteListing(1) => f.write_str(
                "nothing is deleted: 1 entry could not be read, and what it contains is unknown; \
                 make it readable, or exclude it",
            ),
            Self::IncompleteListing(count) => write!(
                f,
                "nothing is deleted: {count} entries could not be read, and what they contain is \
                 unknown; make them readable, or exclude them"
            ),
            Self::EmptySource => f.write_str(
                "nothing is deleted: the source is empty; if that is right, confirm with --yes",
            ),
            Self::MovedSource => f.write_str(
                "nothing is deleted: the source lies on another file system than in the last sync, \
                 perhaps because it is not mounted; if that is right, confirm with --yes",
            ),
            Self::WholeHome => f.write_str(
                "nothing is deleted: the target is the whole home directory of the account, or /; \
                 name a directory in it, or confirm with --yes",
            ),
            Self::TooMany { deletions, most } => write!(
                f,
                "nothing is deleted: {deletions} {} would go, and --max-delete permits {most}",
                if *deletions == 1 { "entry" } else { "entries" }
            ),
            Self::MostOfTarget { deletions, of } => write!(
                f,
                "nothing is deleted: {deletions} of {of} entries at the target would go (--dry-run \
                 lists them); confirm with --yes or --max-delete {deletions}"
            ),
        }
    }
}

impl DeletionLimits {
    /// Checks if the deletions may be carried out.
    ///
    /// # Errors
    ///
    /// The first reason that forbids all of them.
    pub fn check(&self, count: &DeletionCount) -> Result<(), DeletionRefusal> {
        if count.deletions == 0 {
            return Ok(());
        }
        // No flag confirms this: nobody knows what would go.
        if count.unlisted > 0 {
            return Err(DeletionRefusal::IncompleteListing(count.unlisted));
        }
        if let Some(most) = self.most
            && count.deletions > most
        {
            let deletions = count.deletions;
            return Err(DeletionRefusal::TooMany { deletions, most });
        }
        if self.confirmed {
            return Ok(());
        }
        if count.is_home {
            return Err(DeletionRefusal::WholeHome);
        }
        if count.moved_source {
            return Err(DeletionRefusal::MovedSource);
        }
        if count.source_entries == 0 {
            return Err(DeletionRefusal::EmptySource);
        }
        let (deletions, of) = (count.deletions, count.target_entries);
        // A number that the user gave permits that many.
        if self.most.is_none() && deletions > FEW && deletions.saturating_mul(2) > of {
            return Err(DeletionRefusal::MostOfTarget { deletions, of });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: DeletionCount = DeletionCount {
        deletions: 101,
        target_entries: 200,
        source_entries: 99,
        unlisted: 0,
        moved_source: false,
        is_home: false,
    };

    fn check(limits: DeletionLimits, count: DeletionCount) -> Option<DeletionRefusal> {
        limits.check(&count).err()
    }

    #[test]
    fn more_than_half_of_the_target_needs_a_confirmation() {
        let limits = DeletionLimits::default();
        let refused = DeletionRefusal::MostOfTarget {
            deletions: 101,
            of: 200,
        };
        assert_eq!(check(limits, HALF), Some(refused));
        let deletions = 100;
        assert_eq!(check(limits, DeletionCount { deletions, ..HALF }), None);
        let confirmed = DeletionLimits {
            confirmed: true,
            most: None,
        };
        assert_eq!(check(confirmed, HALF), None);
        let most = Some(101);
        assert_eq!(check(DeletionLimits { most, ..limits }, HALF), None);
    }

    /// Bug: `sync --delete one host:` deleted what the account had, its keys for SSH included.
    #[test]
    fn a_whole_home_directory_needs_a_confirmation_for_any_deletion() {
        let home = DeletionCount {
            deletions: 1,
            is_home: true,
            ..HALF
        };
        let limits = DeletionLimits {
            most: Some(50),
            confirmed: false,
        };
        assert_eq!(check(limits, home), Some(DeletionRefusal::WholeHome));
        let confirmed = DeletionLimits {
            confirmed: true,
            ..limits
        };
        assert_eq!(check(confirmed, home), None);
    }

    #[test]
    fn a_listing_that_failed_forbids_deletions_whatever_was_confirmed() {
        let limits = DeletionLimits {
            confirmed: true,
            most: Some(1000),
        };
        let unlisted = 1;
        let refused = check(limits, DeletionCount { unlisted, ..HALF });
        assert_eq!(refused, Some(DeletionRefusal::IncompleteListing(1)));
    }

    #[test]
    fn an_empty_or_moved_source_deletes_nothing() {
        let few = DeletionCount {
            deletions: 1,
            ..HALF
        };
        let limits = DeletionLimits::default();
        let empty = DeletionCount {
            source_entries: 0,
            ..few
        };
        assert_eq!(check(limits, empty), Some(DeletionRefusal::EmptySource));
        let moved = DeletionCount {
            moved_source: true,
            ..few
        };
        assert_eq!(check(limits, moved), Some(DeletionRefusal::MovedSource));
    }

    #[test]
    fn one_more_than_max_delete_deletes_nothing_at_all() {
        let limits = DeletionLimits {
            most: Some(100),
            confirmed: true,
        };
        let refused = check(limits, HALF);
        assert!(matches!(
            refused,
            Some(DeletionRefusal::TooMany { most: 100, .. })
        ));
    }
}
