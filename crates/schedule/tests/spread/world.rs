//! Many lanes to one server's file system, with a disk, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{
    Attributes, ByteRange, ConnectionId, FailedTemporary, FileCopyOptions, Job, JobHint, JobId,
    JobKind, Lane, LaneConfig, LaneEvent, LaneId, LaneOrder, LaneReport, RemotePath, Scheduler,
    SchedulerEvent, SchedulerOptions,
};
use sftp::ClientOutput;
use testkit::sftp_model::{
    Fs, HandleStyle, InjectedFault, Kind, Link, Rng, SftpModel, SftpServerProfile,
    VirtualLinkOptions, Witness,
};
use wire::PacketPool;

use crate::disk::{Disk, Source};

/// One lane, its server and the path between them.
pub(crate) struct At {
    pub(crate) lane: Lane,
    pub(crate) model: SftpModel,
    pub(crate) witness: Witness,
    /// No data arrives any more.
    pub(crate) stalled: bool,
    /// Last report of the lane: a session passes on changes only.
    reported: LaneReport,
    up: Link,
    down: Link,
}

/// A lost lane with unanswered disk requests.
struct Lost {
    lane: LaneId,
    temporaries: Vec<(JobId, RemotePath)>,
    jobs: BTreeSet<JobId>,
}

/// Part of an upload on a lane.
#[derive(Debug)]
struct Writing {
    lane: LaneId,
    file: JobId,
    temp: RemotePath,
    span: ByteRange,
}

/// A scheduler and its lanes, whose servers share one file system, in virtual time.
pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) spread: Scheduler,
    pub(crate) lanes: BTreeMap<LaneId, At>,
    pub(crate) fs: Fs,
    pub(crate) disk: Disk,
    pub(crate) events: Vec<(Duration, SchedulerEvent)>,
    /// Jobs given to lanes, in order.
    pub(crate) given: Vec<(LaneId, Job)>,
    /// Execute the requests of lost lanes.
    pub(crate) zombies: bool,
    pub(crate) closed: Vec<LaneId>,
    /// Check every lane's requests against each rename. A witness cannot tell the owner of a
    /// request on a predicted handle if the OPEN before it was refused.
    pub(crate) strict: bool,
    writing: BTreeMap<JobId, Writing>,
    undead: Vec<(LaneId, At)>,
    /// Times at which the servers of lost lanes report their end.
    overs: Vec<(Instant, LaneId)>,
    /// Number of renames requested.
    renames: usize,
    /// Number of bytes of lost lanes that arrived after a rename.
    pub(crate) late: usize,
    lost: Vec<Lost>,
    /// Lane that last requested a disk operation for a job, and the number of missing replies.
    asked: BTreeMap<JobId, (Option<LaneId>, usize)>,
    next_job: u64,
    next_lane: u32,
    pub(crate) seed: u64,
}

/// Time for the end of a channel to be reported.
const CLOSES: Duration = Duration::from_millis(50);

pub(crate) fn link(ms: u64, bandwidth: u64) -> VirtualLinkOptions {
    VirtualLinkOptions {
        delay: Duration::from_millis(ms) / 2,
        bandwidth,
        ..VirtualLinkOptions::default()
    }
}

pub(crate) fn config(predict: bool, seed: u64) -> LaneConfig {
    let mut rng = Rng::new(seed);
    let pool = PacketPool::new(32 * 1024, 64);
    let mut config = LaneConfig::new(pool, Box::new(move |bytes| rng.fill(bytes)));
    config.openssh = true;
    config.predict = predict;
    config
}

/// Returns options with pieces so small that test files are cut.
pub(crate) fn small() -> SchedulerOptions {
    SchedulerOptions {
        split: true,
        split_from: 256 << 10,
        least: 64 << 10,
        most: 512 << 10,
        unit: 16 << 10,
        one_handle: false,
        overtake: true,
        cuts: true,
    }
}

pub(crate) fn remote(path: &str) -> RemotePath {
    RemotePath(path.as_bytes().to_vec())
}

pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(seed).fill(&mut data);
    data
}

