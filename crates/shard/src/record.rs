//! Steps of a shard's file, and the check that they stay within the target.

use std::fmt;

use crate::PlanTotals;
use crate::shard_range_checker::{PlanRecordFile, ShardRangeChecker};

/// Longest name of an entry in bytes, as file systems and SFTP servers allow at most.
const LONGEST_NAME: usize = 1024;
/// Longest path in bytes, as a walk allows at most.
const LONGEST_PATH: usize = 16 << 10;
/// Largest number of directories above an entry.
const DEEPEST: usize = 4096;

const ENTER: u8 = 1;
const FILE: u8 = 2;
const SYMLINK: u8 = 3;
const LEAVE: u8 = 4;
const END: u8 = 5;
const RANGE: u8 = 6;

const HAS_MODE: u8 = 1;
const HAS_OWNER: u8 = 2;
const HAS_TIME: u8 = 4;
const HAS_NANOSECONDS: u8 = 8;

/// Attributes of an entry when the plan was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedAttributes {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Numeric owner and group.
    pub owner: Option<(u32, u32)>,
    /// Modification time in seconds since 1970.
    pub modified: Option<u32>,
    /// Nanoseconds of the modification time, if the source told them.
    pub nanoseconds: Option<u32>,
}

/// Range of a file that one shard writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRange {
    /// Size of the whole file in bytes.
    pub size: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Shard that writes the range.
    pub shard: u32,
}

impl PlannedRange {
    /// Offset of the first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Number of files that the range counts as: the first range counts as the file.
    fn files(&self) -> u64 {
        u64::from(self.offset == 0)
    }
}

/// One record of a shard's file: an entry, a step into or out of a directory, or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardFileRecord {
    /// Enters a directory of the current one. The first step enters the root, whose name is empty.
    Enter(Vec<u8>, PlannedAttributes),
    /// Regular file of this size.
    File(Vec<u8>, u64, PlannedAttributes),
    /// Range of a regular file, of which other shards write other ranges.
    Range(Vec<u8>, PlannedRange, PlannedAttributes),
    /// Symbolic link.
    Symlink(Vec<u8>, PlannedAttributes),
    /// Returns to the directory above.
    Leave,
    /// Ends the shard.
    End,
}

/// Reason why a shard's file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFileError(pub &'static str);

impl fmt::Display for ShardFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl ShardFileRecord {
    /// Appends the record.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Enter(name, attributes) => write_named(to, ENTER, name, attributes),
            Self::File(name, size, attributes) => {
                write_named(to, FILE, name, attributes);
                to.extend_from_slice(&size.to_be_bytes());
            }
            Self::Range(name, range, attributes) => {
                write_named(to, RANGE, name, attributes);
                for number in [range.size, range.offset, range.len] {
                    to.extend_from_slice(&number.to_be_bytes());
                }
                to.extend_from_slice(&range.shard.to_be_bytes());
            }
            Self::Symlink(name, attributes) => write_named(to, SYMLINK, name, attributes),
            Self::Leave => to.push(LEAVE),
            Self::End => to.push(END),
        }
    }
}

fn write_named(to: &mut Vec<u8>, kind: u8, name: &[u8], attributes: &PlannedAttributes) {
    let PlannedAttributes {
        mode,
        owner,
        modified,
        nanoseconds,
    } = *attributes;
    to.push(kind);
    let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
    to.extend_from_slice(&len.to_be_bytes());
    to.extend_from_slice(name.get(..usize::from(len)).unwrap_or_default());
    let bit = |known: bool, bit: u8| if known { bit } else { 0 };
    to.push(
        bit(mode.is_some(), HAS_MODE)
            | bit(owner.is_some(), HAS_OWNER)
            | bit(modified.is_some(), HAS_TIME)
            | bit(nanoseconds.is_some(), HAS_NANOSECONDS),
    );
    if let Some(mode) = mode {
        to.extend_from_slice(&mode.to_be_bytes());
    }
    if let Some((user, group)) = owner {
        to.extend_from_slice(&user.to_be_bytes());
        to.extend_from_slice(&group.to_be_bytes());
    }
    for number in [modified, nanoseconds].into_iter().flatten() {
        to.extend_from_slice(&number.to_be_bytes());
    }
}

