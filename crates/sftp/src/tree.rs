//! Requests and replies of list-tree@longhaul, which lists a directory tree.

use std::ops::BitOr;

use wire::{Field, FieldReader, WireError};

use crate::packed::BlockDecompressor;
use crate::{Attrs, NameRecord, StatusCode};

/// Flags of list-tree@longhaul: the part of the listing that is requested and, with its first part,
/// the options of the whole (docs/PROTOCOL.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeFlags(pub u32);

impl TreeFlags {
    /// Asks for the next part.
    pub const NEXT: Self = Self(0);
    /// Asks for the first part of the tree at the path.
    pub const BEGIN: Self = Self(1);
    /// Ends the listing early.
    pub const END: Self = Self(2);
    /// With the first part: asks for an estimate of the tree's files and bytes.
    pub const COUNT: Self = Self(4);

    /// With the first part: permits compressed replies for this tree.
    pub const PACK: Self = Self(8);
    /// With the first part: directories on other file systems than the topmost are not entered.
    pub const SAME_DEVICE: Self = Self(16);

    /// Returns true if all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for TreeFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl<'a> Field<'a> for TreeFlags {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

/// One step of a walk through a directory tree, which starts in its top directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeRecord {
    /// An entry of the current directory that is not entered.
    Entry(NameRecord),
    /// A subdirectory, which becomes the current directory.
    Enter(NameRecord),
    /// End of the current directory: its parent becomes the current directory again.
    Leave,
    /// The current directory cannot be listed, or not completely; its `Leave` follows. The text is
    /// the server's.
    Failed(StatusCode, Vec<u8>),
    /// Estimated total of files and bytes in the tree.
    Count {
        /// Number of regular files.
        files: u64,
        /// Sum of their lengths in bytes.
        bytes: u64,
    },
}

const ENTRY: u8 = 1;
const ENTER: u8 = 2;
const LEAVE: u8 = 3;
const FAILED: u8 = 4;
const COUNT: u8 = 5;
/// Marks a reply whose steps are compressed.
const PACKED: u8 = 6;
/// Maximum number of steps in one reply: steps shorter than an entry are rare, and each takes
/// memory here.
const MOST: usize = 16 * 1024;

impl<'a> Field<'a> for TreeRecord {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        let kind = r.u8()?;
        Ok(match kind {
            ENTRY => Self::Entry(name(r)?),
            ENTER => Self::Enter(name(r)?),
            LEAVE => Self::Leave,
            FAILED => Self::Failed(StatusCode::read(r)?, r.string()?.to_vec()),
            COUNT => Self::Count {
                files: r.u64()?,
                bytes: r.u64()?,
            },
            _ => {
                return Err(WireError::WrongMessage {
                    expected: ENTRY,
                    got: kind,
                });
            }
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Entry(of) | Self::Enter(of) => {
                let enters = matches!(self, Self::Enter(_));
                write_entry(&of.filename, &of.attrs, enters, out);
            }
            Self::Leave => out.push(LEAVE),
            Self::Failed(code, text) => {
                out.push(FAILED);
                code.write(out);
                text.as_slice().write(out);
            }
            Self::Count { files, bytes } => {
                out.push(COUNT);
                files.write(out);
                bytes.write(out);
            }
        }
    }
}

impl TreeRecord {
    /// Appends an entry of the current directory, or the step into it if `enters`.
    pub fn write_entry(filename: &[u8], attrs: &Attrs, enters: bool, out: &mut Vec<u8>) {
        write_entry(filename, attrs, enters, out);
    }
}

fn write_entry(filename: &[u8], attrs: &Attrs, enters: bool, out: &mut Vec<u8>) {
    out.push(if enters { ENTER } else { ENTRY });
    filename.write(out);
    attrs.write(out);
}

fn name(r: &mut FieldReader<'_>) -> Result<NameRecord, WireError> {
    Ok(NameRecord {
        filename: r.string()?.to_vec(),
        attrs: Attrs::read(r)?,
    })
}

