//! Session with a simulated host: the real scheduler and lanes, a modelled SFTP server and path.
//! Lost lanes and connections are handled as `session::SessionLoop` does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{
    CompressionMode, ConnectionId, DiskRequest, Job, JobHint, JobId, Lane, LaneConfig, LaneEvent,
    LaneId, LaneOrder, LaneReport, RemotePath, Scheduler, SchedulerEvent, SchedulerOptions,
};
use sftp::{ClientOutput, ServerInfo};
use testkit::sftp_model::{
    Fs, InjectedFault, Link, Rng, SftpModel, SftpServerProfile, VirtualLinkOptions,
};
use wire::PacketPool;

use super::disk::{Around, SimDisk};
use crate::disk::{HostToHostBuffer, ReadBackCheck};
use crate::session::SessionEvent;
use crate::sums::ChecksumLedger;

/// Time until there is a new connection.
const RECONNECTS: Duration = Duration::from_millis(700);
/// Time for the end of a channel to be reported.
const CLOSES: Duration = Duration::from_millis(50);

/// The host: its disk and its server.
pub(super) struct Host {
    pub(super) fs: Fs,
    pub(super) personality: SftpServerProfile,
    /// Bytes of file data that WRITEs and READs have moved.
    pub(super) written: u64,
    /// Number of times that requests have reached it.
    pub(super) reached: u64,
    /// The server's checksums are those of other data.
    pub(super) lies_about_sums: bool,
    /// Names that it adds to each listing.
    pub(super) hostile_names: Vec<Vec<u8>>,
    /// The host is this machine, whose files its servers serve.
    pub(super) is_this_machine: bool,
}

struct OnLane {
    lane: Lane,
    model: SftpModel,
    reported: LaneReport,
    up: Link,
    down: Link,
}

/// Lost lane with requests at the disk.
struct Ending {
    lane: LaneId,
    temporaries: Vec<(JobId, RemotePath)>,
    why: String,
}

/// Shape of the path and the session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) connections: u32,
    pub(super) lanes: u32,
    pub(super) delay: Duration,
    pub(super) bandwidth: u64,
    pub(super) predict: bool,
    /// The server says that it is OpenSSH's.
    pub(super) openssh: bool,
    /// Size in bytes from which files are cut.
    pub(super) cut_from: u64,
    /// Bytes moved below which a lost session is not resumed.
    pub(super) worth: u64,
    /// Bytes that a lane may have in flight.
    pub(super) depth: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            connections: 1,
            lanes: 1,
            delay: Duration::from_millis(10),
            bandwidth: 100_000_000,
            predict: true,
            openssh: true,
            cut_from: SchedulerOptions::default().split_from,
            worth: 4 << 20,
            depth: 16 << 20,
        }
    }
}

/// Session of the copy with the host.
pub(super) struct SimSession {
    scheduler: Scheduler,
    lanes: BTreeMap<LaneId, OnLane>,
    shape: Shape,
    pub(super) disk: SimDisk,
    /// Lost lanes whose requests are still on their way.
    undead: Vec<(LaneId, OnLane)>,
    overs: Vec<(Instant, LaneId)>,
    ending: Vec<Ending>,
    /// Disk requests without a reply: the lane, or the scheduler, and their number.
    asked: BTreeMap<JobId, (Option<LaneId>, usize)>,
    relayed: BTreeSet<JobId>,
    events: VecDeque<SessionEvent>,
    next_channel: u32,
    next_connection: u32,
    /// Time of the new connection, while there is none.
    again: Option<Instant>,
    leaving: bool,
    pub(super) over: bool,
    pub(super) info: Option<ServerInfo>,
    seed: u64,
}

/// Everything outside of a session that it changes.
pub(super) struct Outside<'a> {
    pub(super) now: Instant,
    pub(super) host: &'a mut Host,
    pub(super) local: &'a mut Fs,
    pub(super) ledger: Option<&'a ChecksumLedger>,
    pub(super) rng: &'a mut Rng,
}

