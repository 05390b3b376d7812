//! Checks that the ranges of a plan fit together: each byte of a split file is in one of them, and
//! the shard that has a range writes it.

use std::collections::BTreeSet;

use crate::record::{PlannedAttributes, PlannedRange, ShardFileError, ShardFileRecord};

/// File of records of a plan: those of one shard, or the tree of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRecordFile {
    /// Records of the shard with this number.
    Shard(u32),
    /// Tree of a plan with this number of shards.
    Tree(u32),
}

/// Checks that the ranges of a plan's split files cover each byte once.
#[derive(Clone, Debug)]
pub(crate) struct ShardRangeChecker {
    file: PlanRecordFile,
    /// Split file of the tree whose last range has not come yet.
    open: Option<OpenFile>,
}

#[derive(Clone, Debug)]
struct OpenFile {
    name: Vec<u8>,
    attributes: PlannedAttributes,
    size: u64,
    /// Offset of the first byte after the ranges so far.
    end: u64,
    /// Shards of the ranges so far.
    shards: BTreeSet<u32>,
}

impl ShardRangeChecker {
    pub(crate) fn new(file: PlanRecordFile) -> Self {
        Self { file, open: None }
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// A range of another shard, or ranges of the tree that leave bytes of a file out, overlap, or
    /// are of one shard.
    pub(crate) fn step(&mut self, record: &ShardFileRecord) -> Result<(), ShardFileError> {
        match (self.file, record) {
            (PlanRecordFile::Shard(shard), ShardFileRecord::Range(_, range, _)) => {
                match range.shard == shard {
                    true => Ok(()),
                    false => Err(ShardFileError("a range of another shard")),
                }
            }
            (PlanRecordFile::Tree(shards), ShardFileRecord::Range(name, range, attributes)) => {
                self.range(shards, name, range, attributes)
            }
            _ if self.open.is_some() => Err(ShardFileError("a file without its last range")),
            _ => Ok(()),
        }
    }

    fn range(
        &mut self,
        shards: u32,
        name: &[u8],
        range: &PlannedRange,
        attributes: &PlannedAttributes,
    ) -> Result<(), ShardFileError> {
        let file = self.open.get_or_insert_with(|| OpenFile {
            name: name.to_vec(),
            attributes: *attributes,
            size: range.size,
            end: 0,
            shards: BTreeSet::new(),
        });
        if (file.name.as_slice(), file.size) != (name, range.size) || file.attributes != *attributes
        {
            return Err(ShardFileError("a file without its last range"));
        }
        if range.offset != file.end {
            return Err(ShardFileError(
                "ranges of a file overlap or leave bytes out",
            ));
        }
        if range.shard >= shards || !file.shards.insert(range.shard) {
            return Err(ShardFileError(
                "a range without a valid shard, or two ranges of one file in one shard",
            ));
        }
        file.end = range.end();
        if file.end == file.size {
            self.open = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, size: u64, (offset, end): (u64, u64), shard: u32) -> ShardFileRecord {
        let range = PlannedRange {
            size,
            offset,
            len: end - offset,
            shard,
        };
        let attributes = PlannedAttributes::default();
        ShardFileRecord::Range(name.as_bytes().to_vec(), range, attributes)
    }

    fn check(file: PlanRecordFile, records: &[ShardFileRecord]) -> Result<(), ShardFileError> {
        let mut check = ShardRangeChecker::new(file);
        records.iter().try_for_each(|record| check.step(record))
    }

    #[test]
    fn ranges_that_cover_their_files_are_accepted() {
        let records = [
            range("a", 10, (0, 4), 2),
            range("a", 10, (4, 10), 0),
            range("b", 3, (0, 3), 1),
            ShardFileRecord::Leave,
        ];
        assert_eq!(check(PlanRecordFile::Tree(3), &records), Ok(()));
    }

    /// A byte that no shard writes would be zero in the named file.
    #[test]
    fn ranges_that_overlap_or_leave_bytes_out_are_refused() {
        for bad in [
            range("a", 10, (5, 10), 0),
            range("a", 10, (3, 10), 0),
            range("a", 11, (4, 10), 0),
            range("a", 10, (4, 10), 1),
            range("a", 10, (4, 10), 2),
            range("b", 10, (0, 10), 0),
            ShardFileRecord::Leave,
            ShardFileRecord::End,
        ] {
            let records = [range("a", 10, (0, 4), 1), bad];
            assert!(
                check(PlanRecordFile::Tree(2), &records).is_err(),
                "{records:?}"
            );
        }
        let first = [range("a", 10, (1, 10), 0)];
        assert!(check(PlanRecordFile::Tree(2), &first).is_err());
    }

    #[test]
    fn a_range_of_another_shard_is_refused() {
        let records = [range("a", 10, (4, 6), 3)];
        assert_eq!(check(PlanRecordFile::Shard(3), &records), Ok(()));
        assert!(check(PlanRecordFile::Shard(2), &records).is_err());
    }
}
