use std::fmt;

use super::checksum::crc32c;
use super::record::{LONGEST, Record, SYNCED};
use super::state::State;

/// Format version, raised when a record changes its meaning or a new kind appears, since an older
/// longhaul must not skip unknown records.
const VERSION: u32 = 3;
const MAGIC: &[u8; 12] = b"longhaul-jnl";
/// Length of magic and version, in bytes.
pub const HEADER: usize = MAGIC.len() + 4;
/// Length and checksum before each record, in bytes.
const FRAME: usize = 8;
/// Length of a `Synced` record in bytes: its kind and an offset.
const SYNCED_LEN: usize = 9;

/// Encodes records as journal bytes.
#[derive(Debug, Default)]
pub struct Writer {
    last: Vec<u8>,
    payload: Vec<u8>,
}

impl Writer {
    /// Appends the file header (magic and version).
    pub fn header(out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
    }

    /// Appends a record. A record longer than [`LONGEST`] is omitted, and false is returned: its
    /// file is copied without a journal entry.
    pub fn write(&mut self, record: &Record, out: &mut Vec<u8>) -> bool {
        // Checked first, since the path would become the base for the next path.
        let long = matches!(record, Record::Begun { target, .. } if target.len() > LONGEST - 128);
        if long {
            return false;
        }
        self.payload.clear();
        record.encode(&mut self.last, &mut self.payload);
        if self.payload.len() > LONGEST {
            return false;
        }
        let len = u32::try_from(self.payload.len()).unwrap_or(0).to_be_bytes();
        out.extend_from_slice(&len);
        out.extend_from_slice(&crc32c(&[&len, &self.payload]).to_be_bytes());
        out.extend_from_slice(&self.payload);
        true
    }
}

/// Reason why a journal cannot be used: one sentence without the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnusableJournal {
    /// The file is no journal.
    Foreign,
    /// Another version of longhaul wrote the journal.
    Version(u32),
    /// A record that had been synced is damaged.
    Damaged {
        /// Byte offset of the record in the file.
        at: usize,
    },
}

impl fmt::Display for UnusableJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it is not a journal of longhaul"),
            Self::Version(version) => write!(
                f,
                "it is of version {version}, and this longhaul reads version {VERSION}"
            ),
            Self::Damaged { at } => write!(f, "it is damaged at byte {at}"),
        }
    }
}

impl std::error::Error for UnusableJournal {}

/// Result of reading the journal of an earlier run.
#[derive(Debug)]
pub struct Replay {
    /// Progress of the earlier run.
    pub state: State,
    /// Length in bytes of the intact part of the file. The rest was being written when the run
    /// ended: truncate the file to this length before appending.
    pub good: usize,
}

/// Reads a journal. Reading stops at a damaged record, which was being written at the crash unless
/// a later record proves that it had been synced.
///
/// # Errors
///
/// Nothing in the journal may be used.
pub fn replay(bytes: &[u8]) -> Result<Replay, UnusableJournal> {
    let mut header = Vec::new();
    Writer::header(&mut header);
    let mut state = State::default();
    let Some((head, _)) = bytes.split_at_checked(HEADER) else {
        // The first write was incomplete.
        return match header.starts_with(bytes) {
            true => Ok(Replay { state, good: 0 }),
            false => Err(UnusableJournal::Foreign),
        };
    };
    if head != header {
        let version = head.strip_prefix(MAGIC).and_then(|v| v.try_into().ok());
        return Err(version.map_or(UnusableJournal::Foreign, |v| {
            UnusableJournal::Version(u32::from_be_bytes(v))
        }));
    }
    let mut last = Vec::new();
    let mut at = HEADER;
    while let Some(payload) = bytes.get(at..).and_then(framed) {
        let Some(record) = Record::decode(payload, &mut last) else {
            return Err(UnusableJournal::Damaged { at });
        };
        let first = matches!(record, Record::Copy { .. });
        if first != (at == HEADER) || !state.apply(record) {
            return Err(UnusableJournal::Damaged { at });
        }
        at += FRAME + payload.len();
    }
    match was_synced(bytes, at) {
        true => Err(UnusableJournal::Damaged { at }),
        false => Ok(Replay { state, good: at }),
    }
}

/// Returns the payload of the first record, if it is complete and its checksum is right.
fn framed(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let size = u32::from_be_bytes(*len) as usize;
    if size == 0 || size > LONGEST {
        return None;
    }
    let payload = rest.get(..size)?;
    (crc32c(&[len, payload]) == u32::from_be_bytes(*sum)).then_some(payload)
}

/// Returns true if a record after `at` states that the bytes at `at` had been synced.
fn was_synced(bytes: &[u8], at: usize) -> bool {
    let behind = bytes.get(at..).unwrap_or_default();
    let whole = FRAME + SYNCED_LEN;
    let len = [0, 0, 0, SYNCED_LEN as u8];
    behind.windows(whole).any(|window| {
        if !window.starts_with(&len) || window.get(FRAME) != Some(&SYNCED) {
            return false;
        }
        let said = framed(window).and_then(|p| Record::decode(p, &mut Vec::new()));
        matches!(said, Some(Record::Synced { offset }) if offset > at as u64)
    })
}
