#![allow(
    unsafe_code,
    reason = "whoever reads memory whose file has become shorter gets a signal, and its handler is C"
)]
//! Memory that may be taken away while it is read, as that of a file which becomes shorter.
//!
//! The kernel sends SIGBUS to the thread that reads it, in the middle of the instruction that does. The
//! handler has zeros mapped there, notes it, and the instruction goes on; who has read asks for the note
//! ([`Watched::is_torn`]) before anything is made of it. Nothing else is done in the handler: mmap(2) and
//! a few atomics. A SIGBUS that is not about such memory goes where it would have gone.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void};

/// Places that are watched at once.
const PLACES: usize = 256;
/// All that is watched is so long, so that one atomic says where a place begins and ends: in the middle of
/// two the handler would take the beginning of one for that of another.
pub(crate) const LEN: usize = 6 << 20;

/// What is watched.
struct Place {
    /// Where it begins; [`FREE`], or [`TAKEN`] by somebody who is about to say.
    start: AtomicUsize,
    torn: AtomicBool,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static PLACE: [Place; PLACES] = [const {
    Place {
        start: AtomicUsize::new(FREE),
        torn: AtomicBool::new(false),
    }
}; PLACES];

static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The handler that was there before.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: it is written by `install`, once, before the handler that reads it is set.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// Memory that is watched, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched(usize);

impl Watched {
    /// Watches the [`LEN`] bytes that are mapped from `start` on; `None` where too much is watched already, or
    /// the handler could not be set.
    pub(crate) fn new(start: usize) -> Option<Self> {
        if !is_installed() || start <= TAKEN {
            return None;
        }
        let (taken, free) = (Ordering::Acquire, Ordering::Relaxed);
        let take = |place: &Place| {
            let took = place.start.compare_exchange(FREE, TAKEN, taken, free);
            took.is_ok()
        };
        let at = PLACE.iter().position(take)?;
        let place = PLACE.get(at)?;
        place.torn.store(false, Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        Some(Self(at))
    }

    /// Whether any of it was read that was not there: zeros were, and are there now.
    pub(crate) fn is_torn(&self) -> bool {
        PLACE
            .get(self.0)
            .is_none_or(|place| place.torn.load(Ordering::Acquire))
    }
}

impl Drop for Watched {
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
    // SAFETY: all zeros are a sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler that is there is written to `BEFORE` by the first call, which nobody reads yet.
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
    // SAFETY: the kernel hands a siginfo_t to a handler with SA_SIGINFO, and a fault's has an address.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && mend(at) {
        return;
    }
    // Not ours. The instruction comes here again, or to its end.
    // SAFETY: `install` has written it.
    unsafe { libc::sigaction(signal, BEFORE.0.get().cast(), ptr::null_mut()) };
    if code <= 0 {
        // Somebody has sent it, and no instruction will.
        // SAFETY: it may be called in a handler.
        unsafe { libc::raise(signal) };
    }
}

/// Has zeros where what `at` was in has been taken away, up to the end of what is watched.
fn mend(at: usize) -> bool {
    let found = PLACE.iter().find_map(|place| {
        let start = place.start.load(Ordering::Acquire);
        let holds = start > TAKEN && (start..start.saturating_add(LEN)).contains(&at);
        holds.then_some((place, start))
    });
    let Some((place, start)) = found else {
        return false;
    };
    // Before anybody can read the zeros.
    place.torn.store(true, Ordering::Release);
    let page = at - at % PAGE.load(Ordering::Relaxed).max(1);
    // SAFETY: what is replaced belongs to what is watched, which nobody unmaps while it is read, and it
    // stays readable.
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
        let mut all: Vec<Watched> = (1..=PLACES).map_while(|n| Watched::new(n * LEN)).collect();
        // Other tests watch something as well.
        assert!(all.len() > PLACES / 2);
        assert!(Watched::new(LEN).is_none());
        assert!(!all.iter().any(Watched::is_torn));
        all.truncate(1);
        assert!(Watched::new(LEN).is_some());
    }

    /// What is not about watched memory ends the process, as if nobody had looked.
    #[test]
    fn a_sigbus_of_others_goes_where_it_would_have_gone() {
        const ASKED: &str = "SYS_TESTS_TAKE_A_PAGE_AWAY";
        if std::env::var_os(ASKED).is_some() {
            assert!(is_installed());
            let file = tempfile::tempfile().unwrap();
            file.set_len(100).unwrap();
            // SAFETY: the kernel chooses where; what is read there takes a signal, which ends this process.
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