impl World {
    pub(crate) fn new(options: SchedulerOptions, seed: u64) -> Self {
        let now = testkit::sftp_model::epoch();
        Self {
            start: now,
            now,
            spread: Scheduler::new(options, now),
            lanes: BTreeMap::new(),
            fs: Fs::default(),
            disk: Disk::default(),
            events: Vec::new(),
            given: Vec::new(),
            zombies: false,
            closed: Vec::new(),
            strict: true,
            writing: BTreeMap::new(),
            undead: Vec::new(),
            overs: Vec::new(),
            renames: 0,
            late: 0,
            lost: Vec::new(),
            asked: BTreeMap::new(),
            next_job: 0,
            next_lane: 0,
            seed,
        }
    }

    /// Creates a world with `lanes` equal lanes.
    pub(crate) fn with_lanes(lanes: u32) -> Self {
        let mut w = Self::new(small(), 7);
        for _ in 0..lanes {
            w.lane(link(100, 10_000_000), true);
        }
        w
    }

    pub(crate) fn lane(&mut self, link: VirtualLinkOptions, predict: bool) -> LaneId {
        self.lane_of(link, predict, SftpServerProfile::openssh())
    }

    pub(crate) fn lane_of(
        &mut self,
        link: VirtualLinkOptions,
        predict: bool,
        server: SftpServerProfile,
    ) -> LaneId {
        self.next_lane += 1;
        let id = LaneId {
            connection: ConnectionId(self.next_lane / 3),
            channel: self.next_lane,
        };
        let seed = self.seed + u64::from(self.next_lane) * 8;
        let mut config = config(predict, seed);
        config.openssh = matches!(server.handles, HandleStyle::OpenSsh);
        let lane = Lane::new(config, self.now);
        let reported = LaneReport::of(&lane);
        let at = At {
            lane,
            reported,
            model: SftpModel::new(Fs::default(), server),
            witness: Witness::default(),
            stalled: false,
            up: Link::new(link, seed + 1),
            down: Link::new(link, seed + 2),
        };
        self.spread.lane_opened(self.now, id, false, reported);
        self.lanes.insert(id, at);
        id
    }

    pub(crate) fn job(&mut self, kind: JobKind, size: Option<u64>) -> JobId {
        let relayed = false;
        self.push(kind, JobHint { size, relayed })
    }

    fn push(&mut self, kind: JobKind, hint: JobHint) -> JobId {
        self.next_job += 1;
        let id = JobId(self.next_job);
        self.spread.push(self.now, Job { id, kind }, hint);
        id
    }

    pub(crate) fn put(&mut self, data: Vec<u8>, target: &str, options: FileCopyOptions) -> JobId {
        let hint = JobHint {
            size: Some(data.len() as u64),
            relayed: false,
        };
        self.put_hinted(data, target, options, hint)
    }

    pub(crate) fn put_hinted(
        &mut self,
        data: Vec<u8>,
        target: &str,
        options: FileCopyOptions,
        hint: JobHint,
    ) -> JobId {
        let source = PathBuf::from(format!("/src/{target}"));
        self.disk.sources.insert(source.clone(), Source::new(data));
        let target = remote(target);
        let kind = JobKind::Put {
            source,
            target,
            options,
        };
        self.push(kind, hint)
    }

    pub(crate) fn get(&mut self, source: &str) -> JobId {
        let node = self.fs.data(source).map(<[u8]>::len).unwrap_or(0);
        self.get_sized(source, node as u64)
    }

    /// Downloads a file that the listing gave the size `size`, right or wrong.
    pub(crate) fn get_sized(&mut self, source: &str, size: u64) -> JobId {
        let known = Attributes {
            size: Some(size),
            mode: Some(0o100_644),
            owner: None,
            times: Some((1, 2)),
            ..Attributes::default()
        };
        let kind = JobKind::Get {
            source: remote(source),
            target: PathBuf::from(format!("/dst/{source}")).into(),
            known: Some(known),
            options: FileCopyOptions::default(),
        };
        self.job(kind, Some(size))
    }

    pub(crate) fn got(&self, source: &str) -> Option<&[u8]> {
        let path = PathBuf::from(format!("/dst/{source}"));
        self.disk.files.get(&path).map(|(data, _)| data.as_slice())
    }

    pub(crate) fn place(&mut self, path: &str, data: &[u8], mode: u32) {
        self.fs.place(path, Kind::File(data.to_vec()), mode);
    }

    pub(crate) fn inject(&mut self, lane: LaneId, inject: InjectedFault) {
        if let Some(at) = self.lanes.get_mut(&lane) {
            at.model.inject(inject);
        }
    }

