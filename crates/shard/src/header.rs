//! Text file of a plan: what is copied to where, and the checksum of each shard's file.

use std::fmt;

use crate::text::{is_hex, line, number, split, unescaped};

/// Largest number of shards of a plan.
pub const MOST_SHARDS: u32 = 100_000;
/// Length of a checksum in hexadecimal digits.
const SUM: usize = 64;
const FIRST: &str = "longhaul-plan";
const VERSION: &str = "1";
/// Version of a plan whose large files are split into ranges.
const WITH_RANGES: &str = "2";

/// Number of entries, and bytes of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanTotals {
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Bytes of the regular files.
    pub bytes: u64,
}

impl PlanTotals {
    /// Adds other totals; `None` if a sum overflows.
    pub fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            files: self.files.checked_add(other.files)?,
            symlinks: self.symlinks.checked_add(other.symlinks)?,
            bytes: self.bytes.checked_add(other.bytes)?,
        })
    }
}

/// Checksum and contents of a file of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTotals {
    /// Length of the file in bytes.
    pub len: u64,
    /// Checksum of the file in hexadecimal.
    pub sum: String,
    /// Entries of the file.
    pub totals: PlanTotals,
}

/// Header of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    /// Source operand, with an absolute path if it is local.
    pub source: Vec<u8>,
    /// Target operand, with an absolute path if it is local.
    pub target: Vec<u8>,
    /// Number of directories below the root.
    pub directories: u64,
    /// File of all directories, and of the files that are split into ranges.
    pub tree: ShardTotals,
    /// Files of the shards.
    pub shards: Vec<ShardTotals>,
}

/// Reason why the header of a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanHeaderError {
    /// The text is no plan.
    NotAPlan,
    /// The plan has this version, which is unknown.
    Version(String),
    /// The plan is incomplete or was changed; contains the place.
    Damaged(&'static str),
}

impl fmt::Display for PlanHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPlan => f.write_str(
                "this file was not written by longhaul plan: check that you named the right folder",
            ),
            Self::Version(version) => write!(
                f,
                "the plan has version {version}, and this longhaul knows versions {VERSION} and {WITH_RANGES}: use the \
                 longhaul that made the plan, or make a new plan"
            ),
            Self::Damaged(place) => write!(
                f,
                "the plan is damaged ({place}): run longhaul plan again with another folder"
            ),
        }
    }
}

impl PlanHeader {
    /// Returns the totals of all shards; `None` if a sum overflows.
    pub fn totals(&self) -> Option<PlanTotals> {
        let mut totals = self.shards.iter().map(|shard| shard.totals);
        totals.try_fold(PlanTotals::default(), PlanTotals::plus)
    }

    /// Writes the header. `sum` is the checksum function; the checksum of the text is the last line
    /// and identifies the plan.
    pub fn write(&self, sum: impl Fn(&[u8]) -> String) -> String {
        let version = match self.tree.totals.files {
            0 => VERSION,
            _ => WITH_RANGES,
        };
        let mut text = format!("{FIRST} {version}\n");
        line(&mut text, "source", &self.source);
        line(&mut text, "target", &self.target);
        text.push_str(&format!("directories {}\n", self.directories));
        write_file(&mut text, "tree", &self.tree);
        text.push_str(&format!("shards {}\n", self.shards.len()));
        for shard in &self.shards {
            write_file(&mut text, "shard", shard);
        }
        let end = sum(text.as_bytes());
        text.push_str(&format!("end {end}\n"));
        text
    }

    /// Parses a header, and returns it with the plan's identifier.
    ///
    /// # Errors
    /// The text is no plan, has another version, or is damaged.
    pub fn parse(
        text: &[u8],
        sum: impl Fn(&[u8]) -> String,
    ) -> Result<(Self, String), PlanHeaderError> {
        let text = std::str::from_utf8(text).map_err(|_| PlanHeaderError::NotAPlan)?;
        let first = text.split('\n').next().unwrap_or_default();
        match split(first) {
            (FIRST, VERSION | WITH_RANGES) => {}
            (FIRST, other) if number(other).is_some() => {
                return Err(PlanHeaderError::Version(other.to_owned()));
            }
            _ => return Err(PlanHeaderError::NotAPlan),
        }
        let body = text
            .strip_suffix('\n')
            .ok_or(PlanHeaderError::Damaged("its last line"))?;
        let (body, end) = body
            .rsplit_once('\n')
            .ok_or(PlanHeaderError::Damaged("its last line"))?;
        let id = match split(end) {
            ("end", id) if is_hex(id, SUM) => id,
            _ => return Err(PlanHeaderError::Damaged("its last line")),
        };
        let summed = text.get(..body.len() + 1).unwrap_or_default();
        if sum(summed.as_bytes()) != id {
            return Err(PlanHeaderError::Damaged("its checksum does not match"));
        }
        let header = Self::parse_body(body)?;
        Ok((header, id.to_owned()))
    }

