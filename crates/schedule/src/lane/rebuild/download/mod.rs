//! Download by delta: unchanged parts are copied from an older local version of the file.

mod blocks;
mod giving_up;
mod matching;

use sftp::{Attrs, OpenFlags, Reply, Request};

use self::giving_up::DeltaDownloadCleanup;
use self::matching::Matching;
use super::{DeltaEnd, JobRequests, LaneContext, Rebuild, RequestTag, SearchQueue};
use crate::delta::{block_len, may_be_forms};
use crate::lane::messages::refused;
use crate::lane::remote_file::{OpenAnswer, RemoteFile};
use crate::lane::server::Capabilities;
use crate::lane::task::{Misprediction, TaskStep, attributes};
use crate::{
    Attributes, DiskReply, DiskRequest, EntryKind, Fault, FileState, JobId, LaneEvent, LocalPath,
    PutOptions,
};

/// Rebuilds a file beside its basis file, which keeps its name until the end.
///
/// The server sends the block sums of the file, which are searched in the basis file: first at
/// their own offset, then everywhere. The job is given up for a plain download
/// ([`LaneEvent::Abandoned`]), leaving nothing behind, as soon as the delta turns out to be
/// impossible or not to pay.
#[derive(Debug)]
pub(in crate::lane) struct DeltaDownload {
    job: DeltaJob,
    stage: Stage,
}

/// Part of a job that does not change between its stages.
#[derive(Debug)]
struct DeltaJob {
    requests: JobRequests,
    source: Vec<u8>,
    target: LocalPath,
    options: PutOptions,
    /// Use a delta on any path.
    always: bool,
    /// Latest attributes, from the listing, STAT or FSTAT.
    attrs: Option<Attributes>,
    /// Received bytes that the disk has not confirmed.
    unwritten: u64,
}

#[derive(Debug)]
enum Stage {
    /// Looks at both files.
    Looking(Looking),
    /// Waits for its turn to open the file.
    Queued(Box<Rebuild>),
    /// Waits for the handle.
    Opening(Box<Rebuild>, RemoteFile),
    /// Sums are compared, ranges copied and read.
    Matching(Box<Matching>),
    /// All bytes are present; attributes and final name are being set, and CLOSE is answered.
    Finishing {
        remote: RemoteFile,
        finished: bool,
    },
    GivingUp(Box<DeltaDownloadCleanup>),
}

/// Stage in which both files are looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Looking {
    /// Size of the basis file in bytes, once it is open.
    older: Option<u64>,
}

impl DeltaDownload {
    pub(in crate::lane) fn new(
        id: JobId,
        source: Vec<u8>,
        target: LocalPath,
        known: Option<Attributes>,
        options: PutOptions,
        always: bool,
    ) -> Self {
        // A listing describes a symlink itself, but only its target counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        Self {
            job: DeltaJob {
                requests: JobRequests::new(id),
                source,
                target,
                options,
                always,
                attrs,
                unwritten: 0,
            },
            stage: Stage::Looking(Looking::default()),
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        let job = &mut self.job;
        let id = job.requests.job();
        let keep = job.options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        if job.options.inplace || left || !core.can(Capabilities::SUMS) {
            core.event(LaneEvent::Abandoned(id));
            return TaskStep::Over;
        }
        // The latency of the path may be unknown before the first request.
        let unknown = !job.always && !core.pipeline().sends_slower_than_hashing();
        if job.attrs.is_none() || unknown {
            let request = Request::Stat { path: &job.source };
            job.requests.send(core, RequestTag::Look, &request);
        }
        let request = DiskRequest::OpenOlder {
            job: id,
            target: job.target.clone(),
            keep: job.options.keep.clone(),
            sparse: job.options.sparse,
        };
        job.requests.ask_disk(core, request);
        TaskStep::Goes
    }

