//! `--fsync` with longhaul at the far end: sets of small files, and the names of everything.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use longhaul_tests::both_ends::{BothEnds, events, far_end};
use testkit::Seed;
use testkit::tree::{Compare, assert_same, write_file};

#[test]
fn thousands_of_small_files_are_durable_in_seconds_and_as_they_were() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let from = ends.scene.path("from");
    for n in 0..40 {
        fs::create_dir_all(from.join(n.to_string())).expect("ours");
    }
    for n in 0..4_000_u64 {
        let bytes = Seed::new(n).bytes(n as usize % 5_000);
        write_file(&from.join(format!("{}/{n}", n % 40)), &bytes);
    }
    // Between the small files, larger ones that use other requests.
    for n in 0..3 {
        let bytes = Seed::new(n).bytes(400_000);
        write_file(&from.join(format!("{n}/large")), &bytes);
        symlink("large", from.join(format!("{n}/link"))).expect("ours");
    }
    let to = ends.scene.path("to");
    fs::create_dir(&to).expect("ours");
    // Once to a new target and once over existing files, on a direct connection to longhaul's
    // server.
    for depth in ["exec", "direct"] {
        let far = format!("--far-end={depth}");
        let run = ends.cp(&["-a", "--fsync", &far, "--no-delta"]);
        let run = run.arg(from.join(".")).arg(ends.scene.remote("to"));
        let outcome = run.timeout(Duration::from_secs(120)).run().expect_code(0);
        assert_same(&from, &to, Compare::PRESERVED);
        assert_eq!(far_end(&outcome)["depth"], depth, "{outcome}");
        let events = events(&outcome);
        let summary = events.last().expect("a summary");
        assert_eq!(summary["synced"], true, "{outcome}");
        assert_eq!(outcome.err(), "", "{outcome}");
    }
}

#[test]
fn one_file_of_many_fails_alone() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let from = ends.scene.path("from");
    fs::create_dir(&from).expect("ours");
    for n in 0..300 {
        write_file(&from.join(format!("{n:03}")), b"new");
    }
    let to = ends.scene.path("to");
    fs::create_dir_all(to.join("150")).expect("ours");
    write_file(&to.join("151"), b"old");
    let bits = fs::Permissions::from_mode(0o400);
    fs::set_permissions(to.join("151"), bits).expect("ours");
    let run = ends.cp(&["-r", "--fsync", "--far-end=exec"]);
    let run = run.arg(from.join(".")).arg(ends.scene.remote("to"));
    let outcome = run.run();
    assert!(!outcome.success(), "{outcome}");
    let events = events(&outcome);
    let summary = events.last().expect("a summary");
    // root may replace a file that is read-only by its mode, as scp does.
    let root = rustix::process::geteuid().is_root();
    assert_eq!(summary["failed"], if root { 1 } else { 2 }, "{outcome}");
    for n in 0..300 {
        let there = fs::read(to.join(format!("{n:03}")));
        match n {
            150 => assert!(there.is_err()),
            151 if !root => assert_eq!(there.expect("it"), b"old"),
            _ => assert_eq!(there.expect("it"), b"new"),
        }
    }
    assert_eq!(longhaul_tests::names_in(&to).len(), 300);
}
