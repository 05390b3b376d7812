//! Samples the beginnings of files that will be sent: how small zlib would make them, and how fast.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ssh::compress::Deflate;

use crate::report::{CompressibilitySample, ZlibReason};

/// The number of files sampled, and the bytes of each: the contents of a few channel packets.
const FILES: usize = 8;
const PACKET: usize = 32 << 10;
const PACKETS: usize = 2;
/// The bytes from which on TCP's slow start limits a copy. A smaller copy ends within the first
/// round trips with any congestion window.
const MUCH: u64 = 256 << 10;
/// The maximum number of directory entries examined.
const NAMES: usize = 256;
/// The time limit of the sample, since the connection waits for it.
const LONGEST: Duration = Duration::from_millis(20);

/// Samples `sources`, and with `recursive` the files in directories.
///
/// # Errors
/// There is no file that can be sampled.
pub fn look(sources: &[PathBuf], recursive: bool) -> Result<CompressibilitySample, ZlibReason> {
    let until = Instant::now() + LONGEST;
    let (mut files, total) = files(sources, recursive, u64::MAX, until);
    // The largest files contain most of the bytes.
    files.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
    deflate(files.into_iter().map(|(_, path)| path), total, until)
}

/// True if `sources`, and with `recursive` the directories in them, contain enough data (256 KiB)
/// for TCP's slow start to matter. Stops counting as soon as that is known.
pub fn is_much(sources: &[PathBuf], recursive: bool) -> bool {
    files(sources, recursive, MUCH, Instant::now() + LONGEST).1 >= MUCH
}

/// Returns the files found until `until` with their sizes, and the sum of sizes; stops when the sum
/// reaches `enough`.
fn files(
    sources: &[PathBuf],
    recursive: bool,
    enough: u64,
    until: Instant,
) -> (Vec<(u64, PathBuf)>, u64) {
    let (mut names, mut left) = (VecDeque::from(sources.to_vec()), NAMES);
    let (mut files, mut total) = (Vec::new(), 0_u64);
    while let Some(path) = names.pop_front() {
        if left == 0 || total >= enough || Instant::now() > until {
            break;
        }
        left -= 1;
        // Symlinks are followed, as in the copy.
        let Ok(meta) = fs::metadata(&path) else {
            continue;
        };
        if meta.is_file() {
            total = total.saturating_add(meta.len());
            files.push((meta.len(), path));
        } else if meta.is_dir() && recursive {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            names.extend(entries.take(left).map(|entry| entry.path()));
        }
    }
    (files, total)
}

fn deflate(
    files: impl Iterator<Item = PathBuf>,
    total: u64,
    until: Instant,
) -> Result<CompressibilitySample, ZlibReason> {
    let mut deflate = Deflate::new();
    let (mut packet, mut out) = (vec![0; PACKET], Vec::new());
    let (mut seen, mut took, mut became) =
        (CompressibilitySample::default(), Duration::ZERO, 0_u64);
    for path in files.take(FILES) {
        let Some(mut file) = open(&path) else {
            continue;
        };
        seen.files += 1;
        for _ in 0..PACKETS {
            let Ok(n @ 1..) = file.read(&mut packet) else {
                break;
            };
            out.clear();
            let start = Instant::now();
            if deflate.deflate(&packet[..n], &mut out).is_err() {
                return Err(ZlibReason::Unseen);
            }
            took += start.elapsed();
            seen.bytes += n as u64;
            became += out.len() as u64;
        }
        if Instant::now() > until {
            break;
        }
    }
    if seen.bytes == 0 {
        return Err(ZlibReason::Unseen);
    }
    seen.total = total;
    seen.left = u32::try_from(became * 1000 / seen.bytes).unwrap_or(u32::MAX);
    seen.rate = (seen.bytes as f64 / took.as_secs_f64().max(1e-9)) as u64;
    Ok(seen)
}

/// Opens a regular file. O_NONBLOCK: a FIFO that replaced it meanwhile must not block.
fn open(path: &PathBuf) -> Option<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    file.metadata()
        .is_ok_and(|meta| meta.is_file())
        .then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compresses_is_told_from_what_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (text, noise) = (dir.path().join("t/text"), dir.path().join("noise"));
        fs::create_dir(dir.path().join("t")).unwrap();
        let line = b"a line of a log that says the same again and again: 200 OK\n";
        fs::write(&text, line.repeat(10_000)).unwrap();
        let mut random = vec![0; 200_000];
        aws_lc_rs::rand::fill(&mut random).unwrap();
        fs::write(&noise, random).unwrap();

        let tree = [dir.path().join("t")];
        let seen = look(&tree, true).unwrap();
        assert!(seen.left < 200 && seen.files == 1, "{seen:?}");
        assert_eq!(seen.total, line.len() as u64 * 10_000);
        assert_eq!(look(&tree, false), Err(ZlibReason::Unseen));
        assert!(seen.total >= MUCH && is_much(&tree, true));
        assert!(!is_much(&tree, false) && !is_much(std::slice::from_ref(&noise), false));
        let seen = look(&[noise], false).unwrap();
        assert!(seen.left >= 1000, "{seen:?}");
        assert!(seen.rate > 0 && seen.bytes <= (PACKET * PACKETS) as u64);
    }

    #[test]
    fn nothing_waits_for_a_pipe_or_for_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let sources = [pipe.clone(), dir.path().join("none")];
        assert_eq!(look(&sources, true), Err(ZlibReason::Unseen));
        assert!(open(&pipe).is_none());
    }
}
