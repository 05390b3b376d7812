//! Writes the progress of files to the journal.

use std::time::{Duration, Instant};

use schedule::journal::JournalRecord;
use schedule::{Attributes, JobKind, RemotePath, ResumeData};

use super::records::RunJournal;
use crate::copy::context::CopyContext;
use crate::copy::file::FileTask;
use crate::copy::jobs::JobPurpose;
use crate::copy::names::basename;
use crate::copy::sides::CopySide;
use crate::walk::local_path;

/// Interval at which a server's clock is read, from the modification time of a file it has just
/// stored. Files that no reading has followed are sent again after an interruption, and a reading
/// is one small request.
const CLOCK: Duration = Duration::from_millis(250);
/// Size in bytes from which the modification time of every file is read.
const LARGE: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Records completed files in the journal, and reads a server's clock from their modification times
/// now and then.
#[derive(Debug, Default)]
pub(super) struct CompletionRecorder {
    clock_at: Option<Instant>,
    /// Number of files that were finished at a server without asking for their time.
    untimed: u64,
    /// Final name of the last of them.
    last_untimed: Option<Vec<u8>>,
}

impl CompletionRecorder {
    /// Records that a file copied by this run was renamed to its final name. `more` tells if
    /// there is more to copy.
    pub(super) fn note_done(
        &mut self,
        context: &mut CopyContext<'_>,
        records: &mut RunJournal,
        task: &FileTask,
        more: bool,
    ) {
        let Some(id) = task.resume().entry() else {
            return;
        };
        // The journal of a range keeps its written bytes until the shard is complete.
        if task.shared().is_some() {
            return;
        }
        let size = task.confirmed();
        let mut mtime = 0;
        if !context.target_is_remote() {
            let target = context.named().local_path(task.target());
            let Some(stat) = context.local().look(&target) else {
                return;
            };
            mtime = stat.id.mtime;
            records.lies_on(stat.id.device, &local_path(task.target()));
        } else if context.preserves() {
            let times = match context.source_is_remote() {
                true => task.attributes().and_then(|a| a.times),
                false => {
                    let stat = context.local().stat(task.source());
                    stat.ok().and_then(|stat| stat.attributes.times)
                }
            };
            mtime = times.map_or(0, |(_, m)| u64::from(m) * SECOND);
        }
        records.write(JournalRecord::Done {
            id,
            // A server may be unable to sync what the user wants synced.
            durable: is_durable(context, task),
            size,
            mtime,
        });
        if context.target_is_remote() && mtime == 0 {
            self.untimed += 1;
            self.last_untimed = Some(task.target().to_vec());
        }
        let now = context.now();
        let due = |at| now.saturating_duration_since(at) >= CLOCK;
        let due = self.clock_at.is_none_or(due);
        // After the last file nothing needs resuming, and the run would wait for the answer.
        let more = more || !context.jobs().is_empty();
        let untimed = context.target_is_remote() && mtime == 0;
        if more && untimed && records.goes_on() && (due || size >= LARGE) {
            self.clock_at = Some(now);
            let path = RemotePath(task.target().to_vec());
            let follow = true;
            let kind = JobKind::Stat { path, follow };
            context.submit(CopySide::Target, kind, JobPurpose::Clock(self.untimed));
        }
    }

    /// Reads the server's clock from the last file. Returns false if nothing is to be read.
    pub(super) fn request_seal(&mut self, context: &mut CopyContext<'_>) -> bool {
        let Some(path) = self.last_untimed.take() else {
            return false;
        };
        let kind = JobKind::Stat {
            path: RemotePath(path),
            follow: true,
        };
        context.submit(CopySide::Target, kind, JobPurpose::Clock(self.untimed));
        true
    }
}

/// True if a copied file was made durable.
pub(in crate::copy) fn is_durable(context: &CopyContext<'_>, task: &FileTask) -> bool {
    task.is_synced() || context.options().fsync && !context.target_is_remote()
}

/// Time of a server's clock, in nanoseconds since 1970.
pub(super) fn clock(attributes: &Attributes) -> Option<u64> {
    let (_, modified) = attributes.times?;
    Some(u64::from(modified) * SECOND)
}

/// Removes local temporaries for which no journal was written, since no later run would find them.
pub(super) fn clear_unwritten(context: &CopyContext<'_>, records: &mut RunJournal) {
    for record in records.take_unwritten() {
        let JournalRecord::Begun { target, tag, .. } = record else {
            continue;
        };
        for name in ResumeData::names(&context.named().temporary_place(&target), tag) {
            let path = context.named().local_path(&target);
            context.local().remove_beside(&path, basename(&name));
        }
    }
}
