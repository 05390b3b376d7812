//! Gives the owner of an existing directory at a server the permissions to fill it, as rsync does.
//! The directory gets the mode of its source after its entries.

use schedule::{Attributes, ExpectedEntry, JobKind, OwnerWrite, RemotePath};
use sftp::ListedEntry;

use super::local::OWNER;

/// Permissions of the owner with which a directory can be opened, and its mode be changed through
/// the handle.
const OPENABLE: u32 = 0o500;

/// Returns the job for a remote directory that was found with this mode; `None` if its owner may
/// fill it. `follow` accepts a symlink to it.
pub(super) fn job(
    path: RemotePath,
    mode: u32,
    found: ListedEntry,
    follow: bool,
) -> Option<JobKind> {
    if mode & OWNER == OWNER {
        return None;
    }
    if mode & OPENABLE == OPENABLE {
        let change = OwnerWrite {
            granted: true,
            only: None,
        };
        return Some(JobKind::SetOwnerWrite { path, change });
    }
    // Another account may have put a file in its place, which must not become open to others.
    let attributes = Attributes {
        mode: Some(OWNER),
        ..Attributes::default()
    };
    Some(JobKind::SetAttributes {
        path,
        attributes,
        follow,
        xattrs: None,
        expected: ExpectedEntry {
            listed: found,
            ..ExpectedEntry::DIRECTORY
        },
    })
}
