//! Compares two results.

use super::BenchResult;
use super::interval::ConfidenceInterval;
use super::text::name;
use crate::shown;
use crate::table::MarkdownTable;

/// Change of one figure between two results of `longhaul bench`, as confidence intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct RateChange {
    /// Name of the figure.
    pub what: String,
    /// The figure before.
    pub before: ConfidenceInterval,
    /// The figure now.
    pub now: ConfidenceInterval,
    /// The difference is larger than chance.
    pub sure: bool,
}

impl RateChange {
    /// `now / before`: 2 is twice as fast.
    pub fn ratio(&self) -> f64 {
        self.now.median / self.before.median
    }
}

/// Compares the figures that both results have.
pub fn compare(before: &BenchResult, now: &BenchResult) -> Vec<RateChange> {
    let rows = now.rows.iter().filter_map(|row| {
        let old = before.row(&row.setting)?.rate();
        change(name(&row.setting), old, row.rate())
    });
    let primitives = now.primitives.iter().filter_map(|new| {
        let same = |old: &&super::PrimitiveResult| {
            (&old.name, &old.what, old.threads) == (&new.name, &new.what, new.threads)
        };
        let old = before.primitives.iter().find(same)?.rate();
        let name = format!("{} {} x{}", new.name, new.what, new.threads);
        change(name, old, new.rate())
    });
    primitives.chain(rows).collect()
}

fn change(
    what: String,
    before: Option<ConfidenceInterval>,
    now: Option<ConfidenceInterval>,
) -> Option<RateChange> {
    let (before, now) = (before?, now?);
    // Two 95 % intervals lie apart by chance once in two hundred; a single value has no interval.
    let enough = before.count >= 5 && now.count >= 5;
    Some(RateChange {
        what,
        before,
        now,
        sure: enough && before.apart(&now),
    })
}

/// The changes as a table; empty if there are none.
pub fn shown(changes: &[RateChange]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut table = MarkdownTable::new(&["what", "before MB/s", "now MB/s", "times as fast", ""]);
    for change in changes {
        table.row(vec![
            change.what.clone(),
            shown::number(change.before.median / 1e6),
            shown::number(change.now.median / 1e6),
            format!("{:.3}", change.ratio()),
            match change.sure {
                true => "changed".to_owned(),
                false => "within the spread".to_owned(),
            },
        ]);
    }
    table.markdown()
}
