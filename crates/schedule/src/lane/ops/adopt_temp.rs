use sftp::{Attrs, ExpectedEntry, Reply, Request, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::attributes::OWNER_WRITE;
use crate::journal::ExistingFile;
use crate::lane::job_requests::JobRequests;
use crate::lane::messages;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{
    Attributes, EntryKind, ExistingTargetPolicy, JobId, LaneEvent, PartialFile, RemotePath,
    UploadTemp,
};

/// Checks if the temporary of an earlier run can be resumed, and what its rename will replace.
#[derive(Debug)]
pub(in crate::lane) struct ResumeTempCheck {
    requests: JobRequests,
    target: RemotePath,
    temp: RemotePath,
    left: PartialFile,
    /// Size of the source in bytes.
    size: Option<u64>,
    existing: ExistingTargetPolicy,
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
        existing: ExistingTargetPolicy,
    ) -> Self {
        Self {
            requests: JobRequests::new(id),
            target,
            temp,
            left,
            size,
            existing,
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
        match (self.resumable(), self.read_only_mode()) {
            (Some(_), Some(mode)) if self.may_grant(core) => {
                self.grant(core, mode);
                return JobProgress::Continues;
            }
            // Only root may open it again.
            (Some(_), Some(_)) if !self.is_granted => {}
            (Some(temp), _) => core.event(LaneEvent::Temp(job, temp)),
            (None, _) => {}
        }
        end(core, job, None)
    }

    /// Returns the temporary's permissions if its owner may not write it.
    fn read_only_mode(&self) -> Option<u32> {
        let mode = self.seen.and_then(|seen| seen.mode)?;
        (mode & OWNER_WRITE == 0).then_some(mode & 0o777)
    }

    /// True if the owner may be given write permission. A temporary gets the permissions of a read-only
    /// source only once it is complete; nothing is written to one that is not, because another account
    /// may have put it there.
    fn may_grant(&self, core: &LaneContext) -> bool {
        let size = self.seen.and_then(|seen| seen.size);
        let is_whole = |size: u64| self.left.ranges.as_slice() == [(0, size)];
        let is_complete = size == self.size && size.is_some_and(is_whole);
        // A symlink is not followed.
        is_complete && !self.is_granted && core.can(ServerCapabilities::LSETSTAT)
    }

    /// Gives the owner of the temporary write permission.
    fn grant(&mut self, core: &mut LaneContext, mode: u32) {
        self.is_granted = true;
        let request = Request::Lsetstat {
            path: &self.temp.0,
            attrs: Attrs {
                expected: core.expects(ExpectedEntry::TEMPORARY),
                ..Attrs::with_permissions(mode | OWNER_WRITE)
            },
        };
        self.requests
            .send(core, RequestPurpose::Step(GRANT), &request);
    }

    /// True for a file that the rename may replace without asking the server.
    fn may_replace(&self, file: &Attributes) -> bool {
        let is_writable = file.mode.is_some_and(|mode| mode & OWNER_WRITE != 0);
        let replaces = is_writable || self.existing.read_only.replaces(file.size);
        file.kind() == EntryKind::File && replaces
    }

    /// Returns the temporary if it can be resumed.
    fn resumable(&self) -> Option<UploadTemp> {
        let target = self.replaces?;
        let (replaces, mode) = match target {
            None => (false, None),
            Some(file) if self.may_replace(&file) => (true, file.mode.map(|mode| mode & 0o777)),
            Some(link) if link.kind() == EntryKind::Symlink && self.existing.replace_node => {
                (false, None)
            }
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
