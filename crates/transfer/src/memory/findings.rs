//! Deliberate measurements of a host (`longhaul bench`), in addition to what copies learn in
//! passing.
//!
//! They are part of [`super::HostMemory`]: `connect::remember_findings` stores them, and a copy
//! reads them to choose ciphers and compression. They are not trusted: a wrong figure only costs
//! speed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schedule::TransferDirection;
use serde::{Deserialize, Serialize};

/// The lifetime of measurements; older ones may stem from other programs or machines.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of rows kept of each kind, since a file above the maximum size is not read.
const ROWS: usize = 48;
/// The maximum length of a name in bytes.
const NAME: usize = 64;
/// The rate with compression from which on it pays, in hundredths of the rate without.
const PAYS: u64 = 102;

/// The measurements between this machine and a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchFindings {
    /// The time of measurement, in seconds since 1970.
    pub at: u64,
    /// The program that measured, for display: `longhaul bench 0.1.0`.
    pub by: String,
    /// The model of this machine's processor ([`super::processor::model`]). Cipher rates do not
    /// apply to another one, and home directories may be shared between machines.
    pub processor: String,
    /// The rates of ciphers that both ends support.
    #[serde(default)]
    pub ciphers: Vec<CipherRate>,
    /// The results of compression.
    #[serde(default)]
    pub compression: Vec<CompressionResult>,
}

/// The rate of a cipher, memory to memory over one connection without compression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CipherRate {
    /// The cipher's SSH name.
    pub cipher: String,
    /// The MAC; `None` for an AEAD cipher.
    #[serde(default)]
    pub mac: Option<String>,
    /// Bytes per second from end to end.
    pub rate: u64,
    /// Bytes that this end's processor seals or opens per second of processor time.
    #[serde(default)]
    pub here: Option<u64>,
    /// Bytes that the host's processor seals or opens per second of processor time.
    #[serde(default)]
    pub there: Option<u64>,
}

/// The result of compressing one kind of data on this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressionResult {
    /// The kind of data.
    pub data: BenchDataKind,
    /// The compression method.
    pub method: CompressionMethod,
    /// The direction of the transfer.
    pub direction: TransferDirection,
    /// The compressed size of 1,000 bytes.
    pub left: u32,
    /// Original bytes per second with compression.
    pub rate: u64,
    /// Bytes per second without compression.
    pub plain: u64,
}

/// Kind of the data that a measurement moved: random, text, already compressed, or the user's own
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchDataKind {
    /// Incompressible data.
    Random,
    /// Text.
    Text,
    /// Already compressed data.
    Gzipped,
    /// A file that the user named.
    Own,
}

/// Compression whose effect was measured: zlib of SSH, or zstd between two longhauls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionMethod {
    /// zlib@openssh.com.
    Zlib,
    /// zstd in blocks, between two longhauls.
    Zstd,
}

impl CompressionResult {
    /// True if compression raised the rate noticeably.
    pub fn paid(&self) -> bool {
        self.rate.saturating_mul(100) > self.plain.saturating_mul(PAYS)
    }
}

