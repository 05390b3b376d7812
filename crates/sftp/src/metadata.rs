//! What the requests about metadata of files say in bits.

use serde::{Deserialize, Serialize};
use wire::{Field, Reader, WireError};

/// The length in an answer of read-sparse@longhaul behind which a hole's follows; no block that was
/// packed has it.
pub const HOLE: u32 = 0;

/// How the text begins with which put-file@longhaul says that everything but the owner is as it
/// was asked to be.
pub const OWNER_NOT_SET: &str = "the owner could not be set: ";

/// Paths that one fsync-set@longhaul has at most.
pub const MOST_SYNCED: usize = 1024;

macro_rules! bits {
    ($($(#[$meta:meta])* $name:ident { $($(#[$m:meta])* $bit:ident = $value:literal),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$m])* pub const $bit: Self = Self($value);)*
            const ALL: u32 = 0 $(| $value)*;

            /// Whether all of `other` is set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether one is set that this version does not know.
            pub fn has_unknown(self) -> bool {
                self.0 & !Self::ALL != 0
            }

            /// Whether none is set.
            pub fn is_empty(self) -> bool {
                self.0 == 0
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

        impl<'a> Field<'a> for $name {
            fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
                r.u32().map(Self)
            }
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }
        }
    )*};
}

bits! {
    /// What attributes@longhaul has ATTRS tell beside the draft's fields.
    Told {
        /// Nanoseconds of times.
        NANOSECONDS = 1,
        /// Which file it is, of files with several names.
        LINKS = 2,
    }
    /// What get-xattrs@longhaul and set-metadata@longhaul are about.
    MetadataFlags {
        /// Extended attributes. When they are set, those that are not in the list are removed.
        XATTRS = 1,
        /// Access control lists, likewise.
        ACLS = 2,
        /// A handle and no path; of set-metadata alone.
        HANDLE = 4,
        /// A symlink at the path is followed.
        FOLLOW = 8,
    }
    /// Parts of a file's metadata, as far as they could not be kept.
    Parts {
        /// Its length.
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
