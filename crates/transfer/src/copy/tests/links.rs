//! Symlinks and hard links: kept, followed, left out, and never a way out of the target.

use std::collections::{BTreeMap, BTreeSet};

use sftp::StatusCode;
use testkit::sftp_model::{Kind, Rng};

use super::faults::SimFault;
use super::scenario::{
    Direction, RunReport, Scenario, TreeSpec, file, leftovers, sampled, symlink, tree_at,
};
use crate::report::CopyOutcome;

/// Tree with symlinks of all kinds in it.
fn with_links(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.place_tree(TreeSpec::SMALL);
    let mut rng = Rng::new(seed);
    let targets = [
        "f0",
        "../src",
        "d0",
        "./d0",
        "nowhere",
        "/home/u/outside",
        "../../u/outside",
        "..",
        "d0/../f0",
        "/",
        "link0",
        "a b\\*",
        "../outside/secret",
    ];
    scenario.place_source("/home/u/outside", Kind::Dir, 0o755);
    scenario.place_source(
        "/home/u/outside/secret",
        file("not below the source"),
        0o644,
    );
    for nth in 0..8 {
        let to = targets[rng.below(targets.len() as u64) as usize];
        let dir = ["", "d0/", "d1/"][rng.below(3) as usize];
        let mut path = format!("/home/u/src/{dir}link{nth}");
        if scenario.at_source(|fs| fs.at(&format!("/home/u/src/{dir}")).is_none()) {
            path = format!("/home/u/src/link{nth}");
        }
        scenario.place_source(&path, symlink(to), 0o777);
    }
    (scenario.options.preserve, scenario.options.archive) = (true, true);
    scenario
}

/// `-a` copies symlinks as they are, also dangling ones, and what they lead to is not touched.
#[test]
fn an_archive_copy_keeps_symlinks_as_they_are() {
    for direction in Direction::ALL {
        for seed in 0..20 {
            let mut scenario = with_links(seed, direction);
            scenario.place_target("/home/u/outside2", Kind::Dir, 0o755);
            let report = scenario.complete();
            scenario.check_same("src", "dst");
            assert_eq!(report.summary().symlinks, 8, "{}", scenario.name());
        }
    }
}

/// Symlinks replace the files and symlinks that stand in their place, and no directory.
#[test]
fn a_symlink_replaces_a_file_and_no_directory() {
    for direction in Direction::ALL {
        for seed in 0..12 {
            let mut scenario = with_links(seed, direction);
            scenario.sources = vec!["src/.".to_owned()];
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.place_target("/home/u/elsewhere", file("elsewhere"), 0o644);
            let links = scenario.at_source(|fs| tree_at(fs, "src"));
            let links = links
                .into_iter()
                .filter(|(_, entry)| matches!(entry.kind, Kind::Symlink(_)));
            let top: Vec<String> = links
                .map(|(path, _)| path)
                .filter(|path| !path.contains('/'))
                .collect();
            let mut in_the_way = BTreeSet::new();
            for (nth, path) in (0..).zip(&top) {
                let at = format!("/home/u/dst/{path}");
                match (nth + seed) % 4 {
                    0 => scenario.place_target(&at, file("old"), 0o644),
                    1 => scenario.place_target(&at, symlink("/home/u/elsewhere"), 0o777),
                    2 => {
                        scenario.place_target(&at, Kind::Dir, 0o755);
                        scenario.place_target(&format!("{at}/kept"), file("kept"), 0o644);
                        in_the_way.insert(path.clone());
                    }
                    _ => {}
                }
            }
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(report.failed.len(), in_the_way.len(), "{name}: {report:#?}");
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            for (path, entry) in &source {
                let wanted = match in_the_way.contains(path) {
                    true => &Kind::Dir,
                    false => &entry.kind,
                };
                assert!(found[path].kind == *wanted, "{name}: {path}: {report:#?}");
            }
            for path in &in_the_way {
                assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
                assert!(
                    found.contains_key(&format!("{path}/kept")),
                    "{name}: {path}"
                );
            }
            let kept = scenario.at_target(|fs| fs.data("elsewhere") == Some(b"elsewhere"));
            assert!(kept, "{name}: a file was written through a symlink");
        }
    }
}

/// Directories that a path from below `link`'s directory walks through; `None` if it leaves the
/// tree.
fn stays_inside(link: &str, to: &str) -> bool {
    if to.is_empty() || to.starts_with('/') {
        return false;
    }
    let mut at: Vec<&str> = link.split('/').collect();
    at.pop();
    let mut has_named = false;
    for part in to.split('/') {
        match part {
            "" | "." => {}
            // What was named may itself be a symlink.
            ".." if has_named || at.pop().is_none() => return false,
            ".." => {}
            name => {
                has_named = true;
                at.push(name);
            }
        }
    }
    true
}

