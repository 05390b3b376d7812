//! `longhaul doctor` against a real sshd on paths with known faults.

use std::time::Duration;

use longhaul_tests::longhaul;
use serde_json::Value;
use testkit::Outcome;

use crate::{have, lab};

/// Measures in a lab with these flags; `None` without a lab.
fn doctor(path: &[&str], flags: &str) -> Option<Value> {
    let temporary = tempfile::tempdir().expect("a folder");
    if !have(&[("sshd", "openssh-server")]) {
        return None;
    }
    let lab = lab(temporary.path())?;
    let ours = longhaul().display().to_string();
    let script = format!("{ours} doctor --json {flags} far");
    let outcome = lab
        .args(path)
        .args(["--sshd", "-q", "--", "sh", "-c", &script])
        // On long paths the default time is almost a minute.
        .timeout(Duration::from_secs(120))
        .run()
        .expect_code(0);
    Some(serde_json::from_str(&outcome.out()).expect("JSON"))
}

/// Returns the findings with this cause.
fn found(result: &Value, cause: &str) -> Vec<Value> {
    let all = result["diagnosis"]["findings"].as_array();
    let all = all.expect("findings").iter();
    all.filter(|f| f["cause"] == cause).cloned().collect()
}

#[test]
fn a_policed_class_is_named_with_its_rate() {
    let path = [
        "--rtt",
        "10ms",
        "--rate",
        "100Mbit",
        "--police",
        "CS1=10Mbit",
    ];
    let Some(result) = doctor(&[&path[..], &["--tcp", "tuned"]].concat(), "") else {
        return;
    };
    let marked = found(&result, "marked_class");
    assert_eq!(marked.len(), 1, "{result:#}");
    let rate = marked[0]["limit"].as_f64().expect("a rate");
    // The policer's burst passes before its rate holds.
    assert!(rate < 0.7 * 12.5e6, "{rate}");
    let evidence = marked[0]["evidence"].as_str().expect("evidence");
    assert!(evidence.contains("CS1"), "{evidence}");
}

#[test]
fn a_path_that_carries_its_link_has_nothing_wrong() {
    let path = ["--rtt", "20ms", "--rate", "50Mbit", "--tcp", "tuned"];
    let Some(result) = doctor(&path, "--time 20s") else {
        return;
    };
    assert_eq!(result["diagnosis"]["healthy"], true, "{result:#}");
    let verdict = result["diagnosis"]["verdict"].as_str().expect("a verdict");
    assert!(
        verdict.starts_with("Nothing wrong: the path carries"),
        "{verdict}"
    );
}

#[test]
fn random_loss_is_named() {
    let path = ["--rtt", "60ms", "--rate", "200Mbit", "--loss", "0.5%"];
    let Some(result) = doctor(
        &[&path[..], &["--tcp", "tuned", "--cc", "cubic"]].concat(),
        "",
    ) else {
        return;
    };
    assert!(!found(&result, "loss").is_empty(), "{result:#}");
    assert_eq!(result["diagnosis"]["healthy"], false);
}

#[test]
fn the_servers_channel_window_is_named_with_its_rate() {
    let path = ["--rtt", "100ms", "--rate", "1Gbit", "--tcp", "tuned"];
    let Some(result) = doctor(&path, "") else {
        return;
    };
    let window = found(&result, "channel_window");
    assert_eq!(window.len(), 1, "{result:#}");
    // OpenSSH grants 2 MiB per round trip.
    let (set, seen) = (20.97e6, window[0]["limit"].as_f64().expect("a rate"));
    assert!((seen - set).abs() < 0.15 * set, "{seen}");
}

#[test]
fn a_small_receive_buffer_of_this_machine_is_named() {
    let path = ["--rtt", "150ms", "--rate", "1Gbit", "--tcp", "stock"];
    let Some(result) = doctor(&path, "") else {
        return;
    };
    assert!(!found(&result, "receive_buffer").is_empty(), "{result:#}");
}

#[test]
fn a_server_with_one_channel_and_no_commands_is_described_as_such() {
    let path = ["--rtt", "20ms", "--rate", "50Mbit", "--tcp", "tuned"];
    let options = [
        "--sshd-option",
        "MaxSessions=1",
        "--sshd-option",
        "ForceCommand=internal-sftp",
    ];
    let Some(result) = doctor(&[&path[..], &options].concat(), "--time 15s") else {
        return;
    };
    assert!(!found(&result, "one_channel").is_empty(), "{result:#}");
    let unseen = result["diagnosis"]["unseen"].to_string();
    assert!(unseen.contains("no command could be run there"), "{unseen}");
}

#[test]
fn an_interrupted_measurement_shows_what_it_has() {
    let temporary = tempfile::tempdir().expect("a folder");
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let ours = longhaul().display().to_string();
    let script = format!("timeout --foreground --preserve-status -s INT 6 {ours} doctor far");
    let outcome = lab
        .args(["--rtt", "20ms", "--rate", "50Mbit", "--sshd", "-q", "--"])
        .args(["sh", "-c", &script])
        .run()
        .expect_code(130);
    let out = outcome.out();
    assert!(
        out.starts_with("far: Incomplete (interrupted): "),
        "{outcome}"
    );
    assert!(out.contains("Uploads:"), "{outcome}");
}

#[test]
fn a_host_that_refuses_is_one_sentence() {
    let outcome: Outcome = testkit::Run::new(longhaul())
        .args(["doctor", "-F", "none", "-P", "1", "127.0.0.1"])
        .run();
    assert_eq!(outcome.code, Some(255), "{outcome}");
    assert_eq!(outcome.err().trim().lines().count(), 1, "{outcome}");
    assert!(outcome.err().contains("127.0.0.1"), "{outcome}");
}
