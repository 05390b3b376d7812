//! The hooks: functions that replace those of the C library. Each passes the call on unchanged;
//! everything else is done in other modules.
#![allow(unsafe_code, reason = "functions with the C library's names and types")]

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::transmute;

use crate::c::{self, OriginalFunction};
use crate::connecting;
use crate::socket::Fd;
use crate::waiting::{PollFd, polling, selecting};
use crate::waits::WaitKind;
use crate::{filter, init, report, table, watch};

/// Defines a hook: its name, its arguments, and a body that can call `next`, the unchanged call,
/// and `function`, the hooked function. While there is nothing to do, calls go straight to the
/// function.
macro_rules! hooks {
    ($($(#[$meta:meta])* $name:ident in $slot:ident
        ($($arg:ident: $type:ty),*) -> $ret:ty, $next:ident, $function:ident => $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The contract is that of the C function of this name.
            #[cfg_attr(longhaul_preload, unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
                let found = $slot.get();
                if found.is_null() {
                    c::set_errno(c::ENOSYS);
                    return -1;
                }
                type Function = unsafe extern "C" fn($($type),*) -> $ret;
                // SAFETY: the C function of this name has this type.
                let $function: Function = unsafe { transmute(found) };
                // SAFETY: the arguments are the program's, which is responsible for them.
                let $next = || unsafe { $function($($arg),*) };
                if !init::is_on() {
                    return $next();
                }
                $body
            }
        )*
    };
}

macro_rules! slots {
    ($($slot:ident $name:literal)*) => { $(pub(crate) static $slot: OriginalFunction = OriginalFunction::new($name);)* };
}

slots! {
    CONNECT c"connect"
    GETPEERNAME c"getpeername"
    GETSOCKNAME c"getsockname"
    GETSOCKOPT c"getsockopt"
    SETSOCKOPT c"setsockopt"
    EPOLL_CTL c"epoll_ctl"
    EPOLL_WAIT c"epoll_wait"
    EPOLL_PWAIT c"epoll_pwait"
    WRITE c"write"
    WRITEV c"writev"
    SEND c"send"
    SENDTO c"sendto"
    SENDMSG c"sendmsg"
    SENDFILE c"sendfile"
    SENDFILE64 c"sendfile64"
    READ c"read"
    READV c"readv"
    RECV c"recv"
    RECVFROM c"recvfrom"
    RECVMSG c"recvmsg"
    POLL c"poll"
    PPOLL c"ppoll"
    SELECT c"select"
    PSELECT c"pselect"
    CLOSE c"close"
    DUP c"dup"
    DUP2 c"dup2"
    DUP3 c"dup3"
    EXIT c"_exit"
    EXIT2 c"_Exit"
}

