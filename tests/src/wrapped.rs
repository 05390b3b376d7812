//! Programs under `longhaul wrap`, and a server on loopback to which they connect.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use testkit::{Run, missing};

use crate::longhaul;

/// Server that echoes what it receives.
pub struct Echo {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Bytes that each connection has sent, in the order of the connections.
    got: Arc<Mutex<Vec<u64>>>,
}

impl Echo {
    /// Starts the server, which runs until the process ends.
    ///
    /// # Panics
    /// Panics if no port is available.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // Many clients connect at once, and none should wait a second for a retransmitted SYN.
        rustix::net::listen(&listener, 4096).expect("our socket");
        let port = listener.local_addr().expect("its address").port();
        let got = Arc::new(Mutex::new(Vec::new()));
        let counts = Arc::clone(&got);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let counts = Arc::clone(&counts);
                counts.lock().expect("no panic").push(0);
                thread::spawn(move || {
                    echo(stream, |n| counts.lock().expect("no panic")[number] += n)
                });
            }
        });
        Self { port, got }
    }

    /// Returns the number of connections so far.
    ///
    /// # Panics
    /// Panics if the server has panicked.
    pub fn connections(&self) -> usize {
        self.got.lock().expect("no panic").len()
    }
}

fn echo(mut stream: TcpStream, mut got: impl FnMut(u64)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        got(n as u64);
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// Compiles tests/wrap/probe.c; `None`, after reporting the skip, without a compiler.
///
/// # Panics
/// Panics if it does not compile.
pub fn probe(folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    probe_by("cc", folder, flags)
}

/// Compiles tests/wrap/probe.c with this compiler.
///
/// # Panics
/// Panics if it does not compile.
pub fn probe_by(compiler: &str, folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    if missing::find_program(compiler).is_none() {
        missing::skip(compiler, "run scripts/setup-tests.sh");
        return None;
    }
    let program = folder.join(format!("probe{}", flags.concat()));
    let source = missing::checkout().join("tests/wrap/probe.c");
    let run = Run::new(compiler)
        .args(["-O1", "-Wall", "-pthread"])
        .args(flags);
    run.arg("-o").arg(&program).arg(source).run().expect_code(0);
    Some(program)
}

/// Folder for the library and for reports.
pub struct Wrapping {
    /// Path of the folder.
    pub folder: TempDir,
}

impl Wrapping {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// Panics if the folder cannot be created.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Prepares `longhaul wrap FLAGS`.
    pub fn run(&self, flags: &[&str]) -> Run {
        let run = Run::new(longhaul()).arg("wrap").args(flags);
        run.env("XDG_CACHE_HOME", self.folder.path().join("cache"))
    }

    /// Returns the flag that requests reports, and their file.
    pub fn report(&self) -> (String, PathBuf) {
        let file = self.folder.path().join("report");
        (format!("--report={}", file.display()), file)
    }

    /// Returns the reports since the last call.
    ///
    /// # Panics
    /// Panics if a line is not JSON.
    pub fn reported(&self) -> Vec<serde_json::Value> {
        let (_, file) = self.report();
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(file);
        let read =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        text.lines().map(read).collect()
    }
}

impl Default for Wrapping {
    fn default() -> Self {
        Self::new()
    }
}
