//! `--no-window-poll`: windows at the end with this flag stay at their initial 2 MiB, so that a
//! long path carries at most that much per round trip.

use std::fs;
use std::time::Duration;

use longhaul_tests::longhaul;
use testkit::{KeyKind, KeyPair, Seed};

use crate::lab;

const ROUND_TRIP: Duration = Duration::from_millis(100);
/// Size of 32 windows.
const LEN: usize = 64 << 20;
/// Minimum time for 32 windows; the first one needs no grant.
const HELD: Duration = Duration::from_millis(31 * 100);

/// Returns the duration of a copy by one channel, up or down a path that is not limited otherwise;
/// `None` without a lab.
fn copied(up: bool, server: &str, client: &str) -> Option<Duration> {
    let folder = tempfile::tempdir().expect("a folder");
    let lab = lab(folder.path())?;
    let here = folder.path().display();
    fs::write(folder.path().join("file"), Seed::new(5).bytes(LEN)).expect("our folder");
    let [host, user] = ["host", "user"].map(|name| {
        let key = KeyPair::generate(folder.path(), name, KeyKind::Ed25519);
        key.private.display().to_string()
    });
    let ours = longhaul().display().to_string();
    let serve = format!(
        "chmod 600 {user}.pub && exec {ours} serve --listen :7000 --host-key {host} \
         --authorized-keys {user}.pub {server}"
    );
    let (from, to) = match up {
        true => (format!("{here}/file"), format!("far:{here}/copy")),
        false => (format!("far:{here}/file"), format!("{here}/copy")),
    };
    let copy = format!(
        "{ours} cp -F none -q --connections 1 --channels 1 -P 7000 -i {user} \
         -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null {client} {from} {to}"
    );
    let clock = "date +%s%N";
    let rtt = format!("{}ms", ROUND_TRIP.as_millis());
    let lab = lab
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .args(["--rtt", &rtt, "--tcp", "tuned", "-q", "--far", &serve]);
    let lab = lab.args(["--far-port", "7000", "--", "sh", "-c"]);
    let lab = lab.arg(format!("{clock} && {copy} && {clock}"));
    let outcome = lab.run().expect_code(0);
    let out = outcome.out();
    let times: Vec<u64> = out.lines().filter_map(|line| line.parse().ok()).collect();
    let read = |name: &str| fs::read(folder.path().join(name)).expect("it is there");
    assert!(read("file") == read("copy"), "{outcome}");
    Some(Duration::from_nanos(times[1] - times[0]))
}

#[test]
fn a_server_that_does_not_poll_is_held_by_its_windows() {
    let flag = "--no-window-poll";
    let Some(held) = copied(true, flag, "") else {
        return;
    };
    assert!(held >= HELD, "{held:?}");
    let Some(followed) = copied(true, "", "") else {
        return;
    };
    assert!(followed < held, "{followed:?} {held:?}");
}

/// A client sets its window for what it requests.
#[test]
fn a_client_that_does_not_poll_still_gets_what_it_asked_for_at_once() {
    let Some(asked) = copied(false, "", "--no-window-poll") else {
        return;
    };
    assert!(asked < HELD, "{asked:?}");
}
