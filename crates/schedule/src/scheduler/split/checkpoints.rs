//! Decides when written ranges of cut files are reported for the journal, and when they are synced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::SplitFile;
use crate::{JobId, LaneEvent, RemotePath};

/// Number of answered but not durable bytes, over all files, that starts a sync. A crash of the
/// machine costs this amount and the bytes answered during the sync.
const SYNC_EACH: u64 = 24 << 20;
/// Number of answered bytes after which ranges are reported before they are durable: they count as
/// long as the receiving machine's kernel runs, and hundreds of MiB may be answered during a sync
/// of seconds.
const TELL_EACH: u64 = 4 << 20;
/// Time since the last report within which four times as many bytes are needed: each report wakes
/// two local threads, 800 times per second at 3 GB/s.
const TELL_PAUSE: Duration = Duration::from_millis(20);
/// Longest time that answered bytes may stay not durable.
const SYNC_AFTER: Duration = Duration::from_secs(5);

/// Bytes of journaled files that are not in the journal yet, over all files.
#[derive(Debug)]
pub(super) struct UnjournaledBytes {
    /// Bytes that were answered since the last sync.
    fresh: u64,
    /// Bytes that were answered but not reported.
    untold: u64,
    synced_at: Instant,
    /// Time of the last report of written ranges.
    told_at: Instant,
}

/// An fsync of a split file that begins: of an upload's temporary by a lane, or of a download's
/// target by the disk side.
#[derive(Debug)]
pub(super) enum SplitFileFsync {
    /// A lane syncs the temporary of an upload, as the job `sync`.
    Upload {
        file: JobId,
        sync: JobId,
        temp: RemotePath,
    },
    /// The disk side syncs the target of a download.
    Download { file: JobId },
}

impl UnjournaledBytes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            fresh: 0,
            untold: 0,
            synced_at: now,
            told_at: now,
        }
    }

    /// Counts answered bytes.
    pub(super) fn wrote(&mut self, len: u64) {
        self.fresh += len;
        self.untold += len;
    }

    /// Returns true if so many bytes were answered that the ranges are to be reported.
    pub(super) fn is_report_due(&self, now: Instant) -> bool {
        let soon = now.saturating_duration_since(self.told_at) < TELL_PAUSE;
        self.untold >= if soon { 4 * TELL_EACH } else { TELL_EACH }
    }

    /// Returns true if so many bytes are not durable that a sync is to begin.
    pub(super) fn is_sync_due(&self) -> bool {
        self.fresh >= SYNC_EACH
    }

    /// Returns the time of the next sync.
    pub(super) fn next_sync(&self) -> Option<Instant> {
        (self.fresh > 0).then_some(self.synced_at + SYNC_AFTER)
    }

    /// Records that a sync was lost or has failed, so that its bytes need another one.
    pub(super) fn sync_lost(&mut self) {
        self.fresh = self.fresh.max(1);
    }

    /// Takes the ranges of all files that were answered and are not known to be durable.
    pub(super) fn take_reports(
        &mut self,
        files: &mut BTreeMap<JobId, SplitFile>,
        now: Instant,
    ) -> Vec<LaneEvent> {
        self.untold = 0;
        self.told_at = now;
        let reports = files.iter_mut().flat_map(|(id, file)| {
            let written = file.take_written().into_iter();
            written.map(|written| LaneEvent::Kept(*id, written))
        });
        reports.collect()
    }

    /// Begins a sync of every file with data that are not durable; each gets a number of `ids`.
    pub(super) fn begin_syncs(
        &mut self,
        files: &mut BTreeMap<JobId, SplitFile>,
        now: Instant,
        mut ids: impl FnMut() -> JobId,
    ) -> Vec<SplitFileFsync> {
        self.synced_at = now;
        self.fresh = 0;
        let mut begun = Vec::new();
        for (id, split) in files {
            // A sync that is still running is not repeated.
            if split.is_syncing() {
                self.fresh += split.bytes_to_sync();
            } else if split.may_sync() {
                let sync = ids();
                let file = *id;
                begun.push(match split.begin_sync(sync) {
                    Some(temp) => SplitFileFsync::Upload { file, sync, temp },
                    None => SplitFileFsync::Download { file },
                });
            }
        }
        // Keeps bytes of files that are still syncing from starting the next sync at once.
        self.fresh = self.fresh.min(SYNC_EACH / 2);
        begun
    }
}
