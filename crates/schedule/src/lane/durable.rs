//! Makes names durable on longhaul servers, by fsync-set@longhaul.

use sftp::{Reply, Request, Status, StatusCode};
use wire::{Field as _, Rest};

use super::core::{LaneContext, RequestTag};
use super::messages::{self, refused};
use super::put::{Put, UploadPart};
use super::simple_op::{ITSELF, SimpleOp};
use super::task::TaskStep;
use crate::{LaneEvent, RemotePath, directory_of};

const SYNCING_NAME: &str = "cannot sync its directory";

/// Returns true if the failure is only reported: a user who may not read a directory may still put
/// files there, and those exist.
fn is_told_only(status: &Status) -> bool {
    status.code == StatusCode::PERMISSION_DENIED
}

impl Put {
    /// Returns true if the name is made durable as well, after the rename.
    pub(super) fn syncs_name(&self, core: &LaneContext) -> bool {
        let named = matches!(
            self.part,
            UploadPart::Whole { .. } | UploadPart::Finish { .. }
        );
        named && self.options.fsync && core.server.fsync_set && core.server.in_order
    }

    /// Sends the sync right behind the rename; the server executes requests in order.
    pub(super) fn sync_name(&mut self, core: &mut LaneContext, path: &[u8]) {
        let mut paths = Vec::new();
        directory_of(path).as_slice().write(&mut paths);
        let paths = Rest(&paths);
        self.send(core, RequestTag::SyncName, &Request::FsyncSet { paths });
    }

    pub(super) fn on_name_synced(&mut self, core: &mut LaneContext, reply: &Reply) {
        match messages::status(reply) {
            Ok(()) => {}
            // The rename or an earlier request has failed.
            Err(_) if self.given_up() || self.attempt.replace.is_some() => {}
            Err(status) if is_told_only(status) => {
                self.warn(core, &format!("cannot sync its directory: {status}"));
            }
            Err(status) => self.fail(refused(SYNCING_NAME, status)),
        }
    }
}

impl SimpleOp {
    /// Sends the sync; other servers have no request for it, and the job succeeds.
    pub(super) fn make_durable(
        &mut self,
        core: &mut LaneContext,
        paths: &[RemotePath],
    ) -> TaskStep {
        if !core.server.fsync_set {
            return self.end(core);
        }
        let mut bytes = Vec::new();
        for path in paths {
            path.0.as_slice().write(&mut bytes);
        }
        let paths = Rest(&bytes);
        self.send(core, ITSELF, &Request::FsyncSet { paths });
        TaskStep::Goes
    }

    pub(super) fn on_durable(&mut self, core: &mut LaneContext, reply: &Reply) {
        match messages::status(reply) {
            Ok(()) => {}
            Err(status) if is_told_only(status) => {
                let text = format!("cannot sync a directory: {status}");
                core.event(LaneEvent::Warning(self.id, text));
            }
            Err(status) => self.fail(refused(SYNCING_NAME, status)),
        }
    }
}
