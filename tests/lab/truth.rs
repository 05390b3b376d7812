//! The path is as configured, according to ping, iperf3, tcpdump and its own figures.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testkit::Outcome;

use crate::{figure, have, lab};

const PING: &[(&str, &str)] = &[("ping", "iputils-ping")];

/// Parses the last line of ping: minimum, mean and maximum.
fn rtts(outcome: &Outcome) -> Option<[f64; 3]> {
    outcome.out().lines().find_map(rtts_of)
}

fn rtts_of(line: &str) -> Option<[f64; 3]> {
    let line = line.strip_prefix("rtt ")?;
    let numbers = line.split(" = ").nth(1)?.split(' ').next()?;
    let mut numbers = numbers.split('/').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

pub(crate) fn least_rtt(outcome: &Outcome) -> Duration {
    let [least, _, _] = rtts(outcome).unwrap_or_else(|| panic!("{outcome}"));
    Duration::from_secs_f64(least / 1e3)
}

/// Parses the statistics of ping: sent and received.
fn counts(outcome: &Outcome) -> (f64, f64) {
    let out = outcome.out();
    let line = out
        .lines()
        .find(|line| line.contains("packets transmitted"));
    let numbers: Vec<f64> = line
        .unwrap_or_default()
        .split([' ', ','])
        .filter_map(|word| word.parse().ok())
        .collect();
    match numbers[..] {
        [sent, received, ..] => (sent, received),
        _ => panic!("{outcome}"),
    }
}

#[test]
fn the_round_trip_is_what_was_asked() {
    let temporary = tempfile::tempdir().unwrap();
    for (rtt, milliseconds) in [("2ms", 2.0), ("50ms", 50.0), ("114ms", 114.0)] {
        for host in ["far4", "far6"] {
            let Some(lab) = lab(temporary.path()).filter(|_| have(PING)) else {
                return;
            };
            // The minimum counts: this machine runs other tests as well.
            let ping = "ping -q -c 20 -i 0.02";
            let again = format!("for n in 1 2 3 4 5; do {ping} {host} || exit; done");
            let outcome = lab
                .args(["--rtt", rtt, "-q", "sh", "-c", &again])
                .run()
                .expect_code(0);
            let least = outcome.out();
            let least = least.lines().filter_map(rtts_of).map(|[least, _, _]| least);
            let least = least.fold(f64::INFINITY, f64::min);
            assert!(
                (milliseconds..milliseconds + 1.0).contains(&least),
                "{rtt}: {outcome}"
            );
        }
    }
}

#[test]
fn jitter_spreads_the_round_trip() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(lab) = lab(temporary.path()).filter(|_| have(PING)) else {
        return;
    };
    let outcome = lab
        .args(["--rtt", "100ms", "--jitter", "20ms", "-q"])
        .args(["ping", "-q", "-c", "150", "-i", "0.02", "far"])
        .run()
        .expect_code(0);
    let [least, mean, most] = rtts(&outcome).unwrap_or_else(|| panic!("{outcome}"));
    assert!(least >= 60.0 && mean < 130.0, "{outcome}");
    assert!(most - least > 15.0, "{outcome}");
}

#[test]
fn what_ping_misses_the_figures_have() {
    let temporary = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let json = scratch.path().join("figures.json");
    let mut missed = Vec::new();
    for _ in 0..2 {
        let Some(lab) = lab(temporary.path()).filter(|_| have(PING)) else {
            return;
        };
        let outcome = lab
            .args(["--rtt", "4ms", "--loss", "10%", "--seed", "5", "-q"])
            .arg("--figures")
            .arg(&json)
            .args(["ping", "-q", "-c", "1000", "-i", "0.002", "far4"])
            .run()
            .expect_code(0);
        let (sent, received) = counts(&outcome);
        let lost = figure(&json, "near_to_far.drops.loss.packets")
            + figure(&json, "far_to_near.drops.loss.packets");
        assert_eq!(sent - received, lost, "{outcome}");
        // 1,000 there and about 900 back, each lost with 10 %: 190, with a tolerance of four
        // standard deviations.
        assert!((140.0..240.0).contains(&lost), "{lost}");
        missed.push(lost);
    }
    assert_eq!(missed[0], missed[1], "the same seed loses the same");
}

