//! OpenSSH's clients learn all host keys of `longhaul serve --listen`, and longhaul those of an sshd
//! (UpdateHostKeys).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

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

/// One copy from a host whose file is given.
struct Learning {
    scene: Scene,
    /// Lines of all host keys, as in known_hosts.
    all: Vec<String>,
}

impl Learning {
    fn new(builder: PeerBuilder) -> Option<Self> {
        let scene = Scene::with(builder)?;
        fs::write(scene.path("file"), "data").expect("ours");
        let all = fs::read_to_string(scene.client.dir.known_hosts()).expect("ours");
        let all = all.lines().map(|line| format!("{line}\n")).collect();
        Some(Self { scene, all })
    }

    fn known(&self) -> PathBuf {
        self.scene.path("known")
    }

    /// Copies with these options while known_hosts is `before`, and returns known_hosts afterwards.
    fn copy(&self, before: &str, options: &[&str]) -> String {
        fs::write(self.known(), before).expect("ours");
        let file = format!("UserKnownHostsFile={}", self.known().display());
        let run = self.scene.client.cp().args(["-o", &file]);
        let options = options.iter().flat_map(|option| ["-o", option]);
        let source = format!("peer:{}", self.scene.path("file").display());
        let target = self.scene.path("copy");
        run.args(options)
            .arg(source)
            .arg(target)
            .run()
            .expect_code(0);
        fs::read_to_string(self.known()).expect("ours")
    }
}

#[test]
fn longhaul_learns_the_other_keys_of_a_server_that_proves_them_and_forgets_what_is_gone() {
    let kinds = [KeyKind::Ed25519, KeyKind::Ecdsa256, KeyKind::Rsa3072];
    let own = PeerBuilder::longhaul(longhaul(), [""; 0]).host_keys(&kinds);
    for builder in [PeerBuilder::openssh().host_keys(&kinds), own] {
        let Some(learning) = Learning::new(builder) else {
            continue;
        };
        let yes = ["UpdateHostKeys=yes", "HashKnownHosts=no"];
        let folder = learning.scene.client.dir.path();
        let gone = KeyPair::generate(folder, "gone", KeyKind::Ecdsa384);
        for first in &learning.all {
            let host = first.split(' ').next().expect("a host");
            let gone = format!("{host} {}\n", gone.public_line());
            let before = format!("# mine\n{gone}{first}other {}", &gone[host.len() + 1..]);
            let after = learning.copy(&before, &yes);
            assert_eq!(after, before, "a key of another host");
            let before = format!("# mine\n{gone}{first}");
            let after = learning.copy(&before, &yes);
            assert!(after.starts_with(&format!("# mine\n{first}")), "{after}");
            // ssh-keygen adds a comment.
            let key = |line: &str| line.split(' ').take(3).collect::<Vec<_>>().join(" ");
            let lines = |text: &str| text.lines().map(key).collect::<BTreeSet<_>>();
            let all: String = learning.all.concat() + "# mine\n";
            assert_eq!(lines(&after), lines(&all));
        }
    }
}

#[test]
fn longhaul_learns_no_key_where_ssh_would_not() {
    let kinds = [KeyKind::Ed25519, KeyKind::Ecdsa256];
    let Some(learning) = Learning::new(PeerBuilder::openssh().host_keys(&kinds)) else {
        return;
    };
    let first = &learning.all[0];
    let yes = "UpdateHostKeys=yes";
    assert_eq!(&learning.copy(first, &["UpdateHostKeys=no"]), first);
    let ask = ["UpdateHostKeys=ask", "BatchMode=yes"];
    assert_eq!(&learning.copy(first, &ask), first);
    assert_eq!(
        &learning.copy(first, &[yes, "HostKeyAlgorithms=ssh-ed25519"]),
        first
    );
    // A new host that was accepted without a question has the key that it showed, and no others.
    for strict in [
        "StrictHostKeyChecking=no",
        "StrictHostKeyChecking=accept-new",
    ] {
        let after = learning.copy("", &[yes, strict, "HashKnownHosts=no"]);
        assert_eq!(after.lines().count(), 1, "{strict}: {after}");
    }
    // A key that the administrator has recorded for all users.
    let global = learning.scene.path("global");
    fs::write(&global, first).expect("ours");
    let global = format!("GlobalKnownHostsFile={}", global.display());
    assert_eq!(learning.copy("# mine\n", &[yes, &global]), "# mine\n");
    // A key that a command prints.
    let printed = learning.scene.path("printed");
    fs::write(&printed, first).expect("ours");
    let command = format!("KnownHostsCommand=/bin/cat {}", printed.display());
    assert_eq!(learning.copy("# mine\n", &[yes, &command]), "# mine\n");
}

/// Bug: options that are read only when the server has answered gave exit code 255, as if the host
/// had refused the key, and the copy went through an open connection of ssh if there was one.
#[test]
fn a_wrong_option_was_taken_for_a_refused_host_key_or_login() {
    let builder = PeerBuilder::longhaul(longhaul(), [""; 0]);
    let scene = Scene::with(builder).expect("longhaul is there");
    if scene.client.is_scp() {
        return;
    }
    fs::write(scene.path("from"), "text").expect("ours");
    for (option, says) in [
        (
            "PubkeyAcceptedAlgorithms=-*",
            "PubkeyAcceptedAlgorithms: -* excludes every algorithm",
        ),
        ("KnownHostsCommand=/bin/echo %y", "%y"),
    ] {
        let run = scene.client.cp().args(["-o", option]);
        let run = run.arg(scene.path("from")).arg(scene.remote("to"));
        run.run().expect_code(2).expect_err(&[says]);
    }
}
