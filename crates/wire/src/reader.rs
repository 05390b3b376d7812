use crate::WireError;

/// Reads fields from the front of a message, never past its end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// The next `n` bytes.
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

    /// The next `N` bytes as an array.
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

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[b]| b)
    }

    /// A uint32.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A uint64.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string: a uint32 length and as many bytes.
    pub fn string(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// All that is left; the reader is empty afterwards.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// Bytes left to read.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Ends the message: bytes left over are an error.
    pub fn finish(self) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing { left }),
        }
    }
}
