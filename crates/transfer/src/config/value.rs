//! Parsers for the value types of ssh_config(5).

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::known_hosts::KnownHostsCommandError;
use crate::operand::OperandError;

pub(super) type ParsedValue<T> = Result<T, InvalidValue>;

/// Reason why the value of an option is invalid. The message completes a sentence that begins with
/// the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidValue(Cow<'static, str>);

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidValue {}

impl From<&'static str> for InvalidValue {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl InvalidValue {
    /// Creates the error of a list of hosts.
    pub(super) fn of_hosts(error: &OperandError) -> Self {
        Self(format!("is not a list of hosts: {error}").into())
    }
}

impl From<KnownHostsCommandError> for InvalidValue {
    fn from(error: KnownHostsCommandError) -> Self {
        Self(error.to_string().into())
    }
}

pub(super) fn boolean(text: &str) -> ParsedValue<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err("is not yes or no".into()),
    }
}

pub(super) fn number(text: &str) -> ParsedValue<u32> {
    text.parse().map_err(|_| "is not a number".into())
}

/// Parses TIME FORMATS of sshd_config(5): `90`, `1h30m`; `none` and 0 are `None`.
pub(super) fn time(text: &str) -> ParsedValue<Option<Duration>> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let bad = || InvalidValue::from("is not a time such as 90, 5m or 1h30m");
    let (mut seconds, mut digits) = (0u64, String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(bad()),
        };
        let count: u64 = digits.parse().map_err(|_| bad())?;
        digits.clear();
        let part = count.checked_mul(unit).ok_or_else(bad)?;
        seconds = seconds.checked_add(part).ok_or_else(bad)?;
    }
    if !digits.is_empty() {
        let rest: u64 = digits.parse().map_err(|_| bad())?;
        seconds = seconds.checked_add(rest).ok_or_else(bad)?;
    } else if text.is_empty() {
        return Err(bad());
    }
    // OpenSSH's convtime has the same limit; longer times are meaningless.
    if seconds > i32::MAX as u64 {
        return Err(bad());
    }
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// Parses bytes with an optional K, M or G; `default`, `none` and 0 are `None`.
pub(super) fn size(text: &str) -> ParsedValue<Option<u64>> {
    let bad = || InvalidValue::from("is not a size such as 500M or 1G");
    if text.eq_ignore_ascii_case("default") || text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..).unwrap_or_default() {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(bad()),
    };
    let count: u64 = digits.parse().map_err(|_| bad())?;
    let bytes = count.checked_mul(1 << shift).ok_or_else(bad)?;
    Ok((bytes > 0).then_some(bytes))
}

/// Splits text into words; quoted words stay whole.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut open, mut quoted) = (String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => {
                open = !open;
                quoted = true;
            }
            c if c.is_whitespace() && !open => {
                if quoted || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                quoted = false;
            }
            c => word.push(c),
        }
    }
    if quoted || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Splits a value into paths. `ssh -G` prints paths without quotes, so that a space in a path looks
/// like its end: a word that cannot start a path belongs to the previous one, unless files of both
/// names exist and none of the combined name.
pub(super) fn paths(text: &str) -> Vec<PathBuf> {
    paths_by(text, |path| Path::new(path).exists())
}

fn paths_by(text: &str, exists: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut paths: Vec<String> = Vec::new();
    for word in words(text) {
        let starts = word.starts_with(['/', '~', '$', '%', '.']);
        match paths.last_mut() {
            Some(last) if last.as_str() != "none" => {
                let whole = format!("{last} {word}");
                let apart = starts || exists(last) || exists(&word);
                match exists(&whole) && !starts || !apart {
                    true => *last = whole,
                    false => paths.push(word),
                }
            }
            _ => paths.push(word),
        }
    }
    paths.retain(|p| !p.eq_ignore_ascii_case("none"));
    paths.into_iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let secs = |n| Ok(Some(Duration::from_secs(n)));
        assert_eq!(time("90"), secs(90));
        assert_eq!(time("1h30m"), secs(5400));
        assert_eq!(time("1w2d3"), secs(604_800 + 2 * 86_400 + 3));
        assert_eq!(time("0"), Ok(None));
        assert_eq!(time("none"), Ok(None));
        assert!(time("h").is_err() && time("1x").is_err() && time("").is_err());
        assert!(time("99999999999999999999").is_err() && time("9999999999999999999w").is_err());
        assert_eq!(time("2147483647"), secs(2_147_483_647));
        assert!(time("2147483648").is_err() && time("18446744073709551615").is_err());
        assert_eq!(size("1G"), Ok(Some(1 << 30)));
        assert_eq!(size("500"), Ok(Some(500)));
        assert_eq!(size("default"), Ok(None));
        assert!(size("1T").is_err() && size("G").is_err() && size("99999999999999999G").is_err());
    }

    #[test]
    fn paths_with_blanks_stay_whole() {
        let there = ["k1", "k2", "/x y", "/x"];
        let list = |t: &str| {
            let paths = paths_by(t, |path| there.contains(&path));
            paths
                .iter()
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(list("/a/b /c"), ["/a/b", "/c"]);
        assert_eq!(list("/a b/c ~/d"), ["/a b/c", "~/d"]);
        assert_eq!(list("\"/a b\" \"/c d\""), ["/a b", "/c d"]);
        assert_eq!(list("none"), [""; 0]);
        // Two relative names are two files: as one path they would be missing, and every host would
        // be new.
        assert_eq!(list("k1 k2"), ["k1", "k2"]);
        assert_eq!(list("k1 missing"), ["k1", "missing"]);
        assert_eq!(list("/x y"), ["/x y"]);
    }
}
