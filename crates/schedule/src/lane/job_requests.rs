use sftp::Request;

use super::context::LaneContext;
use super::request_purpose::RequestPurpose;
use crate::{DiskRequest, JobId};

/// Requests of one job that have no answer yet, at the server and at the disk side.
#[derive(Debug)]
pub(super) struct JobRequests {
    job: JobId,
    server: usize,
    disk: usize,
}

impl JobRequests {
    pub(super) fn new(job: JobId) -> Self {
        Self {
            job,
            server: 0,
            disk: 0,
        }
    }

    pub(super) fn job(&self) -> JobId {
        self.job
    }

    /// Sends a request to the server.
    pub(super) fn send(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        request: &Request<'_>,
    ) {
        self.server += 1;
        core.send(self.job, what, request);
    }

    /// Counts a request that was sent to the server in another way.
    pub(super) fn count(&mut self) {
        self.server += 1;
    }

    /// Sends a request to the disk side.
    pub(super) fn ask_disk(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.disk += 1;
        core.ask_disk(request);
    }

    /// Counts an answer of the server.
    pub(super) fn answered(&mut self) {
        self.server = self.server.saturating_sub(1);
    }

    /// Counts an answer of the disk side.
    pub(super) fn disk_answered(&mut self) {
        self.disk = self.disk.saturating_sub(1);
    }

    /// Withdraws WRITEs that were not sent yet; returns their number.
    pub(super) fn withdraw_writes(&mut self, core: &mut LaneContext) -> usize {
        let withdrawn = core.pipeline_mut().withdraw_writes(self.job);
        self.server = self.server.saturating_sub(withdrawn);
        withdrawn
    }

    /// Returns the number of requests that the server has not answered.
    pub(super) fn at_server(&self) -> usize {
        self.server
    }

    /// Returns the number of requests that the disk side has not answered.
    pub(super) fn at_disk(&self) -> usize {
        self.disk
    }

    /// Returns true if every request is answered.
    pub(super) fn are_answered(&self) -> bool {
        self.server == 0 && self.disk == 0
    }
}
