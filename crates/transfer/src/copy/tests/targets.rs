//! Target of a copy: the place that scp would choose, or a refusal that changes nothing.

use sftp::StatusCode;
use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::scenario::{Direction, Scenario, TreeSpec, file, leftovers, symlink, tree_at};
use crate::report::CopyOutcome;

/// Entry at the target's name before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    /// The directory above does not exist either.
    NoParent,
    File,
    Directory,
    LinkToDirectory,
    LinkToFile,
}

impl Existing {
    const ALL: [Self; 6] = [
        Self::Nothing,
        Self::NoParent,
        Self::File,
        Self::Directory,
        Self::LinkToDirectory,
        Self::LinkToFile,
    ];

    fn is_directory(self) -> bool {
        matches!(self, Self::Directory | Self::LinkToDirectory)
    }

    fn is_file(self) -> bool {
        matches!(self, Self::File | Self::LinkToFile)
    }

    /// Places the entry, and returns its name.
    fn place(self, scenario: &Scenario) -> &'static str {
        let place = |path, kind, mode| scenario.place_target(path, kind, mode);
        place("/home/u/other", Kind::Dir, 0o755);
        place("/home/u/other/kept", file("kept"), 0o644);
        place("/home/u/file", file("old"), 0o644);
        match self {
            Self::Nothing => {}
            Self::NoParent => return "missing/dst",
            Self::File => place("/home/u/dst", file("old"), 0o644),
            Self::Directory => {
                place("/home/u/dst", Kind::Dir, 0o755);
                place("/home/u/dst/kept", file("kept"), 0o644);
            }
            Self::LinkToDirectory => place("/home/u/dst", symlink("other"), 0o777),
            Self::LinkToFile => place("/home/u/dst", symlink("file"), 0o777),
        }
        "dst"
    }
}

/// Sources of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    File,
    Tree,
    Files,
}

impl Sources {
    fn place(self, scenario: &mut Scenario) {
        match self {
            Self::File => scenario.place_source("/home/u/src", file("one file"), 0o644),
            Self::Tree => scenario.place_tree(TreeSpec::SMALL),
            Self::Files => {
                scenario.place_source("/home/u/a", file("the first"), 0o644);
                scenario.place_source("/home/u/b", file("the second"), 0o644);
                scenario.sources = vec!["a".to_owned(), "b".to_owned()];
            }
        }
    }

    /// Place of the copy according to scp: the directory or the path of the only source; `None` for
    /// a refusal.
    fn place_of(self, existing: Existing, slash: bool) -> Option<&'static str> {
        match (self, existing) {
            (Self::Files, Existing::Nothing) => Some("dst"),
            (Self::Files, existing) => existing.is_directory().then_some("dst"),
            (_, existing) if existing.is_directory() => Some("dst/src"),
            (_, Existing::NoParent) => None,
            (Self::File, _) if slash => None,
            (Self::Tree, existing) if existing.is_file() => None,
            _ => Some("dst"),
        }
    }
}

/// Copies `sources` onto `existing`, and checks their place. `change` prepares the servers.
#[track_caller]
fn check_place(
    (seed, direction): (u64, Direction),
    sources: Sources,
    (existing, slash): (Existing, bool),
    change: impl FnOnce(&Scenario),
) {
    let mut scenario = Scenario::new(seed, direction);
    sources.place(&mut scenario);
    scenario.target = existing.place(&scenario).to_owned();
    if slash {
        scenario.target.push('/');
    }
    change(&scenario);
    let before = scenario.at_target(|fs| tree_at(fs, "/home/u"));
    let report = scenario.finish();
    let name = format!(
        "{}, {sources:?} to {existing:?}, slash {slash}",
        scenario.name()
    );
    let found = scenario.at_target(|fs| tree_at(fs, "/home/u"));
    let Some(place) = sources.place_of(existing, slash) else {
        assert_eq!(
            report.outcome(),
            CopyOutcome::Partial,
            "{name}: {report:#?}"
        );
        assert_eq!(found, before, "{name}: a refused copy changed something");
        return;
    };
    assert_eq!(
        report.outcome(),
        CopyOutcome::Complete,
        "{name}: {report:#?}"
    );
    match sources {
        Sources::Files => {
            for (source, contents) in [("a", "the first"), ("b", "the second")] {
                let path = format!("{place}/{source}");
                let same = scenario.at_target(|fs| fs.data(&path) == Some(contents.as_bytes()));
                assert!(same, "{name}: {path}");
            }
        }
        Sources::File => {
            let same = scenario.at_target(|fs| fs.data(place) == Some(b"one file"));
            assert!(same, "{name}: {place}");
        }
        Sources::Tree => {
            let place = match existing {
                Existing::LinkToDirectory => "other/src",
                _ => place,
            };
            scenario.check_same("src", place);
        }
    }
    for (path, entry) in &before {
        let is_target = path == "dst" || path == "file" && existing == Existing::LinkToFile;
        let kept = found.get(path).is_some_and(|now| now.kind == entry.kind);
        assert!(is_target || kept, "{name}: {path} was changed");
    }
    assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
}

