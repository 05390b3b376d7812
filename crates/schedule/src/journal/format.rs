use std::fmt;

use super::checksum::crc32c;
use super::record::{JournalRecord, LONGEST, SYNCED};
use super::state::JournalState;

/// Format version, raised when a record changes its meaning or a new kind appears, since an older
/// longhaul must not skip unknown records.
const VERSION: u32 = 6;
const MAGIC: &[u8; 12] = b"longhaul-jnl";
/// Length of magic and version, in bytes.
pub const HEADER: usize = MAGIC.len() + 4;
/// Length and checksum before each record, in bytes.
const FRAME: usize = 8;
/// Length of a `Synced` record in bytes: its kind and an offset.
const SYNCED_LEN: usize = 9;

/// Encodes records as bytes to append to a journal: length, CRC-32C and payload of each. Keeps the
/// last path, because the next one is stored relative to it.
#[derive(Debug, Default)]
pub struct JournalEncoder {
    last: Vec<u8>,
    payload: Vec<u8>,
}

impl JournalEncoder {
    /// Appends the file header (magic and version).
    pub fn header(out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
    }

    /// Appends a record. A record longer than [`LONGEST`] is omitted, and false is returned: its
    /// file is copied without a journal entry.
    pub fn write(&mut self, record: &JournalRecord, out: &mut Vec<u8>) -> bool {
        // Checked first, since the path would become the base for the next path.
        let long =
            matches!(record, JournalRecord::Begun { target, .. } if target.len() > LONGEST - 128);
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
pub enum JournalReadError {
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

impl fmt::Display for JournalReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a journal of longhaul"),
            Self::Version(version) => write!(
                f,
                "version {version} is not supported: this longhaul reads version {VERSION}"
            ),
            Self::Damaged { at } => write!(f, "damaged at byte {at}"),
        }
    }
}

impl std::error::Error for JournalReadError {}

/// Result of reading the journal of an earlier run.
#[derive(Debug)]
pub struct JournalReplay {
    /// Progress of the earlier run.
    pub state: JournalState,
    /// Length in bytes of the intact part of the file. The rest was being written when the run
    /// ended: truncate the file to this length before appending.
    pub good: usize,
}

/// Reads a whole journal.
///
/// # Errors
///
/// Those of [`JournalReplayer::take`] and [`JournalReplayer::end`].
pub fn replay(bytes: &[u8]) -> Result<JournalReplay, JournalReadError> {
    let mut replayer = JournalReplayer::new(usize::MAX);
    replayer.take(bytes)?;
    replayer.end()
}

/// Reads a journal in pieces, and holds at most one record beyond the [`JournalState`].
///
/// Reading stops at a damaged record, which was being written at the crash unless a later record
/// proves that it had been synced.
#[derive(Debug)]
pub struct JournalReplayer {
    state: JournalState,
    /// Base of the next path.
    last: Vec<u8>,
    /// Byte offset in the file of the first record that was not applied.
    at: usize,
    /// Bytes from there on, or after a damaged record the last bytes.
    pending: Vec<u8>,
    torn: bool,
}

impl JournalReplayer {
    /// Reads into a state that takes at most about `most` bytes of memory
    /// ([`JournalState::bounded`]).
    pub fn new(most: usize) -> Self {
        Self {
            state: JournalState::bounded(most),
            last: Vec::new(),
            at: 0,
            pending: Vec::new(),
            torn: false,
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    ///
    /// Nothing in the journal may be used.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), JournalReadError> {
        // Pieces keep the memory small for any length of `bytes`.
        for piece in bytes.chunks(LONGEST) {
            self.pending.extend_from_slice(piece);
            self.apply()?;
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), JournalReadError> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        if self.at == 0 {
            let Some((head, behind)) = rest.split_at_checked(HEADER) else {
                self.pending = pending;
                return Ok(());
            };
            check_header(head)?;
            (self.at, rest) = (HEADER, behind);
        }
        while !self.torn {
            let payload = match framed(rest) {
                FirstRecord::Whole(payload) => payload,
                FirstRecord::Incomplete => break,
                FirstRecord::Damaged => {
                    self.torn = true;
                    break;
                }
            };
            let damaged = JournalReadError::Damaged { at: self.at };
            let record = JournalRecord::decode(payload, &mut self.last).ok_or(damaged)?;
            let first = matches!(record, JournalRecord::Copy { .. });
            if first != (self.at == HEADER) || !self.state.apply(record) {
                return Err(damaged);
            }
            let len = FRAME + payload.len();
            self.at += len;
            rest = rest.get(len..).unwrap_or_default();
        }
        if self.torn {
            self.check_synced(rest)?;
            let kept = rest.len().min(FRAME + SYNCED_LEN - 1);
            rest = rest.get(rest.len() - kept..).unwrap_or_default();
        }
        self.pending = rest.to_vec();
        Ok(())
    }

    /// Ends at the end of the file.
    ///
    /// # Errors
    ///
    /// Nothing in the journal may be used.
    pub fn end(self) -> Result<JournalReplay, JournalReadError> {
        if self.at == 0 {
            // The first write was incomplete.
            let mut header = Vec::new();
            JournalEncoder::header(&mut header);
            if !header.starts_with(&self.pending) {
                return Err(JournalReadError::Foreign);
            }
        }
        self.check_synced(&self.pending)?;
        Ok(JournalReplay {
            state: self.state,
            good: self.at,
        })
    }

    /// Fails if a record in `behind` states that the bytes at [`Self::at`] had been synced.
    fn check_synced(&self, behind: &[u8]) -> Result<(), JournalReadError> {
        let whole = FRAME + SYNCED_LEN;
        let len = [0, 0, 0, SYNCED_LEN as u8];
        let synced = behind.windows(whole).any(|window| {
            if !window.starts_with(&len) || window.get(FRAME) != Some(&SYNCED) {
                return false;
            }
            let FirstRecord::Whole(payload) = framed(window) else {
                return false;
            };
            let said = JournalRecord::decode(payload, &mut Vec::new());
            matches!(said, Some(JournalRecord::Synced { offset }) if offset > self.at as u64)
        });
        match synced {
            true => Err(JournalReadError::Damaged { at: self.at }),
            false => Ok(()),
        }
    }
}

fn check_header(head: &[u8]) -> Result<(), JournalReadError> {
    let version = head.strip_prefix(MAGIC).and_then(|v| v.try_into().ok());
    match version.map(u32::from_be_bytes) {
        Some(VERSION) => Ok(()),
        Some(version) => Err(JournalReadError::Version(version)),
        None => Err(JournalReadError::Foreign),
    }
}

/// First record of some journal bytes: whole, incomplete or damaged.
enum FirstRecord<'a> {
    /// The payload; its checksum is right.
    Whole(&'a [u8]),
    /// More bytes are needed.
    Incomplete,
    Damaged,
}

fn framed(bytes: &[u8]) -> FirstRecord<'_> {
    let Some((len, rest)) = bytes.split_first_chunk::<4>() else {
        return FirstRecord::Incomplete;
    };
    let size = u32::from_be_bytes(*len) as usize;
    if size == 0 || size > LONGEST {
        return FirstRecord::Damaged;
    }
    let Some((sum, rest)) = rest.split_first_chunk::<4>() else {
        return FirstRecord::Incomplete;
    };
    let Some(payload) = rest.get(..size) else {
        return FirstRecord::Incomplete;
    };
    match crc32c(&[len, payload]) == u32::from_be_bytes(*sum) {
        true => FirstRecord::Whole(payload),
        false => FirstRecord::Damaged,
    }
}