    /// Closes the lane's channel.
    pub(crate) fn lose(&mut self, id: LaneId) {
        self.drain_lane(id);
        self.spread.retire(id);
        self.writing.retain(|_, part| part.lane != id);
        let Some(mut at) = self.lanes.remove(&id) else {
            return;
        };
        while let Some(request) = at.lane.poll_disk() {
            self.ask_disk(Some(id), request);
        }
        let mut left = std::mem::replace(&mut at.lane, Lane::new(config(false, 1), self.now))
            .into_unfinished();
        for request in left.releases.drain(..) {
            self.ask_disk(Some(id), request);
        }
        self.lost.push(Lost {
            lane: id,
            temporaries: left.temporaries,
            jobs: left.jobs.iter().map(|job| job.id).collect(),
        });
        match self.zombies {
            true => self.undead.push((id, at)),
            false if !at.stalled => self.spread.lane_is_over(self.now, id),
            false => {}
        }
        self.settle_lost();
    }

    /// Closes the connection for good.
    pub(crate) fn lose_all(&mut self, why: &str) {
        let ids: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in ids {
            self.lose(id);
        }
        for lost in std::mem::take(&mut self.lost) {
            self.spread
                .lane_lost(self.now, lost.lane, lost.temporaries, why);
        }
        self.spread.lose(self.now, why);
    }

    fn settle_lost(&mut self) {
        let owed = |job: &JobId| self.asked.get(job).is_some_and(|(_, n)| *n > 0);
        let (out, settled): (Vec<Lost>, Vec<Lost>) = std::mem::take(&mut self.lost)
            .into_iter()
            .partition(|lost| lost.jobs.iter().any(owed));
        self.lost = out;
        for lost in settled {
            self.spread.lane_lost(
                self.now,
                lost.lane,
                lost.temporaries,
                "the channel was lost",
            );
        }
    }

    fn ask_disk(&mut self, lane: Option<LaneId>, request: schedule::DiskRequest) {
        let asked = self.asked.entry(request.job()).or_insert((lane, 0));
        *asked = (lane, asked.1 + 1);
        self.disk.handle(self.now, request);
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(Some(self.now + time));
    }

    pub(crate) fn run(&mut self) -> &mut Self {
        self.run_until(None);
        self
    }

    fn run_until(&mut self, until: Option<Instant>) {
        for _ in 0..3_000_000 {
            while self.drain() {}
            // A file may be done before the answers to needless READs have come.
            let quiet = self
                .lanes
                .values()
                .all(|at| at.stalled || at.lane.is_idle());
            if self.spread.is_idle() && quiet && self.lost.is_empty() && until.is_none() {
                // Requests that lost lanes had sent may still be executed.
                self.bury();
                return;
            }
            let next = self.next();
            if until.is_some_and(|until| next.is_none_or(|next| next > until)) {
                self.now = until.unwrap_or(self.now);
                return;
            }
            let Some(next) = next else {
                panic!("nothing is on its way: {:?}", self.spread);
            };
            self.now = self.now.max(next);
            self.deliver();
            if self.spread.poll_timeout().is_some() {
                self.spread.handle_timeout(self.now);
            }
        }
        panic!("no end: {:?} {:?}", self.spread.stats(), self.spread);
    }

    fn bury(&mut self) {
        for (_, mut at) in std::mem::take(&mut self.undead) {
            let mut sent = Vec::new();
            while let Some(arrives) = at.up.next_arrival() {
                sent.extend(at.up.receive(arrives).unwrap_or_default());
            }
            self.late += sent.len();
            serve(&mut self.fs, &mut at.model, &sent);
        }
    }

    fn next(&self) -> Option<Instant> {
        let lanes = self.lanes.values().filter(|at| !at.stalled);
        let arrivals = lanes.flat_map(|at| [at.up.next_arrival(), at.down.next_arrival()]);
        let undead = self.undead.iter().map(|(_, at)| at.up.next_arrival());
        let undead = undead.chain(self.overs.iter().map(|(at, _)| Some(*at)));
        let rest = [self.disk.next_reply(), self.spread.poll_timeout()];
        arrivals.chain(undead).chain(rest).flatten().min()
    }

