//! Connections that nftables rules divert to a relay: a client, a router with the relay, and a
//! server, each in a network namespace of its own. The test's data goes through UNIX sockets, which
//! are reachable from all namespaces; additional relays in the client's and the server's namespace
//! convert them to TCP.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use longhaul_tests::longhaul;
use tempfile::TempDir;
use testkit::Seed;
use testkit::missing::{find_program, not_here, skip};

use crate::space::Space;
use crate::world::{Relay, SOON};

const FAMILIES: [Family; 2] = [
    Family {
        client: "10.1.0.2",
        near: "10.1.0.1",
        router: "10.2.0.1",
        server: "10.2.0.2",
        clients: "10.1.0.0/16",
        all: "10.0.0.0/8",
        prefix: 24,
    },
    Family {
        client: "fd01::2",
        near: "fd01::1",
        router: "fd02::1",
        server: "fd02::2",
        clients: "fd01::/16",
        all: "fd00::/8",
        prefix: 64,
    },
];

/// Addresses of one family: the client's, the router's two, and the server's.
struct Family {
    client: &'static str,
    near: &'static str,
    router: &'static str,
    server: &'static str,
    clients: &'static str,
    all: &'static str,
    prefix: u8,
}

/// Three namespaces, with a router between a client and a server.
struct Net {
    client: Space,
    router: Space,
    server: Space,
    folder: TempDir,
}

impl Net {
    fn new() -> Option<Self> {
        if find_program("nft").is_none() {
            skip("nft", "install nftables (scripts/setup-tests.sh)");
            return None;
        }
        let router = Space::first()?;
        let inner = || {
            let mut makes = Command::new("nsenter");
            let pid = router.id().to_string();
            makes.args(["--target", &pid, "--user", "--preserve-credentials"]);
            makes.args(["unshare", "--net"]);
            Space::new(makes).expect("a namespace more")
        };
        let (client, server) = (inner(), inner());
        let net = Self {
            client,
            router,
            server,
            folder: tempfile::tempdir().unwrap(),
        };
        if let Err(why) = net.try_nft() {
            not_here(&format!("nftables cannot be used here: {why}"));
            return None;
        }
        net.wire();
        Some(net)
    }

