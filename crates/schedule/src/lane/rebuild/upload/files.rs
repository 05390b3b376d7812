use sftp::{Attrs, Handle, OpenFlags, Reply, Request, temp_name};

use super::{DeltaAbort, DeltaUploadContext, LaneContext, RequestPurpose};
use crate::lane::task::Misprediction;
use crate::{FileCopyState, JobId, LaneEvent};

/// Step numbers of [`RequestPurpose::Step`] in a delta upload.
pub(super) const OPEN_OLD: u8 = 0;
pub(super) const OPEN_NEW: u8 = 1;
pub(super) const CLOSE: u8 = 2;
pub(super) const MODE: u8 = 3;
pub(super) const WHOSE: u8 = 4;

/// The basis file and the temporary at the far end.
#[derive(Debug)]
pub(super) struct DeltaUploadFiles {
    id: JobId,
    /// OPENs without an answer.
    opening: usize,
    old: Option<Handle>,
    new: Option<Handle>,
    /// Handle of the basis file for sum requests: the predicted one until the real one has come.
    sums: Option<Handle>,
    /// Name of the temporary, unless its OPEN failed.
    temp: Option<Vec<u8>>,
    /// The temporary was created.
    created: bool,
    closing: bool,
}

impl DeltaUploadFiles {
    /// Sends OPEN for both files. No data is written before both handles are known; with predicted
    /// handles, sums of the basis file are requested right behind the OPEN. If the handle is
    /// another file's, nothing has been changed, and the sums are discarded.
    pub(super) fn open(
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        mode: Option<u32>,
    ) -> Self {
        let id = job.requests.job();
        let sums = core.opens(id);
        let old = Request::Open {
            path: &job.path,
            flags: OpenFlags::READ,
            attrs: Attrs::default(),
        };
        job.requests
            .send(core, RequestPurpose::Step(OPEN_OLD), &old);
        let place = job.options.temporary_place(&job.path);
        let temp = match &job.options.keep {
            Some(keep) => keep.temporary(&place, 0),
            None => temp_name(&place, core.random()),
        };
        let mode = mode.unwrap_or(0o666) & 0o777;
        let new = Request::Open {
            path: &temp,
            flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL,
            attrs: Attrs::with_permissions(mode),
        };
        job.requests
            .send(core, RequestPurpose::Step(OPEN_NEW), &new);
        Self {
            id,
            opening: 2,
            old: None,
            new: None,
            sums,
            temp: Some(temp),
            created: false,
            closing: false,
        }
    }

    /// Handles the answer to an OPEN.
    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<Option<DeltaAbort>, Misprediction> {
        let RequestPurpose::Step(step @ (OPEN_OLD | OPEN_NEW)) = what else {
            return Ok(None);
        };
        self.opening = self.opening.saturating_sub(1);
        match reply {
            Reply::Handle(handle) if step == OPEN_OLD => {
                let sums = self.sums.get_or_insert_with(|| handle.clone());
                if sums != handle {
                    return Err(Misprediction::Handle);
                }
                self.old = Some(handle.clone());
                Ok(None)
            }
            Reply::Handle(handle) => {
                self.new = Some(handle.clone());
                self.created = true;
                core.event(LaneEvent::State(self.id, FileCopyState::Created));
                Ok(None)
            }
            _ => {
                if step == OPEN_NEW {
                    self.temp = None;
                }
                Ok(Some(DeltaAbort::FullCopy))
            }
        }
    }

    /// Sends CLOSE for the open handles and lets other jobs open.
    pub(super) fn close(&mut self, job: &mut DeltaUploadContext, core: &mut LaneContext) {
        if self.opening > 0 || std::mem::replace(&mut self.closing, true) {
            return;
        }
        // The lowest number is closed last: a server like sftp-server assigns it next, as
        // predicted.
        let handles = [self.new.take(), self.old.take()];
        for handle in handles.into_iter().flatten() {
            let handle = handle.as_bytes();
            let request = Request::Close { handle };
            job.requests
                .send(core, RequestPurpose::Step(CLOSE), &request);
        }
        core.closes(self.id);
    }

    /// Returns true if both files are open.
    pub(super) fn are_open(&self) -> bool {
        self.opening == 0 && self.created
    }

    /// Returns true if sums of the basis file may be requested.
    pub(super) fn may_ask_sums(&self) -> bool {
        self.sums.is_some()
    }

    /// Returns the handle of the basis file for sum requests.
    pub(super) fn sums(&self) -> Option<&Handle> {
        self.sums.as_ref()
    }

    /// Returns the handles of the basis file and of the temporary, once both are known.
    pub(super) fn both(&self) -> Option<(Handle, Handle)> {
        Some((self.old.clone()?, self.new.clone()?))
    }

    /// Returns the handle of the temporary.
    pub(super) fn new_handle(&self) -> Option<&Handle> {
        self.new.as_ref()
    }

    pub(super) fn temp(&self) -> Option<&[u8]> {
        self.temp.as_deref()
    }

    pub(super) fn take_temp(&mut self) -> Option<Vec<u8>> {
        self.temp.take()
    }

    /// Returns true if the temporary was created.
    pub(super) fn is_created(&self) -> bool {
        self.created
    }
}
