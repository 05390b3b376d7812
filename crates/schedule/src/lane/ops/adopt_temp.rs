use sftp::{Attrs, ExpectedEntry, Reply, Request, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::attributes::OWNER_WRITE;
use crate::journal::ExistingFile;
use crate::lane::job_requests::JobRequests;
use crate::lane::messages;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{Attributes, EntryKind, JobId, LaneEvent, PartialFile, RemotePath, UploadTemp};

/// Checks if the temporary of an earlier run can be resumed, and what its rename will replace.
#[derive(Debug)]
pub(in crate::lane) struct ResumeTempCheck {
    requests: JobRequests,
    target: RemotePath,
    temp: RemotePath,
    left: PartialFile,
    /// Size of the source in bytes.
    size: Option<u64>,
    replace_node: bool,
    /// Attributes of the temporary.
    seen: Option<Attributes>,
    /// The server finds another entry than a temporary of this name, or does not let it be written.
    is_another: bool,
    /// The owner was given write permission for the temporary of a read-only source, whose permissions
    /// the earlier run had set.
    is_granted: bool,
    /// Attributes of the file at the final name, once known; `Some(None)` without a file.
    replaces: Option<Option<Attributes>>,
}

const TEMP: u8 = 0;
const TARGET: u8 = 1;
/// Asks the server if the temporary is a regular file with one hard link.
const CHECK: u8 = 2;
/// Gives the owner write permission.
const GRANT: u8 = 3;

impl ResumeTempCheck {
    pub(in crate::lane) fn new(
        id: JobId,
        (target, temp): (RemotePath, RemotePath),
        (left, size): (PartialFile, Option<u64>),
        replace_node: bool,
    ) -> Self {
        Self {
            requests: JobRequests::new(id),
            target,
            temp,
            left,
            size,
            replace_node,
            seen: None,
            is_another: false,
            is_granted: false,
            replaces: None,
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        for (step, path) in [(TEMP, &self.temp), (TARGET, &self.target)] {
            let request = Request::Lstat { path: &path.0 };
            self.requests
                .send(core, RequestPurpose::Step(step), &request);
        }
        let expected = core.expects(ExpectedEntry::TEMPORARY);
        if expected.is_some() {
            // It sets nothing: the server compares the entry with the expected one.
            let request = Request::Lsetstat {
                path: &self.temp.0,
                attrs: Attrs {
                    expected,
                    ..Attrs::default()
                },
            };
            self.requests
                .send(core, RequestPurpose::Step(CHECK), &request);
        }
        JobProgress::Continues
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> JobProgress {
        self.requests.answered();
        let there = match reply {
            Reply::Attrs(attrs) => Some(attributes(attrs)),
            _ => None,
        };
        let missing = matches!(reply, Reply::Status(s) if s.code == StatusCode::NO_SUCH_FILE);
        match what {
            RequestPurpose::Step(TEMP) => self.seen = there,
            RequestPurpose::Step(CHECK | GRANT) => {
                self.is_another |= messages::status(reply).is_err()
            }
            // A file that may not be looked at cannot be resumed.
            _ if there.is_some() || missing => self.replaces = Some(there),
            _ => {}
        }
        if !self.requests.are_answered() {
            return JobProgress::Continues;
        }
        let job = self.requests.job();
        if let Some(temp) = self.resumable() {
            if self.grant(core) {
                return JobProgress::Continues;
            }
            core.event(LaneEvent::Temp(job, temp));
        }
        end(core, job, None)
    }

    /// Gives the owner write permission for the temporary if it lacks that: with the final permissions
    /// only root may open it again. Returns true if the request was sent.
    fn grant(&mut self, core: &mut LaneContext) -> bool {
        let mode = self.seen.and_then(|seen| seen.mode).unwrap_or(OWNER_WRITE);
        if self.is_granted || mode & OWNER_WRITE != 0 {
            return false;
        }
        self.is_granted = true;
        let attrs = Attrs {
            expected: core.expects(ExpectedEntry::TEMPORARY),
            ..Attrs::with_permissions((mode & 0o777) | OWNER_WRITE)
        };
        let path = &self.temp.0;
        // Another account may have put a symlink in its place.
        let request = match core.can(ServerCapabilities::LSETSTAT) {
            true => Request::Lsetstat { path, attrs },
            false => Request::Setstat { path, attrs },
        };
        self.requests
            .send(core, RequestPurpose::Step(GRANT), &request);
        true
    }

    /// Returns the temporary if it can be resumed.
    fn resumable(&self) -> Option<UploadTemp> {
        let target = self.replaces?;
        let (replaces, mode) = match target.map(|a| (a.kind(), a.mode)) {
            None => (false, None),
            Some((EntryKind::File, mode)) if mode.is_some_and(|m| m & OWNER_WRITE != 0) => {
                (true, mode.map(|m| m & 0o777))
            }
            Some((EntryKind::Symlink, _)) if self.replace_node => (false, None),
            Some(_) => return None,
        };
        let is_temporary = |seen: &Attributes| seen.kind() == EntryKind::File && !self.is_another;
        let seen = self.seen.filter(is_temporary)?;
        let seen = ExistingFile {
            size: seen.size.unwrap_or(0),
            mtime: seen.times.map_or(0, |(_, m)| u64::from(m) * 1_000_000_000),
        };
        let fits = self.size.is_none_or(|size| seen.size <= size);
        (fits && self.left.may_go_on(seen)).then(|| UploadTemp {
            temp: self.temp.clone(),
            target: self.target.clone(),
            replaces,
            mode,
            owner: target.and_then(|there| there.owner).filter(|_| replaces),
        })
    }
}
