use sftp::{Attrs, Reply};

use super::context::LaneContext;
use super::get::DownloadJob;
use super::list::ListDirectoryJob;
use super::list_tree::ListTree;
use super::ops::{
    ChecksumJob, CreateShared, LinkTarget, MakeDir, MakeLink, OwnerWriteChange, QueryJob,
    ResumeTempCheck, SetAttributes,
};
use super::put::{OwnerPreservation, UploadJob, UploadPart, WrittenFileInfo};
use super::rebuild::{DeltaDownload, DeltaUpload};
use super::request_purpose::RequestPurpose;
use crate::{
    Attributes, DiskReply, DiskRequest, ExistingTargetPolicy, FileCopyOptions, Job, JobFailure,
    JobId, JobKind, RemotePath,
};

/// A job that a lane has started and not finished.
#[derive(Debug)]
pub(super) struct RunningJob {
    job: Job,
    machine: JobMachine,
}

/// State machine of a running job, by the kind of its work.
#[derive(Debug)]
enum JobMachine {
    Put(Box<UploadJob>),
    PutDelta(Box<DeltaUpload>),
    Get(Box<DownloadJob>),
    GetDelta(Box<DeltaDownload>),
    List(ListDirectoryJob),
    Tree(ListTree),
    Link(MakeLink),
    MakeDir(MakeDir),
    SetAttributes(Box<SetAttributes>),
    OwnerWrite(Box<OwnerWriteChange>),
    Adopt(Box<ResumeTempCheck>),
    CreateShared(Box<CreateShared>),
    Query(Box<QueryJob>),
    Sum(Box<ChecksumJob>),
}

/// Result of a step: the job continues or is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum JobProgress {
    Continues,
    Finished,
}

/// Property of the server that differs from the prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misprediction {
    Handle,
    Extensions,
}

impl JobMachine {
    fn new(id: JobId, kind: JobKind) -> Self {
        match kind {
            JobKind::Put { .. }
            | JobKind::CreateTemp { .. }
            | JobKind::PutRange { .. }
            | JobKind::FinishTemp { .. }
            | JobKind::SyncTemp { .. } => Self::upload(id, kind),
            JobKind::PutDelta {
                source,
                target,
                options,
                always,
            } => {
                let delta = DeltaUpload::new(id, source, target.0, options, always);
                Self::PutDelta(Box::new(delta))
            }
            JobKind::Get { .. } | JobKind::GetRange { .. } | JobKind::GetDelta { .. } => {
                Self::download(id, kind)
            }
            JobKind::List { path, most } => Self::List(ListDirectoryJob::new(id, path.0, most)),
            JobKind::ListTree {
                path,
                count,
                same_device,
            } => {
                let tree = ListTree::new(id, path.0);
                Self::Tree(tree.counting(count).on_same_device(same_device))
            }
            JobKind::MakeHardLink { .. } | JobKind::MakeSymlink { .. } => Self::link(id, kind),
            JobKind::MakeDir { path, mode, follow } => {
                Self::MakeDir(MakeDir::new(id, path.0, mode, follow))
            }
            JobKind::SetAttributes {
                path,
                attributes,
                follow,
                xattrs,
                expected,
            } => {
                let set = SetAttributes::new(id, (path.0, follow), attributes, xattrs, expected);
                Self::SetAttributes(Box::new(set))
            }
            JobKind::SetOwnerWrite { path, change } => {
                Self::OwnerWrite(Box::new(OwnerWriteChange::new(id, path.0, change)))
            }
            JobKind::AdoptTemp {
                target,
                temp,
                left,
                size,
                existing,
            } => {
                let adopt = ResumeTempCheck::new(id, (target, temp), (left, size), existing);
                Self::Adopt(Box::new(adopt))
            }
            JobKind::CreateShared { path, size } => {
                Self::CreateShared(Box::new(CreateShared::new(id, path.0, size)))
            }
            JobKind::Sum { path, span, size } => {
                Self::Sum(Box::new(ChecksumJob::new(id, path.0, span, size)))
            }
            JobKind::GetXattrs { .. }
            | JobKind::Names { .. }
            | JobKind::Ids { .. }
            | JobKind::ReadSymlink { .. }
            | JobKind::Stat { .. }
            | JobKind::RealPath { .. }
            | JobKind::FileSystem { .. }
            | JobKind::MakeDurable { .. }
            | JobKind::Remove { .. }
            | JobKind::RemoveDir { .. }
            | JobKind::Rename { .. } => Self::Query(Box::new(QueryJob::new(id, kind))),
        }
    }

    /// Creates a hard link or a symlink.
    fn link(id: JobId, kind: JobKind) -> Self {
        let (path, to, tag) = match kind {
            JobKind::MakeHardLink { path, of, tag } => (path, LinkTarget::File(of.0), tag),
            JobKind::MakeSymlink {
                path,
                points_to,
                tag,
            } => (path, LinkTarget::Text(points_to), tag),
            kind => return Self::Query(Box::new(QueryJob::new(id, kind))),
        };
        Self::Link(MakeLink::new(id, path.0, to, tag))
    }

