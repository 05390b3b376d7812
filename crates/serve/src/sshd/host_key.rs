use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use ssh::key::PrivateKey;
use ssh_key::LineEnding;
use ssh_key::private::{Ed25519Keypair, Ed25519PrivateKey, KeypairData};
use zeroize::Zeroizing;

/// Creates an ed25519 host key at `path` in OpenSSH's format, as [`keep_new`] does.
///
/// # Errors
/// The file cannot be written.
pub fn generate(path: &Path) -> io::Result<()> {
    keep_new(path, new_key()?.as_bytes())
}

/// Creates `path` with a new key, with missing directories, all readable only by their owner. A key
/// that another process creates there in the meantime stays.
///
/// # Errors
/// The file cannot be written.
pub fn keep_new(path: &Path, key: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mut random = [0; 8];
    fill(&mut random)?;
    let temporary = folder.join(format!(".new-key-{:016x}", u64::from_ne_bytes(random)));
    let written = write(&temporary, key);
    let linked = written.and_then(|()| match fs::hard_link(&temporary, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    // If the temporary was not created there is nothing to remove.
    let _ = fs::remove_file(&temporary);
    linked
}

/// Creates a host key at `path` and its public half in a `.pub` file beside it, as ssh-keygen(1)
/// does.
///
/// # Errors
/// The files cannot be written.
pub fn generate_pair(path: &Path) -> io::Result<()> {
    generate(path)?;
    let text = Zeroizing::new(fs::read_to_string(path)?);
    let key = ssh_key::PrivateKey::from_openssh(&*text).map_err(io::Error::other)?;
    let public = key.public_key().to_openssh().map_err(io::Error::other)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pub");
    fs::write(beside, public + "\n")
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn new_key() -> io::Result<Zeroizing<String>> {
    let mut seed = Zeroizing::new([0; 32]);
    fill(&mut *seed)?;
    let public = PrivateKey::from_ed25519_seed(&seed).map_err(io::Error::other)?;
    let public: [u8; 32] = public
        .public_blob()
        .last_chunk()
        .copied()
        .ok_or_else(|| io::Error::other("internal error: a new key has no public half"))?;
    let pair = Ed25519Keypair {
        public: ssh_key::public::Ed25519PublicKey(public),
        private: Ed25519PrivateKey::from_bytes(&seed),
    };
    let key = ssh_key::PrivateKey::new(KeypairData::Ed25519(pair), "longhaul serve");
    let text = key.and_then(|key| key.to_openssh(LineEnding::LF));
    text.map_err(io::Error::other)
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    aws_lc_rs::rand::fill(bytes)
        .map_err(|_| io::Error::other("cannot read random numbers from the system"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_its_owners_alone_and_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/longhaul/host_key");
        generate(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let text = fs::read_to_string(&path).unwrap();
        let key = ssh_key::PrivateKey::from_openssh(&text).unwrap();
        assert_eq!(key.algorithm(), ssh_key::Algorithm::Ed25519);
        generate(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
