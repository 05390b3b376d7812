//! Writes the report: a line for each connection, when it ends.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use crate::carrier::{CarrierConnection, header};
use crate::ipc::IpcRequestKind;
use crate::line::{ConnectionReport, changed};
use crate::socket::Fd;
use crate::table::{CarriedState, ConnectionEntry, ConnectionTuningState, NO_MARK, entries};
use crate::waits::{LEAST_US, WaitKind};
use crate::watch::{TunableSocket as _, is_same};
use crate::{c, init, real, table};

/// Ends a connection in the table and writes its line. Called before a descriptor is closed or
/// replaced; a socket that has another descriptor too lives on.
pub(crate) fn closing(fd: c_int) {
    let Some(entry) = table::entry(fd).filter(|entry| !entry.is_free()) else {
        return;
    };
    let errno = c::SavedErrno::keep();
    // A child of fork() has a copy of the table, and one of vfork() shares it.
    if entry.owner.load(Relaxed) == c::process() {
        if init::is_reporting() && !has_another_number(fd, entry) {
            tell(fd, entry);
        }
        entry.free();
    }
    drop(errno);
}

/// Notes that a descriptor was duplicated.
pub(crate) fn copied(from: c_int, to: c_int) {
    let of = |fd| table::entry(fd);
    let (Some(from), Some(to)) = (of(from), of(to)) else {
        return;
    };
    if core::ptr::eq(from, to) || from.is_free() {
        return;
    }
    let errno = c::SavedErrno::keep();
    if from.owner.load(Relaxed) == c::process() {
        to.same_as(from);
    }
    drop(errno);
}

/// Returns true if another descriptor has the same socket.
pub(crate) fn has_another_number(fd: c_int, entry: &ConnectionEntry) -> bool {
    let cookie = entry.cookie.load(Relaxed);
    entries().any(|(other, there)| {
        other != fd && !there.is_free() && there.cookie.load(Relaxed) == cookie
    })
}

fn tell(fd: c_int, entry: &ConnectionEntry) {
    let Some(path) = init::report() else {
        return;
    };
    let socket = Fd(fd);
    let same = is_same(entry, &socket);
    let changed = entry.changed.load(Relaxed);
    let mark = match entry.mark.load(Relaxed) {
        // An unchanged DSCP is still set on the socket.
        NO_MARK if same && changed & changed::DSCP == 0 => socket.mark().unwrap_or(0),
        // The TOS byte is the lower one.
        mark => mark as u8,
    };
    let record = ConnectionReport {
        program: init::program(),
        pid: c::process(),
        peer: entry.peer(),
        via: entry.via(),
        lasted_us: c::now_us().saturating_sub(entry.begun_us.load(Relaxed)),
        tcp: same.then(|| socket.tcp()).flatten(),
        dscp: Some(mark >> 2).filter(|dscp| *dscp != 0),
        kept_off: entry.kept_off.load(Relaxed),
        changed,
        reading: entry.reading.read(),
        writing: entry.writing.read(),
    };
    let line = record.line();
    // The carrier completes the line and writes it.
    if matches!(
        entry.carried(),
        CarriedState::Proxied | CarriedState::Filtered
    ) {
        let header = header(
            IpcRequestKind::ReportLine,
            entry.cookie.load(Relaxed),
            line.bytes(),
        );
        let told = |c: CarrierConnection| c.tell(&header, line.bytes(), &[]) && c.agrees();
        if CarrierConnection::reach().is_some_and(told) {
            return;
        }
    }
    // Open the file only while writing. Without a free descriptor, the line is lost.
    if let Some(file) = c::append(path) {
        real::write_all(file, line.bytes());
        real::close(file);
    }
}

/// Run by the loader at the end of the program: ends all remaining connections.
#[cfg(longhaul_preload)]
#[allow(unsafe_code, reason = "a section that the loader reads")]
#[unsafe(link_section = ".fini_array")]
#[used]
static END: extern "C" fn() = end;

pub(crate) extern "C" fn end() {
    if init::is_reporting() {
        let used = entries().filter(|(_, entry)| !entry.is_free());
        used.for_each(|(fd, _)| closing(fd));
    }
}

/// The time before a call that may wait, if it is reported.
pub(crate) fn since() -> Option<u64> {
    init::is_reporting().then(c::now_us)
}

/// The time before a call on this descriptor, if its waits are reported.
pub(crate) fn since_on(fd: c_int) -> Option<u64> {
    let watched = table::entry(fd).is_some_and(|entry| !entry.is_free());
    watched.then(since).flatten()
}

/// Microseconds since then, if long enough to count as a wait.
pub(crate) fn waited(since: Option<u64>) -> Option<u64> {
    let us = c::now_us().saturating_sub(since?);
    (us >= LEAST_US).then_some(us)
}

/// Adds a wait to a descriptor's connection.
pub(crate) fn add(fd: c_int, what: WaitKind, us: u64) {
    let Some(entry) = table::entry(fd) else {
        return;
    };
    if entry.state() != ConnectionTuningState::Free {
        match what {
            WaitKind::Reading => entry.reading.add(us),
            WaitKind::Writing => entry.writing.add(us),
        }
    }
}
