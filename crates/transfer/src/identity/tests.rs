//! Tests of key files in all formats, and of a real ssh-agent.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use zeroize::Zeroizing;

use super::*;
use crate::agent::AgentChoice;
use crate::config::test_support::host_without_files;
use crate::config::{IdentityFile, SshOptionFlags};
use crate::prompt::PromptAnswer;

/// Test-only keys, one of each format, with the passphrase `secret` where encrypted.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/identity/test_only_keys");

struct Script(Vec<&'static str>, usize);

impl Prompt for Script {
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<PromptAnswer, PromptError> {
        assert!(question.starts_with("Enter passphrase for key '/"));
        assert_eq!(kind, EchoMode::Secret);
        self.1 += 1;
        if self.0.is_empty() {
            return Err(PromptError::Unavailable("nobody is there"));
        }
        Ok(Zeroizing::new(self.0.remove(0).to_owned()))
    }

    fn show(&mut self, _: &str) {}
}

/// Copies the fixture to a folder where its permissions can be set; `with_public` copies the .pub
/// too.
fn fixture(dir: &Path, name: &str, with_public: bool) -> PathBuf {
    let target = dir.join(name);
    fs::copy(Path::new(FIXTURES).join(name), &target).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
    if with_public {
        let public = format!("{name}.pub");
        fs::copy(Path::new(FIXTURES).join(&public), dir.join(public)).unwrap();
    }
    target
}

fn config(files: &[PathBuf], agent: AgentChoice) -> HostConfig {
    let mut config = host_without_files();
    config.identity_files = files
        .iter()
        .map(|path| IdentityFile {
            path: path.clone(),
            explicit: true,
        })
        .collect();
    config.agent = agent;
    config
}

fn gather(files: &[PathBuf]) -> Identities {
    Identities::gather(&config(files, AgentChoice::None))
}

fn signs(identities: &mut Identities, index: usize, script: &mut Script) {
    identities.unlock(index, script).unwrap();
    let public = identities.offers()[index].public.clone().unwrap();
    let algorithm = public.algorithms()[0].to_owned();
    let signature = identities.sign(index, &algorithm, b"data", script).unwrap();
    public.verify(&algorithm, b"data", &signature).unwrap();
    assert!(public.verify(&algorithm, b"other", &signature).is_err());
}

#[test]
fn every_format_without_passphrase_signs_unasked() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "openssh_ed25519",
        "openssh_ecdsa256",
        "openssh_ecdsa384",
        "openssh_ecdsa521",
        "openssh_rsa",
        "pkcs1_rsa",
        "sec1_ecdsa",
        "pkcs8_rsa",
        "pkcs8_ecdsa",
        "pkcs8_ed25519",
    ] {
        let mut identities = gather(&[fixture(dir.path(), name, false)]);
        assert_eq!(identities.warnings, [""; 0], "{name}");
        assert!(identities.offers()[0].public.is_some());
        signs(&mut identities, 0, &mut Script(vec![], 0));
    }
}

/// Regression test: an mpint has no leading zeros, so every second P-521 secret is shorter than its
/// curve, and one P-256 or P-384 secret in 256. Such keys were reported as damaged.
#[test]
fn ecdsa_secrets_with_leading_zeros_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = 0;
    for (bits, keys) in [("521", 12), ("384", 2), ("256", 2)] {
        for number in 0..keys {
            let path = dir.path().join(format!("{bits}-{number}"));
            let passphrase = if number % 4 == 3 { "secret" } else { "" };
            let mut command = Command::new("ssh-keygen");
            command.args([
                "-q",
                "-t",
                "ecdsa",
                "-b",
                bits,
                "-Z",
                "aes256-ctr",
                "-a",
                "2",
            ]);
            command.args(["-N", passphrase, "-C", "", "-f"]).arg(&path);
            let Ok(status) = command.status() else {
                eprintln!("skipped: ssh-keygen is not installed");
                return;
            };
            assert!(status.success());
            let mut identities = gather(&[path]);
            assert_eq!(identities.warnings, [""; 0]);
            signs(&mut identities, 0, &mut Script(vec!["secret"], 0));
            made += 1;
        }
    }
    assert_eq!(made, 16);
}