/// --safe-links leaves out exactly the symlinks that lead out of the tree, and says how many.
#[test]
fn safe_links_leaves_out_the_symlinks_that_lead_out_and_keeps_the_others() {
    let (mut out, mut kept) = (0, 0);
    for direction in Direction::ALL {
        for seed in 0..20 {
            let mut scenario = with_links(seed, direction);
            scenario.sources = vec!["src/.".to_owned()];
            scenario.options.safe_links = true;
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            let report = scenario.complete();
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let mut left_out = 0;
            for (path, entry) in scenario.at_source(|fs| tree_at(fs, "src")) {
                let Kind::Symlink(to) = &entry.kind else {
                    continue;
                };
                let to = String::from_utf8_lossy(to);
                let is_kept = found
                    .get(&path)
                    .is_some_and(|found| found.kind == entry.kind);
                let name = scenario.name();
                assert_eq!(is_kept, stays_inside(&path, &to), "{name}: {path} -> {to}");
                assert!(is_kept || !found.contains_key(&path), "{name}: {path}");
                left_out += usize::from(!is_kept);
                kept += usize::from(is_kept);
            }
            out += left_out;
            assert_eq!(report.warns("--safe-links"), left_out > 0, "{report:#?}");
        }
    }
    assert!(out > 50 && kept > 50, "{out} {kept}");
}

/// Without `-a` symlinks are followed, as scp does: their files are copied, and each that leads
/// nowhere is named.
#[test]
fn followed_symlinks_are_copied_as_files_and_dangling_ones_are_named() {
    for direction in Direction::ALL {
        for seed in 0..10 {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_tree(TreeSpec::SMALL);
            scenario.place_source("/home/u/outside", Kind::Dir, 0o755);
            scenario.place_source("/home/u/outside/x", file("outside"), 0o644);
            scenario.place_source("/home/u/src/to_file", symlink("/home/u/outside/x"), 0o777);
            scenario.place_source("/home/u/src/to_dir", symlink("../outside"), 0o777);
            scenario.place_source("/home/u/src/dangling", symlink("nowhere"), 0o777);
            scenario.place_source("/home/u/src/loop", symlink("loop"), 0o777);
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(
                report.outcome(),
                CopyOutcome::Partial,
                "{name}: {report:#?}"
            );
            assert_eq!(report.failed.len(), 2, "{name}: {report:#?}");
            assert!(
                report.has_failed("dangling") && report.has_failed("loop"),
                "{report:#?}"
            );
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            for path in ["to_file", "to_dir/x"] {
                assert!(found[path].kind == file("outside"), "{name}: {path}");
            }
            assert!(found["to_dir"].kind == Kind::Dir, "{name}");
            let links = found
                .values()
                .filter(|entry| matches!(entry.kind, Kind::Symlink(_)));
            assert_eq!(links.count(), 0, "{name}");
        }
    }
}

/// Bug: a second `cp -a` to a server that renames nothing failed at each symlink, though the first one
/// had made it. Another symlink there cannot be replaced, and the error says what to do.
#[test]
fn an_equal_symlink_on_a_server_that_renames_nothing_was_an_error() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for seed in 0..4 {
            let mut scenario = with_links(seed, direction);
            scenario.sources = vec!["src/.".to_owned()];
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.complete();
            for request in ["RENAME", "posix-rename@openssh.com", "put-file@longhaul"] {
                scenario.refuse(request, StatusCode::PERMISSION_DENIED);
            }
            let failed_links = |report: &RunReport| {
                let failed = report.failed.iter().map(|(path, _)| path.clone());
                failed
                    .filter(|path| path.contains("link"))
                    .collect::<Vec<_>>()
            };
            let name = scenario.name();
            let report = scenario.finish();
            assert_eq!(failed_links(&report), [""; 0], "{name}: {report:#?}");
            assert_eq!(report.summary().symlinks, 8, "{name}: {report:#?}");
            let links = scenario.at_target(|fs| tree_at(fs, "dst"));
            let mut links = links.into_iter();
            let changed = links.find(|(_, entry)| matches!(entry.kind, Kind::Symlink(_)));
            let (changed, _) = changed.expect("it has symlinks");
            let at = format!("/home/u/dst/{changed}");
            scenario
                .at_target(|fs| fs.remove(at.as_bytes(), false))
                .expect("it is there");
            scenario.place_target(&at, symlink("changed"), 0o777);
            let report = scenario.finish();
            assert_eq!(failed_links(&report).len(), 1, "{name}: {report:#?}");
            let reason = report.reason(&changed);
            assert!(
                reason.contains("remove the entry there"),
                "{name}: {reason}"
            );
        }
    }
}

