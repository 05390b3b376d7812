//! Servers that refuse a kind of request, always or once: a copy ends, and is either complete or
//! names what is missing.

use std::collections::BTreeMap;

use sftp::StatusCode;
use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::scenario::{
    Direction, Scenario, TreeEntry, TreeSpec, file, leftovers, sampled, symlink, tree_at,
};
use crate::report::CopyOutcome;

/// Requests that change something at the target, or ask about it.
const AT_TARGET: [&str; 20] = [
    "OPEN",
    "WRITE",
    "CLOSE",
    "STAT",
    "LSTAT",
    "FSTAT",
    "SETSTAT",
    "FSETSTAT",
    "MKDIR",
    "RMDIR",
    "REMOVE",
    "RENAME",
    "REALPATH",
    "SYMLINK",
    "OPENDIR",
    "posix-rename@openssh.com",
    "fsync@openssh.com",
    "lsetstat@openssh.com",
    "put-file@longhaul",
    "limits@openssh.com",
];

/// Requests that read the source.
const AT_SOURCE: [&str; 12] = [
    "OPEN",
    "READ",
    "CLOSE",
    "STAT",
    "LSTAT",
    "FSTAT",
    "OPENDIR",
    "READDIR",
    "READLINK",
    "REALPATH",
    "get-file@longhaul",
    "list-tree@longhaul",
];

const CODES: [StatusCode; 3] = [
    StatusCode::FAILURE,
    StatusCode::PERMISSION_DENIED,
    StatusCode::OP_UNSUPPORTED,
];

/// Tree with symlinks, onto one that has a third of its files.
fn scenario(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.place_tree(TreeSpec::MIXED);
    scenario.place_source("/home/u/src/base", file("a small file"), 0o644);
    scenario.place_source("/home/u/src/link", symlink("base"), 0o777);
    scenario.sources = vec!["src/.".to_owned()];
    let has_metadata = seed % 2 == 1;
    (scenario.options.preserve, scenario.options.archive) = (has_metadata, has_metadata);
    scenario.options.fsync = seed % 5 == 2;
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    let tree = scenario.at_source(|fs| tree_at(fs, "src"));
    for (nth, (path, entry)) in tree.iter().enumerate() {
        if nth % 3 == 0 && !path.contains('/') && matches!(entry.kind, Kind::File(_)) {
            let old = file(format!("old {path}"));
            scenario.place_target(&format!("/home/u/dst/{path}"), old, 0o644);
        }
    }
    scenario
}

/// Tree to compare with: without -a, symlinks are files.
#[track_caller]
fn check(
    scenario: &Scenario,
    report: &super::scenario::RunReport,
    before: &BTreeMap<String, TreeEntry>,
) {
    if !scenario.options.archive {
        scenario.at_source(|fs| {
            let kind = fs.at("/home/u/src/link").expect("placed").kind.clone();
            fs.remove(b"/home/u/src/link", false).expect("placed");
            fs.place("/home/u/src/link", kind, 0o644);
        });
    }
    scenario.check_honest(report, ("src", "dst"), before);
}

