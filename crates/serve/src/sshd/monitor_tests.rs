//! Tests the messages of a compromised preauth process and the monitor's reaction.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ssh::key::PrivateKey;
use ssh::msg::UserauthRequest;
use tempfile::TempDir;
use testkit::certificate::Terms;
use wire::{Field as _, RemainingBytes};

use super::super::accounts::AccessPolicy;
use super::super::connection_limiter::ConnectionLimiter;
use super::super::{ConnectionLimits, OfferedAlgorithms, stopping};
use super::*;

/// A server's settings with one authorized key, for a preauth process that the test plays.
struct Scene {
    settings: ServerSettings,
    key: PrivateKey,
    authorized_keys: PathBuf,
    _folder: TempDir,
}

/// A message of the test's preauth process, and the answer that it expects.
type Said = (Vec<u8>, Option<Vec<u8>>);

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = PrivateKey::generate_ed25519().unwrap();
        let file = folder.path().join("authorized_keys");
        let line = format!("ssh-ed25519 {}\n", STANDARD.encode(key.public_blob()));
        std::fs::write(&file, line).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let settings = ServerSettings {
            served: ServedClientSettings::default(),
            entrance: AccessPolicy::this(file.clone()),
            keys: BTreeMap::new(),
            algorithms: OfferedAlgorithms::default(),
            to_old_clients: None,
            limits: ConnectionLimits::default(),
            login_time: Duration::from_secs(60),
            host_keys: vec![Arc::new(PrivateKey::generate_ed25519().unwrap())],
        };
        Self {
            settings,
            key,
            authorized_keys: file,
            _folder: folder,
        }
    }

    fn user(&self) -> Vec<u8> {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
        user.unwrap().unwrap().name.into_bytes()
    }

    fn sign(&self, hash: &[u8]) -> Vec<u8> {
        HostKeySignRequest {
            host_key: self.settings.host_keys[0].public_blob(),
            algorithm: b"ssh-ed25519",
            hash,
        }
        .to_bytes()
    }

    fn prove_host(&self) -> HostKeyProofRequest<'_> {
        HostKeyProofRequest {
            host_key: self.settings.host_keys[0].public_blob(),
            algorithm: b"ssh-ed25519",
        }
    }

    fn ask(&self, user: &[u8]) -> Vec<u8> {
        let blob = self.key.public_blob();
        KeyQuery {
            user,
            blob,
            authority: b"",
            signed_len: 0,
        }
        .to_bytes()
    }

    /// Adds an authority to authorized_keys.
    fn trust(&self, ca: &PrivateKey) {
        let mut text = std::fs::read_to_string(&self.authorized_keys).unwrap();
        let blob = STANDARD.encode(ca.public_blob());
        text += &format!("cert-authority ssh-ed25519 {blob}\n");
        std::fs::write(&self.authorized_keys, text).unwrap();
    }

    /// A client's signature for the connection with this session identifier.
    fn prove(&self, session_id: &[u8], user: &[u8]) -> Vec<u8> {
        let algorithm = b"ssh-ed25519".as_slice();
        self.prove_with(
            (algorithm, self.key.public_blob()),
            (b"", 0),
            session_id,
            user,
        )
    }

    /// Like `prove`, with a certificate of the key.
    fn prove_with(
        &self,
        (algorithm, blob): (&[u8], &[u8]),
        (authority, signed_len): (&[u8], u32),
        session_id: &[u8],
        user: &[u8],
    ) -> Vec<u8> {
        let covered = covered((algorithm, blob), session_id, user);
        SignatureCheckRequest {
            user,
            blob,
            authority,
            signed_len,
            algorithm,
            host_bound: false,
            signature: &self.key.sign("ssh-ed25519", &covered).unwrap(),
        }
        .to_bytes()
    }

    /// Sends all messages and then ConnectionHandover; returns the monitor's result, and true if a
    /// client was served.
    fn say(&self, said: Vec<Said>) -> (Result<(), String>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = client.local_addr().unwrap();
        let (ours, theirs) = MonitorMessageSocket::pair().unwrap();
        let (_running, stopping) = stopping().unwrap();
        let shared = ServerShared::default();
        let place =
            ConnectionLimiter::default().enter(peer.ip(), Instant::now(), &self.settings.limits);
        let (place, _) = place.unwrap();
        let mut monitor = MonitoredConnection::new(&self.settings, &shared, (client, peer), place);
        let preauth = thread::spawn(move || {
            let theirs = MonitorMessageSocket::from(theirs);
            for (message, answer) in said {
                // The monitor may have closed the link, which the test examines.
                if theirs.send(&message).is_err() {
                    return;
                }
                if let Some(answer) = answer {
                    assert_eq!(theirs.receive().unwrap()[..], answer);
                } else if matches!(
                    message[0],
                    HostKeySignRequest::NUMBER | KeyQuery::NUMBER | SignatureCheckRequest::NUMBER
                ) {
                    let _ = theirs.receive();
                }
            }
            let last = ConnectionHandover {
                kex: b"",
                cipher: b"",
                mac: b"",
                state: b"",
                unread: b"",
            };
            let _ = theirs.send(&last.to_bytes());
        });
        let until = Instant::now() + Duration::from_secs(20);
        let done = monitor.log_in(&ours, until, &stopping);
        drop(ours);
        preauth.join().unwrap();
        (
            done.map(drop).map_err(|e| e.to_string()),
            monitor.proved.is_some(),
        )
    }
}

