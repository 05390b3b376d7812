//! Operation of `longhaul serve --listen`: configuration, signals, systemd, metrics.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul};
use rustix::process::{Pid, Signal, kill_process};
use testkit::background_process::BackgroundProcess;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{KeyKind, Outcome, Run, Seed, missing};

use crate::hindered::write_script;
use crate::serving::{openssh, sftp};

/// Starts a server with this configuration, and returns the file that has it.
pub(crate) fn configured(text: &str) -> (Scene, PathBuf, tempfile::TempDir) {
    configured_with(text, &[KeyKind::Ed25519, KeyKind::Ecdsa256])
}

pub(crate) fn configured_with(text: &str, keys: &[KeyKind]) -> (Scene, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.toml");
    write_file(&file, text.as_bytes());
    let flags = ["--config".to_owned(), file.display().to_string()];
    let scene = Scene::with(PeerBuilder::longhaul(longhaul(), flags).host_keys(keys));
    (scene.expect("longhaul is there"), file, folder)
}

fn send(scene: &Scene, signal: Signal) {
    let pid = Pid::from_raw(scene.peer.pid().cast_signed()).expect("it runs");
    kill_process(pid, signal).expect("it runs");
}

pub(crate) fn put(scene: &Scene, name: &str) -> Outcome {
    let file = scene.path("file").display().to_string();
    sftp(scene, &[&format!("put {file} {name}")])
}

#[test]
fn check_tells_each_mistake_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.toml");
    let check = || {
        Run::new(longhaul())
            .args(["serve", "check"])
            .arg(&file)
            .run()
    };
    write_file(&file, b"access = \"read-only\"\n");
    check().expect_code(0);
    write_file(&file, b"\nunauthenticated = 0\nidle-time = 0\n");
    let outcome = check().expect_code(1);
    let name = file.display();
    outcome.expect_err(&[&format!("{name}:2: "), &format!("{name}:3: ")]);
    write_file(&file, b"lisen = \":22\"\n");
    let outcome = check().expect_code(1);
    outcome.expect_err(&[&format!("{name}:1: unknown option `lisen`")]);
    // The same error prevents a server from starting.
    let run = Run::new(longhaul()).args(["serve", "--listen", "127.0.0.1:0", "--config"]);
    let outcome = run.arg(&file).run().expect_code(1);
    outcome.expect_err(&[&format!("{name}:1: unknown option `lisen`")]);
    fs::remove_file(&file).expect("ours");
    check().expect_code(1).expect_err(&["No such file"]);
    // The configuration in the package is valid.
    let packaged = missing::checkout().join("packaging/serve.toml");
    let run = Run::new(longhaul()).args(["serve", "check"]).arg(packaged);
    run.run().expect_code(0);
}

#[test]
fn hangup_has_the_configuration_read_again_and_disturbs_nobody() {
    let root = tempfile::tempdir().expect("a folder");
    let served = format!("root = \"{}\"\n", root.path().display());
    let (scene, file, _folder) = configured(&format!("{served}access = \"read-only\"\n"));
    write_file(&scene.path("file"), b"content");
    put(&scene, "one");
    assert!(!root.path().join("one").exists());
    let mut there = openssh(&scene, "sftp").arg("peer").in_terminal().spawn();
    assert!(there.shows("sftp>"));
    write_file(&file, format!("{served}access = \"full\"\n").as_bytes());
    send(&scene, Signal::HUP);
    scene.logs("reloaded");
    put(&scene, "two").expect_code(0);
    assert!(root.path().join("two").exists());
    // Existing connections keep their settings.
    let source = scene.path("file").display().to_string();
    there.type_in(&format!("put {source} three\npwd\n"));
    assert!(there.shows("Remote working directory: /"));
    assert!(!root.path().join("three").exists());
    // An invalid configuration changes nothing.
    write_file(&file, b"access = \"none\"\n");
    send(&scene, Signal::HUP);
    scene.logs("the previous configuration stays in use");
    put(&scene, "four").expect_code(0);
    assert!(root.path().join("four").exists());
}

