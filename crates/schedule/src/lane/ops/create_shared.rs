use sftp::{Attrs, OpenFlags, Reply, Request};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, remote};
use crate::lane::request_tag::RequestTag;
use crate::lane::task::attributes;
use crate::{EntryKind, JobFailure, JobId};

/// Creates a temporary that several processes write, or finds the one that another process has
/// created. It is opened without TRUNC and gets its final size, so that no process cuts what
/// another one wrote.
#[derive(Debug)]
pub(in crate::lane) struct CreateShared {
    id: JobId,
    path: Vec<u8>,
    size: u64,
    stage: CreateSharedStage,
}

/// Request in flight.
#[derive(Debug)]
enum CreateSharedStage {
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
    Finished,
}

impl CreateShared {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, size: u64) -> Self {
        Self {
            id,
            path,
            size,
            stage: CreateSharedStage::Creating,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        self.open(core, 0, flags);
        JobProgress::Continues
    }

    fn open(&self, core: &mut LaneContext, step: u8, flags: OpenFlags) {
        let path = self.path.as_slice();
        let attrs = Attrs::with_permissions(0o600);
        let request = Request::Open { path, flags, attrs };
        core.send(self.id, RequestTag::Step(step), &request);
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> JobProgress {
        let stage = std::mem::replace(&mut self.stage, CreateSharedStage::Finished);
        let fault = match (stage, reply) {
            (CreateSharedStage::Creating | CreateSharedStage::Opening, Reply::Handle(handle)) => {
                let handle = handle.as_bytes().to_vec();
                let attrs = Attrs {
                    size: Some(self.size),
                    ..Attrs::default()
                };
                let request = Request::Fsetstat {
                    handle: &handle,
                    attrs,
                };
                core.send(self.id, RequestTag::Step(3), &request);
                self.stage = CreateSharedStage::Resizing(handle);
                return JobProgress::Continues;
            }
            (CreateSharedStage::Creating, reply) => {
                let refusal = refusal(reply);
                let path = self.path.as_slice();
                core.send(self.id, RequestTag::Step(1), &Request::Lstat { path });
                self.stage = CreateSharedStage::Looking(refusal);
                return JobProgress::Continues;
            }
            (CreateSharedStage::Looking(_), Reply::Attrs(attrs)) => {
                let seen = attributes(attrs);
                match seen.kind() {
                    EntryKind::File if seen.size == Some(self.size) => None,
                    // The process that created it has not set its size yet, or was killed before.
                    EntryKind::File if seen.size < Some(self.size) => {
                        self.open(core, 2, OpenFlags::WRITE);
                        self.stage = CreateSharedStage::Opening;
                        return JobProgress::Continues;
                    }
                    _ => Some(in_the_way(&self.path)),
                }
            }
            (CreateSharedStage::Looking(refusal), _) => Some(refusal),
            (CreateSharedStage::Opening, reply) => Some(refusal(reply)),
            (CreateSharedStage::Resizing(handle), reply) => {
                let fault = messages::status(reply).err();
                let fault = fault.map(|status| remote(status.to_string()));
                let request = Request::Close { handle: &handle };
                core.send(self.id, RequestTag::Step(4), &request);
                self.stage = CreateSharedStage::Closing(fault);
                return JobProgress::Continues;
            }
            (CreateSharedStage::Closing(fault), reply) => {
                let closed = messages::status(reply).err();
                fault.or_else(|| closed.map(|status| remote(status.to_string())))
            }
            (CreateSharedStage::Finished, _) => None,
        };
        end(core, self.id, fault)
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
        Err(status) => remote(status.to_string()),
        Ok(()) => remote(
            "the server confirmed OPEN of the temporary file without a handle (SFTP protocol \
             error)",
        ),
    }
}
