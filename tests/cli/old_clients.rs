//! Clients with outdated algorithms: the error that they and the log of `longhaul serve --listen`
//! get, and their login with `--old-clients`.

use std::fs;

use longhaul_tests::{Scene, longhaul};
use tempfile::TempDir;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{KeyKind, KeyPair, missing};

use crate::hindered::write_script;
use crate::hostile_clients::{kexinit, listening, plain, told};
use crate::operating::configured;
use crate::serving::openssh;

const NEW: &str = "mlkem768x25519-sha256";
const OLD: &str = "curve25519-sha256";
const GCM: &str = "aes128-gcm@openssh.com";
const REMEDY: &str = "; longhaul serve --old-clients (old-clients = true) would admit it";

#[test]
fn who_has_nothing_in_common_reads_what_is_missing_and_what_helps() {
    let long = "x@example.org,".repeat(2000);
    let long = long.trim_end_matches(',');
    for (lists, sentence, helps) in [
        (
            ["curve25519-sha256,ext-info-c", "ssh-ed25519", GCM, ""],
            "no key exchange method in common; it offers only curve25519-sha256",
            true,
        ),
        (
            [NEW, "ssh-ed25519", "aes128-ctr", "hmac-sha1,hmac-sha2-256"],
            "no MAC in common; it offers only hmac-sha1,hmac-sha2-256",
            true,
        ),
        (
            [NEW, "ssh-ed25519", "3des-cbc", "hmac-sha2-256"],
            "no cipher in common; it offers only 3des-cbc",
            false,
        ),
        // One type matches, and another does not.
        (
            [OLD, "ssh-dss", GCM, ""],
            "no key exchange method in common; it offers only curve25519-sha256",
            false,
        ),
        (
            [NEW, "ssh-dss", GCM, ""],
            "no host key algorithm in common; it offers only ssh-dss",
            false,
        ),
        ([long, "ssh-ed25519", GCM, ""], ",x@example.org,...", false),
    ] {
        let scene = listening(&[]);
        let told = told(&scene, &[&plain(&kexinit(lists))]);
        assert!(told.contains("SSH-2.0-x: no "), "{told:?}");
        assert!(told.contains(sentence), "{told:?}");
        assert_eq!(told.contains(REMEDY), helps, "{told:?}");
        let line = scene.logged("ended with an error: SSH-2.0-x: no ");
        assert!(line.contains(sentence) && line.len() < 1000, "{line}");
        assert!(line.ends_with(REMEDY) == helps, "{line}");
    }
}

#[test]
fn a_list_of_the_configuration_leaves_nothing_that_would_help() {
    let (scene, _file, _folder) = configured(&format!("key-exchange = [\"{NEW}\"]\n"));
    let lists = [OLD, "ssh-ed25519", GCM, ""];
    let told = told(&scene, &[&plain(&kexinit(lists))]);
    assert!(told.contains("only curve25519-sha256"), "{told:?}");
    assert!(!told.contains("--old-clients"), "{told:?}");
}

/// OpenSSH's client, limited to the algorithms of its versions of 2014 or 2020.
#[test]
fn an_old_client_is_turned_away_and_let_in_where_that_is_said() {
    let of_2014 = [
        "-oKexAlgorithms=ecdh-sha2-nistp256",
        "-oCiphers=aes128-ctr",
        "-oMACs=hmac-sha2-256",
        "-oHostKeyAlgorithms=ecdsa-sha2-nistp256",
    ];
    let of_2020 = ["-oKexAlgorithms=curve25519-sha256"];
    let sftp = |scene: &Scene, options: &[&str]| {
        let run = openssh(scene, "sftp").args(options.iter().copied());
        run.arg("peer").stdin("pwd\n").run()
    };
    let scene = listening(&[]);
    let shown_at_start = "--old-clients: key exchanges without post-quantum";
    assert!(!scene.peer.log().contains(shown_at_start));
    for options in [&of_2014[..], &of_2020] {
        let outcome = sftp(&scene, options).expect_code(255);
        outcome.expect_err(&["no matching key exchange method"]);
    }
    for what in ["ecdh-sha2-nistp256", OLD] {
        let line = scene.logged(&format!("it offers only {what}"));
        assert!(line.contains("SSH-2.0-OpenSSH_"), "{line}");
        assert!(line.ends_with(REMEDY), "{line}");
    }
    sftp(&scene, &[]).expect_code(0);
    assert!(!scene.logged("logged in").contains(OLD));

    let flag = listening(&["--old-clients"]);
    let (file, _file, _folder) = configured("old-clients = true\n");
    for scene in [flag, file] {
        assert!(scene.peer.log().contains(shown_at_start));
        sftp(&scene, &of_2020).expect_code(0);
        let line = scene.logged("logged in");
        assert!(
            line.contains("kex=\"curve25519-sha256\" host_key=\"ssh-ed25519\""),
            "{line}"
        );
        sftp(&scene, &of_2014).expect_code(0);
        let line = scene.logged("ecdh-sha2-nistp256");
        for protection in [
            "logged in user=",
            "host_key=\"ecdsa-sha2-nistp256\"",
            "cipher=\"aes128-ctr\" mac=\"hmac-sha2-256\"",
        ] {
            assert!(line.contains(protection), "{line}");
        }
    }
}

