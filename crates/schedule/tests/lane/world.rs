//! A lane, a seeded path, a model of the server and a disk, in virtual time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{
    Attributes, FileCopyOptions, FileCopyState, Job, JobId, JobKind, Lane, LaneConfig, LaneError,
    LaneEvent, RemotePath,
};
use sftp::{ClientOutput, ServerInfo};
use testkit::sftp_model::{
    Fs, Kind, Link, Rng, SftpModel, SftpServerProfile, VirtualLinkOptions, Witness,
};
use wire::PacketPool;

use crate::disk::{Disk, Source};

pub(crate) const RTT: Duration = Duration::from_millis(100);

/// A lane, its server, their path and the disk, which move on in steps of virtual time.
pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) lane: Lane,
    pub(crate) model: SftpModel,
    pub(crate) disk: Disk,
    pub(crate) witness: Witness,
    pub(crate) events: Vec<(Duration, LaneEvent)>,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) error: Option<LaneError>,
    pub(crate) unwritten: u64,
    /// Number of bytes that the channel takes at each event.
    pub(crate) room: usize,
    /// Number of bytes that the lane may send each time that nothing is in flight.
    pub(crate) pace: Option<u64>,
    link: VirtualLinkOptions,
    seed: u64,
    up: Link,
    down: Link,
    next_job: u64,
    until: Option<Instant>,
    /// Number of further steps of the run, if limited.
    steps: Option<usize>,
}

/// Server and prediction settings of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Prediction with a remembered server.
    Remembered,
    /// Prediction once VERSION has come.
    Predicting,
    /// No prediction.
    Plain,
    /// A longhaul server behind OpenSSH's sshd.
    Ours,
}

pub(crate) const MODES: [Mode; 4] = [Mode::Remembered, Mode::Predicting, Mode::Plain, Mode::Ours];

pub(crate) fn info() -> ServerInfo {
    info_of(&SftpServerProfile::openssh())
}

pub(crate) fn info_of(server: &SftpServerProfile) -> ServerInfo {
    ServerInfo {
        version: 3,
        extensions: server.extensions.clone(),
        limits: None,
    }
}

pub(crate) fn config(mode: Mode, seed: u64) -> LaneConfig {
    let mut rng = Rng::new(seed);
    let pool = PacketPool::new(32 * 1024, 64);
    let mut config = LaneConfig::new(pool, Box::new(move |bytes| rng.fill(bytes)));
    config.openssh = true;
    config.predict = mode != Mode::Plain;
    config.remembered = (mode == Mode::Remembered).then(info);
    config
}

impl World {
    pub(crate) fn new(mode: Mode) -> Self {
        let server = match mode {
            Mode::Ours => SftpServerProfile::ours(),
            _ => SftpServerProfile::openssh(),
        };
        Self::with(config(mode, 1), server, link(), 1)
    }

    pub(crate) fn with(
        config: LaneConfig,
        server: SftpServerProfile,
        link: VirtualLinkOptions,
        seed: u64,
    ) -> Self {
        let now = testkit::sftp_model::epoch();
        Self {
            start: now,
            now,
            lane: Lane::new(config, now),
            model: SftpModel::new(Fs::default(), server),
            disk: Disk::default(),
            witness: Witness::default(),
            events: Vec::new(),
            jobs: VecDeque::new(),
            error: None,
            unwritten: 0,
            room: usize::MAX,
            pace: None,
            link,
            seed,
            up: Link::new(link, seed),
            down: Link::new(link, seed + 1),
            next_job: 0,
            until: None,
            steps: None,
        }
    }

    /// Opens a new channel to the same server, with a lane made from `config`.
    pub(crate) fn reconnect(&mut self, config: LaneConfig) {
        self.error = None;
        self.drain();
        self.model.reconnect();
        self.witness = Witness::default();
        self.up = Link::new(self.link, self.seed + 2);
        self.down = Link::new(self.link, self.seed + 3);
        let lane = std::mem::replace(&mut self.lane, Lane::new(config, self.now));
        let left = lane.into_unfinished();
        for request in left.releases {
            self.disk.handle(self.now, request);
        }
        while let Some(at) = self.disk.next_reply() {
            self.disk.reply(at);
        }
        let mut jobs: VecDeque<Job> = left.jobs.into();
        for (_, path) in left.temporaries {
            let kind = JobKind::Remove { path };
            jobs.push_back(Job {
                id: self.id(),
                kind,
            });
        }
        jobs.append(&mut self.jobs);
        self.jobs = jobs;
    }

    fn id(&mut self) -> JobId {
        self.next_job += 1;
        JobId(self.next_job)
    }

    pub(crate) fn job(&mut self, kind: JobKind) -> JobId {
        let id = self.id();
        self.jobs.push_back(Job { id, kind });
        id
    }

    pub(crate) fn put(&mut self, data: Vec<u8>, target: &str, options: FileCopyOptions) -> JobId {
        let source = PathBuf::from(format!("/src/{}", self.next_job));
        self.disk.sources.insert(source.clone(), Source::new(data));
        self.job(JobKind::Put {
            source,
            target: remote(target),
            options,
        })
    }

    pub(crate) fn get(&mut self, source: &str, known: Option<Attributes>) -> JobId {
        self.get_with(source, known, FileCopyOptions::default())
    }

    pub(crate) fn get_with(
        &mut self,
        source: &str,
        known: Option<Attributes>,
        options: FileCopyOptions,
    ) -> JobId {
        self.job(JobKind::Get {
            source: remote(source),
            target: PathBuf::from(format!("/dst/{source}")).into(),
            known,
            options,
        })
    }

