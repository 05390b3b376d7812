//! Sources of several hosts and of this machine in one copy: files of different machines are never
//! mixed, and a machine that fails is named.

use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::scenario::{
    Direction, RunReport, Scenario, file, leftovers, location, sampled, tree_at,
};
use crate::report::CopyOutcome;

/// Machines that have sources of a copy in this direction, in their order: this machine and a host, or
/// both hosts.
fn source_machines(direction: Direction) -> [Option<usize>; 2] {
    match direction {
        Direction::Upload => [None, Some(1)],
        Direction::Download => [Some(0), Some(1)],
        Direction::Relayed => [None, Some(0)],
    }
}

/// True if the copy has a journal: its sources are alike.
fn has_journal(direction: Direction) -> bool {
    direction == Direction::Download
}

fn word(machine: Option<usize>) -> String {
    machine.map_or_else(|| "here".to_owned(), |host| format!("host{host}"))
}

/// Contents of a file of a machine, which no other machine has.
fn contents(machine: Option<usize>, nth: usize) -> String {
    format!("{} {nth} ", word(machine)).repeat(1 << (nth * 3))
}

/// Places a tree of five files at `root` of a machine.
fn place_tree(scenario: &Scenario, machine: Option<usize>, root: &str) {
    let place = |path: &str, kind| scenario.place_at(machine, path, kind, 0o755);
    place(&format!("/home/u/{root}"), Kind::Dir);
    place(&format!("/home/u/{root}/d"), Kind::Dir);
    for nth in 0..5 {
        let dir = if nth % 2 == 0 { "d/" } else { "" };
        let path = format!("/home/u/{root}/{dir}f{nth}");
        place(&path, file(contents(machine, nth)));
    }
}

/// Copy into `dst` of a tree of each machine that is no target: `root` of its machine.
fn copy_of(
    (seed, direction): (u64, Direction),
    root: impl Fn(Option<usize>) -> String,
    suffix: &str,
) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.sources.clear();
    for machine in source_machines(direction) {
        let root = root(machine);
        place_tree(&scenario, machine, &root);
        let source = location(machine, &format!("{root}{suffix}"));
        scenario.other_sources.push(source);
    }
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario
}

fn own_root(machine: Option<usize>) -> String {
    format!("of_{}", word(machine))
}

/// Checks that the target has the whole tree of each machine.
#[track_caller]
fn check_all(scenario: &Scenario, report: &RunReport) {
    for machine in source_machines(scenario.direction) {
        let root = own_root(machine);
        let source = scenario.at(machine, |fs| tree_at(fs, &root));
        let target = scenario.at_target(|fs| tree_at(fs, &format!("dst/{root}")));
        let name = format!("{}, {root}", scenario.name());
        let is_temporary = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or_default();
            sftp::final_name_in(name.as_bytes()).is_some()
        };
        // Nothing tells of the temporaries of a killed copy without a journal.
        let may_stay = |path: &str| !has_journal(scenario.direction) && is_temporary(path);
        let more = target
            .keys()
            .filter(|path| !source.contains_key(*path) && !may_stay(path));
        let more: Vec<_> = more.collect();
        assert!(more.is_empty(), "{name}: {more:?} are left: {report:#?}");
        for (path, entry) in &source {
            let found = target.get(path).map(|found| &found.kind);
            assert!(found == Some(&entry.kind), "{name}: {path}: {report:#?}");
        }
    }
}

#[test]
fn sources_of_all_machines_arrive() {
    for direction in Direction::ALL {
        for verify in [false, true] {
            for seed in 0..6 {
                let mut scenario = copy_of((seed, direction), own_root, "");
                scenario.options.verify = verify;
                let report = scenario.complete();
                check_all(&scenario, &report);
                let summary = report.summary();
                let files = 10;
                assert_eq!(summary.files, files, "{report:#?}");
                let verified = summary.verified.as_ref().map(|verified| verified.files);
                assert_eq!(verified, verify.then_some(files), "{report:#?}");
            }
        }
    }
}

