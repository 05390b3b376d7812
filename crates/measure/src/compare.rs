//! Compares two results by ratios.

use crate::result::{ProgramComparisonResult, Scenario, ScenarioMetric, ToolResult};
use crate::shown;
use crate::stats::ratio;
use crate::table::MarkdownTable;

/// Change of one tool's median in one scenario between two races.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioMedianChange {
    /// The scenario.
    pub scenario: String,
    /// The tool.
    pub tool: String,
    /// The kind of figure.
    pub measure: ScenarioMetric,
    /// The median before.
    pub before: f64,
    /// The median now.
    pub now: f64,
    /// Improvement factor: 2 is twice as fast, for every measure.
    pub better: f64,
    /// Client processor time for the same bytes, now / before.
    pub cpu: Option<f64>,
    /// Peak memory, now / before.
    pub memory: Option<f64>,
    /// The change exceeds the spread of either result.
    pub beyond_spread: bool,
}

/// Compares the figures that both results have for the same payload and path.
pub fn compare(
    before: &ProgramComparisonResult,
    now: &ProgramComparisonResult,
    tool: Option<&str>,
) -> Vec<ScenarioMedianChange> {
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
    (former, old): (&Scenario, &ToolResult),
    (scenario, entry): (&Scenario, &ToolResult),
) -> Option<ScenarioMedianChange> {
    let measure = scenario.measure;
    let before = old.spread(|sample| sample.figure(measure))?;
    let now = entry.spread(|sample| sample.figure(measure))?;
    let better = if measure.less_is_better() {
        ratio(before.median, now.median)?
    } else {
        ratio(now.median, before.median)?
    };
    let median = |new: Option<crate::RunStatistics>, old: Option<crate::RunStatistics>| {
        ratio(new?.median, old?.median)
    };
    Some(ScenarioMedianChange {
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
pub fn shown(changes: &[ScenarioMedianChange]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut table = MarkdownTable::new(&[
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
        // A change within the spread of the runs is not significant.
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
