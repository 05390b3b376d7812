//! What is known of each descriptor: a table of a fixed size, of atomics alone, so that threads,
//! signal handlers and the children of vfork() may come at any time.
//!
//! Nothing here is relied on to be of the socket that has the number now: descriptors are closed by
//! ways that nobody sees (close_range, system calls made directly). Whoever acts on an entry asks
//! the socket first (`cookie`).

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::waits::WaitTimes;

/// Descriptors from here on are left alone.
pub(crate) const SIZE: usize = 4096;

static TABLE: [Entry; SIZE] = [const { Entry::new() }; SIZE];

/// The entry of a descriptor, if it has one.
pub(crate) fn entry(fd: i32) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// All entries, with their descriptors.
pub(crate) fn entries() -> impl Iterator<Item = (i32, &'static Entry)> {
    (0..).zip(&TABLE)
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// No connection of interest.
    Free = 0,
    /// Connected or about to be; nothing was written yet.
    New,
    /// Somebody is at it.
    Busy,
    /// Seen for the report and not touched.
    Left,
    /// Far: it has no mark, and its bytes are counted.
    Far,
    /// All was done that there is.
    Done,
}

/// Who else has a part in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Carried {
    /// Nobody.
    Not = 0,
    /// The carrier leads it to a proxy.
    Led,
    /// The carrier will have its socket once that is connected.
    Soon,
    /// The carrier has its socket, and the program one end of a pair.
    Filtered,
}

pub(crate) struct Entry {
    state: AtomicU32,
    carried: AtomicU32,
    /// The process that connected it.
    pub(crate) owner: AtomicU32,
    /// Tells this socket from others that get its number later.
    pub(crate) cookie: AtomicU64,
    /// Bytes written.
    pub(crate) sent: AtomicU64,
    /// When connect() was called, in microseconds of the monotonic clock.
    pub(crate) begun_us: AtomicU64,
    /// The round trip of the handshake, in microseconds.
    pub(crate) rtt_us: AtomicU32,
    /// The last mark that the program wanted, as [`mark`] has it; [`NO_MARK`] without one.
    pub(crate) mark: AtomicU32,
    /// How often it wanted one that it did not get.
    pub(crate) kept_off: AtomicU32,
    /// What was changed: bits of [`crate::line::changed`].
    pub(crate) changed: AtomicU32,
    pub(crate) reading: WaitTimes,
    pub(crate) writing: WaitTimes,
    peer: [AtomicU64; 2],
    port: AtomicU32,
    via: [AtomicU64; 2],
    via_port: AtomicU32,
}

/// Of [`Entry::mark`]. Zero like all that an entry begins with: such a table takes no room in the
/// file, and memory only where it is used.
pub(crate) const NO_MARK: u32 = 0;

/// A TOS byte as [`Entry::mark`] has it.
pub(crate) fn mark(tos: u8) -> u32 {
    0x100 | u32::from(tos)
}

