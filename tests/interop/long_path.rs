//! What a long path must not cost, against the real sshd behind a delaying proxy. Bounds in round
//! trips of a length beside which a busy machine's own delays are small.

use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use longhaul_tests::Scene;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed};

const RTT: Duration = Duration::from_millis(200);

/// Round trips of a copy to `copy` from its start to its end, login and all. The least of some
/// runs, if the first takes more than `bar`: a busy machine adds to each.
fn round_trips(scene: &Scene, from: &OsStr, to: &OsStr, bar: f64) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..4 {
        let copy = scene.path("copy");
        let _ = fs::remove_dir_all(&copy);
        let _ = fs::remove_file(&copy);
        let outcome = scene.client.cp().arg("-r").arg(from).arg(to).run();
        let outcome = outcome.expect_code(0);
        least = least.min(outcome.elapsed.as_secs_f64() / RTT.as_secs_f64());
        if least < bar {
            break;
        }
    }
    least
}

fn far(scene: &mut Scene) -> DelayProxy {
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(RTT).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    proxy
}

/// Each directory got its mode only when the one in it had been answered.
#[test]
fn a_deep_tree_does_not_take_a_round_trip_for_each_level() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let mut folder = scene.path("tree");
    for level in 0..40 {
        folder.push(format!("level{level}"));
    }
    fs::create_dir_all(&folder).expect("our folders");
    write_file(&folder.join("file"), b"down here");
    let _proxy = far(&mut scene);
    let (from, to) = (scene.path("tree").into_os_string(), scene.remote("copy"));
    let took = round_trips(&scene, &from, &to, 30.0);
    assert_same(&scene.path("tree"), &scene.path("copy"), Compare::CONTENT);
    assert!(took < 30.0, "{took:.1} round trips for 40 levels");
}

/// The connection itself is short here, as behind a ProxyCommand or a jump host: what TCP says of
/// the round trip is not what a READ takes.
#[test]
fn the_receive_window_follows_what_is_asked_for_and_not_the_first_hop() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(5).bytes(48 << 20));
    let _proxy = far(&mut scene);
    let (from, to) = (scene.remote("file"), scene.path("copy").into_os_string());
    let took = round_trips(&scene, &from, &to, 22.0);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
    // A window of 2 MiB alone would take 24 of them for the data.
    assert!(took < 22.0, "{took:.1} round trips for 48 MiB");
}
