//! How many round trips a small file takes, against the real sshd behind a long path.
//!
//! A 1 KiB file is copied twice: with a path of no length, and with a long one. The difference,
//! divided by the round trip, is the number of round trips, with the processors' time for the key
//! exchange left out of it. To what is measured from the proxy's accept() until the file stands
//! under its final name are added the round trip of connect(), and half of one for the answer.

use std::fs;
use std::time::{Duration, Instant};

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::delay_proxy::DelayProxy;
use testkit::tree::write_file;

const RTT: Duration = Duration::from_millis(200);

/// What the client may know before it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    /// Neither the host's key nor anything else.
    Nothing,
    /// The host key, and that this key of ours opens the door; not how the host likes its key
    /// exchange.
    HostAndKey,
    /// That too.
    Everything,
}

/// From accept() to the final name; with scp, which writes under it, to the program's end.
fn once(scene: &mut Scene, rtt: Duration, knows: Knows) -> Duration {
    let proxy = DelayProxy::to(scene.peer.addr())
        .rtt(rtt)
        .server_nagle()
        .start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    // Every proxy has a port of its own; what the client remembers must be under one name.
    scene.client.dir.set("peer", "HostKeyAlias", "the-peer");
    let known_hosts = scene.client.dir.known_hosts();
    let cache = scene.client.dir.path().join("cache");
    let copy = scene.path("copy");
    let run = || {
        let _ = fs::remove_file(&copy);
        let run = scene
            .client
            .cp()
            .args(["-o", "StrictHostKeyChecking=accept-new"]);
        run.arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .spawn()
    };
    if knows == Knows::Nothing {
        fs::write(&known_hosts, "").expect("our file");
        fs::remove_dir_all(&cache).expect("our folder");
        fs::create_dir(&cache).expect("our folder");
    }
    let running = run();
    let mut seen = None;
    running.until(|| {
        seen = seen.or_else(|| copy.exists().then(Instant::now));
        seen.is_some()
    });
    running.wait().expect_code(0);
    if scene.client.is_scp() {
        seen = Some(Instant::now());
    }
    let accepted = proxy.first_accept().expect("it connected");
    assert_eq!(proxy.connections(), 1, "one connection is all it takes");
    seen.expect("the copy is there").duration_since(accepted)
}

fn round_trips(scene: &mut Scene, knows: Knows) -> f64 {
    let best = |scene: &mut Scene, rtt: Duration| {
        (0..3)
            .map(|_| once(scene, rtt, knows))
            .min()
            .expect("three runs")
    };
    let near = best(scene, Duration::ZERO);
    let far = best(scene, RTT);
    let difference = far.saturating_sub(near).as_secs_f64() / RTT.as_secs_f64();
    // connect() before, and the way back of the answer after.
    difference + 1.0 + 0.5
}

#[test]
fn a_small_file_takes_few() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), &[b'x'; 1024]);
    let first = round_trips(&mut scene, Knows::Nothing);
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
    // Since the first runs the client knows the host, its own key, and what the host prefers.
    let again = round_trips(&mut scene, Knows::Everything);
    eprintln!("known host, key and key exchange: {again:.2} round trips");
    assert!(
        again <= 5.8,
        "a known host took {again:.2} round trips, of 5.8"
    );
    // A host that prefers something else than last time: the guess is wrong.
    let wrong = Knows::HostAndKey;
    scene.client.dir.set(
        "peer",
        "KexAlgorithms",
        "curve25519-sha256,ecdh-sha2-nistp256",
    );
    let kex = round_trips(&mut scene, wrong);
    eprintln!("known host and key: {kex:.2} round trips");
    assert!(
        kex <= 6.8,
        "a known host and key took {kex:.2} round trips, of 6.8"
    );
}
