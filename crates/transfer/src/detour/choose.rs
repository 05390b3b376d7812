//! Decides about a detour from figures.

use super::{RouteFigures, RouteResult};

/// Times as fast as the direct way a detour must be expected to be.
pub const WORTH: f64 = 1.3;

/// Round trip of the direct way below which there is no detour: TCP recovers at once on it, and the
/// figures of a burst are those of the two machines.
const SHORT_US: u32 = 5_000;

/// Returns the index of the candidate through which connections should go; `None` for the direct
/// way.
///
/// The fastest candidate is taken if its rate is [`WORTH`] times that of the direct way, and the
/// direct way has shown a limit. If the direct way has failed, the fastest candidate is the only
/// way that is known.
pub fn choose(direct: &RouteResult, candidates: &[RouteResult]) -> Option<usize> {
    let measured = candidates.iter().enumerate();
    let measured = measured.filter_map(|(at, way)| Some((at, way.as_ref().ok()?)));
    let better = |way: &RouteFigures| (way.rate, std::cmp::Reverse(way.rtt_us));
    // `max_by_key` returns the last of equals, and the user's order counts.
    let (at, best) = measured.rev().max_by_key(|(_, way)| better(way))?;
    let worth = match direct {
        Ok(direct) => {
            let short = direct.rtt_us < SHORT_US && direct.rate > 0;
            !short
                && !direct.grows
                && best.rate > 0
                && best.rate as f64 >= WORTH * direct.rate as f64
        }
        Err(_) => true,
    };
    worth.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detour::RouteError;

    fn way(rate: u64, rtt_ms: u32) -> RouteResult {
        Ok(RouteFigures {
            rtt_us: rtt_ms * 1000,
            rate,
            grows: false,
        })
    }

    fn growing(rate: u64, rtt_ms: u32) -> RouteResult {
        way(rate, rtt_ms).map(|way| RouteFigures { grows: true, ..way })
    }

    fn down() -> RouteResult {
        Err(RouteError::of_path("connection refused"))
    }

    #[test]
    fn a_detour_is_taken_only_if_it_should_be_a_third_faster() {
        for (direct, candidates, expected) in [
            // Half the round trip and half the losses.
            (way(500, 160), vec![way(1_400, 165)], Some(0)),
            // Not worth it.
            (way(500, 160), vec![way(640, 165)], None),
            (way(500, 160), vec![way(650, 165)], Some(0)),
            // The best of several, the first of equals, the nearer of equally fast ones.
            (
                way(500, 160),
                vec![way(900, 1), way(2_000, 9), down()],
                Some(1),
            ),
            (way(500, 160), vec![way(900, 9), way(900, 9)], Some(0)),
            (way(500, 160), vec![way(900, 9), way(900, 8)], Some(1)),
            // A busy machine made a burst over loopback look slow.
            (way(500, 1), vec![way(5_000, 1)], None),
            // The direct way has not shown its limit.
            (growing(500, 160), vec![way(5_000, 165)], None),
            // A candidate that still grows is at least that fast.
            (way(500, 160), vec![growing(700, 165)], Some(0)),
            // Candidates that are down, and none.
            (way(500, 160), vec![down(), down()], None),
            (way(500, 160), vec![], None),
            // The direct way is down.
            (down(), vec![down(), way(1, 900)], Some(1)),
            (down(), vec![down()], None),
            // Nothing arrived.
            (way(0, 160), vec![way(0, 160)], None),
        ] {
            assert_eq!(
                choose(&direct, &candidates),
                expected,
                "{direct:?} {candidates:?}"
            );
        }
    }
}
