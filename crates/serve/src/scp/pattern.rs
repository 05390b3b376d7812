//! Matches file names against a shell pattern (POSIX, 2.13).

use std::str;

/// First number for bytes that are not UTF-8; each counts as a character after all others.
const NO_CHAR: u32 = 0x11_0000;

/// Compiled pattern for one component of a path.
pub(super) struct GlobPattern {
    units: Vec<GlobToken>,
}

/// Element of a pattern; characters are Unicode scalar values, and bytes that are not UTF-8 have
/// numbers above them.
enum GlobToken {
    Char(u32),
    /// `?`
    Any,
    /// `*`
    Many,
    /// `[...]`
    Set {
        without: bool,
        members: Vec<SetMember>,
    },
}

/// Element of a bracket expression: an inclusive range of characters, or a class.
enum SetMember {
    Range(u32, u32),
    /// `[:alpha:]`
    Class(CharClass),
}

type CharClass = fn(char) -> bool;

impl GlobPattern {
    /// Parses a component of a path; the bytes at the sorted offsets `wild` were not quoted.
    pub(super) fn new(part: &[u8], wild: &[usize]) -> Self {
        let mut units = Vec::new();
        let mut at = 0;
        while let Some((char, next)) = char_at(part, at) {
            let special = wild.binary_search(&at).is_ok().then_some(char);
            at = next;
            let set = || set(part, wild, next);
            units.push(match special.and_then(char::from_u32) {
                Some('*') => GlobToken::Many,
                Some('?') => GlobToken::Any,
                Some('[') => match set() {
                    Some((set, end)) => {
                        at = end;
                        set
                    }
                    // A bracket without an end stands for itself.
                    None => GlobToken::Char(char),
                },
                _ => GlobToken::Char(char),
            });
        }
        Self { units }
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        // A leading dot is matched only by a dot.
        let dot = matches!(self.units.first(), Some(GlobToken::Char(c)) if *c == u32::from('.'));
        if name.starts_with(b".") && !dot {
            return false;
        }
        let name = chars(name);
        let (mut at, mut in_name) = (0, 0);
        // Position to return to: the last `*`, which then takes one more character.
        let mut again = None;
        loop {
            let fits = match (self.units.get(at), name.get(in_name)) {
                (None, None) => return true,
                (Some(GlobToken::Many), _) => {
                    again = Some((at + 1, in_name));
                    at += 1;
                    continue;
                }
                (Some(unit), Some(char)) => unit.takes(*char),
                _ => false,
            };
            if fits {
                (at, in_name) = (at + 1, in_name + 1);
                continue;
            }
            match &mut again {
                Some((unit, from)) if *from < name.len() => {
                    *from += 1;
                    (at, in_name) = (*unit, *from);
                }
                _ => return false,
            }
        }
    }
}

impl GlobToken {
    fn takes(&self, char: u32) -> bool {
        match self {
            Self::Char(own) => *own == char,
            Self::Any => true,
            Self::Many => false,
            Self::Set { without, members } => {
                let any = members.iter().any(|member| match member {
                    SetMember::Range(low, high) => (low..=high).contains(&&char),
                    SetMember::Class(has) => char::from_u32(char).is_some_and(has),
                });
                any != *without
            }
        }
    }
}

/// Parses the set that begins after the bracket before `at`; returns the set and its end.
fn set(part: &[u8], wild: &[usize], mut at: usize) -> Option<(GlobToken, usize)> {
    let byte = |at: usize| part.get(at).copied();
    let closes = |at: usize| byte(at) == Some(b']') && wild.binary_search(&at).is_ok();
    // Check once for a closing bracket; otherwise every opening bracket would search the rest
    // again.
    wild.iter()
        .rev()
        .find(|last| **last >= at && closes(**last))?;
    let without = matches!(byte(at), Some(b'!' | b'^'));
    at += usize::from(without);
    let first = at;
    let mut members = Vec::new();
    while at == first || !closes(at) {
        if let Some((class, next)) = class(part, at) {
            members.extend(class.map(SetMember::Class));
            at = next;
            continue;
        }
        let (low, next) = char_at(part, at)?;
        at = next;
        let range = byte(at) == Some(b'-') && !closes(at + 1);
        let high = range.then(|| char_at(part, at + 1)).flatten();
        members.push(match high {
            Some((high, next)) => {
                at = next;
                SetMember::Range(low, high)
            }
            None => SetMember::Range(low, low),
        });
    }
    Some((GlobToken::Set { without, members }, at + 1))
}

