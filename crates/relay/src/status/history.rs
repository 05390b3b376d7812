//! Rates of the last minute, computed from byte counters that are sampled once per second. No I/O.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Length of the history in seconds.
pub const SECONDS: usize = 60;

/// Rates of many counters in the last minute.
#[derive(Debug)]
pub(super) struct RateHistory<Key>(HashMap<Key, RateTrack>);

impl<Key> Default for RateHistory<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// Byte counters at the last sample of one key, and the rates between samples, to the server and to
/// the client.
#[derive(Debug, Default)]
struct RateTrack {
    last: [u64; 2],
    /// Rates in bytes per second, latest last; empty if nothing has moved in all that time.
    rates: VecDeque<[u64; 2]>,
    seen: bool,
}

impl<Key: Hash + Eq> RateHistory<Key> {
    /// Adds the samples of one second. Keys that are not listed are removed.
    pub(super) fn note(&mut self, all: impl IntoIterator<Item = (Key, [u64; 2])>) {
        for track in self.0.values_mut() {
            track.seen = false;
        }
        for (key, bytes) in all {
            self.0.entry(key).or_default().note(bytes);
        }
        self.0.retain(|_, track| track.seen);
    }

    /// Returns the rates of each direction in bytes per second, latest last.
    pub(super) fn rates(&self, key: &Key) -> [Vec<u64>; 2] {
        let rates = self.0.get(key).map(|track| &track.rates);
        [0, 1].map(|way| {
            let of_way = rates.into_iter().flatten().map(|rates| rates[way]);
            of_way.collect()
        })
    }

    /// Returns the bytes of the last second, both directions together.
    pub(super) fn busy(&self, key: &Key) -> u64 {
        let last = self.0.get(key).and_then(|track| track.rates.back());
        last.map_or(0, |[up, down]| up.saturating_add(*down))
    }
}

impl RateTrack {
    fn note(&mut self, bytes: [u64; 2]) {
        let more = [0, 1].map(|way| bytes[way].saturating_sub(self.last[way]));
        (self.last, self.seen) = (bytes, true);
        if more == [0, 0] && self.rates.is_empty() {
            return;
        }
        if self.rates.len() == SECONDS {
            self.rates.pop_front();
        }
        self.rates.push_back(more);
        if self.rates.iter().all(|rates| *rates == [0, 0]) {
            // An idle connection keeps no memory for its history.
            self.rates = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_is_known_of_those_who_are_there() {
        let mut history = RateHistory::default();
        history.note([(1, [100, 0]), (2, [0, 0])]);
        history.note([(1, [150, 7]), (2, [0, 0])]);
        assert_eq!(history.rates(&1), [vec![100, 50], vec![0, 7]]);
        assert_eq!((history.busy(&1), history.busy(&2)), (57, 0));
        assert_eq!(history.rates(&2), [vec![], vec![]]);
        history.note([(2, [5, 5])]);
        assert_eq!(history.rates(&1), [vec![], vec![]]);
        for second in 0..200 {
            history.note([(2, [5 + second, 5])]);
        }
        assert_eq!(history.rates(&2)[0].len(), SECONDS);
        assert!(history.rates(&2)[0].iter().all(|rate| *rate == 1));
    }

    #[test]
    fn who_is_idle_costs_nothing() {
        let mut history = RateHistory::default();
        history.note([(1, [9, 9])]);
        for _ in 0..SECONDS {
            history.note([(1, [9, 9])]);
        }
        assert!(history.0[&1].rates.is_empty());
    }
}
