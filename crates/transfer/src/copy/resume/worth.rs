use std::collections::BTreeSet;

use schedule::journal::{Record, State};

/// Whether a journal has anything that the same command could go on with.
#[derive(Debug, Default)]
pub(super) struct Worth {
    /// Files that have their names.
    done: bool,
    /// Files of which some bytes have arrived.
    parts: BTreeSet<u64>,
    /// A directory was made for the copy: without the journal the same command would go into it.
    directory: bool,
}

impl Worth {
    /// Of what an earlier run has left.
    pub(super) fn of(state: &State) -> Self {
        let parts = state.unfinished().filter(|(_, e)| !e.proven().is_empty());
        Self {
            done: state.done() > 0,
            parts: parts.map(|(id, _)| id).collect(),
            directory: state.onto() == Some(false),
        }
    }

    /// Takes what is written down.
    pub(super) fn note(&mut self, record: &Record) {
        match record {
            Record::Done { id, .. } => {
                self.done = true;
                self.parts.remove(id);
            }
            Record::Ranges { id, ranges, .. } if !ranges.is_empty() => {
                self.parts.insert(*id);
            }
            Record::Forgotten { id } => {
                self.parts.remove(id);
            }
            Record::Onto { into } => self.directory = !into,
            _ => {}
        }
    }

    /// Whether there is nothing to go on with; `made` says whether the target is there as a
    /// directory, of a copy that makes one.
    pub(super) fn is_nothing(&self, made: bool) -> bool {
        !self.done && self.parts.is_empty() && !(self.directory && made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_worth_what_arrived_and_where_it_goes() {
        let ranges = |id| Record::Ranges {
            id,
            durable: false,
            mtime: 0,
            ranges: vec![(0, 5)],
        };
        let mut worth = Worth::default();
        assert!(worth.is_nothing(true));
        worth.note(&Record::Onto { into: false });
        assert!(worth.is_nothing(false) && !worth.is_nothing(true));
        worth.note(&ranges(3));
        assert!(!worth.is_nothing(false));
        worth.note(&Record::Forgotten { id: 3 });
        assert!(worth.is_nothing(false));
        worth.note(&Record::Done {
            id: 4,
            durable: false,
            size: 5,
            mtime: 0,
        });
        assert!(!worth.is_nothing(false));
    }
}
