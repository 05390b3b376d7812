//! Which host a server is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ssh::key::PrivateKey;
use transfer::identity;

/// sshd's own, in the order of its defaults for HostKey, the preferred first.
const SSHD: [&str; 3] = [
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_rsa_key",
];

/// The keys in `files`; without any, those of sshd where they can be read, else one of our own,
/// which is made where it is missing.
///
/// # Errors
/// A file that was named has no usable key, or none can be made: one sentence.
pub(super) fn load(files: &[PathBuf]) -> Result<Vec<Arc<PrivateKey>>, String> {
    if !files.is_empty() {
        return files.iter().map(|file| read(file)).collect();
    }
    let of_sshd = SSHD.iter().map(Path::new);
    let of_sshd: Vec<_> = of_sshd.filter(|f| fs::File::open(f).is_ok()).collect();
    if !of_sshd.is_empty() {
        return of_sshd.into_iter().map(read).collect();
    }
    let folder = transfer::state_folder();
    let folder = folder.ok_or("there is no home to keep a host key in: --host-key names one")?;
    let file = folder.join("host_key");
    if !file.exists() {
        let made = serve::listen::generate(&file);
        made.map_err(|e| format!("{}: a host key cannot be made: {e}", file.display()))?;
    }
    Ok(vec![read(&file)?])
}

fn read(file: &Path) -> Result<Arc<PrivateKey>, String> {
    let key = identity::read_private(file).map_err(|e| e.to_string())?;
    Ok(Arc::new(key))
}
