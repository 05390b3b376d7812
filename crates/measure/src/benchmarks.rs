//! Tables of docs/benchmarks.md: the newest kept figure of each scenario and tool.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use crate::keep::StoredBenchmarkResult;
use crate::result::{CopyDirection, ProgramComparisonResult, Scenario, ToolResult};
use crate::shown;
use crate::table::MarkdownTable;

/// Line in docs/benchmarks.md above the generated part.
pub const BEGIN: &str = "<!-- tables: begin -->";
/// Line in docs/benchmarks.md below the generated part.
pub const END: &str = "<!-- tables: end -->";

/// A scenario with the stored race that it is part of, which its row in a table names.
#[derive(Debug, Clone, Copy)]
pub struct ScenarioResult<'a> {
    /// Kept result that holds the scenario.
    pub kept: &'a StoredBenchmarkResult,
    /// Scenario within that result.
    pub scenario: &'a Scenario,
}

impl ScenarioResult<'_> {
    fn finished(&self) -> usize {
        let entries = self.scenario.entries.iter();
        entries.filter(|entry| has_figure(entry)).count()
    }
}

/// Chooses the results that the tables show, by scenario name.
///
/// `kept` is ordered from the oldest to the newest. A scenario is shown from the newest result in
/// which a tool finished. If only one tool finished there, the newest result with at least two is
/// shown as well, so that the comparison stays.
pub fn newest(kept: &[StoredBenchmarkResult]) -> BTreeMap<&str, Vec<ScenarioResult<'_>>> {
    let mut chosen: BTreeMap<&str, Vec<ScenarioResult<'_>>> = BTreeMap::new();
    for source in kept.iter().rev().flat_map(sources) {
        let finished = source.finished();
        let so_far = chosen.entry(source.scenario.name.as_str()).or_default();
        let compared = so_far.iter().any(|source| source.finished() > 1);
        if (so_far.is_empty() && finished > 0) || (!compared && finished > 1) {
            so_far.push(source);
        }
    }
    chosen.retain(|_, sources| !sources.is_empty());
    chosen
}

fn sources(kept: &StoredBenchmarkResult) -> impl Iterator<Item = ScenarioResult<'_>> {
    let scenarios = kept.race.scenarios.iter();
    scenarios.map(move |scenario| ScenarioResult { kept, scenario })
}

/// Files among `kept` from which the tables take nothing.
pub fn unused(kept: &[StoredBenchmarkResult]) -> Vec<&Path> {
    let chosen = newest(kept);
    let used = |candidate: &StoredBenchmarkResult| {
        let mut sources = chosen.values().flatten();
        sources.any(|source| source.kept.file == candidate.file)
            || newest_round_trips(kept).is_some_and(|file| file.file == candidate.file)
    };
    let files = kept.iter().filter(|candidate| !used(candidate));
    files.map(|candidate| candidate.file.as_path()).collect()
}

fn newest_round_trips(kept: &[StoredBenchmarkResult]) -> Option<&StoredBenchmarkResult> {
    let mut newest_first = kept.iter().rev();
    newest_first.find(|candidate| !candidate.race.round_trips.is_empty())
}

/// All tables as Markdown, with a section for each scenario that has both directions.
pub fn markdown(kept: &[StoredBenchmarkResult]) -> String {
    let chosen = newest(kept);
    let mut sections: BTreeMap<&str, Vec<ScenarioResult<'_>>> = BTreeMap::new();
    for (name, sources) in chosen {
        let base = name.rsplit_once('/').map_or(name, |(base, _)| base);
        sections.entry(base).or_default().extend(sources);
    }
    let mut text = String::new();
    for (name, sources) in &sections {
        section(&mut text, name, sources);
    }
    if let Some(kept) = newest_round_trips(kept) {
        round_trips(&mut text, kept);
    }
    text
}

/// A line between which the tables stand is missing in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingMarkError {
    mark: &'static str,
}

impl fmt::Display for MissingMarkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file has no line {}", self.mark)
    }
}

impl std::error::Error for MissingMarkError {}

/// Replaces the text between [`BEGIN`] and [`END`].
///
/// # Errors
/// One of the two lines is missing.
pub fn replace(document: &str, tables: &str) -> Result<String, MissingMarkError> {
    let (head, rest) = document
        .split_once(BEGIN)
        .ok_or(MissingMarkError { mark: BEGIN })?;
    let (_, tail) = rest.split_once(END).ok_or(MissingMarkError { mark: END })?;
    Ok(format!("{head}{BEGIN}\n\n{tables}\n{END}{tail}"))
}

