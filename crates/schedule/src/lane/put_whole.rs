//! Uploads a file in one request: put-file@longhaul.

use sftp::{Attrs, Client, OWNER_NOT_SET, Parts, PutFlags, Reply, Request, StatusCode};
use wire::Block;

use super::core::LaneContext;
use super::messages::remote;
use super::put::{Put, RetryReason, UploadPart, UploadTarget};
use super::task::TaskStep;
use crate::{FileState, LaneEvent};

/// Size in bytes below which a file is sent in one request. Larger ones gain nothing: the three
/// requests saved are small beside the data, and each file needs this much read-ahead.
pub(super) const WHOLE: usize = 128 * 1024;
/// Length in bytes of a path above which no room is left in a packet with data.
pub(super) const LONGEST_PATH: usize = 4096;
/// Messages of a STATUS with OK that carry no information.
const SUCCESS: [&str; 2] = ["", "Success"];

impl Put {
    /// Returns true if the file may be sent in one request, if it turns out to be small.
    pub(super) fn may_go_whole(&self, core: &LaneContext) -> bool {
        core.server.put_file
            && !self.plain
            && self.options.beyond.xattrs.is_none()
            && self.options.temp_dir.is_none()
            && matches!(self.part, UploadPart::Whole { .. })
            && matches!(self.target, UploadTarget::Unknown | UploadTarget::New)
            && self.hops == 0
            && self.path.len() <= LONGEST_PATH
    }

    /// Returns a block with room for a small file and any of the possible requests before it.
    pub(super) fn whole_block(&self, core: &LaneContext, handle: usize) -> Block {
        let largest = Attrs {
            size: None,
            owner: Some((0, 0)),
            permissions: Some(0),
            times: Some((0, 0)),
            nanoseconds: Some((0, 0)),
            link: None,
        };
        let request = self.put_file(0, largest, Some(0));
        let reserve = Client::reserve_for(&request)
            .max(Client::write_reserve(handle))
            .max(Client::write_zstd_reserve(handle));
        core.block_behind(reserve, WHOLE.min(core.server.write as usize))
    }

    /// Queues the file once its first bytes are read; `end` means that these are all.
    pub(super) fn wait_to_open(&mut self, core: &mut LaneContext, end: bool) {
        if !self.may_go_whole(core) {
            self.queue_open(core);
        } else if end {
            core.wholes.push_back(self.id);
        } else {
            self.plain = true;
            self.look(core);
            self.queue_open(core);
        }
    }

    fn put_file(&self, tag: u64, attrs: Attrs, packed: Option<u64>) -> Request<'_> {
        let path = &self.path;
        let mode = self.attempt.meta.attributes.mode.unwrap_or(0o666) & 0o777;
        let data = &[];
        let flags = PutFlags::default()
            .with(PutFlags::FRESH, self.target == UploadTarget::New)
            .with(PutFlags::REPLACE_LINK, self.options.replace_link)
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

    /// Sends the request when the job's turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        if self.given_up() {
            return;
        }
        let Some(first) = self.attempt.first.take() else {
            return;
        };
        self.release_prefetch(core);
        let packed = self.attempt.packed.take();
        let len = packed.unwrap_or(first.len() as u64);
        self.warn_if_shrunk(core, len);
        let tag = match &self.options.keep {
            Some(keep) => keep.letters(),
            None => {
                let mut bytes = [0; 8];
                (core.config.random)(&mut bytes);
                u64::from_be_bytes(bytes)
            }
        };
        let source = self.attempt.meta.attributes;
        let mut attrs = match self.options.preserve {
            true => Attrs {
                permissions: source.mode.map(|m| self.options.kept_mode(m)),
                times: source.times,
                nanoseconds: source.nanoseconds.filter(|_| core.server.attributes),
                ..Attrs::default()
            },
            false => Attrs::default(),
        };
        attrs.owner = self.options.beyond.owner.filter(|_| core.server.metadata);
        // The server renames the file: only the answer tells if it exists.
        self.attempt.renaming = true;
        self.pending += 1;
        let request = self.put_file(tag, attrs, packed);
        core.packing.pays.asked(len);
        core.send_put_file(self.id, &request, len, first);
    }

    pub(super) fn on_put_file(
        &mut self,
        core: &mut LaneContext,
        len: u64,
        reply: &Reply,
    ) -> TaskStep {
        self.attempt.renaming = false;
        let Reply::Status(status) = reply else {
            return TaskStep::Goes;
        };
        match status.code {
            StatusCode::OK => {
                let message = status.message.as_str();
                if let Some(why) = message.strip_prefix(OWNER_NOT_SET) {
                    core.not_kept(self.id, vec![(Parts::OWNER, why.to_owned())]);
                } else if !SUCCESS.contains(&message) {
                    self.warn(core, message);
                }
                if len > 0 {
                    self.progress(core, len);
                }
                if self.options.fsync {
                    self.reach(core, FileState::Synced);
                }
                self.reach(core, FileState::Renamed);
                core.whole += 1;
                core.event(LaneEvent::Done(self.id));
                TaskStep::Over
            }
            // A symlink, a device or a directory that is not writable: the server has done nothing.
            StatusCode::OP_UNSUPPORTED => {
                self.plain = true;
                self.redo = Some(RetryReason::Plainly);
                self.settle(core)
            }
            _ => {
                let words = match status.message.is_empty() {
                    true => status.to_string(),
                    false => status.message.clone(),
                };
                self.fail(remote(words));
                self.settle(core)
            }
        }
    }
}
