//! HPN-SSH as client and as server: `hpn-ssh/bin/hpnssh` and `hpn-ssh/sbin/hpnsshd` in the folder
//! that `LONGHAUL_PEERS` names. Without it these tests report the skip and pass.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use longhaul_tests::{Scene, longhaul};
use testkit::KeyKind::{Ecdsa256, Ecdsa384, Ecdsa521, Ed25519, Rsa2048};
use testkit::tree::write_file;
use testkit::{Outcome, PeerBuilder, PeerKind, Run, Seed, missing};

use crate::scenarios::{Knows, scenarios};

const KIND: PeerKind = PeerKind::Hpn;

const KNOWS: Knows = Knows {
    ciphers: &[
        // Multi-threaded.
        "chacha20-poly1305-mt@hpnssh.org",
        "chacha20-poly1305@openssh.com",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        // Multi-threaded as well, under their usual names.
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ],
    kex: &[
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512",
        "curve25519-sha256",
    ],
    macs: &[
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
    ],
    host_keys: &[Ed25519, Ecdsa256, Ecdsa384, Ecdsa521, Rsa2048],
};

scenarios!(KIND, KNOWS;);

const CLEAR: &str = "NOT ENCRYPTED";
const UNPROVEN: &str = "NOT AUTHENTICATED";

/// Copies up and down with longhaul, and returns its output.
fn there_and_back(scene: &Scene, flags: &[&str]) -> Vec<String> {
    let content = Seed::new(7).bytes(9_000_001);
    write_file(&scene.path("file"), &content);
    let (file, back) = (scene.path("file"), scene.path("back"));
    let mut said = Vec::new();
    for (from, to) in [
        (file.into_os_string(), scene.remote("there")),
        (scene.remote("there"), back.clone().into_os_string()),
    ] {
        let outcome = scene.client.cp().args(flags).arg(from).arg(to).run();
        said.push(outcome.expect_code(0).err());
    }
    assert!(fs::read(back).expect("it is there") == content);
    said
}

#[test]
fn our_client_does_without_a_cipher_where_hpn_ssh_was_told_too() {
    let told = |mac: &str| {
        let builder = PeerBuilder::new(KIND).option("NoneEnabled", "yes");
        Scene::with(builder.option("NoneMacEnabled", mac))
    };
    let Some(scene) = told("no") else { return };
    for flags in [&["--insecure-none-cipher"], &["--insecure-none-mac"]] {
        for said in there_and_back(&scene, flags) {
            assert!(said.contains(CLEAR) && !said.contains(UNPROVEN), "{said}");
        }
    }
    let Some(scene) = told("yes") else { return };
    for said in there_and_back(&scene, &["--insecure-none-cipher"]) {
        assert!(said.contains(CLEAR) && !said.contains(UNPROVEN), "{said}");
    }
    for said in there_and_back(&scene, &["--insecure-none-mac", "-q"]) {
        assert!(said.contains(CLEAR) && said.contains(UNPROVEN), "{said}");
    }
    // Without the flag, encryption is not disabled.
    for said in there_and_back(&scene, &[]) {
        assert!(!said.contains(CLEAR), "{said}");
    }
}

#[test]
fn where_hpn_ssh_was_not_told_our_client_says_so_and_encrypts() {
    let Some(scene) = Scene::start(KIND) else {
        return;
    };
    for said in there_and_back(&scene, &["--insecure-none-mac"]) {
        let says =
            said.contains("the server refused to turn encryption off, so the data is encrypted");
        assert!(says && !said.contains(CLEAR), "{said}");
    }
}

/// Returns a program of HPN-SSH.
fn hpn(name: &str) -> Option<PathBuf> {
    let file = format!("hpn-ssh/bin/{name}");
    let found = missing::newest_peer(&file);
    if found.is_none() {
        missing::not_here(&format!("LONGHAUL_PEERS names no folder with {file}"));
    }
    found
}

