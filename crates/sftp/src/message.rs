//! Table of messages: number, name and layout of each, shared by client and server.

use wire::{Field, FieldReader, RemainingBytes, WireError};

use crate::{
    Attrs, MetadataFlags, OpenFlags, PutFlags, RequestId, StatusCode, StatusText, Told, TreeFlags,
};

wire::message! {
    /// First message of the client (draft section 4); it has no request ID.
    pub struct Init<'a> = 1 {
        /// The protocol version, 3.
        pub version: u32,
        /// Extension pairs; empty in practice.
        pub extensions: RemainingBytes<'a>,
    }
}

wire::message! {
    /// First message of the server (draft section 4).
    pub struct Version<'a> = 2 {
        /// The protocol version, 3.
        pub version: u32,
        /// Pairs of strings: extension name and data.
        pub extensions: RemainingBytes<'a>,
    }
}

/// Entry of a NAME reply, borrowed from the message (SFTP draft 02, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry<'a> {
    /// File name as the server sent it, unchecked.
    pub filename: &'a [u8],
    /// A line in the style of `ls -l`, for people and not for parsing.
    pub longname: &'a [u8],
    /// Attributes of the entry.
    pub attrs: Attrs,
}

/// All entries of a NAME reply: names of a READDIR, or the one path of REALPATH and READLINK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names<'a>(pub Vec<NameEntry<'a>>);

impl<'a> Field<'a> for Names<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        let count = r.u32()? as usize;
        // An entry takes at least two string lengths and the attribute flags.
        let mut names = Vec::with_capacity(count.min(r.left() / 12));
        for _ in 0..count {
            names.push(NameEntry {
                filename: r.string()?,
                longname: r.string()?,
                attrs: Attrs::read(r)?,
            });
        }
        Ok(Self(names))
    }
    fn write(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).write(out);
        for name in &self.0 {
            name.filename.write(out);
            name.longname.write(out);
            name.attrs.write(out);
        }
    }
}

macro_rules! fields {
    ($r:ident, $($field:ident),*) => { $(let $field = Field::read(&mut $r)?;)* };
}

