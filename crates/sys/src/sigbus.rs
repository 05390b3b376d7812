#![allow(
    unsafe_code,
    reason = "whoever reads memory whose file has become shorter gets a signal, and its handler is C"
)]
//! SIGBUS guard for mapped files that may be truncated while they are read.
//!
//! The kernel sends SIGBUS to the thread whose instruction reads a missing page. The handler maps
//! zeros there, sets a flag and returns, so that the instruction completes; the reader checks the
//! flag ([`SigbusGuard::is_truncated`]) before it uses the data. The handler does nothing else:
//! mmap(2) and a few atomics. A SIGBUS for other memory goes to the handler that was installed
//! before.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void};

/// Maximum number of mappings guarded at once.
const PLACES: usize = 256;
/// Length in bytes of every guarded mapping. With a fixed length one atomic holds start and end:
/// between two stores the handler could mix the start of one mapping with the end of another.
pub(crate) const LEN: usize = 6 << 20;

/// Slot for one memory mapping that is guarded against SIGBUS.
struct MappingGuardSlot {
    /// Start address of the mapping, [`FREE`], or [`TAKEN`] while it is being set.
    start: AtomicUsize,
    truncated: AtomicBool,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static PLACE: [MappingGuardSlot; PLACES] = [const {
    MappingGuardSlot {
        start: AtomicUsize::new(FREE),
        truncated: AtomicBool::new(false),
    }
}; PLACES];

static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Signal handler that was installed before ours.
struct PreviousHandler(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: `install` writes it once, before it installs the handler that reads it.
unsafe impl Sync for PreviousHandler {}

static BEFORE: PreviousHandler = PreviousHandler(UnsafeCell::new(MaybeUninit::uninit()));

/// Guard of one mapping, active until it is dropped.
#[derive(Debug)]
pub(crate) struct SigbusGuard(usize);

impl SigbusGuard {
    /// Guards the [`LEN`] bytes mapped at `start`; `None` if all slots are taken or the handler
    /// could not be installed.
    pub(crate) fn new(start: usize) -> Option<Self> {
        if !is_installed() || start <= TAKEN {
            return None;
        }
        let (taken, free) = (Ordering::Acquire, Ordering::Relaxed);
        let take = |place: &MappingGuardSlot| {
            let took = place.start.compare_exchange(FREE, TAKEN, taken, free);
            took.is_ok()
        };
        let at = PLACE.iter().position(take)?;
        let place = PLACE.get(at)?;
        place.truncated.store(false, Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        Some(Self(at))
    }

    /// Returns true if a missing page was read; the reader got zeros, which stay mapped.
    pub(crate) fn is_truncated(&self) -> bool {
        PLACE
            .get(self.0)
            .is_none_or(|place| place.truncated.load(Ordering::Acquire))
    }
}

impl Drop for SigbusGuard {
    fn drop(&mut self) {
        if let Some(place) = PLACE.get(self.0) {
            place.start.store(FREE, Ordering::Release);
        }
    }
}

fn is_installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| install().is_ok())
}

fn install() -> io::Result<()> {
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: all zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the first call writes the current action to `BEFORE`, which has no reader yet.
    let set = unsafe {
        match libc::sigaction(libc::SIGBUS, ptr::null(), BEFORE.0.get().cast()) {
            0 => libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()),
            failed => failed,
        }
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_bus(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a siginfo_t to a handler with SA_SIGINFO, and a fault's siginfo_t
    // has an address.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && mend(at) {
        return;
    }
    // Not ours: restore the old handler, so that the repeated instruction runs into it.
    // SAFETY: `install` has written `BEFORE`.
    unsafe { libc::sigaction(signal, BEFORE.0.get().cast(), ptr::null_mut()) };
    if code <= 0 {
        // A process sent the signal, and no instruction repeats it.
        // SAFETY: raise(3) may be called in a signal handler.
        unsafe { libc::raise(signal) };
    }
}

/// Maps zeros from the missing page at `at` to the end of its guarded mapping; false if `at` is in
/// none.
fn mend(at: usize) -> bool {
    let found = PLACE.iter().find_map(|place| {
        let start = place.start.load(Ordering::Acquire);
        let holds = start > TAKEN && (start..start.saturating_add(LEN)).contains(&at);
        holds.then_some((place, start))
    });
    let Some((place, start)) = found else {
        return false;
    };
    // The flag is set before any thread can read the zeros.
    place.truncated.store(true, Ordering::Release);
    let page = at - at % PAGE.load(Ordering::Relaxed).max(1);
    // SAFETY: the replaced pages belong to a guarded mapping, which is not unmapped while it is
    // read, and they stay readable.
    let mended = unsafe {
        libc::mmap(
            page as *mut c_void,
            start + LEN - page,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mended != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    #[test]
    fn so_many_are_watched_and_no_more_and_each_by_itself() {
        let mut all: Vec<SigbusGuard> = (1..=PLACES)
            .map_while(|n| SigbusGuard::new(n * LEN))
            .collect();
        // Other tests use guards too.
        assert!(all.len() > PLACES / 2);
        assert!(SigbusGuard::new(LEN).is_none());
        assert!(!all.iter().any(SigbusGuard::is_truncated));
        all.truncate(1);
        assert!(SigbusGuard::new(LEN).is_some());
    }

    /// A SIGBUS for other memory ends the process, as without our handler.
    #[test]
    fn a_sigbus_of_others_goes_where_it_would_have_gone() {
        const ASKED: &str = "SYS_TESTS_TAKE_A_PAGE_AWAY";
        if std::env::var_os(ASKED).is_some() {
            assert!(is_installed());
            let file = tempfile::tempfile().unwrap();
            file.set_len(100).unwrap();
            // SAFETY: the kernel chooses the address; reading there raises SIGBUS, which ends this
            // process.
            let read = unsafe {
                let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
                let page = libc::mmap(ptr::null_mut(), 100, prot, flags, file.as_raw_fd(), 0);
                assert_ne!(page, libc::MAP_FAILED);
                file.set_len(0).unwrap();
                page.cast::<u8>().read_volatile()
            };
            unreachable!("{read} was read where nothing is");
        }
        use std::os::unix::process::ExitStatusExt as _;
        let this = std::env::current_exe().unwrap();
        let name = "sigbus::tests::a_sigbus_of_others_goes_where_it_would_have_gone";
        let mut child = Command::new(this);
        let status = child.args(["--exact", name]).env(ASKED, "1").output();
        assert_eq!(status.unwrap().status.signal(), Some(libc::SIGBUS));
    }
}
