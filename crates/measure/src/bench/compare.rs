//! Two results side by side.

use super::Bench;
use super::interval::Interval;
use super::text::name;
use crate::shown;
use crate::table::Table;

/// How one figure changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Of what.
    pub what: String,
    /// Before.
    pub before: Interval,
    /// Now.
    pub now: Interval,
    /// The two lie apart for sure.
    pub sure: bool,
}

impl Change {
    /// Now by before: 2 is twice as fast.
    pub fn ratio(&self) -> f64 {
        self.now.median / self.before.median
    }
}

/// What both have measured.
pub fn compare(before: &Bench, now: &Bench) -> Vec<Change> {
    let rows = now.rows.iter().filter_map(|row| {
        let old = before.row(&row.setting)?.rate();
        change(name(&row.setting), old, row.rate())
    });
    let primitives = now.primitives.iter().filter_map(|new| {
        let same = |old: &&super::Primitive| {
            (&old.name, &old.what, old.threads) == (&new.name, &new.what, new.threads)
        };
        let old = before.primitives.iter().find(same)?.rate();
        let name = format!("{} {} x{}", new.name, new.what, new.threads);
        change(name, old, new.rate())
    });
    primitives.chain(rows).collect()
}

fn change(what: String, before: Option<Interval>, now: Option<Interval>) -> Option<Change> {
    let (before, now) = (before?, now?);
    // Two intervals of 95 % that lie apart by chance are one in two hundred; one value has none.
    let enough = before.count >= 5 && now.count >= 5;
    Some(Change {
        what,
        before,
        now,
        sure: enough && before.apart(&now),
    })
}

/// The changes as a table; empty if there are none.
pub fn shown(changes: &[Change]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["what", "before MB/s", "now MB/s", "times as fast", ""]);
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
