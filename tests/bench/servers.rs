//! Servers of the race that the lab does not start itself, and those on loopback.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::background_process::{BackgroundProcess, ends_with_this_thread};
use testkit::missing::is_root;
use testkit::process::shell_quoted;
use testkit::{ClientDir, KeyKind, KeyPair, PeerBuilder, PeerServer, port};

use crate::job::{Server, ServerKind};
use crate::tools::find;

/// Port of HPN-SSH's server on the far side of a lab.
const HPN_PORT: u16 = 2222;
/// Port of `longhaul serve` on the far side of a lab.
const SERVE_PORT: u16 = 2022;
/// Default port of iperf3.
const IPERF_PORT: u16 = 5201;

/// Servers and keys for the whole race.
pub(crate) struct Servers {
    client: ClientDir,
    /// sshd on loopback, started when first needed.
    stock: Option<(ClientDir, PeerServer)>,
    both_ends: Option<(ClientDir, PeerServer)>,
    hpn_loopback: Option<(BackgroundProcess, u16)>,
    hpn: Option<Hpn>,
    serve_loopback: Option<(BackgroundProcess, u16)>,
    iperf_loopback: Option<(BackgroundProcess, u16)>,
    serve: Serve,
}

/// Files of `longhaul serve`.
struct Serve {
    folder: PathBuf,
    host_key: KeyPair,
}

impl Serve {
    fn command(&self, address: &str) -> Vec<String> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let program = longhaul_tests::longhaul().display().to_string();
        let words = [
            &program,
            "serve",
            "--listen",
            address,
            "--authorized-keys",
            &file("authorized_keys"),
            "--host-key",
            &self.host_key.private.display().to_string(),
            // Applies only to clients that are told so too.
            "--insecure-none-mac",
        ];
        words.map(str::to_owned).to_vec()
    }
}

struct Hpn {
    program: PathBuf,
    folder: PathBuf,
    host_key: KeyPair,
}

impl Hpn {
    /// Returns the server's command line. As root the server needs an account of its own for the
    /// time before authentication, which it gets in a mount namespace: the machine's account files
    /// stay unchanged.
    fn command(&self, config: &Path) -> io::Result<Vec<String>> {
        const ACCOUNT: &str = "hpnsshd";
        let mut words = Vec::new();
        let accounts = fs::read_to_string("/etc/passwd")?;
        let known = accounts
            .lines()
            .any(|line| line.split(':').next() == Some(ACCOUNT));
        if is_root() && !known {
            let lent = self.folder.join("passwd");
            let line = format!("{ACCOUNT}:x:65533:65534::/nonexistent:/usr/sbin/nologin\n");
            fs::write(&lent, accounts + &line)?;
            let script = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
            words.extend(["unshare", "--mount", "sh", "-c", script].map(str::to_owned));
            words.push(lent.display().to_string());
        }
        words.push(self.program.display().to_string());
        words.extend(["-D", "-e", "-f"].map(str::to_owned));
        words.push(config.display().to_string());
        Ok(words)
    }
}

impl Servers {
    /// Creates keys in `folder`.
    pub(crate) fn new(folder: &Path, programs: &[PathBuf]) -> io::Result<Self> {
        let hpn = match find(programs, "hpnsshd") {
            None => None,
            Some(program) => {
                let folder = folder.join("hpn");
                fs::create_dir_all(&folder)?;
                let host_key = KeyPair::generate(&folder, "host", KeyKind::Ed25519);
                Some(Hpn {
                    program,
                    folder,
                    host_key,
                })
            }
        };
        let client = ClientDir::new();
        let serve = folder.join("serve");
        fs::create_dir_all(&serve)?;
        let authorized = format!("{}\n", client.key().public_line());
        fs::write(serve.join("authorized_keys"), authorized)?;
        let serve = Serve {
            host_key: KeyPair::generate(&serve, "host", KeyKind::Ed25519),
            folder: serve,
        };
        Ok(Self {
            client,
            serve_loopback: None,
            iperf_loopback: None,
            serve,
            stock: None,
            both_ends: None,
            hpn_loopback: None,
            hpn,
        })
    }