/// `struct epoll_event`, which is packed on x86-64 (epoll_event(3type)).
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy)]
pub struct EpollEvent {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// Wraps a call that writes to a descriptor.
fn writing(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    filter::settle(fd);
    let watched = table::entry(fd).filter(|entry| !entry.is_free());
    let (Some(entry), Some(rules)) = (watched, init::rules()) else {
        return call();
    };
    let errno = c::SavedErrno::keep();
    watch::writing(rules, &init::MEMORY, entry, &Fd(fd));
    let since = report::since();
    drop(errno);
    let done = call();
    let errno = c::SavedErrno::keep();
    if let Some(us) = report::waited(since) {
        report::add(fd, WaitKind::Writing, us);
    }
    if let Ok(bytes @ 1..) = u64::try_from(done) {
        watch::wrote(rules, entry, &Fd(fd), bytes);
    }
    drop(errno);
    done
}

/// Wraps a call that reads from a descriptor.
fn reading(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    filter::settle(fd);
    let call = || match call() {
        0 => filter::end(fd),
        done => done,
    };
    let Some(since) = report::since_on(fd) else {
        return call();
    };
    let done = call();
    let errno = c::SavedErrno::keep();
    if let Some(us) = report::waited(Some(since)) {
        report::add(fd, WaitKind::Reading, us);
    }
    drop(errno);
    done
}

hooks! {
    /// Hook of connect(2).
    connect in CONNECT(fd: c_int, address: *const c_void, len: u32) -> c_int, next, function => {
        if address.is_null() || len < 2 {
            return next();
        }
        let most = (len as usize).min(connecting::LONGEST);
        // SAFETY: the program guarantees `len` bytes, and `most` is at most `len`.
        let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), most) };
        let Some(peer) = connecting::address(bytes) else {
            return next();
        };
        connecting::connect(fd, peer, next, |relay| {
            let (at, len) = (relay.bytes.as_ptr().cast(), relay.len as u32);
            // SAFETY: the pointer and the length are those of an address that outlives the call.
            unsafe { function(fd, at, len) }
        })
    }
    /// Hook of setsockopt(2).
    setsockopt in SETSOCKOPT
        (fd: c_int, level: c_int, option: c_int, value: *const c_void, len: u32) -> c_int,
        next, function => {
        let marks = is_mark(level, option);
        let watched = table::entry(fd).filter(|entry| marks && !entry.is_free());
        let Some(entry) = watched.filter(|_| !value.is_null() && len >= 4) else {
            // SAFETY: the arguments are the program's, except the descriptor.
            return of_socket(fd, level, option, |fd| unsafe {
                function(fd, level, option, value, len)
            });
        };
        // SAFETY: the program guarantees `len` bytes, and `len` is at least 4.
        let mark = unsafe { value.cast::<c_int>().read_unaligned() };
        let errno = c::SavedErrno::keep();
        let kept_off = watch::keeps_off(entry, &Fd(fd), mark as u8);
        drop(errno);
        if kept_off {
            return 0;
        }
        // SAFETY: the arguments are the program's, except the descriptor.
        of_socket(fd, level, option, |fd| unsafe { function(fd, level, option, value, len) })
    }
    /// Hook of getsockopt(2).
    getsockopt in GETSOCKOPT
        (fd: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut u32) -> c_int,
        next, function => {
        // SAFETY: the arguments are the program's, except the descriptor.
        let done = of_socket(fd, level, option, |fd| unsafe {
            function(fd, level, option, value, len)
        });
        if done == 0 && (level, option) == (c::SOL_SOCKET, c::SO_ERROR) {
            filter::settle(fd);
        }
        if done == 0 && is_mark(level, option) && !value.is_null() && !len.is_null() {
            let watched = table::entry(fd).filter(|entry| !entry.is_free());
            let errno = c::SavedErrno::keep();
            let wanted = watched.and_then(|entry| watch::wanted_mark(entry, &Fd(fd)));
            drop(errno);
            if let Some(wanted) = wanted {
                let mark = c_int::from(wanted).to_ne_bytes();
                // SAFETY: the kernel has written `len` bytes there. For IP_TOS that is a single
                // byte if the program has no room for four.
                unsafe {
                    match *len {
                        4.. => value.cast::<[u8; 4]>().write_unaligned(mark),
                        1..4 => value.cast::<u8>().write(wanted),
                        0 => {}
                    }
                }
            }
        }
        done
    }
    /// Hook of getpeername(2).
    getpeername in GETPEERNAME
        (fd: c_int, address: *mut c_void, len: *mut u32) -> c_int, next, function => {
        filter::settle(fd);
        // SAFETY: the arguments are the program's, except the descriptor.
        filter::on_real(fd, |fd| unsafe { function(fd, address, len) })
    }
    /// Hook of getsockname(2).
    getsockname in GETSOCKNAME
        (fd: c_int, address: *mut c_void, len: *mut u32) -> c_int, next, function => {
        // SAFETY: the arguments are the program's, except the descriptor.
        filter::on_real(fd, |fd| unsafe { function(fd, address, len) })
    }
    /// Hook of epoll_ctl(2).
    epoll_ctl in EPOLL_CTL
        (epoll: c_int, what: c_int, fd: c_int, event: *mut EpollEvent) -> c_int, next, function => {
        filter::has_epoll(epoll);
        filter::settle(fd);
        next()
    }
    /// Hook of epoll_wait(2).
    epoll_wait in EPOLL_WAIT
        (epoll: c_int, events: *mut EpollEvent, most: c_int, timeout: c_int) -> c_int,
        next, function => {
        filter::has_epoll(epoll);
        next()
    }
    /// Hook of epoll_pwait(2).
    epoll_pwait in EPOLL_PWAIT
        (epoll: c_int, events: *mut EpollEvent, most: c_int, timeout: c_int, mask: *const c_void)
        -> c_int, next, function => {
        filter::has_epoll(epoll);
        next()
    }
    /// Hook of write(2).
    write in WRITE(fd: c_int, from: *const c_void, len: usize) -> isize, next, function => {
        writing(fd, next)
    }
    /// Hook of writev(2).
    writev in WRITEV(fd: c_int, parts: *const c_void, count: c_int) -> isize, next, function => {
        writing(fd, next)
    }
    /// Hook of send(2).
    send in SEND(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize, next, function => {
        writing(fd, next)
    }
    /// Hook of sendto(2).
    sendto in SENDTO
        (fd: c_int, from: *const c_void, len: usize, flags: c_int, to: *const c_void, to_len: u32)
        -> isize, next, function => {
        writing(fd, next)
    }
    /// Hook of sendmsg(2).
    sendmsg in SENDMSG(fd: c_int, message: *const c_void, flags: c_int) -> isize, next, function => {
        writing(fd, next)
    }
    /// Hook of sendfile(2).
    sendfile in SENDFILE
        (to: c_int, from: c_int, offset: *mut c_void, len: usize) -> isize, next, function => {
        writing(to, next)
    }
    /// Hook of sendfile64(), glibc's sendfile(2) for large files.
    sendfile64 in SENDFILE64
        (to: c_int, from: c_int, offset: *mut c_void, len: usize) -> isize, next, function => {
        writing(to, next)
    }
    /// Hook of read(2).
    read in READ(fd: c_int, to: *mut c_void, len: usize) -> isize, next, function => {
        reading(fd, next)
    }
    /// Hook of readv(2).
    readv in READV(fd: c_int, parts: *const c_void, count: c_int) -> isize, next, function => {
        reading(fd, next)
    }
    /// Hook of recv(2).
    recv in RECV(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize, next, function => {
        reading(fd, next)
    }
    /// Hook of recvfrom(2).
    recvfrom in RECVFROM
        (fd: c_int, to: *mut c_void, len: usize, flags: c_int, from: *mut c_void,
         from_len: *mut u32) -> isize, next, function => {
        reading(fd, next)
    }
    /// Hook of recvmsg(2).
    recvmsg in RECVMSG(fd: c_int, message: *mut c_void, flags: c_int) -> isize, next, function => {
        reading(fd, next)
    }
    /// Hook of poll(2).
    poll in POLL(of: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int, next, function => {
        // SAFETY: the program guarantees `count` elements.
        unsafe { polling(of, count, next) }
    }
    /// Hook of ppoll(2).
    ppoll in PPOLL
        (of: *mut PollFd, count: c_ulong, timeout: *const c_void, mask: *const c_void) -> c_int,
        next, function => {
        // SAFETY: the program guarantees `count` elements.
        unsafe { polling(of, count, next) }
    }
    /// Hook of select(2).
    select in SELECT
        (count: c_int, reading: *mut c_ulong, writing: *mut c_ulong, other: *mut c_ulong,
         timeout: *mut c_void) -> c_int, next, function => {
        // SAFETY: the program guarantees that its sets have `count` bits.
        unsafe { selecting(count, reading, writing, next) }
    }
    /// Hook of pselect(2).
    pselect in PSELECT
        (count: c_int, reading: *mut c_ulong, writing: *mut c_ulong, other: *mut c_ulong,
         timeout: *const c_void, mask: *const c_void) -> c_int, next, function => {
        // SAFETY: the program guarantees that its sets have `count` bits.
        unsafe { selecting(count, reading, writing, next) }
    }
    /// Hook of close(2).
    close in CLOSE(fd: c_int) -> c_int, next, function => {
        report::closing(fd);
        next()
    }
    /// Hook of dup(2).
    dup in DUP(fd: c_int) -> c_int, next, function => {
        let to = next();
        report::copied(fd, to);
        to
    }
    /// Hook of dup2(2).
    dup2 in DUP2(fd: c_int, to: c_int) -> c_int, next, function => {
        onto(fd, to, next)
    }
    /// Hook of dup3(2).
    dup3 in DUP3(fd: c_int, to: c_int, flags: c_int) -> c_int, next, function => {
        onto(fd, to, next)
    }
}

/// Returns true if an option sets the TOS byte or traffic class, which has the DSCP.
fn is_mark(level: c_int, option: c_int) -> bool {
    matches!(
        (level, option),
        (c::IPPROTO_IP, c::IP_TOS) | (c::IPPROTO_IPV6, c::IPV6_TCLASS)
    )
}

/// Calls a function about an option, on the socket that the option concerns.
fn of_socket(fd: c_int, level: c_int, option: c_int, call: impl FnOnce(c_int) -> c_int) -> c_int {
    match filter::is_of_the_pair(level, option) {
        true => call(fd),
        false => filter::on_real(fd, call),
    }
}

/// Duplicates a descriptor onto `to`, which closes the file that had that number.
fn onto(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if fd != to {
        report::closing(to);
    }
    let done = call();
    report::copied(fd, done);
    done
}

/// Hook of _exit(2), which skips the functions at the end of a program.
///
/// # Safety
/// The contract is that of the C function of this name.
#[cfg_attr(longhaul_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    leave(&EXIT, code)
}

/// Hook of _Exit(3), another name of _exit(2).
///
/// # Safety
/// The contract is that of the C function of this name.
#[cfg_attr(longhaul_preload, unsafe(no_mangle))]
#[allow(non_snake_case, reason = "the name that C has given it")]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    leave(&EXIT2, code)
}

fn leave(next: &OriginalFunction, code: c_int) -> ! {
    report::end();
    // SAFETY: the C function of this name has this type.
    let next: Option<unsafe extern "C" fn(c_int) -> !> = unsafe { transmute(next.get()) };
    loop {
        if let Some(next) = next {
            // SAFETY: any number is valid.
            unsafe { next(code) }
        }
    }
}
