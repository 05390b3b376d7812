//! What comes: put into its order, within what was let.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};

use crate::squeeze::inflate;
use crate::{FIRST_CREDIT, PairError, Piece};

/// A window begins with so much; it is doubled when the other half has used it up and whoever reads
/// here has taken all.
const WINDOW: u64 = 4 << 20;
/// An acknowledgement that nothing waits for is sent with others, or after this long.
const DELAY: Duration = Duration::from_millis(20);
/// So many bytes are acknowledged at once.
const OFTEN: u64 = 64 << 10;
/// Pieces that wait for one before them: small ones cost more memory than they have bytes.
const MOST_PIECES: usize = 32 << 10;
/// Smaller pieces are copied together.
const SMALL: usize = 4 << 10;

/// What comes.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// All in front of this is there.
    received: u64,
    /// All in front of this was read.
    delivered: u64,
    /// Where the bytes end.
    end: Option<u64>,
    /// That was passed on.
    passed_on: bool,
    /// In order, to be read.
    ready: VecDeque<Bytes>,
    /// Behind what is missing.
    pieces: BTreeMap<u64, Bytes>,
    window: u64,
    most: u64,
    /// The limit that came of the window when it was made larger last.
    grown: u64,
    told: LastReported,
    /// Since when there is something to acknowledge.
    since: Option<Instant>,
    urgent: bool,
}

/// What the other half was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastReported {
    received: u64,
    limit: u64,
}

impl Incoming {
    /// With memory for so many bytes.
    pub(crate) fn new(most: u64) -> Self {
        let most = most.max(FIRST_CREDIT);
        Self {
            received: 0,
            delivered: 0,
            end: None,
            passed_on: false,
            ready: VecDeque::new(),
            pieces: BTreeMap::new(),
            window: WINDOW.min(most),
            grown: WINDOW.min(most),
            most,
            told: LastReported {
                received: 0,
                limit: FIRST_CREDIT,
            },
            since: None,
            urgent: true,
        }
    }

    /// A piece has come.
    pub(crate) fn piece(&mut self, piece: &Piece, now: Instant) -> Result<(), PairError> {
        let (offset, end) = (piece.offset, piece.end());
        if end > self.told.limit {
            return Err(PairError::BeyondCredit);
        }
        if self.end.is_some_and(|last| end > last) {
            return Err(PairError::Overlap);
        }
        // It was sent again on another leg, or the acknowledgement was lost with its leg.
        if end <= self.received {
            self.urgent = true;
            return Ok(());
        }
        if offset < self.received {
            return Err(PairError::Overlap);
        }
        if self.is_there(offset, end)? {
            return Ok(());
        }
        let bytes = match piece.packed {
            true => inflate(&piece.bytes, piece.len as usize)?,
            false => piece.bytes.clone(),
        };
        self.since.get_or_insert(now);
        if offset > self.received {
            if self.pieces.len() >= MOST_PIECES {
                return Err(PairError::BeyondCredit);
            }
            self.pieces.insert(offset, bytes);
            return Ok(());
        }
        self.append(bytes);
        while let Some(bytes) = self.pieces.remove(&self.received) {
            self.append(bytes);
        }
        Ok(())
    }

    /// Whether this very piece waits already.
    fn is_there(&self, offset: u64, end: u64) -> Result<bool, PairError> {
        let until = |(at, bytes): (&u64, &Bytes)| (*at, at.saturating_add(bytes.len() as u64));
        if let Some(own) = self.pieces.get(&offset) {
            return match offset + own.len() as u64 == end {
                true => Ok(true),
                false => Err(PairError::Overlap),
            };
        }
        let before = self.pieces.range(..offset).next_back().map(until);
        let behind = self.pieces.range(offset..).next().map(until);
        let clear = before.is_none_or(|(_, until)| until <= offset)
            && behind.is_none_or(|(from, _)| from >= end);
        match clear {
            true => Ok(false),
            false => Err(PairError::Overlap),
        }
    }

