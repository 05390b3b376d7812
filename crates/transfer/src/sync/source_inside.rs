//! Finds a source that lies in the target, where the paths of the two ends do not tell: an end may
//! have another root, or the same file system mounted elsewhere.
//!
//! The listings are compared first, in memory. Only a directory of the target that contains what
//! the source contains is examined, by an entry with a random name that is created there and looked
//! for in the source.

use std::fs;

use schedule::Attributes;
use sync::{NodeId, SyncPlan, source_lookalikes};

use super::attributes::attributes;
use super::ends::FileOperation;
use super::run::SyncRun;
use crate::copy::PlannedCopySide;
use crate::disk::temp_name;
use crate::walk::{join, local_path};

/// Directories that are examined, all at the same time.
const MOST: usize = 64;

impl SyncRun<'_> {
    /// Reports a source that lies in the target and would be deleted, and returns true.
    pub(super) async fn deletes_source(&mut self, plan: &SyncPlan) -> bool {
        if self.options.deletions.is_none() {
            return false;
        }
        let dirs = source_lookalikes(plan.source(), plan.target(), MOST);
        if dirs.is_empty() {
            return false;
        }
        let root = self.run.root(PlannedCopySide::Target).to_vec();
        let tree = plan.target().tree();
        let path = |dir: NodeId| join(&root, &tree.path(dir));
        let named = dirs.into_iter().map(|dir| (dir, temp_name(b"same-host")));
        let probes: Vec<(NodeId, Vec<u8>)> = named.collect();
        let make =
            |(dir, name): &(NodeId, Vec<u8>)| FileOperation::MakeDir(join(&path(*dir), name));
        let made = self.at_target(probes.iter().map(make).collect()).await;
        let made = probes
            .into_iter()
            .zip(made)
            .filter(|(_, made)| made.is_ok());
        let made: Vec<(NodeId, Vec<u8>)> = made.map(|(probe, _)| probe).collect();
        let seen = self.are_in_source(&made).await;
        let remove =
            |(dir, name): &(NodeId, Vec<u8>)| FileOperation::RemoveDir(join(&path(*dir), name));
        self.at_target(made.iter().map(remove).collect()).await;
        let restore = |(dir, _): &(NodeId, Vec<u8>)| {
            let before = attributes(tree.entry(*dir));
            let times = Attributes {
                times: before.times,
                nanoseconds: before.nanoseconds,
                ..Attributes::default()
            };
            FileOperation::Set(path(*dir), times)
        };
        self.at_target(made.iter().map(restore).collect()).await;
        let source = made.iter().zip(seen).find(|(_, seen)| *seen);
        let Some(((dir, _), _)) = source else {
            return false;
        };
        let name = self.run.shown(PlannedCopySide::Target, &path(*dir));
        let what = "is SRC, which --delete would delete: exclude it, or leave out --delete";
        self.run.fail(name, what.to_owned());
        true
    }

    /// Returns for each probe if the source has it.
    async fn are_in_source(&mut self, probes: &[(NodeId, Vec<u8>)]) -> Vec<bool> {
        let root = self.run.root(PlannedCopySide::Source).to_vec();
        let paths = probes.iter().map(|(_, name)| join(&root, name));
        if self.run.is_local(PlannedCopySide::Source) {
            return paths
                .map(|path| fs::symlink_metadata(local_path(&path)).is_ok())
                .collect();
        }
        let looks = paths.map(FileOperation::Lstat).collect();
        let found = self
            .operations
            .carry_out(&mut self.run, PlannedCopySide::Source, looks);
        found.await.into_iter().map(|found| found.is_ok()).collect()
    }
}