    fn drain(&mut self) -> bool {
        for (id, at) in &mut self.lanes {
            let report = LaneReport::of(&at.lane);
            if report != std::mem::replace(&mut at.reported, report) {
                self.spread.lane_reports(self.now, *id, report);
            }
        }
        let mut any = false;
        while let Some(order) = self.spread.poll_order() {
            any = true;
            match order {
                LaneOrder::Push(lane, job) => {
                    self.given.push((lane, job.clone()));
                    self.watch(lane, &job);
                    let at = self
                        .lanes
                        .get_mut(&lane)
                        .expect("an order for a lane that is there");
                    at.lane.push(self.now, job);
                }
                LaneOrder::Abandon(lane, job) => {
                    if let Some(at) = self.lanes.get_mut(&lane) {
                        at.lane.abandon(self.now, job);
                    }
                }
                LaneOrder::Close(lane) => {
                    self.closed.push(lane);
                    self.lose(lane);
                }
            }
        }
        let ids: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in ids {
            any |= self.drain_lane(id);
        }
        while let Some(request) = self.spread.poll_disk() {
            any = true;
            self.ask_disk(None, request);
        }
        while let Some(event) = self.spread.poll_event() {
            any = true;
            self.assert_settled(&event);
            self.events.push((self.now - self.start, event));
        }
        any
    }

    /// Checks that no request in flight writes bytes reported as safe.
    fn assert_settled(&self, event: &SchedulerEvent) {
        let SchedulerEvent::Lane(LaneEvent::Safe(job, from, to)) = event else {
            return;
        };
        let writes = |part: &&Writing| {
            let end = part.span.len.map_or(u64::MAX, |len| part.span.offset + len);
            part.file == *job && part.span.offset < *to && *from < end
        };
        let late = self.writing.values().find(writes);
        assert!(late.is_none(), "{from} to {to} safe while {late:?}");
    }

    /// Checks that the rename is requested only after every part, or its lane, has ended.
    fn watch(&mut self, lane: LaneId, job: &Job) {
        match &job.kind {
            JobKind::PutRange {
                file, temp, span, ..
            } => {
                let part = Writing {
                    lane,
                    file: *file,
                    temp: temp.clone(),
                    span: *span,
                };
                self.writing.insert(job.id, part);
            }
            JobKind::FinishTemp { temp, .. } => {
                let mut writing = self.writing.values();
                let late = writing.find(|part| part.temp == temp.temp);
                assert!(late.is_none(), "named while {late:?} writes");
            }
            _ => {}
        }
    }

    fn drain_lane(&mut self, id: LaneId) -> bool {
        let mut any = false;
        let Some(at) = self.lanes.get_mut(&id) else {
            return false;
        };
        let mut renamed = Vec::new();
        while let Some(output) = at.lane.poll_output() {
            any = true;
            let bytes = match output {
                ClientOutput::Bytes(bytes) => bytes,
                ClientOutput::Block(block) => block.to_vec(),
            };
            at.witness.on_sent(&bytes);
            renamed.extend(at.witness.take_renamed());
            at.up.send(self.now, &bytes);
        }
        let (mut requests, mut events) = (Vec::new(), Vec::new());
        while let Some(request) = at.lane.poll_disk() {
            requests.push(request);
        }
        while let Some(event) = at.lane.poll_event() {
            events.push(event);
        }
        for name in renamed.iter().filter(|_| self.strict) {
            for (other, at) in &self.lanes {
                let open = at.witness.unanswered(name);
                assert!(
                    *other == id || open == 0,
                    "a rename left with {open} requests on another lane"
                );
            }
        }
        self.renames += renamed.len();
        any |= !requests.is_empty() || !events.is_empty();
        for request in requests {
            self.ask_disk(Some(id), request);
        }
        for event in events {
            if event.is_last() {
                self.writing.remove(&event.job());
            }
            self.spread.handle_lane(self.now, id, event);
        }
        any
    }

