//! Soak test: everything at once for ten seconds, or for `LONGHAUL_SOAK_SECONDS` (`make soak`).
//! Bytes of many connections arrive unchanged while clients and servers reset and pause, and the
//! relay is reloaded, suspended for a moment and replaced by a successor. Nothing is left behind.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::tree::write_file;
use testkit::{Seed, port};

use crate::tls::certificates;
use crate::world::{Relay, SOON, server};

const CLIENTS: usize = 8;
/// Length of the request to the server: seed, bytes each way, and the position at which the server
/// resets.
const REQUEST: usize = 32;
const MOST: u64 = 2 << 20;
/// Time without progress after which a connection counts as stalled, even on a busy machine.
const STALLED: Duration = Duration::from_secs(60);
/// Time for which a socket replaced by a reload still listens.
const RETIREMENT: Duration = Duration::from_secs(64);

/// Signals the end, also if a test fails: the clients would run forever otherwise.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
struct Asked {
    seed: u64,
    up: u64,
    down: u64,
    /// Number of the server's bytes after which it resets; it does not if there are fewer.
    breaks: u64,
}

impl Asked {
    fn bytes(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        for (to, from) in bytes
            .chunks_mut(8)
            .zip([self.seed, self.up, self.down, self.breaks])
        {
            to.copy_from_slice(&from.to_be_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; REQUEST]) -> Self {
        let mut numbers = bytes
            .chunks(8)
            .map(|part| u64::from_be_bytes(part.try_into().unwrap()));
        let mut next = || numbers.next().unwrap();
        Self {
            seed: next(),
            up: next(),
            down: next(),
            breaks: next(),
        }
    }

    fn upload(self) -> Vec<u8> {
        Seed::new(self.seed).bytes(self.up as usize)
    }

    fn download(self) -> Vec<u8> {
        Seed::new(!self.seed).bytes(self.down as usize)
    }
}

#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    broken: AtomicU64,
    /// Number of wrong bytes, and of ends before all data had arrived.
    wrong: AtomicU64,
}

fn count(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(STALLED)).unwrap();
    stream.set_write_timeout(Some(STALLED)).unwrap();
    stream
}

fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Reads to the end with pauses; returns the data, and an error if the connection broke.
fn read_slowly(stream: &mut TcpStream, seed: &mut Seed) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    let mut part = vec![0; 4096 + seed.below(64 << 10) as usize];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend_from_slice(&part[..n]),
            Err(e) => return (all, Err(e)),
        }
        if seed.below(200) == 0 {
            // A reader that is slow now and then.
            thread::sleep(Duration::from_millis(seed.below(50)));
        }
    }
}

/// Sends everything and then ends the stream, or sends until the break and then resets.
fn send_all(stream: &mut TcpStream, parts: &[&[u8]], breaks: bool) -> io::Result<()> {
    let sent = parts.iter().try_for_each(|part| stream.write_all(part));
    if breaks || sent.is_err() {
        // Closing the last descriptor resets: the peer must not see an orderly end.
        reset(stream);
    }
    match breaks {
        // Wakes the reading thread.
        true => drop(stream.shutdown(Shutdown::Read)),
        false if sent.is_ok() => drop(stream.shutdown(Shutdown::Write)),
        false => {}
    }
    sent
}

/// Returns how a connection ended, from the results of its reader and its writer. The kernel
/// reports a reset once: if the writer got it, the reader sees an end without data. After an
/// orderly end a writer gets EPIPE instead, so that an early end is not taken for a reset.
fn ended(read: io::Result<()>, wrote: io::Result<()>) -> io::Result<()> {
    match (read, wrote) {
        (Ok(()), Err(e)) if e.kind() == io::ErrorKind::ConnectionReset => Err(e),
        (read, _) => read,
    }
}

/// Reports if the received data is right: everything that was sent, or a part from the beginning
/// followed by a reset.
fn is_right(came: &[u8], ended: &io::Result<()>, sent: &[u8]) -> bool {
    match ended {
        Ok(()) => came == sent,
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => sent.starts_with(came),
        // The connection has stalled.
        Err(_) => false,
    }
}

