//! Flags and constants of the requests about file metadata.

use serde::{Deserialize, Serialize};
use wire::{Field, FieldReader, WireError};

/// Length in a reply to read-sparse@longhaul that marks a hole, whose length follows. No compressed
/// block has length 0.
pub const HOLE: u32 = 0;

/// Start of the status text by which put-file@longhaul reports that only the owner could not be
/// set.
pub const OWNER_NOT_SET: &str = "the owner could not be set: ";

/// Maximum number of paths in one fsync-set@longhaul.
pub const MOST_SYNCED: usize = 1024;

macro_rules! bits {
    ($($(#[$meta:meta])* $name:ident { $($(#[$m:meta])* $bit:ident = $value:literal),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$m])* pub const $bit: Self = Self($value);)*
            const ALL: u32 = 0 $(| $value)*;

            /// Returns true if all flags of `other` are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns true if a flag is set that this version does not know.
            pub fn has_unknown(self) -> bool {
                self.0 & !Self::ALL != 0
            }

            /// Returns true if no flag is set.
            pub fn is_empty(self) -> bool {
                self.0 == 0
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

        impl<'a> Field<'a> for $name {
            fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
                r.u32().map(Self)
            }
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }
        }
    )*};
}

bits! {
    /// Fields that attributes@longhaul adds to those of the draft.
    Told {
        /// Nanoseconds of the times.
        NANOSECONDS = 1,
        /// Identity of files with several hard links.
        LINKS = 2,
        /// Identity of directories, which tells their file systems apart.
        DEVICES = 4,
    }
    /// Subjects of get-xattrs@longhaul and set-metadata@longhaul.
    MetadataFlags {
        /// Extended attributes. Setting them removes those that are not in the list.
        XATTRS = 1,
        /// Access control lists. Setting them removes those that are not in the list.
        ACLS = 2,
        /// The file is named by a handle instead of a path; for set-metadata only.
        HANDLE = 4,
        /// A symlink at the path is followed.
        FOLLOW = 8,
    }
    /// Parts of a file's metadata that could not be set.
    Parts {
        /// File size.
        SIZE = 1,
        /// Owner and group.
        OWNER = 2,
        /// Extended attributes.
        XATTRS = 4,
        /// Permission bits.
        MODE = 8,
        /// Access control lists.
        ACLS = 16,
        /// Times.
        TIMES = 32,
    }
}
