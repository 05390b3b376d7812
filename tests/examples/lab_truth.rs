//! Compares the emulated path with its options, with the tolerances that the lab must keep on an
//! otherwise idle machine. Takes about a minute and a half.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use longhaul_tests::longhaul;
use serde_json::Value;
use testkit::{Outcome, Run, missing};

/// Maximum excess of the round trip, in milliseconds.
const RTT_BAR: f64 = 1.0;
/// Maximum relative difference between the rate and the goodput with all headers from IP on.
const RATE_BAR: f64 = 0.02;
/// Maximum share of a core for emulating 1 Gbit/s of TCP.
const CPU_BAR: f64 = 0.5;

fn main() -> ExitCode {
    for (program, package) in [("ping", "iputils-ping"), ("iperf3", "iperf3")] {
        if missing::find_program(program).is_none() {
            eprintln!("lab_truth needs {program} (Debian: {package})");
            return ExitCode::FAILURE;
        }
    }
    let mut report = Report { kept: true };
    println!(
        "{:<34} {:>14} {:>14} {:>14}",
        "path", "asked", "measured", ""
    );
    for rtt in ["0ms", "0.2ms", "1ms", "10ms", "114ms", "600ms"] {
        round_trip(&mut report, rtt);
    }
    for (rate, rtt, bits) in [
        ("100Mbit", "10ms", 1e8),
        ("1Gbit", "10ms", 1e9),
        ("1Gbit", "50ms", 1e9),
        ("5Gbit", "2ms", 5e9),
    ] {
        tcp(&mut report, rate, rtt, bits);
    }
    udp(&mut report, "0%", 0.0);
    udp(&mut report, "1%", 0.01);
    if report.kept {
        ExitCode::SUCCESS
    } else {
        println!("not everything is as asked");
        ExitCode::FAILURE
    }
}

struct Report {
    kept: bool,
}

impl Report {
    fn line(&mut self, path: &str, asked: impl Display, measured: impl Display, good: bool) {
        let verdict = if good { "" } else { "OFF" };
        println!("{path:<34} {asked:>14} {measured:>14} {verdict:>14}");
        self.kept &= good;
    }
}

/// Measures the mean of 50 pings.
fn round_trip(report: &mut Report, rtt: &str) {
    let asked: f64 = rtt.trim_end_matches("ms").parse().expect("our own number");
    let outcome = lab(&["--rtt", rtt, "-q"], None)
        .args(["ping", "-q", "-c", "50", "-i", "0.02", "far4"])
        .run()
        .expect_code(0);
    let out = outcome.out();
    let numbers = out
        .lines()
        .find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    let mean: f64 = numbers
        .and_then(|numbers| numbers.split('/').nth(1)?.parse().ok())
        .unwrap_or_else(|| panic!("{outcome}"));
    let good = (asked..asked + RTT_BAR).contains(&mean);
    let path = format!("--rtt {rtt}");
    report.line(&path, format!("{asked} ms"), format!("{mean:.2} ms"), good);
}

/// Measures ten seconds of iperf3, after two in which TCP finds the rate.
fn tcp(report: &mut Report, rate: &str, rtt: &str, asked: f64) {
    let options = ["--rtt", rtt, "--rate", rate, "--tcp", "tuned"];
    // Deep enough for cubic to keep the link busy; with a queue of 2 ms it needs many seconds for
    // that after an early end of slow start.
    let more = ["--queue", "20ms", "--cc", "cubic", "-q"];
    let options = [&options[..], &more].concat();
    // One stream that lost a packet early has a window below the path's for many seconds: 836 to
    // 998 Mbit/s at 50 ms, independent of the emulator. Four streams fill the path.
    let (outcome, figures) = iperf(&options, &["-t", "10", "-O", "2", "-P", "4"]);
    let goodput = outcome["end"]["sum_received"]["bits_per_second"].as_f64();
    // Of the 1,500 bytes of a packet, 52 are headers of IP and TCP, with timestamps.
    let measured = goodput.unwrap_or(0.0) * 1500.0 / 1448.0;
    let good = (measured / asked - 1.0).abs() <= RATE_BAR;
    let path = format!("--rate {rate} --rtt {rtt}, TCP");
    let mbits = |bits: f64| format!("{:.1} Mbit/s", bits / 1e6);
    report.line(&path, mbits(asked), mbits(measured), good);

    let cpu = number(&figures, "emulator_cpu_us") / number(&figures, "emulator_ran_us");
    let bar = if asked <= 1e9 { CPU_BAR } else { 1.0 };
    report.line(
        "  the emulator's share of a core",
        format!("below {:.0} %", bar * 100.0),
        format!("{:.0} %", cpu * 100.0),
        cpu < bar,
    );
    lossless(report, &figures);
}

/// Sends datagrams at two thirds of the rate: only the configured loss may occur.
fn udp(report: &mut Report, loss: &str, asked: f64) {
    let options = ["--rtt", "10ms", "--rate", "120Mbit", "--loss", loss, "-q"];
    let (outcome, figures) = iperf(&options, &["-u", "-b", "80M", "-l", "1200", "-t", "5"]);
    let end = &outcome["end"]["sum"];
    let (packets, lost) = (number(end, "packets"), number(end, "lost_packets"));
    let share = lost / packets.max(1.0);
    // Four standard deviations for this number of independent packets.
    let bar = 4.0 * (asked * (1.0 - asked) / packets.max(1.0)).sqrt();
    let path = format!("--loss {loss}, UDP, {packets} packets");
    report.line(
        &path,
        format!("{:.2} %", asked * 100.0),
        format!("{:.2} %", share * 100.0),
        (share - asked).abs() <= bar,
    );
    let dropped = number(&figures, "near_to_far.drops.loss.packets");
    // iperf3 does not notice the loss of the last packets.
    report.line(
        "  as its own figures have it",
        format!("{lost}"),
        format!("{dropped}"),
        (dropped - lost).abs() <= 3.0,
    );
    lossless(report, &figures);
}

fn lossless(report: &mut Report, figures: &Value) {
    let beside = number(figures, "device_drops") + number(figures, "device_refusals");
    report.line(
        "  packets dropped beside the path",
        0,
        beside,
        beside == 0.0,
    );
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(0.0)
}

/// Returns the JSON of iperf3 and of the lab.
fn iperf(options: &[&str], how: &[&str]) -> (Value, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("figures.json");
    let outcome = lab(options, Some(&file))
        .args(["--far", "iperf3 -s -1 >/dev/null", "--far-port", "5201"])
        .args(["iperf3", "-c", "far4", "-J"])
        .args(how)
        .run();
    let figures = std::fs::read_to_string(&file).unwrap_or_default();
    (json(&outcome.out(), &outcome), json(&figures, &outcome))
}

fn json(text: &str, outcome: &Outcome) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {outcome}"))
}

fn lab(options: &[&str], figures: Option<&Path>) -> Run {
    let run = Run::new(longhaul())
        .arg("lab")
        .args(options)
        .timeout(Duration::from_secs(40));
    match figures {
        Some(file) => run.arg("--figures").arg(file),
        None => run,
    }
}
