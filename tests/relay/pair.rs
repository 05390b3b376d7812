//! Pairs of relays: whatever happens to the connections between them, bytes arrive complete and in
//! order, or the connection is reset.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longhaul_tests::facing::Keys;
use longhaul_tests::{longhaul, processes};
use rustix::process::Signal;
use schedule::{LearnedConcurrency, TransferDirection};
use testkit::Seed;
use transfer::memory::{HostMemory, HostMemoryStore};

use crate::world::{
    Relay, SOON, accept, both_ways, bounded, copy_paced, expect_all, expect_reset, expect_reset_at,
    fill, server,
};

pub(crate) fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(Keys::new)
}

pub(crate) fn start(words: &[String]) -> Relay {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Relay::start(&words)
}

/// Two relays that form a pair, and the server behind them.
struct Halves {
    near: Relay,
    far: Relay,
    listener: TcpListener,
}

fn halves(flags: &[&str]) -> Halves {
    halves_by(flags, |far| far)
}

/// Starts a pair with a proxy between the two relays.
fn halves_by(flags: &[&str], between: impl FnOnce(SocketAddr) -> SocketAddr) -> Halves {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, flags));
    let there = between(far.address()).to_string();
    let near = start(&keys().near(&there, flags));
    Halves {
        near,
        far,
        listener,
    }
}

impl Halves {
    fn pair(&self) -> (TcpStream, TcpStream) {
        self.near.pair(&self.listener)
    }

    /// Sends this many bytes each way at once, and then ends both streams.
    fn there_and_back(&self, bytes: usize) {
        let (mut client, mut server) = self.pair();
        both_ways(&mut client, &mut server, bytes);
        for half in [&self.near, &self.far] {
            let log = half.says("closed, ");
            assert!(log.contains(&format!("up={bytes} down={bytes}")), "{log}");
        }
    }
}

#[test]
fn bytes_come_out_as_they_went_in_both_ways_at_once() {
    halves(&[]).there_and_back(20_000_000);
    halves(&["--threads", "1", "--pair-buffer", "64k"]).there_and_back(5_000_000);
    let striped = halves(&["--stripes", "5"]);
    striped.there_and_back(30_000_000);
    striped.near.says(" stripes of 5, ");
}

#[test]
fn a_pair_begins_with_as_many_legs_as_have_paid_before() {
    let cache = tempfile::tempdir().unwrap();
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let now = SystemTime::now();
    let at = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut memory = HostMemory::default();
    memory.learn(LearnedConcurrency {
        direction: TransferDirection::Up,
        connections: 3,
        channels: 1,
        rate: 84_000_000,
        rtt_us: 100,
        at: at - 7200,
    });
    let memories = HostMemoryStore::at(cache.path().join("longhaul/hosts"));
    let port = far.address().port();
    memories
        .store("127.0.0.1", port, "pair:", &memory, now)
        .unwrap();
    let words = keys().near(&far.address().to_string(), &["--explain"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let near = Relay::start_with(&words, &[("XDG_CACHE_HOME", cache.path())]);
    let halves = Halves {
        near,
        far,
        listener,
    };
    halves.there_and_back(20_000_000);
    let log = halves.near.log();
    let why = "starts with 3 stripes: that many carried 84.0 MB/s at a round trip of 0.1 ms, \
               measured 2 h ago";
    assert!(log.contains(why), "{log}");
    let (_, count) = log.split_once(" stripes of ").unwrap();
    let digits: String = count.chars().take_while(char::is_ascii_digit).collect();
    assert!(digits.parse::<u32>().unwrap() >= 3, "{log}");
}

/// Forwards bytes with 16 MB per second for each connection.
fn paced(to: SocketAddr) -> SocketAddr {
    let listener = server();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((one, _)) = listener.accept() {
            let Ok(other) = TcpStream::connect(to) else {
                return;
            };
            for (mut from, mut into) in [
                (one.try_clone().unwrap(), other.try_clone().unwrap()),
                (other, one),
            ] {
                thread::spawn(move || {
                    copy_paced(&mut from, &mut into, 16_000_000);
                    let _ = into.shutdown(Shutdown::Write);
                });
            }
        }
    });
    at
}

/// Stripes are full if they accept no more while more data is waiting.
#[test]
fn a_pair_has_more_legs_where_they_carry_more() {
    let halves = halves_by(&["--explain", "--pair-zstd", "never"], paced);
    let (mut client, mut server) = halves.pair();
    let writer = thread::spawn(move || {
        for _ in 0..1200 {
            client.write_all(&[7; 64 << 10]).unwrap();
        }
    });
    let mut part = vec![0; 64 << 10];
    while server.read(&mut part).unwrap() > 0 {}
    writer.join().unwrap();
    drop(server);
    halves.near.says(" stripes carried ");
}

#[test]
fn bytes_come_out_as_they_went_in_whatever_the_buffer() {
    for (buffer, bytes) in [("1", 60_000), ("7", 300_000), ("512", 1_200_000)] {
        let flags = ["--buffer", buffer, "--stripes", "3"];
        halves(&flags).there_and_back(bytes);
    }
}

