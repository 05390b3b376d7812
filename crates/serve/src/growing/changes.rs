//! Waits for changes of files in a directory.

use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};

/// Interval of the checks where the system does not report changes.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes for events. One has at most 16 bytes and a name of 256.
#[cfg(target_os = "linux")]
const EVENTS: usize = 4 << 10;

/// Reports of the system about changes in a directory, beginning with the creation of this object.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    /// An inotify instance; `None` where the system has none left.
    reports: Option<OwnedFd>,
}

impl DirectoryWatch {
    /// Begins to watch a directory.
    pub(super) fn of(directory: impl AsFd) -> Self {
        Self {
            reports: watch(directory),
        }
    }

    /// Waits until a file changes whose name `concerns` accepts, and at most this long. Returns true
    /// if there may be a change.
    pub(super) fn wait(&self, concerns: &dyn Fn(&[u8]) -> bool, longest: Duration) -> bool {
        let until = Instant::now() + longest;
        let Some(reports) = &self.reports else {
            // Nothing reports changes here, so the caller checks at intervals.
            thread::sleep(LOOK.min(longest));
            return true;
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            match next(reports, concerns, left) {
                Some(true) => return true,
                Some(false) => {}
                // Without reports the caller checks at the end of the wait.
                None => thread::sleep(left),
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn watch(directory: impl AsFd) -> Option<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let reports = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    add_watch(&reports, path, flags).ok()?;
    Some(reports)
}

/// Waits for the next reports; true if one concerns the caller, `None` if there will be none.
#[cfg(target_os = "linux")]
fn next(reports: &OwnedFd, concerns: &dyn Fn(&[u8]) -> bool, longest: Duration) -> Option<bool> {
    use std::mem::MaybeUninit;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify::{ReadFlags, Reader};
    use rustix::io::Errno;
    let timeout = Timespec::try_from(longest).ok()?;
    match poll(&mut [PollFd::new(reports, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => return None,
    }
    let mut buffer = [MaybeUninit::uninit(); EVENTS];
    let mut events = Reader::new(reports, &mut buffer);
    let mut concerned = false;
    loop {
        match events.next() {
            Ok(event) => {
                // Some reports were lost.
                let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                let name = event.file_name().map(std::ffi::CStr::to_bytes);
                concerned |= lost || name.is_some_and(concerns);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Some(concerned),
            Err(_) => return None,
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn watch(_: impl AsFd) -> Option<OwnedFd> {
    None
}

#[cfg(not(target_os = "linux"))]
fn next(_: &OwnedFd, _: &dyn Fn(&[u8]) -> bool, _: Duration) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::*;

    /// A request for a block that had not arrived looked for it 200 times a second.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_write_by_another_process_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut ours = File::create(folder.path().join("ours")).unwrap();
        let changes = DirectoryWatch::of(File::open(folder.path()).unwrap());
        let concerns = |name: &[u8]| name == b"ours" || name == b"new";
        fs::write(folder.path().join("other"), b"x").unwrap();
        assert!(!changes.wait(&concerns, Duration::from_millis(20)));
        ours.write_all(b"x").unwrap();
        let long = Duration::from_secs(600);
        assert!(changes.wait(&concerns, long));
        let path = folder.path().to_owned();
        let writer = thread::spawn(move || fs::rename(path.join("other"), path.join("new")));
        assert!(changes.wait(&concerns, long));
        writer.join().unwrap().unwrap();
    }
}