/// The order of the sources decides nothing: each name that two machines have is refused.
#[test]
fn equal_names_of_two_machines_do_not_replace_each_other() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let mut scenario = copy_of((seed, direction), |_| "src".to_owned(), "");
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
            assert!(report.failed[0].1.contains("same name"), "{name}");
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            assert_eq!(found.len(), 1, "{name}");
        }
    }
}

/// Checks the target of merged trees: each file is one machine's, and each that is not there is named.
#[track_caller]
fn check_merged(scenario: &Scenario, report: &RunReport) {
    let found = scenario.at_target(|fs| tree_at(fs, "dst"));
    let name = format!("{}: {report:#?}", scenario.name());
    let machines = source_machines(scenario.direction);
    for machine in &machines {
        for (path, entry) in scenario.at(*machine, |fs| tree_at(fs, "src")) {
            let Some(copy) = found.get(&path) else {
                panic!("{name}: {path} is missing");
            };
            let shown = format!("src/./{path}");
            let shown = match machine {
                Some(host) => format!("host{host}:{shown}"),
                None => shown,
            };
            let is_named = report
                .failed
                .iter()
                .any(|(failed, why)| *failed == shown && why.contains("is already the copy of"));
            assert_eq!(copy.kind != entry.kind, is_named, "{name}: {shown}");
        }
    }
    for (path, copy) in &found {
        let trees = machines.iter();
        let mut owners = trees.map(|at| scenario.at(*at, |fs| tree_at(fs, "src")));
        let is_whole =
            owners.any(|tree| tree.get(path).is_some_and(|entry| entry.kind == copy.kind));
        assert!(is_whole, "{name}: {path} is no machine's");
    }
}

#[test]
fn merged_trees_of_several_machines_keep_the_first_of_each_name() {
    for direction in Direction::ALL {
        for seed in 0..8 {
            let mut scenario = copy_of((seed, direction), |_| "src".to_owned(), "/.");
            let report = scenario.finish();
            check_merged(&scenario, &report);
            assert_eq!(report.failed.len(), 5, "{report:#?}");
        }
    }
}

/// Bug: a file of a host was known by its size and time alone. Of two sources of one name, another one
/// may be copied by the next run: a part of the first one was completed with the second one's rest, or
/// the second one counted as copied.
#[test]
fn a_part_of_a_file_is_not_continued_with_the_file_of_another_machine() {
    const SIZE: usize = 6_000_000;
    let (mut begun, mut finished) = (0, 0);
    for (seed, hosts) in [(0, [0, 1]), (1, [0, 0]), (2, [1, 1])] {
        let make = || {
            let mut scenario = Scenario::new(seed, Direction::Download);
            scenario.sources.clear();
            for (root, host) in ["one", "two"].into_iter().zip(hosts) {
                let root_of = |path: &str| format!("/home/u/{root}{path}");
                scenario.place_at(Some(host), &root_of(""), Kind::Dir, 0o755);
                let large = file(vec![root.as_bytes()[0]; SIZE]);
                scenario.place_at(Some(host), &root_of("/large"), large, 0o644);
                let source = location(Some(host), &format!("{root}/."));
                scenario.other_sources.push(source);
            }
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario
        };
        let steps = Scenario::steps(make);
        for at in sampled(0, steps, 12) {
            let mut scenario = make();
            scenario.faults = vec![(at, 0, SimFault::Killed)];
            if scenario.run().is_some() {
                continue;
            }
            // The file that was first goes away.
            let path = b"/home/u/one/large";
            let removed = scenario.at(Some(hosts[0]), |fs| fs.remove(path, false));
            assert_eq!(removed, Ok(()));
            let report = scenario.complete();
            let found = scenario.at_target(|fs| fs.data("dst/large").map(<[u8]>::to_vec));
            let found = found.unwrap_or_default();
            let name = format!("{}, {hosts:?}, at {at}: {report:#?}", scenario.name());
            assert_eq!(found.len(), SIZE, "{name}");
            let is_other = found.iter().all(|byte| *byte == b't');
            assert!(is_other, "{name}: it is not the second file");
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            begun += usize::from(report.warns("changed since the interrupted copy"));
            finished += 1;
        }
    }
    assert!(begun > 5 && finished > 25, "{begun} {finished}");
}

