//! Sources with patterns on a host: what glob(3) matches is copied or named, and nothing else.

use std::collections::BTreeSet;

use sftp::StatusCode;
use testkit::sftp_model::{Kind, Rng};

use super::faults::SimFault;
use super::scenario::{Direction, Scenario, file, leftovers, symlink, tree_at};
use crate::report::CopyOutcome;

/// Directions in which a host has the sources.
const FROM_HOST: [Direction; 2] = [Direction::Download, Direction::Relayed];

/// Copy of `pattern` into the directory `dst`.
fn copy_of(seed: u64, direction: Direction, pattern: &str) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.sources = vec![pattern.to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario
}

/// Places files at the source, each with its path as its contents, and the directories above them.
fn place_files(scenario: &Scenario, paths: &[&str]) {
    for path in paths {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        for dir in above {
            let dir = format!("/home/u/{dir}");
            if scenario.at_source(|fs| fs.at(&dir).is_none()) {
                scenario.place_source(&dir, Kind::Dir, 0o755);
            }
        }
        scenario.place_source(&format!("/home/u/{path}"), file(path), 0o644);
    }
}

/// Names directly below `dst`.
fn copied(scenario: &Scenario) -> BTreeSet<String> {
    let tree = scenario.at_target(|fs| tree_at(fs, "dst"));
    let top = tree.into_keys();
    top.filter(|path| !path.is_empty() && !path.contains('/'))
        .collect()
}

fn names<'n>(names: impl IntoIterator<Item = &'n str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// True if glob(3) matches `name` with `pattern`, which has `*`, `?`, `[ab]` and `\`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], name) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([b'[', rest @ ..], [first, name @ ..]) if rest.contains(&b']') => {
            let end = rest.iter().position(|byte| *byte == b']').unwrap_or(0);
            rest[..end].contains(first) && matches(&rest[end + 1..], name)
        }
        ([b'\\', quoted, rest @ ..], [first, name @ ..]) => quoted == first && matches(rest, name),
        ([first, rest @ ..], [other, name @ ..]) => first == other && matches(rest, name),
        _ => false,
    }
}

/// Entries at the source whose paths match, without the home directory: an entry below a symlink
/// counts by the symlink's name.
fn expected(scenario: &Scenario, pattern: &str) -> BTreeSet<String> {
    let only_dirs = pattern.ends_with('/');
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    let mut found = BTreeSet::from([String::new()]);
    for (at, part) in parts.iter().enumerate() {
        let mut below = BTreeSet::new();
        for dir in &found {
            let path = format!("/home/u/{dir}");
            let is_dir = |path: &str| {
                scenario.at_source(|fs| fs.at(path).is_some_and(|node| node.kind == Kind::Dir))
            };
            if !is_dir(&path) {
                continue;
            }
            let names = scenario.at_source(|fs| {
                let real = fs.resolve(path.trim_end_matches('/').as_bytes(), true);
                fs.list(&real.expect("a directory"))
            });
            for name in names {
                let is_hidden = name.starts_with(b".") && !part.starts_with('.');
                let name = String::from_utf8(name).expect("names of the test");
                let path = format!("{dir}/{name}");
                let last = at + 1 == parts.len();
                let needs_dir = !last || only_dirs;
                let fits = !needs_dir || is_dir(&format!("/home/u/{path}"));
                if !is_hidden && fits && matches(part.as_bytes(), name.as_bytes()) {
                    below.insert(path.trim_start_matches('/').to_owned());
                }
            }
        }
        found = below;
    }
    found
}

/// A random tree of short names in two directories and a symlink to one of them.
fn with_short_names(seed: u64, direction: Direction, rng: &mut Rng) -> Scenario {
    let scenario = copy_of(seed, direction, "");
    for dir in ["one", "two", ".hid"] {
        scenario.place_source(&format!("/home/u/{dir}"), Kind::Dir, 0o755);
    }
    scenario.place_source("/home/u/on", symlink("two"), 0o777);
    let mut placed = BTreeSet::new();
    for _ in 0..12 {
        let dir = ["one", "two", ".hid"][rng.below(3) as usize];
        let name: String = (0..1 + rng.below(3))
            .map(|_| ["a", "b", ".", "*", "["][rng.below(5) as usize])
            .collect();
        if matches!(name.as_str(), "." | "..") || !placed.insert(format!("{dir}/{name}")) {
            continue;
        }
        let path = format!("/home/u/{dir}/{name}");
        match rng.below(4) {
            0 => {
                scenario.place_source(&path, Kind::Dir, 0o755);
                scenario.place_source(&format!("{path}/f"), file("below"), 0o644);
            }
            _ => scenario.place_source(&path, file(&path), 0o644),
        }
    }
    scenario
}

