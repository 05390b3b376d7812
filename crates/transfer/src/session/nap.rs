//! Decides how long the loop lets answers accumulate.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Range of a nap; shorter naps are not taken.
const NAP: RangeInclusive<Duration> = Duration::from_micros(100)..=Duration::from_millis(1);
/// Rate in bytes per second from which naps are limited to `SHORT_NAP`. A rate that naps reduce
/// makes the next nap longer, which held a lane at half its speed for the first 0.2 s.
const FAST: f64 = 1e9;
const SHORT_NAP: Duration = Duration::from_micros(150);
/// Bytes in flight below which answers are processed as they come.
const BULK: u64 = 1 << 20;

/// Time for which answers may accumulate before the loop wakes, as a network card coalesces
/// interrupts. `in_flight` is in bytes and `rate` in bytes per second, over all lanes.
///
/// sshd answers each 96 KiB with a message of its own, and waking for each cost 57,000 context
/// switches for 4 GiB, which slow down both ends. A nap lasts at most a fifth of the time that the
/// data in flight takes, so the other end does not run out of work.
pub(super) fn nap(in_flight: u64, rate: f64) -> Option<Duration> {
    if in_flight < BULK || rate <= 0.0 {
        return None;
    }
    let lasts = Duration::try_from_secs_f64(in_flight as f64 / rate).ok()?;
    let most = if rate < FAST { *NAP.end() } else { SHORT_NAP };
    Some((lasts / 5).min(most)).filter(|nap| nap >= NAP.start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_is_a_fifth_of_the_data_in_flight_within_bounds() {
        assert_eq!(nap(BULK - 1, 1e6), None, "little is in flight");
        assert_eq!(nap(BULK, 0.0), None, "the rate is not known");
        let mib = 1024.0 * 1024.0;
        assert_eq!(nap(4 << 20, 400.0 * mib), Some(Duration::from_millis(1)));
        assert_eq!(nap(1 << 20, 1000.0 * mib), Some(SHORT_NAP), "a fast path");
        assert_eq!(nap(1 << 20, 4000.0 * mib), None, "too short to be worth it");
    }
}
