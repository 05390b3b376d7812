//! Calls by the library itself, to the functions behind the hooks.
#![allow(unsafe_code, reason = "functions that were found by their names")]

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

use crate::c;
use crate::epolls::EpollRegistration;
use crate::hooks::{
    CLOSE, CONNECT, DUP3, EPOLL_CTL, EpollEvent, GETSOCKNAME, GETSOCKOPT, POLL, READ, RECV,
    RECVMSG, SEND, SENDMSG, SETSOCKOPT, WRITE,
};
use crate::waiting::{POLLIN, PollFd};

/// Sets a socket option. Returns false if that failed.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> bool {
    type Set = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, u32) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Set> = unsafe { transmute(SETSOCKOPT.get()) };
    let len = value.len() as u32;
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    next.is_some_and(|next| unsafe { next(fd, level, name, value.as_ptr().cast(), len) == 0 })
}

/// Reads a socket option into `value`. Returns its length.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<usize> {
    type Get = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut u32) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Get> = unsafe { transmute(GETSOCKOPT.get()) };
    let mut len = u32::try_from(value.len()).ok()?;
    // SAFETY: the pointers are to bytes that outlive the call, and `len` is their number.
    let done = unsafe { next?(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    (done == 0).then_some((len as usize).min(value.len()))
}

/// Writes to a descriptor; errors are ignored.
pub(crate) fn write_all(fd: c_int, bytes: &[u8]) {
    type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
    // SAFETY: the C function of this name has this type.
    let next: Option<Write> = unsafe { transmute(WRITE.get()) };
    if let Some(next) = next {
        // SAFETY: the pointer and the length are those of bytes that outlive the call.
        unsafe { next(fd, bytes.as_ptr().cast(), bytes.len()) };
    }
}

/// Closes a descriptor of the library.
pub(crate) fn close(fd: c_int) {
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Close> = unsafe { transmute(CLOSE.get()) };
    if let Some(next) = next {
        // SAFETY: the descriptor belongs to the library.
        unsafe { next(fd) };
    }
}

/// Time limit for the next answer of a proxy, in milliseconds.
const PATIENCE: c_int = 30_000;
/// Flag of send(2): no signal if the peer is gone.
const MSG_NOSIGNAL: c_int = 0x4000;

/// Sends all bytes on a blocking socket. Returns false if that failed.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> bool {
    type Send = unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize;
    // SAFETY: the C function of this name has this type.
    let next: Option<Send> = unsafe { transmute(SEND.get()) };
    let Some(next) = next else {
        return false;
    };
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    let sent = unsafe { next(fd, bytes.as_ptr().cast(), bytes.len(), MSG_NOSIGNAL) };
    usize::try_from(sent) == Ok(bytes.len())
}

