//! Scenarios for every server. Each function is one scenario; the file of each peer lists its
//! scenarios and its algorithms.

use std::fs;
use std::time::Duration;

use longhaul_tests::{Client, Scene, longhaul, names_in, password, remote, scratch};
use testkit::delay_proxy::{Fate, Way};
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Auth, DelayProxy, KeyKind, KeyPair, PeerBuilder, PeerKind, Run, Seed};

/// Algorithms that both a server and longhaul support.
pub(crate) struct Knows {
    pub(crate) ciphers: &'static [&'static str],
    pub(crate) kex: &'static [&'static str],
    pub(crate) macs: &'static [&'static str],
    pub(crate) host_keys: &'static [KeyKind],
}

/// Generates the tests of one peer: the common scenarios, those for all of its algorithms, and its
/// login methods besides keys.
macro_rules! scenarios {
    ($kind:expr, $knows:expr; $($login:ident),* $(,)?) => {
        crate::scenarios::each! {
            $kind;
            upload,
            download,
            tree_up,
            tree_down,
            replaces_what_is_there,
            rekey_by_server,
            rekey_by_client,
            rekey_by_both,
            no_common_cipher,
            wrong_user_key,
            changed_host_key,
            unknown_host_key,
            disconnect_during_upload,
            disconnect_during_download,
            disconnect_before_the_session,
            key_login_with_each_kind,
            measured_by_doctor,
            $($login),*
        }
        crate::scenarios::each! {
            $kind, &$knows;
            every_cipher,
            every_kex,
            every_mac,
            every_host_key,
        }
    };
}
pub(crate) use scenarios;

/// Generates a test for each name, which calls the scenario of that name.
macro_rules! each {
    ($kind:expr; $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                crate::scenarios::$name($kind);
            }
        )*
    };
    ($kind:expr, $knows:expr; $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                crate::scenarios::$name($kind, $knows);
            }
        )*
    };
}
pub(crate) use each;

pub(crate) fn upload(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    for len in [0, 1, 32_768, 261_121, 5_000_000] {
        let name = format!("file-{len}");
        write_file(&scene.path(&name), &Seed::new(len).bytes(len as usize));
        scene.copies(&[], scene.path(&name), scene.remote(&format!("copy-{len}")));
        assert_same(
            &scene.path(&name),
            &scene.path(&format!("copy-{len}")),
            Compare::CONTENT,
        );
    }
}

/// `longhaul doctor` says something useful about every server, and what it cannot see there.
pub(crate) fn measured_by_doctor(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let run = scene.client.dir.run(longhaul()).arg("doctor").arg("-F");
    let run = run.arg(scene.client.dir.config());
    let outcome = run
        .args(["--json", "--time", "5s", "peer"])
        .timeout(Duration::from_secs(60))
        .run();
    let result: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
    // A server that ends the measurement early is named with the reason.
    let early = result["evidence"]["partial"].is_string();
    assert_eq!(outcome.code, Some(i32::from(early)), "{outcome}");
    let diagnosis = &result["diagnosis"];
    let unseen = diagnosis["unseen"].to_string();
    let rungs = |way: &str| {
        result["evidence"][way]["rungs"]
            .as_array()
            .map_or(0, Vec::len)
    };
    assert!(diagnosis["verdict"].as_str().is_some_and(|v| !v.is_empty()));
    for (way, absent) in [("up", "/dev/null"), ("down", "/dev/zero")] {
        let told = early
            || unseen.contains(absent)
            || unseen.contains("measure")
            || unseen.contains("loads:");
        assert!(rungs(way) > 0 || told, "{result:#}");
    }
    if result["evidence"]["there"]["kernel"].is_null() {
        assert!(
            unseen.contains("the server's kernel, buffers and load: "),
            "{result:#}"
        );
    }
}

pub(crate) fn download(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    for len in [0, 1, 32_768, 261_121, 5_000_000] {
        let name = format!("file-{len}");
        write_file(&scene.path(&name), &Seed::new(len).bytes(len as usize));
        scene.copies(&[], scene.remote(&name), scene.path(&format!("copy-{len}")));
        assert_same(
            &scene.path(&name),
            &scene.path(&format!("copy-{len}")),
            Compare::CONTENT,
        );
    }
}

/// Returns the tree that a server can carry: paramiko's SFTP server supports only names in UTF-8.
fn tree_for(kind: PeerKind) -> Tree {
    match kind {
        PeerKind::Paramiko => Tree::plain(7),
        _ => Tree::full(7),
    }
}

pub(crate) fn tree_up(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    tree_for(kind).make(&scene.path("tree"));
    scene.copies(&["-r", "-p"], scene.path("tree"), scene.remote("copy"));
    assert_same(
        &scene.path("tree"),
        &scene.path("copy"),
        Compare::PRESERVED.following(),
    );
}

