//! Receiving side of a striped connection: restores the order of pieces, within the credit granted.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};

use crate::squeeze::inflate;
use crate::{DataFrame, FIRST_CREDIT, PairError};

/// Initial window in bytes. The window doubles when the peer relay has used it up and the reader
/// here has taken nearly all of it.
const WINDOW: u64 = 4 << 20;
/// Maximum delay of an acknowledgement that nothing waits for; until then it can go with others.
const DELAY: Duration = Duration::from_millis(20);
/// Number of bytes that are acknowledged at once.
const OFTEN: u64 = 64 << 10;
/// Maximum number of pieces that wait for an earlier one: small ones take more memory than their
/// payload.
const MOST_PIECES: usize = 32 << 10;
/// Pieces below this size are copied together.
const SMALL: usize = 4 << 10;

/// Receiving side of a striped connection: restores the order of the pieces, acknowledges them, and
/// grants the sender credit from a window that grows up to `most`.
#[derive(Debug)]
pub(crate) struct StripedReceiver {
    /// All bytes before this offset have arrived.
    received: u64,
    /// All bytes before this offset were read.
    delivered: u64,
    /// Offset at which the stream ends.
    end: Option<u64>,
    /// The end of the stream was passed on.
    passed_on: bool,
    /// Bytes in order, ready to be read.
    ready: VecDeque<Bytes>,
    /// Pieces behind a missing one, by offset.
    pieces: BTreeMap<u64, Bytes>,
    window: u64,
    most: u64,
    /// Limit that followed from the window when it was last enlarged.
    grown: u64,
    told: LastAck,
    /// Time since which there is something to acknowledge.
    since: Option<Instant>,
    urgent: bool,
}

/// Acknowledgement that was sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastAck {
    received: u64,
    limit: u64,
}

impl StripedReceiver {
    /// Creates the receiving side with a buffer of `most` bytes.
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
            told: LastAck {
                received: 0,
                limit: FIRST_CREDIT,
            },
            since: None,
            urgent: true,
        }
    }

    /// Takes a received piece.
    pub(crate) fn piece(&mut self, piece: &DataFrame, now: Instant) -> Result<(), PairError> {
        let (offset, end) = (piece.offset, piece.end());
        if end > self.told.limit {
            return Err(PairError::BeyondCredit);
        }
        if self.end.is_some_and(|last| end > last) {
            return Err(PairError::Overlap);
        }
        // The piece was sent again on another stripe, or the acknowledgement was lost with its
        // stripe.
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

    /// Reports if exactly this piece is waiting already; an overlap with others is an error.
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

    /// Takes the end of the stream at this offset.
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

    /// Handles a sender that is blocked at this limit, and enlarges the window. On a long path the
    /// sender may have received newer limits since, so that each size of the window counts once.
    pub(crate) fn blocked(&mut self, limit: u64) {
        let unread = self.received - self.delivered;
        if limit >= self.grown && unread <= self.window / 4 && self.window < self.most {
            self.window = (self.window * 2).min(self.most);
            self.grown = self.limit();
        }
        self.urgent |= self.limit() > self.told.limit;
    }

    /// Reports if there are bytes or an end to read.
    pub(crate) fn is_readable(&self) -> bool {
        !self.ready.is_empty() || self.is_ended()
    }

    /// Reports if all bytes were read and the stream has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.end == Some(self.delivered)
    }

    /// Reports if the end, and all bytes before it, were passed on.
    pub(crate) fn is_over(&self) -> bool {
        self.passed_on
    }

    /// Reads bytes in order.
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
            // An idle connection keeps no memory.
            self.ready = VecDeque::new();
        }
        self.delivered += read as u64;
        if read > 0 {
            self.since.get_or_insert(now);
        }
        read
    }

    /// Records that the end was passed on to the reader; it is acknowledged only then.
    pub(crate) fn pass_on_end(&mut self) {
        if self.is_ended() && !self.passed_on {
            self.passed_on = true;
            self.urgent = true;
        }
    }

    /// Returns the number of bytes that have arrived in order, plus one for an end that was passed
    /// on.
    pub(crate) fn received(&self) -> u64 {
        self.received + u64::from(self.passed_on)
    }

    fn limit(&self) -> u64 {
        // A limit that was granted is never taken back.
        (self.delivered + self.window).max(self.told.limit)
    }

    /// Returns the acknowledgement (received, limit) if one is due; with `beside`, also one that is
    /// not due yet, to go along with other frames.
    pub(crate) fn ack(&mut self, beside: bool, now: Instant) -> Option<(u64, u64)> {
        let new = LastAck {
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

    /// Returns the time at which a delayed acknowledgement is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + DELAY)
    }

    /// Repeats the acknowledgement: the last one may be lost with its stripe.
    pub(crate) fn tell_again(&mut self) {
        self.urgent = true;
    }
}
