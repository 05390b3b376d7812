//! Gives the new file its owner and its final name.

use sftp::{Reply, Request, Status, StatusCode};
use wire::{Field as _, RemainingBytes};

use super::ending::{UploadAttemptAbort, UploadRetryReason};
use super::new_file::WrittenFileInfo;
use super::{LaneContext, UploadState};
use crate::lane::messages::{self, RENAMING, RENAMING_FROM_TEMP_DIR, SYNCING_NAME, refused};
use crate::lane::replace::{FileReplacement, ReplaceProgress};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::{FileCopyState, LaneEvent, RefusedOperations, directory_of, not_replaced};

/// Stage in which all data are confirmed and the file is closed.
#[derive(Debug)]
pub(super) struct RenameStage {
    new: WrittenFileInfo,
    step: RenameStep,
}

/// Progress of the requests that give the file its attributes and its final name.
#[derive(Debug)]
enum RenameStep {
    /// Mode, owner and group of the old file are set.
    Preparing,
    /// A rename is in flight; the old file is moved aside, or may be (`aside`).
    Renaming {
        replace: Box<FileReplacement>,
        aside: bool,
    },
    /// The file has its final name.
    Named,
}

/// Result of a step of [`RenameStage`]: it waits for an answer, or has reported the end of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenameStepResult {
    Pending,
    Done,
}

impl RenameStage {
    pub(super) fn new(new: WrittenFileInfo) -> Self {
        Self {
            new,
            step: RenameStep::Preparing,
        }
    }

    /// Reports that the file is closed, and synced if its name need not be.
    pub(super) fn reach_closed(&self, up: &mut UploadState, core: &mut LaneContext) {
        up.reach(core, FileCopyState::Closed);
        if self.new.is_synced() && !up.syncs_name(core) {
            up.reach(core, FileCopyState::Synced);
        }
    }

    /// Sends the next request, or ends the job.
    pub(super) fn go_on(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
    ) -> RenameStepResult {
        let Some(temp) = self.new.temp().map(<[u8]>::to_vec) else {
            self.done(up, core);
            return RenameStepResult::Done;
        };
        let keeps = self.new.owner_mut().keep(up, core, &temp);
        // The answers to these requests decide the next step.
        let sets = self.new.set_mode(up, core) || self.new.withdraw_owner_write(up, core);
        if sets || keeps {
            return RenameStepResult::Pending;
        }
        let replaces = up.target.replaces_node() || up.target.replaced().is_some();
        let names = (temp.as_slice(), up.path.as_slice());
        let replace = FileReplacement::begin(core, up.job(), names, replaces);
        up.requests.count();
        self.step = RenameStep::Renaming {
            replace: Box::new(replace),
            aside: false,
        };
        if core.can(ServerCapabilities::POSIX_RENAME) && up.syncs_name(core) {
            sync_name(up, core);
        }
        RenameStepResult::Pending
    }

