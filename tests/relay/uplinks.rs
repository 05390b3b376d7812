//! Pairs with several uplinks: all of them carry data at their own speed, and data of a dead one is
//! sent on others.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use testkit::Seed;
use testkit::missing::{find_program, not_here, skip};

use crate::pair::{keys, start};
use crate::space::Space;
use crate::world::{Relay, SOON, both_ways, copy_paced, expect_all, server};

const ONE: [u8; 4] = [127, 0, 0, 2];
const OTHER: [u8; 4] = [127, 0, 0, 3];

/// Proxy that distinguishes connections by their source address.
#[derive(Clone, Default)]
struct Path(Arc<Mutex<Ways>>);

#[derive(Default)]
struct Ways {
    /// Source addresses whose data is discarded.
    dead: Vec<IpAddr>,
    /// Rate in bytes per second of each connection from these addresses.
    slow: BTreeMap<IpAddr, usize>,
    legs: Vec<(IpAddr, TcpStream)>,
}

impl Path {
    fn to(&self, to: SocketAddr) -> SocketAddr {
        let listener = server();
        // Small buffers: data that waits here cannot be sent on another uplink.
        let socket = socket2::SockRef::from(&listener);
        socket.set_recv_buffer_size(32_768).unwrap();
        let at = listener.local_addr().unwrap();
        let path = self.clone();
        thread::spawn(move || {
            while let Ok((leg, from)) = listener.accept() {
                let mut ways = path.0.lock().unwrap();
                if !ways.dead.contains(&from.ip()) {
                    ways.legs.push((from.ip(), leg.try_clone().unwrap()));
                    let rate = ways.slow.get(&from.ip()).copied();
                    drop(ways);
                    pass_on(leg, TcpStream::connect(to).unwrap(), rate);
                }
            }
        });
        at
    }

    /// Returns the number of stripes from an address so far.
    fn legs(&self, from: [u8; 4]) -> usize {
        let ways = self.0.lock().unwrap();
        let legs = ways.legs.iter();
        legs.filter(|(ip, _)| *ip == IpAddr::from(from)).count()
    }

    fn kill(&self, from: [u8; 4]) {
        let mut ways = self.0.lock().unwrap();
        ways.dead.push(from.into());
        for (ip, leg) in &ways.legs {
            if *ip == IpAddr::from(from) {
                let _ = leg.shutdown(Shutdown::Both);
            }
        }
    }

    fn revive(&self) {
        self.0.lock().unwrap().dead.clear();
    }

    #[track_caller]
    fn waits_for(&self, from: [u8; 4], legs: usize) {
        testkit::wait::until(
            2 * SOON,
            || self.legs(from) >= legs,
            || format!("{} of {legs}", self.legs(from)),
        );
    }
}

