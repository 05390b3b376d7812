//! Carries a connection over an open connection of OpenSSH (ControlMaster).

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::proxy_process::ProxyProcess;

/// Opens a connection from the host of the ssh that listens at `socket` to `host` and `port`.
pub(super) fn through(
    socket: &Path,
    name: &str,
    host: &str,
    port: u16,
) -> io::Result<(UnixStream, ProxyProcess)> {
    let to = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let mut ssh = Command::new("ssh");
    // If that connection ends meanwhile, ssh fails instead of making another one.
    ssh.args(["-F", "none", "-oControlMaster=no", "-oBatchMode=yes"])
        .args(["-oProxyCommand=false", "-oLogLevel=ERROR", "-S"])
        .arg(socket)
        .args(["-W", &to, "--", name]);
    ProxyProcess::run(ssh, "ssh")
}
