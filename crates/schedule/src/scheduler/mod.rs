//! Assigns the jobs of a session to its lanes.

mod asides;
mod assign;
mod dirs;
mod events;
mod expected;
mod file;
mod lanes;
mod meter;
mod orphaned_temps;
mod parts;
mod settings;
mod spans;
mod split_record;
mod stragglers;
mod write_fence;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::asides::MovedAsideFiles;
use self::dirs::PendingDirs;
use self::expected::ExpectedLanes;
use self::file::SplitFile;
use self::lanes::{LaneState, Lanes};
use self::orphaned_temps::OrphanedTemps;
use self::settings::Settings;
pub(crate) use self::spans::ByteRanges;
use crate::job::place_of_listing;
use crate::{DiskReply, DiskRequest, Fault, Job, JobId, JobKind, Lane, LaneEvent, RemotePath};

/// Identifies a connection for the duration of a run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ConnectionId(pub u32);

/// Identifies a lane for the duration of a run; never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LaneId {
    /// Connection of the lane.
    pub connection: ConnectionId,
    /// Number of the lane on its connection.
    pub channel: u32,
}

/// Capacity and abilities of a lane, as reported by its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Number of jobs wanted ([`Lane::wants_jobs`]).
    pub wants: usize,
    /// The lane predicts handles ([`Lane::predicts`]).
    pub predicts: bool,
    /// The server handles requests in order ([`Lane::works_in_order`]).
    pub in_order: bool,
    /// One file may be open several times ([`Lane::shares_files`]).
    pub shares_files: bool,
    /// The server is known ([`Lane::is_known`]).
    pub known: bool,
    /// The lane writes files in place ([`crate::Refusals::in_place`]).
    pub in_place: bool,
    /// Bytes that may be in flight ([`crate::LaneStats::bytes_depth`]).
    pub depth: u64,
    /// Lowest latency of a request; zero while unknown.
    pub latency: Duration,
}

impl LaneReport {
    /// Returns the report of `lane`.
    pub fn of(lane: &Lane) -> Self {
        let stats = lane.stats();
        Self {
            wants: lane.wants_jobs(),
            predicts: lane.predicts(),
            in_order: lane.works_in_order(),
            shares_files: lane.shares_files(),
            known: lane.is_known(),
            in_place: lane.refusals().in_place(),
            depth: stats.bytes_depth,
            latency: stats.latency.unwrap_or_default(),
        }
    }
}

/// Facts about a job that it does not carry itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// Size of the source in bytes, from the walk. A file of unknown size is not cut.
    pub size: Option<u64>,
    /// The local file is a relay to another host: the file is never cut, and fails instead of being
    /// repeated when its lane is lost.
    pub relayed: bool,
}

/// Instruction to the owner of the lanes.
#[allow(
    clippy::large_enum_variant,
    reason = "most of them are jobs that are pushed"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    /// Give the job to the lane ([`Lane::push`]).
    Push(LaneId, Job),
    /// Stop the job ([`Lane::abandon`]); it still ends with an event.
    Abandon(LaneId, JobId),
    /// Close the lane's channel, since it has stalled while others work. Then call
    /// [`Scheduler::lane_lost`], as for every lane that ends.
    Close(LaneId),
}

/// Event of a job that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// Event as a single lane would report it.
    Lane(LaneEvent),
    /// The job starts over; its reported progress is void.
    Restarted(JobId),
}

/// Settings of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Cut files at all; false if there can only be one lane.
    pub split: bool,
    /// Size in bytes from which files are cut. A cut file costs one or two more round trips.
    pub split_from: u64,
    /// Smallest piece in bytes, used towards the end.
    pub least: u64,
    /// Largest piece in bytes, unless a lane moves more in a tenth of a second.
    pub most: u64,
    /// Unit of piece sizes in bytes: the size of one WRITE.
    pub unit: u64,
    /// Open a file at most once at a time, regardless of the server.
    pub one_handle: bool,
    /// Repeat work of a slow lane on a faster one. False if a rate limit slows the lanes, since
    /// repeated bytes count against it.
    pub overtake: bool,
    /// Cutting the connection of a lane discards data in flight. False behind a jump host or a
    /// command, which pass on the data that they have; set by [`Scheduler::set_cuts`] once known.
    pub cuts: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            split: true,
            split_from: 8 << 20,
            least: 1 << 20,
            most: 16 << 20,
            unit: 63 * 4096,
            one_handle: false,
            overtake: true,
            cuts: true,
        }
    }
}

