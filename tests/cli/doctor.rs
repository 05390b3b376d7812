//! `longhaul doctor` with running transfers and with hosts that cannot be measured.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul, scratch};
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{DelayProxy, KeyKind, KeyPair, Outcome, PeerKind, Run, Seed, missing};

use crate::hindered::Disk;
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
    let little = |flags: &[&str]| run(&[&LITTLE[..], flags].concat());
    let full = little(&["--time", "3s", "--html", "/dev/full", "peer"]).expect_code(1);
    assert!(full.err().contains("/dev/full: "), "{full}");
    // The findings are kept: they are still on standard output.
    assert!(full.out().contains("Uploads:"), "{full}");
    // A folder where nothing can be written does not end the measurement.
    let denied = little(&["--time", "4s", "peer:/proc"]).expect_code(0);
    assert!(denied.out().contains("the server's disk: "), "{denied}");
    assert!(!denied.out().contains("no PATH was given"), "{denied}");

    let known = PathBuf::from("/dev/null").display().to_string();
    scene.client.dir.set("peer", "UserKnownHostsFile", known);
    let run = |flags: &[&str]| doctor(&scene, &[&["-F", &config[..]][..], flags].concat()).run();
    assert_one_sentence(&run(&["peer"]).expect_code(255), "host key");
}

/// Measures `operand` and returns the JSON.
#[track_caller]
fn measured(scene: &Scene, flags: &[&str], operand: &str) -> serde_json::Value {
    let config = scene.client.dir.config().display().to_string();
    let run = doctor(scene, &["--json", "-F", &config]).args(flags);
    let outcome = run.arg(operand).run().expect_code(0);
    serde_json::from_str(&outcome.out()).expect("JSON")
}

/// Bytes for a measurement whose figures do not matter: both ways are measured, and further
/// connections do not load the machine until the time is up.
const LITTLE: [&str; 2] = ["--data", "1G"];

fn rungs<'a>(result: &'a serde_json::Value, way: &str) -> &'a [serde_json::Value] {
    let rungs = result["evidence"][way]["rungs"].as_array();
    rungs.map(Vec::as_slice).unwrap_or_default()
}

/// A connection through a jump host had a round trip of 60 s, and moved 256 KiB in each.
#[test]
fn a_connection_through_a_jump_host_has_the_round_trip_of_its_answers() {
    if is_scp() {
        return;
    }
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(Duration::from_millis(100));
    let proxy = proxy.start();
    let dir = &mut scene.client.dir;
    dir.add_host_at("gate", &scene.peer, proxy.port());
    dir.set("peer", "ProxyJump", "gate");
    let result = measured(&scene, &["--time", "12s"], "peer");
    let one = rungs(&result, "up").first().expect("an upload");
    let rtt = one["min_rtt"].as_f64().expect("seconds");
    assert!((0.05..5.0).contains(&rtt), "{result:#}");
    // 2 MiB of the server's window, but for a busy machine.
    let per_trip = one["rate"].as_f64().expect("a rate") * 0.1;
    assert!(per_trip > 500_000.0, "{result:#}");
    let verdict = result["diagnosis"]["verdict"].to_string();
    assert!(!verdict.contains("60 s"), "{verdict}");
}

/// "No transfer could be measured" had no reason.
#[test]
fn a_small_amount_of_data_is_the_reason_for_a_measurement_that_is_missing() {
    if is_scp() {
        return;
    }
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(Duration::from_millis(60));
    let proxy = proxy.start();
    scene
        .client
        .dir
        .add_host_at("far", &scene.peer, proxy.port());
    let result = measured(&scene, &["--time", "20s", "--data", "100k"], "far");
    // The server is quick: a proxy answers for it in TCP.
    let verdict = result["diagnosis"]["verdict"].as_str().expect("a verdict");
    assert!(
        verdict.starts_with("Uploads over 1 connection")
            && verdict.ends_with(". No transfer could be measured"),
        "{result:#}"
    );
    assert!(verdict.contains("--data"), "{verdict}");
    let rtt = result["evidence"]["idle"]["low"].as_f64();
    assert!(rtt >= Some(0.06), "{result:#}");
    let unseen = result["diagnosis"]["unseen"].to_string();
    assert!(
        unseen.contains("a proxy on the way seems to end TCP"),
        "{unseen}"
    );
    assert!(
        result["evidence"]["marks"]["marks"]
            .as_array()
            .is_none_or(Vec::is_empty)
    );
}