    fn deliver(&mut self) {
        let now = self.now;
        for at in self.lanes.values_mut().filter(|at| !at.stalled) {
            let mut arrived = Vec::new();
            while let Some(bytes) = at.up.receive(now) {
                arrived.extend(bytes);
            }
            let out = serve(&mut self.fs, &mut at.model, &arrived);
            at.down.send(now, &out);
        }
        for (id, at) in &mut self.undead {
            while let Some(bytes) = at.up.receive(now) {
                self.late += if self.renames > 0 { bytes.len() } else { 0 };
                serve(&mut self.fs, &mut at.model, &bytes);
            }
            if at.up.next_arrival().is_none() && !at.stalled {
                // The CLOSE came after it, and its answer takes as long again.
                self.overs.push((now + CLOSES, *id));
                at.stalled = true;
            }
        }
        let overs = std::mem::take(&mut self.overs);
        for (at, lane) in overs {
            match at <= now {
                true => self.spread.lane_is_over(now, lane),
                false => self.overs.push((at, lane)),
            }
        }
        while let Some(reply) = self.disk.reply(now) {
            let job = reply.job();
            let Some((lane, owed)) = self.asked.get_mut(&job) else {
                continue;
            };
            *owed -= 1;
            let lane = *lane;
            if self.lost.iter().any(|lost| lost.jobs.contains(&job)) {
                continue;
            }
            match lane {
                None => self.spread.handle_disk(now, reply),
                Some(lane) => {
                    if let Some(at) = self.lanes.get_mut(&lane) {
                        at.lane.handle_disk(now, reply);
                    }
                }
            }
        }
        self.settle_lost();
        let mut broken = Vec::new();
        for (id, at) in self.lanes.iter_mut().filter(|(_, at)| !at.stalled) {
            while let Some(bytes) = at.down.receive(now) {
                at.witness.on_received(&bytes);
                if at.lane.handle_input(now, Bytes::from(bytes)).is_err() {
                    broken.push(*id);
                    break;
                }
            }
        }
        for id in broken {
            self.lose(id);
        }
    }

    pub(crate) fn at(&self, event: &LaneEvent) -> Option<Duration> {
        let told = |e: &SchedulerEvent| matches!(e, SchedulerEvent::Lane(e) if e == event);
        let found = self.events.iter().find(|(_, e)| told(e));
        found.map(|(at, _)| *at)
    }

    pub(crate) fn done(&self, job: JobId) -> bool {
        self.at(&LaneEvent::Done(job)).is_some()
    }

    pub(crate) fn failed(&self, job: JobId) -> Option<&str> {
        self.events.iter().find_map(|(_, e)| match e {
            SchedulerEvent::Lane(LaneEvent::Failed(id, fault)) if *id == job => {
                Some(fault.what.as_str())
            }
            _ => None,
        })
    }

    /// True if the job failed and its temporary was removed.
    pub(crate) fn has_removed(&self, job: JobId) -> bool {
        self.events.iter().any(|(_, e)| match e {
            SchedulerEvent::Lane(LaneEvent::Failed(id, fault)) => {
                *id == job && fault.temporary == FailedTemporary::Removed
            }
            _ => false,
        })
    }

    /// Returns the progress since the job was last restarted.
    pub(crate) fn progress(&self, job: JobId) -> u64 {
        let mut sum = 0;
        for (_, event) in &self.events {
            match event {
                SchedulerEvent::Lane(LaneEvent::Progress(id, n)) if *id == job => sum += n,
                SchedulerEvent::Restarted(id) if *id == job => sum = 0,
                _ => {}
            }
        }
        sum
    }

    pub(crate) fn temporaries(&self) -> Vec<String> {
        let names = self.fs.names().into_iter();
        names.filter(|n| n.ends_with(".longhaul")).collect()
    }

    /// Returns the lanes that were given parts of files.
    pub(crate) fn lanes_with_parts(&self) -> BTreeSet<LaneId> {
        let part = |job: &Job| {
            matches!(
                job.kind,
                JobKind::CreateTemp { .. } | JobKind::PutRange { .. } | JobKind::GetRange { .. }
            )
        };
        let given = self.given.iter().filter(|(_, job)| part(job));
        given.map(|(lane, _)| *lane).collect()
    }

    /// Checks that nothing is left open or behind.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.temporaries(), Vec::<String>::new());
        assert_eq!((self.disk.open_sources(), self.disk.targets()), (0, 0));
        for at in self.lanes.values().filter(|at| !at.stalled) {
            assert!(at.lane.is_idle(), "{:?}", at.lane.stats());
            assert_eq!(at.model.open_handles().0, 0, "a handle is left open");
        }
    }
}

/// Handles requests with the file system that all lanes' servers share.
fn serve(fs: &mut Fs, model: &mut SftpModel, bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    std::mem::swap(fs, &mut model.fs);
    model.handle_input(bytes);
    std::mem::swap(fs, &mut model.fs);
    model.take_output()
}
