//! Decides if a delta pays, and opens both files.

use sftp::{Attrs, OpenFlags, Reply, Request, StatusCode, temp_name};

use super::{DeltaUpload, OPEN_NEW, OPEN_OLD, OldFile, Stage};
use crate::delta::{LEAST, block_len, may_be_forms};
use crate::lane::core::{LaneContext, RequestTag};
use crate::lane::messages;
use crate::lane::task::{Misprediction, TaskStep};
use crate::{DiskRequest, FileState, LaneEvent};

use wire::Block;

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const OWNER_WRITE: u32 = 0o200;

impl DeltaUpload {
    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        let left = self
            .options
            .keep
            .as_ref()
            .and_then(|keep| keep.left.as_ref());
        let plain = self.options.inplace || self.options.fresh || left.is_some();
        if plain || !core.server.sums {
            core.event(LaneEvent::Abandoned(self.id));
            return TaskStep::Over;
        }
        let path = self.path.clone();
        self.send(core, RequestTag::Look, &Request::Lstat { path: &path });
        let request = DiskRequest::OpenSource {
            job: self.id,
            path: self.source.clone(),
            first: Block::default(),
            sparse: false,
            pack: None,
        };
        self.ask_disk(core, request);
        TaskStep::Goes
    }

    /// Handles the LSTAT of the target; only ordinary files are rebuilt, others need a plain
    /// upload.
    pub(super) fn on_look(&mut self, reply: &Reply) {
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                size: Some(size),
                owner,
                ..
            }) if mode & TYPE == REGULAR && mode & OWNER_WRITE != 0 && *size >= LEAST => {
                self.old = Some(OldFile {
                    size: *size,
                    mode: mode & 0o777,
                    owner: *owner,
                });
            }
            _ => self.plain = true,
        }
    }

    /// Chooses between delta and plain upload, once both ends were looked at.
    pub(super) fn decide(&mut self, core: &mut LaneContext) {
        let (Some(old), true) = (self.old, self.source_open) else {
            return;
        };
        let size = self.size();
        let alike =
            may_be_forms(size, old.size) && (self.always || core.sends_slower_than_hashing());
        match block_len(size.max(old.size)).filter(|_| alike) {
            Some(block) => {
                self.block = block;
                (core.config.random)(&mut self.key);
                self.stage = Stage::Opening;
                core.openers.push_back(self.id);
            }
            None => self.plain = true,
        }
    }

    /// Sends OPEN for both files when the job's turn has come. No data is written before both
    /// handles are known; with predicted handles, sums of the basis file are requested right behind
    /// the OPEN. If the handle is another file's, nothing has been changed, and the sums are
    /// discarded.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.open(core);
        }
        if self.given_up() || self.handles.turn {
            return;
        }
        self.handles.sums = core.opens(self.id);
        self.handles.turn = true;
        self.handles.opening = 2;
        let path = self.path.clone();
        let old = Request::Open {
            path: &path,
            flags: OpenFlags::READ,
            attrs: Attrs::default(),
        };
        self.send(core, RequestTag::Step(OPEN_OLD), &old);
        let place = self.options.temporary_place(&path);
        let temp = match &self.options.keep {
            Some(keep) => keep.temporary(&place, 0),
            None => temp_name(&place, &mut *core.config.random),
        };
        let mode = self.meta.attributes.mode.unwrap_or(0o666) & 0o777;
        let new = Request::Open {
            path: &temp,
            flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL,
            attrs: Attrs::with_permissions(mode),
        };
        self.send(core, RequestTag::Step(OPEN_NEW), &new);
        self.temp = Some(temp);
        if self.handles.sums.is_some() {
            self.begin(core);
        }
    }

    pub(super) fn on_open(
        &mut self,
        core: &mut LaneContext,
        step: u8,
        reply: &Reply,
    ) -> Result<(), Misprediction> {
        self.handles.opening -= 1;
        match reply {
            Reply::Handle(handle) if step == OPEN_OLD => {
                let sums = self.handles.sums.get_or_insert_with(|| handle.clone());
                if sums != handle {
                    return Err(Misprediction::Handle);
                }
                self.handles.old = Some(handle.clone());
            }
            Reply::Handle(handle) => {
                self.handles.new = Some(handle.clone());
                self.handles.created = true;
                self.reach(core, FileState::Created);
            }
            _ => {
                if step == OPEN_NEW {
                    self.temp = None;
                }
                self.plain = true;
            }
        }
        Ok(())
    }

    /// Handles the answer to a WRITE or copy-data.
    pub(super) fn on_moved(&mut self, core: &mut LaneContext, len: u64, reply: &Reply) {
        self.moving -= 1;
        match messages::status(reply) {
            Ok(()) => core.event(LaneEvent::Progress(self.id, len)),
            // The basis file has become shorter.
            Err(status) if status.code == StatusCode::EOF => self.plain = true,
            Err(status) => self.fail(messages::refused(messages::WRITING, status)),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.meta.attributes.size.unwrap_or(0)
    }
}
