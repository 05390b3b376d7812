//! A copy with `--background` beside other traffic.

use std::fs;

use longhaul_tests::longhaul;
use serde_json::Value;
use testkit::Seed;

use crate::{have, lab};

/// Returns the received rate in Mbit/s, from iperf3's JSON.
fn arrived(json: &str) -> f64 {
    let said: Value = serde_json::from_str(json).expect("iperf3's JSON");
    let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.expect("a rate") / 1e6
}

/// Runs iperf3 alone, then beside a copy that began before it.
fn beside(way: &str) {
    let temporary = tempfile::tempdir().expect("a folder");
    if !have(&[("sshd", "openssh-server"), ("iperf3", "iperf3")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let here = temporary.path();
    fs::write(here.join("file"), Seed::new(4).bytes(100_000_000)).expect("a file");
    let shown = here.display();
    let (from, to, reverse) = match way {
        "up" => (format!("{shown}/file"), format!("far:{shown}/copy"), ""),
        _ => (format!("far:{shown}/file"), format!("{shown}/copy"), "-R"),
    };
    // The progress of the copy is the size of its temporary.
    let script = format!(
        "iperf3 -c far4 -p 5999 -t 5 {reverse} -J >{shown}/alone
         {} cp -q --background {from} {to} & copy=$!
         size() {{ (echo 0; find {shown} -name 'copy' -o -name '.copy.*' \
             | xargs -r stat -c %b) | sort -n | tail -1; }}
         tries=0
         while [ $(size) -lt 10000 ] && [ $tries -lt 100 ]; do
             sleep 0.2; tries=$((tries + 1))
         done
         size >{shown}/before
         iperf3 -c far4 -p 5999 -t 10 -O 3 {reverse} -J >{shown}/with
         size >{shown}/after
         kill $copy; wait",
        longhaul().display()
    );
    let iperf = "iperf3 -s -p 5999 >/dev/null";
    let outcome = lab
        .env("XDG_CACHE_HOME", here.join("cache"))
        .args([
            "--rtt", "20ms", "--rate", "40Mbit", "--queue", "100ms", "--cc", "cubic",
        ])
        .args(["--sshd", "-q", "--far", iperf, "--far-port", "5999"])
        .args(["--", "sh", "-c", &script])
        .run();
    let read = |name: &str| fs::read_to_string(here.join(name)).unwrap_or_default();
    let (alone, with) = (arrived(&read("alone")), arrived(&read("with")));
    assert!(
        with > 0.85 * alone,
        "{way}: {with:.1} of {alone:.1} Mbit/s left to the other\n{outcome}"
    );
    let blocks = |name: &str| read(name).trim().parse::<u64>().unwrap_or(0);
    let (before, after) = (blocks("before"), blocks("after"));
    // The copy has the path to itself until it has moved this much.
    assert!(
        before * 512 > 5_000_000,
        "{way}: {before} blocks\n{outcome}"
    );
    assert!(after > before, "{way}: it stood still at {before} blocks");
}

#[test]
fn another_transfer_up_gets_nearly_all_of_the_path() {
    beside("up");
}

#[test]
fn another_transfer_down_gets_nearly_all_of_the_path() {
    beside("down");
}
