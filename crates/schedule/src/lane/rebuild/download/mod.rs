//! Download by delta: unchanged parts are copied from an older local version of the file.

mod blocks;
mod giving_up;
mod matching;

use sftp::{Attrs, OpenFlags, Reply, Request};

use self::giving_up::DeltaDownloadCleanup;
use self::matching::DeltaMatchStage;
use super::{BlockSearchQueue, DeltaAbort, DeltaRebuild, JobRequests, LaneContext, RequestPurpose};
use crate::delta::{block_len, may_be_forms};
use crate::lane::messages::refused;
use crate::lane::remote_file::{OpenResult, RemoteFile};
use crate::lane::server::ServerCapabilities;
use crate::lane::task::{JobProgress, Misprediction, attributes};
use crate::{
    Attributes, DiskReply, DiskRequest, EntryKind, FileCopyOptions, FileCopyState, JobFailure,
    JobId, LaneEvent, LocalTargetPath,
};

/// Rebuilds a file beside its basis file, which keeps its name until the end.
///
/// The server sends the block sums of the file, which are searched in the basis file: first at
/// their own offset, then everywhere. The job is given up for a plain download
/// ([`LaneEvent::Abandoned`]), leaving nothing behind, as soon as the delta turns out to be
/// impossible or not to pay.
#[derive(Debug)]
pub(in crate::lane) struct DeltaDownload {
    job: DeltaDownloadCommon,
    stage: DeltaDownloadStage,
}

/// Part of a job that does not change between its stages.
#[derive(Debug)]
struct DeltaDownloadCommon {
    requests: JobRequests,
    source: Vec<u8>,
    target: LocalTargetPath,
    options: FileCopyOptions,
    /// Use a delta on any path.
    always: bool,
    /// Latest attributes, from the listing, STAT or FSTAT.
    attrs: Option<Attributes>,
    /// Received bytes that the disk has not confirmed.
    unwritten: u64,
}

/// Stage of a download by delta, with the data that only this stage has.
#[derive(Debug)]
enum DeltaDownloadStage {
    /// Looks at both files.
    Looking(DeltaDownloadCheckStage),
    /// Waits for its turn to open the file.
    Queued(Box<DeltaRebuild>),
    /// Waits for the handle.
    Opening(Box<DeltaRebuild>, RemoteFile),
    /// Sums are compared, ranges copied and read.
    Matching(Box<DeltaMatchStage>),
    /// All bytes are present; attributes and final name are being set, and CLOSE is answered.
    Finishing {
        remote: RemoteFile,
        finished: bool,
    },
    GivingUp(Box<DeltaDownloadCleanup>),
}

/// Stage in which both files are looked at.
#[derive(Clone, Copy, Debug, Default)]
struct DeltaDownloadCheckStage {
    /// Size of the basis file in bytes, once it is open.
    older: Option<u64>,
}

impl DeltaDownload {
    pub(in crate::lane) fn new(
        id: JobId,
        source: Vec<u8>,
        target: LocalTargetPath,
        known: Option<Attributes>,
        options: FileCopyOptions,
        always: bool,
    ) -> Self {
        // A listing describes a symlink itself, but only its target counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        Self {
            job: DeltaDownloadCommon {
                requests: JobRequests::new(id),
                source,
                target,
                options,
                always,
                attrs,
                unwritten: 0,
            },
            stage: DeltaDownloadStage::Looking(DeltaDownloadCheckStage::default()),
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        let job = &mut self.job;
        let id = job.requests.job();
        let keep = job.options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        if job.options.inplace || left || !core.can(ServerCapabilities::SUMS) {
            core.event(LaneEvent::Abandoned(id));
            return JobProgress::Finished;
        }
        // The latency of the path may be unknown before the first request.
        let unknown = !job.always && !core.pipeline().sends_slower_than_hashing();
        if job.attrs.is_none() || unknown {
            let request = Request::Stat { path: &job.source };
            job.requests.send(core, RequestPurpose::Lstat, &request);
        }
        let request = DiskRequest::OpenBasis {
            job: id,
            target: job.target.clone(),
            keep: job.options.keep.clone(),
            sparse: job.options.sparse,
        };
        job.requests.ask_disk(core, request);
        JobProgress::Continues
    }