/// Parses a `[:name:]` at `at`; returns the class, `None` if it is unknown, and its end.
fn class(part: &[u8], at: usize) -> Option<(Option<CharClass>, usize)> {
    let inner = part.get(at..)?.strip_prefix(b"[:")?;
    let len = inner
        .iter()
        .take_while(|byte| byte.is_ascii_lowercase())
        .count();
    let (name, rest) = inner.split_at(len);
    rest.strip_prefix(b":]")?;
    let is: Option<CharClass> = match name {
        b"alpha" => Some(char::is_alphabetic),
        b"digit" => Some(|c| c.is_ascii_digit()),
        b"alnum" => Some(|c| c.is_alphabetic() || c.is_ascii_digit()),
        b"upper" => Some(char::is_uppercase),
        b"lower" => Some(char::is_lowercase),
        b"space" => Some(char::is_whitespace),
        b"blank" => Some(|c| matches!(c, ' ' | '\t')),
        b"punct" => Some(|c| c.is_ascii_punctuation()),
        b"cntrl" => Some(char::is_control),
        b"xdigit" => Some(|c| c.is_ascii_hexdigit()),
        b"print" => Some(|c| !c.is_control()),
        b"graph" => Some(|c| !c.is_control() && !c.is_whitespace()),
        _ => None,
    };
    Some((is, at + 2 + len + 2))
}

/// Decodes the character at `at`; returns it and the offset of the next one.
fn char_at(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let first = *bytes.get(at)?;
    let whole = (1..=4).find_map(|len| {
        let text = str::from_utf8(bytes.get(at..at + len)?).ok()?;
        Some((text.chars().next()?.into(), at + len))
    });
    Some(whole.unwrap_or_else(|| (NO_CHAR + u32::from(first), at + 1)))
}

fn chars(bytes: &[u8]) -> Vec<u32> {
    let mut chars = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chars.extend(chunk.valid().chars().map(u32::from));
        chars.extend(
            chunk
                .invalid()
                .iter()
                .map(|byte| NO_CHAR + u32::from(*byte)),
        );
    }
    chars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_as_a_shell_does() {
        for (pattern, fits, others) in [
            ("*", &["a", "ä"][..], &[".a"][..]),
            ("?", &["a", "ä"], &["ab", "", "."]),
            ("a*b*c", &["abc", "axbxbc", "abcbc"], &["abcb", "ab"]),
            ("[a-c]x", &["ax", "bx"], &["dx", "x"]),
            ("[!a-c]x", &["dx", "äx"], &["ax", ".x"]),
            ("[^a]", &["b"], &["a"]),
            ("[]a]", &["]", "a"], &["[]a]"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[a", &["[a"], &["a"]),
            ("x[", &["x["], &["x"]),
            ("[]", &["[]"], &["]"]),
            ("[[:alpha:]]*", &["a1", "äx"], &["1a"]),
            ("[[:digit:]_]", &["1", "_"], &["a", ":"]),
            ("[![:upper:]]", &["a"], &["A"]),
            ("[[:none:]]", &[], &["n", ":"]),
            ("[[:alpha]", &["[", ":", "p"], &["[:alpha]"]),
            (".*", &[".a", "."], &["a"]),
        ] {
            let bytes = pattern.as_bytes();
            let wild: Vec<usize> = (0..bytes.len())
                .filter(|at| b"*?[]".contains(&bytes[*at]))
                .collect();
            let pattern_of = GlobPattern::new(bytes, &wild);
            for (names, wanted) in [(fits, true), (others, false)] {
                for name in names {
                    let found = pattern_of.matches(name.as_bytes());
                    assert_eq!(found, wanted, "{pattern} {name}");
                }
            }
        }
        // Quoted characters stand for themselves, and a byte that is not UTF-8 is one character.
        assert!(GlobPattern::new(b"[a]*", &[3]).matches(b"[a]b"));
        assert!(GlobPattern::new(b"[a]", &[0]).matches(b"[a]"));
        assert!(GlobPattern::new(b"?\xff*", &[0, 2]).matches(b"\xfe\xff"));
        assert!(!GlobPattern::new(b"\xff", &[]).matches(b"\xfe"));
    }

    #[test]
    fn many_stars_take_no_longer_than_few() {
        let pattern = GlobPattern::new(
            "*a".repeat(2000).as_bytes(),
            &(0..2000).map(|n| 2 * n).collect::<Vec<_>>(),
        );
        assert!(!pattern.matches(&[b'a'; 255]));
    }
}