    /// Creates the download of a file, or of a part of one.
    fn download(id: JobId, kind: JobKind) -> Self {
        match kind {
            JobKind::GetRange {
                file,
                source,
                known,
                span,
                sparse,
                local_end,
            } => {
                let options = FileCopyOptions {
                    sparse,
                    local_end,
                    ..FileCopyOptions::default()
                };
                let part = (file, span);
                let range = DownloadJob::range(id, part, source.0, known, options);
                Self::Get(Box::new(range))
            }
            JobKind::Get {
                source,
                target,
                known,
                options,
            } => Self::Get(Box::new(DownloadJob::new(
                id, source.0, target, known, options,
            ))),
            JobKind::GetDelta {
                source,
                target,
                known,
                options,
                always,
            } => {
                let get = DeltaDownload::new(id, source.0, target, known, options, always);
                Self::GetDelta(Box::new(get))
            }
            kind => Self::Query(Box::new(QueryJob::new(id, kind))),
        }
    }

    /// Creates the upload of a file, or of a part of one.
    fn upload(id: JobId, kind: JobKind) -> Self {
        // No other file can have the name of a temporary that exists.
        let fresh = |fsync| FileCopyOptions {
            existing: ExistingTargetPolicy::FRESH,
            fsync,
            ..FileCopyOptions::default()
        };
        let (part, path, options) = match kind {
            JobKind::Put {
                source,
                target,
                options,
            } => (UploadPart::Whole { source }, target, options),
            JobKind::CreateTemp {
                file,
                target,
                attributes,
                len,
                alone,
                options,
            } => {
                let part = UploadPart::Head {
                    file,
                    attributes,
                    len,
                    alone,
                    announced: false,
                };
                (part, target, options)
            }
            JobKind::PutRange {
                file,
                attributes,
                temp,
                span,
            } => {
                let part = UploadPart::Range {
                    file,
                    attributes,
                    span,
                };
                (part, temp, fresh(false))
            }
            JobKind::FinishTemp {
                temp,
                attributes,
                cut,
                set,
                options,
            } => {
                let part = UploadPart::Finish {
                    attributes,
                    cut,
                    set,
                };
                let new =
                    WrittenFileInfo::complete(attributes.mode, false, OwnerPreservation::default());
                return Self::Put(Box::new(UploadJob::finish(id, temp, part, options, new)));
            }
            JobKind::SyncTemp { temp } => (UploadPart::Sync, temp, fresh(true)),
            kind => return Self::Query(Box::new(QueryJob::new(id, kind))),
        };
        Self::Put(Box::new(UploadJob::new(id, part, path.0, options)))
    }
}

impl RunningJob {
    pub(super) fn new(job: Job) -> Self {
        let machine = JobMachine::new(job.id, job.kind.clone());
        Self { job, machine }
    }

    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    pub(super) fn into_job(self) -> Job {
        self.job
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        match &mut self.machine {
            JobMachine::Put(put) => put.start(core),
            JobMachine::Get(get) => get.start(core),
            // A tree's contents are unknown before its listing, and files wait for their turn.
            JobMachine::List(_) => core.turns_mut().push_opener_first(self.job.id),
            JobMachine::PutDelta(delta) => return delta.start(core),
            JobMachine::GetDelta(delta) => return delta.start(core),
            JobMachine::Tree(tree) => return tree.start(core),
            JobMachine::Link(link) => return link.start(core),
            JobMachine::MakeDir(dir) => return dir.start(core),
            JobMachine::SetAttributes(set) => return set.start(core),
            JobMachine::OwnerWrite(change) => change.start(core),
            JobMachine::Adopt(adopt) => return adopt.start(core),
            JobMachine::CreateShared(create) => return create.start(core),
            JobMachine::Query(query) => return query.start(core),
            JobMachine::Sum(sum) => return sum.start(core),
        }
        JobProgress::Continues
    }