/// SIGHUP works under nohup too. Before this, it stayed ignored.
#[test]
fn hangup_is_heard_under_nohup_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("server");
    let text = format!(
        "#!/bin/sh\ntrap '' HUP\nexec {} \"$@\"\n",
        longhaul().display()
    );
    write_script(&script, &text);
    let scene = Scene::with(PeerBuilder::longhaul(script, [""; 0])).expect("longhaul is there");
    send(&scene, Signal::HUP);
    scene.logs("reloaded");
}

/// The preforked process for the next client has the old settings and must be replaced.
#[test]
fn hangup_changes_what_the_next_client_is_offered() {
    let (scene, file, _folder) = configured("");
    let with = |cipher: &str| {
        let run = openssh(&scene, "sftp").args(["-o", &format!("Ciphers={cipher}"), "peer"]);
        run.stdin("pwd\n").run()
    };
    with("aes128-gcm@openssh.com").expect_code(0);
    write_file(&file, b"ciphers = [\"aes256-gcm@openssh.com\"]\n");
    send(&scene, Signal::HUP);
    scene.logs("reloaded");
    let outcome = with("aes128-gcm@openssh.com").expect_code(255);
    outcome.expect_err(&["no matching cipher"]);
    with("aes256-gcm@openssh.com").expect_code(0);
}

#[test]
fn a_key_has_a_root_and_rights_of_its_own() {
    let root = tempfile::tempdir().expect("a folder");
    write_file(&root.path().join("there"), b"content");
    let (scene, file, _folder) = configured("");
    let key = scene.client.dir.key().public();
    let told = Run::new("ssh-keygen")
        .arg("-lf")
        .arg(key)
        .run()
        .expect_code(0);
    let told = told.out();
    let fingerprint = told.split_whitespace().nth(1).expect("SHA256:...");
    let text = format!(
        "[[key]]\nfingerprint = \"{fingerprint}\"\nroot = \"{}\"\naccess = \"read-only\"\n",
        root.path().display()
    );
    write_file(&file, text.as_bytes());
    send(&scene, Signal::HUP);
    scene.logs("reloaded");
    write_file(&scene.path("file"), b"content");
    put(&scene, "planted");
    assert!(!root.path().join("planted").exists());
    let back = scene.path("back");
    sftp(&scene, &[&format!("get there {}", back.display())]).expect_code(0);
    assert_eq!(fs::read(&back).expect("it"), b"content");
}

#[test]
fn limits_and_times_are_kept() {
    let text = "connections-per-user = 1\nidle-time = 2\n";
    let (scene, _file, _folder) = configured(text);
    let there = openssh(&scene, "sftp").arg("peer").in_terminal().spawn();
    assert!(there.shows("sftp>"));
    let outcome = openssh(&scene, "sftp").arg("peer").stdin("").run();
    // The client gets the real reason. Before this, it was told that its key was not accepted.
    let told = outcome.expect_code(255).err();
    let full = "too many connections of this account";
    assert!(told.contains(full), "{told}");
    scene.logs(full);
    // Idle for two seconds.
    assert!(there.shows("idle timeout"));
    drop(there);
    openssh(&scene, "sftp")
        .arg("peer")
        .stdin("")
        .run()
        .expect_code(0);
}

/// A client that keeps a file open, such as a mounted file system, counts as idle. Before this, it
/// never did, and kept a stopping server from ending.
#[test]
fn what_is_open_and_not_used_is_idle() {
    let (scene, _file, _folder) = configured("idle-time = 2\n");
    let path = scene.path("file");
    write_file(&path, b"content");
    let path = path.into_os_string().into_encoded_bytes();
    // INIT and OPEN for reading, from draft-ietf-secsh-filexfer-02.
    let body = [
        &[3, 0, 0, 0, 7],
        &(path.len() as u32).to_be_bytes()[..],
        &path,
    ];
    let open = [
        &body.concat()[..],
        &1_u32.to_be_bytes(),
        &0_u32.to_be_bytes(),
    ]
    .concat();
    let packets = [
        &[0, 0, 0, 5, 1, 0, 0, 0, 3],
        &(open.len() as u32).to_be_bytes()[..],
        &open,
    ];
    write_file(&scene.path("packets"), &packets.concat());
    let line = format!(
        "(cat {}; sleep 30) | ssh -F {} -s peer sftp",
        scene.path("packets").display(),
        scene.client.dir.config().display()
    );
    let running = Run::new("sh").args(["-c", &line]).spawn();
    scene.logs("idle timeout");
    let log = scene.peer.log();
    assert!(log.contains("left open"), "{log}");
    drop(running);
}

