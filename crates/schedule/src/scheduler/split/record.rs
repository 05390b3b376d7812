//! Journal state of a cut file: the ranges that the receiving end has, and which of them are
//! durable.

use super::{SplitFile, SplitStage};
use crate::byte_ranges::{ByteRanges, OPEN};
use crate::{FileCheckpoint, JobFailure, JobId, JobKind, RemotePath, SharedTemp};

/// Size in bytes from which a file is synced before its rename: sending it again after a crash
/// would exceed the allowed amount.
const SYNC_BEFORE_NAME: u64 = 64 << 20;
/// Maximum number of ranges in one report.
const MOST: usize = crate::journal::MOST_RANGES;

/// Progress of a cut file as its journal entry reports it: ranges that the receiving end has
/// confirmed, and the sync in progress that makes them durable.
#[derive(Debug, Default)]
pub(super) struct SplitFileRecord {
    /// Ranges that the receiving end has answered OK.
    written: ByteRanges,
    /// Bytes of `written` since the last sync began.
    fresh: u64,
    /// Ranges of `written` that were not reported.
    untold: ByteRanges,
    /// Sync in progress: its job, and the ranges written when it began.
    syncing: Option<(JobId, ByteRanges)>,
    /// The receiving end supports syncs and has done one.
    durable: bool,
    /// Modification time of the temporary at that sync.
    mtime: u64,
    /// The file resumes from an earlier run.
    adopted: bool,
}

impl SplitFileRecord {
    pub(super) fn wrote(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.written.insert(offset, end);
        self.untold.insert(offset, end);
        self.fresh += len;
    }

    /// Forgets all ranges, as the temporary that had them is gone.
    pub(super) fn forget_written(&mut self) {
        self.written = ByteRanges::default();
        self.untold = ByteRanges::default();
        self.fresh = 0;
    }

    /// Returns true if the file resumes from an earlier run.
    pub(super) fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Takes the ranges that were not reported, with the modification time of the temporary.
    pub(super) fn take_untold(&mut self) -> (ByteRanges, u64) {
        (std::mem::take(&mut self.untold), self.mtime)
    }

    /// Returns the bytes since the last sync began.
    pub(super) fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Returns the sync in progress.
    pub(super) fn syncing(&self) -> Option<JobId> {
        self.syncing.as_ref().map(|(job, _)| *job)
    }

    /// Starts a sync.
    pub(super) fn begin_sync(&mut self, sync: JobId) {
        self.fresh = 0;
        self.syncing = Some((sync, self.written.clone()));
    }

    /// Records that a sync was lost or has failed; false if it is not the one in progress.
    pub(super) fn sync_lost(&mut self, sync: JobId) -> bool {
        let lost = self.syncing.take_if(|(job, _)| *job == sync).is_some();
        if lost {
            self.fresh = self.fresh.max(1);
        }
        lost
    }

    /// Records that the receiving end can sync.
    pub(super) fn is_durable(&mut self) {
        self.durable = true;
    }

    /// Sets the modification time of the temporary.
    pub(super) fn set_mtime(&mut self, mtime: u64) {
        self.mtime = mtime;
    }

    /// Ends a sync: returns the ranges written when it began, the proof of durability, and the
    /// modification time of the temporary. `None` if it is not the one in progress.
    pub(super) fn synced(&mut self, sync: JobId) -> Option<(ByteRanges, bool, u64)> {
        let (_, spans) = self.syncing.take_if(|(job, _)| *job == sync)?;
        Some((spans, self.durable, self.mtime))
    }

    /// Takes over a range of an earlier run.
    fn adopt(&mut self, from: u64, to: u64) {
        self.written.insert(from, to);
    }
}

impl SplitFile {
    pub(in super::super) fn is_kept(&self) -> bool {
        self.job
            .kind
            .put_options()
            .is_some_and(|o| o.keep.is_some())
    }

    /// Returns true if the temporary stays for the next run: if the run is ending, or if the target
    /// holds much of the file but accepts no further data, as with a full disk.
    pub(super) fn stays(&self, leaving: bool) -> bool {
        if self.shared().is_some() {
            return true;
        }
        let at_target = |fault: &JobFailure| fault.remote == self.is_put();
        let full = || {
            self.fault.as_ref().is_some_and(at_target)
                && self.keeping.written.len_before(self.size()) >= SYNC_BEFORE_NAME
        };
        self.is_kept() && (leaving || self.is_continued() || full())
    }

    /// Returns true if another job continues the temporary of an upload from another host, or may do
    /// so.
    fn is_continued(&self) -> bool {
        let leaves = self
            .fault
            .as_ref()
            .is_some_and(JobFailure::leaves_temporary);
        self.access.relayed && self.is_put() && leaves
    }

    /// Returns true if the file cannot be copied from its start by its job alone, since the job at
    /// the other host has begun behind the bytes of an earlier job.
    pub(super) fn starts_over_at_both(&self) -> bool {
        self.access.relayed && (!self.is_put() || self.keeping.is_adopted())
    }

    /// Returns true if the upload has taken data of another host, which cannot be read twice.
    pub(super) fn has_taken_relayed(&self) -> bool {
        self.access.relayed && self.is_put() && self.told > 0
    }

