//! Measures the round trips of a small file with the real sshd behind a long path.
//!
//! A file is copied over a path without delay and over a long one. The difference divided by the
//! round-trip time is the number of round trips, without the processor time of the key exchange.
//! Measured is the time from the proxy's accept() until the file has its final name; added are the
//! round trip of connect(), and half of one for the way back of the answer.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use testkit::DelayProxy;

use crate::Scene;

/// Round-trip time of the long path: long compared to the delays of a busy machine.
pub const RTT: Duration = Duration::from_millis(200);

/// Knowledge of the client before it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing, not even the host's key.
    Nothing,
    /// Everything that earlier runs have left.
    EarlierRuns,
}

/// Measures the round trips of copying the scene's `file` to the server.
///
/// # Panics
/// Panics if a copy fails.
pub fn measure(scene: &mut Scene, before: Before) -> f64 {
    measure_to(scene, before, f64::INFINITY)
}

/// Measures the round trips; if the result is above `bar`, measures again with a path five times as
/// long, up to twice. The delays of a busy machine, which look like round trips if they affect only
/// one of the two paths, then count a fifth.
///
/// # Panics
/// Panics if a copy fails.
pub fn measure_to(scene: &mut Scene, before: Before, bar: f64) -> f64 {
    measure_with(scene, before, bar, &[])
}

/// Measures as [`measure_to`] does, with these flags.
///
/// # Panics
/// Panics if a copy fails.
pub fn measure_with(scene: &mut Scene, before: Before, bar: f64, flags: &[&str]) -> f64 {
    let mut round_trips = f64::INFINITY;
    for rtt in [RTT, 5 * RTT, 5 * RTT] {
        let (mut near, mut far) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            near = near.min(once(scene, Duration::ZERO, before, flags));
            far = far.min(once(scene, rtt, before, flags));
        }
        let difference = far.saturating_sub(near).as_secs_f64() / rtt.as_secs_f64();
        round_trips = difference + 1.0 + 0.5;
        if round_trips <= bar {
            break;
        }
        eprintln!("{round_trips:.2} round trips of {rtt:?}");
    }
    round_trips
}

/// Measures the time from accept() to the final name; for scp, which writes under that name, to the
/// program's end.
fn once(scene: &mut Scene, rtt: Duration, before: Before, flags: &[&str]) -> Duration {
    let proxy = DelayProxy::to(scene.peer.addr())
        .rtt(rtt)
        .server_nagle()
        .start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    // Every proxy has a port of its own; the alias keeps the host memory under one name.
    scene.client.dir.set("peer", "HostKeyAlias", "the-peer");
    if before == Before::Nothing {
        let cache: PathBuf = scene.client.dir.path().join("cache");
        fs::remove_dir_all(&cache).expect("our folder");
        fs::create_dir(&cache).expect("our folder");
        fs::write(scene.client.dir.known_hosts(), "").expect("our file");
    }
    let copy = scene.path("copy");
    let _ = fs::remove_file(&copy);
    let run = scene
        .client
        .cp()
        .args(["-o", "StrictHostKeyChecking=accept-new"])
        .args(flags);
    let running = run
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .spawn();
    let mut seen = None;
    running.until(|| {
        seen = seen.or_else(|| copy.exists().then(Instant::now));
        seen.is_some()
    });
    let outcome = running.wait().expect_code(0);
    if scene.client.is_scp() {
        seen = Some(Instant::now());
    }
    let accepted = proxy.first_accept().expect("it connected");
    assert_eq!(
        proxy.connections(),
        1,
        "one connection is all it takes: {outcome}"
    );
    seen.expect("the copy is there").duration_since(accepted)
}
