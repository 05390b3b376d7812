//! Hooks of calls that wait for several descriptors, with their waits for the report.
#![allow(unsafe_code, reason = "sets of descriptors that the program has")]

use core::ffi::{c_int, c_long, c_short, c_ulong};

use crate::waits::WaitKind;
use crate::{c, report};

/// `struct pollfd` of poll(2), whose layout the C library fixes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PollFd {
    pub(crate) fd: c_int,
    pub(crate) events: c_short,
    pub(crate) revents: c_short,
}

pub(crate) const POLLIN: c_short = 1;
const POLLOUT: c_short = 4;

/// Wraps poll(2) and adds its wait to the descriptors that became ready.
///
/// # Safety
/// `of` must point to `count` elements, or be null.
pub(crate) unsafe fn polling(
    of: *mut PollFd,
    count: c_ulong,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let since = report::since();
    let done = call();
    let errno = c::SavedErrno::keep();
    if let Some(us) = report::waited(since).filter(|_| done > 0 && !of.is_null()) {
        // SAFETY: the caller guarantees `count` elements, and the kernel has just accessed them.
        let of = unsafe { core::slice::from_raw_parts(of, count as usize) };
        for one in of {
            if one.revents & POLLIN != 0 {
                report::add(one.fd, WaitKind::Reading, us);
            }
            if one.revents & POLLOUT != 0 {
                report::add(one.fd, WaitKind::Writing, us);
            }
        }
    }
    drop(errno);
    done
}

/// Wraps select(2) and adds its wait to the descriptors that became ready.
///
/// # Safety
/// Each non-null set must have `count` bits.
pub(crate) unsafe fn selecting(
    count: c_int,
    reading: *mut c_ulong,
    writing: *mut c_ulong,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let since = report::since();
    let done = call();
    let errno = c::SavedErrno::keep();
    if let Some(us) = report::waited(since).filter(|_| done > 0) {
        for (set, what) in [(reading, WaitKind::Reading), (writing, WaitKind::Writing)] {
            if set.is_null() {
                continue;
            }
            for fd in 0..count {
                let (word, bit) = (fd as usize / LONG, fd as usize % LONG);
                // SAFETY: the caller guarantees the bits, and the kernel has just written them.
                let word = unsafe { *set.add(word) };
                if word >> bit & 1 != 0 {
                    report::add(fd, what, us);
                }
            }
        }
    }
    drop(errno);
    done
}

/// Bits of a long.
const LONG: usize = c_long::BITS as usize;
