//! Test servers that use other SSH libraries (tests/peers/). They share one set of flags and print
//! `LISTENING port` once they listen.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{PASSWORD, PeerBuilder, PeerKind, Started};
use crate::background_process::BackgroundProcess;
use crate::keys::KeyPair;
use crate::missing;

pub(super) fn start(builder: &PeerBuilder, folder: &Path, keys: &[KeyPair]) -> Option<Started> {
    let (mut command, package) = program(builder.kind)?;
    for key in keys {
        command.arg("--host-key").arg(&key.private);
        if builder.host_certificates_by.is_some() {
            command.arg("--host-certificate").arg(key.certificate());
        }
    }
    command
        .arg("--authorized-keys")
        .arg(folder.join("authorized_keys"));
    if let Some(authority) = &builder.user_authority {
        command.arg("--user-authority").arg(authority.public());
    }
    command.arg("--home").arg(folder.join("home"));
    command.args(["--password", PASSWORD, "--auth", builder.auth.name()]);
    for (flag, values) in [
        ("--ciphers", &builder.ciphers),
        ("--kex", &builder.kex),
        ("--macs", &builder.macs),
    ] {
        if !values.is_empty() {
            command.args([flag, &values.join(",")]);
        }
    }
    if let Some(bytes) = builder.rekey_bytes {
        command.args(["--rekey-bytes", &bytes.to_string()]);
    }
    if let Some(server) = missing::sftp_server() {
        command.arg("--sftp-server").arg(server);
    }
    let name = builder.kind.name();
    let log = folder.join(format!("{name}.log"));
    let Ok(mut daemon) = BackgroundProcess::start(name, command, &log) else {
        super::skip(builder.kind, package);
        return None;
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let port = daemon
        .line_after("LISTENING ", deadline)
        .and_then(|port| port.parse().ok())
        .unwrap_or_else(|| panic!("{name} did not come up:\n{}", daemon.log()));
    Some(Started {
        daemon,
        port,
        user: super::this_user(),
    })
}

/// Returns the server program, and the package to install if it is missing.
fn program(kind: PeerKind) -> Option<(Command, &'static str)> {
    let sources = missing::checkout().join("tests/peers");
    let built = missing::built_peers();
    let (program, script, package) = match kind {
        PeerKind::Paramiko => (
            built.join("venv/bin/python"),
            Some("paramiko_server.py"),
            "Python package paramiko",
        ),
        PeerKind::Asyncssh => (
            built.join("venv/bin/python"),
            Some("asyncssh_server.py"),
            "Python package asyncssh",
        ),
        PeerKind::Go => (
            built.join("bin/go-server"),
            None,
            "Go, golang.org/x/crypto, pkg/sftp",
        ),
        PeerKind::Libssh => (
            built.join("bin/libssh-server"),
            None,
            "Debian: libssh-dev gcc",
        ),
        PeerKind::OpenSsh
        | PeerKind::NewestOpenSsh
        | PeerKind::Hpn
        | PeerKind::Dropbear
        | PeerKind::Proftpd
        | PeerKind::Longhaul => {
            unreachable!("these have files of their own")
        }
    };
    if !program.is_file() {
        super::skip(kind, package);
        return None;
    }
    let mut command = Command::new(program);
    if let Some(script) = script {
        command.arg(sources.join(script));
    }
    Some((command, package))
}
