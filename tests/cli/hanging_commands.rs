//! Accounts in which commands, or the SFTP server as well, start and never answer.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul, scratch};
use testkit::PeerBuilder;
use testkit::missing::sftp_server;

use crate::sync::{sync, write_file};

/// Returns a server where every command hangs; the SFTP server starts if `has_sftp`.
fn hanging(has_sftp: bool) -> Option<(Scene, tempfile::TempDir)> {
    let server = sftp_server()?;
    let folder = scratch();
    let script = folder.path().join("forced.sh");
    let serves = match has_sftp {
        true => "case $SSH_ORIGINAL_COMMAND in *sftp-server) exec $SSH_ORIGINAL_COMMAND;; esac\n",
        false => "",
    };
    let text = format!("#!/bin/sh\n{serves}exec sleep 90\n");
    write_file(&script, text.as_bytes());
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a script");
    let peer = PeerBuilder::openssh()
        .option("Subsystem", format!("sftp {}", server.display()))
        .option("ForceCommand", script.display().to_string());
    let scene = Scene::with(peer)?;
    (!scene.client.is_scp()).then_some((scene, folder))
}

/// Bug: `sync -H` waited 20 s for a longhaul at the far end without a word: it has no jobs before it
/// is known which server is used. Takes these 20 s.
#[test]
fn a_search_for_longhaul_that_hangs_was_waited_for_without_a_word() {
    let Some((scene, _folder)) = hanging(true) else {
        return;
    };
    write_file(&scene.path("a/one"), b"content");
    fs::hard_link(scene.path("a/one"), scene.path("a/two")).expect("a link");
    let run = sync(&scene, &["-H"]).arg(scene.path("a"));
    let run = run.arg(scene.remote("b")).timeout(Duration::from_secs(90));
    let outcome = run.run().expect_code(0);
    let told = "nothing received for 10 s: waiting for the answer to the request to start longhaul";
    assert!(outcome.err().contains(told), "{outcome}");
    assert_eq!(fs::read(scene.path("b/two")).expect("it"), b"content");
}

/// Bug: "hf:.: nothing received for 10 s: waiting for the answer to request" did not say that the
/// SFTP server does not start.
#[test]
fn an_sftp_server_that_does_not_start_was_an_unnamed_request() {
    let Some((scene, _folder)) = hanging(false) else {
        return;
    };
    write_file(&scene.path("a"), b"content");
    let run = scene.client.cp().arg(scene.path("a"));
    let running = run.arg(scene.remote("b")).spawn();
    let told = "peer: nothing received for 10 s: waiting for the answer to the request to start \
                the SFTP server";
    assert!(running.shows(told));
    running.interrupt();
    assert!(!running.wait().success());
}

/// Bug: Ctrl-C did not end `cp --bootstrap` while the account's shell did not answer.
#[test]
fn an_interrupt_ends_a_bootstrap_that_hangs() {
    let Some((scene, _folder)) = hanging(true) else {
        return;
    };
    write_file(&scene.path("a"), b"content");
    let run = scene.client.cp().arg("--bootstrap").arg(scene.path("a"));
    let running = run.arg(scene.remote("b")).spawn();
    assert!(running.shows("nothing received for 10 s"));
    let interrupted = Instant::now();
    running.interrupt();
    running.wait().expect_code(130);
    let took = interrupted.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Bug: Ctrl-C during `cp --bootstrap a: b:` ended with exit code 255, and `longhaul bootstrap` was
/// killed by it.
#[test]
fn an_interrupted_bootstrap_ended_like_a_lost_connection() {
    let Some((mut scene, _folder)) = hanging(true) else {
        return;
    };
    scene.client.dir.add_host("other", &scene.peer);
    let between = scene.client.cp().arg("--bootstrap").arg("peer:a");
    let between = between.arg("other:b").spawn();
    let dir = &scene.client.dir;
    let alone = dir.run(longhaul()).arg("bootstrap").arg("-F");
    let alone = alone.arg(dir.config()).arg("peer").spawn();
    for running in [between, alone] {
        assert!(running.shows("nothing received for 10 s"));
        running.interrupt();
        running.wait().expect_code(130).expect_err(&["interrupted"]);
    }
}
