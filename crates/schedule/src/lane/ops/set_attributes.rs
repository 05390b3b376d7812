use sftp::{Attrs, MetadataFlags, Parts, Reply, Request, StatusCode};

use super::{LaneContext, TaskStep, end};
use crate::lane::job_requests::JobRequests;
use crate::lane::messages::{self, remote};
use crate::lane::metadata;
use crate::lane::request_tag::RequestTag;
use crate::lane::server::Capabilities;
use crate::{Attributes, Fault, JobId, LaneEvent, Xattrs};

/// Sets attributes of a file, or of the target if it is a symlink to follow.
#[derive(Debug)]
pub(in crate::lane) struct SetAttributes {
    requests: JobRequests,
    path: Vec<u8>,
    attributes: Attributes,
    follow: bool,
    xattrs: Option<Box<Xattrs>>,
    fault: Option<Fault>,
}

/// Sets the owner before the other attributes.
const OWNER: u8 = 0;
const REST: u8 = 1;

impl SetAttributes {
    pub(in crate::lane) fn new(
        id: JobId,
        path: Vec<u8>,
        attributes: Attributes,
        follow: bool,
        xattrs: Option<Box<Xattrs>>,
    ) -> Self {
        Self {
            requests: JobRequests::new(id),
            path,
            attributes,
            follow,
            xattrs,
            fault: None,
        }
    }

    pub(in crate::lane) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        let job = self.requests.job();
        let (attributes, path, follow) = (&self.attributes, self.path.as_slice(), self.follow);
        let nanoseconds = core.can(Capabilities::ATTRIBUTES);
        let attrs = Attrs {
            size: None,
            owner: attributes.owner,
            permissions: attributes.mode.map(|m| m & 0o7777),
            times: attributes.times,
            nanoseconds: attributes.nanoseconds.filter(|_| nanoseconds),
            link: None,
        };
        let xattrs = self.xattrs.as_deref();
        if let Some(xattrs) = xattrs.filter(|_| core.can(Capabilities::METADATA)) {
            let flags = MetadataFlags::default().with(MetadataFlags::FOLLOW, follow);
            let what = RequestTag::Step(REST);
            metadata::set_all(&mut self.requests, core, what, (path, flags), attrs, xattrs);
            return TaskStep::Goes;
        }
        metadata::cannot_set(core, job, xattrs);
        if !follow && !core.can(Capabilities::LSETSTAT) {
            // SETSTAT would change the link's target.
            let text = "the server cannot set attributes of symlinks: leaving them unchanged";
            core.event(LaneEvent::Warning(job, text.to_owned()));
            return end(core, job, None);
        }
        let owner = Attrs {
            owner: attrs.owner,
            ..Attrs::default()
        };
        let rest = Attrs {
            owner: None,
            ..attrs
        };
        for (step, attrs) in [(OWNER, owner), (REST, rest)] {
            let request = match follow {
                true => Request::Setstat { path, attrs },
                false => Request::Lsetstat { path, attrs },
            };
            if !attrs.is_empty() {
                self.requests.send(core, RequestTag::Step(step), &request);
            }
        }
        match self.requests.are_answered() {
            true => end(core, job, None),
            false => TaskStep::Goes,
        }
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: &Reply,
    ) -> TaskStep {
        self.requests.answered();
        let job = self.requests.job();
        match (what, reply) {
            (RequestTag::Step(OWNER), reply) => {
                metadata::on_set(core, job, RequestTag::Owner, reply);
            }
            (_, Reply::Set { .. }) => metadata::on_set(core, job, RequestTag::Metadata, reply),
            (_, reply) => self.on_rest(core, reply),
        }
        match self.requests.are_answered() {
            true => end(core, job, self.fault.take()),
            false => TaskStep::Goes,
        }
    }

    fn on_rest(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Err(status) = messages::status(reply) else {
            return;
        };
        if status.code == StatusCode::NO_SUCH_FILE {
            self.fault = Some(remote(status.to_string()));
            return;
        }
        // As in scp: the contents are copied, and metadata that is not kept is reported.
        let parts = Parts::default()
            .with(Parts::MODE, self.attributes.mode.is_some())
            .with(Parts::TIMES, self.attributes.times.is_some());
        let job = self.requests.job();
        core.event(LaneEvent::NotKept(job, parts, status.to_string()));
    }
}
