//! Decides if compressing file data pays, by measuring the rate with and without compression.

use std::time::{Duration, Instant};

/// Rate in bytes per second above which bandwidth does not limit a lane: zstd takes two cores for
/// 0.8 GB/s of text, and as many at the far end.
const FAST: f64 = 300e6;
/// Factor by which compression must raise the rate, since it takes processor time from other work.
const GAIN: f64 = 1.1;
/// Minimum time and bytes of a measurement, since answers come in bursts.
const LEAST_TIME: Duration = Duration::from_millis(100);
const LEAST: u64 = 1 << 20;
/// Upper bound of the bytes in flight on a lane.
const FLYING: u64 = 32 << 20;
/// Bytes after which compression is tried again when it did not pay; four times as many after each
/// further trial.
const AGAIN: u64 = 64 << 20;
/// Bytes after which a remembered result is checked.
const BELIEVED: u64 = 256 << 20;

/// Compares the rate at which the receiving end confirms files with compression and without.
///
/// Bytes requested in one mode are confirmed after the other mode has begun, so nothing is measured
/// until those are through.
#[derive(Debug)]
pub(super) struct CompressionProbe {
    packs: bool,
    /// Bytes of files that were requested, and those that were confirmed.
    asked: u64,
    moved: u64,
    /// Value of `moved` from which confirmed bytes were requested in the present mode.
    settled: u64,
    /// Start time and bytes of the present measurement.
    since: Option<(Instant, u64)>,
    /// Rate without compression, once known.
    plain: Option<f64>,
    /// Value of `moved` before which the other mode is not tried.
    not_before: u64,
    wait: u64,
}

impl CompressionProbe {
    /// Starts with compression if the path was slow the last time (`believed`).
    pub(super) fn new(believed: bool) -> Self {
        Self {
            packs: believed,
            asked: 0,
            moved: 0,
            settled: 0,
            since: None,
            plain: None,
            not_before: if believed { BELIEVED } else { 0 },
            wait: AGAIN,
        }
    }

    /// Counts `len` requested bytes and returns true if they are to be compressed.
    pub(super) fn ask(&mut self, len: u64) -> bool {
        self.asked(len);
        self.packs
    }

    /// Counts `len` requested bytes.
    pub(super) fn asked(&mut self, len: u64) {
        self.asked += len;
    }

    /// Counts `n` more bytes of files that the receiving end has confirmed.
    pub(super) fn confirm(&mut self, now: Instant, n: u64) {
        self.moved += n;
        if self.moved < self.settled {
            return;
        }
        let (since, from) = *self.since.get_or_insert((now, self.moved));
        let (time, moved) = (now.saturating_duration_since(since), self.moved - from);
        if time < LEAST_TIME || moved < LEAST {
            return;
        }
        let rate = moved as f64 / time.as_secs_f64();
        self.since = None;
        match (self.packs, self.plain) {
            (false, _) => {
                self.plain = Some(rate);
                if rate < FAST && self.moved >= self.not_before {
                    self.turn(true);
                }
            }
            (true, Some(plain)) if rate < plain * GAIN => {
                self.not_before = self.moved + self.wait;
                self.wait = self.wait.saturating_mul(4);
                self.turn(false);
            }
            (true, None) if self.moved >= self.not_before => self.turn(false),
            (true, _) => {}
        }
    }

    fn turn(&mut self, packs: bool) {
        self.packs = packs;
        // Failed requests are never confirmed.
        self.settled = self.moved + self.asked.saturating_sub(self.moved).min(FLYING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 256 << 10;
    const MIB: u64 = 1 << 20;

    /// Moves `total` bytes with 4 MiB in flight, at rate `packed` with compression and
    /// `plain` without. Returns the number of compressed bytes.
    fn move_all(pays: &mut CompressionProbe, total: u64, packed: f64, plain: f64) -> u64 {
        let mut now = testkit::sftp_model::epoch();
        let mut flying = std::collections::VecDeque::new();
        let (mut asked, mut as_packed) = (0, 0);
        while asked < total || !flying.is_empty() {
            while asked < total && flying.len() < 16 {
                let packs = pays.ask(BLOCK);
                as_packed += if packs { BLOCK } else { 0 };
                flying.push_back(packs);
                asked += BLOCK;
            }
            let rate = match flying.pop_front() {
                Some(true) => packed,
                _ => plain,
            };
            now += Duration::from_secs_f64(BLOCK as f64 / rate);
            pays.confirm(now, BLOCK);
        }
        as_packed
    }

    #[test]
    fn a_slow_path_is_packed_for_soon() {
        let mut pays = CompressionProbe::new(false);
        let packed = move_all(&mut pays, 256 * MIB, 37e6, 12.5e6);
        assert!(packed > 248 * MIB, "{packed}");
    }

    #[test]
    fn a_fast_one_is_left_alone() {
        let mut pays = CompressionProbe::new(false);
        assert_eq!(move_all(&mut pays, 1024 * MIB, 400e6, 900e6), 0);
    }

    #[test]
    fn where_something_else_is_slow_it_is_given_up_and_seldom_tried() {
        // A disk at the far end is the limit.
        let mut pays = CompressionProbe::new(false);
        let packed = move_all(&mut pays, 4096 * MIB, 100e6, 100e6);
        assert!(packed < 100 * MIB, "{packed}");
        // The local processor is the limit.
        let mut pays = CompressionProbe::new(false);
        let packed = move_all(&mut pays, 4096 * MIB, 50e6, 100e6);
        assert!(packed < 100 * MIB, "{packed}");
    }

    #[test]
    fn what_was_believed_is_used_at_once_and_looked_into() {
        let mut pays = CompressionProbe::new(true);
        let packed = move_all(&mut pays, 128 * MIB, 37e6, 12.5e6);
        assert_eq!(packed, 128 * MIB);
        let mut pays = CompressionProbe::new(true);
        let packed = move_all(&mut pays, 2048 * MIB, 400e6, 900e6);
        assert!(packed < 350 * MIB, "{packed}");
        let mut pays = CompressionProbe::new(true);
        let packed = move_all(&mut pays, 2048 * MIB, 37e6, 12.5e6);
        assert!(packed > 2030 * MIB, "{packed}");
    }
}
