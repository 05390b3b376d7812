//! `longhaul serve --listen` and user certificates made by ssh-keygen, presented by OpenSSH's
//! clients and by longhaul.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use longhaul_tests::{Scene, longhaul};
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{KeyKind, KeyPair, Run};

use crate::accounts::Machine;
use crate::serving::openssh;

/// Server whose authorized_keys lists only a certificate authority, and a client with a key of a
/// given type.
struct Signed {
    scene: Scene,
    ca: KeyPair,
    key: KeyPair,
}

impl Signed {
    fn new(ca: KeyKind, key: KeyKind) -> Self {
        let scene = Scene::with(PeerBuilder::longhaul(longhaul(), [""; 0]));
        let scene = scene.expect("longhaul is there");
        Self::on(scene, ca, key)
    }

    fn on(mut scene: Scene, ca: KeyKind, key: KeyKind) -> Self {
        let folder = scene.scratch.path();
        let ca = KeyPair::generate(folder, "ca", ca);
        let key = KeyPair::generate(folder, "key", key);
        let identity = key.private.display().to_string();
        scene.client.dir.set_for_all("IdentityFile", identity);
        let signed = Self { scene, ca, key };
        signed.authorize("cert-authority");
        signed
    }

    /// Sets the options in front of the authority's key.
    fn authorize(&self, options: &str) {
        let file = self.scene.peer.folder().join("authorized_keys");
        let line = format!("{options} {}\n", self.ca.public_line());
        write_file(&file, line.as_bytes());
    }

    /// Reports if sftp can log in.
    fn enters(&self) -> bool {
        let run = openssh(&self.scene, "sftp").arg("peer").stdin("");
        let outcome = run.run();
        let denied = outcome.err().contains("Permission denied (publickey)");
        assert!(outcome.success() || denied, "{outcome}");
        outcome.success()
    }

    /// Asserts that the login is refused and the log has the reason.
    #[track_caller]
    fn is_refused(&self, why: &str) {
        let before = self.scene.peer.log().len();
        assert!(!self.enters(), "{why}");
        let log = self.scene.peer.log();
        let log = &log[before..];
        assert!(log.contains(why), "{why:?} is not in\n{log}");
    }
}

fn fingerprint(key: &Path) -> String {
    let run = Run::new("ssh-keygen").args(["-l", "-f"]).arg(key);
    let outcome = run.run().expect_code(0);
    let out = outcome.out();
    out.split(' ').nth(1).expect("it is told").to_owned()
}

#[test]
fn certificates_of_every_kind_are_let_in() {
    for (ca, key) in [
        (KeyKind::Ed25519, KeyKind::Ed25519),
        (KeyKind::Rsa3072, KeyKind::Ecdsa256),
        (KeyKind::Ecdsa384, KeyKind::Rsa2048),
        (KeyKind::Ecdsa521, KeyKind::Ecdsa384),
        (KeyKind::Ecdsa256, KeyKind::Ecdsa521),
    ] {
        let signed = Signed::new(ca, key);
        let scene = &signed.scene;
        signed.is_refused("the key is not in authorized_keys");
        let user = scene.peer.user();
        let arguments = ["-z", "77", "-V", "-5m:+1h"];
        signed.ca.certify(&signed.key, user, &arguments);
        write_file(&scene.path("file"), b"content");
        let there = scene.remote("there");
        let scp = openssh(scene, "scp").arg(scene.path("file")).arg(&there);
        scp.run().expect_code(0);
        assert!(signed.enters());
        let entered = || {
            let log = scene.peer.log();
            log.matches("logged in with a certificate").count()
        };
        let before = entered();
        assert_eq!(before, 2);
        scene.copies(&[], &there, scene.path("back"));
        assert_eq!(fs::read(scene.path("back")).expect("it"), b"content");
        let log = scene.peer.log();
        assert!(scene.client.is_scp() || entered() > before, "{log}");
        for word in [
            format!("key=\"{}\"", fingerprint(&signed.key.public())),
            format!("ca=\"{}\"", fingerprint(&signed.ca.public())),
            "serial=77 id=\"test\"".to_owned(),
        ] {
            assert!(log.contains(&word), "{word} is not in\n{log}");
        }
    }
}

