use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::chance::{SegmentImpairment, SegmentImpairments};
use super::delay::Delay;
use super::drain::LeakyBucket;
use super::flight::{Flight, FrameInFlight};
use super::nanoseconds;
use crate::figures::{DirectionStatistics, PacketCount};
use crate::packet::{Frame, Headers, Pool, Segments, clear_dscp, copy_segments, keep_segments};
use crate::path::{Direction, Event, EventKind, PathSpec, Policer};

/// Longest piece of a super-packet, as time on the wire. Pieces keep delay and queue fine-grained
/// at low rates; above 0.5 Gbit/s super-packets stay whole.
const PIECE: Duration = Duration::from_millis(1);

/// One direction: policers, the queue with its link, then the wire with delay and impairments.
#[derive(Debug)]
pub(super) struct Link {
    block: Vec<RangeInclusive<u16>>,
    blackouts: Vec<Range<u64>>,
    policers: Vec<(u8, LeakyBucket)>,
    bleach: bool,
    queue: LeakyBucket,
    piece: u64,
    fates: SegmentImpairments,
    delay: Delay,
    held: u64,
    flight: Flight,
    /// Reused for each frame.
    parts: Vec<SegmentRun>,
}

/// Consecutive segments of a frame that continue together.
#[derive(Clone, Debug)]
struct SegmentRun {
    segments: Range<usize>,
    departs: u64,
    held: bool,
}

impl Link {
    pub(super) fn new(path: &PathSpec, direction: Direction) -> Self {
        let rate = path.rate[direction as usize];
        let policer = |policer: &Policer| {
            let bucket = LeakyBucket::new(policer.rate, policer.burst(path.rtt));
            (policer.dscp.value(), bucket)
        };
        Self {
            block: path.block.clone(),
            blackouts: path.events.iter().filter_map(blackout).collect(),
            policers: path.police.iter().map(policer).collect(),
            bleach: path.bleach,
            queue: LeakyBucket::new(rate, path.queue_bytes(direction)),
            piece: rate.bytes_in(PIECE),
            fates: SegmentImpairments::new(path, direction),
            delay: Delay::new(path, direction),
            held: nanoseconds(path.reorder.held),
            flight: Flight::default(),
            parts: Vec::new(),
        }
    }

    /// Carries a frame, or the segments that remain of it.
    pub(super) fn carry(
        &mut self,
        now: u64,
        headers: &Headers,
        segments: &Segments,
        mut frame: Frame,
        pool: &mut Pool,
        figures: &mut DirectionStatistics,
    ) {
        if let Some(drops) = self.stops(now, headers, figures) {
            drops.add(segments.count as u64, segments.bytes(segments.all()));
            pool.give(frame);
            return;
        }
        self.admit(now, headers.dscp, segments, figures);
        if self.bleach {
            clear_dscp(&mut frame, headers);
        }
        self.depart(segments, frame, pool);
        let (bytes, time) = self.queue.peak();
        figures.queue_peak = bytes;
        figures.queue_peak_time = Duration::from_nanos(time);
    }

    /// Adds a frame created by the path, which arrives at once.
    pub(super) fn inject(&mut self, now: u64, frame: Frame) {
        self.flight.push_apart(FrameInFlight {
            at: now,
            packets: 1,
            bytes: 0,
            own: true,
            frame,
        });
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.flight.next_at()
    }

    pub(super) fn pop(&mut self) -> Option<FrameInFlight> {
        self.flight.pop()
    }