fn tell_wrong(who: &str, came: &[u8], ended: &io::Result<()>, sent: &[u8]) {
    let (got, all, begins) = (came.len(), sent.len(), sent.starts_with(came));
    eprintln!("the {who} got {got} of {all} bytes, {ended:?}; they are its beginning: {begins}");
}

fn serve(mut stream: TcpStream, counts: &Counts) {
    let mut request = [0; REQUEST];
    if stream.read_exact(&mut request).is_err() {
        reset(&stream);
        return;
    }
    let asked = Asked::of(&request);
    let mut seed = Seed::new(asked.seed ^ 1);
    let mut sends = stream.try_clone().unwrap();
    let breaks = asked.breaks <= asked.down;
    let (came, read, wrote) = thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let download = asked.download();
            let most = usize::try_from(asked.breaks).unwrap_or(usize::MAX);
            let part = &download[..most.min(download.len())];
            send_all(&mut sends, &[part], breaks)
        });
        let (came, read) = read_slowly(&mut stream, &mut seed);
        (came, read, writer.join().unwrap())
    });
    let ended = ended(read, wrote);
    if !breaks && !is_right(&came, &ended, &asked.upload()) {
        tell_wrong("server", &came, &ended, &asked.upload());
        count(&counts.wrong);
    }
}

