//! Makes copied files durable with syncfs(2), in batches.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, syncfs};

/// The minimum interval between two syncs of copied files.
const EACH: Duration = Duration::from_secs(5);

/// Devices (st_dev), each with one copied file on it.
pub(crate) type FileDevices = BTreeMap<u64, PathBuf>;

/// Makes local files durable that were not synced one by one, with syncfs(2) on a thread, since
/// that may take long. Mounts and symlinks below a destination may lead to other file systems; each
/// one that received a file is synced.
pub(crate) struct FileSystemFlusher {
    /// True if files are copied to this machine.
    here: bool,
    /// The number of finished files that are not durable, and how many of these are being synced.
    soft: u64,
    under_way: u64,
    /// The devices of files that are not being synced, and of those that are.
    devices: FileDevices,
    syncing: FileDevices,
    /// Files that an earlier run finished; their devices are not known yet.
    earlier: Arc<[PathBuf]>,
    thread: Option<JoinHandle<bool>>,
    begun: Instant,
}

impl FileSystemFlusher {
    /// Creates an empty batch; `here` is true if files are copied to this machine.
    pub(crate) fn new(here: bool) -> Self {
        Self {
            here,
            soft: 0,
            under_way: 0,
            devices: FileDevices::new(),
            syncing: FileDevices::new(),
            earlier: Arc::default(),
            thread: None,
            begun: Instant::now(),
        }
    }

    /// Adds `soft` files that an earlier run finished, of which `files` may still exist.
    pub(crate) fn with_earlier(mut self, soft: u64, files: Vec<PathBuf>) -> Self {
        self.soft = soft;
        self.earlier = files.into();
        self
    }

    /// Records the device of a finished file; call before [`FileSystemFlusher::add`].
    pub(super) fn lies_on(&mut self, device: u64, file: &Path) {
        let file = || file.to_path_buf();
        self.devices.entry(device).or_insert_with(file);
    }

    /// Counts one more finished file.
    pub(super) fn add(&mut self) {
        self.soft += 1;
    }

    /// Returns how many more files, in order, have become durable; starts the next sync if it is
    /// due.
    pub(super) fn poll(&mut self) -> Option<u64> {
        if self.soft == 0 || !self.here {
            return None;
        }
        let over = self.thread.take_if(|thread| thread.is_finished());
        let done = over.map(|thread| thread.join().unwrap_or(false));
        let files = done.and_then(|done| self.ended(done));
        if self.soft > 0 && self.thread.is_none() && self.begun.elapsed() >= EACH {
            self.begin();
        }
        files
    }

    /// Handles the end of a sync: the files are durable, or have to be synced again.
    fn ended(&mut self, done: bool) -> Option<u64> {
        let syncing = std::mem::take(&mut self.syncing);
        if !done {
            for (device, file) in syncing {
                // A newer file of this device is more likely to exist.
                self.devices.entry(device).or_insert(file);
            }
            return None;
        }
        self.earlier = Arc::default();
        let files = std::mem::take(&mut self.under_way);
        self.soft -= files;
        Some(files)
    }

    fn begin(&mut self) {
        self.begun = Instant::now();
        self.under_way = self.soft;
        self.syncing = std::mem::take(&mut self.devices);
        let (devices, earlier) = (self.syncing.clone(), Arc::clone(&self.earlier));
        let thread = std::thread::Builder::new().name("journal syncfs".to_owned());
        let flush = move || sync_all(devices, &earlier).is_ok();
        self.thread = thread.spawn(flush).ok();
        if self.thread.is_none() {
            self.ended(false);
        }
    }
}

/// Syncs these devices and those of the `earlier` files.
fn sync_all(mut devices: FileDevices, earlier: &[PathBuf]) -> io::Result<()> {
    for file in earlier {
        match fs::metadata(file) {
            Ok(meta) => {
                devices.entry(meta.dev()).or_insert_with(|| file.clone());
            }
            // A file that does not exist is not taken for finished later.
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(e),
        }
    }
    for on in open_all(&devices)? {
        syncfs(&on)?;
    }
    Ok(())
}

fn is_gone(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Opens a file or folder on each device; fails if one is no longer reachable, and then nothing is
/// synced.
fn open_all(devices: &FileDevices) -> io::Result<Vec<File>> {
    let opened = devices.iter().map(|(device, file)| open_on(*device, file));
    opened.collect()
}

/// Opens the folder of `file`, or the file itself if the folder is on another device (as with a
/// symlink) or unreadable.
fn open_on(device: u64, file: &Path) -> io::Result<File> {
    let above = file.parent().filter(|p| !p.as_os_str().is_empty());
    let above = above.unwrap_or_else(|| Path::new("."));
    // Opening a FIFO that took the file's place would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    for path in [above, file] {
        let Ok(fd) = openat(CWD, path, flags, Mode::empty()) else {
            continue;
        };
        let opened = File::from(fd);
        if opened.metadata()?.dev() == device {
            return Ok(opened);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
