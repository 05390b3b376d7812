//! The bars for the number of round trips; what and how is measured is told in
//! `longhaul_tests::round_trips`.

use longhaul_tests::Scene;
use longhaul_tests::round_trips::{Before, measure_to};
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
