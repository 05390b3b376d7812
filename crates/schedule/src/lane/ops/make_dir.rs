use sftp::{Attrs, Reply, Request, Status, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, DISK_MAY_BE_FULL, cause, remote, with_hint};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::attributes;
use crate::{
    EntryKind, FILE_IN_THE_WAY, JobFailure, JobFailureKind, JobId, LaneEvent, SYMLINK_IN_THE_WAY,
    SYMLINK_LEADS_NOWHERE,
};

/// Job that creates a directory; an existing one will do.
#[derive(Debug)]
pub(in crate::lane) struct MakeDir {
    id: JobId,
    path: Vec<u8>,
    mode: u32,
    /// A symlink to a directory will do as well.
    follow: bool,
    /// Refusal of the request, while the existing file is looked at.
    refusal: Option<JobFailure>,
    /// Nothing was found through a symlink that may be there, and the entry itself is looked at.
    looks_at_link: bool,
}

const CREATE: u8 = 0;
const LOOK: u8 = 1;
/// Looks for a symlink that leads nowhere.
const LOOK_AT_LINK: u8 = 2;

impl MakeDir {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, mode: u32, follow: bool) -> Self {
        Self {
            id,
            path,
            mode,
            follow,
            refusal: None,
            looks_at_link: false,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        let (path, attrs) = (self.path.as_slice(), self.mode & 0o777);
        let attrs = Attrs::with_permissions(attrs);
        let request = Request::Mkdir { path, attrs };
        core.send(self.id, RequestPurpose::Step(CREATE), &request);
        JobProgress::Continues
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> JobProgress {
        match self.refusal.take() {
            None => {
                let Err(status) = messages::status(reply) else {
                    return end(core, self.id, None);
                };
                // Kept in case the existing file does not explain the refusal.
                self.refusal = Some(refusal(status));
                let path = self.path.as_slice();
                let request = match self.follow {
                    true => Request::Stat { path },
                    false => Request::Lstat { path },
                };
                core.send(self.id, RequestPurpose::Step(LOOK), &request);
                JobProgress::Continues
            }
            Some(refusal) if self.may_be_link(reply) => {
                self.refusal = Some(refusal);
                self.looks_at_link = true;
                let path = self.path.as_slice();
                core.send(
                    self.id,
                    RequestPurpose::Step(LOOK_AT_LINK),
                    &Request::Lstat { path },
                );
                JobProgress::Continues
            }
            Some(refusal) => {
                let fault = self.looked(core, reply, refusal);
                end(core, self.id, fault)
            }
        }
    }

    /// Returns true if a symlink that leads nowhere, or in a circle, may explain the answer.
    fn may_be_link(&self, reply: &Reply) -> bool {
        self.follow && !self.looks_at_link && !matches!(reply, Reply::Attrs(_))
    }

    /// Handles the attributes of what stands at the path.
    fn looked(
        &self,
        core: &mut LaneContext,
        reply: &Reply,
        refusal: JobFailure,
    ) -> Option<JobFailure> {
        let Reply::Attrs(attrs) = reply else {
            return Some(refusal);
        };
        let attributes = attributes(attrs);
        if attributes.kind() == EntryKind::Symlink {
            return Some(match self.follow {
                true => remote(SYMLINK_LEADS_NOWHERE),
                false => remote(SYMLINK_IN_THE_WAY).of_kind(JobFailureKind::SymlinkInTheWay),
            });
        }
        if attributes.kind() != EntryKind::Directory {
            return Some(remote(FILE_IN_THE_WAY));
        }
        core.event(LaneEvent::Attributes(self.id, attributes));
        None
    }
}

/// Failure of MKDIR. OpenSSH gives a server that is read-only (-R) the code of missing permissions.
fn refusal(status: &Status) -> JobFailure {
    let hint = match status.code {
        _ if status.is_explained() => "",
        StatusCode::PERMISSION_DENIED => {
            ": this account may not write there, or the server is read-only"
        }
        StatusCode::FAILURE => DISK_MAY_BE_FULL,
        _ => "",
    };
    remote(with_hint(status, hint)).of_kind(cause(status))
}
