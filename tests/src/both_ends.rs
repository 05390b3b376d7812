//! An sshd on whose PATH there is a longhaul, or something else of that name.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;
use testkit::{DelayProxy, Outcome, PeerBuilder, Run};

use crate::{Scene, longhaul};

/// A server, its client, and the folder that stands first on the server's PATH.
#[derive(Debug)]
pub struct BothEnds {
    /// Server and client.
    pub scene: Scene,
    bin: TempDir,
}

impl BothEnds {
    /// With nothing of that name yet; None, after saying so, where there is no sshd, or the
    /// program under test is scp.
    pub fn start() -> Option<Self> {
        Self::with(|builder| builder)
    }

    /// The same, with more in sshd_config.
    pub fn with(more: impl FnOnce(PeerBuilder) -> PeerBuilder) -> Option<Self> {
        Self::with_all("", more)
    }

    /// With a variable for what runs at the far end.
    pub fn with_environment(variable: &str) -> Option<Self> {
        Self::with_all(variable, |builder| builder)
    }

    fn with_all(variable: &str, more: impl FnOnce(PeerBuilder) -> PeerBuilder) -> Option<Self> {
        let bin = crate::scratch();
        let path = format!("PATH={}:/usr/bin:/bin {variable}", bin.path().display());
        let builder = more(PeerBuilder::openssh())
            .option("SetEnv", path)
            // Where paths begin is home, as it is for commands.
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

    /// The longhaul under test is there.
    pub fn install(&self) {
        let real = longhaul();
        self.install_script(&format!("exec {} \"$@\"", real.display()));
    }

    /// A script of this name is there.
    pub fn install_script(&self, script: &str) {
        let text = format!("#!/bin/sh\n{script}\n");
        // Written beside it: what runs cannot be written to.
        let new = self.bin.path().join("new");
        fs::write(&new, text).expect("our file");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("our file");
        fs::rename(&new, self.program()).expect("our file");
    }

    /// It is there no more.
    pub fn uninstall(&self) {
        fs::remove_file(self.program()).expect("our file");
    }

    /// The server is behind this path from now on, under the same name.
    pub fn behind(&mut self, path: &DelayProxy) {
        let dir = &mut self.scene.client.dir;
        dir.add_host_at("peer", &self.scene.peer, path.port());
        // Its port is another, and so is what it is known by.
        dir.set("peer", "HostKeyAlias", "the-peer");
        dir.set("peer", "StrictHostKeyChecking", "accept-new");
    }

    /// `cp --json FLAGS`.
    pub fn cp(&self, flags: &[&str]) -> Run {
        self.scene.client.cp().arg("--json").args(flags)
    }

    /// What sshd was asked to start: commands, and SFTP servers of its own.
    pub fn started(&self) -> (usize, usize) {
        let log = self.scene.peer.log();
        let count = |what: &str| log.matches(&format!("Starting session: {what}")).count();
        (count("command"), count("subsystem"))
    }
}

/// The events of `--json`.
///
/// # Panics
/// If they are none.
pub fn events(outcome: &Outcome) -> Vec<Value> {
    let text = outcome.out();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

/// What the summary says of the far end.
///
/// # Panics
/// If it says nothing.
pub fn far_end(outcome: &Outcome) -> Value {
    let events = events(outcome);
    let summary = events.last().expect("a summary");
    let far = &summary["far_ends"][0];
    assert!(far.is_object(), "{outcome}");
    far.clone()
}