    /// The counter of a frame that is dropped before the queue; `None` if it passes.
    fn stops<'f>(
        &self,
        now: u64,
        headers: &Headers,
        figures: &'f mut DirectionStatistics,
    ) -> Option<&'f mut PacketCount> {
        let blocked = |port: u16| self.block.iter().any(|ports| ports.contains(&port));
        if headers.ports.is_some_and(|(_, to)| blocked(to)) {
            return Some(&mut figures.drops.blocked);
        }
        self.cut(now).then_some(&mut figures.drops.blackout)
    }

    fn cut(&self, at: u64) -> bool {
        self.blackouts.iter().any(|blackout| blackout.contains(&at))
    }

    /// Decides on each segment, and leaves those that pass in `parts`. Without randomness, several
    /// segments are decided at once if there is room for all.
    fn admit(
        &mut self,
        now: u64,
        dscp: u8,
        segments: &Segments,
        figures: &mut DirectionStatistics,
    ) {
        self.parts.clear();
        self.queue.advance(now);
        let policer = self.policers.iter().position(|(class, _)| *class == dscp);
        let mut policer = policer.map(|at| &mut self.policers[at].1);
        if let Some(policer) = &mut policer {
            policer.advance(now);
        }
        let together = match self.fates.quiet() {
            true => segments.within(self.piece),
            false => 1,
        };
        let piece = segments.within(self.piece);

        let mut next = 0;
        while next < segments.count {
            let mut range = next..segments.count.min(next + together);
            let mut bytes = segments.bytes(range.clone());
            let room = self.queue.has_room(bytes)
                && policer
                    .as_ref()
                    .is_none_or(|policer| policer.has_room(bytes));
            if !room && range.len() > 1 {
                range.end = next + 1;
                bytes = segments.bytes(range.clone());
            }
            next = range.end;
            let count = range.len() as u64;
            let fate = match self.fates.quiet() {
                true => SegmentImpairment::default(),
                false => self.fates.draw(),
            };

            if let Some(policer) = &mut policer {
                if !policer.takes(bytes) {
                    figures.drops.police[usize::from(dscp)].add(count, bytes);
                    continue;
                }
                policer.add(bytes);
            }
            if !self.queue.takes(bytes) {
                figures.drops.queue.add(count, bytes);
                continue;
            }
            self.queue.add(bytes);
            let departs = self.queue.empty_at();
            if self.blackouts.iter().any(|cut| cut.contains(&departs)) {
                figures.drops.blackout.add(count, bytes);
                continue;
            }
            if fate.lost {
                figures.drops.loss.add(count, bytes);
                continue;
            }
            if fate.held {
                figures.reordered.add(count, bytes);
            }
            if fate.duplicated {
                figures.duplicated.add(count, bytes);
            }
            let part = SegmentRun {
                segments: range,
                departs,
                held: fate.held,
            };
            push(&mut self.parts, part, fate.duplicated, piece);
        }
    }

    /// Makes frames of the parts; the last one reuses the memory of the frame.
    fn depart(&mut self, segments: &Segments, mut frame: Frame, pool: &mut Pool) {
        let Some(last) = self.parts.pop() else {
            pool.give(frame);
            return;
        };
        let parts = std::mem::take(&mut self.parts);
        for part in &parts {
            let piece = copy_segments(pool, &frame, segments, part.segments.clone());
            self.launch(segments, part, piece);
        }
        self.parts = parts;
        if last.segments != segments.all() {
            keep_segments(&mut frame, segments, last.segments.clone());
        }
        let frame = pool.fit(frame);
        self.launch(segments, &last, frame);
    }

    fn launch(&mut self, segments: &Segments, part: &SegmentRun, frame: Frame) {
        let arrives = self.delay.arrival(part.departs);
        let flying = FrameInFlight {
            at: arrives,
            packets: part.segments.len() as u64,
            bytes: segments.bytes(part.segments.clone()),
            own: false,
            frame,
        };
        match part.held {
            true => self.flight.push_apart(FrameInFlight {
                at: arrives.saturating_add(self.held),
                ..flying
            }),
            false => self.flight.push(flying),
        }
    }
}

/// Adds a part, or extends the last one if they are adjacent and together at most a piece. Held
/// parts and copies stay separate.
fn push(parts: &mut Vec<SegmentRun>, part: SegmentRun, duplicated: bool, piece: usize) {
    if part.held || duplicated {
        if duplicated {
            parts.push(part.clone());
        }
        parts.push(part);
        return;
    }
    match parts.last_mut() {
        Some(last)
            if !last.held
                && last.segments.end == part.segments.start
                && last.segments.len() + part.segments.len() <= piece =>
        {
            last.segments.end = part.segments.end;
            last.departs = part.departs;
        }
        _ => parts.push(part),
    }
}

fn blackout(event: &Event) -> Option<Range<u64>> {
    match event.kind {
        EventKind::Blackout(length) => {
            Some(nanoseconds(event.at)..nanoseconds(event.at.saturating_add(length)))
        }
        EventKind::Reset => None,
    }
}
