//! Two relays that form a pair: their keys, and their command lines.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::longhaul;

/// Keys of both relays, and a third one.
pub struct Keys {
    folder: tempfile::TempDir,
    prints: [String; 3],
}

impl Keys {
    /// Creates the keys.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let prints = [0, 1, 2].map(|nth| {
            let file = folder.path().join(format!("key{nth}"));
            // Without an allowed key, the relay prints its own fingerprint.
            let output = Command::new(longhaul())
                .args(["relay", "0", "9/pair", "--pair-key"])
                .arg(file)
                .env("XDG_CONFIG_HOME", folder.path())
                .output()
                .expect("longhaul starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let print = said.split("this one's: SHA256:").nth(1);
            let print = print.and_then(|rest| rest.get(..43));
            let print = print.unwrap_or_else(|| panic!("no fingerprint: {said}"));
            format!("SHA256:{print}")
        });
        Self { folder, prints }
    }

    /// Returns the file of a key.
    pub fn file(&self, nth: usize) -> String {
        self.folder
            .path()
            .join(format!("key{nth}"))
            .display()
            .to_string()
    }

    /// Returns the fingerprint of a key.
    pub fn print(&self, nth: usize) -> &str {
        &self.prints[nth]
    }

    /// Returns the arguments of a relay with one key that allows another.
    pub fn words(&self, own: usize, other: usize, rest: &[&str]) -> Vec<String> {
        let words = [
            "--pair-key",
            &self.file(own),
            "--pair-allow",
            self.print(other),
        ];
        let all = rest.iter().chain(&words);
        all.map(|word| (*word).to_owned()).collect()
    }

    /// Returns the arguments of the relay that accepts stripes, in front of `server`.
    pub fn far(&self, listen: &str, server: &str, flags: &[&str]) -> Vec<String> {
        self.words(1, 0, &[&[listen, server], flags].concat())
    }

    /// Returns the arguments of the relay that opens stripes.
    pub fn near(&self, far: &str, flags: &[&str]) -> Vec<String> {
        let far = format!("{far}/pair");
        self.words(0, 1, &[&["127.0.0.1:0", &far], flags].concat())
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

/// Running relay of a pair, which ends when dropped.
#[derive(Debug)]
pub struct Half {
    /// Process of the relay.
    pub child: Child,
    /// Address at which it listens.
    pub address: SocketAddr,
}

impl Half {
    /// Starts `longhaul relay WORDS`, and waits until it listens.
    pub fn start(words: &[String]) -> Self {
        let mut child = Command::new(longhaul())
            .arg("relay")
            .args(words)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            // Path memory is not shared between tests.
            .env("XDG_CACHE_HOME", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("longhaul starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .expect("it says where it listens");
        thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let address = line.trim().trim_start_matches("listening on ");
        Self {
            child,
            address: address
                .parse()
                .unwrap_or_else(|_| panic!("it says {line:?}")),
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