#[test]
fn the_rate_is_what_was_asked() {
    let temporary = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let json = scratch.path().join("figures.json");
    let iperf = [("iperf3", "iperf3")];
    let mut rates = Vec::new();
    // A rate that the emulator can keep beside other work; `make bench` has higher ones. The rate
    // is never exceeded; a busy machine may reduce it, but not in every run.
    while rates.len() < 4 && !rates.iter().any(|bits| *bits >= 42.5e6) {
        let Some(lab) = lab(temporary.path()).filter(|_| have(&iperf)) else {
            return;
        };
        let outcome = lab
            .args(["--rtt", "10ms", "--rate", "50Mbit", "--tcp", "tuned"])
            .args(["--cc", "cubic", "-q", "--figures"])
            .arg(&json)
            .args(["--far", "iperf3 -s -1 >/dev/null", "--far-port", "5201"])
            .args(["iperf3", "-c", "far4", "-t", "4", "-J"])
            .run()
            .expect_code(0);
        let report: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
        let received = &report["end"]["sum_received"];
        // 1,448 of the 1,500 bytes of each packet are payload. Slow start costs a little.
        let bits = received["bits_per_second"].as_f64().expect("a rate") * 1500.0 / 1448.0;
        assert!(bits < 51e6, "{bits} bits a second");
        rates.push(bits);
        let sent = received["bytes"].as_f64().unwrap_or(0.0);
        let delivered = figure(&json, "near_to_far.delivered.bytes");
        assert!(
            (sent..sent * 1.06).contains(&delivered),
            "{sent} received, {delivered} delivered"
        );
        assert_eq!(figure(&json, "device_drops"), 0.0);
        assert!(figure(&json, "emulator_cpu_us") > 0.0);
    }
    let enough = rates.iter().any(|bits| *bits >= 42.5e6);
    assert!(enough, "{rates:?} bits a second");
}

/// Returns tcpdump's output on the far side for three echo requests that are sent as CS1.
fn seen_on_the_far_side(temporary: &Path, options: &[&str]) -> Option<String> {
    let scratch = tempfile::tempdir().expect("a folder");
    let dump = scratch.path().join("dump");
    let listen = format!(
        "exec tcpdump -Z root -l -n -v -c 3 -i path 'icmp[icmptype] == icmp-echo' >{} 2>/dev/null",
        dump.display()
    );
    // tcpdump needs time to start, and to write its output.
    let until_seen = format!(
        "for n in $(seq 200); do \
         [ $(grep -c 'tos 0x' {0}) -ge 3 ] && exit; ping -q -Q 0x20 -c 1 far4; sleep 0.1; done; exit 1",
        dump.display()
    );
    lab(temporary)?
        .args(options)
        .args(["--rtt", "10ms", "-q", "--far", &listen])
        .args(["sh", "-c", &until_seen])
        .run()
        .expect_code(0);
    Some(fs::read_to_string(dump).expect("tcpdump's output"))
}

#[test]
fn tcpdump_sees_the_class_and_that_it_is_bleached() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(PING) || !have(&[("tcpdump", "tcpdump")]) {
        return;
    }
    if !testkit::missing::is_root() {
        testkit::missing::not_here("tcpdump gives up its privileges to another user");
        return;
    }
    for (options, class) in [(&[][..], "tos 0x20,"), (&["--bleach"], "tos 0x0,")] {
        let Some(dump) = seen_on_the_far_side(temporary.path(), options) else {
            return;
        };
        let seen = dump.lines().filter(|line| line.contains(class)).count();
        assert_eq!(seen, 3, "{options:?}: {dump}");
    }
}