fn check_places(sources: Sources, seeds: std::ops::Range<u64>) {
    for direction in Direction::ALL {
        for existing in Existing::ALL {
            for slash in [false, true] {
                for seed in seeds.clone() {
                    check_place((seed, direction), sources, (existing, slash), |_| {});
                }
            }
        }
    }
}

#[test]
fn one_file_goes_where_scp_puts_it() {
    check_places(Sources::File, 0..6);
}

#[test]
fn a_tree_goes_where_scp_puts_it() {
    check_places(Sources::Tree, 0..4);
}

#[test]
fn several_sources_go_into_a_directory_or_nowhere() {
    check_places(Sources::Files, 0..4);
}

/// A symlink at the target that the command names is followed and stays a symlink.
#[test]
fn a_file_is_written_through_the_symlink_that_the_command_names() {
    for direction in Direction::ALL {
        for seed in 0..8 {
            let mut scenario = Scenario::new(seed, direction);
            Sources::File.place(&mut scenario);
            Existing::LinkToFile.place(&scenario);
            scenario.complete();
            let name = scenario.name();
            scenario.at_target(|fs| {
                assert_eq!(fs.data("file"), Some(&b"one file"[..]), "{name}");
                let found = &tree_at(fs, "dst")[""].kind;
                assert_eq!(*found, symlink("file"), "{name}");
            });
        }
    }
}

/// Upload of one file, whose target is guessed while the server looks at it: neither a refused
/// query nor a wrong guess puts it in the place of a directory.
#[test]
fn a_refused_query_about_the_target_replaces_nothing() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for code in [StatusCode::FAILURE, StatusCode::PERMISSION_DENIED] {
            for sources in [Sources::File, Sources::Tree, Sources::Files] {
                for existing in Existing::ALL {
                    for (seed, lstat) in [(0, false), (1, true), (2, false), (3, true)] {
                        let mut scenario = Scenario::new(seed, direction);
                        sources.place(&mut scenario);
                        scenario.target = existing.place(&scenario).to_owned();
                        scenario.refuse("STAT", code);
                        if lstat {
                            scenario.refuse("LSTAT", code);
                        }
                        let before = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                        let report = scenario.finish();
                        let name = format!("{}, {sources:?}, {existing:?}", scenario.name());
                        let after = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                        for (path, entry) in &before {
                            let may = matches!(entry.kind, Kind::File(_) | Kind::Symlink(_))
                                && (path == "dst" || path == "file");
                            let kept = after.get(path).is_some_and(|now| now.kind == entry.kind);
                            assert!(may || kept, "{name}: {path} was changed");
                        }
                        let copied = after.values().any(|entry| entry.kind == file("one file"));
                        if sources == Sources::File && report.outcome() == CopyOutcome::Complete {
                            assert!(copied, "{name}: complete, and nothing was copied");
                        }
                    }
                }
            }
        }
    }
}

/// The query about the target is repeated on a new connection, and never taken for an answer.
#[test]
fn a_connection_that_is_lost_while_the_target_is_looked_at_does_not_change_its_place() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for sources in [Sources::File, Sources::Tree, Sources::Files] {
            for existing in [Existing::Nothing, Existing::Directory, Existing::File] {
                for at in 0..16 {
                    let mut scenario = Scenario::new(at % 5, direction);
                    sources.place(&mut scenario);
                    scenario.target = existing.place(&scenario).to_owned();
                    let host = usize::from(direction == Direction::Relayed);
                    scenario.faults = vec![(at, host, SimFault::ConnectionLost)];
                    let before = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                    let report = scenario.finish();
                    let name = format!("{}, {sources:?} to {existing:?}, {at}", scenario.name());
                    let place = sources.place_of(existing, false);
                    let expected = match place {
                        Some(_) => CopyOutcome::Complete,
                        None => CopyOutcome::Partial,
                    };
                    if let CopyOutcome::NoConnection(_) = report.outcome() {
                        continue;
                    }
                    assert_eq!(report.outcome(), expected, "{name}: {report:#?}");
                    match (place, sources) {
                        (None, _) => {
                            let found = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                            assert_eq!(found, before, "{name}");
                        }
                        (Some(place), Sources::Tree) => scenario.check_same("src", place),
                        (Some(place), Sources::File) => {
                            let data = scenario.at_target(|fs| fs.data(place).map(<[u8]>::to_vec));
                            assert_eq!(data.as_deref(), Some(&b"one file"[..]), "{name}");
                        }
                        (Some(_), Sources::Files) => {}
                    }
                }
            }
        }
    }
}

