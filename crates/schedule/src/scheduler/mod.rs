//! Divides jobs over lanes.

mod asides;
mod assign;
mod dirs;
mod events;
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

use self::asides::Asides;
use self::dirs::PendingDirs;
use self::file::SplitFile;
use self::lanes::{LaneState, Lanes};
use self::orphaned_temps::OrphanedTemps;
use self::settings::Settings;
pub(crate) use self::spans::ByteRanges;
use crate::job::place_of_listing;
use crate::{DiskReply, DiskRequest, Fault, Job, JobId, JobKind, Lane, LaneEvent, RemotePath};

/// Names a connection for as long as a run lasts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ConnectionId(pub u32);

/// Names a lane for as long as a run lasts; never used again for another.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LaneId {
    /// The connection it is on.
    pub connection: ConnectionId,
    /// Which of its lanes.
    pub channel: u32,
}

/// What a lane can take now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// [`Lane::wants_jobs`].
    pub wants: usize,
    /// [`Lane::predicts`].
    pub predicts: bool,
    /// [`Lane::works_in_order`].
    pub in_order: bool,
    /// [`Lane::shares_files`].
    pub shares_files: bool,
    /// [`Lane::is_known`].
    pub known: bool,
    /// Files are written in place there ([`crate::Refusals::in_place`]).
    pub in_place: bool,
    /// Bytes that may be in flight ([`crate::LaneStats::bytes_depth`]).
    pub depth: u64,
    /// The lowest latency of a request; zero while unknown.
    pub latency: Duration,
}

impl LaneReport {
    /// What `lane` says.
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

/// What is known of a job beside itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// Bytes of the source, from the walk. A file of unknown size is not cut.
    pub size: Option<u64>,
    /// Its local file is a relay to another host: never cut, and not done again when its lane
    /// is lost, but failed.
    pub relayed: bool,
}

/// What the owner of the lanes has to do.
#[allow(
    clippy::large_enum_variant,
    reason = "most of them are jobs that are pushed"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// [`Lane::push`].
    Push(LaneId, Job),
    /// [`Lane::abandon`]. Its job still ends with an event.
    Abandon(LaneId, JobId),
    /// The lane has stalled while others work: close its channel, and as for every lane that
    /// ends, [`Scheduler::lane_lost`].
    Close(LaneId),
}

/// What became of the jobs that were pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// As a single lane would tell it.
    Lane(LaneEvent),
    /// It is done again from its beginning; the progress told of it is void.
    Restarted(JobId),
}

/// Choices of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Cut files at all; not where there can only ever be one lane.
    pub split: bool,
    /// Smaller files go whole. A cut file costs one or two round trips more.
    pub split_from: u64,
    /// The smallest piece, towards the end.
    pub least: u64,
    /// The largest, unless a lane moves more than that in a tenth of a second.
    pub most: u64,
    /// Pieces are multiples of this: the size of one WRITE.
    pub unit: u64,
    /// A file is open once at a time, whatever the server is.
    pub one_handle: bool,
    /// Do what a slower lane has again on a faster one. Not where it is no lane's fault how slow
    /// it is, since what is done twice takes from the rate that was set.
    pub overtake: bool,
    /// What was sent on a lane can be called back by cutting its connection. Not behind a jump host
    /// or a command, which pass on what they have; [`Scheduler::set_cuts`] says it once that is known.
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

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Jobs pushed and not over.
    pub jobs: usize,
    /// Of them, those that no lane has.
    pub waiting: usize,
    /// Files that are cut and under way.
    pub split: usize,
    /// Files that were cut, in all.
    pub cut: u64,
    /// Parts that were given to a second lane.
    pub overtaken: u64,
    /// Bytes that receivers confirmed, with those that were done twice.
    pub moved: u64,
    /// Jobs done.
    pub done: u64,
}

