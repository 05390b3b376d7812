//! Sets and reads the metadata of files, through a handle or a path.

use sftp::xattrs::Xattr;
use sftp::{Attrs, MetadataFlags, Parts, Reply, Request};
use wire::Field as _;

use super::core::{LaneContext, RequestTag};
use super::messages::{self, remote};
use super::put::Put;
use super::simple_op::{ITSELF, OWNER, SimpleOp};
use super::task::TaskStep;
use crate::{Attributes, JobId, JobKind, LaneEvent, Xattrs};

impl Put {
    /// Sets `attrs` and the file's additional metadata through its handle.
    pub(super) fn set_metadata(&mut self, core: &mut LaneContext, handle: &[u8], mut attrs: Attrs) {
        attrs.nanoseconds = attrs.nanoseconds.filter(|_| core.server.attributes);
        if let Some(size) = attrs.size.take() {
            let size = Attrs {
                size: Some(size),
                ..Attrs::default()
            };
            let attrs = size;
            self.send(core, RequestTag::Size, &Request::Fsetstat { handle, attrs });
        }
        self.attempt.mode_set = attrs.permissions.is_some();
        let named = self.sets_attributes();
        if named {
            attrs.owner = self.options.beyond.owner;
        }
        let xattrs = self.options.beyond.xattrs.clone().filter(|_| named);
        if let Some(xattrs) = &xattrs
            && core.server.metadata
        {
            let request = (handle, MetadataFlags::HANDLE);
            self.pending += 1;
            core.set_all(self.id, RequestTag::Metadata, request, attrs, xattrs);
        } else {
            // sftp-server.c sets the owner last within a request, which clears setuid.
            if let Some(owner) = attrs.owner.take() {
                let attrs = Attrs {
                    owner: Some(owner),
                    ..Attrs::default()
                };
                self.send(
                    core,
                    RequestTag::Owner,
                    &Request::Fsetstat { handle, attrs },
                );
            }
            if !attrs.is_empty() {
                self.send(
                    core,
                    RequestTag::Attributes,
                    &Request::Fsetstat { handle, attrs },
                );
            }
            core.cannot_set(self.id, xattrs.as_deref());
        }
    }
}

impl SimpleOp {
    /// Sets attributes of the file at `path`, or of the target if it is a symlink to follow.
    pub(super) fn set_attributes(
        &mut self,
        core: &mut LaneContext,
        (path, follow): (&[u8], bool),
        attributes: &Attributes,
        xattrs: Option<&Xattrs>,
    ) -> TaskStep {
        let attrs = Attrs {
            size: None,
            owner: attributes.owner,
            permissions: attributes.mode.map(|m| m & 0o7777),
            times: attributes.times,
            nanoseconds: attributes.nanoseconds.filter(|_| core.server.attributes),
            link: None,
        };
        if let Some(xattrs) = xattrs.filter(|_| core.server.metadata) {
            let flags = MetadataFlags::default().with(MetadataFlags::FOLLOW, follow);
            self.pending += 1;
            core.set_all(
                self.id,
                RequestTag::Step(ITSELF),
                (path, flags),
                attrs,
                xattrs,
            );
            return TaskStep::Goes;
        }
        core.cannot_set(self.id, xattrs);
        if !follow && !core.server.lsetstat {
            // SETSTAT would change the link's target.
            let text = "the server cannot set attributes of symlinks: leaving them unchanged";
            core.event(LaneEvent::Warning(self.id, text.to_owned()));
            return self.end(core);
        }
        let owner = Attrs {
            owner: attrs.owner,
            ..Attrs::default()
        };
        let rest = Attrs {
            owner: None,
            ..attrs
        };
        for (step, attrs) in [(OWNER, owner), (ITSELF, rest)] {
            let request = match follow {
                true => Request::Setstat { path, attrs },
                false => Request::Lsetstat { path, attrs },
            };
            if !attrs.is_empty() {
                self.send(core, step, &request);
            }
        }
        match self.pending {
            0 => self.end(core),
            _ => TaskStep::Goes,
        }
    }

    /// Handles the answer to a set-metadata@longhaul.
    pub(super) fn on_set(&self, core: &mut LaneContext, reply: &Reply) {
        core.on_set(self.id, RequestTag::Metadata, reply);
    }