impl Entry {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(State::Free as u32),
            carried: AtomicU32::new(Carried::Not as u32),
            owner: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            begun_us: AtomicU64::new(0),
            rtt_us: AtomicU32::new(0),
            mark: AtomicU32::new(NO_MARK),
            kept_off: AtomicU32::new(0),
            changed: AtomicU32::new(0),
            reading: WaitTimes::new(),
            writing: WaitTimes::new(),
            peer: [const { AtomicU64::new(0) }; 2],
            port: AtomicU32::new(0),
            via: [const { AtomicU64::new(0) }; 2],
            via_port: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Acquire) {
            1 => State::New,
            2 => State::Busy,
            3 => State::Left,
            4 => State::Far,
            5 => State::Done,
            _ => State::Free,
        }
    }

    /// Whether it is nobody's, at the cost of one load.
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Relaxed) == State::Free as u32
    }

    /// Who else has a part in it.
    pub(crate) fn carried(&self) -> Carried {
        match self.carried.load(Acquire) {
            1 => Carried::Led,
            2 => Carried::Soon,
            3 => Carried::Filtered,
            _ => Carried::Not,
        }
    }

    pub(crate) fn set_carried(&self, carried: Carried) {
        self.carried.store(carried as u32, Release);
    }

    /// Says that somebody makes it a filtered one; false where somebody else does.
    pub(crate) fn claim(&self) -> bool {
        let (soon, not) = (Carried::Soon as u32, Carried::Not as u32);
        let claimed = self.carried.compare_exchange(soon, not, AcqRel, Acquire);
        claimed.is_ok()
    }

    /// Takes it from one state to another; false where somebody else was quicker.
    pub(crate) fn turn(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        let done = self.state.compare_exchange(from, to, AcqRel, Acquire);
        done.is_ok()
    }

    pub(crate) fn free(&self) {
        if !self.is_free() {
            self.state.store(State::Free as u32, Release);
        }
    }

    /// Another connection begins on this descriptor.
    pub(crate) fn begin(&self, new: &Beginning, state: State) {
        self.free();
        self.set_carried(Carried::Not);
        self.owner.store(new.owner, Relaxed);
        self.cookie.store(new.cookie, Relaxed);
        self.begun_us.store(new.now_us, Relaxed);
        self.sent.store(0, Relaxed);
        self.rtt_us.store(0, Relaxed);
        self.mark.store(new.mark, Relaxed);
        self.kept_off.store(0, Relaxed);
        self.changed.store(new.changed, Relaxed);
        self.reading.forget();
        self.writing.forget();
        put(new.peer, &self.peer, &self.port);
        match new.via {
            Some(via) => put(via, &self.via, &self.via_port),
            None => self.via_port.store(0, Relaxed),
        }
        self.state.store(state as u32, Release);
    }

    /// Where the program connected to.
    pub(crate) fn peer(&self) -> SocketAddr {
        get(&self.peer, &self.port)
    }

    /// The relay that it was led to, if it was.
    pub(crate) fn via(&self) -> Option<SocketAddr> {
        (self.via_port.load(Relaxed) != 0).then(|| get(&self.via, &self.via_port))
    }

    /// The same socket has another number too: all but what only one of them should tell.
    pub(crate) fn same_as(&self, other: &Self) {
        let state = match other.state() {
            // Whoever is at it tells the other entry.
            State::Busy => State::New,
            state => state,
        };
        let beginning = Beginning {
            owner: other.owner.load(Relaxed),
            cookie: other.cookie.load(Relaxed),
            now_us: other.begun_us.load(Relaxed),
            mark: other.mark.load(Relaxed),
            changed: other.changed.load(Relaxed),
            peer: other.peer(),
            via: other.via(),
        };
        self.begin(&beginning, state);
        self.set_carried(other.carried());
        self.rtt_us.store(other.rtt_us.load(Relaxed), Relaxed);
        self.sent.store(other.sent.load(Relaxed), Relaxed);
        self.kept_off.store(other.kept_off.load(Relaxed), Relaxed);
    }
}

/// What a connection begins with.
pub(crate) struct Beginning {
    pub(crate) owner: u32,
    pub(crate) cookie: u64,
    pub(crate) now_us: u64,
    pub(crate) mark: u32,
    pub(crate) changed: u32,
    pub(crate) peer: SocketAddr,
    pub(crate) via: Option<SocketAddr>,
}

/// IPv4 as IPv6 has it.
fn put(address: SocketAddr, ip: &[AtomicU64; 2], port: &AtomicU32) {
    let bits = u128::from(crate::rules::mapped(address));
    ip[0].store((bits >> 64) as u64, Relaxed);
    ip[1].store(bits as u64, Relaxed);
    port.store(address.port().into(), Relaxed);
}

fn get(ip: &[AtomicU64; 2], port: &AtomicU32) -> SocketAddr {
    let bits = u128::from(ip[0].load(Relaxed)) << 64 | u128::from(ip[1].load(Relaxed));
    let ip = crate::rules::plain(IpAddr::V6(Ipv6Addr::from(bits)));
    SocketAddr::new(ip, port.load(Relaxed) as u16)
}
