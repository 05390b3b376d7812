use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::chance::SegmentFateGenerator;
use super::codel::{FqCodel, QueueDecision};
use super::delay::PropagationDelay;
use super::drain::LeakyBucket;
use super::flight::{FrameInFlight, InFlightQueue};
use super::limits::{FlowKey, LimitBuckets, flow_of};
use super::nanoseconds;
use crate::figures::{DirectionStatistics, PacketAndByteCount};
use crate::packet::{
    FramePool, PacketHeaders, SegmentLayout, TunFrame, clear_dscp, copy_segments, keep_segments,
    rewrite_handshake,
};
use crate::path::{
    NetworkPathEvent, NetworkPathSpec, PacketDirection, PathEventKind, QueueCapacity, RateLimit,
    TcpHandshakeChanges,
};

/// Longest piece of a super-packet, as time on the wire. Pieces keep delay and queue fine-grained
/// at low rates; above 0.5 Gbit/s super-packets stay whole.
const PIECE: Duration = Duration::from_millis(1);

/// One direction: policers, the queue with its link, then the wire with delay and impairments.
#[derive(Debug)]
pub(super) struct EmulatedLink {
    block: Vec<RangeInclusive<u16>>,
    blackouts: Vec<Range<u64>>,
    policers: Vec<LimitBuckets>,
    shapers: Vec<LimitBuckets>,
    black_hole: Option<u64>,
    handshake: TcpHandshakeChanges,
    bleach: bool,
    queue: LeakyBucket,
    codel: Option<FqCodel>,
    piece: u64,
    fates: SegmentFateGenerator,
    delay: PropagationDelay,
    held: u64,
    flight: InFlightQueue,
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

impl EmulatedLink {
    pub(super) fn new(path: &NetworkPathSpec, direction: PacketDirection) -> Self {
        let rate = path.rate[direction as usize];
        let slowest = path.shape.iter().map(|limit| limit.rate).min();
        let slowest = slowest.map_or(rate, |shaped| shaped.min(rate));
        let buckets = |limits: &[RateLimit], new: fn(RateLimit, Duration) -> LimitBuckets| {
            limits.iter().map(|limit| new(*limit, path.rtt)).collect()
        };
        Self {
            block: path.block.clone(),
            blackouts: path.events.iter().filter_map(blackout).collect(),
            policers: buckets(&path.police, LimitBuckets::policer),
            shapers: buckets(&path.shape, LimitBuckets::shaper),
            black_hole: path.black_hole.map(u64::from),
            handshake: path.handshake,
            bleach: path.bleach,
            queue: LeakyBucket::new(rate, path.queue_bytes(direction))
                .shared_with(path.cross[direction as usize]),
            codel: (path.queue == QueueCapacity::FqCodel).then(FqCodel::default),
            piece: slowest.bytes_in(PIECE),
            fates: SegmentFateGenerator::new(path, direction),
            delay: PropagationDelay::new(path, direction),
            held: nanoseconds(path.reorder.held),
            flight: InFlightQueue::default(),
            parts: Vec::new(),
        }
    }

    /// Carries a frame, or the segments that remain of it.
    pub(super) fn carry(
        &mut self,
        now: u64,
        headers: &PacketHeaders,
        segments: &SegmentLayout,
        mut frame: TunFrame,
        pool: &mut FramePool,
        figures: &mut DirectionStatistics,
    ) {
        if let Some(drops) = self.stops(now, headers, figures) {
            drops.add(segments.count as u64, segments.bytes(segments.all()));
            pool.give(frame);
            return;
        }
        if !self.handshake.is_empty() {
            rewrite_handshake(&mut frame, headers, &self.handshake);
        }
        self.admit(now, headers, segments, figures);
        if self.bleach {
            clear_dscp(&mut frame, headers);
        }
        self.depart(segments, frame, pool);
        let (bytes, time) = self.queue.peak();
        figures.queue_peak = bytes;
        figures.queue_peak_time = Duration::from_nanos(time);
    }

    /// Adds a frame created by the path, which arrives at once.
    pub(super) fn inject(&mut self, now: u64, frame: TunFrame) {
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
        headers: &PacketHeaders,
        figures: &'f mut DirectionStatistics,
    ) -> Option<&'f mut PacketAndByteCount> {
        let blocked = |port: u16| self.block.iter().any(|ports| ports.contains(&port));
        if headers.ports.is_some_and(|(_, to)| blocked(to)) {
            return Some(&mut figures.drops.blocked);
        }
        self.cut(now).then_some(&mut figures.drops.blackout)
    }

    fn cut(&self, at: u64) -> bool {
        self.blackouts.iter().any(|blackout| blackout.contains(&at))
    }

