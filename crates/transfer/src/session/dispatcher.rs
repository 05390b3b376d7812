use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use schedule::{
    CompressionMode, ConnectionId, Job, JobId, Lane, LaneConfig, LaneError, LaneEvent, LaneId,
    LaneOrder, LaneReport, RefusedOperations, RemotePath, Scheduler, SchedulerEvent,
    SchedulerOptions, Told,
};

use super::background_pacer::LENGTH;
use super::connection::{ConnectionSet, SessionConnection};
use super::disk::{DiskExecutor, LocalStandIn};
use super::event_batcher::EventBatcher;
use super::lane::{ChannelServer, LaneOnChannel, LaneRole};
use super::lane_set::LaneSet;
use super::pacing::SessionRateLimits;
use super::pending_disk_ops::PendingDiskOps;
use super::sftp_server_selector::{STARTS, SftpServerSelector};
use super::{ConnectionOpener, Link, SessionEvent, SessionOptions};
use crate::timeline::Timeline;

/// Bytes that answers may take beyond the depth: one more READ, and headers.
const ANSWERS_BEYOND: u64 = 512 << 10;

/// Settings of lanes that are opened from now on.
#[derive(Clone, Copy, Debug)]
struct LaneSettings {
    /// Predict handles if the server allows it.
    predict: bool,
    /// Yield to other traffic.
    background: bool,
    /// An earlier run found the path slower than compression.
    slow: bool,
    /// Largest number of requests in flight.
    most_requests: Option<u64>,
    /// Largest READ and WRITE in bytes.
    buffer: Option<u32>,
    /// Lower bound of the bytes in flight.
    min_in_flight: Option<u64>,
    pack: CompressionMode,
    told: Told,
    /// Requests that the stock server was found to refuse.
    refusals: RefusedOperations,
}

/// Assigns the jobs of a session to its lanes, and moves what lanes and scheduler have to say to
/// links and disk.
pub(super) struct Dispatcher {
    connections: ConnectionSet,
    lanes: LaneSet,
    scheduler: Scheduler,
    disk: Box<dyn DiskExecutor>,
    pending: PendingDiskOps,
    /// Ended lanes that still have requests at the disk.
    releasing: Vec<ReleasingLane>,
    settings: LaneSettings,
    /// Directories below which no symlink is followed at the far end.
    roots: Vec<RemotePath>,
    random: fn(&mut [u8]),
    /// Number of changes that no lane's or scheduler's revision counts.
    changes: u64,
}

/// An ended lane that still has requests at the disk.
#[derive(Debug)]
struct ReleasingLane {
    lane: LaneId,
    temporaries: Vec<(JobId, RemotePath)>,
    why: String,
}

/// Facts about a lane's server that draining the lane's events has revealed.
#[derive(Debug, Default)]
pub(super) struct LearnedLaneFacts {
    /// Directory against which the lane's server resolves relative paths.
    pub starts: Option<Vec<u8>>,
    /// Requests that the stock server refuses, if some were not known before.
    pub refusals: Option<RefusedOperations>,
}

impl Dispatcher {
    /// `random` fills a slice with random bytes, for the names of temporaries.
    pub(super) fn new(
        now: Instant,
        options: &SessionOptions,
        disk: Box<dyn DiskExecutor>,
        random: fn(&mut [u8]),
    ) -> Self {
        let split = options.connection_source.is_some() || options.channels.is_none_or(|n| n > 1);
        let scheduler = SchedulerOptions {
            split,
            one_handle: (options.connections, options.channels) == (Some(1), Some(1)),
            overtake: options.limit.is_none() && !options.background,
            ..SchedulerOptions::default()
        };
        let refusals = |connection_source: &Arc<dyn ConnectionOpener>| connection_source.refusals();
        Self {
            connections: ConnectionSet::new(options.limit),
            lanes: LaneSet::default(),
            scheduler: Scheduler::new(scheduler, now),
            disk,
            pending: PendingDiskOps::default(),
            releasing: Vec::new(),
            settings: LaneSettings {
                predict: options.predict,
                background: options.background,
                slow: false,
                most_requests: options.requests,
                buffer: options.buffer,
                min_in_flight: options.min_in_flight,
                pack: options.pack,
                told: options.told,
                refusals: options
                    .connection_source
                    .as_ref()
                    .map_or_else(RefusedOperations::default, refusals),
            },
            roots: Vec::new(),
            random,
            changes: 0,
        }
    }

