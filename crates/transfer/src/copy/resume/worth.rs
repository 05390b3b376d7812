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

    /// The worth that a run keeps count of is that of the journal which it has written: a wrong
    /// count would remove the journal of a copy that can be resumed.
    #[test]
    fn the_worth_of_a_run_is_that_of_the_journal_that_it_has_written() {
        let mut seed = testkit::Seed::new(13);
        let mut worthless = 0;
        for _ in 0..2000 {
            let mut state = JournalState::default();
            let mut counted = ResumableWork::default();
            let mut begun = 0;
            let mut is_done = BTreeSet::new();
            for _ in 0..seed.below(12) {
                let id = seed.below(begun + 1);
                let record = match seed.below(6) {
                    0 | 1 => {
                        begun += 1;
                        JournalRecord::Begun {
                            id: begun - 1,
                            target: format!("dst/{begun}").into_bytes(),
                            source: schedule::journal::SourceFileStamp::default(),
                            tag: begun,
                        }
                    }
                    2 => JournalRecord::Onto {
                        into: seed.below(2) == 0,
                    },
                    _ if begun == 0 || id == begun || is_done.contains(&id) => continue,
                    3 => JournalRecord::Ranges {
                        id,
                        durable: seed.below(2) == 0,
                        mtime: 0,
                        ranges: (0..seed.below(2))
                            .map(|nth| (nth * 9, nth * 9 + 5))
                            .collect(),
                    },
                    4 => JournalRecord::Forgotten { id },
                    _ if state.entry(id).is_none() => continue,
                    _ => {
                        is_done.insert(id);
                        JournalRecord::Done {
                            id,
                            durable: true,
                            size: 5,
                            mtime: 7,
                        }
                    }
                };
                if let JournalRecord::Ranges { id, .. } = &record
                    && state.entry(*id).is_none()
                {
                    continue;
                }
                counted.note(&record);
                assert!(state.apply(record));
            }
            let left = ResumableWork::of(&state);
            for made in [false, true] {
                assert_eq!(counted.is_nothing(made), left.is_nothing(made), "{state:?}");
            }
            worthless += usize::from(left.is_nothing(false));
        }
        assert!(worthless > 100 && worthless < 1900, "{worthless}");
    }
}
