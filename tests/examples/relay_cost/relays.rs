//! Relays to measure, and how they are started.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use longhaul_tests::longhaul;
use tempfile::TempDir;
use testkit::missing::{built_peers, find_program};
use testkit::process::cpu_time;
use testkit::wait;

/// Implementation of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Longhaul,
    LonghaulOneCore,
    Haproxy,
    HaproxyOneCore,
    Socat,
    Realm,
    RealmOneCore,
    Stunnel,
}

/// Running relay, or a direct connection.
pub(crate) struct Relay {
    pub(crate) name: &'static str,
    /// Port for clients.
    pub(crate) port: u16,
    /// Listener to which the relay connects.
    pub(crate) listener: TcpListener,
    child: Option<Child>,
    /// TLS client in front of the relay, which is not measured.
    front: Option<Child>,
    _folder: Option<TempDir>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.front].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Relay {
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the processor time of the relay and its processes, in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        let Some(pid) = self.pid() else {
            return 0.0;
        };
        let tasks = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(tasks).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        let all = children.chain([pid]).filter_map(cpu_time);
        all.map(|time| time.as_secs_f64()).sum()
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    (listener, port)
}

fn free() -> u16 {
    listener().1
}

fn run(mut command: Command, port: u16) -> Child {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let limit = Duration::from_secs(10);
    // The connections of this check are closed again and not measured.
    wait::until(
        limit,
        || TcpStream::connect(("127.0.0.1", port)).is_ok(),
        || "it does not listen".to_owned(),
    );
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", child.id())).map(Iterator::count);
    let quiet = Duration::from_millis(300);
    wait::steady(quiet, limit, || descriptors().ok()).expect("the check's connections end");
    child
}

fn on_one_core(program: PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(program);
    command
}

fn haproxy(folder: &TempDir, one_core: bool, bind: &str, to: u16) -> Option<Command> {
    let program = find_program("haproxy")?;
    let config = folder.path().join("haproxy.cfg");
    let threads = if one_core { " nbthread 1\n" } else { "" };
    let text = format!(
        "global\n maxconn 9500\n maxpipes 256\n tune.ssl.default-dh-param 2048\n{threads}defaults\n mode tcp\n \
         timeout connect 5s\n timeout client 100s\n timeout server 100s\n option splice-auto\n\
         listen l\n bind {bind}\n server s 127.0.0.1:{to}\n"
    );
    fs::write(&config, text).expect("a file");
    let mut command = match one_core {
        true => on_one_core(program),
        false => Command::new(program),
    };
    command.arg("-f").arg(config).arg("-db");
    Some(command)
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::None => "none",
        Kind::Longhaul | Kind::LonghaulOneCore => "longhaul",
        Kind::Haproxy | Kind::HaproxyOneCore => "haproxy",
        Kind::Socat => "socat",
        Kind::Realm | Kind::RealmOneCore => "realm",
        Kind::Stunnel => "stunnel",
    }
}

fn relay_once(relay: &Relay) {
    // Accepts the connections of the check.
    relay.listener.set_nonblocking(true).expect("it listens");
    while relay.listener.accept().is_ok() {}
    relay.listener.set_nonblocking(false).expect("it listens");
}

/// Starts a relay without TLS; `None` if it is not installed.
pub(crate) fn plain(kind: Kind) -> Option<Relay> {
    let (listener, to) = listener();
    let port = if kind == Kind::None { to } else { free() };
    let folder = tempfile::tempdir().expect("a folder");
    let command = match kind {
        Kind::None => None,
        Kind::Longhaul | Kind::LonghaulOneCore => {
            let mut command = match kind {
                Kind::Longhaul => Command::new(longhaul()),
                _ => on_one_core(longhaul()),
            };
            command.args(["relay", "-q", &format!("127.0.0.1:{port}")]);
            command.arg(format!("127.0.0.1:{to}"));
            command.args(["--max-connections", "20000", "--max-per-source", "20000"]);
            if kind == Kind::LonghaulOneCore {
                command.args(["--threads", "1"]);
            }
            Some(command)
        }
        Kind::Haproxy | Kind::HaproxyOneCore => {
            let one_core = kind == Kind::HaproxyOneCore;
            Some(haproxy(
                &folder,
                one_core,
                &format!("127.0.0.1:{port}"),
                to,
            )?)
        }
        Kind::Socat => {
            let mut command = Command::new(find_program("socat")?);
            command.arg("-b262144").arg(format!(
                "TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=128"
            ));
            command.arg(format!("TCP:127.0.0.1:{to},nodelay"));
            Some(command)
        }
        Kind::Realm | Kind::RealmOneCore => {
            let program = built_peers().join("bin/realm-relay");
            if !program.is_file() {
                return None;
            }
            let mut command = match kind {
                Kind::Realm => Command::new(program),
                _ => on_one_core(program),
            };
            command.arg(format!("127.0.0.1:{port}"));
            command.arg(format!("127.0.0.1:{to}"));
            Some(command)
        }
        Kind::Stunnel => return None,
    };
    let relay = Relay {
        name: name(kind),
        port,
        child: command.map(|command| run(command, port)),
        listener,
        front: None,
        _folder: Some(folder),
    };
    relay_once(&relay);
    Some(relay)
}