    pub(super) fn connections(&self) -> &ConnectionSet {
        &self.connections
    }

    pub(super) fn connections_mut(&mut self) -> &mut ConnectionSet {
        &mut self.connections
    }

    pub(super) fn lanes(&self) -> &LaneSet {
        &self.lanes
    }

    pub(super) fn lanes_mut(&mut self) -> &mut LaneSet {
        &mut self.lanes
    }

    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(super) fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Changes with every change of a lane, of the scheduler, or of the set of lanes and
    /// connections.
    pub(super) fn revision(&self) -> (u64, u64) {
        let lanes = self.lanes.iter().map(|on| on.lane().revision());
        let all = lanes.fold(self.scheduler.revision(), u64::wrapping_add);
        (all, self.changes)
    }

    /// True if a component holds output for another one.
    pub(super) fn has_more(&self) -> bool {
        self.scheduler.has_more() || self.lanes.iter().any(|on| on.lane().has_more())
    }

    /// Notes a change that no revision counts.
    pub(super) fn note_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }

    /// Stops predicting handles on further lanes.
    pub(super) fn stop_predicting(&mut self) {
        self.settings.predict = false;
    }

    /// Sets if an earlier run found the path slower than compression.
    pub(super) fn set_slow(&mut self, slow: bool) {
        self.settings.slow = slow;
    }

    /// Limits the requests in flight on every lane, present and future.
    pub(super) fn limit_requests(&mut self, most: u64) {
        let most = self.settings.most_requests.map_or(most, |m| m.min(most));
        self.settings.most_requests = Some(most);
        for on in self.lanes.iter_mut() {
            on.lane_mut().limit_requests(most);
        }
    }

    /// Has lanes to a longhaul follow no symlink below `root`, present and future ones. Jobs that
    /// are pushed later are carried out accordingly.
    pub(super) fn hold_root(&mut self, now: Instant, root: RemotePath) {
        for on in self.lanes.iter_mut() {
            on.lane_mut().hold_root(now, &root);
        }
        self.roots.push(root);
    }

    /// Replaces the local file of a job.
    pub(super) fn bind(&mut self, id: JobId, file: LocalStandIn) {
        self.pending.set_relayed(id);
        self.disk.bind(id, file);
    }

    pub(super) fn disk(&self) -> &dyn DiskExecutor {
        self.disk.as_ref()
    }

    pub(super) fn disk_mut(&mut self) -> &mut dyn DiskExecutor {
        self.disk.as_mut()
    }

    /// Adds a connection whose link is registered.
    pub(super) fn add_connection(&mut self, now: Instant, link: Box<dyn Link>) -> ConnectionId {
        self.scheduler.set_cuts(link.cuts());
        self.connections.add(now, link)
    }

    /// Opens a lane and reports it to the scheduler. A lane to a longhaul that a command starts
    /// falls back to the stock server if the connection runs no commands.
    pub(super) fn open_lane(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        role: LaneRole,
        remote: &SftpServerSelector,
    ) -> Option<LaneId> {
        let served = remote.is_ours() && !self.connections.is_direct(connection);
        let served = served.then_some(ChannelServer::Command);
        let mut servers = served.into_iter().chain([ChannelServer::Stock]);
        let on = servers.find_map(|server| self.new_lane(now, connection, role, server, remote))?;
        let id = on.id();
        self.add_lane(now, on);
        Some(id)
    }

    /// Adds a lane of [`Dispatcher::new_lane`] and reports it to the scheduler.
    pub(super) fn add_lane(&mut self, now: Instant, on: LaneOnChannel) {
        let report = LaneReport::of(on.lane());
        self.scheduler
            .lane_opened(now, on.id(), on.is_listing(), report);
        self.lanes.push(on);
        self.note_change();
    }

    /// Opens a lane for requests that block a server's channel, such as fsync, and one for listings
    /// beside a lane that predicts handles. `one` means that the user allows one channel only.
    /// Returns a lane that must be replaced by one without predictions, because the server grants
    /// no other channel for a listing.
    pub(super) fn open_side_lanes(
        &mut self,
        now: Instant,
        one: bool,
        remote: &SftpServerSelector,
    ) -> Option<LaneId> {
        if self.scheduler.wants_side_lane() {
            let may =
                |on: &SessionConnection| on.takes_side_channels() && !on.is_retiring() && !one;
            let id = self.connections.preferred(may).into_iter().next();
            let opened = id.is_some_and(|id| self.open_side_lane(now, id, remote));
            self.scheduler.set_no_side_lane(!opened);
        }
        self.report_lanes(now);
        if !self.scheduler.needs_listing_lane() {
            return None;
        }
        let side = self
            .connections
            .preferred(SessionConnection::takes_side_channels);
        if let Some(id) = side.into_iter().next() {
            self.open_side_lane(now, id, remote);
            return None;
        }
        if !self.scheduler.lists_are_stuck() {
            return None;
        }
        let mut lanes = self.lanes.iter();
        lanes.find(|on| on.lane().predicts()).map(|on| on.id())
    }

    /// Opens a lane beside others. Notes a connection that grants none.
    fn open_side_lane(
        &mut self,
        now: Instant,
        on: ConnectionId,
        remote: &SftpServerSelector,
    ) -> bool {
        let opened = self.open_lane(now, on, LaneRole::Listing, remote);
        if opened.is_none()
            && let Some(on) = self.connections.get_mut(on)
        {
            on.note_one_channel();
            self.note_change();
        }
        opened.is_some()
    }

    /// Opens a channel and creates a lane on it that the scheduler does not know yet.
    pub(super) fn new_lane(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        role: LaneRole,
        server: ChannelServer,
        remote: &SftpServerSelector,
    ) -> Option<LaneOnChannel> {
        let on = self.connections.get_mut(connection)?;
        let peer = on.link().peer()?;
        let channel = match server {
            ChannelServer::Command => on.link_mut().open_served()?,
            ChannelServer::Stock => on.link_mut().open_channel()?,
        };
        let id = on.next_lane();
        let mut config = LaneConfig::new(on.link().pool(), Box::new(self.random));
        config.openssh = peer.openssh;
        config.ours = server == ChannelServer::Command || on.is_direct();
        config.remembered = remote.remembered(&peer, server);
        self.settings.configure(&mut config, role);
        config.roots.clone_from(&self.roots);
        let mut lane = Lane::new(config, now);
        if let Some(most) = self.settings.most_requests {
            lane.limit_requests(most);
        }
        if self.settings.background {
            // Set a pace of zero before anything is drained; the pacer grants more.
            lane.set_pace(now, 0);
        }
        Some(LaneOnChannel::new(now, (id, channel), lane, role, server))
    }

    /// Reports changed lane capacities to the scheduler.
    pub(super) fn report_lanes(&mut self, now: Instant) {
        for on in self.lanes.iter_mut() {
            if let Some(report) = on.changed_report() {
                self.scheduler.lane_reports(now, on.id(), report);
            }
        }
    }

    /// Carries out the scheduler's orders up to one that closes a lane, which is returned. The
    /// first value is true if there was any order.
    pub(super) fn carry_out_orders(&mut self, now: Instant) -> (bool, Option<LaneId>) {
        let mut any = false;
        while let Some(order) = self.scheduler.poll_order() {
            any = true;
            match order {
                LaneOrder::Push(lane, job) => {
                    if let Some(on) = self.lanes.get_mut(lane) {
                        on.assign(now, job);
                    }
                }
                LaneOrder::Abandon(lane, job) => {
                    if let Some(on) = self.lanes.get_mut(lane) {
                        on.lane_mut().abandon(now, job);
                    }
                }
                LaneOrder::Close(lane) => return (any, Some(lane)),
            }
        }
        (any, None)
    }

    /// Lets the lanes of a background copy request and send as much as other traffic leaves free.
    pub(super) fn pace(&mut self, now: Instant, pacing: &mut SessionRateLimits) {
        if !pacing.is_background() || self.scheduler.is_idle() {
            return;
        }
        let first = self.lanes.first();
        let journal = self.scheduler.keeps();
        let connection = self.connections.first();
        let tcp = || connection.and_then(|on| on.link().sample().tcp);
        pacing.yield_to_others(now, self.lanes.as_mut_slice(), first, tcp, journal);
    }

    /// Passes the scheduler's disk requests to the disk, and its events on. The states that files
    /// reach are recorded in the timeline.
    pub(super) fn forward(
        &mut self,
        now: Instant,
        events: &mut EventBatcher,
        timeline: Option<&Timeline>,
    ) {
        while let Some(request) = self.scheduler.poll_disk() {
            self.pending.asked(request.job(), None);
            self.disk.submit(request);
        }
        while let Some(event) = self.scheduler.poll_event() {
            match event {
                SchedulerEvent::Lane(event) => {
                    if event.is_last() && self.pending.ended(event.job()) {
                        self.disk.release(event.job());
                    }
                    if let (Some(timeline), LaneEvent::State(job, state)) = (timeline, &event) {
                        timeline.file(*job, *state);
                    }
                    events.tell(now, SessionEvent::Lane(event));
                }
                SchedulerEvent::Restarted(id) => events.tell(now, SessionEvent::Restarted(id)),
            }
        }
    }

    /// Passes the replies of the disk to those who requested them. Returns true if there were any.
    pub(super) fn take_replies(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(reply) = self.disk.poll_reply() {
            any = true;
            match self.pending.replied(&reply) {
                Some(Some(lane)) => {
                    if let Some(on) = self.lanes.get_mut(lane) {
                        on.lane_mut().handle_disk(now, reply);
                    }
                }
                Some(None) => self.scheduler.handle_disk(now, reply),
                None => {}
            }
        }
        self.recover(now);
        any
    }

    /// Moves the output of all lanes to links, disk and scheduler, within the limits of `pacing`.
    pub(super) fn drain(
        &mut self,
        now: Instant,
        pacing: &mut SessionRateLimits,
    ) -> LearnedLaneFacts {
        let mut news = LearnedLaneFacts::default();
        let journal = self.scheduler.keeps();
        let mut budget = pacing.budget(now, self.lanes.as_mut_slice(), journal);
        let count = self.lanes.as_slice().len();
        for turn in 0..count {
            let at = (self.lanes.first() + turn) % count;
            let Some(on) = self.lanes.as_mut_slice().get_mut(at) else {
                continue;
            };
            news.merge(drain_events(now, on, &mut self.scheduler));
            let paced = on.lane().paced();
            let in_flight = on.lane().stats().bytes_in_flight;
            if let Some(pace) = budget.of_lane(in_flight) {
                on.lane_mut().set_pace(now, pace);
            }
            let Some(connection) = self.connections.get_mut(on.connection()) else {
                continue;
            };
            let disk = self.disk.as_mut();
            let answered = drain_disk(now, on, disk, &mut self.pending);
            drain_output(now, on, connection, pacing);
            budget.spend(on.lane().paced() - paced);
            if answered {
                news.merge(drain_events(now, on, &mut self.scheduler));
            }
        }
        self.share_refusals(&mut news);
        news
    }

    /// Shares the stock server's refused requests with all its lanes, so that no other lane has to
    /// try them. Leaves those in `news` that were not known.
    fn share_refusals(&mut self, news: &mut LearnedLaneFacts) {
        let known = self.settings.refusals;
        let found = news.refusals.take().map(|found| known.and(found));
        let Some(all) = found.filter(|all| *all != known) else {
            return;
        };
        self.settings.refusals = all;
        for on in self.lanes.iter_mut().filter(|on| !on.is_served()) {
            on.lane_mut().note_refusals(all);
        }
        news.refusals = Some(all);
    }

    /// Notes which channels' windows hold data back, and for how long.
    pub(super) fn note_windows(&mut self, now: Instant) {
        for on in self.lanes.iter_mut() {
            if let Some(connection) = self.connections.get_mut(on.connection()) {
                let window = connection.link_mut().send_window(on.channel());
                on.note_window(now, window.stalled);
            }
        }
    }

    /// Samples each connection for the timeline, if a sample is due.
    pub(super) fn record_connections(&mut self, now: Instant) {
        let lanes = &self.lanes;
        for on in self.connections.iter_mut() {
            let id = on.id();
            on.record(now, || {
                let of = lanes.iter().filter(|lane| lane.connection() == id);
                of.fold(
                    (false, false, false),
                    |(answered, blocked, awaits), lane| {
                        (
                            answered || lane.answered().1.is_some(),
                            blocked || lane.is_blocked(),
                            awaits || lane.lane().stats().bytes_in_flight > 0,
                        )
                    },
                )
            });
        }
    }

    /// Lets a lane finish its work without new jobs, and then closes it.
    pub(super) fn retire_lane(&mut self, id: LaneId) {
        if let Some(on) = self.lanes.get_mut(id) {
            on.retire();
            self.scheduler.retire(id);
        }
    }

    /// Lets a connection and its lanes finish their work without new jobs.
    pub(super) fn retire_connection(&mut self, id: ConnectionId) {
        if let Some(on) = self.connections.get_mut(id) {
            on.retire();
        }
        self.retire_lanes(|on| on.connection() == id);
    }

    /// Lets all lanes for which `which` is true finish their work without new jobs.
    pub(super) fn retire_lanes(&mut self, which: impl Fn(&LaneOnChannel) -> bool) {
        for on in self.lanes.iter_mut().filter(|on| which(on)) {
            on.retire();
            self.scheduler.retire(on.id());
        }
    }

    /// Closes the channel of a lane that has ended. A listing lane that the server closed shows
    /// that the connection carries one channel only.
    pub(super) fn close_channel(&mut self, id: LaneId, error: &LaneError) {
        let Some(on) = self.lanes.get(id) else { return };
        let (channel, listing) = (on.channel(), on.is_listing());
        if let Some(connection) = self.connections.get_mut(id.connection) {
            connection.link_mut().close_channel(channel);
            let is_closed = matches!(
                error,
                LaneError::Closed(_) | LaneError::GivenUp(_) | LaneError::NoLonghaul(_)
            );
            if listing && is_closed {
                connection.note_one_channel();
            }
        }
        self.lanes.channel_closed(channel, id);
    }

    /// Removes a lane. The scheduler is informed once the disk has released the lane's files.
    pub(super) fn remove_lane(
        &mut self,
        now: Instant,
        id: LaneId,
        why: &LaneError,
    ) -> LearnedLaneFacts {
        let Some(on) = self.lanes.get_mut(id) else {
            return LearnedLaneFacts::default();
        };
        let mut news = drain_events(now, on, &mut self.scheduler);
        self.share_refusals(&mut news);
        let Some(on) = self.lanes.remove(id) else {
            return news;
        };
        let mut lane = on.into_lane();
        let mut left = Vec::new();
        left.extend(std::iter::from_fn(|| lane.poll_disk()));
        let mut unfinished = lane.into_unfinished();
        if self.was_never_served(id.connection) {
            unfinished.temporaries.clear();
        }
        left.extend(unfinished.releases);
        for request in left {
            self.pending.asked(request.job(), Some(id));
            self.disk.submit(request);
        }
        self.note_change();
        self.scheduler.retire(id);
        self.releasing.push(ReleasingLane {
            lane: id,
            temporaries: unfinished.temporaries,
            why: why.to_string(),
        });
        news
    }

    /// True if the server has carried out no request on the connection, since its login failed.
    fn was_never_served(&self, connection: ConnectionId) -> bool {
        let on = self.connections.get(connection);
        on.is_some_and(|on| on.link().was_never_served())
    }

    /// Returns the jobs of ended lanes to the scheduler once the disk has released their files.
    pub(super) fn recover(&mut self, now: Instant) {
        let pending = &self.pending;
        let free = |on: &mut ReleasingLane| pending.is_quit(on.lane);
        for on in self.releasing.extract_if(.., free) {
            self.scheduler
                .lane_lost(now, on.lane, on.temporaries, &on.why);
        }
    }

    /// Tells the scheduler that the unsent data of the connection's lanes will not leave this
    /// machine.
    pub(super) fn cut_lanes(&mut self, now: Instant, connection: ConnectionId) {
        if self
            .connections
            .get(connection)
            .is_some_and(|on| on.link().cuts())
        {
            for on in self.lanes.iter().filter(|on| on.connection() == connection) {
                self.scheduler.lane_is_cut(now, on.id());
            }
        }
    }

    /// Removes all lanes on a connection.
    pub(super) fn remove_lanes_on(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        why: &LaneError,
    ) -> LearnedLaneFacts {
        let on = |on: &&LaneOnChannel| on.connection() == connection;
        let ids: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(on)
            .map(LaneOnChannel::id)
            .collect();
        let mut news = LearnedLaneFacts::default();
        for id in ids {
            news.merge(self.remove_lane(now, id, why));
        }
        news
    }

    /// Closes retired lanes that have no work left.
    pub(super) fn close_free_lanes(&mut self, now: Instant) {
        let scheduler = &self.scheduler;
        let free = |on: &&LaneOnChannel| {
            on.is_retiring() && on.lane().is_idle() && scheduler.lane_is_free(on.id())
        };
        let ids: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(free)
            .map(LaneOnChannel::id)
            .collect();
        for id in ids {
            let Some(on) = self.lanes.remove(id) else {
                continue;
            };
            let given_back = "closed because it did not raise the rate";
            self.scheduler.lane_lost(now, id, Vec::new(), given_back);
            if let Some(connection) = self.connections.get_mut(id.connection) {
                connection.link_mut().close_channel(on.channel());
            }
        }
    }

    /// Gives up all work, with this reason. Events of failed jobs name the temporaries that may be
    /// left at the far end.
    pub(super) fn lose(&mut self, now: Instant, why: &str) -> Vec<LaneEvent> {
        for on in self.lanes.iter_mut() {
            drain_events(now, on, &mut self.scheduler);
        }
        let lanes = self.lanes.take_all().into_iter();
        let lanes = lanes.filter(|on| !self.was_never_served(on.connection()));
        let lanes = lanes.flat_map(|on| on.into_lane().into_unfinished().temporaries);
        let mut left: BTreeMap<JobId, RemotePath> = lanes.collect();
        self.scheduler.lose(now, why);
        while let Some(request) = self.scheduler.poll_disk() {
            self.disk.submit(request);
        }
        let mut events = Vec::new();
        while let Some(event) = self.scheduler.poll_event() {
            let SchedulerEvent::Lane(mut event) = event else {
                continue;
            };
            if let LaneEvent::Failed(id, fault) = &mut event
                && let Some(path) = left.remove(id)
            {
                fault.leaves(&path);
            }
            events.push(event);
        }
        events
    }

    /// Gives a job of the session itself to a lane, past the scheduler.
    pub(super) fn ask_lane(&mut self, now: Instant, lane: LaneId, job: Job) {
        if let Some(on) = self.lanes.get_mut(lane) {
            on.lane_mut().push(now, job);
        }
    }
}

