//! The C library functions that are called, and lookup of the ones that are hooked. Functions are
//! bound by name alone: without a C library on the linker's command line no symbol gets a version,
//! so each is the one of the program's own library, be it old, new or musl.
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

/// `struct timespec` with a 64-bit long.
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

// Ways to find other functions. The symbols are weak: before glibc 2.34 dlsym() is in a separate
// library that not every program loads, and glibc's internal functions are used then.
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

type DlsymFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type DlopenFn = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Functions by which hooked symbols are looked up, as the linker has resolved them; weak ones may
/// be missing.
#[repr(C)]
struct DlFunctions {
    dlsym: Option<DlsymFn>,
    libc_dlsym: Option<DlsymFn>,
    libc_dlopen_mode: Option<DlopenFn>,
}

unsafe extern "C" {
    static longhaul_finders: DlFunctions;
}

/// RTLD_NEXT: search the libraries behind this one, in lookup order.
const NEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);
/// RTLD_NOW as glibc's internal calls pass it, for a library that is loaded already.
const RTLD_NOW_DLOPEN: c_int = 2 | i32::MIN;

/// Function of the C library behind a hook, found on first use.
pub(crate) struct OriginalFunction {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl OriginalFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The function's address; null if it was not found. The lookup happens once.
    pub(crate) fn get(&self) -> *mut c_void {
        match self.at.load(Relaxed) {
            at if at.is_null() => self.find(),
            at => at,
        }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let errno = SavedErrno::keep();
        // SAFETY: the loader fills the table in before any code of this library runs, and nothing
        // writes to it later.
        let finders = unsafe { &longhaul_finders };
        let name = self.name.as_ptr();
        let at = match (finders.dlsym, finders.libc_dlsym, finders.libc_dlopen_mode) {
            // SAFETY: the name ends with a zero, and the handle is one that dlsym() knows.
            (Some(dlsym), _, _) => unsafe { dlsym(NEXT, name) },
            (None, Some(find), Some(open)) => {
                // SAFETY: the name ends with a zero, and the library is loaded already.
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

/// The program's errno, restored when this is dropped.
pub(crate) struct SavedErrno(c_int);

impl SavedErrno {
    pub(crate) fn keep() -> Self {
        Self(errno())
    }

    /// The value to be restored.
    pub(crate) fn get(&self) -> c_int {
        self.0
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: errno belongs to this thread and always exists.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: errno belongs to this thread and always exists.
    unsafe { *__errno_location() = errno }
}

/// Reads an environment variable. Call only before the program runs, since that may change its
/// environment.
pub(crate) fn variable(name: &CStr) -> Option<&CStr> {
    // SAFETY: the name ends with a zero.
    let value = unsafe { getenv(name.as_ptr()) };
    // SAFETY: a non-null result ends with a zero, and stays valid until the program changes it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// The target of a symbolic link, cut to the size of `room`.
pub(crate) fn link<'a>(path: &CStr, room: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends with a zero, and the length is that of `room`.
    let len = unsafe { readlink(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    let len = usize::try_from(len).unwrap_or(0);
    room.get(..len).unwrap_or_default()
}

/// Returns true if the descriptor is in blocking mode.
pub(crate) fn waits(fd: c_int) -> bool {
    // SAFETY: this command has no further argument.
    let flags = unsafe { fcntl(fd, F_GETFL) };
    flags >= 0 && flags & O_NONBLOCK == 0
}

/// Returns true if exec closes the descriptor.
pub(crate) fn is_closed_by_exec(fd: c_int) -> bool {
    // SAFETY: this command has no further argument.
    let flags = unsafe { fcntl(fd, F_GETFD) };
    flags >= 0 && flags & FD_CLOEXEC != 0
}

/// Puts the descriptor into non-blocking mode.
pub(crate) fn wait_no_more(fd: c_int) {
    // SAFETY: this command takes a number.
    unsafe { fcntl(fd, F_SETFL, O_NONBLOCK) };
}

/// Creates a UNIX stream socket.
pub(crate) fn local_socket() -> Option<c_int> {
    // SAFETY: all arguments are numbers.
    let fd = unsafe { socket(AF_UNIX.into(), SOCK_STREAM | O_CLOEXEC, 0) };
    (fd >= 0).then_some(fd)
}

/// Creates a pair of connected UNIX sockets.
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

/// Opens a file for reading.
pub(crate) fn open_to_read(path: &CStr) -> Option<c_int> {
    // SAFETY: the path ends with a zero, and these flags need no mode.
    let fd = unsafe { open(path.as_ptr(), O_RDONLY | O_CLOEXEC) };
    (fd >= 0).then_some(fd)
}

/// Opens a file for appending, and creates it if missing.
pub(crate) fn append(path: &CStr) -> Option<c_int> {
    let flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    // SAFETY: the path ends with a zero, and O_CREAT has its mode.
    let fd = unsafe { open(path.as_ptr(), flags, 0o600 as c_int) };
    (fd >= 0).then_some(fd)
}

pub(crate) fn process() -> u32 {
    // SAFETY: getpid() has no arguments and cannot fail.
    unsafe { getpid() }.cast_unsigned()
}

/// The effective user ID.
pub(crate) fn user() -> u32 {
    // SAFETY: geteuid() has no arguments and cannot fail.
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

/// Aborts the process.
#[cfg(longhaul_preload)]
pub(crate) fn give_up() -> ! {
    // SAFETY: abort() does not return.
    unsafe { abort() }
}
