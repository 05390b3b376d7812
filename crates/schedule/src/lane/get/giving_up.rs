use sftp::{Reply, StatusCode};

use super::{DownloadState, LaneContext, RemoteFile};
use crate::lane::messages::{READING, refused};
use crate::{DiskRequest, FailedTemporary, JobFailure, LaneEvent};

/// Stage of a failed download in which the file is closed, all answers are awaited, and the target
/// is discarded.
#[derive(Debug)]
pub(super) struct DownloadCleanup {
    remote: Option<RemoteFile>,
    /// First cause of the failure; `None` if another lane has completed the range.
    fault: Option<JobFailure>,
    /// The target is finished.
    finished: bool,
    discarding: bool,
    /// The end was reported. A handle that comes later must still be closed.
    told: bool,
}

impl DownloadCleanup {
    pub(super) fn new(remote: Option<RemoteFile>, fault: Option<JobFailure>) -> Self {
        Self {
            remote,
            fault,
            finished: false,
            discarding: false,
            told: false,
        }
    }

    /// Creates the stage of a job whose target is `finished`, or was released (`discarding`).
    pub(super) fn of_finished(
        remote: RemoteFile,
        fault: Option<JobFailure>,
        (finished, discarding): (bool, bool),
    ) -> Self {
        Self {
            finished,
            discarding,
            ..Self::new(Some(remote), fault)
        }
    }

    /// Adds a later reason; a failure counts more than an abandonment.
    pub(super) fn merge(&mut self, fault: Option<JobFailure>) {
        self.fault = self.fault.take().or(fault);
    }

    /// Cleans up; returns the last event once that is done. A part does not wait for answers to
    /// needless READs.
    pub(super) fn go_on(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
    ) -> Option<LaneEvent> {
        load.wrote(core, load.unwritten);
        let opening = self.remote.as_ref().is_some_and(RemoteFile::is_opening);
        if let Some(remote) = &mut self.remote
            && (!opening || core.predicts())
        {
            remote.close(&mut load.requests, core);
        }
        let waits = load.requests.at_server() > 0 && load.part.is_none();
        if self.told || waits || load.requests.at_disk() > 0 {
            return None;
        }
        let job = load.job();
        if load.created && !std::mem::replace(&mut self.discarding, true) {
            load.requests.ask_disk(core, DiskRequest::Discard { job });
            return None;
        }
        self.told = true;
        Some(match self.fault.take() {
            Some(mut fault) => {
                // One of another name says nothing about that of an earlier attempt.
                let is_first = load.options.is_first_attempt();
                if self.discarding && load.part.is_none() && is_first {
                    fault.note_temporary(FailedTemporary::Removed);
                }
                LaneEvent::Failed(job, fault)
            }
            None => LaneEvent::Abandoned(job),
        })
    }

    /// Returns true if the end was reported.
    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    pub(super) fn holds_target(&self) -> bool {
        !self.discarding && !self.finished
    }

    pub(super) fn remote_mut(&mut self) -> Option<&mut RemoteFile> {
        self.remote.as_mut()
    }
}

/// Returns the fault of a READ that is refused, whoever waits for its data.
pub(super) fn refusal(reply: &Reply) -> Option<JobFailure> {
    match reply {
        Reply::Status(status) if status.code != StatusCode::EOF => Some(refused(READING, status)),
        _ => None,
    }
}
