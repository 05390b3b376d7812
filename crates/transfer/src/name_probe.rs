//! Names of the empty directories with which a file system is asked if it takes two names for one:
//! one is made under the first name, and looked for under the second. Nothing is made in them, so
//! that a symlink that somebody puts in their place leads nowhere. An interrupted run may leave one;
//! `sync` removes it.

use aws_lc_rs::rand;

/// Every name that begins so is reserved for longhaul.
const PREFIX: &[u8] = b".longhaul-";
/// Number of random hexadecimal digits.
const DIGITS: usize = 10;
/// Maximum length of a file name in bytes on Linux (NAME_MAX).
const NAME_MAX: usize = 255;
/// Bytes for the name that is asked about.
const ROOM: usize = NAME_MAX - PREFIX.len() - DIGITS - 1;

/// Returns two names with one random part, which end as `one` and `other`: a file system that
/// ignores case, the form of Unicode, or dots at the end takes both for one as well. Names without
/// room lose what they share at the beginning and, if need be, at the end; `None` if that is not
/// enough.
pub(crate) fn probe_names(one: &[u8], other: &[u8]) -> Option<[Vec<u8>; 2]> {
    let mut random = [0; 8];
    // A failure leaves zeros, and a name that exists is not asked about.
    let _ = rand::fill(&mut random);
    let digits = format!("{:0DIGITS$x}-", u64::from_le_bytes(random) >> 24);
    let longest = one.len().max(other.len());
    let start = match longest > ROOM {
        true => shared_start(one, other),
        false => 0,
    };
    let [one, other] = [one, other].map(|name| name.get(start..).unwrap_or_default());
    let end = match (longest - start).saturating_sub(ROOM) {
        0 => 0,
        surplus => shared_end(one, other, surplus)?,
    };
    Some([one, other].map(|name| {
        let own = name.get(..name.len() - end).unwrap_or_default();
        [PREFIX, digits.as_bytes(), own].concat()
    }))
}

/// Returns the warning for a file about whose name the target cannot be asked; `other` is the name
/// that it may be taken for.
pub(crate) fn unanswered(other: &str) -> String {
    format!(
        "cannot find out if the target treats this name and {other} as one: check that both files \
         were copied"
    )
}

/// Returns true for a name that [`probe_names`] could have made.
pub(crate) fn is_name_probe(name: &[u8]) -> bool {
    let rest = name.strip_prefix(PREFIX);
    let parts = rest.and_then(|rest| rest.split_at_checked(DIGITS));
    parts.is_some_and(|(digits, own)| {
        digits.iter().all(u8::is_ascii_hexdigit) && own.starts_with(b"-")
    })
}

/// Length of what both begin with, without the last character of it: an accent behind it belongs to
/// it.
fn shared_start(one: &[u8], other: &[u8]) -> usize {
    let equal = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let begins = |at: &usize| one.get(*at).is_none_or(|byte| is_first(*byte));
    (0..=equal).rev().filter(begins).nth(1).unwrap_or(0)
}

/// Length of whole characters that both end with, at least `surplus` bytes; `None` if they share
/// less.
fn shared_end(one: &[u8], other: &[u8], surplus: usize) -> Option<usize> {
    let both = one.iter().rev().zip(other.iter().rev());
    let equal = both.take_while(|(a, b)| a == b).count();
    let begins = |len: &usize| {
        let first = one.get(one.len() - len);
        first.is_none_or(|byte| is_first(*byte))
    };
    (surplus..=equal).find(begins)
}

/// Returns true for the first byte of a character in UTF-8. Some file systems refuse parts of one.
fn is_first(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_end_as_the_names_and_are_known() {
        let [one, other] = probe_names(b"x", b"x.").expect("they are short");
        assert!(one.ends_with(b"-x") && other.ends_with(b"-x."));
        assert_eq!(one.len() + 1, other.len());
        assert!(is_name_probe(&one) && is_name_probe(&other));
        let again = probe_names(b"x", b"x.").expect("they are short");
        assert_ne!(one, again[0]);
        for name in [
            &b".longhaul-"[..],
            b".longhaul-0123456789",
            b"x",
            b".longhaul-names",
        ] {
            assert!(!is_name_probe(name), "{name:?}");
        }
    }

    /// Bug: both were cut behind the same number of bytes, so that their ends differed too.
    #[test]
    fn long_names_keep_the_place_where_they_differ_and_differ_nowhere_else() {
        let ends = |one: &str, other: &str| {
            let names = probe_names(one.as_bytes(), other.as_bytes())?;
            assert!(names.iter().all(|name| name.len() <= NAME_MAX));
            let own = |name: &Vec<u8>| name[PREFIX.len() + DIGITS + 1..].to_vec();
            let text = |name: &Vec<u8>| String::from_utf8(own(name)).expect("whole characters");
            Some((text(&names[0]), text(&names[1])))
        };
        let (composed, apart) = ("\u{e9}", "e\u{301}");
        let z = |count: usize| "z".repeat(count);
        let start = "\u{e9}".repeat(100);
        let (one, other) = (
            format!("{start}{apart}{}", z(50)),
            format!("{start}{composed}{}", z(50)),
        );
        let expected = (
            format!("\u{e9}{apart}{}", z(50)),
            format!("\u{e9}{composed}{}", z(50)),
        );
        assert_eq!(ends(&one, &other), Some(expected));
        let (one, other) = (
            format!("{composed}{}", z(240)),
            format!("{apart}{}", z(240)),
        );
        let left = z(ROOM - apart.len());
        let expected = (format!("{composed}{left}"), format!("{apart}{left}"));
        assert_eq!(ends(&one, &other), Some(expected));
        assert_eq!(ends(&"a".repeat(255), &"A".repeat(255)), None);
        assert!(ends(&"a".repeat(ROOM), &"A".repeat(ROOM)).is_some());
        assert!(ends(&"a".repeat(254), &format!("{}.", "a".repeat(254))).is_some());
    }
}
