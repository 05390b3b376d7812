//! Delays that must not occur on a long path, with the real sshd behind a delaying proxy. The
//! limits are in round trips that are long compared to the delays of a busy machine.

use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use longhaul_tests::Scene;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed};

const RTT: Duration = Duration::from_millis(200);

/// Returns the round trips of a copy to `copy` from start to end, including the login. If the first
/// run takes more than `bar`, the least of several runs counts, since a busy machine adds to each.
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

/// A deep tree does not take a round trip for each level. Before this, each directory got its mode
/// only after the request for its subdirectory was answered.
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

/// The connection itself is short here, as behind a ProxyCommand or a jump host: the round trip
/// that TCP reports is not the time that a READ takes.
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
    // A window of 2 MiB would take 24 round trips for the data alone.
    assert!(took < 22.0, "{took:.1} round trips for 48 MiB");
}
