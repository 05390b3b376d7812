//! `longhaul dial` under OpenSSH's programs and under longhaul itself, with and without
//! ProxyUseFdpass.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::serving::openssh;
use longhaul_tests::{Scene, Silent, longhaul};
use testkit::tree::{Compare, Tree, assert_same, write_file};

use testkit::{Outcome, PeerKind, Run, Seed, missing};

fn dialing(fdpass: bool, flags: &str) -> Option<Scene> {
    let mut scene = Scene::start(PeerKind::OpenSsh)?;
    let program = longhaul();
    let command = format!("{} dial {flags} %h %p", program.display());
    scene.client.dir.set("peer", "ProxyCommand", command);
    if fdpass {
        scene.client.dir.set("peer", "ProxyUseFdpass", "yes");
    }
    scene.client.dir.set("peer", "IPQoS", "none");
    Some(scene)
}

/// Counts longhaul's processes below ssh while it communicates.
const LOOK: &str = "sleep 0.2; pgrep -c -P $PPID -f '[l]onghaul dial'";

#[test]
fn scp_sftp_and_rsync_copy_through_it() {
    for fdpass in [true, false] {
        let Some(scene) = dialing(fdpass, "") else {
            return;
        };
        let content = Seed::new(3).bytes(3_000_000);
        write_file(&scene.path("file"), &content);
        let file = scene.path("file");
        let copied = |name: &str, outcome: Outcome| {
            let outcome = outcome.expect_code(0);
            assert!(
                fs::read(scene.path(name)).expect("it is there") == content,
                "{outcome}"
            );
        };
        let run = openssh(&scene, "scp").arg("-q").arg(&file);
        copied("up", run.arg(scene.remote("up")).run());
        let run = openssh(&scene, "scp").arg("-q").arg(scene.remote("up"));
        copied("down", run.arg(scene.path("down")).run());
        let batch = format!("get {} {}\n", file.display(), scene.path("got").display());
        copied(
            "got",
            openssh(&scene, "sftp").arg("peer").stdin(batch).run(),
        );
        if missing::find_program("rsync").is_none() {
            missing::skip("rsync", "run scripts/setup-tests.sh");
            continue;
        }
        Tree::full(5).make(&scene.path("tree"));
        let ssh = format!("ssh -F {}", scene.client.dir.config().display());
        let run = Run::new("rsync").args(["-a", "-e", &ssh]);
        let from = format!("{}/", scene.path("tree").display());
        let run = run.arg(from).arg(scene.remote("tree-up"));
        run.run().expect_code(0);
        assert_same(
            &scene.path("tree"),
            &scene.path("tree-up"),
            Compare::CONTENT,
        );
    }
}

#[test]
fn git_fetches_through_it() {
    let Some(scene) = dialing(true, "") else {
        return;
    };
    if missing::find_program("git").is_none() {
        missing::not_here("git is not installed");
        return;
    }
    let git = |words: &[&str]| {
        let run = Run::new("git")
            .args(words)
            .env("HOME", scene.scratch.path());
        let ssh = format!("ssh -F {}", scene.client.dir.config().display());
        run.env("GIT_SSH_COMMAND", ssh).run().expect_code(0)
    };
    let (repo, clone) = (scene.path("repo"), scene.path("clone"));
    let repo = repo.display().to_string();
    git(&["init", "-q", &repo]);
    write_file(&Path::new(&repo).join("file"), b"content");
    git(&["-C", &repo, "add", "file"]);
    let author = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"];
    let commit = ["-C", &repo, "commit", "-q", "-m", "one"];
    git(&[&author[..], &commit[..]].concat());
    git(&[
        "clone",
        "-q",
        &format!("peer:{repo}"),
        &clone.display().to_string(),
    ]);
    assert_eq!(fs::read(clone.join("file")).expect("it"), b"content");
}

/// With ProxyUseFdpass, no process of longhaul carries a byte, and ssh sees the real address.
#[test]
fn nothing_is_left_of_it_when_ssh_has_the_socket() {
    for fdpass in [true, false] {
        let Some(mut scene) = dialing(fdpass, "") else {
            return;
        };
        scene.client.dir.set("peer", "PermitLocalCommand", "yes");
        let found = scene.path("found");
        let command = format!("({LOOK}) > {} 2>&1", found.display());
        scene.client.dir.set("peer", "LocalCommand", command);
        let outcome = openssh(&scene, "ssh").args(["-v", "peer", "true"]).run();
        let outcome = outcome.expect_code(0);
        let found = fs::read_to_string(found).expect("it looked");
        let expected = if fdpass { "0" } else { "1" };
        assert_eq!(found.trim(), expected, "{outcome}");
        let proxied = outcome.err().contains("(via proxy)");
        assert_eq!(proxied, !fdpass, "{outcome}");
    }
}

