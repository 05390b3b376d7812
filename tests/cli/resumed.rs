//! Copies that are interrupted, and go on where they were.

use std::time::Duration;

use longhaul_tests::Program;
use longhaul_tests::interrupted::{Interrupted, Interruption};
use testkit::Seed;

const MOST_AGAIN: u64 = 64 << 20;

fn is_scp() -> bool {
    Program::under_test() == Program::Scp
}

fn goes_on(seed: u64, up: bool, interruptions: &[Interruption]) {
    if is_scp() {
        return;
    }
    let Some(copy) = Interrupted::new(seed, up, (2, 60 << 20), 300, 40_000_000) else {
        return;
    };
    let tally = copy.copies(&mut Seed::new(seed), interruptions);
    assert!(tally.again <= u64::from(tally.interruptions) * MOST_AGAIN, "{tally:?}");
    println!("up {up}: {tally:?}");
}

#[test]
fn an_upload_that_is_killed_goes_on() {
    goes_on(1, true, &[Interruption::Kill, Interruption::Interrupt, Interruption::Kill]);
}

#[test]
fn a_download_that_is_killed_goes_on() {
    goes_on(2, false, &[Interruption::Kill, Interruption::Interrupt, Interruption::Kill]);
}

#[test]
fn an_upload_whose_server_is_lost_goes_on() {
    goes_on(3, true, &[Interruption::KillServer, Interruption::Reset]);
}

#[test]
fn a_download_whose_server_is_lost_goes_on() {
    let blackout = Interruption::Blackout(Duration::from_secs(2));
    goes_on(4, false, &[Interruption::KillServer, Interruption::Reset, blackout]);
}
