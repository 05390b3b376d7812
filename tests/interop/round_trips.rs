//! Limits for the number of round trips; `longhaul_tests::round_trips` documents the measurement.

use longhaul_tests::Scene;
use longhaul_tests::both_ends::{BothEnds, far_end};
use longhaul_tests::round_trips::{Before, measure_to, measure_with};
use testkit::PeerKind;
use testkit::tree::write_file;

#[test]
fn a_small_file_takes_few() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), &[b'x'; 1024]);
    let first = measure_to(&mut scene, Before::Nothing, 11.5);
    eprintln!("first contact: {first:.2} round trips");
    if scene.client.is_scp() {
        // scp 9.2 takes 22 to its exit on a real path, on which Nagle's algorithm also holds back
        // ssh's own small packets; the half round trip of an answer does not apply then.
        assert!((15.0..24.0).contains(&(first - 0.5)), "{first}");
        return;
    }
    assert!(
        first <= 11.5,
        "first contact took {first:.2} round trips, of 11.5"
    );
    // The client now knows the host, that its key is accepted, and the host's preferred algorithms.
    let guessed = measure_to(&mut scene, Before::EarlierRuns, 5.8);
    eprintln!("known host and key, the key exchange guessed: {guessed:.2} round trips");
    assert!(
        guessed <= 5.8,
        "a known host took {guessed:.2} round trips, of 5.8"
    );
    // With another preference of the client first, the host memory does not help.
    scene.client.dir.set(
        "peer",
        "KexAlgorithms",
        "ecdh-sha2-nistp256,curve25519-sha256",
    );
    let wrong = measure_to(&mut scene, Before::EarlierRuns, 6.8);
    eprintln!("known host and key, the key exchange not guessed: {wrong:.2} round trips");
    assert!(
        wrong <= 6.8,
        "a known host and key took {wrong:.2} round trips, of 6.8"
    );
}

/// Neither the check for longhaul nor its use costs a round trip.
#[test]
fn a_longhaul_at_the_far_end_takes_no_more() {
    let Some(mut ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let scene = &mut ends.scene;
    write_file(&scene.path("file"), &[b'x'; 1024]);
    let asks = ["--far-end=exec"];
    let first = measure_with(scene, Before::Nothing, 11.5, &asks);
    eprintln!("first contact, asking: {first:.2} round trips");
    assert!(first <= 11.5, "asking took {first:.2} round trips, of 11.5");
    // A small file is transferred before the check is answered, so that a large one is copied once,
    // which waits for the answer.
    let large = scene.path("large");
    write_file(&large, &vec![b'x'; 8_000_000]);
    let proxy = testkit::DelayProxy::to(ends.scene.peer.addr()).start();
    ends.behind(&proxy);
    let found = ends.cp(&asks).arg(&large).arg(ends.scene.remote("copy"));
    let found = found.run().expect_code(0);
    assert_eq!(far_end(&found)["depth"], "exec", "{found}");
    let known = measure_to(&mut ends.scene, Before::EarlierRuns, 5.8);
    eprintln!("known host, its longhaul remembered: {known:.2} round trips");
    assert!(known <= 5.8, "it took {known:.2} round trips, of 5.8");
    // The lanes of longhaul were measured.
    let (asked, stock) = ends.started();
    measure_to(&mut ends.scene, Before::EarlierRuns, f64::INFINITY);
    let (asked_since, stock_since) = ends.started();
    assert_eq!((asked + 6, stock), (asked_since, stock_since));
}

/// Debian's ssh_config has `SendEnv LANG LC_*`. The session of the first contact is opened together
/// with authentication nevertheless; other variables are sent only after the login.
#[test]
fn the_locale_that_is_sent_costs_no_round_trip() {
    let Some(mut ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let scene = &mut ends.scene;
    write_file(&scene.path("file"), &[b'x'; 1024]);
    let mut trips = |sent: &str, bar: f64| {
        let set = format!("SetEnv={sent}");
        let flags = ["--far-end=exec", "-o", &set];
        measure_with(scene, Before::Nothing, bar, &flags)
    };
    let mut both = (0.0, 0.0);
    // The delay of a busy machine can be as large as the difference: a limit of 0 makes both be
    // measured over the longer path.
    for bar in [11.5, 0.0] {
        both = (
            trips("LANG=C.UTF-8 LC_TIME=C", bar),
            trips("LANG=C.UTF-8 TOKEN=x", bar),
        );
        eprintln!("round trips, the locale sent, and more: {both:.2?}");
        if both.0 < both.1 - 0.5 {
            return;
        }
    }
    panic!("the locale took {} round trips, more {}", both.0, both.1);
}