/// Symlinks that lead to a directory above end the walk there: a copy that follows them ends.
#[test]
fn a_loop_of_followed_symlinks_ends() {
    for direction in [Direction::Download, Direction::Relayed] {
        for (seed, to) in (0..).zip(["..", ".", "../../src", "/home/u/src", "/home/u/src/d0"]) {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_tree(TreeSpec::SMALL);
            scenario.place_source("/home/u/src/d0/up", symlink(to), 0o777);
            if scenario.at_source(|fs| fs.at("/home/u/src/d0").is_none()) {
                continue;
            }
            let report = scenario.finish();
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let all = scenario.at_source(|fs| tree_at(fs, "src")).len();
            let name = scenario.name();
            assert!(
                found.len() <= 3 * all,
                "{name}: {} entries: {report:#?}",
                found.len()
            );
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            for (path, entry) in source.iter().filter(|(path, _)| *path != "d0/up") {
                let same = found.get(path).is_some_and(|of| of.kind == entry.kind);
                assert!(same, "{name}: {path}: {report:#?}");
            }
        }
    }
}

/// Symlinks below the target are never followed, whoever has made them: a file elsewhere stays as
/// it is, whatever the copy says.
#[test]
fn nothing_is_written_through_a_symlink_below_the_target() {
    for direction in Direction::ALL {
        for (seed, archive) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_tree(TreeSpec {
                files: 16,
                ..TreeSpec::SMALL
            });
            scenario.sources = vec!["src/.".to_owned()];
            (scenario.options.preserve, scenario.options.archive) = (archive, archive);
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.place_target("/home/u/outside", Kind::Dir, 0o755);
            scenario.place_target("/home/u/outside/f0", file("outside"), 0o644);
            let top = scenario.at_source(|fs| tree_at(fs, "src"));
            let top = top
                .iter()
                .filter(|(path, _)| !path.is_empty() && !path.contains('/'));
            let mut blocked = Vec::new();
            for (path, entry) in top.step_by(2) {
                let at = format!("/home/u/dst/{path}");
                let to = match entry.kind {
                    Kind::Dir => "/home/u/outside",
                    _ => "/home/u/outside/f0",
                };
                scenario.place_target(&at, symlink(to), 0o777);
                if entry.kind == Kind::Dir {
                    blocked.push(path.clone());
                }
            }
            let before = scenario.at_target(|fs| tree_at(fs, "outside"));
            let report = scenario.finish();
            let name = scenario.name();
            let after = scenario.at_target(|fs| tree_at(fs, "outside"));
            assert_eq!(after, before, "{name}: {report:#?}");
            for path in &blocked {
                assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
            }
            assert_eq!(report.failed.len(), blocked.len(), "{name}: {report:#?}");
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let is_blocked = |path: &str| {
                blocked
                    .iter()
                    .any(|dir| path == dir || path.starts_with(&format!("{dir}/")))
            };
            for (path, entry) in source.iter().filter(|(path, _)| !is_blocked(path)) {
                let same = found.get(path).is_some_and(|of| of.kind == entry.kind);
                assert!(same, "{name}: {path}: {report:#?}");
            }
        }
    }
}

/// --keep-dirlinks fills the directory behind a symlink, and keeps the symlink.
#[test]
fn keep_dirlinks_fills_the_directory_behind_a_symlink() {
    for direction in Direction::ALL {
        for seed in 0..8 {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_tree(TreeSpec::SMALL);
            scenario.sources = vec!["src/.".to_owned()];
            scenario.options.keep_dirlinks = true;
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.place_target("/home/u/real", Kind::Dir, 0o755);
            scenario.place_target("/home/u/dst/d0", symlink("/home/u/real"), 0o777);
            let report = scenario.finish();
            let name = scenario.name();
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            let is_top = source.contains_key("d0");
            if !is_top || report.outcome() != CopyOutcome::Complete {
                assert!(!is_top, "{name}: {report:#?}");
                continue;
            }
            let kept = scenario.at_target(|fs| tree_at(fs, "dst"))["d0"]
                .kind
                .clone();
            assert!(kept == symlink("/home/u/real"), "{name}");
            let real = scenario.at_target(|fs| tree_at(fs, "real"));
            for (path, entry) in source {
                if let Some(below) = path.strip_prefix("d0/") {
                    let same = real.get(below).is_some_and(|of| of.kind == entry.kind);
                    assert!(same, "{name}: {path}: {report:#?}");
                }
            }
        }
    }
}

