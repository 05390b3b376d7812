use std::collections::BTreeSet;

use schedule::journal::{JournalRecord, JournalState};

/// Tells if a journal has anything that the same command could resume.
#[derive(Debug, Default)]
pub(super) struct ResumableWork {
    /// True if some files have their final names.
    done: bool,
    /// Files of which some bytes have arrived.
    parts: BTreeSet<u64>,
    /// The run made a directory for the copy. Without the journal the same command would copy into
    /// it.
    directory: bool,
}

impl ResumableWork {
    /// Worth of the state that an earlier run has left.
    pub(super) fn of(state: &JournalState) -> Self {
        let parts = state.unfinished().filter(|(_, e)| !e.proven().is_empty());
        Self {
            done: state.done() > 0,
            parts: parts.map(|(id, _)| id).collect(),
            directory: state.into_directory() == Some(false),
        }
    }

    /// Takes a record that is written to the journal.
    pub(super) fn note(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Done { id, .. } => {
                self.done = true;
                self.parts.remove(id);
            }
            JournalRecord::Ranges { id, ranges, .. } if !ranges.is_empty() => {
                self.parts.insert(*id);
            }
            JournalRecord::Forgotten { id } => {
                self.parts.remove(id);
            }
            JournalRecord::Onto { into } => self.directory = !into,
            _ => {}
        }
    }

    /// True if there is nothing to resume. `made` says that the target exists as a directory that
    /// such a copy makes.
    pub(super) fn is_nothing(&self, made: bool) -> bool {
        !self.done && self.parts.is_empty() && !(self.directory && made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_worth_what_arrived_and_where_it_goes() {
        let ranges = |id| JournalRecord::Ranges {
            id,
            durable: false,
            mtime: 0,
            ranges: vec![(0, 5)],
        };
        let mut worth = ResumableWork::default();
        assert!(worth.is_nothing(true));
        worth.note(&JournalRecord::Onto { into: false });
        assert!(worth.is_nothing(false) && !worth.is_nothing(true));
        worth.note(&ranges(3));
        assert!(!worth.is_nothing(false));
        worth.note(&JournalRecord::Forgotten { id: 3 });
        assert!(worth.is_nothing(false));
        worth.note(&JournalRecord::Done {
            id: 4,
            durable: false,
            size: 5,
            mtime: 0,
        });
        assert!(!worth.is_nothing(false));
    }
}
