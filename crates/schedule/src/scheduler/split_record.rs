//! Makes the data of cut files durable so that the journal can list them, and resumes such files
//! from earlier runs.

use std::time::{Duration, Instant};

use super::file::{SplitFile, SplitStage};
use super::lanes::LaneState;
use super::spans::ByteRanges;
use super::{Assigned, Scheduler, SchedulerEvent};
use crate::{DiskRequest, Fault, FileState, Job, JobId, JobKind, Kept, LaneEvent, RemotePath};

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
/// Size in bytes from which a file is synced before its rename: sending it again after a crash
/// would exceed the allowed amount.
const SYNC_BEFORE_NAME: u64 = 64 << 20;
const RESTARTED: &str =
    "the part that an earlier run copied is missing or changed: starting this file over";
pub(super) const NOT_CONTINUED: &str = "the server does not continue a file that an earlier run has \
     begun: it is sent from the start";
/// Maximum number of ranges in one report.
const MOST: usize = crate::journal::MOST_RANGES;

/// Journal state of a cut file.
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
    pub(super) adopted: bool,
}

impl SplitFileRecord {
    pub(super) fn wrote(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.written.insert(offset, end);
        self.untold.insert(offset, end);
        self.fresh += len;
    }
}

impl SplitFile {
    pub(super) fn is_kept(&self) -> bool {
        self.options_ref().is_some_and(|o| o.keep.is_some())
    }

    /// Returns true if the temporary stays for the next run: if the run is ending, or if a target
    /// that holds much of the file takes no more, as with a full disk.
    pub(super) fn stays(&self, leaving: bool) -> bool {
        let at_target = |fault: &Fault| fault.remote == self.is_put();
        let full = || {
            self.fault.as_ref().is_some_and(at_target)
                && self.keeping.written.len_before(self.size()) >= SYNC_BEFORE_NAME
        };
        self.is_kept() && (leaving || full())
    }

    /// Returns true if the file must be durable before its rename.
    pub(super) fn sync_before_name(&self) -> bool {
        let can = !self.is_put() || self.keeping.durable;
        self.is_kept() && can && self.size() >= SYNC_BEFORE_NAME
    }

    /// Returns true if a part's failure may be the server's refusal to continue the temporary of an
    /// earlier run, so that the upload is worth another try from the start.
    pub(super) fn starts_anew_after(&self, fault: &Fault) -> bool {
        let resumes = self.is_put() && self.one_handle && self.keeping.adopted;
        resumes && fault.remote && self.stage == SplitStage::Moving
    }

    /// Takes over the ranges of an earlier run.
    fn take_over(&mut self) {
        let left = self
            .options_ref()
            .and_then(|o| o.keep.as_ref()?.left.clone());
        let Some(left) = left else { return };
        self.keeping.adopted = true;
        let size = self.size();
        for (from, to) in left.ranges {
            let to = to.min(size);
            if from < to {
                self.safe.insert(from, to);
                self.unclaimed.remove(from, to);
                self.keeping.written.insert(from, to);
            }
        }
    }

    /// Starts the file over under another temporary name.
    pub(super) fn another_name(&mut self) {
        if let JobKind::Put { options, .. } | JobKind::Get { options, .. } = &mut self.job.kind
            && let Some(keep) = &mut options.keep
        {
            keep.left = None;
            keep.again = keep.again.wrapping_add(1);
        }
    }
}

impl Scheduler {
    /// Returns true if a large journaled file is in progress.
    pub fn keeps(&self) -> bool {
        self.files.values().any(SplitFile::is_kept)
    }

    /// Checks the temporary of an earlier run once the source of an upload is open; false if there
    /// is none.
    pub(super) fn ask_to_adopt(&mut self, id: JobId) -> bool {
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
        let own = self.own_id();
        self.urgent.push_back((own, kind, Assigned::Adopt(id)));
        true
    }