impl SimSession {
    pub(super) fn new(shape: Shape, seed: u64, outside: &Outside<'_>) -> Self {
        let usual = SchedulerOptions::default();
        let options = SchedulerOptions {
            split_from: shape.cut_from,
            least: usual.least.min(shape.cut_from / 4),
            ..usual
        };
        let mut session = Self {
            scheduler: Scheduler::new(options, outside.now),
            lanes: BTreeMap::new(),
            shape,
            disk: SimDisk::default(),
            undead: Vec::new(),
            overs: Vec::new(),
            ending: Vec::new(),
            asked: BTreeMap::new(),
            relayed: BTreeSet::new(),
            events: VecDeque::new(),
            next_channel: 0,
            next_connection: 0,
            again: None,
            leaving: false,
            over: false,
            info: None,
            seed,
        };
        for _ in 0..shape.connections {
            session.connect(outside);
        }
        session
    }

    /// Adds a connection with its lanes.
    fn connect(&mut self, outside: &Outside<'_>) {
        self.next_connection += 1;
        for _ in 0..self.shape.lanes {
            self.next_channel += 1;
            let id = LaneId {
                connection: ConnectionId(self.next_connection),
                channel: self.next_channel,
            };
            let link = VirtualLinkOptions {
                delay: self.shape.delay,
                bandwidth: self.shape.bandwidth,
                fragment: 512 << 10,
            };
            let seed = self.seed.wrapping_add(u64::from(self.next_channel) * 8);
            let mut rng = Rng::new(seed);
            let pool = PacketPool::new(32 * 1024, 64);
            let mut config = LaneConfig::new(pool, Box::new(move |bytes| rng.fill(bytes)));
            config.openssh = self.shape.openssh;
            config.predict = self.shape.predict;
            config.pack = CompressionMode::Never;
            config.bytes.max = self.shape.depth;
            config.bytes.min = config.bytes.min.min(self.shape.depth);
            config.bytes.initial = config.bytes.initial.min(self.shape.depth);
            config.remembered = self.info.clone();
            let lane = Lane::new(config, outside.now);
            let reported = LaneReport::of(&lane);
            let mut model = SftpModel::new(Fs::default(), outside.host.personality.clone());
            model.lies_about_sums = outside.host.lies_about_sums;
            for name in &outside.host.hostile_names {
                model.add_hostile_names(&[name]);
            }
            let on = OnLane {
                lane,
                model,
                reported,
                up: Link::new(link, seed + 1),
                down: Link::new(link, seed + 2),
            };
            self.scheduler.lane_opened(outside.now, id, false, reported);
            self.lanes.insert(id, on);
        }
    }

    pub(super) fn submit(&mut self, now: Instant, job: Job, size: Option<u64>) {
        let relayed = false;
        self.scheduler.push(now, job, JobHint { size, relayed });
    }

    pub(super) fn submit_relayed(
        &mut self,
        now: Instant,
        job: Job,
        relay: Arc<HostToHostBuffer>,
        size: Option<u64>,
    ) {
        self.relayed.insert(job.id);
        self.disk.bind_relay(job.id, relay);
        let relayed = true;
        self.scheduler.push(now, job, JobHint { size, relayed });
    }

    /// Checks that a session with unfinished jobs has something that will wake it: something on its
    /// way, a time to wait for, or a request that a buffer between the hosts has not answered.
    pub(super) fn check_wakes(&self) {
        let waits = self.next().is_some() || self.has_event() || self.over;
        let jobs = self.scheduler.stats().jobs;
        let mut asked = self.asked.keys();
        assert!(
            waits || jobs == 0 || asked.any(|job| self.disk.is_relayed(*job)),
            "nothing will wake a session with {jobs} jobs"
        );
    }

    /// Unfinished work, for the message of a copy that stands still.
    pub(super) fn unfinished(&self) -> String {
        let next = self.next();
        let stats = self.scheduler.stats();
        let asked = &self.asked;
        format!(
            "over {}, next {next:?}, {stats:?}, at the disk: {asked:?}",
            self.over
        )
    }

    /// Takes the replies that buffers between the hosts have given.
    pub(super) fn take_relayed(&mut self, now: Instant) {
        self.disk.take_relayed(now);
    }

    pub(super) fn submit_check(&mut self, now: Instant, job: Job, check: Arc<ReadBackCheck>) {
        self.relayed.insert(job.id);
        self.disk.bind_check(job.id, check);
        let hint = JobHint {
            size: None,
            relayed: true,
        };
        self.scheduler.push(now, job, hint);
    }

