//! A TCP proxy on loopback that makes the way long: every byte arrives half a round trip after it
//! was sent, at no more than the path's rate.
//!
//! What it models: propagation each way, the rate of the path, a connection that is reset, and a
//! path that carries nothing for a while. With [`Builder::server_nagle`] also the one effect of
//! Nagle's algorithm that OpenSSH's start has: sshd sends its banner and then its KEXINIT before it
//! sets TCP_NODELAY, so the KEXINIT waits for the acknowledgement of the banner.
//!
//! What it cannot model: the handshake of TCP itself, since the kernel answers connect() at once.
//! The proxy connects to the server half a round trip after it accepted, as the server's accept()
//! would see it; the round trip that connect() takes on a real path has to be added to what is
//! measured: [`DelayProxy::with_connect`].

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::port;

/// One way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A proxy about to start.
#[derive(Debug, Clone)]
pub struct Builder {
    server: SocketAddr,
    rtt: Duration,
    rate: Option<u64>,
    cut: Option<(Way, u64)>,
    nagle: bool,
}

impl Builder {
    /// The round trip; half of it each way.
    pub fn rtt(mut self, rtt: Duration) -> Self {
        self.rtt = rtt;
        self
    }

    /// Bytes per second, each way and for each connection.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    /// Resets the first connection once so many bytes went this way. Later connections pass.
    pub fn cut_after(mut self, way: Way, bytes: u64) -> Self {
        self.cut = Some((way, bytes));
        self
    }

    /// Holds the server's second small segment back until its first is acknowledged.
    pub fn server_nagle(mut self) -> Self {
        self.nagle = true;
        self
    }

