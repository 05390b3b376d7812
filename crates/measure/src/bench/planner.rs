//! Plans the order of runs: each row once, the most useful first; then alternately until all are
//! precise enough or the time is up.

use super::NARROW;
use super::interval::{ConfidenceInterval, USUAL};

/// Share of the time in which rows without runs come before imprecise ones.
const BREADTH: f64 = 0.5;
/// Maximum number of runs of one row.
const MOST_RUNS: usize = 60;
/// Runs that a row which is compared with others gets before rows that are only shown get any: a
/// warm-up, and as many as a comparison needs.
const DECISIVE_RUNS: usize = 4;

/// Chooses the next row to run. It has no clock: callers pass the time used.
#[derive(Debug, Clone)]
pub struct BenchPlanner {
    rows: Vec<RowState>,
    /// Number of leading rows that run once even if time is short.
    must: usize,
    limit: f64,
}

/// Runs of one row so far; `seconds` is their total time.
#[derive(Debug, Clone, Default)]
struct RowState {
    /// Rates in order; the first is the warm-up's.
    values: Vec<f64>,
    seconds: f64,
    failed: bool,
    /// The advice compares this row with others.
    decisive: bool,
}

impl RowState {
    fn is_known(&self) -> bool {
        let counted = self.values.get(1..).unwrap_or_default();
        let interval = ConfidenceInterval::of(counted.iter().copied(), USUAL);
        self.values.len() > MOST_RUNS || interval.is_some_and(|i| i.is_narrow(NARROW))
    }

    fn cost(&self) -> f64 {
        self.seconds / self.values.len().max(1) as f64
    }
}

impl BenchPlanner {
    /// Plans `rows` rows, the most useful first, within `limit` seconds.
    pub fn new(rows: usize, must: usize, limit: f64) -> Self {
        Self {
            rows: vec![RowState::default(); rows],
            must: must.min(rows),
            limit,
        }
    }

    /// Marks the rows that the advice compares.
    #[must_use]
    pub fn deciding_by(mut self, decisive: impl IntoIterator<Item = bool>) -> Self {
        for (row, decisive) in self.rows.iter_mut().zip(decisive) {
            row.decisive = decisive;
        }
        self
    }

