//! `--via`: relaying hosts, those that refuse, and the automatic choice.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use longhaul_tests::{Scene, password, remote};
use rustix::process::{Pid, Signal, kill_process};
use testkit::peer::Auth;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{Outcome, PeerBuilder, PeerKind, PeerServer, Seed};

/// Starts a scene, and a further server that accepts its client, with these settings.
fn with_host(name: &str, settings: &[(&str, &str)]) -> Option<(Scene, PeerServer)> {
    let mut scene = Scene::beyond_scp(PeerKind::OpenSsh)?;
    let peer = another(&mut scene, name, settings)?;
    Some((scene, peer))
}

fn another(scene: &mut Scene, name: &str, settings: &[(&str, &str)]) -> Option<PeerServer> {
    let mut builder = PeerBuilder::openssh();
    for (option, value) in settings {
        builder = builder.option(option, *value);
    }
    let peer = builder.authorize(&scene.client.dir).start()?;
    scene.client.dir.add_host(name, &peer);
    Some(peer)
}

fn logins(peer: &PeerServer) -> usize {
    peer.log().matches("Accepted publickey").count()
}

/// Copies a file there and back.
#[track_caller]
fn copies_a_file(scene: &Scene, flags: &[&str]) {
    write_file(&scene.path("file"), &Seed::new(1).bytes(40_000_000));
    for name in ["up", "down"] {
        let _ = fs::remove_file(scene.path(name));
    }
    scene.copies(flags, scene.path("file"), scene.remote("up"));
    scene.copies(flags, scene.remote("up"), scene.path("down"));
    assert_same(&scene.path("file"), &scene.path("down"), Compare::CONTENT);
}

/// Fails to upload a file.
#[track_caller]
fn fails(scene: &Scene, via: &str, host: &str, words: &[&str]) {
    write_file(&scene.path("file"), b"content");
    let to = remote(host, &scene.path("copy"));
    let run = scene.client.cp().args(["--via", via]);
    let run = run.arg(scene.path("file")).arg(to);
    run.run().expect_code(255).expect_err(words);
}

#[test]
fn each_connection_has_its_own_at_each_relaying_host() {
    let Some((mut scene, first)) = with_host("first", &[]) else {
        return;
    };
    let Some(second) = another(&mut scene, "second", &[]) else {
        return;
    };
    let before = logins(&scene.peer);
    copies_a_file(&scene, &["--connections=3", "--via", "first,second"]);
    let reached = logins(&scene.peer) - before;
    assert!(reached > 2, "{reached} connections");
    for relaying in [&first, &second] {
        assert!(logins(relaying) >= reached, "{}", relaying.log());
    }
    let files = fs::read_dir(first.home()).expect("a home").count();
    assert_eq!(files, 0, "a relaying host stores nothing");
    let run = scene.client.cp().args(["--via", "first,second"]);
    let run = run.arg(scene.path("file")).arg(scene.remote("again"));
    run.run()
        .expect_code(0)
        .expect_err(&["; relayed by first,second"]);
}

/// With an open connection of ssh, only the target was reached through it.
#[test]
fn an_open_connection_of_ssh_reaches_a_relaying_host() {
    let Some((mut scene, first)) = with_host("first", &[]) else {
        return;
    };
    let socket = scene.client.dir.path().join("master");
    let dir = &mut scene.client.dir;
    dir.set("first", "ControlPath", socket.display().to_string());
    let ssh = |dir: &testkit::ClientDir, arguments: &[&str]| {
        let run = dir.run("ssh").arg("-F").arg(dir.config());
        run.args(arguments).run().expect_code(0)
    };
    let lasting = [
        "-oControlMaster=yes",
        "-oControlPersist=60",
        "first",
        "true",
    ];
    ssh(&scene.client.dir, &lasting);
    let before = logins(&first);
    // Our own login is refused from now on.
    scene.client.dir.set("first", "PubkeyAuthentication", "no");
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    let run = scene.client.cp().args(["--via", "first", "-v", "-v"]);
    let run = run.arg(scene.path("file")).arg(scene.remote("copy"));
    let outcome = run.run().expect_code(0);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
    let outcome =
        outcome.expect_err(&["first: connecting through ssh's open connection (ControlPath) at"]);
    assert!(!outcome.err().contains("debug1: "), "{outcome}");
    assert_eq!(logins(&first), before);
    ssh(&scene.client.dir, &["-O", "exit", "first"]);
}

