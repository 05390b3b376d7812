use std::sync::Arc;

use schedule::{DiskReply, DiskRequest, JobId};

use crate::disk::{HostToHostBuffer, ReadBackCheck};

/// Stands in for the local file of a job.
pub(super) enum LocalStandIn {
    /// Data pass to a job with another host.
    Relay(Arc<HostToHostBuffer>),
    /// Data are compared and not stored.
    Check(Arc<ReadBackCheck>),
}

/// Executes the disk requests of a session. The session's own methods never wait for the disk.
pub(super) trait DiskExecutor: Send {
    /// Queues a request; [`DiskExecutor::poll_reply`] returns its reply.
    fn submit(&mut self, request: DiskRequest);

    /// Executes a request at once if that takes no longer than handing it to a thread; otherwise
    /// queues it as [`DiskExecutor::submit`] does.
    fn submit_inline(&mut self, request: DiskRequest) -> Option<DiskReply>;

    /// Returns the next reply.
    fn poll_reply(&mut self) -> Option<DiskReply>;

    /// Returns true if writes are held back to be coalesced.
    fn holds(&self) -> bool;

    /// Starts the writes that are held back.
    fn flush(&mut self);

    /// Replaces the local file of a job, until [`DiskExecutor::release`].
    fn bind(&mut self, job: JobId, file: LocalStandIn);

    /// Ends a job whose local file was replaced.
    fn release(&mut self, job: JobId);
}
