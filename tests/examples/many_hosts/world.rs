//! Hosts on this machine, each in a network namespace, with an emulated path between some of them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Emulator, NetworkPathSpec, PacketDirection, TunFrame};
use rustix::event::{PollFd, PollFlags, poll};
use sys::NamespaceKind;

/// Frames read from one device before the other is read.
const BATCH: usize = 32;

/// The hosts and what belongs to them. Everything ends when this is dropped.
pub(crate) struct World {
    /// Folder for files, keys and configurations.
    pub(crate) folder: tempfile::TempDir,
    hosts: Vec<Host>,
    servers: Vec<Child>,
    over: Arc<AtomicBool>,
}

struct Host {
    name: &'static str,
    namespace: File,
}

/// A path between two hosts, and the options of its emulator with their values.
type PathFlags<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

impl World {
    /// Creates hosts, the first of which has the user, and sshd on all others.
    pub(crate) fn new(names: &[&'static str], paths: &[PathFlags<'_>]) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let hosts = names.iter().copied().map(|name| Host {
            name,
            namespace: namespace(),
        });
        let mut world = Self {
            hosts: hosts.collect(),
            folder,
            servers: Vec::new(),
            over: Arc::default(),
        };
        for (nth, (one, other, options)) in paths.iter().enumerate() {
            // Neighbouring paths do not lose the same packets.
            let seed = (nth + 1).to_string();
            let options = options.iter().copied().chain([("seed", seed.as_str())]);
            let path = NetworkPathSpec::build(None, options).expect("a path");
            world.connect(one, other, &path);
        }
        world.keys(names);
        for name in names.iter().skip(1) {
            world.serve(name);
        }
        world
    }

    fn number(&self, name: &str) -> usize {
        let at = self.hosts.iter().position(|host| host.name == name);
        at.expect("a host of this name")
    }

    /// Runs `work` in the host's namespace.
    fn on<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = &self.hosts[self.number(name)].namespace;
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sys::enter_network(namespace).expect("the namespace");
                work()
            });
            thread.join().expect("no panic")
        })
    }

    fn connect(&self, one: &str, other: &str, path: &NetworkPathSpec) {
        let devices = [(one, other), (other, one)].map(|(here, there)| {
            let (own, peer) = (self.number(here) + 1, self.number(there) + 1);
            self.on(here, || {
                let device = format!("to-{there}");
                let tun = sys::open_tun(&device).expect("a TUN device");
                for words in [
                    format!("address add 10.77.0.{own}/32 dev {device}"),
                    format!("link set {device} up txqueuelen 32768"),
                    // A machine may restrict its default congestion control, but not a route's.
                    format!("route add 10.77.0.{peer} dev {device} congctl cubic"),
                ] {
                    ip(&words);
                }
                tun
            })
        });
        let (over, emulator) = (Arc::clone(&self.over), Emulator::new(path));
        thread::spawn(move || pump(&devices, emulator, &over));
    }

    fn keys(&self, names: &[&str]) {
        let file = |name: &str| self.folder.path().join(name);
        let generate = |name: &str| {
            let run = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(file(name))
                .status();
            assert!(run.expect("ssh-keygen").success());
            fs::read_to_string(file(&format!("{name}.pub"))).expect("a key")
        };
        let own = generate("key");
        fs::write(file("authorized_keys"), own).expect("our file");
        let (mut known, mut config) = (String::new(), String::new());
        let folder = self.folder.path().display();
        for (nth, name) in names.iter().enumerate().skip(1) {
            let address = format!("10.77.0.{}", nth + 1);
            known += &format!("{address} {}", generate(&format!("host-{name}")));
            config += &format!("Host {name}\n HostName {address}\n");
        }
        config += &format!(
            "Host *\n User root\n BatchMode yes\n IdentityFile {folder}/key\n \
             IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n"
        );
        fs::write(file("known_hosts"), known).expect("our file");
        fs::write(file("ssh_config"), config).expect("our file");
    }

    fn serve(&mut self, name: &str) {
        let folder = self.folder.path();
        let (shown, own) = (folder.display(), folder.join(name));
        fs::create_dir_all(own.join("bin")).expect("our folder");
        let config = folder.join(format!("{name}.conf"));
        let text = format!(
            "Port 22\nHostKey {shown}/host-{name}\nAuthorizedKeysFile {shown}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\n\
             Subsystem sftp internal-sftp\n\
             SetEnv PATH={own}/bin:/usr/bin:/bin XDG_CACHE_HOME={own}/cache \
             XDG_STATE_HOME={own}/state\n",
            own = own.display()
        );
        fs::write(&config, text).expect("our file");
        fs::create_dir_all("/run/sshd").expect("sshd's folder");
        let log = folder.join(format!("{name}.log"));
        let server = self.on(name, || {
            let mut command = Command::new("/usr/sbin/sshd");
            command.args(["-D", "-f"]).arg(&config).arg("-E").arg(&log);
            command.spawn().expect("sshd")
        });
        self.servers.push(server);
        let until = Instant::now() + Duration::from_secs(20);
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains("listening on 0.0.0.0")) {
            assert!(Instant::now() < until, "sshd does not listen");
            thread::yield_now();
        }
    }

    /// Puts longhaul on the PATH of a host.
    pub(crate) fn install(&self, name: &str) {
        let to = self.folder.path().join(name).join("bin/longhaul");
        std::os::unix::fs::symlink(longhaul_tests::longhaul(), to).expect("our folder");
    }

    /// Runs longhaul on the first host, with state of its own. Returns its output and the time.
    pub(crate) fn longhaul(&self, words: &[&str]) -> Ran {
        let folder = self.folder.path();
        let first = self.hosts[0].name;
        let resources = folder.join("resources");
        self.on(first, || {
            let start = Instant::now();
            let output = Command::new("/usr/bin/time")
                .args(["-f", "%M", "-o"])
                .arg(&resources)
                .arg(longhaul_tests::longhaul())
                .args(words)
                .env("XDG_CACHE_HOME", folder.join("cache"))
                .env("XDG_STATE_HOME", folder.join("state"))
                .env("XDG_CONFIG_HOME", folder.join("config"))
                .stdin(Stdio::null())
                .output();
            let took = start.elapsed();
            let memory = fs::read_to_string(&resources).unwrap_or_default();
            let last = memory.lines().last().unwrap_or_default().to_owned();
            Ran {
                output: output.expect("longhaul starts (needs /usr/bin/time)"),
                took,
                memory: last.parse::<u64>().unwrap_or_default() << 10,
            }
        })
    }

    /// A file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes what longhaul remembers on the first host.
    pub(crate) fn forget(&self) {
        for name in ["cache", "state"] {
            let _ = fs::remove_dir_all(self.path(name));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A run of longhaul.
pub(crate) struct Ran {
    output: Output,
    /// Time from start to end.
    pub(crate) took: Duration,
    /// Peak of resident memory in bytes.
    pub(crate) memory: u64,
}

impl Ran {
    /// Standard error.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!(self.output.status.success(), "{}", self.said());
        self
    }
}

/// Creates a network namespace with CUBIC and large buffers.
fn namespace() -> File {
    let made = thread::spawn(|| {
        sys::unshare(NamespaceKind::Network).expect("a network namespace: this needs root");
        ip("link set lo up");
        for (name, value) in [
            ("tcp_rmem", "4096 131072 33554432"),
            ("tcp_wmem", "4096 65536 33554432"),
        ] {
            let file = Path::new("/proc/sys/net/ipv4").join(name);
            fs::write(file, value).expect("a setting of the namespace");
        }
        File::open("/proc/thread-self/ns/net").expect("the namespace")
    });
    made.join().expect("no panic")
}

fn ip(words: &str) {
    let run = Command::new("ip").args(words.split(' ')).status();
    assert!(run.expect("iproute2").success(), "ip {words}");
}

/// Carries packets between two devices until the world is over.
fn pump(devices: &[OwnedFd; 2], mut emulator: Emulator, over: &AtomicBool) {
    let start = Instant::now();
    let mut waiting: [VecDeque<TunFrame>; 2] = Default::default();
    while !over.load(Ordering::Relaxed) {
        let mut idle = true;
        for direction in PacketDirection::BOTH {
            for _ in 0..BATCH {
                let mut frame = emulator.memory();
                let Ok(len) = rustix::io::read(&devices[direction as usize], frame.room()) else {
                    emulator.recycle(frame);
                    break;
                };
                frame.set_len(len);
                emulator.offer(direction, start.elapsed(), frame);
                idle = false;
            }
        }
        while let Some((direction, frame)) = emulator.poll(start.elapsed()) {
            waiting[direction as usize].push_back(frame);
        }
        for direction in PacketDirection::BOTH {
            let device = &devices[direction.opposite() as usize];
            while let Some(frame) = waiting[direction as usize].pop_front() {
                use rustix::io::Errno;
                match rustix::io::write(device, frame.bytes()) {
                    Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => {
                        waiting[direction as usize].push_front(frame);
                        break;
                    }
                    _ => emulator.recycle(frame),
                }
            }
        }
        if idle {
            wait(devices, &emulator, start);
        }
    }
}

fn wait(devices: &[OwnedFd; 2], emulator: &Emulator, start: Instant) {
    let mut longest = Duration::from_millis(20);
    if let Some(due) = emulator.next_deadline() {
        longest = longest.min(due.saturating_sub(start.elapsed()));
    }
    let mut fds = devices
        .each_ref()
        .map(|device| PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN));
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, longest.try_into().ok().as_ref());
}
