//! Formats figures for people.

use crate::result::{PayloadSize, RunOutcome, Scenario, ScenarioRun, ToolResult};

/// A number with three significant digits: 1234, 123, 12.3, 1.23, 0.0123.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 6) as usize)
}

/// Bytes in binary units: `4 GiB`, `1.5 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or("B");
    if scaled.fract() == 0.0 {
        return format!("{scaled} {name}");
    }
    format!("{} {name}", number(scaled))
}

/// A whole number with thousands separators: `20,000`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A payload, as `one file of 1 GiB` or `2,000 files, 7.81 MiB together`.
pub fn payload(payload: PayloadSize) -> String {
    match payload.files {
        1 => format!("one file of {}", bytes(payload.bytes)),
        files => format!("{} files, {} together", count(files), bytes(payload.bytes)),
    }
}

/// The reason why a tool has no figure, in a few words; `None` if it has one.
pub fn trouble(scenario: &Scenario, entry: &ToolResult) -> Option<String> {
    if let Some(reason) = &entry.left_out {
        return Some(reason.clone());
    }
    match entry.trouble() {
        Some(sample) => Some(ending(scenario, sample)),
        None => entry.samples.is_empty().then(|| "did not run".to_owned()),
    }
}

/// The end of a run, in a few words.
pub fn ending(scenario: &Scenario, sample: &ScenarioRun) -> String {
    match &sample.ending {
        RunOutcome::Done => "done".to_owned(),
        RunOutcome::TimedOut { files, bytes: done } => {
            let limit = number(scenario.limit_seconds);
            let progress = match scenario.payload.files {
                1 => format!("{} of {}", bytes(*done), bytes(scenario.payload.bytes)),
                all => format!("{} of {} files", count(*files), count(all)),
            };
            format!("did not finish in {limit} s: {progress}")
        }
        RunOutcome::Failed { why } => format!("failed: {why}"),
        RunOutcome::Wrong { why } => format!("WRONG COPY: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        for (value, text) in [
            (1234.4, "1234"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.01234, "0.0123"),
            (0.0, "0"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn sizes_and_counts() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4 << 30), "4 GiB");
        assert_eq!(bytes(1_500_000), "1.43 MiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(20_000), "20,000");
        assert_eq!(count(1_000_000), "1,000,000");
    }
}
