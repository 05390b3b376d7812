//! Makes and completes the target's directories, and does what waits for them.

use super::CopyEngine;
use crate::copy::symlink::SymlinkCopyState;
use crate::copy::tree::{CopyDirectoryId, DirectoryReadyStep, ItemAwaitingDirectory, TargetDir};

impl CopyEngine<'_> {
    /// Makes a directory that was found, at once if it need not wait for its parent. Returns false
    /// if that is impossible and its contents can be skipped.
    pub(super) fn begin_dir(&mut self, key: CopyDirectoryId, mut dir: TargetDir) -> bool {
        if dir.is_root() && self.walks.leaves_roots() {
            dir.leave_existing();
        }
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        let begun = self.tree.begin_dir(context, metadata, key, dir);
        self.after_tree();
        begun
    }

    /// Notes that the walk has no more entries of a directory.
    pub(super) fn listed(&mut self, key: CopyDirectoryId) {
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        self.tree.listed(context, metadata, key);
        self.after_tree();
    }

    /// Notes that an entry of `dir` is finished.
    pub(super) fn item_over(&mut self, dir: Option<CopyDirectoryId>) {
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        self.tree.item_over(context, metadata, dir);
        self.after_tree();
    }

    /// Starts an item, or defers it until its directory is made.
    pub(super) fn begin_item(&mut self, item: ItemAwaitingDirectory) {
        if let Some(item) = self.tree.begin_item(&self.context, item) {
            self.begin_placed(item);
        }
    }

    fn begin_placed(&mut self, item: ItemAwaitingDirectory) {
        if item.symlink {
            self.copy_symlink(item, SymlinkCopyState::begin);
        } else if let Some(item) = self.link_or_copy(item) {
            self.begin_file(item);
        }
    }

    /// Does the work that directories have made possible.
    pub(super) fn after_tree(&mut self) {
        while let Some(step) = self.tree.next_step() {
            match step {
                DirectoryReadyStep::Place(item) => self.begin_placed(*item),
                DirectoryReadyStep::FileAgain(id) => {
                    let step = self.files.again(&self.context, id);
                    self.after_file(step);
                }
                DirectoryReadyStep::FileDropped(id) => self.file_dropped(id),
                DirectoryReadyStep::Clear(dir) => self.clear_leftovers_in(dir),
            }
        }
    }

    /// Removes what an earlier run has left in a directory that is otherwise complete.
    fn clear_leftovers_in(&mut self, key: CopyDirectoryId) {
        let waits = self
            .tree
            .target(key)
            .is_some_and(|target| (self.keeper).clear_leftovers_in(&mut self.context, key, target));
        if !waits {
            self.item_over(Some(key));
        }
    }
}
