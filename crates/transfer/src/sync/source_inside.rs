//! Finds a source that lies in the target, where the paths of the two ends do not tell: an end may
//! have another root, or the same file system mounted elsewhere.
//!
//! The listings are compared first, in memory. Only a directory of the target that contains what
//! the source contains is examined, by an entry with a random name that is created there and looked
//! for in the source.

use std::fs;

use schedule::Attributes;
use sync::{SyncPlan, TreeEntryId, source_lookalikes};

use super::attributes::attributes;
use super::ends::{SyncEnds, SyncFileOperation};
use crate::copy::PlannedCopySide;
use crate::disk::temp_name;
use crate::file_error::{FileError, if_exists};
use crate::walk::{join, local_path};

/// Directories that are examined, all at the same time.
const MOST: usize = 64;

/// Directories of the target that may be the source, each with the name of a probe to make in it.
pub(super) struct NestedSourceProbes<'p> {
    plan: &'p SyncPlan,
    /// Root of the target.
    root: Vec<u8>,
    probes: Vec<(TreeEntryId, Vec<u8>)>,
}

impl<'p> NestedSourceProbes<'p> {
    /// Chooses the directories, by the contents of both ends.
    pub(super) fn new(ends: &SyncEnds<'_>, plan: &'p SyncPlan) -> Self {
        let dirs = source_lookalikes(plan.source(), plan.target(), MOST);
        let named = dirs.into_iter().map(|dir| (dir, temp_name(b"same-host")));
        Self {
            plan,
            root: ends.root(PlannedCopySide::Target).to_vec(),
            probes: named.collect(),
        }
    }

    /// Makes the probes and removes them again. Returns the path of the directory that is the
    /// source, or contains it, if there is one.
    ///
    /// # Errors
    ///
    /// The path of a directory that may be the source, and the reason why that is unknown.
    pub(super) async fn find_source(
        mut self,
        ends: &mut SyncEnds<'_>,
    ) -> Result<Option<Vec<u8>>, (Vec<u8>, FileError)> {
        if self.probes.is_empty() {
            return Ok(None);
        }
        let made = ends
            .at_target(self.operations(|path, name| SyncFileOperation::make_dir(join(&path, name))))
            .await;
        let mut made = made.into_iter();
        self.probes
            .retain(|_| made.next().is_some_and(|made| made.is_ok()));
        let seen = self.are_in_source(ends).await;
        ends.at_target(
            self.operations(|path, name| SyncFileOperation::RemoveDir(join(&path, name))),
        )
        .await;
        ends.at_target(self.restored_times()).await;
        if ends.stopped() {
            return Ok(None);
        }
        let mut unknown = None;
        for ((dir, _), seen) in self.probes.iter().zip(seen) {
            match seen {
                Ok(true) => return Ok(Some(self.path(*dir))),
                Ok(false) => {}
                Err(error) => drop(unknown.get_or_insert_with(|| (self.path(*dir), error))),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    fn path(&self, dir: TreeEntryId) -> Vec<u8> {
        join(&self.root, &self.plan.target().tree().path(dir))
    }

    /// Returns an operation for each directory and probe.
    fn operations(
        &self,
        operation: impl Fn(Vec<u8>, &[u8]) -> SyncFileOperation,
    ) -> Vec<SyncFileOperation> {
        let probes = self.probes.iter();
        let operations = probes.map(|(dir, name)| operation(self.path(*dir), name));
        operations.collect()
    }

    /// Returns the operations that set the times of the directories again.
    fn restored_times(&self) -> Vec<SyncFileOperation> {
        let restore = |(dir, _): &(TreeEntryId, Vec<u8>)| {
            let before = attributes(self.plan.target().tree().entry(*dir));
            let times = Attributes {
                times: before.times,
                nanoseconds: before.nanoseconds,
                ..Attributes::default()
            };
            SyncFileOperation::set(self.path(*dir), times)
        };
        self.probes.iter().map(restore).collect()
    }

    /// Returns for each probe if the source has it.
    async fn are_in_source(&self, ends: &mut SyncEnds<'_>) -> Vec<Result<bool, FileError>> {
        let root = ends.root(PlannedCopySide::Source).to_vec();
        let paths = self.probes.iter().map(|(_, name)| join(&root, name));
        if ends.is_local(PlannedCopySide::Source) {
            let look = |path: Vec<u8>| fs::symlink_metadata(local_path(&path));
            let found = paths.map(|path| if_exists(look(path).map_err(FileError::from)));
            return found.map(|found| Ok(found?.is_some())).collect();
        }
        let looks = paths.map(SyncFileOperation::Lstat).collect();
        let found = ends.operate(PlannedCopySide::Source, looks).await;
        let found = found.into_iter();
        found.map(|found| Ok(if_exists(found)?.is_some())).collect()
    }
}
