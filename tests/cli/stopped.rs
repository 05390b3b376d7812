//! Copies that are stopped in the middle.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use longhaul_tests::{Client, Scene, names_in, scratch};
use testkit::delay_proxy::Way;
use testkit::tree::write_file;
use testkit::{Auth, DelayProxy, PeerBuilder, PeerKind, Run, Running, Seed};

/// Starts a copy with enough left to stop it.
fn under_way(scene: &mut Scene, up: bool, size: usize, terminal: bool) -> (Running, DelayProxy) {
    let proxy = DelayProxy::to(scene.peer.addr()).rate(5_000_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    for folder in ["from", "to"] {
        std::fs::create_dir_all(scene.path(folder)).expect("our folder");
    }
    write_file(&scene.path("from/file"), &Seed::new(1).bytes(size));
    let run = if up {
        scene
            .client
            .cp()
            .arg(scene.path("from/file"))
            .arg(scene.remote("to"))
    } else {
        scene
            .client
            .cp()
            .arg(scene.remote("from/file"))
            .arg(scene.path("to"))
    };
    let run: Run = if terminal { run.in_terminal() } else { run };
    let running = run.spawn();
    let way = if up { Way::Up } else { Way::Down };
    assert!(
        running.until(|| proxy.carried(way) > 2_000_000),
        "{}",
        running.wait()
    );
    (running, proxy)
}

/// Too small for a journal; a large copy keeps its data (`resumed.rs`).
#[test]
fn a_small_copy_that_is_interrupted_leaves_nothing_behind() {
    for up in [true, false] {
        for gently in [true, false] {
            let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
                return;
            };
            let (running, _proxy) = under_way(&mut scene, up, 15_000_000, false);
            if gently {
                running.terminate()
            } else {
                running.interrupt()
            }
            let outcome = running.wait();
            assert!(!outcome.timed_out, "{outcome}");
            if scene.client.is_scp() {
                continue;
            }
            let outcome = outcome.expect_code(130);
            let left = names_in(&scene.path("to"));
            assert!(left.is_empty(), "up {up}: left {left:?}\n{outcome}");
        }
    }
}

/// After Control-C at a terminal, the terminal is in its normal state again.
#[test]
fn interrupted_at_a_terminal_it_leaves_the_terminal_sane() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let (mut running, _proxy) = under_way(&mut scene, false, 40_000_000, true);
    // The progress bar appears within its first seconds.
    assert!(running.shows("file"), "{}", running.wait());
    running.type_in("\x03");
    let outcome = running.wait();
    assert!(!outcome.timed_out, "{outcome}");
    assert!(outcome.code == Some(130), "{outcome}");
    let out = outcome.out();
    // A hidden cursor is shown again.
    if let Some(hidden) = out.rfind("\x1b[?25l") {
        let shown = out.rfind("\x1b[?25h");
        assert!(
            shown.is_some_and(|shown| shown > hidden),
            "the cursor stays hidden: {outcome}"
        );
    }
    assert!(out.contains("to resume: "), "{outcome}");
}

/// A signal while connecting ends the program. Before this, it had no effect until the server
/// answered.
#[test]
fn interrupted_while_it_connects_it_ends() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    scene.client.dir.add_host_at("peer", &scene.peer, port);
    write_file(&scene.path("file"), b"content");
    let run = scene.client.cp().arg(scene.path("file"));
    let running = run.arg(scene.remote("copy")).spawn();
    let _connected = silent.accept().expect("it connects");
    let interrupted = Instant::now();
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    assert!(interrupted.elapsed() < Duration::from_secs(3), "{outcome}");
}

/// Control-C at a prompt ends the run, and is not an answer.
#[test]
fn interrupted_at_a_question_it_ends() {
    let mut client = Client::new();
    if client.is_scp() {
        return;
    }
    let builder = PeerBuilder::new(PeerKind::OpenSsh).auth(Auth::Password);
    let Some(peer) = builder.start() else { return };
    client.dir.add_host("peer", &peer);
    client.dir.set_for_all("BatchMode", "no");
    let files = scratch();
    write_file(&files.path().join("file"), b"content");
    let run = client.cp().arg(files.path().join("file")).arg("peer:copy");
    let mut running = run.in_terminal().spawn();
    assert!(running.shows("password: "), "{}", running.wait());
    let interrupted = Instant::now();
    running.type_in("\x03");
    let outcome = running.wait().expect_code(130);
    assert!(interrupted.elapsed() < Duration::from_secs(5), "{outcome}");
}

/// If the reader of standard output exits, such as `head`, the program ends without a panic.
#[test]
fn a_closed_standard_output_is_no_panic() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let longhaul_tests::Program::Longhaul(program) = &scene.client.program else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    for flag in ["--json", "--help", "-v"] {
        let script = "trap '' PIPE; \"$@\" | true; exit ${PIPESTATUS[0]}";
        let run = scene
            .client
            .dir
            .run("bash")
            .args(["-c", script, "bash"])
            .arg(program);
        let run = run
            .arg("cp")
            .arg("-F")
            .arg(scene.client.dir.config())
            .arg(flag);
        let outcome = run.arg(scene.path("file")).arg(scene.remote("copy")).run();
        assert!(!outcome.timed_out && outcome.code != Some(101), "{outcome}");
        assert!(!outcome.err().contains("panicked"), "{outcome}");
    }
}
