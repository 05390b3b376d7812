//! What may be in flight where that is held over all lanes.

/// A lane, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flying {
    /// Bytes asked for or sent, and not answered.
    pub(super) bytes: u64,
    /// What it would have in flight if it could; nothing where it has nothing to do.
    pub(super) wants: u64,
}

/// In which steps shares are found: a request's worth.
const STEP: u64 = 32 << 10;

/// How many bytes each lane may have in flight so that all of them together have `most`: the same
/// for each, where what some do not want is for the others. When whoever was asked first could
/// have all of it, ten of fifteen connections had nothing to do.
pub(super) fn level(lanes: &[Flying], most: u64) -> u64 {
    let at = |level: u64| {
        let takes = |lane: &Flying| lane.bytes.max(lane.wants.min(level));
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
    use super::{Flying, STEP, level};

    fn lanes(of: &[(u64, u64)]) -> Vec<Flying> {
        let lane = |&(bytes, wants)| Flying {
            bytes: bytes * STEP,
            wants: wants * STEP,
        };
        of.iter().map(lane).collect()
    }

    fn found(of: &[(u64, u64)], most: u64) -> u64 {
        level(&lanes(of), most * STEP) / STEP
    }

    #[test]
    fn all_get_the_same_however_many_come_first() {
        assert_eq!(found(&[(0, 1000); 4], 100), 25);
        // What one has already waits for its answers; the others share what is left.
        assert_eq!(found(&[(40, 1000), (0, 1000), (0, 1000)], 100), 30);
        assert_eq!(found(&[(100, 1000), (0, 1000)], 100), 0);
    }

    #[test]
    fn what_some_do_not_want_is_for_the_others() {
        assert_eq!(found(&[(0, 10), (0, 1000), (0, 1000)], 100), 45);
        // One without anything to do keeps what it has in flight, and takes no more.
        assert_eq!(found(&[(20, 0), (0, 1000)], 100), 80);
        assert_eq!(found(&[(0, 10), (0, 20)], 100), 100);
        assert_eq!(found(&[], 100), 100);
    }
}
