use std::fmt;
use std::ops::BitOr;

use wire::{Field, Reader, WireError};

/// Names a request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u32);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// SSH_FXF_*: how OPEN opens (draft section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// For reading.
    pub const READ: Self = Self(0x01);
    /// For writing.
    pub const WRITE: Self = Self(0x02);
    /// Writes go to the end.
    pub const APPEND: Self = Self(0x04);
    /// Create it where it is missing.
    pub const CREAT: Self = Self(0x08);
    /// Cut it to nothing.
    pub const TRUNC: Self = Self(0x10);
    /// With CREAT: fail where it exists.
    pub const EXCL: Self = Self(0x20);

    /// Whether all of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// How put-file@longhaul puts a file (docs/PROTOCOL.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutFlags(pub u32);

impl PutFlags {
    /// Nothing stands there as far as the client can know: it is not looked for, and the rename
    /// replaces what is there all the same.
    pub const FRESH: Self = Self(0x01);
    /// A symlink of that name is replaced, and not followed.
    pub const REPLACE_LINK: Self = Self(0x02);
    /// The data are durable before the file gets its name.
    pub const FSYNC: Self = Self(0x04);
    const ALL: u32 = 0x07;

    /// Whether all of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a flag is set that this version does not know.
    pub fn has_unknown(self) -> bool {
        self.0 & !Self::ALL != 0
    }

    /// With `other` where `set`.
    #[must_use]
    pub fn with(self, other: Self, set: bool) -> Self {
        match set {
            true => Self(self.0 | other.0),
            false => self,
        }
    }
}

impl<'a> Field<'a> for PutFlags {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

impl BitOr for OpenFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl<'a> Field<'a> for OpenFlags {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}
