use sftp::{Attrs, ExpectedEntry, OpenFlags, Reply, Request, Status, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, answered, cause, remote};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::attributes;
use crate::{EntryKind, JobFailure, JobFailureKind, JobId};

/// Creates a temporary that several processes write, or finds the one that another process has
/// created. It is opened without TRUNC and gets its final size, so that no process cuts what
/// another one wrote.
#[derive(Debug)]
pub(in crate::lane) struct CreateShared {
    id: JobId,
    path: Vec<u8>,
    size: u64,
    /// No file had the name before.
    is_new: bool,
    stage: CreateSharedTempStage,
}

/// Request of a [`CreateShared`] that is in flight.
#[derive(Debug)]
enum CreateSharedTempStage {
    /// OPEN with CREAT and EXCL, which follows no symlink.
    Creating,
    /// LSTAT of what stands there; holds the refusal in case it does not explain it.
    Looking(JobFailure),
    /// OPEN of a file that another process has created and not resized yet.
    Opening,
    /// FSETSTAT of the size.
    Resizing(Vec<u8>),
    /// CLOSE, after this failure.
    Closing(Option<JobFailure>),
    /// REMOVE of a temporary that no process can use, after this failure.
    Removing(JobFailure),
    Finished,
}

impl CreateShared {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, size: u64) -> Self {
        Self {
            id,
            path,
            size,
            is_new: false,
            stage: CreateSharedTempStage::Creating,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        self.open(core, 0, flags);
        JobProgress::Continues
    }

    fn open(&self, core: &mut LaneContext, step: u8, flags: OpenFlags) {
        let path = self.path.as_slice();
        let attrs = Attrs {
            expected: core.expects(ExpectedEntry::TEMPORARY),
            ..Attrs::with_permissions(0o600)
        };
        let request = Request::Open { path, flags, attrs };
        core.send(self.id, RequestPurpose::Step(step), &request);
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> JobProgress {
        let stage = std::mem::replace(&mut self.stage, CreateSharedTempStage::Finished);
        self.is_new |= matches!(
            (&stage, reply),
            (CreateSharedTempStage::Creating, Reply::Handle(_))
        );
        let fault = match (stage, reply) {
            (
                CreateSharedTempStage::Creating | CreateSharedTempStage::Opening,
                Reply::Handle(handle),
            ) => {
                let handle = handle.as_bytes().to_vec();
                let attrs = Attrs {
                    size: Some(self.size),
                    ..Attrs::default()
                };
                let request = Request::Fsetstat {
                    handle: &handle,
                    attrs,
                };
                core.send(self.id, RequestPurpose::Step(3), &request);
                self.stage = CreateSharedTempStage::Resizing(handle);
                return JobProgress::Continues;
            }
            (CreateSharedTempStage::Creating, reply) => {
                let refusal = refusal(reply);
                let path = self.path.as_slice();
                core.send(self.id, RequestPurpose::Step(1), &Request::Lstat { path });
                self.stage = CreateSharedTempStage::Looking(refusal);
                return JobProgress::Continues;
            }
            (CreateSharedTempStage::Looking(_), Reply::Attrs(attrs)) => {
                let seen = attributes(attrs);
                match seen.kind() {
                    EntryKind::File if seen.size == Some(self.size) => None,
                    // The process that created it has not set its size yet, or was killed before.
                    EntryKind::File if seen.size < Some(self.size) => {
                        self.open(core, 2, OpenFlags::WRITE);
                        self.stage = CreateSharedTempStage::Opening;
                        return JobProgress::Continues;
                    }
                    _ => Some(in_the_way(&self.path)),
                }
            }
            (CreateSharedTempStage::Looking(refusal), _) => Some(refusal),
            (CreateSharedTempStage::Opening, reply) => Some(refusal(reply)),
            (CreateSharedTempStage::Resizing(handle), reply) => {
                let fault = messages::status(reply).err();
                // Other failures may be this process's alone.
                self.is_new &= matches!(&fault, Some(status) if is_refused(status));
                let fault = fault.map(unsized_temporary);
                let request = Request::Close { handle: &handle };
                core.send(self.id, RequestPurpose::Step(4), &request);
                self.stage = CreateSharedTempStage::Closing(fault);
                return JobProgress::Continues;
            }
            (CreateSharedTempStage::Closing(fault), reply) => {
                let closed = messages::status(reply).err();
                let fault = fault.or_else(|| closed.map(answered));
                match fault {
                    // The server refuses the size to all processes, so that none uses the file.
                    Some(fault) if self.is_new => {
                        let path = self.path.as_slice();
                        core.send(self.id, RequestPurpose::Step(5), &Request::Remove { path });
                        self.stage = CreateSharedTempStage::Removing(fault);
                        return JobProgress::Continues;
                    }
                    fault => fault,
                }
            }
            (CreateSharedTempStage::Removing(fault), _) => Some(fault),
            (CreateSharedTempStage::Finished, _) => None,
        };
        end(core, self.id, fault)
    }
}

/// True if the server sets no sizes, or not for this account.
fn is_refused(status: &Status) -> bool {
    matches!(
        status.code,
        StatusCode::PERMISSION_DENIED | StatusCode::OP_UNSUPPORTED
    )
}

/// Failure of a temporary whose size could not be set.
fn unsized_temporary(status: &Status) -> JobFailure {
    match is_refused(status) {
        true => remote(format!(
            "several shards cannot write this file, because the server does not set the size of \
             its temporary ({status}): make a new plan in another folder, with a \
             --range-size above the size of the file"
        ))
        .of_kind(JobFailureKind::SharedTemp),
        false => remote(format!(
            "cannot set the size of the temporary file: {status}"
        ))
        .of_kind(cause(status)),
    }
}

fn in_the_way(path: &[u8]) -> JobFailure {
    let name = sftp::printable(path, 4096);
    remote(format!(
        "something else has the name of the temporary file, {name}: remove it"
    ))
}

fn refusal(reply: &Reply) -> JobFailure {
    match messages::status(reply) {
        Err(status) => answered(status),
        Ok(()) => remote(
            "the server confirmed OPEN of the temporary file without a handle (SFTP protocol \
             error)",
        ),
    }
}
