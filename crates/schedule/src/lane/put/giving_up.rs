use sftp::{Reply, Request};

use super::ending::{UploadAttemptAbort, UploadRetryReason};
use super::new_file::WrittenFileInfo;
use super::reading::SourceReadStage;
use super::source::UploadSource;
use super::{LaneContext, UploadStage, UploadState};
use crate::lane::messages::{self, CLOSING, left_temporary, refused};
use crate::lane::remote_file::RemoteFile;
use crate::lane::request_purpose::RequestPurpose;
use crate::{DiskReply, FailedTemporary, LaneEvent, SourceFileMeta};

/// Stage in which an attempt ends: handles are closed, all answers are awaited, and the temporary
/// is removed.
#[derive(Debug)]
pub(super) struct UploadCleanup {
    ending: UploadAttemptAbort,
    /// The disk side has not opened the source yet.
    reading: Option<SourceReadStage>,
    source: UploadSource,
    remote: Option<RemoteFile>,
    new: WrittenFileInfo,
    from: CleanupOrigin,
    /// REMOVE of the temporary was sent.
    removing: bool,
}

/// Stage of the upload in which it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanupOrigin {
    Probing,
    /// The file exists.
    Naming,
    Other,
}

/// Result of a step of [`UploadCleanup`]: it waits for answers, or ends the job, or lets the upload
/// start over.
#[derive(Debug)]
pub(super) enum CleanupProgress {
    Pending,
    Finished(LaneEvent),
    Retry(UploadRetryReason),
}

impl UploadCleanup {
    /// Ends the attempt in `stage`.
    pub(super) fn new(
        up: &mut UploadState,
        core: &mut LaneContext,
        stage: UploadStage,
        ending: UploadAttemptAbort,
    ) -> Self {
        let mut this = Self {
            ending,
            reading: None,
            source: UploadSource::default(),
            remote: None,
            new: WrittenFileInfo::default(),
            from: CleanupOrigin::Other,
            removing: false,
        };
        match stage {
            UploadStage::Looking => core.turns_mut().end_prefetch(),
            UploadStage::Reading(reading) => {
                core.turns_mut().end_prefetch();
                this.reading = Some(reading);
            }
            UploadStage::Queued(queued) => (this.new, this.source) = queued.give_up(core),
            UploadStage::Sending(sending) => {
                let remote;
                (remote, this.new, this.source) = sending.give_up();
                this.remote = Some(remote);
            }
            UploadStage::Closing(closing) => {
                let remote;
                (remote, this.new) = closing.give_up();
                this.remote = Some(remote);
            }
            UploadStage::Naming(naming) => {
                this.new = naming.give_up();
                this.from = CleanupOrigin::Naming;
            }
            UploadStage::Probing(probing) => {
                this.remote = probing.give_up();
                this.from = CleanupOrigin::Probing;
            }
            UploadStage::Whole { .. }
            | UploadStage::Following(_)
            | UploadStage::GivingUp(_)
            | UploadStage::Finished => {}
        }
        // Unsent data are useless, and sending them takes long on a slow path.
        up.requests.withdraw_writes(core);
        this
    }

    /// Adds a later reason.
    pub(super) fn merge(&mut self, ending: UploadAttemptAbort) {
        self.ending.merge(ending);
    }

    /// True if the job starts over.
    pub(super) fn starts_over(&self) -> bool {
        matches!(self.ending, UploadAttemptAbort::Retry(_))
    }

