//! Decides how a connection is tuned, and when. Sockets are behind a trait, so that tests can use
//! fakes.

use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;

use crate::distance::{CONGESTION, LOSSES_US, NEAR_US, NOTSENT_LOWAT};
use crate::line::changed;
use crate::memory::{HostDistance, HostDistanceTable};
use crate::rules::{WrapRules, plain};
use crate::table::{self, ConnectionEntry, ConnectionTuningState, NO_MARK};

/// Bytes from which a transfer counts as bulk. Below, congestion control and buffers stay the
/// program's.
pub(crate) const BULK: u64 = 4 << 20;

/// The properties of a socket that are read and set. An option that the kernel refuses stays
/// unchanged.
pub(crate) trait TunableSocket {
    /// A number that identifies the socket; 0 if there is none.
    fn cookie(&self) -> u64;
    /// Round trip in microseconds, 0 until one was measured; `None` if the socket is not TCP.
    fn rtt_us(&self) -> Option<u32>;
    /// The TOS byte of its packets.
    fn mark(&self) -> Option<u8>;
    fn set_mark(&self, tos: u8) -> bool;
    fn set_congestion(&self, name: &str) -> bool;
    fn set_notsent_lowat(&self, bytes: u32) -> bool;
}

/// The decision about a connection before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectDecision {
    /// Neither tune nor report it.
    Ignore,
    /// Report it only.
    ReportOnly,
    /// Decide at its first write.
    DecideAtWrite,
    /// A known far host: remove the DSCP before the first packet.
    Far,
    /// Tune everything at once.
    All,
}

/// Decides, before connect(), about a connection to this address.
pub(crate) fn outset(
    rules: &WrapRules<'_>,
    memory: &HostDistanceTable,
    to: IpAddr,
) -> ConnectDecision {
    let left = match rules.report {
        Some(_) => ConnectDecision::ReportOnly,
        None => ConnectDecision::Ignore,
    };
    if !rules.tune {
        return left;
    }
    if rules.always {
        return ConnectDecision::All;
    }
    let to = plain(to);
    if to.is_loopback() || to.is_unspecified() {
        return left;
    }
    match memory.get(to) {
        Some(HostDistance::Near) => left,
        Some(HostDistance::Far) => ConnectDecision::Far,
        None => ConnectDecision::DecideAtWrite,
    }
}

/// Replaces the socket's DSCP by the one of the rules. Returns the program's mark, and the changed
/// properties.
pub(crate) fn unmark(rules: &WrapRules<'_>, socket: &impl TunableSocket) -> (u32, u32) {
    let tos = rules.dscp << 2;
    let Some(tos_there) = socket.mark() else {
        return (NO_MARK, 0);
    };
    // The two lowest bits are ECN, which TCP in the kernel controls.
    let seen = match tos_there >> 2 {
        0 => NO_MARK,
        _ => table::mark(tos_there),
    };
    match tos_there & !3 != tos && socket.set_mark(tos) {
        true => (seen, changed::DSCP),
        false => (seen, 0),
    }
}

/// Prepares a socket for bulk data. Returns the changed properties.
pub(crate) fn prepare_bulk(rules: &WrapRules<'_>, socket: &impl TunableSocket, far: bool) -> u32 {
    let mut done = 0;
    if far && socket.set_congestion(rules.congestion.unwrap_or(CONGESTION)) {
        done |= changed::CONGESTION;
    }
    if socket.set_notsent_lowat(NOTSENT_LOWAT) {
        done |= changed::NOTSENT_LOWAT;
    }
    done
}

/// Called before a write. At the first one, the round trip of the handshake is known and decides.
pub(crate) fn writing(
    rules: &WrapRules<'_>,
    memory: &HostDistanceTable,
    entry: &ConnectionEntry,
    socket: &impl TunableSocket,
) {
    if entry.state() != ConnectionTuningState::New
        || !entry.turn(ConnectionTuningState::New, ConnectionTuningState::Busy)
    {
        return;
    }
    let state = match socket.rtt_us() {
        _ if !is_same(entry, socket) => ConnectionTuningState::Free,
        None => ConnectionTuningState::Free,
        // Data with the SYN, or an unfinished non-blocking connect().
        Some(0) => ConnectionTuningState::New,
        Some(us) => {
            entry.rtt_us.store(us, Relaxed);
            match us < NEAR_US {
                true => {
                    memory.set(entry.peer().ip(), HostDistance::Near);
                    ConnectionTuningState::Untuned
                }
                false => {
                    memory.set(entry.peer().ip(), HostDistance::Far);
                    let (mark, done) = unmark(rules, socket);
                    entry.mark.store(mark, Relaxed);
                    entry.changed.fetch_or(done, Relaxed);
                    ConnectionTuningState::DscpRemoved
                }
            }
        }
    };
    entry.turn(ConnectionTuningState::Busy, state);
}

/// Called after `bytes` were written: prepares a far connection for bulk data once it has sent
/// [`BULK`].
pub(crate) fn wrote(
    rules: &WrapRules<'_>,
    entry: &ConnectionEntry,
    socket: &impl TunableSocket,
    bytes: u64,
) {
    let before = entry.sent.fetch_add(bytes, Relaxed);
    if before.saturating_add(bytes) < BULK
        || !entry.turn(
            ConnectionTuningState::DscpRemoved,
            ConnectionTuningState::Busy,
        )
    {
        return;
    }
    let state = match is_same(entry, socket) {
        false => ConnectionTuningState::Free,
        true => {
            let far = socket.rtt_us().is_some_and(|us| us >= LOSSES_US);
            let done = prepare_bulk(rules, socket, far);
            entry.changed.fetch_or(done, Relaxed);
            ConnectionTuningState::Done
        }
    };
    entry.turn(ConnectionTuningState::Busy, state);
}

/// Returns true if a TOS byte set by the program must not reach the socket. The program sees
/// success.
pub(crate) fn keeps_off(entry: &ConnectionEntry, socket: &impl TunableSocket, tos: u8) -> bool {
    let ours = matches!(
        entry.state(),
        ConnectionTuningState::DscpRemoved | ConnectionTuningState::Done
    );
    if !ours || !is_same(entry, socket) {
        return false;
    }
    entry.mark.store(table::mark(tos), Relaxed);
    entry.kept_off.fetch_add(1, Relaxed);
    true
}

/// The TOS byte to report to the program: the one that it set, rather than the replacement on the
/// socket. `None` if the socket has the program's own.
pub(crate) fn wanted_mark(entry: &ConnectionEntry, socket: &impl TunableSocket) -> Option<u8> {
    let ours = matches!(
        entry.state(),
        ConnectionTuningState::DscpRemoved | ConnectionTuningState::Done
    );
    let mark = entry.mark.load(Relaxed);
    let replaced = entry.changed.load(Relaxed) & changed::DSCP != 0 || mark != NO_MARK;
    // The lower byte; its two lowest bits are ECN, which TCP in the kernel controls.
    (ours && replaced && is_same(entry, socket)).then_some(mark as u8 & !3)
}

/// Returns true if the entry belongs to this socket.
pub(crate) fn is_same(entry: &ConnectionEntry, socket: &impl TunableSocket) -> bool {
    let cookie = socket.cookie();
    cookie != 0 && cookie == entry.cookie.load(Relaxed)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
