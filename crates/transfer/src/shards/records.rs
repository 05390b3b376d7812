//! Reads the records of a shard's file, with every check.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use shard::{PlanRecordFile, ShardFileError, ShardFileRecord, ShardStepCheck, ShardTotals, decode};

use super::{PlanError, shown};
use crate::disk::os_words;
use crate::walk::refused_name;

/// Bytes that are read at once; more than the longest record.
const PIECE: usize = 64 << 10;

/// Reads the records of a shard or of the tree of directories. The last one is returned only if the
/// file has the length, the checksum and the totals of the header.
pub(super) struct ShardRecordReader {
    file: File,
    path: PathBuf,
    expected: ShardTotals,
    directories: Option<u64>,
    check: ShardStepCheck,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    at: usize,
    read: u64,
}

impl ShardRecordReader {
    /// Reads a file of records of this kind; that of the tree has this number of directories.
    pub(super) fn new(
        file: File,
        path: PathBuf,
        expected: ShardTotals,
        (kind, directories): (PlanRecordFile, Option<u64>),
    ) -> Self {
        Self {
            file,
            path,
            expected,
            directories,
            check: ShardStepCheck::of(kind),
            hasher: blake3::Hasher::new(),
            buffer: Vec::new(),
            at: 0,
            read: 0,
        }
    }

    /// Returns the next record; the last is [`ShardFileRecord::End`].
    ///
    /// # Errors
    /// The file cannot be read, or is not the one that was planned.
    pub(super) fn next(&mut self) -> Result<ShardFileRecord, PlanError> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            match decode(rest).map_err(|damage| self.damaged(damage))? {
                Some((record, len)) => {
                    self.at += len;
                    return self.checked(record);
                }
                None => self.fill()?,
            }
        }
    }

    fn checked(&mut self, record: ShardFileRecord) -> Result<ShardFileRecord, PlanError> {
        let step = self.check.step(&record);
        step.map_err(|damage| self.damaged(damage))?;
        if let ShardFileRecord::Enter(name, _)
        | ShardFileRecord::File(name, ..)
        | ShardFileRecord::Range(name, ..)
        | ShardFileRecord::Symlink(name, _) = &record
            && refused_name(name).is_some()
        {
            return Err(self.damaged(ShardFileError(
                "a name that is reserved for longhaul's own files",
            )));
        }
        if record == ShardFileRecord::End {
            let finished = self.check.finish();
            let (totals, directories) = finished.map_err(|damage| self.damaged(damage))?;
            let whole = self.at == self.buffer.len() && self.read == self.expected.len;
            let sum = self.hasher.finalize().to_hex();
            if !whole || sum.as_str() != self.expected.sum {
                return Err(self.damaged(ShardFileError("its checksum does not match")));
            }
            let counted = self
                .directories
                .is_none_or(|planned| planned == directories);
            if totals != self.expected.totals || !counted {
                return Err(self.damaged(ShardFileError("its totals do not match")));
            }
        }
        Ok(record)
    }

    fn fill(&mut self) -> Result<(), PlanError> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let before = self.buffer.len();
        self.buffer.resize(before + PIECE, 0);
        let space = self.buffer.get_mut(before..).unwrap_or_default();
        let read = self.file.read(space).map_err(|error| {
            PlanError::Io(format!("{}: {}", shown(&self.path), os_words(&error)))
        })?;
        self.buffer.truncate(before + read);
        self.read += read as u64;
        self.hasher
            .update(self.buffer.get(before..).unwrap_or_default());
        if read == 0 {
            return Err(self.damaged(ShardFileError("the list is cut off")));
        }
        if self.read > self.expected.len {
            return Err(self.damaged(ShardFileError("it is longer than planned")));
        }
        Ok(())
    }

    fn damaged(&self, damage: ShardFileError) -> PlanError {
        PlanError::Unusable(format!(
            "{}: the plan is damaged ({damage}): run longhaul plan again with another folder",
            shown(&self.path)
        ))
    }
}

/// Path of the current directory, relative to the root.
#[derive(Debug, Default)]
pub(super) struct RecordPath {
    path: Vec<u8>,
    ends: Vec<usize>,
}

impl RecordPath {
    /// Follows a step. Returns the path of an entry that is not left.
    pub(super) fn step(&mut self, record: &ShardFileRecord) -> Option<Vec<u8>> {
        match record {
            ShardFileRecord::Enter(name, _) => {
                let path = self.of(name);
                self.ends.push(self.path.len());
                self.path = path.clone();
                Some(path)
            }
            ShardFileRecord::File(name, ..)
            | ShardFileRecord::Range(name, ..)
            | ShardFileRecord::Symlink(name, _) => Some(self.of(name)),
            ShardFileRecord::Leave => {
                let end = self.ends.pop().unwrap_or_default();
                self.path.truncate(end);
                None
            }
            ShardFileRecord::End => None,
        }
    }

    fn of(&self, name: &[u8]) -> Vec<u8> {
        crate::walk::join(&self.path, name)
    }
}
