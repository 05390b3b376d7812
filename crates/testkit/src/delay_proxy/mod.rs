//! TCP proxy on loopback that emulates a long path: every byte arrives half a round trip after it
//! was sent, at no more than the path's rate.
//!
//! The proxy models propagation each way, the rate of the path, a connection that is reset, and a
//! path that carries nothing for a while. With [`Builder::server_nagle`] it also models the one
//! effect of Nagle's algorithm on the start of an OpenSSH connection: sshd sends its banner and
//! then its KEXINIT before it sets TCP_NODELAY, so that the KEXINIT waits for the acknowledgement
//! of the banner.
//!
//! The proxy cannot model the TCP handshake, since the kernel answers connect() at once. It
//! connects to the server half a round trip after it accepted, as the server's accept() would see
//! it; the round trip that connect() takes on a real path has to be added to the measured time with
//! [`DelayProxy::with_connect`].

mod connection;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use connection::{Connection, accept};

use crate::port;

/// Direction of bytes through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Failure that the proxy causes on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The connection is accepted and closed at once.
    Refused,
    /// The connection is reset after this many bytes in this direction.
    Reset(Way, u64),
    /// Nothing passes any more in either direction after this many bytes in this direction; neither
    /// end is notified.
    Stalls(Way, u64),
}

/// Settings of a [`DelayProxy`] before it listens: round-trip time, rate in bytes per second, and
/// failures by number of the connection.
#[derive(Debug, Clone)]
pub struct Builder {
    server: SocketAddr,
    rtt: Duration,
    rate: Option<u64>,
    cut: Option<(Way, u64)>,
    nagle: bool,
    fates: Vec<(u64, Fate)>,
    every: Option<(u64, Fate)>,
}

impl Builder {
    /// Sets the round-trip time; half of it is added each way.
    pub fn rtt(mut self, rtt: Duration) -> Self {
        self.rtt = rtt;
        self
    }

    /// Sets the rate in bytes per second, each way and for each connection.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    /// Resets the first connection after this many bytes in this direction; none behind them
    /// arrive. Later connections pass.
    pub fn cut_after(mut self, way: Way, bytes: u64) -> Self {
        self.cut = Some((way, bytes));
        self
    }

    /// Sets the failure of the `nth` connection, counted from 1.
    pub fn fate(mut self, nth: u64, fate: Fate) -> Self {
        self.fates.push((nth, fate));
        self
    }

    /// Sets the failure of each `nth` connection: of 3, 6, 9 and so on for 3.
    pub fn fate_of_each(mut self, nth: u64, fate: Fate) -> Self {
        self.every = Some((nth.max(1), fate));
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
    /// Panics if no loopback port is available.
    pub fn start(self) -> DelayProxy {
        let listener = TcpListener::bind(port::loopback(0)).expect("a loopback port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(ProxyState {
            rtt: self.rtt,
            rate: self.rate,
            nagle: self.nagle,
            fates: self.fates,
            every: self.every,
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

/// Proxy that runs until it is dropped.
#[derive(Debug)]
pub struct DelayProxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
}

/// State that all threads of a proxy share: the emulated path, and the open connections.
#[derive(Debug)]
struct ProxyState {
    rtt: Duration,
    rate: Option<u64>,
    nagle: bool,
    fates: Vec<(u64, Fate)>,
    every: Option<(u64, Fate)>,
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
    /// Creates the settings of a proxy to `server`, without delay or limit.
    pub fn to(server: SocketAddr) -> Builder {
        Builder {
            server,
            rtt: Duration::ZERO,
            rate: None,
            cut: None,
            nagle: false,
            fates: Vec::new(),
            every: None,
        }
    }

    /// Returns the address at which the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the port of the proxy on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Adds to a measured time the connect() times of `connections` consecutive connections on a
    /// real path.
    pub fn with_connect(&self, measured: Duration, connections: u32) -> Duration {
        measured + self.shared.rtt * connections
    }

    /// Returns the bytes delivered in this direction.
    pub fn carried(&self, way: Way) -> u64 {
        self.shared.counter(way).load(Ordering::Relaxed)
    }

    /// Returns the number of connections accepted.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the time at which the first connection was accepted.
    pub fn first_accept(&self) -> Option<Instant> {
        *locked(&self.shared.first_accept)
    }

    /// Resets all open connections; later ones pass.
    pub fn cut_now(&self) {
        for connection in locked(&self.shared.open).drain(..) {
            connection.reset();
        }
    }

    /// Delivers nothing for this time; data sent meanwhile arrives afterwards.
    pub fn blackout(&self, duration: Duration) {
        *locked(&self.shared.dark_until) = Instant::now() + duration;
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.cut_now();
        // Wakes the accepting thread, which then sees that the proxy was dropped.
        let _ = TcpStream::connect(self.addr);
    }
}

impl ProxyState {
    fn counter(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    fn fate(&self, nth: u64) -> Option<Fate> {
        let own = self.fates.iter().find(|(n, _)| *n == nth);
        let each = self.every.filter(|(n, _)| nth.is_multiple_of(*n));
        own.copied().or(each).map(|(_, fate)| fate)
    }

    fn count(&self, way: Way, bytes: usize) {
        self.counter(way).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns how many of these bytes, which are about to be delivered, come before the cut;
    /// `None` if the cut is not among them.
    fn cut_in(&self, way: Way, bytes: usize) -> Option<usize> {
        let mut cut = locked(&self.cut);
        let (_, left) = cut.as_mut().filter(|(at, _)| *at == way)?;
        if *left > bytes as u64 {
            *left -= bytes as u64;
            return None;
        }
        let before = *left as usize;
        *cut = None;
        Some(before)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