/// A log that cannot be written ends nothing. Before this, nobody could log in any more, and the
/// next client ended the server.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let (scene, _file, _folder) = configured("");
    let log = scene.path("log");
    let listening = format!(
        "exec {} serve --listen 127.0.0.1:0 --host-key {} --authorized-keys {} >{} 2>/dev/full",
        longhaul().display(),
        scene.peer.host_keys()[0].private.display(),
        scene.peer.folder().join("authorized_keys").display(),
        log.display(),
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &listening]);
    let mut server = BackgroundProcess::start("without a log", command, &log).expect("it starts");
    let until = Instant::now() + Duration::from_secs(20);
    let at = server.line_after("listening on ", until).expect("it does");
    let (_, port) = at.rsplit_once(':').expect("a port");
    let port = format!("Port={}", port.trim());
    for _ in 0..2 {
        let unknown = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            &port,
        ];
        let options = unknown.iter().flat_map(|option| ["-o", option]);
        let sftp = openssh(&scene, "sftp").args(options).arg("peer");
        sftp.stdin("").run().expect_code(0);
    }
    assert!(server.alive());
}

#[test]
fn figures_are_told_to_who_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("metrics");
    let text = format!("metrics = \"{}\"\n", socket.display());
    let (scene, _file, _folder) = configured(&text);
    write_file(&scene.path("file"), &Seed::new(3).bytes(100_000));
    put(&scene, scene.path("there").to_str().expect("UTF-8")).expect_code(0);
    scene.logs("session closed");
    let mut stream = UnixStream::connect(&socket).expect("it listens");
    let asked = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
    stream.write_all(asked).expect("it reads");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("it answers");
    for line in [
        "HTTP/1.1 200 OK",
        "longhaul_logins_total 1",
        "longhaul_received_bytes_total 100000",
        "# TYPE longhaul_connections gauge",
    ] {
        assert!(told.contains(line), "no {line:?} in {told}");
    }
    let log = scene.peer.log();
    let over = log.lines().find(|line| line.contains("session closed"));
    let over = over.expect("a line for each session");
    assert!(over.contains("received=100000"), "{over}");
}

