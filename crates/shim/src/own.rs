//! Calls of our own, to the functions behind the hooks.
#![allow(unsafe_code, reason = "functions that were found by their names")]

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::transmute;

use crate::c;
use crate::hooks::{CLOSE, POLL, POLLIN, PollFd, RECV, SEND, SETSOCKOPT, WRITE};

/// Sets an option of a socket; false where that is not possible.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> bool {
    type Set = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, u32) -> c_int;
    // SAFETY: what was found under this name has this type.
    let next: Option<Set> = unsafe { transmute(SETSOCKOPT.get()) };
    let len = value.len() as u32;
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    next.is_some_and(|next| unsafe { next(fd, level, name, value.as_ptr().cast(), len) == 0 })
}

/// Writes to a descriptor of ours, by the function behind the hook. Best effort.
pub(crate) fn write_all(fd: c_int, bytes: &[u8]) {
    type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
    // SAFETY: what was found under this name has this type.
    let next: Option<Write> = unsafe { transmute(WRITE.get()) };
    if let Some(next) = next {
        // SAFETY: the pointer and the length are those of bytes that outlive the call.
        unsafe { next(fd, bytes.as_ptr().cast(), bytes.len()) };
    }
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: c_int) {
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: what was found under this name has this type.
    let next: Option<Close> = unsafe { transmute(CLOSE.get()) };
    if let Some(next) = next {
        // SAFETY: the descriptor is ours.
        unsafe { next(fd) };
    }
}

/// How long a relay may take for its next answer, in milliseconds.
const PATIENCE: c_int = 30_000;
/// Of send(2): a peer that is gone raises no signal.
const MSG_NOSIGNAL: c_int = 0x4000;

/// Sends all of this on a socket that waits, by the function behind the hook.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> bool {
    type Send = unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize;
    // SAFETY: what was found under this name has this type.
    let next: Option<Send> = unsafe { transmute(SEND.get()) };
    let Some(next) = next else {
        return false;
    };
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    let sent = unsafe { next(fd, bytes.as_ptr().cast(), bytes.len(), MSG_NOSIGNAL) };
    usize::try_from(sent) == Ok(bytes.len())
}

/// Fills this from a socket, and takes no byte more.
pub(crate) fn receive(fd: c_int, mut bytes: &mut [u8]) -> bool {
    type Poll = unsafe extern "C" fn(*mut PollFd, c_ulong, c_int) -> c_int;
    type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
    // SAFETY: what was found under this name has this type.
    let poll: Option<Poll> = unsafe { transmute(POLL.get()) };
    // SAFETY: as above.
    let next: Option<Recv> = unsafe { transmute(RECV.get()) };
    let (Some(poll), Some(next)) = (poll, next) else {
        return false;
    };
    while !bytes.is_empty() {
        let mut one = PollFd {
            fd,
            events: POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer is to one local.
        let ready = unsafe { poll(&raw mut one, 1, PATIENCE) };
        let interrupted = |done: bool| done && c::errno() == c::EINTR;
        if interrupted(ready < 0) {
            continue;
        }
        if ready != 1 {
            return false;
        }
        // SAFETY: the pointer and the length are those of bytes that outlive the call.
        let received = unsafe { next(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if interrupted(received < 0) {
            continue;
        }
        let Ok(received @ 1..) = usize::try_from(received) else {
            return false;
        };
        bytes = bytes.get_mut(received..).unwrap_or_default();
    }
    true
}