impl LaneSettings {
    fn configure(&self, config: &mut LaneConfig, role: LaneRole) {
        config.pack = self.pack;
        config.told = self.told;
        config.slow = self.slow;
        if !config.ours {
            config.refusals = self.refusals;
        }
        config.predict = self.predict && role == LaneRole::Data;
        if self.background {
            config.length = LENGTH;
        }
        if let Some(buffer) = self.buffer {
            config.length = config.length.min(buffer);
        }
        if let Some(least) = self.min_in_flight {
            config.bytes.min = least;
        }
    }
}

impl LearnedLaneFacts {
    fn merge(&mut self, other: Self) {
        self.starts = other.starts.or_else(|| self.starts.take());
        self.refusals = match (self.refusals, other.refusals) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (a, b) => a.or(b),
        };
    }
}

/// Passes the events of a lane to the scheduler.
fn drain_events(
    now: Instant,
    on: &mut LaneOnChannel,
    scheduler: &mut Scheduler,
) -> LearnedLaneFacts {
    let mut news = LearnedLaneFacts::default();
    let mut refused = false;
    while let Some(event) = on.lane_mut().poll_event() {
        if event.job() == STARTS {
            if let LaneEvent::Path(_, path) = event {
                news.starts = Some(path);
            }
            continue;
        }
        if let LaneEvent::Progress(_, n) = event {
            on.confirmed(n);
        }
        refused |= matches!(event, LaneEvent::Refused(..)) && !on.is_served();
        scheduler.handle_lane(now, on.id(), event);
    }
    news.refusals = refused.then(|| on.lane().refusals());
    news
}

