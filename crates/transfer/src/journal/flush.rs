use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, syncfs};

/// How often what was done here is made durable, at most.
const EACH: Duration = Duration::from_secs(5);

/// Devices (st_dev), and one file on each that was copied there.
pub(crate) type Devices = BTreeMap<u64, PathBuf>;

/// Makes files durable that were copied to this machine and not synced one by one: they are when
/// their file system has written what it had, which may take long. Nothing waits for it. Below a
/// destination may be mounts, and symlinks to others: each file system that got a file is synced.
pub(crate) struct SyncBatch {
    /// Files are copied to this machine.
    here: bool,
    /// Files done that are not durable, and of them those that are being made so.
    soft: u64,
    under_way: u64,
    /// Where those lie that are not being made durable, and those that are.
    devices: Devices,
    syncing: Devices,
    /// Those that an earlier run has done. Nobody has looked yet where they lie.
    earlier: Arc<[PathBuf]>,
    thread: Option<JoinHandle<bool>>,
    begun: Instant,
}

impl SyncBatch {
    /// Of files that are copied to this machine, or not.
    pub(crate) fn new(here: bool) -> Self {
        Self {
            here,
            soft: 0,
            under_way: 0,
            devices: Devices::new(),
            syncing: Devices::new(),
            earlier: Arc::default(),
            thread: None,
            begun: Instant::now(),
        }
    }

    /// `soft` files were done by an earlier run, of which `files` may still be there.
    pub(crate) fn with_earlier(mut self, soft: u64, files: Vec<PathBuf>) -> Self {
        self.soft = soft;
        self.earlier = files.into();
        self
    }

    /// A file that is done lies on this device: before [`SyncBatch::add`].
    pub(super) fn lies_on(&mut self, device: u64, file: &Path) {
        let file = || file.to_path_buf();
        self.devices.entry(device).or_insert_with(file);
    }

    /// One more is done.
    pub(super) fn add(&mut self) {
        self.soft += 1;
    }

    /// How many files have become durable, the first ones; begins with more if it is time.
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

    /// Those that were under way are durable, or have to be made so once more.
    fn ended(&mut self, done: bool) -> Option<u64> {
        let syncing = std::mem::take(&mut self.syncing);
        if !done {
            for (device, file) in syncing {
                // What came since is there rather.
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

/// Syncs these devices, and those that `earlier` files lie on.
fn sync_all(mut devices: Devices, earlier: &[PathBuf]) -> io::Result<()> {
    for file in earlier {
        match fs::metadata(file) {
            Ok(meta) => {
                devices.entry(meta.dev()).or_insert_with(|| file.clone());
            }
            // Nobody takes for done what is not there.
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

/// Something open on each of these devices: one that cannot be reached any more is not synced.
fn open_all(devices: &Devices) -> io::Result<Vec<File>> {
    let opened = devices.iter().map(|(device, file)| open_on(*device, file));
    opened.collect()
}

/// The folder of `file` or, where that is on another device, as that of a symlink may be, or may
/// not be read, the file.
fn open_on(device: u64, file: &Path) -> io::Result<File> {
    let above = file.parent().filter(|p| !p.as_os_str().is_empty());
    let above = above.unwrap_or_else(|| Path::new("."));
    // To open a FIFO that has come there meanwhile would wait for whoever writes it.
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