/// The bytes that a client signs.
fn covered((algorithm, blob): (&[u8], &[u8]), session_id: &[u8], user: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    true.write(&mut data);
    algorithm.write(&mut data);
    blob.write(&mut data);
    let mut covered = Vec::new();
    session_id.write(&mut covered);
    UserauthRequest {
        user,
        service: b"ssh-connection",
        method: b"publickey",
        data: RemainingBytes(&data),
    }
    .encode(&mut covered);
    covered
}

fn verdict(allowed: bool) -> Option<Vec<u8>> {
    let full = false;
    Some(KeyVerdict { allowed, full }.to_bytes())
}

#[test]
fn whoever_has_proved_nothing_has_not_entered() {
    let scene = Scene::new();
    let user = scene.user();
    let (id, other) = ([1; 32], [2; 32]);
    for (said, entered) in [
        (vec![], false),
        (vec![(scene.sign(&id), None)], false),
        // A key that would be accepted has not been proved.
        (
            vec![(scene.sign(&id), None), (scene.ask(&user), verdict(true))],
            false,
        ),
        // A signature for another connection: the first exchange sets the session identifier.
        (
            vec![
                (scene.sign(&id), None),
                (scene.sign(&other), None),
                (scene.prove(&other, &user), verdict(false)),
            ],
            false,
        ),
        // A signature for another account.
        (
            vec![
                (scene.sign(&id), None),
                (scene.prove(&id, b"nobody-at-all"), verdict(false)),
            ],
            false,
        ),
        (
            vec![
                (scene.sign(&id), None),
                (scene.prove(&id, &user), verdict(true)),
            ],
            true,
        ),
    ] {
        assert_eq!(scene.say(said), (Ok(()), entered));
    }
}

#[test]
fn what_no_preauth_process_says_ends_the_connection() {
    let scene = Scene::new();
    let user = scene.user();
    let id = [1; 64];
    let signed = || (scene.sign(&id), None);
    let other_key = HostKeySignRequest {
        host_key: b"another",
        algorithm: b"ssh-ed25519",
        hash: &id,
    };
    let other_algorithm = HostKeySignRequest {
        host_key: scene.settings.host_keys[0].public_blob(),
        algorithm: b"rsa-sha2-256",
        hash: &id,
    };
    let mut behind = scene.sign(&id);
    behind.push(0);
    for said in [
        vec![(scene.ask(&user), None)],
        vec![(scene.prove(&id, &user), None)],
        vec![(scene.sign(&[1; 31]), None)],
        // Only hashes are signed.
        vec![(scene.sign(&[1; 65]), None)],
        vec![(other_key.to_bytes(), None)],
        vec![(other_algorithm.to_bytes(), None)],
        vec![(behind, None)],
        vec![
            signed(),
            (scene.ask(&user), None),
            (scene.ask(b"root-or-so"), None),
        ],
        (0..=MOST_SIGNATURES).map(|_| signed()).collect(),
        [signed()]
            .into_iter()
            .chain((0..=MOST_QUESTIONS).map(|_| (scene.ask(&user), None)))
            .collect(),
        vec![(vec![KeyVerdict::NUMBER, 1, 0], None)],
        // Host keys are proved only to logged-in clients.
        vec![signed(), (scene.prove_host().to_bytes(), None)],
        vec![(vec![99], None)],
    ] {
        let (done, entered) = scene.say(said);
        assert!(done.is_err() && !entered, "{done:?}");
    }
}

