//! Two facing relays: their keys, and their words.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::longhaul;

/// Keys of both halves, and a third.
pub struct Keys {
    folder: tempfile::TempDir,
    prints: [String; 3],
}

impl Keys {
    /// Has them made.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let prints = [0, 1, 2].map(|nth| {
            let file = folder.path().join(format!("key{nth}"));
            // With nobody to let in it says whose key it has.
            let output = Command::new(longhaul())
                .args(["relay", "0", "9/pair", "--pair-key"])
                .arg(file)
                .env("XDG_CONFIG_HOME", folder.path())
                .output()
                .expect("longhaul starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let print = said.split("is SHA256:").nth(1);
            let print = print.and_then(|rest| rest.get(..43));
            let print = print.unwrap_or_else(|| panic!("no fingerprint: {said}"));
            format!("SHA256:{print}")
        });
        Self { folder, prints }
    }

    /// The file of a key.
    pub fn file(&self, nth: usize) -> String {
        self.folder
            .path()
            .join(format!("key{nth}"))
            .display()
            .to_string()
    }

    /// Its fingerprint.
    pub fn print(&self, nth: usize) -> &str {
        &self.prints[nth]
    }

    /// The words of a half with one key that lets another in.
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

    /// The words of the half that answers, in front of `server`.
    pub fn far(&self, listen: &str, server: &str, flags: &[&str]) -> Vec<String> {
        self.words(1, 0, &[&[listen, server], flags].concat())
    }

    /// The words of the half that asks.
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

/// A half that runs; ended with this.
#[derive(Debug)]
pub struct Half {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Half {
    /// `longhaul relay WORDS`, once it listens.
    pub fn start(words: &[String]) -> Self {
        let mut child = Command::new(longhaul())
            .arg("relay")
            .args(words)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            // What it learns of a path is not for the next one.
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
        let address = line.trim().trim_start_matches("listening at ");
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