    fn parse_body(body: &str) -> Result<Self, PlanHeaderError> {
        let mut lines = body.split('\n').skip(1);
        let mut value = |name: &str| {
            let (found, value) = split(lines.next()?);
            (found == name).then_some(value)
        };
        let operand = |text: Option<&str>| text.and_then(unescaped).filter(|o| !o.is_empty());
        let source = operand(value("source")).ok_or(PlanHeaderError::Damaged("its line source"))?;
        let target = operand(value("target")).ok_or(PlanHeaderError::Damaged("its line target"))?;
        let directories = value("directories").and_then(number);
        let directories = directories.ok_or(PlanHeaderError::Damaged("its line directories"))?;
        let tree = value("tree").and_then(read_file);
        let tree = tree.ok_or(PlanHeaderError::Damaged("its line tree"))?;
        let count = value("shards").and_then(number).unwrap_or_default();
        let count = u32::try_from(count).unwrap_or_default();
        if !(1..=MOST_SHARDS).contains(&count) {
            return Err(PlanHeaderError::Damaged("its line shards"));
        }
        let mut shards = Vec::new();
        for _ in 0..count {
            let shard = value("shard").and_then(read_file);
            shards.push(shard.ok_or(PlanHeaderError::Damaged("its lines shard"))?);
        }
        if lines.next().is_some() {
            return Err(PlanHeaderError::Damaged("its lines shard"));
        }
        let header = Self {
            source,
            target,
            directories,
            tree,
            shards,
        };
        match header.totals() {
            Some(_) => Ok(header),
            None => Err(PlanHeaderError::Damaged("its totals do not match")),
        }
    }
}

fn write_file(text: &mut String, name: &str, file: &ShardTotals) {
    let ShardTotals { len, sum, totals } = file;
    let PlanTotals {
        files,
        symlinks,
        bytes,
    } = totals;
    text.push_str(&format!("{name} {files} {symlinks} {bytes} {len} {sum}\n"));
}

fn read_file(text: &str) -> Option<ShardTotals> {
    let mut words = text.split(' ');
    let mut next = || words.next().and_then(number);
    let totals = PlanTotals {
        files: next()?,
        symlinks: next()?,
        bytes: next()?,
    };
    let len = next()?;
    let sum = words.next().filter(|sum| is_hex(sum, SUM))?;
    words.next().is_none().then(|| ShardTotals {
        len,
        sum: sum.to_owned(),
        totals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checksum function that notices changes of this test.
    fn sum(bytes: &[u8]) -> String {
        let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
        format!("{:064x}", bytes.iter().fold(7, add))
    }

    fn header() -> PlanHeader {
        let file = |n: u64| ShardTotals {
            len: n,
            sum: sum(&[1]),
            totals: PlanTotals {
                files: n,
                symlinks: 1,
                bytes: 5 * n,
            },
        };
        PlanHeader {
            source: b"/a b\n%".to_vec(),
            target: b"h:\xff".to_vec(),
            directories: 3,
            tree: file(0),
            shards: (0..4).map(file).collect(),
        }
    }

    #[test]
    fn a_header_survives_its_text() {
        let text = header().write(sum);
        let (read, id) = PlanHeader::parse(text.as_bytes(), sum).unwrap();
        assert_eq!(read, header());
        assert!(text.ends_with(&format!("end {id}\n")));
        assert_eq!(read.totals().unwrap().bytes, 30);
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let text = header().write(sum).into_bytes();
        for at in 0..text.len() {
            assert!(PlanHeader::parse(&text[..at], sum).is_err(), "cut at {at}");
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert!(PlanHeader::parse(&changed, sum).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let text = header()
            .write(sum)
            .replace("longhaul-plan 1", "longhaul-plan 3");
        let error = PlanHeader::parse(text.as_bytes(), sum).unwrap_err();
        assert_eq!(error, PlanHeaderError::Version("3".to_owned()));
        let nothing = PlanHeader::parse(b"hello\n", sum).unwrap_err();
        assert_eq!(nothing, PlanHeaderError::NotAPlan);
    }

    #[test]
    fn totals_that_overflow_are_refused() {
        let mut header = header();
        for shard in &mut header.shards {
            shard.totals.bytes = u64::MAX / 2;
        }
        let text = header.write(sum);
        let error = PlanHeader::parse(text.as_bytes(), sum).unwrap_err();
        assert_eq!(error, PlanHeaderError::Damaged("its totals do not match"));
    }
}