/// Passes the disk requests of a lane to the disk. Returns true if one was answered at once.
fn drain_disk(
    now: Instant,
    on: &mut LaneOnChannel,
    disk: &mut dyn DiskExecutor,
    pending: &mut PendingDiskOps,
) -> bool {
    let (id, lane) = (on.id(), on.lane_mut());
    let mut answered = false;
    while let Some(request) = lane.poll_disk() {
        let job = request.job();
        match disk.submit_inline(request) {
            Some(reply) => {
                lane.handle_disk(now, reply);
                answered = true;
            }
            None => pending.asked(job, Some(id)),
        }
    }
    answered
}

/// Passes the output of a lane to its link, as far as link and limits have room.
fn drain_output(
    now: Instant,
    on: &mut LaneOnChannel,
    connection: &mut SessionConnection,
    pacing: &mut SessionRateLimits,
) {
    let (channel, lane) = (on.channel(), on.lane_mut());
    let link = connection.link_mut();
    lane.set_output_room(pacing.room(now, link.room(channel)));
    let depth = lane.stats().bytes_depth;
    // Answers carry headers, and a lane runs slightly beyond its depth.
    link.expect(channel, depth + depth / 64 + ANSWERS_BEYOND);
    while let Some(output) = lane.poll_output() {
        pacing.spend(output.len());
        link.send(channel, output);
    }
}