    /// Returns the command for the lab to start, and the client's side if the lab does not tell it.
    /// `settings` are for sshd; $SCRATCH in them is a folder that was empty before the run.
    pub(crate) fn in_lab(
        &self,
        kind: ServerKind,
        settings: &[&str],
        scratch: &Path,
    ) -> io::Result<(Vec<String>, Option<Server>)> {
        let far = |command: String, port: u16| {
            let port = port.to_string();
            vec!["--far".to_owned(), command, "--far-port".to_owned(), port]
        };
        match kind {
            ServerKind::Stock | ServerKind::BothEnds => {
                let mut words = vec!["--sshd".to_owned()];
                let mut set = |setting: String| words.extend(["--sshd-option".to_owned(), setting]);
                if kind == ServerKind::BothEnds {
                    set(format!("SetEnv={}", path_with_longhaul()));
                }
                for setting in settings {
                    let setting = setting.replace("$SCRATCH", &scratch.display().to_string());
                    set(setting.replace("$USER", &self.this_user()));
                }
                Ok((words, None))
            }
            ServerKind::Iperf => {
                let server = Server {
                    host: "far".to_owned(),
                    port: IPERF_PORT,
                    ..Server::default()
                };
                Ok((far("iperf3 -s".to_owned(), IPERF_PORT), Some(server)))
            }
            ServerKind::Serve => {
                let words = self.serve.command(&format!("0.0.0.0:{SERVE_PORT}"));
                let words: Vec<String> = words.iter().map(|w| shell_quoted(w.as_ref())).collect();
                let server = self.client_of(
                    &self.serve.folder,
                    &self.serve.host_key,
                    ("far", SERVE_PORT),
                    None,
                )?;
                Ok((far(words.join(" "), SERVE_PORT), Some(server)))
            }
            ServerKind::Hpn => {
                let hpn = self.hpn()?;
                let config = self.write_hpn_config(hpn, "0.0.0.0", HPN_PORT)?;
                let words = hpn.command(&config)?;
                let words: Vec<String> = words.iter().map(|w| shell_quoted(w.as_ref())).collect();
                Ok((
                    far(words.join(" "), HPN_PORT),
                    Some(self.client_of(&hpn.folder, &hpn.host_key, ("far", HPN_PORT), None)?),
                ))
            }
        }
    }

    /// Returns a server on loopback.
    pub(crate) fn on_loopback(&mut self, kind: ServerKind) -> io::Result<Server> {
        match kind {
            ServerKind::Stock | ServerKind::BothEnds => self.sshd_on_loopback(kind),
            ServerKind::Hpn => self.hpn_on_loopback(),
            ServerKind::Serve => self.serve_on_loopback(),
            ServerKind::Iperf => self.iperf_on_loopback(),
        }
    }

    fn sshd_on_loopback(&mut self, kind: ServerKind) -> io::Result<Server> {
        let running = match kind {
            ServerKind::BothEnds => &mut self.both_ends,
            _ => &mut self.stock,
        };
        if running.is_none() {
            let mut client = ClientDir::new();
            let mut builder = PeerBuilder::openssh()
                .authorize(&client)
                .ends_with_this_thread();
            if kind == ServerKind::BothEnds {
                builder = builder.option("SetEnv", path_with_longhaul());
            }
            let peer = builder.start();
            let peer = peer.ok_or_else(|| io::Error::other("sshd is not installed"))?;
            client.add_host("far", &peer);
            *running = Some((client, peer));
        }
        let running = running.as_ref();
        let (client, peer) = running.ok_or_else(|| io::Error::other("sshd did not start"))?;
        Ok(Server {
            config: client.config(),
            key: client.key().private.clone(),
            known_hosts: client.known_hosts(),
            host: "127.0.0.1".to_owned(),
            port: peer.port(),
            user: peer.user().to_owned(),
            pid: Some(peer.pid()),
        })
    }

    fn hpn(&self) -> io::Result<&Hpn> {
        let hpn = self.hpn.as_ref();
        hpn.ok_or_else(|| io::Error::other("hpnsshd is not installed"))
    }

    fn hpn_on_loopback(&mut self) -> io::Result<Server> {
        if self.hpn_loopback.is_none() {
            let hpn = self.hpn()?;
            let port = port::free();
            let config = self.write_hpn_config(hpn, "127.0.0.1", port)?;
            let words = hpn.command(&config)?;
            let mut command = ends_with_this_thread();
            command.args(words);
            let log = hpn.folder.join("log");
            let daemon = started("hpnsshd", command, &log, "Server listening on ")?;
            self.hpn_loopback = Some((daemon, port));
        }
        let (pid, port) = match &self.hpn_loopback {
            Some((daemon, port)) => (daemon.pid(), *port),
            None => return Err(io::Error::other("hpnsshd did not start")),
        };
        let hpn = self.hpn()?;
        self.client_of(&hpn.folder, &hpn.host_key, ("127.0.0.1", port), Some(pid))
    }

