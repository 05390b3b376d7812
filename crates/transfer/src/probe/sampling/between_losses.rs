//! Rate of an upload between two lost packets, which is that of a policer.

use std::time::{Duration, Instant};

use super::{LoadMark, passed};

/// Time without losses, in round trips, after which a lost packet begins a series of its own. Within a
/// series packets are sent again whose loss was noticed before.
const APART: f64 = 2.0;
/// Shortest time between two lost packets: round trips, and seconds. The moment at which a loss is
/// noticed varies by a round trip.
const SHORTEST_TRIPS: f64 = 10.0;
const SHORTEST: f64 = 0.4;
/// Delay that tells of a queue: a share of the round trip, and seconds.
const QUEUE: (f64, f64) = (0.05, 0.002);

/// Returns the highest rate between the first lost packet of a series and a later lost packet; `None` if
/// none are far enough apart. A policer drops packets when its bucket is empty, so that no more than its
/// tokens passes from then on; a bucket that is full in between makes it less. A series whose packets
/// a queue may have dropped does not begin with an empty bucket.
pub(super) fn between_losses(
    marks: &[LoadMark],
    rtts: &[(Instant, f64)],
    min_rtt: f64,
) -> Option<f64> {
    let apart = Duration::try_from_secs_f64(APART * min_rtt).ok()?;
    let shortest = SHORTEST.max(SHORTEST_TRIPS * min_rtt);
    let (mut begins, mut losses): (Vec<&LoadMark>, Vec<&LoadMark>) = (Vec::new(), Vec::new());
    for pair in marks.windows(2) {
        let [before, after] = pair else { continue };
        if after.1.retransmitted <= before.1.retransmitted {
            continue;
        }
        let new = |last: &&LoadMark| after.0.saturating_duration_since(last.0) > apart;
        let known = rtts.iter().rev().find(|(time, _)| *time <= after.0);
        let waited = known.is_some_and(|(_, rtt)| *rtt > min_rtt * (1.0 + QUEUE.0) + QUEUE.1);
        if losses.last().is_none_or(new) && !waited {
            begins.push(after);
        }
        losses.push(after);
    }
    let rate = |from: &LoadMark, to: &LoadMark| {
        let over = to.0.saturating_duration_since(from.0).as_secs_f64();
        (over >= shortest).then(|| passed(&from.1, &to.1, true) as f64 / over)
    };
    let pairs = begins
        .iter()
        .flat_map(|from| losses.iter().filter_map(|to| rate(from, to)));
    pairs.max_by(f64::total_cmp)
}
