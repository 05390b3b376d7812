//! Write permission for the owner of a temporary. Other lanes, and the run that resumes the copy, open
//! the temporary again, and extended attributes are set: with the permissions of a read-only source,
//! only root may do either. The permission is taken again before the rename.

use sftp::{Attrs, ExpectedEntry, Reply, Request};

use super::{LaneContext, UploadState};
use crate::attributes::OWNER_WRITE;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::attributes;
use crate::{Attributes, EntryKind};

/// Progress of an upload whose source is read-only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OwnerWriteGrant {
    /// The permission is not to be taken.
    #[default]
    None,
    /// The temporary has it.
    Granted,
    /// The temporary's permissions, to which the server's umask has applied, are asked for.
    Asked,
    /// The server has told these permissions.
    Known(u32),
    /// The request to take the permission was sent.
    Withdrawn,
}

impl OwnerWriteGrant {
    /// Returns true for permissions of a source that its owner may not write.
    pub(super) fn is_needed(mode: Option<u32>) -> bool {
        mode.is_some_and(|mode| mode & OWNER_WRITE == 0)
    }

    /// Returns the permission bits with which the temporary of a read-only source is created.
    pub(super) fn added_to(mode: u32) -> u32 {
        mode | OWNER_WRITE
    }

    /// Sends the next request to take the permission from the temporary; false if there is none.
    pub(super) fn withdraw(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        temp: &[u8],
    ) -> bool {
        match *self {
            Self::None | Self::Asked | Self::Withdrawn => false,
            Self::Granted => {
                *self = Self::Asked;
                let request = Request::Lstat { path: temp };
                up.requests.send(core, RequestPurpose::TempMode, &request);
                true
            }
            Self::Known(mode) => {
                *self = Self::Withdrawn;
                if mode & OWNER_WRITE == 0 {
                    return false;
                }
                let attrs = Attrs {
                    expected: core.expects(ExpectedEntry::TEMPORARY),
                    ..Attrs::with_permissions(mode & 0o777 & !OWNER_WRITE)
                };
                let request = Request::Setstat { path: temp, attrs };
                up.requests.send(core, RequestPurpose::Mode, &request);
                true
            }
        }
    }

    /// Returns true if the request to take the permission was sent.
    pub(super) fn is_withdrawn(self) -> bool {
        self == Self::Withdrawn
    }

    /// Takes the temporary's permissions. A server that does not tell them leaves them as they are,
    /// and so does what is no file: another user has put it there.
    pub(super) fn on_reply(&mut self, reply: &Reply) {
        let found = match reply {
            Reply::Attrs(attrs) => attributes(attrs),
            _ => Attributes::default(),
        };
        let mode = found.mode.filter(|_| found.kind() == EntryKind::File);
        *self = mode.map_or(Self::None, Self::Known);
    }
}