/// Faults while symlinks are read and made: each is right in the end.
#[test]
fn symlinks_survive_lost_connections_and_kills() {
    for direction in Direction::ALL {
        for fault in [
            SimFault::ConnectionLost,
            SimFault::HostLost,
            SimFault::Killed,
        ] {
            for seed in 0..3 {
                let make = || {
                    let mut scenario = with_links(seed, direction);
                    scenario.sources = vec!["src/.".to_owned()];
                    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
                    scenario
                };
                let steps = Scenario::steps(make);
                for at in sampled(0, steps, 6) {
                    let mut scenario = make();
                    let host = usize::from(direction == Direction::Relayed);
                    scenario.faults = vec![(at, host, fault)];
                    let done = scenario.run().map(|report| report.outcome());
                    if done != Some(CopyOutcome::Complete) {
                        scenario.complete();
                    }
                    scenario.check_same("src", "dst");
                }
            }
        }
    }
}

/// Groups of files of the target that are one, by the paths of their names.
pub(super) fn linked(scenario: &Scenario, at_target: bool) -> BTreeSet<BTreeSet<String>> {
    let tree = match at_target {
        true => scenario.at_target(|fs| tree_at(fs, "dst")),
        false => scenario.at_source(|fs| tree_at(fs, "src")),
    };
    let mut groups: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for (path, entry) in tree {
        groups.entry(entry.inode).or_default().insert(path);
    }
    groups
        .into_values()
        .filter(|names| names.len() > 1)
        .collect()
}

/// Upload of a tree with files of several names. Only this machine tells which names are one file.
pub(super) fn with_hard_links(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, Direction::Upload);
    scenario.place_tree(TreeSpec::MIXED);
    let mut rng = Rng::new(seed);
    scenario.at_source(|fs| {
        let tree = tree_at(fs, "src");
        let dirs: Vec<&String> = tree
            .iter()
            .filter(|(_, e)| e.kind == Kind::Dir)
            .map(|(path, _)| path)
            .collect();
        let files = tree.iter().filter(|(_, entry)| entry.kind != Kind::Dir);
        for (nth, (path, _)) in files.enumerate() {
            for more in 0..rng.below(4) {
                let dir = dirs[rng.below(dirs.len() as u64) as usize];
                let (from, to) = (
                    format!("/home/u/src/{path}"),
                    format!("/home/u/src/{dir}/h{nth}_{more}"),
                );
                fs.hard_link(from.as_bytes(), to.as_bytes())
                    .expect("a new name");
            }
        }
    });
    scenario.options.hard_links = true;
    scenario.sources = vec!["src/.".to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario
}

fn has_no_hard_links(scenario: &Scenario) -> bool {
    !scenario.target_has("hardlink@openssh.com")
}

#[test]
fn names_of_one_file_are_names_of_one_file_at_the_target() {
    let mut groups = 0;
    for seed in 0..24 {
        let mut scenario = with_hard_links(seed);
        let stock = has_no_hard_links(&scenario);
        let report = scenario.complete();
        scenario.check_same("src", "dst");
        let (source, target) = (linked(&scenario, false), linked(&scenario, true));
        match stock {
            true => {
                assert_eq!(target, BTreeSet::new());
                let name = scenario.name();
                assert!(
                    report.warns("hard links") || source.is_empty(),
                    "{name}: {report:#?}"
                );
            }
            false => assert_eq!(target, source, "{}: {report:#?}", scenario.name()),
        }
        groups += target.len();
    }
    assert!(groups > 30, "{groups}");
}

/// Without -H each name is a file of its own.
#[test]
fn without_hard_links_each_name_is_a_file_of_its_own() {
    for seed in 0..8 {
        let mut scenario = with_hard_links(seed);
        scenario.options.hard_links = false;
        scenario.complete();
        scenario.check_same("src", "dst");
        assert_eq!(linked(&scenario, true), BTreeSet::new());
    }
}

/// A refused LINK becomes a copy of its own, with all contents, and is told.
#[test]
fn a_refused_hard_link_is_copied_and_told() {
    let mut told = 0;
    for seed in 0..16 {
        let mut scenario = with_hard_links(seed);
        scenario.refuse("hardlink@openssh.com", StatusCode::PERMISSION_DENIED);
        let report = scenario.complete();
        scenario.check_same("src", "dst");
        assert_eq!(linked(&scenario, true), BTreeSet::new());
        told += usize::from(report.warns("hard links"));
    }
    assert!(told > 8, "{told}");
}