/// Reads the first record of `bytes`, and returns it with its length; `None` if it is incomplete.
///
/// # Errors
/// The bytes are no record.
pub fn decode(bytes: &[u8]) -> Result<Option<(ShardFileRecord, usize)>, ShardFileError> {
    let mut rest = bytes;
    let record = match take(&mut rest) {
        None => return Ok(None),
        Some([LEAVE]) => ShardFileRecord::Leave,
        Some([END]) => ShardFileRecord::End,
        Some([kind @ (ENTER | FILE | SYMLINK | RANGE)]) => {
            let Some((name, attributes)) = named(&mut rest)? else {
                return Ok(None);
            };
            match kind {
                ENTER => ShardFileRecord::Enter(name, attributes),
                SYMLINK => ShardFileRecord::Symlink(name, attributes),
                RANGE => match range(&mut rest) {
                    Some(range) => ShardFileRecord::Range(name, range, attributes),
                    None => return Ok(None),
                },
                _ => match take(&mut rest) {
                    Some(size) => ShardFileRecord::File(name, u64::from_be_bytes(size), attributes),
                    None => return Ok(None),
                },
            }
        }
        Some(_) => return Err(ShardFileError("an entry of unknown type")),
    };
    Ok(Some((record, bytes.len() - rest.len())))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

fn range(rest: &mut &[u8]) -> Option<PlannedRange> {
    let mut number = || take(rest).map(u64::from_be_bytes);
    let (size, offset, len) = (number()?, number()?, number()?);
    let shard = take(rest).map(u32::from_be_bytes)?;
    Some(PlannedRange {
        size,
        offset,
        len,
        shard,
    })
}

fn named(rest: &mut &[u8]) -> Result<Option<(Vec<u8>, PlannedAttributes)>, ShardFileError> {
    let Some(len) = take(rest).map(|len| usize::from(u16::from_be_bytes(len))) else {
        return Ok(None);
    };
    if len > LONGEST_NAME {
        return Err(ShardFileError("a name is too long"));
    }
    let Some((name, after)) = rest.split_at_checked(len) else {
        return Ok(None);
    };
    *rest = after;
    let Some([has]) = take(rest) else {
        return Ok(None);
    };
    if has >= 2 * HAS_NANOSECONDS {
        return Err(ShardFileError("an entry with unknown attributes"));
    }
    let mut attributes = PlannedAttributes::default();
    let word = |rest: &mut &[u8]| take(rest).map(u32::from_be_bytes);
    if has & HAS_MODE != 0 {
        let Some(mode) = take(rest).map(u16::from_be_bytes) else {
            return Ok(None);
        };
        if mode > 0o7777 {
            return Err(ShardFileError("a mode with other bits than permissions"));
        }
        attributes.mode = Some(mode);
    }
    if has & HAS_OWNER != 0 {
        let (Some(user), Some(group)) = (word(rest), word(rest)) else {
            return Ok(None);
        };
        attributes.owner = Some((user, group));
    }
    if has & HAS_TIME != 0 {
        let Some(modified) = word(rest) else {
            return Ok(None);
        };
        attributes.modified = Some(modified);
    }
    if has & HAS_NANOSECONDS != 0 {
        let Some(nanoseconds) = word(rest) else {
            return Ok(None);
        };
        if nanoseconds >= 1_000_000_000 {
            return Err(ShardFileError("a time with too many nanoseconds"));
        }
        attributes.nanoseconds = Some(nanoseconds);
    }
    Ok(Some((name.to_vec(), attributes)))
}

/// Checks the steps of a shard: they begin at the root, stay below it, and end there.
#[derive(Clone, Debug, Default)]
pub struct ShardStepCheck {
    /// Lengths of the paths of the open directories, the root first.
    open: Vec<usize>,
    begun: bool,
    ended: bool,
    totals: PlanTotals,
    directories: u64,
    ranges: Option<ShardRangeChecker>,
}

impl ShardStepCheck {
    /// Returns the check of a file of a plan, which also checks that its ranges fit together.
    pub fn of(file: PlanRecordFile) -> Self {
        Self {
            ranges: Some(ShardRangeChecker::new(file)),
            ..Self::default()
        }
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// The step leads out of the tree, or is not possible here.
    pub fn step(&mut self, record: &ShardFileRecord) -> Result<(), ShardFileError> {
        if self.ended {
            return Err(ShardFileError("entries after the end of the list"));
        }
        if let Some(ranges) = &mut self.ranges {
            ranges.step(record)?;
        }
        match record {
            ShardFileRecord::Enter(name, _) if !self.begun => {
                if !name.is_empty() {
                    return Err(ShardFileError("the top directory has a name"));
                }
                self.begun = true;
                self.open.push(0);
            }
            ShardFileRecord::Enter(name, _) => {
                let len = self.path_of(name)?;
                if self.open.len() >= DEEPEST {
                    return Err(ShardFileError("directories are nested too deeply"));
                }
                self.open.push(len);
                self.directories += 1;
            }
            ShardFileRecord::File(name, size, _) => {
                self.path_of(name)?;
                self.count(PlanTotals {
                    files: 1,
                    bytes: *size,
                    ..PlanTotals::default()
                })?;
            }
            ShardFileRecord::Range(name, range, _) => {
                self.path_of(name)?;
                let end = range.offset.checked_add(range.len);
                if range.len == 0 || end.is_none_or(|end| end > range.size) {
                    return Err(ShardFileError("a part of a file lies beyond its end"));
                }
                self.count(PlanTotals {
                    files: range.files(),
                    bytes: range.len,
                    ..PlanTotals::default()
                })?;
            }
            ShardFileRecord::Symlink(name, _) => {
                self.path_of(name)?;
                self.count(PlanTotals {
                    symlinks: 1,
                    ..PlanTotals::default()
                })?;
            }
            ShardFileRecord::Leave => {
                if self.open.pop().is_none() {
                    return Err(ShardFileError("more directories end than begin"));
                }
            }
            ShardFileRecord::End if self.begun && self.open.is_empty() => self.ended = true,
            ShardFileRecord::End => return Err(ShardFileError("the list ends inside a directory")),
        }
        Ok(())
    }

    /// Returns the number of entries, and of directories below the root.
    ///
    /// # Errors
    /// The last step was not the end.
    pub fn finish(&self) -> Result<(PlanTotals, u64), ShardFileError> {
        match self.ended {
            true => Ok((self.totals, self.directories)),
            false => Err(ShardFileError("the list is cut off")),
        }
    }

    fn count(&mut self, more: PlanTotals) -> Result<(), ShardFileError> {
        let totals = self.totals.plus(more);
        self.totals = totals.ok_or(ShardFileError("the total size is impossibly large"))?;
        Ok(())
    }

    /// Returns the length of the path of an entry of the current directory.
    fn path_of(&self, name: &[u8]) -> Result<usize, ShardFileError> {
        let above = self
            .open
            .last()
            .ok_or(ShardFileError("an entry outside of every directory"))?;
        if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(ShardFileError(
                "a name with a slash or NUL byte, or . or ..",
            ));
        }
        let len = above + 1 + name.len();
        match len <= LONGEST_PATH {
            true => Ok(len),
            false => Err(ShardFileError("a path is too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> PlannedAttributes {
        PlannedAttributes {
            mode: Some(0o640),
            owner: Some((5, 6)),
            modified: Some(7),
            nanoseconds: Some(8),
        }
    }

    fn planned_range(offset: u64, len: u64) -> PlannedRange {
        PlannedRange {
            size: (1 << 40) + 7,
            offset,
            len,
            shard: 3,
        }
    }

    #[test]
    fn a_range_outside_of_its_file_is_refused() {
        for range in [
            planned_range(0, 0),
            planned_range(1 << 40, 8),
            planned_range(u64::MAX, 1),
            planned_range(1, u64::MAX),
        ] {
            let all = [
                ShardFileRecord::Enter(Vec::new(), some()),
                ShardFileRecord::Range(b"r".to_vec(), range, some()),
                ShardFileRecord::Leave,
                ShardFileRecord::End,
            ];
            let why = ShardFileError("a part of a file lies beyond its end");
            assert_eq!(read(&written(&all)), Err(why), "{range:?}");
        }
    }

    fn records() -> Vec<ShardFileRecord> {
        vec![
            ShardFileRecord::Enter(Vec::new(), some()),
            ShardFileRecord::File(b"a\xff".to_vec(), 12, PlannedAttributes::default()),
            ShardFileRecord::Enter(b"d".to_vec(), PlannedAttributes::default()),
            ShardFileRecord::Symlink(b"l".to_vec(), some()),
            ShardFileRecord::Range(b"r".to_vec(), planned_range(1 << 40, 7), some()),
            ShardFileRecord::Leave,
            ShardFileRecord::Leave,
            ShardFileRecord::End,
        ]
    }

    fn written(records: &[ShardFileRecord]) -> Vec<u8> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes));
        bytes
    }

    fn read(mut bytes: &[u8]) -> Result<Vec<ShardFileRecord>, ShardFileError> {
        let mut records = Vec::new();
        let mut check = ShardStepCheck::default();
        while let Some((record, len)) = decode(bytes)? {
            check.step(&record)?;
            records.push(record);
            bytes = &bytes[len..];
        }
        check.finish()?;
        Ok(records)
    }

    #[test]
    fn records_survive_their_bytes_and_a_cut_is_noticed() {
        let bytes = written(&records());
        assert_eq!(read(&bytes), Ok(records()));
        for at in 0..bytes.len() {
            assert!(read(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn no_name_leads_out_of_the_target() {
        let root = || ShardFileRecord::Enter(Vec::new(), PlannedAttributes::default());
        for name in [
            &b".."[..],
            b".",
            b"",
            b"a/b",
            b"/etc",
            b"a\0b",
            &[b'x'; 2000],
        ] {
            for entry in [
                ShardFileRecord::File(name.to_vec(), 1, PlannedAttributes::default()),
                ShardFileRecord::Symlink(name.to_vec(), PlannedAttributes::default()),
                ShardFileRecord::Range(name.to_vec(), planned_range(0, 1), some()),
                ShardFileRecord::Enter(name.to_vec(), PlannedAttributes::default()),
            ] {
                let mut all = vec![root(), entry.clone()];
                if matches!(entry, ShardFileRecord::Enter(..)) {
                    all.push(ShardFileRecord::Leave);
                }
                all.extend([ShardFileRecord::Leave, ShardFileRecord::End]);
                assert!(read(&written(&all)).is_err(), "{entry:?}");
            }
        }
    }

    #[test]
    fn steps_that_leave_the_root_are_refused() {
        let file = || ShardFileRecord::File(b"f".to_vec(), 1, PlannedAttributes::default());
        let root = || ShardFileRecord::Enter(Vec::new(), PlannedAttributes::default());
        for (steps, why) in [
            (vec![file()], "an entry outside of every directory"),
            (
                vec![root(), ShardFileRecord::Leave, ShardFileRecord::Leave],
                "more directories end than begin",
            ),
            (
                vec![root(), ShardFileRecord::Leave, file()],
                "an entry outside of every directory",
            ),
            (
                vec![root(), ShardFileRecord::End],
                "the list ends inside a directory",
            ),
            (
                vec![
                    root(),
                    ShardFileRecord::Leave,
                    ShardFileRecord::End,
                    ShardFileRecord::End,
                ],
                "entries after the end of the list",
            ),
            (
                vec![ShardFileRecord::Enter(
                    b"x".to_vec(),
                    PlannedAttributes::default(),
                )],
                "the top directory has a name",
            ),
        ] {
            assert_eq!(read(&written(&steps)), Err(ShardFileError(why)));
        }
        let mut deep = vec![root()];
        deep.resize(
            5000,
            ShardFileRecord::Enter(b"d".to_vec(), PlannedAttributes::default()),
        );
        assert_eq!(
            read(&written(&deep)),
            Err(ShardFileError("directories are nested too deeply"))
        );
    }

    #[test]
    fn sizes_do_not_wrap_around() {
        let file = |n: u8| ShardFileRecord::File(vec![n], u64::MAX, PlannedAttributes::default());
        let all = [
            ShardFileRecord::Enter(Vec::new(), some()),
            file(b'a'),
            file(b'b'),
        ];
        assert_eq!(
            read(&written(&all)),
            Err(ShardFileError("the total size is impossibly large"))
        );
    }
}
