//! Prepares for lanes that are still being opened.

use super::{Scheduler, SchedulerOptions};

/// Smallest size in bytes of a file that is cut for lanes that are being opened.
const MEDIUM: u64 = 512 << 10;
/// Smallest piece in bytes of such a file, and the unit of its pieces.
const LEAST_PIECE: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// Lanes that will soon exist, and the options as they were given.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedLanes {
    pub(super) lanes: usize,
    usual: SchedulerOptions,
}

impl ExpectedLanes {
    pub(super) fn none(usual: SchedulerOptions) -> Self {
        Self { lanes: 1, usual }
    }
}

impl Scheduler {
    /// Announces that the next file, of `size` bytes, will soon have `lanes` lanes: those that
    /// exist and those that log in. Its pieces are made for that many, as the first lane would
    /// otherwise take most of it before the others have logged in. A file of medium size is cut
    /// only then: many lanes together send more before their first answers. Smaller files change
    /// nothing.
    pub fn expect_lanes(&mut self, lanes: u32, size: u64) {
        if size < MEDIUM {
            return;
        }
        let ExpectedLanes { usual, .. } = self.expected;
        let medium = lanes > 1 && size < usual.split_from;
        self.expected.lanes = lanes as usize;
        let options = &mut self.options;
        (options.split_from, options.least, options.unit) = match medium {
            // One piece for each lane: the next one would wait for the first answers.
            true => {
                let piece = size.div_ceil(lanes.into()).next_multiple_of(PAGE);
                let piece = piece.min(usual.least).max(LEAST_PIECE);
                (MEDIUM, piece, piece)
            }
            false => (usual.split_from, usual.least, usual.unit),
        };
    }

    /// Returns the size in bytes from which files are cut.
    pub fn split_from(&self) -> u64 {
        self.options.split_from
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scheduler, SchedulerOptions};

    #[test]
    fn only_a_file_of_medium_size_for_several_lanes_changes_where_files_are_cut() {
        let usual = SchedulerOptions::default();
        let mut scheduler = Scheduler::new(usual, testkit::sftp_model::epoch());
        for (lanes, size, cut_from, least) in [
            (4, 100 << 10, usual.split_from, usual.least),
            (4, 2 << 20, 512 << 10, 512 << 10),
            (1, 100 << 10, 512 << 10, 512 << 10),
            (3, 7 << 20, 512 << 10, usual.least),
            (8, 1 << 20, 512 << 10, 128 << 10),
            (1, 1 << 20, usual.split_from, usual.least),
            (4, 64 << 20, usual.split_from, usual.least),
        ] {
            scheduler.expect_lanes(lanes, size);
            assert_eq!(scheduler.split_from(), cut_from, "{lanes} {size}");
            assert_eq!(scheduler.options.least, least, "{lanes} {size}");
        }
    }
}
