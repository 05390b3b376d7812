//! The entry that a client expects at a path, or behind a handle, before the server changes it.

use serde::{Deserialize, Serialize};
use wire::{Field as _, FieldReader, WireError};

/// Start of the status text by which a server reports that it has changed nothing because it found
/// another entry than the expected one.
pub const NOT_EXPECTED: &str = "not the expected entry: ";

/// Entry that a request may change. Somebody else who may write in its directory may have put another
/// one there, for example a hard link of a file from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedEntry {
    /// Type of the entry; `None` for any.
    pub kind: Option<EntryType>,
    /// Number of its hard links. That of a directory is not checked.
    pub links: LinkLimit,
    /// The listed entry, for servers with expect-listed@longhaul.
    #[serde(default)]
    pub listed: ListedEntry,
}

/// Properties by which the server recognizes a listed entry before it changes it. `None` matches any
/// value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedEntry {
    /// Numeric owner and group.
    pub owner: Option<(u32, u32)>,
    /// Modification time in seconds since 1970, in the protocol's range.
    pub modified: Option<u32>,
    /// Device and inode.
    pub inode: Option<(u64, u64)>,
}

/// Type of an entry, numbered as in draft-ietf-secsh-filexfer-04 section 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A type that this version does not know. No entry has it.
    Unknown,
}

/// Largest number of hard links that an entry may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkLimit {
    /// Any number.
    #[default]
    AnyNumber,
    /// Up to this number, which is above 0.
    AtMost(u32),
}

impl ExpectedEntry {
    /// A directory.
    pub const DIRECTORY: Self = Self {
        kind: Some(EntryType::Directory),
        links: LinkLimit::AnyNumber,
        listed: ListedEntry::ANY,
    };
    /// A symlink.
    pub const SYMLINK: Self = Self {
        kind: Some(EntryType::Symlink),
        links: LinkLimit::AnyNumber,
        listed: ListedEntry::ANY,
    };
    /// A file.
    pub const FILE: Self = Self {
        kind: Some(EntryType::File),
        links: LinkLimit::AnyNumber,
        listed: ListedEntry::ANY,
    };
    /// A temporary file, which has no other name.
    pub const TEMPORARY: Self = Self {
        kind: Some(EntryType::File),
        links: LinkLimit::AtMost(1),
        listed: ListedEntry::ANY,
    };

    /// Returns true if any entry will do.
    pub fn is_any(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let kind: u32 = match self.kind {
            None => 0,
            Some(EntryType::File) => 1,
            Some(EntryType::Directory) => 2,
            Some(EntryType::Symlink) => 3,
            Some(EntryType::Unknown) => u32::MAX,
        };
        let links = match self.links {
            LinkLimit::AnyNumber => 0,
            LinkLimit::AtMost(links) => links,
        };
        (u64::from(kind) << 32 | u64::from(links)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = FieldReader::new(bytes);
        let kind = match r.u32()? {
            0 => None,
            1 => Some(EntryType::File),
            2 => Some(EntryType::Directory),
            3 => Some(EntryType::Symlink),
            _ => Some(EntryType::Unknown),
        };
        let links = match r.u32()? {
            0 => LinkLimit::AnyNumber,
            links => LinkLimit::AtMost(links),
        };
        r.finish()?;
        let listed = ListedEntry::ANY;
        Ok(Self {
            kind,
            links,
            listed,
        })
    }
}

/// Parts that the pair of [`ListedEntry`] tells.
const OWNER: u32 = 1;
const MODIFIED: u32 = 2;
const INODE: u32 = 4;

impl ListedEntry {
    /// Any entry.
    pub const ANY: Self = Self {
        owner: None,
        modified: None,
        inode: None,
    };

    /// Returns true if any entry will do.
    pub fn is_any(self) -> bool {
        self == Self::ANY
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let part = |bit, is_told| if is_told { bit } else { 0 };
        let parts = part(OWNER, self.owner.is_some())
            | part(MODIFIED, self.modified.is_some())
            | part(INODE, self.inode.is_some());
        let (owner, group) = self.owner.unwrap_or_default();
        let (device, inode) = self.inode.unwrap_or_default();
        let mut bytes = Vec::new();
        for word in [parts, owner, group, self.modified.unwrap_or_default()] {
            word.write(&mut bytes);
        }
        device.write(&mut bytes);
        inode.write(&mut bytes);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = FieldReader::new(bytes);
        let parts = r.u32()?;
        let told = |bit| parts & bit != 0;
        let owner = (r.u32()?, r.u32()?);
        let modified = r.u32()?;
        let inode = (r.u64()?, r.u64()?);
        r.finish()?;
        Ok(Self {
            owner: told(OWNER).then_some(owner),
            modified: told(MODIFIED).then_some(modified),
            inode: told(INODE).then_some(inode),
        })
    }
}
