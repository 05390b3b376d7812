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
/// room lose the beginning that they share.
pub(crate) fn probe_names(one: &[u8], other: &[u8]) -> [Vec<u8>; 2] {
    let mut random = [0; 8];
    // A failure leaves zeros, and a name that exists is not asked about.
    let _ = rand::fill(&mut random);
    let digits = format!("{:0DIGITS$x}-", u64::from_le_bytes(random) >> 24);
    let shared = match one.len().max(other.len()) > ROOM {
        true => shared_start(one, other),
        false => 0,
    };
    [one, other].map(|name| {
        let own = name.get(shared..).unwrap_or_default();
        [PREFIX, digits.as_bytes(), shortened(own)].concat()
    })
}

/// Returns true for a name that [`probe_names`] could have made.
pub(crate) fn is_name_probe(name: &[u8]) -> bool {
    let rest = name.strip_prefix(PREFIX);
    let parts = rest.and_then(|rest| rest.split_at_checked(DIGITS));
    parts.is_some_and(|(digits, own)| {
        digits.iter().all(u8::is_ascii_hexdigit) && own.starts_with(b"-")
    })
}

/// Returns what there is room for. Some file systems refuse parts of UTF-8 characters.
fn shortened(name: &[u8]) -> &[u8] {
    let Some(cut) = name.get(..ROOM) else {
        return name;
    };
    match std::str::from_utf8(cut) {
        Err(e) if e.error_len().is_none() => cut.get(..e.valid_up_to()).unwrap_or(cut),
        _ => cut,
    }
}

/// Length of what both names begin with, without the last character of it: an accent behind it
/// belongs to it.
fn shared_start(one: &[u8], other: &[u8]) -> usize {
    let equal = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let begins = |at: usize| one.get(at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let last = (0..=equal).rev().filter(|at| begins(*at)).nth(1);
    last.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_end_as_the_names_and_are_known() {
        let [one, other] = probe_names(b"x", b"x.");
        assert!(one.ends_with(b"-x") && other.ends_with(b"-x."));
        assert_eq!(one.len() + 1, other.len());
        assert!(is_name_probe(&one) && is_name_probe(&other));
        assert_ne!(one, probe_names(b"x", b"x.")[0]);
        for name in [
            &b".longhaul-"[..],
            b".longhaul-0123456789",
            b"x",
            b".longhaul-names",
        ] {
            assert!(!is_name_probe(name), "{name:?}");
        }
    }

    #[test]
    fn long_names_keep_the_place_where_they_differ() {
        let start = "\u{e9}".repeat(100);
        let [one, other] = probe_names(
            format!("{start}e\u{301}{}", "z".repeat(50)).as_bytes(),
            format!("{start}\u{e9}{}", "z".repeat(50)).as_bytes(),
        );
        let end = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        assert!(end(&one).ends_with(&format!("-\u{e9}e\u{301}{}", "z".repeat(50))));
        assert!(end(&other).ends_with(&format!("-\u{e9}\u{e9}{}", "z".repeat(50))));
        let [one, other] = probe_names(&[b'a'; 255], &[b'A'; 255]);
        assert_eq!((one.len(), other.len()), (NAME_MAX, NAME_MAX));
        assert_ne!(one, other);
    }
}
