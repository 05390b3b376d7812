//! What is made durable of files that are cut, so that it can be written down; and what earlier
//! runs have left of them.

use std::time::{Duration, Instant};

use super::file::{SplitFile, Stage};
use super::lanes::LaneState;
use super::spans::ByteRanges;
use super::{Assigned, Scheduler, SchedulerEvent};
use crate::{DiskRequest, Fault, FileState, Job, JobId, JobKind, Kept, LaneEvent, RemotePath};

/// Bytes over all files that may be answered and not durable before they are synced. A machine
/// that stops costs this and what is answered while the sync takes.
const SYNC_EACH: u64 = 24 << 20;
/// So much more is told before it is durable: it counts while the receiving machine's kernel runs,
/// and a sync may take seconds in which hundreds of MiB are answered.
const TELL_EACH: u64 = 4 << 20;
/// Sooner after the last time than this it is four times as much: each wakes two threads here, 800 times a
/// second at 3 GB/s.
const TELL_PAUSE: Duration = Duration::from_millis(20);
/// How long bytes may be answered and not durable.
const SYNC_AFTER: Duration = Duration::from_secs(5);
/// A file of this size is durable before it gets its name: to send it again after a crash would
/// be more than may be sent again.
const SYNC_BEFORE_NAME: u64 = 64 << 20;
const RESTARTED: &str = "what an earlier run had copied of it is gone or has changed: it is \
                         begun anew";
/// Ranges that are told at once.
const MOST: usize = crate::journal::MOST_RANGES;

/// How a file that is cut is kept.
#[derive(Debug, Default)]
pub(super) struct SplitFileRecord {
    /// Answered OK by the receiving end.
    written: ByteRanges,
    /// Of them, bytes since the last sync began.
    fresh: u64,
    /// Of them, what nobody was told.
    untold: ByteRanges,
    /// Being synced: by which job, and what of it was written when that began.
    syncing: Option<(JobId, ByteRanges)>,
    /// The receiving end can sync, and has.
    durable: bool,
    /// What the temporary had then.
    mtime: u64,
    /// An earlier run began it.
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

    /// Whether its temporary is left for the next run: always where the run is ending, and where
    /// the target takes no more of a file of which much is there, as a full disk does.
    pub(super) fn stays(&self, leaving: bool) -> bool {
        let at_target = |fault: &Fault| fault.remote == self.is_put();
        let full = || {
            self.fault.as_ref().is_some_and(at_target)
                && self.keeping.written.len_before(self.size()) >= SYNC_BEFORE_NAME
        };
        self.is_kept() && (leaving || full())
    }

    /// Whether it has to be durable before it gets its name.
    pub(super) fn sync_before_name(&self) -> bool {
        let can = !self.is_put() || self.keeping.durable;
        self.is_kept() && can && self.size() >= SYNC_BEFORE_NAME
    }

    /// Takes over what an earlier run has left.
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

    /// Begins anew under another name.
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
    /// Whether a large file is under way whose copy is written down.
    pub fn keeps(&self) -> bool {
        self.files.values().any(SplitFile::is_kept)
    }

    /// The source of an upload is open: looks at what an earlier run has left; false if that has
    /// left nothing.
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
            temp: RemotePath(keep.temporary(&target.0, 0)),
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
            LaneEvent::Temp(_, temp) if file.stage == Stage::Opening => {
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

    /// The temporary of an upload that an earlier run has left is removed, and another one made.
    pub(super) fn leave_aside(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if let JobKind::Put {
            target, options, ..
        } = &file.job.kind
            && let Some(keep) = &options.keep
        {
            let old = RemotePath(keep.temporary(&target.0, 0));
            file.another_name();
            self.clear(id, old);
            self.tell_restarted(id);
        }
    }

    /// What an earlier run has left cannot be gone on with.
    pub(super) fn tell_restarted(&mut self, id: JobId) {
        if self.cancelled.is_some() {
            return;
        }
        self.events.push_back(SchedulerEvent::Restarted(id));
        self.tell(LaneEvent::Warning(id, RESTARTED.to_owned()));
    }

    /// The local temporary of an earlier run is open.
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

    /// Tells what is there and not known to be durable.
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

    /// When what was written has to be synced.
    pub(super) fn next_sync(&self) -> Option<Instant> {
        (self.fresh > 0).then_some(self.synced_at + SYNC_AFTER)
    }

    pub(super) fn sync_if_due(&mut self) {
        if self.next_sync().is_some_and(|at| at <= self.now) {
            self.sync();
        }
    }

    /// Has everything synced that is not.
    fn sync(&mut self) {
        self.synced_at = self.now;
        self.fresh = 0;
        let mut begun = Vec::new();
        let mut own = self.own;
        for (id, file) in &mut self.files {
            if file.stage != Stage::Moving || !file.is_kept() || file.keeping.fresh == 0 {
                continue;
            }
            // One that takes longer than the next one's turn is waited for.
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
        // What comes back while it waits shall not ask again at once.
        self.fresh = self.fresh.min(SYNC_EACH / 2);
        self.dirty = true;
    }

    /// Whether a lane beside those that move data would have something to do: a server that syncs
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
            // Who could have opened another lane has tried before.
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

    /// No lane beside those that move data is to be had.
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
            // What was written is as before; the next sync may do better.
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

    /// The disk has synced a target.
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
        if file.stage != Stage::Moving {
            return;
        }
        let durable = file.keeping.durable;
        if durable {
            // Whatever becomes of the lanes that wrote it.
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
