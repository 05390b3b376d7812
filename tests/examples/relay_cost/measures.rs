//! Measurements of a relay.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::processes;
use testkit::wait;

use crate::relays::Relay;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client to the server.
    There,
    Back,
}

/// Bulk transfer.
pub(crate) struct Bulk {
    pub(crate) connections: usize,
    /// Total of all connections.
    pub(crate) bytes: usize,
    pub(crate) way: Way,
}

fn pair(relay: &Relay) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(("127.0.0.1", relay.port)).expect("it listens");
    client.set_nodelay(true).expect("TCP");
    // The connection starts with one byte, so that handshakes are complete.
    client.write_all(b"!").expect("it takes bytes");
    loop {
        let (mut server, _) = relay.listener.accept().expect("somebody comes");
        // A connection that was only a check sends nothing.
        if let Ok(1) = server.read(&mut [0]) {
            server.set_nodelay(true).expect("TCP");
            return (client, server);
        }
    }
}

impl Bulk {
    /// Returns the rate in MB per second, and processor seconds per GB.
    pub(crate) fn measure(&self, relay: &Relay) -> (f64, f64) {
        let each = self.bytes / self.connections;
        let pairs: Vec<_> = (0..self.connections).map(|_| pair(relay)).collect();
        let before = relay.cpu();
        let begun = Instant::now();
        thread::scope(|scope| {
            for (client, server) in &pairs {
                let (from, to) = match self.way {
                    Way::There => (client, server),
                    Way::Back => (server, client),
                };
                scope.spawn(move || {
                    let part = vec![7; 256 << 10];
                    let mut left = each;
                    let mut from = from;
                    while left > 0 {
                        let n = left.min(part.len());
                        from.write_all(&part[..n]).expect("it takes bytes");
                        left -= n;
                    }
                });
                scope.spawn(move || {
                    let mut part = vec![0; 256 << 10];
                    let mut left = each;
                    let mut to = to;
                    while left > 0 {
                        match to.read(&mut part).expect("bytes") {
                            0 => panic!("an end"),
                            n => left -= n,
                        }
                    }
                });
            }
        });
        let took = begun.elapsed().as_secs_f64();
        let gb = self.bytes as f64 / 1e9;
        (gb * 1000.0 / took, (relay.cpu() - before) / gb)
    }
}

/// Measures 64 bytes there and back on a new connection, in microseconds.
pub(crate) fn ping_pong(relay: &Relay, rounds: usize, times: &mut Vec<f64>) {
    let (mut client, mut server) = pair(relay);
    let echo = thread::spawn(move || {
        let mut part = [0; 64];
        while server.read_exact(&mut part).is_ok() {
            server.write_all(&part).expect("it takes bytes");
        }
    });
    for nth in 0..rounds + 50 {
        let begun = Instant::now();
        let mut part = [1; 64];
        client.write_all(&part).expect("it takes bytes");
        client.read_exact(&mut part).expect("it comes back");
        // The first round trips allocate the memory of a socket.
        if nth >= 50 {
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    drop(client);
    echo.join().expect("it ends");
}

/// Returns the memory in bytes of each idle connection after some traffic.
pub(crate) fn idle(relay: &Relay, connections: usize) -> f64 {
    let talk = || {
        let (mut client, mut server) = pair(relay);
        client.write_all(&[1; 50_000]).expect("it takes bytes");
        server.read_exact(&mut [0; 50_000]).expect("they come");
        (client, server)
    };
    let pid = relay.pid().expect("a process");
    let memory = || processes::memory(pid, "Private_");
    let mut all = vec![talk()];
    let before = memory();
    all.extend((0..connections).map(|_| talk()));
    let (quiet, patience) = (Duration::from_millis(200), Duration::from_secs(10));
    let after = wait::steady(quiet, patience, memory).unwrap_or_else(memory);
    after.saturating_sub(before) as f64 / connections as f64
}

/// Opens connections at this rate. Returns their number, the number of failures, the 99th
/// percentile of the time from connect to the end in milliseconds, and the processor time.
pub(crate) fn new_connections(relay: &Relay, rate: usize, seconds: usize) -> [f64; 4] {
    const THREADS: usize = 8;
    let listener = relay.listener.try_clone().expect("a descriptor");
    let port = relay.port;
    let before = relay.cpu();
    for _ in 0..THREADS {
        let listener = listener.try_clone().expect("a descriptor");
        thread::spawn(move || serve(&listener));
    }
    let begun = Instant::now();
    let clients: Vec<_> = (0..THREADS)
        .map(|nth| {
            thread::spawn(move || {
                let (mut times, mut errors) = (Vec::new(), 0);
                for which in (nth..rate * seconds).step_by(THREADS) {
                    let due = Duration::from_secs_f64(which as f64 / rate as f64);
                    // Paces the connections.
                    thread::sleep(due.saturating_sub(begun.elapsed()));
                    // Starting late counts as slow.
                    let due = begun + due;
                    match one(port) {
                        Ok(()) => times.push(due.elapsed().as_secs_f64() * 1e3),
                        Err(_) => errors += 1,
                    }
                }
                (times, errors)
            })
        })
        .collect();
    let (mut times, mut errors) = (Vec::new(), 0);
    for client in clients {
        let (more, wrong) = client.join().expect("it ends");
        times.extend(more);
        errors += wrong;
    }
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied();
    [
        (times.len() + errors) as f64,
        errors as f64,
        p99.unwrap_or(f64::NAN),
        relay.cpu() - before,
    ]
}

fn one(port: u16) -> io::Result<()> {
    let mut client = TcpStream::connect(("127.0.0.1", port))?;
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    client.write_all(&[1; 64])?;
    let mut part = [0; 64];
    client.read_exact(&mut part)?;
    client.shutdown(Shutdown::Write)?;
    match client.read(&mut part)? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn serve(listener: &TcpListener) {
    while let Ok((mut server, _)) = listener.accept() {
        let mut part = [0; 64];
        while let Ok(n @ 1..) = server.read(&mut part) {
            // The client itself counts an error.
            let _ = server.write_all(&part[..n]);
        }
    }
}
