//! Formats sizes, rates and times for people. Units are decimal: 1 MB is 10^6 bytes.

use std::time::Duration;

const STEPS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];

/// Formats bytes as `917 B`, `1.2 GB`, `98 MB`: at least two digits, at most three before the unit
/// changes.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut steps = STEPS.iter();
    let mut unit = steps.next().copied().unwrap_or("kB");
    for next in steps {
        // 999.5 would be rounded to 1000.
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if value < 9.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// Formats a rate as `98 MB/s`. `None` if the time is too short to be meaningful.
pub(crate) fn rate(bytes: u64, time: Duration) -> Option<String> {
    let seconds = time.as_secs_f64();
    (seconds >= 0.001).then(|| format!("{}/s", size((bytes as f64 / seconds) as u64)))
}

/// Formats a time as `0.42 s`, `12.3 s`, `2 min 5 s`, `3 h 12 min`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{} h {} min", whole / 3600, whole % 3600 / 60)
    }
}

/// Formats the remaining time like scp: `00:42`, `1:05:10`.
pub(crate) fn clock(time: Duration) -> String {
    let s = time.as_secs();
    if s < 3600 {
        format!("{:02}:{:02}", s / 60, s % 60)
    } else {
        format!("{}:{:02}:{:02}", s / 3600, s % 3600 / 60, s % 60)
    }
}

/// Formats a count as `1 file`, `12 files`.
pub(crate) fn files(count: u64) -> String {
    counted(count, "file", "files")
}

/// Formats a count with its noun in the singular or the plural.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9_949, "9.9 kB"),
            (9_950, "10 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (1_234_000_000, "1.2 GB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn one_is_singular() {
        let told = |count| counted(count, "directory", "directories");
        assert_eq!(
            [0, 1, 2].map(told),
            ["0 directories", "1 directory", "2 directories"]
        );
        assert_eq!([files(1), files(0)], ["1 file", "0 files"]);
    }

    #[test]
    fn rates_and_times() {
        assert_eq!(rate(98_000_000, Duration::from_secs(1)).unwrap(), "98 MB/s");
        assert_eq!(rate(5, Duration::ZERO), None);
        for (ms, text) in [
            (420, "0.42 s"),
            (9_994, "9.99 s"),
            (9_996, "10.0 s"),
            (12_300, "12.3 s"),
            (59_960, "1 min 0 s"),
            (125_000, "2 min 5 s"),
            (11_520_000, "3 h 12 min"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert_eq!(clock(Duration::from_secs(42)), "00:42");
        assert_eq!(clock(Duration::from_secs(3910)), "1:05:10");
    }
}
