//! The table of descriptors. It has a fixed size and consists of atomics, so that threads, signal
//! handlers and children of vfork() may use it at any time.
//!
//! An entry may be stale: descriptors are closed in ways that hooks miss (close_range, direct
//! system calls). Before acting on an entry, compare its `cookie` with the socket's.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::waits::SocketWaitHistogram;

/// Number of descriptors that are tracked.
pub(crate) const SIZE: usize = 4096;

static TABLE: [ConnectionEntry; SIZE] = [const { ConnectionEntry::new() }; SIZE];

/// The entry of a descriptor, if it is within the table.
pub(crate) fn entry(fd: i32) -> Option<&'static ConnectionEntry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// All entries, with their descriptors.
pub(crate) fn entries() -> impl Iterator<Item = (i32, &'static ConnectionEntry)> {
    (0..).zip(&TABLE)
}

/// State of a descriptor's connection, which decides the work of the next hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ConnectionTuningState {
    /// Not tracked.
    Free = 0,
    /// Connected or connecting; nothing was written yet.
    New,
    /// A thread is working on it.
    Busy,
    /// Reported, but not tuned.
    Untuned,
    /// Far: its DSCP was removed, and its bytes are counted.
    DscpRemoved,
    /// Fully tuned.
    Done,
}

/// Part of the carrier in a connection, which the shim asks for before or after connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CarriedState {
    /// None.
    NotCarried = 0,
    /// The carrier connects it over a proxy.
    Proxied,
    /// The carrier will take its socket once that is connected.
    Pending,
    /// The carrier has its socket, and the program one end of a socket pair.
    Filtered,
}

/// Entry of one descriptor: its connection, as atomics that any thread may read and change.
pub(crate) struct ConnectionEntry {
    state: AtomicU32,
    carried: AtomicU32,
    /// The process that connected it.
    pub(crate) owner: AtomicU32,
    /// Distinguishes this socket from later ones with its descriptor.
    pub(crate) cookie: AtomicU64,
    /// Bytes written.
    pub(crate) sent: AtomicU64,
    /// Time of connect(), in microseconds of the monotonic clock.
    pub(crate) begun_us: AtomicU64,
    /// Round trip of the handshake, in microseconds.
    pub(crate) rtt_us: AtomicU32,
    /// The TOS byte that the program set last, encoded by [`mark`]; [`NO_MARK`] if none.
    pub(crate) mark: AtomicU32,
    /// Number of times that the program set a TOS byte without effect.
    pub(crate) kept_off: AtomicU32,
    /// The changed properties, as bits of [`crate::line::changed`].
    pub(crate) changed: AtomicU32,
    pub(crate) reading: SocketWaitHistogram,
    pub(crate) writing: SocketWaitHistogram,
    peer: [AtomicU64; 2],
    port: AtomicU32,
    via: [AtomicU64; 2],
    via_port: AtomicU32,
}

/// Value of [`ConnectionEntry::mark`] if none was set. All initial values are zero, so that the
/// table takes no room in the file, and memory only where it is used.
pub(crate) const NO_MARK: u32 = 0;

/// Encodes a TOS byte for [`ConnectionEntry::mark`].
pub(crate) fn mark(tos: u8) -> u32 {
    0x100 | u32::from(tos)
}

impl ConnectionEntry {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(ConnectionTuningState::Free as u32),
            carried: AtomicU32::new(CarriedState::NotCarried as u32),
            owner: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            begun_us: AtomicU64::new(0),
            rtt_us: AtomicU32::new(0),
            mark: AtomicU32::new(NO_MARK),
            kept_off: AtomicU32::new(0),
            changed: AtomicU32::new(0),
            reading: SocketWaitHistogram::new(),
            writing: SocketWaitHistogram::new(),
            peer: [const { AtomicU64::new(0) }; 2],
            port: AtomicU32::new(0),
            via: [const { AtomicU64::new(0) }; 2],
            via_port: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> ConnectionTuningState {
        match self.state.load(Acquire) {
            1 => ConnectionTuningState::New,
            2 => ConnectionTuningState::Busy,
            3 => ConnectionTuningState::Untuned,
            4 => ConnectionTuningState::DscpRemoved,
            5 => ConnectionTuningState::Done,
            _ => ConnectionTuningState::Free,
        }
    }

    /// Returns true if the entry is not in use; costs one load.
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Relaxed) == ConnectionTuningState::Free as u32
    }

    /// The carrier's part in the connection.
    pub(crate) fn carried(&self) -> CarriedState {
        match self.carried.load(Acquire) {
            1 => CarriedState::Proxied,
            2 => CarriedState::Pending,
            3 => CarriedState::Filtered,
            _ => CarriedState::NotCarried,
        }
    }

    pub(crate) fn set_carried(&self, carried: CarriedState) {
        self.carried.store(carried as u32, Release);
    }

    /// Claims the entry for starting its filter. Returns false if another thread did.
    pub(crate) fn claim(&self) -> bool {
        let (soon, not) = (
            CarriedState::Pending as u32,
            CarriedState::NotCarried as u32,
        );
        let claimed = self.carried.compare_exchange(soon, not, AcqRel, Acquire);
        claimed.is_ok()
    }

    /// Changes the state from `from` to `to`. Returns false if the state is another.
    pub(crate) fn turn(&self, from: ConnectionTuningState, to: ConnectionTuningState) -> bool {
        let (from, to) = (from as u32, to as u32);
        let done = self.state.compare_exchange(from, to, AcqRel, Acquire);
        done.is_ok()
    }

    pub(crate) fn free(&self) {
        if !self.is_free() {
            self.state
                .store(ConnectionTuningState::Free as u32, Release);
        }
    }

    /// Starts a new connection on this descriptor.
    pub(crate) fn begin(&self, new: &ConnectionEntryValues, state: ConnectionTuningState) {
        self.free();
        self.set_carried(CarriedState::NotCarried);
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

    /// The program's destination.
    pub(crate) fn peer(&self) -> SocketAddr {
        get(&self.peer, &self.port)
    }

    /// The relay that was connected to instead, if one was.
    pub(crate) fn via(&self) -> Option<SocketAddr> {
        (self.via_port.load(Relaxed) != 0).then(|| get(&self.via, &self.via_port))
    }

    /// Copies the entry of a duplicated descriptor, without the waits, which only one of the two
    /// reports.
    pub(crate) fn same_as(&self, other: &Self) {
        let state = match other.state() {
            // A thread at work updates the other entry only.
            ConnectionTuningState::Busy => ConnectionTuningState::New,
            state => state,
        };
        let beginning = ConnectionEntryValues {
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

/// Values of an entry at the time of connect(); the time is in microseconds of the monotonic clock.
pub(crate) struct ConnectionEntryValues {
    pub(crate) owner: u32,
    pub(crate) cookie: u64,
    pub(crate) now_us: u64,
    pub(crate) mark: u32,
    pub(crate) changed: u32,
    pub(crate) peer: SocketAddr,
    pub(crate) via: Option<SocketAddr>,
}

/// Stores an address; IPv4 in its IPv6-mapped form.
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
