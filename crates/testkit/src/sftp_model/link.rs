use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Start of virtual time.
pub fn epoch() -> Instant {
    Instant::now()
}

/// Small seeded generator (xorshift64*): equal seeds give equal runs.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator; any seed is valid.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next_u64() >> 11) % n
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next_u64() as u8;
        }
    }
}

/// Properties of one direction of a path.
#[derive(Clone, Copy, Debug)]
pub struct VirtualLinkOptions {
    /// One-way delay.
    pub delay: Duration,
    /// Rate in bytes per second; 0 is unlimited.
    pub bandwidth: u64,
    /// Maximum size of the pieces that arrive; each has from 1 to this many bytes.
    pub fragment: usize,
}

impl Default for VirtualLinkOptions {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(50),
            bandwidth: 0,
            fragment: 32 * 1024,
        }
    }
}

/// One direction of a reliable, ordered path in virtual time.
#[derive(Debug)]
pub struct Link {
    options: VirtualLinkOptions,
    rng: Rng,
    free_at: Option<Instant>,
    queue: VecDeque<(Instant, Vec<u8>)>,
}

impl Link {
    /// Creates an idle link.
    pub fn new(options: VirtualLinkOptions, seed: u64) -> Self {
        Self {
            options,
            rng: Rng::new(seed),
            free_at: None,
            queue: VecDeque::new(),
        }
    }

    /// Puts bytes on the link.
    pub fn send(&mut self, now: Instant, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let max = self.options.fragment.max(1);
            let size = match max {
                1 => 1,
                max => 1 + self.rng.below(max as u64) as usize,
            };
            let (piece, rest) = bytes.split_at(size.min(bytes.len()));
            bytes = rest;
            let start = self.free_at.map_or(now, |free| free.max(now));
            let takes = match self.options.bandwidth {
                0 => Duration::ZERO,
                rate => Duration::from_secs_f64(piece.len() as f64 / rate as f64),
            };
            self.free_at = Some(start + takes);
            self.queue
                .push_back((start + takes + self.options.delay, piece.to_vec()));
        }
    }

    /// Returns the time at which the next bytes arrive.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.queue.front().map(|(at, _)| *at)
    }

    /// Returns the bytes that have arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, bytes)| bytes)
    }
}