    /// Sends a query that only a longhaul server understands.
    pub(super) fn ask(&mut self, core: &mut LaneContext) -> TaskStep {
        let can = match &self.kind {
            JobKind::GetXattrs { .. } => core.server.xattrs,
            JobKind::Names { .. } => core.server.names_by_id,
            _ => core.server.ids_by_name,
        };
        if !can {
            self.fail(remote(NOT_OURS));
            return self.end(core);
        }
        match self.kind.clone() {
            JobKind::GetXattrs { path, flags } => {
                let path = path.0.as_slice();
                self.send(core, ITSELF, &Request::GetXattrs { path, flags });
            }
            JobKind::Names { users, groups } => {
                let bytes = |ids: Vec<u32>| ids.into_iter().flat_map(u32::to_be_bytes).collect();
                let (users, groups): (Vec<u8>, Vec<u8>) = (bytes(users), bytes(groups));
                let (users, groups) = (users.as_slice(), groups.as_slice());
                self.send(core, ITSELF, &Request::UsersGroupsById { users, groups });
            }
            JobKind::Ids { users, groups } => {
                let (users, groups) = (strings(&users), strings(&groups));
                let (users, groups) = (users.as_slice(), groups.as_slice());
                self.send(core, ITSELF, &Request::IdsByName { users, groups });
            }
            _ => {}
        }
        TaskStep::Goes
    }

    /// Reports extended attributes. Names that were not requested are an error, since setting them
    /// could have effects.
    pub(super) fn on_xattrs(&mut self, core: &mut LaneContext, list: Vec<Xattr>) {
        let JobKind::GetXattrs { flags, .. } = self.kind else {
            return;
        };
        let asked = |(name, _): &Xattr| sftp::xattrs::is_asked(name, true, flags);
        match list.iter().all(asked) {
            true => core.event(LaneEvent::Xattrs(self.id, list)),
            false => self.fail(remote(
                "the server sent extended attributes that were not requested",
            )),
        }
    }
}

fn strings(names: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        name.as_slice().write(&mut out);
    }
    out
}

impl LaneContext {
    /// Sends a set-metadata@longhaul.
    pub(super) fn set_all(
        &mut self,
        job: JobId,
        what: RequestTag,
        (of, flags): (&[u8], MetadataFlags),
        attrs: Attrs,
        xattrs: &Xattrs,
    ) {
        let mut list = Vec::new();
        sftp::xattrs::write(&xattrs.list, &mut list);
        let request = Request::SetMetadata {
            of,
            flags: MetadataFlags(flags.0 | xattrs.kinds.0),
            attrs,
            xattrs: &list,
        };
        self.send(job, what, &request);
    }

    /// Reports that the server cannot set this metadata.
    pub(super) fn cannot_set(&mut self, job: JobId, xattrs: Option<&Xattrs>) {
        let lost = xattrs.map(Xattrs::parts).filter(|parts| !parts.is_empty());
        if let Some(parts) = lost {
            self.not_kept(job, vec![(parts, NOT_OURS.to_owned())]);
        }
    }

    /// Handles the answer to setting an owner or all metadata.
    pub(super) fn on_set(&mut self, job: JobId, what: RequestTag, reply: &Reply) {
        let not_kept = match (reply, what) {
            (Reply::Set { not_kept, why }, _) if !not_kept.is_empty() => (*not_kept, why.clone()),
            (reply, what) => match (messages::status(reply), what) {
                (Ok(()), _) => return,
                (Err(status), RequestTag::Metadata) => (EVERYTHING, status.to_string()),
                (Err(status), _) => (Parts::OWNER, status.to_string()),
            },
        };
        self.not_kept(job, vec![not_kept]);
    }

    /// Reports metadata that could not be kept.
    pub(super) fn not_kept(&mut self, job: JobId, parts: Vec<(Parts, String)>) {
        for (parts, why) in parts {
            self.event(LaneEvent::NotKept(job, parts, why));
        }
    }
}

/// Metadata that one set-metadata@longhaul sets.
const EVERYTHING: Parts =
    Parts(Parts::OWNER.0 | Parts::XATTRS.0 | Parts::MODE.0 | Parts::ACLS.0 | Parts::TIMES.0);
/// Reason why a stock server does not keep some metadata.
const NOT_OURS: &str = "SFTP cannot carry them unless longhaul is at the far end";
