use super::{DeltaAbort, DeltaDownloadCommon, DeltaDownloadStage, LaneContext, RemoteFile};
use crate::{DiskRequest, LaneEvent};

/// Stage in which the file is closed, all answers are awaited, and the temporary is discarded.
#[derive(Debug)]
pub(super) struct DeltaDownloadCleanup {
    end: DeltaAbort,
    remote: Option<RemoteFile>,
    local: LocalFileState,
}

/// State of the local files that a download by delta writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalFileState {
    None,
    Open,
    Finished,
    Discarding,
}

impl DeltaDownloadCleanup {
    /// Gives the job up in `stage`.
    pub(super) fn new(stage: DeltaDownloadStage, end: DeltaAbort) -> Self {
        let (remote, local) = match stage {
            DeltaDownloadStage::Looking(looking) if looking.older.is_none() => {
                (None, LocalFileState::None)
            }
            DeltaDownloadStage::Looking(_) | DeltaDownloadStage::Queued(_) => {
                (None, LocalFileState::Open)
            }
            DeltaDownloadStage::Opening(_, remote) => (Some(remote), LocalFileState::Open),
            DeltaDownloadStage::Matching(matching) => {
                (Some(matching.into_remote()), LocalFileState::Open)
            }
            DeltaDownloadStage::Finishing { remote, finished } => match finished {
                true => (Some(remote), LocalFileState::Finished),
                false => (Some(remote), LocalFileState::Open),
            },
            DeltaDownloadStage::GivingUp(giving_up) => (giving_up.remote, giving_up.local),
        };
        Self { end, remote, local }
    }

    /// Adds a later reason.
    pub(super) fn merge(&mut self, end: DeltaAbort) {
        self.end.merge(end);
    }

    /// Records that the disk side has looked for the basis file, and if it holds it open.
    pub(super) fn opened(&mut self, open: bool) {
        if open {
            self.local = LocalFileState::Open;
        }
    }

    /// Records that the target is finished.
    pub(super) fn finished(&mut self) {
        self.local = LocalFileState::Finished;
    }

    /// Cleans up; returns the last event once that is done.
    pub(super) fn go_on(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
    ) -> Option<LaneEvent> {
        let id = job.requests.job();
        core.wrote(std::mem::take(&mut job.unwritten));
        let opening = self.remote.as_ref().is_some_and(RemoteFile::is_opening);
        if let Some(remote) = &mut self.remote
            && (!opening || core.predicts())
        {
            remote.close(&mut job.requests, core);
        }
        if !job.requests.are_answered() {
            return None;
        }
        if self.local == LocalFileState::Open {
            self.local = LocalFileState::Discarding;
            let request = DiskRequest::Discard { job: id };
            job.requests.ask_disk(core, request);
            return None;
        }
        Some(
            match std::mem::replace(&mut self.end, DeltaAbort::FullCopy) {
                DeltaAbort::Failed(fault) => LaneEvent::Failed(id, fault),
                DeltaAbort::FullCopy => LaneEvent::Abandoned(id),
            },
        )
    }

    pub(super) fn holds_target(&self) -> bool {
        self.local == LocalFileState::Open
    }

    pub(super) fn remote_mut(&mut self) -> Option<&mut RemoteFile> {
        self.remote.as_mut()
    }
}