    /// Sends OPEN when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        let queued = matches!(self.stage, DeltaDownloadStage::Queued(_));
        if !queued {
            return;
        }
        if let DeltaDownloadStage::Queued(rebuild) = self.take() {
            let job = &mut self.job;
            let (path, attrs) = (job.source.as_slice(), Attrs::default());
            let requests = &mut job.requests;
            let remote = RemoteFile::open(requests, core, path, OpenFlags::READ, attrs);
            self.stage = match remote.handle().is_some() {
                true => DeltaDownloadStage::Matching(Box::new(DeltaMatchStage::begin(
                    job, core, *rebuild, remote,
                ))),
                false => DeltaDownloadStage::Opening(rebuild, remote),
            };
        }
    }

    /// Takes the stage out, to be replaced at once.
    fn take(&mut self) -> DeltaDownloadStage {
        std::mem::replace(
            &mut self.stage,
            DeltaDownloadStage::Looking(DeltaDownloadCheckStage::default()),
        )
    }

    /// Sends the next request; false if nothing can be sent now.
    pub(in crate::lane) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.stage {
            DeltaDownloadStage::Matching(matching) => matching.send_next(&mut self.job, core),
            _ => false,
        }
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: Reply,
    ) -> Result<JobProgress, Misprediction> {
        let job = &mut self.job;
        let id = job.requests.job();
        if !matches!(reply, Reply::Data { last: false, .. }) {
            job.requests.answered();
        }
        let end = match what {
            RequestPurpose::Lstat => job.on_look(&reply),
            RequestPurpose::Open => self.on_open(core, &reply)?,
            RequestPurpose::Fstat => self.on_stat(&reply),
            RequestPurpose::Sums { offset, len, .. } => {
                // A sign of progress, so that the scheduler does not take the lane for stalled.
                core.event(LaneEvent::Progress(id, 0));
                let end = match &mut self.stage {
                    DeltaDownloadStage::Matching(matching) => {
                        matching.on_sums(job, core, (offset, len), &reply)
                    }
                    _ => None,
                };
                core.stream(id);
                end
            }
            RequestPurpose::Read { offset, len } | RequestPurpose::ReadPacked { offset, len } => {
                if let RequestPurpose::ReadPacked { .. } = what {
                    core.answered_packed(&reply);
                }
                let end = match &mut self.stage {
                    DeltaDownloadStage::Matching(matching) => {
                        matching.on_read(job, core, (offset, len), reply)
                    }
                    _ => matching::read_failed(&reply),
                };
                core.stream(id);
                end
            }
            // All data have arrived; the result of closing a read handle does not matter.
            RequestPurpose::Close => {
                if let DeltaDownloadStage::Finishing { remote, .. } = &mut self.stage {
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
    ) -> Result<Option<DeltaAbort>, Misprediction> {
        let remote = match &mut self.stage {
            DeltaDownloadStage::Opening(_, remote) => remote,
            DeltaDownloadStage::Matching(matching) => matching.remote_mut(),
            DeltaDownloadStage::GivingUp(giving_up) => match giving_up.remote_mut() {
                Some(remote) => remote,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        match remote.on_open(&self.job.requests, core, reply)? {
            OpenResult::Refused(status) => {
                let fault = refused("cannot open the file", &status);
                return Ok(Some(DeltaAbort::Failed(fault)));
            }
            OpenResult::AsPredicted => {}
            OpenResult::Known => match self.take() {
                DeltaDownloadStage::Opening(rebuild, remote) => {
                    let matching = DeltaMatchStage::begin(&mut self.job, core, *rebuild, remote);
                    self.stage = DeltaDownloadStage::Matching(Box::new(matching));
                }
                stage => self.stage = stage,
            },
        }
        Ok(None)
    }

    /// Handles the attributes of the open file.
    fn on_stat(&mut self, reply: &Reply) -> Option<DeltaAbort> {
        let Reply::Attrs(attrs) = reply else {
            return None;
        };
        let before = self.job.attrs.and_then(|attrs| attrs.size).unwrap_or(0);
        let seen = attributes(attrs);
        self.job.attrs = Some(seen);
        // The opened file may not be the one that was looked at.
        let other = seen.size.is_some_and(|size| size != before);
        other.then_some(DeltaAbort::FullCopy)
    }

    pub(in crate::lane) fn on_disk(
        &mut self,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> JobProgress {
        let job = &mut self.job;
        job.requests.disk_answered();
        let id = job.requests.job();
        let end = match (&mut self.stage, reply) {
            (_, DiskReply::Failed { fault, .. }) => Some(DeltaAbort::Failed(fault)),
            (stage, DiskReply::BasisOpened { size, .. }) => {
                match stage {
                    DeltaDownloadStage::Looking(looking) => looking.older = size,
                    DeltaDownloadStage::GivingUp(giving_up) => giving_up.opened(size.is_some()),
                    _ => {}
                }
                if size.is_some() {
                    core.event(LaneEvent::State(id, FileCopyState::Created));
                }
                size.is_none().then_some(DeltaAbort::FullCopy)
            }
            (stage, DiskReply::Finished { stored, .. }) => {
                stored.events(id).for_each(|event| core.event(event));
                match stage {
                    DeltaDownloadStage::Finishing { finished, .. } => *finished = true,
                    DeltaDownloadStage::GivingUp(giving_up) => giving_up.finished(),
                    _ => {}
                }
                job.tell_finished(core);
                None
            }
            (stage, reply) => {
                let end = job.tell(core, &reply);
                match stage {
                    DeltaDownloadStage::Matching(matching) if end.is_none() => {
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
    fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let job = &mut self.job;
        let id = job.requests.job();
        match &mut self.stage {
            DeltaDownloadStage::Looking(looking) => match looking.decide(job, core) {
                Some(Ok(rebuild)) => {
                    self.stage = DeltaDownloadStage::Queued(Box::new(rebuild));
                    core.queue_open(id);
                }
                Some(Err(end)) => self.end_if(Some(end)),
                None => {}
            },
            DeltaDownloadStage::Matching(matching) => {
                let over = matching.rebuild(job, core);
                if over && let DeltaDownloadStage::Matching(matching) = self.take() {
                    let remote = matching.finish(&mut self.job, core);
                    let finished = false;
                    self.stage = DeltaDownloadStage::Finishing { remote, finished };
                }
            }
            _ => {}
        }
        let job = &mut self.job;
        let event = match &mut self.stage {
            DeltaDownloadStage::GivingUp(giving_up) => giving_up.go_on(job, core),
            DeltaDownloadStage::Finishing { remote, finished } => {
                let over = *finished && remote.is_closed() && job.requests.are_answered();
                over.then_some(LaneEvent::Done(id))
            }
            _ => None,
        };
        match event {
            Some(event) => {
                core.event(event);
                JobProgress::Finished
            }
            None => JobProgress::Continues,
        }
    }

    /// Fails the job, unless the rename is in progress.
    pub(in crate::lane) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: JobFailure,
    ) -> JobProgress {
        if !matches!(self.stage, DeltaDownloadStage::Finishing { .. }) {
            self.end_if(Some(DeltaAbort::Failed(fault)));
        }
        self.settle(core)
    }

    fn end_if(&mut self, end: Option<DeltaAbort>) {
        let Some(end) = end else { return };
        self.stage = DeltaDownloadStage::GivingUp(match self.take() {
            DeltaDownloadStage::GivingUp(mut giving_up) => {
                giving_up.merge(end);
                giving_up
            }
            stage => Box::new(DeltaDownloadCleanup::new(stage, end)),
        });
    }

    /// Returns true if the disk side holds files for the job.
    pub(in crate::lane) fn holds_target(&self) -> bool {
        match &self.stage {
            DeltaDownloadStage::Looking(looking) => looking.older.is_some(),
            DeltaDownloadStage::Queued(_)
            | DeltaDownloadStage::Opening(..)
            | DeltaDownloadStage::Matching(_) => true,
            DeltaDownloadStage::Finishing { finished, .. } => !finished,
            DeltaDownloadStage::GivingUp(giving_up) => giving_up.holds_target(),
        }
    }
}

impl DeltaDownloadCommon {
    fn on_look(&mut self, reply: &Reply) -> Option<DeltaAbort> {
        match reply {
            Reply::Attrs(attrs) => {
                self.attrs = Some(attributes(attrs));
                None
            }
            // A plain download will report the reason.
            _ => Some(DeltaAbort::FullCopy),
        }
    }

    /// Counts `len` received bytes.
    fn received(&mut self, core: &mut LaneContext, len: u64) {
        self.unwritten += len;
        core.received(len);
    }

    /// Reports what a reply of the disk side says of the job's progress; returns why the job ends.
    fn tell(&mut self, core: &mut LaneContext, reply: &DiskReply) -> Option<DeltaAbort> {
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
                (!whole).then_some(DeltaAbort::FullCopy)
            }
            // One of the two files has changed meanwhile, or the server is wrong.
            DiskReply::Checked { same, .. } => (!same).then_some(DeltaAbort::FullCopy),
            _ => None,
        }
    }

    /// Reports that the file has its final name.
    fn tell_finished(&self, core: &mut LaneContext) {
        let id = self.requests.job();
        let synced = self.options.fsync.then_some(FileCopyState::Synced);
        let states = [
            Some(FileCopyState::Written),
            Some(FileCopyState::Closed),
            synced,
        ];
        for state in states.into_iter().flatten() {
            core.event(LaneEvent::State(id, state));
        }
        core.event(LaneEvent::State(id, FileCopyState::Renamed));
    }
}

impl DeltaDownloadCheckStage {
    /// Chooses between delta and plain download, once both files were looked at.
    fn decide(
        self,
        job: &DeltaDownloadCommon,
        core: &mut LaneContext,
    ) -> Option<Result<DeltaRebuild, DeltaAbort>> {
        let (older, attrs) = (self.older?, job.attrs?);
        if job.requests.at_server() > 0 {
            return None;
        }
        let size = attrs.size.unwrap_or(0);
        let regular = attrs.kind() == EntryKind::File;
        let pays = job.always || core.pipeline().sends_slower_than_hashing();
        let alike = regular && may_be_forms(size, older) && pays;
        let Some(block) = block_len(size.max(older)).filter(|_| alike) else {
            return Some(Err(DeltaAbort::FullCopy));
        };
        let mut key = sftp::blocks::BlockSumKey::default();
        core.random()(&mut key);
        Some(Ok(DeltaRebuild::download(key, block, older, size)))
    }
}
