//! Loads the host keys of a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::command_error::CommandError;
use ssh::key::{PrivateKey, PublicKey};
use transfer::disk::os_words;
use transfer::{LonghaulDirKind, PrivateDir, identity};

/// The files of sshd, in the order of its defaults for HostKeySigner, the preferred first.
const SSHD: [&str; 3] = [
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_rsa_key",
];

/// Shortest RSA key that ssh-audit does not warn of, in bits.
const RSA_BITS: usize = 3072;

/// Host keys that a server has loaded: those that it offers to clients, and weak ones of sshd that
/// it leaves out without `--old-clients`.
pub(super) struct HostKeys {
    /// The keys that are offered to clients, the preferred first.
    pub(super) shown: Vec<Arc<PrivateKey>>,
    /// The keys that exist but are not offered.
    pub(super) left_out: Vec<Arc<PrivateKey>>,
}

/// Loads the keys in `files`. Without any, those of sshd are used if they can be read; weak ones
/// are left out if there is a better one and no `old_clients`. Otherwise our own key is used, which
/// is created if missing.
///
/// # Errors
/// A named file has no usable key, or none can be created: one sentence.
pub(super) fn load(files: &[PathBuf], old_clients: bool) -> Result<HostKeys, CommandError> {
    let all = |keys| HostKeys {
        shown: keys,
        left_out: Vec::new(),
    };
    if !files.is_empty() {
        let mut keys: Vec<Arc<PrivateKey>> = Vec::new();
        for key in files
            .iter()
            .map(|file| read(file).map_err(|why| format!("--host-key {why}")))
        {
            let key = key?;
            // OpenSSH clients reject a list that has a key twice.
            if !keys.iter().any(|k| k.public_blob() == key.public_blob()) {
                keys.push(key);
            }
        }
        return Ok(all(keys));
    }
    let of_sshd = SSHD.iter().map(Path::new);
    let of_sshd: Vec<_> = of_sshd.filter(|f| fs::File::open(f).is_ok()).collect();
    if !of_sshd.is_empty() {
        let read: Result<Vec<_>, _> = of_sshd.into_iter().map(read).collect();
        let read = read?;
        return Ok(match old_clients {
            true => all(read),
            false => without_weak(read),
        });
    }
    let folder = LonghaulDirKind::State.path();
    let folder =
        folder.ok_or("cannot find the home directory for a host key: use --host-key FILE")?;
    // A user who can write there could replace the key.
    PrivateDir::create(&folder).map_err(|e| {
        let why = os_words(&e);
        format!("{}: cannot create a host key: {why}", folder.display())
    })?;
    let file = folder.join("host_key");
    if !file.exists() {
        let made = serve::sshd::generate(&file);
        made.map_err(|e| format!("{}: cannot create a host key: {e}", file.display()))?;
    }
    Ok(all(vec![read(&file)?]))
}

fn read(file: &Path) -> Result<Arc<PrivateKey>, CommandError> {
    let key = identity::read_private(file)?;
    Ok(Arc::new(key))
}

/// Leaves out the keys that ssh-audit warns of, unless there are no others.
fn without_weak(keys: Vec<Arc<PrivateKey>>) -> HostKeys {
    let good = |key: &Arc<PrivateKey>| is_good(key.public());
    let (shown, left_out): (Vec<_>, Vec<_>) = match keys.iter().any(good) {
        true => keys.into_iter().partition(good),
        false => (keys, Vec::new()),
    };
    HostKeys { shown, left_out }
}

/// Accepts Ed25519, and RSA of at least [`RSA_BITS`]. ECDSA over NIST curves reveals the key if its
/// random numbers are weak.
fn is_good(key: &PublicKey) -> bool {
    key.key_type() == "ssh-ed25519" || key.rsa_bits().is_some_and(|bits| bits >= RSA_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_keys_are_kept_back_where_there_is_a_better_one() {
        let ed25519 = Arc::new(PrivateKey::generate_ed25519().expect("a key"));
        let ecdsa = Arc::new(PrivateKey::generate_ecdsa("nistp256").expect("a key"));
        let rsa = Arc::new(PrivateKey::generate_rsa().expect("a key"));
        let blobs = |keys: &[&Arc<PrivateKey>]| {
            let blobs = keys.iter().map(|key| key.public_blob().to_vec());
            blobs.collect::<Vec<_>>()
        };
        for (there, shown, left_out) in [
            (
                &[&ed25519, &ecdsa, &rsa][..],
                &[&ed25519, &rsa][..],
                &[&ecdsa][..],
            ),
            (&[&ecdsa, &rsa], &[&rsa], &[&ecdsa]),
            (&[&ecdsa], &[&ecdsa], &[]),
            (&[&ed25519], &[&ed25519], &[]),
        ] {
            let keys = without_weak(there.iter().map(|key| Arc::clone(key)).collect());
            let of = |keys: &[Arc<PrivateKey>]| blobs(&keys.iter().collect::<Vec<_>>());
            assert_eq!(of(&keys.shown), blobs(shown));
            assert_eq!(of(&keys.left_out), blobs(left_out));
        }
    }

    #[test]
    fn a_file_that_is_named_twice_is_one_key_and_two_keys_of_a_type_are_two() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["a", "b"].map(|name| folder.path().join(name));
        for file in &files {
            serve::sshd::generate(file).expect("a key");
        }
        let [a, b] = files;
        let keys = load(&[a.clone(), b.clone(), a], false).expect("keys");
        let [first, second] = &keys.shown[..] else {
            panic!("{} keys", keys.shown.len());
        };
        assert_eq!(first.public().key_type(), second.public().key_type());
        assert_ne!(first.public_blob(), second.public_blob());
    }

    #[test]
    fn a_short_key_of_rsa_is_weak() {
        let folder = tempfile::tempdir().expect("a folder");
        for (bits, good) in [("2048", false), ("3072", true)] {
            let file = folder.path().join(bits);
            let made = std::process::Command::new("ssh-keygen")
                .args(["-q", "-t", "rsa", "-b", bits, "-N", "", "-f"])
                .arg(&file)
                .status();
            if made.is_ok_and(|status| status.success()) {
                assert_eq!(
                    is_good(read(&file).expect("a key").public()),
                    good,
                    "{bits}"
                );
            }
        }
    }
}