impl BenchFindings {
    /// Returns the age; `None` if too old, or in the future because a clock was or is wrong.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let age = Duration::from_secs(now.checked_sub(self.at)?);
        (age <= LIFETIME).then_some(age)
    }

    /// Returns the best rate of a cipher with any MAC: from end to end, or if that was not
    /// measured, the rate of the slower end.
    pub fn rate_of(&self, cipher: &str) -> Option<u64> {
        let rows = self.ciphers.iter().filter(|row| row.cipher == cipher);
        let rates = rows.filter_map(|row| match row.rate {
            0 => row.here.into_iter().chain(row.there).min(),
            rate => Some(rate),
        });
        rates.max()
    }

    /// Returns the highest rate without compression in this direction, in bytes per second.
    pub fn plain(&self, direction: TransferDirection) -> Option<u64> {
        let rows = self.compression.iter();
        rows.filter(|row| row.direction == direction)
            .map(|row| row.plain)
            .max()
    }

    /// Returns the result of `method` in this direction for data whose compressed size per 1,000
    /// bytes is close to `left`; `None` if no such data were measured.
    pub fn compressed(
        &self,
        method: CompressionMethod,
        direction: TransferDirection,
        left: u32,
    ) -> Option<&CompressionResult> {
        const LIKE: u32 = 150;
        let same = |row: &&CompressionResult| row.method == method && row.direction == direction;
        let rows = self.compression.iter().filter(same);
        rows.filter(|row| row.left.abs_diff(left) <= LIKE)
            .min_by_key(|row| row.left.abs_diff(left))
    }

    /// Removes rows and text beyond the limits.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.ciphers.truncate(ROWS);
        self.compression.truncate(ROWS);
        let short = |name: &String| name.len() <= NAME;
        self.ciphers
            .retain(|row| short(&row.cipher) && row.mac.as_ref().is_none_or(short));
        for text in [&mut self.by, &mut self.processor] {
            let end = text.char_indices().map(|(at, _)| at).find(|at| *at > NAME);
            text.truncate(end.unwrap_or(text.len()));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(name: &str, rate: u64) -> CipherRate {
        CipherRate {
            cipher: name.into(),
            rate,
            ..CipherRate::default()
        }
    }

    #[test]
    fn the_best_mac_speaks_for_a_cipher_and_the_slower_end_where_nothing_else_is_known() {
        let mut slow = cipher("aes128-ctr", 80);
        slow.mac = Some("hmac-sha2-512".into());
        let mut ends = cipher("chacha20-poly1305@openssh.com", 0);
        (ends.here, ends.there) = (Some(900), Some(300));
        let findings = BenchFindings {
            ciphers: vec![slow, cipher("aes128-ctr", 120), ends],
            ..BenchFindings::default()
        };
        assert_eq!(findings.rate_of("aes128-ctr"), Some(120));
        assert_eq!(findings.rate_of("chacha20-poly1305@openssh.com"), Some(300));
        assert_eq!(findings.rate_of("aes256-ctr"), None);
    }

    #[test]
    fn findings_age() {
        let now = UNIX_EPOCH + Duration::from_secs(100 * 86_400);
        let made = |at| BenchFindings {
            at,
            ..BenchFindings::default()
        };
        let day = 86_400;
        assert_eq!(
            made(99 * day).age(now),
            Some(Duration::from_secs(day)),
            "yesterday's"
        );
        assert_eq!(made(60 * day).age(now), None, "too old");
        assert_eq!(made(101 * day).age(now), None, "from the future");
    }

    #[test]
    fn compression_is_known_for_data_that_were_like_it() {
        let row = |left, rate| CompressionResult {
            data: BenchDataKind::Text,
            method: CompressionMethod::Zlib,
            direction: TransferDirection::Up,
            left,
            rate,
            plain: 100,
        };
        let findings = BenchFindings {
            compression: vec![row(300, 250), row(1000, 60)],
            ..BenchFindings::default()
        };
        let found =
            |left| findings.compressed(CompressionMethod::Zlib, TransferDirection::Up, left);
        assert!(found(350).is_some_and(CompressionResult::paid));
        assert!(found(990).is_some_and(|row| !row.paid()));
        assert_eq!(found(600), None);
        let down = findings.compressed(CompressionMethod::Zlib, TransferDirection::Down, 300);
        assert_eq!(down, None);
        assert!(!row(300, 101).paid() && row(300, 103).paid());
    }

    #[test]
    fn a_memory_is_not_outgrown() {
        let long = "x".repeat(100);
        let mut ciphers = vec![cipher(&long, 1)];
        ciphers.extend((0..100).map(|n| cipher(&format!("c{n}"), n)));
        let findings = BenchFindings {
            by: "é".repeat(100),
            ciphers,
            ..BenchFindings::default()
        };
        let bounded = findings.bounded();
        assert_eq!(bounded.ciphers.len(), ROWS - 1);
        assert!(bounded.by.len() <= NAME + 2 && bounded.by.starts_with('é'));
        let text = serde_json::to_string(&bounded).unwrap();
        assert_eq!(
            serde_json::from_str::<BenchFindings>(&text).unwrap(),
            bounded
        );
    }
}