/// Like scp, the copy goes on with the sources of the other machines.
#[test]
fn a_host_that_cannot_be_reached_does_not_keep_the_others_from_being_copied() {
    for (direction, gone) in [
        (Direction::Upload, 1),
        (Direction::Download, 0),
        (Direction::Download, 1),
        (Direction::Relayed, 0),
    ] {
        for (seed, pattern) in [(0, ""), (1, ""), (2, "*"), (3, "*")] {
            let mut scenario = copy_of((seed, direction), own_root, pattern);
            // A pattern is the host's to expand, and no name of a file on this machine.
            for source in &mut scenario.other_sources {
                if *source == location(None, &format!("{}{pattern}", own_root(None))) {
                    *source = location(None, &own_root(None));
                }
            }
            scenario.world.borrow_mut().hosts[gone].is_unreachable = true;
            let report = scenario.finish();
            let name = format!("{}, without {gone}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
            assert_eq!(report.failed.len(), 1, "{name}");
            let (path, why) = &report.failed[0];
            assert!(path.contains(&own_root(Some(gone))), "{name}");
            assert!(why.contains("no route to host"), "{name}");
            for machine in source_machines(direction) {
                let root = own_root(machine);
                let at = format!("dst/{root}");
                let source = scenario.at(machine, |fs| tree_at(fs, &root));
                let copied = scenario.at_target(|fs| tree_at(fs, &at));
                match machine == Some(gone) {
                    true => assert!(copied.is_empty(), "{name}"),
                    false => assert!(source.keys().eq(copied.keys()), "{name}: {root}"),
                }
            }
            // The same command completes the copy once the host is there.
            scenario.world.borrow_mut().hosts[gone].is_unreachable = false;
            let report = scenario.complete();
            check_all(&scenario, &report);
        }
    }
}

/// The loss of one of the sessions: what is not copied is told, and the next run completes.
#[test]
fn a_source_host_that_is_lost_for_good_is_told_and_the_next_run_copies_the_rest() {
    let mut lost = 0;
    for (direction, host) in [
        (Direction::Upload, 1),
        (Direction::Download, 0),
        (Direction::Download, 1),
        (Direction::Relayed, 0),
    ] {
        for seed in 0..4 {
            let make = || {
                let scenario = copy_of((seed, direction), own_root, "");
                scenario.world.borrow_mut().lose_hosts_for_good();
                scenario
            };
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 8) {
                let mut scenario = make();
                scenario.faults = vec![(at, host, SimFault::HostLost)];
                let report = scenario.finish();
                let name = format!("{}, {host} at {at}: {report:#?}", scenario.name());
                match report.outcome() {
                    CopyOutcome::Complete => check_all(&scenario, &report),
                    CopyOutcome::NoConnection(why) => {
                        assert!(why.contains("lost"), "{name}");
                        lost += 1;
                    }
                    other => panic!("{other:?}: {name}"),
                }
                let report = scenario.complete();
                check_all(&scenario, &report);
            }
        }
    }
    assert!(lost > 20, "{lost}");
}

/// Kills at any time, between the machines too: the same command goes on with each.
#[test]
fn a_killed_copy_from_several_machines_goes_on_with_each() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let make = || copy_of((seed, direction), own_root, "");
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 10) {
                let mut scenario = make();
                scenario.faults = vec![(at, 0, SimFault::Killed)];
                scenario.run();
                let report = scenario.complete();
                check_all(&scenario, &report);
            }
        }
    }
}
