//! Downloads a file in one request: get-file@longhaul.

use bytes::Bytes;
use sftp::packed::LEAST_FILE;
use sftp::{GetFileReply, Status, StatusCode};

use super::{DownloadState, LONGEST_PATH, LaneContext, ServerCapabilities, WHOLE};
use crate::lane::messages::{OPENING, answered, of_source, refused};
use crate::{Attributes, DiskRequest, JobFailure, LocalTargetPath};

/// Stage of a file that is sent in one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeFileStage {
    /// The job waits for its turn.
    Queued,
    /// The request was sent.
    RequestSent,
    /// The disk side stores the file.
    Storing,
    Stored,
}

impl DownloadState {
    /// Returns true if the file may come in one request, if it is as small as it seems. For an
    /// unknown file the answer says what it is.
    pub(super) fn may_go_whole(&self, core: &LaneContext) -> bool {
        let small = self
            .attrs
            .is_none_or(|a| a.size.is_some_and(|s| s <= WHOLE as u64));
        core.can(ServerCapabilities::GET_FILE)
            && self.part.is_none()
            && small
            && self.source.len() <= LONGEST_PATH
    }

    /// Sends the request.
    pub(super) fn ask_whole(&mut self, core: &mut LaneContext) {
        self.requests.count();
        let len = (WHOLE as u32).min(core.server().read_length());
        let known = self.attrs.and_then(|a| a.size);
        let pack = known.is_none_or(|size| size >= LEAST_FILE) && core.packs_file();
        let size = self.size();
        core.packing_mut().asked(size);
        core.send_get_file(self.job(), &self.source, len, size, pack);
    }

    /// Records how small a file became that might be compressed (`pack`).
    pub(super) fn note_packed(core: &mut LaneContext, pack: bool, file: &GetFileReply) {
        if let (true, Some(data)) = (pack, &file.data) {
            let came = data.len() as u64;
            let len = file.packed.map_or(came, u64::from);
            core.packing_mut().packed_file(len, came);
        }
    }

    /// Makes the disk side store the file.
    pub(super) fn store(
        &mut self,
        core: &mut LaneContext,
        attrs: Attributes,
        data: Bytes,
        packed: Option<u32>,
    ) {
        self.attrs = Some(attrs);
        let len = packed.map_or(data.len() as u64, u64::from);
        self.received(core, len);
        // A lookup without a target is not counted as a copied file.
        if self.target != LocalTargetPath::default() {
            core.count_whole();
        }
        let request = DiskRequest::StoreTarget {
            job: self.job(),
            target: self.target.clone(),
            inplace: self.options.inplace,
            fresh: self.options.existing.fresh,
            keep: self.options.keep.clone(),
            pieces: vec![data],
            packed,
            attributes: self.options.kept(attrs),
            preserve: self.options.preserve,
            fsync: self.options.fsync,
            beyond: self.options.beyond.clone(),
            sparse: self.options.sparse,
        };
        self.requests.ask_disk(core, request);
    }

    /// Handles a refusal; returns `None` if the file may come in several requests.
    pub(super) fn whole_refused(&self, status: &Status) -> Option<JobFailure> {
        match (status.code, self.attrs) {
            (StatusCode::OP_UNSUPPORTED, _) => None,
            (_, Some(_)) => Some(refused(OPENING, status)),
            (_, None) => Some(of_source(answered(status))),
        }
    }
}
