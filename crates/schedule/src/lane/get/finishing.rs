use super::{DownloadState, RemoteFile};

/// Stage in which the target is finished, and the answer to CLOSE is awaited.
#[derive(Debug)]
pub(super) struct DownloadFinishStage {
    remote: RemoteFile,
    finished: bool,
}

impl DownloadFinishStage {
    /// Creates the stage of a whole file, whose target gets its final name.
    pub(super) fn whole(remote: RemoteFile) -> Self {
        Self {
            remote,
            finished: false,
        }
    }

    /// Creates the stage of a part, whose target others finish.
    pub(super) fn part(remote: RemoteFile) -> Self {
        Self {
            remote,
            finished: true,
        }
    }

    /// Records that the target is finished.
    pub(super) fn finished(&mut self) {
        self.finished = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Records the answer to CLOSE.
    pub(super) fn closed(&mut self) {
        self.remote.closed();
    }

    /// Returns true if the job is done; a part as soon as it has released the target, since the
    /// file need not wait for the answer to CLOSE.
    pub(super) fn is_over(&self, load: &DownloadState) -> bool {
        let closed = self.remote.is_closed() && load.requests.at_server() == 0;
        self.finished && load.requests.at_disk() == 0 && (load.part.is_some() || closed)
    }

    pub(super) fn into_remote(self) -> RemoteFile {
        self.remote
    }
}
