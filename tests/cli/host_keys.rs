//! OpenSSH's clients learn all host keys of `longhaul serve --listen` (UpdateHostKeys).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use longhaul_tests::{Scene, longhaul};
use testkit::peer::PeerBuilder;
use testkit::{KeyKind, KeyPair, Run};

use crate::accounts::Machine;

/// Returns the key types that a known_hosts file has for its host.
fn types(known: &Path) -> BTreeSet<String> {
    let known = fs::read_to_string(known).unwrap_or_default();
    let lines = known.lines().filter(|line| !line.starts_with('#'));
    let kind = |line: &str| line.split(' ').nth(1).map(str::to_owned);
    lines.filter_map(kind).collect()
}

const UPDATE: [&str; 4] = ["-o", "UpdateHostKeys=yes", "-o", "HashKnownHosts=no"];

fn asks(run: Run) {
    run.stdin("pwd\npwd\n").run().expect_code(0);
}

#[test]
fn who_knows_one_key_learns_the_others_and_forgets_what_is_gone() {
    let kinds = [KeyKind::Ed25519, KeyKind::Ecdsa256, KeyKind::Rsa3072];
    let names = ["ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"];
    let folder = tempfile::tempdir().expect("a folder");
    // A new key that will replace the first one of its type.
    let next = KeyPair::generate(folder.path(), "next", KeyKind::Ed25519);
    let flags = ["--host-key".into(), next.private.clone().into_os_string()];
    for first in names {
        let builder = PeerBuilder::longhaul(longhaul(), flags.clone()).host_keys(&kinds);
        let scene = Scene::with(builder).expect("longhaul is there");
        let all = fs::read_to_string(scene.client.dir.known_hosts()).expect("ours");
        assert_eq!(types(&scene.client.dir.known_hosts()).len(), 3, "{all}");
        let known = scene.path("known");
        let of = |name: &&str| all.lines().find(|line| line.contains(*name));
        let one = of(&first).expect("a line");
        // A former key of this server.
        let host = one.split(' ').next().expect("a host");
        let gone = KeyPair::generate(scene.client.dir.path(), "gone", KeyKind::Ecdsa384);
        let gone = gone.public_line();
        fs::write(&known, format!("{one}\n{host} {gone}\n")).expect("ours");
        let file = format!("UserKnownHostsFile={}", known.display());
        let run = Run::new("sftp").arg("-F").arg(scene.client.dir.config());
        let run = run.args(UPDATE).args(["-o", &file, "-b", "-", "peer"]);
        asks(run);
        let now = fs::read_to_string(&known).expect("ours");
        let expected: BTreeSet<String> = names.map(str::to_owned).into();
        assert_eq!(types(&known), expected, "{first}: {now}");
        let key = |line: &str| line.split(' ').nth(1).map(str::to_owned).expect("a key");
        assert!(!now.contains(&key(&gone)), "{first}: {now}");
        assert!(now.contains(&key(&next.public_line())), "{first}: {now}");
    }
}

/// With root's server, only the monitor process has the host keys.
#[test]
fn keys_of_a_server_of_roots_are_proven_by_the_monitor() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let options = [&UPDATE[..], &["-b", "-"]].concat();
    // The first connection accepts the presented key, and the second one asks for more.
    for _ in 0..2 {
        asks(machine.sftp_with(&machine.key, "alice", &options));
    }
    let expected = ["ssh-ed25519", "ecdsa-sha2-nistp256"].map(str::to_owned);
    let log = machine.daemon.log();
    assert_eq!(types(&machine.path("known")), expected.into(), "{log}");
}
