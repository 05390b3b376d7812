use crate::WireError;

/// Reader for the fields of a message, which never reads past its end.
#[derive(Clone, Debug)]
pub struct FieldReader<'a> {
    left: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Creates a reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// Reads the next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        match self.left.split_at_checked(n) {
            Some((head, tail)) => {
                self.left = tail;
                Ok(head)
            }
            None => Err(WireError::Truncated {
                needed: n,
                left: self.left.len(),
            }),
        }
    }

    /// Reads the next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        match self.left.split_first_chunk::<N>() {
            Some((head, tail)) => {
                self.left = tail;
                Ok(*head)
            }
            None => Err(WireError::Truncated {
                needed: N,
                left: self.left.len(),
            }),
        }
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[b]| b)
    }

    /// Reads a uint32.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a uint64.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a string: a uint32 length and as many bytes.
    pub fn string(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// Reads all remaining bytes; the reader is empty afterwards.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// Returns the number of bytes left to read.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Ends the message; remaining bytes are an error.
    pub fn finish(self) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing { left }),
        }
    }
}