    pub(super) fn open(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            JobMachine::Put(put) => put.open(core),
            JobMachine::PutDelta(delta) => delta.open(core),
            JobMachine::Get(get) => get.open(core),
            JobMachine::GetDelta(delta) => delta.open(core),
            JobMachine::List(list) => list.open(core),
            JobMachine::Sum(sum) => sum.open(core),
            JobMachine::OwnerWrite(change) => change.open(core),
            _ => {}
        }
    }

    /// Sends the job as one request when its turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            JobMachine::Put(put) => put.go_whole(core),
            JobMachine::Get(get) => get.go_whole(core),
            _ => {}
        }
    }

    /// Resumes a paused listing.
    pub(super) fn list_on(&mut self, core: &mut LaneContext) -> JobProgress {
        match &mut self.machine {
            JobMachine::Tree(tree) => tree.settle(core),
            JobMachine::List(list) => list.settle(core),
            _ => JobProgress::Continues,
        }
    }

    /// Returns true if [`RunningJob::stream`] sends requests, false if it makes the disk side read.
    pub(super) fn receives(&self) -> bool {
        matches!(self.machine, JobMachine::Get(_) | JobMachine::GetDelta(_))
    }

    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.machine {
            JobMachine::Put(put) => put.stream(core),
            JobMachine::PutDelta(delta) => delta.stream(core),
            JobMachine::Get(get) => get.stream(core),
            JobMachine::GetDelta(delta) => delta.stream(core),
            _ => false,
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: Reply,
    ) -> Result<JobProgress, Misprediction> {
        Ok(match &mut self.machine {
            JobMachine::Put(put) => put.on_reply(core, what, &reply)?,
            JobMachine::PutDelta(delta) => delta.on_reply(core, what, &reply)?,
            JobMachine::Get(get) => get.on_reply(core, what, reply)?,
            JobMachine::GetDelta(delta) => delta.on_reply(core, what, reply)?,
            JobMachine::List(list) => list.on_reply(core, what, reply)?,
            JobMachine::Sum(sum) => sum.on_reply(core, what, &reply)?,
            JobMachine::OwnerWrite(change) => change.on_reply(core, what, &reply)?,
            JobMachine::Tree(tree) => tree.on_reply(core, reply),
            JobMachine::Link(link) => link.on_reply(core, &reply),
            JobMachine::MakeDir(dir) => dir.on_reply(core, &reply),
            JobMachine::SetAttributes(set) => set.on_reply(core, what, &reply),
            JobMachine::Adopt(adopt) => adopt.on_reply(core, what, &reply),
            JobMachine::CreateShared(create) => create.on_reply(core, &reply),
            JobMachine::Query(query) => query.on_reply(core, reply),
        })
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> JobProgress {
        match &mut self.machine {
            JobMachine::Put(put) => put.on_disk(core, reply),
            JobMachine::PutDelta(delta) => delta.on_disk(core, reply),
            JobMachine::Get(get) => get.on_disk(core, reply),
            JobMachine::GetDelta(delta) => delta.on_disk(core, reply),
            _ => JobProgress::Continues,
        }
    }

    /// Fails the job after cleaning up; resumable temporaries stay if `leaving`.
    pub(super) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: JobFailure,
        leaving: bool,
    ) -> JobProgress {
        match &mut self.machine {
            JobMachine::Put(put) => put.cancel(core, fault, leaving),
            JobMachine::PutDelta(delta) => delta.cancel(core, fault, leaving),
            JobMachine::Get(get) => get.cancel(core, fault),
            JobMachine::GetDelta(delta) => delta.cancel(core, fault),
            JobMachine::List(list) => {
                list.fail(fault);
                list.settle(core)
            }
            JobMachine::Tree(tree) => {
                tree.fail(fault);
                tree.settle(core)
            }
            JobMachine::Sum(sum) => {
                sum.fail(fault);
                sum.settle(core)
            }
            JobMachine::OwnerWrite(change) => {
                change.fail(fault);
                change.settle(core)
            }
            // A few round trips, and the job is done.
            _ => JobProgress::Continues,
        }
    }

    /// Ends a part of a file early; other jobs continue.
    pub(super) fn abandon(&mut self, core: &mut LaneContext) -> JobProgress {
        match &mut self.machine {
            JobMachine::Put(put) if put.is_piece() => put.abandon(core),
            JobMachine::Get(get) if get.is_part() => get.abandon(core),
            _ => JobProgress::Continues,
        }
    }

    /// Returns the remote temporary that may exist and would stay behind.
    pub(super) fn temporary(&self) -> Option<(JobId, RemotePath)> {
        let temporary = match &self.machine {
            JobMachine::Put(put) => return put.temporary(),
            JobMachine::PutDelta(delta) => delta.temporary(),
            JobMachine::Link(link) => link.temporary(),
            _ => None,
        };
        temporary.map(|(job, path)| (job, RemotePath(path.to_vec())))
    }

    /// Returns the request that makes the disk side release the job.
    pub(super) fn release(&self) -> Option<DiskRequest> {
        let job = self.job.id;
        let (source, target) = match &self.machine {
            JobMachine::Put(put) => (put.holds_source(), false),
            JobMachine::PutDelta(delta) => (delta.holds_source(), false),
            JobMachine::Get(get) => (false, get.holds_target()),
            JobMachine::GetDelta(delta) => (false, delta.holds_target()),
            _ => (false, false),
        };
        match (source, target) {
            (true, _) => Some(DiskRequest::CloseSource { job }),
            (_, true) => Some(DiskRequest::Discard { job }),
            (false, false) => None,
        }
    }
}

/// Converts SFTP attributes to [`Attributes`].
pub(super) fn attributes(attrs: &Attrs) -> Attributes {
    Attributes {
        size: attrs.size,
        mode: attrs.permissions,
        owner: attrs.owner,
        times: attrs.times,
        nanoseconds: attrs.nanoseconds,
        link: attrs.link,
    }
}