/// Counters of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Unfinished jobs that were pushed.
    pub jobs: usize,
    /// Number of jobs that no lane has.
    pub waiting: usize,
    /// Cut files in progress.
    pub split: usize,
    /// Total number of files that were cut.
    pub cut: u64,
    /// Number of parts that were assigned to a second lane.
    pub overtaken: u64,
    /// Bytes that receivers confirmed, including repeated ones.
    pub moved: u64,
    /// Number of finished jobs.
    pub done: u64,
}

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
    options: SchedulerOptions,
    now: Instant,
    lanes: Lanes,
    /// MKDIR jobs.
    makes: VecDeque<Queued>,
    waiting: VecDeque<Queued>,
    large: VecDeque<Queued>,
    lists: VecDeque<Queued>,
    /// Listings that are too long for the one flight in which a lane that predicts handles lists a
    /// directory.
    long_lists: VecDeque<Queued>,
    /// Jobs that come first: renames, and temporaries to remove.
    urgent: VecDeque<(JobId, JobKind, Assigned)>,
    /// Lane and role of every job that was assigned.
    assigned: BTreeMap<JobId, (LaneId, Assigned)>,
    files: BTreeMap<JobId, SplitFile>,
    dirs: PendingDirs,
    settings: Settings,
    own: u64,
    orders: VecDeque<LaneOrder>,
    events: VecDeque<SchedulerEvent>,
    disk: VecDeque<DiskRequest>,
    /// True if there may be something to assign.
    dirty: bool,
    stats: SchedulerStats,
    /// Time of the last check for stalled lanes.
    looked: Instant,
    /// Reason of the cancellation; no job is started any more.
    cancelled: Option<Fault>,
    /// Keep resumable temporaries.
    leaving: bool,
    /// Sync jobs that no lane has: id, kind and file.
    syncs: VecDeque<(JobId, JobKind, JobId)>,
    /// Bytes of journaled files that were answered since the last sync.
    fresh: u64,
    expected: ExpectedLanes,
    strays: OrphanedTemps,
    asides: MovedAsideFiles,
    /// Bytes of journaled files that were answered but not reported.
    untold: u64,
    synced_at: Instant,
    /// Time of the last report of written ranges.
    told_at: Instant,
    no_side_lane: bool,
    revision: u64,
}

/// A pushed job that waits for a lane.
#[derive(Clone, Debug)]
struct Queued {
    job: Job,
    hint: Hint,
    /// Number of lanes that were lost with the job.
    losses: u32,
    /// Do not cut the file, or list the directory in one flight: that has failed before.
    whole: bool,
}

/// Role of a job on a lane.
#[derive(Clone, Debug)]
enum Assigned {
    /// A whole job. Boxed, since thousands are in flight and map entries move when a neighbor is
    /// removed.
    Whole(Box<Queued>),
    /// A part of this file.
    Part(JobId),
    /// The rename of this file.
    Finish(JobId),
    /// A check for this file's temporary, after the lane that was to rename it was lost.
    Check(JobId),
    /// The removal of this file's temporary.
    Clean(JobId),
    /// A check if this file can resume from an earlier run.
    Adopt(JobId),
    /// A sync of this file's temporary.
    Sync(JobId),
    /// The removal of a file that a lost lane left for this job.
    Remove(JobId, RemotePath),
}

/// First job id that is reserved for the scheduler.
const OWN: u64 = 1 << 63;
/// Number of lost lanes after which a job itself is assumed to be the cause.
const MOST_LOSSES: u32 = 4;
/// Number of lost lanes after which a cut file, whose parts are on all lanes, is assumed to be the
/// cause.
const MOST_PART_LOSSES: u32 = 40;
/// Number of jobs in flight from which a listing waits noticeably behind their data.
const MANY: usize = 64;