pub(crate) fn tree_down(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    tree_for(kind).make(&scene.path("tree"));
    scene.copies(&["-r", "-p"], scene.remote("tree"), scene.path("copy"));
    // scp 9.2 gives the top folder the time of one inside it.
    let compare = if scene.client.is_scp() {
        Compare::MODES
    } else {
        Compare::PRESERVED
    };
    assert_same(
        &scene.path("tree"),
        &scene.path("copy"),
        compare.following(),
    );
}

pub(crate) fn replaces_what_is_there(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    write_file(&scene.path("long"), &Seed::new(1).bytes(400_000));
    write_file(&scene.path("short"), &Seed::new(2).bytes(1000));
    for (there, here) in [("long", "short"), ("short", "long")] {
        write_file(
            &scene.path("target"),
            &fs::read(scene.path(there)).expect("our file"),
        );
        scene.copies(&[], scene.path(here), scene.remote("target"));
        assert_same(&scene.path(here), &scene.path("target"), Compare::CONTENT);
        write_file(
            &scene.path("target"),
            &fs::read(scene.path(there)).expect("our file"),
        );
        scene.copies(&[], scene.remote(here), scene.path("target"));
        assert_same(&scene.path(here), &scene.path("target"), Compare::CONTENT);
    }
}

const REKEYED: usize = 24_000_000;

pub(crate) fn rekey_by_server(kind: PeerKind) {
    let Some(scene) = Scene::with(PeerBuilder::new(kind).rekey_after(1 << 20)) else {
        return;
    };
    both_ways(&scene, &[], REKEYED);
}

pub(crate) fn rekey_by_client(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    both_ways(&scene, &["-o", "RekeyLimit=1M"], REKEYED);
}

pub(crate) fn rekey_by_both(kind: PeerKind) {
    let Some(scene) = Scene::with(PeerBuilder::new(kind).rekey_after(1 << 20)) else {
        return;
    };
    both_ways(&scene, &["-o", "RekeyLimit=1M"], REKEYED);
}

/// Copies one file up and down.
fn both_ways(scene: &Scene, flags: &[&str], len: usize) {
    write_file(&scene.path("file"), &Seed::new(3).bytes(len));
    for name in ["up", "down"] {
        let _ = fs::remove_file(scene.path(name));
    }
    scene.copies(flags, scene.path("file"), scene.remote("up"));
    assert_same(&scene.path("file"), &scene.path("up"), Compare::CONTENT);
    scene.copies(flags, scene.remote("up"), scene.path("down"));
    assert_same(&scene.path("file"), &scene.path("down"), Compare::CONTENT);
}

pub(crate) fn every_cipher(kind: PeerKind, knows: &Knows) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    for cipher in knows.ciphers {
        eprintln!("cipher {cipher}");
        both_ways(&scene, &["-c", cipher], 300_000);
    }
}

pub(crate) fn every_kex(kind: PeerKind, knows: &Knows) {
    for kex in knows.kex {
        eprintln!("kex {kex}");
        // The server offers nothing else, so that longhaul's default offer is tested. The system's
        // ssh, which reads the configuration, may not know the newest name.
        let builder = PeerBuilder::new(kind);
        let (builder, option) = match kind {
            PeerKind::Dropbear => (builder, format!("KexAlgorithms={kex}")),
            _ => (builder.kex(&[kex]), "LogLevel=ERROR".to_owned()),
        };
        let Some(scene) = Scene::with(builder) else {
            return;
        };
        if !scene.client.is_scp() || openssh_knows(kex) {
            both_ways(&scene, &["-o", &option], 1000);
        }
    }
}

/// Reports if the system's ssh supports the key exchange; it cannot test newer ones.
fn openssh_knows(kex: &str) -> bool {
    Run::new("ssh")
        .args(["-Q", "kex"])
        .run()
        .out()
        .lines()
        .any(|line| line == kex)
}

pub(crate) fn every_mac(kind: PeerKind, knows: &Knows) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    for mac in knows.macs {
        eprintln!("mac {mac}");
        // A MAC is used only with a cipher that has none of its own.
        both_ways(
            &scene,
            &["-c", "aes128-ctr", "-o", &format!("MACs={mac}")],
            300_000,
        );
    }
}

pub(crate) fn every_host_key(kind: PeerKind, knows: &Knows) {
    let Some(scene) = Scene::with(PeerBuilder::new(kind).host_keys(knows.host_keys)) else {
        return;
    };
    for algorithm in knows
        .host_keys
        .iter()
        .flat_map(|key| key.host_key_algorithms())
    {
        if kind == PeerKind::Dropbear && *algorithm == "rsa-sha2-512" {
            continue;
        }
        eprintln!("host key {algorithm}");
        both_ways(
            &scene,
            &["-o", &format!("HostKeyAlgorithms={algorithm}")],
            1000,
        );
    }
}

