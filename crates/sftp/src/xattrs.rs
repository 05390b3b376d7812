//! Extended attributes and access control lists, as get-xattrs@longhaul answers them and
//! set-metadata@longhaul takes them.

use wire::{Field, Reader, WireError};

use crate::MetadataFlags;

/// A name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Attributes of one file, and bytes of all of them with their names: so many fit into a message.
pub const MOST: usize = 512;
/// See [`MOST`].
pub const MOST_BYTES: usize = 192 * 1024;
/// XATTR_NAME_MAX and XATTR_SIZE_MAX of Linux.
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 64 * 1024;

/// The names of access control lists on Linux (posix_acl_xattr.h).
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// What of `flags` the name of an attribute belongs to, if anybody may copy it: all that its owner
/// sets, and, as rsync's -X does it, of root's the file capabilities and what is trusted. What
/// another part of the system keeps there (security.selinux, other names in `system`) is not
/// copied.
pub fn kind(name: &[u8], root: bool) -> Option<MetadataFlags> {
    let own = name.starts_with(b"user.");
    let roots = name == b"security.capability" || name.starts_with(b"trusted.");
    let named = name.len() <= LONGEST_NAME && !name.contains(&0);
    match named {
        true if ACLS.contains(&name) => Some(MetadataFlags::ACLS),
        true if own || root && roots => Some(MetadataFlags::XATTRS),
        _ => None,
    }
}

/// Whether `name` is one that `flags` ask for.
pub fn is_asked(name: &[u8], root: bool, flags: MetadataFlags) -> bool {
    kind(name, root).is_some_and(|kind| flags.contains(kind))
}

/// Those of `list` that belong to `kinds`.
pub fn of_kinds(list: &[Xattr], kinds: MetadataFlags) -> Vec<Xattr> {
    let is = |(name, _): &&Xattr| is_asked(name, true, kinds);
    list.iter().filter(is).cloned().collect()
}

/// Appends the list: how many, then name and value of each.
pub fn write(list: &[Xattr], out: &mut Vec<u8>) {
    u32::try_from(list.len()).unwrap_or(u32::MAX).write(out);
    for (name, value) in list {
        name.as_slice().write(out);
        value.as_slice().write(out);
    }
}

/// Whether the list may be sent.
pub fn fits(list: &[Xattr]) -> bool {
    let bytes = |(name, value): &Xattr| name.len() + value.len();
    list.len() <= MOST && list.iter().map(bytes).sum::<usize>() <= MOST_BYTES
}

/// Reads what [`write`] wrote; more than may be, or longer, is an error. Names are not looked at.
///
/// # Errors
/// What does not make sense.
pub fn read(bytes: &[u8]) -> Result<Vec<Xattr>, WireError> {
    let mut r = Reader::new(bytes);
    let count = r.u32()? as usize;
    let mut list: Vec<Xattr> = Vec::new();
    for _ in 0..count.min(MOST) {
        let (name, value) = (r.string()?, r.string()?);
        let left = r.left();
        if name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
            return Err(WireError::Trailing { left });
        }
        list.push((name.to_vec(), value.to_vec()));
    }
    // One more than may be is behind the last.
    r.finish()?;
    match count > MOST {
        true => Err(WireError::Truncated {
            needed: count,
            left: MOST,
        }),
        false => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_false_ones_are_errors() {
        let list = vec![
            (b"user.a".to_vec(), b"x".to_vec()),
            (b"user.b".to_vec(), Vec::new()),
        ];
        let mut bytes = Vec::new();
        write(&list, &mut bytes);
        assert_eq!(read(&bytes), Ok(list));
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
        let many = vec![(b"user.a".to_vec(), Vec::new()); MOST + 1];
        let mut bytes = Vec::new();
        write(&many, &mut bytes);
        assert!(read(&bytes).is_err() && !fits(&many));
        let mut bytes = Vec::new();
        write(
            &[(b"user.a".to_vec(), vec![0; LONGEST_VALUE + 1])],
            &mut bytes,
        );
        assert!(read(&bytes).is_err());
        assert!(read(&[0xff; 4]).is_err());
    }

    #[test]
    fn only_what_may_be_copied_is() {
        let of = |name: &str, root| kind(name.as_bytes(), root);
        for root in [false, true] {
            assert_eq!(of("user.x", root), Some(MetadataFlags::XATTRS));
            assert_eq!(
                of("system.posix_acl_access", root),
                Some(MetadataFlags::ACLS)
            );
            for name in [
                "security.selinux",
                "system.nfs4_acl",
                "",
                "user",
                "x.user.y",
            ] {
                assert_eq!(of(name, root), None, "{name}");
            }
            assert_eq!(of("user.\0x", root), None);
        }
        for name in ["trusted.x", "security.capability"] {
            assert_eq!(of(name, false), None);
            assert_eq!(of(name, true), Some(MetadataFlags::XATTRS));
        }
    }
}
