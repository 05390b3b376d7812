//! The functions of the C library that are called, and those that are stood before. By name alone:
//! without a C library on the linker's command line no name gets a version, so that each is
//! whatever the program's own library has, be it old, new or musl.
#![allow(unsafe_code, reason = "the C library's functions")]

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

pub(crate) const AF_UNIX: u16 = 1;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const SOL_SOCKET: c_int = 1;
pub(crate) const SO_TYPE: c_int = 3;
pub(crate) const SO_ERROR: c_int = 4;
pub(crate) const SO_PEERCRED: c_int = 17;
pub(crate) const SO_RCVLOWAT: c_int = 18;
pub(crate) const SO_RCVTIMEO: c_int = 20;
pub(crate) const SO_SNDTIMEO: c_int = 21;
pub(crate) const SO_COOKIE: c_int = 57;
pub(crate) const SO_RCVTIMEO_NEW: c_int = 66;
pub(crate) const SO_SNDTIMEO_NEW: c_int = 67;
pub(crate) const SCM_RIGHTS: c_int = 1;
pub(crate) const SOCK_STREAM: c_int = 1;
pub(crate) const IPPROTO_IP: c_int = 0;
pub(crate) const IP_TOS: c_int = 1;
pub(crate) const IPPROTO_TCP: c_int = 6;
pub(crate) const TCP_INFO: c_int = 11;
pub(crate) const TCP_CONGESTION: c_int = 13;
pub(crate) const TCP_NOTSENT_LOWAT: c_int = 25;
pub(crate) const IPPROTO_IPV6: c_int = 41;
pub(crate) const IPV6_TCLASS: c_int = 67;
pub(crate) const EINTR: c_int = 4;
pub(crate) const ENOSYS: c_int = 38;
pub(crate) const ENETUNREACH: c_int = 101;
pub(crate) const ECONNABORTED: c_int = 103;
pub(crate) const ECONNRESET: c_int = 104;
pub(crate) const EISCONN: c_int = 106;
pub(crate) const ECONNREFUSED: c_int = 111;
pub(crate) const EHOSTUNREACH: c_int = 113;
pub(crate) const EINPROGRESS: c_int = 115;
const CLOCK_MONOTONIC: c_int = 1;
const F_GETFD: c_int = 1;
const F_GETFL: c_int = 3;
const F_SETFL: c_int = 4;
const FD_CLOEXEC: c_int = 1;
const O_NONBLOCK: c_int = 0o4000;
const O_WRONLY: c_int = 1;
const O_CREAT: c_int = 0o100;
const O_APPEND: c_int = 0o2000;
pub(crate) const O_CLOEXEC: c_int = 0o2_000_000;
const O_RDONLY: c_int = 0;

/// `struct timespec` where a long has 64 bits.
#[repr(C)]
struct Timespec {
    sec: i64,
    nsec: c_long,
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(family: c_int, kind: c_int, protocol: c_int, both: *mut c_int) -> c_int;
    fn getenv(name: *const c_char) -> *const c_char;
    fn readlink(path: *const c_char, buffer: *mut c_char, len: usize) -> isize;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn getpid() -> c_int;
    fn geteuid() -> u32;
    fn fcntl(fd: c_int, what: c_int, ...) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    #[cfg(longhaul_preload)]
    fn abort() -> !;
}

// Where a program finds other functions. Weak, since before glibc 2.34 dlsym() is in a library of
// its own, which not every program has; glibc has one inside then.
core::arch::global_asm!(
    ".weak dlsym",
    ".weak __libc_dlsym",
    ".weak __libc_dlopen_mode",
    ".pushsection .data.rel.ro.longhaul,\"aw\"",
    ".balign 8",
    ".globl longhaul_finders",
    ".hidden longhaul_finders",
    "longhaul_finders:",
    ".8byte dlsym",
    ".8byte __libc_dlsym",
    ".8byte __libc_dlopen_mode",
    ".popsection",
);

type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

#[repr(C)]
struct Finders {
    dlsym: Option<Find>,
    libc_dlsym: Option<Find>,
    libc_dlopen_mode: Option<Open>,
}

unsafe extern "C" {
    static longhaul_finders: Finders;
}

/// RTLD_NEXT: behind this library, in the order in which names are looked for.
const NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);
/// RTLD_NOW of a library that is there already, as glibc's own calls have it.
const RTLD_NOW_DLOPEN: c_int = 2 | i32::MIN;