/// Units contain only settings that systemd knows. Once a service type that the installed systemd
/// did not know was ignored, and the unit could not be reloaded.
#[test]
fn units_say_nothing_that_systemd_passes_over() {
    let Some(analyze) = missing::find_program("systemd-analyze") else {
        missing::not_here("systemd-analyze is not installed");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let packaging = missing::checkout().join("packaging");
    let mut verify = Run::new(analyze).args(["verify", "--man=no"]);
    for name in [
        "longhaul-serve.service",
        "longhaul-serve.socket",
        "longhaul-relay.service",
    ] {
        let unit = fs::read_to_string(packaging.join(name)).expect("a unit");
        // The program of a unit has to exist.
        let unit = unit.replace("/usr/bin/longhaul", &longhaul().display().to_string());
        let file = folder.path().join(name);
        write_file(&file, unit.as_bytes());
        verify = verify.arg(file);
    }
    let said = verify.run().expect_code(0);
    let said = format!("{}{}", said.out(), said.err());
    // Errors of the machine's other units do not matter.
    let of_ours: Vec<&str> = said.lines().filter(|l| l.contains("longhaul-")).collect();
    assert!(of_ours.is_empty(), "{said}");
    for name in ["longhaul-serve.service", "longhaul-relay.service"] {
        let unit = fs::read_to_string(packaging.join(name)).expect("a unit");
        assert!(unit.contains("\nExecReload="), "{name} cannot be reloaded");
    }
    // Started without its socket, the service had no address to listen at and ended.
    let unit = fs::read_to_string(packaging.join("longhaul-serve.service")).expect("a unit");
    assert!(unit.contains("\nWants=longhaul-serve.socket\n"), "{unit}");
}

/// Uses systemd's own program for socket activation.
#[test]
fn a_socket_of_systemds_is_served_and_systemd_is_told() {
    let Some(activate) = missing::find_program("systemd-socket-activate") else {
        missing::not_here("systemd-socket-activate is not installed");
        return;
    };
    let mut scene = configured("").0;
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&told).expect("a socket");
    systemd
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time");
    let port = testkit::port::free();
    let mut command = std::process::Command::new(activate);
    command.args(["-l", &format!("127.0.0.1:{port}"), "-E"]);
    command.arg(format!("NOTIFY_SOCKET={}", told.display()));
    command.arg(longhaul()).args(["serve", "--config"]);
    let config = folder.path().join("serve.toml");
    let keys = scene.peer.folder().join("authorized_keys");
    let text = format!(
        "authorized-keys = \"{}\"\nhost-keys = [\"{}\"]\n",
        keys.display(),
        scene.peer.host_keys()[0].private.display()
    );
    write_file(&config, text.as_bytes());
    command.arg(&config);
    let log = folder.path().join("log");
    let mut server = BackgroundProcess::start("longhaul", command, &log).expect("it starts");
    let listens = |log: &Path| {
        fs::read_to_string(log)
            .unwrap_or_default()
            .contains("Listening")
    };
    testkit::wait::up_to(Duration::from_secs(20), || listens(&log));
    // The first client starts the server.
    let there = scene.path("there").display().to_string();
    write_file(&scene.path("file"), b"content");
    let commands = format!("put {} {there}\n", scene.path("file").display());
    let run = openssh(&scene, "sftp").args(["-P", &port.to_string(), "-b", "-"]);
    let run = run.args(["-o", "StrictHostKeyChecking=no"]);
    run.arg("peer").stdin(commands).run().expect_code(0);
    assert_eq!(fs::read(&there).expect("it"), b"content");
    let mut said = [0; 512];
    let mut hears = |what: &str| {
        let n = systemd.recv(&mut said).expect("systemd is told");
        let said = String::from_utf8_lossy(&said[..n]).into_owned();
        assert!(said.starts_with(what), "{said}");
    };
    hears("READY=1");
    let pid = Pid::from_raw(server.pid().cast_signed()).expect("it runs");
    kill_process(pid, Signal::HUP).expect("it runs");
    hears("RELOADING=1\nMONOTONIC_USEC=");
    hears("READY=1");
    server.terminate();
    hears("STOPPING=1");
    assert_eq!(server.ends_within(Duration::from_secs(20)), Some(0));
    scene.peer.terminate();
    assert_eq!(scene.peer.ends_within(Duration::from_secs(20)), Some(0));
}

#[test]
fn a_successor_listens_while_what_is_transferred_goes_on() {
    let told = tempfile::tempdir().expect("a folder");
    let metrics = format!("metrics = \"{}\"\n", told.path().join("socket").display());
    let (mut scene, file, _folder) = configured(&metrics);
    let content = Seed::new(4).bytes(3_000_000);
    write_file(&scene.path("file"), &content);
    // At 8 Mbit/s the transfer takes three seconds.
    let slow = openssh(&scene, "scp").args(["-l", "8000"]);
    let slow = slow.arg(scene.remote("file")).arg(scene.path("back"));
    let running = slow.spawn();
    let begun = || fs::metadata(scene.path("back")).is_ok_and(|m| m.len() > 0);
    assert!(running.until(begun));
    scene.peer.terminate();
    scene.logs("shutting down: no new connections");
    let mut command = std::process::Command::new(longhaul());
    command.args(["serve", "--listen", &scene.peer.addr().to_string()]);
    command
        .arg("--host-key")
        .arg(&scene.peer.host_keys()[0].private);
    let keys = scene.peer.folder().join("authorized_keys");
    command.arg("--authorized-keys").arg(keys);
    // The predecessor no longer serves metrics.
    command.arg("--config").arg(file);
    let log = scene.path("log");
    let mut successor = BackgroundProcess::start("successor", command, &log).expect("it starts");
    let until = Instant::now() + Duration::from_secs(20);
    assert!(successor.line_after("listening on", until).is_some());
    openssh(&scene, "sftp")
        .arg("peer")
        .stdin("")
        .run()
        .expect_code(0);
    assert!(successor.log().contains("logged in"));
    running.wait().expect_code(0);
    assert!(fs::read(scene.path("back")).expect("it") == content);
    assert_eq!(scene.peer.ends_within(Duration::from_secs(20)), Some(0));
}
