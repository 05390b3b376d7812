//! Sending side of a striped connection: numbers pieces and keeps them until they are acknowledged.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::frame::{DataFrame, MOST_DATA, StripeFrame};
use crate::squeeze::FrameCompression;
use crate::{FIRST_CREDIT, PairError, StripeId};

/// Maximum number of unacknowledged frames: half of the pieces that the receiver lets wait for an
/// earlier one.
const MOST_SENT: usize = 16 << 10;
/// Minimum time before the first missing frame is sent again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sending side of a striped connection: cuts the stream into frames, keeps each until it is
/// acknowledged, and repeats those of lost or slow stripes on another one.
#[derive(Debug)]
pub(crate) struct StripedSender {
    /// Bytes that are written, and in no frame yet.
    open: BytesMut,
    /// Offset of the first byte of `open`.
    next: u64,
    limit: u64,
    /// All bytes before this offset are acknowledged.
    acked: u64,
    most: u64,
    /// Frames in flight, in order.
    sent: VecDeque<SentFrame>,
    /// Offsets of frames whose stripe is gone.
    lost: BTreeSet<u64>,
    finish: FinishState,
    /// Last limit that was reported as too low.
    blocked: u64,
    /// Smoothed acknowledgement time and its variation (RFC 6298).
    smooth: Option<(Duration, Duration)>,
    /// Number of times that the timeout was doubled since the last acknowledgement.
    again: u32,
    squeeze: FrameCompression,
    /// Bytes of frames, and of the payload in them.
    pub(crate) carried: (u64, u64),
}

/// Frame without an acknowledgement, with the stripe and the time of its last transmission; `twice`
/// marks a repeated one.
#[derive(Debug)]
struct SentFrame {
    offset: u64,
    end: u64,
    frame: Bytes,
    leg: StripeId,
    at: Instant,
    twice: bool,
}

/// State of the end of the outgoing stream, which is sent as the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinishState {
    Open,
    /// The end is to be sent behind the bytes in `open`.
    Asked,
    Sent,
}

impl StripedSender {
    /// Creates the sending side, which keeps at most `most` unacknowledged bytes.
    pub(crate) fn new(most: u64, zstd: bool) -> Self {
        Self {
            open: BytesMut::new(),
            next: 0,
            limit: FIRST_CREDIT,
            acked: 0,
            most: most.max(FIRST_CREDIT),
            sent: VecDeque::new(),
            lost: BTreeSet::new(),
            finish: FinishState::Open,
            blocked: 0,
            smooth: None,
            again: 0,
            squeeze: FrameCompression::new(zstd),
            carried: (0, 0),
        }
    }

    fn credit(&self) -> u64 {
        let limit = self.limit.min(self.acked.saturating_add(self.most));
        limit.saturating_sub(self.next + self.open.len() as u64)
    }

    /// Returns the number of bytes that can be written now.
    pub(crate) fn room(&self) -> usize {
        if self.finish != FinishState::Open || self.sent.len() >= MOST_SENT {
            return 0;
        }
        let room = MOST_DATA - self.open.len().min(MOST_DATA);
        self.credit().min(room as u64) as usize
    }

