//! Programs under `longhaul wrap`, and a server on loopback that they connect to.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use testkit::{Run, missing};

use crate::longhaul;

/// A server that sends back what it gets.
pub struct Echo {
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Bytes that each connection has brought, by the order in which they came.
    got: Arc<Mutex<Vec<u64>>>,
}

impl Echo {
    /// Until the process ends.
    ///
    /// # Panics
    /// If there is no port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // Many connect at once, and nobody should wait a second for a second SYN.
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

    /// How many have connected.
    ///
    /// # Panics
    /// If the server has.
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

/// The program in tests/wrap/probe.c, compiled; `None`, having said so, without a compiler.
///
/// # Panics
/// If it does not compile.
pub fn probe(folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    probe_by("cc", folder, flags)
}

/// The same by this compiler.
///
/// # Panics
/// If it does not compile.
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

/// A place for the library and for what is reported.
pub struct Wrapping {
    /// Its folder.
    pub folder: TempDir,
}

impl Wrapping {
    /// With nothing in it.
    ///
    /// # Panics
    /// If there is no folder to be had.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// `longhaul wrap FLAGS`.
    pub fn run(&self, flags: &[&str]) -> Run {
        let run = Run::new(longhaul()).arg("wrap").args(flags);
        run.env("XDG_CACHE_HOME", self.folder.path().join("cache"))
    }

    /// The flag that has reports written, and where.
    pub fn report(&self) -> (String, PathBuf) {
        let file = self.folder.path().join("report");
        (format!("--report={}", file.display()), file)
    }

    /// What was reported since the last time.
    ///
    /// # Panics
    /// If a line is not JSON.
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