impl Scheduler {
    /// Creates a scheduler without lanes.
    pub fn new(options: SchedulerOptions, now: Instant) -> Self {
        Self {
            options,
            now,
            lanes: Lanes::default(),
            makes: VecDeque::new(),
            waiting: VecDeque::new(),
            large: VecDeque::new(),
            lists: VecDeque::new(),
            long_lists: VecDeque::new(),
            urgent: VecDeque::new(),
            assigned: BTreeMap::new(),
            files: BTreeMap::new(),
            dirs: PendingDirs::default(),
            settings: Settings::default(),
            own: 0,
            orders: VecDeque::new(),
            events: VecDeque::new(),
            disk: VecDeque::new(),
            dirty: false,
            stats: SchedulerStats::default(),
            looked: now,
            cancelled: None,
            leaving: false,
            syncs: VecDeque::new(),
            fresh: 0,
            expected: ExpectedLanes::none(options),
            strays: OrphanedTemps::default(),
            asides: MovedAsideFiles::default(),
            untold: 0,
            synced_at: now,
            told_at: now,
            no_side_lane: false,
            revision: 0,
        }
    }

    /// Adds a job; its events end with `Done` or `Failed`.
    pub fn push(&mut self, now: Instant, job: Job, hint: Hint) {
        self.at(now);
        let queued = Queued {
            job,
            hint,
            losses: 0,
            whole: false,
        };
        self.queue(queued, false);
    }

    /// Adds a lane. With `listing`, the lane gets listings only.
    pub fn lane_opened(&mut self, now: Instant, lane: LaneId, listing: bool, report: LaneReport) {
        self.at(now);
        let state = LaneState::new(now, listing, report);
        self.lanes.by_id.insert(lane, state);
    }

    /// Updates a lane's report.
    pub fn lane_reports(&mut self, now: Instant, lane: LaneId, report: LaneReport) {
        self.at(now);
        self.lanes.reports(lane, report);
    }