/// Appends the steps of a reply in compressed form: `packed`, which decompresses to `len` bytes.
pub fn pack_steps(len: u32, packed: &[u8], out: &mut Vec<u8>) {
    out.push(PACKED);
    len.write(out);
    out.extend_from_slice(packed);
}

/// Decodes all steps of a reply, compressed or not.
pub(crate) fn steps(bytes: &[u8]) -> Result<Vec<TreeRecord>, WireError> {
    let Some((&PACKED, rest)) = bytes.split_first() else {
        return unpacked_steps(bytes);
    };
    let mut r = FieldReader::new(rest);
    let len = r.u32()?;
    let unpacker = BlockDecompressor::new();
    let unpacked = unpacker.and_then(|mut unpacker| unpacker.unpack(r.rest(), len));
    unpacked_steps(&unpacked.ok_or(WireError::NotPacked)?)
}

fn unpacked_steps(bytes: &[u8]) -> Result<Vec<TreeRecord>, WireError> {
    let mut r = FieldReader::new(bytes);
    let mut steps = Vec::new();
    while r.left() > 0 && steps.len() < MOST {
        steps.push(TreeRecord::read(&mut r)?);
    }
    r.finish()?;
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written_and_false_ones_are_errors() {
        let of = |filename: &[u8]| NameRecord {
            filename: filename.to_vec(),
            attrs: Attrs::with_permissions(0o644),
        };
        let told = vec![
            TreeRecord::Entry(of(b"a")),
            TreeRecord::Enter(of(b"b\xff")),
            TreeRecord::Count {
                files: 2,
                bytes: u64::MAX,
            },
            TreeRecord::Failed(StatusCode::PERMISSION_DENIED, b"no".to_vec()),
            TreeRecord::Leave,
            TreeRecord::Leave,
        ];
        let mut bytes = Vec::new();
        told.iter().for_each(|step| step.write(&mut bytes));
        assert_eq!(steps(&bytes), Ok(told));
        for cut in [1, 5, 12] {
            assert!(steps(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(steps(&[9]).is_err());
        assert!(steps(&vec![LEAVE; MOST + 1]).is_err());
        assert_eq!(steps(&[]), Ok(Vec::new()));
    }

    #[test]
    fn packed_steps_are_those_that_were_packed_and_no_more_than_they_claim() {
        let entry = TreeRecord::Entry(NameRecord {
            filename: b"name".to_vec(),
            attrs: Attrs::with_permissions(0o644),
        });
        let told = vec![entry; 1000];
        let mut bytes = Vec::new();
        told.iter().for_each(|step| step.write(&mut bytes));
        let mut packed = Vec::new();
        let packs = |bytes: &[u8], packed: &mut Vec<u8>| {
            let mut packer = crate::packed::BlockCompressor::new().unwrap();
            assert!(packer.pack(bytes, packed));
        };
        packs(&bytes, &mut packed);
        let answer = |len, packed: &[u8]| {
            let mut answer = Vec::new();
            pack_steps(len, packed, &mut answer);
            answer
        };
        let len = bytes.len() as u32;
        assert!(packed.len() < bytes.len() / 4);
        assert_eq!(steps(&answer(len, &packed)), Ok(told));
        for claim in [0, len - 1, len + 1, u32::MAX] {
            assert!(steps(&answer(claim, &packed)).is_err(), "{claim}");
        }
        assert!(steps(&answer(len, b"nothing of zstd's")).is_err());
        assert!(steps(&[PACKED, 0, 0]).is_err());
        // A zstd frame that stores its byte uncompressed.
        let bare = answer(1, b"\x28\xb5\x2f\xfd\0\0\x09\0\0\x03");
        assert_eq!(steps(&bare), Ok(vec![TreeRecord::Leave]));
        // Steps may not be compressed twice, nor exceed the maximum of a reply.
        let nested = answer(len, &packed).repeat(100);
        packs(&nested, &mut packed);
        assert!(steps(&answer(nested.len() as u32, &packed)).is_err());
        let many = vec![LEAVE; MOST + 1];
        packs(&many, &mut packed);
        assert!(steps(&answer(many.len() as u32, &packed)).is_err());
    }
}
