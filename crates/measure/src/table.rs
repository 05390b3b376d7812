//! Formats a race as text.

use std::fmt::Write as _;

use crate::result::{ProgramComparisonResult, Scenario};
use crate::shown;
use crate::stats::RunStatistics;

/// Longest cell in characters.
const MOST_CELL: usize = 4096;

/// A table that is formatted as Markdown with aligned columns.
#[derive(Debug, Clone)]
pub struct MarkdownTable {
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    /// Creates a table with this header.
    pub fn new(head: &[&str]) -> Self {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Self { rows: vec![head] }
    }

    /// Adds a row. A cell may come from a file: it gets no characters that steer a terminal, and is cut
    /// if it is long.
    pub fn row(&mut self, row: Vec<String>) {
        let cell = |text: String| {
            let short: String = text.chars().take(MOST_CELL).collect();
            wire::escape::name(short.as_bytes()).to_string()
        };
        self.rows.push(row.into_iter().map(cell).collect());
    }

    /// Formats the table.
    pub fn markdown(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| {
            row.get(column)
                .map_or_else(String::new, |text| text.replace('|', "\\|"))
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let lengths = self
                    .rows
                    .iter()
                    .map(|row| cell(row, column).chars().count());
                lengths.max().unwrap_or(0).max(3)
            })
            .collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(text, "| {:<width$} ", cell(row, column));
            }
            text.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(text, "|{}", "-".repeat(width + 2));
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

/// All tables of a race.
pub fn table(race: &ProgramComparisonResult) -> String {
    let mut text = String::new();
    for scenario in &race.scenarios {
        let _ = writeln!(text, "{}", scenario_table(scenario));
    }
    let bars: Vec<_> = race
        .scenarios
        .iter()
        .flat_map(|scenario| scenario.bars.iter().map(move |bar| (scenario, bar)))
        .collect();
    if !bars.is_empty() {
        let mut table =
            MarkdownTable::new(&["scenario", "asked of longhaul", "measured", "bar", ""]);
        for (scenario, bar) in bars {
            table.row(vec![
                scenario.name.clone(),
                bar.what.clone(),
                bar.measured.map_or_else(|| "-".to_owned(), shown::number),
                shown::number(bar.bar),
                bar.shown().to_owned(),
            ]);
        }
        let _ = writeln!(text, "{}", table.markdown());
    }
    if !race.round_trips.is_empty() {
        let mut table = MarkdownTable::new(&["round trips for 1 KiB", "before", "number"]);
        for row in &race.round_trips {
            let number = format!("{:.1}", row.number);
            table.row(vec![row.tool.clone(), row.when.clone(), number]);
        }
        let _ = writeln!(text, "{}", table.markdown());
    }
    for case in &race.cases {
        let _ = writeln!(
            text,
            "Case {}, {}: {}",
            case.number,
            case.title,
            shown_case(case)
        );
    }
    for tool in &race.tools {
        if let Some(missing) = &tool.missing {
            let _ = writeln!(text, "MISSING: {}: {missing}", tool.name);
        }
    }
    text
}

/// The scenarios of a case, and the missing part.
pub fn shown_case(case: &crate::PublishedReport) -> String {
    let mut text = match case.scenarios.as_slice() {
        [] => "no scenario yet".to_owned(),
        names => names.join(", "),
    };
    if let Some(waits) = &case.waits_for {
        let _ = write!(text, "; waits for {waits}");
    }
    text
}

/// The table of one scenario.
pub fn scenario_table(scenario: &Scenario) -> String {
    let mut text = format!(
        "{}: {} ({})\n\n",
        scenario.name,
        scenario.about,
        shown::payload(scenario.payload)
    );
    let mut table = MarkdownTable::new(&[
        "tool",
        scenario.measure.unit(),
        "least to most",
        "seconds",
        &format!("client {}", scenario.cpu_unit()),
        &format!("server {}", scenario.cpu_unit()),
        "memory MiB",
        "round trips",
        "runs",
    ]);
    let mut notes = String::new();
    for entry in &scenario.entries {
        let mut row = vec![entry.tool.clone()];
        if let Some(trouble) = shown::trouble(scenario, entry) {
            row.push("-".to_owned());
            table.row(row);
            let _ = writeln!(notes, "{}: {trouble}", entry.tool);
            continue;
        }
        let figure = entry.spread(|sample| sample.figure(scenario.measure));
        row.push(middle(figure));
        row.push(figure.map_or_else(
            || "-".to_owned(),
            |spread| {
                format!(
                    "{} to {}",
                    shown::number(spread.min),
                    shown::number(spread.max)
                )
            },
        ));
        row.push(middle(entry.spread(|sample| sample.seconds)));
        row.push(middle(scenario.client_cpu(entry)));
        row.push(middle(scenario.server_cpu(entry)));
        row.push(middle(entry.memory()));
        row.push(middle(scenario.trips(entry)));
        row.push(entry.samples.len().to_string());
        table.row(row);
    }
    text.push_str(&table.markdown());
    text.push_str(&notes);
    text
}

fn middle(spread: Option<RunStatistics>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| shown::number(spread.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: names in a result file steered the terminal, and a long one caused a panic.
    #[test]
    fn a_cell_from_a_file_is_short_and_steers_nothing() {
        let mut table = MarkdownTable::new(&["what"]);
        table.row(vec!["\u{1b}[31mred".to_owned()]);
        table.row(vec!["x".repeat(100_000)]);
        let text = table.markdown();
        assert!(!text.contains('\u{1b}') && text.len() < 20_000, "{text}");
    }
}
