//! Path just before it loses packets.

use std::time::{Duration, Instant};

use diagnose::LossConditions;

use super::{LoadMark, median, passed};

/// Time without losses, in round trips, after which a lost packet begins a series of its own: what
/// TCP repairs within two round trips tells nothing about the path.
const APART: f64 = 2.0;
/// Shortest time in seconds over which a rate is taken.
const SHORTEST: f64 = 0.02;

/// Returns the medians of the round trip and the rate just before each series of losses; `None` if
/// none began within the load.
pub(super) fn at_losses(
    marks: &[LoadMark],
    rtts: &[(Instant, f64)],
    min_rtt: f64,
    up: bool,
) -> Option<LossConditions> {
    let (mut waits, mut rates) = (Vec::new(), Vec::new());
    let apart = Duration::try_from_secs_f64(APART * min_rtt).ok()?;
    let mut lost_at: Option<Instant> = None;
    for (at, pair) in marks.windows(2).enumerate() {
        let [before, after] = pair else { continue };
        if after.1.retransmitted <= before.1.retransmitted {
            continue;
        }
        let begins = lost_at.is_none_or(|last| after.0.saturating_duration_since(last) > apart);
        lost_at = Some(after.0);
        let earlier = marks.get(..=at).unwrap_or_default();
        if let Some(rate) = rate_until_last(earlier, min_rtt, up).filter(|_| begins) {
            let known = rtts.iter().rev().find(|(time, _)| *time <= after.0);
            waits.extend(known.map(|(_, rtt)| *rtt));
            rates.push(rate);
        }
    }
    (!waits.is_empty()).then(|| LossConditions {
        rtt: median(&mut waits),
        rate: median(&mut rates),
    })
}

/// Rate over the last round trip of these samples.
fn rate_until_last(marks: &[LoadMark], min_rtt: f64, up: bool) -> Option<f64> {
    let last = marks.last()?;
    let over = |mark: &LoadMark| last.0.saturating_duration_since(mark.0).as_secs_f64();
    let first = marks
        .iter()
        .rev()
        .find(|mark| over(mark) >= min_rtt.max(SHORTEST))?;
    Some(passed(&first.1, &last.1, up) as f64 / over(first))
}
