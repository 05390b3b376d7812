//! State machine of one SFTP channel: turns jobs into requests and disk operations.

mod compression_probe;
mod config;
mod context;
mod ending;
mod get;
mod job_requests;
mod list;
mod list_tree;
mod listing_name_guard;
mod messages;
mod metadata;
mod ops;
mod packing;
mod pipeline;
mod put;
mod queues;
mod rebuild;
mod refusals;
mod remote_file;
mod replace;
mod request_purpose;
mod server;
mod task;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sftp::{ClientOutput, Reply, ServerInfo};

pub use config::{CompressionMode, LaneConfig, LaneStats, RandomFill};
pub use ending::{LaneError, UnfinishedWork};
pub use list_tree::NO_TREES;
pub use listing_name_guard::{REPEATED_NAMES, TOO_MANY_NAMES};
pub use messages::left_out;
pub use refusals::RefusedOperations;

use self::context::LaneContext;
use self::queues::LaneQueueKind;
use self::request_purpose::RequestPurpose;
use self::server::ServerCapabilities;
use self::task::{JobProgress, Misprediction, RunningJob};
use crate::job::place_of_listing;
use crate::{DiskReply, DiskRequest, Job, JobFailure, JobId, JobKind, LaneEvent, RemotePath};

/// One SFTP channel with its jobs, without I/O.
///
/// The driver calls [`Lane::push`], [`Lane::handle_input`], [`Lane::handle_disk`] and
/// [`Lane::set_output_room`] as things happen, and after each call drains [`Lane::poll_output`],
/// [`Lane::poll_disk`] and [`Lane::poll_event`]. There are no timers.
///
/// Jobs start in the order in which they were pushed. On a server that answers in order (OpenSSH) a
/// MakeDir may be followed at once by files in that directory.
///
/// An error of `handle_input` ends the lane: close the channel, take [`Lane::into_unfinished`], and
/// push its jobs to a new lane, without prediction after [`LaneError::Misprediction`].
///
/// **Remote to remote**: the `Get` of one lane feeds the `Put` of another through disk requests.
/// Keep a map from offset to pieces and insert the Get's `Write`s. Answer the Put's `OpenSource`
/// (with the attributes that the Get has) and its `Read`s from the map, once the whole range is
/// there or the Get's `FinishTarget` has told the size. Answer each `Write` with `Written` only
/// after the Put has read it: the Get holds READs back beyond [`LaneConfig::unwritten`]. Answer
/// `FinishTarget` when the Put is done. A Put that requests `OpenSource` a second time needs a
/// second Get.
#[derive(Debug)]
pub struct Lane {
    core: LaneContext,
    waiting: VecDeque<Job>,
    /// Started jobs. Boxed, since thousands are in flight and map entries move when a neighbor is
    /// removed.
    tasks: BTreeMap<JobId, Box<RunningJob>>,
    /// Requests may be sent: VERSION has come or is not needed.
    ready: bool,
    /// VERSION has come.
    greeted: bool,
    ended: Option<LaneError>,
    room: usize,
    stalls_room: u64,
    revision: u64,
}

/// The oldest unanswered request of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestRequest {
    /// Name of the request in the SFTP draft.
    pub request: &'static str,
    /// Remote path of the request's job.
    pub path: Option<RemotePath>,
    /// Time of the last answer on the lane, or of the request if later.
    pub since: Instant,
    /// Number of requests in flight when this one was sent.
    pub ahead: u64,
    /// The server has answered a request that was sent after this one: it works on several at once,
    /// or it has dropped this one.
    pub overtaken: bool,
    /// The request may take long, since its work grows with the file.
    pub takes_time: bool,
}

/// Number of sources whose first bytes are read before their OPEN.
const PREFETCH: usize = 64;

