//! Lines of `name value`, with bytes escaped, as headers and leases have them.

/// Appends a line. Bytes of the value that are not printable ASCII, spaces and `%` are written as
/// `%XX`.
pub(crate) fn line(to: &mut String, name: &str, value: &[u8]) {
    to.push_str(name);
    to.push(' ');
    for byte in value {
        match is_plain(*byte) {
            true => to.push(char::from(*byte)),
            false => to.push_str(&format!("%{byte:02x}")),
        }
    }
    to.push('\n');
}

/// True for bytes that stand for themselves.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'%'
}

/// Returns the bytes that [`line()`] escaped; `None` if they are not escaped so. Each value has one
/// spelling.
pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let lower = |byte: &&u8| !byte.is_ascii_uppercase();
                let digit = |byte| {
                    Some(byte)
                        .filter(lower)
                        .and_then(|b: &u8| char::from(*b).to_digit(16))
                };
                let value = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
                (!is_plain(value)).then_some(())?;
                bytes.push(value);
                after
            }
            (_, after) if is_plain(*first) => {
                bytes.push(*first);
                after
            }
            _ => return None,
        };
    }
    Some(bytes)
}

/// Splits a line into its name and the rest.
pub(crate) fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

/// Parses a number that is written without sign, leading zeros or spaces.
pub(crate) fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let short = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| plain && short)
}

/// True for a checksum or another identifier in lower-case hexadecimal.
pub(crate) fn is_hex(text: &str, len: usize) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == len && text.bytes().all(digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_a_line() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        line(&mut text, "x", &all);
        let (name, value) = split(text.trim_end_matches('\n'));
        assert_eq!((name, unescaped(value)), ("x", Some(all)));
        for bad in ["%", "%4", "%zz", "%41", "%FF", "a b", "\u{e9}", "a\tb"] {
            assert_eq!(unescaped(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_has_one_spelling() {
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+1", "01", "-1", " 1", "18446744073709551616"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }
}
