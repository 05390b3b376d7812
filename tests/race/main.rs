//! The race in small: the runner on loopback with little data.

use std::time::Duration;

use measure::{RunOutcome, keep};
use testkit::missing::find_program;
use testkit::{Outcome, Run, missing};

fn race(results: &std::path::Path, settings: &[(&str, &str)]) -> Option<Outcome> {
    if find_program("sshd").is_none() {
        missing::skip("sshd", "Debian: openssh-server");
        return None;
    }
    let files = results.parent()?;
    let mut run = Run::new(env!("CARGO_BIN_EXE_bench"))
        .env("LONGHAUL_BIN", longhaul_tests::longhaul())
        .env("BENCH_DIR", files)
        .env("BENCH_RESULTS", results)
        .env("BENCH_RUNS", "1")
        .env("BENCH_DATE", "2026-01-02")
        .timeout(Duration::from_secs(120));
    for name in [
        "LONGHAUL_PEERS",
        "BENCH_SCENARIOS",
        "BENCH_TOOLS",
        "BENCH_LIMIT",
    ] {
        run = run.env_remove(name);
    }
    for (name, value) in settings {
        run = run.env(name, value);
    }
    Some(run.run())
}

#[test]
fn a_small_race_leaves_a_result_and_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("results");
    let settings = [
        ("BENCH_SCENARIOS", "loopback-file/up,loopback-small/down"),
        ("BENCH_TOOLS", "longhaul,scp,mscp"),
        ("BENCH_SCALE", "0.001"),
    ];
    let Some(outcome) = race(&results, &settings) else {
        return;
    };
    let outcome = outcome.expect_code(0);
    let kept = keep::last(&results).expect("a result");
    assert!(kept.file.ends_with("2026-01-02-race.json"), "{outcome}");
    let names: Vec<&str> = kept
        .race
        .scenarios
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    assert!(names.contains(&"loopback-file/up") && names.contains(&"loopback-small/down"));
    for scenario in &kept.race.scenarios {
        for tool in ["longhaul", "scp"] {
            let entry = scenario.entry(tool).expect("an entry");
            let sample = entry.samples.first().expect("a run");
            assert_eq!(sample.ending, RunOutcome::Done, "{} {tool}", scenario.name);
            assert!(sample.seconds > 0.0 && sample.peak_memory_bytes > 0);
            assert!(
                entry.command.join(" ").contains("$SRC/"),
                "{:?}",
                entry.command
            );
        }
    }
    // Either the tool has a version, or the report says that it is missing.
    let mscp = kept
        .race
        .tools
        .iter()
        .find(|tool| tool.name == "mscp")
        .expect("mscp");
    assert_ne!(mscp.version.is_some(), mscp.missing.is_some());
    let page = std::fs::read_to_string(kept.file.with_extension("html")).expect("a page");
    let place = folder.path().display().to_string();
    assert!(
        !page.contains(&place),
        "the page names a folder of this machine"
    );
    // A second race is compared with the first.
    let again = race(&results, &settings).expect("as before").expect_code(0);
    assert!(
        again.out().contains("longhaul since 2026-01-02-race.json"),
        "{again}"
    );
}

#[test]
fn a_race_says_what_did_not_finish() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("results");
    let settings = [
        ("BENCH_SCENARIOS", "loopback-small/up"),
        ("BENCH_TOOLS", "scp"),
        ("BENCH_LIMIT", "0.001"),
        ("BENCH_SCALE", "0.01"),
    ];
    let Some(outcome) = race(&results, &settings) else {
        return;
    };
    let outcome = outcome.expect_code(0);
    assert!(
        outcome
            .out()
            .contains("did not finish in 0.00100 s: 0 of 100 files"),
        "{outcome}"
    );
}

#[test]
fn wrong_choices_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("results");
    for (name, value, said) in [
        ("BENCH_SCENARIOS", "no-such", "no scenario was chosen"),
        ("BENCH_RUNS", "many", "BENCH_RUNS is a number, not \"many\""),
        ("BENCH_DIR", "/no/such/folder", "/no/such/folder is needed"),
    ] {
        let Some(outcome) = race(&results, &[(name, value)]) else {
            return;
        };
        outcome.expect_code(1).expect_err(&[said]);
    }
}
