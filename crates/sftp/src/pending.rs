use bytes::Bytes;
use wire::{Field, FieldReader};

use crate::message::{PACKED_FILE, ReplyKind};
use crate::reply::{strings, uint32_list};
use crate::{
    Attrs, Error, GetFileReply, HOLE, Handle, NameRecord, Parts, Reply, Response, ServerLimits,
    Status, Statvfs, printable,
};

/// A request that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    pub(crate) name: &'static str,
    pub(crate) expects: ReplyKind,
    /// Maximum bytes of data in the reply to READ or get-file.
    pub(crate) len: u32,
}

/// Converts `response`, decoded from `message`, to the reply that its request expects.
///
/// # Errors
/// The reply is of another kind, malformed or too long.
pub(crate) fn fit(
    pending: &PendingRequest,
    message: &Bytes,
    response: Response<'_>,
    malformed: impl Fn(wire::WireError) -> Error,
) -> Result<Reply, Error> {
    let number = response.number();
    Ok(match (pending.expects, response) {
        (expects, Response::Status { code, text }) => {
            let status = Status {
                code,
                message: printable(text.message, 256),
            };
            // The reply to END of a tree is a STATUS without a result.
            if status.is_ok() && !matches!(expects, ReplyKind::Status | ReplyKind::Tree) {
                return Err(wrong(pending, number));
            }
            Reply::Status(status)
        }
        (ReplyKind::Handle, Response::Handle { handle }) => {
            if handle.len() > Handle::MAX {
                return Err(Error::LongHandle(handle.len()));
            }
            Reply::Handle(Handle(Bytes::copy_from_slice(handle)))
        }
        (ReplyKind::Names, Response::Name { names }) => Reply::Names(
            names
                .0
                .into_iter()
                .map(|name| NameRecord {
                    filename: name.filename.to_vec(),
                    attrs: name.attrs,
                })
                .collect(),
        ),
        (ReplyKind::Attrs, Response::Attrs { attrs }) => Reply::Attrs(attrs),
        (_, Response::ExtendedReply { body }) => {
            extended(pending, message, number, body.0, malformed)?
        }
        _ => return Err(wrong(pending, number)),
    })
}

/// Converts the body of an EXTENDED_REPLY to the reply that its request expects.
fn extended(
    pending: &PendingRequest,
    message: &Bytes,
    number: u8,
    body: &[u8],
    malformed: impl Fn(wire::WireError) -> Error,
) -> Result<Reply, Error> {
    Ok(match pending.expects {
        ReplyKind::Statvfs => Reply::Statvfs(whole::<Statvfs>(body).map_err(malformed)?),
        ReplyKind::Limits => Reply::Limits(whole::<ServerLimits>(body).map_err(malformed)?),
        ReplyKind::UsersGroups => {
            let mut r = FieldReader::new(body);
            let users = r.string().and_then(strings).map_err(&malformed)?;
            let groups = r.string().and_then(strings).map_err(&malformed)?;
            r.finish().map_err(malformed)?;
            Reply::UsersGroups { users, groups }
        }
        ReplyKind::File | ReplyKind::PackedFile => {
            Reply::File(file(pending, message, body, malformed)?)
        }
        ReplyKind::Tree => Reply::Tree(crate::tree::steps(body).map_err(malformed)?),
        ReplyKind::Packed | ReplyKind::Sparse => {
            let mut r = FieldReader::new(body);
            let len = r.u32().map_err(&malformed)?;
            if (pending.expects, len) == (ReplyKind::Sparse, HOLE) {
                let len = r.u64().map_err(&malformed)?;
                r.finish().map_err(malformed)?;
                return Ok(Reply::Hole { len });
            }
            if len > pending.len {
                return Err(Error::TooMuchData {
                    asked: pending.len,
                    got: len,
                });
            }
            Reply::Packed {
                len,
                bytes: message.slice_ref(r.rest()),
            }
        }
        ReplyKind::Xattrs => Reply::Xattrs(crate::xattrs::read(body).map_err(malformed)?),
        ReplyKind::Set => {
            let mut r = FieldReader::new(body);
            let not_kept = Parts(r.u32().map_err(&malformed)?);
            let why = printable(r.string().map_err(&malformed)?, 256);
            r.finish().map_err(malformed)?;
            Reply::Set { not_kept, why }
        }
        ReplyKind::Ids => {
            let mut r = FieldReader::new(body);
            let users = r.string().and_then(uint32_list).map_err(&malformed)?;
            let groups = r.string().and_then(uint32_list).map_err(&malformed)?;
            r.finish().map_err(malformed)?;
            Reply::Ids { users, groups }
        }
        ReplyKind::Sums => Reply::Sums(message.slice_ref(body)),
        _ => return Err(wrong(pending, number)),
    })
}

/// Reads a reply to get-file: attributes, a flag and the data. A reply to get-file-zstd may have
/// the decompressed length and compressed data instead.
fn file(
    pending: &PendingRequest,
    message: &Bytes,
    body: &[u8],
    malformed: impl Fn(wire::WireError) -> Error,
) -> Result<GetFileReply, Error> {
    let mut r = FieldReader::new(body);
    let attrs = Attrs::read(&mut r).map_err(&malformed)?;
    let how = r.u8().map_err(&malformed)?;
    let packed = match (pending.expects, how) {
        (ReplyKind::PackedFile, PACKED_FILE) => Some(r.u32().map_err(&malformed)?),
        _ => None,
    };
    // RFC 4251 section 5: all values but 0 are true.
    let data = match how {
        0 => None,
        _ => Some(r.string().map_err(&malformed)?),
    };
    r.finish().map_err(malformed)?;
    let came = data.map_or(0, |data| u32::try_from(data.len()).unwrap_or(u32::MAX));
    let got = came.max(packed.unwrap_or_default());
    if got > pending.len {
        let asked = pending.len;
        return Err(Error::TooMuchData { asked, got });
    }
    let data = data.map(|data| message.slice_ref(data));
    Ok(GetFileReply {
        attrs,
        data,
        packed,
    })
}

fn wrong(pending: &PendingRequest, reply: u8) -> Error {
    Error::WrongReply {
        request: pending.name,
        reply,
    }
}

fn whole<'a, T: Field<'a>>(bytes: &'a [u8]) -> Result<T, wire::WireError> {
    let mut r = FieldReader::new(bytes);
    let value = T::read(&mut r)?;
    r.finish()?;
    Ok(value)
}
