use std::fmt;
use std::ops::BitOr;

use wire::{Field, FieldReader, WireError};

/// Identifies a request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u32);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Flags of OPEN, SSH_FXF_* (draft section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Opens for reading.
    pub const READ: Self = Self(0x01);
    /// Opens for writing.
    pub const WRITE: Self = Self(0x02);
    /// Appends all writes to the end.
    pub const APPEND: Self = Self(0x04);
    /// Creates the file if it does not exist.
    pub const CREAT: Self = Self(0x08);
    /// Truncates the file to zero length.
    pub const TRUNC: Self = Self(0x10);
    /// With CREAT: fails if the file exists.
    pub const EXCL: Self = Self(0x20);

    /// Returns true if all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Flags of put-file@longhaul (docs/PROTOCOL.md); the server refuses a request with a flag that it
/// does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutFlags(pub u32);

impl PutFlags {
    /// The target does not exist as far as the client knows: the server does not check, and the
    /// rename replaces an existing file.
    pub const FRESH: Self = Self(0x01);
    /// Replaces a symlink at the target instead of following it.
    pub const REPLACE_LINK: Self = Self(0x02);
    /// Makes the data durable before the file is renamed to its name.
    pub const FSYNC: Self = Self(0x04);
    const ALL: u32 = 0x07;

    /// Returns true if all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if a flag is set that this version does not know.
    pub fn has_unknown(self) -> bool {
        self.0 & !Self::ALL != 0
    }

    /// Returns the flags with `other` added if `set`.
    #[must_use]
    pub fn with(self, other: Self, set: bool) -> Self {
        match set {
            true => Self(self.0 | other.0),
            false => self,
        }
    }
}

impl<'a> Field<'a> for PutFlags {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
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
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}