#[test]
fn messages_are_passed_on_at_once_and_ends_in_their_order() {
    let halves = halves(&["--stripes", "2"]);
    let (mut client, mut server) = halves.pair();
    let begun = Instant::now();
    for n in 0..200_u32 {
        let message = [n.to_be_bytes(); 16].concat();
        client.write_all(&message).unwrap();
        let mut got = [0; 64];
        server.read_exact(&mut got).unwrap();
        assert_eq!(got.as_slice(), message);
        server.write_all(&got[..7]).unwrap();
        client.read_exact(&mut got[..7]).unwrap();
    }
    // Each one would wait 40 ms for a delayed acknowledgement of TCP.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"question");
    server.write_all(b"answer").unwrap();
    drop(server);
    expect_all(&mut client, b"answer");

    // The server speaks first, and ends first.
    let (mut client, mut server) = halves.pair();
    server.write_all(b"welcome").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut client, b"welcome");
    client.write_all(b"thanks").unwrap();
    drop(client);
    expect_all(&mut server, b"thanks");
}

#[test]
fn resets_pass_through_both_ways() {
    let halves = halves(&["--stripes", "2"]);
    for client_breaks in [true, false] {
        let (mut client, mut server) = halves.pair();
        client.write_all(b"half").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        let (breaks, mut other) = match client_breaks {
            true => (client, server),
            false => (server, client),
        };
        let socket = socket2::SockRef::from(&breaks);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(breaks);
        expect_reset(&mut other);
    }
}

#[test]
fn nobody_behind_the_other_half_is_a_reset() {
    let gone = server();
    let to = gone.local_addr().unwrap().to_string();
    drop(gone);
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let near = start(&keys().near(&far.address().to_string(), &[]));
    let mut client = near.connect();
    expect_reset(&mut client);
    near.says("the peer relay could not reach its target");
    far.says("cannot connect to the target");
}

