//! Upload by delta: the server copies unchanged parts from an older version of the file.

mod closing;
mod files;
mod giving_up;
mod moving;
mod verify;

use std::path::PathBuf;

use sftp::{Attrs, Reply, Request};
use wire::Block;

use self::closing::Closing;
use self::files::Files;
use self::giving_up::DeltaUploadCleanup;
use self::moving::Moving;
use self::verify::Verifying;
use super::{DeltaEnd, JobRequests, LaneContext, Rebuild, RequestTag, SearchQueue};
use crate::delta::{LEAST, block_len, may_be_forms};
use crate::lane::messages;
use crate::lane::put::Put;
use crate::lane::server::Capabilities;
use crate::lane::task::{Misprediction, TaskStep};
use crate::{DiskReply, DiskRequest, Fault, FileMeta, JobId, LaneEvent, PutOptions};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const OWNER_WRITE: u32 = 0o200;

/// Rebuilds a file at the far end beside its basis file, which keeps its name until the end.
///
/// The job is given up for a plain upload ([`LaneEvent::Abandoned`]), leaving nothing behind, as
/// soon as the delta turns out to be impossible or not to pay.
#[derive(Debug)]
pub(in crate::lane) struct DeltaUpload {
    job: DeltaJob,
    stage: Stage,
}

/// Part of a job that does not change between its stages.
#[derive(Debug)]
struct DeltaJob {
    requests: JobRequests,
    source: PathBuf,
    /// Path of the existing file, which is replaced.
    path: Vec<u8>,
    options: PutOptions,
    /// Use a delta on any path.
    always: bool,
}

#[derive(Debug)]
enum Stage {
    /// Looks at the target and the source.
    Looking(Looking),
    /// Waits for its turn to open both files.
    Queued(Box<Plan>),
    /// Waits for both handles.
    Opening(Box<(Plan, Files)>),
    /// Sums are compared, ranges copied and sent.
    Moving(Box<Moving>),
    /// The rebuilt file is compared with the source.
    Verifying(Box<Verifying>),
    /// Everything up to CLOSE was sent.
    Closing(Box<Closing>),
    /// Attributes and final name are being set.
    Finishing(Box<Put>),
    GivingUp(Box<DeltaUploadCleanup>),
    Over,
}

/// Stage in which source and target are looked at.
#[derive(Debug, Default)]
struct Looking {
    /// Result of LSTAT on the basis file.
    old: Option<OldFile>,
    /// The disk side holds the source open.
    source: Option<FileMeta>,
}

#[derive(Clone, Copy, Debug)]
struct OldFile {
    size: u64,
    mode: u32,
    owner: Option<(u32, u32)>,
}

/// Both versions of the file, which may be alike.
#[derive(Debug)]
struct Plan {
    old: OldFile,
    meta: FileMeta,
    rebuild: Rebuild,
}

