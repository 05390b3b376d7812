//! Two results side by side, as ratios.

use crate::result::{Entry, Measure, Race, Scenario};
use crate::shown;
use crate::stats::ratio;
use crate::table::Table;

/// How one figure of one tool changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The scenario.
    pub scenario: String,
    /// The tool.
    pub tool: String,
    /// What was measured.
    pub measure: Measure,
    /// The median before.
    pub before: f64,
    /// The median now.
    pub now: f64,
    /// How much better it is now: 2 is twice as fast, whatever the measure.
    pub better: f64,
    /// Client processor time for the same bytes, now / before.
    pub cpu: Option<f64>,
    /// Peak memory, now / before.
    pub memory: Option<f64>,
    /// Whether the change is larger than either result's own spread.
    pub beyond_spread: bool,
}

/// What both have measured with the same payload.
pub fn compare(before: &Race, now: &Race, tool: Option<&str>) -> Vec<Change> {
    let mut changes = Vec::new();
    for scenario in &now.scenarios {
        let Some(former) = before.scenario(&scenario.name) else {
            continue;
        };
        if former.payload != scenario.payload || former.path != scenario.path {
            continue;
        }
        for entry in &scenario.entries {
            if tool.is_some_and(|tool| tool != entry.tool) {
                continue;
            }
            if let Some(old) = former.entry(&entry.tool) {
                changes.extend(change((former, old), (scenario, entry)));
            }
        }
    }
    changes
}

fn change(
    (former, old): (&Scenario, &Entry),
    (scenario, entry): (&Scenario, &Entry),
) -> Option<Change> {
    let measure = scenario.measure;
    let before = old.spread(|sample| sample.figure(measure))?;
    let now = entry.spread(|sample| sample.figure(measure))?;
    let better = if measure.less_is_better() {
        ratio(before.median, now.median)?
    } else {
        ratio(now.median, before.median)?
    };
    let median =
        |new: Option<crate::Spread>, old: Option<crate::Spread>| ratio(new?.median, old?.median);
    Some(Change {
        scenario: scenario.name.clone(),
        tool: entry.tool.clone(),
        measure,
        before: before.median,
        now: now.median,
        better,
        cpu: median(scenario.client_cpu(entry), former.client_cpu(old)),
        memory: median(entry.memory(), old.memory()),
        beyond_spread: now.min > before.max || now.max < before.min,
    })
}

/// The changes as a table; empty if there are none.
pub fn shown(changes: &[Change]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "scenario",
        "tool",
        "before",
        "now",
        "unit",
        "times as good",
        "CPU",
        "memory",
    ]);
    for change in changes {
        let optional =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
        // Within the spread of the runs themselves a change says nothing.
        let mark = if change.beyond_spread {
            ""
        } else {
            " (spread)"
        };
        table.row(vec![
            change.scenario.clone(),
            change.tool.clone(),
            shown::number(change.before),
            shown::number(change.now),
            change.measure.unit().to_owned(),
            format!("{:.2}{mark}", change.better),
            optional(change.cpu),
            optional(change.memory),
        ]);
    }
    table.markdown()
}