/// Forwards both directions, the first one at most with `rate`.
fn pass_on(one: TcpStream, other: TcpStream, rate: Option<usize>) {
    for (mut from, mut into, rate) in [
        (one.try_clone().unwrap(), other.try_clone().unwrap(), rate),
        (other, one, None),
    ] {
        thread::spawn(move || {
            match rate {
                Some(rate) => copy_paced(&mut from, &mut into, rate),
                None => drop(std::io::copy(&mut from, &mut into)),
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = into.shutdown(Shutdown::Both);
        });
    }
}

fn halves(path: &Path, flags: &[&str]) -> (Relay, Relay, TcpListener) {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let both = ["--bind", "127.0.0.2", "--bind", "127.0.0.3", "--explain"];
    let there = path.to(far.address()).to_string();
    let near = start(&keys().near(&there, &[&both, flags].concat()));
    (near, far, listener)
}

#[test]
fn legs_leave_by_each_way_and_one_that_dies_is_made_up_for() {
    let path = Path::default();
    let (near, _far, listener) = halves(&path, &["--stripes", "4"]);
    let (mut client, mut server) = near.pair(&listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    path.waits_for(ONE, 2);
    path.waits_for(OTHER, 2);
    near.says(" from 127.0.0.2 connected");
    let bytes = Seed::new(3).bytes(20_000_000);
    thread::scope(|scope| {
        let mut writes = client.try_clone().unwrap();
        let (path, bytes) = (&path, &bytes);
        scope.spawn(move || {
            for (nth, part) in bytes.chunks(1_000_000).enumerate() {
                if nth == 5 {
                    path.kill(ONE);
                }
                writes.write_all(part).unwrap();
            }
        });
        let mut came = vec![0; bytes.len()];
        server.read_exact(&mut came).unwrap();
        assert!(came == *bytes);
    });
    path.waits_for(OTHER, 4);
    let log = near.says(" from 127.0.0.2 lost: ");
    assert!(!log.contains("from 127.0.0.3 lost: "), "{log}");
    // The uplink works again, and gets its share of the stripes.
    let before = path.legs(ONE);
    path.revive();
    path.waits_for(ONE, before + 2);
    both_ways(&mut client, &mut server, 3_000_000);
    let log = near.says("closed, ");
    let there = log.matches(" from 127.0.0.2 connected").count();
    assert_eq!(there, 4, "{log}");
    assert!(log.contains("; from 127.0.0.3: "), "{log}");
}

#[test]
fn each_way_carries_what_it_takes() {
    let path = Path::default();
    path.0.lock().unwrap().slow = [(ONE.into(), 8_000_000), (OTHER.into(), 1_500_000)].into();
    let (near, _far, listener) = halves(&path, &["--pair-zstd", "never"]);
    let (mut client, mut server) = near.pair(&listener);
    let bytes = Seed::new(5).bytes(12_000_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        expect_all(&mut server, &bytes);
    });
    drop(server);
    expect_all(&mut client, b"");
    let log = near.says("closed, ");
    let share = |by: &str| {
        let (_, rest) = log.split_once(&format!("; from {by}: ")).expect(by);
        let bytes = rest.split(' ').nth(2).expect("bytes");
        bytes.parse::<u64>().expect(bytes)
    };
    let (fast, slow) = (share("127.0.0.2"), share("127.0.0.3"));
    assert!(slow > 500_000 && fast > 2 * slow, "{fast} and {slow}");
    assert!(log.contains("2 stripes: one for each uplink"), "{log}");
}

#[test]
fn connections_of_any_kind_go_by_a_way_that_can_be_had() {
    let listener = server();
    // Not an address of this machine (RFC 5737).
    let relay = Relay::to(&["--bind", "192.0.2.7", "--bind", "127.0.0.3"], &listener);
    for _ in 0..3 {
        let (_client, server) = relay.pair(&listener);
        assert_eq!(server.peer_addr().unwrap().ip(), IpAddr::from(OTHER));
    }
    let relay = Relay::to(&["--bind", "127.0.0.2", "--bind", "127.0.0.3"], &listener);
    let seen: Vec<_> = (0..4)
        .map(|_| relay.pair(&listener).1.peer_addr().unwrap().ip())
        .collect();
    assert!(
        seen.contains(&ONE.into()) && seen.contains(&OTHER.into()),
        "{seen:?}"
    );
    // Nothing listens at a port that is bound but not listening; a closed listener's port was once
    // taken by another test.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let gone = held.local_addr().unwrap().as_socket().unwrap();
    let relay = Relay::start(&[
        "127.0.0.1:0",
        &gone.to_string(),
        "--bind",
        "192.0.2.7",
        "--bind",
        "127.0.0.3",
    ]);
    let mut client = relay.connect();
    let _ = client.read_to_end(&mut Vec::new());
    let log = relay.says("cannot connect to the target");
    assert!(
        log.contains("from 192.0.2.7: ") && log.contains("from 127.0.0.3: "),
        "{log}"
    );
}

/// A firewall rule drops packets silently. A machine that is busy enough may be silent by itself,
/// but not each time.
#[test]
fn a_way_that_falls_silent_holds_nobody_up() {
    if find_program("nft").is_none() {
        skip("nft", "install nftables (scripts/setup-tests.sh)");
        return;
    }
    for left in (0..3).rev() {
        let Some(longest) = silence_when_a_way_falls_silent() else {
            return;
        };
        eprintln!("nothing came for {longest:?}");
        if longest < Duration::from_secs(5) {
            return;
        }
        assert!(left > 0, "nothing came for {longest:?}");
    }
}

/// Returns the longest time without data; `None` if it cannot be tested here.
fn silence_when_a_way_falls_silent() -> Option<Duration> {
    let space = Space::first()?;
    space.shell("ip link set lo up");
    let rules =
        "nft 'add table inet t; add chain inet t in { type filter hook input priority 0; }'";
    let mut enters = space.enter();
    let made = enters.args(["sh", "-ec", rules]).output().unwrap();
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr);
        not_here(&format!("nftables cannot be used here: {}", why.trim()));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let listener = UnixListener::bind(path("server")).unwrap();
    let to = format!("unix:{}", path("server"));
    let of = |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Relay::start_in(space.enter(), &words)
    };
    let _far = of(keys().far("127.0.0.1:7000/pair", &to, &[]));
    let entrance = format!("unix:{}", path("near"));
    let words = [
        &entrance,
        "127.0.0.1:7000/pair",
        "--explain",
        "--stripes",
        "4",
    ];
    let both = ["--bind", "127.0.0.2", "--bind", "127.0.0.3"];
    let near = of(keys().words(0, 1, &[&words[..], &both].concat()));
    let mut client = UnixStream::connect(path("near")).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(3 * SOON)).unwrap();
        stream.set_write_timeout(Some(3 * SOON)).unwrap();
    }
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    near.says("stripe 4 from ");
    let bytes = Seed::new(4).bytes(60_000_000);
    let mut longest = Duration::ZERO;
    thread::scope(|scope| {
        scope.spawn(|| {
            for (nth, part) in bytes.chunks(1_000_000).enumerate() {
                if nth == 10 {
                    space.shell(
                        "nft add rule inet t in ip saddr 127.0.0.2 drop\n\
                         nft add rule inet t in ip daddr 127.0.0.2 drop",
                    );
                }
                client.write_all(part).unwrap();
            }
        });
        let (mut at, mut part, mut last) = (0, vec![0; 256 << 10], Instant::now());
        while at < bytes.len() {
            let n = server.read(&mut part).unwrap();
            assert!(n > 0 && part[..n] == bytes[at..at + n], "wrong bytes");
            at += n;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    });
    Some(longest)
}

/// Bug: a relay began without a word, and its connections failed.
#[test]
fn an_interface_that_does_not_exist_is_named_at_the_start() {
    let to = server();
    let to = to.local_addr().unwrap().to_string();
    let relay = Relay::start(&["127.0.0.1:0", &to, "--interface", "nonesuch0"]);
    relay.says("this machine has no interface nonesuch0 now");
}
