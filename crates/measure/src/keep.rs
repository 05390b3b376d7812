//! Stores results in a folder: results/DATE-race.json, and DATE-race-2.json for the second one of a
//! day.

use std::io;
use std::path::{Path, PathBuf};

use crate::result::{ProgramComparisonResult, SCHEMA};

/// Result of a benchmark against other programs, with the file in the results folder that it was
/// read from.
#[derive(Debug, Clone)]
pub struct StoredBenchmarkResult {
    /// Path of the file.
    pub file: PathBuf,
    /// The content.
    pub race: ProgramComparisonResult,
}

/// Writes a result under a new name.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn save(folder: &Path, race: &ProgramComparisonResult) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let file = (1_u32..)
        .map(|number| folder.join(name(&race.date, number)))
        .find(|file| !file.exists())
        .ok_or_else(|| io::Error::other("too many results on one day"))?;
    let text = serde_json::to_string(race).map_err(io::Error::other)?;
    std::fs::write(&file, lines(&text))?;
    Ok(file)
}

/// Reads a result.
///
/// # Errors
/// The file cannot be read, is no result, or has a later schema; the message names the file.
pub fn load(file: &Path) -> io::Result<StoredBenchmarkResult> {
    let said = |why: String| io::Error::other(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| said(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| said(error.to_string()))?;
    let schema = value.get("schema").and_then(serde_json::Value::as_u64);
    if schema.is_none_or(|schema| schema > u64::from(SCHEMA)) {
        return Err(said(format!(
            "not a result of schema {SCHEMA} or earlier: if a newer version wrote it, use that \
             version"
        )));
    }
    let race = serde_json::from_value(value).map_err(|error| said(error.to_string()))?;
    Ok(StoredBenchmarkResult {
        file: file.to_owned(),
        race,
    })
}

/// The last stored result, by date and number; `None` if none can be read.
pub fn last(folder: &Path) -> Option<StoredBenchmarkResult> {
    let mut newest_first = files(folder).into_iter().rev();
    newest_first.find_map(|file| load(&file).ok())
}

/// All stored results, oldest first.
///
/// # Errors
/// A result cannot be read; the message names the file.
pub fn all(folder: &Path) -> io::Result<Vec<StoredBenchmarkResult>> {
    files(folder).iter().map(|file| load(file)).collect()
}

/// The files in the folder with names of results, oldest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<((String, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let file = entry.ok()?.path();
            Some((parsed(file.file_name()?.to_str()?)?, file))
        })
        .collect();
    names.sort();
    names.into_iter().map(|(_, file)| file).collect()
}

fn name(date: &str, number: u32) -> String {
    match number {
        1 => format!("{date}-race.json"),
        number => format!("{date}-race-{number}.json"),
    }
}

fn parsed(name: &str) -> Option<(String, u32)> {
    let (date, rest) = name.strip_suffix(".json")?.split_once("-race")?;
    let number = match rest.strip_prefix('-') {
        Some(number) => number.parse().ok()?,
        None if rest.is_empty() => 1,
        None => return None,
    };
    Some((date.to_owned(), number))
}

/// Breaks JSON into a line for each scenario, tool and sample, so that results can be compared with
/// diff and no line has all samples.
fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 4096);
    let mut depth = 0_usize;
    let (mut string, mut escape) = (false, false);
    for c in text.chars() {
        if string {
            out.push(c);
            (string, escape) = match c {
                _ if escape => (true, false),
                '\\' => (true, true),
                '"' => (false, false),
                _ => (true, false),
            };
            continue;
        }
        match c {
            '"' => string = true,
            '{' | '[' => {
                depth += 1;
                // Race, scenarios, a scenario, its entries, an entry, its samples: seven levels.
                if c == '{' && (2..=7).contains(&depth) {
                    out.push('\n');
                    out.push_str(&" ".repeat(depth - 1));
                }
            }
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        out.push(c);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_day_are_in_order() {
        assert_eq!(
            parsed("2026-11-21-race.json"),
            Some(("2026-11-21".into(), 1))
        );
        assert_eq!(
            parsed("2026-11-21-race-12.json"),
            Some(("2026-11-21".into(), 12))
        );
        assert_eq!(parsed("2026-11-21-loopback.json"), None);
        assert_eq!(parsed("2026-11-21-race-x.json"), None);
        assert!(parsed(&name("2026-11-21", 10)) > parsed(&name("2026-11-21", 9)));
        assert!(parsed(&name("2026-11-22", 1)) > parsed(&name("2026-11-21", 9)));
    }

    #[test]
    fn lines_change_no_value() {
        let text = r#"{"a":[{"b":"x{\"y[","c":[[1,2],[3,4]]},{"b":"\\"}]}"#;
        let before: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let after: serde_json::Value = serde_json::from_str(&lines(text)).expect("JSON");
        assert_eq!(before, after);
        assert_eq!(lines(text).lines().count(), 3);
    }
}