/// A function that is stood before.
pub(crate) struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Where it is; null where it is nowhere. Looked for once.
    pub(crate) fn get(&self) -> *mut c_void {
        match self.at.load(Relaxed) {
            at if at.is_null() => self.find(),
            at => at,
        }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let errno = Errno::keep();
        // SAFETY: the loader has filled the table in, before any code of this library runs, and
        // nobody writes to it.
        let finders = unsafe { &longhaul_finders };
        let name = self.name.as_ptr();
        let at = match (finders.dlsym, finders.libc_dlsym, finders.libc_dlopen_mode) {
            // SAFETY: the name ends with a zero, and the handle is one that dlsym() knows.
            (Some(dlsym), _, _) => unsafe { dlsym(NEXT, name) },
            (None, Some(find), Some(open)) => {
                // SAFETY: the name ends with a zero, and that library is there already.
                let libc = unsafe { open(c"libc.so.6".as_ptr(), RTLD_NOW_DLOPEN) };
                match libc.is_null() {
                    true => ptr::null_mut(),
                    // SAFETY: the handle is of a library, and the name ends with a zero.
                    false => unsafe { find(libc, name) },
                }
            }
            _ => ptr::null_mut(),
        };
        self.at.store(at, Relaxed);
        drop(errno);
        at
    }
}

/// The program's errno, put back when this is dropped.
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) fn keep() -> Self {
        Self(errno())
    }

    /// What it will be.
    pub(crate) fn get(&self) -> c_int {
        self.0
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: it is this thread's own, and always there.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: it is this thread's own, and always there.
    unsafe { *__errno_location() = errno }
}

/// A variable of the environment; only before the program runs, which may change it.
pub(crate) fn variable(name: &CStr) -> Option<&CStr> {
    // SAFETY: the name ends with a zero.
    let value = unsafe { getenv(name.as_ptr()) };
    // SAFETY: what is not null ends with a zero, and is there until the program changes it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Where a symbolic link leads, as far as there is room.
pub(crate) fn link<'a>(path: &CStr, room: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends with a zero, and the room is as large as is said.
    let len = unsafe { readlink(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    let len = usize::try_from(len).unwrap_or(0);
    room.get(..len).unwrap_or_default()
}

/// Whether calls on a descriptor wait.
pub(crate) fn waits(fd: c_int) -> bool {
    // SAFETY: it takes no further argument.
    let flags = unsafe { fcntl(fd, F_GETFL) };
    flags >= 0 && flags & O_NONBLOCK == 0
}

/// Whether a descriptor is closed by exec.
pub(crate) fn is_closed_by_exec(fd: c_int) -> bool {
    // SAFETY: it takes no further argument.
    let flags = unsafe { fcntl(fd, F_GETFD) };
    flags >= 0 && flags & FD_CLOEXEC != 0
}

/// Calls on a descriptor wait from now on no more.
pub(crate) fn wait_no_more(fd: c_int) {
    // SAFETY: a number goes with it.
    unsafe { fcntl(fd, F_SETFL, O_NONBLOCK) };
}

/// A byte stream to a process of this machine.
pub(crate) fn local_socket() -> Option<c_int> {
    // SAFETY: it takes numbers alone.
    let fd = unsafe { socket(AF_UNIX.into(), SOCK_STREAM | O_CLOEXEC, 0) };
    (fd >= 0).then_some(fd)
}

/// Two sockets that are connected with each other.
pub(crate) fn local_pair() -> Option<[c_int; 2]> {
    let mut both = [0; 2];
    // SAFETY: the pointer is to two numbers.
    let done = unsafe {
        socketpair(
            AF_UNIX.into(),
            SOCK_STREAM | O_CLOEXEC,
            0,
            both.as_mut_ptr(),
        )
    };
    (done == 0).then_some(both)
}

/// A file to read.
pub(crate) fn open_to_read(path: &CStr) -> Option<c_int> {
    // SAFETY: the path ends with a zero, and no mode goes with these flags.
    let fd = unsafe { open(path.as_ptr(), O_RDONLY | O_CLOEXEC) };
    (fd >= 0).then_some(fd)
}

/// A file to append to.
pub(crate) fn append(path: &CStr) -> Option<c_int> {
    let flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    // SAFETY: the path ends with a zero, and a mode goes with O_CREAT.
    let fd = unsafe { open(path.as_ptr(), flags, 0o600 as c_int) };
    (fd >= 0).then_some(fd)
}

pub(crate) fn process() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { getpid() }.cast_unsigned()
}

/// The user in whose name the process acts.
pub(crate) fn user() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { geteuid() }
}

/// The monotonic clock, in microseconds.
pub(crate) fn now_us() -> u64 {
    let mut time = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the pointer is to a local.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    let (sec, us) = (time.sec.cast_unsigned(), time.nsec.cast_unsigned() / 1000);
    sec.wrapping_mul(1_000_000).wrapping_add(us)
}

/// Ends the process.
#[cfg(longhaul_preload)]
pub(crate) fn give_up() -> ! {
    // SAFETY: it does not come back.
    unsafe { abort() }
}
