//! sshd with a longhaul on its PATH, or another program of that name.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;
use testkit::{DelayProxy, Outcome, PeerBuilder, Run};

use crate::{Scene, longhaul};

/// Server, its client, and the first folder on the server's PATH.
#[derive(Debug)]
pub struct BothEnds {
    /// Server and client.
    pub scene: Scene,
    bin: TempDir,
}

impl BothEnds {
    /// Starts the server without longhaul on its PATH. Returns `None`, after reporting the skip, if
    /// there is no sshd, or if the program under test is scp.
    pub fn start() -> Option<Self> {
        Self::with(|builder| builder)
    }

    /// Starts the server with additional sshd_config settings.
    pub fn with(more: impl FnOnce(PeerBuilder) -> PeerBuilder) -> Option<Self> {
        Self::with_all("", more)
    }

    /// Starts the server with an environment variable for programs at the far end.
    pub fn with_environment(variable: &str) -> Option<Self> {
        Self::with_all(variable, |builder| builder)
    }

    fn with_all(variable: &str, more: impl FnOnce(PeerBuilder) -> PeerBuilder) -> Option<Self> {
        let bin = crate::scratch();
        let path = format!("PATH={}:/usr/bin:/bin {variable}", bin.path().display());
        let builder = more(PeerBuilder::openssh())
            .option("SetEnv", path)
            // Relative paths start in the home folder, as for commands.
            .option("Subsystem", "sftp internal-sftp");
        let scene = Scene::with(builder)?;
        if scene.client.is_scp() {
            return None;
        }
        Some(Self { scene, bin })
    }

    fn program(&self) -> PathBuf {
        self.bin.path().join("longhaul")
    }

    /// Installs the longhaul under test.
    pub fn install(&self) {
        let real = longhaul();
        self.install_script(&format!("exec {} \"$@\"", real.display()));
    }

    /// Installs a script under the name longhaul.
    pub fn install_script(&self, script: &str) {
        let text = format!("#!/bin/sh\n{script}\n");
        // Written to another file first: a running program cannot be overwritten.
        let new = self.bin.path().join("new");
        fs::write(&new, text).expect("our file");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("our file");
        fs::rename(&new, self.program()).expect("our file");
    }

    /// Removes longhaul.
    pub fn uninstall(&self) {
        fs::remove_file(self.program()).expect("our file");
    }

    /// Makes the client reach the server through this proxy, under its existing name.
    pub fn behind(&mut self, path: &DelayProxy) {
        let dir = &mut self.scene.client.dir;
        dir.add_host_at("peer", &self.scene.peer, path.port());
        // The port has changed, and with it the name in known_hosts.
        dir.set("peer", "HostKeyAlias", "the-peer");
        dir.set("peer", "StrictHostKeyChecking", "accept-new");
    }

    /// Prepares `cp --json FLAGS`.
    pub fn cp(&self, flags: &[&str]) -> Run {
        self.scene.client.cp().arg("--json").args(flags)
    }

    /// Returns the number of commands and of SFTP servers that sshd has started.
    pub fn started(&self) -> (usize, usize) {
        let log = self.scene.peer.log();
        let count = |what: &str| log.matches(&format!("Starting session: {what}")).count();
        (count("command"), count("subsystem"))
    }
}

/// Parses the events of `--json`.
///
/// # Panics
/// Panics if a line is not JSON.
pub fn events(outcome: &Outcome) -> Vec<Value> {
    let text = outcome.out();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

/// Returns what the summary says about the far end.
///
/// # Panics
/// Panics if there is no summary with such a field.
pub fn far_end(outcome: &Outcome) -> Value {
    let events = events(outcome);
    let summary = events.last().expect("a summary");
    let far = &summary["far_ends"][0];
    assert!(far.is_object(), "{outcome}");
    far.clone()
}
