//! Detects source names that would become one entry in a local target directory, because its file
//! system ignores case or normalizes Unicode. Asks the file system by creating a directory.

use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, statat, unlinkat};

use super::equal_names::NamedSource;
use crate::name_probe::probe_names;

/// Pairs of names about which a file system is asked. Further ones are taken for one.
pub(super) const MOST: usize = 1_000;

/// Names that are one wherever case or the form of Unicode does not count.
const SAMPLES: [[&str; 2]; 2] = [["a", "A"], ["\u{e9}", "e\u{301}"]];

/// Returns true if the file system at `dir`, or at the nearest directory above it that exists, takes
/// two names for one. False if it cannot be asked: a copy to there fails as well.
pub fn are_one_at(dir: &Path, one: &[u8], other: &[u8]) -> bool {
    let dir = dir.ancestors().find(|dir| dir.is_dir());
    let dir = dir.unwrap_or_else(|| Path::new("."));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let Ok(dir) = open(dir, flags, Mode::empty()) else {
        return false;
    };
    let is_name = |name: &[u8]| !name.contains(&b'/') && !matches!(name, b"" | b"." | b"..");
    let Some([probe, looked_for]) = probe_names(one, other) else {
        return false;
    };
    let private = Mode::from_raw_mode(0o700);
    if !is_name(one) || !is_name(other) || mkdirat(&dir, probe.as_slice(), private).is_err() {
        return false;
    }
    let found = statat(&dir, looked_for.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
    // It is empty, and of this run alone.
    let _ = unlinkat(&dir, probe.as_slice(), AtFlags::REMOVEDIR);
    found
}

/// True if a file system takes any two names for one, as `are_one` says.
pub(super) fn folds_names(are_one: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let is_one = |[one, other]: [&str; 2]| are_one(one.as_bytes(), other.as_bytes());
    SAMPLES.into_iter().any(is_one)
}

/// Returns the first two sources whose names differ and are one at the target, as `are_one` says.
pub fn alike_sources(
    sources: &[NamedSource],
    are_one: impl Fn(&[u8], &[u8]) -> bool,
) -> Option<(&NamedSource, &NamedSource)> {
    let named = |source: &'_ NamedSource| source.name.is_some();
    let sources: Vec<&NamedSource> = sources.iter().filter(|source| named(source)).collect();
    let names: Vec<&[u8]> = sources.iter().filter_map(|s| s.name.as_deref()).collect();
    let mut pairs = sync::alike_names(&names).peekable();
    pairs.peek()?;
    let sampled = folds_names(&are_one);
    for (asked, (first, second)) in pairs.enumerate() {
        let (Some(one), Some(other)) = (names.get(first), names.get(second)) else {
            continue;
        };
        if asked >= MOST && !sampled {
            return None;
        }
        if asked >= MOST || are_one(one, other) {
            return sources
                .get(first)
                .copied()
                .zip(sources.get(second).copied());
        }
    }
    None
}

/// Clause that says which source has a name that is one with that of another at the target.
pub fn alike_name(first: &NamedSource) -> String {
    format!(
        "{} has the same name in the target directory, whose file system ignores case or \
         normalizes names, and would be overwritten",
        first.source
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;
    use crate::report::EscapedName;

    fn named(host: &str, name: &[u8]) -> NamedSource {
        NamedSource {
            source: EscapedName([host.as_bytes(), b":", name].concat()),
            name: Some(name.to_vec()),
        }
    }

    fn ignores_case(one: &[u8], other: &[u8]) -> bool {
        one.eq_ignore_ascii_case(other)
    }

    #[test]
    fn sources_are_refused_only_where_the_file_system_takes_their_names_for_one() {
        let all = [named("a", b"x"), named("a", b"y"), named("b", b"X")];
        let found = alike_sources(&all, ignores_case);
        assert_eq!(found, Some((&all[0], &all[2])));
        assert_eq!(alike_sources(&all, |_, _| false), None);
        assert_eq!(alike_sources(&all[1..], ignores_case), None);
        // Case counts, normalization does not.
        let forms = |one: &[u8], other: &[u8]| sync::to_nfc(one).is_some_and(|one| one == other);
        assert_eq!(alike_sources(&all, forms), None);
    }

    /// A host that names a file in a million spellings must not hide those of other hosts.
    #[test]
    fn beyond_the_limit_of_questions_like_names_are_refused_where_any_are_one() {
        let spelling = |number: usize| named("a", "\u{212b}".repeat(1 + number % 2).as_bytes());
        let mut all: Vec<_> = (0..100).map(spelling).collect();
        let dots = |count: usize| named("a", &[b"z".as_slice(), &b".".repeat(count)].concat());
        all.extend((0..60).map(dots));
        let asked = Cell::new(0);
        let counted = |folds: bool| {
            let asked = &asked;
            move |one: &[u8], other: &[u8]| {
                asked.set(asked.get() + 1);
                folds && ignores_case(one, other)
            }
        };
        assert_eq!(alike_sources(&all, counted(false)), None);
        assert!(asked.get() <= MOST + SAMPLES.len());
        assert!(alike_sources(&all, counted(true)).is_some());
    }

    #[test]
    fn a_file_system_is_asked_and_nothing_is_left_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let below = dir.path().join("not/yet");
        assert!(are_one_at(&below, b"x", b"x"));
        assert!(!are_one_at(&below, b"x", b"y"));
        for path in [&b"../x"[..], b"..", b"/x", b""] {
            assert!(!are_one_at(&below, path, path));
        }
        assert_eq!(fs::read_dir(dir.path()).expect("ours").count(), 0);
    }

    /// The first clash is found whatever lies between, and only names that the file system takes
    /// for one are refused.
    #[test]
    fn a_clash_is_found_among_many_names_if_and_only_if_there_is_one() {
        let mut seed = testkit::Seed::new(5);
        let mut clashes = 0;
        for _ in 0..500 {
            let count = seed.below(8);
            let sources: Vec<NamedSource> = (0..count)
                .map(|_| {
                    let name: Vec<u8> = (0..1 + seed.below(2))
                        .map(|_| b"abAB"[seed.below(4) as usize])
                        .collect();
                    named("host", &name)
                })
                .collect();
            let name = |source: &NamedSource| source.name.clone().expect("all have one");
            let is_clash = |(nth, one): (usize, &NamedSource)| {
                let mut others = sources.iter().skip(nth + 1);
                let one = name(one);
                others.any(|other| name(other) != one && ignores_case(&one, &name(other)))
            };
            let expected = sources.iter().enumerate().any(is_clash);
            let found = alike_sources(&sources, ignores_case);
            assert_eq!(found.is_some(), expected, "{sources:?}");
            if let Some((one, other)) = found {
                assert_ne!(name(one), name(other));
                assert!(ignores_case(&name(one), &name(other)));
                clashes += 1;
            }
            assert_eq!(alike_sources(&sources, |_, _| false), None);
        }
        assert!(clashes > 100, "{clashes}");
    }
}
