//! Makes the data of cut files durable so that the journal can list them, and resumes such files
//! from earlier runs.

use std::time::{Duration, Instant};

use super::super::assignments::AssignedRole;
use super::super::state::SchedulerState;
use super::{SplitFiles, SplitStage};
use crate::{
    DiskRequest, FileCheckpoint, FileState, JobId, JobKind, LaneEvent, RemotePath, SHARED_TEMP_LOST,
};

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
const RESTARTED: &str =
    "the part that an earlier run copied is missing or changed: starting this file over";
pub(super) const NOT_CONTINUED: &str = "the server does not continue a file that an earlier run has \
     begun: it is sent from the start";
/// Failure of a range whose source differs from that of the other ranges.
pub(super) const SHARED_CHANGED: &str =
    "the source changed while shards copied it: make a new plan in another folder";
/// Maximum number of ranges in one report.
const MOST: usize = crate::journal::MOST_RANGES;

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

impl UnjournaledBytes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            fresh: 0,
            untold: 0,
            synced_at: now,
            told_at: now,
        }
    }
}

impl SplitFiles {
    /// Returns true if a large journaled file is in progress.
    pub(in super::super) fn keeps(&self) -> bool {
        self.files.values().any(super::SplitFile::is_kept)
    }

    /// Checks the temporary of an earlier run once the source of an upload is open; false if there
    /// is none.
    pub(in super::super) fn ask_to_adopt(&self, board: &mut SchedulerState, id: JobId) -> bool {
        let Some(file) = self.files.get(&id) else {
            return false;
        };
        let JobKind::Put {
            target, options, ..
        } = &file.job.kind
        else {
            return false;
        };
        let Some(keep) = &options.keep else {
            return false;
        };
        let Some(left) = keep.left.clone() else {
            return false;
        };
        let kind = JobKind::AdoptTemp {
            target: target.clone(),
            temp: RemotePath(keep.temporary(&options.temporary_place(&target.0), 0)),
            left,
            replace_link: options.replace_link,
        };
        board.urgent(kind, AssignedRole::Adopt(id));
        true
    }

