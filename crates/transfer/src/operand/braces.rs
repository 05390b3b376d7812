//! Expands braces in the host of an operand, as bash does: `host{1..9}:path`, `{a,b}:path`.
//!
//! A host name cannot contain braces, so an operand that needs no expansion never changes its
//! meaning. Braces in the path stay as they are.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{CopyOperand, OperandError, OperandErrorKind, colon};

/// Hosts that one operand may name.
pub const MOST_HOSTS: usize = 1000;

impl CopyOperand {
    /// Returns the operands that `operand` stands for: more than one if its host has braces.
    ///
    /// # Errors
    ///
    /// A brace is not closed, is neither a range nor a list, or names more than [`MOST_HOSTS`]
    /// hosts.
    pub fn expand(operand: &OsStr) -> Result<Vec<OsString>, OperandError> {
        let bytes = operand.as_bytes();
        let fail = |why| OperandError {
            operand: bytes.to_vec(),
            why,
        };
        let host = host_part(bytes);
        let text = bytes.get(host.clone()).unwrap_or_default();
        if !text.iter().any(|b| matches!(b, b'{' | b'}')) {
            return Ok(vec![operand.to_owned()]);
        }
        let hosts = expanded(text).map_err(fail)?;
        let (before, after) = (&bytes[..host.start], &bytes[host.end..]);
        let whole = |host: Vec<u8>| OsString::from_vec([before, &host, after].concat());
        Ok(hosts.into_iter().map(whole).collect())
    }
}

/// Position of user and host in an operand; empty if the operand is a local path.
fn host_part(bytes: &[u8]) -> Range<usize> {
    for scheme in [b"scp://".as_slice(), b"sftp://"] {
        if bytes.starts_with(scheme) {
            let rest = &bytes[scheme.len()..];
            let len = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
            return scheme.len()..scheme.len() + len;
        }
    }
    0..colon(bytes).unwrap_or(0)
}

/// Text with one pair of braces replaced by each of its values.
fn expanded(text: &[u8]) -> Result<Vec<Vec<u8>>, OperandErrorKind> {
    let mut all = vec![Vec::new()];
    let mut rest = text;
    while let Some(open) = rest.iter().position(|b| matches!(b, b'{' | b'}')) {
        let (before, from) = rest.split_at(open);
        let inner = from.strip_prefix(b"{").ok_or(OperandErrorKind::BraceOpen)?;
        let end = inner.iter().position(|b| matches!(b, b'{' | b'}'));
        let end = end.filter(|at| inner.get(*at) == Some(&b'}'));
        let (body, after) = inner.split_at(end.ok_or(OperandErrorKind::BraceOpen)?);
        let values = values(body)?;
        if all.len().saturating_mul(values.len()) > MOST_HOSTS {
            return Err(OperandErrorKind::ManyHosts);
        }
        all = all
            .iter()
            .flat_map(|start| {
                let whole = |value: &Vec<u8>| [start, before, value].concat();
                values.iter().map(whole).collect::<Vec<_>>()
            })
            .collect();
        rest = after.strip_prefix(b"}").unwrap_or_default();
    }
    for text in &mut all {
        text.extend_from_slice(rest);
    }
    Ok(all)
}

/// Values of the text in a pair of braces.
fn values(body: &[u8]) -> Result<Vec<Vec<u8>>, OperandErrorKind> {
    if let Some(dots) = body.windows(2).position(|w| w == b"..") {
        return range(&body[..dots], &body[dots + 2..]);
    }
    let values: Vec<Vec<u8>> = body.split(|b| *b == b',').map(<[u8]>::to_vec).collect();
    match values.len() {
        1 => Err(OperandErrorKind::BraceBody),
        2..=MOST_HOSTS => Ok(values),
        _ => Err(OperandErrorKind::ManyHosts),
    }
}

