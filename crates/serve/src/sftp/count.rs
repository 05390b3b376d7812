//! Counts the files of a tree quickly, so that a client can decide early how many connections it
//! needs.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

/// Sampling interval: the length of one in this many files is queried.
const LOOKED_AT: u64 = 8;
/// Maximum number of directories that wait to be counted; each holds a path of at most 4 KiB.
const WAITING: usize = 4096;
/// Number of entries between looks at the clock.
const ENTRIES: u64 = 256;

/// Estimates the number of files below `top` and their bytes. If the time is up before all
/// directories are counted, the result is extrapolated as if all directories were alike. Returns
/// zeros if the kernel cannot open directories without following symlinks (openat2(2)). Mount points
/// are counted as empty if `same_device`.
pub(crate) fn below(top: BorrowedFd<'_>, until: Instant, same_device: bool) -> (u64, u64) {
    let mut count = TreeCount {
        same_device,
        ..TreeCount::default()
    };
    let mut waiting = vec![b".".to_vec()];
    let mut in_time = true;
    while in_time && let Some(path) = waiting.pop() {
        in_time = count.directory(top, &path, &mut waiting, until);
    }
    count.left_out += waiting.len() as u64;
    count.all()
}

/// Counts of the directories read so far, from which the total is extrapolated when the time is up.
#[derive(Debug, Default)]
struct TreeCount {
    /// Mount points are not entered.
    same_device: bool,
    dirs: u64,
    /// Directories that were not counted.
    left_out: u64,
    files: u64,
    /// Number of files with known lengths, and the sum of the lengths.
    known: (u64, u64),
    entries: u64,
}

impl TreeCount {
    /// Counts the entries of a directory; false if the time is up.
    fn directory(
        &mut self,
        top: BorrowedFd<'_>,
        path: &[u8],
        waiting: &mut Vec<Vec<u8>>,
        until: Instant,
    ) -> bool {
        self.dirs += 1;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        resolve.set(ResolveFlags::NO_XDEV, self.same_device);
        let opened = openat2(top, path, how, Mode::empty(), resolve);
        let Ok(mut dir) = opened.and_then(Dir::new) else {
            return true;
        };
        while let Some(Ok(entry)) = dir.read() {
            self.entries += 1;
            if self.entries.is_multiple_of(ENTRIES) && Instant::now() >= until {
                return false;
            }
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let mut of_type = entry.file_type();
            let asks = of_type == FileType::RegularFile && self.files.is_multiple_of(LOOKED_AT);
            if (asks || of_type == FileType::Unknown)
                && let Ok(fd) = dir.fd()
                && let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)
            {
                of_type = FileType::from_raw_mode(stat.st_mode);
                if of_type == FileType::RegularFile {
                    let length = u64::try_from(stat.st_size).unwrap_or(0);
                    self.known.0 += 1;
                    self.known.1 = self.known.1.saturating_add(length);
                }
            }
            match of_type {
                FileType::RegularFile => self.files += 1,
                FileType::Directory if waiting.len() < WAITING => {
                    waiting.push([path, b"/", name.to_bytes()].concat());
                }
                FileType::Directory => self.left_out += 1,
                _ => {}
            }
        }
        true
    }

    /// Extrapolates to the directories that were not counted.
    fn all(&self) -> (u64, u64) {
        let times = |n: u64, of: u64, each: u64| {
            let all = u128::from(n) * u128::from(of) / u128::from(each.max(1));
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        let files = times(self.files, self.dirs + self.left_out, self.dirs);
        (files, times(self.known.1, files, self.known.0))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_below_is_counted_and_what_there_was_no_time_for_is_guessed() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        for sub in ["a", "b", "b/c", "d"] {
            fs::create_dir(dir.path().join(sub))?;
            for file in 0..600 {
                fs::write(dir.path().join(format!("{sub}/{file}")), "12345")?;
            }
        }
        std::os::unix::fs::symlink("..", dir.path().join("loop"))?;
        let top = fs::File::open(dir.path())?;
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(below(top.as_fd(), later, false), (2400, 12000));
        let (files, bytes) = below(top.as_fd(), Instant::now(), false);
        assert!((100..5000).contains(&files), "{files}");
        assert_eq!(bytes, files * 5);
        Ok(())
    }

    #[test]
    fn an_empty_directory_has_nothing() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let top = fs::File::open(dir.path())?;
        assert_eq!(below(top.as_fd(), Instant::now(), false), (0, 0));
        Ok(())
    }
}
