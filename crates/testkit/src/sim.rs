//! Seeded network between two ends in virtual time: delay, Nagle's algorithm, fragmentation down to
//! one byte, and loss of the connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Small seeded generator (xorshift64*), so that a failing run can be repeated.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Creates a generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n` (0 for 0).
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            (self.next_u64() >> 11) % n
        }
    }

    /// Fills a slice.
    pub fn fill(&mut self, to: &mut [u8]) {
        for byte in to {
            *byte = (self.next_u64() >> 32) as u8;
        }
    }
}

/// Properties of one direction of a path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// One-way delay.
    pub delay: Duration,
    /// Rate in bytes per second; 0 is unlimited.
    pub rate: u64,
    /// Maximum segment size in bytes; arrivals are split at it.
    pub mss: usize,
    /// Splits arrivals at random, down to one byte.
    pub fragment: bool,
    /// Nagle's algorithm (RFC 896): a segment smaller than `mss` waits while data is
    /// unacknowledged. sshd leaves it on at first.
    pub nagle: bool,
}

impl Path {
    /// Creates a path with half of `rtt` each way, no rate limit and Ethernet's segment size.
    pub fn rtt(rtt: Duration) -> Self {
        Self {
            delay: rtt / 2,
            rate: 0,
            mss: 1448,
            fragment: false,
            nagle: false,
        }
    }
}

/// One direction of a simulated connection: written bytes arrive on the other side later, in order.
#[derive(Debug)]
pub struct Wire {
    path: Path,
    rng: Seeded,
    held: Vec<u8>,
    flight: VecDeque<(Instant, Vec<u8>)>,
    /// Time at which the last segment sent will have been acknowledged.
    acked: Option<Instant>,
    /// Time at which the sender's link is free again.
    free: Option<Instant>,
    /// Number of bytes written so far.
    pub sent: u64,
    closed: bool,
}

impl Wire {
    /// Creates an idle direction.
    pub fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            rng: Seeded::new(seed),
            held: Vec::new(),
            flight: VecDeque::new(),
            acked: None,
            free: None,
            sent: 0,
            closed: false,
        }
    }

    /// Writes bytes at `now`.
    pub fn write(&mut self, now: Instant, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        self.held.extend_from_slice(bytes);
        self.flush(now);
    }

    /// Cuts the connection: bytes that have not arrived are lost.
    pub fn cut(&mut self) {
        self.closed = true;
        self.held.clear();
        self.flight.clear();
    }

    /// Reports if the connection was cut.
    pub fn is_cut(&self) -> bool {
        self.closed
    }

    /// Disables Nagle's algorithm (TCP_NODELAY); held bytes leave at once.
    pub fn set_nodelay(&mut self, now: Instant) {
        self.path.nagle = false;
        self.flush(now);
    }

    fn flush(&mut self, now: Instant) {
        if self.acked.is_some_and(|at| at <= now) {
            self.acked = None;
        }
        while !self.held.is_empty() && !self.closed {
            let whole = self.held.len() >= self.path.mss;
            if self.path.nagle && !whole && self.acked.is_some() {
                return;
            }
            let mut n = self.path.mss.min(self.held.len());
            if self.path.fragment {
                n = 1 + self.rng.below(n as u64) as usize;
                if self.rng.below(4) == 0 {
                    n = 1;
                }
            }
            let segment: Vec<u8> = self.held.drain(..n).collect();
            let start = self.free.map_or(now, |free| free.max(now));
            let takes = match self.path.rate {
                0 => Duration::ZERO,
                rate => Duration::from_nanos(n as u64 * 1_000_000_000 / rate),
            };
            self.free = Some(start + takes);
            let arrives = start + takes + self.path.delay;
            self.acked = Some(arrives + self.path.delay);
            self.flight.push_back((arrives, segment));
        }
    }

    /// Returns the bytes that have arrived by `now`.
    pub fn read(&mut self, now: Instant) -> Vec<u8> {
        self.flush(now);
        let mut bytes = Vec::new();
        while self.flight.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, segment)) = self.flight.pop_front() {
                bytes.extend(segment);
                if self.path.fragment {
                    break;
                }
            }
        }
        bytes
    }

    /// Returns the time of the next event: an arrival, or an acknowledgement that releases held
    /// bytes.
    pub fn next(&self) -> Option<Instant> {
        let arrival = self.flight.front().map(|(at, _)| *at);
        let release = self.acked.filter(|_| !self.held.is_empty());
        match (arrival, release) {
            (Some(a), Some(r)) => Some(a.min(r)),
            (a, r) => a.or(r),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nagle_holds_a_small_segment_until_the_one_before_is_acknowledged() {
        let start = Instant::now();
        let ms = |n| start + Duration::from_millis(n);
        let path = Path {
            nagle: true,
            ..Path::rtt(Duration::from_millis(100))
        };
        let mut wire = Wire::new(path, 1);
        wire.write(start, b"banner");
        wire.write(start, b"kexinit");
        assert_eq!(wire.next(), Some(ms(50)));
        assert_eq!(wire.read(ms(50)), b"banner");
        assert_eq!(wire.next(), Some(ms(100)));
        assert_eq!(wire.read(ms(100)), b"");
        assert_eq!(wire.read(ms(150)), b"kexinit");
    }

    #[test]
    fn fragments_arrive_whole_and_in_order() {
        let start = Instant::now();
        let path = Path {
            fragment: true,
            ..Path::rtt(Duration::ZERO)
        };
        let mut wire = Wire::new(path, 7);
        let sent: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        wire.write(start, &sent);
        let mut got = Vec::new();
        while wire.next().is_some() {
            got.extend(wire.read(start));
        }
        assert_eq!(got, sent);
    }
}