/// Random patterns on random trees, compared with a small glob(3).
#[test]
fn a_pattern_copies_what_glob_matches_and_nothing_else() {
    let (mut full, mut refused) = (0, 0);
    for direction in FROM_HOST {
        for seed in 0..250 {
            let mut rng = Rng::new(seed ^ 0x676c_6f62);
            let mut scenario = with_short_names(seed, direction, &mut rng);
            let dir = ["one", "t*", "?n?", "[ot]*", ".h*", "on", "o*", "*"][rng.below(8) as usize];
            let last: String = (0..1 + rng.below(3))
                .map(|_| ["*", "?", "a", "[ab]", ".", "\\*", "b"][rng.below(7) as usize])
                .collect();
            let slash = if rng.below(5) == 0 { "/" } else { "" };
            let pattern = format!("{dir}/{last}{slash}");
            let unquoted = pattern.replace("\\*", "");
            if !unquoted.contains(['*', '?', '[']) || matches!(last.as_str(), "." | "..") {
                continue;
            }
            scenario.sources = vec![pattern.clone()];
            let expected = expected(&scenario, &pattern);
            let last = |path: &String| path.rsplit('/').next().unwrap_or(path).to_owned();
            let unique: BTreeSet<String> = expected.iter().map(last).collect();
            let report = scenario.finish();
            let name = format!("{}, {pattern}", scenario.name());
            if expected.is_empty() {
                let reason = report.reason(&pattern);
                assert!(reason.contains("no file matches"), "{name}: {reason}");
                assert_eq!(copied(&scenario), names([]), "{name}");
                continue;
            }
            if unique.len() < expected.len() {
                let (_, reason) = &report.failed[0];
                assert!(reason.contains("same name"), "{name}: {report:#?}");
                assert_eq!(copied(&scenario), names([]), "{name}");
                refused += 1;
                continue;
            }
            assert_eq!(
                report.outcome(),
                CopyOutcome::Complete,
                "{name}: {report:#?}"
            );
            assert_eq!(copied(&scenario), unique, "{name}: {expected:?}");
            for path in &expected {
                let real = scenario.at_source(|fs| fs.resolve(path.as_bytes(), true));
                let real = String::from_utf8(real.expect("it is there")).expect("ASCII");
                scenario.check_same(&real, &format!("dst/{}", last(path)));
            }
            full += 1;
        }
    }
    assert!(full > 60 && refused > 5, "{full} {refused}");
}

/// A file may have the name that looks like a pattern; a quoted character is no pattern.
#[test]
fn a_file_whose_name_is_a_pattern_is_copied_by_its_name() {
    for direction in FROM_HOST {
        for (seed, (present, pattern, expected)) in (0..).zip([
            (&["d/a[1]"][..], "d/a[1]", "a[1]"),
            (&["d/a[1]", "d/a1"], "d/a[1]", "a1"),
            (&["d/a[1]", "d/a1"], "d/a\\[1]", "a[1]"),
            (&["d/*", "d/x"], "d/\\*", "*"),
            (&["d/a\\b", "d/ab"], "d/a\\\\b", "a\\b"),
            (&["d/{a,b}", "d/a", "d/b"], "d/{a,b}*", "{a,b}"),
            (&["d/!x", "d/y"], "d/!*", "!x"),
            (&["d*/f", "dx/g"], "d\\*/?", "f"),
        ]) {
            let mut scenario = copy_of(seed, direction, pattern);
            place_files(&scenario, present);
            let report = scenario.complete();
            let name = format!("{}, {pattern}: {report:#?}", scenario.name());
            assert_eq!(copied(&scenario), names([expected]), "{name}");
        }
    }
}

