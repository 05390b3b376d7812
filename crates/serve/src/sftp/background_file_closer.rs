//! Removes large files without delay. The kernel frees a file's memory inside the call that removes
//! its last name, 0.1 s for a gibibyte in memory, and the answer would wait for it. So a descriptor
//! is held until after the call and closed on another thread.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

/// Size from which files are handled so; smaller ones are freed faster than a thread starts.
const LARGE: i64 = 16 << 20;
/// Maximum number of files that are closed on threads at a time.
const MOST: usize = 4;

/// Creates and counts the threads that close large files.
#[derive(Debug, Default)]
pub(crate) struct BackgroundFileCloser {
    /// Reference count of running threads.
    threads: Arc<()>,
}

/// A file that is closed on another thread when dropped.
#[derive(Debug)]
pub(crate) struct DeferredFile(Option<(OwnedFd, Arc<()>)>);

impl BackgroundFileCloser {
    /// Holds the file with this name if it is large and about to lose its last name. It is opened
    /// with O_PATH, which needs no right to read it.
    pub(crate) fn hold(&self, dir: BorrowedFd<'_>, name: &[u8]) -> DeferredFile {
        let is_large = || {
            let stat = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            // Holes occupy nothing; st_blocks counts blocks of 512 bytes.
            (regular && stat.st_nlink == 1 && stat.st_blocks >= LARGE / 512).then_some(())
        };
        let free = Arc::strong_count(&self.threads) <= MOST;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = free
            .then(is_large)
            .flatten()
            .and_then(|()| fs::openat(dir, name, flags, Mode::empty()).ok());
        DeferredFile(held.map(|fd| (fd, Arc::clone(&self.threads))))
    }
}

impl Drop for DeferredFile {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            // Without a thread the file is closed here.
            let _ = thread::Builder::new().spawn(move || drop(held));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn large_files_with_one_name_are_held_and_a_few_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = fs::File::open(folder.path()).expect("ours");
        let at = |name: &str| folder.path().join(name);
        let data = vec![7; LARGE as usize];
        fs::write(at("large"), &data).expect("ours");
        fs::write(at("small"), &data[1 << 20..]).expect("ours");
        fs::write(at("two"), &data).expect("ours");
        fs::hard_link(at("two"), at("names")).expect("ours");
        std::os::unix::fs::symlink("large", at("link")).expect("ours");
        let leaving = BackgroundFileCloser::default();
        let hold = |name: &str| leaving.hold(dir.as_fd(), name.as_bytes());
        for name in ["small", "two", "names", "link", "none", "."] {
            assert!(hold(name).0.is_none(), "{name}");
        }
        let held: Vec<DeferredFile> = (0..=MOST).map(|_| hold("large")).collect();
        let count = held.iter().filter(|held| held.0.is_some()).count();
        assert_eq!(count, MOST);
        // Holding a file needs no right to read it.
        let none = fs::Permissions::from_mode(0o000);
        fs::set_permissions(at("large"), none).expect("ours");
        drop(held);
        while Arc::strong_count(&leaving.threads) > 1 {
            thread::yield_now();
        }
        let held = hold("large");
        assert!(held.0.is_some());
        fs::remove_file(at("large")).expect("it is there");
    }
}
