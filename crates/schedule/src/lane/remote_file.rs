use sftp::{Attrs, Handle, OpenFlags, Reply, Request, Status, StatusCode};

use super::context::LaneContext;
use super::job_requests::JobRequests;
use super::request_purpose::RequestPurpose;
use super::task::Misprediction;

/// A file that a job has open at the server, from its OPEN to the answer to its CLOSE.
#[derive(Debug)]
pub(super) struct RemoteFile {
    /// Handle, known or predicted; `None` if the OPEN has no answer or failed.
    handle: Option<Handle>,
    open: OpenState,
    close: CloseState,
}

/// Progress of the file's OPEN; requests with a predicted handle may be in flight while it is
/// `Sent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenState {
    Sent,
    Open,
    Refused,
}

/// Progress of the file's CLOSE. After a refused OPEN it counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    NotSent,
    Sent,
    Closed,
}

/// Result of an OPEN whose answer fits its prediction; another handle is a [`Misprediction`].
#[derive(Debug)]
pub(super) enum OpenResult {
    /// The handle is the predicted one, with which requests have been sent.
    AsPredicted,
    /// The handle is known now.
    Known,
    Refused(Status),
}

impl RemoteFile {
    /// Sends OPEN.
    pub(super) fn open(
        requests: &mut JobRequests,
        core: &mut LaneContext,
        path: &[u8],
        flags: OpenFlags,
        attrs: Attrs,
    ) -> Self {
        let handle = core.opens(requests.job());
        let open = Request::Open { path, flags, attrs };
        requests.send(core, RequestPurpose::Open, &open);
        Self {
            handle,
            open: OpenState::Sent,
            close: CloseState::NotSent,
        }
    }

    /// Handles the answer to OPEN.
    pub(super) fn on_open(
        &mut self,
        requests: &JobRequests,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Result<OpenResult, Misprediction> {
        if let Reply::Handle(handle) = reply {
            self.open = OpenState::Open;
            return match &self.handle {
                Some(predicted) if predicted != handle => Err(Misprediction::Handle),
                Some(_) => Ok(OpenResult::AsPredicted),
                None => {
                    self.handle = Some(handle.clone());
                    Ok(OpenResult::Known)
                }
            };
        }
        if self.close == CloseState::NotSent {
            core.closes(requests.job());
            self.close = CloseState::Sent;
        }
        self.open = OpenState::Refused;
        self.handle = None;
        Ok(OpenResult::Refused(match reply {
            Reply::Status(status) => status.clone(),
            _ => Status {
                code: StatusCode::BAD_MESSAGE,
                message: "the server sent an unexpected answer to OPEN (SFTP protocol error)"
                    .to_owned(),
            },
        }))
    }

    /// Sends CLOSE, once, if the handle is known or predicted.
    pub(super) fn close(&mut self, requests: &mut JobRequests, core: &mut LaneContext) {
        if let (Some(handle), CloseState::NotSent) = (&self.handle, self.close) {
            self.close = CloseState::Sent;
            let handle = handle.as_bytes();
            requests.send(core, RequestPurpose::Close, &Request::Close { handle });
            core.closes(requests.job());
        }
    }

    /// Records the answer to CLOSE.
    pub(super) fn closed(&mut self) {
        self.close = CloseState::Closed;
    }

    /// Returns the handle, known or predicted.
    pub(super) fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }

    /// Returns true if OPEN has no answer yet.
    pub(super) fn is_opening(&self) -> bool {
        self.open == OpenState::Sent
    }

    /// Returns true if OPEN has succeeded.
    pub(super) fn is_open(&self) -> bool {
        self.open == OpenState::Open
    }

    /// Returns true if OPEN has failed.
    pub(super) fn is_refused(&self) -> bool {
        self.open == OpenState::Refused
    }

    /// Returns true if CLOSE was sent, or need not be.
    pub(super) fn is_closing(&self) -> bool {
        self.close != CloseState::NotSent
    }

    /// Returns true if CLOSE was answered.
    pub(super) fn is_closed(&self) -> bool {
        self.close == CloseState::Closed
    }
}
