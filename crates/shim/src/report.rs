//! The lines of a report: one for each connection, when it ends.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use crate::carrier::{Carrier, letter};
use crate::ipc::Kind;
use crate::line::{Record, changed};
use crate::socket::Fd;
use crate::table::{Carried, Entry, NO_MARK, State, entries};
use crate::waits::{For, LEAST_US};
use crate::watch::{Socket as _, is_same};
use crate::{c, init, real, table};

/// Before a descriptor is closed, or becomes another: its connection ends here, unless the same
/// socket has another number too.
pub(crate) fn closing(fd: c_int) {
    let Some(entry) = table::entry(fd).filter(|entry| !entry.is_free()) else {
        return;
    };
    let errno = c::Errno::keep();
    // A child of fork() has a copy of the table, and one of vfork() the table itself.
    if entry.owner.load(Relaxed) == c::process() {
        if init::is_reporting() && !has_another_number(fd, entry) {
            tell(fd, entry);
        }
        entry.free();
    }
    drop(errno);
}

/// A descriptor got another number too.
pub(crate) fn copied(from: c_int, to: c_int) {
    let of = |fd| table::entry(fd);
    let (Some(from), Some(to)) = (of(from), of(to)) else {
        return;
    };
    if core::ptr::eq(from, to) || from.is_free() {
        return;
    }
    let errno = c::Errno::keep();
    if from.owner.load(Relaxed) == c::process() {
        to.same_as(from);
    }
    drop(errno);
}

/// Whether the same socket has another number too.
pub(crate) fn has_another_number(fd: c_int, entry: &Entry) -> bool {
    let cookie = entry.cookie.load(Relaxed);
    entries().any(|(other, there)| {
        other != fd && !there.is_free() && there.cookie.load(Relaxed) == cookie
    })
}

fn tell(fd: c_int, entry: &Entry) {
    let Some(path) = init::report() else {
        return;
    };
    let socket = Fd(fd);
    let same = is_same(entry, &socket);
    let changed = entry.changed.load(Relaxed);
    let mark = match entry.mark.load(Relaxed) {
        // Where it was not taken off, it is still there.
        NO_MARK if same && changed & changed::DSCP == 0 => socket.mark().unwrap_or(0),
        // The lower byte.
        mark => mark as u8,
    };
    let record = Record {
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
    // Who carries the bytes knows more of them, and adds it.
    if matches!(entry.carried(), Carried::Led | Carried::Filtered) {
        let letter = letter(Kind::Line, entry.cookie.load(Relaxed), line.bytes());
        let told = |c: Carrier| c.tell(&letter, line.bytes(), &[]) && c.agrees();
        if Carrier::reach().is_some_and(told) {
            return;
        }
    }
    // Held for the moment of writing only. Where no descriptor is to be had, the line is lost.
    if let Some(file) = c::append(path) {
        real::write_all(file, line.bytes());
        real::close(file);
    }
}

/// The end of the program: whatever is still connected.
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

/// Since when a call may be waiting, where that is of interest.
pub(crate) fn since() -> Option<u64> {
    init::is_reporting().then(c::now_us)
}

/// The same for a call on this descriptor alone.
pub(crate) fn since_on(fd: c_int) -> Option<u64> {
    let watched = table::entry(fd).is_some_and(|entry| !entry.is_free());
    watched.then(since).flatten()
}

/// How long it has been, where that is a wait.
pub(crate) fn waited(since: Option<u64>) -> Option<u64> {
    let us = c::now_us().saturating_sub(since?);
    (us >= LEAST_US).then_some(us)
}

/// This descriptor was waited for.
pub(crate) fn add(fd: c_int, what: For, us: u64) {
    let Some(entry) = table::entry(fd) else {
        return;
    };
    if entry.state() != State::Free {
        match what {
            For::Reading => entry.reading.add(us),
            For::Writing => entry.writing.add(us),
        }
    }
}