    /// Starts to listen.
    ///
    /// # Panics
    /// If loopback gives no port.
    pub fn start(self) -> DelayProxy {
        let listener = TcpListener::bind(port::loopback(0)).expect("a loopback port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            rtt: self.rtt,
            rate: self.rate,
            nagle: self.nagle,
            cut: Mutex::new(self.cut),
            ended: AtomicBool::new(false),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            first_accept: Mutex::new(None),
            dark_until: Mutex::new(Instant::now()),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        let server = self.server;
        std::thread::spawn(move || accept(&listener, server, &accepting));
        DelayProxy { addr, shared }
    }
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct DelayProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rtt: Duration,
    rate: Option<u64>,
    nagle: bool,
    cut: Mutex<Option<(Way, u64)>>,
    ended: AtomicBool,
    up: AtomicU64,
    down: AtomicU64,
    connections: AtomicU64,
    first_accept: Mutex<Option<Instant>>,
    dark_until: Mutex<Instant>,
    open: Mutex<Vec<Arc<Connection>>>,
}

impl DelayProxy {
    /// A proxy to `server`, without delay or limit until told.
    pub fn to(server: SocketAddr) -> Builder {
        Builder {
            server,
            rtt: Duration::ZERO,
            rate: None,
            cut: None,
            nagle: false,
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// A measured time with what the connect() of `connections` connections one after the other
    /// would have added on a real path.
    pub fn with_connect(&self, measured: Duration, connections: u32) -> Duration {
        measured + self.shared.rtt * connections
    }

    /// Bytes it has delivered this way.
    pub fn carried(&self, way: Way) -> u64 {
        self.shared.counter(way).load(Ordering::Relaxed)
    }

    /// Connections it has accepted.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// When it accepted its first connection.
    pub fn first_accept(&self) -> Option<Instant> {
        *locked(&self.shared.first_accept)
    }

    /// Resets every connection that is open now; later ones pass.
    pub fn cut_now(&self) {
        for connection in locked(&self.shared.open).drain(..) {
            connection.reset();
        }
    }

    /// Delivers nothing for so long; what was sent meanwhile arrives afterwards.
    pub fn blackout(&self, duration: Duration) {
        *locked(&self.shared.dark_until) = Instant::now() + duration;
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.cut_now();
        // Wakes the accepting thread, which then sees that it is over.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn counter(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    /// Counts delivered bytes; says whether the path is to be cut at this point.
    fn count(&self, way: Way, bytes: u64) -> bool {
        let total = self.counter(way).fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut cut = locked(&self.cut);
        let now = cut.is_some_and(|(at, limit)| at == way && total >= limit);
        if now {
            *cut = None;
        }
        now
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        let accepted = Instant::now();
        locked(&shared.first_accept).get_or_insert(accepted);
        std::thread::spawn(move || carry(client, server, accepted, &shared));
    }
}

/// One connection, until both ways have ended or one is cut.
fn carry(client: TcpStream, server: SocketAddr, accepted: Instant, shared: &Arc<Shared>) {
    std::thread::sleep((accepted + shared.rtt / 2).saturating_duration_since(Instant::now()));
    let Ok(server) = TcpStream::connect(server) else {
        let _ = rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO));
        return;
    };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
        // So that a write to an end that does not read notices a reset of the other.
        let _ = socket.set_write_timeout(Some(Duration::from_millis(50)));
    }
    let connection = Arc::new(Connection {
        client,
        server,
        up: Queue::default(),
        down: Queue::default(),
        dead: AtomicBool::new(false),
    });
    locked(&shared.open).push(Arc::clone(&connection));
    let threads: Vec<_> = [Way::Up, Way::Down]
        .into_iter()
        .flat_map(|way| {
            let [reading, writing] =
                [(); 2].map(|()| (Arc::clone(&connection), Arc::clone(shared)));
            [
                std::thread::spawn(move || take_in(way, &reading.0, &reading.1)),
                std::thread::spawn(move || deliver(way, &writing.0, &writing.1)),
            ]
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    locked(&shared.open).retain(|open| !Arc::ptr_eq(open, &connection));
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    up: Queue,
    down: Queue,
    dead: AtomicBool,
}

impl Connection {
    fn parts(&self, way: Way) -> (&TcpStream, &Queue, &TcpStream) {
        match way {
            Way::Up => (&self.client, &self.up, &self.server),
            Way::Down => (&self.server, &self.down, &self.client),
        }
    }

    /// Both ends see a reset, not an end of file: with a linger time of zero the last close()
    /// sends RST. Ending the read sides and the queues makes all four threads let go.
    fn reset(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for socket in [&self.client, &self.server] {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Read);
        }
        self.up.stop();
        self.down.stop();
    }

    fn dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

/// What is under way.
#[derive(Debug, Default)]
struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    pieces: VecDeque<(Instant, Piece)>,
    bytes: usize,
    stopped: bool,
}

#[derive(Debug)]
enum Piece {
    Data(Vec<u8>),
    End,
    Reset,
}

/// What one way may hold: the product of delay and bandwidth of the longest, fastest path a test
/// emulates. Beyond it the sender is held back, as a full path would.
const CAPACITY: usize = 64 << 20;

/// Ethernet's TCP payload: what is shorter is a small segment to Nagle's algorithm.
const SEGMENT: usize = 1448;

/// By then sshd has sent banner and KEXINIT and has had an answer to both.
const NAGLE_BYTES: usize = 1300;

fn take_in(way: Way, connection: &Connection, shared: &Shared) {
    let (mut from, queue, _) = connection.parts(way);
    let mut link_free = Instant::now();
    let mut unacknowledged_until = link_free;
    let mut seen = 0;
    let mut chunk = vec![0; 256 << 10];
    loop {
        let read = loop {
            match from.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let mut departs = Instant::now().max(link_free);
        let piece = match read {
            Ok(0) => Piece::End,
            Err(_) => Piece::Reset,
            Ok(len) => {
                if shared.nagle && way == Way::Down && seen < NAGLE_BYTES {
                    if len < SEGMENT {
                        departs = departs.max(unacknowledged_until);
                    }
                    unacknowledged_until = departs + shared.rtt;
                }
                seen += len;
                if let Some(rate) = shared.rate {
                    departs += Duration::from_nanos(len as u64 * 1_000_000_000 / rate.max(1));
                }
                link_free = departs;
                Piece::Data(chunk[..len].to_vec())
            }
        };
        let last = !matches!(piece, Piece::Data(_));
        if !queue.push(departs + shared.rtt / 2, piece) || last {
            return;
        }
    }
}

fn deliver(way: Way, connection: &Connection, shared: &Shared) {
    let (_, queue, to) = connection.parts(way);
    while let Some(piece) = queue.pop(&shared.dark_until) {
        match piece {
            Piece::Data(bytes) => {
                if !write(to, &bytes, connection) || shared.count(way, bytes.len() as u64) {
                    connection.reset();
                }
            }
            Piece::End => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Piece::Reset => connection.reset(),
        }
    }
}

fn write(mut to: &TcpStream, mut bytes: &[u8], connection: &Connection) -> bool {
    while !bytes.is_empty() && !connection.dead() {
        match to.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                _ => return false,
            },
        }
    }
    true
}

impl Queue {
    /// False once nobody takes from it any more.
    fn push(&self, due: Instant, piece: Piece) -> bool {
        let mut inner = locked(&self.inner);
        while inner.bytes > CAPACITY && !inner.stopped {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if let Piece::Data(bytes) = &piece {
            inner.bytes += bytes.len();
        }
        inner.pieces.push_back((due, piece));
        self.changed.notify_all();
        !inner.stopped
    }

    /// Waits until the next piece is due; None once the queue was stopped.
    fn pop(&self, dark_until: &Mutex<Instant>) -> Option<Piece> {
        let mut inner = locked(&self.inner);
        loop {
            if inner.stopped {
                return None;
            }
            let Some((due, _)) = inner.pieces.front() else {
                inner = self
                    .changed
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = (*due)
                .max(*locked(dark_until))
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (_, piece) = inner.pieces.pop_front()?;
                if let Piece::Data(bytes) = &piece {
                    inner.bytes -= bytes.len();
                }
                self.changed.notify_all();
                return Some(piece);
            }
            let waited = self.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn stop(&self) {
        locked(&self.inner).stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that gives back what it gets, for one connection.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(port::loopback(0)).expect("a port");
        let addr = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a connection");
            let mut chunk = [0; 65536];
            while let Ok(len @ 1..) = socket.read(&mut chunk) {
                if socket.write_all(&chunk[..len]).is_err() {
                    return;
                }
            }
        });
        addr
    }

    #[test]
    fn every_round_trip_takes_its_time() {
        let rtt = Duration::from_millis(40);
        let proxy = DelayProxy::to(echo()).rtt(rtt).start();
        let mut socket = TcpStream::connect(proxy.addr()).expect("connects at once");
        let begun = Instant::now();
        for turn in 0..5 {
            socket.write_all(&[turn]).expect("writes");
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("reads");
            assert_eq!(byte, [turn]);
        }
        // The first turn waits half a round trip more, for the server's accept().
        let least = rtt * 5;
        let took = begun.elapsed();
        assert!(
            took >= least && took < least + rtt,
            "5 round trips of {rtt:?} took {took:?}"
        );
        assert_eq!(proxy.with_connect(took, 1), took + rtt);
    }

    #[test]
    fn the_rate_is_kept_both_ways_at_once() {
        let proxy = DelayProxy::to(echo()).rate(2_000_000).start();
        let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
        let begun = Instant::now();
        let mut writing = socket.try_clone().expect("a second handle");
        let writer = std::thread::spawn(move || {
            writing.write_all(&vec![7; 400_000]).expect("writes");
            writing.shutdown(Shutdown::Write).expect("ends");
        });
        let mut back = Vec::new();
        socket.read_to_end(&mut back).expect("reads");
        writer.join().expect("the writer ends");
        assert_eq!(back.len(), 400_000);
        let took = begun.elapsed().as_secs_f64();
        assert!(
            (0.19..0.6).contains(&took),
            "0.4 MB at 2 MB/s took {took} s"
        );
    }

    #[test]
    fn a_cut_is_a_reset_for_both_ends() {
        let proxy = DelayProxy::to(echo()).cut_after(Way::Up, 1000).start();
        let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
        socket.write_all(&[1; 2000]).expect("writes");
        let mut back = Vec::new();
        let error = socket
            .read_to_end(&mut back)
            .expect_err("not an end of file");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn nothing_passes_in_a_blackout() {
        let proxy = DelayProxy::to(echo()).start();
        let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
        let begun = Instant::now();
        proxy.blackout(Duration::from_millis(150));
        socket.write_all(&[1]).expect("writes");
        socket.read_exact(&mut [0]).expect("reads");
        assert!(begun.elapsed() >= Duration::from_millis(150));
    }
}
