use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Serialize, Serializer};

use super::xxh::{Whole, Xxh};

/// How sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// 128 bits, the fastest by far; finds errors, not forgers.
    Xxh128,
    /// 256 bits.
    Blake3,
    /// 256 bits.
    Sha256,
}

impl Algorithm {
    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xxh128 => "XXH128",
            Self::Blake3 => "BLAKE3",
            Self::Sha256 => "SHA-256",
        }
    }

    /// Bytes of a digest.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Xxh128 => 16,
            Self::Blake3 | Self::Sha256 => 32,
        }
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The value of a sum.
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

    /// Reads what programs print; `None` unless it is exactly a digest of `algorithm`.
    pub(crate) fn from_hex(text: &[u8], algorithm: Algorithm) -> Option<Self> {
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

/// The sum of some bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The first byte.
    pub from: u64,
    /// How many.
    pub len: u64,
    /// By each algorithm that may still be the one.
    pub digests: Vec<(Algorithm, Digest)>,
}

impl Sum {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.from + self.len
    }

    /// Its value by `algorithm`.
    pub fn by(&self, algorithm: Algorithm) -> Option<&Digest> {
        let of = |(by, _): &&(Algorithm, Digest)| *by == algorithm;
        self.digests.iter().find(of).map(|(_, digest)| digest)
    }
}

/// A sum in the making: by one algorithm, or by all while it is not known which one the far end
/// has.
pub(crate) struct Hasher {
    xxh: Option<Box<Xxh>>,
    blake: Option<Box<blake3::Hasher>>,
    sha: Option<Context>,
}

impl Hasher {
    pub(crate) fn new(by: Option<Algorithm>) -> Self {
        Self::with(|algorithm| by.is_none_or(|by| by == algorithm), false)
    }

    /// Of a run, whose blocks are also those of a [`Whole`]. Where BLAKE3 is made of the whole, a
    /// run has an XXH128, which says where the file differs.
    pub(super) fn of_run(by: Option<Algorithm>, whole: bool) -> Self {
        let wants = |algorithm| match by {
            None => true,
            Some(Algorithm::Blake3) => match algorithm {
                Algorithm::Xxh128 => true,
                Algorithm::Blake3 => !whole,
                Algorithm::Sha256 => false,
            },
            Some(by) => by == algorithm,
        };
        Self::with(wants, true)
    }

    fn with(wants: impl Fn(Algorithm) -> bool, of_whole: bool) -> Self {
        Self {
            xxh: wants(Algorithm::Xxh128).then(|| Box::new(Xxh::new(of_whole))),
            blake: wants(Algorithm::Blake3).then(|| Box::new(blake3::Hasher::new())),
            sha: wants(Algorithm::Sha256).then(|| Context::new(&SHA256)),
        }
    }

    /// Goes on with what turned out to be wanted, if it has that.
    pub(super) fn settle(&mut self, by: Option<Algorithm>, whole: bool) {
        let has = match by {
            None => return,
            Some(Algorithm::Xxh128) => self.xxh.is_some(),
            Some(Algorithm::Blake3) => self.blake.is_some(),
            Some(Algorithm::Sha256) => self.sha.is_some(),
        };
        if !has {
            return;
        }
        if by == Some(Algorithm::Sha256) {
            self.xxh = None;
        }
        if by != Some(Algorithm::Blake3) || (whole && self.xxh.is_some()) {
            self.blake = None;
        }
        if by != Some(Algorithm::Sha256) {
            self.sha = None;
        }
    }

    /// Gives what passed of a run that began at `from` to the sum of the whole.
    pub(super) fn give(&mut self, from: u64, whole: &mut Whole) {
        match &mut self.xxh {
            Some(xxh) => whole.take(from, xxh),
            None => whole.give_up(),
        }
    }

    /// The same of a run that is over.
    pub(super) fn give_end(&mut self, from: u64, whole: &mut Whole) {
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

    pub(crate) fn finish(self) -> Vec<(Algorithm, Digest)> {
        let xxh = self.xxh.map(|xxh| xxh.finish());
        let blake = self.blake.map(|b| Digest::new(b.finalize().as_bytes()));
        let sha = self.sha.map(|s| Digest::new(s.finish().as_ref()));
        let all = [
            (Algorithm::Xxh128, xxh),
            (Algorithm::Blake3, blake),
            (Algorithm::Sha256, sha),
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

    /// Of "abc": FIPS 180-2; the BLAKE3 paper's test vectors; xxhsum -H2 0.8.1.
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
        let read = |text: &[u8]| Digest::from_hex(text, Algorithm::Xxh128);
        assert_eq!(
            read(hex).map(|d| d.to_string().into_bytes()),
            Some(hex.to_vec())
        );
        assert_eq!(read(&hex[1..]), None);
        assert_eq!(read(b"06b05ab6733a618578af5f94892f395g"), None);
        assert_eq!(read(b""), None);
        assert_eq!(Digest::from_hex(hex, Algorithm::Sha256), None);
    }
}
