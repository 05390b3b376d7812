//! Results of a race: a stored file, a table, a page, and the changes since the last race.

use std::path::Path;
use std::{fs, io};

use measure::benchmarks::MissingMarkError;
use measure::{MachineProperties, ProgramComparisonResult, compare, keep, page, table};
use testkit::Run;
use testkit::missing::checkout;

use crate::settings::Settings;

/// File in the results folder while a race runs, and after one that was interrupted.
const UNFINISHED: &str = "unfinished.json";

/// Prints the table, stores result and page, and compares with the last stored result.
pub(crate) fn keep(settings: &Settings, race: ProgramComparisonResult) -> Result<(), String> {
    println!("{}", table::table(&race));
    let former = keep::last(&settings.results);
    if let Some(former) = former {
        let changes = compare::shown(&compare::compare(&former.race, &race, Some("longhaul")));
        let name = former.file.file_name().unwrap_or_default().display();
        match changes.as_str() {
            "" => println!("{name} has nothing to compare with."),
            changes => println!("longhaul since {name}:\n\n{changes}"),
        }
    }
    let file = keep::save(&settings.results, &race)
        .map_err(|error| format!("{}: {error}", settings.results.display()))?;
    let html = file.with_extension("html");
    fs::write(&html, page::page(&race)).map_err(|error| format!("{}: {error}", html.display()))?;
    let _ = fs::remove_file(settings.results.join(UNFINISHED));
    println!("written to {} and {}", file.display(), html.display());
    Ok(())
}

/// Stores the results so far: a race takes hours and may be interrupted.
pub(crate) fn keep_unfinished(settings: &Settings, race: &ProgramComparisonResult) {
    let written = fs::create_dir_all(&settings.results).and_then(|()| {
        let text = serde_json::to_string(race)?;
        fs::write(settings.results.join(UNFINISHED), text)
    });
    if let Err(error) = written {
        eprintln!("what was measured so far could not be kept: {error}");
    }
}

/// Compares two stored results for all tools.
pub(crate) fn compare_files(before: &Path, now: &Path) -> Result<(), String> {
    let [before, now] = [before, now].map(|file| keep::load(file).map_err(|e| e.to_string()));
    let changes = compare::compare(&before?.race, &now?.race, None);
    match compare::shown(&changes).as_str() {
        "" => println!("They have no scenario with the same path and content in common."),
        changes => println!("{changes}"),
    }
    Ok(())
}

/// Writes the tables of docs/benchmarks.md from the stored results, and names results that it does
/// not use.
pub(crate) fn write_benchmarks() -> Result<(), String> {
    let (folder, document) = (checkout().join("results"), checkout().join(BENCHMARKS));
    let kept = keep::all(&folder).map_err(|error| error.to_string())?;
    let text = fs::read_to_string(&document)
        .and_then(|old| benchmarks(&old, &kept).map_err(io::Error::other))
        .and_then(|new| fs::write(&document, new));
    text.map_err(|error| format!("{BENCHMARKS}: {error}"))?;
    for file in measure::benchmarks::unused(&kept) {
        println!("not used: {}", file.display());
    }
    Ok(())
}

/// Page with one figure for each scenario and tool.
const BENCHMARKS: &str = "docs/benchmarks.md";

/// Returns the page with the tables of these results.
fn benchmarks(
    page: &str,
    kept: &[keep::StoredBenchmarkResult],
) -> Result<String, MissingMarkError> {
    let tables = measure::benchmarks::markdown(kept);
    let machines = measure::benchmarks::machines(kept);
    measure::benchmarks::replace(page, &format!("{tables}### Machines\n\n{machines}"))
}

/// Returns the date in UTC.
pub(crate) fn today() -> String {
    std::env::var("BENCH_DATE").unwrap_or_else(|_| said(&["date", "-u", "+%Y-%m-%d"]))
}

/// Describes what the figures depend on, without the machine's name.
pub(crate) fn machine() -> MachineProperties {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    let changed = Run::new("git")
        .arg("-C")
        .arg(checkout())
        .args(["status", "--porcelain", "--untracked-files=no"])
        .run();
    let dirty = if changed.out().trim().is_empty() {
        ""
    } else {
        " with changes"
    };
    let checkout = checkout().display().to_string();
    let commit = said(&["git", "-C", &checkout, "rev-parse", "--short", "HEAD"]);
    MachineProperties {
        cpu: model.map(|(_, name)| name.trim().to_owned()),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        kernel: said(&["uname", "-sr"]),
        memory_bytes: kib.unwrap_or_default() * 1024,
        commit: format!("{commit}{dirty}"),
    }
}

fn said(words: &[&str]) -> String {
    let (program, arguments) = words.split_first().expect("a program");
    Run::new(program)
        .args(arguments)
        .run()
        .out()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_benchmarks_shows_the_kept_results_and_no_result_is_kept_for_nothing() {
        let kept = keep::all(&checkout().join("results")).expect("results");
        let page = fs::read_to_string(checkout().join(BENCHMARKS)).expect(BENCHMARKS);
        assert!(
            benchmarks(&page, &kept).as_ref() == Ok(&page),
            "{BENCHMARKS} is not up to date: scripts/bench.sh --tables"
        );
        assert_eq!(measure::benchmarks::unused(&kept), Vec::<&Path>::new());
    }
}
