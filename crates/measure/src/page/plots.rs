//! The two plots of a scenario: figures by tool, and rates over time.

use crate::plot::{BarPlot, BarRow, BarStyle, LinePlot, PlotLine};
use crate::result::{RunOutcome, Scenario, ScenarioMetric, ScenarioRun, ToolResult};
use crate::shown;
use crate::stats::RunStatistics;

/// The tool that the race is about.
const OURS: &str = "longhaul";
/// Lines end after this many times the shortest run, since a run of minutes would hide one of
/// seconds.
const HORIZON: f64 = 6.0;
/// Maximum number of lines that can be told apart.
const MOST_LINES: usize = 6;

/// The plot of figures: a bar for each tool, in the scenario's order.
pub(super) fn bars(scenario: &Scenario) -> BarPlot {
    let less = if scenario.measure.less_is_better() {
        ", less is better"
    } else {
        ""
    };
    BarPlot {
        title: format!("{}: {} by tool", scenario.name, scenario.measure.unit()),
        unit: format!("{}{less}", scenario.measure.unit()),
        rows: scenario
            .entries
            .iter()
            .map(|entry| row(scenario, entry))
            .collect(),
    }
}

fn row(scenario: &Scenario, entry: &ToolResult) -> BarRow {
    let fill = match entry.tool.as_str() {
        OURS => BarStyle::Ours,
        name if name.starts_with("iperf3") => BarStyle::Reference,
        _ => BarStyle::Other,
    };
    let label = entry.tool.clone();
    if let Some(value) = entry.spread(|sample| sample.figure(scenario.measure)) {
        return BarRow {
            label,
            value: Some(value),
            note: String::new(),
            fill,
        };
    }
    let stopped = entry.trouble().and_then(|sample| so_far(scenario, sample));
    let note = match &stopped {
        Some(_) => format!(
            "unfinished after {} s",
            shown::number(scenario.limit_seconds)
        ),
        None => cut(&shown::trouble(scenario, entry).unwrap_or_default()),
    };
    let value = stopped.and_then(|value| RunStatistics::of([value]));
    BarRow {
        label,
        value,
        note,
        fill: BarStyle::Stopped,
    }
}

/// The rate of a run until its time limit. It is drawn but not counted.
fn so_far(scenario: &Scenario, sample: &ScenarioRun) -> Option<f64> {
    let RunOutcome::TimedOut { files, bytes } = &sample.ending else {
        return None;
    };
    let value = match scenario.measure {
        ScenarioMetric::Rate => *bytes as f64 / 1e6 / sample.seconds,
        ScenarioMetric::Files => *files as f64 / sample.seconds,
        ScenarioMetric::Seconds => sample.seconds,
    };
    (value > 0.0).then_some(value)
}

fn cut(text: &str) -> String {
    const MOST: usize = 80;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 1).chain(['…']).collect()
}

/// The plot of rates over time, for the fastest tools and the slowest; `None` if no run is long
/// enough.
pub(super) fn rates(scenario: &Scenario) -> Option<LinePlot> {
    let mut entries: Vec<(&ToolResult, &ScenarioRun)> = scenario
        .entries
        .iter()
        .filter_map(|entry| Some((entry, shown_sample(entry)?)))
        .filter(|(_, sample)| sample.curve.len() >= 5)
        .filter(|(_, sample)| sample.done() || so_far(scenario, sample).is_some())
        .collect();
    let longest = entries.iter().map(|(_, sample)| sample.seconds);
    if longest.fold(0.0, f64::max) < 1.0 {
        return None;
    }
    // longhaul first, then scp as the well-known reference, then the others by time.
    entries.sort_by(|(a, one), (b, other)| {
        let key = |entry: &ToolResult| match entry.tool.as_str() {
            OURS => 0,
            "scp" => 1,
            _ => 2,
        };
        key(a)
            .cmp(&key(b))
            .then(one.seconds.total_cmp(&other.seconds))
    });
    entries.truncate(MOST_LINES);
    let times = entries.iter().map(|(_, sample)| sample.seconds);
    let horizon = HORIZON * times.clone().fold(f64::INFINITY, f64::min);
    let beyond = if times.fold(0.0, f64::max) > horizon {
        "; slower ones go on beyond the right border"
    } else {
        ""
    };
    let lines = entries.iter().map(|(entry, sample)| PlotLine {
        label: entry.tool.clone(),
        points: rate_over_time(sample, horizon),
    });
    Some(LinePlot {
        title: format!("{}: rate over time", scenario.name),
        x_unit: format!("seconds since the start{beyond}"),
        y_unit: "MB/s on the path, headers included".to_owned(),
        lines: lines.collect(),
    })
}

fn shown_sample(entry: &ToolResult) -> Option<&ScenarioRun> {
    entry.middle().or_else(|| entry.samples.last())
}

/// Rates in steps of a fiftieth of the shown time: finer ones would show bursts.
fn rate_over_time(sample: &ScenarioRun, horizon: f64) -> Vec<(f64, f64)> {
    let step = (sample.seconds.min(horizon) / 50.0).max(0.1);
    let mut rates = Vec::new();
    let mut from = match sample.curve.first() {
        Some(first) => *first,
        None => return rates,
    };
    let inside = sample.curve.iter().take_while(|point| point.0 <= horizon);
    for to in inside.filter(|point| point.0 > 0.0) {
        let seconds = to.0 - from.0;
        if seconds >= step {
            let bytes = to.1.saturating_sub(from.1) as f64;
            rates.push((f64::midpoint(from.0, to.0), bytes / 1e6 / seconds));
            from = *to;
        }
    }
    rates
}
