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