/// Copies up and down with hpnscp to longhaul's server, and returns the last outcome.
fn hpnscp(scene: &Scene, options: &[&str]) -> Option<Outcome> {
    let (hpnscp, hpnssh) = (hpn("hpnscp")?, hpn("hpnssh")?);
    let content = Seed::new(8).bytes(9_000_001);
    write_file(&scene.path("file"), &content);
    let there = format!("peer:{}", scene.path("there").display());
    let (file, back) = (scene.path("file"), scene.path("back"));
    let _ = fs::remove_file(&back);
    let [file, shown] = [&file, &back].map(|path| path.display().to_string());
    let mut last = None;
    for (from, to) in [(&file, &there), (&there, &shown)] {
        let outcome = Run::new(&hpnscp)
            .arg("-S")
            .arg(&hpnssh)
            .arg("-F")
            .arg(scene.client.dir.config())
            .args(options)
            .args([from, to])
            .run();
        let done = outcome.code == Some(0);
        last = Some(outcome);
        if !done {
            return last;
        }
    }
    assert!(fs::read(back).expect("it is there") == content);
    last
}

fn ours(flags: &[&str]) -> Scene {
    let builder = PeerBuilder::longhaul(longhaul(), flags.iter().copied());
    Scene::with(builder).expect("longhaul is there")
}

#[test]
fn hpnscp_copies_to_our_server_with_its_ciphers_on_threads() {
    let scene = ours(&[]);
    for cipher in KNOWS.ciphers {
        let Some(outcome) = hpnscp(&scene, &["-c", cipher]) else {
            return;
        };
        outcome.expect_code(0);
    }
    // With key exchanges during the transfer.
    let Some(outcome) = hpnscp(&scene, &["-oRekeyLimit=1M"]) else {
        return;
    };
    outcome.expect_code(0);
    assert!(!scene.peer.log().contains(CLEAR));
}

const NONE: &[&str] = &["-oNoneEnabled=yes", "-oNoneSwitch=yes"];
const NO_MAC: &[&str] = &[
    "-oNoneEnabled=yes",
    "-oNoneSwitch=yes",
    "-oNoneMacEnabled=yes",
];

#[test]
fn hpnscp_does_without_a_cipher_where_our_server_was_told_too() {
    for (flag, options, mac) in [
        (
            "--insecure-none-cipher",
            NONE,
            "hmac-sha2-256-etm@openssh.com",
        ),
        ("--insecure-none-mac", NONE, "hmac-sha2-256-etm@openssh.com"),
        ("--insecure-none-mac", NO_MAC, "none"),
    ] {
        let scene = ours(&[flag]);
        let Some(outcome) = hpnscp(&scene, options) else {
            return;
        };
        outcome.expect_code(0);
        let log = scene.peer.log();
        let clear: Vec<_> = log
            .lines()
            .filter(|l| l.contains("the client requested it"))
            .collect();
        let mac = format!("mac=\"{mac}\"");
        assert!(
            clear.len() == 2 && clear.iter().all(|l| l.contains(&mac)),
            "{log}"
        );
    }
}

#[test]
fn our_server_that_was_not_told_encrypts_or_does_not_serve() {
    for (flags, options) in [(&[][..], NONE), (&["--insecure-none-cipher"], NO_MAC)] {
        let scene = ours(flags);
        let Some(outcome) = hpnscp(&scene, options) else {
            return;
        };
        // The client offers nothing else.
        assert_ne!(outcome.code, Some(0), "{outcome}");
        // The client may have disconnected first.
        scene.logs("in common; the peer offers none");
        let log = scene.peer.log();
        assert!(
            !log.contains("NOT ENCRYPTED: the client requested it"),
            "{log}"
        );
    }
}

#[test]
fn hpnssh_that_does_not_ask_for_it_is_encrypted_by_a_server_that_was_told() {
    let scene = ours(&["--insecure-none-mac"]);
    for options in [&[][..], &["-oNoneEnabled=yes", "-oNoneMacEnabled=yes"]] {
        let Some(outcome) = hpnscp(&scene, options) else {
            return;
        };
        outcome.expect_code(0);
    }
    assert!(!scene.peer.log().contains(CLEAR), "{}", scene.peer.log());
}