    fn append(&mut self, bytes: Bytes) {
        self.received += bytes.len() as u64;
        if let Some(last) = self.ready.back_mut()
            && bytes.len() < SMALL
            && last.len() < 16 * SMALL
        {
            let mut joined = BytesMut::from(std::mem::take(last));
            joined.extend_from_slice(&bytes);
            *last = joined.freeze();
            return;
        }
        self.ready.push_back(bytes);
    }

    /// The bytes end here.
    pub(crate) fn end(&mut self, at: u64) -> Result<(), PairError> {
        let last = self.pieces.last_key_value();
        let behind = last.map_or(self.received, |(offset, bytes)| {
            offset.saturating_add(bytes.len() as u64)
        });
        if self.end.is_some_and(|own| own != at) || (self.end.is_none() && at < behind) {
            return Err(PairError::Overlap);
        }
        self.end = Some(at);
        self.urgent = true;
        Ok(())
    }

    /// More would be sent than this limit lets. Others may have been told since, as far as the path is
    /// long; it counts once for each size of the window.
    pub(crate) fn blocked(&mut self, limit: u64) {
        let unread = self.received - self.delivered;
        if limit >= self.grown && unread <= self.window / 4 && self.window < self.most {
            self.window = (self.window * 2).min(self.most);
            self.grown = self.limit();
        }
        self.urgent |= self.limit() > self.told.limit;
    }

    /// Whether there is something to read.
    pub(crate) fn is_readable(&self) -> bool {
        !self.ready.is_empty() || self.is_ended()
    }

    /// Whether all bytes were read and there are no more.
    pub(crate) fn is_ended(&self) -> bool {
        self.end == Some(self.delivered)
    }

    /// Whether the end, and all in front of it, was passed on.
    pub(crate) fn is_over(&self) -> bool {
        self.passed_on
    }

    /// Reads what is in order.
    pub(crate) fn read(&mut self, into: &mut [u8], now: Instant) -> usize {
        let mut read = 0;
        while let Some(first) = self.ready.front_mut() {
            let rest = into.get_mut(read..).unwrap_or_default();
            let n = rest.len().min(first.len());
            if n == 0 {
                break;
            }
            if let (Some(rest), Some(bytes)) = (rest.get_mut(..n), first.get(..n)) {
                rest.copy_from_slice(bytes);
            }
            first.advance(n);
            read += n;
            if first.is_empty() {
                self.ready.pop_front();
            }
        }
        if self.ready.is_empty() {
            // Memory of a connection on which nothing happens.
            self.ready = VecDeque::new();
        }
        self.delivered += read as u64;
        if read > 0 {
            self.since.get_or_insert(now);
        }
        read
    }

    /// The end was passed on to whoever reads; only then it is acknowledged.
    pub(crate) fn pass_on_end(&mut self) {
        if self.is_ended() && !self.passed_on {
            self.passed_on = true;
            self.urgent = true;
        }
    }

    /// All that is there.
    pub(crate) fn received(&self) -> u64 {
        self.received + u64::from(self.passed_on)
    }

    fn limit(&self) -> u64 {
        // What was told once holds.
        (self.delivered + self.window).max(self.told.limit)
    }

    /// What to tell, if something is to be told now; or whatever there is to tell, beside others.
    pub(crate) fn ack(&mut self, beside: bool, now: Instant) -> Option<(u64, u64)> {
        let new = LastReported {
            received: self.received(),
            limit: self.limit(),
        };
        let much = new.received - self.told.received >= OFTEN
            || new.limit - self.told.limit >= self.window / 4;
        let late = self.since.is_some_and(|since| now >= since + DELAY);
        if !(self.urgent || new != self.told && (much || late || beside)) {
            return None;
        }
        self.urgent = false;
        self.since = None;
        self.told = new;
        Some((new.received, new.limit))
    }

    /// When there is something to tell without anything happening.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + DELAY)
    }

    /// What was told on a leg that is gone may not have come.
    pub(crate) fn tell_again(&mut self) {
        self.urgent = true;
    }
}
