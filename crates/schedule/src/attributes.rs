use serde::{Deserialize, Serialize};
use sftp::{EntryType, ExpectedEntry, InodeId, LinkLimit, ListedEntry};

/// Write permission of the owner (S_IWUSR).
pub(crate) const OWNER_WRITE: u32 = 0o200;

/// Attributes of a local or remote file; absent ones are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Size in bytes.
    pub size: Option<u64>,
    /// File type and permission bits (`st_mode`).
    pub mode: Option<u32>,
    /// Numeric owner and group.
    pub owner: Option<(u32, u32)>,
    /// Access and modification time in seconds since 1970 (SFTP v3 has no finer unit).
    pub times: Option<(u32, u32)>,
    /// Nanosecond parts of the two times, if both ends support them.
    pub nanoseconds: Option<(u32, u32)>,
    /// Identity of a regular file that has several hard links, or of a remote directory if the
    /// session asks for it ([`Told::DEVICES`](sftp::Told::DEVICES)).
    pub link: Option<InodeId>,
}

/// The type of a directory entry, from its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or FIFO, or an unknown type.
    Other,
}

impl Attributes {
    /// Returns the file type; [`EntryKind::Other`] without a mode.
    pub fn kind(&self) -> EntryKind {
        match self.mode.map(|m| m & 0o170_000) {
            Some(0o100_000) => EntryKind::File,
            Some(0o040_000) => EntryKind::Directory,
            Some(0o120_000) => EntryKind::Symlink,
            _ => EntryKind::Other,
        }
    }

    /// Returns the entry whose attributes may be set to these: one of their type, if they have a
    /// mode with one, with this number of hard links, and listed so.
    pub fn expected(&self, links: LinkLimit, listed: ListedEntry) -> ExpectedEntry {
        let kind = match self.kind() {
            EntryKind::File => Some(EntryType::File),
            EntryKind::Directory => Some(EntryType::Directory),
            EntryKind::Symlink => Some(EntryType::Symlink),
            EntryKind::Other => None,
        };
        ExpectedEntry {
            kind,
            links,
            listed,
        }
    }
}
