//! Upload by delta: the server copies unchanged parts from an older version of the file.

mod closing;
mod files;
mod giving_up;
mod moving;
mod verify;

use std::path::PathBuf;

use sftp::{Attrs, Reply, Request};
use wire::PayloadBlock;

use self::closing::DeltaCloseStage;
use self::files::DeltaUploadFiles;
use self::giving_up::DeltaUploadCleanup;
use self::moving::DeltaTransferStage;
use self::verify::DeltaVerifyStage;
use super::{BlockSearchQueue, DeltaAbort, DeltaRebuild, JobRequests, LaneContext, RequestPurpose};
use crate::attributes::OWNER_WRITE;
use crate::delta::{LEAST, block_len, may_be_forms};
use crate::lane::messages;
use crate::lane::put::UploadJob;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::{JobProgress, Misprediction};
use crate::{
    DiskReply, DiskRequest, FileCopyOptions, JobFailure, JobId, LaneEvent, SourceFileMeta,
};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// Rebuilds a file at the far end beside its basis file, which keeps its name until the end.
///
/// The job is given up for a plain upload ([`LaneEvent::Abandoned`]), leaving nothing behind, as
/// soon as the delta turns out to be impossible or not to pay.
#[derive(Debug)]
pub(in crate::lane) struct DeltaUpload {
    job: DeltaUploadContext,
    stage: DeltaUploadStage,
}

/// Paths, options and requests of a delta upload job, which all its stages share.
#[derive(Debug)]
struct DeltaUploadContext {
    requests: JobRequests,
    source: PathBuf,
    /// Path of the existing file, which is replaced.
    path: Vec<u8>,
    options: FileCopyOptions,
    /// Use a delta on any path.
    always: bool,
}

/// Stage of an upload by delta, with the data that only this stage has.
#[derive(Debug)]
enum DeltaUploadStage {
    /// Looks at the target and the source.
    Looking(DeltaUploadCheckStage),
    /// Waits for its turn to open both files.
    Queued(Box<DeltaFileVersions>),
    /// Waits for both handles.
    Opening(Box<(DeltaFileVersions, DeltaUploadFiles)>),
    /// Sums are compared, ranges copied and sent.
    Moving(Box<DeltaTransferStage>),
    /// The rebuilt file is compared with the source.
    Verifying(Box<DeltaVerifyStage>),
    /// Everything up to CLOSE was sent.
    Closing(Box<DeltaCloseStage>),
    /// Attributes and final name are being set.
    Finishing(Box<UploadJob>),
    GivingUp(Box<DeltaUploadCleanup>),
    Finished,
}

/// Stage in which the disk side opens the source and the server is asked for the basis file.
#[derive(Debug, Default)]
struct DeltaUploadCheckStage {
    /// Result of LSTAT on the basis file.
    old: Option<BasisFileInfo>,
    /// The disk side holds the source open.
    source: Option<SourceFileMeta>,
}

/// Size in bytes, permission bits and owner of the basis file at the server, from LSTAT.
#[derive(Clone, Copy, Debug)]
struct BasisFileInfo {
    size: u64,
    mode: u32,
    owner: Option<(u32, u32)>,
}

/// Both versions of the file, which may be alike.
#[derive(Debug)]
struct DeltaFileVersions {
    old: BasisFileInfo,
    meta: SourceFileMeta,
    rebuild: DeltaRebuild,
}

