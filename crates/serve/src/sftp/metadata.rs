//! Metadata beyond names and contents: extended attributes, access control lists, holes, and
//! setting them all at once.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{self, FileType};
use rustix::io::Errno;
use sftp::xattrs::{self, Xattr};
use sftp::{Attrs, MetadataFlags, Parts, Told};
use sys::{XattrTarget, read_xattrs, replace_xattrs};
use wire::RemainingBytes;

use super::client_tree::ClientTree;
use super::expected::check_expected;
use super::handles::HandleTable;
use super::reply::ReplyBuilder;
use super::request_error::{Exhausted, Invalid, RequestError, Unsupported};
use super::session::RequestResult;
use super::set::{set_found, set_open};
use crate::beneath::proc_name;
use crate::held_roots::ClientPathResolver;

/// Shortest hole that is reported: one page.
const LEAST_HOLE: u64 = 4096;

/// The file whose metadata are set.
enum MetadataTarget<'a> {
    Open(&'a File),
    Found(OwnedFd),
}

/// Checks the fields of ATTRS that attributes@longhaul selects.
pub(super) fn known_fields(told: Told) -> Result<Told, RequestError> {
    match told.has_unknown() {
        true => Err(Unsupported::Flag.into()),
        false => Ok(told),
    }
}

/// Answers get-xattrs@longhaul.
pub(super) fn get_xattrs(
    paths: &ClientPathResolver<'_>,
    path: &[u8],
    flags: MetadataFlags,
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    if flags.has_unknown() || flags.contains(MetadataFlags::HANDLE) {
        return Err(Unsupported::Flag.into());
    }
    let found = paths.find(path, flags.contains(MetadataFlags::FOLLOW))?;
    let list = match is_symlink(&found)? {
        true => Vec::new(),
        false => {
            let of = proc_name(&found);
            let asked = |name: &[u8]| xattrs::is_asked(name, is_root(), flags);
            read_xattrs(XattrTarget::Path(Path::new(&of)), asked)?
        }
    };
    if !xattrs::fits(&list) {
        return Err(Exhausted::Xattrs.into());
    }
    let mut body = Vec::new();
    xattrs::write(&list, &mut body);
    reply.extended(&RemainingBytes(&body));
    Ok(())
}

/// Carries out set-metadata@longhaul.
pub(super) fn set_metadata(
    (tree, handles): (&ClientTree<'_>, &HandleTable),
    (of, flags): (&[u8], MetadataFlags),
    attrs: &Attrs,
    list: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    if flags.has_unknown() {
        return Err(Unsupported::Flag.into());
    }
    let list = xattrs::read(list).map_err(|_| Invalid::XattrList)?;
    // The kernel decides about attributes that only root may set.
    if !list
        .iter()
        .all(|(name, _)| xattrs::is_asked(name, true, flags))
    {
        return Err(Invalid::XattrName.into());
    }
    let whose = match flags.contains(MetadataFlags::HANDLE) {
        true => {
            let file = handles.file(of)?;
            check_expected(file, attrs)?;
            MetadataTarget::Open(file)
        }
        false => {
            let follow = flags.contains(MetadataFlags::FOLLOW);
            let found = tree.paths().find(of, follow)?;
            check_expected(&found, attrs)?;
            tree.check_own(of, &found, &fs::fstat(&found)?)?;
            MetadataTarget::Found(found)
        }
    };
    let (not_kept, why) = whose.set_all(attrs, &list, flags);
    reply.extended(&(not_kept.0, why.as_bytes()));
    Ok(())
}

impl MetadataTarget<'_> {
    /// Sets metadata in an order that preserves them: chown(2) clears capabilities and setuid,
    /// `user` attributes need the owner's write permission, chmod(2) would change the mask of an
    /// access control list, and times come last. A failure does not stop the rest.
    fn set_all(&self, attrs: &Attrs, list: &[Xattr], flags: MetadataFlags) -> (Parts, String) {
        let mut not_kept = (Parts::default(), String::new());
        let mut note = |part: Parts, done: io::Result<()>| {
            if let Err(e) = done {
                if not_kept.0.is_empty() {
                    not_kept.1 = RequestError::from(e).text().into_owned();
                }
                not_kept.0 = not_kept.0.with(part, true);
            }
        };
        let Attrs {
            size,
            owner,
            permissions,
            times,
            nanoseconds,
            link: _,
            expected: _,
        } = *attrs;
        let none = Attrs::default();
        note(Parts::SIZE, self.set(&Attrs { size, ..none }));
        note(Parts::OWNER, self.set(&Attrs { owner, ..none }));
        let kinds = MetadataFlags::XATTRS;
        note(Parts::XATTRS, self.set_xattrs(list, flags, kinds));
        let mode = Attrs {
            permissions,
            ..none
        };
        note(Parts::MODE, self.set(&mode));
        let kinds = MetadataFlags::ACLS;
        note(Parts::ACLS, self.set_xattrs(list, flags, kinds));
        let times = Attrs {
            times,
            nanoseconds,
            ..none
        };
        note(Parts::TIMES, self.set(&times));
        not_kept
    }

    fn set(&self, attrs: &Attrs) -> io::Result<()> {
        match self {
            Self::Open(file) => Ok(set_open(file, attrs)?),
            Self::Found(found) => Ok(set_found(found, attrs)?),
        }
    }

    /// Makes the file's extended attributes of these kinds equal to those in `list`, if `flags`
    /// request it.
    fn set_xattrs(
        &self,
        list: &[Xattr],
        flags: MetadataFlags,
        kinds: MetadataFlags,
    ) -> io::Result<()> {
        if !flags.contains(kinds) {
            return Ok(());
        }
        let list = xattrs::of_kinds(list, kinds);
        let among = |name: &[u8]| xattrs::is_asked(name, is_root(), kinds);
        match self {
            Self::Open(file) => replace_xattrs(XattrTarget::Open(file.as_fd()), &list, among),
            // For a symlink, the path in /proc would lead to its target.
            Self::Found(found) if is_symlink(found)? => match list.is_empty() {
                true => Ok(()),
                false => Err(Errno::OPNOTSUPP.into()),
            },
            Self::Found(found) => {
                let of = proc_name(found);
                replace_xattrs(XattrTarget::Path(Path::new(&of)), &list, among)
            }
        }
    }
}

/// Bytes of the hole at `offset`, if it is long enough to report.
pub(super) fn hole_at(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let size = file.metadata()?.len();
    if offset >= size {
        return Ok(None);
    }
    let data = sys::next_data(file, offset)?.map_or(size, |at| at.min(size));
    let hole = data.saturating_sub(offset);
    // The last hole may be shorter.
    Ok((hole >= LEAST_HOLE || hole > 0 && data == size).then_some(hole))
}

fn is_symlink(found: &OwnedFd) -> rustix::io::Result<bool> {
    let mode = fs::fstat(found)?.st_mode;
    Ok(FileType::from_raw_mode(mode) == FileType::Symlink)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
