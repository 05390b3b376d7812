//! Assigns the jobs of a session to its lanes.

mod asides;
mod assignments;
mod dirs;
mod events;
mod expected;
mod gains;
mod job_lane_losses;
mod lanes;
mod meter;
mod orphaned_temps;
mod queues;
mod report;
mod settings;
mod split;
mod state;
mod stragglers;

use std::time::Instant;

pub use self::report::{
    ConnectionId, JobHint, LaneId, LaneOrder, LaneReport, SchedulerEvent, SchedulerOptions,
    SchedulerStats,
};

use self::lanes::{ChannelCloseState, LaneState};
use self::queues::{JobQueueKind, QueuedJob};
use self::split::SplitFiles;
use self::state::SchedulerState;
use crate::{DiskReply, DiskRequest, Job, JobFailure, JobId, LaneEvent, RemotePath};

/// Assigns the jobs of a session to its lanes: many files, one large file cut by offset, or both.
///
/// Events of a job are those that a single lane would report, in that order. The owner pushes jobs
/// and passes in reports and events of lanes. After each call it drains [`Scheduler::poll_order`],
/// [`Scheduler::poll_disk`] and [`Scheduler::poll_event`], and it calls
/// [`Scheduler::handle_timeout`] at [`Scheduler::poll_timeout`].
///
/// Lanes come and go. The owner reports the end of a lane by [`Scheduler::lane_lost`], once the
/// disk has answered all of the lane's requests; its work goes to other lanes. When no lane is left
/// and none will come, the session is lost: [`Scheduler::lose`].
///
/// Job ids from 2^63 on are reserved for the scheduler.
#[derive(Debug)]
pub struct Scheduler {
    board: SchedulerState,
    files: SplitFiles,
    /// Time of the last check for stalled lanes.
    looked: Instant,
    /// Number of jobs done when a lane was last lost.
    done_at_loss: u64,
    revision: u64,
}

/// Number of jobs in flight from which a listing waits noticeably behind their data.
const MANY: usize = 64;

impl Scheduler {
    /// Creates a scheduler without lanes.
    pub fn new(options: SchedulerOptions, now: Instant) -> Self {
        Self {
            board: SchedulerState::new(options, now),
            files: SplitFiles::new(now),
            looked: now,
            done_at_loss: 0,
            revision: 0,
        }
    }

    /// Adds a job; its events end with `Done` or `Failed`.
    pub fn push(&mut self, now: Instant, job: Job, hint: JobHint) {
        self.at(now);
        let queued = QueuedJob::new(job, hint);
        self.board.queue(queued, false);
    }

    /// Announces that the next file, of `size` bytes, will soon have `lanes` lanes: those that
    /// exist and those that log in. Its pieces are made for that many, as the first lane would
    /// otherwise take most of it before the others have logged in. A file of medium size is cut
    /// only then: many lanes together send more before their first answers. Smaller files change
    /// nothing.
    pub fn expect_lanes(&mut self, lanes: u32, size: u64) {
        self.board.expect_lanes(lanes, size);
    }

    /// Returns the size in bytes from which files are cut.
    pub fn split_from(&self) -> u64 {
        self.board.options().split_from
    }

    /// Adds a lane. With `listing`, the lane gets listings only.
    pub fn lane_opened(&mut self, now: Instant, lane: LaneId, listing: bool, report: LaneReport) {
        self.at(now);
        let state = LaneState::new(now, listing, report);
        self.board.lanes_mut().insert(lane, state);
    }

    /// Updates a lane's report.
    pub fn lane_reports(&mut self, now: Instant, lane: LaneId, report: LaneReport) {
        self.at(now);
        self.board.lanes_mut().reports(now, lane, report);
    }

    /// Stops assigning jobs to the lane; see [`Scheduler::lane_is_free`]. Call it also when a lane
    /// has ended and the disk still works on its requests, until [`Scheduler::lane_lost`]; ignore
    /// orders for the lane in the meantime.
    pub fn retire(&mut self, lane: LaneId) {
        self.revision += 1;
        if let Some(state) = self.board.lanes_mut().get_mut(lane) {
            state.retire();
        }
    }

