//! Copies whose two ends are one machine under several names, as with `localhost:`: nothing is copied
//! into itself or over itself.

use std::collections::BTreeMap;

use testkit::sftp_model::{Errno, Kind};

use super::scenario::{Direction, Scenario, TreeEntry, TreeSpec, file, symlink, tree_at};
use crate::report::CopyOutcome;

/// Copy of one machine to itself, with a tree at `src` that has a directory `inside`, and a symlink
/// `link` to it.
fn at_home(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.put_on_one_machine();
    scenario.place_tree(TreeSpec::MIXED);
    scenario.place_source("/home/u/src/inside", Kind::Dir, 0o755);
    scenario.place_source("/home/u/src/inside/f", file("inside"), 0o644);
    scenario.place_source("/home/u/link", symlink("src"), 0o777);
    scenario
}

fn home(scenario: &Scenario) -> BTreeMap<String, TreeEntry> {
    let mut tree = scenario.at_target(|fs| tree_at(fs, "/home/u"));
    tree.retain(|path, _| !path.starts_with("state"));
    tree
}

/// Runs a copy that must be refused, and checks that it changes nothing.
#[track_caller]
fn check_refused(scenario: &mut Scenario, why: &[&str]) {
    let before = home(scenario);
    let report = scenario.finish();
    let name = format!(
        "{}, {:?} to {}: {report:#?}",
        scenario.name(),
        scenario.sources,
        scenario.target
    );
    let after = home(scenario);
    assert!(before.keys().eq(after.keys()), "{name}: {:?}", after.keys());
    for (path, entry) in &before {
        assert!(after[path] == *entry, "{name}: {path} was changed");
    }
    assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
    let (_, reason) = &report.failed[0];
    assert!(
        why.iter().any(|why| reason.contains(why)),
        "{name}: {reason}"
    );
}

/// `cp -r src localhost:src/inside` would find its own output, and copy it until names are too long.
#[test]
fn a_tree_is_not_copied_into_itself_under_another_host_name() {
    for direction in Direction::ALL {
        for (seed, (source, target)) in (0..).zip([
            ("src", "src/inside"),
            ("src", "src/new"),
            ("src", "/home/u/src/inside"),
            ("/home/u/src", "src"),
            ("src/", "link/inside"),
            ("link", "src/inside"),
            ("src/.", "src/inside"),
            ("src/inside/..", "src/new"),
            (".", "src"),
        ]) {
            let mut scenario = at_home(seed, direction);
            scenario.sources = vec![source.to_owned()];
            scenario.target = target.to_owned();
            check_refused(&mut scenario, &["into itself"]);
        }
    }
}

#[test]
fn a_directory_is_not_copied_onto_itself_under_another_host_name() {
    for direction in Direction::ALL {
        for (seed, (source, target)) in (0..).zip([
            ("src", "."),
            ("src", "/home/u"),
            ("src/.", "src"),
            ("link/.", "src"),
            ("/home/u/src/.", "link"),
        ]) {
            let mut scenario = at_home(seed, direction);
            scenario.sources = vec![source.to_owned()];
            scenario.target = target.to_owned();
            check_refused(&mut scenario, &["the same", "into itself"]);
        }
    }
}

/// Checks that a copy in place is refused because source and target are one file.
#[track_caller]
fn check_refused_in_place(scenario: &mut Scenario, source: &str, target: &str) {
    scenario.options.inplace = true;
    scenario.sources = vec![source.to_owned()];
    scenario.target = target.to_owned();
    check_refused(scenario, &["the same file"]);
}

/// `--inplace` would cut the file before it is read.
#[test]
fn an_in_place_copy_of_a_file_onto_itself_does_not_cut_it() {
    for direction in Direction::ALL {
        for (seed, (source, target)) in (0..).zip([
            ("f", "f"),
            ("f", "/home/u/f"),
            ("f", "."),
            ("/home/u/f", "same"),
            ("same", "f"),
            ("f", "there"),
        ]) {
            let mut scenario = at_home(seed, direction);
            let contents = "contents ".repeat(30_000);
            scenario.place_source("/home/u/f", file(&contents), 0o644);
            scenario.place_source("/home/u/same", symlink("f"), 0o777);
            scenario.place_source("/home/u/there", symlink("."), 0o777);
            check_refused_in_place(&mut scenario, source, target);
        }
    }
}