fn section(text: &mut String, name: &str, sources: &[ScenarioResult<'_>]) {
    let Some(first) = sources.first() else {
        return;
    };
    let path = match first.scenario.path.as_slice() {
        [] => "loopback".to_owned(),
        options => format!("`longhaul lab {}`", options.join(" ")),
    };
    let _ = writeln!(text, "### {name}\n");
    let about = first.scenario.about.trim_end_matches('.');
    // Some refer to the scenario before them in the list of scenarios, which is not this order.
    if !about.starts_with("The same") {
        let _ = writeln!(text, "{about}.\n");
    }
    let _ = writeln!(text, "Path: {path}.\n");
    let unit = first.scenario.measure.unit();
    let cpu = first.scenario.cpu_unit();
    let mut table = MarkdownTable::new(&[
        "tool",
        "way",
        unit,
        "least to most",
        &format!("{cpu} here"),
        &format!("{cpu} there"),
        "data",
        "runs",
        "result",
    ]);
    for way in [CopyDirection::Up, CopyDirection::Down] {
        for source in sources.iter().filter(|source| source.scenario.way == way) {
            for entry in source.scenario.entries.iter().filter(|e| has_figure(e)) {
                table.row(row(source, entry));
            }
        }
    }
    let _ = writeln!(text, "{}", table.markdown());
}

fn row(source: &ScenarioResult<'_>, entry: &ToolResult) -> Vec<String> {
    let scenario = source.scenario;
    let median = |spread: Option<crate::RunStatistics>| {
        spread.map_or_else(|| "-".to_owned(), |spread| shown::number(spread.median))
    };
    let figure = entry.spread(|sample| sample.figure(scenario.measure));
    let range = figure.map_or_else(String::new, |spread| {
        format!(
            "{} to {}",
            shown::number(spread.min),
            shown::number(spread.max)
        )
    });
    vec![
        entry.tool.clone(),
        scenario.way.to_string(),
        median(figure),
        range,
        median(scenario.client_cpu(entry)),
        median(scenario.server_cpu(entry)),
        shown::payload(scenario.payload),
        entry.done().count().to_string(),
        label(source.kept),
    ]
}

fn round_trips(text: &mut String, kept: &StoredBenchmarkResult) {
    let _ = writeln!(
        text,
        "### Round trips\n\nFrom start to exit for one file of 1 KiB, counted as the difference \
         between a path of 200 ms and one without delay ({}).\n",
        label(kept)
    );
    let mut table = MarkdownTable::new(&["tool", "known before", "round trips"]);
    for row in &kept.race.round_trips {
        table.row(vec![
            row.tool.clone(),
            row.when.clone(),
            format!("{:.1}", row.number),
        ]);
    }
    let _ = writeln!(text, "{}", table.markdown());
}

/// Date and number of a kept result, as its file is named.
fn label(kept: &StoredBenchmarkResult) -> String {
    let stem = kept.file.file_stem().unwrap_or_default().to_string_lossy();
    stem.into_owned()
}

/// Machines and commits of the results that are shown, one row for each result.
pub fn machines(kept: &[StoredBenchmarkResult]) -> String {
    let unused = unused(kept);
    let mut table = MarkdownTable::new(&["result", "commit", "processor", "kernel", "what ran"]);
    for kept in kept.iter().filter(|kept| !unused.contains(&&*kept.file)) {
        let ProgramComparisonResult {
            machine, preset, ..
        } = &kept.race;
        table.row(vec![
            label(kept),
            machine.commit.clone(),
            format!(
                "{}, {} cores",
                machine.cpu.as_deref().unwrap_or("unknown"),
                machine.cores
            ),
            machine.kernel.clone(),
            preset
                .split(" (without")
                .next()
                .unwrap_or_default()
                .to_owned(),
        ]);
    }
    table.markdown()
}

/// False if a run failed, timed out or never took place.
fn has_figure(entry: &ToolResult) -> bool {
    entry.trouble().is_none() && entry.done().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(name: &str, tools: &[&str]) -> ProgramComparisonResult {
        let sample = serde_json::json!({
            "ending": {"how": "done"}, "seconds": 2.0, "bytes": 8_000_000, "files": 1,
            "client_cpu_seconds": 0.5, "server_cpu_seconds": null, "peak_memory_bytes": 1,
            "last_half_rate": null,
        });
        let entries: Vec<_> = tools
            .iter()
            .map(|tool| {
                serde_json::json!({
                    "tool": tool, "command": [], "left_out": null, "samples": [sample],
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "schema": 1, "date": "2026-11-21", "preset": "full", "runs": 1, "scale": 1.0,
            "machine": {"cpu": null, "cores": 2, "kernel": "Linux", "memory_bytes": 1, "commit": "c"},
            "tools": [], "scenarios": [{
                "name": name, "about": "a file", "path": [], "rtt_seconds": null, "way": "up",
                "payload": {"files": 1, "bytes": 8_000_000}, "measure": "rate",
                "limit_seconds": 9.0, "entries": entries,
            }],
        }))
        .expect("a race")
    }

    fn kept(file: &str, race: ProgramComparisonResult) -> StoredBenchmarkResult {
        StoredBenchmarkResult {
            file: file.into(),
            race,
        }
    }

    #[test]
    fn a_comparison_is_not_lost_to_a_newer_run_of_one_tool() {
        let results = [
            kept("1-race.json", race("file/up", &["longhaul", "scp"])),
            kept("2-race.json", race("file/up", &["longhaul", "scp"])),
            kept("3-race.json", race("file/up", &["longhaul"])),
        ];
        let files: Vec<_> = newest(&results)["file/up"]
            .iter()
            .map(|source| label(source.kept))
            .collect();
        assert_eq!(files, ["3-race", "2-race"]);
        assert_eq!(unused(&results), [Path::new("1-race.json")]);
    }

    #[test]
    fn a_result_in_which_nothing_finished_is_not_shown() {
        let mut failed = race("file/up", &["longhaul"]);
        failed.scenarios[0].entries[0].samples.clear();
        let results = [
            kept("1-race.json", race("file/up", &["longhaul"])),
            kept("2-race.json", failed),
        ];
        assert_eq!(unused(&results), [Path::new("2-race.json")]);
    }

    #[test]
    fn tables_replace_only_what_is_between_the_two_lines() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let replaced = replace(&document, "| new |\n").expect("both lines are there");
        assert!(replaced.starts_with("before\n") && replaced.ends_with("\nafter\n"));
        assert!(replaced.contains("| new |") && !replaced.contains("old"));
        assert!(replace("neither", "").is_err());
    }
}
