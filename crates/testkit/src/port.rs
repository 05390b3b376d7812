//! Ports for servers that cannot choose one themselves and report it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::wait;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a free loopback port. Ports are below Linux's ephemeral range (32768 and up), so that no
/// outgoing connection takes one in between, and spread by process id, so that tests in several
/// processes seldom collide.
pub fn free() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + start.wrapping_add(step) % COUNT) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// Returns the loopback address with `port`.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Waits until a server accepts connections on `addr`; false if `deadline` passes, or if `alive`
/// reports that the server has ended.
pub fn wait_for(addr: SocketAddr, deadline: Instant, mut alive: impl FnMut() -> bool) -> bool {
    let mut accepts = false;
    wait::up_to(deadline.saturating_duration_since(Instant::now()), || {
        accepts = TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok();
        accepts || !alive()
    });
    accepts && alive()
}