/// An interrupted `cp -r src dst` that has made `dst` goes on there: without its journal it would
/// copy into `dst/src`.
#[test]
fn an_interrupted_copy_that_made_its_target_does_not_copy_into_it() {
    let mut resumed = 0;
    for direction in Direction::ALL {
        for seed in 0..10 {
            for fault in [SimFault::Killed, SimFault::Interrupted] {
                let make = || {
                    let mut scenario = Scenario::new(seed, direction);
                    scenario.place_tree(TreeSpec::MIXED);
                    scenario
                };
                let steps = Scenario::steps(make);
                let mut scenario = make();
                scenario.faults = vec![(steps * (1 + seed % 4) / 5, 0, fault)];
                scenario.run();
                let is_made = scenario.at_target(|fs| fs.at("dst").is_some());
                let has_journal = scenario.world.borrow().journal.borrow().exists();
                scenario.complete();
                if has_journal {
                    scenario.check_same("src", "dst");
                    resumed += usize::from(is_made);
                }
            }
        }
    }
    assert!(resumed > 20, "{resumed}");
}

/// An interrupted copy into a directory that was removed since is copied like a new one.
#[test]
fn a_target_directory_that_was_removed_after_an_interruption_is_not_expected() {
    let mut resumed = 0;
    for direction in Direction::ALL {
        for seed in 0..10 {
            let make = || {
                let mut scenario = Scenario::new(seed, direction);
                scenario.place_tree(TreeSpec::MIXED);
                scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
                scenario
            };
            let steps = Scenario::steps(make);
            let mut scenario = make();
            scenario.faults = vec![(steps * (1 + seed % 4) / 5, 0, SimFault::Killed)];
            if scenario.run().is_some() || !scenario.world.borrow().journal.borrow().exists() {
                continue;
            }
            scenario.at_target(|fs| super::scenario::remove_tree(fs, "dst"));
            let report = scenario.complete();
            resumed += 1;
            scenario.check_same("src", "dst");
            assert_eq!(report.summary().failed, 0);
        }
    }
    assert!(resumed > 10, "{resumed}");
}

/// The user puts a file in the place of the target directory between two runs: it is not lost.
#[test]
fn a_file_in_the_place_of_the_target_of_an_interrupted_tree_is_kept() {
    for direction in Direction::ALL {
        for (seed, into) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
            let make = || {
                let mut scenario = Scenario::new(seed, direction);
                scenario.place_tree(TreeSpec::MIXED);
                if into {
                    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
                }
                scenario
            };
            let steps = Scenario::steps(make);
            let mut scenario = make();
            scenario.faults = vec![(steps / 2, 0, SimFault::Killed)];
            scenario.run();
            scenario.at_target(|fs| {
                if fs.at("dst").is_some() {
                    super::scenario::remove_tree(fs, "dst");
                }
                fs.place("/home/u/dst", file("the user's own"), 0o644);
            });
            let report = scenario.finish();
            let name = scenario.name();
            assert_ne!(
                report.outcome(),
                CopyOutcome::Complete,
                "{name}: {report:#?}"
            );
            assert!(!report.failed.is_empty(), "{name}: nothing was said");
            let kept = scenario.at_target(|fs| fs.data("dst") == Some(b"the user's own"));
            assert!(kept, "{name}: the user's file was replaced");
        }
    }
}

/// A directory that the account may not write into: each file is named, and what it holds stays.
#[test]
fn a_target_directory_without_write_permission_is_left_as_it_is() {
    for direction in Direction::ALL {
        for sources in [Sources::File, Sources::Tree, Sources::Files] {
            for seed in 0..4 {
                let mut scenario = Scenario::new(seed, direction);
                sources.place(&mut scenario);
                Existing::Directory.place(&scenario);
                scenario.at_target(|fs| fs.at_mut("dst").expect("placed").mode = 0o555);
                let before = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                let report = scenario.finish();
                let name = format!("{}, {sources:?}", scenario.name());
                assert_eq!(
                    report.outcome(),
                    CopyOutcome::Partial,
                    "{name}: {report:#?}"
                );
                assert!(!report.failed.is_empty(), "{name}");
                let after = scenario.at_target(|fs| tree_at(fs, "/home/u"));
                assert_eq!(after, before, "{name}");
            }
        }
    }
}
