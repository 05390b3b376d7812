//! Authentication of the user and of the server, with OpenSSH as the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Client, Scene, password, remote, scratch};
use tempfile::TempDir;
use testkit::keys::KeyFormat;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{Agent, Auth, KeyKind, KeyPair, Outcome, PeerBuilder, PeerServer, Run};

/// Client whose own key is not accepted, a server, and a file.
struct Stranger {
    client: Client,
    peer: PeerServer,
    files: TempDir,
}

impl Stranger {
    fn start(client: Client, builder: PeerBuilder) -> Option<Self> {
        let mut client = client;
        let peer = builder.start()?;
        client.dir.add_host("peer", &peer);
        let files = scratch();
        write_file(&files.path().join("file"), b"content");
        Some(Self {
            client,
            peer,
            files,
        })
    }

    fn copy_with(&self, run: Run) -> Outcome {
        let _ = fs::remove_file(self.files.path().join("copy"));
        run.arg(self.files.path().join("file"))
            .arg(remote("peer", &self.files.path().join("copy")))
            .run()
    }

    #[track_caller]
    fn is_let_in(&self, run: Run) {
        self.copy_with(run).expect_code(0);
        let [file, copy] = ["file", "copy"].map(|name| self.files.path().join(name));
        assert_same(&file, &copy, Compare::CONTENT);
    }

    #[track_caller]
    fn is_kept_out(&self, run: Run) -> Outcome {
        let outcome = self.copy_with(run).expect_code(255);
        assert!(!self.files.path().join("copy").exists(), "{outcome}");
        assert!(!outcome.stderr.is_empty(), "a sentence says why: {outcome}");
        outcome
    }
}

#[test]
fn agent_with_each_kind_of_key() {
    let mut client = Client::new();
    let agent = Agent::start(client.dir.path());
    let folder = client.dir.path().join("elsewhere");
    fs::create_dir(&folder).expect("our folder");
    let keys: Vec<KeyPair> = [KeyKind::Ed25519, KeyKind::Ecdsa256, KeyKind::Rsa2048]
        .iter()
        .map(|kind| KeyPair::generate(&folder, kind.file_name(), *kind))
        .collect();
    client
        .dir
        .set_for_all("IdentityAgent", agent.socket().display().to_string());
    client.dir.set_for_all("IdentitiesOnly", "no");
    client.dir.set_for_all("IdentityFile", "/nonexistent");
    for key in &keys {
        // Only this key is accepted; the others in the agent come before or after it.
        agent.add(key);
        let builder = PeerBuilder::openssh().authorize_line(key.public_line());
        let Some(stranger) = Stranger::start(client, builder) else {
            return;
        };
        stranger.is_let_in(stranger.client.cp());
        client = stranger.client;
    }
}

#[test]
fn agent_only_offers_what_identities_only_names() {
    let mut client = Client::new();
    let agent = Agent::start(client.dir.path());
    let key = KeyPair::generate(client.dir.path(), "named", KeyKind::Ed25519);
    let other = KeyPair::generate(client.dir.path(), "other", KeyKind::Ed25519);
    for key in [&other, &key] {
        agent.add(key);
    }
    // The agent has the private key; on disk is only the public one.
    fs::remove_file(&key.private).expect("our file");
    client
        .dir
        .set_for_all("IdentityAgent", agent.socket().display().to_string());
    client
        .dir
        .set_for_all("IdentityFile", key.private.display().to_string());
    let builder = PeerBuilder::openssh()
        .option("MaxAuthTries", "2")
        .authorize_line(key.public_line())
        .authorize_line(other.public_line());
    let Some(stranger) = Stranger::start(client, builder) else {
        return;
    };
    stranger.is_let_in(stranger.client.cp());
    let blob = fingerprint(&key.public());
    assert!(stranger.peer.log().contains(&format!(
        "Accepted publickey for {} from 127.0.0.1",
        stranger.peer.user()
    )));
    assert!(
        stranger.peer.log().contains(&blob),
        "the named key was used:\n{}",
        stranger.peer.log()
    );
    assert!(
        !stranger.peer.log().contains(&fingerprint(&other.public())),
        "the other was offered"
    );
}

fn fingerprint(public: &Path) -> String {
    let outcome = Run::new("ssh-keygen")
        .arg("-l")
        .arg("-f")
        .arg(public)
        .run()
        .expect_code(0);
    outcome
        .out()
        .split(' ')
        .nth(1)
        .expect("a fingerprint")
        .to_owned()
}

