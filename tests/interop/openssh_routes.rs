//! Routes to a server, and what happens if it cannot be reached.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use longhaul_tests::{Scene, remote};
use testkit::delay_proxy::Way;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{DelayProxy, PeerBuilder, PeerKind, Seed, missing};

/// Starts another server that accepts the scene's client, under `name`.
fn another(scene: &mut Scene, name: &str) -> Option<testkit::PeerServer> {
    let peer = PeerBuilder::openssh()
        .authorize(&scene.client.dir)
        .start()?;
    scene.client.dir.add_host(name, &peer);
    Some(peer)
}

fn copies_a_file(scene: &Scene, flags: &[&str]) {
    write_file(&scene.path("file"), &Seed::new(1).bytes(400_000));
    for name in ["up", "down"] {
        let _ = fs::remove_file(scene.path(name));
    }
    scene.copies(flags, scene.path("file"), scene.remote("up"));
    scene.copies(flags, scene.remote("up"), scene.path("down"));
    assert_same(&scene.path("file"), &scene.path("down"), Compare::CONTENT);
}

#[test]
fn through_one_and_two_jump_hosts() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let Some(first) = another(&mut scene, "first") else {
        return;
    };
    let Some(second) = another(&mut scene, "second") else {
        return;
    };
    // scp passes -J, and nothing of -F, to the ssh that it starts for the jump, so that it is set
    // in the config.
    scene.client.dir.set("second", "ProxyJump", "first");
    scene.client.dir.set("peer", "ProxyJump", "first");
    copies_a_file(&scene, &[]);
    assert!(
        first.log().contains("Accepted publickey"),
        "{}",
        first.log()
    );
    scene.client.dir.set("peer", "ProxyJump", "second");
    copies_a_file(&scene, &[]);
    assert!(
        second.log().contains("Accepted publickey"),
        "{}",
        second.log()
    );
    scene.client.dir.set("second", "ProxyJump", "none");
    scene.client.dir.set("peer", "ProxyJump", "none");
    copies_a_file(&scene, &["-J", "first,second"]);
}

#[test]
fn doctor_judges_both_hops_of_a_jump() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let Some(_first) = another(&mut scene, "first") else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    scene.client.dir.set("peer", "ProxyJump", "first");
    let run = scene.client.dir.run(longhaul_tests::longhaul());
    let run = run.args(["doctor", "-F"]).arg(scene.client.dir.config());
    let outcome = run
        .args(["--time", "6s", "peer"])
        .timeout(Duration::from_secs(60))
        .run()
        .expect_code(0);
    let out = outcome.out();
    assert!(
        out.contains("The way to the jump host first: "),
        "{outcome}"
    );
    assert!(
        out.contains("uploads: ") && out.contains("round trip: "),
        "{outcome}"
    );
    assert!(
        out.contains("TCP's counters: the connection runs through a jump host"),
        "{outcome}"
    );
}

#[test]
fn a_jump_host_with_a_changed_key_is_not_passed() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let Some(first) = another(&mut scene, "first") else {
        return;
    };
    scene.client.dir.set("peer", "ProxyJump", "first");
    let other = scene.peer.host_keys()[0].public_line();
    let lines = format!("[127.0.0.1]:{} {other}\n", first.port());
    fs::write(scene.client.dir.known_hosts(), lines).expect("our file");
    write_file(&scene.path("file"), b"content");
    scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .run()
        .expect_code(255)
        .expect_err(&["changed"]);
    assert!(
        !first.log().contains("Accepted"),
        "nothing of ours reached it"
    );
}

#[test]
fn through_a_proxy_command() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let Some(_first) = another(&mut scene, "first") else {
        return;
    };
    let config = scene.client.dir.config();
    let command = format!("ssh -F {} -W %h:%p first", config.display());
    scene.client.dir.set("peer", "ProxyCommand", command);
    copies_a_file(&scene, &[]);
    scene.client.dir.set("peer", "ProxyCommand", "exec false");
    write_file(&scene.path("file"), b"content");
    let run = scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg(scene.remote("copy"));
    run.run().expect_code(255);
}

#[test]
fn over_the_systems_ssh() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    copies_a_file(&scene, &["-S", "ssh"]);
    Tree::full(3).make(&scene.path("tree"));
    scene.copies(
        &["-r", "-p", "-S", "ssh"],
        scene.path("tree"),
        scene.remote("copy"),
    );
    assert_same(
        &scene.path("tree"),
        &scene.path("copy"),
        Compare::PRESERVED.following(),
    );
    // A failure of the program counts as a failed connection.
    let run = scene.client.cp().args(["-S", "/nonexistent/ssh"]);
    let outcome = run.arg(scene.path("file")).arg(scene.remote("x")).run();
    if !scene.client.is_scp() {
        outcome.expect_code(255).expect_err(&["/nonexistent/ssh"]);
    }
}

#[test]
fn over_a_local_sftp_server() {
    let Some(server) = missing::sftp_server() else {
        missing::skip("sftp-server", "Debian: openssh-sftp-server");
        return;
    };
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let server = server.display().to_string();
    copies_a_file(&scene, &["-D", &server]);
    Tree::full(4).make(&scene.path("tree"));
    scene.copies(
        &["-r", "-p", "-D", &server],
        scene.path("tree"),
        scene.remote("copy"),
    );
    assert_same(
        &scene.path("tree"),
        &scene.path("copy"),
        Compare::PRESERVED.following(),
    );
    assert!(
        !scene.peer.log().contains("Accepted"),
        "no connections seen"
    );
}

