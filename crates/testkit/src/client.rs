//! Client side of a test: a key, known_hosts and ssh_config in a folder of their own, so that no
//! files of the user who runs the tests are read or written.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::keys::{KeyKind, KeyPair};
use crate::peer::PeerServer;
use crate::process::Run;

/// Folder with the files of a test's client.
#[derive(Debug)]
pub struct ClientDir {
    folder: TempDir,
    key: KeyPair,
    hosts: Vec<(String, Vec<(String, String)>)>,
    common: Vec<(String, String)>,
}

impl Default for ClientDir {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientDir {
    /// Creates a folder with a new Ed25519 key and an empty known_hosts.
    ///
    /// # Panics
    /// Panics if the folder or the key cannot be created.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("longhaul-client-")
            .tempdir()
            .expect("a temporary folder");
        for name in ["home", "cache", "config"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder of our own");
        }
        let key = KeyPair::generate(folder.path(), "id_ed25519", KeyKind::Ed25519);
        let client = Self {
            folder,
            key,
            hosts: Vec::new(),
            common: Vec::new(),
        };
        std::fs::write(client.known_hosts(), "").expect("a file of our own");
        client.write_config();
        client
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the key that servers are told to accept.
    pub fn key(&self) -> &KeyPair {
        &self.key
    }

    /// Returns the path of known_hosts.
    pub fn known_hosts(&self) -> PathBuf {
        self.path().join("known_hosts")
    }

    /// Returns the path of ssh_config.
    pub fn config(&self) -> PathBuf {
        self.path().join("ssh_config")
    }

    /// Creates a program for SSH_ASKPASS that answers each prompt with `answer` and appends the
    /// prompt to `askpass.log`.
    pub fn askpass(&self, answer: &str) -> PathBuf {
        let file = self.path().join("askpass");
        let log = self.path().join("askpass.log");
        let script = format!(
            "#!/bin/sh\nprintf '%s\\n' \"$*\" >> '{}'\nprintf '%s\\n' '{answer}'\n",
            log.display()
        );
        std::fs::write(&file, script).expect("a file of our own");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700))
            .expect("a file of our own");
        file
    }

    /// Returns the prompts that askpass has received.
    pub fn asked(&self) -> String {
        std::fs::read_to_string(self.path().join("askpass.log")).unwrap_or_default()
    }

    /// Adds a server to ssh_config (address, port, user), and its host keys to known_hosts.
    pub fn add_host(&mut self, name: &str, peer: &PeerServer) {
        self.add_host_at(name, peer, peer.port());
    }

    /// Adds a server that is reached through another port, such as that of a proxy.
    pub fn add_host_at(&mut self, name: &str, peer: &PeerServer, port: u16) {
        self.name_host(name, peer, port);
        self.trust(peer, port);
    }

    /// Adds a server to ssh_config without trusting its host keys.
    pub fn name_host(&mut self, name: &str, peer: &PeerServer, port: u16) {
        let options = [
            ("HostName", "127.0.0.1".to_owned()),
            ("Port", port.to_string()),
            ("User", peer.user().to_owned()),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value)).to_vec();
        self.hosts.retain(|(known, _)| known != name);
        self.hosts.push((name.to_owned(), options));
        self.write_config();
    }

    /// Adds the server's host keys to known_hosts, for the address with `port`.
    pub fn trust(&self, peer: &PeerServer, port: u16) {
        let mut known = std::fs::read_to_string(self.known_hosts()).unwrap_or_default();
        for key in peer.host_keys() {
            let _ = writeln!(known, "[127.0.0.1]:{port} {}", key.public_line());
        }
        std::fs::write(self.known_hosts(), known).expect("a file of our own");
    }

    /// Sets an ssh_config option for one host.
    ///
    /// # Panics
    /// Panics if the host was not added before.
    pub fn set(&mut self, host: &str, option: &str, value: impl Into<String>) {
        let (_, options) = self
            .hosts
            .iter_mut()
            .find(|(name, _)| name == host)
            .expect("add the host first");
        put(options, option, value.into());
        self.write_config();
    }

    /// Sets an ssh_config option for all hosts.
    pub fn set_for_all(&mut self, option: &str, value: impl Into<String>) {
        put(&mut self.common, option, value.into());
        self.write_config();
    }

    fn write_config(&self) {
        let mut text = String::new();
        for (name, options) in &self.hosts {
            let _ = writeln!(text, "Host {name}");
            for (option, value) in options {
                let _ = writeln!(text, "  {option} {value}");
            }
        }
        let _ = writeln!(text, "Host *");
        for (option, value) in &self.common {
            let _ = writeln!(text, "  {option} {value}");
        }
        // The first value wins in ssh_config, so that these are only defaults.
        let defaults = [
            ("IdentityFile", self.key.private.display().to_string()),
            ("IdentitiesOnly", "yes".to_owned()),
            ("IdentityAgent", "none".to_owned()),
            (
                "UserKnownHostsFile",
                self.known_hosts().display().to_string(),
            ),
            ("GlobalKnownHostsFile", "/dev/null".to_owned()),
            ("StrictHostKeyChecking", "yes".to_owned()),
            ("BatchMode", "yes".to_owned()),
            ("ConnectTimeout", "20".to_owned()),
        ];
        let set = |name: &str| self.common.iter().any(|(key, _)| key == name);
        for (option, value) in defaults.iter().filter(|(option, _)| !set(option)) {
            let _ = writeln!(text, "  {option} {value}");
        }
        std::fs::write(self.config(), text).expect("a file of our own");
    }

    /// Prepares `program` with its home, cache and configuration in this folder, and without the
    /// agent, askpass and terminal of the user who runs the tests.
    pub fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run {
        Run::new(program)
            .env("HOME", self.path().join("home"))
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("XDG_RUNTIME_DIR", self.path().join("runtime"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("SSH_AUTH_SOCK")
            .env_remove("SSH_ASKPASS")
            .env_remove("SSH_ASKPASS_REQUIRE")
            .env_remove("DISPLAY")
            .env_remove("NO_COLOR")
    }
}

fn put(options: &mut Vec<(String, String)>, option: &str, value: String) {
    options.retain(|(known, _)| known != option);
    options.push((option.to_owned(), value));
}
