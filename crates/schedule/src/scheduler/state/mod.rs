//! Jobs, the lanes to which they are assigned, and the events for the owner.

mod assign;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::asides::MovedAsideFiles;
use super::assignments::{AssignedRole, Assignments, EventReceiver};
use super::dirs::{self, PendingDirs};
use super::expected::ExpectedLanes;
use super::gains::ConfirmedBytes;
use super::lanes::{ChannelCloseState, LaneState, Lanes};
use super::orphaned_temps::OrphanedTemps;
use super::queues::{JobQueueKind, JobQueues, QueuedJob};
use super::settings::PendingAttributeChanges;
use super::{LaneId, LaneOrder, SchedulerEvent, SchedulerOptions, SchedulerStats};
use crate::{DiskRequest, JobFailure, JobId, JobKind, LaneEvent, RemotePath};

/// Queues, lanes and assignments of a scheduler, with its orders, disk requests and events.
#[derive(Debug)]
pub(super) struct SchedulerState {
    options: SchedulerOptions,
    expected: ExpectedLanes,
    now: Instant,
    lanes: Lanes,
    queues: JobQueues,
    assigned: Assignments,
    dirs: PendingDirs,
    settings: PendingAttributeChanges,
    orphaned: OrphanedTemps,
    asides: MovedAsideFiles,
    gains: ConfirmedBytes,
    orders: VecDeque<LaneOrder>,
    events: VecDeque<SchedulerEvent>,
    disk: VecDeque<DiskRequest>,
    /// Number of the scheduler's own jobs so far.
    own: u64,
    /// True if there may be something to assign.
    dirty: bool,
    stats: SchedulerStats,
    /// Reason of the cancellation, after which no job is started.
    cancelled: Option<JobFailure>,
    /// Keep resumable temporaries.
    leaving: bool,
    no_side_lane: bool,
}

/// First job id that is reserved for the scheduler.
const OWN: u64 = 1 << 63;
/// Delay of the rename for a server that does not report the end of a channel: its processes have
/// long received the data that arrived by then, unless the path delayed them.
const LONGEST: Duration = Duration::from_secs(4);
/// Upper bound of the delay if data in flight take longer than [`LONGEST`] at their recent rate.
const DRAINS: Duration = Duration::from_secs(40);
/// Silence after which a lane no longer counts as moving.
const OF_LATE: Duration = Duration::from_secs(1);
/// Delay, in addition to a few round trips, if the connection was cut locally: the server has only
/// the data that had arrived.
const CUT: Duration = Duration::from_millis(250);
const CUT_TRIPS: u32 = 3;

impl SchedulerState {
    pub(super) fn new(options: SchedulerOptions, now: Instant) -> Self {
        Self {
            options,
            expected: ExpectedLanes::none(options),
            now,
            lanes: Lanes::default(),
            queues: JobQueues::default(),
            assigned: Assignments::default(),
            dirs: PendingDirs::default(),
            settings: PendingAttributeChanges::default(),
            orphaned: OrphanedTemps::default(),
            asides: MovedAsideFiles::default(),
            gains: ConfirmedBytes::default(),
            orders: VecDeque::new(),
            events: VecDeque::new(),
            disk: VecDeque::new(),
            own: 0,
            dirty: false,
            stats: SchedulerStats::default(),
            cancelled: None,
            leaving: false,
            no_side_lane: false,
        }
    }