#[test]
fn a_passphrase_is_asked_for_when_it_is_needed_and_once() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "openssh_ed25519_locked",
        "openssh_rsa_locked",
        "pkcs8_rsa_locked",
    ] {
        let mut identities = gather(&[fixture(dir.path(), name, true)]);
        assert_eq!(identities.warnings, [""; 0], "{name}");
        // The public key is known before any prompt.
        assert!(identities.offers()[0].public.is_some(), "{name}");
        let mut script = Script(vec!["wrong", "secret"], 0);
        signs(&mut identities, 0, &mut script);
        assert_eq!(script.1, 2);
    }
    // OpenSSH's format contains the public key in clear, PKCS#8 does not.
    let alone = tempfile::tempdir().unwrap();
    let openssh = gather(&[fixture(alone.path(), "openssh_ed25519_locked", false)]);
    assert!(openssh.offers()[0].public.is_some());
    let mut pkcs8 = gather(&[fixture(alone.path(), "pkcs8_rsa_locked", false)]);
    assert!(pkcs8.offers()[0].public.is_none());
    signs(&mut pkcs8, 0, &mut Script(vec!["secret"], 0));
}

/// Keys made by `openssl rsa -aes192 -traditional`, `openssl ec -aes256`, `ssh-keygen -m PEM`.
#[test]
fn old_pem_keys_are_unlocked() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "pem_rsa_locked",
        "pem_rsa_aes192_locked",
        "pem_ecdsa_locked",
    ] {
        let mut identities = gather(&[fixture(dir.path(), name, false)]);
        assert_eq!(identities.warnings, [""; 0], "{name}");
        assert!(identities.offers()[0].public.is_none());
        let mut script = Script(vec!["wrong", "secret"], 0);
        signs(&mut identities, 0, &mut script);
        assert_eq!(script.1, 2, "{name}");
    }
}

#[test]
fn a_key_that_stays_locked_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let key = fixture(dir.path(), "openssh_ed25519_locked", false);
    let unlock = |answers: Vec<&'static str>| {
        let mut script = Script(answers, 0);
        let error = gather(std::slice::from_ref(&key)).unlock(0, &mut script);
        (error.unwrap_err().to_string(), script.1)
    };
    let (error, asked) = unlock(vec!["a", "b", "c", "secret"]);
    assert!(error.contains("wrong passphrase") && asked == 3, "{error}");
    let (error, asked) = unlock(vec!["", "secret"]);
    assert!(
        error.contains("no passphrase given for this private key: run") && asked == 1,
        "{error}"
    );
    let (error, _) = unlock(vec![]);
    assert!(
        error.contains("nobody is there") && error.contains("ssh-add"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_used_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let open = fixture(dir.path(), "openssh_ed25519", false);
    fs::set_permissions(&open, Permissions::from_mode(0o640)).unwrap();
    let truncated = fs::read_to_string(Path::new(FIXTURES).join("openssh_rsa")).unwrap();
    let body: Vec<&str> = truncated.lines().collect();
    let truncated = [&body[..5], &body[body.len() - 1..]].concat().join("\n");
    for (path, word) in [
        (open, "chmod 600"),
        (
            file("putty", "PuTTY-User-Key-File-3: ssh-ed25519\n"),
            "puttygen",
        ),
        (
            fixture(dir.path(), "pem_rsa_3des_locked", false),
            "DES-EDE3-CBC is not supported; convert",
        ),
        (
            fixture(dir.path(), "openssh_ed25519_rounds", false),
            "4294967295 rounds of bcrypt",
        ),
        (
            file(
                "dek",
                "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: \
                 AES-128-CBC,0123\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
            ),
            "damaged",
        ),
        (file("noise", "no key at all"), "contains no private key"),
        (file("cut", &truncated), "damaged"),
        (file("empty", ""), "contains no private key"),
        (dir.path().join("missing"), "cannot read the file"),
        (
            file(
                "pub",
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB x",
            ),
            "no agent holds",
        ),
    ] {
        let identities = gather(std::slice::from_ref(&path));
        assert!(identities.offers().is_empty(), "{}", path.display());
        let [warning] = &identities.warnings[..] else {
            panic!("{} must be named once", path.display());
        };
        assert!(
            warning.contains(word) && warning.contains(path.to_str().unwrap()),
            "{warning}"
        );
    }
}

#[test]
fn a_public_half_of_another_key_is_found_out_when_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let key = fixture(dir.path(), "pkcs8_rsa_locked", false);
    let other = Path::new(FIXTURES).join("openssh_rsa_locked.pub");
    fs::copy(other, dir.path().join("pkcs8_rsa_locked.pub")).unwrap();
    let error = gather(&[key]).unlock(0, &mut Script(vec!["secret"], 0));
    assert!(error.unwrap_err().to_string().contains("does not match"));
}

/// An ssh-agent that the test starts and ends; `None` if it is not installed.
struct RealAgent(Child, AgentChoice, PathBuf);

impl RealAgent {
    fn start(dir: &Path) -> Option<Self> {
        let socket = dir.join("agent");
        let mut command = Command::new("ssh-agent");
        command
            .args(["-D", "-a"])
            .arg(&socket)
            .stdout(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: ssh-agent is not installed");
            return None;
        };
        let agent = Self(child, AgentChoice::Path(socket.clone()), socket);
        testkit::wait::until(
            Duration::from_secs(10),
            || agent.1.open().is_ok(),
            || "ssh-agent does not come up".to_owned(),
        );
        Some(agent)
    }

