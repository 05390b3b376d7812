//! `--fsync`: what a copy calls synced survives a power loss.

use testkit::sftp_model::{Kind, Rng};

use super::scenario::{Direction, Scenario, TreeSpec, file, tree_at};
use crate::report::CopyOutcome;

/// Loses the power of the target's machine after the copy has ended. Returns the number of files that
/// are neither the source's nor the older ones.
fn torn_files(scenario: &mut Scenario, synced: &mut bool) -> usize {
    let before = scenario.at_target(|fs| tree_at(fs, "dst"));
    scenario.world.borrow_mut().settle();
    let report = scenario.finish();
    assert_eq!(report.outcome(), CopyOutcome::Complete, "{report:#?}");
    *synced = report.summary().synced;
    let mut rng = Rng::new(scenario.seed);
    scenario.at_target(|fs| fs.lose_power(&mut rng));
    let source = scenario.at_source(|fs| tree_at(fs, "src"));
    let found = scenario.at_target(|fs| tree_at(fs, "dst"));
    // The last rename may be lost, and the file has its temporary name.
    let is_temporary = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        sftp::final_name_in(name.as_bytes()).is_some()
    };
    let is_torn = |path: &String, kind: &Kind| {
        let known = [source.get(path), before.get(path)];
        let is_known = known.iter().flatten().any(|entry| entry.kind == *kind);
        !is_known && !is_temporary(path)
    };
    let torn = found
        .iter()
        .filter(|(path, entry)| is_torn(path, &entry.kind));
    torn.count()
}

#[test]
fn no_file_that_was_called_synced_is_torn_by_a_power_loss() {
    let (mut synced, mut torn_without) = (0, 0);
    for direction in Direction::ALL {
        for fsync in [true, false] {
            for seed in 0..16 {
                let mut scenario = Scenario::new(seed, direction);
                scenario.options.fsync = fsync;
                scenario.options.preserve = seed.is_multiple_of(3);
                scenario.place_tree(TreeSpec::MIXED);
                scenario.sources = vec!["src/.".to_owned()];
                scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
                scenario.place_target("/home/u/dst/f0", file("older"), 0o644);
                let mut is_synced = false;
                let torn = torn_files(&mut scenario, &mut is_synced);
                let name = format!("{}, fsync {fsync}", scenario.name());
                assert!(torn == 0 || !is_synced, "{name}: {torn} files are torn");
                assert!(fsync || !is_synced, "{name}: nobody has synced them");
                synced += usize::from(is_synced);
                torn_without += usize::from(torn > 0);
            }
        }
    }
    assert!(synced > 20 && torn_without > 10, "{synced} {torn_without}");
}