#[test]
fn a_relaying_host_can_be_named_without_ssh_config() {
    let Some((scene, first)) = with_host("first", &[]) else {
        return;
    };
    let named = format!("{}@127.0.0.1:{}", first.user(), first.port());
    copies_a_file(&scene, &["--via", &named]);
    assert!(logins(&first) > 0, "{}", first.log());
}

#[test]
fn a_relaying_host_replaces_a_proxy_of_ssh_config() {
    let Some((mut scene, first)) = with_host("first", &[]) else {
        return;
    };
    scene.client.dir.set("peer", "ProxyCommand", "exec false");
    copies_a_file(&scene, &["--via", "first"]);
    assert!(logins(&first) > 0, "{}", first.log());
}

#[test]
fn a_relaying_host_that_forbids_forwarding_is_named() {
    let Some((scene, _first)) = with_host("first", &[("AllowTcpForwarding", "no")]) else {
        return;
    };
    fails(
        &scene,
        "first",
        "peer",
        &[
            "cannot connect to 127.0.0.1 port",
            "through first: ",
            "AllowTcpForwarding",
        ],
    );
}

#[test]
fn a_target_that_the_relaying_host_cannot_reach_is_named() {
    let Some((mut scene, _first)) = with_host("first", &[]) else {
        return;
    };
    scene.client.dir.set("peer", "Port", "1");
    fails(
        &scene,
        "first",
        "peer",
        &[
            "cannot connect to 127.0.0.1 port 1 through first: ",
            "refused",
        ],
    );
    let name = "no-such-host.invalid";
    scene.client.dir.set("peer", "HostName", name);
    let said = format!("cannot connect to {name} port 1 through first: ");
    fails(&scene, "first", "peer", &[&said, "HostName in ssh_config"]);
}

#[test]
fn a_relaying_host_that_refuses_the_login_is_named() {
    let Some((mut scene, _first)) = with_host("first", &[]) else {
        return;
    };
    scene.client.dir.set("first", "User", "nobody-of-this-name");
    fails(&scene, "first", "peer", &["first: permission denied"]);
}

/// A relaying host may connect to any server. All that it gains is a key exchange.
#[test]
fn a_relaying_host_that_leads_to_another_server_is_refused() {
    let Some((mut scene, first)) = with_host("first", &[]) else {
        return;
    };
    let Some(other) = another(&mut scene, "other", &[]) else {
        return;
    };
    // The way to `peer` ends at the other server.
    let known = fs::read_to_string(scene.client.dir.known_hosts()).expect("our file");
    let line = format!("the-peer {}\n", scene.peer.host_keys()[0].public_line());
    fs::write(scene.client.dir.known_hosts(), known + &line).expect("our file");
    scene.client.dir.set("peer", "HostKeyAlias", "the-peer");
    let port = other.port().to_string();
    scene.client.dir.set("peer", "Port", port);
    fails(&scene, "first", "peer", &["changed"]);
    assert_eq!(logins(&first), 1);
    assert_eq!(logins(&other), 0, "nothing of ours reached it");
    assert!(!scene.path("copy").exists());
}

