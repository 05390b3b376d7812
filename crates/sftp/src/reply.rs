use std::fmt;

use bytes::Bytes;
use wire::{Field, Reader, WireError};

use crate::{Attrs, Limits, Parts, StatusCode, TreeStep};

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without a result, or why not.
    Status(Status),
    /// OPEN and OPENDIR.
    Handle(Handle),
    /// READ. Comes in pieces as they arrive; the one with `last` ends the request.
    Data {
        /// Where in the reply these bytes stand.
        at: u32,
        /// File data, a slice of the receive segment.
        bytes: Bytes,
        /// No more follow.
        last: bool,
    },
    /// READDIR, REALPATH, READLINK, expand-path and home-directory.
    Names(Vec<Name>),
    /// STAT, LSTAT and FSTAT.
    Attrs(Attrs),
    /// statvfs and fstatvfs.
    Statvfs(Statvfs),
    /// limits; also kept in [`crate::ServerInfo`].
    Limits(Limits),
    /// users-groups-by-id: names in the order of the ids, empty where unknown.
    UsersGroups {
        /// Of the users.
        users: Vec<Vec<u8>>,
        /// Of the groups.
        groups: Vec<Vec<u8>>,
    },
    /// get-file.
    File(WholeFile),
    /// list-tree.
    Tree(Vec<TreeStep>),
    /// READ, packed; what it unpacks to is no longer than what was asked for.
    Packed {
        /// Bytes that it claims to be.
        len: u32,
        /// As they came.
        bytes: Bytes,
    },
    /// read-sparse: there is nothing but zeros for so many bytes, which may be more than were asked
    /// for.
    Hole {
        /// Bytes, unchecked.
        len: u64,
    },
    /// get-xattrs: names and values, bounded; the names are unchecked.
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    /// set-metadata.
    Set {
        /// What could not be set.
        not_kept: Parts,
        /// Why, of the first: the server's text, escaped.
        why: String,
    },
    /// ids-by-name: in the order of the names, `u32::MAX` where there is none.
    Ids {
        /// Of the users.
        users: Vec<u32>,
        /// Of the groups.
        groups: Vec<u32>,
    },
    /// hash@longhaul: the sums one behind the other, unchecked.
    Sums(Bytes),
}

/// What get-file@longhaul answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeFile {
    /// Of the open file.
    pub attrs: Attrs,
    /// All that it held, a slice of the receive segment; `None` where it is not a regular file or
    /// longer than was asked for.
    pub data: Option<Bytes>,
    /// Bytes that the data claim to become when they are unpacked, where they are packed: no more
    /// than were asked for.
    pub packed: Option<u32>,
}

/// A STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// SSH_FX_*.
    pub code: StatusCode,
    /// The server's text, at most 256 bytes of it, control characters escaped.
    pub message: String,
}

impl Status {
    /// Whether it is SSH_FX_OK.
    pub fn is_ok(&self) -> bool {
        self.code == StatusCode::OK
    }
}

impl fmt::Display for Status {
    /// The code in words, and the server's own text where it says more than the draft's names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DRAFT: [&str; 9] = [
            "success",
            "end of file",
            "no such file",
            "permission denied",
            "failure",
            "bad message",
            "no connection",
            "connection lost",
            "operation unsupported",
        ];
        let told = self.message.trim();
        let lower = told.to_ascii_lowercase();
        let words = self.code.words();
        let silent = told.is_empty() || DRAFT.contains(&lower.as_str()) || lower == words;
        match self.code {
            _ if silent => f.write_str(words),
            // That code says nothing, so the text is all there is.
            StatusCode::FAILURE => f.write_str(told),
            _ => write!(f, "{words} ({told})"),
        }
    }
}

/// Names an open file or directory, at most 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle(pub(crate) Bytes);

impl Handle {
    /// The longest the draft allows (section 6.2).
    pub const MAX: usize = 256;

    /// The handle that OpenSSH's sftp-server gives for entry `index` of its table.
    pub fn openssh(index: u32) -> Self {
        Self(Bytes::copy_from_slice(&index.to_be_bytes()))
    }

    /// As on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An entry of a directory, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Bytes as the server sent them: unchecked.
    pub filename: Vec<u8>,
    /// What the server said of it.
    pub attrs: Attrs,
}

/// The answer of statvfs@openssh.com (OpenSSH's PROTOCOL section 4.4); sizes in units of
/// `fragment` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are statvfs(3)'s")]
pub struct Statvfs {
    pub block: u64,
    pub fragment: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub files_available: u64,
    pub id: u64,
    pub flags: u64,
    pub name_max: u64,
}

impl<'a> Field<'a> for Statvfs {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            block: r.u64()?,
            fragment: r.u64()?,
            blocks: r.u64()?,
            blocks_free: r.u64()?,
            blocks_available: r.u64()?,
            files: r.u64()?,
            files_free: r.u64()?,
            files_available: r.u64()?,
            id: r.u64()?,
            flags: r.u64()?,
            name_max: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        let fields = [
            self.block,
            self.fragment,
            self.blocks,
            self.blocks_free,
            self.blocks_available,
            self.files,
            self.files_free,
            self.files_available,
            self.id,
            self.flags,
            self.name_max,
        ];
        for field in fields {
            field.write(out);
        }
    }
}

impl<'a> Field<'a> for Limits {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            packet: r.u64()?,
            read: r.u64()?,
            write: r.u64()?,
            handles: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        for field in [self.packet, self.read, self.write, self.handles] {
            field.write(out);
        }
    }
}

/// A string that holds strings, as users-groups-by-id answers.
pub(crate) fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let mut r = Reader::new(bytes);
    let mut found = Vec::new();
    while r.left() > 0 {
        found.push(r.string()?.to_vec());
    }
    Ok(found)
}

/// A string that holds numbers, as ids-by-name answers.
pub(crate) fn numbers(bytes: &[u8]) -> Result<Vec<u32>, WireError> {
    let mut r = Reader::new(bytes);
    let mut found = Vec::new();
    while r.left() > 0 {
        found.push(r.u32()?);
    }
    Ok(found)
}

/// Escapes bytes from a peer for one line ([`wire::escape::name`]), at most `max` bytes of them.
pub fn printable(bytes: &[u8], max: usize) -> String {
    wire::escape::name(bytes).up_to(max).to_string()
}
