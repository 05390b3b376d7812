//! Peers and tools that a machine may lack: the test reports a skip that cannot be overlooked, and
//! fails in CI, where the setup should have installed them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Reports if nothing may be skipped in this run (`CI=true`).
pub fn must_have_everything() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Records that a test was skipped. Writes past libtest's capture, and into the file named by
/// `LONGHAUL_SKIPPED`, from which `make test` prints its summary.
///
/// # Panics
/// Panics in CI.
pub fn skip(what: &str, how_to_install: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    assert!(
        !must_have_everything(),
        "{test}: {what} is missing in CI: {how_to_install}"
    );
    note(&format!(
        "SKIPPED: {what} missing: {how_to_install} ({test})"
    ));
}

/// Records that a test does not apply here for a reason that no installation changes (not root, no
/// namespaces). Allowed in CI.
pub fn not_here(reason: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    note(&format!("SKIPPED: {reason} ({test})"));
}

fn note(line: &str) {
    // Not eprintln!: libtest would swallow it for a test that passes.
    let _ = writeln!(std::io::stderr(), "{line}");
    if let Some(file) = std::env::var_os("LONGHAUL_SKIPPED") {
        let opened = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        if let Ok(mut opened) = opened {
            let _ = writeln!(opened, "{line}");
        }
    }
}

/// Searches a program in PATH and in the folders of system daemons, which are not in every PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/openssh"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Returns the sftp-server program of the installed OpenSSH.
pub fn sftp_server() -> Option<PathBuf> {
    [
        "/usr/lib/openssh/sftp-server",
        "/usr/libexec/openssh/sftp-server",
        "/usr/lib/ssh/sftp-server",
        "/usr/libexec/sftp-server",
    ]
    .iter()
    .map(PathBuf::from)
    .find(|file| file.is_file())
}

/// Returns the root folder of the checkout.
pub fn checkout() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/");
    crates.parent().expect("the checkout")
}

/// Returns the folder in which scripts/setup-tests.sh puts the peers that it builds.
pub fn built_peers() -> PathBuf {
    checkout().join("target/peers")
}

/// Returns a file of a peer that no distribution ships yet, from the folder that `LONGHAUL_PEERS`
/// names.
pub fn newest_peer(file: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("LONGHAUL_PEERS")?);
    Some(folder.join(file)).filter(|path| path.is_file())
}

/// Reports if the process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Shell script that runs its arguments without user names, in a mount namespace of its own:
/// neither the password file nor another source of names (nsswitch.conf(5)) has any.
pub const NO_PASSWORD_FILE: &str = "for f in passwd nsswitch.conf; do [ ! -e /etc/$f ] || \
                                    mount --bind /dev/null /etc/$f || exit 99; done; exec \"$@\"";

/// Reports if root may create a mount namespace here, for servers that read only the system's
/// account files.
pub fn can_unshare_mounts() -> bool {
    is_root()
        && std::process::Command::new("unshare")
            .args(["--mount", "true"])
            .output()
            .is_ok_and(|output| output.status.success())
}