    /// The row to run next after `used` seconds; `None` at the end.
    pub fn next(&self, used: f64) -> Option<usize> {
        let fresh = |row: &RowState| row.values.is_empty() && !row.failed;
        let first = self.rows.iter().position(fresh);
        if let Some(first) = first.filter(|first| *first < self.must) {
            return Some(first);
        }
        let usual = self.usual_cost();
        let undecided = |row: &RowState| {
            let runs = row.values.len();
            row.decisive
                && !row.failed
                && runs < DECISIVE_RUNS
                && used + row.cost().max(usual) < self.limit
        };
        let undecided = self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| undecided(row));
        if let Some((at, _)) = undecided.min_by_key(|(_, row)| row.values.len()) {
            return Some(at);
        }
        let mut first = first.filter(|_| used + usual < self.limit);
        if let Some(first) = first.take_if(|_| used + usual < self.limit * BREADTH) {
            return Some(first);
        }
        let open = |row: &RowState| !row.values.is_empty() && !row.failed && !row.is_known();
        let fits = |row: &RowState| used + row.cost() < self.limit;
        self.rows
            .iter()
            .enumerate()
            .filter(|(_, row)| open(row) && fits(row))
            .min_by_key(|(_, row)| row.values.len())
            .map(|(at, _)| at)
            .or(first)
    }

    /// Notes a finished run of `row`.
    pub fn ran(&mut self, row: usize, value: f64, seconds: f64) {
        if let Some(row) = self.rows.get_mut(row) {
            row.values.push(value);
            row.seconds += seconds;
        }
    }

    /// Notes that `row` cannot be measured.
    pub fn failed(&mut self, row: usize) {
        if let Some(row) = self.rows.get_mut(row) {
            row.failed = true;
        }
    }

    /// Upper bound of the remaining seconds, if nothing changes.
    pub fn remaining(&self, used: f64) -> f64 {
        let fresh = |row: &&RowState| row.values.is_empty() && !row.failed;
        let must = self.rows.iter().take(self.must).filter(fresh).count();
        let needed = must as f64 * self.usual_cost();
        (self.limit - used).max(needed).max(0.0)
    }

    /// Average seconds of a run.
    fn usual_cost(&self) -> f64 {
        let runs: usize = self.rows.iter().map(|row| row.values.len()).sum();
        let seconds: f64 = self.rows.iter().map(|row| row.seconds).sum();
        seconds / runs.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the planner to its end. Returns the order of rows, and the seconds used.
    fn run(
        mut planner: BenchPlanner,
        cost: f64,
        value: impl Fn(usize, usize) -> f64,
    ) -> (Vec<usize>, f64) {
        let (mut order, mut used) = (Vec::new(), 0.0);
        while let Some(row) = planner.next(used) {
            let number = order.iter().filter(|r| **r == row).count();
            used += cost;
            planner.ran(row, value(row, number), cost);
            order.push(row);
            assert!(order.len() < 10_000, "it does not end");
        }
        (order, used)
    }

    #[test]
    fn each_runs_once_and_then_they_take_turns() {
        let noisy = |row: usize, number: usize| 10.0 + row as f64 + (number % 3) as f64;
        let (order, used) = run(BenchPlanner::new(3, 0, 10.0), 0.5, noisy);
        assert_eq!(&order[..9], [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert!(used <= 10.0 && used > 9.0);
    }

    /// Regression: in three minutes each of sixty settings ran once, and no comparison was
    /// significant.
    #[test]
    fn what_the_advice_compares_runs_often_enough_first() {
        let decisive = (0..40).map(|row| row < 3 || row == 20);
        let planner = BenchPlanner::new(40, 0, 100.0).deciding_by(decisive);
        let noisy = |row: usize, number: usize| 10.0 + row as f64 + (number % 3) as f64;
        let (order, _) = run(planner, 1.0, noisy);
        assert_eq!(&order[..16], [0, 1, 2, 20].repeat(4));
        assert!(order.contains(&3));
    }

    #[test]
    fn what_is_known_well_is_left_alone() {
        let (order, used) = run(
            BenchPlanner::new(2, 0, 100.0),
            0.5,
            |row, number| match row {
                0 => 10.0,
                _ => 10.0 + (number % 2) as f64,
            },
        );
        let of = |row| order.iter().filter(|r| **r == row).count();
        // A warm-up, and the six values that an interval needs.
        assert_eq!(of(0), 7);
        assert_eq!(of(1), MOST_RUNS + 1);
        assert!(used < 100.0);
    }

    #[test]
    fn what_has_to_run_runs_whatever_the_time() {
        let (order, _) = run(BenchPlanner::new(9, 4, 0.1), 1.0, |_, _| 1.0);
        assert_eq!(order, [0, 1, 2, 3]);
    }

    #[test]
    fn half_of_the_time_goes_to_depth() {
        let (order, used) = run(BenchPlanner::new(100, 2, 20.0), 1.0, |_, number| {
            number as f64
        });
        let reached = order.iter().max().unwrap() + 1;
        assert!((8..=11).contains(&reached), "{reached}");
        assert!(used <= 20.0);
    }

    #[test]
    fn what_is_left_of_the_time_goes_to_breadth() {
        let (order, _) = run(BenchPlanner::new(40, 0, 200.0), 1.0, |_, _| 1.0);
        assert_eq!(order.iter().max(), Some(&39));
    }

    #[test]
    fn what_fails_is_not_tried_again() {
        let mut planner = BenchPlanner::new(2, 2, 10.0);
        planner.failed(0);
        assert_eq!(planner.next(0.0), Some(1));
        planner.failed(1);
        assert_eq!(planner.next(0.0), None);
        assert_eq!(planner.remaining(4.0), 6.0);
        assert_eq!(planner.remaining(14.0), 0.0);
    }
}
