//! What list-tree@longhaul answers.

use std::ops::BitOr;

use wire::{Field, Reader, WireError};

use crate::{Attrs, Name, StatusCode};

/// What list-tree@longhaul is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeFlags(pub u32);

impl TreeFlags {
    /// The next part.
    pub const NEXT: Self = Self(0);
    /// The first part of the tree at the path.
    pub const BEGIN: Self = Self(1);
    /// No more of it.
    pub const END: Self = Self(2);
    /// With the first part: tell what there probably is in all.
    pub const COUNT: Self = Self(4);

    /// Whether all of `other` is set.
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
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

/// A step of a walk through a tree, which begins in its topmost directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeStep {
    /// Something in the current directory that is not walked into.
    Entry(Name),
    /// A directory in the current one, which is the current one from here on.
    Enter(Name),
    /// The current directory is at its end: the one above is the current one again.
    Leave,
    /// The current directory cannot be listed, or not to its end; its `Leave` follows. The text is
    /// the server's.
    Failed(StatusCode, Vec<u8>),
    /// So many files with so many bytes are probably in the tree, in all.
    Count {
        /// Regular files.
        files: u64,
        /// Their lengths.
        bytes: u64,
    },
}

const ENTRY: u8 = 1;
const ENTER: u8 = 2;
const LEAVE: u8 = 3;
const FAILED: u8 = 4;
const COUNT: u8 = 5;
/// Steps of one answer: what is shorter than an entry is rare, and each takes memory here.
const MOST: usize = 16 * 1024;

impl<'a> Field<'a> for TreeStep {
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
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

impl TreeStep {
    /// Appends an entry of the current directory, or that it is entered.
    pub fn write_entry(filename: &[u8], attrs: &Attrs, enters: bool, out: &mut Vec<u8>) {
        write_entry(filename, attrs, enters, out);
    }
}

fn write_entry(filename: &[u8], attrs: &Attrs, enters: bool, out: &mut Vec<u8>) {
    out.push(if enters { ENTER } else { ENTRY });
    filename.write(out);
    attrs.write(out);
}

fn name(r: &mut Reader<'_>) -> Result<Name, WireError> {
    Ok(Name {
        filename: r.string()?.to_vec(),
        attrs: Attrs::read(r)?,
    })
}

/// All steps of an answer.
pub(crate) fn steps(bytes: &[u8]) -> Result<Vec<TreeStep>, WireError> {
    let mut r = Reader::new(bytes);
    let mut steps = Vec::new();
    while r.left() > 0 && steps.len() < MOST {
        steps.push(TreeStep::read(&mut r)?);
    }
    r.finish()?;
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written_and_false_ones_are_errors() {
        let of = |filename: &[u8]| Name {
            filename: filename.to_vec(),
            attrs: Attrs::with_permissions(0o644),
        };
        let told = vec![
            TreeStep::Entry(of(b"a")),
            TreeStep::Enter(of(b"b\xff")),
            TreeStep::Count {
                files: 2,
                bytes: u64::MAX,
            },
            TreeStep::Failed(StatusCode::PERMISSION_DENIED, b"no".to_vec()),
            TreeStep::Leave,
            TreeStep::Leave,
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
}
