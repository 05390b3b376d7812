//! Sets attributes by path that a server has refused for an open file.

use schedule::{Attributes, ExpectedEntry, JobId, JobKind, Parts, RemotePath};

use super::CopyEngine;
use crate::copy::context::CopyContext;
use crate::copy::file::CopyFileId;
use crate::copy::jobs::JobPurpose;
use crate::copy::metadata::special_bits;
use crate::copy::sides::CopySide;
use crate::file_error::FileError;
use crate::report::EscapedName;

/// Handles metadata that were not kept: what can be set later is noted, and the rest is reported.
pub(super) fn on_not_kept(engine: &mut CopyEngine<'_>, id: JobId, parts: Parts, why: String) {
    let purpose = engine.context.jobs().get(&id).map(|(_, purpose)| purpose);
    let is_file = matches!(purpose, Some(JobPurpose::File(..)));
    if is_file && engine.metadata.may_set_later(&engine.context, parts) {
        return engine.metadata.refused_attributes().note(id, parts, why);
    }
    let entry = || purpose?.shown(&engine.context, &engine.files, &engine.tree);
    match purpose {
        Some(JobPurpose::FinishDir(_)) => {
            engine.metadata.note_lost_of_directory(parts, &why, entry);
        }
        _ => engine.metadata.note_lost(parts, &why, entry),
    }
}

/// Sets what the server has refused while the job `id` had the file open, if the file is complete.
pub(super) fn set(engine: &mut CopyEngine<'_>, id: JobId, file: CopyFileId, is_complete: bool) {
    let Some((parts, why)) = engine.metadata.refused_attributes().take(id) else {
        return;
    };
    let Some(task) = engine.files.get(&file) else {
        return;
    };
    let shown = engine.context.shown(CopySide::Target, task.target());
    // The named target may be a symlink, in whose place the file that it leads to was written.
    let may_be_link = engine.context.named().is(task.target());
    match task.attributes().filter(|_| is_complete && !may_be_link) {
        Some(source) => {
            let kind = job(&engine.context, task.target(), &source, parts);
            let purpose = JobPurpose::FileAttributes(shown, parts);
            engine.context.submit(CopySide::Target, kind, purpose);
        }
        None => engine.metadata.note_lost(parts, &why, || Some(shown)),
    }
}

/// Handles the end of a job that sets attributes by path.
pub(super) fn on_set(
    engine: &mut CopyEngine<'_>,
    of: EscapedName,
    parts: Parts,
    done: Result<(), FileError>,
) {
    if let Err(error) = done {
        engine.metadata.note_lost(parts, error.what(), || Some(of));
    }
}

/// Returns the job that sets these parts of the attributes of `source` at the complete file `target`.
fn job(context: &CopyContext<'_>, target: &[u8], source: &Attributes, parts: Parts) -> JobKind {
    let bits = match special_bits(context).keeps() {
        true => 0o7777,
        false => 0o777,
    };
    let sets_times = parts.contains(Parts::TIMES);
    let attributes = Attributes {
        mode: source.mode.filter(|_| parts.contains(Parts::MODE)),
        times: source.times.filter(|_| sets_times),
        nanoseconds: source.nanoseconds.filter(|_| sets_times),
        ..Attributes::default()
    };
    JobKind::SetAttributes {
        path: RemotePath(target.to_vec()),
        attributes: Attributes {
            mode: attributes.mode.map(|mode| mode & bits),
            ..attributes
        },
        follow: false,
        xattrs: None,
        expected: ExpectedEntry::FILE,
    }
}
