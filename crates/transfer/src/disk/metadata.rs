//! What a local file is given beside contents, mode and times.

use std::fs::File;
use std::os::fd::AsFd as _;

use plan::{Beyond, MetadataFlags, Parts, Xattrs};
use rustix::fs::{Gid, Uid, fchown};
use rustix::io::Errno;
use sftp::xattrs;
use sys::{XattrsOf, read_xattrs, replace_xattrs};

use super::os_words;

/// What could not be kept, and why.
pub(crate) type NotKept = Vec<(Parts, String)>;

/// Owner and extended attributes. Before the mode: chown(2) takes setuid and file capabilities away,
/// and attributes of `user` need the owner's write permission.
pub(super) fn before_mode(file: &File, beyond: &Beyond, not_kept: &mut NotKept) {
    if let Some((user, group)) = beyond.owner {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let done = fchown(file, Some(user), Some(group));
        if done == Err(Errno::PERM) {
            // A group that one is in may be kept all the same.
            let _ = fchown(file, None, Some(group));
        }
        if let Err(e) = done {
            not_kept.push((Parts::OWNER, os_words(&e.into())));
        }
    }
    if let Some(xattrs) = &beyond.xattrs {
        let of = XattrsOf::Open(file.as_fd());
        set_xattrs(of, xattrs, MetadataFlags::XATTRS, not_kept);
    }
}

/// Gives a file that `has` another the owner and group of the one whose place it takes, or the group
/// alone where nothing else is permitted; whether it has both then.
pub(super) fn keep_owner(file: &File, has: (u32, u32), (user, group): (u32, u32)) -> bool {
    if has == (user, group) {
        return true;
    }
    let of = (Uid::from_raw(user), Gid::from_raw(group));
    let kept = fchown(file, Some(of.0), Some(of.1)).is_ok();
    if !kept && has.1 != group {
        let _ = fchown(file, None, Some(of.1));
    }
    kept
}

/// Gives a file the access control lists of the one at `replaced`, unless it is to have others. Before
/// the mode, which then changes their mask as it would have changed the old one's.
pub(super) fn keep_acls(
    file: &File,
    replaced: &std::path::Path,
    beyond: &Beyond,
    not_kept: &mut NotKept,
) {
    let kinds = MetadataFlags::ACLS;
    let asked = beyond.xattrs.as_ref();
    if asked.is_some_and(|xattrs| xattrs.kinds.contains(kinds)) {
        return;
    }
    let list = xattrs_of(replaced, kinds).unwrap_or_default();
    if !list.is_empty() {
        let of = XattrsOf::Open(file.as_fd());
        set_xattrs(of, &Xattrs { kinds, list }, kinds, not_kept);
    }
}

/// Access control lists. Behind the mode, which would change their masks.
pub(super) fn behind_mode(file: &File, beyond: &Beyond, not_kept: &mut NotKept) {
    if let Some(xattrs) = &beyond.xattrs {
        let of = XattrsOf::Open(file.as_fd());
        set_xattrs(of, xattrs, MetadataFlags::ACLS, not_kept);
    }
}

/// Makes what `xattrs` has of `kinds` what there is of those.
pub(crate) fn set_xattrs(
    of: XattrsOf<'_>,
    xattrs: &Xattrs,
    kinds: MetadataFlags,
    not_kept: &mut NotKept,
) {
    if !xattrs.kinds.contains(kinds) {
        return;
    }
    let list = xattrs::of_kinds(&xattrs.list, kinds);
    let among = |name: &[u8]| xattrs::is_asked(name, is_root(), kinds);
    if let Err(e) = replace_xattrs(of, &list, among) {
        let part = match kinds {
            MetadataFlags::ACLS => Parts::ACLS,
            _ => Parts::XATTRS,
        };
        not_kept.push((part, os_words(&e)));
    }
}

/// The extended attributes of what is at `path`, symlinks followed, that belong to `kinds`.
pub(crate) fn xattrs_of(
    path: &std::path::Path,
    kinds: MetadataFlags,
) -> std::io::Result<Vec<xattrs::Xattr>> {
    let asked = |name: &[u8]| xattrs::is_asked(name, is_root(), kinds);
    read_xattrs(XattrsOf::Path(path), asked)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
