//! The file that an upload creates: its name until the rename, and what was set on it.

use sftp::{Attrs, ExpectedEntry, MetadataFlags, Parts, Reply, Request, Status};

use super::ending::{UploadAttemptAbort, UploadRetryReason};
use super::owner::OwnerPreservation;
use super::owner_write::OwnerWriteGrant;
use super::part::UploadPart;
use super::target::{ReplacedAttributes, UploadTargetState};
use super::{LaneContext, UploadState};
use crate::LaneEvent;
use crate::lane::messages::{self, SETTING, SYNCING, WRITING, refused};
use crate::lane::metadata;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{RemotePath, UploadTemp};

/// State of the file that an upload writes.
#[derive(Debug, Default)]
pub(in crate::lane) struct WrittenFileInfo {
    /// Name of the temporary; `None` if the target is written in place, or if other jobs have to
    /// remove it.
    temp: Option<Vec<u8>>,
    /// Permission bits that it was created with.
    mode: u32,
    /// The permission bits are final.
    mode_set: bool,
    /// The data are durable (fsync).
    synced: bool,
    owner: OwnerPreservation,
    owner_write: OwnerWriteGrant,
}

impl WrittenFileInfo {
    /// Creates the state of a file that is complete, with the source's permission bits `mode`, and
    /// whose permission bits may be final (`mode_set`).
    pub(in crate::lane) fn complete(
        mode: Option<u32>,
        mode_set: bool,
        owner: OwnerPreservation,
    ) -> Self {
        Self {
            temp: None,
            mode: mode.unwrap_or(0o666) & 0o777,
            mode_set,
            synced: false,
            owner,
            owner_write: OwnerWriteGrant::None,
        }
    }

    /// Sets the name of the temporary.
    pub(super) fn named(self, temp: Vec<u8>) -> Self {
        Self {
            temp: Some(temp),
            ..self
        }
    }

    /// Creates the state of a file that is about to be opened with these permission bits.
    pub(super) fn created(temp: Option<Vec<u8>>, mode: u32) -> Self {
        Self {
            temp,
            mode,
            ..Self::default()
        }
    }

    /// Records that the owner may write the temporary, and not the source.
    pub(super) fn owner_may_write(&mut self) {
        self.owner_write = OwnerWriteGrant::Granted;
    }

    /// Records that an earlier job has set the attributes.
    pub(super) fn is_set(&mut self, mode: bool, synced: bool) {
        self.mode_set = mode;
        self.synced = synced;
    }

    pub(super) fn temp(&self) -> Option<&[u8]> {
        self.temp.as_deref()
    }

    /// Returns true if the file has a temporary name that this job has to remove.
    pub(super) fn is_temporary(&self) -> bool {
        self.temp.is_some()
    }

    /// Records that the temporary does not exist any more, or is left to others.
    pub(super) fn is_gone(&mut self) {
        self.temp = None;
    }

    pub(super) fn set_temp(&mut self, temp: Vec<u8>) {
        self.temp = Some(temp);
    }

    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    pub(super) fn owner_mut(&mut self) -> &mut OwnerPreservation {
        &mut self.owner
    }

    /// Reports the temporary to other jobs once it exists and the target allows it.
    pub(super) fn announce(&mut self, up: &mut UploadState, core: &mut LaneContext) {
        let UploadPart::Head { announced, .. } = &mut up.part else {
            return;
        };
        let (replaces, was) = match up.target.state() {
            // A symlink to be replaced is moved aside like a file.
            UploadTargetState::New => (up.target.replaces_node(), ReplacedAttributes::default()),
            UploadTargetState::Existing(was) => (true, was),
            UploadTargetState::Unknown | UploadTargetState::Direct(_) => return,
        };
        if *announced {
            return;
        }
        // From here on other jobs must remove the temporary.
        if let Some(temp) = self.temp.take() {
            *announced = true;
            let temp = UploadTemp {
                temp: RemotePath(temp),
                target: RemotePath(up.path.clone()),
                replaces,
                mode: was.mode(),
                owner: was.owner(),
            };
            core.event(LaneEvent::Temp(up.job(), temp));
        }
    }

