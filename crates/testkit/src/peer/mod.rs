//! Real SSH servers on loopback, one builder for all of them.

mod dropbear;
mod longhaul;
mod openssh;
mod scripted;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::client::ClientDir;
use crate::daemon::Daemon;
use crate::keys::{KeyKind, KeyPair};
use crate::{missing, port};

/// Which implementation serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// The system's sshd.
    OpenSsh,
    /// An sshd built from its newest source, where `LONGHAUL_PEERS` names a folder that has it as
    /// `openssh/sbin/sshd`.
    NewestOpenSsh,
    /// HPN-SSH's server, where that folder has it as `hpn-ssh/sbin/hpnsshd`.
    Hpn,
    /// Dropbear with OpenSSH's sftp-server.
    Dropbear,
    /// Python's paramiko with its own SFTP server.
    Paramiko,
    /// Python's asyncssh with its own SFTP server.
    Asyncssh,
    /// Go's x/crypto/ssh with pkg/sftp.
    Go,
    /// The C library libssh with OpenSSH's sftp-server.
    Libssh,
    /// Our own.
    Longhaul,
}

impl PeerKind {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenSsh => "openssh",
            Self::NewestOpenSsh => "openssh-newest",
            Self::Hpn => "hpn-ssh",
            Self::Dropbear => "dropbear",
            Self::Paramiko => "paramiko",
            Self::Asyncssh => "asyncssh",
            Self::Go => "go",
            Self::Libssh => "libssh",
            Self::Longhaul => "longhaul",
        }
    }
}

/// How the server lets users in.
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
    /// As the scripted servers' `--auth` names it.
    fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "publickey",
            Self::Password => "password",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::PublicKeyThenKeyboardInteractive => "publickey,keyboard-interactive",
        }
    }
}

/// The throwaway password of every server that asks for one.
pub const PASSWORD: &str = "correct horse battery staple";

/// A server about to start.
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
    /// A server of this kind with an ed25519 and an ecdsa host key, which lets in whoever is
    /// authorized.
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

    /// `longhaul serve --listen` of this program, with further flags.
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

    /// OpenSSH's sshd.
    pub fn openssh() -> Self {
        Self::new(PeerKind::OpenSsh)
    }

    /// The host keys, the preferred first.
    pub fn host_keys(mut self, kinds: &[KeyKind]) -> Self {
        self.host_keys = kinds.to_vec();
        self
    }

    /// A line of sshd_config; OpenSSH only. These come first, so they win over the testkit's own.
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

    /// How users are let in.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Lets the client's key in.
    pub fn authorize(self, client: &ClientDir) -> Self {
        let line = client.key().public_line();
        self.authorize_line(line)
    }

    /// A line of authorized_keys.
    pub fn authorize_line(mut self, line: impl Into<String>) -> Self {
        self.authorized.push(line.into());
        self
    }

    /// The only ciphers it offers.
    pub fn ciphers(mut self, names: &[&str]) -> Self {
        self.ciphers = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// The only key exchanges it offers.
    pub fn kex(mut self, names: &[&str]) -> Self {
        self.kex = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// The only MACs it offers.
    pub fn macs(mut self, names: &[&str]) -> Self {
        self.macs = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// The server starts a new key exchange after so many bytes, where it can be told to.
    pub fn rekey_after(mut self, bytes: u64) -> Self {
        self.rekey_bytes = Some(bytes);
        self
    }

    /// Presents certificates for its host keys for `127.0.0.1`, signed by `authority`.
    pub fn host_certificates(mut self, authority: &KeyPair) -> Self {
        self.host_certificates_by = Some(authority.clone());
        self
    }

    /// Accepts user certificates signed by `authority`.
    pub fn trust_user_authority(mut self, authority: &KeyPair) -> Self {
        self.user_authority = Some(authority.clone());
        self
    }

    /// The server ends with the thread that starts it, even if that is killed; OpenSSH only.
    pub fn ends_with_this_thread(mut self) -> Self {
        self.with_this_thread = true;
        self
    }

    /// Starts it; None, after saying what is missing, where it is not installed.
    ///
    /// # Panics
    /// If it is installed and does not come up, and in CI if it is missing.
    pub fn start(self) -> Option<Peer> {
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
            PeerKind::Longhaul => longhaul::start(&self, folder.path(), &keys),
            _ => scripted::start(&self, folder.path(), &keys),
        };
        let Started { daemon, port, user } = started?;
        Some(Peer {
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

/// What the starting of a server gives.
struct Started {
    daemon: Daemon,
    port: u16,
    user: String,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Peer {
    // Before `folder`, so that the server ends before its files go.
    daemon: Daemon,
    kind: PeerKind,
    port: u16,
    user: String,
    home: PathBuf,
    host_keys: Vec<KeyPair>,
    folder: TempDir,
}

impl Peer {
    /// Its implementation.
    pub fn kind(&self) -> PeerKind {
        self.kind
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        port::loopback(self.port)
    }

    /// The user to log in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Where relative remote paths start, if the server can be told so; all of them serve the
    /// whole file system by absolute path.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A folder that goes with the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its host keys.
    pub fn host_keys(&self) -> &[KeyPair] {
        &self.host_keys
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// The process that listens.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.daemon.terminate();
    }

    /// Its exit code, if it ends within `time`.
    pub fn ends_within(&mut self, time: Duration) -> Option<i32> {
        self.daemon.ends_within(time)
    }

    /// The processes that serve connections now.
    pub fn sessions(&self) -> Vec<u32> {
        self.daemon.serving()
    }

    /// All that the server has started and that have not ended.
    pub fn processes(&self) -> Vec<u32> {
        self.daemon.descendants()
    }
}

/// The name of the user who runs the tests.
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

/// Says that `kind` is missing.
fn skip(kind: PeerKind, package: &str) {
    missing::skip(
        kind.name(),
        &format!("run scripts/setup-tests.sh ({package})"),
    );
}