/// Two names of one file, which no path shows.
#[test]
fn an_in_place_copy_onto_another_name_of_the_file_does_not_cut_it() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let mut scenario = at_home(seed, direction);
            let contents = "contents ".repeat(300_000);
            scenario.place_source("/home/u/f", file(&contents), 0o644);
            let linked: Result<(), Errno> =
                scenario.at_source(|fs| fs.hard_link(b"/home/u/f", b"/home/u/g"));
            linked.expect("a new name");
            check_refused_in_place(&mut scenario, "f", "g");
        }
    }
}

/// Without `--inplace` a copy of the file takes its place, and at no time is there less: a server that
/// replaces no file has the copy under another name while it removes the old file.
#[test]
fn a_file_that_is_replaced_by_its_own_copy_is_whole_at_each_step() {
    for direction in Direction::ALL {
        for seed in 0..8 {
            let mut scenario = at_home(seed, direction);
            let contents = "contents ".repeat(30_000);
            scenario.place_source("/home/u/f", file(&contents), 0o640);
            scenario.sources = vec!["f".to_owned()];
            scenario.target = "f".to_owned();
            let report = scenario.run_with(|scenario, step, _| {
                let mut found = home(scenario).into_values();
                let is_whole = found.any(|entry| entry.kind == file(&contents));
                assert!(is_whole, "{}: step {step}", scenario.name());
            });
            let report = report.expect("nothing kills it");
            // Between two hosts, the paths tell that nothing is to be done.
            let is_refused = report.has_failed("f") && direction == Direction::Relayed;
            let is_complete = report.outcome() == CopyOutcome::Complete;
            assert!(is_complete || is_refused, "{report:#?}");
            let found = home(&scenario);
            assert!(found["f"].kind == file(&contents), "{}", scenario.name());
            assert_eq!(found["f"].mode, 0o640, "{}", scenario.name());
        }
    }
}

/// Other machines have equal paths: only a machine that sees what was made at the other end is the
/// same one.
#[test]
fn equal_paths_of_two_machines_are_copied() {
    for direction in Direction::ALL {
        for inplace in [false, true] {
            for (seed, (source, target)) in (0..).zip([
                ("src", "."),
                ("src/.", "/home/u/src"),
                ("/home/u/src", "/home/u"),
                ("/home/u/src", "/home/u/src/inside"),
            ]) {
                let mut scenario = Scenario::new(seed, direction);
                scenario.place_tree(TreeSpec::MIXED);
                scenario.place_target("/home/u/src", Kind::Dir, 0o755);
                scenario.place_target("/home/u/src/inside", Kind::Dir, 0o755);
                scenario.options.inplace = inplace;
                scenario.sources = vec![source.to_owned()];
                scenario.target = target.to_owned();
                scenario.complete();
                let at = match target {
                    "/home/u/src/inside" => "src/inside/src",
                    _ => "src",
                };
                scenario.check_contains("src", at);
                let probes = scenario.at_target(|fs| fs.names());
                let is_probe = |name: &&String| name.contains("same-host");
                assert_eq!(probes.iter().find(is_probe), None, "{}", scenario.name());
            }
        }
    }
}

/// `src2` begins as `src` does, and lies beside it.
#[test]
fn a_target_beside_the_source_is_not_taken_for_one_inside() {
    for direction in Direction::ALL {
        for (seed, (source, target, at)) in (0..).zip([
            ("src", "src2", "src2/src"),
            ("/home/u/src", "/home/u/sr", "sr"),
            ("src/.", "src2", "src2"),
        ]) {
            let mut scenario = at_home(seed, direction);
            scenario.place_target("/home/u/src2", Kind::Dir, 0o755);
            scenario.sources = vec![source.to_owned()];
            scenario.target = target.to_owned();
            scenario.complete();
            scenario.check_same("src", at);
        }
    }
}

/// Bug: where one of several sources held the target, a longhaul at the far end listed the others in
/// one request, whose answer was dropped: their directories were made, and stayed empty.
#[test]
fn a_source_that_holds_the_target_does_not_keep_the_others_from_being_copied() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let mut scenario = at_home(seed, direction);
            scenario.place_source("/home/u/other", Kind::Dir, 0o755);
            scenario.place_source("/home/u/other/f", file("other"), 0o644);
            scenario.place_source("/home/u/single", file("single"), 0o644);
            scenario.sources = ["other", "src", "single"].map(str::to_owned).to_vec();
            scenario.target = "src/inside".to_owned();
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(report.failed.len(), 1, "{name}: {report:#?}");
            assert!(report.reason("src").contains("into itself"), "{report:#?}");
            scenario.check_same("other", "src/inside/other");
            scenario.check_same("single", "src/inside/single");
            let has_copy = scenario.at_target(|fs| fs.at("src/inside/src").is_some());
            assert!(!has_copy, "{name}");
        }
    }
}
