//! Checksum algorithms, digests and running hashers.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::xxh::{WholeFileXxh, XxhState};

/// A checksum algorithm; in the order of speed, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SumAlgorithm {
    /// 128 bits, by far the fastest; detects errors, not forgeries.
    Xxh128,
    /// BLAKE3, 256 bits.
    Blake3,
    /// SHA-256, 256 bits.
    Sha256,
}

impl SumAlgorithm {
    /// The usual spelling of the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xxh128 => "XXH128",
            Self::Blake3 => "BLAKE3",
            Self::Sha256 => "SHA-256",
        }
    }

    /// The length of a digest in bytes.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Xxh128 => 16,
            Self::Blake3 | Self::Sha256 => 32,
        }
    }
}

impl Serialize for SumAlgorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SumAlgorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let all = [Self::Xxh128, Self::Blake3, Self::Sha256];
        let found = all.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| serde::de::Error::custom("unknown checksum algorithm"))
    }
}

/// The value of a checksum.
#[derive(Clone, PartialEq, Eq)]
pub struct Digest {
    bytes: [u8; 32],
    len: usize,
}

impl Digest {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut all = [0; 32];
        let len = bytes.len().min(all.len());
        all[..len].copy_from_slice(&bytes[..len]);
        Self { bytes: all, len }
    }

    /// Parses hexadecimal text; `None` unless it has exactly the length of a digest of `algorithm`.
    pub(crate) fn from_hex(text: &[u8], algorithm: SumAlgorithm) -> Option<Self> {
        if text.len() != 2 * algorithm.len() {
            return None;
        }
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        let pairs = text.chunks_exact(2);
        let bytes: Option<Vec<u8>> = pairs
            .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
            .collect();
        Some(Self::new(&bytes?))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.bytes[..self.len] {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The checksum of a range of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeChecksum {
    /// Offset of the first byte.
    pub from: u64,
    /// Length in bytes.
    pub len: u64,
    /// The digest by each algorithm that the far end may still turn out to use.
    pub digests: Vec<(SumAlgorithm, Digest)>,
}

impl RangeChecksum {
    /// Returns the offset after the last byte.
    pub fn end(&self) -> u64 {
        self.from + self.len
    }

    /// Returns the digest by `algorithm`.
    pub fn by(&self, algorithm: SumAlgorithm) -> Option<&Digest> {
        let of = |(by, _): &&(SumAlgorithm, Digest)| *by == algorithm;
        self.digests.iter().find(of).map(|(_, digest)| digest)
    }
}

/// Checksum in progress: by one algorithm, or by all while the far end's algorithm is not known.
pub(crate) struct Hasher {
    xxh: Option<Box<XxhState>>,
    blake: Option<Box<blake3::Hasher>>,
    sha: Option<Context>,
}

impl Hasher {
    pub(crate) fn new(by: Option<SumAlgorithm>) -> Self {
        Self::with(|algorithm| by.is_none_or(|by| by == algorithm), false)
    }

    /// Creates the hasher of a run, whose blocks also contribute to a [`WholeFileXxh`]. If BLAKE3
    /// covers the whole file, runs use XXH128, which locates differences.
    pub(super) fn of_run(by: Option<SumAlgorithm>, whole: bool) -> Self {
        let wants = |algorithm| match by {
            None => true,
            Some(SumAlgorithm::Blake3) => match algorithm {
                SumAlgorithm::Xxh128 => true,
                SumAlgorithm::Blake3 => !whole,
                SumAlgorithm::Sha256 => false,
            },
            Some(by) => by == algorithm,
        };
        Self::with(wants, true)
    }

    fn with(wants: impl Fn(SumAlgorithm) -> bool, of_whole: bool) -> Self {
        Self {
            xxh: wants(SumAlgorithm::Xxh128).then(|| Box::new(XxhState::new(of_whole))),
            blake: wants(SumAlgorithm::Blake3).then(|| Box::new(blake3::Hasher::new())),
            sha: wants(SumAlgorithm::Sha256).then(|| Context::new(&SHA256)),
        }
    }

    /// Drops the algorithms that are not used, once the choice is known.
    pub(super) fn settle(&mut self, by: Option<SumAlgorithm>, whole: bool) {
        let has = match by {
            None => return,
            Some(SumAlgorithm::Xxh128) => self.xxh.is_some(),
            Some(SumAlgorithm::Blake3) => self.blake.is_some(),
            Some(SumAlgorithm::Sha256) => self.sha.is_some(),
        };
        if !has {
            return;
        }
        if by == Some(SumAlgorithm::Sha256) {
            self.xxh = None;
        }
        if by != Some(SumAlgorithm::Blake3) || (whole && self.xxh.is_some()) {
            self.blake = None;
        }
        if by != Some(SumAlgorithm::Sha256) {
            self.sha = None;
        }
    }

    /// Passes the blocks of a run that began at `from` to the checksum of the whole file.
    pub(super) fn give(&mut self, from: u64, whole: &mut WholeFileXxh) {
        match &mut self.xxh {
            Some(xxh) => whole.take(from, xxh),
            None => whole.give_up(),
        }
    }

    /// Passes the end of a finished run that began at `from` to the checksum of the whole file.
    pub(super) fn give_end(&mut self, from: u64, whole: &mut WholeFileXxh) {
        match &mut self.xxh {
            Some(xxh) => whole.end(from, xxh),
            None => whole.give_up(),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(xxh) = &mut self.xxh {
            xxh.update(bytes);
        }
        if let Some(blake) = &mut self.blake {
            blake.update(bytes);
        }
        if let Some(sha) = &mut self.sha {
            sha.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> Vec<(SumAlgorithm, Digest)> {
        let xxh = self.xxh.map(|xxh| xxh.finish());
        let blake = self.blake.map(|b| Digest::new(b.finalize().as_bytes()));
        let sha = self.sha.map(|s| Digest::new(s.finish().as_ref()));
        let all = [
            (SumAlgorithm::Xxh128, xxh),
            (SumAlgorithm::Blake3, blake),
            (SumAlgorithm::Sha256, sha),
        ];
        all.into_iter()
            .filter_map(|(by, digest)| Some((by, digest?)))
            .collect()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of "abc": FIPS 180-2; the BLAKE3 paper's test vectors; xxhsum -H2 0.8.1.
    #[test]
    fn sums_are_those_that_programs_make() {
        let mut all = Hasher::new(None);
        all.update(b"a");
        all.update(b"bc");
        let shown: Vec<String> = all.finish().iter().map(|(_, d)| d.to_string()).collect();
        assert_eq!(
            shown,
            [
                "06b05ab6733a618578af5f94892f3950",
                "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ]
        );
    }

    #[test]
    fn only_a_whole_digest_is_read() {
        let hex = b"06b05ab6733a618578af5f94892f3950";
        let read = |text: &[u8]| Digest::from_hex(text, SumAlgorithm::Xxh128);
        assert_eq!(
            read(hex).map(|d| d.to_string().into_bytes()),
            Some(hex.to_vec())
        );
        assert_eq!(read(&hex[1..]), None);
        assert_eq!(read(b"06b05ab6733a618578af5f94892f395g"), None);
        assert_eq!(read(b""), None);
        assert_eq!(Digest::from_hex(hex, SumAlgorithm::Sha256), None);
    }
}
