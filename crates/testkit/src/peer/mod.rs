//! Real SSH servers on loopback, with one builder for all of them.

mod dropbear;
mod longhaul;
mod openssh;
mod proftpd;
mod scripted;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::background_process::BackgroundProcess;
use crate::client::ClientDir;
use crate::keys::{KeyKind, KeyPair};
use crate::{missing, port};

/// Server implementation that a test starts. Without it on the machine the test is skipped, and
/// fails in CI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// The system's sshd.
    OpenSsh,
    /// sshd built from OpenSSH's newest source: `openssh/sbin/sshd` in the folder that
    /// `LONGHAUL_PEERS` names.
    NewestOpenSsh,
    /// HPN-SSH's server: `hpn-ssh/sbin/hpnsshd` in the folder that `LONGHAUL_PEERS` names.
    Hpn,
    /// Dropbear with OpenSSH's sftp-server.
    Dropbear,
    /// Python's paramiko with its own SFTP server.
    Paramiko,
    /// Python's asyncssh with its own SFTP server.
    Asyncssh,
    /// ProFTPD with mod_sftp.
    Proftpd,
    /// Go's x/crypto/ssh with pkg/sftp.
    Go,
    /// The C library libssh with OpenSSH's sftp-server.
    Libssh,
    /// The longhaul under test.
    Longhaul,
}

impl PeerKind {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenSsh => "openssh",
            Self::NewestOpenSsh => "openssh-newest",
            Self::Hpn => "hpn-ssh",
            Self::Dropbear => "dropbear",
            Self::Paramiko => "paramiko",
            Self::Asyncssh => "asyncssh",
            Self::Proftpd => "proftpd",
            Self::Go => "go",
            Self::Libssh => "libssh",
            Self::Longhaul => "longhaul",
        }
    }
}

/// Authentication that the test server requires for a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// The client's key.
    PublicKey,
    /// The password [`PASSWORD`].
    Password,
    /// One prompt without echo, answered with [`PASSWORD`].
    KeyboardInteractive,
    /// The client's key, then keyboard-interactive.
    PublicKeyThenKeyboardInteractive,
}

impl Auth {
    /// Returns the name in the `--auth` flag of the scripted servers.
    fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "publickey",
            Self::Password => "password",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::PublicKeyThenKeyboardInteractive => "publickey,keyboard-interactive",
        }
    }
}

/// Password of every test server that asks for one.
pub const PASSWORD: &str = "correct horse battery staple";

/// Settings of a test server before it starts, independent of its implementation.
#[derive(Debug)]
pub struct PeerBuilder {
    kind: PeerKind,
    host_keys: Vec<KeyKind>,
    options: Vec<(String, String)>,
    auth: Auth,
    authorized: Vec<String>,
    ciphers: Vec<String>,
    kex: Vec<String>,
    macs: Vec<String>,
    rekey_bytes: Option<u64>,
    host_certificates_by: Option<KeyPair>,
    user_authority: Option<KeyPair>,
    program: Option<PathBuf>,
    flags: Vec<OsString>,
    with_this_thread: bool,
}

impl PeerBuilder {
    /// Creates the settings of a server with an Ed25519 and an ECDSA host key, which accepts
    /// authorized keys.
    pub fn new(kind: PeerKind) -> Self {
        Self {
            kind,
            host_keys: vec![KeyKind::Ed25519, KeyKind::Ecdsa256],
            options: Vec::new(),
            auth: Auth::PublicKey,
            authorized: Vec::new(),
            ciphers: Vec::new(),
            kex: Vec::new(),
            macs: Vec::new(),
            rekey_bytes: None,
            host_certificates_by: None,
            user_authority: None,
            program: None,
            flags: Vec::new(),
            with_this_thread: false,
        }
    }

    /// Creates the settings of `longhaul serve --listen` of this program, with additional flags.
    pub fn longhaul<F: Into<OsString>>(
        program: PathBuf,
        flags: impl IntoIterator<Item = F>,
    ) -> Self {
        Self {
            program: Some(program),
            flags: flags.into_iter().map(Into::into).collect(),
            ..Self::new(PeerKind::Longhaul)
        }
    }

    /// Creates the settings of OpenSSH's sshd.
    pub fn openssh() -> Self {
        Self::new(PeerKind::OpenSsh)
    }

    /// Sets the host keys, the preferred one first.
    pub fn host_keys(mut self, kinds: &[KeyKind]) -> Self {
        self.host_keys = kinds.to_vec();
        self
    }