#[test]
fn key_files_in_every_format() {
    for (kind, format) in [
        (KeyKind::Rsa2048, KeyFormat::Pem),
        (KeyKind::Ecdsa256, KeyFormat::Pem),
        (KeyKind::Rsa2048, KeyFormat::Pkcs8),
        (KeyKind::Ecdsa384, KeyFormat::Pkcs8),
    ] {
        eprintln!("{kind:?} {format:?}");
        let mut client = Client::new();
        let key = KeyPair::generate_with(client.dir.path(), "key", kind, format, "");
        client
            .dir
            .set_for_all("IdentityFile", key.private.display().to_string());
        let builder = PeerBuilder::openssh().authorize_line(key.public_line());
        let Some(stranger) = Stranger::start(client, builder) else {
            return;
        };
        stranger.is_let_in(stranger.client.cp());
    }
}

#[test]
fn encrypted_key_files_ask_for_the_passphrase() {
    for (kind, format) in [
        (KeyKind::Ed25519, KeyFormat::OpenSsh),
        (KeyKind::Rsa2048, KeyFormat::OpenSsh),
        (KeyKind::Ecdsa256, KeyFormat::Pkcs8),
    ] {
        eprintln!("{kind:?} {format:?}");
        let mut client = Client::new();
        let key = KeyPair::generate_with(client.dir.path(), "key", kind, format, "open sesame");
        client
            .dir
            .set_for_all("IdentityFile", key.private.display().to_string());
        let builder = PeerBuilder::openssh().authorize_line(key.public_line());
        let Some(mut stranger) = Stranger::start(client, builder) else {
            return;
        };
        let run = stranger.client.answering("wrong");
        stranger.is_kept_out(run);
        let run = stranger.client.answering("open sesame");
        stranger.is_let_in(run);
        let asked = stranger.client.dir.asked();
        assert!(
            asked.contains(&key.private.display().to_string()),
            "which key? {asked}"
        );
        // In batch mode there are no prompts.
        let run = stranger
            .client
            .answering("open sesame")
            .args(["-o", "BatchMode=yes"]);
        stranger.is_kept_out(run);
    }
}

#[test]
fn a_key_file_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let client = Client::new();
    let builder = PeerBuilder::openssh().authorize(&client.dir);
    let Some(stranger) = Stranger::start(client, builder) else {
        return;
    };
    let key = &stranger.client.dir.key().private;
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("our file");
    stranger
        .is_kept_out(stranger.client.cp())
        .expect_err(&["permission", "too open"]);
}

/// Starts a server that wants a key and then a password, whose account may read the file and not
/// write: for a download from the returned file to the returned copy.
fn second_factor() -> Option<(Stranger, PathBuf, PathBuf)> {
    let client = Client::new();
    let builder = PeerBuilder::openssh()
        .auth(Auth::Password)
        .option("AuthenticationMethods", "publickey,password")
        .authorize(&client.dir);
    let stranger = Stranger::start(client, builder)?;
    open(stranger.files.path());
    let [file, copy] = ["file", "copy"].map(|name| stranger.files.path().join(name));
    Some((stranger, file, copy))
}

#[test]
fn key_then_password() {
    let Some((mut stranger, file, copy)) = second_factor() else {
        return;
    };
    let run = stranger.client.answering(password());
    run.arg(remote("peer", &file))
        .arg(&copy)
        .run()
        .expect_code(0);
    assert_same(&file, &copy, Compare::CONTENT);
    let run = stranger.client.answering("wrong");
    run.arg(remote("peer", &file))
        .arg(&copy)
        .run()
        .expect_code(255);
}

/// Regression test: with an open connection of ssh (ControlMaster), a copy asked for the second
/// factor again, and failed where nobody could be asked.
#[test]
fn an_open_connection_of_ssh_saves_the_second_factor() {
    let Some((mut stranger, file, copy)) = second_factor() else {
        return;
    };
    let socket = stranger.client.dir.path().join("master");
    let dir = &mut stranger.client.dir;
    dir.set("peer", "ControlPath", socket.display().to_string());
    dir.set_for_all("BatchMode", "no");
    dir.set_for_all("NumberOfPasswordPrompts", "1");
    let askpass = dir.askpass(password());
    let dir = &stranger.client.dir;
    let ssh = |arguments: &[&str]| {
        let run = dir.run("ssh").arg("-F").arg(dir.config());
        run.env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .args(arguments)
            .run()
    };
    let lasting = ["-oControlMaster=yes", "-oControlPersist=60", "peer", "true"];
    ssh(&lasting).expect_code(0);
    let asked = dir.asked();
    assert_eq!(asked.lines().count(), 1, "{asked}");

    let outcome = stranger.client.cp().arg(remote("peer", &file)).arg(&copy);
    let outcome = outcome.run().expect_code(0);
    assert_same(&file, &copy, Compare::CONTENT);
    assert_eq!(stranger.client.dir.asked(), asked);
    if !stranger.client.is_scp() {
        outcome.expect_err(&["the open ssh connection at", "ControlPath=none"]);
        // ssh's own lines of -v were shown as warnings.
        let run = stranger.client.cp().args(["-v", "-v"]);
        let outcome = run.arg(remote("peer", &file)).arg(&copy).run();
        let outcome = outcome.expect_code(0);
        assert!(!outcome.err().contains("debug1: "), "{outcome}");
        // doctor failed.
        let run = stranger.client.dir.run(longhaul_tests::longhaul());
        let run = run.args(["doctor", "-F"]).arg(stranger.client.dir.config());
        let run = run.args(["--time", "4s", "peer"]);
        let outcome = run.timeout(Duration::from_secs(60)).run().expect_code(0);
        let out = outcome.out();
        assert!(
            out.contains("ssh's open connection (ControlPath) at"),
            "{outcome}"
        );
        assert_eq!(stranger.client.dir.asked(), asked);
    }
    ssh(&["-O", "exit", "peer"]).expect_code(0);
}

fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("our folder");
}

#[test]
fn user_certificate() {
    let mut client = Client::new();
    let authority = KeyPair::generate(client.dir.path(), "authority", KeyKind::Ed25519);
    let builder = PeerBuilder::openssh().trust_user_authority(&authority);
    let key = KeyPair::generate(client.dir.path(), "certified", KeyKind::Ecdsa256);
    client
        .dir
        .set_for_all("IdentityFile", key.private.display().to_string());
    let Some(mut stranger) = Stranger::start(client, builder) else {
        return;
    };
    let user = stranger.peer.user().to_owned();
    stranger.is_kept_out(stranger.client.cp());
    authority.certify(&key, &user, &["-V", "-2d:-1d"]);
    stranger.is_kept_out(stranger.client.cp());
    authority.certify(&key, "somebody-else", &[]);
    stranger.is_kept_out(stranger.client.cp());
    // Beside the key, the certificate is found by its name.
    authority.certify_user(&key, &user);
    stranger.is_let_in(stranger.client.cp());
    // At another place the certificate has to be configured.
    let elsewhere = stranger.client.dir.path().join("elsewhere.pub");
    fs::rename(key.certificate(), &elsewhere).expect("our file");
    stranger.is_kept_out(stranger.client.cp());
    stranger
        .client
        .dir
        .set_for_all("CertificateFile", elsewhere.display().to_string());
    stranger.is_let_in(stranger.client.cp());
}

#[test]
fn user_certificate_from_the_agent() {
    let mut client = Client::new();
    let authority = KeyPair::generate(client.dir.path(), "authority", KeyKind::Ecdsa256);
    let builder = PeerBuilder::openssh().trust_user_authority(&authority);
    let agent = Agent::start(client.dir.path());
    let folder = client.dir.path().join("elsewhere");
    fs::create_dir(&folder).expect("our folder");
    let key = KeyPair::generate(&folder, "certified", KeyKind::Rsa2048);
    client
        .dir
        .set_for_all("IdentityAgent", agent.socket().display().to_string());
    client.dir.set_for_all("IdentitiesOnly", "no");
    client.dir.set_for_all("IdentityFile", "/nonexistent");
    let Some(stranger) = Stranger::start(client, builder) else {
        return;
    };
    authority.certify_user(&key, stranger.peer.user());
    agent.add(&key);
    stranger.is_let_in(stranger.client.cp());
}

#[test]
fn host_certificate() {
    let client = Client::new();
    let authority = KeyPair::generate(client.dir.path(), "authority", KeyKind::Ed25519);
    let other = KeyPair::generate(client.dir.path(), "other", KeyKind::Ed25519);
    let builder = PeerBuilder::openssh()
        .host_keys(&[KeyKind::Rsa2048, KeyKind::Ecdsa256, KeyKind::Ed25519])
        .host_certificates(&authority)
        .authorize(&client.dir);
    let Some(stranger) = Stranger::start(client, builder) else {
        return;
    };
    let known_hosts = stranger.client.dir.known_hosts();
    let trust = |line: String| fs::write(&known_hosts, line + "\n").expect("our file");
    let host = format!("[127.0.0.1]:{}", stranger.peer.port());
    trust(format!(
        "@cert-authority {host} {}",
        authority.public_line()
    ));
    stranger.is_let_in(stranger.client.cp());
    for algorithm in [
        "ssh-ed25519-cert-v01@openssh.com",
        "ecdsa-sha2-nistp256-cert-v01@openssh.com",
        "rsa-sha2-512-cert-v01@openssh.com",
    ] {
        eprintln!("{algorithm}");
        let option = format!("HostKeyAlgorithms={algorithm}");
        stranger.is_let_in(stranger.client.cp().args(["-o", &option]));
    }
    trust(format!(
        "@cert-authority *.example.org {}",
        authority.public_line()
    ));
    stranger.is_kept_out(stranger.client.cp());
    trust(format!("@cert-authority {host} {}", other.public_line()));
    stranger.is_kept_out(stranger.client.cp());
    let ca = authority.public_line();
    trust(format!("@cert-authority {host} {ca}\n@revoked * {ca}"));
    stranger.is_kept_out(stranger.client.cp());
}