impl DeltaUpload {
    pub(in crate::lane) fn new(
        id: JobId,
        source: PathBuf,
        path: Vec<u8>,
        options: FileCopyOptions,
        always: bool,
    ) -> Self {
        let job = DeltaUploadContext {
            requests: JobRequests::new(id),
            source,
            path,
            options,
            always,
        };
        Self {
            job,
            stage: DeltaUploadStage::Looking(DeltaUploadCheckStage::default()),
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        let job = &mut self.job;
        let keep = job.options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        let plain = job.options.inplace || job.options.existing.fresh || left;
        if plain || !core.can(ServerCapabilities::SUMS) {
            core.event(LaneEvent::Abandoned(job.requests.job()));
            return JobProgress::Finished;
        }
        let request = Request::Lstat { path: &job.path };
        job.requests.send(core, RequestPurpose::Lstat, &request);
        let request = DiskRequest::OpenSource {
            job: job.requests.job(),
            path: job.source.clone(),
            first: PayloadBlock::default(),
            sparse: false,
            pack: None,
        };
        job.requests.ask_disk(core, request);
        JobProgress::Continues
    }

    /// Sends OPEN for both files when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
            DeltaUploadStage::Queued(plan) => {
                let mode = plan.meta.attributes.mode;
                let files = DeltaUploadFiles::open(&mut self.job, core, mode);
                self.stage = match files.may_ask_sums() {
                    true => DeltaUploadStage::Moving(Box::new(DeltaTransferStage::begin(
                        &mut self.job,
                        core,
                        *plan,
                        files,
                    ))),
                    false => DeltaUploadStage::Opening(Box::new((*plan, files))),
                };
            }
            DeltaUploadStage::Finishing(mut put) => {
                put.open(core);
                self.stage = DeltaUploadStage::Finishing(put);
            }
            stage => self.stage = stage,
        }
    }

    /// Sends the next request; false if nothing can be sent now.
    pub(in crate::lane) fn stream(&mut self, core: &mut LaneContext) -> bool {
        let job = &mut self.job;
        match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
            DeltaUploadStage::Moving(mut moving) => {
                if moving.send_next(job, core) {
                    self.stage = DeltaUploadStage::Moving(moving);
                    return true;
                }
                if !moving.is_sent(core) {
                    self.stage = DeltaUploadStage::Moving(moving);
                    return false;
                }
                // The check follows in the same flight as the last data.
                self.verify(core, moving.verify())
            }
            DeltaUploadStage::Verifying(verifying) => self.verify(core, *verifying),
            DeltaUploadStage::Finishing(mut put) => {
                let more = put.stream(core);
                self.stage = DeltaUploadStage::Finishing(put);
                more
            }
            stage => {
                self.stage = stage;
                false
            }
        }
    }

    /// Requests the next sums of the rebuilt file, and CLOSE after the last; false if nothing can
    /// be requested now.
    fn verify(&mut self, core: &mut LaneContext, mut verifying: DeltaVerifyStage) -> bool {
        let job = &mut self.job;
        let any = verifying.ask_ready(job, core);
        if core.in_order() && verifying.has_asked_all() {
            self.stage = DeltaUploadStage::Closing(Box::new(verifying.close(job, core)));
            return false;
        }
        self.stage = DeltaUploadStage::Verifying(Box::new(verifying));
        any
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<JobProgress, Misprediction> {
        if let DeltaUploadStage::Finishing(put) = &mut self.stage {
            return put.on_reply(core, what, reply);
        }
        self.job.requests.answered();
        let id = self.job.requests.job();
        if let RequestPurpose::Sums { .. } = what {
            // A sign of progress, so that the scheduler does not take the lane for stalled.
            core.event(LaneEvent::Progress(id, 0));
            core.stream(id);
        }
        let mut end = None;
        if let RequestPurpose::Write { len, .. } | RequestPurpose::Copied { len } = what {
            let copied = matches!(what, RequestPurpose::Copied { .. });
            end = self.job.moved(core, len, copied, reply);
        }
        let job = &mut self.job;
        let later = match &mut self.stage {
            DeltaUploadStage::Looking(looking) => looking.on_look(reply),
            DeltaUploadStage::Opening(opening) => opening.1.on_reply(core, what, reply)?,
            DeltaUploadStage::Moving(moving) => moving.on_reply(job, core, what, reply)?,
            DeltaUploadStage::Verifying(verifying) => verifying.on_reply(what, reply),
            DeltaUploadStage::Closing(closing) => closing.on_reply(what, reply),
            DeltaUploadStage::GivingUp(giving_up) => giving_up.on_reply(job, core, what, reply)?,
            DeltaUploadStage::Queued(_)
            | DeltaUploadStage::Finishing(_)
            | DeltaUploadStage::Finished => None,
        };
        self.end_if(core, end.or(later));
        if let RequestPurpose::Sums { rebuilt: true, .. } = what {
            self.close_if_verified(core);
        }
        Ok(self.settle(core))
    }

    /// Sends CLOSE once the whole file has been compared.
    fn close_if_verified(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
            DeltaUploadStage::Verifying(verifying) if verifying.is_over() => {
                let closing = verifying.close(&mut self.job, core);
                self.stage = DeltaUploadStage::Closing(Box::new(closing));
            }
            stage => self.stage = stage,
        }
    }

    pub(in crate::lane) fn on_disk(
        &mut self,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> JobProgress {
        if let DeltaUploadStage::Finishing(put) = &mut self.stage {
            return put.on_disk(core, reply);
        }
        let job = &mut self.job;
        job.requests.disk_answered();
        let end = match (&mut self.stage, reply) {
            (_, DiskReply::Failed { fault, .. }) => Some(DeltaAbort::Failed(fault)),
            (stage, DiskReply::Opened { meta, eof, .. }) => {
                let plain = eof || meta.stream;
                match stage {
                    DeltaUploadStage::Looking(looking) => looking.source = (!eof).then_some(meta),
                    DeltaUploadStage::GivingUp(giving_up) => giving_up.source_opened(!eof),
                    _ => {}
                }
                let told = match stage {
                    DeltaUploadStage::GivingUp(giving_up) => !giving_up.is_plain(),
                    _ => true,
                };
                if !plain && told {
                    let id = job.requests.job();
                    core.event(LaneEvent::Attributes(id, meta.attributes));
                }
                plain.then_some(DeltaAbort::FullCopy)
            }
            (DeltaUploadStage::Moving(moving), reply) => moving.on_disk(job, core, reply),
            (DeltaUploadStage::GivingUp(giving_up), DiskReply::Read { offset, .. }) => {
                giving_up.on_read(core, offset);
                None
            }
            _ => None,
        };
        self.end_if(core, end);
        self.settle(core)
    }

    /// Starts all work that is possible now.
    fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let job = &mut self.job;
        let mut end = None;
        match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
            DeltaUploadStage::Looking(looking) => match looking.decide(job, core) {
                DeltaDecision::Wait => self.stage = DeltaUploadStage::Looking(looking),
                DeltaDecision::Go(plan) => {
                    self.stage = DeltaUploadStage::Queued(plan);
                    core.queue_open(job.requests.job());
                }
                DeltaDecision::Plain => {
                    self.stage = DeltaUploadStage::Looking(looking);
                    end = Some(DeltaAbort::FullCopy);
                }
            },
            DeltaUploadStage::Opening(opening) if opening.1.are_open() => {
                let (plan, files) = *opening;
                self.stage = DeltaUploadStage::Moving(Box::new(DeltaTransferStage::begin(
                    job, core, plan, files,
                )));
            }
            DeltaUploadStage::Moving(mut moving) => {
                end = moving.rebuild(job, core);
                if end.is_none() && moving.is_sent(core) {
                    self.stage = DeltaUploadStage::Verifying(Box::new(moving.verify()));
                    core.stream(job.requests.job());
                } else {
                    self.stage = DeltaUploadStage::Moving(moving);
                }
            }
            stage => self.stage = stage,
        }
        self.end_if(core, end);
        let job = &mut self.job;
        match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
            DeltaUploadStage::GivingUp(mut giving_up) => {
                if let Some(event) = giving_up.go_on(job, core) {
                    core.event(event);
                    return JobProgress::Finished;
                }
                self.stage = DeltaUploadStage::GivingUp(giving_up);
            }
            DeltaUploadStage::Closing(closing) if job.requests.are_answered() => {
                let Some(put) = closing.finish(job, core) else {
                    core.event(LaneEvent::Abandoned(job.requests.job()));
                    return JobProgress::Finished;
                };
                self.stage = DeltaUploadStage::Finishing(Box::new(put));
            }
            stage => self.stage = stage,
        }
        JobProgress::Continues
    }

    /// Fails the job, unless the rename is in flight.
    pub(in crate::lane) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: JobFailure,
        leaving: bool,
    ) -> JobProgress {
        if let DeltaUploadStage::Finishing(put) = &mut self.stage {
            return put.cancel(core, fault, leaving);
        }
        self.end_if(core, Some(DeltaAbort::Failed(fault)));
        self.settle(core)
    }

    fn end_if(&mut self, core: &mut LaneContext, end: Option<DeltaAbort>) {
        let Some(end) = end else { return };
        self.stage = DeltaUploadStage::GivingUp(
            match std::mem::replace(&mut self.stage, DeltaUploadStage::Finished) {
                DeltaUploadStage::GivingUp(mut giving_up) => {
                    giving_up.merge(end);
                    giving_up
                }
                stage => Box::new(DeltaUploadCleanup::new(&mut self.job, core, stage, end)),
            },
        );
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        let temp = match &self.stage {
            DeltaUploadStage::Opening(opening) => opening.1.temp(),
            DeltaUploadStage::Moving(moving) => moving.files().temp(),
            DeltaUploadStage::Verifying(verifying) => verifying.files().temp(),
            DeltaUploadStage::Closing(closing) => closing.files().temp(),
            DeltaUploadStage::GivingUp(giving_up) => giving_up.temp(),
            DeltaUploadStage::Finishing(put) => put.temp(),
            DeltaUploadStage::Looking(_)
            | DeltaUploadStage::Queued(_)
            | DeltaUploadStage::Finished => None,
        };
        temp.map(|temp| (self.job.requests.job(), temp))
    }

    /// Returns true if the disk side may hold the source open.
    pub(in crate::lane) fn holds_source(&self) -> bool {
        let open = match &self.stage {
            DeltaUploadStage::Looking(looking) => looking.source.is_some(),
            DeltaUploadStage::GivingUp(giving_up) => giving_up.holds_source(),
            DeltaUploadStage::Closing(_)
            | DeltaUploadStage::Finishing(_)
            | DeltaUploadStage::Finished => false,
            DeltaUploadStage::Queued(_)
            | DeltaUploadStage::Opening(_)
            | DeltaUploadStage::Moving(_)
            | DeltaUploadStage::Verifying(_) => true,
        };
        open || self.job.requests.at_disk() > 0
    }
}

