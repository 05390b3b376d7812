//! The emulated path, independent of clock and devices.

mod chance;
mod codel;
mod delay;
mod drain;
mod flight;
mod flows;
mod limits;
mod link;

use std::collections::VecDeque;
use std::time::Duration;

use crate::figures::PathStatistics;
use crate::packet::{FramePool, PacketHeaders, ResetSegment, SegmentLayout, TunFrame, reset};
use crate::path::{NetworkPathSpec, PacketDirection, PathEventKind};
use flows::{ConnectionTracker, PacketVerdict};
use link::EmulatedLink;

/// Both directions of a path.
///
/// Time is counted from the start and never decreases. The caller reads a frame from a TUN device
/// into [`Emulator::memory`], sets its length with [`TunFrame::set_len`], and passes it to
/// [`Emulator::offer`]. It then calls [`Emulator::poll`] until there is nothing, writes each frame
/// ([`TunFrame::bytes`]) to the device at the end of its direction, and returns the memory with
/// [`Emulator::recycle`]. If nothing can be read, the next poll is due at
/// [`Emulator::next_deadline`], which an offer may make earlier.
///
/// A packet passes these stages in order: the middlebox; blocked ports and blackouts; changes to
/// TCP's options; the black hole; the policers; the bleach; the queue, and the link with its rate;
/// the shaper; then loss, duplication, and the delay with
/// jitter and reordering. Each stage treats the segments of a super-packet as packets. The
/// remaining segments continue as one or several frames.
#[derive(Debug)]
pub struct Emulator {
    pool: FramePool,
    links: [EmulatedLink; 2],
    figures: PathStatistics,
    /// Times of future resets, in order.
    resets: VecDeque<u64>,
    /// Set only if resets or a middlebox are configured.
    flows: Option<ConnectionTracker>,
}

impl Emulator {
    /// Creates an idle path.
    pub fn new(path: &NetworkPathSpec) -> Self {
        let mut resets: Vec<_> = path
            .events
            .iter()
            .filter(|event| event.kind == PathEventKind::Reset)
            .map(|event| nanoseconds(event.at))
            .collect();
        resets.sort_unstable();
        Self {
            pool: FramePool::new(),
            links: PacketDirection::BOTH.map(|direction| EmulatedLink::new(path, direction)),
            figures: PathStatistics::default(),
            flows: (!resets.is_empty() || path.middlebox.is_some())
                .then(|| ConnectionTracker::new(path.middlebox)),
            resets: resets.into(),
        }
    }

    /// Memory for reading the next frame, long enough for any.
    pub fn memory(&mut self) -> TunFrame {
        self.pool.take()
    }

    /// Takes back a frame from [`Emulator::poll`], or unused memory.
    pub fn recycle(&mut self, frame: TunFrame) {
        self.pool.give(frame);
    }

    /// Accepts a frame from the device at the beginning of `direction`.
    pub fn offer(&mut self, direction: PacketDirection, now: Duration, frame: TunFrame) {
        let now = self.advance(now);
        let figures = &mut self.figures.directions[direction as usize];
        if frame.packet().is_empty() {
            figures.offered.add(1, 0);
            figures.drops.malformed.add(1, 0);
            self.pool.give(frame);
            return;
        }
        let headers = PacketHeaders::read(frame.bytes());
        let segments = SegmentLayout::of(frame.bytes(), &headers);
        let (packets, bytes) = (segments.count as u64, segments.bytes(segments.all()));
        figures.offered.add(packets, bytes);
        figures.dscp[usize::from(headers.dscp)].add(packets, bytes);

        let len = frame.packet().len();
        let resets = self
            .flows
            .as_mut()
            .map(|flows| flows.break_if_due(direction, &headers, now, bytes));
        for (direction, reset) in resets.into_iter().flatten() {
            self.inject(now, direction, &reset);
        }
        let verdict = self.flows.as_mut().map_or(PacketVerdict::Pass, |flows| {
            flows.sets_out(direction, &headers, len)
        });
        let figures = &mut self.figures.directions[direction as usize];
        if verdict == PacketVerdict::Pass {
            let link = &mut self.links[direction as usize];
            return link.carry(now, &headers, &segments, frame, &mut self.pool, figures);
        }
        match verdict {
            PacketVerdict::Stall => figures.drops.stall.add(packets, bytes),
            _ => figures.drops.reset.add(packets, bytes),
        }
        self.pool.give(frame);
        if let PacketVerdict::Answer(answer) = verdict {
            self.inject(now, direction.opposite(), &answer);
        }
    }

    /// Returns the next due frame, for the device at the end of its direction.
    pub fn poll(&mut self, now: Duration) -> Option<(PacketDirection, TunFrame)> {
        let now = self.advance(now);
        loop {
            let (at, direction) = self.next_arrival()?;
            if at > now {
                return None;
            }
            let flying = self.links[direction as usize].pop()?;
            let figures = &mut self.figures.directions[direction as usize];
            if flying.own {
                figures.resets += 1;
                return Some((direction, flying.frame));
            }
            if let Some(flows) = &mut self.flows {
                let headers = PacketHeaders::read(flying.frame.bytes());
                let len = flying.frame.packet().len();
                if !flows.arrives(direction, &headers, len) {
                    figures.drops.reset.add(flying.packets, flying.bytes);
                    self.pool.give(flying.frame);
                    continue;
                }
            }
            figures.delivered.add(flying.packets, flying.bytes);
            return Some((direction, flying.frame));
        }
    }

    /// Time of the next work for [`Emulator::poll`]; `None` while nothing is in flight.
    pub fn next_deadline(&self) -> Option<Duration> {
        let arrival = self.next_arrival().map(|(at, _)| at);
        let reset = self.resets.front().copied();
        arrival
            .into_iter()
            .chain(reset)
            .min()
            .map(Duration::from_nanos)
    }

    /// The figures so far.
    pub fn figures(&self) -> &PathStatistics {
        &self.figures
    }

    fn next_arrival(&self) -> Option<(u64, PacketDirection)> {
        PacketDirection::BOTH
            .into_iter()
            .filter_map(|direction| Some((self.links[direction as usize].next_at()?, direction)))
            .min()
    }

    /// Advances to `now` and performs the events that are due.
    fn advance(&mut self, now: Duration) -> u64 {
        self.figures.covered = self.figures.covered.max(now);
        let now = nanoseconds(now);
        while self.resets.front().is_some_and(|at| *at <= now) {
            self.resets.pop_front();
            let resets = self.flows.as_mut().map(ConnectionTracker::reset_all);
            for (direction, reset) in resets.into_iter().flatten() {
                self.inject(now, direction, &reset);
            }
        }
        now
    }

    fn inject(&mut self, now: u64, direction: PacketDirection, packet: &ResetSegment) {
        if let Some(frame) = reset(&mut self.pool, packet) {
            self.links[direction as usize].inject(now, frame);
        }
    }
}

/// Nanoseconds since the start; 64 bits last for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
