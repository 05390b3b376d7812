//! An upload in one request: put-file@longhaul.

use sftp::{Attrs, Client, OWNER_NOT_SET, Parts, PutFlags, Reply, Request, StatusCode};
use wire::Block;

use super::core::LaneContext;
use super::messages::remote;
use super::put::{Part, Put, RetryReason, Target};
use super::task::Step;
use crate::{FileState, LaneEvent};

/// Files below this are one request. What is saved is three requests and their answers, which
/// beside so much data is nothing, and what is read ahead is so much for each file.
pub(super) const WHOLE: usize = 128 * 1024;
/// Longer paths leave no room for themselves in a packet of data.
pub(super) const LONGEST_PATH: usize = 4096;
/// STATUS with OK and no more than this has nothing to say.
const SUCCESS: [&str; 2] = ["", "Success"];

impl Put {
    /// Whether the file goes in one request if it turns out to be small.
    pub(super) fn may_go_whole(&self, core: &LaneContext) -> bool {
        core.server.put_file
            && !self.plain
            && self.options.beyond.xattrs.is_none()
            && matches!(self.part, Part::Whole { .. })
            && matches!(self.target, Target::Unknown | Target::New)
            && self.hops == 0
            && self.path.len() <= LONGEST_PATH
    }

    /// Room for a small file, and for any of the requests in front of it.
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

    /// The source's first bytes are there; all of them if it is at its `end`.
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
            .with(PutFlags::FRESH, self.target == Target::New)
            .with(PutFlags::REPLACE_LINK, self.options.replace_link)
            .with(PutFlags::FSYNC, self.options.fsync);
        match packed {
            // No longer than the block that it was.
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

    /// Its turn has come.
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
        // The server renames it: only the answer tells whether it stands.
        self.attempt.renaming = true;
        self.pending += 1;
        let request = self.put_file(tag, attrs, packed);
        core.packing.pays.asked(len);
        core.send_put_file(self.id, &request, len, first);
    }

    pub(super) fn on_put_file(&mut self, core: &mut LaneContext, len: u64, reply: &Reply) -> Step {
        self.attempt.renaming = false;
        let Reply::Status(status) = reply else {
            return Step::Goes;
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
                Step::Over
            }
            // A symlink, a device, a directory that is not writable: nothing was done.
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