    /// Checks that the kernel supports the rules.
    fn try_nft(&self) -> Result<(), String> {
        let mut enters = self.router.enter();
        let rules = "add table inet t; add chain inet t c { type nat hook prerouting priority 0; }; \
                     add rule inet t c tcp dport 1 redirect to :2; \
                     add chain inet t d { type filter hook prerouting priority 0; }; \
                     add rule inet t d tcp dport 1 tproxy ip to 127.0.0.1:2; \
                     add rule inet t d meta l4proto tcp socket wildcard 0 accept; \
                     delete table inet t";
        enters.args(["nft", rules]);
        let done = enters.output().map_err(|e| e.to_string())?;
        match done.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        }
    }

    fn wire(&self) {
        let mut of_router = "ip link set lo up\n".to_owned();
        for (name, space, is_client) in [("c", &self.client, true), ("s", &self.server, false)] {
            let pid = space.id();
            let _ = writeln!(
                of_router,
                "ip link add {name} type veth peer name eth0 netns {pid}"
            );
            for family in &FAMILIES {
                let own = if is_client {
                    family.near
                } else {
                    family.router
                };
                let _ = writeln!(
                    of_router,
                    "ip addr add {own}/{} dev {name}{}",
                    family.prefix,
                    no_dad(own)
                );
            }
            let _ = writeln!(of_router, "ip link set {name} up");
        }
        of_router += "echo 1 >/proc/sys/net/ipv4/ip_forward\n\
                      echo 1 >/proc/sys/net/ipv6/conf/all/forwarding\n";
        self.router.shell(&of_router);
        for (space, is_client) in [(&self.client, true), (&self.server, false)] {
            let mut lines = "ip link set lo up\nip link set eth0 up\n".to_owned();
            for family in &FAMILIES {
                let (own, by) = match is_client {
                    true => (family.client, family.near),
                    false => (family.server, family.router),
                };
                let _ = writeln!(
                    lines,
                    "ip addr add {own}/{} dev eth0{}\nip {} route add default via {by}",
                    family.prefix,
                    no_dad(own),
                    if by.contains(':') { "-6" } else { "-4" },
                );
            }
            space.shell(&lines);
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts a relay at `port` of the server that passes connections to a UNIX socket, with the
    /// client's address in a header.
    fn serve(&self, family: &Family, port: u16) -> (Relay, UnixListener) {
        let path = self.path(&format!("server-{}-{port}", family.prefix));
        let listener = UnixListener::bind(&path).unwrap();
        let at = at(family.server, port);
        let to = format!("unix:{path},proxy1");
        let words = [at.as_str(), &to, "--allow", family.all];
        (Relay::start_in(self.server.enter(), &words), listener)
    }

    /// Starts a relay in this namespace from a UNIX socket to `port` of the server.
    fn connects(&self, from: &Space, family: &Family, port: u16) -> (Relay, String) {
        let path = self.path(&format!("client-{}-{}-{port}", from.id(), family.prefix));
        let entrance = format!("unix:{path}");
        let to = at(family.server, port);
        (Relay::start_in(from.enter(), &[&entrance, &to]), path)
    }

    /// Runs `longhaul relay rules` in the router.
    #[track_caller]
    fn rules(&self, what: &str, words: &[&str]) -> String {
        let mut enters = self.router.enter();
        enters.arg(longhaul()).args(["relay", "rules", what]);
        let done = enters.args(words).output().unwrap();
        let why = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{what}: {why}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Returns all rules in the router.
    fn all_rules(&self) -> String {
        self.router.shell(
            "nft list ruleset\nip rule\nip -6 rule\nip route show table all type local | \
             grep default || true",
        )
    }
}

/// Returns the option that makes an IPv6 address usable at once.
fn no_dad(address: &str) -> &'static str {
    if address.contains(':') { " nodad" } else { "" }
}

fn at(address: &str, port: u16) -> String {
    let ip: IpAddr = address.parse().unwrap();
    std::net::SocketAddr::new(ip, port).to_string()
}

fn bounded(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

fn connect(path: &str) -> UnixStream {
    bounded(UnixStream::connect(path).unwrap())
}

/// Accepts a connection; returns its header, and the stream behind it.
#[track_caller]
fn accept(listener: &UnixListener) -> (String, BufReader<UnixStream>) {
    assert!(testkit::wait::readable(listener, SOON), "nobody comes");
    let (stream, _) = listener.accept().unwrap();
    let mut stream = BufReader::new(bounded(stream));
    let mut header = String::new();
    stream.read_line(&mut header).unwrap();
    (header, stream)
}

/// Sends bytes there and back; returns the source and destination that the server saw.
#[track_caller]
fn goes_through(path: &str, listener: &UnixListener) -> (String, String) {
    let mut client = connect(path);
    let bytes = Seed::new(5).bytes(300_000);
    let sent = bytes.clone();
    let mut writes = client.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        writes.write_all(&sent).unwrap();
        writes.shutdown(Shutdown::Write).unwrap();
    });
    let (header, mut server) = accept(listener);
    let mut came = Vec::new();
    server.read_to_end(&mut came).unwrap();
    writer.join().unwrap();
    assert!(came == bytes, "{} bytes of {}", came.len(), bytes.len());
    server.get_mut().write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    let words: Vec<&str> = header.split_whitespace().collect();
    let [_, _, from, to, ..] = words.as_slice() else {
        panic!("{header:?}");
    };
    ((*from).to_owned(), (*to).to_owned())
}