    fn done(&self, up: &mut UploadState, core: &mut LaneContext) {
        if up.options.fsync && !self.new.is_synced() {
            up.warn(
                core,
                "not fsynced, because the server does not support fsync@openssh.com: if the server \
                 crashes in the next seconds, the file may be lost",
            );
        }
        if self.new.is_synced() {
            up.reach(core, FileCopyState::Synced);
        }
        match up.target.is_direct() {
            true => core.event(LaneEvent::InPlace(up.job())),
            false => up.reach(core, FileCopyState::Renamed),
        }
        core.event(LaneEvent::Done(up.job()));
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
            RequestPurpose::Replace => self.on_replace(up, core, reply),
            RequestPurpose::SyncName => self.on_name_synced(up, core, reply),
            _ => self.new.on_reply(up, core, what, reply),
        }
    }

    fn on_replace(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        let RenameStep::Renaming { replace, aside } = &mut self.step else {
            return None;
        };
        let atomic = replace.is_atomic();
        match replace.on_reply(core, up.job(), reply) {
            ReplaceProgress::InProgress => {
                up.requests.count();
                match replace.moves_aside() {
                    Some(old) => {
                        if !std::mem::replace(aside, true) {
                            core.event(LaneEvent::Path(up.job(), old.to_vec()));
                        }
                    }
                    None => is_not_aside(aside, up, core),
                }
                None
            }
            ReplaceProgress::Done { left } => {
                self.step = RenameStep::Named;
                self.new.is_gone();
                if up.syncs_name(core) && !atomic {
                    sync_name(up, core);
                }
                if let Some(old) = left {
                    up.warn(core, &messages::old_is_left(&old));
                }
                None
            }
            ReplaceProgress::Refused {
                status,
                temp,
                always,
            } => {
                is_not_aside(aside, up, core);
                self.new.set_temp(temp);
                self.step = RenameStep::Preparing;
                Some(rename_refused(up, core, &status, always))
            }
            ReplaceProgress::Stranded { status, old, temp } => {
                self.new.is_gone();
                let mut fault = refused(RENAMING, &status);
                let (old, temp) = (sftp::printable(&old, 4096), sftp::printable(&temp, 4096));
                let text = format!(
                    "; the old file was renamed to {old}, and the new one is {temp}: rename one of \
                     them to the target"
                );
                fault.what.push_str(&text);
                Some(UploadAttemptAbort::Failed(fault))
            }
        }
    }

    fn on_name_synced(
        &self,
        up: &UploadState,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        let status = messages::status(reply).err()?;
        // The rename has failed.
        if matches!(self.step, RenameStep::Renaming { .. }) {
            return None;
        }
        if messages::is_told_only(status) {
            let text = format!(
                "cannot fsync its directory ({status}): if the server crashes now, the file may be \
                 lost"
            );
            up.warn(core, &text);
            return None;
        }
        Some(UploadAttemptAbort::Failed(refused(SYNCING_NAME, status)))
    }

    /// Returns true if a rename was sent, so that only its answer tells the name of the file.
    pub(super) fn is_sent(&self) -> bool {
        !matches!(self.step, RenameStep::Preparing)
    }

    pub(super) fn new_file(&self) -> &WrittenFileInfo {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut WrittenFileInfo {
        &mut self.new
    }

    /// Gives the attempt up: returns what must be cleaned up.
    pub(super) fn give_up(self) -> WrittenFileInfo {
        self.new
    }
}

fn is_not_aside(aside: &mut bool, up: &UploadState, core: &mut LaneContext) {
    if std::mem::take(aside) {
        core.event(LaneEvent::Path(up.job(), Vec::new()));
    }
}

/// Sends the sync of the directory right behind the rename; the server executes requests in order.
fn sync_name(up: &mut UploadState, core: &mut LaneContext) {
    let mut paths = Vec::new();
    directory_of(&up.path).as_slice().write(&mut paths);
    let paths = RemainingBytes(&paths);
    let request = Request::FsyncSet { paths };
    up.requests.send(core, RequestPurpose::SyncName, &request);
}

/// Handles a refused rename: the new file is complete under its temporary name, and the old one
/// unchanged.
fn rename_refused(
    up: &UploadState,
    core: &mut LaneContext,
    status: &Status,
    always: Option<StatusCode>,
) -> UploadAttemptAbort {
    if up.target.replaces_node() || messages::says_full(status) {
        return UploadAttemptAbort::Failed(refused(RENAMING, status));
    }
    if up.options.temp_dir.is_some() {
        return UploadAttemptAbort::Failed(refused(RENAMING_FROM_TEMP_DIR, status));
    }
    if let Some(code) = always {
        let found = RefusedOperations::of_rename(&up.path, code);
        core.learn(up.job(), found, &status.to_string());
    } else {
        let why = match up.target.replaced() {
            Some(_) => not_replaced(status),
            None => format!("the temporary file cannot get its final name ({status})"),
        };
        core.event(LaneEvent::WhyInPlace(up.job(), why));
    }
    match up.part.is_finish() {
        // The scheduler has the file written anew.
        true => UploadAttemptAbort::Abandoned,
        false => UploadAttemptAbort::Retry(UploadRetryReason::InPlace),
    }
}
