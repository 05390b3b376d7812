//! Lays out the progress display for a terminal width, and draws it over its last state.

use std::time::Duration;

use unicode_width::UnicodeWidthChar;

use crate::output::snapshot::ProgressSnapshot;

/// Columns of the bar.
const BAR: usize = 20;
/// Fewest columns that a bar is shown with.
const LEAST_BAR: usize = 8;
/// Time after which the line shown while connecting says what is waited for.
const SAYS_WHY: Duration = Duration::from_secs(2);

/// The lines of the display for a terminal with `columns`: the current file, and the progress of
/// the copy.
pub(crate) fn of_copy(snapshot: &ProgressSnapshot, columns: usize) -> Vec<String> {
    let room = room(columns);
    let part = snapshot.bytes_done as f64 / snapshot.bytes_total.max(snapshot.bytes_done) as f64;
    let line = with_bar(part, snapshot.counts_from_long_to_short(), room);
    let name = snapshot.current();
    match name.is_empty() {
        true => vec![line],
        false => vec![end_of(&name, room), line],
    }
}

/// The lines for an activity of known duration; times in seconds.
pub(crate) fn of_time(what: &str, used: f64, remaining: f64, columns: usize) -> Vec<String> {
    let room = room(columns);
    let long = format!("{used:.0} s, {remaining:.0} s left");
    let short = format!("{remaining:.0} s");
    let line = with_bar(used / (used + remaining), vec![long, short], room);
    vec![end_of(what, room), line]
}

/// The longest of `texts` that fits, with a bar before it if there is room.
fn with_bar(part: f64, texts: Vec<String>, room: usize) -> String {
    let text = texts.into_iter().find(|text| width(text) <= room);
    let text = text.unwrap_or_default();
    let left = room.saturating_sub(width(&text) + 1).min(BAR);
    match left >= LEAST_BAR {
        true => format!("{} {text}", bar(part, left)),
        false => text,
    }
}

/// The line shown while connecting, which takes `time` so far. After two seconds it says what is
/// `awaited`, if there is room.
pub(crate) fn connecting(
    host: &str,
    time: Duration,
    awaited: Option<&str>,
    columns: usize,
) -> Vec<String> {
    let (seconds, room) = (time.as_secs(), room(columns));
    let short = format!("connecting to {host} ... {seconds} s");
    let awaited = awaited.filter(|_| time >= SAYS_WHY);
    let long = awaited.map(|awaited| format!("{short}, waiting for {awaited}"));
    match long.filter(|long| width(long) <= room) {
        Some(long) => vec![long],
        None => vec![end_of(&short, room)],
    }
}

/// Escape sequences that remove the display from a terminal of `columns`. `widths` are those of its
/// lines, and the cursor is at the end of the last. A terminal that became narrower has wrapped
/// them.
pub(crate) fn erase(widths: &[usize], columns: usize) -> String {
    let columns = columns.max(1);
    let rows: usize = widths.iter().map(|w| w.div_ceil(columns).max(1)).sum();
    match rows {
        0 => String::new(),
        1 => "\r\x1b[J".to_owned(),
        rows => format!("\r\x1b[{}A\x1b[J", rows - 1),
    }
}

/// Columns that `text` takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Usable columns. The last one stays free, since some terminals wrap as soon as it is filled.
fn room(columns: usize) -> usize {
    columns.saturating_sub(1)
}

/// Draws a bar; `part` is from 0 to 1, and not a number counts as 0.
fn bar(part: f64, columns: usize) -> String {
    let done = (part * columns as f64) as usize;
    let done = done.min(columns);
    let head = if done < columns { ">" } else { "" };
    format!("{:<columns$}", format!("{}{head}", "=".repeat(done)))
}