impl DeltaUpload {
    pub(in crate::lane) fn new(
        id: JobId,
        source: PathBuf,
        path: Vec<u8>,
        options: PutOptions,
        always: bool,
    ) -> Self {
        let job = DeltaJob {
            requests: JobRequests::new(id),
            source,
            path,
            options,
            always,
        };
        Self {
            job,
            stage: Stage::Looking(Looking::default()),
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        let job = &mut self.job;
        let keep = job.options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        let plain = job.options.inplace || job.options.fresh || left;
        if plain || !core.can(Capabilities::SUMS) {
            core.event(LaneEvent::Abandoned(job.requests.job()));
            return TaskStep::Over;
        }
        let request = Request::Lstat { path: &job.path };
        job.requests.send(core, RequestTag::Look, &request);
        let request = DiskRequest::OpenSource {
            job: job.requests.job(),
            path: job.source.clone(),
            first: Block::default(),
            sparse: false,
            pack: None,
        };
        job.requests.ask_disk(core, request);
        TaskStep::Goes
    }

    /// Sends OPEN for both files when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Queued(plan) => {
                let mode = plan.meta.attributes.mode;
                let files = Files::open(&mut self.job, core, mode);
                self.stage = match files.may_ask_sums() {
                    true => {
                        Stage::Moving(Box::new(Moving::begin(&mut self.job, core, *plan, files)))
                    }
                    false => Stage::Opening(Box::new((*plan, files))),
                };
            }
            Stage::Finishing(mut put) => {
                put.open(core);
                self.stage = Stage::Finishing(put);
            }
            stage => self.stage = stage,
        }
    }

    /// Sends the next request; false if nothing can be sent now.
    pub(in crate::lane) fn stream(&mut self, core: &mut LaneContext) -> bool {
        let job = &mut self.job;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Moving(mut moving) => {
                if moving.send_next(job, core) {
                    self.stage = Stage::Moving(moving);
                    return true;
                }
                if !moving.is_sent(core) {
                    self.stage = Stage::Moving(moving);
                    return false;
                }
                // The check follows in the same flight as the last data.
                self.verify(core, moving.verify())
            }
            Stage::Verifying(verifying) => self.verify(core, *verifying),
            Stage::Finishing(mut put) => {
                let more = put.stream(core);
                self.stage = Stage::Finishing(put);
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
    fn verify(&mut self, core: &mut LaneContext, mut verifying: Verifying) -> bool {
        let job = &mut self.job;
        let any = verifying.ask_ready(job, core);
        if core.in_order() && verifying.has_asked_all() {
            self.stage = Stage::Closing(Box::new(verifying.close(job, core)));
            return false;
        }
        self.stage = Stage::Verifying(Box::new(verifying));
        any
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: &Reply,
    ) -> Result<TaskStep, Misprediction> {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.on_reply(core, what, reply);
        }
        self.job.requests.answered();
        let id = self.job.requests.job();
        if let RequestTag::Sums { .. } = what {
            // A sign of progress, so that the scheduler does not take the lane for stalled.
            core.event(LaneEvent::Progress(id, 0));
            core.stream(id);
        }
        let mut end = None;
        if let RequestTag::Write { len, .. } | RequestTag::Copied { len } = what {
            let copied = matches!(what, RequestTag::Copied { .. });
            end = self.job.moved(core, len, copied, reply);
        }
        let job = &mut self.job;
        let later = match &mut self.stage {
            Stage::Looking(looking) => looking.on_look(reply),
            Stage::Opening(opening) => opening.1.on_reply(core, what, reply)?,
            Stage::Moving(moving) => moving.on_reply(job, core, what, reply)?,
            Stage::Verifying(verifying) => verifying.on_reply(what, reply),
            Stage::Closing(closing) => closing.on_reply(what, reply),
            Stage::GivingUp(giving_up) => giving_up.on_reply(job, core, what, reply)?,
            Stage::Queued(_) | Stage::Finishing(_) | Stage::Over => None,
        };
        self.end_if(core, end.or(later));
        if let RequestTag::Sums { rebuilt: true, .. } = what {
            self.close_if_verified(core);
        }
        Ok(self.settle(core))
    }

    /// Sends CLOSE once the whole file has been compared.
    fn close_if_verified(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Verifying(verifying) if verifying.is_over() => {
                let closing = verifying.close(&mut self.job, core);
                self.stage = Stage::Closing(Box::new(closing));
            }
            stage => self.stage = stage,
        }
    }

    pub(in crate::lane) fn on_disk(
        &mut self,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> TaskStep {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.on_disk(core, reply);
        }
        let job = &mut self.job;
        job.requests.disk_answered();
        let end = match (&mut self.stage, reply) {
            (_, DiskReply::Failed { fault, .. }) => Some(DeltaEnd::Failed(fault)),
            (stage, DiskReply::Opened { meta, eof, .. }) => {
                let plain = eof || meta.stream;
                match stage {
                    Stage::Looking(looking) => looking.source = (!eof).then_some(meta),
                    Stage::GivingUp(giving_up) => giving_up.source_opened(!eof),
                    _ => {}
                }
                let told = match stage {
                    Stage::GivingUp(giving_up) => !giving_up.is_plain(),
                    _ => true,
                };
                if !plain && told {
                    let id = job.requests.job();
                    core.event(LaneEvent::Attributes(id, meta.attributes));
                }
                plain.then_some(DeltaEnd::Plain)
            }
            (Stage::Moving(moving), reply) => moving.on_disk(job, core, reply),
            (Stage::GivingUp(giving_up), DiskReply::Read { offset, .. }) => {
                giving_up.on_read(core, offset);
                None
            }
            _ => None,
        };
        self.end_if(core, end);
        self.settle(core)
    }

    /// Starts all work that is possible now.
    fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        let job = &mut self.job;
        let mut end = None;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Looking(looking) => match looking.decide(job, core) {
                Decision::Wait => self.stage = Stage::Looking(looking),
                Decision::Go(plan) => {
                    self.stage = Stage::Queued(plan);
                    core.queue_open(job.requests.job());
                }
                Decision::Plain => {
                    self.stage = Stage::Looking(looking);
                    end = Some(DeltaEnd::Plain);
                }
            },
            Stage::Opening(opening) if opening.1.are_open() => {
                let (plan, files) = *opening;
                self.stage = Stage::Moving(Box::new(Moving::begin(job, core, plan, files)));
            }
            Stage::Moving(mut moving) => {
                end = moving.rebuild(job, core);
                if end.is_none() && moving.is_sent(core) {
                    self.stage = Stage::Verifying(Box::new(moving.verify()));
                    core.stream(job.requests.job());
                } else {
                    self.stage = Stage::Moving(moving);
                }
            }
            stage => self.stage = stage,
        }
        self.end_if(core, end);
        let job = &mut self.job;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::GivingUp(mut giving_up) => {
                if let Some(event) = giving_up.go_on(job, core) {
                    core.event(event);
                    return TaskStep::Over;
                }
                self.stage = Stage::GivingUp(giving_up);
            }
            Stage::Closing(closing) if job.requests.are_answered() => {
                let Some(put) = closing.finish(job, core) else {
                    core.event(LaneEvent::Abandoned(job.requests.job()));
                    return TaskStep::Over;
                };
                self.stage = Stage::Finishing(Box::new(put));
            }
            stage => self.stage = stage,
        }
        TaskStep::Goes
    }

    /// Fails the job, unless the rename is in flight.
    pub(in crate::lane) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: Fault,
        leaving: bool,
    ) -> TaskStep {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.cancel(core, fault, leaving);
        }
        self.end_if(core, Some(DeltaEnd::Failed(fault)));
        self.settle(core)
    }

    fn end_if(&mut self, core: &mut LaneContext, end: Option<DeltaEnd>) {
        let Some(end) = end else { return };
        self.stage = Stage::GivingUp(match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::GivingUp(mut giving_up) => {
                giving_up.merge(end);
                giving_up
            }
            stage => Box::new(DeltaUploadCleanup::new(&mut self.job, core, stage, end)),
        });
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        let temp = match &self.stage {
            Stage::Opening(opening) => opening.1.temp(),
            Stage::Moving(moving) => moving.files().temp(),
            Stage::Verifying(verifying) => verifying.files().temp(),
            Stage::Closing(closing) => closing.files().temp(),
            Stage::GivingUp(giving_up) => giving_up.temp(),
            Stage::Finishing(put) => put.temp(),
            Stage::Looking(_) | Stage::Queued(_) | Stage::Over => None,
        };
        temp.map(|temp| (self.job.requests.job(), temp))
    }

    /// Returns true if the disk side may hold the source open.
    pub(in crate::lane) fn holds_source(&self) -> bool {
        let open = match &self.stage {
            Stage::Looking(looking) => looking.source.is_some(),
            Stage::GivingUp(giving_up) => giving_up.holds_source(),
            Stage::Closing(_) | Stage::Finishing(_) | Stage::Over => false,
            Stage::Queued(_) | Stage::Opening(_) | Stage::Moving(_) | Stage::Verifying(_) => true,
        };
        open || self.job.requests.at_disk() > 0
    }
}

