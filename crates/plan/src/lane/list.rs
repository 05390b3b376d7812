use sftp::{Handle, Name, Reply, Request, StatusCode};

use super::core::{Core, What};
use super::task::{Step, attributes};
use super::words::refused;
use crate::{Fault, JobId, LaneEvent};

/// Lists one directory.
#[derive(Debug)]
pub(super) struct List {
    id: JobId,
    path: Vec<u8>,
    handle: Option<Handle>,
    opening: bool,
    closing: bool,
    at_end: bool,
    pending: usize,
    fault: Option<Fault>,
}

/// One READDIR waits at the server while the other's answer travels.
const AHEAD: usize = 2;

impl List {
    pub(super) fn new(id: JobId, path: Vec<u8>) -> Self {
        Self {
            id,
            path,
            handle: None,
            opening: false,
            closing: false,
            at_end: false,
            pending: 0,
            fault: None,
        }
    }

    pub(super) fn open(&mut self, core: &mut Core) {
        if self.fault.is_some() {
            return;
        }
        // Never on a lane that predicts handles; `Lane::push` refuses the job there.
        self.opening = true;
        core.opens(self.id);
        self.pending += 1;
        let path = self.path.as_slice();
        core.send(self.id, What::Open, &Request::Opendir { path });
    }

    pub(super) fn on_reply(&mut self, core: &mut Core, what: What, reply: Reply) -> Step {
        self.pending -= 1;
        match (what, reply) {
            (What::Open, Reply::Handle(handle)) => {
                self.opening = false;
                self.handle = Some(handle);
            }
            (What::Open, Reply::Status(status)) => {
                self.opening = false;
                core.closes(self.id);
                self.fail(refused("cannot list the directory", &status));
            }
            (What::Readdir, Reply::Names(names)) => self.on_names(core, names),
            (What::Readdir, Reply::Status(status)) => {
                self.at_end = true;
                if status.code != StatusCode::EOF {
                    self.fail(refused("cannot list the directory", &status));
                }
            }
            _ => {}
        }
        self.settle(core)
    }

    fn on_names(&mut self, core: &mut Core, names: Vec<Name>) {
        // A server that answers with no names would be asked for ever.
        if names.is_empty() {
            self.at_end = true;
        }
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            match name.filename.as_slice() {
                b"." | b".." => {}
                filename if is_safe(filename) => {
                    entries.push((name.filename, attributes(&name.attrs)));
                }
                filename => {
                    let shown = sftp::printable(filename, 256);
                    let text = format!(
                        "the server lists a name that no file can have, \"{shown}\": left out"
                    );
                    core.event(LaneEvent::Warning(self.id, text));
                }
            }
        }
        if !entries.is_empty() {
            core.event(LaneEvent::Entries(self.id, entries));
        }
    }

    pub(super) fn settle(&mut self, core: &mut Core) -> Step {
        if let Some(handle) = self.handle.clone() {
            let handle = handle.as_bytes();
            let ends = self.at_end || self.fault.is_some();
            while !ends && self.pending < AHEAD {
                self.pending += 1;
                core.send(self.id, What::Readdir, &Request::Readdir { handle });
            }
            if ends && !self.closing {
                self.closing = true;
                self.pending += 1;
                core.send(self.id, What::Close, &Request::Close { handle });
                core.closes(self.id);
            }
        }
        if self.pending > 0 || (self.fault.is_none() && !self.closing) {
            return Step::Goes;
        }
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Done(self.id),
        });
        Step::Over
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}

/// Whether `name` can stand in a directory: anything else could lead out of it (CVE-2019-6111).
fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|b| matches!(b, b'/' | 0))
}