/// Uses one connection, and counts its result.
fn use_once(port: u16, seed: &mut Seed, counts: &Counts) {
    let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else {
        // The listener comes and goes.
        return;
    };
    let mut stream = patient(stream);
    let (up, down) = (seed.below(MOST), seed.below(MOST));
    let one_in_four = |seed: &mut Seed, most: u64| match seed.below(4) {
        0 => seed.below(most + 1),
        _ => u64::MAX,
    };
    let asked = Asked {
        seed: seed.below(1 << 40),
        up,
        down,
        breaks: one_in_four(seed, down),
    };
    let gives_up = one_in_four(seed, up);
    let mut sends = stream.try_clone().unwrap();
    let (came, read, wrote) = thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let upload = asked.upload();
            let most = usize::try_from(gives_up).unwrap_or(usize::MAX);
            let part = &upload[..most.min(upload.len())];
            send_all(&mut sends, &[&asked.bytes(), part], gives_up < up)
        });
        let (came, read) = read_slowly(&mut stream, seed);
        (came, read, writer.join().unwrap())
    });
    let ended = ended(read, wrote);
    if gives_up < up {
        // The client's own break, not the relay's.
        count(&counts.broken);
        return;
    }
    if !is_right(&came, &ended, &asked.download()) {
        tell_wrong("client", &came, &ended, &asked.download());
        count(&counts.wrong);
    }
    count(match ended {
        Ok(()) => &counts.whole,
        Err(_) => &counts.broken,
    });
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the memory of a process in KiB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn bytes_in_are_bytes_out_whatever_happens() {
    let Some(made) = certificates() else {
        return;
    };
    let seconds = std::env::var("LONGHAUL_SOAK_SECONDS").ok();
    let seconds: u64 = seconds.map_or(10, |text| text.parse().expect("a number"));
    let listener = server();
    let to = listener.local_addr().unwrap();
    let [plain, small, tls, sometimes] = [(); 4].map(|()| port::free());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("relay.toml");
    let handover = folder.path().join("handover");
    let (key, cert) = (made.path("server.key"), made.path("server.pem"));
    let text = |nth: u64| {
        let row = |at: String, more: &str| {
            format!("[[relay]]\nlisten = \"127.0.0.1:{at}\"\ntargets = \"{to}\"\n{more}\n")
        };
        let buffers = ["", "sockopt = \"buffsize:64k\""][nth as usize % 2];
        let mut text = format!("handover = \"{}\"\n", handover.display());
        text += &row(plain.to_string(), buffers);
        text += &row(small.to_string(), &format!("buffer = {}", 512 + nth % 7));
        let files = format!("key = \"{key}\"\ncert = \"{cert}\"");
        text += &row(format!("{tls}/tls"), &files);
        if nth % 3 != 1 {
            text += &row(sometimes.to_string(), "");
        }
        text
    };
    write_file(&config, text(0).as_bytes());
    let words = ["--config".to_owned(), config.display().to_string()];
    let words = words.each_ref().map(String::as_str);
    let mut relay = Relay::start(&[&words[..], &["-q"]].concat());
    let there = format!("localhost:{tls}/tls");
    let encrypts = Relay::start(&["127.0.0.1:0", &there, "--ca", &made.path("ca.pem"), "-q"]);
    let ports = [plain, small, encrypts.address().port(), sometimes];

    let (counts, over, served) = (
        Counts::default(),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let mut seed = Seed::new(8);
    let mut predecessors = Vec::new();
    thread::scope(|scope| {
        let (_over, _served) = (Over(&over), Over(&served));
        scope.spawn(|| accept_all(&listener, &counts, &served));
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|nth| {
                let (counts, over) = (&counts, &over);
                scope.spawn(move || {
                    let mut seed = Seed::new(100 + nth);
                    while !over.load(Ordering::Relaxed) {
                        use_once(ports[seed.below(4) as usize], &mut seed, counts);
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        let mut settled = None;
        let mut nth = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            // The operator acts at random times.
            thread::sleep(Duration::from_millis(50 + seed.below(300)));
            nth += 1;
            match seed.below(8) {
                0 => {
                    relay.signal(Signal::STOP);
                    thread::sleep(Duration::from_millis(seed.below(300)));
                    relay.signal(Signal::CONT);
                }
                1 if nth % 4 == 0 => {
                    let next = Relay::start(&[&words[..], &["-q"]].concat());
                    predecessors.push(std::mem::replace(&mut relay, next));
                    settled = None;
                }
                _ => {
                    write_file(&config, text(nth).as_bytes());
                    relay.signal(Signal::HUP);
                }
            }
            predecessors.retain_mut(Relay::is_there);
            if settled.is_none() && begun.elapsed() > Duration::from_secs(seconds / 3) {
                settled = Some((relay.pid(), memory(relay.pid()), memory(encrypts.pid())));
            }
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client");
        }
        served.store(true, Ordering::Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // Listening sockets that were replaced last, and their successors.
        for relay in [&relay, &encrypts] {
            // What remains are the initial descriptors, and pooled pipes.
            testkit::wait::until(
                SOON + 2 * RETIREMENT,
                || descriptors(relay.pid()) <= 64 + 64 * cores,
                || {
                    let there = descriptors(relay.pid());
                    format!("{there} descriptors are left")
                },
            );
        }
        if let Some((pid, before, before_tls)) = settled.filter(|(pid, ..)| *pid == relay.pid()) {
            for (now, before) in [(memory(pid), before), (memory(encrypts.pid()), before_tls)] {
                assert!(now < before + (24 << 10), "{before} KiB became {now}");
            }
        }
    });
    for mut old in predecessors {
        assert_eq!(old.ends(), Some(0));
    }
    relay.signal(Signal::TERM);
    assert_eq!(relay.ends(), Some(0));
    let [whole, broken, wrong] =
        [&counts.whole, &counts.broken, &counts.wrong].map(|n| n.load(Ordering::Relaxed));
    eprintln!("{whole} connections whole, {broken} broken on purpose, {wrong} wrong");
    assert_eq!(wrong, 0);
    assert!(whole > 5 && broken > 0, "{whole} whole, {broken} broken");
}

fn accept_all(listener: &TcpListener, counts: &Counts, over: &AtomicBool) {
    // A client may reset its connection before it is accepted.
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        while !over.load(Ordering::Relaxed) {
            if testkit::wait::readable(listener, Duration::from_millis(100))
                && let Ok((stream, _)) = listener.accept()
            {
                stream.set_nonblocking(false).unwrap();
                scope.spawn(move || serve(patient(stream), counts));
            }
        }
    });
}