    /// Sets `attrs` and the file's additional metadata through its handle.
    pub(super) fn set_metadata(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        handle: &[u8],
        mut attrs: Attrs,
    ) {
        if up.target.is_special() {
            return;
        }
        let nanoseconds = core.can(ServerCapabilities::ATTRIBUTES);
        attrs.nanoseconds = attrs.nanoseconds.filter(|_| nanoseconds);
        let requests = &mut up.requests;
        let mut set = |core: &mut LaneContext, what, attrs| {
            requests.send(core, what, &Request::Fsetstat { handle, attrs });
        };
        if let Some(size) = attrs.size.take() {
            let size = Attrs {
                size: Some(size),
                ..Attrs::default()
            };
            set(core, RequestPurpose::Size, size);
        }
        self.mode_set = attrs.permissions.is_some();
        let named = up.part.sets_attributes();
        if named {
            attrs.owner = up.options.beyond.owner;
        }
        let xattrs = up.options.beyond.xattrs.as_deref().filter(|_| named);
        if let Some(xattrs) = xattrs
            && core.can(ServerCapabilities::METADATA)
        {
            let of = (handle, MetadataFlags::HANDLE);
            let what = RequestPurpose::Metadata;
            metadata::set_all(requests, core, what, of, attrs, xattrs);
            return;
        }
        // sftp-server.c sets the owner last within a request, which clears setuid.
        if let Some(owner) = attrs.owner.take() {
            let owner = Attrs {
                owner: Some(owner),
                ..Attrs::default()
            };
            set(core, RequestPurpose::Owner, owner);
        }
        if !attrs.is_empty() {
            set(core, RequestPurpose::Attributes, attrs);
        }
        metadata::cannot_set(core, requests.job(), xattrs);
    }

    /// Sets the permission bits of the replaced file by name, if they are not final; true if a
    /// request was sent.
    pub(super) fn set_mode(&mut self, up: &mut UploadState, core: &mut LaneContext) -> bool {
        let mode = up.target.replaced().and_then(ReplacedAttributes::mode);
        if let (Some(mode), Some(path), false) = (mode, &self.temp, self.mode_set)
            && !core.refusals().attributes
        {
            // The LSTAT's answer came after FSETSTAT was sent.
            self.mode_set = true;
            let attrs = Attrs {
                expected: core.expects(ExpectedEntry::TEMPORARY),
                ..Attrs::with_permissions(mode)
            };
            let request = Request::Setstat { path, attrs };
            up.requests.send(core, RequestPurpose::Mode, &request);
            return true;
        }
        false
    }

    /// Takes write permission from the temporary of a read-only source, if its permissions are not
    /// final; true if a request was sent.
    pub(super) fn withdraw_owner_write(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
    ) -> bool {
        let Some(temp) = self.temp.as_deref().filter(|_| !self.mode_set) else {
            return false;
        };
        self.owner_write.withdraw(up, core, temp)
    }

    /// Handles the answer to a request about the file.
    pub(super) fn on_reply(
        &mut self,
        up: &UploadState,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Option<UploadAttemptAbort> {
        let failed = |doing: &str| {
            let status = messages::status(reply).err()?;
            Some(UploadAttemptAbort::Failed(refused(doing, status)))
        };
        // Nobody knows whose data the other entry has.
        if let Err(status) = messages::status(reply)
            && messages::is_unexpected(status)
        {
            return Some(UploadAttemptAbort::Failed(refused(SETTING, status)));
        }
        match what {
            RequestPurpose::Fstat => {
                if let Reply::Attrs(attrs) = reply {
                    core.event(LaneEvent::Attributes(up.job(), attributes(attrs)));
                }
                None
            }
            RequestPurpose::TempMode => {
                self.owner_write.on_reply(reply);
                None
            }
            // scp also reports this and goes on; some file systems have no modes.
            RequestPurpose::Attributes | RequestPurpose::Mode => {
                let status = messages::status(reply).err()?;
                self.attributes_refused(up, core, status)
            }
            RequestPurpose::TempOwner | RequestPurpose::KeepOwner | RequestPurpose::KeepGroup => {
                self.owner.on_reply(up, core, what, reply);
                None
            }
            RequestPurpose::Owner | RequestPurpose::Metadata => {
                metadata::on_set(core, up.job(), what, reply);
                None
            }
            RequestPurpose::Size => failed(WRITING),
            RequestPurpose::Sync => {
                let failed = failed(SYNCING);
                self.synced |= failed.is_none();
                failed
            }
            _ => None,
        }
    }

    /// Handles a refusal to set permissions and times.
    fn attributes_refused(
        &self,
        up: &UploadState,
        core: &mut LaneContext,
        status: &Status,
    ) -> Option<UploadAttemptAbort> {
        let found = crate::RefusedOperations {
            attributes: true,
            ..crate::RefusedOperations::default()
        };
        core.learn(up.job(), found, "");
        let why = status.to_string();
        if up.options.preserve {
            let parts = Parts(Parts::MODE.0 | Parts::TIMES.0);
            core.event(LaneEvent::NotKept(up.job(), parts, why));
            return None;
        }
        if self.owner_write.is_withdrawn() {
            core.event(LaneEvent::NotKept(up.job(), Parts::MODE, why));
            return None;
        }
        let was = up.target.replaced()?.mode()?;
        // Replacing a file must not make it readable for others: it is created anew with the
        // permissions of the old one.
        let wider = self.mode & !was != 0 && up.part.is_whole();
        if wider {
            return Some(UploadAttemptAbort::Retry(UploadRetryReason::NewName));
        }
        if self.mode != was {
            core.event(LaneEvent::NotKept(up.job(), Parts::MODE, why));
        }
        None
    }
}