#[test]
fn what_a_certificate_says_is_honoured_or_it_is_refused() {
    let signed = Signed::new(KeyKind::Rsa2048, KeyKind::Ed25519);
    let user = signed.scene.peer.user().to_owned();
    for (principal, arguments, refused) in [
        (
            user.as_str(),
            &["-O", "source-address=127.0.0.0/8"][..],
            None,
        ),
        (&user, &["-t", "rsa-sha2-256"], None),
        ("somebody-else", &[], Some("does not list")),
        (
            &user,
            &["-V", "20200101Z:20200102Z"],
            Some("the certificate expired at"),
        ),
        (
            &user,
            &["-V", "+1h:+2h"],
            Some("the certificate is not valid before"),
        ),
        (&user, &["-h"], Some("the key is not in authorized_keys")),
        (
            &user,
            &["-O", "source-address=192.0.2.0/24"],
            Some("the certificate is for other addresses (source-address)"),
        ),
        (
            &user,
            &["-O", "force-command=internal-sftp"],
            Some("the unsupported critical option force-command"),
        ),
        (
            &user,
            &["-O", "verify-required"],
            Some("verify-required needs a security key"),
        ),
        (
            &user,
            &["-O", "critical:surprise@example.org=1"],
            Some("the unsupported critical option surprise@example.org"),
        ),
        // Signature with SHA-1.
        (&user, &["-t", "ssh-rsa"], Some("has an invalid signature")),
    ] {
        signed.ca.certify(&signed.key, principal, arguments);
        match refused {
            None => assert!(signed.enters(), "{arguments:?}"),
            Some(why) => signed.is_refused(why),
        }
    }
}

#[test]
fn options_of_an_authoritys_line_hold_for_its_certificates() {
    let signed = Signed::new(KeyKind::Ed25519, KeyKind::Ed25519);
    signed.ca.certify_user(&signed.key, "staff");
    for (options, refused) in [
        ("cert-authority,restrict,principals=\"admins,staff\"", None),
        (
            "cert-authority,principals=\"staff\",from=\"127.0.0.1\"",
            None,
        ),
        ("cert-authority", Some("does not list")),
        (
            "cert-authority,principals=\"admins\"",
            Some("does not list admins"),
        ),
        (
            "cert-authority,principals=\"staff\",from=\"192.0.2.*\"",
            Some("from other addresses only"),
        ),
        (
            "cert-authority,principals=\"staff\",expiry-time=\"20200101\"",
            Some("has expired (expiry-time=)"),
        ),
        (
            "cert-authority,principals=\"staff\",command=\"internal-sftp -R\"",
            Some("the unsupported option command"),
        ),
        (
            "restrict,principals=\"staff\"",
            Some("without cert-authority"),
        ),
    ] {
        signed.authorize(options);
        match refused {
            None => assert!(signed.enters(), "{options}"),
            Some(why) => signed.is_refused(why),
        }
    }
    // The authority's own key gives no access, nor does a certificate of another authority.
    signed.authorize("cert-authority,principals=\"staff\"");
    assert!(signed.enters());
    let other = KeyPair::generate(signed.scene.scratch.path(), "other", KeyKind::Ed25519);
    other.certify_user(&signed.key, "staff");
    signed.is_refused("the authority that signed it is not in authorized_keys");
    fs::remove_file(signed.key.certificate()).expect("ours");
    fs::copy(&signed.ca.private, &signed.key.private).expect("ours");
    fs::copy(signed.ca.public(), signed.key.public()).expect("ours");
    signed.is_refused("accepts certificates signed by the key, not the key itself");
}