#[test]
fn a_copy_goes_on_after_a_relaying_host_has_lost_its_connections() {
    let Some((scene, first)) = with_host("first", &[]) else {
        return;
    };
    let content = Seed::new(2).bytes(8_000_000);
    write_file(&scene.path("file"), &content);
    let run = scene.client.cp().args(["--via", "first", "--limit=16Mbit"]);
    let run = run.args(["--connections=1"]);
    let running = run
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .spawn();
    // The source and the temporary. What is lost before the first bytes is a failed login.
    let folder = scene.path("");
    assert!(running.until(|| longhaul_tests::names_in(&folder).len() > 1));
    for pid in first.sessions() {
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    running.wait().expect_code(0);
    assert!(fs::read(scene.path("copy")).expect("a copy") == content);
    assert!(logins(&first) > 1, "{}", first.log());
}

/// Uploads a folder with `--via auto`, and returns what was said.
fn chooses(scene: &Scene) -> Outcome {
    fs::create_dir_all(scene.path("folder")).expect("our folder");
    write_file(&scene.path("folder/file"), &Seed::new(3).bytes(100_000));
    let run = scene.client.cp().args(["-r", "--explain", "--via=auto"]);
    let run = run.arg(scene.path("folder")).arg(scene.remote("copy"));
    run.run()
}

fn configure(scene: &Scene, text: &str) {
    let folder = scene.client.dir.path().join("config/longhaul");
    fs::create_dir_all(&folder).expect("our folder");
    fs::write(folder.join("config.toml"), text).expect("our file");
}

#[test]
fn candidates_that_are_down_do_not_fail_a_copy() {
    let Some((scene, first)) = with_host("first", &[]) else {
        return;
    };
    configure(&scene, "via = [\"127.0.0.1:1\", \"first\"]\n");
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["via: the direct way (measured", "127.0.0.1:1: ", "first "]);
    let measured = logins(&first);
    assert_eq!(measured, 1, "{}", first.log());
    // The choice is remembered.
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["via: the direct way (learned"]);
    assert_eq!(logins(&first), measured);
    // Other candidates are measured again.
    configure(&scene, "via = [\"first\"]\n");
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["via: the direct way (measured"]);
}

#[test]
fn a_chosen_host_that_has_gone_is_given_up_for_the_direct_way() {
    let Some((mut scene, first)) = with_host("first", &[]) else {
        return;
    };
    configure(&scene, "via = [\"first\"]\n");
    // The direct way does not work yet.
    scene.client.dir.set("peer", "ProxyCommand", "exec false");
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["via: through first (measured"]);
    assert!(logins(&first) > 1, "{}", first.log());
    scene.client.dir.set("peer", "ProxyCommand", "none");
    drop(first);
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["connecting directly"]);
    // It is not tried again.
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["via: the direct way (measured"]);
}

/// A measurement and a copy log in twice.
#[test]
fn a_password_is_asked_for_once() {
    let Some(mut scene) = Scene::with(PeerBuilder::openssh().auth(Auth::Password)) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    configure(&scene, "via = [\"127.0.0.1:1\"]\n");
    let client = &mut scene.client.dir;
    client.set("peer", "PubkeyAuthentication", "no");
    fs::create_dir_all(scene.path("folder")).expect("our folder");
    write_file(&scene.path("folder/file"), &Seed::new(3).bytes(100_000));
    for path in ["", "folder"] {
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(scene.path(path), everybody).expect("ours");
    }
    let run = scene.client.answering(password());
    let run = run.args(["-r", "--explain", "--via=auto"]);
    let run = run.arg(scene.remote("folder")).arg(scene.path("copy"));
    let outcome = run.run().expect_code(0);
    outcome.expect_err(&["via: the direct way (measured"]);
    let asked = scene.client.dir.asked();
    assert_eq!(asked.lines().count(), 1, "{asked}");
}

#[test]
fn a_mistake_in_the_configuration_has_its_line() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    configure(&scene, "\nvia = [\"a b\"]\n");
    chooses(&scene)
        .expect_code(2)
        .expect_err(&["config.toml:2: via: ", "not a valid host name"]);
    fs::remove_file(scene.client.dir.path().join("config/longhaul/config.toml")).expect("ours");
    let outcome = chooses(&scene).expect_code(0);
    outcome.expect_err(&["no relaying hosts are configured: list them in "]);
}
