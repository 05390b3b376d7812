//! Writes the progress of files to the journal.

use std::time::Duration;

use schedule::journal::JournalRecord;
use schedule::{Attributes, FileCheckpoint, JobId, JobKind, RemotePath, ResumeData};

use super::super::engine::{CopyEngine, CopySide, JobPurpose};
use super::super::file::FileTask;
use super::super::names::basename;
use crate::walk::local_path;

/// Interval at which a server's clock is read, from the modification time of a file it has just
/// stored.
const CLOCK: Duration = Duration::from_secs(1);
/// Size in bytes from which the modification time of every file is read.
const LARGE: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

impl CopyEngine<'_> {
    pub(in crate::copy) fn on_temporary(&mut self, job: JobId, path: Vec<u8>) {
        if let Some(task) = self.file_of(job)
            && let target = self.ports.named().temporary_place(task.target())
            && let Some(id) = task.resume().renamed(&target, &path)
        {
            self.keeper.write(JournalRecord::Temp { id, path });
        }
    }

    pub(in crate::copy) fn on_kept(&mut self, job: JobId, kept: FileCheckpoint) {
        if let Some(id) = self.file_of(job).and_then(|task| task.resume().entry()) {
            self.keeper.write(JournalRecord::Ranges {
                id,
                durable: kept.durable,
                mtime: kept.mtime,
                ranges: kept.ranges,
            });
        }
    }

    pub(super) fn file_of(&self, job: JobId) -> Option<&FileTask> {
        match self.ports.jobs().get(&job) {
            Some((_, JobPurpose::File(id, _))) => self.files.get(id),
            _ => None,
        }
    }

    /// Records that a file copied by this run was renamed to its final name.
    pub(in crate::copy) fn note_done(&mut self, task: &FileTask) {
        let Some(id) = task.resume().entry() else {
            return;
        };
        // The journal of a range keeps its written bytes until the shard is complete.
        if task.shared().is_some() {
            return;
        }
        let size = task.confirmed();
        let mut mtime = 0;
        if !self.target_is_remote() {
            let Ok(stat) = self.local().stat(task.target()) else {
                return;
            };
            mtime = stat.id.mtime;
            self.keeper
                .lies_on(stat.id.device, &local_path(task.target()));
        } else if self.options.preserve || self.options.archive {
            let times = match self.source_is_remote() {
                true => task.attributes().and_then(|a| a.times),
                false => {
                    let stat = self.local().stat(task.source());
                    stat.ok().and_then(|stat| stat.attributes.times)
                }
            };
            mtime = times.map_or(0, |(_, m)| u64::from(m) * SECOND);
        }
        self.keeper.write(JournalRecord::Done {
            id,
            // A server may be unable to sync what the user wants synced.
            durable: self.is_durable(task),
            size,
            mtime,
        });
        if self.target_is_remote() && mtime == 0 {
            self.keeper.last_untimed = Some(task.target().to_vec());
        }
        let now = self.environment.now();
        let due = |at| now.saturating_duration_since(at) >= CLOCK;
        let due = self.keeper.clock_at.is_none_or(due);
        // After the last file nothing needs resuming, and the run would wait for the answer.
        let more = self.has_more() || !self.files.is_empty() || !self.ports.jobs().is_empty();
        if more && self.target_is_remote() && self.keeper.goes_on() && (due || size >= LARGE) {
            self.keeper.clock_at = Some(now);
            let path = RemotePath(task.target().to_vec());
            let follow = true;
            let kind = JobKind::Stat { path, follow };
            self.submit(CopySide::Target, kind, JobPurpose::Clock);
        }
    }

    /// True if a copied file was made durable.
    pub(in crate::copy) fn is_durable(&self, task: &FileTask) -> bool {
        task.is_synced() || self.options.fsync && !self.target_is_remote()
    }

    pub(in crate::copy) fn on_clock(&mut self, attributes: Attributes) {
        if let Some((_, modified)) = attributes.times
            && !(self.options.preserve || self.options.archive)
        {
            let mtime = u64::from(modified) * SECOND;
            self.keeper.write(JournalRecord::Clock { mtime });
        }
    }

    /// Seals the journal of a run that ends with failed files, so that the next run tells apart its
    /// files from those that were changed since. Reads the server's clock from the last file.
    pub(in crate::copy) async fn seal_journal(&mut self) {
        if self.stopped() || self.ports.summary_mut().failed == 0 || !self.keeper.goes_on() {
            return;
        }
        let Some(path) = self.keeper.last_untimed.take() else {
            return;
        };
        let kind = JobKind::Stat {
            path: RemotePath(path),
            follow: true,
        };
        self.submit(CopySide::Target, kind, JobPurpose::Seal);
        self.copy().await;
    }

    pub(in crate::copy) fn on_seal(&mut self, attributes: Attributes) {
        let mtime = attributes.times.map_or(0, |(_, modified)| modified);
        let mtime = u64::from(mtime) * SECOND;
        self.keeper.write(JournalRecord::Sealed { mtime });
    }

    /// Removes local temporaries for which no journal was written, since no later run would find
    /// them.
    pub(super) fn clear_unwritten(&mut self) {
        for record in std::mem::take(&mut self.keeper.early) {
            let JournalRecord::Begun { target, tag, .. } = record else {
                continue;
            };
            for name in ResumeData::names(&self.ports.named().temporary_place(&target), tag) {
                let path = self.ports.named().local_path(&target);
                self.local().remove_beside(&path, basename(&name));
            }
        }
    }
}
