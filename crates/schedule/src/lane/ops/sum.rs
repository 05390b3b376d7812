//! Requests the checksum of a range of a remote file.

use sftp::blocks::{BlockSumKind, LEAST_BLOCK, MOST_HASHED};
use sftp::{Handle, Reply, Request};

use super::{LaneContext, open_for_reading};
use crate::lane::messages::{self, refused, remote};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::{JobProgress, Misprediction};
use crate::{ByteRange, JobFailure, JobFailureKind, JobId, LaneEvent};

/// Opens the file, requests the checksum and closes it, in one flight if handles are predicted.
#[derive(Debug)]
pub(in crate::lane) struct ChecksumJob {
    id: JobId,
    path: Vec<u8>,
    span: ByteRange,
    /// Expected size of the file in bytes.
    size: Option<u64>,
    handle: Option<Handle>,
    asked: bool,
    pending: usize,
    fault: Option<JobFailure>,
    sum: Vec<u8>,
}

impl ChecksumJob {
    pub(in crate::lane) fn new(
        id: JobId,
        path: Vec<u8>,
        span: ByteRange,
        size: Option<u64>,
    ) -> Self {
        Self {
            id,
            path,
            span,
            size,
            handle: None,
            asked: false,
            pending: 0,
            fault: None,
            sum: Vec::new(),
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        let fits = self.span.len.is_some_and(|len| len <= MOST_HASHED.into());
        if !core.can(ServerCapabilities::SUMS) || !fits {
            let fault = remote("the server cannot compute the checksum of the file");
            self.fail(fault.of_kind(JobFailureKind::Unsupported));
            return self.settle(core);
        }
        core.queue_open(self.id);
        JobProgress::Continues
    }

    /// Sends OPEN when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        if self.pending > 0 {
            return;
        }
        self.handle = core.opens(self.id);
        let path = self.path.clone();
        self.send(core, RequestPurpose::Open, &open_for_reading(&path));
        self.ask(core);
    }

    /// Sends all requests that use the handle, which may be a predicted one, and CLOSE.
    fn ask(&mut self, core: &mut LaneContext) {
        let Some(handle) = self.handle.clone() else {
            return;
        };
        let handle = handle.as_bytes();
        self.asked = true;
        if self.size.is_some() {
            self.send(core, RequestPurpose::Fstat, &Request::Fstat { handle });
        }
        let len = self.span.len.unwrap_or(0) as u32;
        if len > 0 {
            let request = Request::Hash {
                handle,
                offset: self.span.offset,
                len,
                block: len.max(LEAST_BLOCK),
                kind: BlockSumKind::Blake3.name().as_bytes(),
                key: &[],
            };
            let what = RequestPurpose::Sums {
                offset: self.span.offset,
                len: len.into(),
                rebuilt: true,
            };
            self.send(core, what, &request);
        }
        self.send(core, RequestPurpose::Close, &Request::Close { handle });
        core.closes(self.id);
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<JobProgress, Misprediction> {
        self.pending -= 1;
        match (what, reply) {
            (RequestPurpose::Open, Reply::Handle(handle)) => {
                if self.handle.as_ref().is_some_and(|h| h != handle) {
                    return Err(Misprediction::Handle);
                }
                self.handle = Some(handle.clone());
                if !self.asked {
                    self.ask(core);
                }
            }
            (RequestPurpose::Open, _) => {
                if !self.asked {
                    core.closes(self.id);
                }
                let refusal = messages::status(reply).err();
                self.fail(match refusal {
                    Some(status) => refused("cannot open the file", status),
                    None => {
                        remote("the server sent an unexpected answer to OPEN (SFTP protocol error)")
                    }
                });
            }
            (RequestPurpose::Fstat, Reply::Attrs(attrs)) if attrs.size == self.size => {}
            (RequestPurpose::Fstat, _) => {
                self.fail(remote("its size differs from that of the source"))
            }
            (RequestPurpose::Sums { .. }, Reply::Sums(sum))
                if sum.len() == BlockSumKind::Blake3.bytes() =>
            {
                self.sum = sum.to_vec();
            }
            (RequestPurpose::Sums { .. }, _) => {
                self.fail(remote("the server did not send the checksum of the file"))
            }
            _ => {}
        }
        Ok(self.settle(core))
    }

    pub(in crate::lane) fn fail(&mut self, fault: JobFailure) {
        self.fault.get_or_insert(fault);
    }

    pub(in crate::lane) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let failed = self.fault.is_some();
        if self.pending > 0 || !self.asked && !failed {
            return JobProgress::Continues;
        }
        core.turns_mut().forget_opener(self.id);
        match self.fault.take() {
            Some(fault) => core.event(LaneEvent::Failed(self.id, fault)),
            None => {
                core.event(LaneEvent::Sum(self.id, std::mem::take(&mut self.sum)));
                core.event(LaneEvent::Done(self.id));
            }
        }
        JobProgress::Finished
    }

    fn send(&mut self, core: &mut LaneContext, what: RequestPurpose, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }
}