#[test]
fn between_two_servers() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let Some(_second) = another(&mut scene, "second") else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    let second = |name: &str| remote("second", &scene.path(name));
    scene.copies(&["-3"], scene.remote("file"), second("copy"));
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
    Tree::full(5).make(&scene.path("tree"));
    scene.copies(
        &["-3", "-r", "-p"],
        scene.remote("tree"),
        second("tree-copy"),
    );
    let compare = if scene.client.is_scp() {
        Compare::MODES
    } else {
        Compare::PRESERVED
    };
    assert_same(
        &scene.path("tree"),
        &scene.path("tree-copy"),
        compare.following(),
    );
    if !scene.client.is_scp() {
        scene.copies(&[], scene.remote("file"), second("without-3"));
        assert_same(
            &scene.path("file"),
            &scene.path("without-3"),
            Compare::CONTENT,
        );
    }
}

#[test]
fn compressed() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    copies_a_file(&scene, &["-C"]);
    copies_a_file(&scene, &["-o", "Compression=yes"]);
    // Compressed data takes fewer bytes of the path.
    let proxy = DelayProxy::to(scene.peer.addr()).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("zeros"), &vec![b'0'; 5_000_000]);
    scene.copies(&["-C"], scene.path("zeros"), scene.remote("copy"));
    assert_same(&scene.path("zeros"), &scene.path("copy"), Compare::CONTENT);
    assert!(
        proxy.carried(Way::Up) < 500_000,
        "{} bytes went up",
        proxy.carried(Way::Up)
    );
    scene.copies(&["-C"], scene.remote("zeros"), scene.path("copy2"));
    assert_same(&scene.path("zeros"), &scene.path("copy2"), Compare::CONTENT);
    assert!(
        proxy.carried(Way::Down) < 500_000,
        "{} bytes came",
        proxy.carried(Way::Down)
    );
}

#[test]
fn the_rate_can_be_limited() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    // To a directory whose name does not reveal that it is one: data sent to the wrong place first
    // must obey the limit too.
    for (from, to) in [
        (scene.path("file").into_os_string(), scene.remote("copy")),
        (scene.remote("file"), scene.path("back").into_os_string()),
    ] {
        // 8000 kbit/s with 1024 bits each are 1,024,000 bytes per second: 2.93 s, plus the time to
        // connect.
        let run = scene.client.cp().args(["-l", "8000"]).arg(from).arg(to);
        let outcome = run.run().expect_code(0);
        let took = outcome.elapsed.as_secs_f64();
        assert!((2.6..4.0).contains(&took), "3 MB at 1 MB/s took {took} s");
    }
    for name in ["copy", "back"] {
        assert_same(&scene.path("file"), &scene.path(name), Compare::CONTENT);
    }
}

#[test]
fn a_path_that_goes_dark_is_noticed() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rate(4_000_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(1).bytes(8_000_000));
    let flags = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"];
    let running = scene
        .client
        .cp()
        .args(flags)
        .arg(scene.remote("file"))
        .arg(scene.path("copy"))
        .spawn();
    assert!(running.until(|| proxy.carried(Way::Down) > 1_000_000));
    proxy.blackout(Duration::from_secs(8));
    let outcome = running.wait().expect_code(0);
    outcome.expect_err(&["the server stopped responding to keepalives"]);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
}

#[test]
fn a_short_darkness_is_survived() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rate(4_000_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(1).bytes(4_000_000));
    let running = scene
        .client
        .cp()
        .arg(scene.remote("file"))
        .arg(scene.path("copy"))
        .spawn();
    assert!(running.until(|| proxy.carried(Way::Down) > 500_000));
    proxy.blackout(Duration::from_millis(1500));
    running.wait().expect_code(0);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
}

#[test]
fn nobody_listens() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let port = testkit::port::free();
    scene.client.dir.add_host_at("peer", &scene.peer, port);
    write_file(&scene.path("file"), b"content");
    let run = scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg(scene.remote("copy"));
    run.run()
        .expect_code(255)
        .expect_err(&["refused"])
        .expect_err(&[&port.to_string()]);
}

/// Starts a server that sends `greeting` and then nothing more, for one connection after another.
fn impostor(greeting: &'static [u8]) -> u16 {
    let listener = TcpListener::bind(testkit::port::loopback(0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let _ = socket.write_all(greeting);
            std::thread::spawn(move || {
                let mut sink = [0; 4096];
                while let Ok(1..) = socket.read(&mut sink) {}
            });
        }
    });
    port
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    for greeting in [&b""[..], b"SSH-2.0-OpenSSH_9.2\r\n"] {
        if scene.client.is_scp() && !greeting.is_empty() {
            // ssh's own time limit ends with the banner.
            continue;
        }
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, impostor(greeting));
        let run = scene.client.cp().args(["-o", "ConnectTimeout=2"]);
        let outcome = run.arg(scene.path("file")).arg(scene.remote("copy")).run();
        let outcome = outcome.expect_code(255);
        assert!(outcome.elapsed < Duration::from_secs(15), "{outcome}");
        assert!(!outcome.stderr.is_empty(), "{outcome}");
    }
}

#[test]
fn what_is_not_ssh_is_said_to_be_so() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    for greeting in [
        &b"SSH-1.5-old\r\n"[..],
        b"SSH-2.0-x\r\n\x7f\xff\xff\xff\x00\x00\x00\x00",
        b"SSH-2.0-x\r\n\x00\x00\x00\x00\x00\x00\x00\x00",
    ] {
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, impostor(greeting));
        let run = scene.client.cp().args(["-o", "ConnectTimeout=5"]);
        let outcome = run.arg(scene.path("file")).arg(scene.remote("copy")).run();
        let outcome = outcome.expect_code(255);
        assert!(!outcome.stderr.is_empty(), "{outcome}");
        assert!(!outcome.stderr.contains(&0x1b), "{outcome}");
    }
}