pub(crate) fn no_common_cipher(kind: PeerKind) {
    let builder = PeerBuilder::new(kind);
    let (builder, cipher) = match kind {
        // Dropbear has no such setting, and no GCM.
        PeerKind::Dropbear => (builder, "aes128-gcm@openssh.com"),
        _ => (builder.ciphers(&["aes256-ctr"]), "aes128-ctr"),
    };
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    write_file(&scene.path("file"), b"secret");
    scene
        .client
        .cp()
        .args(["-c", cipher])
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .run()
        .expect_code(255)
        .expect_err(&["no matching cipher", "cipher"]);
}

pub(crate) fn wrong_user_key(kind: PeerKind) {
    let Some(mut scene) = Scene::start(kind) else {
        return;
    };
    let stranger = KeyPair::generate(scene.client.dir.path(), "stranger", KeyKind::Ed25519);
    scene.client.dir.set(
        "peer",
        "IdentityFile",
        stranger.private.display().to_string(),
    );
    scene
        .client
        .dir
        .set_for_all("IdentityFile", stranger.private.display().to_string());
    write_file(&scene.path("file"), b"secret");
    scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .run()
        .expect_code(255)
        .expect_err(&["permission denied", "authentication", "refused"]);
    assert!(!scene.path("copy").exists());
}

pub(crate) fn changed_host_key(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    let known_hosts = scene.client.dir.known_hosts();
    let lines: Vec<String> = scene
        .peer
        .host_keys()
        .iter()
        .enumerate()
        .map(|(number, key)| {
            let name = format!("other-{number}");
            let other = KeyPair::generate(scene.client.dir.path(), &name, key.kind);
            format!("[127.0.0.1]:{} {}", scene.peer.port(), other.public_line())
        })
        .collect();
    fs::write(&known_hosts, format!("# a comment\n{}\n", lines.join("\n"))).expect("our file");
    let before = fs::read(&known_hosts).expect("our file");
    write_file(&scene.path("file"), b"secret");
    for strictness in ["yes", "accept-new"] {
        let outcome = scene
            .client
            .cp()
            .args(["-o", &format!("StrictHostKeyChecking={strictness}")])
            .arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .run()
            .expect_code(255)
            .expect_err(&["changed"]);
        let place = format!("{}:", known_hosts.display());
        let named =
            (2..=lines.len() + 1).any(|line| outcome.err().contains(&format!("{place}{line}")));
        assert!(named, "the file and the line are to be named: {outcome}");
        assert!(
            outcome.err().contains("SHA256:"),
            "the fingerprint is to be named: {outcome}"
        );
    }
    assert!(!scene.path("copy").exists());
    assert_eq!(
        fs::read(&known_hosts).expect("our file"),
        before,
        "known_hosts stays as it was"
    );
}

pub(crate) fn unknown_host_key(kind: PeerKind) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    fs::write(scene.client.dir.known_hosts(), "").expect("our file");
    write_file(&scene.path("file"), b"secret");
    let copy = |strictness: &str| {
        let _ = fs::remove_file(scene.path("copy"));
        scene
            .client
            .cp()
            .args(["-o", &format!("StrictHostKeyChecking={strictness}")])
            .arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .run()
    };
    copy("yes")
        .expect_code(255)
        .expect_err(&["host key", "not known", "verification"]);
    assert!(!scene.path("copy").exists());
    scene.client.check_copied(copy("accept-new"), kind);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
    let known = fs::read_to_string(scene.client.dir.known_hosts()).expect("our file");
    assert!(
        scene.peer.host_keys().iter().any(|key| {
            let line = key.public_line();
            known.contains(line.split(' ').nth(1).expect("a key has a blob"))
        }),
        "the key is remembered: {known}"
    );
    scene.client.check_copied(copy("yes"), kind);
}

pub(crate) fn disconnect_during_upload(kind: PeerKind) {
    let Some(mut scene) = Scene::start(kind) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr())
        .rate(40_000_000)
        // After a few connections that carry so little, no other is tried.
        .fate_of_each(1, Fate::Reset(Way::Up, 700_000))
        .start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(4).bytes(12_000_000));
    let outcome = scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg(scene.remote("copy"))
        .run();
    assert!(!outcome.timed_out && !outcome.success(), "{outcome}");
    if scene.client.is_scp() {
        return;
    }
    assert!(
        !scene.path("copy").exists(),
        "half a file under its final name: {outcome}"
    );
    assert!(
        outcome.err().contains("copy") || outcome.err().contains("peer"),
        "{outcome}"
    );
}