    pub(crate) fn got(&self, source: &str) -> Option<&[u8]> {
        let path = PathBuf::from(format!("/dst/{source}"));
        self.disk.files.get(&path).map(|(data, _)| data.as_slice())
    }

    pub(crate) fn place(&mut self, path: &str, data: &[u8], mode: u32) {
        self.model.fs.place(path, Kind::File(data.to_vec()), mode);
    }

    /// Runs for a time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        self.until = Some(self.now + time);
        self.run();
        self.until = None;
    }

    /// Runs for a number of steps, each up to the next arrival; returns true if the run is over
    /// before.
    pub(crate) fn run_steps(&mut self, steps: usize) -> bool {
        self.steps = Some(steps);
        self.run();
        self.steps.take().is_some_and(|left| left > 0)
    }

    /// Runs until every job is done, the lane is over, or nothing more happens.
    pub(crate) fn run(&mut self) -> &mut Self {
        for _ in 0..5_000_000 {
            self.feed();
            let said = self.drain();
            if self.error.is_some() || (self.lane.is_idle() && self.jobs.is_empty()) {
                return self;
            }
            let next = [
                self.up.next_arrival(),
                self.down.next_arrival(),
                self.disk.next_reply(),
            ];
            let Some(next) = next.into_iter().flatten().min() else {
                if said && self.room < usize::MAX {
                    continue;
                }
                if let Some(pace) = self.pace {
                    self.now += Duration::from_millis(1);
                    self.lane.set_pace(self.now, pace);
                    continue;
                }
                if let Some(until) = self.until {
                    self.now = until;
                    return self;
                }
                panic!("nothing is on its way and {:?} is left", self.lane.stats());
            };
            if self.until.is_some_and(|until| next > until) {
                return self;
            }
            if let Some(left) = &mut self.steps {
                let Some(fewer) = left.checked_sub(1) else {
                    return self;
                };
                *left = fewer;
            }
            self.now = self.now.max(next);
            self.deliver();
        }
        panic!("no end: {:?}", self.lane.stats());
    }

    fn feed(&mut self) {
        while self.lane.wants_jobs() > 0
            && let Some(job) = self.jobs.pop_front()
        {
            self.lane.push(self.now, job);
        }
    }

    /// Drains the lane; returns true if it had output.
    fn drain(&mut self) -> bool {
        let mut said = false;
        self.lane.set_output_room(self.room);
        while let Some(output) = self.lane.poll_output() {
            let bytes = match output {
                ClientOutput::Bytes(bytes) => bytes,
                ClientOutput::Block(block) => block.to_vec(),
            };
            said = true;
            self.witness.on_sent(&bytes);
            self.up.send(self.now, &bytes);
        }
        while let Some(request) = self.lane.poll_disk() {
            self.disk.handle(self.now, request);
        }
        while let Some(event) = self.lane.poll_event() {
            self.events.push((self.now - self.start, event));
        }
        self.unwritten = self.unwritten.max(self.lane.stats().unwritten);
        said
    }

    fn deliver(&mut self) {
        // All at once: a server that answers out of order permutes requests that arrived together.
        let mut arrived = Vec::new();
        while let Some(bytes) = self.up.receive(self.now) {
            arrived.extend(bytes);
        }
        if !arrived.is_empty() {
            self.model.handle_input(&arrived);
            let out = self.model.take_output();
            self.down.send(self.now, &out);
        }
        while let Some(reply) = self.disk.reply(self.now) {
            self.lane.handle_disk(self.now, reply);
        }
        while let Some(bytes) = self.down.receive(self.now) {
            self.witness.on_received(&bytes);
            if let Err(error) = self.lane.handle_input(self.now, Bytes::from(bytes)) {
                self.error = Some(error);
            }
        }
    }

    pub(crate) fn at(&self, event: &LaneEvent) -> Option<Duration> {
        let found = self.events.iter().find(|(_, e)| e == event);
        found.map(|(at, _)| *at)
    }

    pub(crate) fn reached(&self, job: JobId, state: FileCopyState) -> Option<Duration> {
        self.at(&LaneEvent::State(job, state))
    }

    pub(crate) fn done(&self, job: JobId) -> bool {
        self.at(&LaneEvent::Done(job)).is_some()
    }

    /// Returns the reason of a job's failure.
    pub(crate) fn failed(&self, job: JobId) -> Option<&str> {
        self.events.iter().find_map(|(_, e)| match e {
            LaneEvent::Failed(id, fault) if *id == job => Some(fault.what.as_str()),
            _ => None,
        })
    }

    /// Reasons for which files are written in place.
    pub(crate) fn whys_in_place(&self) -> Vec<&str> {
        let events = self.events.iter().filter_map(|(_, event)| match event {
            LaneEvent::WhyInPlace(_, why) => Some(why.as_str()),
            _ => None,
        });
        events.collect()
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for (_, event) in &self.events {
            match event {
                LaneEvent::Warning(_, text) => found.push(text.as_str()),
                LaneEvent::SourceShrank(_) => found.push(schedule::SOURCE_SHRANK),
                LaneEvent::SourceGrew(_) => found.push(schedule::SOURCE_GREW),
                _ => {}
            }
        }
        found
    }

    pub(crate) fn temporaries(&self) -> Vec<String> {
        let names = self.model.fs.names();
        names
            .into_iter()
            .filter(|n| n.ends_with(".longhaul"))
            .collect()
    }
}

pub(crate) fn link() -> VirtualLinkOptions {
    VirtualLinkOptions {
        delay: RTT / 2,
        ..VirtualLinkOptions::default()
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
