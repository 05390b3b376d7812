//! Sends a file in one request: put-file@longhaul.

use sftp::{Attrs, OWNER_NOT_SET, Parts, PutFlags, Request, SftpClient, Status, StatusCode};
use wire::PayloadBlock;

use super::ending::{UploadAttemptAbort, UploadRetryReason};
use super::target::UploadTargetState;
use super::{LaneContext, UploadState};
use crate::lane::messages::{cause, remote};
use crate::lane::server::ServerCapabilities;
use crate::{FileCopyState, LaneEvent};

/// Size in bytes below which a file is sent in one request. Larger ones gain nothing: the three
/// requests saved are small beside the data, and each file needs this much read-ahead.
pub(in crate::lane) const WHOLE: usize = 128 * 1024;
/// Length in bytes of a path above which no room is left in a packet with data.
pub(in crate::lane) const LONGEST_PATH: usize = 4096;
/// Messages of a STATUS with OK that carry no information.
const SUCCESS: [&str; 2] = ["", "Success"];

impl UploadState {
    /// Returns true if the file may be sent in one request, if it turns out to be small.
    pub(super) fn may_go_whole(&self, core: &LaneContext) -> bool {
        let target = matches!(
            self.target.state(),
            UploadTargetState::Unknown | UploadTargetState::New
        );
        core.can(ServerCapabilities::PUT_FILE)
            && !self.plain
            && !self.options.inplace
            && self.options.beyond.xattrs.is_none()
            && self.options.temp_dir.is_none()
            && self.part.is_whole()
            && target
            && !self.target.is_followed()
            && self.path.len() <= LONGEST_PATH
    }

    /// Returns a block with room for a small file and any of the possible requests before it.
    pub(super) fn whole_block(&self, core: &LaneContext, handle: usize) -> PayloadBlock {
        let largest = Attrs {
            size: None,
            owner: Some((0, 0)),
            permissions: Some(0),
            times: Some((0, 0)),
            nanoseconds: Some((0, 0)),
            link: None,
            expected: None,
        };
        let request = self.put_file(0, None, largest, Some(0));
        let reserve = SftpClient::reserve_for(&request)
            .max(SftpClient::write_reserve(handle))
            .max(SftpClient::write_zstd_reserve(handle));
        core.block_behind(reserve, WHOLE.min(core.server().write_length() as usize))
    }

    pub(super) fn put_file(
        &self,
        tag: u64,
        mode: Option<u32>,
        attrs: Attrs,
        packed: Option<u64>,
    ) -> Request<'_> {
        let path = &self.path;
        let mode = mode.unwrap_or(0o666) & 0o777;
        let data = &[];
        let fresh = self.target.state() == UploadTargetState::New;
        let flags = PutFlags::default()
            .with(PutFlags::FRESH, fresh)
            .with(PutFlags::REPLACE_LINK, self.options.existing.replace_node)
            .with(PutFlags::FSYNC, self.options.fsync);
        match packed {
            // Never longer than the original block.
            Some(len) => Request::PutFileZstd {
                path,
                flags,
                tag,
                mode,
                attrs,
                len: len as u32,
                data,
            },
            None => Request::PutFile {
                path,
                flags,
                tag,
                mode,
                attrs,
                data,
            },
        }
    }

    /// Handles the answer to a file of `len` bytes; returns why the job does not end with it.
    pub(super) fn whole_answered(
        &mut self,
        core: &mut LaneContext,
        len: u64,
        status: &Status,
    ) -> Option<UploadAttemptAbort> {
        match status.code {
            StatusCode::OK => {}
            // A symlink, a device or a directory that is not writable: the server has done nothing.
            StatusCode::OP_UNSUPPORTED => {
                self.plain = true;
                return Some(UploadAttemptAbort::Retry(UploadRetryReason::StockRequests));
            }
            _ => {
                let words = match status.message.is_empty() {
                    true => status.to_string(),
                    false => status.message.clone(),
                };
                return Some(UploadAttemptAbort::Failed(
                    remote(words).of_kind(cause(status)),
                ));
            }
        }
        let message = status.message.as_str();
        if let Some(why) = message.strip_prefix(OWNER_NOT_SET) {
            let why = why.to_owned();
            core.event(LaneEvent::NotKept(self.job(), Parts::OWNER, why));
        } else if !SUCCESS.contains(&message) {
            self.warn(core, message);
        }
        if len > 0 {
            self.confirm(core, len);
        }
        if self.options.fsync {
            self.reach(core, FileCopyState::Synced);
        }
        self.reach(core, FileCopyState::Renamed);
        core.count_whole();
        core.event(LaneEvent::Done(self.job()));
        None
    }
}