    /// Takes as many bytes as there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.room()).unwrap_or(bytes);
        self.open.extend_from_slice(bytes);
        bytes.len()
    }

    /// Ends the stream.
    pub(crate) fn finish(&mut self) {
        if self.finish == FinishState::Open {
            self.finish = FinishState::Asked;
        }
    }

    /// Reports if the peer relay has all bytes and has passed on the end.
    pub(crate) fn is_over(&self) -> bool {
        self.finish == FinishState::Sent && self.sent.is_empty()
    }

    /// Treats everything as acknowledged if the end was sent; returns if that was so.
    pub(crate) fn presume_over(&mut self) -> bool {
        let sent = self.finish == FinishState::Sent;
        if sent {
            self.sent.clear();
            self.lost.clear();
        }
        sent
    }

    /// Returns the number of bytes that the peer relay has acknowledged.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Reports if there is something to send.
    pub(crate) fn wants_leg(&self) -> bool {
        !self.lost.is_empty() || !self.open.is_empty() || self.finish == FinishState::Asked
    }

    /// Records that all stripes are full.
    pub(crate) fn full(&mut self, now: Instant) {
        self.squeeze.full(now);
    }

    /// Handles an acknowledgement.
    pub(crate) fn ack(&mut self, received: u64, limit: u64, now: Instant) -> Result<(), PairError> {
        let all = self.sent.back().map_or(self.acked, |last| last.end);
        if received > all {
            return Err(PairError::BadAck);
        }
        self.limit = self.limit.max(limit);
        // A frame that was sent twice gives no sample (Karn's algorithm), nor do frames that waited
        // behind it.
        let mut held_up = false;
        while let Some(first) = self.sent.front().filter(|first| first.end <= received) {
            held_up |= first.twice;
            let took = (!held_up).then(|| now.saturating_duration_since(first.at));
            self.lost.remove(&first.offset);
            self.sent.pop_front();
            if let Some(took) = took {
                self.sample(took);
            }
            self.again = 0;
        }
        self.acked = self.acked.max(received);
        if self.sent.is_empty() {
            self.sent = VecDeque::new();
        }
        Ok(())
    }

    fn sample(&mut self, took: Duration) {
        self.smooth = Some(match self.smooth {
            None => (took, took / 2),
            Some((mean, deviation)) => (
                mean * 7 / 8 + took / 8,
                deviation * 3 / 4 + mean.abs_diff(took) / 4,
            ),
        });
    }

    /// Returns the time to wait for the acknowledgement of the first missing frame.
    fn patience(&self) -> Duration {
        let (mean, deviation) = self.smooth.unwrap_or_default();
        (mean * 2 + deviation * 4).max(PATIENCE) * (1 << self.again.min(5))
    }

    /// Marks what was sent on this stripe and is not acknowledged to be sent on another one.
    pub(crate) fn lose(&mut self, leg: StripeId) {
        let gone = self.sent.iter().filter(|sent| sent.leg == leg);
        self.lost.extend(gone.map(|sent| sent.offset));
        self.blocked = 0;
    }

    /// Returns the time at which the first frame is to be sent again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let first = self.overdue_candidate()?;
        Some(first.at + self.patience())
    }

    /// Returns the stripe that has not delivered the first frame in time, and if twice that time
    /// has passed.
    pub(crate) fn overdue(&self, now: Instant) -> Option<(StripeId, bool)> {
        let first = self.overdue_candidate()?;
        let patience = self.patience();
        let waited = now.saturating_duration_since(first.at);
        (waited >= patience).then_some((first.leg, waited >= patience * 2))
    }

    /// Returns the first frame in flight, unless it is the end alone: the end is acknowledged only
    /// when the reader has taken it, which may take any time.
    fn overdue_candidate(&self) -> Option<&SentFrame> {
        let first = self.sent.front()?;
        let is_end = self.finish == FinishState::Sent && self.sent.len() == 1;
        (!is_end).then_some(first)
    }

    /// Returns the next frame for a stripe that can be written to; `again` asks for the first frame
    /// in flight, which another stripe has kept for too long.
    pub(crate) fn poll(
        &mut self,
        leg: StripeId,
        again: bool,
        clock: &mut dyn FnMut() -> Instant,
    ) -> Option<Bytes> {
        let now = clock();
        if let Some(offset) = self.lost.pop_first() {
            let nth = self.sent.binary_search_by_key(&offset, |sent| sent.offset);
            let sent = self.sent.get_mut(nth.ok()?)?;
            (sent.leg, sent.at, sent.twice) = (leg, now, true);
            return Some(sent.frame.clone());
        }
        if again && let Some(first) = self.sent.front_mut() {
            // The original stripe is slow or dead; whichever copy arrives first counts.
            (first.leg, first.at, first.twice) = (leg, now, true);
            self.again += 1;
            return Some(first.frame.clone());
        }
        let (frame, end) = self.new_frame(clock)?;
        let bytes = frame.encode();
        self.sent.push_back(SentFrame {
            offset: self.next,
            end,
            frame: bytes.clone(),
            leg,
            at: now,
            twice: false,
        });
        self.carried.0 += bytes.len() as u64;
        self.carried.1 += end - self.next;
        self.squeeze.sent(bytes.len(), now);
        self.next = end;
        Some(bytes)
    }

    fn new_frame(&mut self, clock: &mut dyn FnMut() -> Instant) -> Option<(StripeFrame, u64)> {
        if self.open.is_empty() {
            return match self.finish {
                FinishState::Asked => {
                    self.finish = FinishState::Sent;
                    Some((StripeFrame::End(self.next), self.next + 1))
                }
                FinishState::Open | FinishState::Sent => None,
            };
        }
        let plain = self.open.split().freeze();
        let packed = self.squeeze.deflate(&plain, clock);
        let piece = DataFrame {
            offset: self.next,
            len: plain.len() as u32,
            packed: packed.is_some(),
            bytes: packed.unwrap_or(plain),
        };
        let end = piece.end();
        Some((StripeFrame::Data(piece), end))
    }

    /// Returns the limit that blocks the stream, once for each limit.
    pub(crate) fn blocked(&mut self) -> Option<u64> {
        let stuck = self.finish == FinishState::Open && self.limit > self.blocked;
        if !stuck || self.next + (self.open.len() as u64) < self.limit {
            return None;
        }
        self.blocked = self.limit;
        Some(self.limit)
    }
}