/// Divides the jobs of a session over its lanes: many files, one large file by offset, or both.
///
/// What comes out for a job is what one lane would have told, in the same order. The owner pushes
/// jobs, reports what lanes can take and tells, drains [`Scheduler::poll_order`],
/// [`Scheduler::poll_disk`] and [`Scheduler::poll_event`] after each, and calls
/// [`Scheduler::handle_timeout`] at [`Scheduler::poll_timeout`].
///
/// Lanes come and go. One that ends is told by [`Scheduler::lane_lost`], when the disk has answered
/// all that the lane asked of it; its work goes to others. Only when the owner has no lane left
/// and will get none is the session lost: [`Scheduler::lose`].
///
/// Job ids from 2^63 on are its own.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    now: Instant,
    lanes: Lanes,
    /// Directories.
    makes: VecDeque<Queued>,
    waiting: VecDeque<Queued>,
    large: VecDeque<Queued>,
    lists: VecDeque<Queued>,
    /// Of directories that are too long for the one flight in which a lane that predicts handles
    /// lists them.
    long_lists: VecDeque<Queued>,
    /// To be done before anything else: names, and temporaries to remove.
    urgent: VecDeque<(JobId, JobKind, Assigned)>,
    /// Who does what.
    assigned: BTreeMap<JobId, (LaneId, Assigned)>,
    files: BTreeMap<JobId, SplitFile>,
    dirs: PendingDirs,
    settings: Settings,
    own: u64,
    orders: VecDeque<Order>,
    events: VecDeque<SchedulerEvent>,
    disk: VecDeque<DiskRequest>,
    /// Something may be given out.
    dirty: bool,
    stats: SchedulerStats,
    /// When stalled lanes were last looked for.
    looked: Instant,
    /// Why nothing is begun any more.
    cancelled: Option<Fault>,
    /// What can be gone on with stays where it is.
    leaving: bool,
    /// Syncs that no lane has, each with its file.
    syncs: VecDeque<(JobId, JobKind, JobId)>,
    /// Bytes of kept files that were answered since the last sync.
    fresh: u64,
    strays: OrphanedTemps,
    asides: Asides,
    /// And those that nobody was told of.
    untold: u64,
    synced_at: Instant,
    /// When what was written was last told.
    told_at: Instant,
    no_side_lane: bool,
    revision: u64,
}

/// A job as it was pushed.
#[derive(Clone, Debug)]
struct Queued {
    job: Job,
    hint: Hint,
    /// Lanes that were lost with it.
    losses: u32,
    /// It is not cut, or not listed in one flight: that was tried.
    whole: bool,
}

/// What a lane's job is.
#[derive(Clone, Debug)]
enum Assigned {
    /// Boxed: thousands are under way, and what is beside one in the map moves when it goes.
    Whole(Box<Queued>),
    /// A part of this file.
    Part(JobId),
    /// The naming of this file.
    Finish(JobId),
    /// Whether the temporary of this file is still there: the lane that was to name it was lost.
    Check(JobId),
    /// The removal of this file's temporary.
    Clean(JobId),
    /// Whether what an earlier run has left of this file can be gone on with.
    Adopt(JobId),
    /// The sync of this file's temporary.
    Sync(JobId),
    /// The removal of what a lost lane left of this job.
    Remove(JobId, RemotePath),
}

/// Ids of its own.
const OWN: u64 = 1 << 63;
/// A job with which so many lanes were lost is what loses them.
const MOST_LOSSES: u32 = 4;
/// The same for a cut file, whose parts are on all lanes.
const MOST_PART_LOSSES: u32 = 40;
/// With so many jobs under way a listing waits noticeably behind their data.
const MANY: usize = 64;

