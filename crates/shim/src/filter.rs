//! Replaces a socket by one end of a socket pair; the carrier has the other end and the socket. If
//! the connection speeds up when another process reads and writes the socket, the program's own use
//! of it was the bottleneck.
//!
//! Questions about the socket are answered by the real one, which the carrier lends for the moment:
//! its peer, its options and TCP_INFO. A socket pair cannot be reset like a connection, so at its
//! end the carrier is asked how the connection ended.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use crate::carrier::{BorrowedSocket, CarrierConnection, header};
use crate::epolls::{EpollRegistration, EpollTable, FdinfoParser};
use crate::ipc::{IpcMessageHeader, IpcRequestKind};
use crate::report::has_another_number;
use crate::socket::{Fd, numbered};
use crate::table::{self, CarriedState, ConnectionEntry};
use crate::watch::{TunableSocket as _, is_same};
use crate::{c, init, real};

/// The program's epoll instances.
static EPOLLS: EpollTable = EpollTable::new();

/// Notes an epoll instance, if anything may be filtered.
pub(crate) fn has_epoll(epoll: c_int) {
    if init::is_carrying() {
        EPOLLS.note(epoll);
    }
}

/// Starts filtering a connected socket that is to be filtered. Called before calls on a descriptor,
/// and after a call that reports its connection.
pub(crate) fn settle(fd: c_int) {
    if !init::is_carrying() {
        return;
    }
    let Some(entry) = table::entry(fd).filter(|entry| entry.carried() == CarriedState::Pending)
    else {
        return;
    };
    let errno = c::SavedErrno::keep();
    if is_same(entry, &Fd(fd)) && Fd(fd).is_connected() && entry.claim() {
        // With another process or another descriptor on the socket, the original would stay in use.
        let alone = entry.owner.load(Relaxed) == c::process() && !has_another_number(fd, entry);
        if alone {
            take(fd, entry);
        }
    }
    drop(errno);
}

/// Replaces the socket by one end of a pair, if the carrier accepts the other.
fn take(fd: c_int, entry: &ConnectionEntry) {
    let Some([theirs, ours]) = c::local_pair() else {
        return;
    };
    let key = Fd(ours).cookie();
    let name = init::program().as_bytes();
    let take = IpcMessageHeader {
        peer: entry.peer(),
        ..header(IpcRequestKind::TakeOver, key, name)
    };
    let (waits, closed_by_exec) = (c::waits(fd), c::is_closed_by_exec(fd));
    let carrier = CarrierConnection::reach().filter(|_| key != 0);
    let taken = carrier.is_some_and(|c| c.tell(&take, name, &[theirs, fd]) && c.agrees());
    real::close(theirs);
    if taken {
        if !waits {
            c::wait_no_more(ours);
        }
        for name in [c::SO_RCVTIMEO, c::SO_SNDTIMEO] {
            let mut time = [0; 16];
            if real::option(fd, c::SOL_SOCKET, name, &mut time) == Some(time.len()) {
                real::set_option(ours, c::SOL_SOCKET, name, &time);
            }
        }
        let registered = SavedEpollRegistrations::take_out(fd);
        if real::put_onto(ours, fd, closed_by_exec) {
            entry.cookie.store(key, Relaxed);
            entry.set_carried(CarriedState::Filtered);
        }
        registered.put_back(fd);
    }
    real::close(ours);
}

/// Saved registrations with epoll instances, as many as are kept for a descriptor.
struct SavedEpollRegistrations([Option<(c_int, EpollRegistration)>; 4]);

impl SavedEpollRegistrations {
    fn take_out(fd: c_int) -> Self {
        let mut kept = Self([None; 4]);
        let places = kept.0.iter_mut();
        let there = EPOLLS
            .all()
            .filter_map(|epoll| Some((epoll, registered(epoll, fd)?)));
        for (place, there) in places.zip(there) {
            real::register(there.0, fd, None);
            *place = Some(there);
        }
        kept
    }

    fn put_back(&self, fd: c_int) {
        for (epoll, what) in self.0.iter().flatten() {
            real::register(*epoll, fd, Some(*what));
        }
    }
}

/// The registration of a descriptor in an epoll instance, read from /proc.
fn registered(epoll: c_int, fd: c_int) -> Option<EpollRegistration> {
    let mut room = [0; 32];
    let file = c::open_to_read(numbered(b"/proc/self/fdinfo/", epoll, &mut room)?)?;
    let mut lines = FdinfoParser::new(fd);
    let mut piece = [0; 2048];
    loop {
        match real::read(file, &mut piece) {
            0 => break,
            len => lines.take(piece.get(..len).unwrap_or_default()),
        }
    }
    real::close(file);
    lines.found()
}

/// Returns true if a descriptor is filtered.
pub(crate) fn is_filtered(fd: c_int) -> bool {
    init::is_carrying() && key(fd).is_some()
}

/// The key by which the carrier knows the connection, if it carries it.
fn key(fd: c_int) -> Option<u64> {
    let entry = table::entry(fd).filter(|entry| !entry.is_free())?;
    let cookie = entry.cookie.load(Relaxed);
    (entry.carried() == CarriedState::Filtered && Fd(fd).cookie() == cookie).then_some(cookie)
}

/// Calls `act` with the real socket: one borrowed from the carrier, or this descriptor.
pub(crate) fn on_real<R>(fd: c_int, act: impl FnOnce(c_int) -> R) -> R {
    if !init::is_carrying() {
        return act(fd);
    }
    let errno = c::SavedErrno::keep();
    let lent = key(fd).and_then(|key| BorrowedSocket::get(key).ok().flatten());
    drop(errno);
    let Some(lent) = lent else {
        return act(fd);
    };
    let done = act(lent.fd());
    let errno = c::SavedErrno::keep();
    drop(lent);
    drop(errno);
    done
}

/// Returns true if an option concerns the program's end of the pair and not the network socket.
pub(crate) fn is_of_the_pair(level: c_int, option: c_int) -> bool {
    use c::{SO_ERROR, SO_RCVLOWAT, SO_RCVTIMEO, SO_RCVTIMEO_NEW, SO_SNDTIMEO, SO_SNDTIMEO_NEW};
    let own = [
        SO_ERROR,
        SO_RCVLOWAT,
        SO_RCVTIMEO,
        SO_SNDTIMEO,
        SO_RCVTIMEO_NEW,
        SO_SNDTIMEO_NEW,
    ];
    level == c::SOL_SOCKET && own.contains(&option)
}

/// The result of a read that returned nothing: 0 for an orderly end, or -1 with errno for a lost
/// connection.
pub(crate) fn end(fd: c_int) -> isize {
    if !init::is_carrying() {
        return 0;
    }
    let errno = c::SavedErrno::keep();
    let lost = key(fd).and_then(|key| BorrowedSocket::get(key).err());
    drop(errno);
    match lost {
        None => 0,
        Some(error) => {
            c::set_errno(error);
            -1
        }
    }
}