#[test]
fn revoked_host_key() {
    let Some(scene) = Scene::with(PeerBuilder::openssh().host_keys(&[KeyKind::Ed25519])) else {
        return;
    };
    let key = scene.peer.host_keys()[0].public_line();
    let host = format!("[127.0.0.1]:{}", scene.peer.port());
    let lines = format!("{host} {key}\n@revoked * {key}\n");
    fs::write(scene.client.dir.known_hosts(), lines).expect("our file");
    write_file(&scene.path("file"), b"content");
    for strictness in ["yes", "accept-new"] {
        let option = format!("StrictHostKeyChecking={strictness}");
        let run = scene.client.cp().args(["-o", &option]);
        run.arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .run()
            .expect_code(255)
            .expect_err(&["revoked"]);
    }
}

#[test]
fn known_hosts_in_every_form() {
    let Some(scene) = Scene::with(PeerBuilder::openssh().host_keys(&[KeyKind::Ed25519])) else {
        return;
    };
    let key = scene.peer.host_keys()[0].public_line();
    let port = scene.peer.port();
    let known_hosts = scene.client.dir.known_hosts();
    write_file(&scene.path("file"), b"content");
    let run = |flags: &[&str]| {
        let _ = fs::remove_file(scene.path("copy"));
        let run = scene.client.cp().args(flags);
        run.arg(scene.path("file")).arg(scene.remote("copy")).run()
    };
    for (pattern, accepted) in [
        (format!("[127.0.0.1]:{port}"), true),
        (format!("other,[127.0.0.1]:{port}"), true),
        (format!("[127.0.0.*]:{port}"), true),
        (format!("[127.0.0.?]:{port},!other"), true),
        (format!("[127.0.0.*]:{port},![127.0.0.1]:{port}"), false),
        (format!("[127.0.0.1]:{}", port - 1), false),
    ] {
        eprintln!("{pattern}");
        fs::write(&known_hosts, format!("# comment\n\n{pattern} {key}\n")).expect("our file");
        run(&[]).expect_code(if accepted { 0 } else { 255 });
    }
    // With a hashed host name.
    fs::write(&known_hosts, format!("[127.0.0.1]:{port} {key}\n")).expect("our file");
    Run::new("ssh-keygen")
        .args(["-q", "-H", "-f"])
        .arg(&known_hosts)
        .run()
        .expect_code(0);
    assert!(
        fs::read_to_string(&known_hosts)
            .expect("our file")
            .starts_with("|1|")
    );
    run(&[]).expect_code(0);
    // Under another name.
    fs::write(&known_hosts, format!("alias {key}\n")).expect("our file");
    run(&[]).expect_code(255);
    run(&["-o", "HostKeyAlias=alias"]).expect_code(0);
    // Stored in hashed form if so configured.
    fs::write(&known_hosts, "").expect("our file");
    run(&[
        "-o",
        "StrictHostKeyChecking=accept-new",
        "-o",
        "HashKnownHosts=yes",
    ])
    .expect_code(0);
    assert!(
        fs::read_to_string(&known_hosts)
            .expect("our file")
            .contains("|1|")
    );
    run(&[]).expect_code(0);
}

/// A user at a terminal is asked once and sees the fingerprint; the accepted key is stored.
#[test]
fn asks_at_the_terminal_about_a_new_host() {
    let Some(mut scene) = Scene::with(PeerBuilder::openssh().host_keys(&[KeyKind::Ed25519])) else {
        return;
    };
    fs::write(scene.client.dir.known_hosts(), "").expect("our file");
    scene.client.dir.set_for_all("StrictHostKeyChecking", "ask");
    scene.client.dir.set_for_all("BatchMode", "no");
    write_file(&scene.path("file"), b"content");
    let ask = || {
        scene
            .client
            .cp()
            .arg(scene.path("file"))
            .arg(scene.remote("copy"))
            .in_terminal()
    };
    let mut asking = ask().spawn();
    assert!(asking.shows("yes/no"), "{}", asking.wait());
    assert!(asking.shows(&fingerprint(&scene.peer.host_keys()[0].public())));
    asking.type_in("no\n");
    asking.wait().expect_code(255);
    assert!(!scene.path("copy").exists());
    let mut asking = ask().spawn();
    assert!(asking.shows("yes/no"), "{}", asking.wait());
    asking.type_in("yes\n");
    asking.wait().expect_code(0);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
    let quiet = ask().spawn().wait().expect_code(0);
    assert!(!quiet.out().contains("yes/no"), "{quiet}");
}
