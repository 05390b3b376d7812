use sftp::{Reply, Request};

use super::ending::UploadAttemptAbort;
use super::{LaneContext, UploadState};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;

/// Stage in which STAT and REALPATH find the file that a symlink at the target points to.
#[derive(Debug)]
pub(super) struct FollowSymlinkStage;

impl FollowSymlinkStage {
    /// Sends both requests.
    pub(super) fn begin(up: &mut UploadState, core: &mut LaneContext) -> Self {
        up.target.follow();
        let (requests, path) = (&mut up.requests, up.path.as_slice());
        requests.send(core, RequestPurpose::Follow, &Request::Stat { path });
        requests.send(core, RequestPurpose::Resolve, &Request::Realpath { path });
        Self
    }

    /// Handles an answer.
    pub(super) fn on_reply(
        &self,
        up: &mut UploadState,
        core: &LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        match what {
            RequestPurpose::Follow => {
                let fifos = core.can(ServerCapabilities::FIFOS);
                return up.target.followed(reply, fifos);
            }
            RequestPurpose::Resolve => {
                if let Some(path) = up.target.resolved(reply) {
                    up.path = path;
                }
            }
            _ => {}
        }
        None
    }
}
