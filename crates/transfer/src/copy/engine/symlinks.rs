//! Reads symlinks at the source, and makes them at the target.

use super::{CopyEngine, directories};
use crate::copy::sides::CopySide;
use crate::copy::symlink::{RefusedSymlink, SymlinkCopyState, SymlinkStep};
use crate::copy::tree::ItemAwaitingDirectory;
use crate::file_error::FileError;

/// Begins a symlink, or makes it once its target was read.
pub(super) fn copy(engine: &mut CopyEngine<'_>, held: ItemAwaitingDirectory, step: SymlinkStep) {
    let is_top_level = held.dir.is_none_or(|dir| engine.tree.is_root(dir));
    match step(
        &mut engine.context,
        &mut engine.metadata,
        held,
        is_top_level,
    ) {
        SymlinkCopyState::Asked => {}
        SymlinkCopyState::Over(held, result, end) => over(engine, &held, result, end),
        SymlinkCopyState::LeftOut(held) => directories::item_over(engine, held.dir),
    }
}

/// Handles the end of a query for the target of a symlink at the source.
pub(super) fn on_read(
    engine: &mut CopyEngine<'_>,
    held: ItemAwaitingDirectory,
    result: Result<(), FileError>,
) {
    match result {
        Ok(()) => copy(engine, held, SymlinkCopyState::make),
        Err(error) => over(engine, &held, Err(error), CopySide::Source),
    }
}

/// Handles the end of the job that makes a symlink. What stands in place of a refused one is read.
pub(super) fn on_made(
    engine: &mut CopyEngine<'_>,
    held: ItemAwaitingDirectory,
    result: Result<(), FileError>,
) {
    match result {
        Ok(()) => over(engine, &held, Ok(()), CopySide::Target),
        Err(error) => RefusedSymlink::ask(&mut engine.context, held, error),
    }
}

/// Compares a symlink that was refused with what stands in its place.
pub(super) fn on_compared(engine: &mut CopyEngine<'_>, refused: RefusedSymlink) {
    let (held, result) = refused.compare();
    over(engine, &held, result, CopySide::Target);
}

fn over(
    engine: &mut CopyEngine<'_>,
    held: &ItemAwaitingDirectory,
    result: Result<(), FileError>,
    end: CopySide,
) {
    if result.is_ok() {
        engine.tree.name_made(&mut engine.context, &held.target);
    }
    SymlinkCopyState::report(&mut engine.context, &engine.metadata, held, result, end);
    directories::item_over(engine, held.dir);
}
