//! `longhaul doctor` names each fault of a path, with its figure, as the first thing it says.
//!
//! Some [`CASES`] are short and always run. `make doctor-matrix` measures all of them at 10, 60, 150 and
//! 600 ms, as far as they exist there, and the [`COMBINATIONS`], with the default time, which takes about
//! an hour and a half. `make doctor-noise` measures one noisy path ten times, which takes six minutes.
//! Both set `LONGHAUL_DOCTOR_MATRIX`.

mod cases;
mod combinations;

use longhaul_tests::longhaul;
use serde_json::Value;

use self::cases::{CASES, Case, NO_LIMIT};
use self::combinations::COMBINATIONS;
use crate::{have, lab};

/// Measures; `None` without a lab.
fn measured(case: &Case, rtt: u32, doctor: &str) -> Option<Value> {
    let temporary = tempfile::tempdir().expect("a folder");
    let lab = lab(temporary.path())?.timeout(std::time::Duration::from_secs(150));
    let ours = longhaul().display().to_string();
    // A folder on a disk, which /tmp may not be on.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let (doctor, place) = match doctor.strip_suffix(" :DISK") {
        Some(flags) => (flags, format!("far:{}", disk.path().display())),
        None => (doctor, "far".to_owned()),
    };
    let script = format!("{ours} doctor --json {doctor} {place}");
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
    let findings = diagnosis["findings"].as_array();
    let named = |cause: &str| findings.and_then(|all| all.iter().position(|f| f["cause"] == cause));
    let right = right && (case.then.is_empty() || named(case.then) > Some(0));
    let close = expected == 0.0 || (limit / expected - 1.0).abs() <= 0.15;
    let said = verdict.contains(case.says) && !verdict.starts_with("Unsure");
    let carried = ["up", "down"].map(|way| best_rate(&result["evidence"][way]));
    let carries = case.carries == 0.0
        || carried
            .iter()
            .all(|rate| (rate / case.carries - 1.0).abs() <= 0.1);
    (!right || !close || !said || !carries)
        .then(|| format!("{} at {rtt} ms: {verdict}, {carried:?} MB/s", case.name))
}

/// Returns the highest rate of a direction in MB/s.
fn best_rate(direction: &Value) -> f64 {
    let rungs = direction["rungs"].as_array().into_iter().flatten();
    let rates = rungs.filter_map(|rung| rung["rate"].as_f64());
    rates.fold(0.0, f64::max) / 1e6
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
    run(&[
        "black-hole",
        "middlebox-reset",
        "middlebox-stall",
        "middlebox-stall-late",
    ]);
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
fn limits_of_the_server_are_named() {
    run(&["channel-window", "one-channel", "far-disk"]);
}

#[test]
fn a_slow_class_is_named_with_its_rate() {
    run(&["marked-class"]);
}

#[test]
fn two_causes_are_named() {
    run(&["scaling-then-login"]);
}

#[test]
fn healthy_paths_have_nothing_wrong() {
    run(&[
        "healthy-short",
        "healthy-long",
        "fq-codel",
        "small-segments",
        "no-timestamps",
    ]);
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
        ..Case::HEALTHY
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
        ..Case::HEALTHY
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

/// Measures cases at all of their round trips; returns at the first one that has no lab.
fn judge(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        for rtt in case.at.iter().filter(|rtt| is_wanted(case, **rtt)) {
            let doctor = without_time(case.doctor);
            let Some(result) = measured(case, *rtt, &doctor) else {
                return;
            };
            let complaint = complaint(case, *rtt, &result);
            // The matrix takes more than an hour, so that each result is shown as it comes.
            match &complaint {
                Some(complaint) => eprintln!("wrong: {complaint}"),
                None => eprintln!("right: {} at {rtt} ms", case.name),
            }
            wrong.extend(complaint);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// True for the round trip in `LONGHAUL_DOCTOR_RTT`, in milliseconds, and the case in
/// `LONGHAUL_DOCTOR_CASE`; each counts as named if it is empty or not set.
fn is_wanted(case: &Case, rtt: u32) -> bool {
    let names = |variable: &str, value: &str| {
        let only = std::env::var(variable).ok();
        only.is_none_or(|only| only.is_empty() || only == value)
    };
    names("LONGHAUL_DOCTOR_RTT", &rtt.to_string()) && names("LONGHAUL_DOCTOR_CASE", case.name)
}

#[test]
fn every_fault_is_named_at_every_round_trip() {
    if std::env::var_os("LONGHAUL_DOCTOR_MATRIX").is_some() {
        judge(CASES);
    }
}

#[test]
fn combinations_with_other_figures_are_named_as_well() {
    if std::env::var_os("LONGHAUL_DOCTOR_MATRIX").is_some() {
        judge(COMBINATIONS);
    }
}

/// Flags without `--time TIME`.
fn without_time(flags: &str) -> String {
    let words: Vec<&str> = flags.split(' ').collect();
    let kept = match words.as_slice() {
        ["--time", _, rest @ ..] => rest.join(" "),
        all => all.join(" "),
    };
    format!(" {kept}")
}

#[test]
fn a_noisy_path_gets_the_same_verdict_nine_times_of_ten() {
    if std::env::var_os("LONGHAUL_DOCTOR_MATRIX").is_none() {
        return;
    }
    let mut causes = std::collections::BTreeMap::new();
    let mut sure = std::collections::BTreeSet::new();
    for seed in 1..=10 {
        let path = format!(
            "--rate 100Mbit --loss 0.3%/3 --jitter 8ms --tcp tuned --cc cubic --seed {seed}"
        );
        let case = Case {
            name: "noisy",
            path: Box::leak(path.into_boxed_str()),
            ..Case::HEALTHY
        };
        let Some(result) = measured(&case, 40, "") else {
            return;
        };
        let cause = result["diagnosis"]["findings"][0]["cause"].to_string();
        let verdict = result["diagnosis"]["verdict"].as_str().unwrap_or_default();
        eprintln!("seed {seed}: {verdict}");
        if !verdict.starts_with("Unsure") {
            sure.insert(cause.clone());
        }
        *causes.entry(cause).or_insert(0) += 1;
    }
    // The packets are lost at random, whatever the jitter makes of the round trip.
    let most = causes.get("\"loss\"").copied();
    assert!(most >= Some(9) && sure.len() <= 1, "{causes:?} {sure:?}");
}