    /// Sets the time.
    pub(super) fn at(&mut self, now: Instant) {
        self.now = now;
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn options(&self) -> &SchedulerOptions {
        &self.options
    }

    /// Cuts the next file, of `size` bytes, for `lanes` lanes.
    pub(super) fn expect_lanes(&mut self, lanes: u32, size: u64) {
        self.expected.expect(lanes, size, &mut self.options);
    }

    /// Sets `SchedulerOptions::cuts`.
    pub(super) fn set_cuts(&mut self, cuts: bool) {
        self.options.cuts = cuts;
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(super) fn lanes_mut(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    pub(super) fn queues(&self) -> &JobQueues {
        &self.queues
    }

    pub(super) fn queues_mut(&mut self) -> &mut JobQueues {
        &mut self.queues
    }

    pub(super) fn assigned(&self) -> &Assignments {
        &self.assigned
    }

    pub(super) fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            gained: self.gains.total(),
            ..self.stats
        }
    }

    /// Counts a file that is cut.
    pub(super) fn count_cut(&mut self) {
        self.stats.cut += 1;
    }

    /// Counts a part that was assigned to a second lane.
    pub(super) fn count_overtaken(&mut self) {
        self.stats.overtaken += 1;
    }

    /// Keeps resumable temporaries from now on.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Returns true if resumable temporaries are kept.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Starts no further job.
    pub(super) fn cancel(&mut self, fault: JobFailure) {
        self.cancelled = Some(fault);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    /// Records that there may be something to assign.
    pub(super) fn has_work(&mut self) {
        self.dirty = true;
    }

    /// Records if a lane beside the data lanes cannot be had.
    pub(super) fn set_no_side_lane(&mut self, none: bool) {
        self.dirty |= none != self.no_side_lane;
        self.no_side_lane = none;
    }

    /// Returns true if a lane beside the data lanes would have something to do: a server that syncs
    /// answers nothing else on that channel.
    pub(super) fn wants_side_lane(&self) -> bool {
        let side = |l: &LaneState| l.is_open() && l.is_listing();
        self.queues.has_syncs() && !self.lanes.any(side)
    }

    /// Returns an id for a job of the scheduler.
    pub(super) fn own_id(&mut self) -> JobId {
        self.own += 1;
        JobId(OWN + self.own)
    }

    /// Adds a job of the scheduler that comes before all others.
    pub(super) fn urgent(&mut self, kind: JobKind, role: AssignedRole) {
        let id = self.own_id();
        self.queues.push_urgent(id, kind, role);
    }

    /// Gives an order to the owner of the lanes.
    pub(super) fn order(&mut self, order: LaneOrder) {
        self.orders.push_back(order);
    }

    /// Returns the next order; `None` may mean that there is something to assign.
    pub(super) fn poll_order(&mut self) -> Option<LaneOrder> {
        self.orders.pop_front()
    }

    /// Returns true, once, if there may be something to assign and no order waits.
    pub(super) fn takes_work(&mut self) -> bool {
        self.orders.is_empty() && std::mem::take(&mut self.dirty)
    }

    /// Queues a request for the disk side.
    pub(super) fn ask_disk(&mut self, request: DiskRequest) {
        self.disk.push_back(request);
    }

    /// Returns the next disk request.
    pub(super) fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.disk.pop_front()
    }

    /// Returns the next event.
    pub(super) fn poll_event(&mut self) -> Option<SchedulerEvent> {
        self.events.pop_front()
    }

    /// Returns true if anything waits to be polled.
    pub(super) fn has_more(&self) -> bool {
        self.dirty || !self.orders.is_empty() || !self.disk.is_empty() || !self.events.is_empty()
    }

    /// Returns true if no job is left.
    pub(super) fn is_idle(&self) -> bool {
        self.stats.jobs == 0 && !self.queues.has_urgent() && self.assigned.is_empty()
    }

    /// Reports that a job starts over.
    pub(super) fn restarted(&mut self, job: JobId) {
        self.gains.restarted(job);
        self.events.push_back(SchedulerEvent::Restarted(job));
    }

    /// Reports an event of a pushed job. The last one is withheld until the temporaries of lost
    /// lanes are gone.
    pub(super) fn tell(&mut self, event: LaneEvent) {
        if event.is_last() {
            let lost = self.asides.take_lost(event.job());
            if let LaneEvent::Done(id) = event {
                for path in lost {
                    self.clear(id, path);
                }
            }
        }
        let Some(event) = self.orphaned.hold(event) else {
            return;
        };
        if event.is_last() {
            self.stats.jobs = self.stats.jobs.saturating_sub(1);
            self.stats.done += u64::from(matches!(event, LaneEvent::Done(_)));
        }
        self.gains.take(&event);
        self.events.push_back(SchedulerEvent::Lane(event));
    }

    /// Adds a job to its queue; it was on a lane before if `again`.
    pub(super) fn queue(&mut self, queued: QueuedJob, again: bool) {
        self.stats.jobs += usize::from(!again);
        if let Some(fault) = self.cancelled.clone() {
            return self.tell(LaneEvent::Failed(queued.id(), fault));
        }
        let split = self.is_split(&queued);
        if let JobKind::MakeDir { path, .. } = queued.kind() {
            self.dirs.wanted(&path.0, queued.id());
        }
        self.queues.push(queued, split, again);
    }

    fn is_split(&self, queued: &QueuedJob) -> bool {
        let options = queued.kind().put_options();
        let is_shared = options.is_some_and(|options| options.shared().is_some());
        if is_shared || queued.continues_relayed() {
            return !queued.is_whole();
        }
        let (inplace, known) = match queued.kind() {
            JobKind::Put { options, .. } => (options.inplace, None),
            JobKind::Get { options, known, .. } => (options.inplace, Some(known)),
            _ => return false,
        };
        // A download is cut only by the size of a regular file.
        let size = match known {
            Some(known) => known
                .filter(|k| k.kind() == crate::EntryKind::File)
                .and_then(|k| k.size),
            None => queued.hint().size,
        };
        let large = size.is_some_and(|size| size >= self.options.split_from);
        let kept = !queued.hint().relayed || queued.keep().is_some();
        self.options.split && large && !inplace && !queued.is_whole() && kept
    }

    /// Records an event of a lane: its load, its activity, and the job that it concerns. Returns
    /// the owner of the event; `None` if the lane has lost the job.
    pub(super) fn heard(&mut self, lane: LaneId, event: &LaneEvent) -> Option<EventReceiver> {
        let id = event.job();
        let role = self.assigned.role_on(lane, id)?;
        if let (AssignedRole::Whole(queued), true) = (role, event.is_last()) {
            match queued.kind() {
                JobKind::MakeDir { path, .. } => self.dirs.end(&path.0, id),
                JobKind::SetAttributes { .. } => self.settings.end(id),
                _ => {}
            }
        }
        let owner = EventReceiver::of(role, id);
        if let Some(state) = self.lanes.get_mut(lane) {
            state.speaks();
            match event {
                LaneEvent::Progress(_, n) => {
                    state.moved(self.now, id, *n);
                    self.stats.moved += n;
                }
                _ if event.is_last() => state.ended(self.now, id),
                _ => state.hear(self.now),
            }
        }
        if let EventReceiver::Upload(id) | EventReceiver::Finish(id) = owner {
            if let LaneEvent::Path(_, path) = event {
                self.asides.told(id, path);
            }
            if event.is_last() {
                self.asides.over(id);
            }
        }
        Some(owner)
    }

    /// Ends the assignment of a job whose last event has come.
    pub(super) fn end(&mut self, job: JobId) -> Option<AssignedRole> {
        self.dirty = true;
        self.assigned.remove(job)
    }

    /// Forgets a lane; returns its state, with the orders for it dropped.
    pub(super) fn lose_lane(&mut self, lane: LaneId) -> Option<LaneState> {
        let state = self.lanes.remove(lane)?;
        self.orders.retain(|order| order.lane() != lane);
        Some(state)
    }

    /// Takes the role of a job that was lost with its lane.
    pub(super) fn lose_job(&mut self, job: JobId) -> Option<AssignedRole> {
        let role = self.assigned.remove(job)?;
        if let AssignedRole::Whole(queued) = &role {
            if let JobKind::MakeDir { path, .. } = queued.kind() {
                self.dirs.end(&path.0, job);
            }
            self.settings.end(job);
        }
        Some(role)
    }

    /// Drops every order.
    pub(super) fn drop_orders(&mut self) {
        self.orders.clear();
    }

    /// Removes all jobs that no lane has started, or that wait behind a lost lane, and returns
    /// their ids.
    pub(super) fn drain(&mut self) -> Vec<JobId> {
        let mut ids = Vec::new();
        for queued in self.queues.drain() {
            if let (JobKind::MakeDir { .. }, Some(path)) =
                (queued.kind(), dirs::target(queued.kind()))
            {
                self.dirs.end(path, queued.id());
            }
            ids.push(queued.id());
        }
        ids.extend(self.asides.drain());
        ids
    }

    /// Reports the failure of every job that no lane has started.
    pub(super) fn fail_waiting(&mut self, fault: &JobFailure) {
        for id in self.drain() {
            self.tell(LaneEvent::Failed(id, fault.clone()));
        }
    }

    /// Gives up the removal of temporaries, since no lane is left: reports the withheld events and
    /// returns the files that may be left.
    pub(super) fn give_up_removals(&mut self) -> BTreeMap<JobId, RemotePath> {
        let (mut left, held) = self.orphaned.give_up();
        for event in held {
            self.tell(event);
        }
        while let Some((_, _, role)) = self.queues.pop_urgent() {
            if let AssignedRole::Remove(of, path) = role {
                left.insert(of, path);
            }
        }
        left
    }

    /// Queues a job of a lost lane again: at once, or later (false) if the lane may have moved its
    /// old file aside.
    pub(super) fn queue_lost(
        &mut self,
        lane: LaneId,
        state: &LaneState,
        queued: QueuedJob,
    ) -> bool {
        let moved = self.asides.lose(queued.id());
        match moved {
            true => {
                let until = self.late_until(state);
                self.asides.queue_later(lane, until, queued);
            }
            false => self.queue(queued, true),
        }
        !moved
    }

    /// Returns true if the temporary of a file that a lost lane was to rename may be looked for at
    /// once; otherwise it is later, since the lane may have moved the old file aside.
    pub(super) fn may_check(&mut self, lane: LaneId, state: &LaneState, file: JobId) -> bool {
        let moved = self.asides.lose(file);
        if moved {
            let until = self.late_until(state);
            self.asides.check_later(lane, until, file);
        }
        !moved
    }

    /// Resumes jobs that waited until lost lanes could no longer affect them; returns the files to
    /// check.
    pub(super) fn resume_behind_lost(&mut self) -> Vec<JobId> {
        let (queued, files) = self.asides.due(self.now);
        for queued in queued {
            self.queue(queued, true);
        }
        files
    }

    /// Records that a lost lane may have created `path` for the job `of`.
    pub(super) fn strayed(&mut self, lane: LaneId, state: &LaneState, of: JobId, path: RemotePath) {
        if self.asides.keeps(of, &path) {
            return;
        }
        let until = self.late_until(state);
        self.orphaned.add(lane, until, of, path);
        self.remove_strays();
    }

    /// Removes temporaries that no lost lane can create any more.
    pub(super) fn remove_strays(&mut self) {
        for (of, path) in self.orphaned.due(self.now) {
            self.remove(of, path);
        }
    }

    /// Removes a file of the job before the job is reported as done.
    pub(super) fn clear(&mut self, of: JobId, path: RemotePath) {
        self.orphaned.count(of);
        self.remove(of, path);
    }

    /// Removes a file that counts among the temporaries of `of`.
    pub(super) fn remove(&mut self, of: JobId, path: RemotePath) {
        let kind = JobKind::Remove { path: path.clone() };
        self.urgent(kind, AssignedRole::Remove(of, path));
    }

    /// Records that one temporary of the job is gone or never existed.
    pub(super) fn removed(&mut self, of: JobId) {
        if let Some(event) = self.orphaned.removed(of) {
            self.tell(event);
        }
    }

    /// Records the end of a lane's channel, or that its connection was cut.
    pub(super) fn lane_ends(&mut self, lane: LaneId, end: ChannelCloseState) -> Instant {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.ends(end);
        }
        let until = match end {
            ChannelCloseState::Confirmed => self.now,
            _ => self.now + self.late_when_cut(),
        };
        self.orphaned.cut(lane, until);
        self.asides.cut(lane, until);
        until
    }

