//! A real ssh-agent for one test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::background_process::BackgroundProcess;
use crate::keys::KeyPair;
use crate::process::Run;
use crate::wait;

/// Running ssh-agent(1) with a socket in a folder of the test; it ends when dropped.
#[derive(Debug)]
pub struct Agent {
    _daemon: BackgroundProcess,
    socket: PathBuf,
}

impl Agent {
    /// Starts an empty agent with its socket in `folder`.
    ///
    /// # Panics
    /// If ssh-agent does not come up within 10 seconds.
    pub fn start(folder: &Path) -> Self {
        let socket = folder.join("agent.sock");
        let mut command = Command::new("ssh-agent");
        command.arg("-D").arg("-a").arg(&socket);
        let mut daemon = BackgroundProcess::start("ssh-agent", command, &folder.join("agent.log"))
            .expect("ssh-agent");
        wait::up_to(Duration::from_secs(10), || {
            socket.exists() || !daemon.alive()
        });
        assert!(socket.exists(), "ssh-agent did not come up");
        Self {
            _daemon: daemon,
            socket,
        }
    }

    /// Returns the path of the agent's socket, the value of SSH_AUTH_SOCK.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Adds a key without a passphrase, and its certificate if there is one beside the key file.
    pub fn add(&self, key: &KeyPair) {
        Run::new("ssh-add")
            .arg("-q")
            .arg(&key.private)
            .env("SSH_AUTH_SOCK", &self.socket)
            .run()
            .expect_code(0);
    }
}