/// The end of `text` that fits; a path has the name of the file there.
fn end_of(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let dots = ".".repeat(room.min(3));
    let mut left = room - dots.len();
    let fits = |c: &char| {
        let columns = c.width().unwrap_or(0);
        let fits = columns <= left;
        left = left.saturating_sub(columns);
        fits
    };
    let end: Vec<char> = text.chars().rev().take_while(fits).collect();
    dots.chars().chain(end.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transfer::report::EscapedName;

    use super::*;

    /// Bug: "connecting to h ... 29 s" did not say that the server had sent nothing.
    #[test]
    fn a_connection_that_took_long_did_not_say_what_it_waits_for() {
        let awaited = Some("the server's SSH identification");
        let line =
            |seconds, columns| connecting("h", Duration::from_secs(seconds), awaited, columns);
        assert_eq!(line(1, 80), ["connecting to h ... 1 s"]);
        let long = "connecting to h ... 2 s, waiting for the server's SSH identification";
        assert_eq!(line(2, 80), [long]);
        assert_eq!(line(2, 40), ["connecting to h ... 2 s"]);
        let unknown = connecting("h", Duration::from_secs(9), None, 80);
        assert_eq!(unknown, ["connecting to h ... 9 s"]);
    }

    fn large() -> ProgressSnapshot {
        ProgressSnapshot {
            bytes_done: 123_456_789_012,
            bytes_total: 987_654_321_098,
            files_done: 123_456,
            files_total: 1_234_567,
            totals_final: true,
            rate: 123_000_000,
            remaining: Some(Duration::from_secs(36_000)),
            current: Some(EscapedName(
                "a/very/long/path/\u{6f22}\u{5b57}/file.tar.gz".into(),
            )),
            ..ProgressSnapshot::default()
        }
    }

    /// Regression: at 80 columns a bar with a count of files wrapped, and each redraw left a line
    /// behind.
    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let growing = ProgressSnapshot {
            totals_final: false,
            ..large()
        };
        for snapshot in [ProgressSnapshot::default(), large(), growing] {
            for columns in 0..=200 {
                for line in of_copy(&snapshot, columns) {
                    assert!(width(&line) < columns.max(1), "{columns}: {line}");
                }
                for line in of_time("a setting with a long name", 12.0, 345.0, columns) {
                    assert!(width(&line) < columns.max(1), "{columns}: {line}");
                }
                let (host, time) = ("user@a-host.with.a.long.name", Duration::from_secs(120));
                for line in connecting(host, time, Some("the key exchange"), columns) {
                    assert!(width(&line) < columns.max(1), "{columns}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_terminal_has_what_matters() {
        let lines = of_copy(&large(), 40);
        assert_eq!(lines[0], "a/very/long/path/\u{6f22}\u{5b57}/file.tar.gz");
        assert_eq!(lines[1], " 12%  123 GB  123 MB/s  10:00:00 left");
        let lines = of_copy(&large(), 20);
        assert_eq!(lines[0], "...\u{6f22}\u{5b57}/file.tar.gz");
        assert_eq!(lines[1], " 12%  123 MB/s");
        let lines = of_copy(&large(), 120);
        assert!(lines[1].starts_with("==>"), "{}", lines[1]);
        assert!(
            lines[1].ends_with("123456 of 1234567 files"),
            "{}",
            lines[1]
        );
    }

    #[test]
    fn what_a_narrower_terminal_has_wrapped_is_erased() {
        assert_eq!(erase(&[], 80), "");
        assert_eq!(erase(&[79], 80), "\r\x1b[J");
        assert_eq!(erase(&[30, 79], 80), "\r\x1b[1A\x1b[J");
        assert_eq!(erase(&[30, 79], 40), "\r\x1b[2A\x1b[J");
        assert_eq!(erase(&[0, 79], 20), "\r\x1b[4A\x1b[J");
        assert_eq!(erase(&[30, 79], 0), "\r\x1b[108A\x1b[J");
    }

    #[test]
    fn the_bar_is_full_only_at_the_end() {
        assert_eq!(bar(0.999, 10), "=========>");
        assert_eq!(bar(1.0, 10), "==========");
        assert_eq!(bar(0.0, 8), ">       ");
        assert_eq!(bar(f64::NAN, 8), ">       ");
    }
}