fn openssl(folder: &TempDir) -> Option<()> {
    let made = Command::new(find_program("openssl")?)
        .current_dir(folder.path())
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem"])
        .args(["-out", "cert.pem", "-subj", "/CN=localhost", "-days", "2"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .stderr(Stdio::null())
        .status();
    assert!(
        made.expect("it runs").success(),
        "openssl makes no certificate"
    );
    let both =
        ["cert.pem", "key.pem"].map(|name| fs::read(folder.path().join(name)).expect("made"));
    fs::write(folder.path().join("both.pem"), both.concat()).expect("a file");
    Some(())
}

/// Starts the relays with a TLS listener, each behind a longhaul that encrypts; `None` without
/// openssl.
pub(crate) fn tls() -> Option<Vec<Relay>> {
    behind_tls(&[Kind::Longhaul, Kind::Haproxy, Kind::Stunnel], &[])
}

/// Starts two longhaul relays with TLS between them and these flags; `None` without openssl.
pub(crate) fn facing(flags: &[&str]) -> Option<Relay> {
    behind_tls(&[Kind::Longhaul], flags)?.pop()
}

fn behind_tls(kinds: &[Kind], flags: &[&str]) -> Option<Vec<Relay>> {
    let mut relays = Vec::new();
    for kind in kinds.iter().copied() {
        let folder = tempfile::tempdir().expect("a folder");
        openssl(&folder)?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (listener, to) = listener();
        let (entrance, port) = (free(), free());
        let command = match kind {
            Kind::Haproxy => {
                let bind = format!("127.0.0.1:{entrance} ssl crt {}", path("both.pem"));
                haproxy(&folder, false, &bind, to)
            }
            Kind::Stunnel => find_program("stunnel").map(|program| {
                let text = format!(
                    "foreground = yes\npid =\n[s]\naccept = 127.0.0.1:{entrance}\n\
                     connect = 127.0.0.1:{to}\ncert = {}\nsocket = l:TCP_NODELAY=1\n\
                     socket = r:TCP_NODELAY=1\n",
                    path("both.pem")
                );
                fs::write(path("stunnel.conf"), text).expect("a file");
                let mut command = Command::new(program);
                command.arg(path("stunnel.conf"));
                command
            }),
            _ => {
                let mut command = Command::new(longhaul());
                command.args(["relay", "-q", &format!("127.0.0.1:{entrance}/tls")]);
                command.arg(format!("127.0.0.1:{to}"));
                command.args(["--key", &path("key.pem"), "--cert", &path("cert.pem")]);
                command.args(["--max-connections", "20000", "--max-per-source", "20000"]);
                command.args(flags);
                Some(command)
            }
        };
        let Some(command) = command else {
            continue;
        };
        let child = run(command, entrance);
        let mut front = Command::new(longhaul());
        front.args(["relay", "-q", &format!("127.0.0.1:{port}")]);
        front.arg(format!("localhost:{entrance}/tls"));
        front.args(["--ca", &path("cert.pem")]);
        front.args(["--max-connections", "20000", "--max-per-source", "20000"]);
        front.args(flags);
        let relay = Relay {
            name: name(kind),
            port,
            child: Some(child),
            front: Some(run(front, port)),
            listener,
            _folder: Some(folder),
        };
        relay_once(&relay);
        relays.push(relay);
    }
    Some(relays)
}