impl Lane {
    /// Creates a lane on a channel whose `sftp` subsystem was just requested; INIT is ready to be
    /// sent.
    pub fn new(config: LaneConfig, now: Instant) -> Self {
        let early = config.early();
        let mut lane = Self {
            core: LaneContext::new(config, now),
            waiting: VecDeque::new(),
            tasks: BTreeMap::new(),
            ready: early,
            greeted: false,
            ended: None,
            room: usize::MAX,
            stalls_room: 0,
            revision: 0,
        };
        if early {
            let remembered = lane.core.config().remembered.clone().unwrap_or_default();
            lane.core.set_up(&remembered);
        }
        lane
    }

    /// Adds a job. A `List` goes before waiting files, since everything in a tree waits for it.
    /// With predicted handles it may end with [`LaneEvent::Abandoned`] after some entries: the
    /// directory is too long for one flight, and a lane that does not predict has to list it.
    pub fn push(&mut self, now: Instant, job: Job) {
        self.revision += 1;
        self.core.at(now);
        match job.kind {
            JobKind::List { .. } | JobKind::ListTree { .. } => {
                let at = place_of_listing(self.waiting.iter());
                self.waiting.insert(at, job);
            }
            _ => self.waiting.push_back(job),
        }
        self.pump();
    }

    /// Handles bytes received on the channel.
    pub fn handle_input(&mut self, now: Instant, bytes: Bytes) -> Result<(), LaneError> {
        self.revision += 1;
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        self.core.at(now);
        let taken = self.core.pipeline_mut().handle_input(bytes);
        // Replies that came before a protocol error still count.
        let handled = self.replies();
        let result = handled.and_then(|()| taken.map_err(LaneError::Protocol));
        match result {
            Ok(()) => self.pump(),
            Err(error) => {
                self.ended = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Handles the reply to a [`DiskRequest`].
    pub fn handle_disk(&mut self, now: Instant, reply: DiskReply) {
        self.revision += 1;
        self.core.at(now);
        let job = reply.job();
        if let Some(task) = self.tasks.get_mut(&job) {
            let step = task.on_disk(&mut self.core, reply);
            self.after(job, step);
        }
        self.pump();
    }

    /// Sets the number of bytes that the channel takes now. One output may exceed it: the channel
    /// keeps the bytes that do not fit its window.
    pub fn set_output_room(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// Limits the bytes requested or sent from now on to about `bytes`, until the next call; one
    /// request may exceed it. A pacer holds requests back before they are made, so that their
    /// response times include no local waiting.
    pub fn set_pace(&mut self, now: Instant, bytes: u64) {
        self.core.at(now);
        self.core.pipeline_mut().set_pace(bytes);
        self.pump();
    }

    /// Has a longhaul server follow no symlink below `root`, a directory of the target's end that
    /// the user named, in every request after this call. Other servers ignore it.
    pub fn hold_root(&mut self, now: Instant, root: &RemotePath) {
        self.revision += 1;
        self.core.at(now);
        match self.ready {
            true => self.core.request_root(&root.0),
            false => self.core.add_root(root.clone()),
        }
    }

    /// Pauses listings (`hold`) or resumes them, since the owner has to store their entries.
    pub fn hold_lists(&mut self, now: Instant, hold: bool) {
        let held = self.core.hold_lists(hold);
        if held && !hold {
            self.revision += 1;
            self.core.at(now);
            let ids: Vec<JobId> = self.tasks.keys().copied().collect();
            for id in ids {
                if let Some(task) = self.tasks.get_mut(&id) {
                    let step = task.list_on(&mut self.core);
                    self.after(id, step);
                }
            }
        }
    }

    /// Returns the bytes of file data requested and sent so far, plus a small weight per request.
    pub fn paced(&self) -> u64 {
        self.core.pipeline().paced()
    }

    /// Returns the oldest unanswered request.
    pub fn waits_for(&self) -> Option<OldestRequest> {
        let (oldest, job) = self.core.pipeline().first_unanswered()?;
        let task = job.and_then(|id| self.tasks.get(&id));
        let path = task.and_then(|task| task.job().kind.remote_path());
        Some(OldestRequest {
            path: path.cloned(),
            ..oldest
        })
    }

    /// Limits the requests in flight to `most` from now on. Those that must follow an answer, such
    /// as FSTAT and CLOSE, wait too.
    pub fn limit_requests(&mut self, most: u64) {
        self.core.pipeline_mut().limit_requests(most);
    }

    /// Returns the lowest response time of a READ or WRITE since the last call.
    pub fn take_answer_time(&mut self) -> Option<Duration> {
        self.core.pipeline_mut().take_answer_time()
    }

    /// Ends the lane, since its channel is closed.
    pub fn handle_closed(&mut self, reason: &str) {
        self.revision += 1;
        self.ended
            .get_or_insert_with(|| LaneError::Closed(reason.to_owned()));
    }

    /// Returns the next bytes for the channel.
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        if self.ended.is_some() {
            return None;
        }
        if self.room == 0 {
            self.stalls_room += u64::from(self.core.pipeline().client().queued() > 0);
            return None;
        }
        let output = self.core.pipeline_mut().poll_output()?;
        self.room = self.room.saturating_sub(output.len());
        self.revision += 1;
        Some(output)
    }

    /// Returns the next operation for the disk.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        let request = self.core.poll_disk()?;
        self.revision += 1;
        Some(request)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<LaneEvent> {
        let event = self.core.poll_event()?;
        self.revision += 1;
        Some(event)
    }

    /// Returns a counter of inputs and outputs. If two values are equal, the lane has not changed
    /// in between, except for its room and pace.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns true if [`Lane::poll_output`], [`Lane::poll_disk`] or [`Lane::poll_event`] has
    /// something, so the driver must not sleep.
    pub fn has_more(&self) -> bool {
        let has_output = self.core.pipeline().client().has_output();
        let output = self.ended.is_none() && self.room > 0 && has_output;
        output || self.core.has_news()
    }

    /// Returns the number of further jobs that keep the path full.
    pub fn wants_jobs(&self) -> usize {
        if self.ended.is_some() {
            return 0;
        }
        let enough = self.core.pipeline().requests().target().clamp(64, 4096) as usize;
        // Another lane could do unopened files sooner.
        let turns = self.core.turns();
        let (openers, wholes) = turns.unsent();
        let unopened = self.waiting.len() + turns.prefetched().max(openers + wholes);
        let enough = enough.saturating_sub(self.jobs());
        enough.min((2 * PREFETCH).saturating_sub(unopened))
    }

    /// Returns true if no job is left.
    pub fn is_idle(&self) -> bool {
        self.jobs() == 0
    }

    /// Returns true if this lane predicts handles, or may come to do so.
    pub fn predicts(&self) -> bool {
        match self.ready {
            true => self.core.predicts(),
            false => self.core.config().predict && self.core.config().openssh,
        }
    }

    /// Returns true if the server handles requests in order, so that jobs pushed after a MakeDir
    /// may use that directory.
    pub fn works_in_order(&self) -> bool {
        self.ready && self.core.in_order()
    }

    /// Returns true if the server is known to allow several handles on one file, as OpenSSH's and
    /// longhaul's do.
    pub fn shares_files(&self) -> bool {
        self.ready && self.core.can(ServerCapabilities::SHARES_FILES)
    }

    /// Returns true if the server's VERSION is known or not needed.
    pub fn is_known(&self) -> bool {
        self.ready
    }

    /// Returns the operations that the server is known to refuse.
    pub fn refusals(&self) -> RefusedOperations {
        self.core.refusals()
    }

    /// Adds refusals that another lane to this server has found.
    pub fn note_refusals(&mut self, refusals: RefusedOperations) {
        self.core.note_refusals(refusals);
    }

    /// Returns the server's VERSION, to be remembered; `None` before it has come.
    pub fn server_info(&self) -> Option<&ServerInfo> {
        self.core.pipeline().client().info()
    }

    /// Returns the VERSION that was expected from earlier runs.
    pub fn remembered(&self) -> Option<&ServerInfo> {
        self.core.config().remembered.as_ref()
    }

    /// Fails every job with `reason` and cleans up after each; keep driving the lane until
    /// [`Lane::is_idle`].
    pub fn cancel(&mut self, now: Instant, reason: &str) {
        self.stop(now, reason, false);
    }

    /// Cancels like [`Lane::cancel`], but keeps complete journaled files that wait for their rename
    /// only ([`crate::Scheduler::cancel_resumable`]).
    pub fn cancel_resumable(&mut self, now: Instant, reason: &str) {
        self.stop(now, reason, true);
    }

    fn stop(&mut self, now: Instant, reason: &str, leaving: bool) {
        self.revision += 1;
        self.core.at(now);
        let fault = JobFailure::new(reason, false);
        for job in std::mem::take(&mut self.waiting) {
            self.core.event(LaneEvent::Failed(job.id, fault.clone()));
        }
        let ids: Vec<JobId> = self.tasks.keys().copied().collect();
        for id in ids {
            if let Some(task) = self.tasks.get_mut(&id) {
                let step = task.cancel(&mut self.core, fault.clone(), leaving);
                self.after(id, step);
            }
        }
        self.pump();
    }

    /// Gives up one job whose work another lane has done. The job ends with
    /// [`LaneEvent::Abandoned`] when all its requests are answered, or with its normal result. An
    /// unknown job is ignored.
    pub fn abandon(&mut self, now: Instant, job: JobId) {
        self.revision += 1;
        self.core.at(now);
        if let Some(at) = self.waiting.iter().position(|j| j.id == job) {
            self.waiting.remove(at);
            self.core.event(LaneEvent::Abandoned(job));
        } else if let Some(task) = self.tasks.get_mut(&job) {
            let step = task.abandon(&mut self.core);
            self.after(job, step);
        }
        self.pump();
    }

    /// Returns the work that is left after the channel has gone.
    pub fn into_unfinished(self) -> UnfinishedWork {
        let mut left = UnfinishedWork::default();
        for (_, task) in self.tasks {
            left.temporaries.extend(task.temporary());
            left.releases.extend(task.release());
            left.jobs.push(task.into_job());
        }
        left.jobs.extend(self.waiting);
        left.jobs.sort_by_key(|job| job.id);
        left
    }

    /// Returns the counters.
    pub fn stats(&self) -> LaneStats {
        let core = &self.core;
        let (bytes, requests) = (core.pipeline().bytes(), core.pipeline().requests());
        LaneStats {
            jobs: self.jobs(),
            requests_in_flight: requests.in_flight(),
            bytes_in_flight: bytes.in_flight(),
            requests_depth: requests.target(),
            bytes_depth: bytes.target(),
            reading: core.reading(),
            unwritten: core.unwritten(),
            latency: bytes.latency(),
            rate: bytes.rate(),
            stalls_depth: core.pipeline().stalls(),
            stalls_room: self.stalls_room,
            stalls_disk: core.stalls_disk(),
            predicting: core.predicts(),
            packed: core.packing().totals(),
            whole: core.whole(),
        }
    }

    fn jobs(&self) -> usize {
        self.tasks.len() + self.waiting.len()
    }

    fn replies(&mut self) -> Result<(), LaneError> {
        self.greet().map_err(surprise)?;
        while let Some((id, reply)) = self.core.pipeline_mut().poll_reply() {
            let last = !matches!(reply, Reply::Data { last: false, .. });
            let Some((job, what)) = self.core.pipeline_mut().answered(id, last) else {
                continue;
            };
            if let (RequestPurpose::Limits, Reply::Limits(limits)) = (what, &reply) {
                self.core.apply_limits(*limits);
            }
            if let (RequestPurpose::HoldRoot, Reply::Status(status)) = (what, &reply)
                && !status.is_ok()
            {
                return Err(LaneError::RootRefused(status.to_string()));
            }
            let Some(task) = job.and_then(|id| self.tasks.get_mut(&id)) else {
                continue;
            };
            let id = task.job().id;
            let step = task
                .on_reply(&mut self.core, what, reply)
                .map_err(surprise)?;
            self.after(id, step);
        }
        Ok(())
    }

    /// Handles VERSION, once.
    fn greet(&mut self) -> Result<(), Misprediction> {
        if self.greeted {
            return Ok(());
        }
        let Some(info) = self.core.pipeline().client().info().cloned() else {
            return Ok(());
        };
        self.greeted = true;
        if self.ready {
            let expected = self.core.config().remembered.as_ref();
            if expected.is_none_or(|e| !e.same_set(&info)) {
                return Err(Misprediction::Extensions);
            }
        } else {
            self.ready = true;
            self.core.set_up(&info);
        }
        Ok(())
    }

    fn after(&mut self, job: JobId, step: JobProgress) {
        if step == JobProgress::Finished {
            self.tasks.remove(&job);
        }
    }

    /// Sends everything that may be sent.
    fn pump(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if !self.ready {
            return self.pump_questions();
        }
        loop {
            let queued = |lane: &Self| {
                let unsent = lane.core.turns().unsent();
                (unsent, lane.waiting.len())
            };
            let before = queued(self);
            self.pump_streams();
            self.pump_wholes();
            self.pump_openers();
            self.pump_streams();
            self.pump_waiting();
            if before == queued(self) {
                return;
            }
        }
    }

    /// Sends STAT and REALPATH before VERSION, since every SFTP server supports them: OpenSSH's
    /// handles INIT first and the rest after it, and the type of a target is known a round trip
    /// sooner.
    fn pump_questions(&mut self) {
        let lists = |job: &Job| matches!(job.kind, JobKind::List { .. });
        while (self.core.config().openssh || self.core.config().ours)
            && let Some(at) = self.waiting.iter().position(|job| !lists(job))
        {
            let question = match &self.waiting[at].kind {
                JobKind::Stat { .. } => true,
                JobKind::RealPath { path } => path.0.first() != Some(&b'~'),
                _ => false,
            };
            if !question {
                return;
            }
            if let Some(job) = self.waiting.remove(at) {
                self.begin(job);
            }
        }
    }

    /// Moves data of the open files, the first file first.
    fn pump_streams(&mut self) {
        while let Some(id) = self.core.turns_mut().first(LaneQueueKind::Streams) {
            let Some(task) = self.tasks.get_mut(&id) else {
                self.core.turns_mut().pop(LaneQueueKind::Streams);
                continue;
            };
            let may = match task.receives() {
                true => self.core.may_read_remote(),
                false => self.core.may_read_disk(),
            };
            if !may {
                return;
            }
            if !task.stream(&mut self.core) {
                self.core.turns_mut().pop(LaneQueueKind::Streams);
            }
        }
    }

    /// Sends files that are one request each.
    fn pump_wholes(&mut self) {
        while let Some(id) = self.core.turns_mut().first(LaneQueueKind::Wholes) {
            let Some(task) = self.tasks.get_mut(&id) else {
                self.core.turns_mut().pop(LaneQueueKind::Wholes);
                continue;
            };
            let disk = !task.receives() || self.core.may_read_remote();
            if !disk || !self.core.has_room() {
                return;
            }
            self.core.turns_mut().pop(LaneQueueKind::Wholes);
            task.go_whole(&mut self.core);
        }
    }

    fn pump_openers(&mut self) {
        while self.core.may_open() && self.core.turns().unsent().0 > 0 && self.core.has_room() {
            if let Some(id) = self.core.turns_mut().pop(LaneQueueKind::Openers)
                && let Some(task) = self.tasks.get_mut(&id)
            {
                task.open(&mut self.core);
                self.pump_streams();
            }
        }
    }

    fn pump_waiting(&mut self) {
        while !self.waiting.is_empty()
            && self.core.turns().prefetched() < PREFETCH
            && self.core.has_room()
        {
            if let Some(job) = self.waiting.pop_front() {
                self.begin(job);
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let id = job.id;
        let mut task = Box::new(RunningJob::new(job));
        if task.start(&mut self.core) == JobProgress::Continues {
            self.tasks.insert(id, task);
        }
    }
}

fn surprise(surprise: Misprediction) -> LaneError {
    LaneError::Misprediction(match surprise {
        Misprediction::Handle => {
            "the server returned another file handle than its earlier ones had suggested"
        }
        Misprediction::Extensions => "the server announces other SFTP extensions than last time",
    })
}