/// A load that ended early had no figures, however many round trips it had.
#[test]
fn a_load_that_data_end_early_is_measured() {
    if is_scp() {
        return;
    }
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let result = measured(&scene, &["--time", "8s", "--data", "300M"], "peer");
    let one = rungs(&result, "up").first().expect("an upload");
    let seconds = one["seconds"].as_f64().expect("seconds");
    // 16 % of the time would be 1.28 s.
    assert!(
        one["rate"].as_f64() > Some(0.0) && seconds < 2.0,
        "{result:#}"
    );
}

/// Bug: the refused key counted as a part of the login, no further connection was opened, and the
/// server was blamed for that.
#[test]
fn a_refused_key_before_the_accepted_one_does_not_end_the_measurement() {
    if is_scp() {
        return;
    }
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let refused = KeyPair::generate(scene.client.dir.path(), "refused", KeyKind::Ed25519);
    let refused = refused.private.display().to_string();
    scene.client.dir.set("peer", "IdentityFile", refused);
    let result = measured(&scene, &["--time", "20s", "--data", "3G"], "peer");
    assert!(!rungs(&result, "up").is_empty(), "{result:#}");
}

/// Bug: a measurement without any transfer blamed the server, and exited with 0.
#[test]
fn a_measurement_without_a_transfer_is_incomplete_and_says_why() {
    if is_scp() {
        return;
    }
    let keys = scratch();
    let second = KeyPair::generate(keys.path(), "second", KeyKind::Ed25519);
    let builder = PeerBuilder::openssh().authorize_line(second.public_line());
    let builder = builder.option("AuthenticationMethods", "publickey,publickey");
    let Some(mut scene) = Scene::with(builder) else {
        return;
    };
    let file = second.private.display().to_string();
    scene.client.dir.set("peer", "IdentityFile", file);
    let config = scene.client.dir.config().display().to_string();
    let run = doctor(&scene, &["--time", "5s", "-F", &config, "peer"]);
    let outcome = run.run().expect_code(1);
    let why = "No further connection was made: another login would need more than one key";
    assert!(outcome.out().contains(why), "{outcome}");
}

/// A full disk ended the measurement, and left the temporary file there.
#[test]
fn a_full_disk_is_named_and_the_file_is_removed() {
    if is_scp() || !missing::can_unshare_mounts() {
        return;
    }
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let disk = Disk::new(&scene.path("disk"), 4);
    let folder = disk.path("");
    let operand = format!("peer:{}", folder.display());
    let flags = [&LITTLE[..], &["--time", "8s"]].concat();
    let result = measured(&scene, &flags, &operand);
    let unseen = result["diagnosis"]["unseen"].to_string();
    assert!(unseen.contains("the server's disk: "), "{result:#}");
    assert!(!unseen.contains("no PATH was given"), "{result:#}");
    assert!(!rungs(&result, "down").is_empty(), "{result:#}");
    assert_eq!(longhaul_tests::names_in(&folder), ["file"]);
}

/// A folder that sshd accepts as root of a session: nobody but root can write to its parents.
fn chroot() -> Option<tempfile::TempDir> {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).ok()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).ok()?;
    let of_root = |path: &std::path::Path| {
        fs::metadata(path).is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o022 == 0)
    };
    folder.path().ancestors().all(of_root).then_some(folder)
}

