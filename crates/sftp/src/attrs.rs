use wire::{Field, Reader, WireError};

const SIZE: u32 = 0x1;
const UIDGID: u32 = 0x2;
const PERMISSIONS: u32 = 0x4;
const ACMODTIME: u32 = 0x8;
const EXTENDED: u32 = 0x8000_0000;

/// ATTRS (draft-ietf-secsh-filexfer-02 section 5). Absent fields are `None`; extended ones are
/// read and dropped, since no server here announces any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Bytes.
    pub size: Option<u64>,
    /// User and group id.
    pub owner: Option<(u32, u32)>,
    /// `st_mode`, the type bits included where the sender gives them.
    pub permissions: Option<u32>,
    /// Access and modification time, seconds since 1970.
    pub times: Option<(u32, u32)>,
}

impl Attrs {
    /// Permission bits and nothing else.
    pub fn with_permissions(permissions: u32) -> Self {
        Self {
            permissions: Some(permissions),
            ..Self::default()
        }
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the mode says directory.
    pub fn is_dir(&self) -> bool {
        self.permissions.is_some_and(|p| p & 0o170_000 == 0o040_000)
    }
}

impl<'a> Field<'a> for Attrs {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let flags = r.u32()?;
        let mut attrs = Self::default();
        if flags & SIZE != 0 {
            attrs.size = Some(r.u64()?);
        }
        if flags & UIDGID != 0 {
            attrs.owner = Some((r.u32()?, r.u32()?));
        }
        if flags & PERMISSIONS != 0 {
            attrs.permissions = Some(r.u32()?);
        }
        if flags & ACMODTIME != 0 {
            attrs.times = Some((r.u32()?, r.u32()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..r.u32()? {
                r.string()?;
                r.string()?;
            }
        }
        Ok(attrs)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flag = |present: bool, bit: u32| if present { bit } else { 0 };
        let flags = flag(self.size.is_some(), SIZE)
            | flag(self.owner.is_some(), UIDGID)
            | flag(self.permissions.is_some(), PERMISSIONS)
            | flag(self.times.is_some(), ACMODTIME);
        flags.write(out);
        if let Some(size) = self.size {
            size.write(out);
        }
        for (a, b) in self.owner.iter() {
            a.write(out);
            b.write(out);
        }
        if let Some(permissions) = self.permissions {
            permissions.write(out);
        }
        for (a, b) in self.times.iter() {
            a.write(out);
            b.write(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_pairs_are_skipped_and_a_false_count_is_an_error() {
        let mut bytes = Vec::new();
        (EXTENDED | PERMISSIONS).write(&mut bytes);
        0o644u32.write(&mut bytes);
        1u32.write(&mut bytes);
        b"x@y".as_slice().write(&mut bytes);
        b"".as_slice().write(&mut bytes);
        let mut r = Reader::new(&bytes);
        assert_eq!(Attrs::read(&mut r), Ok(Attrs::with_permissions(0o644)));
        assert_eq!(r.left(), 0);
        bytes[11] = 0xff;
        assert!(Attrs::read(&mut Reader::new(&bytes)).is_err());
    }
}
