//! `longhaul doctor` with running transfers and with hosts that cannot be measured.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul};
use testkit::tree::write_file;
use testkit::{DelayProxy, Outcome, PeerKind, Run, Seed};

use crate::resumed::is_scp;

fn doctor(scene: &Scene, flags: &[&str]) -> Run {
    let run = scene.client.dir.run(longhaul()).arg("doctor");
    run.args(flags).timeout(Duration::from_secs(60))
}

/// Asserts one sentence on standard error, without control characters.
#[track_caller]
fn assert_one_sentence(outcome: &Outcome, words: &str) {
    let err = outcome.err();
    assert_eq!(err.trim().lines().count(), 1, "{outcome}");
    assert!(err.contains(words) && outcome.out().is_empty(), "{outcome}");
}

#[test]
fn a_running_copy_is_explained_without_disturbing_it() {
    if is_scp() {
        return;
    }
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(9).bytes(12_000_000));
    let proxy = DelayProxy::to(scene.peer.addr()).rate(2_000_000).start();
    let peer = &scene.peer;
    scene.client.dir.add_host_at("peer", peer, proxy.port());
    let copy = scene.client.cp().arg(scene.path("file"));
    let copy = copy.arg(scene.remote("copy")).spawn();
    let pid = copy.pid().to_string();
    let folder = scene.client.dir.path().join("runtime/longhaul");
    let file = folder.join(format!("{pid}.json"));
    assert!(copy.until(|| file.exists()), "no figures");
    let mode = fs::metadata(&file)
        .expect("the figures")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let told = doctor(&scene, &["--json", "--watch", &pid])
        .run()
        .expect_code(0);
    let result: serde_json::Value = serde_json::from_str(&told.out()).expect("JSON");
    assert_eq!(result["host"], "peer", "{result:#}");
    // One transfer is compared with nothing.
    assert_eq!(result["diagnosis"]["healthy"], false, "{result:#}");
    copy.wait().expect_code(0);
    assert!(!folder.exists(), "figures are left behind");
    let gone = doctor(&scene, &["--watch", &pid]).run().expect_code(1);
    assert_one_sentence(&gone, "no such process");
}

/// Returns a server, and the folder in which running transfers of its client leave their figures.
fn with_figures() -> Option<(Scene, PathBuf)> {
    let scene = Scene::start(PeerKind::OpenSsh).filter(|_| !is_scp())?;
    let folder = scene.client.dir.path().join("runtime/longhaul");
    fs::create_dir_all(&folder).expect("a folder");
    Some((scene, folder))
}

#[test]
fn figures_that_others_could_have_written_are_refused() {
    let Some((scene, folder)) = with_figures() else {
        return;
    };
    let pid = std::process::id();
    let file = folder.join(format!("{pid}.json"));
    let watch = || {
        doctor(&scene, &["--watch", &pid.to_string()])
            .run()
            .expect_code(1)
    };
    assert_one_sentence(&watch(), "no figures");
    // A hostile file: of the right process, deep, long, or not a file.
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("{{\"kind\":\"{}\"}}", "x".repeat(2 << 20));
    for text in ["", "{}", "\0", &nested, &long] {
        write_file(&file, text.as_bytes());
        assert_one_sentence(&watch(), "no figures");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("our file");
    assert_one_sentence(&watch(), "writable by other users");
    fs::remove_file(&file).expect("our file");
    symlink("/etc/hostname", &file).expect("a link");
    assert_one_sentence(&watch(), "cannot read its figures");
}

#[test]
fn an_escape_sequence_in_the_figures_does_not_reach_the_terminal() {
    let Some((scene, folder)) = with_figures() else {
        return;
    };
    let pid = std::process::id();
    let session = r#"{"host":"h\u001b[31m","direction":"up","connections":1,"channels":1,"limiter":"loss","measured":3.0,"evidence":{"rate":1e999999,"loss":-1}}"#;
    let hostile = session.replace("1e999999", "1e300");
    let text =
        format!(r#"{{"kind":"longhaul-running","pid":{pid},"start":0,"sessions":[{hostile}]}}"#);
    write_file(&folder.join(format!("{pid}.json")), text.as_bytes());
    let told = doctor(&scene, &["--watch", &pid.to_string()])
        .run()
        .expect_code(0);
    assert!(!told.out().contains('\u{1b}'), "{told}");
    assert!(told.out().contains("packet loss"), "{told}");
}

#[test]
fn a_host_that_cannot_be_measured_is_one_sentence() {
    if is_scp() {
        return;
    }
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let config = scene.client.dir.config().display().to_string();
    let run = |flags: &[&str]| doctor(&scene, &[&["-F", &config[..]][..], flags].concat()).run();
    assert_one_sentence(
        &run(&["nowhere.invalid"]).expect_code(255),
        "nowhere.invalid",
    );
    let missing = run(&["peer", "/nonexistent/file"]).expect_code(1);
    assert_one_sentence(&missing, "/nonexistent/file");
    let full = run(&["--time", "3s", "--html", "/dev/full", "peer"]).expect_code(1);
    assert!(full.err().contains("/dev/full: "), "{full}");
    // The findings are kept: they are still on standard output.
    assert!(full.out().contains("Uploads:"), "{full}");
    // A folder where nothing can be written does not end the measurement.
    let denied = run(&["--time", "4s", "peer:/proc"]).expect_code(0);
    assert!(denied.out().contains("the server's disk: "), "{denied}");
    assert!(!denied.out().contains("no PATH was given"), "{denied}");

    let known = PathBuf::from("/dev/null").display().to_string();
    scene.client.dir.set("peer", "UserKnownHostsFile", known);
    let run = |flags: &[&str]| doctor(&scene, &[&["-F", &config[..]][..], flags].concat()).run();
    assert_one_sentence(&run(&["peer"]).expect_code(255), "host key");
}
