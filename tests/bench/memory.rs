//! Memory that is backed by the host when a run needs it.
//!
//! A host may reclaim free memory from its guest (virtio-balloon's free page reporting) in pieces
//! of 2 MiB, a second or two after it became free. The next write there waits for the host: 4 GiB
//! take 9.5 s instead of 0.6, so that a copy within one machine measures what the previous run left
//! free, and when. Therefore as much memory as the run writes is taken before it, and held until
//! the host has finished reclaiming what others have freed. It is released step by step while the
//! run takes it, since memory that stays free does not stay warm. The pieces are as large as they
//! came: if files use huge pages, so do these.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use measure::PayloadSize;

/// Bytes written at once.
const CHUNK: usize = 2 << 20;
/// Warm memory that is kept free while a run is under way, in bytes.
const READY: u64 = 768 << 20;
/// Memory released at once, in bytes.
const GIFT: u64 = 256 << 20;
/// Interval between checks of free memory; at 4 GB/s a tenth of a gigabyte.
const LOOK: Duration = Duration::from_millis(25);
/// Time to wait for the host. The kernel reports free pages two seconds after they became free
/// (mm/page_reporting.c, PAGE_REPORTING_DELAY), some of them first and the next part after as long
/// again.
const QUIET: Duration = Duration::from_secs(5);
/// Runs that write less than this do not wait.
const LARGE: u64 = 256 << 20;
/// Bit of the balloon's features for free page reporting (VIRTIO 1.2, 5.5.3).
const REPORTING: usize = 5;

/// Warm memory held for a run.
pub(crate) struct Warm {
    path: PathBuf,
    file: File,
    len: u64,
}

/// Thread that releases warm memory during a run.
pub(crate) struct Giving {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Warm {
    /// Takes as much memory as a run of `payload` writes, and more, in a file at `path`.
    pub(crate) fn take(path: &Path, payload: PayloadSize) -> io::Result<Self> {
        let mut file = File::create(path)?;
        // A small file takes at least one page.
        let bytes = payload.bytes + payload.files * 4096;
        let large = bytes >= LARGE;
        let more = if large { bytes / 8 + READY } else { 0 };
        let room = rustix::fs::fstatvfs(&file)?;
        let wanted = (bytes + more).min(room.f_bavail * room.f_frsize);
        let chunk = vec![0; CHUNK];
        let mut len = 0;
        while len + CHUNK as u64 <= wanted {
            file.write_all(&chunk)?;
            len += CHUNK as u64;
        }
        if large && taken_back() {
            thread::sleep(QUIET);
        }
        let path = path.to_owned();
        Ok(Self { path, file, len })
    }

    /// Releases the memory to the run that starts now, until that has ended.
    pub(crate) fn give(mut self) -> io::Result<Giving> {
        let before = free()?;
        self.give_some(before)?;
        let (ended, end) = channel();
        let thread = thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(LOOK) {
                if self.give_some(before).is_err() {
                    break;
                }
            }
        });
        Ok(Giving {
            ended: Some(ended),
            thread: Some(thread),
        })
    }

    /// Releases memory until `READY` bytes are free in addition to `before`.
    fn give_some(&mut self, before: u64) -> io::Result<()> {
        while self.len > 0 && free()? < before + READY {
            self.len = self.len.saturating_sub(GIFT);
            self.file.set_len(self.len)?;
        }
        Ok(())
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        // The folder is removed in any case.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reports if a balloon device reports free pages to the host.
pub(crate) fn taken_back() -> bool {
    let devices = fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon");
    devices.into_iter().flatten().flatten().any(|device| {
        let features = fs::read_to_string(device.path().join("features"));
        features.is_ok_and(|bits| bits.as_bytes().get(REPORTING) == Some(&b'1'))
    })
}

/// Returns the bytes that are unused, without caches.
fn free() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    free_of(&text).ok_or_else(|| io::Error::other("/proc/meminfo does not say what is free"))
}

fn free_of(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemFree:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_read() {
        let text = "MemTotal:       24684092 kB\nMemFree:        23983104 kB\n";
        assert_eq!(free_of(text), Some(23_983_104 << 10));
        assert_eq!(free_of("MemTotal: 1 kB\n"), None);
        assert!(free().unwrap() > 0);
    }

    #[test]
    fn what_is_taken_is_given_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warm");
        let payload = PayloadSize {
            files: 3,
            bytes: 20 << 20,
        };
        let warm = Warm::take(&path, payload).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 20 << 20);
        drop(warm.give().unwrap());
        assert!(!path.exists());
    }
}