fn refuse_always(direction: Direction, at_source: bool, requests: &[&'static str]) {
    let mut complete = 0;
    for request in requests {
        for (nth, code) in CODES.into_iter().enumerate() {
            for seed in [nth as u64, nth as u64 + 3] {
                let mut scenario = scenario(seed, direction);
                let refuse = |profile: &mut testkit::sftp_model::SftpServerProfile| {
                    profile.restrictions.refused.insert(request, code);
                };
                match at_source {
                    true => scenario.change_source_server(refuse),
                    false => scenario.change_server(refuse),
                };
                let before = scenario.at_target(|fs| tree_at(fs, "dst"));
                let report = scenario.finish();
                complete += usize::from(report.outcome() == CopyOutcome::Complete);
                check(&scenario, &report, &before);
            }
        }
    }
    assert!(complete > 10, "{complete}");
}

#[test]
fn an_upload_to_a_server_that_refuses_a_request_is_complete_or_names_what_is_missing() {
    refuse_always(Direction::Upload, false, &AT_TARGET);
}

#[test]
fn a_download_from_a_server_that_refuses_a_request_is_complete_or_names_what_is_missing() {
    refuse_always(Direction::Download, true, &AT_SOURCE);
}

#[test]
fn a_copy_to_a_host_that_refuses_a_request_is_complete_or_names_what_is_missing() {
    refuse_always(Direction::Relayed, false, &AT_TARGET);
}

#[test]
fn a_copy_from_a_host_that_refuses_a_request_is_complete_or_names_what_is_missing() {
    refuse_always(Direction::Relayed, true, &AT_SOURCE);
}

/// One request is refused at some time, as by a server under load. The same command completes the
/// copy.
#[test]
fn a_request_that_is_refused_once_costs_what_is_named_and_the_next_run_completes() {
    for direction in Direction::ALL {
        for (nth, request) in AT_TARGET.iter().chain(&AT_SOURCE).enumerate() {
            let seed = nth as u64;
            let steps = Scenario::steps(|| scenario(seed, direction));
            for at in sampled(0, steps, 6) {
                let mut copy = scenario(seed, direction);
                let code = CODES[nth % 2];
                let host = usize::from(direction == Direction::Relayed && nth % 2 == 0);
                copy.faults = vec![(at, host, SimFault::Refused(request, code))];
                let before = copy.at_target(|fs| tree_at(fs, "dst"));
                let report = copy.finish();
                check(&copy, &report, &before);
                let found = copy.at_target(|fs| tree_at(fs, "dst"));
                if report.outcome() != CopyOutcome::Complete {
                    let report = copy.finish();
                    check(&copy, &report, &found);
                    let name = format!("{}, {request}", copy.name());
                    assert_eq!(
                        report.outcome(),
                        CopyOutcome::Complete,
                        "{name}: {report:#?}"
                    );
                }
            }
        }
    }
}

/// On a server that renames no file, files are written under their final names; the user is told, and
/// an old file that cannot be replaced stays.
#[test]
fn a_server_that_renames_nothing_gets_whole_files_and_the_user_is_told() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for seed in 0..10 {
            let mut copy = scenario(seed, direction);
            for request in ["RENAME", "posix-rename@openssh.com", "put-file@longhaul"] {
                copy.refuse(request, StatusCode::PERMISSION_DENIED);
            }
            let before = copy.at_target(|fs| tree_at(fs, "dst"));
            let report = copy.finish();
            check(&copy, &report, &before);
            let name = copy.name();
            assert!(report.warns("does not rename files"), "{name}: {report:#?}");
            assert_eq!(
                copy.at_target(|fs| leftovers(fs)),
                [""; 0],
                "{name}: {report:#?}"
            );
        }
    }
}

/// A drop box: new files under new names, and nothing else.
#[test]
fn a_server_that_replaces_nothing_keeps_its_old_files() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for seed in 0..8 {
            let mut copy = scenario(seed, direction);
            copy.at_target(|fs| {
                for (path, entry) in tree_at(fs, "dst") {
                    if matches!(entry.kind, Kind::File(_)) {
                        let node = fs.at_mut(&format!("/home/u/dst/{path}")).expect("listed");
                        (node.owner, node.mode) = ((0, 0), 0o444);
                    }
                }
                fs.sticky = true;
            });
            let before = copy.at_target(|fs| tree_at(fs, "dst"));
            let report = copy.finish();
            check(&copy, &report, &before);
            let after = copy.at_target(|fs| tree_at(fs, "dst"));
            let name = copy.name();
            for (path, old) in before.iter().filter(|(_, old)| old.owner == (0, 0)) {
                assert!(after[path].kind == old.kind, "{name}: {path}: {report:#?}");
                assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
            }
        }
    }
}

/// Names in a listing that lead elsewhere, or that longhaul uses itself: nothing is written outside
/// of the target, and each is told.
#[test]
fn hostile_names_of_a_server_lead_nowhere() {
    let hostile: [&[u8]; 6] = [
        b"../outside",
        b"a/b",
        b"/home/u/outside",
        b"..",
        b"",
        b"x\0y",
    ];
    for direction in [Direction::Download, Direction::Relayed] {
        for archive in [false, true] {
            for seed in 0..6 {
                let mut copy = Scenario::new(seed, direction);
                copy.place_tree(TreeSpec::SMALL);
                (copy.options.preserve, copy.options.archive) = (archive, archive);
                copy.place_source("/home/u/outside", file("hostile"), 0o644);
                copy.place_target("/home/u/outside", file("kept"), 0o644);
                copy.world.borrow_mut().hosts[0].host.hostile_names =
                    hostile.map(<[u8]>::to_vec).to_vec();
                let before = copy.at_target(|fs| tree_at(fs, "/home/u"));
                let report = copy.finish();
                let name = copy.name();
                let after = copy.at_target(|fs| tree_at(fs, "/home/u"));
                for (path, entry) in &before {
                    assert_eq!(after.get(path), Some(entry), "{name}: {path}");
                }
                let is_below = |path: &&String| *path == "dst" || path.starts_with("dst/");
                let new = after.keys().filter(|path| !before.contains_key(*path));
                let outside: Vec<_> = new.filter(|path| !is_below(path)).collect();
                assert!(outside.is_empty(), "{name}: {outside:?}");
                let source = copy.at_source(|fs| tree_at(fs, "src"));
                let target = copy.at_target(|fs| tree_at(fs, "dst"));
                for (path, entry) in &source {
                    let same = target
                        .get(path)
                        .is_some_and(|found| found.kind == entry.kind);
                    assert!(same, "{name}: {path}: {report:#?}");
                }
                assert!(!report.failed.is_empty(), "{name}: {report:#?}");
            }
        }
    }
}
