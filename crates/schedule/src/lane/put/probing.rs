use sftp::{Attrs, OpenFlags, Reply, StatusCode};

use super::ending::UploadAttemptAbort;
use super::{LaneContext, UploadState};
use crate::JobFailureKind;
use crate::lane::messages::{CREATING, READ_ONLY, refused, remote};
use crate::lane::remote_file::{OpenResult, RemoteFile};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::Misprediction;

/// Stage in which an OPEN of an existing read-only file shows if it may be written. The job waits
/// for its turn first.
#[derive(Debug, Default)]
pub(super) struct WriteProbeStage {
    remote: Option<RemoteFile>,
}

impl WriteProbeStage {
    /// Sends OPEN, and CLOSE if the handle is predicted.
    pub(super) fn open(&mut self, up: &mut UploadState, core: &mut LaneContext) {
        if self.remote.is_some() {
            return;
        }
        let attrs = Attrs::with_permissions(up.mode_to_open_with(core, None));
        let requests = &mut up.requests;
        let mut remote = RemoteFile::open(requests, core, &up.path, OpenFlags::WRITE, attrs);
        remote.close(requests, core);
        self.remote = Some(remote);
    }

    /// Handles the answer to OPEN.
    pub(super) fn on_open(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Result<Option<UploadAttemptAbort>, Misprediction> {
        let Some(remote_file) = &mut self.remote else {
            return Ok(None);
        };
        let requests = &mut up.requests;
        Ok(match remote_file.on_open(requests, core, reply)? {
            OpenResult::AsPredicted => None,
            OpenResult::Known => {
                remote_file.close(requests, core);
                None
            }
            OpenResult::Refused(status) => Some(UploadAttemptAbort::Failed(match status.code {
                StatusCode::PERMISSION_DENIED => {
                    remote(READ_ONLY).of_kind(JobFailureKind::PermissionDenied)
                }
                _ => refused(CREATING, &status),
            })),
        })
    }

    /// Handles the answer to another request: nothing was written, so the result of CLOSE does not
    /// matter.
    pub(super) fn on_reply(&mut self, what: RequestPurpose) {
        if let (RequestPurpose::Close, Some(remote)) = (what, &mut self.remote) {
            remote.closed();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.remote.as_ref().is_some_and(RemoteFile::is_closed)
    }

    /// Gives the attempt up: returns what must be closed.
    pub(super) fn give_up(self) -> Option<RemoteFile> {
        self.remote
    }
}