/// Server that finds host keys in /etc/ssh, like sshd; it sees another /etc/ssh in a mount
/// namespace.
pub(crate) struct BesideSshd {
    pub(crate) scene: Scene,
    keys: TempDir,
}

impl BesideSshd {
    /// Starts the server; `None` if that is not possible here.
    pub(crate) fn start(flags: &[&str]) -> Option<Self> {
        if !missing::can_unshare_mounts() {
            missing::not_here("only root can have another /etc/ssh");
            return None;
        }
        let keys = longhaul_tests::scratch();
        for (name, kind) in [
            ("ssh_host_ed25519_key", KeyKind::Ed25519),
            ("ssh_host_ecdsa_key", KeyKind::Ecdsa256),
            ("ssh_host_rsa_key", KeyKind::Rsa3072),
        ] {
            KeyPair::generate(keys.path(), name, kind);
        }
        let script = keys.path().join("server");
        let text = format!(
            "#!/bin/sh\nmkdir -p /etc/ssh\nexec unshare --mount --propagation private sh -c \
             'mount --bind {} /etc/ssh && exec \"$@\"' sh {} \"$@\"\n",
            keys.path().display(),
            longhaul().display()
        );
        write_script(&script, &text);
        let builder = PeerBuilder::longhaul(script, flags.iter().copied());
        let scene = Scene::with(builder.host_keys(&[]));
        let scene = scene.expect("longhaul is there");
        Some(Self { scene, keys })
    }

    /// Makes the client know the host by its key of this type only.
    fn known_by(&self, kind: &str) {
        let public = self.keys.path().join(format!("ssh_host_{kind}_key.pub"));
        let public = fs::read_to_string(public).expect("a key");
        let line = format!("[127.0.0.1]:{} {public}", self.scene.peer.port());
        write_file(&self.scene.client.dir.known_hosts(), line.as_bytes());
    }
}

/// A client that knows the host by a key that is not offered reports a changed host key.
#[test]
fn sshd_s_key_of_ecdsa_is_kept_back_unless_there_are_old_clients() {
    let (Some(new), Some(old)) = (
        BesideSshd::start(&[]),
        BesideSshd::start(&["--old-clients"]),
    ) else {
        return;
    };
    let sftp = |beside: &BesideSshd| {
        let run = openssh(&beside.scene, "sftp").arg("-oStrictHostKeyChecking=yes");
        run.arg("peer").stdin("pwd\n").run()
    };
    for (beside, kind, known) in [
        (&new, "ed25519", true),
        (&new, "rsa", true),
        (&new, "ecdsa", false),
        (&old, "ed25519", true),
        (&old, "rsa", true),
        (&old, "ecdsa", true),
    ] {
        beside.known_by(kind);
        match known {
            true => drop(sftp(beside).expect_code(0)),
            false => {
                let outcome = sftp(beside).expect_code(255);
                outcome.expect_err(&["IDENTIFICATION HAS CHANGED", "No ED25519 host key is known"]);
            }
        }
    }
    let said = "is not offered; to offer it use --old-clients";
    let log = new.scene.peer.log();
    let line = log.lines().find(|line| line.contains(said));
    let line = line.expect("it says so at its start");
    assert!(
        line.contains("host key ecdsa-sha2-nistp256 SHA256:"),
        "{line}"
    );
    assert!(!old.scene.peer.log().contains(said));
}
