//! Creates a hard link at the far end.

use sftp::{Reply, Request, Status, StatusCode};

use super::LaneContext;
use crate::lane::messages::{self, refused, remote};
use crate::lane::replace::{FileReplacement, ReplaceProgress};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::{JobProgress, attributes};
use crate::{EntryKind, JobFailure, JobFailureKind, JobId, LaneEvent};

/// Creates a hard link; if the name is taken, creates it under a temporary name and renames it.
#[derive(Debug)]
pub(in crate::lane) struct MakeHardLink {
    id: JobId,
    path: Vec<u8>,
    of: Vec<u8>,
    temp: Option<Vec<u8>>,
    /// Number from which the temporary's name is made, until a leftover of that name is removed.
    tag: Option<u64>,
    replace: Option<FileReplacement>,
    fault: Option<JobFailure>,
}

/// Creates the link under its name.
const ITSELF: u8 = 0;
/// Creates the link under a temporary name.
const BESIDE: u8 = 1;
/// Looks at the existing file, which may have to be moved aside.
const LOOK: u8 = 2;
/// Removes the temporary name: rename(2) does nothing if both names are links of one file.
const CLEAN: u8 = 3;
/// Removes a leftover of an interrupted run from the temporary name.
const CLEAR: u8 = 4;

const MAKING: &str = "cannot make the hard link";

impl MakeHardLink {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, of: Vec<u8>, tag: Option<u64>) -> Self {
        Self {
            id,
            path,
            of,
            temp: None,
            tag,
            replace: None,
            fault: None,
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        if !core.can(ServerCapabilities::HARDLINK) {
            let fault = remote("the server does not support hard links");
            self.fault = Some(fault.of_kind(JobFailureKind::Unsupported));
            return self.end(core);
        }
        let (from, to) = (&self.of, &self.path);
        core.send(
            self.id,
            RequestPurpose::Step(ITSELF),
            &Request::Hardlink { from, to },
        );
        JobProgress::Continues
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> JobProgress {
        let step = RequestPurpose::Step;
        match (what, messages::status(reply)) {
            (RequestPurpose::Step(ITSELF), Err(status)) if status.code == StatusCode::FAILURE => {
                let path = &self.path;
                self.fault = Some(refused(MAKING, status));
                core.send(self.id, step(LOOK), &Request::Lstat { path });
                return JobProgress::Continues;
            }
            (RequestPurpose::Step(LOOK), _) => {
                // A directory is never moved aside.
                let stands = match reply {
                    Reply::Attrs(attrs) => attributes(attrs).kind(),
                    _ => EntryKind::Directory,
                };
                if stands == EntryKind::Directory {
                    return self.end(core);
                }
                self.fault = None;
                self.temp = Some(core.temp_name(&self.path, self.tag));
                return self.make_beside(core);
            }
            (RequestPurpose::Step(BESIDE), Err(status))
                if status.code == StatusCode::FAILURE && self.tag.take().is_some() =>
            {
                let path = self.temp.as_deref().unwrap_or_default();
                core.send(self.id, step(CLEAR), &Request::Remove { path });
                return JobProgress::Continues;
            }
            (RequestPurpose::Step(CLEAR), removed) => {
                if removed.is_err_and(|status| status.code != StatusCode::NO_SUCH_FILE) {
                    self.temp = Some(core.temp_name(&self.path, None));
                }
                return self.make_beside(core);
            }
            (RequestPurpose::Step(ITSELF | BESIDE), Err(status)) => {
                self.temp = None;
                self.fault = Some(refused(MAKING, status));
            }
            (RequestPurpose::Step(BESIDE), Ok(())) => {
                let from = self.temp.as_deref().unwrap_or_default();
                let names = (from, self.path.as_slice());
                self.replace = Some(FileReplacement::begin(core, self.id, names, true));
                return JobProgress::Continues;
            }
            (RequestPurpose::Replace, _) => {
                let Some(mut replace) = self.replace.take() else {
                    return self.end(core);
                };
                let replaced = replace.on_reply(core, self.id, reply);
                if let ReplaceProgress::InProgress = replaced {
                    self.replace = Some(replace);
                    return JobProgress::Continues;
                }
                let (fault, warning) = replaced.told(MAKING, &mut self.temp);
                self.fault = fault;
                if let Some(text) = warning {
                    core.event(LaneEvent::Warning(self.id, text));
                }
                if let Some(path) = &self.temp {
                    core.send(self.id, step(CLEAN), &Request::Remove { path });
                    return JobProgress::Continues;
                }
            }
            (RequestPurpose::Step(CLEAN), removed) => self.on_cleaned(core, removed),
            _ => {}
        }
        self.end(core)
    }

    fn on_cleaned(&mut self, core: &mut LaneContext, removed: Result<(), &Status>) {
        let left = removed.is_err_and(|status| status.code != StatusCode::NO_SUCH_FILE);
        if let Some(temp) = self.temp.take().filter(|_| left) {
            let name = sftp::printable(&temp, 4096);
            let text = format!("cannot remove the temporary file {name}: remove it by hand");
            core.event(LaneEvent::Warning(self.id, text));
        }
    }

    fn make_beside(&self, core: &mut LaneContext) -> JobProgress {
        let (from, to) = (&self.of, self.temp.as_deref().unwrap_or_default());
        let request = Request::Hardlink { from, to };
        core.send(self.id, RequestPurpose::Step(BESIDE), &request);
        JobProgress::Continues
    }

    fn end(&mut self, core: &mut LaneContext) -> JobProgress {
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Done(self.id),
        });
        JobProgress::Finished
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        self.temp.as_deref().map(|temp| (self.id, temp))
    }
}