#[test]
fn an_authority_may_have_a_root_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (theirs, hers) = (folder.path().join("theirs"), folder.path().join("hers"));
    for dir in [&theirs, &hers] {
        fs::create_dir(dir).expect("ours");
        write_file(&dir.join("file"), dir.as_os_str().as_encoded_bytes());
    }
    let config = folder.path().join("serve.toml");
    write_file(&config, b"");
    let flags = ["--config".to_owned(), config.display().to_string()];
    let scene = Scene::with(PeerBuilder::longhaul(longhaul(), flags)).expect("longhaul is there");
    let signed = Signed::on(scene, KeyKind::Ed25519, KeyKind::Ed25519);
    let scene = &signed.scene;
    signed.ca.certify_user(&signed.key, scene.peer.user());
    let of = |key: &KeyPair, root: &Path| {
        format!(
            "[[key]]\nfingerprint = \"{}\"\nroot = \"{}\"\n",
            fingerprint(&key.public()),
            root.display()
        )
    };
    let reload = |text: &str| {
        write_file(&config, text.as_bytes());
        let log = || scene.peer.log().matches("reloaded").count();
        let before = log();
        let pid = scene.peer.pid().to_string();
        Run::new("kill").args(["-HUP", &pid]).run().expect_code(0);
        testkit::wait::until(
            std::time::Duration::from_secs(20),
            || log() != before,
            || scene.peer.log(),
        );
    };
    let got = scene.path("got");
    let serves = |root: &Path| {
        let run = openssh(scene, "scp").arg("peer:/file").arg(&got);
        run.run().expect_code(0);
        let content = fs::read(&got).expect("it");
        assert_eq!(content, root.as_os_str().as_encoded_bytes());
    };
    reload(&of(&signed.ca, &theirs));
    serves(&theirs);
    reload(&(of(&signed.ca, &theirs) + &of(&signed.key, &hers)));
    serves(&hers);
}

#[test]
fn trusted_authorities_let_into_the_accounts_they_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), all.clone()).expect("ours");
    let ca = KeyPair::generate(folder.path(), "ca", KeyKind::Ed25519);
    let key = KeyPair::generate(folder.path(), "key", KeyKind::Ed25519);
    let list = folder.path().join("authorities");
    write_file(&list, format!("# ours\n{}\n", ca.public_line()).as_bytes());
    fs::set_permissions(&list, fs::Permissions::from_mode(0o644)).expect("ours");
    let config = folder.path().join("serve.toml");
    let text = format!("trusted-user-ca-keys = \"{}\"\n", list.display());
    write_file(&config, text.as_bytes());
    let Some(machine) = Machine::start(&["--config", &config.display().to_string()]) else {
        return;
    };
    let enters = |user: &str| {
        let run = machine.sftp_with(&key, user, &["-b", "-"]).stdin("pwd\n");
        let outcome = run.run();
        let denied = outcome.err().contains("Permission denied (publickey)");
        assert!(outcome.success() || denied, "{outcome}");
        outcome.success()
    };
    assert!(!enters("alice"), "by a bare key");
    ca.certify_user(&key, "alice,locked,nobody-at-all");
    assert!(enters("alice"), "{}", machine.daemon.log());
    for user in ["bob", "locked", "nobody-at-all"] {
        assert!(!enters(user), "{user}");
    }
    let log = machine.daemon.log();
    assert!(
        log.contains("the certificate does not list bob as a principal"),
        "{log}"
    );
    // Accounts with plain keys still admit them.
    let run = machine.sftp_with(&machine.key, "bob", &["-b", "-"]);
    run.stdin("pwd\n").run().expect_code(0);
    // An account's own authorities admit to that account only, whatever names they certify.
    let own = KeyPair::generate(folder.path(), "own", KeyKind::Ed25519);
    let keys = machine.home("bob").join(".ssh/authorized_keys");
    let line = format!("cert-authority {}\n", own.public_line());
    write_file(&keys, line.as_bytes());
    chown(&keys, Some(54_002), Some(54_002)).expect("root may");
    own.certify_user(&key, "alice,bob");
    assert!(enters("bob"), "{}", machine.daemon.log());
    assert!(!enters("alice"));
    // A list that others may write admits nobody.
    ca.certify_user(&key, "alice");
    assert!(enters("alice"));
    fs::set_permissions(&list, fs::Permissions::from_mode(0o666)).expect("ours");
    assert!(!enters("alice"));
    let log = machine.daemon.log();
    assert!(
        log.contains("authorities: other users can write it"),
        "{log}"
    );
}
