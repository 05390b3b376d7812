//! Extended attributes and access control lists in the format of get-xattrs@longhaul and
//! set-metadata@longhaul.

use wire::{Field, FieldReader, WireError};

use crate::MetadataFlags;

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Maximum number of attributes of one file in a message.
pub const MOST: usize = 512;
/// Maximum bytes of all attributes of one file, names included, in a message.
pub const MOST_BYTES: usize = 192 * 1024;
/// Limits of Linux: XATTR_NAME_MAX and XATTR_SIZE_MAX.
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 64 * 1024;

/// Names of access control lists on Linux (posix_acl_xattr.h).
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Returns the flag that the attribute `name` belongs to; `None` if it may not be copied. Permitted
/// are all attributes that a file's owner sets and, for root and as with rsync's -X, file
/// capabilities and `trusted.*`. Attributes that other parts of the system manage
/// (security.selinux, other names in `system.`) are not copied.
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

/// Returns true if the attribute `name` is among those that `flags` select.
pub fn is_asked(name: &[u8], root: bool, flags: MetadataFlags) -> bool {
    kind(name, root).is_some_and(|kind| flags.contains(kind))
}

/// Returns the attributes of `list` that belong to `kinds`.
pub fn of_kinds(list: &[Xattr], kinds: MetadataFlags) -> Vec<Xattr> {
    let is = |(name, _): &&Xattr| is_asked(name, true, kinds);
    list.iter().filter(is).cloned().collect()
}

/// Appends the list: the count, then name and value of each.
pub fn write(list: &[Xattr], out: &mut Vec<u8>) {
    u32::try_from(list.len()).unwrap_or(u32::MAX).write(out);
    for (name, value) in list {
        name.as_slice().write(out);
        value.as_slice().write(out);
    }
}

/// Returns true if the list fits into a message.
pub fn fits(list: &[Xattr]) -> bool {
    let bytes = |(name, value): &Xattr| name.len() + value.len();
    list.len() <= MOST && list.iter().map(bytes).sum::<usize>() <= MOST_BYTES
}

/// Decodes the output of [`fn@write`]; too many or too long attributes are an error. Names are not
/// checked.
///
/// # Errors
/// The bytes are malformed or exceed a limit.
pub fn read(bytes: &[u8]) -> Result<Vec<Xattr>, WireError> {
    let mut r = FieldReader::new(bytes);
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
    // An attribute above the maximum would be left over behind the last one read.
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