    /// Returns true if the lane has no unfinished job, so that its channel may be closed without
    /// loss.
    pub fn lane_is_free(&self, lane: LaneId) -> bool {
        let lane = self.board.lanes().get(lane);
        lane.is_none_or(LaneState::is_idle)
    }

    /// Returns true if listings need a lane of their own: a directory is too long for lanes that
    /// predict handles, or the answers would queue behind the data of many files.
    pub fn needs_listing_lane(&self) -> bool {
        if self.board.lanes().any(takes_long_lists) {
            return false;
        }
        let many = self.board.stats().jobs >= MANY;
        self.waits(JobQueueKind::LongLists) || self.waits(JobQueueKind::Lists) && many
    }

    /// Returns true if listings wait that none of the present lanes can do.
    pub fn lists_are_stuck(&self) -> bool {
        self.waits(JobQueueKind::LongLists) && !self.board.lanes().any(takes_long_lists)
    }

    /// Returns true if a job of this queue waits for a lane.
    fn waits(&self, queue: JobQueueKind) -> bool {
        !self.board.queues().of(queue).is_empty()
    }

    /// Returns true if another lane would have something to do.
    pub fn has_use_for_more(&self) -> bool {
        self.board.queues().len() > 0 || self.files.left().any(|left| left > 0)
    }

    /// Returns true if no job is left.
    pub fn is_idle(&self) -> bool {
        self.board.is_idle()
    }

    /// Returns the next order for the owner of the lanes.
    pub fn poll_order(&mut self) -> Option<LaneOrder> {
        if self.board.takes_work() {
            self.board.give(&mut self.files);
            if stragglers::overtake(&mut self.board, &mut self.files) {
                self.board.give_ranges(&mut self.files);
            }
        }
        let order = self.board.poll_order()?;
        self.revision += 1;
        Some(order)
    }

    /// Returns the next disk request, for one of the pushed jobs.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        let request = self.board.poll_disk()?;
        self.revision += 1;
        Some(request)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SchedulerEvent> {
        let event = self.board.poll_event()?;
        self.revision += 1;
        Some(event)
    }

    /// Returns true if [`Scheduler::poll_order`], [`Scheduler::poll_disk`] or
    /// [`Scheduler::poll_event`] may return something; an order may turn out to be missing when
    /// polled.
    pub fn has_more(&self) -> bool {
        self.board.has_more()
    }

