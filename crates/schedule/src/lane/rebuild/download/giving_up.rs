use super::{DeltaEnd, DeltaJob, LaneContext, RemoteFile, Stage};
use crate::{DiskRequest, LaneEvent};

/// Stage in which the file is closed, all answers are awaited, and the temporary is discarded.
#[derive(Debug)]
pub(super) struct DeltaDownloadCleanup {
    end: DeltaEnd,
    remote: Option<RemoteFile>,
    local: Local,
}

/// The disk side's files for the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    None,
    Open,
    Finished,
    Discarding,
}

impl DeltaDownloadCleanup {
    /// Gives the job up in `stage`.
    pub(super) fn new(stage: Stage, end: DeltaEnd) -> Self {
        let (remote, local) = match stage {
            Stage::Looking(looking) if looking.older.is_none() => (None, Local::None),
            Stage::Looking(_) | Stage::Queued(_) => (None, Local::Open),
            Stage::Opening(_, remote) => (Some(remote), Local::Open),
            Stage::Matching(matching) => (Some(matching.into_remote()), Local::Open),
            Stage::Finishing { remote, finished } => match finished {
                true => (Some(remote), Local::Finished),
                false => (Some(remote), Local::Open),
            },
            Stage::GivingUp(giving_up) => (giving_up.remote, giving_up.local),
        };
        Self { end, remote, local }
    }

    /// Adds a later reason.
    pub(super) fn merge(&mut self, end: DeltaEnd) {
        self.end.merge(end);
    }

    /// Records that the disk side has looked for the basis file, and if it holds it open.
    pub(super) fn opened(&mut self, open: bool) {
        if open {
            self.local = Local::Open;
        }
    }

    /// Records that the target is finished.
    pub(super) fn finished(&mut self) {
        self.local = Local::Finished;
    }

    /// Cleans up; returns the last event once that is done.
    pub(super) fn go_on(
        &mut self,
        job: &mut DeltaJob,
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
        if self.local == Local::Open {
            self.local = Local::Discarding;
            let request = DiskRequest::Discard { job: id };
            job.requests.ask_disk(core, request);
            return None;
        }
        Some(match std::mem::replace(&mut self.end, DeltaEnd::Plain) {
            DeltaEnd::Failed(fault) => LaneEvent::Failed(id, fault),
            DeltaEnd::Plain => LaneEvent::Abandoned(id),
        })
    }

    pub(super) fn holds_target(&self) -> bool {
        self.local == Local::Open
    }

    pub(super) fn remote_mut(&mut self) -> Option<&mut RemoteFile> {
        self.remote.as_mut()
    }
}