    fn serve_on_loopback(&mut self) -> io::Result<Server> {
        if self.serve_loopback.is_none() {
            let port = port::free();
            let mut command = ends_with_this_thread();
            command.args(self.serve.command(&format!("127.0.0.1:{port}")));
            let log = self.serve.folder.join("log");
            let daemon = started("longhaul serve", command, &log, "listening on ")?;
            self.serve_loopback = Some((daemon, port));
        }
        let (pid, port) = match &self.serve_loopback {
            Some((daemon, port)) => (daemon.pid(), *port),
            None => return Err(io::Error::other("the server did not start")),
        };
        let serve = &self.serve;
        self.client_of(
            &serve.folder,
            &serve.host_key,
            ("127.0.0.1", port),
            Some(pid),
        )
    }

    fn iperf_on_loopback(&mut self) -> io::Result<Server> {
        if self.iperf_loopback.is_none() {
            let port = port::free();
            let mut command = ends_with_this_thread();
            command.args(["iperf3", "-s", "--forceflush", "-B", "127.0.0.1", "-p"]);
            command.arg(port.to_string());
            let log = self.serve.folder.join("iperf3-log");
            let daemon = started("iperf3", command, &log, "Server listening on ")?;
            self.iperf_loopback = Some((daemon, port));
        }
        match &self.iperf_loopback {
            Some((daemon, port)) => Ok(Server {
                host: "127.0.0.1".to_owned(),
                port: *port,
                pid: Some(daemon.pid()),
                ..Server::default()
            }),
            None => Err(io::Error::other("iperf3 did not start")),
        }
    }

    fn write_hpn_config(&self, hpn: &Hpn, address: &str, port: u16) -> io::Result<PathBuf> {
        let authorized = hpn.folder.join("authorized_keys");
        fs::write(
            &authorized,
            format!("{}\n", self.client.key().public_line()),
        )?;
        let sftp = hpn
            .program
            .parent()
            .map(|sbin| sbin.join("../libexec/hpnsftp-server"))
            .filter(|file| file.is_file())
            .map_or_else(
                || "internal-sftp".to_owned(),
                |file| file.display().to_string(),
            );
        let config = hpn.folder.join("sshd_config");
        let text = format!(
            "ListenAddress {address}:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             UseDNS no\nNoneEnabled yes\nNoneMacEnabled yes\nSubsystem sftp {sftp}\n",
            hpn.host_key.private.display(),
            authorized.display()
        );
        fs::write(&config, text)?;
        Ok(config)
    }

    /// Writes the client's files for a server that this program starts, in `folder`.
    fn client_of(
        &self,
        folder: &Path,
        host_key: &KeyPair,
        (host, port): (&str, u16),
        pid: Option<u32>,
    ) -> io::Result<Server> {
        let known_hosts = folder.join("known_hosts");
        let key = host_key.public_line();
        fs::write(&known_hosts, format!("[{host}]:{port} {key}\n"))?;
        let private = self.client.key().private.clone();
        let user = self.this_user();
        let config = folder.join("ssh_config");
        let text = format!(
            "Host far\n  HostName {host}\n  Port {port}\n  User {user}\n  IdentityFile {}\n  \
             IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n",
            private.display(),
            known_hosts.display()
        );
        fs::write(&config, text)?;
        Ok(Server {
            config,
            key: private,
            known_hosts,
            host: host.to_owned(),
            port,
            user,
            pid,
        })
    }

    fn this_user(&self) -> String {
        let said = testkit::Run::new("id").arg("-un").run();
        said.out().trim().to_owned()
    }
}

/// Starts a server, and waits for a log line that starts with `says`.
fn started(name: &str, command: Command, log: &Path, says: &str) -> io::Result<BackgroundProcess> {
    let mut daemon = BackgroundProcess::start(name, command, log)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    match daemon.line_after(says, deadline) {
        Some(_) => Ok(daemon),
        None => {
            let log = daemon.log();
            Err(io::Error::other(format!("{name} did not come up: {log}")))
        }
    }
}

/// Returns a PATH on which sshd finds the longhaul under test.
fn path_with_longhaul() -> String {
    let program = longhaul_tests::longhaul();
    let folder = program.parent().unwrap_or_else(|| Path::new("/")).display();
    format!("PATH={folder}:/usr/bin:/bin")
}