/// The first name of a file cannot be copied: the next one is, and the others become its links.
#[test]
fn a_failed_first_name_does_not_lose_the_other_names() {
    let mut failed = 0;
    for seed in 0..16 {
        let mut scenario = with_hard_links(seed);
        let groups = linked(&scenario, false);
        let blocked: BTreeSet<String> = groups
            .iter()
            .filter_map(|names| names.iter().find(|name| !name.contains('/')).cloned())
            .collect();
        for name in &blocked {
            scenario.place_target(&format!("/home/u/dst/{name}"), Kind::Dir, 0o755);
            scenario.place_target(&format!("/home/u/dst/{name}/kept"), file("kept"), 0o644);
        }
        let stock = has_no_hard_links(&scenario);
        let report = scenario.finish();
        let name = scenario.name();
        assert_eq!(report.failed.len(), blocked.len(), "{name}: {report:#?}");
        failed += blocked.len();
        let source = scenario.at_source(|fs| tree_at(fs, "src"));
        let found = scenario.at_target(|fs| tree_at(fs, "dst"));
        for (path, entry) in source.iter().filter(|(path, _)| !blocked.contains(*path)) {
            let same = found.get(path).is_some_and(|of| of.kind == entry.kind);
            assert!(same, "{name}: {path}: {report:#?}");
        }
        let without = |names: &BTreeSet<String>| -> BTreeSet<String> {
            names.difference(&blocked).cloned().collect()
        };
        let expected: BTreeSet<BTreeSet<String>> = groups
            .iter()
            .map(without)
            .filter(|names| names.len() > 1)
            .collect();
        let wanted = if stock { BTreeSet::new() } else { expected };
        assert_eq!(linked(&scenario, true), wanted, "{name}: {report:#?}");
    }
    assert!(failed > 5, "{failed}");
}

#[track_caller]
fn check_linked_contents(scenario: &Scenario, report: &RunReport) {
    assert_eq!(report.outcome(), CopyOutcome::Complete, "{report:#?}");
    scenario.check_same("src", "dst");
    // A link of the target that is none of the source would change both names at the next copy.
    let source = linked(scenario, false);
    for names in linked(scenario, true) {
        let is_part = source.iter().any(|of| names.is_subset(of));
        assert!(is_part, "{}: {names:?} are one file", scenario.name());
    }
    assert_eq!(
        scenario.at_target(|fs| leftovers(fs)),
        [""; 0],
        "{}",
        scenario.name()
    );
}

/// Faults between the first name and its links: contents are right, and no two files become one.
#[test]
fn hard_links_survive_lost_connections_kills_and_refusals() {
    let refused = SimFault::Refused("hardlink@openssh.com", StatusCode::FAILURE);
    for fault in [
        SimFault::ConnectionLost,
        SimFault::HostLost,
        SimFault::Killed,
        refused,
    ] {
        for seed in 0..5 {
            let steps = Scenario::steps(|| with_hard_links(seed));
            for at in sampled(0, steps, 8) {
                let mut scenario = with_hard_links(seed);
                scenario.faults = vec![(at, 0, fault)];
                let report = scenario.run();
                let report = match report {
                    Some(report) if report.outcome() == CopyOutcome::Complete => report,
                    _ => scenario.complete(),
                };
                check_linked_contents(&scenario, &report);
            }
        }
    }
}

/// A target whose names were linked to one file, and are no more in the source: no file gets the
/// contents of the other.
#[test]
fn files_that_are_no_longer_one_are_separated_at_the_target() {
    for direction in Direction::ALL {
        for (seed, hard_links) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut scenario = Scenario::new(seed, direction);
            scenario.options.hard_links = hard_links && direction == Direction::Upload;
            scenario.place_source("/home/u/src", Kind::Dir, 0o755);
            scenario.place_source("/home/u/src/a", file("the new a"), 0o644);
            scenario.place_source("/home/u/src/b", file("the new b, longer"), 0o644);
            scenario.sources = vec!["src/.".to_owned()];
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.place_target("/home/u/dst/a", file("old"), 0o644);
            scenario.at_target(|fs| {
                for name in ["/home/u/dst/b", "/home/u/backup"] {
                    fs.hard_link(b"/home/u/dst/a", name.as_bytes())
                        .expect("a new name");
                }
            });
            scenario.complete();
            scenario.check_same("src", "dst");
            let kept = scenario.at_target(|fs| fs.data("backup") == Some(b"old"));
            assert!(kept, "{}: another name was written", scenario.name());
        }
    }
}
