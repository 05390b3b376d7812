//! Gives a directory on this machine its metadata.

use schedule::{Attributes, ExtraMetadata};

use super::TargetDir;
use crate::copy::context::CopyContext;
use crate::copy::metadata::MetadataPreservation;
use crate::copy::sides::CopySide;
use crate::file_error::FileError;

/// Sets mode, times and further metadata of a directory on this machine.
pub(super) fn finish_locally(
    context: &CopyContext<'_>,
    metadata: &mut MetadataPreservation,
    dir: &TargetDir,
    mode: Option<u32>,
    beyond: &ExtraMetadata,
) -> Result<(), FileError> {
    let attributes = Attributes {
        mode,
        ..dir.attributes
    };
    let path = context.named().local_path(&dir.target);
    let (options, local) = (context.options(), context.local());
    let not_kept = local.finish_directory(&path, &attributes, dir.is_of_copy(), options, beyond)?;
    for (parts, why) in not_kept {
        let shown = || Some(context.shown(CopySide::Target, &dir.target));
        metadata.note_lost_of_directory(parts, &why, shown);
    }
    Ok(())
}
