use sftp::{Attrs, ExpectedEntry, MetadataFlags, Parts, Reply, Request, Status, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::lane::job_requests::JobRequests;
use crate::lane::messages::{self, answered};
use crate::lane::metadata;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{Attributes, EntryKind, JobFailure, JobId, LaneEvent, Xattrs};

/// Sets attributes of a file, or of the target if it is a symlink to follow.
///
/// Without following, lsetstat@openssh.com is used. A server may lack it, or refuse modes by it
/// (OpenSSH with a glibc before 2.32): SETSTAT follows if an LSTAT shows that no symlink stands
/// there. A server that finds another entry than the expected one has set nothing, and the job
/// fails.
#[derive(Debug)]
pub(in crate::lane) struct SetAttributes {
    requests: JobRequests,
    path: Vec<u8>,
    attributes: Attributes,
    follow: bool,
    xattrs: Option<Box<Xattrs>>,
    expected: ExpectedEntry,
    fault: Option<JobFailure>,
    /// Answer of a failed lsetstat@openssh.com, while the entry is looked at.
    refusal: Option<Status>,
    /// An LSTAT has shown that the entry is no symlink.
    looked: bool,
    owner: OwnerRequest,
}

/// Request that sets the owner.
#[derive(Debug)]
enum OwnerRequest {
    /// It sets nothing else.
    Alone,
    /// It sets all attributes, since the server compares the owner with the listed one.
    WithRest,
    /// The server has refused one with all attributes, with this status: the owner, or another one
    /// after it has set the owner.
    Refused(Status),
}

/// Sets the owner before the other attributes.
const OWNER: u8 = 0;
const REST: u8 = 1;
/// Looks for a symlink before SETSTAT.
const LOOK: u8 = 2;

const LINK: &str = "the server cannot set times or owners of symlinks: leaving them unchanged";

impl SetAttributes {
    pub(in crate::lane) fn new(
        id: JobId,
        (path, follow): (Vec<u8>, bool),
        attributes: Attributes,
        xattrs: Option<Box<Xattrs>>,
        expected: ExpectedEntry,
    ) -> Self {
        Self {
            requests: JobRequests::new(id),
            path,
            attributes,
            follow,
            xattrs,
            expected,
            fault: None,
            refusal: None,
            looked: false,
            owner: OwnerRequest::Alone,
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        let job = self.requests.job();
        let (path, follow) = (self.path.as_slice(), self.follow);
        let attrs = self.attrs(core);
        let xattrs = self.xattrs.as_deref();
        if let Some(xattrs) = xattrs.filter(|_| core.can(ServerCapabilities::METADATA)) {
            let flags = MetadataFlags::default().with(MetadataFlags::FOLLOW, follow);
            let what = RequestPurpose::Step(REST);
            metadata::set_all(&mut self.requests, core, what, (path, flags), attrs, xattrs);
            return JobProgress::Continues;
        }
        metadata::cannot_set(core, job, xattrs);
        match follow || core.can(ServerCapabilities::LSETSTAT) || attrs.is_empty() {
            true => {
                self.set_owner_and_rest(core);
            }
            // SETSTAT would change the link's target.
            false => self.look(core),
        }
        self.settle(core)
    }

    fn attrs(&self, core: &LaneContext) -> Attrs {
        let attributes = &self.attributes;
        let nanoseconds = core.can(ServerCapabilities::ATTRIBUTES);
        Attrs {
            size: None,
            owner: attributes.owner,
            permissions: attributes.mode.map(|m| m & 0o7777),
            times: attributes.times,
            nanoseconds: attributes.nanoseconds.filter(|_| nanoseconds),
            link: None,
            expected: core.expects(self.expected),
        }
    }

    /// Sets the owner and then the other attributes, or all in one request if the server compares the
    /// owner with the listed one: in a second request it would no longer be that.
    fn set_owner_and_rest(&mut self, core: &mut LaneContext) {
        let names_owner = core
            .expects(self.expected)
            .is_some_and(|entry| entry.listed.owner.is_some());
        if names_owner && self.attributes.owner.is_some() {
            self.owner = OwnerRequest::WithRest;
            let all = self.attrs(core);
            self.set(core, OWNER, all);
        } else {
            self.set_owner(core);
            self.set_rest(core);
        }
    }

    fn set_owner(&mut self, core: &mut LaneContext) {
        let owner = Attrs {
            owner: self.attributes.owner,
            expected: core.expects(self.expected),
            ..Attrs::default()
        };
        self.set(core, OWNER, owner);
    }

    fn set_rest(&mut self, core: &mut LaneContext) {
        let rest = Attrs {
            owner: None,
            ..self.attrs(core)
        };
        self.set(core, REST, rest);
    }

    fn set(&mut self, core: &mut LaneContext, step: u8, attrs: Attrs) {
        let path = self.path.as_slice();
        let request = match self.follow || self.looked {
            true => Request::Setstat { path, attrs },
            false => Request::Lsetstat { path, attrs },
        };
        if !attrs.is_empty() {
            self.requests
                .send(core, RequestPurpose::Step(step), &request);
        }
    }

    fn look(&mut self, core: &mut LaneContext) {
        let request = Request::Lstat { path: &self.path };
        self.requests
            .send(core, RequestPurpose::Step(LOOK), &request);
    }

    /// Handles the answer to LSTAT: sets the attributes unless a symlink may stand there.
    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        let refusal = self.refusal.take();
        let kind = match reply {
            Reply::Attrs(attrs) if attrs.permissions.is_some() => Some(attributes(attrs).kind()),
            _ => None,
        };
        if kind.is_some_and(|kind| kind != EntryKind::Symlink) {
            self.looked = true;
            return match refusal {
                None => self.set_owner_and_rest(core),
                Some(_) => self.set_rest(core),
            };
        }
        let failed = messages::status(reply).err().filter(|_| kind.is_none());
        match (refusal, failed) {
            (Some(status), _) => self.not_kept(core, &status),
            (None, Some(status)) => self.on_status(core, status),
            (None, None) => {
                let job = self.requests.job();
                core.event(LaneEvent::Warning(job, LINK.to_owned()));
            }
        }
    }

    fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        match self.requests.are_answered() {
            true => end(core, self.requests.job(), self.fault.take()),
            false => JobProgress::Continues,
        }
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> JobProgress {
        self.requests.answered();
        let job = self.requests.job();
        let is_unexpected =
            matches!(reply, Reply::Status(status) if messages::is_unexpected(status));
        let owner = std::mem::replace(&mut self.owner, OwnerRequest::Alone);
        if let OwnerRequest::Refused(status) = &owner {
            // The server had set the owner, so that the entry is no longer as it was listed. A user
            // who swaps the entry can bring about another status, but not this one.
            let is_set = is_unexpected && status.code == StatusCode::PERMISSION_DENIED;
            let refused = match is_set {
                true => RequestPurpose::Metadata,
                false => RequestPurpose::Owner,
            };
            metadata::on_set(core, job, refused, &Reply::Status(status.clone()));
            if is_set {
                return self.settle(core);
            }
        }
        match (what, reply) {
            (_, Reply::Status(status)) if is_unexpected => {
                self.fault = Some(answered(status));
            }
            (RequestPurpose::Step(OWNER), Reply::Status(status))
                if matches!(owner, OwnerRequest::WithRest) && !status.is_ok() =>
            {
                self.set_rest(core);
                match self.requests.are_answered() {
                    true => metadata::on_set(core, job, RequestPurpose::Owner, reply),
                    false => self.owner = OwnerRequest::Refused(status.clone()),
                }
            }
            (RequestPurpose::Step(OWNER), reply) => {
                metadata::on_set(core, job, RequestPurpose::Owner, reply);
            }
            (RequestPurpose::Step(LOOK), reply) => self.on_look(core, reply),
            (_, Reply::Set { .. }) => metadata::on_set(core, job, RequestPurpose::Metadata, reply),
            (_, reply) => self.on_rest(core, reply),
        }
        self.settle(core)
    }

    fn on_rest(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Err(status) = messages::status(reply) else {
            return;
        };
        let refused = [StatusCode::FAILURE, StatusCode::OP_UNSUPPORTED].contains(&status.code);
        if refused && !self.follow && !self.looked && self.xattrs.is_none() {
            self.refusal = Some(status.clone());
            return self.look(core);
        }
        self.on_status(core, status);
    }

    fn on_status(&mut self, core: &mut LaneContext, status: &Status) {
        if status.code == StatusCode::NO_SUCH_FILE {
            self.fault = Some(answered(status));
            return;
        }
        self.not_kept(core, status);
    }

    fn not_kept(&self, core: &mut LaneContext, status: &Status) {
        // As in scp: the contents are copied, and metadata that is not kept is reported.
        let parts = Parts::default()
            .with(Parts::MODE, self.attributes.mode.is_some())
            .with(Parts::TIMES, self.attributes.times.is_some());
        let job = self.requests.job();
        core.event(LaneEvent::NotKept(job, parts, status.to_string()));
    }
}