    pub(super) fn stop(&mut self, now: Instant, reason: &str, leave: bool) {
        self.leaving = true;
        if let Some(again) = self.again.take() {
            let _ = again;
            self.lose(now, reason);
            return;
        }
        match leave {
            true => self.scheduler.cancel_resumable(now, reason),
            false => self.scheduler.cancel(now, reason),
        }
        for on in self.lanes.values_mut() {
            match leave {
                true => on.lane.cancel_resumable(now, reason),
                false => on.lane.cancel(now, reason),
            }
        }
    }

    pub(super) fn take_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    pub(super) fn tell(&mut self, event: SessionEvent) {
        self.events.push_back(event);
    }

    pub(super) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Injects a fault into a request of one of the servers.
    pub(super) fn inject(&mut self, nth: u64, inject: InjectedFault) {
        let at = nth as usize % self.lanes.len().max(1);
        if let Some(on) = self.lanes.values_mut().nth(at) {
            on.model.inject(inject);
        }
    }

    /// Loses all connections because the host has restarted: nothing that was on its way arrives.
    pub(super) fn lose_host(&mut self, outside: &mut Outside<'_>) {
        self.lose_connection(true, outside);
        for (id, _) in std::mem::take(&mut self.undead) {
            self.overs.push((outside.now + CLOSES, id));
        }
    }

    /// Loses one connection, or all of them.
    pub(super) fn lose_connection(&mut self, all: bool, outside: &mut Outside<'_>) {
        let Some(first) = self.lanes.keys().next().map(|id| id.connection) else {
            return;
        };
        let lost = |id: &&LaneId| all || id.connection == first;
        let ids: Vec<LaneId> = self.lanes.keys().filter(lost).copied().collect();
        let last = ids.len() == self.lanes.len();
        let moved = self.scheduler.stats().moved;
        if last && (moved < self.shape.worth || self.info.is_none() || self.leaving) {
            return self.lose(outside.now, "the connection was lost");
        }
        for id in ids {
            self.lose_lane(id, "the connection was lost", outside);
        }
        if last {
            self.again = Some(outside.now + RECONNECTS);
        }
        self.recover(outside.now);
    }

    fn lose_lane(&mut self, id: LaneId, why: &str, outside: &mut Outside<'_>) {
        self.drain_lane(id, outside);
        self.scheduler.retire(id);
        let Some(mut on) = self.lanes.remove(&id) else {
            return;
        };
        while let Some(request) = on.lane.poll_disk() {
            self.ask_disk(Some(id), request, outside);
        }
        let config = LaneConfig::new(PacketPool::new(1024, 1), Box::new(|_| {}));
        let lane = std::mem::replace(&mut on.lane, Lane::new(config, outside.now));
        let mut left = lane.into_unfinished();
        for request in left.releases.drain(..) {
            self.ask_disk(Some(id), request, outside);
        }
        self.ending.push(Ending {
            lane: id,
            temporaries: left.temporaries,
            why: why.to_owned(),
        });
        self.undead.push((id, on));
    }

    /// Ends the session: every job fails.
    fn lose(&mut self, now: Instant, why: &str) {
        if self.over {
            return;
        }
        self.tell(SessionEvent::AboutToFail(why.to_owned()));
        let mut left = BTreeMap::new();
        for (id, on) in std::mem::take(&mut self.lanes) {
            self.scheduler.retire(id);
            left.extend(on.lane.into_unfinished().temporaries);
        }
        self.scheduler.lose(now, why);
        while let Some(event) = self.scheduler.poll_event() {
            let event = match event {
                SchedulerEvent::Lane(LaneEvent::Failed(id, mut fault)) => {
                    if let Some(path) = left.remove(&id) {
                        fault.leaves(&path);
                    }
                    LaneEvent::Failed(id, fault)
                }
                SchedulerEvent::Lane(event) => event,
                SchedulerEvent::Restarted(_) => continue,
            };
            self.tell(SessionEvent::Lane(event));
        }
        self.tell(SessionEvent::Lost(why.to_owned()));
        self.over = true;
    }

