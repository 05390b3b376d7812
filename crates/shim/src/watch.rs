//! What is done to a connection, and when. Decides alone: sockets are behind a trait, so that the
//! tests have some of their own.

use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;

use crate::distance::{CONGESTION, LOSSES_US, NEAR_US, NOTSENT_LOWAT};
use crate::line::changed;
use crate::memory::{Known, Memory};
use crate::rules::{Rules, plain};
use crate::table::{self, Entry, NO_MARK, State};

/// Less than this is no bulk: congestion control and buffers stay the program's, in bytes.
pub(crate) const BULK: u64 = 4 << 20;

/// What can be asked of a socket, and told to it. Whatever a kernel refuses stays as it is.
pub(crate) trait Socket {
    /// Tells it from all other sockets; 0 where there is none.
    fn cookie(&self) -> u64;
    /// Its round trip in microseconds, 0 until there is one; `None` where it is no TCP.
    fn rtt_us(&self) -> Option<u32>;
    /// The TOS byte of its packets.
    fn mark(&self) -> Option<u8>;
    fn set_mark(&self, tos: u8) -> bool;
    fn set_congestion(&self, name: &str) -> bool;
    fn set_notsent_lowat(&self, bytes: u32) -> bool;
}

/// What is known of a connection before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectStart {
    /// Nothing will be done, nothing is to be told.
    Ignore,
    /// Nothing will be done.
    Leave,
    /// Its first write decides.
    Wait,
    /// It is far: without a mark from its first packet on.
    Far,
    /// Everything at once.
    All,
}

/// Before connect(): what to do with a connection to this address.
pub(crate) fn outset(rules: &Rules<'_>, memory: &Memory, to: IpAddr) -> ConnectStart {
    let left = match rules.report {
        Some(_) => ConnectStart::Leave,
        None => ConnectStart::Ignore,
    };
    if !rules.tune {
        return left;
    }
    if rules.always {
        return ConnectStart::All;
    }
    let to = plain(to);
    if to.is_loopback() || to.is_unspecified() {
        return left;
    }
    match memory.get(to) {
        Some(Known::Near) => left,
        Some(Known::Far) => ConnectStart::Far,
        None => ConnectStart::Wait,
    }
}

/// Takes the mark off, or sets the one that was asked for: the mark that was there, and what was
/// changed.
pub(crate) fn unmark(rules: &Rules<'_>, socket: &impl Socket) -> (u32, u32) {
    let tos = rules.dscp << 2;
    let Some(tos_there) = socket.mark() else {
        return (NO_MARK, 0);
    };
    // Its two lowest bits are ECN's, and the kernel's for TCP.
    let seen = match tos_there >> 2 {
        0 => NO_MARK,
        _ => table::mark(tos_there),
    };
    match tos_there & !3 != tos && socket.set_mark(tos) {
        true => (seen, changed::DSCP),
        false => (seen, 0),
    }
}

/// What bulk wants.
pub(crate) fn prepare_bulk(rules: &Rules<'_>, socket: &impl Socket, far: bool) -> u32 {
    let mut done = 0;
    if far && socket.set_congestion(rules.congestion.unwrap_or(CONGESTION)) {
        done |= changed::CONGESTION;
    }
    if socket.set_notsent_lowat(NOTSENT_LOWAT) {
        done |= changed::NOTSENT_LOWAT;
    }
    done
}

/// Before something is written: the first time, the handshake has told the round trip.
pub(crate) fn writing(rules: &Rules<'_>, memory: &Memory, entry: &Entry, socket: &impl Socket) {
    if entry.state() != State::New || !entry.turn(State::New, State::Busy) {
        return;
    }
    let state = match socket.rtt_us() {
        _ if !is_same(entry, socket) => State::Free,
        None => State::Free,
        // Data with the SYN, or a connect() that nobody waited for.
        Some(0) => State::New,
        Some(us) => {
            entry.rtt_us.store(us, Relaxed);
            match us < NEAR_US {
                true => {
                    memory.set(entry.peer().ip(), Known::Near);
                    State::Left
                }
                false => {
                    memory.set(entry.peer().ip(), Known::Far);
                    let (mark, done) = unmark(rules, socket);
                    entry.mark.store(mark, Relaxed);
                    entry.changed.fetch_or(done, Relaxed);
                    State::Far
                }
            }
        }
    };
    entry.turn(State::Busy, state);
}

/// After so many bytes were written.
pub(crate) fn wrote(rules: &Rules<'_>, entry: &Entry, socket: &impl Socket, bytes: u64) {
    let before = entry.sent.fetch_add(bytes, Relaxed);
    if before.saturating_add(bytes) < BULK || !entry.turn(State::Far, State::Busy) {
        return;
    }
    let state = match is_same(entry, socket) {
        false => State::Free,
        true => {
            let far = socket.rtt_us().is_some_and(|us| us >= LOSSES_US);
            let done = prepare_bulk(rules, socket, far);
            entry.changed.fetch_or(done, Relaxed);
            State::Done
        }
    };
    entry.turn(State::Busy, state);
}

/// Whether the program's mark is to be kept off this socket: it is told that all is well.
pub(crate) fn keeps_off(entry: &Entry, socket: &impl Socket, tos: u8) -> bool {
    let ours = matches!(entry.state(), State::Far | State::Done);
    if !ours || !is_same(entry, socket) {
        return false;
    }
    entry.mark.store(table::mark(tos), Relaxed);
    entry.kept_off.fetch_add(1, Relaxed);
    true
}

/// The mark that the program is told of a socket: the one that it has set, and not the one that is there
/// in its place. `None` where the program's own is there.
pub(crate) fn wanted_mark(entry: &Entry, socket: &impl Socket) -> Option<u8> {
    let ours = matches!(entry.state(), State::Far | State::Done);
    let mark = entry.mark.load(Relaxed);
    let replaced = entry.changed.load(Relaxed) & changed::DSCP != 0 || mark != NO_MARK;
    // The lower byte; the two lowest bits are ECN's, and the kernel's for TCP.
    (ours && replaced && is_same(entry, socket)).then_some(mark as u8 & !3)
}

/// Whether the entry is still of this socket.
pub(crate) fn is_same(entry: &Entry, socket: &impl Socket) -> bool {
    let cookie = socket.cookie();
    cookie != 0 && cookie == entry.cookie.load(Relaxed)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
