//! One connection through the proxy: for each direction, one thread reads and another delivers when
//! the delay has passed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::{Fate, ProxyState, Way, locked};

/// Accepted connection that is on its way to the server.
struct Accepted {
    client: TcpStream,
    at: Instant,
    fate: Option<Fate>,
}

pub(super) fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<ProxyState>) {
    // Connections arrive in their order: a server that admits one at a time (MaxStartups) would
    // otherwise reject the one that came first, which does not happen on a real path.
    let (arrives, arriving) = mpsc::channel();
    std::thread::spawn({
        let shared = Arc::clone(shared);
        move || connect_in_order(&arriving, server, &shared)
    });
    while let Ok((client, _)) = listener.accept() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let nth = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let fate = shared.fate(nth);
        if fate == Some(Fate::Refused) {
            continue;
        }
        let at = Instant::now();
        locked(&shared.first_accept).get_or_insert(at);
        let _ = arrives.send(Accepted { client, at, fate });
    }
}

/// Connects to the server in order, half a round trip after each accept.
fn connect_in_order(
    arriving: &mpsc::Receiver<Accepted>,
    server: SocketAddr,
    shared: &Arc<ProxyState>,
) {
    while let Ok(Accepted { client, at, fate }) = arriving.recv() {
        // The delay of the emulated path.
        std::thread::sleep((at + shared.rtt / 2).saturating_duration_since(Instant::now()));
        let Ok(server) = TcpStream::connect(server) else {
            let _ = rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO));
            continue;
        };
        let shared = Arc::clone(shared);
        std::thread::spawn(move || carry(client, server, fate, &shared));
    }
}

/// Carries one connection until both directions have ended or it is reset.
fn carry(client: TcpStream, server: TcpStream, fate: Option<Fate>, shared: &Arc<ProxyState>) {
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
        // A write to an end that does not read has to notice that the other end was reset.
        let _ = socket.set_write_timeout(Some(Duration::from_millis(50)));
    }
    let connection = Arc::new(Connection {
        client,
        server,
        up: Queue::default(),
        down: Queue::default(),
        dead: AtomicBool::new(false),
        fate,
        carried: [AtomicU64::new(0), AtomicU64::new(0)],
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

/// One connection through the proxy: a socket to each end, and the bytes on the way.
#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    server: TcpStream,
    up: Queue,
    down: Queue,
    dead: AtomicBool,
    fate: Option<Fate>,
    /// Bytes carried up and down.
    carried: [AtomicU64; 2],
}

impl Connection {
    fn parts(&self, way: Way) -> (&TcpStream, &Queue, &TcpStream) {
        match way {
            Way::Up => (&self.client, &self.up, &self.server),
            Way::Down => (&self.server, &self.down, &self.client),
        }
    }

    /// Resets both ends instead of closing them: with a linger time of zero, the last close() sends
    /// RST. Shutting down the read sides and the queues ends all four threads.
    pub(super) fn reset(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for socket in [&self.client, &self.server] {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Read);
        }
        self.up.stop();
        self.down.stop();
    }

    /// Counts delivered bytes, and applies the fate of the connection if it is due.
    fn delivered(&self, way: Way, bytes: usize) {
        let carried = &self.carried[way as usize];
        let sum = carried.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        match self.fate {
            Some(Fate::Reset(at, after)) if at == way && sum >= after => self.reset(),
            Some(Fate::Stalls(at, after)) if at == way && sum >= after => {
                self.up.stall();
                self.down.stall();
            }
            _ => {}
        }
    }

    fn dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

/// Pieces under way in one direction.
#[derive(Debug, Default)]
struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// Pieces on the way in one direction, each with its time of delivery.
#[derive(Debug, Default)]
struct Inner {
    pieces: VecDeque<(Instant, Piece)>,
    bytes: usize,
    stopped: bool,
    /// Nothing is delivered any more.
    stalled: bool,
}

/// Unit of delivery: data, the end of the stream, or a reset.
#[derive(Debug)]
enum Piece {
    Data(Vec<u8>),
    End,
    Reset,
}

/// Maximum bytes under way in one direction: the product of delay and bandwidth of the longest,
/// fastest path that a test emulates. Beyond it the sender is blocked, as by a full path.
const CAPACITY: usize = 64 << 20;

/// TCP payload of an Ethernet packet; anything shorter is a small segment to Nagle's algorithm.
const SEGMENT: usize = 1448;

/// Bytes after which Nagle's algorithm no longer applies: sshd has sent its banner and KEXINIT, and
/// both were acknowledged.
const NAGLE_BYTES: usize = 1300;

fn take_in(way: Way, connection: &Connection, shared: &ProxyState) {
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

fn deliver(way: Way, connection: &Connection, shared: &ProxyState) {
    let (_, queue, to) = connection.parts(way);
    while let Some(piece) = queue.pop(&shared.dark_until) {
        match piece {
            Piece::Data(mut bytes) => {
                // Bytes behind a cut must not arrive: the answer to them could overtake the reset.
                let cut = shared.cut_in(way, bytes.len());
                bytes.truncate(cut.unwrap_or(bytes.len()));
                let written = write(to, &bytes, connection);
                if written {
                    shared.count(way, bytes.len());
                }
                if !written || cut.is_some() {
                    connection.reset();
                }
                connection.delivered(way, bytes.len());
            }
            // An end that follows from a reset of the other side is not passed on as an end of
            // file.
            Piece::End if connection.dead() => return,
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
    /// Queues a piece; false if the queue was stopped.
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

    /// Waits until the next piece is due; `None` if the queue was stopped.
    fn pop(&self, dark_until: &Mutex<Instant>) -> Option<Piece> {
        let mut inner = locked(&self.inner);
        loop {
            if inner.stopped {
                return None;
            }
            let stalled = inner.stalled;
            let Some((due, _)) = inner.pieces.front().filter(|_| !stalled) else {
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

    /// Keeps all pieces back until the queue is stopped.
    fn stall(&self) {
        locked(&self.inner).stalled = true;
    }
}