    fn recover(&mut self, now: Instant) {
        let owed: BTreeSet<LaneId> = self.asked.values().filter_map(|(lane, _)| *lane).collect();
        let ending = std::mem::take(&mut self.ending);
        let (out, settled): (Vec<Ending>, Vec<Ending>) =
            ending.into_iter().partition(|e| owed.contains(&e.lane));
        self.ending = out;
        for end in settled {
            self.scheduler
                .lane_lost(now, end.lane, end.temporaries, &end.why);
        }
    }

    fn ask_disk(&mut self, lane: Option<LaneId>, request: DiskRequest, outside: &mut Outside<'_>) {
        let asked = self.asked.entry(request.job()).or_insert((lane, 0));
        *asked = (lane, asked.1 + 1);
        let mut around = Around {
            fs: outside.local,
            ledger: outside.ledger,
            rng: outside.rng,
        };
        self.disk.handle(outside.now, request, &mut around);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        let lanes = self.lanes.values();
        let arrivals = lanes.flat_map(|on| [on.up.next_arrival(), on.down.next_arrival()]);
        let undead = self.undead.iter().map(|(_, on)| on.up.next_arrival());
        let overs = self.overs.iter().map(|(at, _)| Some(*at));
        let rest = [self.disk.next(), self.scheduler.poll_timeout(), self.again];
        let all = arrivals.chain(undead).chain(overs).chain(rest);
        all.flatten().min()
    }

    /// Carries out everything that is due now.
    pub(super) fn turn(&mut self, outside: &mut Outside<'_>) {
        if self.over {
            return;
        }
        if self.again.is_some_and(|at| at <= outside.now) {
            self.again = None;
            self.scheduler.forgive();
            self.connect(outside);
            self.tell(SessionEvent::Reconnected);
        }
        self.deliver(outside);
        let due = |at: Instant| at <= outside.now;
        if self.scheduler.poll_timeout().is_some_and(due) {
            self.scheduler.handle_timeout(outside.now);
        }
        while self.drain(outside) {}
    }

    fn drain(&mut self, outside: &mut Outside<'_>) -> bool {
        let now = outside.now;
        for (id, on) in &mut self.lanes {
            let report = LaneReport::of(&on.lane);
            if report != std::mem::replace(&mut on.reported, report) {
                self.scheduler.lane_reports(now, *id, report);
            }
            if self.info.is_none() {
                self.info = on.lane.server_info().cloned();
            }
        }
        let mut any = false;
        while let Some(order) = self.scheduler.poll_order() {
            any = true;
            match order {
                LaneOrder::Push(lane, job) => {
                    if let Some(on) = self.lanes.get_mut(&lane) {
                        on.lane.push(now, job);
                    }
                }
                LaneOrder::Abandon(lane, job) => {
                    if let Some(on) = self.lanes.get_mut(&lane) {
                        on.lane.abandon(now, job);
                    }
                }
                LaneOrder::Close(lane) => self.lane_ended(lane, "it stalled", outside),
            }
        }
        let ids: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in ids {
            any |= self.drain_lane(id, outside);
        }
        while let Some(request) = self.scheduler.poll_disk() {
            any = true;
            self.ask_disk(None, request, outside);
        }
        while let Some(event) = self.scheduler.poll_event() {
            any = true;
            match event {
                SchedulerEvent::Lane(event) => {
                    if event.is_last() && self.relayed.remove(&event.job()) {
                        self.disk.release(event.job());
                    }
                    self.tell(SessionEvent::Lane(event));
                }
                SchedulerEvent::Restarted(id) => self.tell(SessionEvent::Restarted(id)),
            }
        }
        any
    }

    /// Handles the end of one lane's channel while its connection works.
    fn lane_ended(&mut self, id: LaneId, why: &str, outside: &mut Outside<'_>) {
        self.lose_lane(id, why, outside);
        if self.lanes.is_empty() {
            self.again = Some(outside.now);
        }
        self.recover(outside.now);
    }

