use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use wire::{Field, FieldReader, WireError};

use crate::{Attrs, Parts, ServerLimits, StatusCode, TreeRecord};

/// Result of a request, decoded by the kind of reply that the request expects, for the client's
/// owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without a result, or a failure.
    Status(Status),
    /// Reply to OPEN and OPENDIR.
    Handle(Handle),
    /// Reply to READ, passed on in pieces as they arrive; the piece with `last` ends the request.
    Data {
        /// Offset of these bytes in the reply.
        at: u32,
        /// File data, a slice of the receive segment.
        bytes: Bytes,
        /// True for the last piece.
        last: bool,
    },
    /// Reply to READDIR, REALPATH, READLINK, expand-path and home-directory.
    Names(Vec<NameRecord>),
    /// Reply to STAT, LSTAT and FSTAT.
    Attrs(Attrs),
    /// Reply to statvfs and fstatvfs.
    Statvfs(Statvfs),
    /// Reply to limits; [`crate::ServerInfo`] keeps it too.
    Limits(ServerLimits),
    /// Reply to users-groups-by-id: names in the order of the IDs, empty if unknown.
    UsersGroups {
        /// User names.
        users: Vec<Vec<u8>>,
        /// Group names.
        groups: Vec<Vec<u8>>,
    },
    /// Reply to get-file.
    File(GetFileReply),
    /// Reply to list-tree.
    Tree(Vec<TreeRecord>),
    /// Compressed reply to READ; it decompresses to at most the requested length.
    Packed {
        /// Decompressed length in bytes that the server declares.
        len: u32,
        /// Compressed data.
        bytes: Bytes,
    },
    /// Reply to read-sparse: a hole, which may be longer than the requested range.
    Hole {
        /// Length of the hole in bytes, unchecked.
        len: u64,
    },
    /// Reply to get-xattrs: names and values, bounded; the names are unchecked.
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    /// Reply to set-metadata.
    Set {
        /// Metadata that could not be set.
        not_kept: Parts,
        /// Reason for the first failure: the server's text, escaped.
        why: String,
    },
    /// Reply to ids-by-name: IDs in the order of the names, `u32::MAX` if unknown.
    Ids {
        /// User IDs.
        users: Vec<u32>,
        /// Group IDs.
        groups: Vec<u32>,
    },
    /// Reply to hash@longhaul: concatenated checksums, unchecked.
    Sums(Bytes),
}

/// Reply to get-file@longhaul, which sends attributes and content of a small file in one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetFileReply {
    /// Attributes of the file.
    pub attrs: Attrs,
    /// Content of the file, a slice of the receive segment; `None` if it is not a regular file or
    /// is longer than requested.
    pub data: Option<Bytes>,
    /// Declared decompressed length in bytes, at most the requested one; `None` if the data is not
    /// compressed.
    pub packed: Option<u32>,
}

/// Result of a request without other results, or the reason of its failure (SFTP draft 02, section
/// 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Status code (SSH_FX_*).
    pub code: StatusCode,
    /// The server's text, at most 256 bytes, control characters escaped.
    pub message: String,
}

impl Status {
    /// Returns true for SSH_FX_OK.
    pub fn is_ok(&self) -> bool {
        self.code == StatusCode::OK
    }
}

/// Texts that the draft has for the codes, and that say no more than the code.
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

impl Status {
    /// Returns true if the server's text says more than the code.
    pub fn is_explained(&self) -> bool {
        let told = self.message.trim().to_ascii_lowercase();
        !told.is_empty() && !DRAFT.contains(&told.as_str()) && told != self.code.words()
    }

    /// Returns the code in words, and the server's text if it says more, without advice.
    pub fn words(&self) -> Cow<'_, str> {
        let (words, told) = (self.code.words(), self.message.trim());
        match self.code {
            _ if !self.is_explained() => words.into(),
            // SSH_FX_FAILURE carries no information, so the text is all there is.
            StatusCode::FAILURE => told.into(),
            _ => format!("{words} ({told})").into(),
        }
    }
}

impl fmt::Display for Status {
    /// Writes [`Status::words`], and where to look for a reason if there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words())?;
        match self.code {
            StatusCode::FAILURE if !self.is_explained() => f.write_str(": see its log"),
            _ => Ok(()),
        }
    }
}

/// Handle of an open file or directory, at most 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle(pub(crate) Bytes);

impl Handle {
    /// Maximum length in bytes that the draft allows (section 6.2).
    pub const MAX: usize = 256;

    /// Returns the handle that OpenSSH's sftp-server assigns for entry `index` of its table.
    pub fn openssh(index: u32) -> Self {
        Self(Bytes::copy_from_slice(&index.to_be_bytes()))
    }

    /// Returns the handle's bytes as on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An entry of a directory, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRecord {
    /// File name or path as the server sent it, unchecked.
    pub filename: Vec<u8>,
    /// Attributes from the server.
    pub attrs: Attrs,
}

/// Reply to statvfs@openssh.com (OpenSSH's PROTOCOL section 4.4); block counts are in units of
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
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
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

impl<'a> Field<'a> for ServerLimits {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
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

/// Decodes a sequence of strings, as users-groups-by-id returns it.
pub(crate) fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let mut r = FieldReader::new(bytes);
    let mut found = Vec::new();
    while r.left() > 0 {
        found.push(r.string()?.to_vec());
    }
    Ok(found)
}

/// Decodes a sequence of uint32s, as ids-by-name returns it.
pub(crate) fn uint32_list(bytes: &[u8]) -> Result<Vec<u32>, WireError> {
    let mut r = FieldReader::new(bytes);
    let mut found = Vec::new();
    while r.left() > 0 {
        found.push(r.u32()?);
    }
    Ok(found)
}

/// Escapes bytes from a peer for one line ([`wire::escape::name`]), at most `max` of them.
pub fn printable(bytes: &[u8], max: usize) -> String {
    wire::escape::name(bytes).up_to(max).to_string()
}
