//! Memory that is warm when a run wants it.
//!
//! A host may take free memory back from its guest (virtio-balloon's free page reporting), in pieces of
//! 2 MiB, a second or two after it became free. Whoever writes there next waits for the host: 4 GiB take
//! 9.5 s where they took 0.6, so that a copy within one machine measures what the run before it left free,
//! and when. So as much as a run writes is taken before it, and held until the host has done with what
//! others have left; and it is given to the run little by little, as that takes it, since what is free for
//! longer is not warm any more. It is given in pieces as large as it came: where files lie in huge pages,
//! theirs are huge too.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use measure::Payload;

/// Written at a time.
const CHUNK: usize = 2 << 20;
/// So much that is warm is free while a run is on its way, ...
const READY: u64 = 768 << 20;
/// ... and so much is given at once.
const GIFT: u64 = 256 << 20;
/// How often it is looked at what is free: at 4 GB/s a tenth of a gigabyte.
const LOOK: Duration = Duration::from_millis(25);
/// The kernel reports what is free two seconds after it became so (mm/page_reporting.c,
/// PAGE_REPORTING_DELAY); some of it then, the next part after as long again.
const QUIET: Duration = Duration::from_secs(5);
/// For less than this it is not worth waiting.
const LARGE: u64 = 256 << 20;
/// The bit of the balloon's features that says the guest reports what is free (VIRTIO 1.2, 5.5.3).
const REPORTING: usize = 5;

/// Memory for a run, held.
pub(crate) struct Warm {
    path: PathBuf,
    file: File,
    len: u64,
}

/// Memory that a run is given.
pub(crate) struct Giving {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Warm {
    /// Takes as much as a run of `payload` writes, and more, in a file at `path`.
    pub(crate) fn take(path: &Path, payload: Payload) -> io::Result<Self> {
        let mut file = File::create(path)?;
        // A small file takes a page at least.
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

    /// Gives it to the run that begins now, until that has ended.
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

    /// Until enough is free beside what was `before`.
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
        // The folder goes anyhow.
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

/// Whether there is a balloon that reports.
pub(crate) fn taken_back() -> bool {
    let devices = fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon");
    devices.into_iter().flatten().flatten().any(|device| {
        let features = fs::read_to_string(device.path().join("features"));
        features.is_ok_and(|bits| bits.as_bytes().get(REPORTING) == Some(&b'1'))
    })
}

/// Bytes that nothing uses, caches neither.
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
        let payload = Payload {
            files: 3,
            bytes: 20 << 20,
        };
        let warm = Warm::take(&path, payload).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 20 << 20);
        drop(warm.give().unwrap());
        assert!(!path.exists());
    }
}