#[test]
fn only_keys_that_are_known_are_let_in() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let there = format!("{}/pair", far.address());
    // One relay that the far relay does not know, and one that does not know the far relay.
    for (own, other) in [(2, 1), (0, 2)] {
        let near = start(&keys().words(own, other, &["127.0.0.1:0", &there]));
        let mut client = near.connect();
        expect_reset_at(&mut client, b"secret");
    }
    far.says(&format!(
        "refused a peer relay with the key {}",
        keys().print(2)
    ));
    // A client with another protocol.
    let mut stranger = bounded(TcpStream::connect(far.address()).unwrap());
    let _ = stranger.write_all(&[b'x'; 100]);
    let _ = stranger.read_to_end(&mut Vec::new());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "somebody came through");
    // The right peer relay can still connect.
    listener.set_nonblocking(false).unwrap();
    let near = start(&keys().near(&far.address().to_string(), &[]));
    let (mut client, mut server) = near.pair(&listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

#[test]
fn without_keys_it_does_not_start_and_the_first_key_is_learned_only_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let relay = |words: &[&str]| {
        let mut command = std::process::Command::new(longhaul());
        command.arg("relay").args(words);
        command.env("XDG_CONFIG_HOME", folder.path());
        command.env("XDG_STATE_HOME", folder.path());
        command.output().unwrap()
    };
    for words in [&["0.0.0.0:0/pair", "9"][..], &["0", "9/pair"]] {
        let output = relay(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("--pair-allow") && said.contains("SHA256:"),
            "{said}"
        );
    }
    let key = folder.path().join("longhaul/pair_key");
    let mode = std::os::unix::fs::PermissionsExt::mode;
    assert_eq!(
        mode(&std::fs::metadata(key).unwrap().permissions()) & 0o777,
        0o600
    );

    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let there = format!("{}/pair", far.address());
    let (config, own) = (folder.path().join("new"), keys().file(0));
    let words = [
        "127.0.0.1:0",
        &there,
        "--pair-key",
        &own,
        "--pair-accept-new",
    ];
    let near = Relay::start_with(&words, &[("XDG_CONFIG_HOME", &config)]);
    let (mut client, mut server) = near.pair(&listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let kept = std::fs::read_to_string(config.join("longhaul/known_pairs")).unwrap();
    assert_eq!(kept.trim(), keys().print(1));
}

/// Forwards bytes, and breaks each connection after a random number of them.
fn breaking(to: SocketAddr, seed: u64) -> SocketAddr {
    let listener = server();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut seed = Seed::new(seed);
        while let Ok((one, _)) = listener.accept() {
            let Ok(other) = TcpStream::connect(to) else {
                return;
            };
            let bytes = 300_000 + seed.below(3_000_000);
            for (mut from, mut into) in [
                (one.try_clone().unwrap(), other.try_clone().unwrap()),
                (other, one),
            ] {
                thread::spawn(move || {
                    let mut left = bytes as usize;
                    let mut part = vec![0; 64 << 10];
                    while left > 0 {
                        let n = from.read(&mut part).unwrap_or(0).min(left);
                        if n == 0 || into.write_all(&part[..n]).is_err() {
                            break;
                        }
                        left -= n;
                    }
                    // An end without close_notify is not an orderly end.
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
        }
    });
    at
}

#[test]
fn legs_that_break_at_random_change_nothing() {
    for (seed, stripes) in [(1, "1"), (2, "4"), (3, "8")] {
        let halves = halves_by(&["--stripes", stripes], |far| breaking(far, seed));
        halves.there_and_back(30_000_000);
    }
}

/// The buffer limit holds for readers that do not read, at either relay.
#[test]
fn a_slow_reader_makes_neither_half_hold_more_than_it_was_told() {
    const READERS: usize = 6;
    let halves = halves(&[
        "--stripes",
        "2",
        "--pair-buffer",
        "256k",
        "--pair-zstd",
        "never",
    ]);
    let all: Vec<_> = (0..READERS)
        .map(|_| {
            let (client, server) = halves.pair();
            socket2::SockRef::from(&server)
                .set_recv_buffer_size(16_384)
                .unwrap();
            (client, server)
        })
        .collect();
    // Memory that both relays need for any amount of data.
    halves.there_and_back(2_000_000);
    let memory =
        || [&halves.near, &halves.far].map(|half| processes::memory(half.pid(), "Private_Dirty:"));
    let before = memory();
    for (client, _) in &all {
        fill(client, Duration::from_millis(300));
    }
    let after = memory();
    // 256 KiB of each connection, an open frame, TLS buffers of two stripes, and the allocator's
    // own memory.
    let most = READERS as u64 * (256 + 128 + 2 * 200 + 256) * 1024;
    for (before, after) in before.into_iter().zip(after) {
        let grown = after.saturating_sub(before);
        assert!(
            grown < most,
            "{grown} bytes more than before, {most} are allowed"
        );
    }
}

#[test]
fn killing_either_half_is_a_reset_and_the_other_goes_on() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let mut far = start(&keys().far("127.0.0.1:0/pair", &to, &["--stripes", "3"]));
    let at = far.address().to_string();
    let mut near = start(&keys().near(&at, &["--stripes", "3"]));
    for round in 0..4 {
        let (mut client, mut server) = near.pair(&listener);
        let source = Seed::new(round).bytes(50_000_000);
        let (seen, go_on) = (AtomicBool::new(false), AtomicBool::new(true));
        let kills_far = round % 2 == 0;
        thread::scope(|scope| {
            // Both directions at once, until it is killed.
            let writers = [&client, &server].map(|stream| {
                let mut stream = stream.try_clone().unwrap();
                let (source, go_on) = (&source, &go_on);
                scope.spawn(move || {
                    for part in source.chunks(100_000) {
                        if let Err(e) = stream.write_all(part) {
                            return Some(e.kind());
                        }
                        if !go_on.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    None
                })
            });
            let readers = [&mut client, &mut server].map(|stream| {
                let (source, seen) = (&source, &seen);
                scope.spawn(move || {
                    let (mut at, mut part) = (0, vec![0; 64 << 10]);
                    loop {
                        match stream.read(&mut part) {
                            Ok(0) => break None,
                            Ok(n) => {
                                assert!(part[..n] == source[at..at + n], "wrong bytes");
                                at += n;
                                seen.fetch_or(at > 1_000_000, Ordering::Relaxed);
                            }
                            Err(e) => break Some(e.kind()),
                        }
                    }
                })
            });
            testkit::wait::up_to(SOON, || seen.load(Ordering::Relaxed));
            match kills_far {
                true => far.signal(Signal::KILL),
                false => near.signal(Signal::KILL),
            }
            let read = readers.map(|reader| reader.join());
            go_on.store(false, Ordering::Relaxed);
            let wrote = writers.map(|writer| writer.join());
            for (read, wrote) in read.into_iter().zip(wrote) {
                // The kernel reports a reset once: the writer may have got it.
                let reset = Some(std::io::ErrorKind::ConnectionReset);
                let (read, wrote) = (read.expect("right bytes"), wrote.expect("a thread"));
                let told = read == reset || read.is_none() && wrote == reset;
                assert!(told, "{round}: {read:?}, {wrote:?}");
            }
        });
        match kills_far {
            true => far = start(&keys().far(&format!("{at}/pair"), &to, &["--stripes", "3"])),
            false => near = start(&keys().near(&at, &["--stripes", "3"])),
        }
    }
    let (mut client, server) = (near.connect(), accept(&listener));
    (&server).write_all(b"alive").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
}

/// As used by a ProxyCommand.
#[test]
fn standard_streams_go_through_a_pair() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let far = start(&keys().far("127.0.0.1:0/pair", &to, &[]));
    let there = format!("{}/pair", far.address());
    let mut child = std::process::Command::new(longhaul())
        .arg("relay")
        .args(keys().words(0, 1, &["-", &there]))
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = accept(&listener);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"question").unwrap();
    drop(input);
    expect_all(&mut server, b"question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"answer");
}
