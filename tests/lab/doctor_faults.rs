//! `longhaul doctor` names each fault of a path, with its figure, as the first thing it says.
//!
//! [`CASES`] are short and always run. `LONGHAUL_DOCTOR_MATRIX=1` measures each fault at 10, 60, 150
//! and 600 ms with the default time, which takes about an hour.

use longhaul_tests::longhaul;
use serde_json::Value;

use crate::{have, lab};

/// A fault of a lab's path, and what is to be said.
struct Case {
    name: &'static str,
    /// Flags of the lab, without `--rtt`.
    path: &'static str,
    /// Round trip of the short run in milliseconds.
    rtt: u32,
    doctor: &'static str,
    /// Name in JSON; empty for a healthy path.
    cause: &'static str,
    /// Words of the first sentence.
    says: &'static str,
    /// Limit in MB/s of payload for this round trip in seconds; 0 if it costs time only.
    limit: fn(f64) -> f64,
}

const NO_LIMIT: fn(f64) -> f64 = |_| 0.0;

const CASES: &[Case] = &[
    Case {
        name: "black-hole",
        path: "--rate 50Mbit --black-hole 1000",
        rtt: 20,
        doctor: "--time 9s",
        cause: "mtu_black_hole",
        says: "large packets vanish on the way",
        limit: NO_LIMIT,
    },
    Case {
        name: "middlebox-reset",
        path: "--rate 100Mbit --middlebox reset=20MB",
        rtt: 20,
        doctor: "--time 12s",
        cause: "middlebox",
        says: "was reset after",
        limit: NO_LIMIT,
    },
    Case {
        name: "middlebox-stall",
        path: "--rate 100Mbit --middlebox stall=15MB",
        rtt: 20,
        doctor: "--time 12s",
        cause: "middlebox",
        says: "was silent after",
        limit: NO_LIMIT,
    },
    Case {
        name: "no-window-scaling",
        path: "--rate 100Mbit --strip wscale --tcp tuned",
        rtt: 60,
        doctor: "--time 14s",
        cause: "no_window_scaling",
        says: "missing TCP window scaling",
        limit: |rtt| 0.065535 / rtt,
    },
    Case {
        name: "no-sack",
        path: "--rate 200Mbit --strip sack --loss 1% --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "no_sack",
        says: "without SACK",
        limit: NO_LIMIT,
    },
    Case {
        name: "loss",
        path: "--rate 200Mbit --loss 1% --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "loss",
        says: "random packet loss",
        limit: NO_LIMIT,
    },
    Case {
        name: "policer",
        path: "--rate 200Mbit --police all=20Mbit/300kB --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 16s",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 2.41,
    },
    Case {
        name: "shaper",
        path: "--rate 200Mbit --shape all=20Mbit/12MB --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 24s",
        cause: "shaper",
        says: "a shaper that slows down after a burst",
        limit: |_| 2.41,
    },
    Case {
        name: "flow-cap",
        path: "--rate 200Mbit --shape flow=20Mbit --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "flow_cap",
        says: "the network limits each connection",
        limit: |_| 2.41,
    },
    Case {
        name: "slow-login",
        path: "--rate 50Mbit --far-start 900ms --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 12s",
        cause: "slow_login",
        says: "a slow step of the login (the SFTP server's start takes 9",
        limit: NO_LIMIT,
    },
    Case {
        name: "bufferbloat",
        path: "--rate 20Mbit --queue 800ms --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 14s",
        cause: "bufferbloat",
        says: "a queue on the path that delays everything else",
        limit: NO_LIMIT,
    },
    Case {
        name: "login-limit",
        path: "--rate 50Mbit --tcp tuned --cc cubic --sshd-option MaxStartups=1:100:1",
        rtt: 20,
        doctor: "--time 12s",
        cause: "login_limit",
        says: "the server refuses parallel logins",
        limit: NO_LIMIT,
    },
    Case {
        name: "expectation",
        path: "--rate 50Mbit --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 12s --expect 1Gbit",
        cause: "below_expectation",
        says: "a path that carries less than expected",
        limit: |_| 6.02,
    },
    Case {
        name: "healthy-short",
        path: "--rate 100Mbit --tcp tuned --cc cubic",
        rtt: 1,
        doctor: "--time 14s",
        cause: "",
        says: "Nothing wrong: the path carries 12 MB/s",
        limit: NO_LIMIT,
    },
    Case {
        name: "healthy-long",
        path: "--rate 50Mbit --tcp tuned --cc cubic",
        rtt: 60,
        doctor: "--time 18s",
        cause: "",
        says: "Nothing wrong: the path carries 5.9 MB/s",
        limit: NO_LIMIT,
    },
];