#[test]
fn an_account_without_devices_and_commands_is_measured_with_a_small_file() {
    let Some(root) = chroot().filter(|_| !is_scp()) else {
        missing::not_here("sshd's ChrootDirectory needs a folder of root");
        return;
    };
    fs::create_dir(root.path().join("in")).expect("a folder");
    let builder = PeerBuilder::openssh()
        .option("ChrootDirectory", root.path().display().to_string())
        .option("ForceCommand", "internal-sftp");
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    let alone = measured(&scene, &["--time", "5s"], "peer");
    let verdict = alone["diagnosis"]["verdict"].as_str().expect("a verdict");
    let reason = "Uploads: cannot open /dev/null on the server: ";
    assert!(verdict.starts_with(reason), "{verdict}");
    assert!(
        verdict.contains("name a directory that you may write (HOST:PATH)"),
        "{verdict}"
    );
    let unseen = alone["diagnosis"]["unseen"].to_string();
    assert!(
        unseen.contains("downloads: cannot open /dev/zero on the server: "),
        "{unseen}"
    );
    assert!(unseen.contains("no command could be run there"), "{unseen}");
    let flags = [&LITTLE[..], &["--time", "8s"]].concat();
    let with = measured(&scene, &flags, "peer:/in");
    for way in ["up", "down"] {
        assert!(!rungs(&with, way).is_empty(), "{with:#}");
    }
    let unseen = with["diagnosis"]["unseen"].to_string();
    assert!(unseen.contains("no command could be run there"), "{unseen}");
    let left = longhaul_tests::names_in(&root.path().join("in"));
    assert!(left.is_empty(), "{left:?}");
}

/// Measures a server that is not OpenSSH's, and asserts what it cannot tell and what it can.
#[track_caller]
fn assert_other_server_is_measured(kind: PeerKind) {
    let Some(scene) = Scene::start(kind).filter(|_| !is_scp()) else {
        return;
    };
    let flags = [&LITTLE[..], &["--time", "10s"]].concat();
    let result = measured(&scene, &flags, "peer");
    let diagnosis = &result["diagnosis"];
    for way in ["up", "down"] {
        let one = rungs(&result, way).first();
        let rate = one.and_then(|one| one["rate"].as_f64());
        let reason = match way {
            "up" => "uploads",
            _ => "downloads",
        };
        let unseen = diagnosis["unseen"].to_string();
        // Servers with a file system of their own have no devices, and say so.
        assert!(
            rate > Some(0.0) || unseen.contains(reason),
            "{kind:?}: {result:#}"
        );
    }
    let unseen = diagnosis["unseen"].to_string();
    assert!(
        unseen.contains("commands are only run on OpenSSH's server"),
        "{kind:?}: {unseen}"
    );
    assert!(
        result["evidence"]["idle"]["low"].as_f64() > Some(0.0),
        "{result:#}"
    );
    let verdict = diagnosis["verdict"].as_str().expect("a verdict");
    assert!(!verdict.contains("Incomplete"), "{kind:?}: {verdict}");
}

#[test]
fn dropbear_is_measured_and_what_it_cannot_tell_is_listed() {
    assert_other_server_is_measured(PeerKind::Dropbear);
}

#[test]
fn paramiko_is_measured_and_what_it_cannot_tell_is_listed() {
    assert_other_server_is_measured(PeerKind::Paramiko);
}

#[test]
fn asyncssh_is_measured_and_what_it_cannot_tell_is_listed() {
    assert_other_server_is_measured(PeerKind::Asyncssh);
}

#[test]
fn a_go_server_is_measured_and_what_it_cannot_tell_is_listed() {
    assert_other_server_is_measured(PeerKind::Go);
}

/// Bug: a wrong setting that showed itself at the login was reported as a lost connection (255), which
/// a scheduler tries again.
#[test]
fn a_wrong_setting_ended_the_doctor_like_a_lost_connection() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh).filter(|_| !is_scp()) else {
        return;
    };
    let revoked = ["-o", "RevokedHostKeys=/nonexistent", "peer"];
    let outcome = doctor(&scene, &revoked).run().expect_code(2);
    assert_one_sentence(&outcome, "/nonexistent");
}