/// Like scp, the copy goes on with the other sources, and fails.
#[test]
fn a_pattern_without_a_match_is_named_and_the_other_sources_are_copied() {
    for direction in FROM_HOST {
        for at in 0..3 {
            let mut scenario = copy_of(at, direction, "d/*.txt");
            place_files(&scenario, &["d/a", "b", "e/c.txt"]);
            scenario.sources = vec!["b".to_owned(), "e/*.txt".to_owned()];
            scenario.sources.insert(at as usize, "d/*.txt".to_owned());
            let report = scenario.finish();
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{report:#?}");
            assert_eq!(report.failed.len(), 1, "{report:#?}");
            assert!(report.has_failed("d/*.txt"), "{report:#?}");
            assert_eq!(copied(&scenario), names(["b", "c.txt"]));
        }
    }
}

/// Several matches onto one file would replace each other.
#[test]
fn several_matches_do_not_replace_the_file_that_is_the_target() {
    for direction in FROM_HOST {
        for seed in 0..6 {
            let mut scenario = Scenario::new(seed, direction);
            place_files(&scenario, &["d/a", "d/b"]);
            scenario.sources = vec!["d/*".to_owned()];
            scenario.place_target("/home/u/dst", file("the old file"), 0o644);
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
            let kept = scenario.at_target(|fs| fs.data("dst") == Some(b"the old file"));
            assert!(kept, "{name}");
            // One match may take its place.
            scenario.sources = vec!["d/[a]".to_owned()];
            scenario.complete();
            let same = scenario.at_target(|fs| fs.data("dst") == Some(b"d/a"));
            assert!(same, "{name}");
        }
    }
}

#[test]
fn several_matches_onto_a_missing_target_go_into_a_new_directory() {
    for direction in FROM_HOST {
        for seed in 0..6 {
            let mut scenario = Scenario::new(seed, direction);
            place_files(&scenario, &["d/a", "d/b", "d/c/e"]);
            scenario.sources = vec!["d/*".to_owned()];
            scenario.complete();
            scenario.check_same("d", "dst");
        }
    }
}

/// A lost connection must not pass for a directory without matches.
#[test]
fn a_connection_that_is_lost_while_a_pattern_is_expanded_leaves_out_no_match() {
    let mut complete = 0;
    for direction in FROM_HOST {
        for fault in [SimFault::ConnectionLost, SimFault::HostLost] {
            for (seed, at) in (0..4).flat_map(|seed| (0..24).map(move |at| (seed, at))) {
                let mut scenario = copy_of(seed, direction, "d?/*/f*");
                let paths = ["d0/x/f0", "d0/y/f1", "d1/x/f2", "d1/y/f3", "d2/z/f4"];
                place_files(&scenario, &paths);
                scenario.world.borrow_mut().reconnect_always();
                scenario.faults = vec![(at, 0, fault), (at + 9, 0, fault)];
                let report = scenario.finish();
                let name = format!("{}, {fault:?} at {at}", scenario.name());
                match report.outcome() {
                    CopyOutcome::NoConnection(_) => {}
                    CopyOutcome::Complete => {
                        let all = names(["f0", "f1", "f2", "f3", "f4"]);
                        assert_eq!(copied(&scenario), all, "{name}: {report:#?}");
                        complete += 1;
                    }
                    other => panic!("{name}: {other:?}: {report:#?}"),
                }
            }
        }
    }
    assert!(complete > 60, "{complete}");
}

/// The names that a server lists lead nowhere else, and are told.
#[test]
fn hostile_names_that_match_a_pattern_lead_nowhere() {
    for direction in FROM_HOST {
        for seed in 0..6 {
            let mut scenario = copy_of(seed, direction, "d/*");
            place_files(&scenario, &["d/a", "outside"]);
            scenario.place_target("/home/u/outside", file("kept"), 0o644);
            let hostile: [&[u8]; 4] =
                [b"../outside", b"x/../../outside", b"/home/u/outside", b".."];
            scenario.world.borrow_mut().hosts[0].host.hostile_names =
                hostile.map(<[u8]>::to_vec).to_vec();
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(copied(&scenario), names(["a"]), "{name}");
            let kept = scenario.at_target(|fs| fs.data("outside") == Some(b"kept"));
            assert!(kept, "{name}");
            let told = report.failed.iter();
            let told = told.filter(|(_, why)| why.contains("invalid file name"));
            assert_eq!(told.count(), 3, "{name}");
        }
    }
}

/// A copy of such a file would pass for a temporary of the next copy, which removes it.
#[test]
fn a_match_with_a_name_of_longhaul_is_named_and_not_copied() {
    for direction in FROM_HOST {
        let temporary = schedule::tagged_name(b"a", 7);
        let temporary = String::from_utf8(temporary).expect("ASCII");
        let path = format!("d/{temporary}");
        for (seed, pattern) in (0..).zip(["d/*", "d/.*", "d/.longhaul*", "*/.*"]) {
            let mut scenario = copy_of(seed, direction, pattern);
            place_files(&scenario, &["d/a", "d/.b", "d/.longhaul-journal", &path]);
            let report = scenario.finish();
            let name = format!("{}, {pattern}: {report:#?}", scenario.name());
            let is_ours = |name: &String| name.starts_with(".longhaul-") || *name == temporary;
            assert!(!copied(&scenario).iter().any(is_ours), "{name}");
            let is_dotted = pattern.contains("/.");
            assert_eq!(
                report.has_failed("d/.longhaul-journal"),
                is_dotted,
                "{name}"
            );
        }
    }
}

/// Names of other encodings are matched byte by byte.
#[test]
fn names_that_are_no_text_are_matched_and_copied() {
    for direction in FROM_HOST {
        for seed in 0..4 {
            let mut scenario = copy_of(seed, direction, "d/*\u{7f}?");
            scenario.place_source("/home/u/d", Kind::Dir, 0o755);
            let name = b"\xff\xfe\x7f\x80";
            scenario.at_source(|fs| {
                let path = [b"/home/u/d/", &name[..]].concat();
                let inode = fs.open(&path, true, (true, false, true), 0o644);
                let inode = inode.expect("a new file");
                fs.write(inode, 0, b"contents").expect("there is space");
            });
            scenario.complete();
            let found = scenario.at_target(|fs| {
                let path = [b"/home/u/dst/", &name[..]].concat();
                let inode = fs.lookup(&path, false)?;
                Ok::<_, testkit::sftp_model::Errno>(fs.node(inode)?.kind.clone())
            });
            assert_eq!(found, Ok(file("contents")), "{}", scenario.name());
        }
    }
}

/// The journal belongs to the pattern, and not to what it matched at first.
#[test]
fn a_file_that_appears_between_two_runs_of_a_pattern_is_copied_too() {
    let mut resumed = 0;
    for direction in FROM_HOST {
        for seed in 0..10 {
            let make = || {
                let scenario = copy_of(seed, direction, "d/f*");
                place_files(&scenario, &["d/f0", "d/f1", "d/f2", "d/f3"]);
                scenario
            };
            let steps = Scenario::steps(make);
            let mut scenario = make();
            scenario.faults = vec![(steps * (2 + seed % 3) / 5, 0, SimFault::Killed)];
            if scenario.run().is_some() {
                continue;
            }
            resumed += usize::from(scenario.world.borrow().journal.borrow().exists());
            scenario.place_source("/home/u/d/f", file("the new one"), 0o644);
            let gone = scenario.at_source(|fs| fs.remove(b"/home/u/d/f2", false));
            assert_eq!(gone, Ok(()));
            scenario.complete();
            let mut found = copied(&scenario);
            // The first run may have copied it.
            found.remove("f2");
            assert_eq!(found, names(["f", "f0", "f1", "f3"]), "{}", scenario.name());
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0]);
        }
    }
    assert!(resumed > 5, "{resumed}");
}

