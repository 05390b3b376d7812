//! Gives the owner write permission for a remote directory, or takes it.

use sftp::{Attrs, Handle, Reply, Request};

use super::{LaneContext, open_for_reading};
use crate::lane::messages::{self, cause, remote};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::{JobProgress, Misprediction, attributes};
use crate::{EntryKind, JobFailure, JobId, LaneEvent, OwnerWrite};

/// Opens the directory for reading, as sftp-server permits, and changes this one bit of the mode
/// that FSTAT shows. Another account may put something else under the path at any time: a mode from
/// a listing would then be set there.
///
/// With predicted handles it takes a round trip in which no other job of the lane may open a file.
#[derive(Debug)]
pub(in crate::lane) struct OwnerWriteChange {
    id: JobId,
    path: Vec<u8>,
    change: OwnerWrite,
    handle: Option<Handle>,
    /// OPEN was sent, and neither was CLOSE nor has OPEN failed.
    opened: bool,
    pending: usize,
    fault: Option<JobFailure>,
}

impl OwnerWriteChange {
    pub(in crate::lane) fn new(id: JobId, mut path: Vec<u8>, change: OwnerWrite) -> Self {
        // Only a directory has this name; the open(2) of a FIFO would wait for its writer.
        path.extend_from_slice(b"/.");
        Self {
            id,
            path,
            change,
            handle: None,
            opened: false,
            pending: 0,
            fault: None,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) {
        core.queue_open(self.id);
    }

    /// Sends OPEN when the job's turn has come.
    pub(in crate::lane) fn open(&mut self, core: &mut LaneContext) {
        if self.opened {
            return;
        }
        self.opened = true;
        self.handle = core.opens(self.id);
        let path = self.path.clone();
        self.send(core, RequestPurpose::Open, &open_for_reading(&path));
        if self.handle.is_some() {
            self.look(core);
        }
    }

    fn look(&mut self, core: &mut LaneContext) {
        if let Some(handle) = self.handle.clone() {
            let handle = handle.as_bytes();
            self.send(core, RequestPurpose::Fstat, &Request::Fstat { handle });
        }
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<JobProgress, Misprediction> {
        self.pending -= 1;
        match (what, reply) {
            (RequestPurpose::Open, Reply::Handle(handle)) => match &self.handle {
                Some(predicted) if predicted != handle => return Err(Misprediction::Handle),
                Some(_) => {}
                None => {
                    self.handle = Some(handle.clone());
                    self.look(core);
                }
            },
            (RequestPurpose::Open, reply) => {
                self.opened = false;
                core.closes(self.id);
                self.refuse(reply, "cannot open the directory");
            }
            (RequestPurpose::Fstat, reply) => self.on_look(core, reply),
            (RequestPurpose::Step(_), reply) if messages::status(reply).is_err() => {
                self.refuse(reply, "cannot change its permissions");
            }
            _ => {}
        }
        Ok(self.settle(core))
    }

    /// Changes the bit if a directory is open and lacks the change.
    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Some(handle) = self.handle.clone().filter(|_| self.opened) else {
            return;
        };
        let handle = handle.as_bytes();
        match reply {
            Reply::Attrs(attrs) if attributes(attrs).kind() == EntryKind::Directory => {
                let wanted = self.change.changed(attrs.permissions.unwrap_or(0));
                if let Some(wanted) = wanted.filter(|_| self.fault.is_none()) {
                    let attrs = Attrs::with_permissions(wanted);
                    let set = Request::Fsetstat { handle, attrs };
                    self.send(core, RequestPurpose::Step(0), &set);
                }
            }
            Reply::Attrs(_) => self.fail(remote(
                "it is no longer a directory: run the same command again",
            )),
            reply => self.refuse(reply, "cannot read the attributes of the directory"),
        }
        self.send(core, RequestPurpose::Close, &Request::Close { handle });
        self.opened = false;
        core.closes(self.id);
    }

    fn refuse(&mut self, reply: &Reply, what: &str) {
        let fault = match messages::status(reply) {
            Err(status) => remote(format!("{what}: {status}")).of_kind(cause(status)),
            Ok(()) => remote(format!(
                "{what}: the server sent an unexpected answer (SFTP protocol error)"
            )),
        };
        self.fail(fault);
    }

    pub(in crate::lane) fn fail(&mut self, fault: JobFailure) {
        self.fault.get_or_insert(fault);
    }

    pub(in crate::lane) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let waits = self.handle.is_none() && self.fault.is_none();
        if self.pending > 0 || self.opened || waits {
            return JobProgress::Continues;
        }
        core.turns_mut().forget_opener(self.id);
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Done(self.id),
        });
        JobProgress::Finished
    }

    fn send(&mut self, core: &mut LaneContext, what: RequestPurpose, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }
}