    /// Returns the number of segments to decide on at once.
    fn decided_together(&self, segments: &SegmentLayout) -> usize {
        let too_long = |longest| segments.bytes(0..1) > longest;
        let alike = self.fates.quiet() && self.codel.is_none();
        match alike && !self.black_hole.is_some_and(too_long) {
            true => segments.within(self.piece),
            false => 1,
        }
    }

    /// Decides on each segment, and leaves those that pass in `parts`. Without randomness, several
    /// segments are decided at once if there is room for all.
    fn admit(
        &mut self,
        now: u64,
        headers: &PacketHeaders,
        segments: &SegmentLayout,
        figures: &mut DirectionStatistics,
    ) {
        self.parts.clear();
        self.queue.advance(now);
        let piece = segments.within(self.piece);
        let together = self.decided_together(segments);
        let (dscp, flow) = (headers.dscp, flow_of(headers));
        let mut policers: Vec<&mut LeakyBucket> = self
            .policers
            .iter_mut()
            .filter_map(|limit| limit.bucket(dscp, flow))
            .collect();
        policers.iter_mut().for_each(|policer| policer.advance(now));
        let mut shaper = self.shapers.iter_mut().find_map(|limit| {
            let burst = limit.burst_time();
            limit.bucket(dscp, flow).map(|bucket| (bucket, burst))
        });
        let black_hole = self.black_hole;
        let too_long = |bytes| black_hole.is_some_and(|longest| bytes > longest);

        let mut next = 0;
        while next < segments.count {
            let mut range = next..segments.count.min(next + together);
            let mut bytes = segments.bytes(range.clone());
            let room = self.queue.has_room(bytes)
                && policers.iter().all(|policer| policer.has_room(bytes))
                && shaper.iter().all(|(shaper, _)| shaper.has_room(bytes));
            if !room && range.len() > 1 {
                range.end = next + 1;
                bytes = segments.bytes(range.clone());
            }
            next = range.end;
            let count = range.len() as u64;
            let fate = self.fates.draw();

            if too_long(bytes) && count == 1 {
                figures.drops.black_hole.add(count, bytes);
                continue;
            }
            if !policers.iter().all(|policer| policer.takes(bytes)) {
                figures.drops.police[usize::from(dscp)].add(count, bytes);
                continue;
            }
            policers.iter_mut().for_each(|policer| policer.add(bytes));
            let entered = enqueue(&mut self.queue, self.codel.as_mut(), flow, bytes, now);
            let Some(mut departs) = entered else {
                figures.drops.queue.add(count, bytes);
                continue;
            };
            if self.blackouts.iter().any(|cut| cut.contains(&departs)) {
                figures.drops.blackout.add(count, bytes);
                continue;
            }
            if let Some((shaper, burst)) = &mut shaper {
                shaper.advance(departs);
                if !shaper.takes(bytes) {
                    figures.drops.shape.add(count, bytes);
                    continue;
                }
                shaper.add(bytes);
                departs = departs.max(shaper.empty_at().saturating_sub(*burst));
            }
            fate.count(figures, count, bytes);
            if fate.lost {
                continue;
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
    fn depart(&mut self, segments: &SegmentLayout, mut frame: TunFrame, pool: &mut FramePool) {
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

    fn launch(&mut self, segments: &SegmentLayout, part: &SegmentRun, frame: TunFrame) {
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
            // A shaped packet does not hold up those of other classes and connections.
            false if !self.shapers.is_empty() || self.codel.is_some() => {
                self.flight.push_apart(flying);
            }
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

fn blackout(event: &NetworkPathEvent) -> Option<Range<u64>> {
    match event.kind {
        PathEventKind::Blackout(length) => {
            Some(nanoseconds(event.at)..nanoseconds(event.at.saturating_add(length)))
        }
        PathEventKind::Reset => None,
    }
}

/// Puts bytes of a flow into the queue. Returns the time when they leave it; `None` if they are
/// dropped.
fn enqueue(
    queue: &mut LeakyBucket,
    codel: Option<&mut FqCodel>,
    flow: Option<FlowKey>,
    bytes: u64,
    now: u64,
) -> Option<u64> {
    if !queue.takes(bytes) {
        return None;
    }
    let transmission = queue.time_of(bytes);
    let last = queue.empty_at().saturating_add(transmission);
    let decision = codel.map(|codel| codel.decide(flow, bytes, now, last));
    if decision == Some(QueueDecision::Drop) {
        return None;
    }
    queue.add(bytes);
    Some(match decision {
        Some(QueueDecision::Pass) => now.saturating_add(transmission),
        _ => queue.empty_at(),
    })
}
