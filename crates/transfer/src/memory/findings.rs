//! What was measured of a host on purpose (`longhaul bench`), beside what copies learn in passing.
//!
//! It is a part of [`super::HostMemory`] and kept with it: `connect::remember_findings` stores it,
//! a copy reads it when it chooses ciphers and compression. Nothing of it is trusted: a wrong
//! figure costs speed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schedule::Direction;
use serde::{Deserialize, Serialize};

/// Older figures are of other programs and machines.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Rows that are kept of each kind: a memory that outgrew its file would be none.
const ROWS: usize = 48;
/// Bytes of a name that are kept.
const NAME: usize = 64;
/// Compression pays from here on, in hundredths of the rate without.
const PAYS: u64 = 102;

/// What was measured between this machine and a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// When, in seconds of UNIX.
    pub at: u64,
    /// By what, for people: `longhaul bench 0.1.0`.
    pub by: String,
    /// The model of this machine's processor, as [`super::processor::model`] has it. Rates of
    /// ciphers say nothing of another: homes are shared between machines.
    pub processor: String,
    /// Each cipher that both ends have.
    #[serde(default)]
    pub ciphers: Vec<CipherRate>,
    /// What compressing brought.
    #[serde(default)]
    pub compression: Vec<Compressed>,
}

/// How fast a cipher was, memory to memory over one connection without compression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CipherRate {
    /// SSH's name.
    pub cipher: String,
    /// The MAC beside it; none with an AEAD cipher.
    #[serde(default)]
    pub mac: Option<String>,
    /// Bytes a second from end to end.
    pub rate: u64,
    /// Bytes that this end's processor seals or opens in a second of its time.
    #[serde(default)]
    pub here: Option<u64>,
    /// The same of the host's.
    #[serde(default)]
    pub there: Option<u64>,
}

/// What compressing data of one kind brought on this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressed {
    /// Of what kind the data were.
    pub data: Data,
    /// By what they were compressed.
    pub method: Method,
    /// Which way they went.
    pub direction: Direction,
    /// What was left of a thousand bytes.
    pub left: u32,
    /// Bytes of the data a second, compressed on the way.
    pub rate: u64,
    /// The same without.
    pub plain: u64,
}

/// Kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// They cannot be made smaller.
    Random,
    /// Text.
    Text,
    /// They were made smaller before.
    Gzipped,
    /// A file that the user named.
    Own,
}

/// What makes data smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// zlib@openssh.com.
    Zlib,
    /// zstd by blocks, where both ends are ours.
    Zstd,
}

impl Compressed {
    /// Whether it was worth it.
    pub fn paid(&self) -> bool {
        self.rate.saturating_mul(100) > self.plain.saturating_mul(PAYS)
    }
}

impl Findings {
    /// Seconds since they were made; `None` where they are too old, or of the future: then a clock
    /// was wrong, or is.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let age = Duration::from_secs(now.checked_sub(self.at)?);
        (age <= LIFETIME).then_some(age)
    }

    /// The best rate that a cipher had, with whatever MAC: from end to end, or where that was not
    /// measured what the slower end can do.
    pub fn rate_of(&self, cipher: &str) -> Option<u64> {
        let rows = self.ciphers.iter().filter(|row| row.cipher == cipher);
        let rates = rows.filter_map(|row| match row.rate {
            0 => row.here.into_iter().chain(row.there).min(),
            rate => Some(rate),
        });
        rates.max()
    }

    /// The most that went that way without compression, in bytes a second.
    pub fn plain(&self, direction: Direction) -> Option<u64> {
        let rows = self.compression.iter();
        rows.filter(|row| row.direction == direction)
            .map(|row| row.plain)
            .max()
    }

    /// What `method` brought that way for data that became as small as `left` of a thousand, where
    /// data of about that kind were measured.
    pub fn compressed(
        &self,
        method: Method,
        direction: Direction,
        left: u32,
    ) -> Option<&Compressed> {
        const LIKE: u32 = 150;
        let same = |row: &&Compressed| row.method == method && row.direction == direction;
        let rows = self.compression.iter().filter(same);
        rows.filter(|row| row.left.abs_diff(left) <= LIKE)
            .min_by_key(|row| row.left.abs_diff(left))
    }

    /// Without what would not fit a memory.
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
        let findings = Findings {
            ciphers: vec![slow, cipher("aes128-ctr", 120), ends],
            ..Findings::default()
        };
        assert_eq!(findings.rate_of("aes128-ctr"), Some(120));
        assert_eq!(findings.rate_of("chacha20-poly1305@openssh.com"), Some(300));
        assert_eq!(findings.rate_of("aes256-ctr"), None);
    }

    #[test]
    fn findings_age() {
        let now = UNIX_EPOCH + Duration::from_secs(100 * 86_400);
        let made = |at| Findings {
            at,
            ..Findings::default()
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
        let row = |left, rate| Compressed {
            data: Data::Text,
            method: Method::Zlib,
            direction: Direction::Up,
            left,
            rate,
            plain: 100,
        };
        let findings = Findings {
            compression: vec![row(300, 250), row(1000, 60)],
            ..Findings::default()
        };
        let found = |left| findings.compressed(Method::Zlib, Direction::Up, left);
        assert!(found(350).is_some_and(Compressed::paid));
        assert!(found(990).is_some_and(|row| !row.paid()));
        assert_eq!(found(600), None);
        let down = findings.compressed(Method::Zlib, Direction::Down, 300);
        assert_eq!(down, None);
        assert!(!row(300, 101).paid() && row(300, 103).paid());
    }

    #[test]
    fn a_memory_is_not_outgrown() {
        let long = "x".repeat(100);
        let mut ciphers = vec![cipher(&long, 1)];
        ciphers.extend((0..100).map(|n| cipher(&format!("c{n}"), n)));
        let findings = Findings {
            by: "é".repeat(100),
            ciphers,
            ..Findings::default()
        };
        let bounded = findings.bounded();
        assert_eq!(bounded.ciphers.len(), ROWS - 1);
        assert!(bounded.by.len() <= NAME + 2 && bounded.by.starts_with('é'));
        let text = serde_json::to_string(&bounded).unwrap();
        assert_eq!(serde_json::from_str::<Findings>(&text).unwrap(), bounded);
    }
}