    /// Replaces the reason for starting over, if the job does.
    pub(super) fn retry_instead(&mut self, reason: UploadRetryReason) {
        if let UploadAttemptAbort::Retry(before) = &mut self.ending {
            *before = reason;
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
        let refused_open = self.remote.as_ref().is_some_and(RemoteFile::is_refused);
        match what {
            RequestPurpose::RemoveTemp => {
                self.on_removed(up, core, reply);
                None
            }
            RequestPurpose::Mode | RequestPurpose::KeepOwner | RequestPurpose::KeepGroup => {
                self.new.on_reply(up, core, what, reply)
            }
            // These requests used a handle that was predicted and not given.
            _ if refused_open => None,
            RequestPurpose::Write { offset, len } => up.write_answered(core, (offset, len), reply),
            RequestPurpose::Close => {
                if let Some(remote) = &mut self.remote {
                    remote.closed();
                }
                let status = messages::status(reply).err()?;
                (!self.is_probe()).then(|| UploadAttemptAbort::Failed(refused(CLOSING, status)))
            }
            _ => self.new.on_reply(up, core, what, reply),
        }
    }

    /// Reports a temporary that could not be removed.
    fn on_removed(&mut self, up: &UploadState, core: &mut LaneContext, reply: &Reply) {
        let left = self.new.temp().and_then(|temp| left_temporary(temp, reply));
        self.new.is_gone();
        match (left, &mut self.ending) {
            (Some(text), UploadAttemptAbort::Failed(fault)) => {
                fault.what.push_str(&format!("; {text}"))
            }
            (Some(text), _) => up.warn(core, &text),
            (None, UploadAttemptAbort::Failed(fault)) => {
                // One of another name says nothing about that of an earlier attempt.
                let is_first = up.options.is_first_attempt();
                if is_first && messages::status(reply).is_ok() {
                    fault.note_temporary(FailedTemporary::Removed);
                }
            }
            (None, _) => {}
        }
    }

    /// Handles a reply of the disk side.
    pub(super) fn on_disk(&mut self, up: &UploadState, core: &mut LaneContext, reply: DiskReply) {
        match reply {
            DiskReply::Opened {
                meta,
                first,
                packed,
                eof,
                ..
            } => {
                if let Some(reading) = self.reading.take() {
                    self.source = reading.opened(up, core, meta, (&first, packed), eof);
                }
            }
            DiskReply::Joined { .. } => {
                self.source = UploadSource::opened(SourceFileMeta::default(), 0, true);
            }
            DiskReply::Read { offset, .. } | DiskReply::Hole { offset, .. } => {
                self.source.answered(core, offset);
            }
            DiskReply::Packed {
                offset,
                len,
                smaller,
                block,
                ..
            } => {
                let became = if smaller { block.len() as u64 } else { len };
                core.packing_mut().packed(len, became);
                self.source.answered(core, offset);
            }
            _ => {}
        }
    }

    /// Closes the file, waits for all answers, removes the temporary, and ends.
    pub(super) fn go_on(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
    ) -> CleanupProgress {
        let opening = self.remote.as_ref().is_some_and(RemoteFile::is_opening);
        if !opening || core.predicts() {
            if let Some(remote) = &mut self.remote {
                remote.close(&mut up.requests, core);
            }
            self.source.close(&mut up.requests, core);
        }
        if !up.requests.are_answered() {
            return CleanupProgress::Pending;
        }
        self.source.forget(core);
        let open = self.remote.as_ref().is_some_and(RemoteFile::is_open);
        let exists = open || self.from == CleanupOrigin::Naming || up.part.is_finish();
        if let (true, false, Some(path)) = (exists, self.removing, self.new.temp()) {
            self.removing = true;
            core.event(LaneEvent::RemovesTemp(up.job()));
            let request = Request::Remove { path };
            up.requests.send(core, RequestPurpose::RemoveTemp, &request);
            return CleanupProgress::Pending;
        }
        match std::mem::replace(&mut self.ending, UploadAttemptAbort::Abandoned) {
            UploadAttemptAbort::Failed(mut fault) => {
                if open && up.target.is_direct() && !self.is_probe() {
                    // OPEN may have emptied the file, and a failed WRITE may have written a part.
                    fault.what.push_str(match up.progress.has_confirmed() {
                        true => "; the file at the target is incomplete",
                        false => "; the file at the target may be empty or incomplete now",
                    });
                    fault.tells_incomplete = true;
                }
                CleanupProgress::Finished(LaneEvent::Failed(up.job(), fault))
            }
            UploadAttemptAbort::Abandoned => {
                CleanupProgress::Finished(LaneEvent::Abandoned(up.job()))
            }
            UploadAttemptAbort::Retry(reason) => CleanupProgress::Retry(reason),
        }
    }

    /// Returns true if the attempt only probed if a file may be written.
    pub(super) fn is_probe(&self) -> bool {
        self.from == CleanupOrigin::Probing
    }

    pub(super) fn holds_source(&self) -> bool {
        self.source.is_open()
    }

    pub(super) fn remote_mut(&mut self) -> Option<&mut RemoteFile> {
        self.remote.as_mut()
    }

    pub(super) fn new_file(&self) -> &WrittenFileInfo {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut WrittenFileInfo {
        &mut self.new
    }
}
