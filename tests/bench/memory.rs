//! Memory that stays as warm as it is.
//!
//! A host may take free memory back from its guest (virtio-balloon's free page reporting), in pieces of
//! 2 MiB and within a second or two. Whoever writes there next waits for the host: 4 GiB take 9.5 s
//! where they took 0.6, so that a copy within one machine measures what the run before it left free, and
//! when. There is no switch for it in a guest. But a piece of 2 MiB is free only when all of it is: so
//! all memory is written to once, and then given back but for a page in each mebibyte.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// One page in so many bytes stays.
const STRIDE: u64 = 1 << 20;

/// What is written at a time.
const CHUNK: u64 = 1 << 20;

/// What is not taken at all, so that nothing else goes short meanwhile.
const LEFT: u64 = 300 << 20;

/// The bit of the balloon's features that says the guest reports what is free (VIRTIO 1.2, 5.5.3).
const REPORTING: usize = 5;

/// While it lives, free memory lies in pieces too small for a host to take.
pub(crate) struct Kept {
    _file: File,
    /// What is in a pipe can't be moved by the kernel, which would make large pieces again otherwise.
    _pipes: Vec<(OwnedFd, OwnedFd)>,
}

impl Kept {
    /// Nothing where the host takes nothing back. Some 60 s for 24 GiB, of which 0.4 % stay taken.
    pub(crate) fn where_taken_back() -> io::Result<Option<Self>> {
        if !taken_back() {
            return Ok(None);
        }
        eprintln!("this machine's host takes free memory back: all of it is touched first");
        let file = File::from(memfd_create("kept warm", MemfdFlags::CLOEXEC)?);
        let mut size = 0;
        let chunk = vec![0; CHUNK as usize];
        while free()? > LEFT {
            file.write_all_at(&chunk, size)?;
            size += CHUNK;
        }
        let mut pipes = Vec::new();
        let page = rustix::param::page_size();
        let mut room = 0;
        for start in (0..size).step_by(STRIDE as usize) {
            if room == 0 {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                // Each page takes a place, whatever it holds. Who isn't root has fewer.
                let bytes = fcntl_setpipe_size(&write, 1 << 20).unwrap_or(page);
                room = bytes / page;
                pipes.push((read, write));
            }
            let Some((_, write)) = pipes.last() else {
                break;
            };
            let mut from = start;
            splice(
                &file,
                Some(&mut from),
                write,
                None,
                page,
                SpliceFlags::NONBLOCK,
            )?;
            room -= 1;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for start in (0..size).step_by(STRIDE as usize) {
            fallocate(&file, hole, start + page as u64, STRIDE - page as u64)?;
        }
        Ok(Some(Self {
            _file: file,
            _pipes: pipes,
        }))
    }
}

/// Whether there is a balloon that reports.
fn taken_back() -> bool {
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
}
