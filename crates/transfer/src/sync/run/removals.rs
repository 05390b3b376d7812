//! Removes entries of the target.

use std::collections::{BTreeMap, BTreeSet};

use sync::{EntryTree, SyncPlan, TreeEntryId, TreeEntryKind};

use super::SyncRun;
use crate::copy::PlannedCopySide;
use crate::sync::ends::SyncFileOperation;
use crate::walk::join;

impl SyncRun<'_> {
    /// Removes entries of the target, or moves them to the backup directory. Returns the files that
    /// could not be moved.
    pub(super) async fn remove_entries(
        &mut self,
        plan: &SyncPlan,
        ids: &[TreeEntryId],
    ) -> BTreeSet<TreeEntryId> {
        let root = self.ends.root(PlannedCopySide::Target).to_vec();
        let tree = plan.target().tree();
        let of_kind = |dirs: bool| {
            let wanted = ids
                .iter()
                .filter(move |id| (tree.entry(**id).kind == TreeEntryKind::Directory) == dirs);
            wanted.map(|id| (*id, tree.path(*id)))
        };
        let (dirs, files): (Vec<_>, Vec<_>) = (of_kind(true).collect(), of_kind(false).collect());
        let kept = match &mut self.backup {
            Some(backup) => {
                let moved = backup
                    .move_files(&mut self.ends, plan.target(), &files)
                    .await;
                self.deleted += moved.moved();
                moved.into_kept()
            }
            None => {
                let files = files.iter().map(|(_, path)| (join(&root, path), false));
                self.remove(files.collect()).await;
                BTreeSet::new()
            }
        };
        // A directory that keeps a file stays as well, and the file was reported.
        let mut filled = BTreeSet::new();
        for id in &kept {
            let mut at = tree.parent(*id);
            while at != EntryTree::ROOT && filled.insert(at) {
                at = tree.parent(at);
            }
        }
        let empty = dirs.into_iter().filter(|(id, _)| !filled.contains(id));
        let empty = empty.map(|(_, path)| (join(&root, &path), true));
        self.remove(empty.collect()).await;
        kept
    }

    /// Removes paths, directories after their contents. Each comes with true for a directory.
    async fn remove(&mut self, paths: Vec<(Vec<u8>, bool)>) {
        let (dirs, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|(_, is_dir)| *is_dir);
        let files: Vec<Vec<u8>> = files.into_iter().map(|(path, _)| path).collect();
        let ops = files
            .iter()
            .cloned()
            .map(SyncFileOperation::Remove)
            .collect();
        self.remove_all(&files, ops).await;
        let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
        let mut levels: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for (path, _) in dirs {
            levels.entry(depth(&path)).or_default().push(path);
        }
        for (_, level) in levels.into_iter().rev() {
            let ops = level
                .iter()
                .cloned()
                .map(SyncFileOperation::RemoveDir)
                .collect();
            self.remove_all(&level, ops).await;
        }
    }

    async fn remove_all(&mut self, paths: &[Vec<u8>], ops: Vec<SyncFileOperation>) {
        let results = self.ends.at_target(ops).await;
        self.deleted += results.iter().filter(|result| result.is_ok()).count() as u64;
        self.ends
            .report_failures(paths, &results, "cannot be deleted");
    }

    /// Warns of unfinished files that stay at the target: they may belong to a running copy, or to one
    /// that is to be resumed.
    pub(super) async fn report_temporaries(&mut self, plan: &SyncPlan) {
        let tree = plan.target().tree();
        let root = self.ends.root(PlannedCopySide::Target).to_vec();
        let temporaries = tree.of_kind(TreeEntryKind::Temporary);
        let temporaries: Vec<Vec<u8>> = temporaries.map(|id| tree.path(id)).collect();
        let looks = temporaries.iter().map(|path| join(&root, path));
        let looks = looks.map(SyncFileOperation::Lstat).collect();
        let found = self.ends.at_target(looks).await;
        let mut left = temporaries
            .iter()
            .zip(found)
            .filter(|(_, found)| found.is_ok());
        let Some((first, _)) = left.next() else {
            return;
        };
        let others = match left.count() {
            0 => String::new(),
            1 => " (and one more)".to_owned(),
            count => format!(" (and {count} more)"),
        };
        let name = self
            .ends
            .shown(PlannedCopySide::Target, &join(&root, first));
        let message = format!(
            "this unfinished file of another copy stays{others}: remove it if no such copy runs or is \
             to be resumed"
        );
        self.ends.warn(Some(name), message);
    }
}