impl DeltaJob {
    /// Handles the answer to a WRITE or copy-data.
    fn moved(
        &self,
        core: &mut LaneContext,
        len: u64,
        copied: bool,
        reply: &Reply,
    ) -> Option<DeltaEnd> {
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
            sftp::StatusCode::EOF => DeltaEnd::Plain,
            _ => DeltaEnd::Failed(messages::refused(messages::WRITING, status)),
        })
    }
}

/// Choice between delta and plain upload.
#[derive(Debug)]
enum Decision {
    Wait,
    Go(Box<Plan>),
    Plain,
}

impl Looking {
    /// Handles the LSTAT of the target; only ordinary files are rebuilt, others need a plain
    /// upload.
    fn on_look(&mut self, reply: &Reply) -> Option<DeltaEnd> {
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                size: Some(size),
                owner,
                ..
            }) if mode & TYPE == REGULAR && mode & OWNER_WRITE != 0 && *size >= LEAST => {
                self.old = Some(OldFile {
                    size: *size,
                    mode: mode & 0o777,
                    owner: *owner,
                });
                None
            }
            _ => Some(DeltaEnd::Plain),
        }
    }

    /// Decides once both ends were looked at.
    fn decide(&self, job: &DeltaJob, core: &mut LaneContext) -> Decision {
        let (Some(old), Some(meta)) = (self.old, self.source) else {
            return Decision::Wait;
        };
        let size = meta.attributes.size.unwrap_or(0);
        let pays = job.always || core.pipeline().sends_slower_than_hashing();
        let alike = may_be_forms(size, old.size) && pays;
        let Some(block) = block_len(size.max(old.size)).filter(|_| alike) else {
            return Decision::Plain;
        };
        let mut key = sftp::blocks::SumKey::default();
        core.random()(&mut key);
        let rebuild = Rebuild::upload(key, block, size, old.size);
        Decision::Go(Box::new(Plan { old, meta, rebuild }))
    }
}