    /// Returns true if the file must be durable before its rename.
    pub(in super::super) fn sync_before_name(&self) -> bool {
        let can = !self.is_put() || self.keeping.durable;
        self.is_kept() && can && self.size() >= SYNC_BEFORE_NAME
    }

    /// Returns true if a part's failure may be the server's refusal to continue the temporary of an
    /// earlier run, so that the upload is worth another try from the start.
    pub(super) fn starts_anew_after(&self, fault: &JobFailure) -> bool {
        let resumes = self.shared().is_none()
            && self.is_put()
            && self.access.one_handle
            && self.keeping.adopted;
        resumes && fault.remote && self.stage == SplitStage::Moving
    }

    /// Takes over the ranges of an earlier run.
    pub(super) fn take_over(&mut self) {
        let left = self
            .job
            .kind
            .put_options()
            .and_then(|o| o.keep.as_ref()?.left.clone());
        let Some(left) = left else { return };
        self.keeping.adopted = true;
        let size = self.size();
        for (from, to) in left.ranges {
            let to = to.min(size);
            if from < to {
                self.safe.insert(from, to);
                self.unclaimed.remove(from, to);
                self.keeping.adopt(from, to);
            }
        }
        if let Some(shared) = self.shared() {
            // No part of this process may find the end of the file.
            self.end.at = Some(size);
            self.unclaimed.remove(size, OPEN);
            self.told = size.saturating_sub(shared.bytes());
        }
    }

    /// Returns the work on a temporary that other processes write as well.
    pub(super) fn shared(&self) -> Option<SharedTemp> {
        self.job.kind.put_options()?.shared()
    }

    /// Returns the job that checks the temporary of an earlier run for an upload; `None` if there is
    /// none.
    pub(super) fn adoption(&self) -> Option<JobKind> {
        let JobKind::Put {
            target, options, ..
        } = &self.job.kind
        else {
            return None;
        };
        let mut left = options.keep.as_ref()?.left.clone()?;
        if let (Some(size), Some((_, modified))) = (self.attributes.size, self.attributes.times) {
            left.source = (size, u64::from(modified) * 1_000_000_000);
        }
        Some(JobKind::AdoptTemp {
            target: target.clone(),
            temp: self.kept_temporary()?,
            left,
            size: self.attributes.size,
            existing: options.existing,
        })
    }

    /// Returns the path of the temporary that the journal names for an upload.
    pub(super) fn kept_temporary(&self) -> Option<RemotePath> {
        match &self.job.kind {
            JobKind::Put {
                target, options, ..
            } => {
                let keep = options.keep.as_ref()?;
                let place = options.temporary_place(&target.0);
                Some(RemotePath(keep.temporary(&place, 0)))
            }
            _ => None,
        }
    }

    /// Takes the ranges that were answered and not reported, as reports for the journal. An upload has
    /// none until the lane has announced its temporary: before, that lane removes it when the run
    /// ends.
    pub(super) fn take_written(&mut self) -> Vec<FileCheckpoint> {
        if self.lacks_temp() {
            return Vec::new();
        }
        let (spans, mtime) = self.keeping.take_untold();
        let ranges: Vec<_> = spans.iter().collect();
        let reports = ranges.chunks(MOST).map(|ranges| FileCheckpoint {
            durable: false,
            mtime,
            ranges: ranges.to_vec(),
        });
        reports.collect()
    }

    /// Returns the bytes that a sync would make durable, and that no sync includes yet.
    pub(super) fn bytes_to_sync(&self) -> u64 {
        match self.stage == SplitStage::Moving && self.is_kept() {
            true => self.keeping.fresh(),
            false => 0,
        }
    }

    /// Returns true if a sync is in progress.
    pub(super) fn is_syncing(&self) -> bool {
        self.keeping.syncing().is_some()
    }

    /// Returns true if a sync may begin and would make data durable.
    pub(super) fn may_sync(&self) -> bool {
        let open = !self.is_put() || self.temp.is_some() && !self.access.one_handle;
        open && self.bytes_to_sync() > 0
    }

    /// Begins a sync; returns the temporary of an upload.
    pub(super) fn begin_sync(&mut self, sync: JobId) -> Option<RemotePath> {
        self.keeping.begin_sync(sync);
        self.temporary()
    }

    /// Ends a sync; returns the report for the journal.
    pub(super) fn synced(&mut self, sync: JobId) -> Option<FileCheckpoint> {
        let (spans, durable, mtime) = self.keeping.synced(sync)?;
        if self.stage != SplitStage::Moving {
            return None;
        }
        if durable {
            // Synced ranges are safe regardless of the lanes that wrote them.
            for (from, to) in spans.iter() {
                self.safe.insert(from, to);
            }
        }
        Some(FileCheckpoint {
            durable,
            mtime,
            ranges: spans.iter().take(MOST).collect(),
        })
    }

    /// Starts the file over under another temporary name.
    pub(super) fn another_name(&mut self) {
        if self.shared().is_some() {
            return;
        }
        if let JobKind::Put { options, .. } | JobKind::Get { options, .. } = &mut self.job.kind
            && let Some(keep) = &mut options.keep
        {
            keep.left = None;
            keep.again = keep.again.wrapping_add(1);
        }
    }
}
