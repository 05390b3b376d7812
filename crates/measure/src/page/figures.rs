//! Writes a scenario's figures, the path's figures and the commands.

use std::fmt::Write as _;

use serde_json::Value;

use crate::html::escaped;
use crate::result::Scenario;
use crate::shown;
use crate::stats::RunStatistics;

fn cell(spread: Option<RunStatistics>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| shown::number(spread.median))
}

/// Writes the table of figures, a row for each tool.
pub(super) fn figures(html: &mut String, scenario: &Scenario) {
    let trips = scenario
        .entries
        .iter()
        .any(|entry| scenario.trips(entry).is_some());
    let halves = scenario.entries.iter().any(|entry| {
        entry
            .samples
            .iter()
            .any(|sample| sample.last_half_rate.is_some())
    });
    let _ = write!(
        html,
        "<table><tr><th>Tool</th><th>{}</th><th>least to most</th><th>seconds</th>",
        scenario.measure.unit()
    );
    if halves {
        html.push_str("<th>last half, MB/s</th>");
    }
    let cpu = scenario.cpu_unit();
    let _ = write!(
        html,
        "<th>client {cpu}</th><th>server {cpu}</th><th>peak MiB</th>"
    );
    if trips {
        html.push_str("<th>round trips</th>");
    }
    html.push_str("<th>runs</th></tr>\n");
    let columns = 7 + usize::from(trips) + usize::from(halves);
    for entry in &scenario.entries {
        let tool = escaped(&entry.tool);
        if let Some(trouble) = shown::trouble(scenario, entry) {
            let _ = writeln!(
                html,
                "<tr class=\"bad\"><td>{tool}</td><td class=\"left\" colspan=\"{columns}\">{}</td></tr>",
                escaped(&trouble)
            );
            continue;
        }
        let class = if entry.tool == "longhaul" {
            " class=\"ours\""
        } else {
            ""
        };
        let figure = entry.spread(|sample| sample.figure(scenario.measure));
        let range = figure.map_or_else(
            || "-".to_owned(),
            |spread| {
                format!(
                    "{} to {}",
                    shown::number(spread.min),
                    shown::number(spread.max)
                )
            },
        );
        let seconds = cell(entry.spread(|sample| sample.seconds));
        let _ = write!(
            html,
            "<tr{class}><td>{tool}</td><td>{}</td><td>{range}</td><td>{seconds}</td>",
            cell(figure)
        );
        if halves {
            let half = entry.spread(|sample| sample.last_half_rate.unwrap_or(f64::NAN));
            let _ = write!(html, "<td>{}</td>", cell(half));
        }
        let _ = write!(
            html,
            "<td>{}</td><td>{}</td><td>{}</td>",
            cell(scenario.client_cpu(entry)),
            cell(scenario.server_cpu(entry)),
            cell(entry.memory())
        );
        if trips {
            let _ = write!(html, "<td>{}</td>", cell(scenario.trips(entry)));
        }
        let _ = writeln!(html, "<td>{}</td></tr>", entry.samples.len());
    }
    html.push_str("</table>\n");
}

/// Writes the path's counters during the middle run of each tool.
pub(super) fn path_figures(html: &mut String, scenario: &Scenario) {
    let mut rows = Vec::new();
    for entry in &scenario.entries {
        let path = entry
            .samples
            .iter()
            .map(|sample| &sample.path)
            .find(|path| !path.is_null());
        if let Some(path) = path {
            let mut words = Vec::new();
            flatten("", path, &mut words);
            let text = words.join(", ");
            let text = text.replace("near to far", "→").replace("far to near", "←");
            rows.push((entry.tool.clone(), text));
        }
    }
    if rows.is_empty() {
        return;
    }
    html.push_str("<h3>The path</h3>\n<p class=\"note\">→ is near to far, ← far to near. What is zero is left out.</p>\n<dl class=\"commands\">");
    for (tool, text) in rows {
        let _ = writeln!(
            html,
            "<dt>{}</dt><dd>{}</dd>",
            escaped(&tool),
            escaped(&text)
        );
    }
    html.push_str("</dl>\n");
}

/// Formats counters as `up packets 1,234`; zeros, empty values and redundant ones are skipped.
fn flatten(prefix: &str, value: &Value, words: &mut Vec<String>) {
    let named = |name: &str| match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix} {name}"),
    };
    match value {
        Value::Object(members) => {
            for (name, value) in members.iter().filter(|(name, _)| tells(name)) {
                flatten(&named(&name.replace(['_', '.'], " ")), value, words);
            }
        }
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                flatten(&named(&number.to_string()), value, words);
            }
        }
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or_default();
            if value != 0.0 {
                let text = number
                    .as_u64()
                    .map_or_else(|| shown::number(value), shown::count);
                words.push(format!("{prefix} {text}"));
            }
        }
        Value::String(text) if !text.is_empty() => words.push(format!("{prefix} {text}")),
        Value::Bool(true) => words.push(prefix.to_owned()),
        _ => {}
    }
}

/// Returns true if a counter is not redundant. Bytes are shown beside packets for delivered data
/// only.
fn tells(name: &str) -> bool {
    let doubled = name.ends_with(".bytes") && !name.ends_with("delivered.bytes");
    !doubled && !name.contains(".offered.") && !name.ends_with("_ran_us") && name != "covered_us"
}

/// Writes the exact commands.
pub(super) fn commands(html: &mut String, scenario: &Scenario) {
    html.push_str("<h3>Commands</h3>\n<dl class=\"commands\">");
    for entry in scenario
        .entries
        .iter()
        .filter(|entry| !entry.command.is_empty())
    {
        let _ = writeln!(
            html,
            "<dt>{}</dt><dd><code>{}</code></dd>",
            escaped(&entry.tool),
            escaped(&quoted(&entry.command))
        );
    }
    html.push_str("</dl>\n");
}

/// Quotes words for a shell.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%$".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            return word.clone();
        }
        format!("'{}'", word.replace('\'', r"'\''"))
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