impl Scheduler {
    /// No lanes yet.
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
            strays: OrphanedTemps::default(),
            asides: Asides::default(),
            untold: 0,
            synced_at: now,
            told_at: now,
            no_side_lane: false,
            revision: 0,
        }
    }

    /// Takes a job; its events end in `Done` or `Failed`.
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

    /// A lane is there. One for `listing` gets nothing else.
    pub fn lane_opened(&mut self, now: Instant, lane: LaneId, listing: bool, report: LaneReport) {
        self.at(now);
        let state = LaneState::new(now, listing, report);
        self.lanes.by_id.insert(lane, state);
    }

    /// What a lane can take has changed.
    pub fn lane_reports(&mut self, now: Instant, lane: LaneId, report: LaneReport) {
        self.at(now);
        self.lanes.reports(lane, report);
    }

    /// The lane gets no more jobs; see [`Scheduler::lane_is_free`]. Also to be called when a lane has
    /// ended and the disk still works on what it asked for, until [`Scheduler::lane_lost`]; orders
    /// that come for it meanwhile are void.
    pub fn retire(&mut self, lane: LaneId) {
        self.revision += 1;
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.retiring = true;
        }
    }

    /// Nothing of the lane is unfinished: its channel may be closed without loss.
    pub fn lane_is_free(&self, lane: LaneId) -> bool {
        self.lanes
            .by_id
            .get(&lane)
            .is_none_or(|l| l.jobs.is_empty())
    }

    /// Listings would have a use for a lane of their own: one is too long for those that predict
    /// handles, or the answers would come behind the data of many files.
    pub fn needs_listing_lane(&self) -> bool {
        let takes = |l: &LaneState| l.is_open() && !l.report.predicts;
        if self.lanes.by_id.values().any(takes) {
            return false;
        }
        !self.long_lists.is_empty() || !self.lists.is_empty() && self.stats.jobs >= MANY
    }

    /// Listings wait that none of the lanes there are can do.
    pub fn lists_are_stuck(&self) -> bool {
        let takes = |l: &LaneState| l.is_open() && !l.report.predicts;
        !self.long_lists.is_empty() && !self.lanes.by_id.values().any(takes)
    }

    /// No job waits for a lane but listings.
    fn waits_for_nothing(&self) -> bool {
        self.waiting.is_empty() && self.large.is_empty() && self.makes.is_empty()
    }

    /// Whether another lane would have something to do.
    pub fn has_use_for_more(&self) -> bool {
        !self.waits_for_nothing()
            || !self.lists.is_empty()
            || !self.long_lists.is_empty()
            || self.files.values().any(|f| f.left() > 0)
    }

    /// No job is left.
    pub fn is_idle(&self) -> bool {
        self.stats.jobs == 0 && self.urgent.is_empty() && self.assigned.is_empty()
    }

    /// What is to be done with lanes next.
    pub fn poll_order(&mut self) -> Option<Order> {
        if self.orders.is_empty() && std::mem::take(&mut self.dirty) {
            self.give();
        }
        let order = self.orders.pop_front()?;
        self.revision += 1;
        Some(order)
    }

    /// What the disk is asked for next: in the name of the pushed jobs.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        let request = self.disk.pop_front()?;
        self.revision += 1;
        Some(request)
    }

    /// What became of jobs.
    pub fn poll_event(&mut self) -> Option<SchedulerEvent> {
        let event = self.events.pop_front()?;
        self.revision += 1;
        Some(event)
    }

    /// Whether [`Scheduler::poll_order`], [`Scheduler::poll_disk`] or [`Scheduler::poll_event`] has something to tell, as
    /// far as that is known before it is asked.
    pub fn has_more(&self) -> bool {
        self.dirty || !self.orders.is_empty() || !self.disk.is_empty() || !self.events.is_empty()
    }

    /// Counts what went in and what was taken out. Between two equal values nothing has changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// When to call [`Scheduler::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let looks = self.next_look().into_iter().chain(self.next_sync());
        let late = self.next_name().into_iter().chain(self.strays.until());
        let asides = self.asides.until();
        looks.chain(late).chain(asides).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.at(now);
        self.sync_if_due();
        self.looked = now;
        self.name_what_waited();
        self.remove_strays();
        self.go_on_behind_lost();
        self.look_for_stalls();
    }

    /// Takes what became of a request of [`Scheduler::poll_disk`].
    pub fn handle_disk(&mut self, now: Instant, reply: DiskReply) {
        self.at(now);
        self.on_disk(reply);
    }

    /// Takes an event of a lane.
    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, event: LaneEvent) {
        self.now = now;
        self.revision += 1;
        let room = |lanes: &Lanes| lanes.by_id.get(&lane).map(LaneState::room);
        let had = room(&self.lanes);
        self.on_lane(lane, event);
        // The next piece is for when this one ends, not from then on.
        self.dirty |= room(&self.lanes) > had;
    }

    /// A lane has ended, whyever, with these temporaries left behind
    /// ([`crate::Unfinished::temporaries`]). Its releases were asked of the disk, and the disk has
    /// answered everything that was asked in its name.
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

    /// The same as [`Scheduler::cancel`], but the temporaries of large files whose copies are written
    /// down stay, to be gone on with.
    pub fn leave(&mut self, now: Instant, reason: &str) {
        self.leaving = true;
        self.at(now);
        self.tell_written();
        self.cancel(now, reason);
    }

    /// Every lane was lost with its connection, which was nobody's fault: losses so far do not
    /// count against what is under way.
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

    /// Fails every job with `reason`, cleaning up. Call [`Lane::cancel`] of every lane as well,
    /// after this.
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

    /// There will be no lane any more, and all were told to be lost: fails what is left, with what may be left behind.
    pub fn lose(&mut self, now: Instant, why: &str) {
        self.at(now);
        self.on_lose(why);
    }

    /// How it stands.
    pub fn stats(&self) -> SchedulerStats {
        let mut stats = self.stats;
        stats.waiting = self.waiting.len() + self.large.len() + self.lists.len();
        stats.waiting += self.long_lists.len() + self.makes.len();
        stats.split = self.files.len();
        stats
    }

    /// Bytes of pushed jobs that nobody has moved, as far as sizes are known.
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

    /// Whether all there is to do, beside questions, is to rebuild one file from an older form. One lane
    /// does that, and what holds it back is hashing: further logins would take processors from it.
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
            // It holds no handle and suits any lane.
            JobKind::ListTree { .. } => place_of_listing(queue.iter().map(|q| &q.job)),
            // One request, for whose answer more waits than for any file: behind 2,000 small files the
            // server's clock was never seen, and after a kill all were sent again.
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
        // A download's size must be that of a regular file.
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

/// The sum of sizes of which some are a server's word: what is more than fits is as good as
/// the most that does.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
