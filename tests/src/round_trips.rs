//! How many round trips a small file takes, against the real sshd behind a long path.
//!
//! A file is copied with a path of no length and with a long one. The difference, divided by the
//! round trip, is the number of round trips, with the processors' time for the key exchange left
//! out of it. To what is measured from the proxy's accept() until the file stands under its final
//! name are added the round trip of connect(), and half of one for the way back of the answer.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use testkit::DelayProxy;

use crate::Scene;

/// The long path's round trip: long beside what a busy machine adds to a run.
pub const RTT: Duration = Duration::from_millis(200);

/// What the client may know before it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Neither the host's key nor anything else.
    Nothing,
    /// Whatever earlier runs left.
    EarlierRuns,
}

/// The round trips of copying the scene's `file` to the server.
///
/// # Panics
/// If a copy fails.
pub fn measure(scene: &mut Scene, before: Before) -> f64 {
    measure_to(scene, before, f64::INFINITY)
}

/// The same; while it is more than `bar`, with a path five times as long, twice if need be, beside
/// which a busy machine's own delays are a fifth: what they add to the runs of one path and not of
/// the other looks like a round trip.
///
/// # Panics
/// If a copy fails.
pub fn measure_to(scene: &mut Scene, before: Before, bar: f64) -> f64 {
    measure_with(scene, before, bar, &[])
}

/// The same, with these flags.
///
/// # Panics
/// If a copy fails.
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

/// From accept() to the final name; with scp, which writes under it, to the program's end.
fn once(scene: &mut Scene, rtt: Duration, before: Before, flags: &[&str]) -> Duration {
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
