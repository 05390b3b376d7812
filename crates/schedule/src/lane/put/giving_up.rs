use sftp::{Reply, Request};

use super::ending::{Ending, RetryReason};
use super::naming::removed;
use super::new_file::NewFile;
use super::reading::Reading;
use super::source::Source;
use super::{LaneContext, Stage, Upload};
use crate::lane::messages::{self, CLOSING, refused};
use crate::lane::remote_file::RemoteFile;
use crate::lane::request_tag::RequestTag;
use crate::{DiskReply, FileMeta, LaneEvent};

/// Stage in which an attempt ends: handles are closed, all answers are awaited, and the temporary
/// is removed.
#[derive(Debug)]
pub(super) struct UploadCleanup {
    ending: Ending,
    /// The disk side has not opened the source yet.
    reading: Option<Reading>,
    source: Source,
    remote: Option<RemoteFile>,
    new: NewFile,
    from: From,
    /// REMOVE of the temporary was sent.
    removing: bool,
}

/// Stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Probing,
    /// The file exists.
    Naming,
    Other,
}

/// Progress of [`UploadCleanup`].
#[derive(Debug)]
pub(super) enum GivenUp {
    NotYet,
    Over(LaneEvent),
    Retry(RetryReason),
}

impl UploadCleanup {
    /// Ends the attempt in `stage`.
    pub(super) fn new(
        up: &mut Upload,
        core: &mut LaneContext,
        stage: Stage,
        ending: Ending,
    ) -> Self {
        let mut this = Self {
            ending,
            reading: None,
            source: Source::default(),
            remote: None,
            new: NewFile::default(),
            from: From::Other,
            removing: false,
        };
        match stage {
            Stage::Reading(reading) => {
                core.turns_mut().end_prefetch();
                this.reading = Some(reading);
            }
            Stage::Queued(queued) => (this.new, this.source) = queued.give_up(core),
            Stage::Sending(sending) => {
                let remote;
                (remote, this.new, this.source) = sending.give_up();
                this.remote = Some(remote);
            }
            Stage::Closing(closing) => {
                let remote;
                (remote, this.new) = closing.give_up();
                this.remote = Some(remote);
            }
            Stage::Naming(naming) => {
                this.new = naming.give_up();
                this.from = From::Naming;
            }
            Stage::Probing(probing) => {
                this.remote = probing.give_up();
                this.from = From::Probing;
            }
            Stage::Whole | Stage::Following(_) | Stage::GivingUp(_) | Stage::Over => {}
        }
        // Unsent data are useless, and sending them takes long on a slow path.
        up.requests.withdraw_writes(core);
        this
    }

    /// Adds a later reason.
    pub(super) fn merge(&mut self, ending: Ending) {
        self.ending.merge(ending);
    }

    /// Replaces the reason for starting over, if the job does.
    pub(super) fn retry_instead(&mut self, reason: RetryReason) {
        if let Ending::Retry(before) = &mut self.ending {
            *before = reason;
        }
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(
        &mut self,
        up: &mut Upload,
        core: &mut LaneContext,
        what: RequestTag,
        reply: &Reply,
    ) -> Option<Ending> {
        let refused_open = self.remote.as_ref().is_some_and(RemoteFile::is_refused);
        match what {
            RequestTag::RemoveTemp => {
                self.on_removed(up, core, reply);
                None
            }
            RequestTag::Mode | RequestTag::KeepOwner | RequestTag::KeepGroup => {
                self.new.on_reply(up, core, what, reply)
            }
            // They used the handle that was not given.
            _ if refused_open => None,
            RequestTag::Write { offset, len } => up.write_answered(core, (offset, len), reply),
            RequestTag::Close => {
                if let Some(remote) = &mut self.remote {
                    remote.closed();
                }
                let status = messages::status(reply).err()?;
                (!self.is_probe()).then(|| Ending::Failed(refused(CLOSING, status)))
            }
            _ => self.new.on_reply(up, core, what, reply),
        }
    }

    /// Reports a temporary that could not be removed.
    fn on_removed(&mut self, up: &Upload, core: &mut LaneContext, reply: &Reply) {
        let left = self.new.temp().and_then(|temp| removed(temp, reply));
        self.new.is_gone();
        match (left, &mut self.ending) {
            (Some(text), Ending::Failed(fault)) => fault.what.push_str(&format!("; {text}")),
            (Some(text), _) => up.warn(core, &text),
            (None, _) => {}
        }
    }

    /// Handles a reply of the disk side.
    pub(super) fn on_disk(&mut self, up: &Upload, core: &mut LaneContext, reply: DiskReply) {
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
                self.source = Source::opened(FileMeta::default(), 0, true);
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
    pub(super) fn go_on(&mut self, up: &mut Upload, core: &mut LaneContext) -> GivenUp {
        let opening = self.remote.as_ref().is_some_and(RemoteFile::is_opening);
        if !opening || core.predicts() {
            if let Some(remote) = &mut self.remote {
                remote.close(&mut up.requests, core);
            }
            self.source.close(&mut up.requests, core);
        }
        if !up.requests.are_answered() {
            return GivenUp::NotYet;
        }
        self.source.forget(core);
        let open = self.remote.as_ref().is_some_and(RemoteFile::is_open);
        let exists = open || self.from == From::Naming || up.part.is_finish();
        if let (true, false, Some(path)) = (exists, self.removing, self.new.temp()) {
            self.removing = true;
            let request = Request::Remove { path };
            up.requests.send(core, RequestTag::RemoveTemp, &request);
            return GivenUp::NotYet;
        }
        match std::mem::replace(&mut self.ending, Ending::Abandoned) {
            Ending::Failed(mut fault) => {
                if open && up.target.is_direct() && !self.is_probe() {
                    let text = "; the file is incomplete, because it was written in place";
                    fault.what.push_str(text);
                }
                GivenUp::Over(LaneEvent::Failed(up.job(), fault))
            }
            Ending::Abandoned => GivenUp::Over(LaneEvent::Abandoned(up.job())),
            Ending::Retry(reason) => GivenUp::Retry(reason),
        }
    }

    /// Returns true if the attempt only probed if a file may be written.
    pub(super) fn is_probe(&self) -> bool {
        self.from == From::Probing
    }

    pub(super) fn holds_source(&self) -> bool {
        self.source.is_open()
    }

    pub(super) fn remote_mut(&mut self) -> Option<&mut RemoteFile> {
        self.remote.as_mut()
    }

    pub(super) fn new_file(&self) -> &NewFile {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut NewFile {
        &mut self.new
    }
}
