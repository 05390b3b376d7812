//! Sets a local file's metadata beyond contents, mode and times: owner, ACLs, extended attributes.

use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::fs::{OFlags, fchown};
use rustix::io::Errno;
use schedule::{ExtraMetadata, MetadataFlags, Parts, Xattrs};
use sftp::xattrs;
use sys::{XattrTarget, add_xattrs, chown_ids, read_xattrs, replace_xattrs};

use super::directories::NameInDirectory;
use super::os_words;

/// The metadata that could not be preserved, each with the reason.
pub(crate) type LostMetadata = Vec<(Parts, String)>;

/// Sets owner and extended attributes. Must precede the mode: chown(2) clears setuid and file
/// capabilities, and `user` attributes need the owner's write permission.
pub(crate) fn before_mode(file: &File, beyond: &ExtraMetadata, not_kept: &mut LostMetadata) {
    if let Some((user, group)) = beyond.owner {
        let (user, group) = chown_ids(user, group);
        let done = fchown(file, user, group);
        if done == Err(Errno::PERM) {
            // A user may still set a group of which they are a member.
            let _ = fchown(file, None, group);
        }
        if let Err(e) = done {
            not_kept.push((Parts::OWNER, os_words(&e.into())));
        }
    }
    if let Some(xattrs) = &beyond.xattrs {
        let of = XattrTarget::Open(file.as_fd());
        set_xattrs(of, xattrs, MetadataFlags::XATTRS, not_kept);
    }
}

/// Gives a file with owner and group `has` those of the file that it replaces, or only the group if
/// no more is permitted. True if both match afterwards.
pub(super) fn keep_owner(file: &File, has: (u32, u32), (user, group): (u32, u32)) -> bool {
    if has == (user, group) {
        return true;
    }
    let of = chown_ids(user, group);
    let kept = fchown(file, of.0, of.1).is_ok();
    if !kept && has.1 != group {
        let _ = fchown(file, None, of.1);
    }
    kept
}

/// Copies the access control list and the extended attributes of the replaced file to its
/// successor, as if the new contents had been written into it. Attributes that are requested from
/// the source are left out. Must precede the mode, which then changes the ACL mask as it would have
/// changed the old file's.
pub(super) fn keep_attributes(
    file: &File,
    replaced: &NameInDirectory,
    beyond: &ExtraMetadata,
    not_kept: &mut LostMetadata,
) {
    let asked = beyond.xattrs.as_ref().map(|xattrs| xattrs.kinds);
    let asked = asked.unwrap_or_default();
    let of = |name: &[u8]| match xattrs::kind(name, false) {
        Some(kind) => !asked.contains(kind),
        None => is_kept_in_place(name) && !asked.contains(MetadataFlags::XATTRS),
    };
    let there = read_at(replaced, of).unwrap_or_else(|e| {
        not_kept.push((Parts::XATTRS, os_words(&e)));
        Vec::new()
    });
    let is_acl = |(name, _): &(Vec<u8>, _)| xattrs::kind(name, false) == Some(MetadataFlags::ACLS);
    let (acls, others): (Vec<_>, Vec<_>) = there.into_iter().partition(is_acl);
    let file = XattrTarget::Open(file.as_fd());
    let kinds = MetadataFlags::ACLS;
    // A file that had no ACL must not inherit the directory's default ACL.
    let inherits = || replaced.dir.has_default_acl();
    if !asked.contains(kinds) && (!acls.is_empty() || inherits()) {
        set_xattrs(file, &Xattrs { kinds, list: acls }, kinds, not_kept);
    }
    if !others.is_empty()
        && let Err(e) = add_xattrs(file, &others)
    {
        not_kept.push((Parts::XATTRS, os_words(&e)));
    }
}

/// True for attributes that copying never sets but that a file keeps when it is written, such as
/// security labels. The kernel removes file capabilities in that case.
fn is_kept_in_place(name: &[u8]) -> bool {
    let label = name == b"security.selinux" || name.starts_with(b"security.SMACK64");
    label || name.starts_with(b"trusted.") && is_root()
}

/// Sets access control lists. Must follow the mode, which would change their masks.
pub(crate) fn behind_mode(file: &File, beyond: &ExtraMetadata, not_kept: &mut LostMetadata) {
    if let Some(xattrs) = &beyond.xattrs {
        let of = XattrTarget::Open(file.as_fd());
        set_xattrs(of, xattrs, MetadataFlags::ACLS, not_kept);
    }
}

/// Replaces the attributes of these kinds by those in `xattrs`.
pub(crate) fn set_xattrs(
    of: XattrTarget<'_>,
    xattrs: &Xattrs,
    kinds: MetadataFlags,
    not_kept: &mut LostMetadata,
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

/// Returns the extended attributes of `kinds` of the file at `path`; symlinks are followed.
pub(crate) fn xattrs_of(
    path: &std::path::Path,
    kinds: MetadataFlags,
) -> std::io::Result<Vec<xattrs::Xattr>> {
    let asked = |name: &[u8]| xattrs::is_asked(name, is_root(), kinds);
    read_xattrs(XattrTarget::Path(path), asked)
}

/// Returns the extended attributes of `kinds` of an entry of an open directory; a symlink has none.
pub(crate) fn xattrs_at(
    at: &NameInDirectory,
    kinds: MetadataFlags,
) -> std::io::Result<Vec<xattrs::Xattr>> {
    read_at(at, |name| xattrs::is_asked(name, is_root(), kinds))
}

fn read_at(
    at: &NameInDirectory,
    wanted: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<xattrs::Xattr>> {
    read_xattrs(at.xattrs(), &wanted).or_else(|_| {
        // Without /proc, attributes are read through an open descriptor.
        let open = at.open(OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
        read_xattrs(XattrTarget::Open(open.as_fd()), &wanted)
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