    /// Returns a counter of inputs and outputs. If two values are equal, nothing has changed in
    /// between.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the time at which to call [`Scheduler::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let times = [
            stragglers::next_look(&self.board, &self.files, self.looked),
            self.files.next_sync(),
            self.files.next_name(),
            self.board.next_behind_lost(),
        ];
        times.into_iter().flatten().min()
    }

    /// Handles due timers: syncs, delayed renames and removals, stalled lanes.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.at(now);
        self.files.sync_if_due(&mut self.board);
        self.looked = now;
        self.files.name_what_waited(&mut self.board);
        self.board.remove_strays();
        self.go_on_behind_lost();
        stragglers::close_stalled(&mut self.board, &self.files);
    }

    /// Handles the reply to a request of [`Scheduler::poll_disk`].
    pub fn handle_disk(&mut self, now: Instant, reply: DiskReply) {
        self.at(now);
        self.files.on_disk(&mut self.board, reply);
    }

    /// Handles an event of a lane.
    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, event: LaneEvent) {
        self.board.at(now);
        self.revision += 1;
        let room = |board: &SchedulerState| board.lanes().get(lane).map(LaneState::room);
        let had = room(&self.board);
        self.on_lane(lane, event);
        // A lane gets its next piece when its current one ends, not continuously.
        if room(&self.board) > had {
            self.board.has_work();
        }
    }

    /// Handles the end of a lane, for any reason, with the temporaries that it left behind
    /// ([`crate::UnfinishedWork::temporaries`]). The lane must have asked the disk to release its
    /// files, and the disk must have answered all requests of the lane.
    pub fn lane_lost(
        &mut self,
        now: Instant,
        lane: LaneId,
        temporaries: Vec<(JobId, RemotePath)>,
        why: &str,
    ) {
        self.at(now);
        self.on_lost(lane, temporaries, why);
    }

    /// Cancels like [`Scheduler::cancel`], but keeps the temporaries of large journaled files so
    /// that they can be resumed.
    pub fn cancel_resumable(&mut self, now: Instant, reason: &str) {
        self.board.leave();
        self.at(now);
        self.files.tell_written(&mut self.board);
        self.cancel(now, reason);
    }

    /// Resets the loss counters of all jobs after a whole connection was lost, which is no job's
    /// fault.
    pub fn forgive(&mut self) {
        self.board.queues_mut().forgive();
        self.files.forgive();
    }

    /// Fails every job with `reason` and cleans up. Call [`crate::Lane::cancel`] of every lane
    /// afterwards.
    pub fn cancel(&mut self, now: Instant, reason: &str) {
        self.at(now);
        let fault = JobFailure::new(reason, false);
        self.board.cancel(fault.clone());
        self.board.fail_waiting(&fault);
        self.files.fail_all(&mut self.board, &fault);
    }

    /// Fails all remaining jobs and names the files left behind. Call it when all lanes are lost
    /// and no further lane will come.
    pub fn lose(&mut self, now: Instant, why: &str) {
        self.at(now);
        self.on_lose(why);
    }

    /// Returns the counters.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            waiting: self.board.queues().len(),
            split: self.files.len(),
            ..self.board.stats()
        }
    }

    /// Returns the number of bytes of pushed jobs still to be moved, as far as sizes are known.
    pub fn remaining(&self) -> u64 {
        let size = |queued: &QueuedJob| queued.hint().size.unwrap_or(0);
        let sizes = self.board.queues().files().map(size);
        let on_lanes = self.board.assigned().wholes().flatten().map(size);
        total(sizes.chain(self.files.untold()).chain(on_lanes))
    }

    /// Returns true if the only work, apart from questions, is one delta of one file. One lane does
    /// it, limited by hashing: further logins would take processor time from it.
    pub fn only_rebuilds_one(&self) -> bool {
        let asks = |q: &Option<&QueuedJob>| q.is_some_and(|q| events::asks(q.kind()));
        let mut all = self.board.all_jobs().filter(|q| !asks(q));
        let rebuilds = |q: &QueuedJob| events::rebuilds(q.kind());
        let first = all.next().flatten().is_some_and(rebuilds);
        first && all.next().is_none() && self.files.len() == 0
    }

    /// Returns true if a large journaled file is in progress.
    pub fn keeps(&self) -> bool {
        self.files.keeps()
    }

    /// Returns true if a lane beside the data lanes would have something to do: a server that syncs
    /// answers nothing else on that channel.
    pub fn wants_side_lane(&self) -> bool {
        self.board.wants_side_lane()
    }

    /// Records that no lane beside the data lanes is available.
    pub fn set_no_side_lane(&mut self, none: bool) {
        self.board.set_no_side_lane(none);
    }

    /// Sets `SchedulerOptions::cuts`: the owner can cut connections and report it by
    /// [`Scheduler::lane_is_cut`].
    pub fn set_cuts(&mut self, cuts: bool) {
        self.board.set_cuts(cuts);
    }

    /// Records that the server has reported the end of the lane's channel, as sshd does when the
    /// SFTP server on it has exited: no more of its requests are executed. Call it before
    /// [`Scheduler::lane_lost`] if known by then, otherwise as soon as it is known.
    pub fn lane_is_over(&mut self, now: Instant, lane: LaneId) {
        self.at(now);
        self.board.lane_ends(lane, ChannelCloseState::Confirmed);
        self.files.lane_ends(lane, None);
        self.files.name_what_waited(&mut self.board);
        self.board.remove_strays();
        self.go_on_behind_lost();
    }

    /// Records that the lane's connection was cut locally, together with its unsent data. Call it
    /// before [`Scheduler::lane_lost`] if the lane has just ended.
    pub fn lane_is_cut(&mut self, now: Instant, lane: LaneId) {
        self.at(now);
        let until = self.board.lane_ends(lane, ChannelCloseState::Cut);
        self.files.lane_ends(lane, Some(until));
    }

    fn at(&mut self, now: Instant) {
        self.board.at(now);
        self.revision += 1;
        self.board.has_work();
    }
}

/// Returns true if the lane can list any directory.
fn takes_long_lists(lane: &LaneState) -> bool {
    lane.is_open() && !lane.report().predicts
}

/// Returns the sum of sizes, saturating, since some sizes come from a server.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
