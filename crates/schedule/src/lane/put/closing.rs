use sftp::Reply;

use super::ending::UploadAttemptAbort;
use super::naming::RenameStage;
use super::new_file::WrittenFileInfo;
use super::{LaneContext, UploadState};
use crate::FileCopyState;
use crate::lane::messages::{self, CLOSING, refused};
use crate::lane::remote_file::RemoteFile;
use crate::lane::request_purpose::RequestPurpose;

/// Stage in which everything up to CLOSE was sent, and the answers are awaited. A server may answer
/// CLOSE before WRITE.
#[derive(Debug)]
pub(super) struct UploadCloseStage {
    remote: RemoteFile,
    new: WrittenFileInfo,
    /// WRITEs without an answer.
    writes: usize,
}

impl UploadCloseStage {
    pub(super) fn new(remote: RemoteFile, new: WrittenFileInfo, writes: usize) -> Self {
        Self {
            remote,
            new,
            writes,
        }
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        match what {
            RequestPurpose::Write { offset, len } => {
                self.writes = self.writes.saturating_sub(1);
                up.write_answered(core, (offset, len), reply)
            }
            RequestPurpose::Close => match messages::status(reply) {
                Err(status) => Some(UploadAttemptAbort::Failed(refused(CLOSING, status))),
                Ok(()) => {
                    self.remote.closed();
                    None
                }
            },
            _ => self.new.on_reply(up, core, what, reply),
        }
    }

    /// Reports that the data are written, and the temporary to other jobs.
    pub(super) fn announce(&mut self, up: &mut UploadState, core: &mut LaneContext) {
        if !self.remote.is_open() {
            return;
        }
        if self.writes == 0 {
            up.reach(core, FileCopyState::Written);
        }
        self.new.announce(up, core);
    }

    /// Returns true if CLOSE was answered OK.
    pub(super) fn is_closed(&self) -> bool {
        self.remote.is_closed()
    }

    pub(super) fn into_naming(self) -> RenameStage {
        RenameStage::new(self.new)
    }

    pub(super) fn remote_mut(&mut self) -> &mut RemoteFile {
        &mut self.remote
    }

    pub(super) fn new_file(&self) -> &WrittenFileInfo {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut WrittenFileInfo {
        &mut self.new
    }

    /// Gives the attempt up: returns what must be cleaned up.
    pub(super) fn give_up(self) -> (RemoteFile, WrittenFileInfo) {
        (self.remote, self.new)
    }
}
