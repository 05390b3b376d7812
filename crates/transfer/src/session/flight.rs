//! Divides a bound on the bytes in flight among all lanes.

/// Bytes in flight and demand of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneInFlight {
    /// Bytes requested or sent and not answered yet.
    bytes: u64,
    /// Bytes that the lane would have in flight without a bound; zero if it has no work.
    wants: u64,
}

impl LaneInFlight {
    pub(super) fn new(bytes: u64, wants: u64) -> Self {
        Self { bytes, wants }
    }
}

/// Granularity of the shares in bytes: one request.
const STEP: u64 = 32 << 10;

/// Returns the bytes that each lane may have in flight so that all together have `most`. Every lane
/// gets an equal share, and the others divide a share that a lane does not need. With first come,
/// first served, ten of fifteen connections had nothing to do.
pub(super) fn level(lanes: &[LaneInFlight], most: u64) -> u64 {
    let at = |level: u64| {
        let takes = |lane: &LaneInFlight| lane.bytes.max(lane.wants.min(level));
        lanes.iter().map(takes).fold(0, u64::saturating_add)
    };
    let (mut low, mut high) = (0, most / STEP + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        match at(middle * STEP) <= most {
            true => low = middle,
            false => high = middle,
        }
    }
    low * STEP
}

#[cfg(test)]
mod tests {
    use super::{LaneInFlight, STEP, level};

    fn lanes(of: &[(u64, u64)]) -> Vec<LaneInFlight> {
        let lane = |&(bytes, wants)| LaneInFlight::new(bytes * STEP, wants * STEP);
        of.iter().map(lane).collect()
    }

    fn found(of: &[(u64, u64)], most: u64) -> u64 {
        level(&lanes(of), most * STEP) / STEP
    }

    #[test]
    fn all_get_the_same_however_many_come_first() {
        assert_eq!(found(&[(0, 1000); 4], 100), 25);
        // Requests already in flight stay; the others share the rest.
        assert_eq!(found(&[(40, 1000), (0, 1000), (0, 1000)], 100), 30);
        assert_eq!(found(&[(100, 1000), (0, 1000)], 100), 0);
    }

    #[test]
    fn what_some_do_not_want_is_for_the_others() {
        assert_eq!(found(&[(0, 10), (0, 1000), (0, 1000)], 100), 45);
        // A lane without work keeps its requests in flight and gets no more.
        assert_eq!(found(&[(20, 0), (0, 1000)], 100), 80);
        assert_eq!(found(&[(0, 10), (0, 20)], 100), 100);
        assert_eq!(found(&[], 100), 100);
    }

    /// The lanes together stay within the bound, unless what is in flight already exceeds it, and
    /// one step more would exceed it: nothing is left unused while a lane wants more.
    #[test]
    fn the_shares_use_the_bound_and_do_not_exceed_it() {
        let mut seed = testkit::Seed::new(21);
        for _ in 0..5000 {
            let of: Vec<(u64, u64)> = (0..seed.below(6))
                .map(|_| (seed.below(30), seed.below(60)))
                .collect();
            let most = seed.below(150);
            let share = found(&of, most);
            let takes = |share: u64| -> u64 {
                of.iter()
                    .map(|(bytes, wants)| *bytes.max(&(*wants).min(share)))
                    .sum()
            };
            let in_flight: u64 = of.iter().map(|(bytes, _)| bytes).sum();
            assert!(
                takes(share) <= most.max(in_flight),
                "{of:?} {most}: {share}"
            );
            if in_flight > most {
                assert_eq!(takes(share), in_flight, "{of:?} {most}: nothing is added");
            }
            let is_free = share < most && takes(share + 1) <= most;
            assert!(!is_free, "{of:?} {most}: {share} leaves room");
        }
    }
}
