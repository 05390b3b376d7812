//! Shared parts of the whole program's tests: a client with its files, a server, and a folder for
//! the files between them.
//!
//! `LONGHAUL_BIN` names the program under test; the default is the `longhaul` beside the test
//! binaries. `LONGHAUL_CLIENT=scp` runs the system's scp instead, which tests the tests themselves:
//! what scp cannot do is left out then.

pub mod both_ends;
pub mod facing;
pub mod interrupted;
pub mod processes;
pub mod round_trips;
pub mod stranger;
pub mod wrapped;

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use testkit::peer::{PASSWORD, PeerBuilder, PeerKind, PeerServer};
use testkit::{ClientDir, Outcome, Run};

/// Program that acts as the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `longhaul cp`, by its path.
    Longhaul(PathBuf),
    /// The system's scp.
    Scp,
}

impl Program {
    /// Returns the program that the environment selects.
    ///
    /// # Panics
    /// Panics if longhaul is not built.
    pub fn under_test() -> Self {
        if std::env::var_os("LONGHAUL_CLIENT").is_some_and(|client| client == "scp") {
            return Self::Scp;
        }
        Self::Longhaul(longhaul())
    }
}

/// Returns the path of the longhaul under test.
///
/// # Panics
/// Panics if it is not built.
pub fn longhaul() -> PathBuf {
    if let Some(path) = std::env::var_os("LONGHAUL_BIN") {
        return path.into();
    }
    // target/PROFILE/deps/TEST-HASH, target/PROFILE/examples/NAME, or target/PROFILE/bench.
    let this = std::env::current_exe().expect("a test has a path");
    let folders: Vec<&Path> = this.ancestors().skip(1).take(2).collect();
    let path = folders
        .iter()
        .map(|folder| folder.join("longhaul"))
        .find(|path| path.is_file())
        .unwrap_or_else(|| folders.last().expect("target/PROFILE").join("longhaul"));
    assert!(
        path.is_file(),
        "{} is not built: cargo build -p longhaul",
        path.display()
    );
    path
}

/// Client with its files and its program.
#[derive(Debug)]
pub struct Client {
    /// Key, known_hosts and ssh_config.
    pub dir: ClientDir,
    /// Program that it runs.
    pub program: Program,
}

impl Client {
    /// Creates a client with new files that runs the program under test.
    pub fn new() -> Self {
        Self {
            dir: ClientDir::new(),
            program: Program::under_test(),
        }
    }

    /// Reports if the program is scp, from which less is required.
    pub fn is_scp(&self) -> bool {
        self.program == Program::Scp
    }

    /// Prepares `longhaul cp -F ssh_config`, or scp with the same arguments.
    pub fn cp(&self) -> Run {
        let run = match &self.program {
            Program::Longhaul(path) => self.dir.run(path).arg("cp"),
            Program::Scp => self.dir.run("scp"),
        };
        run.arg("-F").arg(self.dir.config())
    }

    /// Asserts success. scp fails if the server's channel ends without an exit status, as
    /// paramiko's and asyncssh's do; an SFTP client does not need one.
    #[track_caller]
    pub fn check_copied(&self, outcome: Outcome, kind: PeerKind) {
        let no_status = matches!(kind, PeerKind::Paramiko | PeerKind::Asyncssh);
        if self.is_scp() && no_status && outcome.code == Some(1) {
            return;
        }
        outcome.expect_code(0);
    }

    /// Prepares a copy in which prompts are permitted and answered with `answer`.
    pub fn answering(&mut self, answer: &str) -> Run {
        self.dir.set_for_all("BatchMode", "no");
        self.dir.set_for_all("NumberOfPasswordPrompts", "1");
        let askpass = self.dir.askpass(answer);
        self.cp()
            .env("SSH_ASKPASS", askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

/// Server, a client that knows it as `peer`, and a folder for the files.
#[derive(Debug)]
pub struct Scene {
    /// The client.
    pub client: Client,
    /// The server.
    pub peer: PeerServer,
    /// Folder for the files.
    pub scratch: TempDir,
}

impl Scene {
    /// Starts a server of this kind; `None`, after reporting the skip, if it is not installed.
    pub fn start(kind: PeerKind) -> Option<Self> {
        Self::with(PeerBuilder::new(kind))
    }

    /// Starts a stock server or `longhaul serve` for what scp cannot do; `None` as well if scp is
    /// tested.
    pub fn beyond_scp(kind: PeerKind) -> Option<Self> {
        let builder = match kind {
            PeerKind::Longhaul => PeerBuilder::longhaul(longhaul(), [""; 0]),
            kind => PeerBuilder::new(kind),
        };
        let scene = Self::with(builder)?;
        (!scene.client.is_scp()).then_some(scene)
    }

    /// Starts this server, and authorizes the client.
    pub fn with(builder: PeerBuilder) -> Option<Self> {
        let mut client = Client::new();
        let peer = builder.authorize(&client.dir).start()?;
        client.dir.add_host("peer", &peer);
        Some(Self {
            client,
            peer,
            scratch: scratch(),
        })
    }

    /// Returns a path in the folder for the files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns a path in the folder as an operand on the server, which has the same file system.
    pub fn remote(&self, name: &str) -> OsString {
        remote("peer", &self.path(name))
    }

    /// Waits for a text in the server's log, which may appear after the client has ended.
    #[track_caller]
    pub fn logs(&self, text: &str) {
        testkit::wait::until(
            Duration::from_secs(20),
            || self.peer.log().contains(text),
            || format!("no {text:?} in\n{}", self.peer.log()),
        );
    }

    /// Waits for a text in the server's log, and returns the last line with it.
    #[track_caller]
    pub fn logged(&self, text: &str) -> String {
        self.logs(text);
        let log = self.peer.log();
        let line = log.lines().rfind(|line| line.contains(text));
        line.expect("it is there").to_owned()
    }

    /// Copies `from` to `to`, and asserts success.
    #[track_caller]
    pub fn copies(&self, flags: &[&str], from: impl Into<OsString>, to: impl Into<OsString>) {
        let outcome = self
            .client
            .cp()
            .args(flags)
            .arg(from.into())
            .arg(to.into())
            .run();
        self.client.check_copied(outcome, self.peer.kind());
    }
}

/// Creates a folder for the files.
///
/// # Panics
/// Panics if the folder cannot be created.
pub fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("longhaul-files-")
        .tempdir()
        .expect("a temporary folder")
}

/// Returns the operand `host:path`.
pub fn remote(host: &str, path: &Path) -> OsString {
    let mut operand = OsString::from(format!("{host}:"));
    operand.push(path);
    operand
}

/// Returns the password that the testkit's servers accept.
pub const fn password() -> &'static str {
    PASSWORD
}

/// Returns the names in a folder, sorted.
///
/// # Panics
/// Panics if the folder cannot be listed.
pub fn names_in(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    names
}

/// Listener on loopback that never answers: its queue is full, and the kernel drops further SYNs.
pub struct Silent {
    listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Silent {
    /// Starts the listener, which lasts until it is dropped.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        rustix::net::listen(&listener, 0).expect("our socket");
        let at = listener.local_addr().expect("its address");
        let soon = Duration::from_millis(300);
        let waiting = (0..8).map_while(|_| TcpStream::connect_timeout(&at, soon).ok());
        let waiting = waiting.collect();
        Self {
            listener,
            _waiting: waiting,
        }
    }

    /// Returns the port of the listener.
    pub fn port(&self) -> u16 {
        let address = self.listener.local_addr();
        address.expect("its address").port()
    }
}