    pub(in super::super) fn on_adopt(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Temp(_, temp) if file.stage == SplitStage::Opening => {
                file.temp = Some(temp);
                file.head.begun = true;
                file.take_over();
                board.tell(LaneEvent::State(id, FileState::Created));
            }
            LaneEvent::Done(_) | LaneEvent::Failed(..) => {
                if file.temp.is_none() && file.shared().is_some() {
                    return self.shared_failed(board, id, SHARED_TEMP_LOST);
                }
                if file.temp.is_none() {
                    self.leave_aside(board, id);
                }
                self.begin_moving(board, id);
                self.tell_news(board, id);
            }
            _ => {}
        }
    }

    /// Removes an upload's temporary of an earlier run; another one is created.
    pub(in super::super) fn leave_aside(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if let JobKind::Put {
            target, options, ..
        } = &file.job.kind
            && let Some(keep) = &options.keep
        {
            let old = RemotePath(keep.temporary(&options.temporary_place(&target.0), 0));
            file.another_name();
            board.clear(id, old);
            self.tell_restarted(board, id);
        }
    }

    /// Reports that the temporary of an earlier run cannot be resumed.
    pub(in super::super) fn tell_restarted(&self, board: &mut SchedulerState, id: JobId) {
        if board.is_cancelled() {
            return;
        }
        board.restarted(id);
        board.tell(LaneEvent::Warning(id, RESTARTED.to_owned()));
    }

    /// Resumes a download whose local temporary of an earlier run is open.
    pub(in super::super) fn on_adopted(&mut self, board: &mut SchedulerState, id: JobId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.take_over();
            board.tell(LaneEvent::State(id, FileState::Created));
            self.begin_moving(board, id);
            self.tell_news(board, id);
        }
    }

    pub(in super::super) fn on_written(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        offset: u64,
        len: u64,
    ) {
        if let Some(file) = self.files.get_mut(&id)
            && file.is_kept()
        {
            file.keeping.wrote(offset, len);
            self.checkpoints.fresh += len;
            self.checkpoints.untold += len;
            let soon = board
                .now()
                .saturating_duration_since(self.checkpoints.told_at)
                < TELL_PAUSE;
            if self.checkpoints.untold >= if soon { 4 * TELL_EACH } else { TELL_EACH } {
                self.tell_written(board);
            }
            if self.checkpoints.fresh >= SYNC_EACH {
                self.sync(board);
            }
        }
    }

    /// Reports ranges that were answered and are not known to be durable.
    pub(in super::super) fn tell_written(&mut self, board: &mut SchedulerState) {
        self.checkpoints.untold = 0;
        self.checkpoints.told_at = board.now();
        let mut told = Vec::new();
        for (id, file) in &mut self.files {
            let (spans, mtime) = file.keeping.take_untold();
            let ranges: Vec<_> = spans.iter().collect();
            told.extend(ranges.chunks(MOST).map(|ranges| {
                let kept = FileCheckpoint {
                    durable: false,
                    mtime,
                    ranges: ranges.to_vec(),
                };
                LaneEvent::Kept(*id, kept)
            }));
        }
        for event in told {
            board.tell(event);
        }
    }

    /// Returns the time of the next sync.
    pub(in super::super) fn next_sync(&self) -> Option<Instant> {
        (self.checkpoints.fresh > 0).then_some(self.checkpoints.synced_at + SYNC_AFTER)
    }

    pub(in super::super) fn sync_if_due(&mut self, board: &mut SchedulerState) {
        if self.next_sync().is_some_and(|at| at <= board.now()) {
            self.sync(board);
        }
    }

    /// Starts a sync of every file with data that are not durable.
    fn sync(&mut self, board: &mut SchedulerState) {
        self.checkpoints.synced_at = board.now();
        self.checkpoints.fresh = 0;
        let mut begun = Vec::new();
        for (id, file) in &mut self.files {
            if file.stage != SplitStage::Moving || !file.is_kept() || file.keeping.fresh() == 0 {
                continue;
            }
            // A sync that is still running is not repeated.
            if file.keeping.syncing().is_some() {
                self.checkpoints.fresh += file.keeping.fresh();
                continue;
            }
            let temp = file.temporary();
            if file.is_put() && (temp.is_none() || file.access.one_handle) {
                continue;
            }
            let sync = board.own_id();
            file.keeping.begin_sync(sync);
            begun.push((*id, sync, temp));
        }
        for (id, sync, temp) in begun {
            match temp {
                Some(temp) => {
                    let kind = JobKind::SyncTemp { temp };
                    board.queues_mut().push_sync(sync, kind, id);
                }
                None => board.ask_disk(DiskRequest::SyncTarget { job: id }),
            }
        }
        // Keeps bytes of files that are still syncing from starting the next sync at once.
        self.checkpoints.fresh = self.checkpoints.fresh.min(SYNC_EACH / 2);
        board.has_work();
    }

    pub(in super::super) fn on_sync(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::State(_, FileState::Synced) => file.keeping.is_durable(),
            LaneEvent::Attributes(_, seen) => {
                let seconds = seen.times.map_or(0, |(_, m)| u64::from(m));
                file.keeping.set_mtime(seconds * 1_000_000_000);
            }
            LaneEvent::Done(sync) => self.on_synced(board, id, sync),
            // The written ranges stay not durable; the next sync may succeed.
            LaneEvent::Failed(sync, _) | LaneEvent::Abandoned(sync) => self.sync_lost(id, sync),
            _ => {}
        }
    }

    pub(in super::super) fn sync_lost(&mut self, id: JobId, sync: JobId) {
        let file = self.files.get_mut(&id);
        if file.is_some_and(|file| file.keeping.sync_lost(sync)) {
            self.checkpoints.fresh = self.checkpoints.fresh.max(1);
        }
    }

    /// Handles the disk's reply to a sync of a download's target.
    pub(in super::super) fn on_disk_synced(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        mtime: u64,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.keeping.is_durable();
        file.keeping.set_mtime(mtime);
        if let Some(sync) = file.keeping.syncing() {
            self.on_synced(board, id, sync);
        }
    }

    fn on_synced(&mut self, board: &mut SchedulerState, id: JobId, sync: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some((spans, durable, mtime)) = file.keeping.synced(sync) else {
            return;
        };
        if file.stage != SplitStage::Moving {
            return;
        }
        if durable {
            // Synced ranges are safe regardless of the lanes that wrote them.
            for (from, to) in spans.iter() {
                file.safe.insert(from, to);
            }
        }
        let kept = FileCheckpoint {
            durable,
            mtime,
            ranges: spans.iter().take(MOST).collect(),
        };
        board.tell(LaneEvent::Kept(id, kept));
    }
}