    /// Sends OPEN when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        let queued = matches!(self.stage, Stage::Queued(_));
        if !queued {
            return;
        }
        if let Stage::Queued(rebuild) = self.take() {
            let job = &mut self.job;
            let (path, attrs) = (job.source.as_slice(), Attrs::default());
            let requests = &mut job.requests;
            let remote = RemoteFile::open(requests, core, path, OpenFlags::READ, attrs);
            self.stage = match remote.handle().is_some() {
                true => Stage::Matching(Box::new(Matching::begin(job, core, *rebuild, remote))),
                false => Stage::Opening(rebuild, remote),
            };
        }
    }

    /// Takes the stage out, to be replaced at once.
    fn take(&mut self) -> Stage {
        std::mem::replace(&mut self.stage, Stage::Looking(Looking::default()))
    }

    /// Sends the next request; false if nothing can be sent now.
    pub(in crate::lane) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.stage {
            Stage::Matching(matching) => matching.send_next(&mut self.job, core),
            _ => false,
        }
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> Result<TaskStep, Misprediction> {
        let job = &mut self.job;
        let id = job.requests.job();
        if !matches!(reply, Reply::Data { last: false, .. }) {
            job.requests.answered();
        }
        let end = match what {
            RequestTag::Look => job.on_look(&reply),
            RequestTag::Open => self.on_open(core, &reply)?,
            RequestTag::Fstat => self.on_stat(&reply),
            RequestTag::Sums { offset, len, .. } => {
                // A sign of progress, so that the scheduler does not take the lane for stalled.
                core.event(LaneEvent::Progress(id, 0));
                let end = match &mut self.stage {
                    Stage::Matching(matching) => matching.on_sums(job, core, (offset, len), &reply),
                    _ => None,
                };
                core.stream(id);
                end
            }
            RequestTag::Read { offset, len } | RequestTag::ReadPacked { offset, len } => {
                if let RequestTag::ReadPacked { .. } = what {
                    core.answered_packed(&reply);
                }
                let end = match &mut self.stage {
                    Stage::Matching(matching) => matching.on_read(job, core, (offset, len), reply),
                    _ => matching::read_failed(&reply),
                };
                core.stream(id);
                end
            }
            // All data have arrived; the result of closing a read handle does not matter.
            RequestTag::Close => {
                if let Stage::Finishing { remote, .. } = &mut self.stage {
                    remote.closed();
                }
                None
            }
            _ => None,
        };
        self.end_if(end);
        Ok(self.settle(core))
    }

    fn on_open(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Result<Option<DeltaEnd>, Misprediction> {
        let remote = match &mut self.stage {
            Stage::Opening(_, remote) => remote,
            Stage::Matching(matching) => matching.remote_mut(),
            Stage::GivingUp(giving_up) => match giving_up.remote_mut() {
                Some(remote) => remote,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        match remote.on_open(&self.job.requests, core, reply)? {
            OpenAnswer::Refused(status) => {
                let fault = refused("cannot open the file", &status);
                return Ok(Some(DeltaEnd::Failed(fault)));
            }
            OpenAnswer::AsPredicted => {}
            OpenAnswer::Known => match self.take() {
                Stage::Opening(rebuild, remote) => {
                    let matching = Matching::begin(&mut self.job, core, *rebuild, remote);
                    self.stage = Stage::Matching(Box::new(matching));
                }
                stage => self.stage = stage,
            },
        }
        Ok(None)
    }

    /// Handles the attributes of the open file.
    fn on_stat(&mut self, reply: &Reply) -> Option<DeltaEnd> {
        let Reply::Attrs(attrs) = reply else {
            return None;
        };
        let before = self.job.attrs.and_then(|attrs| attrs.size).unwrap_or(0);
        let seen = attributes(attrs);
        self.job.attrs = Some(seen);
        // The opened file may not be the one that was looked at.
        let other = seen.size.is_some_and(|size| size != before);
        other.then_some(DeltaEnd::Plain)
    }

    pub(in crate::lane) fn on_disk(
        &mut self,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> TaskStep {
        let job = &mut self.job;
        job.requests.disk_answered();
        let id = job.requests.job();
        let end = match (&mut self.stage, reply) {
            (_, DiskReply::Failed { fault, .. }) => Some(DeltaEnd::Failed(fault)),
            (stage, DiskReply::Older { size, .. }) => {
                match stage {
                    Stage::Looking(looking) => looking.older = size,
                    Stage::GivingUp(giving_up) => giving_up.opened(size.is_some()),
                    _ => {}
                }
                if size.is_some() {
                    core.event(LaneEvent::State(id, FileState::Created));
                }
                size.is_none().then_some(DeltaEnd::Plain)
            }
            (stage, DiskReply::Finished { stored, .. }) => {
                stored.events(id).for_each(|event| core.event(event));
                match stage {
                    Stage::Finishing { finished, .. } => *finished = true,
                    Stage::GivingUp(giving_up) => giving_up.finished(),
                    _ => {}
                }
                job.tell_finished(core);
                None
            }
            (stage, reply) => {
                let end = job.tell(core, &reply);
                match stage {
                    Stage::Matching(matching) if end.is_none() => {
                        matching.on_disk(job, core, reply)
                    }
                    _ => end,
                }
            }
        };
        self.end_if(end);
        self.settle(core)
    }

    /// Starts all work that is possible now.
    fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        let job = &mut self.job;
        let id = job.requests.job();
        match &mut self.stage {
            Stage::Looking(looking) => match looking.decide(job, core) {
                Some(Ok(rebuild)) => {
                    self.stage = Stage::Queued(Box::new(rebuild));
                    core.queue_open(id);
                }
                Some(Err(end)) => self.end_if(Some(end)),
                None => {}
            },
            Stage::Matching(matching) => {
                let over = matching.rebuild(job, core);
                if over && let Stage::Matching(matching) = self.take() {
                    let remote = matching.finish(&mut self.job, core);
                    let finished = false;
                    self.stage = Stage::Finishing { remote, finished };
                }
            }
            _ => {}
        }
        let job = &mut self.job;
        let event = match &mut self.stage {
            Stage::GivingUp(giving_up) => giving_up.go_on(job, core),
            Stage::Finishing { remote, finished } => {
                let over = *finished && remote.is_closed() && job.requests.are_answered();
                over.then_some(LaneEvent::Done(id))
            }
            _ => None,
        };
        match event {
            Some(event) => {
                core.event(event);
                TaskStep::Over
            }
            None => TaskStep::Goes,
        }
    }

    /// Fails the job, unless the rename is in progress.
    pub(in crate::lane) fn cancel(&mut self, core: &mut LaneContext, fault: Fault) -> TaskStep {
        if !matches!(self.stage, Stage::Finishing { .. }) {
            self.end_if(Some(DeltaEnd::Failed(fault)));
        }
        self.settle(core)
    }

    fn end_if(&mut self, end: Option<DeltaEnd>) {
        let Some(end) = end else { return };
        self.stage = Stage::GivingUp(match self.take() {
            Stage::GivingUp(mut giving_up) => {
                giving_up.merge(end);
                giving_up
            }
            stage => Box::new(DeltaDownloadCleanup::new(stage, end)),
        });
    }

    /// Returns true if the disk side holds files for the job.
    pub(in crate::lane) fn holds_target(&self) -> bool {
        match &self.stage {
            Stage::Looking(looking) => looking.older.is_some(),
            Stage::Queued(_) | Stage::Opening(..) | Stage::Matching(_) => true,
            Stage::Finishing { finished, .. } => !finished,
            Stage::GivingUp(giving_up) => giving_up.holds_target(),
        }
    }
}

impl DeltaJob {
    fn on_look(&mut self, reply: &Reply) -> Option<DeltaEnd> {
        match reply {
            Reply::Attrs(attrs) => {
                self.attrs = Some(attributes(attrs));
                None
            }
            // A plain download will report the reason.
            _ => Some(DeltaEnd::Plain),
        }
    }

    /// Counts `len` received bytes.
    fn received(&mut self, core: &mut LaneContext, len: u64) {
        self.unwritten += len;
        core.received(len);
    }

    /// Reports what a reply of the disk side says of the job's progress; returns why the job ends.
    fn tell(&mut self, core: &mut LaneContext, reply: &DiskReply) -> Option<DeltaEnd> {
        let id = self.requests.job();
        match *reply {
            DiskReply::Written { len, .. } => {
                let unwritten = len.min(self.unwritten);
                self.unwritten -= unwritten;
                core.wrote(unwritten);
                core.event(LaneEvent::Progress(id, len));
                None
            }
            DiskReply::Copied { len, whole, .. } => {
                core.event(LaneEvent::Progress(id, len));
                core.event(LaneEvent::Reused(id, len));
                // The basis file has become shorter.
                (!whole).then_some(DeltaEnd::Plain)
            }
            // One of the two files has changed meanwhile, or the server is wrong.
            DiskReply::Checked { same, .. } => (!same).then_some(DeltaEnd::Plain),
            _ => None,
        }
    }

    /// Reports that the file has its final name.
    fn tell_finished(&self, core: &mut LaneContext) {
        let id = self.requests.job();
        let synced = self.options.fsync.then_some(FileState::Synced);
        let states = [Some(FileState::Written), Some(FileState::Closed), synced];
        for state in states.into_iter().flatten() {
            core.event(LaneEvent::State(id, state));
        }
        core.event(LaneEvent::State(id, FileState::Renamed));
    }
}

impl Looking {
    /// Chooses between delta and plain download, once both files were looked at.
    fn decide(self, job: &DeltaJob, core: &mut LaneContext) -> Option<Result<Rebuild, DeltaEnd>> {
        let (older, attrs) = (self.older?, job.attrs?);
        if job.requests.at_server() > 0 {
            return None;
        }
        let size = attrs.size.unwrap_or(0);
        let regular = attrs.kind() == EntryKind::File;
        let pays = job.always || core.pipeline().sends_slower_than_hashing();
        let alike = regular && may_be_forms(size, older) && pays;
        let Some(block) = block_len(size.max(older)).filter(|_| alike) else {
            return Some(Err(DeltaEnd::Plain));
        };
        let mut key = sftp::blocks::SumKey::default();
        core.random()(&mut key);
        Some(Ok(Rebuild::download(key, block, older, size)))
    }
}
