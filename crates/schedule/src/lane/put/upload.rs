//! State that all stages of an upload share.

use sftp::{OpenFlags, Reply, Request};

use super::ending::UploadAttemptAbort;
use super::source::UploadSource;
use super::target::{ReplacedAttributes, UploadTargetState};
use super::{LaneContext, UploadState};
use crate::lane::messages::{self, WRITING, refused};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::{FileCopyState, JobId, LaneEvent};

impl UploadState {
    pub(super) fn job(&self) -> JobId {
        self.requests.job()
    }

    /// Asks for the attributes of the target, if unknown.
    pub(super) fn look(&mut self, core: &mut LaneContext) {
        if self.target.is_unknown() {
            let request = Request::Lstat { path: &self.path };
            self.requests.send(core, RequestPurpose::Lstat, &request);
        }
    }

    /// Writes the file under its final name if the server is known to take no temporaries there.
    pub(super) fn go_in_place(&mut self, core: &mut LaneContext) {
        // A symlink that is to be replaced is looked at first, since its target must not be
        // overwritten.
        let looks = self.options.existing.replace_node && !self.options.existing.fresh;
        let decided = self.target.is_direct();
        let has_dir = self.options.temp_dir.is_some();
        if !core.refusals().in_place_at(&self.path)
            || has_dir
            || decided
            || looks
            || self.part.is_piece()
        {
            return;
        }
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        self.target.write_in_place(flags);
        core.tell_in_place(self.job());
    }

    /// Returns true if holes may be skipped: unwritten parts of a new regular file read as zeros.
    pub(super) fn may_skip(&self, core: &LaneContext) -> bool {
        let new = match self.target.state() {
            UploadTargetState::Direct(flags) => flags.contains(OpenFlags::TRUNC),
            UploadTargetState::Unknown
            | UploadTargetState::New
            | UploadTargetState::Existing(_) => true,
        };
        // A server may accept data only in order, as object stores do.
        self.options.sparse && new && core.in_order()
    }

    /// Returns the permission bits for creating the file: those of the replaced file if they cannot
    /// be set afterwards, otherwise those of the source.
    pub(super) fn mode_to_open_with(&self, core: &LaneContext, source: Option<u32>) -> u32 {
        let kept = core.refusals().attributes && !self.options.preserve;
        let replaced = self.target.replaced().filter(|_| kept);
        let source = source.unwrap_or(0o666) & 0o777;
        replaced
            .and_then(ReplacedAttributes::mode)
            .unwrap_or(source)
    }

    /// Handles a successful OPEN of the target, or of its temporary (`temporary`).
    pub(super) fn open_allowed(&mut self, core: &mut LaneContext, temporary: bool) {
        let fresh = self.target.is_missing() || self.options.existing.fresh;
        let (job, path) = (self.requests.job(), self.path.as_slice());
        if let Some(why) = self.names.allowed(core, job, temporary, (fresh, path)) {
            core.event(LaneEvent::WhyInPlace(job, why));
        }
    }

    /// Returns true if the name is made durable as well, after the rename.
    pub(super) fn syncs_name(&self, core: &LaneContext) -> bool {
        let can = ServerCapabilities::FSYNC_SET | ServerCapabilities::IN_ORDER;
        self.part.renames() && self.options.fsync && core.can(can)
    }

    /// Handles the answer to a WRITE.
    pub(super) fn write_answered(
        &mut self,
        core: &mut LaneContext,
        (offset, len): (u64, u64),
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        if let Err(status) = messages::status(reply) {
            return Some(UploadAttemptAbort::Failed(refused(WRITING, status)));
        }
        if self.part.is_piece() {
            core.event(LaneEvent::Written(self.job(), offset, len));
        }
        self.confirm(core, len);
        None
    }

    pub(super) fn warn_if_shrunk(&self, core: &mut LaneContext, source: &UploadSource, end: u64) {
        if end < source.size() && !source.meta().stream {
            core.event(LaneEvent::SourceShrank(self.job()));
        }
    }

    /// Counts `len` more confirmed bytes.
    pub(super) fn confirm(&mut self, core: &mut LaneContext, len: u64) {
        let news = self.progress.confirm(len);
        if news > 0 {
            core.event(LaneEvent::Progress(self.job(), news));
        }
    }

    pub(super) fn reach(&mut self, core: &mut LaneContext, state: FileCopyState) {
        if self.progress.reaches(state) {
            core.event(LaneEvent::State(self.job(), state));
        }
    }

    /// Tells why the file is written in place, if its temporary was refused.
    pub(super) fn tell_refused_temporary(&mut self, core: &mut LaneContext) {
        if let Some(why) = self.names.why_in_place() {
            core.event(LaneEvent::WhyInPlace(self.job(), why));
        }
    }

    pub(super) fn warn(&self, core: &mut LaneContext, text: &str) {
        core.event(LaneEvent::Warning(self.job(), text.to_owned()));
    }
}