    /// Stops assigning jobs to the lane; see [`Scheduler::lane_is_free`]. Call it also when a lane
    /// has ended and the disk still works on its requests, until [`Scheduler::lane_lost`]; ignore
    /// orders for the lane in the meantime.
    pub fn retire(&mut self, lane: LaneId) {
        self.revision += 1;
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.retiring = true;
        }
    }

    /// Returns true if the lane has no unfinished job, so that its channel may be closed without
    /// loss.
    pub fn lane_is_free(&self, lane: LaneId) -> bool {
        self.lanes
            .by_id
            .get(&lane)
            .is_none_or(|l| l.jobs.is_empty())
    }

    /// Returns true if listings need a lane of their own: a directory is too long for lanes that
    /// predict handles, or the answers would queue behind the data of many files.
    pub fn needs_listing_lane(&self) -> bool {
        let takes = |l: &LaneState| l.is_open() && !l.report.predicts;
        if self.lanes.by_id.values().any(takes) {
            return false;
        }
        !self.long_lists.is_empty() || !self.lists.is_empty() && self.stats.jobs >= MANY
    }

    /// Returns true if listings wait that none of the present lanes can do.
    pub fn lists_are_stuck(&self) -> bool {
        let takes = |l: &LaneState| l.is_open() && !l.report.predicts;
        !self.long_lists.is_empty() && !self.lanes.by_id.values().any(takes)
    }

    /// Returns true if no job except listings waits for a lane.
    fn waits_for_nothing(&self) -> bool {
        self.waiting.is_empty() && self.large.is_empty() && self.makes.is_empty()
    }

    /// Returns true if another lane would have something to do.
    pub fn has_use_for_more(&self) -> bool {
        !self.waits_for_nothing()
            || !self.lists.is_empty()
            || !self.long_lists.is_empty()
            || self.files.values().any(|f| f.left() > 0)
    }

    /// Returns true if no job is left.
    pub fn is_idle(&self) -> bool {
        self.stats.jobs == 0 && self.urgent.is_empty() && self.assigned.is_empty()
    }

    /// Returns the next order for the owner of the lanes.
    pub fn poll_order(&mut self) -> Option<LaneOrder> {
        if self.orders.is_empty() && std::mem::take(&mut self.dirty) {
            self.give();
        }
        let order = self.orders.pop_front()?;
        self.revision += 1;
        Some(order)
    }

    /// Returns the next disk request, for one of the pushed jobs.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        let request = self.disk.pop_front()?;
        self.revision += 1;
        Some(request)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SchedulerEvent> {
        let event = self.events.pop_front()?;
        self.revision += 1;
        Some(event)
    }

    /// Returns true if [`Scheduler::poll_order`], [`Scheduler::poll_disk`] or
    /// [`Scheduler::poll_event`] may return something; an order may turn out to be missing when
    /// polled.
    pub fn has_more(&self) -> bool {
        self.dirty || !self.orders.is_empty() || !self.disk.is_empty() || !self.events.is_empty()
    }

    /// Returns a counter of inputs and outputs. If two values are equal, nothing has changed in
    /// between.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the time at which to call [`Scheduler::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let looks = self.next_look().into_iter().chain(self.next_sync());
        let late = self.next_name().into_iter().chain(self.strays.until());
        let asides = self.asides.until();
        looks.chain(late).chain(asides).min()
    }

    /// Handles due timers: syncs, delayed renames and removals, stalled lanes.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.at(now);
        self.sync_if_due();
        self.looked = now;
        self.name_what_waited();
        self.remove_strays();
        self.go_on_behind_lost();
        self.look_for_stalls();
    }

    /// Handles the reply to a request of [`Scheduler::poll_disk`].
    pub fn handle_disk(&mut self, now: Instant, reply: DiskReply) {
        self.at(now);
        self.on_disk(reply);
    }

    /// Handles an event of a lane.
    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, event: LaneEvent) {
        self.now = now;
        self.revision += 1;
        let room = |lanes: &Lanes| lanes.by_id.get(&lane).map(LaneState::room);
        let had = room(&self.lanes);
        self.on_lane(lane, event);
        // A lane gets its next piece when its current one ends, not continuously.
        self.dirty |= room(&self.lanes) > had;
    }

    /// Handles the end of a lane, for any reason, with the temporaries that it left behind
    /// ([`crate::Unfinished::temporaries`]). The lane must have asked the disk to release its
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
    pub fn leave(&mut self, now: Instant, reason: &str) {
        self.leaving = true;
        self.at(now);
        self.tell_written();
        self.cancel(now, reason);
    }

    /// Resets the loss counters of all jobs after a whole connection was lost, which is no job's
    /// fault.
    pub fn forgive(&mut self) {
        let queues = [
            &mut self.makes,
            &mut self.waiting,
            &mut self.large,
            &mut self.lists,
        ];
        for queued in queues {
            queued.iter_mut().for_each(|q| q.losses = 0);
        }
        self.files.values_mut().for_each(|f| f.losses = 0);
    }

    /// Fails every job with `reason` and cleans up. Call [`Lane::cancel`] of every lane afterwards.
    pub fn cancel(&mut self, now: Instant, reason: &str) {
        self.at(now);
        let fault = Fault {
            what: reason.to_owned(),
            remote: false,
        };
        self.cancelled = Some(fault.clone());
        self.fail_waiting(&fault);
        let ids: Vec<JobId> = self.files.keys().copied().collect();
        for id in ids {
            self.fail_file(id, fault.clone());
        }
    }

    /// Fails all remaining jobs and names the files left behind. Call it when all lanes are lost
    /// and no further lane will come.
    pub fn lose(&mut self, now: Instant, why: &str) {
        self.at(now);
        self.on_lose(why);
    }

    /// Returns the counters.
    pub fn stats(&self) -> SchedulerStats {
        let mut stats = self.stats;
        stats.waiting = self.waiting.len() + self.large.len() + self.lists.len();
        stats.waiting += self.long_lists.len() + self.makes.len();
        stats.split = self.files.len();
        stats
    }

    /// Returns the number of bytes of pushed jobs still to be moved, as far as sizes are known.
    pub fn remaining(&self) -> u64 {
        let queued = self.waiting.iter().chain(&self.large);
        let sizes = queued.map(|q| q.hint.size.unwrap_or(0));
        let files = self.files.values().map(|f| f.size().saturating_sub(f.told));
        let on_lanes = self.assigned.values().map(|(_, a)| match a {
            Assigned::Whole(q) => q.hint.size.unwrap_or(0),
            _ => 0,
        });
        total(sizes.chain(files).chain(on_lanes))
    }

    /// Returns true if the only work, apart from questions, is one delta of one file. One lane does
    /// it, limited by hashing: further logins would take processor time from it.
    pub fn only_rebuilds_one(&self) -> bool {
        let on_lanes = self.assigned.values().map(|(_, assigned)| match assigned {
            Assigned::Whole(queued) => Some(&**queued),
            _ => None,
        });
        let queued = self.waiting.iter().chain(&self.large).chain(&self.makes);
        let queued = queued.map(Some);
        let asks = |q: &Option<&Queued>| q.is_some_and(|q| events::asks(&q.job.kind));
        let mut all = on_lanes.chain(queued).filter(|q| !asks(q));
        let rebuilds = |q: &Queued| events::rebuilds(&q.job.kind);
        let first = all.next().flatten().is_some_and(rebuilds);
        first && all.next().is_none() && self.files.is_empty()
    }

    fn at(&mut self, now: Instant) {
        self.now = now;
        self.revision += 1;
        self.dirty = true;
    }

    fn tell(&mut self, event: LaneEvent) {
        self.clear_asides(&event);
        let Some(event) = self.strays.hold(event) else {
            return;
        };
        if event.is_last() {
            self.stats.jobs = self.stats.jobs.saturating_sub(1);
            self.stats.done += u64::from(matches!(event, LaneEvent::Done(_)));
        }
        self.events.push_back(SchedulerEvent::Lane(event));
    }

    fn own_id(&mut self) -> JobId {
        self.own += 1;
        JobId(OWN + self.own)
    }

    fn queue(&mut self, queued: Queued, again: bool) {
        self.stats.jobs += usize::from(!again);
        if let Some(fault) = self.cancelled.clone() {
            return self.tell(LaneEvent::Failed(queued.job.id, fault));
        }
        let split = self.is_split(&queued);
        if let JobKind::MakeDir { path, .. } = &queued.job.kind {
            self.dirs.wanted(&path.0, queued.job.id);
        }
        let queue = match queued.job.kind {
            JobKind::MakeDir { .. } => &mut self.makes,
            JobKind::List { .. } if queued.whole => &mut self.long_lists,
            JobKind::List { .. } => &mut self.lists,
            _ if split => &mut self.large,
            _ => &mut self.waiting,
        };
        let at = match queued.job.kind {
            _ if again => 0,
            // A tree listing holds no handle and suits any lane.
            JobKind::ListTree { .. } => place_of_listing(queue.iter().map(|q| &q.job)),
            // One request whose answer unblocks more than any file: behind 2,000 small files the
            // server's clock was never read, and after a kill everything was sent again.
            JobKind::Stat { .. } => {
                let is_look = |q: &&Queued| matches!(q.job.kind, JobKind::Stat { .. });
                queue.iter().take_while(is_look).count()
            }
            _ => queue.len(),
        };
        queue.insert(at, queued);
    }

    fn is_split(&self, queued: &Queued) -> bool {
        let (inplace, known) = match &queued.job.kind {
            JobKind::Put { options, .. } => (options.inplace, None),
            JobKind::Get { options, known, .. } => (options.inplace, Some(known)),
            _ => return false,
        };
        // A download is cut only by the size of a regular file.
        let size = match known {
            Some(known) => known
                .filter(|k| k.kind() == crate::EntryKind::File)
                .and_then(|k| k.size),
            None => queued.hint.size,
        };
        let large = size.is_some_and(|size| size >= self.options.split_from);
        self.options.split && large && !inplace && !queued.whole && !queued.hint.relayed
    }
}

/// Returns the sum of sizes, saturating, since some sizes come from a server.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