    fn drain_lane(&mut self, id: LaneId, outside: &mut Outside<'_>) -> bool {
        let Some(on) = self.lanes.get_mut(&id) else {
            return false;
        };
        let mut any = false;
        while let Some(output) = on.lane.poll_output() {
            any = true;
            match output {
                ClientOutput::Bytes(bytes) => on.up.send(outside.now, &bytes),
                ClientOutput::Block(block) => on.up.send(outside.now, &block.to_vec()),
            }
        }
        let (mut requests, mut events) = (Vec::new(), Vec::new());
        while let Some(request) = on.lane.poll_disk() {
            requests.push(request);
        }
        while let Some(event) = on.lane.poll_event() {
            events.push(event);
        }
        any |= !requests.is_empty() || !events.is_empty();
        for request in requests {
            self.ask_disk(Some(id), request, outside);
        }
        for event in events {
            self.scheduler.handle_lane(outside.now, id, event);
        }
        any
    }

    fn deliver(&mut self, outside: &mut Outside<'_>) {
        let now = outside.now;
        for on in self.lanes.values_mut() {
            let mut arrived = Vec::new();
            while let Some(bytes) = on.up.receive(now) {
                arrived.extend(bytes);
            }
            let out = serve(outside, &mut on.model, &arrived);
            on.down.send(now, &out);
        }
        self.deliver_late(outside);
        let mut around = Around {
            fs: outside.local,
            ledger: outside.ledger,
            rng: outside.rng,
        };
        self.disk.turn_relays(now, &mut around);
        while let Some(reply) = self.disk.reply(now) {
            let job = reply.job();
            let Some((lane, owed)) = self.asked.get_mut(&job) else {
                continue;
            };
            *owed -= 1;
            let lane = *lane;
            if *owed == 0 {
                self.asked.remove(&job);
            }
            match lane {
                None => self.scheduler.handle_disk(now, reply),
                Some(lane) => {
                    if let Some(on) = self.lanes.get_mut(&lane) {
                        on.lane.handle_disk(now, reply);
                    }
                }
            }
        }
        self.recover(now);
        let mut broken = Vec::new();
        for (id, on) in &mut self.lanes {
            while let Some(bytes) = on.down.receive(now) {
                if let Err(e) = on.lane.handle_input(now, Bytes::from(bytes)) {
                    broken.push((*id, e.to_string()));
                    break;
                }
            }
        }
        for (id, why) in broken {
            self.lane_ended(id, &why, outside);
        }
    }

    /// Delivers what lost lanes had sent, and the ends of their channels.
    fn deliver_late(&mut self, outside: &mut Outside<'_>) {
        let now = outside.now;
        for (id, on) in &mut self.undead {
            while let Some(bytes) = on.up.receive(now) {
                serve(outside, &mut on.model, &bytes);
            }
            if on.up.next_arrival().is_none() {
                self.overs.push((now + CLOSES, *id));
            }
        }
        self.undead.retain(|(_, on)| on.up.next_arrival().is_some());
        let overs = std::mem::take(&mut self.overs);
        for (at, lane) in overs {
            match at <= now {
                true => self.scheduler.lane_is_over(now, lane),
                false => self.overs.push((at, lane)),
            }
        }
    }

    /// Ends the session at this end. The server still gets what is on its way, or a random part of
    /// it if the path or a machine fails.
    pub(super) fn bury(&mut self, part: bool, outside: &mut Outside<'_>) {
        let lanes = std::mem::take(&mut self.lanes).into_values();
        let undead = std::mem::take(&mut self.undead).into_iter();
        for mut on in lanes.chain(undead.map(|(_, on)| on)) {
            while let Some(at) = on.up.next_arrival() {
                if part && outside.rng.below(16) == 0 {
                    break;
                }
                let bytes = on.up.receive(at).unwrap_or_default();
                serve(outside, &mut on.model, &bytes);
            }
        }
    }
}

/// Handles requests with the host's file system, which all servers share.
fn serve(outside: &mut Outside<'_>, model: &mut SftpModel, bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let host = &mut *outside.host;
    host.reached += 1;
    let fs = match host.is_this_machine {
        true => &mut *outside.local,
        false => &mut host.fs,
    };
    std::mem::swap(fs, &mut model.fs);
    model.handle_input(bytes);
    std::mem::swap(fs, &mut model.fs);
    host.written += model.writes.drain(..).sum::<usize>() as u64;
    model.take_output()
}