#[test]
fn a_host_key_is_proven_for_the_session_that_the_monitor_knows_of() {
    let scene = Scene::new();
    let id = [7; 32].as_slice();
    let prove = scene.prove_host();
    let proof = prove_with(&scene.settings, Some(id), &prove).unwrap();
    let signed = ssh::key::host_key_proof(id, prove.host_key);
    let key = scene.settings.host_keys[0].public();
    assert!(key.verify("ssh-ed25519", &signed, &proof).is_ok());
    for (id, host_key, algorithm) in [
        (None, prove.host_key, prove.algorithm),
        (Some(id), scene.key.public_blob(), prove.algorithm),
        (Some(id), prove.host_key, b"rsa-sha2-256".as_slice()),
    ] {
        let prove = HostKeyProofRequest {
            host_key,
            algorithm,
        };
        assert!(prove_with(&scene.settings, id, &prove).is_err());
    }
}

#[test]
fn what_it_says_of_a_certificate_is_not_believed() {
    let scene = Scene::new();
    let user = scene.user();
    let name = std::str::from_utf8(&user).unwrap();
    let [ca, other] = [(); 2].map(|()| PrivateKey::generate_ed25519().unwrap());
    scene.trust(&ca);
    let id = [1; 32];
    let algorithm = b"ssh-ed25519-cert-v01@openssh.com".as_slice();
    let of = |terms: Terms, ca: &PrivateKey| {
        let signed_len = terms
            .to_be_signed(scene.key.public(), ca.public_blob())
            .len();
        (terms.sign(scene.key.public(), ca), signed_len as u32)
    };
    let (sound, len) = of(Terms::user(&[name]), &ca);
    let (forged, forged_len) = of(Terms::user(&[name]), &other);
    let (others, others_len) = of(Terms::user(&["somebody else"]), &ca);
    let (trusted, plain) = (ca.public_blob(), scene.key.public_blob());
    let plain_algorithm = b"ssh-ed25519".as_slice();
    for (key, said, entered) in [
        ((algorithm, sound.as_slice()), (trusted, len), true),
        ((algorithm, &sound), (trusted, len - 1), false),
        ((algorithm, &sound), (trusted, u32::MAX), false),
        ((algorithm, &sound), (b"", 0), false),
        ((algorithm, &sound), (plain, len), false),
        ((plain_algorithm, &sound), (trusted, len), false),
        ((algorithm, &forged), (trusted, forged_len), false),
        (
            (algorithm, &forged),
            (other.public_blob(), forged_len),
            false,
        ),
        ((algorithm, &others), (trusted, others_len), false),
        ((algorithm, plain), (trusted, len), false),
        ((plain_algorithm, trusted), (b"", 0), false),
        ((plain_algorithm, plain), (b"", 0), true),
    ] {
        let prove = scene.prove_with(key, said, &id, &user);
        let said = vec![(scene.sign(&id), None), (prove, verdict(entered))];
        assert_eq!(scene.say(said), (Ok(()), entered));
    }
}

/// A security key's signature is followed by flags and a counter (OpenSSH PROTOCOL.u2f).
#[test]
fn a_security_key_that_nobody_has_touched_lets_nobody_in() {
    let scene = Scene::new();
    let (user, id) = (scene.user(), [1; 32]);
    let (sk, plain) = (b"sk-ssh-ed25519@openssh.com".as_slice(), "ssh-ed25519");
    let mut blob = Vec::new();
    sk.write(&mut blob);
    blob.extend_from_slice(&scene.key.public_blob()[4 + plain.len()..]);
    b"ssh:".as_slice().write(&mut blob);
    let sha256 = |data: &[u8]| digest::digest(&digest::SHA256, data);
    for (options, flags, entered) in [
        ("", 0, false),
        ("", 1, true),
        ("no-touch-required", 0, true),
        ("verify-required", 1, false),
        ("verify-required", 5, true),
    ] {
        let name = std::str::from_utf8(sk).unwrap();
        let line = format!("{options} {name} {}\n", STANDARD.encode(&blob));
        std::fs::write(&scene.authorized_keys, line).unwrap();
        let behind = [flags, 0, 0, 0, 9];
        let hashed = sha256(&covered((sk, &blob), &id, &user));
        let signed = [sha256(b"ssh:").as_ref(), &behind, hashed.as_ref()].concat();
        let mut signature = Vec::new();
        sk.write(&mut signature);
        signature.extend_from_slice(&scene.key.sign(plain, &signed).unwrap()[4 + plain.len()..]);
        signature.extend_from_slice(&behind);
        let prove = SignatureCheckRequest {
            user: &user,
            blob: &blob,
            authority: b"",
            signed_len: 0,
            algorithm: sk,
            host_bound: false,
            signature: &signature,
        };
        let prove = (prove.to_bytes(), verdict(entered));
        let done = scene.say(vec![(scene.sign(&id), None), prove]);
        assert_eq!(done, (Ok(()), entered), "{options} {flags}");
    }
}
