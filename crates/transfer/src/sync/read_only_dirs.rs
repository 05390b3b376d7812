//! Makes directories of the target writable while their entries change, as rsync does.

use std::collections::BTreeSet;

use schedule::OwnerWrite;
use sync::{DifferenceReasons, SyncAction, SyncPlan, TreeEntryId, TreeEntryKind};

use super::ends::{SyncEnds, SyncFileOperation};
use crate::copy::PlannedCopySide;
use crate::walk::join_below;

/// Write permission of the owner.
pub(super) const OWNER_WRITE: u16 = 0o200;

/// Directories of the target whose owner may write to them for the time of the sync.
#[derive(Debug, Default)]
pub(super) struct ReadOnlyDirectories(BTreeSet<TreeEntryId>);

impl ReadOnlyDirectories {
    /// Gives the owner write permission for the directories in which the steps of the plan change
    /// names, and for those that get extended attributes. A server that refuses it refuses the
    /// changes too, and says why.
    pub(super) async fn open_for_steps(&mut self, ends: &mut SyncEnds<'_>, plan: &SyncPlan) {
        let (source, target) = (plan.source(), plan.target());
        let changed = plan
            .steps()
            .iter()
            .filter(|step| !matches!(step.action, SyncAction::SetAttributes(_)));
        let above: BTreeSet<TreeEntryId> = changed
            .clone()
            .map(|step| source.tree().parent(step.source))
            .collect();
        let paths = above.into_iter().map(|dir| source.tree().path(dir));
        let mut dirs: BTreeSet<TreeEntryId> = paths.filter_map(|path| target.find(&path)).collect();
        let moved = changed.filter_map(|step| match step.action {
            SyncAction::MoveFrom(from) => Some(target.tree().parent(from)),
            _ => None,
        });
        dirs.extend(moved);
        let described = plan.steps().iter().filter_map(|step| match step.action {
            SyncAction::SetAttributes(why) if why.has(DifferenceReasons::XATTRS) => step.target,
            _ => None,
        });
        let is_dir = |id: &TreeEntryId| target.tree().entry(*id).kind == TreeEntryKind::Directory;
        dirs.extend(described.filter(is_dir));
        self.open(ends, plan, dirs).await;
        self.open_for_removals(ends, plan, plan.in_the_way()).await;
    }

    /// Gives the owner write permission for the directories that contain `removed`, entries of the
    /// target, and for those among them. Those that the source has too may have its mode by now.
    pub(super) async fn open_for_removals(
        &mut self,
        ends: &mut SyncEnds<'_>,
        plan: &SyncPlan,
        removed: &[TreeEntryId],
    ) {
        let tree = plan.target().tree();
        let above = removed.iter().map(|id| tree.parent(*id));
        let is_dir = |id: &TreeEntryId| tree.entry(*id).kind == TreeEntryKind::Directory;
        let dirs = above
            .chain(removed.iter().copied().filter(is_dir))
            .collect();
        self.open(ends, plan, dirs).await;
    }

    async fn open(
        &mut self,
        ends: &mut SyncEnds<'_>,
        plan: &SyncPlan,
        dirs: BTreeSet<TreeEntryId>,
    ) {
        let tree = plan.target().tree();
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let mut ops = Vec::new();
        for dir in dirs {
            let source = plan.source().find(&tree.path(dir));
            let source = source.and_then(|id| plan.source().tree().entry(id).mode);
            let modes = [tree.entry(dir).mode, source];
            let read_only = |mode: u16| mode & OWNER_WRITE == 0;
            if modes.into_iter().flatten().any(read_only) {
                ops.push(SyncFileOperation::SetOwnerWrite {
                    dir: join_below(&root, &tree.path(dir)),
                    change: OwnerWrite {
                        granted: true,
                        only: None,
                    },
                });
                self.0.insert(dir);
            }
        }
        ends.at_target(ops).await;
    }

    /// Takes the permission again from directories that the source lacks and that stay, since they
    /// contain an excluded entry. Those that the source has get its mode.
    pub(super) async fn close_extra(&self, ends: &mut SyncEnds<'_>, plan: &SyncPlan) {
        let tree = plan.target().tree();
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let in_source = |dir: &TreeEntryId| plan.source().find(&tree.path(*dir)).is_some();
        let extra = self.0.iter().filter(|dir| !in_source(dir));
        let opened = |mode: u16| u32::from(mode | OWNER_WRITE);
        let ops = extra.map(|dir| SyncFileOperation::SetOwnerWrite {
            dir: join_below(&root, &tree.path(*dir)),
            change: OwnerWrite {
                granted: false,
                only: tree.entry(*dir).mode.map(opened),
            },
        });
        ends.at_target(ops.collect()).await;
    }

    /// Returns the paths of the directories relative to the root, in any order.
    pub(super) fn paths(&self, plan: &SyncPlan) -> Vec<Vec<u8>> {
        let tree = plan.target().tree();
        self.0.iter().map(|dir| tree.path(*dir)).collect()
    }
}
