//! Makes and completes the target's directories, and does what waits for them.

use super::{CopyEngine, symlinks};
use crate::copy::symlink::SymlinkCopyState;
use crate::copy::tree::{CopyDirectoryId, DirectoryReadyStep, ItemAwaitingDirectory, TargetDir};

/// Makes a directory that was found, at once if it need not wait for its parent. Returns false if that
/// is impossible and its contents can be skipped.
pub(super) fn begin_dir(
    engine: &mut CopyEngine<'_>,
    key: CopyDirectoryId,
    mut dir: TargetDir,
) -> bool {
    if dir.is_root() && engine.walks.leaves_roots() {
        dir.leave_existing();
    }
    // The others have their mode, unless a symlink stands in their place now.
    let is_checked = dir.is_root() || engine.context.options().keep_dirlinks;
    if (is_checked || !dir.is_filled_by_owner()) && engine.keeper.has_made(dir.target()) {
        dir.was_made_earlier();
    }
    let (context, metadata) = (&mut engine.context, &mut engine.metadata);
    let begun = engine.tree.begin_dir(context, metadata, key, dir);
    after_tree(engine);
    begun
}

/// Notes that the walk has no more entries of a directory.
pub(super) fn listed(engine: &mut CopyEngine<'_>, key: CopyDirectoryId) {
    let (context, metadata) = (&mut engine.context, &mut engine.metadata);
    engine.tree.listed(context, metadata, key);
    after_tree(engine);
}

/// Notes that an entry of `dir` is finished.
pub(super) fn item_over(engine: &mut CopyEngine<'_>, dir: Option<CopyDirectoryId>) {
    let (context, metadata) = (&mut engine.context, &mut engine.metadata);
    engine.tree.item_over(context, metadata, dir);
    after_tree(engine);
}

/// Starts an item, or defers it until its directory is made.
pub(super) fn begin_item(engine: &mut CopyEngine<'_>, item: ItemAwaitingDirectory) {
    if let Some(item) = engine.tree.begin_item(&engine.context, item) {
        begin_placed(engine, item);
    }
}

fn begin_placed(engine: &mut CopyEngine<'_>, item: ItemAwaitingDirectory) {
    if item.symlink {
        symlinks::copy(engine, item, SymlinkCopyState::begin);
    } else if let Some(item) = engine.link_or_copy(item) {
        engine.begin_file(item);
    }
}

/// Does the work that directories have made possible.
pub(super) fn after_tree(engine: &mut CopyEngine<'_>) {
    while let Some(step) = engine.tree.next_step() {
        match step {
            DirectoryReadyStep::Place(item) => begin_placed(engine, *item),
            DirectoryReadyStep::Record(dir) => engine.keeper.note_made(dir),
            DirectoryReadyStep::ForgetMade => engine.keeper.forget_made(),
            DirectoryReadyStep::FileAgain(id) => {
                let step = engine.files.again(&engine.context, id);
                engine.after_file(step);
            }
            DirectoryReadyStep::FileDropped(id) => engine.file_dropped(id),
            DirectoryReadyStep::Clear(dir) => clear_leftovers_in(engine, dir),
        }
    }
}

/// Removes what an earlier run has left in a directory that is otherwise complete.
fn clear_leftovers_in(engine: &mut CopyEngine<'_>, key: CopyDirectoryId) {
    let (keeper, context) = (&mut engine.keeper, &mut engine.context);
    let clears = |dir: &[u8]| keeper.clear_leftovers_in(context, key, dir);
    if !engine.tree.target(key).is_some_and(clears) {
        item_over(engine, Some(key));
    }
}
