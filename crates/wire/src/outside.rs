//! Bytes of packets that nobody has read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Where bytes lie that a packet carries and does not hold, as in a file that the kernel can send from
/// where it has it. Whoever writes packets out knows its own by their type.
pub trait Elsewhere: Any + Send + Sync + fmt::Debug {
    /// Copies what lies `at` bytes behind the beginning to `to`; false where it is not there any more.
    fn copy(&self, at: usize, to: &mut [u8]) -> bool;
}

/// In memory, elsewhere.
impl Elsewhere for Vec<u8> {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        let there = self.get(at..at.saturating_add(to.len()));
        there.inspect(|there| to.copy_from_slice(there)).is_some()
    }
}

/// `len` bytes, `at` bytes behind the beginning of where they lie.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    pub(crate) lie: Arc<dyn Elsewhere>,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Outside {
    /// The first `n` of them, or all.
    pub(crate) fn front(&self, n: usize) -> Self {
        Self {
            len: self.len.min(n),
            ..self.clone()
        }
    }

    /// All behind the first `n`.
    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.at += n;
        self.len -= n;
    }
}

/// Bytes to be written out.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// These.
    Here(&'a [u8]),
    /// So many, so far behind the beginning of where they lie.
    Outside {
        /// Where they lie.
        lie: &'a dyn Elsewhere,
        /// How far behind its beginning.
        at: usize,
        /// How many.
        len: usize,
    },
}

impl<'a> Part<'a> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Outside { len, .. } => *len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All behind the first `n`.
    #[must_use]
    pub fn behind(self, n: usize) -> Self {
        match self {
            Self::Here(bytes) => Self::Here(bytes.get(n..).unwrap_or_default()),
            Self::Outside { lie, at, len } => {
                let n = n.min(len);
                let (at, len) = (at + n, len - n);
                Self::Outside { lie, at, len }
            }
        }
    }

    /// A copy of them; `None` where they are not there any more.
    pub fn to_vec(&self) -> Option<Vec<u8>> {
        match *self {
            Self::Here(bytes) => Some(bytes.to_vec()),
            Self::Outside { lie, at, len } => {
                let mut bytes = vec![0; len];
                lie.copy(at, &mut bytes).then_some(bytes)
            }
        }
    }
}

impl<'a> From<&'a Outside> for Part<'a> {
    fn from(outside: &'a Outside) -> Self {
        Self::Outside {
            lie: &*outside.lie,
            at: outside.at,
            len: outside.len,
        }
    }
}