    pub(super) fn on_adopt(&mut self, id: JobId, event: LaneEvent) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Temp(_, temp) if file.stage == SplitStage::Opening => {
                file.temp = Some(temp);
                file.headed = true;
                file.take_over();
                self.tell(LaneEvent::State(id, FileState::Created));
            }
            LaneEvent::Done(_) | LaneEvent::Failed(..) => {
                if file.temp.is_none() {
                    self.leave_aside(id);
                }
                self.begin_moving(id);
                self.tell_news(id);
            }
            _ => {}
        }
    }

    /// Removes an upload's temporary of an earlier run; another one is created.
    pub(super) fn leave_aside(&mut self, id: JobId) {
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
            self.clear(id, old);
            self.tell_restarted(id);
        }
    }

    /// Reports that the temporary of an earlier run cannot be resumed.
    pub(super) fn tell_restarted(&mut self, id: JobId) {
        if self.cancelled.is_some() {
            return;
        }
        self.events.push_back(SchedulerEvent::Restarted(id));
        self.tell(LaneEvent::Warning(id, RESTARTED.to_owned()));
    }

    /// Resumes a download whose local temporary of an earlier run is open.
    pub(super) fn on_adopted(&mut self, id: JobId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.take_over();
            self.tell(LaneEvent::State(id, FileState::Created));
            self.begin_moving(id);
            self.tell_news(id);
        }
    }

    pub(super) fn on_written(&mut self, id: JobId, offset: u64, len: u64) {
        if let Some(file) = self.files.get_mut(&id)
            && file.is_kept()
        {
            file.keeping.wrote(offset, len);
            self.fresh += len;
            self.untold += len;
            let soon = self.now.saturating_duration_since(self.told_at) < TELL_PAUSE;
            if self.untold >= if soon { 4 * TELL_EACH } else { TELL_EACH } {
                self.tell_written();
            }
            if self.fresh >= SYNC_EACH {
                self.sync();
            }
        }
    }

    /// Reports ranges that were answered and are not known to be durable.
    pub(super) fn tell_written(&mut self) {
        self.untold = 0;
        self.told_at = self.now;
        let mut told = Vec::new();
        for (id, file) in &mut self.files {
            let spans = std::mem::take(&mut file.keeping.untold);
            let ranges: Vec<_> = spans.iter().collect();
            let mtime = file.keeping.mtime;
            told.extend(ranges.chunks(MOST).map(|ranges| {
                let kept = Kept {
                    durable: false,
                    mtime,
                    ranges: ranges.to_vec(),
                };
                LaneEvent::Kept(*id, kept)
            }));
        }
        for event in told {
            self.tell(event);
        }
    }

    /// Returns the time of the next sync.
    pub(super) fn next_sync(&self) -> Option<Instant> {
        (self.fresh > 0).then_some(self.synced_at + SYNC_AFTER)
    }

    pub(super) fn sync_if_due(&mut self) {
        if self.next_sync().is_some_and(|at| at <= self.now) {
            self.sync();
        }
    }

    /// Starts a sync of every file with data that are not durable.
    fn sync(&mut self) {
        self.synced_at = self.now;
        self.fresh = 0;
        let mut begun = Vec::new();
        let mut own = self.own;
        for (id, file) in &mut self.files {
            if file.stage != SplitStage::Moving || !file.is_kept() || file.keeping.fresh == 0 {
                continue;
            }
            // A sync that is still running is not repeated.
            if file.keeping.syncing.is_some() {
                self.fresh += file.keeping.fresh;
                continue;
            }
            let temp = file.temporary();
            if file.is_put() && (temp.is_none() || file.one_handle) {
                continue;
            }
            own += 1;
            let sync = JobId(super::OWN + own);
            file.keeping.fresh = 0;
            file.keeping.syncing = Some((sync, file.keeping.written.clone()));
            begun.push((*id, sync, temp));
        }
        self.own = own;
        for (id, sync, temp) in begun {
            match temp {
                Some(temp) => self.syncs.push_back((sync, JobKind::SyncTemp { temp }, id)),
                None => self.disk.push_back(DiskRequest::SyncTarget { job: id }),
            }
        }
        // Keeps bytes of files that are still syncing from starting the next sync at once.
        self.fresh = self.fresh.min(SYNC_EACH / 2);
        self.dirty = true;
    }

    /// Returns true if a lane beside the data lanes would have something to do: a server that syncs
    /// answers nothing else on that channel.
    pub fn wants_side_lane(&self) -> bool {
        !self.syncs.is_empty() && !self.has_side_lane()
    }

    fn has_side_lane(&self) -> bool {
        self.lanes.by_id.values().any(|l| l.is_open() && l.listing)
    }

    pub(super) fn give_syncs(&mut self) {
        while let Some((_, _, file)) = self.syncs.front() {
            if !self.files.contains_key(file) {
                self.syncs.pop_front();
                continue;
            }
            let side = |l: &LaneState| l.is_open() && l.listing;
            let any = |l: &LaneState| l.is_open();
            // An owner that cannot open another lane has tried before.
            let waits = self.wants_side_lane() && !self.no_side_lane;
            let lanes = &self.lanes;
            let lane = match lanes.best(self.now, side) {
                None if waits => None,
                None => lanes.best(self.now, any),
                lane => lane,
            };
            let Some(lane) = lane else { return };
            if let Some((id, kind, file)) = self.syncs.pop_front() {
                self.assign(lane, Job { id, kind }, Assigned::Sync(file), 0);
            }
        }
    }

    /// Records that no lane beside the data lanes is available.
    pub fn set_no_side_lane(&mut self, none: bool) {
        self.dirty |= none != self.no_side_lane;
        self.no_side_lane = none;
    }

    pub(super) fn on_sync(&mut self, id: JobId, event: LaneEvent) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::State(_, FileState::Synced) => file.keeping.durable = true,
            LaneEvent::Attributes(_, seen) => {
                let seconds = seen.times.map_or(0, |(_, m)| u64::from(m));
                file.keeping.mtime = seconds * 1_000_000_000;
            }
            LaneEvent::Done(sync) => self.on_synced(id, sync),
            // The written ranges stay not durable; the next sync may succeed.
            LaneEvent::Failed(sync, _) | LaneEvent::Abandoned(sync) => self.sync_lost(id, sync),
            _ => {}
        }
    }

    pub(super) fn sync_lost(&mut self, id: JobId, sync: JobId) {
        if let Some(file) = self.files.get_mut(&id)
            && file
                .keeping
                .syncing
                .as_ref()
                .is_some_and(|(job, _)| *job == sync)
        {
            file.keeping.syncing = None;
            file.keeping.fresh = file.keeping.fresh.max(1);
            self.fresh = self.fresh.max(1);
        }
    }

    /// Handles the disk's reply to a sync of a download's target.
    pub(super) fn on_disk_synced(&mut self, id: JobId, mtime: u64) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.keeping.durable = true;
        file.keeping.mtime = mtime;
        if let Some((sync, _)) = file.keeping.syncing {
            self.on_synced(id, sync);
        }
    }

    fn on_synced(&mut self, id: JobId, sync: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some((_, spans)) = file.keeping.syncing.take_if(|(job, _)| *job == sync) else {
            return;
        };
        if file.stage != SplitStage::Moving {
            return;
        }
        let durable = file.keeping.durable;
        if durable {
            // Synced ranges are safe regardless of the lanes that wrote them.
            for (from, to) in spans.iter() {
                file.safe.insert(from, to);
            }
        }
        let kept = Kept {
            durable,
            mtime: file.keeping.mtime,
            ranges: spans.iter().take(MOST).collect(),
        };
        self.tell(LaneEvent::Kept(id, kept));
    }
}