    fn add(&self, key: &Path) {
        let mut command = Command::new("ssh-add");
        command.arg("-q").arg(key).env("SSH_AUTH_SOCK", &self.2);
        assert!(command.status().unwrap().success());
    }
}

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn keys_are_offered_in_openssh_s_order() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(agent) = RealAgent::start(dir.path()) else {
        return;
    };
    let in_file = fixture(dir.path(), "openssh_ecdsa256", false);
    let in_both = fixture(dir.path(), "openssh_ecdsa384", false);
    let certified = fixture(dir.path(), "openssh_ed25519", false);
    fs::copy(
        Path::new(FIXTURES).join("openssh_ed25519-cert.pub"),
        dir.path().join("openssh_ed25519-cert.pub"),
    )
    .unwrap();
    agent.add(&fixture(elsewhere.path(), "openssh_ecdsa521", false));
    agent.add(&in_both);
    let mut config = config(&[in_file, in_both, certified], agent.1.clone());
    let types = |identities: &Identities| -> Vec<String> {
        let types = identities.offers().iter().map(|o| {
            let key = o.public.as_ref().unwrap();
            format!(
                "{}{}",
                key.key_type(),
                if o.is_in_agent() { " agent" } else { "" }
            )
        });
        types.collect()
    };
    let mut all = Identities::gather(&config);
    assert_eq!(all.warnings, [""; 0]);
    let order = [
        "ssh-ed25519-cert-v01@openssh.com",
        "ecdsa-sha2-nistp384 agent",
        "ecdsa-sha2-nistp521 agent",
        "ecdsa-sha2-nistp256",
        "ssh-ed25519",
    ];
    assert_eq!(types(&all), order);
    for index in 0..order.len() {
        signs(&mut all, index, &mut Script(vec![], 0));
    }
    config.switches.insert(SshOptionFlags::IDENTITIES_ONLY);
    let mut order = order.to_vec();
    order.remove(2);
    assert_eq!(types(&Identities::gather(&config)), order);
}

#[test]
fn algorithms_are_those_that_both_sides_take() {
    let dir = tempfile::tempdir().unwrap();
    let identities = gather(&[fixture(dir.path(), "openssh_rsa", false)]);
    let offer = &identities.offers()[0];
    let all: Vec<String> = ["rsa-sha2-256", "rsa-sha2-512"].map(Into::into).into();
    assert_eq!(
        offer.algorithms(&all, None),
        ["rsa-sha2-512", "rsa-sha2-256"]
    );
    assert_eq!(
        offer.algorithms(&all, Some(&["rsa-sha2-256"])),
        ["rsa-sha2-256"]
    );
    assert_eq!(offer.algorithms(&all[..1], None), ["rsa-sha2-256"]);
    assert_eq!(offer.algorithms(&all, Some(&["ssh-ed25519"])), [""; 0]);
}

#[test]
fn damaged_files_are_errors_and_never_panics() {
    let mut damaged = 0;
    for entry in fs::read_dir(FIXTURES).unwrap() {
        let whole = fs::read(entry.unwrap().path()).unwrap();
        for at in (0..whole.len()).step_by(7) {
            for flip in [0x01, 0x02, 0x20, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                damaged += usize::from(format::read(&bytes).is_err());
            }
            damaged += usize::from(format::read(&whole[..at]).is_err());
        }
    }
    assert!(damaged > 1000, "only {damaged} were noticed");
}

/// The base64 armour shields most of a file's structure from damage, so this test damages the
/// decoded contents.
#[test]
fn damaged_contents_are_errors_and_never_panics() {
    use base64::Engine as _;
    let encode = |der: &[u8]| base64::engine::general_purpose::STANDARD.encode(der);
    for entry in fs::read_dir(FIXTURES).unwrap() {
        let Some(pem) = pem::Pem::read(&fs::read(entry.unwrap().path()).unwrap()) else {
            continue;
        };
        let armoured = |der: &[u8]| {
            let text = encode(der);
            format!(
                "-----BEGIN {0}-----\n{text}\n-----END {0}-----\n",
                pem.label
            )
        };
        for at in (0..pem.der.len()).step_by(3) {
            for change in [0x01, 0x80, 0xff] {
                let mut der = pem.der.clone();
                der[at] ^= change;
                let _ = format::read(armoured(&der).as_bytes());
            }
            assert!(
                format::read(armoured(&pem.der[..at]).as_bytes()).is_err()
                    || pem.label.starts_with("ENC")
            );
        }
    }
}
