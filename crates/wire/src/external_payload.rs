//! Bytes of packets that nobody has read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Where bytes lie that a packet carries and does not hold, as in a file that the kernel can send from
/// where it has it. Whoever writes packets out knows its own by their type.
pub trait ExternalSource: Any + Send + Sync + fmt::Debug {
    /// Copies what lies `at` bytes behind the beginning to `to`; false where it is not there any more.
    fn copy(&self, at: usize, to: &mut [u8]) -> bool;

    /// Says that it is not, in a sentence.
    fn missed(&self) -> String {
        "what was to be sent is not there any more".to_owned()
    }

    /// Lends the `len` bytes that lie `at` bytes behind the beginning to `to`, with `more` bytes of any kind
    /// that follow them in memory. `to` must look at each of them once: they may be others a moment later.
    /// False where nothing was lent, or where the `len` bytes were not all there to the end: what `to` has
    /// made of them is of no use then.
    fn lend(&self, _at: usize, _len: usize, _more: usize, _to: &mut dyn FnMut(&[u8])) -> bool {
        false
    }
}

/// How long what the packets of a [`crate::Pool`] carry may stay where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BorrowPolicy {
    /// Not at all: it is read into the packet.
    #[default]
    Never,
    /// Until the packet is sealed: that may read it from there.
    UntilSealed,
    /// Until the packet is sent: nobody has to look at it.
    UntilSent,
}

impl BorrowPolicy {
    /// For an atomic.
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::UntilSealed,
            2 => Self::UntilSent,
            _ => Self::Never,
        }
    }
}

/// In memory, elsewhere.
impl ExternalSource for Vec<u8> {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        let there = self.get(at..at.saturating_add(to.len()));
        there.inspect(|there| to.copy_from_slice(there)).is_some()
    }

    fn lend(&self, at: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let there = self.get(at..at.saturating_add(len + more));
        there.map(to).is_some()
    }
}

/// `len` bytes, `at` bytes behind the beginning of where they lie.
#[derive(Clone, Debug)]
pub(crate) struct ExternalPayload {
    pub(crate) lie: Arc<dyn ExternalSource>,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl ExternalPayload {
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
        lie: &'a dyn ExternalSource,
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

impl<'a> From<&'a ExternalPayload> for Part<'a> {
    fn from(outside: &'a ExternalPayload) -> Self {
        Self::Outside {
            lie: &*outside.lie,
            at: outside.at,
            len: outside.len,
        }
    }
}
