//! Test server `longhaul serve --listen`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{PeerBuilder, Started};
use crate::background_process::BackgroundProcess;
use crate::keys::KeyPair;

pub(super) fn start(builder: &PeerBuilder, folder: &Path, keys: &[KeyPair]) -> Option<Started> {
    let program = builder.program.as_ref();
    let mut command = Command::new(program.expect("PeerBuilder::longhaul names it"));
    let authorized = folder.join("authorized_keys");
    // With a umask of 002 the file would be group-writable, and the server would refuse it.
    let owners = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&authorized, owners).expect("a file of our own");
    command.args(["serve", "--listen", "127.0.0.1:0", "-v"]);
    command.arg("--authorized-keys").arg(authorized);
    for key in keys {
        command.arg("--host-key").arg(&key.private);
    }
    command.args(&builder.flags);
    let log = folder.join("longhaul.log");
    let mut daemon = BackgroundProcess::start("longhaul", command, &log).expect("longhaul starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    let port = daemon
        .line_after("listening on 127.0.0.1:", deadline)
        .and_then(|port| port.parse().ok())
        .unwrap_or_else(|| panic!("longhaul did not come up:\n{}", daemon.log()));
    Some(Started {
        daemon,
        port,
        user: super::this_user(),
    })
}