    /// Adds a line to sshd_config; OpenSSH only. These lines come first, so that they win over the
    /// testkit's own.
    pub fn option(mut self, name: &str, value: impl Into<String>) -> Self {
        assert!(
            matches!(
                self.kind,
                PeerKind::OpenSsh | PeerKind::NewestOpenSsh | PeerKind::Hpn
            ),
            "{} has no sshd_config",
            self.kind.name()
        );
        self.options.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the authentication that the server requires.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Authorizes the client's key.
    pub fn authorize(self, client: &ClientDir) -> Self {
        let line = client.key().public_line();
        self.authorize_line(line)
    }

    /// Adds a line to authorized_keys.
    pub fn authorize_line(mut self, line: impl Into<String>) -> Self {
        self.authorized.push(line.into());
        self
    }

    /// Sets the ciphers that the server offers.
    pub fn ciphers(mut self, names: &[&str]) -> Self {
        self.ciphers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets the key exchange methods that the server offers.
    pub fn kex(mut self, names: &[&str]) -> Self {
        self.kex = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets the MACs that the server offers.
    pub fn macs(mut self, names: &[&str]) -> Self {
        self.macs = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Makes the server start a key exchange after this many bytes, if the implementation has such
    /// a setting.
    pub fn rekey_after(mut self, bytes: u64) -> Self {
        self.rekey_bytes = Some(bytes);
        self
    }

    /// Presents host certificates for `127.0.0.1`, signed by `authority`.
    pub fn host_certificates(mut self, authority: &KeyPair) -> Self {
        self.host_certificates_by = Some(authority.clone());
        self
    }

    /// Accepts user certificates signed by `authority`.
    pub fn trust_user_authority(mut self, authority: &KeyPair) -> Self {
        self.user_authority = Some(authority.clone());
        self
    }

    /// Ends the server with the thread that starts it, even if that is killed; OpenSSH only.
    pub fn ends_with_this_thread(mut self) -> Self {
        self.with_this_thread = true;
        self
    }

    /// Starts the server. Returns `None`, after reporting the skip, if the server is not installed.
    ///
    /// # Panics
    /// Panics if the server is installed and does not start, and in CI if it is missing.
    pub fn start(self) -> Option<PeerServer> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("longhaul-{}-", self.kind.name()))
            .tempdir()
            .expect("a temporary folder");
        let home = folder.path().join("home");
        std::fs::create_dir(&home).expect("a folder of our own");
        let keys: Vec<KeyPair> = self
            .host_keys
            .iter()
            .map(|kind| {
                let name = format!("host_{}", kind.file_name());
                KeyPair::generate(folder.path(), &name, *kind)
            })
            .collect();
        if let Some(authority) = &self.host_certificates_by {
            for key in &keys {
                authority.certify_host(key, "127.0.0.1");
            }
        }
        std::fs::write(
            folder.path().join("authorized_keys"),
            self.authorized.join("\n") + "\n",
        )
        .expect("a file of our own");
        let started = match self.kind {
            PeerKind::OpenSsh | PeerKind::NewestOpenSsh | PeerKind::Hpn => {
                openssh::start(&self, folder.path(), &keys)
            }
            PeerKind::Dropbear => dropbear::start(&self, folder.path(), &keys),
            PeerKind::Proftpd => proftpd::start(&self, folder.path(), &keys),
            PeerKind::Longhaul => longhaul::start(&self, folder.path(), &keys),
            _ => scripted::start(&self, folder.path(), &keys),
        };
        let Started { daemon, port, user } = started?;
        Some(PeerServer {
            kind: self.kind,
            daemon,
            port,
            user,
            home,
            host_keys: keys,
            folder,
        })
    }
}

/// Result of starting a server.
struct Started {
    daemon: BackgroundProcess,
    port: u16,
    user: String,
}

/// Server that runs until it is dropped.
#[derive(Debug)]
pub struct PeerServer {
    // Declared before `folder`, so that the server ends before its files are removed.
    daemon: BackgroundProcess,
    kind: PeerKind,
    port: u16,
    user: String,
    home: PathBuf,
    host_keys: Vec<KeyPair>,
    folder: TempDir,
}

impl PeerServer {
    /// Returns the implementation.
    pub fn kind(&self) -> PeerKind {
        self.kind
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address.
    pub fn addr(&self) -> SocketAddr {
        port::loopback(self.port)
    }

    /// Returns the user to log in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the folder in which relative remote paths start, if the server can be configured so.
    /// All servers serve the whole file system by absolute paths.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns a folder that is removed together with the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the host keys.
    pub fn host_keys(&self) -> &[KeyPair] {
        &self.host_keys
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Returns the id of the listening process.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Sends SIGTERM to the server.
    pub fn terminate(&self) {
        self.daemon.terminate();
    }

    /// Waits at most `time` for the server to end, and returns its exit code.
    pub fn ends_within(&mut self, time: Duration) -> Option<i32> {
        self.daemon.ends_within(time)
    }

    /// Returns the processes that serve connections now.
    pub fn sessions(&self) -> Vec<u32> {
        self.daemon.serving()
    }

    /// Returns all running descendants of the server.
    pub fn processes(&self) -> Vec<u32> {
        self.daemon.descendants()
    }
}

/// Returns the name of the user who runs the tests.
fn this_user() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    accounts
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&uid.as_str()))
        .map(|fields| fields[0].to_owned())
        .or_else(|| std::env::var("USER").ok())
        .expect("the user who runs the tests has a name")
}

/// Reports that `kind` is missing.
fn skip(kind: PeerKind, package: &str) {
    missing::skip(
        kind.name(),
        &format!("run scripts/setup-tests.sh ({package})"),
    );
}
