//! Dropbear with OpenSSH's sftp-server.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{PeerBuilder, Started};
use crate::background_process::BackgroundProcess;
use crate::keys::{KeyKind, KeyPair};
use crate::process::Run;
use crate::{missing, port};

pub(super) fn start(builder: &PeerBuilder, folder: &Path, keys: &[KeyPair]) -> Option<Started> {
    let (Some(dropbear), Some(convert)) = (
        missing::find_program("dropbear"),
        missing::find_program("dropbearconvert"),
    ) else {
        super::skip(builder.kind, "Debian: dropbear-bin");
        return None;
    };
    if missing::sftp_server().is_none() {
        super::skip(builder.kind, "Debian: openssh-sftp-server");
        return None;
    }
    if !missing::can_unshare_mounts() {
        // Dropbear reads ~/.ssh/authorized_keys of the account and nothing else. Only a mount
        // namespace gives the account another home without touching the real one.
        missing::not_here("dropbear reads only the account's own authorized_keys; needs root");
        return None;
    }
    let user = super::this_user();
    lend_home(folder, &user);
    let host_keys: Vec<_> = keys.iter().map(|key| converted(key, &convert)).collect();
    for _ in 0..5 {
        let port = port::free();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c"])
            .arg("mount --bind \"$0/passwd\" /etc/passwd && exec \"$@\"")
            .arg(folder)
            .arg(&dropbear)
            .args(["-F", "-E", "-m", "-s", "-j", "-k"])
            // Dropbear removes its pid file when it ends: with /dev/null as the pid file, `make
            // test` as root lost /dev/null when it was interrupted.
            .arg("-P")
            .arg(folder.join("dropbear.pid"))
            .arg("-p")
            .arg(format!("127.0.0.1:{port}"));
        for key in &host_keys {
            command.arg("-r").arg(key);
        }
        let log = folder.join("dropbear.log");
        let mut daemon =
            BackgroundProcess::start("dropbear", command, &log).expect("dropbear starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        if port::wait_for(port::loopback(port), deadline, || daemon.alive()) {
            return Some(Started { daemon, port, user });
        }
        assert!(
            daemon.log().contains("Address already in use"),
            "dropbear did not come up:\n{}",
            daemon.log()
        );
    }
    panic!("dropbear found no port");
}

/// Writes an account file in which the user's home is the server's folder, with its
/// authorized_keys.
fn lend_home(folder: &Path, user: &str) {
    let home = folder.join("home");
    let ssh = home.join(".ssh");
    std::fs::create_dir(&ssh).expect("a folder of our own");
    std::fs::copy(folder.join("authorized_keys"), ssh.join("authorized_keys"))
        .expect("a file of our own");
    for path in [&ssh, &ssh.join("authorized_keys")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .expect("a file of our own");
    }
    let mut text = String::new();
    for line in std::fs::read_to_string("/etc/passwd")
        .expect("/etc/passwd")
        .lines()
    {
        let mut fields: Vec<&str> = line.split(':').collect();
        let home = home.display().to_string();
        if fields.len() == 7 && fields[0] == user {
            fields[5] = &home;
            fields[6] = "/bin/sh";
        }
        let _ = writeln!(text, "{}", fields.join(":"));
    }
    std::fs::write(folder.join("passwd"), text).expect("a file of our own");
}

/// Converts a key to dropbear's format. The converter reads PEM for all types but Ed25519, and
/// OpenSSH's format for that one.
fn converted(key: &KeyPair, convert: &Path) -> std::path::PathBuf {
    let source = key.private.with_extension("pem");
    std::fs::copy(&key.private, &source).expect("a file of our own");
    if key.kind != KeyKind::Ed25519 {
        to_pem(&source);
    }
    let target = key.private.with_extension("dropbear");
    Run::new(convert)
        .args(["openssh", "dropbear"])
        .arg(&source)
        .arg(&target)
        .run()
        .expect_code(0);
    target
}

fn to_pem(file: &Path) {
    Run::new("ssh-keygen")
        .args(["-q", "-p", "-N", "", "-P", "", "-m", "PEM", "-f"])
        .arg(file)
        .run()
        .expect_code(0);
}
