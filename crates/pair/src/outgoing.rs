//! What goes: numbered, and kept until it is acknowledged.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::frame::{Frame, MOST_DATA, Piece};
use crate::squeeze::FrameCompression;
use crate::{FIRST_CREDIT, LegId, PairError};

/// The other half refuses more pieces than twice this that wait for one before them.
const MOST_SENT: usize = 16 << 10;
/// The first frame that is missing is not sent again before this.
const PATIENCE: Duration = Duration::from_secs(1);

/// What goes.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Written, and in no frame yet.
    open: BytesMut,
    /// Of the first byte of `open`.
    next: u64,
    limit: u64,
    /// All in front of this has come.
    acked: u64,
    most: u64,
    /// Frames on their way, in order.
    sent: VecDeque<Sent>,
    /// Those whose leg is gone, by offset.
    lost: BTreeSet<u64>,
    finish: Finish,
    /// The limit that the other half was told is too low.
    blocked: u64,
    /// What acknowledgements take, and how much that varies (RFC 6298).
    smooth: Option<(Duration, Duration)>,
    /// Doublings of patience since something was acknowledged.
    again: u32,
    squeeze: FrameCompression,
    /// Bytes of frames, and of the connection in them.
    pub(crate) carried: (u64, u64),
}

#[derive(Debug)]
struct Sent {
    offset: u64,
    end: u64,
    frame: Bytes,
    leg: LegId,
    at: Instant,
    twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Open,
    /// The end goes behind what is open.
    Asked,
    Sent,
}

impl Outgoing {
    /// Keeps so much at most that is not acknowledged.
    pub(crate) fn new(most: u64, zstd: bool) -> Self {
        Self {
            open: BytesMut::new(),
            next: 0,
            limit: FIRST_CREDIT,
            acked: 0,
            most: most.max(FIRST_CREDIT),
            sent: VecDeque::new(),
            lost: BTreeSet::new(),
            finish: Finish::Open,
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

    /// How much is taken now.
    pub(crate) fn room(&self) -> usize {
        if self.finish != Finish::Open || self.sent.len() >= MOST_SENT {
            return 0;
        }
        let room = MOST_DATA - self.open.len().min(MOST_DATA);
        self.credit().min(room as u64) as usize
    }

    /// Takes what there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.room()).unwrap_or(bytes);
        self.open.extend_from_slice(bytes);
        bytes.len()
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self) {
        if self.finish == Finish::Open {
            self.finish = Finish::Asked;
        }
    }

    /// Whether all has come to the other half, and the end was passed on there.
    pub(crate) fn is_over(&self) -> bool {
        self.finish == Finish::Sent && self.sent.is_empty()
    }

    /// Takes all as having come, where it was sent to the end; whether that is so.
    pub(crate) fn presume_over(&mut self) -> bool {
        let sent = self.finish == Finish::Sent;
        if sent {
            self.sent.clear();
            self.lost.clear();
        }
        sent
    }

    /// Bytes that have come to the other half.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Whether something is to be sent.
    pub(crate) fn wants_leg(&self) -> bool {
        !self.lost.is_empty() || !self.open.is_empty() || self.finish == Finish::Asked
    }

    /// All legs are full.
    pub(crate) fn full(&mut self, now: Instant) {
        self.squeeze.full(now);
    }

    /// What has come.
    pub(crate) fn ack(&mut self, received: u64, limit: u64, now: Instant) -> Result<(), PairError> {
        let all = self.sent.back().map_or(self.acked, |last| last.end);
        if received > all {
            return Err(PairError::BadAck);
        }
        self.limit = self.limit.max(limit);
        // One that was sent twice says nothing (Karn), nor do those that have waited for it there.
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

    /// How long the first frame that is missing is waited for.
    fn patience(&self) -> Duration {
        let (mean, deviation) = self.smooth.unwrap_or_default();
        (mean * 2 + deviation * 4).max(PATIENCE) * (1 << self.again.min(5))
    }

    /// What was sent on this leg and is not acknowledged goes on another.
    pub(crate) fn lose(&mut self, leg: LegId) {
        let gone = self.sent.iter().filter(|sent| sent.leg == leg);
        self.lost.extend(gone.map(|sent| sent.offset));
        self.blocked = 0;
    }

    /// When the first frame is to be sent again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let first = self.overdue_candidate()?;
        Some(first.at + self.patience())
    }

    /// The leg that has not brought the first frame in time, and whether twice that time is over.
    pub(crate) fn overdue(&self, now: Instant) -> Option<(LegId, bool)> {
        let first = self.overdue_candidate()?;
        let patience = self.patience();
        let waited = now.saturating_duration_since(first.at);
        (waited >= patience).then_some((first.leg, waited >= patience * 2))
    }

    /// An end waits for whoever reads there, and that may take its time.
    fn overdue_candidate(&self) -> Option<&Sent> {
        let first = self.sent.front()?;
        let is_end = self.finish == Finish::Sent && self.sent.len() == 1;
        (!is_end).then_some(first)
    }

    /// The next frame for a leg that can be written to; `again` if it is to bring the first one, which
    /// another has kept for too long.
    pub(crate) fn poll(
        &mut self,
        leg: LegId,
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
            // The leg that has it is slow, or worse; whichever comes first counts.
            (first.leg, first.at, first.twice) = (leg, now, true);
            self.again += 1;
            return Some(first.frame.clone());
        }
        let (frame, end) = self.new_frame(clock)?;
        let bytes = frame.encode();
        self.sent.push_back(Sent {
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

    fn new_frame(&mut self, clock: &mut dyn FnMut() -> Instant) -> Option<(Frame, u64)> {
        if self.open.is_empty() {
            return match self.finish {
                Finish::Asked => {
                    self.finish = Finish::Sent;
                    Some((Frame::End(self.next), self.next + 1))
                }
                Finish::Open | Finish::Sent => None,
            };
        }
        let plain = self.open.split().freeze();
        let packed = self.squeeze.deflate(&plain, clock);
        let piece = Piece {
            offset: self.next,
            len: plain.len() as u32,
            packed: packed.is_some(),
            bytes: packed.unwrap_or(plain),
        };
        let end = piece.end();
        Some((Frame::Data(piece), end))
    }

    /// The limit that is too low, once for each.
    pub(crate) fn blocked(&mut self) -> Option<u64> {
        let stuck = self.finish == Finish::Open && self.limit > self.blocked;
        if !stuck || self.next + (self.open.len() as u64) < self.limit {
            return None;
        }
        self.blocked = self.limit;
        Some(self.limit)
    }
}