/// Measures; `None` without a lab.
fn measured(case: &Case, rtt: u32, doctor: &str) -> Option<Value> {
    let temporary = tempfile::tempdir().expect("a folder");
    let lab = lab(temporary.path())?.timeout(std::time::Duration::from_secs(150));
    let ours = longhaul().display().to_string();
    let script = format!("{ours} doctor --json {doctor} far");
    let rtt = format!("{rtt}ms");
    let outcome = lab
        .args(["--rtt", &rtt])
        .args(case.path.split_whitespace())
        .args(["--sshd", "-q", "--", "sh", "-c", &script])
        .run();
    let result = serde_json::from_str(&outcome.out());
    Some(result.unwrap_or_else(|why| panic!("{}: {why}: {outcome}", case.name)))
}

/// Returns a complaint about the first sentence.
fn complaint(case: &Case, rtt: u32, result: &Value) -> Option<String> {
    let diagnosis = &result["diagnosis"];
    let verdict = diagnosis["verdict"].as_str().unwrap_or_default();
    let first = &diagnosis["findings"][0];
    let expected = (case.limit)(f64::from(rtt) / 1e3) * 1e6;
    let limit = first["limit"].as_f64().unwrap_or(0.0);
    let right = match case.cause {
        "" => diagnosis["healthy"] == true,
        cause => first["cause"] == cause && diagnosis["healthy"] == false,
    };
    let close = expected == 0.0 || (limit / expected - 1.0).abs() <= 0.15;
    let said = verdict.contains(case.says) && !verdict.starts_with("Unsure");
    (!right || !close || !said).then(|| format!("{} at {rtt} ms: {verdict}", case.name))
}

/// Runs cases in turns; a lab in parallel would take the processors that the other one measures.
fn run(names: &[&str]) {
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    for case in CASES.iter().filter(|case| names.contains(&case.name)) {
        let Some(mut result) = measured(case, case.rtt, case.doctor) else {
            return;
        };
        // Other tests take the processors: doctor says that it is unsure, and is asked again. A
        // wrong verdict stands.
        for _ in 0..2 {
            let verdict = result["diagnosis"]["verdict"].as_str();
            if !verdict.is_some_and(|verdict| verdict.starts_with("Unsure")) {
                break;
            }
            result = measured(case, case.rtt, case.doctor).expect("a lab, as before");
        }
        let wrong = complaint(case, case.rtt, &result);
        assert!(wrong.is_none(), "{}\n{result:#}", wrong.unwrap_or_default());
    }
}

#[test]
fn broken_connections_are_named() {
    run(&["black-hole", "middlebox-reset", "middlebox-stall"]);
}

#[test]
fn changed_handshakes_are_named() {
    run(&["no-window-scaling", "no-sack"]);
}

#[test]
fn rate_limits_of_the_network_are_named_with_their_rate() {
    run(&["policer", "shaper", "flow-cap", "expectation"]);
}

#[test]
fn loss_and_queues_are_named() {
    run(&["loss", "bufferbloat"]);
}

#[test]
fn slow_and_limited_logins_are_named() {
    run(&["slow-login", "login-limit"]);
}

#[test]
fn healthy_paths_have_nothing_wrong() {
    run(&["healthy-short", "healthy-long"]);
}

#[test]
fn the_share_of_lost_packets_is_the_one_that_was_set() {
    let case = Case {
        name: "share",
        path: "--rate 200Mbit --loss 0.5% --tcp tuned --cc cubic",
        rtt: 10,
        doctor: "--time 20s",
        cause: "loss",
        says: "",
        limit: NO_LIMIT,
    };
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(result) = measured(&case, case.rtt, case.doctor) else {
        return;
    };
    // In a download the share is an estimate from packets out of order, of which one loss makes many.
    for (direction, most) in [("up", 0.0085), ("down", 0.02)] {
        let rung = &result["evidence"][direction]["rungs"][0];
        let loss = rung["loss_ever"].as_f64().expect("a share");
        // A connection loses some 25 packets.
        assert!((0.0025..most).contains(&loss), "{direction}: {rung:#}");
    }
}

#[test]
fn a_short_path_has_no_shaper_that_nobody_set() {
    let case = Case {
        name: "this machine",
        path: "--tcp tuned",
        rtt: 0,
        doctor: "--time 5s",
        cause: "",
        says: "",
        limit: NO_LIMIT,
    };
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    for _ in 0..2 {
        let Some(result) = measured(&case, case.rtt, case.doctor) else {
            return;
        };
        let findings = result["diagnosis"]["findings"].to_string();
        assert!(!findings.contains("\"shaper\""), "{result:#}");
    }
}

#[test]
fn every_fault_is_named_at_every_round_trip() {
    if std::env::var_os("LONGHAUL_DOCTOR_MATRIX").is_none() {
        return;
    }
    let mut wrong = Vec::new();
    for case in CASES {
        for rtt in [10, 60, 150, 600] {
            let flags = case.doctor.split(" --").skip(1);
            let others: String = flags.map(|flag| format!(" --{flag}")).collect();
            let Some(result) = measured(case, rtt, &others) else {
                return;
            };
            wrong.extend(complaint(case, rtt, &result));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