    /// Returns the time at which work that waits for lost lanes resumes.
    pub(super) fn next_behind_lost(&self) -> Option<Instant> {
        self.orphaned
            .until()
            .into_iter()
            .chain(self.asides.until())
            .min()
    }

    /// Returns the waiting jobs and those on lanes, `None` for the scheduler's own.
    pub(super) fn all_jobs(&self) -> impl Iterator<Item = Option<&QueuedJob>> {
        let queued = self
            .queues
            .files()
            .chain(self.queues.of(JobQueueKind::Makes));
        self.assigned.wholes().chain(queued.map(Some))
    }

    /// Returns the time until which requests of a lost lane may still be executed.
    pub(super) fn late_until(&self, lane: &LaneState) -> Instant {
        let moves = self.now.saturating_duration_since(lane.heard()) < OF_LATE;
        let wait = match (lane.end(), lane.drains(self.now)) {
            (ChannelCloseState::Confirmed, _) => Duration::ZERO,
            (ChannelCloseState::Cut, _) => self.late_when_cut(),
            (ChannelCloseState::Unknown, Some(drains)) if moves => drains.clamp(LONGEST, DRAINS),
            (ChannelCloseState::Unknown, _) => LONGEST,
        };
        self.now + wait
    }

    fn late_when_cut(&self) -> Duration {
        CUT + self.lanes.least_latency() * CUT_TRIPS
    }
}
