//! Payload that a packet borrows instead of holding a copy.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Source of bytes that a packet borrows, such as a file whose pages the kernel can send directly.
/// The code that writes packets out recognizes its own sources by their type.
pub trait ExternalPayloadSource: Any + Send + Sync + fmt::Debug {
    /// Copies the bytes at offset `at` to `to`; returns false if they are no longer available.
    fn copy(&self, at: usize, to: &mut [u8]) -> bool;

    /// Returns a sentence for the user that says that the bytes are no longer available.
    fn missed(&self) -> String {
        "the data to send was removed from the file".to_owned()
    }

    /// Calls `to` with the `len` bytes at offset `at`, followed by `more` arbitrary bytes of
    /// memory. `to` must read each byte only once, since they may change at any time. Returns false
    /// if nothing was lent, or if the `len` bytes did not stay available to the end, so that the
    /// output of `to` is useless.
    fn lend(&self, _at: usize, _len: usize, _more: usize, _to: &mut dyn FnMut(&[u8])) -> bool {
        false
    }
}

/// The bytes of a source are no longer available. The message is the source's sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPayloadError(pub(crate) String);

impl fmt::Display for MissingPayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MissingPayloadError {}

/// Policy of a [`crate::PacketPool`]: how long packets may borrow their payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BorrowPolicy {
    /// No borrowing: the payload is read into the packet.
    #[default]
    Never,
    /// Borrowed until the packet is sealed: the cipher reads the source.
    UntilSealed,
    /// Borrowed until the packet is sent: no cipher or MAC needs the payload.
    UntilSent,
}

/// Says what happens to file data, for logs: "file data is ...".
impl fmt::Display for BorrowPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "copied into packets",
            Self::UntilSealed => "encrypted directly from the page cache",
            Self::UntilSent => "sent directly from the page cache",
        })
    }
}

impl BorrowPolicy {
    /// Converts the integer stored in an atomic.
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::UntilSealed,
            2 => Self::UntilSent,
            _ => Self::Never,
        }
    }
}

/// A source in ordinary memory.
impl ExternalPayloadSource for Vec<u8> {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        let there = self.get(at..at.saturating_add(to.len()));
        there.inspect(|there| to.copy_from_slice(there)).is_some()
    }

    fn lend(&self, at: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let there = self.get(at..at.saturating_add(len + more));
        there.map(to).is_some()
    }
}

/// Borrowed range: `len` bytes at offset `at` of the source `lie`.
#[derive(Clone, Debug)]
pub(crate) struct ExternalPayload {
    pub(crate) lie: Arc<dyn ExternalPayloadSource>,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl ExternalPayload {
    /// Returns the first `n` bytes of the range, or all.
    pub(crate) fn front(&self, n: usize) -> Self {
        Self {
            len: self.len.min(n),
            ..self.clone()
        }
    }

    /// Removes the first `n` bytes of the range.
    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.at += n;
        self.len -= n;
    }
}

/// Part of a packet to be written out.
#[derive(Clone, Copy, Debug)]
pub enum OutputPart<'a> {
    /// Bytes in the packet's memory.
    Inline(&'a [u8]),
    /// Bytes borrowed from a source.
    External {
        /// The source.
        lie: &'a dyn ExternalPayloadSource,
        /// Offset in the source.
        at: usize,
        /// Number of bytes.
        len: usize,
    },
}

impl<'a> OutputPart<'a> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::External { len, .. } => *len,
        }
    }

    /// Returns true if the part is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part without its first `n` bytes.
    #[must_use]
    pub fn behind(self, n: usize) -> Self {
        match self {
            Self::Inline(bytes) => Self::Inline(bytes.get(n..).unwrap_or_default()),
            Self::External { lie, at, len } => {
                let n = n.min(len);
                let (at, len) = (at + n, len - n);
                Self::External { lie, at, len }
            }
        }
    }

    /// Returns a copy of the bytes; `None` if the source no longer has them.
    pub fn to_vec(&self) -> Option<Vec<u8>> {
        match *self {
            Self::Inline(bytes) => Some(bytes.to_vec()),
            Self::External { lie, at, len } => {
                let mut bytes = vec![0; len];
                lie.copy(at, &mut bytes).then_some(bytes)
            }
        }
    }
}

impl<'a> From<&'a ExternalPayload> for OutputPart<'a> {
    fn from(outside: &'a ExternalPayload) -> Self {
        Self::External {
            lie: &*outside.lie,
            at: outside.at,
            len: outside.len,
        }
    }
}