/// Without `-r` a pattern copies the files, and names each directory that it leaves out.
#[test]
fn a_pattern_without_r_names_the_directories_that_it_leaves_out() {
    for direction in FROM_HOST {
        for seed in 0..4 {
            let mut scenario = copy_of(seed, direction, "d/*");
            place_files(&scenario, &["d/a", "d/b/c", "d/e/f", "d/g"]);
            scenario.options.recursive = false;
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(copied(&scenario), names(["a", "g"]), "{name}");
            assert_eq!(report.failed.len(), 2, "{name}");
            assert!(
                report.has_failed("d/b") && report.has_failed("d/e"),
                "{name}"
            );
        }
    }
}

/// As in glob(3), a directory that cannot be read matches nothing, and nothing is called complete if
/// it was the only one.
#[test]
fn a_directory_that_refuses_its_listing_is_not_called_copied() {
    for direction in FROM_HOST {
        for request in ["OPENDIR", "READDIR"] {
            for code in [StatusCode::PERMISSION_DENIED, StatusCode::FAILURE] {
                let mut scenario = copy_of(1, direction, "d/*");
                place_files(&scenario, &["d/a", "d/b"]);
                scenario.change_source_server(|profile| {
                    profile.restrictions.refused.insert(request, code);
                });
                let report = scenario.finish();
                let name = format!("{}, {request}: {report:#?}", scenario.name());
                assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
                assert!(report.has_failed("d/*"), "{name}");
            }
        }
    }
}