/// Runs hpnsftp over hpnssh in both directions, and returns the outcome.
fn hpnsftp(scene: &Scene, options: &[&str]) -> Option<Outcome> {
    let (hpnsftp, hpnssh) = (hpn("hpnsftp")?, hpn("hpnssh")?);
    let content = Seed::new(9).bytes(3_000_001);
    write_file(&scene.path("file"), &content);
    let shown = |name: &str| scene.path(name).display().to_string();
    let [file, there, back] = ["file", "there", "back"].map(shown);
    let lines = format!("put {file} {there}\nls -l {there}\nget {there} {back}\nrm {there}\n");
    let _ = fs::remove_file(&back);
    let run = Run::new(hpnsftp).arg("-S").arg(hpnssh).arg("-F");
    let run = run.arg(scene.client.dir.config()).args(options);
    let outcome = run.args(["-b", "-", "peer"]).stdin(lines).run();
    if outcome.success() {
        assert!(fs::read(back).expect("it is there") == content);
        assert!(!scene.path("there").exists());
    }
    Some(outcome)
}

#[test]
fn hpnsftp_with_ciphers_on_threads_and_without_one() {
    let scene = ours(&["--insecure-none-mac"]);
    for cipher in ["chacha20-poly1305-mt@hpnssh.org", "aes256-ctr"] {
        let Some(outcome) = hpnsftp(&scene, &[&format!("-oCiphers={cipher}")]) else {
            return;
        };
        outcome.expect_code(0);
    }
    assert!(!scene.peer.log().contains(CLEAR));
    for (options, mac) in [
        (NONE, "mac=\"hmac-sha2-256-etm@openssh.com\""),
        (NO_MAC, "mac=\"none\""),
    ] {
        let Some(outcome) = hpnsftp(&scene, options) else {
            return;
        };
        outcome.expect_code(0);
        let log = scene.peer.log();
        let last = log.lines().rfind(|line| line.contains(CLEAR));
        assert!(last.is_some_and(|line| line.contains(mac)), "{log}");
    }
    let Some(outcome) = hpnsftp(&ours(&[]), NONE) else {
        return;
    };
    assert!(!outcome.success(), "{outcome}");
}

/// Other programs use `hpnssh -s` for their SFTP; here it is longhaul's client.
#[test]
fn hpnssh_carries_the_sftp_of_another_program_with_and_without_a_cipher() {
    let Some(hpnssh) = hpn("hpnssh") else { return };
    let scene = ours(&["--insecure-none-cipher"]);
    let content = Seed::new(10).bytes(3_000_001);
    write_file(&scene.path("file"), &content);
    let mut clear = 0;
    for options in [
        &["-c", "chacha20-poly1305-mt@hpnssh.org"][..],
        &["-oCiphers=aes128-ctr"],
        NONE,
    ] {
        let script = scene.path("ssh");
        let words = options.join(" ");
        let text = format!("#!/bin/sh\nexec {} {words} \"$@\"\n", hpnssh.display());
        write_file(&script, text.as_bytes());
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("our file");
        let script = script.display().to_string();
        let (file, back) = (scene.path("file"), scene.path("back"));
        scene.copies(&["-S", &script], file, scene.remote("there"));
        scene.copies(&["-S", &script], scene.remote("there"), &back);
        assert!(fs::read(&back).expect("it is there") == content);
        clear += if options == NONE { 2 } else { 0 };
        assert_eq!(scene.peer.log().matches(CLEAR).count(), clear, "{words}");
    }
}

#[test]
fn there_is_no_terminal_whose_keys_could_be_read() {
    let Some(hpnssh) = hpn("hpnssh") else { return };
    let scene = ours(&["--insecure-none-mac"]);
    let outcome = Run::new(hpnssh)
        .arg("-F")
        .arg(scene.client.dir.config())
        .args(NO_MAC)
        .args(["-tt", "peer"])
        .run();
    assert_ne!(outcome.code, Some(0), "{outcome}");
    assert!(
        !scene
            .peer
            .log()
            .contains("NOT ENCRYPTED: the client requested it")
    );
}