impl DeltaUploadContext {
    /// Handles the answer to a WRITE or copy-data.
    fn moved(
        &self,
        core: &mut LaneContext,
        len: u64,
        copied: bool,
        reply: &Reply,
    ) -> Option<DeltaAbort> {
        let id = self.requests.job();
        let Err(status) = messages::status(reply) else {
            core.event(LaneEvent::Progress(id, len));
            if copied {
                core.event(LaneEvent::Reused(id, len));
            }
            return None;
        };
        Some(match status.code {
            // The basis file has become shorter.
            sftp::StatusCode::EOF => DeltaAbort::FullCopy,
            _ => DeltaAbort::Failed(messages::refused(messages::WRITING, status)),
        })
    }
}

/// Choice between delta and plain upload.
#[derive(Debug)]
enum DeltaDecision {
    Wait,
    Go(Box<DeltaFileVersions>),
    Plain,
}

impl DeltaUploadCheckStage {
    /// Handles the LSTAT of the target; only ordinary files are rebuilt, others need a plain
    /// upload.
    fn on_look(&mut self, reply: &Reply) -> Option<DeltaAbort> {
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                size: Some(size),
                owner,
                ..
            }) if mode & TYPE == REGULAR && mode & OWNER_WRITE != 0 && *size >= LEAST => {
                self.old = Some(BasisFileInfo {
                    size: *size,
                    mode: mode & 0o777,
                    owner: *owner,
                });
                None
            }
            _ => Some(DeltaAbort::FullCopy),
        }
    }

    /// Decides once both ends were looked at.
    fn decide(&self, job: &DeltaUploadContext, core: &mut LaneContext) -> DeltaDecision {
        let (Some(old), Some(meta)) = (self.old, self.source) else {
            return DeltaDecision::Wait;
        };
        let size = meta.attributes.size.unwrap_or(0);
        let pays = job.always || core.pipeline().sends_slower_than_hashing();
        let alike = may_be_forms(size, old.size) && pays;
        let Some(block) = block_len(size.max(old.size)).filter(|_| alike) else {
            return DeltaDecision::Plain;
        };
        let mut key = sftp::blocks::BlockSumKey::default();
        core.random()(&mut key);
        let rebuild = DeltaRebuild::upload(key, block, size, old.size);
        DeltaDecision::Go(Box::new(DeltaFileVersions { old, meta, rebuild }))
    }
}