#[test]
fn a_shared_connection_goes_through_it_once() {
    let Some(scene) = dialing(true, "") else {
        return;
    };
    let socket = scene.path("control");
    let control = format!("ControlPath={}", socket.display());
    let ssh = || openssh(&scene, "ssh").args(["-o", &control]);
    let options = ["-o", "ControlMaster=yes", "-o", "ControlPersist=30"];
    ssh()
        .args(options)
        .args(["peer", "true"])
        .run()
        .expect_code(0);
    assert!(socket.exists());
    ssh().args(["peer", "true"]).run().expect_code(0);
    ssh().args(["-O", "exit", "peer"]).run();
}

#[test]
fn longhaul_takes_the_socket_as_ssh_does() {
    for fdpass in [true, false] {
        // By default longhaul hands the socket over to ssh only.
        let flags = if fdpass { "--fdpass always" } else { "" };
        let Some(scene) = dialing(fdpass, flags) else {
            return;
        };
        if scene.client.is_scp() {
            return;
        }
        let content = Seed::new(4).bytes(20_000_000);
        write_file(&scene.path("file"), &content);
        let flags = ["--connections", "2"];
        scene.copies(&flags, scene.path("file"), scene.remote("up"));
        assert!(fs::read(scene.path("up")).expect("it is there") == content);
    }
}

#[test]
fn a_proxy_command_that_passes_nothing_is_said() {
    for (command, says) in [
        ("true", "has ended without"),
        ("echo SSH-2.0-x; sleep 5", "passed no socket"),
        ("sleep 30", "in time"),
    ] {
        let Some(mut scene) = dialing(true, "") else {
            return;
        };
        if scene.client.is_scp() {
            return;
        }
        scene
            .client
            .dir
            .set("peer", "ProxyCommand", format!("sh -c '{command}'"));
        scene.client.dir.set("peer", "ConnectTimeout", "2");
        write_file(&scene.path("file"), b"content");
        let run = scene.client.cp().arg(scene.path("file"));
        let outcome = run.arg(scene.remote("copy")).run().expect_code(255);
        outcome.expect_err(&["ProxyUseFdpass", says]);
    }
}

#[test]
fn who_refuses_is_named_and_who_is_silent_is_given_up() {
    let free = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("its address").port()
    };
    let dial = |words: &[&str]| Run::new(longhaul()).arg("dial").args(words).run();
    let outcome = dial(&["127.0.0.1", &free.to_string()]).expect_code(255);
    outcome.expect_err(&["127.0.0.1", &free.to_string(), "refused"]);
    let begun = Instant::now();
    let words = ["--attempts", "2", "127.0.0.1", &free.to_string()];
    dial(&words).expect_code(255);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let outcome = dial(&["--congestion", "none-such", "127.0.0.1", "1"]);
    outcome.expect_code(2).expect_err(&["none-such"]);

    // A listener with a full queue answers no further SYN.
    let silent = Silent::start();
    let port = silent.port().to_string();
    let words = ["--connect-timeout", "1", "127.0.0.1", &port];
    dial(&words).expect_code(255).expect_err(&["no answer"]);
}

#[test]
fn a_reader_that_has_enough_and_an_end_of_input_end_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener
        .local_addr()
        .expect("its address")
        .port()
        .to_string();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut copy = stream.try_clone().expect("the same");
        std::io::copy(&mut stream, &mut copy).expect("it comes back");
    });
    let text = "through it and back\n".repeat(10_000);
    let run = Run::new(longhaul()).args(["dial", "127.0.0.1", &port]);
    let outcome = run.stdin(text.clone()).run().expect_code(0);
    assert!(outcome.out() == text, "{} bytes", outcome.out().len());
    echo.join().expect("it has ended");
}

/// The printed lines work in ssh_config.
#[test]
fn the_lines_for_ssh_config_lead_through_it() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let config = scene.client.dir.config();
    let run = Run::new(longhaul()).args(["ssh-config", "--write", "--yes", "--file"]);
    run.arg(&config).arg("peer").run().expect_code(0);
    let outcome = openssh(&scene, "ssh")
        .args(["-G", "peer"])
        .run()
        .expect_code(0);
    let out = outcome.out();
    assert!(out.contains("proxyusefdpass yes"), "{out}");
    assert!(out.contains(" dial "), "{out}");
    let outcome = openssh(&scene, "ssh")
        .args(["-v", "peer", "echo through"])
        .run();
    assert_eq!(outcome.expect_code(0).out(), "through\n");
}
