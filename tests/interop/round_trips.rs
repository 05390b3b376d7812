//! The bars for the number of round trips; what and how is measured is told in
//! `longhaul_tests::round_trips`.

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
        // scp 9.2 takes 22 to its exit on a real path, where Nagle's algorithm holds ssh's own
        // small packets back as well; no answer is on its way then.
        assert!((15.0..24.0).contains(&(first - 0.5)), "{first}");
        return;
    }
    assert!(
        first <= 11.5,
        "first contact took {first:.2} round trips, of 11.5"
    );
    // By now the client knows the host, that its key opens the door, and what the host prefers.
    let guessed = measure_to(&mut scene, Before::EarlierRuns, 5.8);
    eprintln!("known host and key, the key exchange guessed: {guessed:.2} round trips");
    assert!(
        guessed <= 5.8,
        "a known host took {guessed:.2} round trips, of 5.8"
    );
    // With another preference of ours first, what is remembered of the host does not help.
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

/// To find out whether there is a longhaul costs none, and neither does using it.
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
    // The file is there before the answer is: it is waited for once.
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
    // They were its lanes that were measured.
    let (asked, stock) = ends.started();
    measure_to(&mut ends.scene, Before::EarlierRuns, f64::INFINITY);
    let (asked_since, stock_since) = ends.started();
    assert_eq!((asked + 6, stock), (asked_since, stock_since));
}

/// Debian's ssh_config has `SendEnv LANG LC_*`: the session of first contact leaves with
/// authentication all the same. Of what else is sent nothing leaves before the login is through.
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
    // What a busy machine adds to one of them is as much as the difference: a bar that nothing is below
    // has both measured over the longer path.
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