macro_rules! requests {
    (
        plain { $($(#[$pm:meta])* $plain:ident = $number:literal $pname:literal -> $preply:ident
            { $($pf:ident : $pt:ty),* $(,)? })* }
        extended { $($(#[$em:meta])* $ext:ident = $ename:literal -> $ereply:ident
            { $($ef:ident : $et:ty),* $(,)? })* }
    ) => {
        /// Requests of a client. Paths, handles and names are bytes as on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the fields are the draft's, in its order")]
        pub enum Request<'a> {
            $($(#[$pm])* $plain { $($pf: $pt),* },)*
            $($(#[$em])* $ext { $($ef: $et),* },)*
            /// An extended request that is not in the table.
            OtherExtension { name: &'a [u8], body: RemainingBytes<'a> },
            /// A message number that is not in the table.
            Other { number: u8, body: RemainingBytes<'a> },
        }

        impl<'a> Request<'a> {
            /// Returns the name of the request in the draft, or of the extension.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$plain { .. } => $pname,)*
                    $(Self::$ext { .. } => $ename,)*
                    Self::OtherExtension { .. } => "an unknown extension",
                    Self::Other { .. } => "an unknown request",
                }
            }

            /// Returns the kind of reply to a successful request; a failure is answered by STATUS.
            pub(crate) fn expects(&self) -> ReplyKind {
                match self {
                    $(Self::$plain { .. } => ReplyKind::$preply,)*
                    $(Self::$ext { .. } => ReplyKind::$ereply,)*
                    Self::OtherExtension { .. } | Self::Other { .. } => ReplyKind::Status,
                }
            }

            /// Appends the message: length, number, request ID and fields.
            pub fn encode(&self, id: RequestId, out: &mut Vec<u8>) {
                frame(out, |out| match self {
                    $(Self::$plain { $($pf),* } => {
                        out.push($number);
                        id.0.write(out);
                        $($pf.write(out);)*
                    })*
                    $(Self::$ext { $($ef),* } => {
                        out.push(EXTENDED);
                        id.0.write(out);
                        $ename.as_bytes().write(out);
                        $($ef.write(out);)*
                    })*
                    Self::OtherExtension { name, body } => {
                        out.push(EXTENDED);
                        id.0.write(out);
                        name.write(out);
                        body.write(out);
                    }
                    Self::Other { number, body } => {
                        out.push(*number);
                        id.0.write(out);
                        body.write(out);
                    }
                });
            }

            /// Decodes a message without its length. Trailing bytes are an error except after
            /// WRITE: Go's pkg/sftp 1.13.5 (rclone 1.60) sends its whole buffer after a correct
            /// data length, and sftp-server.c ignores what follows the data.
            pub fn decode(bytes: &'a [u8]) -> Result<(RequestId, Self), WireError> {
                let mut r = FieldReader::new(bytes);
                let number = r.u8()?;
                let id = RequestId(r.u32()?);
                let request = match number {
                    $($number => {
                        fields!(r, $($pf),*);
                        Self::$plain { $($pf),* }
                    })*
                    EXTENDED => {
                        let name = r.string()?;
                        match name {
                            $(n if n == $ename.as_bytes() => {
                                fields!(r, $($ef),*);
                                Self::$ext { $($ef),* }
                            })*
                            _ => Self::OtherExtension { name, body: RemainingBytes(r.rest()) },
                        }
                    }
                    _ => Self::Other { number, body: RemainingBytes(r.rest()) },
                };
                if !matches!(request, Self::Write { .. }) {
                    r.finish()?;
                }
                Ok((id, request))
            }
        }
    };
}

const EXTENDED: u8 = 200;

requests! {
    plain {
        /// Opens or creates a file.
        Open = 3 "OPEN" -> Handle { path: &'a [u8], flags: OpenFlags, attrs: Attrs }
        /// Closes a file or directory.
        Close = 4 "CLOSE" -> Status { handle: &'a [u8] }
        /// Reads a range; the DATA in reply may be shorter.
        Read = 5 "READ" -> Data { handle: &'a [u8], offset: u64, len: u32 }
        /// Writes a range.
        Write = 6 "WRITE" -> Status { handle: &'a [u8], offset: u64, data: &'a [u8] }
        /// Returns attributes without following a symlink.
        Lstat = 7 "LSTAT" -> Attrs { path: &'a [u8] }
        /// Returns attributes of an open file.
        Fstat = 8 "FSTAT" -> Attrs { handle: &'a [u8] }
        /// Sets attributes.
        Setstat = 9 "SETSTAT" -> Status { path: &'a [u8], attrs: Attrs }
        /// Sets attributes of an open file.
        Fsetstat = 10 "FSETSTAT" -> Status { handle: &'a [u8], attrs: Attrs }
        /// Opens a directory for listing.
        Opendir = 11 "OPENDIR" -> Handle { path: &'a [u8] }
        /// Lists the next entries of a directory.
        Readdir = 12 "READDIR" -> Names { handle: &'a [u8] }
        /// Removes a file.
        Remove = 13 "REMOVE" -> Status { path: &'a [u8] }
        /// Makes a directory.
        Mkdir = 14 "MKDIR" -> Status { path: &'a [u8], attrs: Attrs }
        /// Removes an empty directory.
        Rmdir = 15 "RMDIR" -> Status { path: &'a [u8] }
        /// Returns the canonical path.
        Realpath = 16 "REALPATH" -> Names { path: &'a [u8] }
        /// Returns attributes, following symlinks.
        Stat = 17 "STAT" -> Attrs { path: &'a [u8] }
        /// Renames a file; fails if the new name exists.
        Rename = 18 "RENAME" -> Status { from: &'a [u8], to: &'a [u8] }
        /// Returns the target of a symlink.
        Readlink = 19 "READLINK" -> Names { path: &'a [u8] }
        /// Creates a symlink. The draft has linkpath before targetpath, OpenSSH the reverse (its
        /// PROTOCOL section 4.1); see [`crate::SftpClient::symlink`].
        Symlink = 20 "SYMLINK" -> Status { first: &'a [u8], second: &'a [u8] }
    }
    extended {
        /// Renames as rename(2) does, replacing an existing file.
        PosixRename = "posix-rename@openssh.com" -> Status { from: &'a [u8], to: &'a [u8] }
        /// Returns the space on a file system.
        Statvfs = "statvfs@openssh.com" -> Statvfs { path: &'a [u8] }
        /// Returns the space on the file system of an open file.
        Fstatvfs = "fstatvfs@openssh.com" -> Statvfs { handle: &'a [u8] }
        /// Creates a hard link, as link(2).
        Hardlink = "hardlink@openssh.com" -> Status { from: &'a [u8], to: &'a [u8] }
        /// Flushes an open file to disk, as fsync(2).
        Fsync = "fsync@openssh.com" -> Status { handle: &'a [u8] }
        /// Sets attributes without following a symlink.
        Lsetstat = "lsetstat@openssh.com" -> Status { path: &'a [u8], attrs: Attrs }
        /// Returns the server's limits.
        Limits = "limits@openssh.com" -> Limits {}
        /// Returns the canonical path, with `~` and `~user` expanded.
        ExpandPath = "expand-path@openssh.com" -> Names { path: &'a [u8] }
        /// Copies between open files on the server.
        CopyData = "copy-data" -> Status {
            from: &'a [u8], from_offset: u64, len: u64, to: &'a [u8], to_offset: u64
        }
        /// Returns a user's home directory.
        HomeDirectory = "home-directory" -> Names { user: &'a [u8] }
        /// Returns the names of user and group IDs; each argument is a string of uint32s.
        UsersGroupsById = "users-groups-by-id@openssh.com" -> UsersGroups {
            users: &'a [u8], groups: &'a [u8]
        }
        /// Sends a whole file in one request: the server creates a temporary with `mode`, writes
        /// the data, sets `attrs` and renames it. `tag` determines the temporary's name
        /// ([`crate::tagged_name`]).
        PutFile = "put-file@longhaul" -> Status {
            path: &'a [u8], flags: PutFlags, tag: u64, mode: u32, attrs: Attrs, data: &'a [u8]
        }
        /// Returns a whole file of at most `len` bytes, or only the attributes of a longer or other
        /// one.
        GetFile = "get-file@longhaul" -> File { path: &'a [u8], len: u32 }
        /// PutFileRequest with compressed `data` that decompresses to `len` bytes
        /// ([`crate::packed`]).
        PutFileZstd = "put-file-zstd@longhaul" -> Status {
            path: &'a [u8], flags: PutFlags, tag: u64, mode: u32, attrs: Attrs, len: u32,
            data: &'a [u8]
        }
        /// GetFile whose reply may be compressed.
        GetFileZstd = "get-file-zstd@longhaul" -> PackedFile { path: &'a [u8], len: u32 }
        /// Returns the next part of the directory tree that the client numbered `tree`.
        ListTree = "list-tree@longhaul" -> Tree { tree: u32, flags: TreeFlags, path: &'a [u8] }
        /// WRITE with compressed `data` that decompresses to `len` bytes ([`crate::packed`]).
        WriteZstd = "write-zstd@longhaul" -> Status {
            handle: &'a [u8], offset: u64, len: u32, data: &'a [u8]
        }
        /// READ whose reply may be compressed: the decompressed length, then the data. Data that
        /// does not shrink is answered as DATA.
        ReadZstd = "read-zstd@longhaul" -> Packed { handle: &'a [u8], offset: u64, len: u32 }
        /// Returns checksums of the blocks in a range of an open file ([`crate::blocks`]).
        Hash = "hash@longhaul" -> Sums {
            handle: &'a [u8], offset: u64, len: u32, block: u32, kind: &'a [u8], key: &'a [u8]
        }
        /// Makes all further ATTRS on the channel include these extended pairs.
        Attributes = "attributes@longhaul" -> Status { told: Told }
        /// Returns extended attributes and access control lists ([`crate::xattrs`]).
        GetXattrs = "get-xattrs@longhaul" -> Xattrs { path: &'a [u8], flags: MetadataFlags }
        /// Sets all given metadata, in an order in which no step undoes an earlier one. `of` is a
        /// path or, if the flags say so, a handle; `xattrs` has the format of the reply to
        /// GetXattrs.
        SetMetadata = "set-metadata@longhaul" -> Set {
            of: &'a [u8], flags: MetadataFlags, attrs: Attrs, xattrs: &'a [u8]
        }
        /// Returns the IDs of users and groups by name; each argument is a string of strings.
        IdsByName = "ids-by-name@longhaul" -> Ids { users: &'a [u8], groups: &'a [u8] }
        /// READ that may be answered by the length of a hole or, with `pack`, by compressed data as
        /// for ReadZstd.
        ReadSparse = "read-sparse@longhaul" -> Sparse {
            handle: &'a [u8], offset: u64, len: u32, pack: bool
        }
        /// Flushes the files at these paths to disk, as fsync(2): strings up to the end of the
        /// message, at most [`crate::MOST_SYNCED`].
        FsyncSet = "fsync-set@longhaul" -> Status { paths: RemainingBytes<'a> }
        /// Makes the server resolve all further paths below this directory from a descriptor of it,
        /// without following symlinks.
        HoldRoot = "hold-root@longhaul" -> Status { path: &'a [u8] }
    }
}

impl Request<'_> {
    /// Returns the bytes in front of `data` bytes that end this request; `self` has empty data.
    pub(crate) fn encode_before(&self, id: RequestId, data: usize) -> Vec<u8> {
        // Most requests have a path and little else.
        let mut out = Vec::with_capacity(256);
        self.encode(id, &mut out);
        let behind = out.len().saturating_sub(4);
        for (at, len) in [(0, behind + data), (behind, data)] {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            if let Some(place) = out.get_mut(at..at + 4) {
                place.copy_from_slice(&len.to_be_bytes());
            }
        }
        out
    }
}

/// Kind of reply to a successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Status,
    Handle,
    Data,
    Names,
    Attrs,
    Statvfs,
    Limits,
    UsersGroups,
    File,
    PackedFile,
    Tree,
    Sums,
    Packed,
    Sparse,
    Xattrs,
    Set,
    Ids,
}

macro_rules! responses {
    ($($(#[$meta:meta])* $variant:ident = $number:literal $name:literal { $($f:ident : $t:ty),* $(,)? })*) => {
        /// Replies of a server as on the wire: the client parses them, and servers encode them.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the fields are the draft's, in its order")]
        pub enum Response<'a> {
            $($(#[$meta])* $variant { $($f: $t),* },)*
            /// A message number that is not in the table.
            Other { number: u8, body: RemainingBytes<'a> },
        }

        impl<'a> Response<'a> {
            /// The message number.
            pub fn number(&self) -> u8 {
                match self {
                    $(Self::$variant { .. } => $number,)*
                    Self::Other { number, .. } => *number,
                }
            }

            /// Returns the name of message `number` in the draft.
            pub(crate) fn name_of(number: u8) -> &'static str {
                match number {
                    $($number => $name,)*
                    _ => "message",
                }
            }

            /// Appends the message: length, number, request ID and fields.
            pub fn encode(&self, id: RequestId, out: &mut Vec<u8>) {
                frame(out, |out| {
                    out.push(self.number());
                    id.0.write(out);
                    match self {
                        $(Self::$variant { $($f),* } => { $($f.write(out);)* })*
                        Self::Other { body, .. } => body.write(out),
                    }
                });
            }

            /// Decodes a message without its length; trailing bytes are an error.
            pub fn decode(bytes: &'a [u8]) -> Result<(RequestId, Self), WireError> {
                let mut r = FieldReader::new(bytes);
                let number = r.u8()?;
                let id = RequestId(r.u32()?);
                let response = match number {
                    $($number => {
                        fields!(r, $($f),*);
                        Self::$variant { $($f),* }
                    })*
                    _ => Self::Other { number, body: RemainingBytes(r.rest()) },
                };
                r.finish()?;
                Ok((id, response))
            }
        }
    };
}

responses! {
    /// Success without a result, or a failure.
    Status = 101 "STATUS" { code: StatusCode, text: StatusText<'a> }
    /// Handle of an opened file or directory.
    Handle = 102 "HANDLE" { handle: &'a [u8] }
    /// File data.
    Data = 103 "DATA" { data: &'a [u8] }
    /// Directory entries or a path.
    Name = 104 "NAME" { names: Names<'a> }
    /// Attributes of a file.
    Attrs = 105 "ATTRS" { attrs: Attrs }
    /// The result of an extension.
    ExtendedReply = 201 "EXTENDED_REPLY" { body: RemainingBytes<'a> }
}

impl Response<'_> {
    /// Appends the bytes in front of `len` bytes of data in a DATA.
    pub fn encode_data_header(id: RequestId, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        Response::Data { data: &[] }.encode(id, out);
        let [whole, data] = [len + 9, len].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        for (at, n) in [(start, whole), (start + 9, data)] {
            if let Some(place) = out.get_mut(at..at + 4) {
                place.copy_from_slice(&n.to_be_bytes());
            }
        }
    }

    /// Appends a DATA whose data is appended by `read`, so that a server reads file data straight
    /// into the output.
    ///
    /// # Errors
    /// Errors of `read`; the bytes appended by then must be discarded.
    pub fn encode_data<E>(
        id: RequestId,
        out: &mut Vec<u8>,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = out.len();
        Response::Data { data: &[] }.encode(id, out);
        let length = out.len() - 4;
        read(out)?;
        set_length(out, length);
        set_length(out, start);
        Ok(())
    }
}

impl Response<'_> {
    /// Appends the reply to get-file@longhaul for a file with `attrs`. `read` appends the data; if
    /// it returns false, the data was not the whole file, and the reply has the attributes alone.
    ///
    /// # Errors
    /// Errors of `read`; the bytes appended by then must be discarded.
    pub fn encode_file<E>(
        id: RequestId,
        attrs: &Attrs,
        out: &mut Vec<u8>,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let start = out.len();
        let body = RemainingBytes(&[]);
        Response::ExtendedReply { body }.encode(id, out);
        attrs.write(out);
        let there = out.len();
        true.write(out);
        0u32.write(out);
        match read(out)? {
            true => set_length(out, there + 1),
            false => {
                out.truncate(there);
                false.write(out);
            }
        }
        set_length(out, start);
        Ok(())
    }
}

impl Response<'_> {
    /// Appends the reply to get-file-zstd@longhaul for a file with `attrs`, whose `len` bytes were
    /// compressed to `data`.
    pub fn encode_packed_file(
        id: RequestId,
        attrs: &Attrs,
        len: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let body = RemainingBytes(&[]);
        Response::ExtendedReply { body }.encode(id, out);
        attrs.write(out);
        out.push(PACKED_FILE);
        len.write(out);
        data.write(out);
        set_length(out, start);
    }
}

/// Value of the get-file reply's flag for compressed data (0 is no data, 1 plain data).
pub(crate) const PACKED_FILE: u8 = 2;

/// Appends a message written by `body`, with its length in front.
pub fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    set_length(out, start);
}

/// Writes at `at` the number of bytes behind the four bytes of the length.
fn set_length(out: &mut [u8], at: usize) {
    let len = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(request: Request<'_>) {
        let mut out = Vec::new();
        request.encode(RequestId(7), &mut out);
        let len = u32::from_be_bytes(out[..4].try_into().unwrap()) as usize;
        assert_eq!(len, out.len() - 4);
        assert_eq!(Request::decode(&out[4..]), Ok((RequestId(7), request)));
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        round_trip(Request::Open {
            path: b"a\xff",
            flags: OpenFlags::WRITE | OpenFlags::CREAT,
            attrs: Attrs::with_permissions(0o644),
        });
        round_trip(Request::Write {
            handle: &[0; 4],
            offset: 1 << 40,
            data: b"xyz",
        });
        round_trip(Request::PosixRename {
            from: b"a",
            to: b"b",
        });
        round_trip(Request::Limits {});
        round_trip(Request::FsyncSet {
            paths: RemainingBytes(b"\0\0\0\x01a\0\0\0\x02/b"),
        });
        round_trip(Request::CopyData {
            from: b"1",
            from_offset: 2,
            len: 3,
            to: b"4",
            to_offset: 5,
        });
        round_trip(Request::OtherExtension {
            name: b"x@y",
            body: RemainingBytes(b"zz"),
        });
    }

    #[test]
    fn bytes_behind_a_request_are_an_error() {
        let mut out = Vec::new();
        Request::Close { handle: b"h" }.encode(RequestId(1), &mut out);
        out.push(0);
        assert_eq!(
            Request::decode(&out[4..]),
            Err(WireError::Trailing { left: 1 })
        );
    }

    #[test]
    fn data_are_encoded_where_they_were_read_to() {
        let (id, data) = (RequestId(9), b"where it is".as_slice());
        let mut whole = b"before".to_vec();
        Response::Data { data }.encode(id, &mut whole);
        let mut read = b"before".to_vec();
        let done = Response::encode_data(id, &mut read, |out| {
            out.extend_from_slice(data);
            Ok::<_, ()>(())
        });
        assert_eq!((done, &read), (Ok(()), &whole));
        let mut apart = b"before".to_vec();
        Response::encode_data_header(id, data.len(), &mut apart);
        apart.extend_from_slice(data);
        assert_eq!(apart, whole);
    }

    #[test]
    fn a_name_count_beyond_the_message_does_not_allocate() {
        let mut out = vec![104, 0, 0, 0, 1];
        out.extend_from_slice(&[0xff; 4]);
        assert!(Response::decode(&out).is_err());
    }

    #[test]
    fn what_stands_behind_the_data_of_a_write_is_not_looked_at() {
        let write = Request::Write {
            handle: b"h",
            offset: 7,
            data: b"data",
        };
        let close = Request::Close { handle: b"h" };
        for (request, taken) in [(write, true), (close, false)] {
            let mut message = Vec::new();
            request.encode(RequestId(1), &mut message);
            message.extend_from_slice(b"the rest of the buffer");
            let decoded = Request::decode(&message[4..]);
            assert_eq!(decoded.is_ok(), taken);
            assert!(!taken || decoded == Ok((RequestId(1), request)));
        }
    }
}
