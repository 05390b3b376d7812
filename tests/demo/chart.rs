//! Closing chart of the demo, and its times as a file.

use std::fmt::Write as _;
use std::time::Duration;

/// Width of the bars in columns: with the text beside them they fit 80 columns.
const WIDTH: f64 = 34.0;

/// Result of a program for a case.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) program: &'static str,
    pub(crate) time: Time,
}

/// Result of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Time {
    /// The copy is complete, after this time.
    Took(Duration),
    /// The copy was stopped after this time, incomplete.
    Stopped(Duration),
    Failed,
}

impl Time {
    /// Returns the duration in seconds, unless the copy failed.
    fn seconds(self) -> Option<f64> {
        match self {
            Self::Took(time) | Self::Stopped(time) => Some(time.as_secs_f64()),
            Self::Failed => None,
        }
    }
}

/// Draws bars, each case on its own scale.
pub(crate) fn draw(rows: &[Row], colors: bool) -> String {
    let mut text = String::new();
    for case in rows.chunk_by(|a, b| a.case == b.case) {
        let longest = case
            .iter()
            .filter_map(|row| row.time.seconds())
            .fold(f64::MIN_POSITIVE, f64::max);
        let theirs = case.iter().find(|row| row.program != "longhaul");
        let theirs = theirs.map(|row| row.time);
        let _ = writeln!(text, "\n{}", case.first().map_or("", |row| &row.case));
        for row in case {
            let Some(seconds) = row.time.seconds() else {
                let _ = writeln!(text, "  {:<8}  failed", row.program);
                continue;
            };
            let bar = "█".repeat((seconds / longest * WIDTH).round().max(1.0) as usize);
            let space = " ".repeat(WIDTH as usize - bar.chars().count());
            let color = if row.program == "longhaul" { "32" } else { "2" };
            let bar = if colors {
                format!("\x1b[{color}m{bar}\x1b[0m")
            } else {
                bar
            };
            let note = note(row, theirs);
            let line = format!("  {:<8}  {bar}{space} {seconds:6.2} s{note}", row.program);
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

fn note(row: &Row, theirs: Option<Time>) -> String {
    match (row.program, row.time, theirs) {
        (_, Time::Stopped(_), _) => "  stopped, unfinished".to_owned(),
        ("longhaul", Time::Took(ours), Some(Time::Took(theirs))) => {
            format!(
                "  {:.1} times as fast",
                theirs.as_secs_f64() / ours.as_secs_f64()
            )
        }
        ("longhaul", Time::Took(ours), Some(Time::Stopped(theirs))) => {
            let factor = theirs.as_secs_f64() / ours.as_secs_f64();
            format!("  over {factor:.1} times as fast")
        }
        _ => String::new(),
    }
}

/// Returns case, program and seconds, separated by tabs, the input of docs/gain.sh.
pub(crate) fn kept(caption: &str, rows: &[Row]) -> String {
    let mut text = format!("# {caption}\n");
    for Row {
        case,
        program,
        time,
    } in rows
    {
        let _ = match time {
            Time::Took(took) => writeln!(text, "{case}\t{program}\t{:.2}", took.as_secs_f64()),
            Time::Stopped(after) => {
                let after = after.as_secs_f64();
                writeln!(
                    text,
                    "# {case}: {program} was stopped, unfinished, after {after} s"
                )
            }
            Time::Failed => writeln!(text, "# {case}: {program} failed"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(theirs: Time) -> [Row; 2] {
        let row = |program, time| Row {
            case: "a tree".to_owned(),
            program,
            time,
        };
        let ours = Time::Took(Duration::from_millis(1250));
        [row("scp", theirs), row("longhaul", ours)]
    }

    #[test]
    fn bars_show_what_took_longer_and_by_how_much() {
        let text = draw(&rows(Time::Took(Duration::from_secs(5))), false);
        let bars: Vec<usize> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [0, 0, 34, 9], "{text}");
        assert!(text.ends_with("1.25 s  4.0 times as fast\n"), "{text}");
        let colored = draw(&rows(Time::Took(Duration::from_secs(5))), true);
        assert!(!text.contains('\x1b') && colored.contains("\x1b[32m█"));
    }

    #[test]
    fn what_was_stopped_is_no_measurement() {
        let rows = rows(Time::Stopped(Duration::from_secs(25)));
        let text = draw(&rows, false);
        assert!(text.contains("25.00 s  stopped, unfinished\n"), "{text}");
        assert!(text.ends_with("  over 20.0 times as fast\n"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let kept = kept("a path", &rows);
        let lines: Vec<&str> = kept.lines().collect();
        let stopped = "# a tree: scp was stopped, unfinished, after 25 s";
        assert_eq!(lines, ["# a path", stopped, "a tree\tlonghaul\t1.25"]);
    }

    #[test]
    fn a_failure_has_no_bar() {
        let text = draw(&rows(Time::Failed), false);
        assert!(text.contains("  scp       failed\n"), "{text}");
        assert!(text.ends_with("1.25 s\n"), "{text}");
    }
}
