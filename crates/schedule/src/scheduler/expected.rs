//! Prepares for lanes that are still being opened.

use super::SchedulerOptions;

/// Smallest size in bytes of a file that is cut for lanes that are being opened.
const MEDIUM: u64 = 512 << 10;
/// Smallest piece in bytes of such a file, and the unit of its pieces.
const LEAST_PIECE: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// Lanes that will soon exist, and the options as they were given.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedLanes {
    lanes: usize,
    usual: SchedulerOptions,
}

impl ExpectedLanes {
    pub(super) fn none(usual: SchedulerOptions) -> Self {
        Self { lanes: 1, usual }
    }

    /// Returns the number of lanes for which pieces are made.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Adapts `options` to the next file, of `size` bytes, which will soon have `lanes` lanes.
    pub(super) fn expect(&mut self, lanes: u32, size: u64, options: &mut SchedulerOptions) {
        if size < MEDIUM {
            return;
        }
        let usual = self.usual;
        let medium = lanes > 1 && size < usual.split_from;
        self.lanes = lanes as usize;
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
            assert_eq!(scheduler.board.options().least, least, "{lanes} {size}");
        }
    }
}