/// Fills `bytes` from a socket and reads no byte more. Returns false at an error or end.
pub(crate) fn receive(fd: c_int, mut bytes: &mut [u8]) -> bool {
    type Poll = unsafe extern "C" fn(*mut PollFd, c_ulong, c_int) -> c_int;
    type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
    // SAFETY: the C function of this name has this type.
    let poll: Option<Poll> = unsafe { transmute(POLL.get()) };
    // SAFETY: the C function of this name has this type.
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

/// Connects a socket of the library.
pub(crate) fn connect(fd: c_int, address: &[u8]) -> bool {
    type Connect = unsafe extern "C" fn(c_int, *const c_void, u32) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Connect> = unsafe { transmute(CONNECT.get()) };
    let len = address.len() as u32;
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    next.is_some_and(|next| unsafe { next(fd, address.as_ptr().cast(), len) == 0 })
}

/// Reads the local address of a socket. Returns its length.
pub(crate) fn own_address(fd: c_int, address: &mut [u8]) -> Option<usize> {
    type Get = unsafe extern "C" fn(c_int, *mut c_void, *mut u32) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Get> = unsafe { transmute(GETSOCKNAME.get()) };
    let mut len = u32::try_from(address.len()).ok()?;
    // SAFETY: the pointers are to bytes that outlive the call, and `len` is their number.
    let done = unsafe { next?(fd, address.as_mut_ptr().cast(), &raw mut len) };
    (done == 0).then_some((len as usize).min(address.len()))
}

/// Reads from a descriptor of the library. Returns the number of bytes; 0 at the end and after
/// errors.
pub(crate) fn read(fd: c_int, bytes: &mut [u8]) -> usize {
    type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
    // SAFETY: the C function of this name has this type.
    let next: Option<Read> = unsafe { transmute(READ.get()) };
    let Some(next) = next else {
        return 0;
    };
    // SAFETY: the pointer and the length are those of bytes that outlive the call.
    let read = unsafe { next(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(read).map_or(0, |read| read.min(bytes.len()))
}

/// Duplicates `from` onto the number `to`.
pub(crate) fn put_onto(from: c_int, to: c_int, closed_by_exec: bool) -> bool {
    type Dup = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: the C function of this name has this type.
    let next: Option<Dup> = unsafe { transmute(DUP3.get()) };
    let flags = if closed_by_exec { c::O_CLOEXEC } else { 0 };
    // SAFETY: all arguments are numbers; the caller is responsible for the descriptors.
    next.is_some_and(|next| unsafe { next(from, to, flags) == to })
}

/// Registers a descriptor with an epoll instance, or removes it.
pub(crate) fn register(epoll: c_int, fd: c_int, what: Option<EpollRegistration>) {
    type Cmsghdr = unsafe extern "C" fn(c_int, c_int, c_int, *mut EpollEvent) -> c_int;
    const ADD: c_int = 1;
    const DELETE: c_int = 2;
    // SAFETY: the C function of this name has this type.
    let next: Option<Cmsghdr> = unsafe { transmute(EPOLL_CTL.get()) };
    let what_to = if what.is_some() { ADD } else { DELETE };
    let EpollRegistration { events, data } =
        what.unwrap_or(EpollRegistration { events: 0, data: 0 });
    let mut event = EpollEvent { events, data };
    if let Some(next) = next {
        // SAFETY: the pointer is to a local.
        unsafe { next(epoll, what_to, fd, &raw mut event) };
    }
}

/// `struct msghdr` with 64-bit longs.
#[repr(C)]
struct Msghdr {
    name: *mut c_void,
    name_len: u32,
    parts: *mut Iovec,
    parts_len: usize,
    control: *mut Cmsghdr,
    control_len: usize,
    flags: c_int,
}

/// `struct iovec`.
#[repr(C)]
struct Iovec {
    base: *mut u8,
    len: usize,
}

/// `struct cmsghdr` followed by one file descriptor.
#[repr(C)]
struct Cmsghdr {
    len: usize,
    level: c_int,
    kind: c_int,
    fd: c_int,
}

/// Length of a control message with one descriptor.
const CONTROL: usize = 20;

impl Msghdr {
    fn new(part: &mut Iovec, control: &mut Cmsghdr) -> Self {
        Self {
            name: null_mut(),
            name_len: 0,
            parts: part,
            parts_len: 1,
            control,
            control_len: size_of::<Cmsghdr>(),
            flags: 0,
        }
    }
}

/// Sends a descriptor, along with a byte, since it cannot be sent alone.
pub(crate) fn send_descriptor(to: c_int, fd: c_int) -> bool {
    type Send = unsafe extern "C" fn(c_int, *const Msghdr, c_int) -> isize;
    // SAFETY: the C function of this name has this type.
    let next: Option<Send> = unsafe { transmute(SENDMSG.get()) };
    let mut byte = 0;
    let mut part = Iovec {
        base: &raw mut byte,
        len: 1,
    };
    let mut control = Cmsghdr {
        len: CONTROL,
        level: c::SOL_SOCKET,
        kind: c::SCM_RIGHTS,
        fd,
    };
    let message = Msghdr::new(&mut part, &mut control);
    // SAFETY: the message points to locals only.
    next.is_some_and(|next| unsafe { next(to, &raw const message, MSG_NOSIGNAL) == 1 })
}

/// Receives one byte, and the descriptor with it, if there is one.
pub(crate) fn receive_descriptor(from: c_int) -> Option<(u8, Option<c_int>)> {
    type Receive = unsafe extern "C" fn(c_int, *mut Msghdr, c_int) -> isize;
    /// Flag of recvmsg(2): close received descriptors at exec.
    const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
    // SAFETY: the C function of this name has this type.
    let next: Option<Receive> = unsafe { transmute(RECVMSG.get()) };
    let mut byte = 0;
    let mut part = Iovec {
        base: &raw mut byte,
        len: 1,
    };
    let mut control = Cmsghdr {
        len: 0,
        level: 0,
        kind: 0,
        fd: -1,
    };
    let mut message = Msghdr::new(&mut part, &mut control);
    loop {
        // SAFETY: the message points to locals only, with their lengths.
        let received = unsafe { next?(from, &raw mut message, MSG_CMSG_CLOEXEC) };
        match received {
            1 => break,
            ..=-1 if c::errno() == c::EINTR => {}
            _ => return None,
        }
    }
    let there = message.control_len >= CONTROL
        && control.len == CONTROL
        && (control.level, control.kind) == (c::SOL_SOCKET, c::SCM_RIGHTS);
    Some((byte, Some(control.fd).filter(|_| there)))
}