pub(crate) fn disconnect_during_download(kind: PeerKind) {
    let Some(mut scene) = Scene::start(kind) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr())
        .rate(40_000_000)
        // After a few connections that carry so little, no other is tried.
        .fate_of_each(1, Fate::Reset(Way::Down, 700_000))
        .start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(5).bytes(12_000_000));
    fs::create_dir(scene.path("here")).expect("our folder");
    let outcome = scene
        .client
        .cp()
        .arg(scene.remote("file"))
        .arg(scene.path("here"))
        .run();
    assert!(!outcome.timed_out && !outcome.success(), "{outcome}");
    if scene.client.is_scp() {
        return;
    }
    let left = names_in(&scene.path("here"));
    assert!(left.is_empty(), "left behind: {left:?}\n{outcome}");
}

/// A reset before the key exchange is tried again; during and after it, it ends the program with code
/// 255 and an error.
pub(crate) fn disconnect_before_the_session(kind: PeerKind) {
    let Some(mut scene) = Scene::start(kind) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    // A complete small file takes Dropbear little more than 2,000 bytes.
    for bytes in [1, 30, 700, 1700] {
        let proxy = DelayProxy::to(scene.peer.addr())
            .cut_after(Way::Up, bytes)
            .start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let outcome = scene
            .client
            .cp()
            .arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .timeout(Duration::from_secs(30))
            .run();
        assert!(!outcome.stderr.is_empty(), "{outcome}");
        if outcome.err().contains("trying again") {
            outcome.expect_code(0);
            let copy = fs::read(scene.path("copy")).expect("copied");
            assert_eq!(copy, b"content");
            fs::remove_file(scene.path("copy")).expect("removed");
        // Where the login is short, the session has begun, and a lost one is made again.
        } else if !outcome.err().contains("reconnecting") {
            outcome.expect_code(255);
        }
    }
}

pub(crate) fn password_login(kind: PeerKind) {
    prompts(kind, Auth::Password, 1);
}

pub(crate) fn keyboard_interactive(kind: PeerKind) {
    prompts(kind, Auth::KeyboardInteractive, 1);
}

pub(crate) fn key_then_keyboard_interactive(kind: PeerKind) {
    prompts(kind, Auth::PublicKeyThenKeyboardInteractive, 1);
}

fn prompts(kind: PeerKind, auth: Auth, times: usize) {
    let mut client = Client::new();
    let mut builder = PeerBuilder::new(kind).auth(auth);
    if auth == Auth::PublicKeyThenKeyboardInteractive {
        builder = builder.authorize(&client.dir);
    }
    let Some(peer) = builder.start() else { return };
    client.dir.add_host("peer", &peer);
    let files = scratch();
    // The account that logs in may not be ours.
    let file = files.path().join("file");
    write_file(&file, &Seed::new(6).bytes(100_000));
    let copy = files.path().join("copy");
    make_readable(files.path());
    client
        .answering("wrong")
        .arg(remote("peer", &file))
        .arg(&copy)
        .run()
        .expect_code(255)
        .expect_err(&["permission denied", "authentication", "refused"]);
    assert!(!copy.exists());
    let good = client
        .answering(password())
        .arg(remote("peer", &file))
        .arg(&copy)
        .run();
    client.check_copied(good, kind);
    assert_same(&file, &copy, Compare::CONTENT);
    assert!(
        client.dir.asked().lines().count() >= times,
        "asked: {}",
        client.dir.asked()
    );
}

fn make_readable(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("our folder");
}

pub(crate) fn key_login_with_each_kind(kind: PeerKind) {
    let mut client = Client::new();
    let kinds = [
        KeyKind::Ed25519,
        KeyKind::Ecdsa256,
        KeyKind::Ecdsa384,
        KeyKind::Ecdsa521,
        KeyKind::Rsa2048,
    ];
    let keys: Vec<KeyPair> = kinds
        .iter()
        .map(|kind| KeyPair::generate(client.dir.path(), kind.file_name(), *kind))
        .collect();
    let mut builder = PeerBuilder::new(kind);
    for key in &keys {
        builder = builder.authorize_line(key.public_line());
    }
    let Some(peer) = builder.start() else { return };
    client.dir.add_host("peer", &peer);
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    for key in &keys {
        eprintln!("key {}", key.kind.file_name());
        client
            .dir
            .set_for_all("IdentityFile", key.private.display().to_string());
        let copy = files.path().join(key.kind.file_name());
        let outcome = client.cp().arg(&file).arg(remote("peer", &copy)).run();
        client.check_copied(outcome, peer.kind());
        assert_same(&file, &copy, Compare::CONTENT);
    }
}
