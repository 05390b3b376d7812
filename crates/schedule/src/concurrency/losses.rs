//! Predicts how long connections that lose packets take for their data.
//!
//! Each connection is a CUBIC sender (RFC 9438): slow start until its first loss, then a window that
//! falls to 0.7 and grows as the cubic of the time since. Losses are drawn for each round trip and
//! connection, and the time is the average of several copies.

/// Payload of a segment in bytes.
const SEGMENT: f64 = 1448.0;
/// C of CUBIC in segments per cubic second.
const GROWTH: f64 = 0.4;
/// Factor by which CUBIC reduces its window at a loss.
const BETA: f64 = 0.7;
/// Number of copies of which the average is taken: that of 64 MiB differs by less than 1 % with
/// twice as many.
const COPIES: u32 = 128;
/// Number of round trips of one copy that are followed. What is left then is sent at the rate of the
/// last half of them.
const ROUNDS: u32 = 2000;

/// Connections that share a path with random losses.
pub(super) struct LossyCopy {
    /// Bytes to copy.
    pub bytes: f64,
    /// Share of packets that are lost.
    pub loss: f64,
    /// Round trip in seconds.
    pub rtt: f64,
    /// Bytes that the path carries in one round trip.
    pub per_trip: f64,
    /// Bytes that one connection can have in flight.
    pub cap: f64,
    /// Round trips after which each connection moves data, and its first window in bytes.
    pub connections: Vec<(f64, f64)>,
}

impl LossyCopy {
    /// Returns the average number of round trips until the last byte.
    pub(super) fn trips(&self) -> f64 {
        let mut random = SplitMix(1);
        let all: f64 = (0..COPIES).map(|_| self.one(&mut random)).sum();
        all / f64::from(COPIES)
    }

    fn one(&self, random: &mut SplitMix) -> f64 {
        let begins = self.connections.iter().map(|(begin, _)| *begin);
        let mut trips = begins.fold(f64::INFINITY, f64::min);
        let mut windows: Vec<CubicWindow> = self
            .connections
            .iter()
            .map(|(_, window)| CubicWindow::new(*window))
            .collect();
        let mut left = self.bytes;
        let mut late = 0.0;
        for round in 0..ROUNDS {
            let joined = self.connections.iter().zip(&mut windows);
            let joined = joined.filter(|((begin, _), _)| *begin <= trips);
            let mut joined: Vec<&mut CubicWindow> = joined.map(|(_, window)| window).collect();
            let wanted: f64 = joined.iter().map(|w| w.bytes.min(self.cap)).sum();
            let fits = (self.per_trip / wanted).min(1.0);
            let sent = wanted * fits;
            if left <= sent {
                return trips + left / sent;
            }
            left -= sent;
            trips += 1.0;
            if round >= ROUNDS / 2 {
                late += sent;
            }
            for window in &mut joined {
                let packets = window.bytes.min(self.cap) * fits / SEGMENT;
                let is_lost = random.unit() > (1.0 - self.loss).powf(packets);
                window.next(is_lost, self.rtt, self.cap);
            }
        }
        trips + left * f64::from(ROUNDS / 2) / late
    }
}

/// Congestion window of one connection.
struct CubicWindow {
    bytes: f64,
    /// Window in bytes at the last loss, and seconds since; `None` in slow start.
    lost: Option<(f64, f64)>,
}

impl CubicWindow {
    fn new(bytes: f64) -> Self {
        Self { bytes, lost: None }
    }

    /// Changes the window after one round trip of `rtt` seconds.
    fn next(&mut self, is_lost: bool, rtt: f64, cap: f64) {
        if is_lost {
            self.lost = Some((self.bytes, 0.0));
            self.bytes = (self.bytes * BETA).max(2.0 * SEGMENT);
            return;
        }
        let Some((before, since)) = &mut self.lost else {
            self.bytes = (2.0 * self.bytes).min(cap);
            return;
        };
        *since += rtt;
        let before = *before / SEGMENT;
        let until = (before * (1.0 - BETA) / GROWTH).cbrt();
        let cubic = GROWTH * (*since - until).powi(3) + before;
        // As fast as Reno at least (RFC 9438, section 4.3).
        let alpha = 3.0 * (1.0 - BETA) / (1.0 + BETA);
        let reno = before * BETA + alpha * *since / rtt;
        self.bytes = (cubic.max(reno) * SEGMENT).clamp(2.0 * SEGMENT, cap);
    }
}

/// Sequence of numbers that look random (Steele, Lea and Flood, 2014), the same ones each time.
struct SplitMix(u64);

impl SplitMix {
    /// Returns a number from 0 up to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gigabit with a round trip of 100 ms, and connections that begin at once.
    fn copy(bytes: f64, loss: f64, connections: usize) -> LossyCopy {
        LossyCopy {
            bytes,
            loss,
            rtt: 0.1,
            per_trip: 12e6,
            cap: 16e6,
            connections: vec![(0.0, 10.0 * SEGMENT); connections],
        }
    }

    /// RFC 9438, section 5.1, equation 6: the average window in segments is
    /// (C (3 + beta) / (4 (1 - beta)))^(1/4) (rtt / p)^(3/4), or Reno's sqrt(3 / (2 p)) if that is
    /// larger. Both are for losses at equal distances; those at random leave up to a quarter more.
    #[test]
    fn a_long_copy_has_the_rate_of_rfc_9438() {
        for loss in [1e-3, 1e-4] {
            let bytes = 4e9;
            let window = bytes / copy(bytes, loss, 1).trips() / SEGMENT;
            let c = GROWTH * (3.0 + BETA) / (4.0 * (1.0 - BETA));
            let cubic = c.powf(0.25) * (0.1_f64 / loss).powf(0.75);
            let ratio = window / cubic.max((1.5 / loss).sqrt());
            assert!((0.9..1.3).contains(&ratio), "{loss}: {ratio}");
        }
    }

    #[test]
    fn more_losses_take_longer_and_more_connections_shorter() {
        let trips = |loss, connections| copy(64e6, loss, connections).trips();
        assert!(trips(1e-2, 4) > 1.5 * trips(1e-3, 4));
        assert!(trips(1e-3, 4) > 1.3 * trips(1e-6, 4));
        assert!(trips(1e-3, 1) > 2.0 * trips(1e-3, 8));
    }

    #[test]
    fn without_losses_slow_start_alone_counts() {
        // 10 + 20 + 40 + 80 + 160 segments, and half of the next 320.
        let trips = copy(470.0 * SEGMENT, 0.0, 1).trips();
        assert!((trips - 5.5).abs() < 1e-9, "{trips}");
    }

    /// A copy of days ended after 100,000 round trips, whatever its size.
    #[test]
    fn ten_times_the_bytes_take_ten_times_as_long() {
        let trips = |bytes| copy(bytes, 1e-3, 7).trips();
        let ratio = trips(1e13) / trips(1e12);
        assert!((ratio - 10.0).abs() < 0.1, "{ratio}");
    }

    #[test]
    fn the_prediction_is_the_same_each_time() {
        let trips = || copy(16e6, 1e-3, 5).trips().to_bits();
        assert_eq!(trips(), trips());
    }
}