/// Numbers from `first` to `last`, up or down, as wide as the wider one if either starts with a
/// zero; or letters.
fn range(first: &[u8], last: &[u8]) -> Result<Vec<Vec<u8>>, OperandErrorKind> {
    if let ([from], [to]) = (first, last)
        && from.is_ascii_alphabetic()
        && to.is_ascii_alphabetic()
        && from.is_ascii_lowercase() == to.is_ascii_lowercase()
    {
        let up = *from.min(to)..=*from.max(to);
        return Ok(directed(
            up.map(|letter| vec![letter]).collect(),
            from <= to,
        ));
    }
    let (from, to) = (number(first)?, number(last)?);
    if from.abs_diff(to) >= MOST_HOSTS as u64 {
        return Err(OperandErrorKind::ManyHosts);
    }
    let padded = |text: &[u8]| text.len() > 1 && text.starts_with(b"0");
    let width = match padded(first) || padded(last) {
        true => first.len().max(last.len()),
        false => 0,
    };
    let shown = |n: u64| format!("{n:0width$}").into_bytes();
    let up = from.min(to)..=from.max(to);
    Ok(directed(up.map(shown).collect(), from <= to))
}

fn directed(mut values: Vec<Vec<u8>>, up: bool) -> Vec<Vec<u8>> {
    if !up {
        values.reverse();
    }
    values
}

fn number(text: &[u8]) -> Result<u64, OperandErrorKind> {
    let digits = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits);
    number
        .and_then(|text| text.parse().ok())
        .ok_or(OperandErrorKind::BraceBody)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(operand: &str) -> Result<Vec<String>, String> {
        let all = CopyOperand::expand(OsStr::new(operand)).map_err(|error| error.to_string())?;
        let text = |operand: OsString| operand.to_string_lossy().into_owned();
        Ok(all.into_iter().map(text).collect())
    }

    #[test]
    fn a_host_with_braces_is_several_as_in_bash() {
        for (operand, all) in [
            (
                "h{1..3}:/log/*",
                vec!["h1:/log/*", "h2:/log/*", "h3:/log/*"],
            ),
            ("h{09..11}:", vec!["h09:", "h10:", "h11:"]),
            ("h{1..03}:", vec!["h01:", "h02:", "h03:"]),
            ("h{3..2}:x", vec!["h3:x", "h2:x"]),
            ("{a..c}:x", vec!["a:x", "b:x", "c:x"]),
            ("u@{db,web}.lan:x", vec!["u@db.lan:x", "u@web.lan:x"]),
            ("h{,2}:x", vec!["h:x", "h2:x"]),
            ("{a,b}{1,2}:x", vec!["a1:x", "a2:x", "b1:x", "b2:x"]),
            ("scp://h{1,2}:22/x", vec!["scp://h1:22/x", "scp://h2:22/x"]),
        ] {
            assert_eq!(
                expand(operand),
                Ok(all.into_iter().map(Into::into).collect())
            );
        }
    }

    #[test]
    fn braces_of_a_path_stay() {
        for operand in ["h:{a,b}", "./h{1,2}:x", "{a,b}", "scp://h/{a,b}", "h:", ""] {
            assert_eq!(expand(operand), Ok(vec![operand.to_owned()]));
        }
    }

    #[test]
    fn a_bad_brace_is_named() {
        for (operand, why) in [
            ("h{1..3:x", "not closed"),
            ("h1..3}:x", "not closed"),
            ("h{a{b,c}}:x", "not closed"),
            ("h{1}:x", "neither"),
            ("h{}:x", "neither"),
            ("h{1..}:x", "neither"),
            ("h{1..9..2}:x", "neither"),
            ("h{-1..3}:x", "neither"),
            ("h{a..C}:x", "neither"),
            ("h{1..1001}:x", "more than 1000 hosts"),
            ("h{0..999999999999999999}:x", "more than 1000 hosts"),
            ("h{1..100}{1..100}:x", "more than 1000 hosts"),
        ] {
            let error = expand(operand).err().unwrap_or_default();
            assert!(error.starts_with(operand) && error.contains(why), "{error}");
        }
        assert_eq!(expand("h{1..1000}:x").map(|all| all.len()), Ok(1000));
    }
}