/// Diverted connections go through the relay of the router, others do not, and without the rules
/// none do.
fn is_diverted(how: &str, keeps_address: bool) {
    let Some(net) = Net::new() else {
        return;
    };
    let before = net.all_rules();
    for family in &FAMILIES {
        let entrance = format!("*:9022/{how}");
        let to = match family.prefix {
            24 => "10.2.0.0/16:7000",
            _ => "[fd02::]/16:7000",
        };
        let mut words = vec![entrance.as_str(), "--to", to, "--allow", family.clients];
        if keeps_address {
            words.push("--keep-address");
        }
        let relay = Relay::start_in(net.router.enter(), &words);
        let shown = net.rules("print", &words);
        assert!(shown.contains("table inet longhaul_9022"), "{shown}");
        net.rules("add", &words);
        let (_serves, listener) = net.serve(family, 7000);
        let (_connects, path) = net.connects(&net.client, family, 7000);
        let seen = goes_through(&path, &listener);
        let from = if keeps_address {
            family.client
        } else {
            family.router
        };
        assert_eq!(seen, (from.to_owned(), family.server.to_owned()));
        let log = relay.says("closed, ");
        assert!(log.contains(&at(family.server, 7000)), "{log}");
        // A port that --to does not permit.
        let (_serves_more, other) = net.serve(family, 7001);
        let (_connects_more, other_path) = net.connects(&net.client, family, 7001);
        let seen = goes_through(&other_path, &other);
        assert_eq!(seen, (family.client.to_owned(), family.server.to_owned()));
        net.rules("remove", &words);
        assert_eq!(net.all_rules(), before);
        let seen = goes_through(&path, &listener);
        assert_eq!(seen, (family.client.to_owned(), family.server.to_owned()));
        assert_eq!(
            relay.log().matches("closed, ").count(),
            1,
            "{}",
            relay.log()
        );
    }
}

#[test]
fn what_nft_redirects_goes_where_it_was_going() {
    is_diverted("redirect", false);
}

#[test]
fn what_is_redirected_keeps_its_address() {
    is_diverted("redirect", true);
}

#[test]
fn what_tproxy_takes_goes_where_it_was_going() {
    is_diverted("tproxy", false);
}

#[test]
fn what_tproxy_takes_keeps_its_address() {
    is_diverted("tproxy", true);
}

#[test]
fn what_this_machine_sends_itself_is_redirected_once() {
    let Some(net) = Net::new() else {
        return;
    };
    for family in &FAMILIES {
        let to = match family.prefix {
            24 => "10.2.0.0/16:7000",
            _ => "[fd02::]/16:7000",
        };
        let words = ["9022/redirect", "--to", to];
        let relay = Relay::start_in(net.router.enter(), &words);
        net.rules("add", &words);
        let (_serves, listener) = net.serve(family, 7000);
        let (_connects, path) = net.connects(&net.router, family, 7000);
        let seen = goes_through(&path, &listener);
        assert_eq!(seen, (family.router.to_owned(), family.server.to_owned()));
        relay.says("closed, ");
        assert_eq!(
            relay.log().matches("connection=").count(),
            1,
            "{}",
            relay.log()
        );
        net.rules("remove", &words);
    }
}

#[test]
fn a_rule_that_leads_a_relay_to_itself_is_no_endless_loop() {
    let Some(net) = Net::new() else {
        return;
    };
    let family = &FAMILIES[0];
    let words = ["9022/redirect", "--to", "10.2.0.0/16:7000"];
    let relay = Relay::start_in(net.router.enter(), &words);
    // The rule does not exempt the relay's own connections. A direct connection to the relay has no
    // other destination.
    net.router.shell(
        "nft 'add table inet wrong; \
         add chain inet wrong out { type nat hook output priority -100; }; \
         add rule inet wrong out tcp dport 7000 redirect to :9022'",
    );
    let (_connects, path) = net.connects(&net.router, family, 7000);
    let mut client = connect(&path);
    let mut answer = Vec::new();
    // UNIX sockets have no reset.
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty());
    relay.says("which would be a loop");
    let path = net.path("direct");
    let entrance = format!("unix:{path}");
    let _direct = Relay::start_in(net.router.enter(), &[&entrance, "127.0.0.1:9022"]);
    let _ = connect(&path).read_to_end(&mut answer);
    assert!(answer.is_empty());
    relay.says("made to this relay itself");
    assert!(Path::new(&path).exists());
}
