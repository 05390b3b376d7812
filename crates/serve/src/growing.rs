//! Serves a file that another program is still writing as if it were complete.
//!
//! In a fan-out a host passes a file on while it receives it. The file has a temporary name until
//! it is complete, and its parts arrive in any order. A range is served once its blocks have the
//! checksums that the starter of the copy has sent: docs/design/0024-fan-out.md.

mod changes;

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{self, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::changes::DirectoryWatch;
use crate::beneath::{PathRoot, components, split};

/// Time without a complete block after which a request fails. The starter of the copy ends it
/// earlier if the host fails from which the block should come.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time between two checks of a block whose file is being written.
const LOOK: Duration = Duration::from_millis(2);
/// Longest time between two checks: a file system may not report changes.
const LONGEST_LOOK: Duration = Duration::from_millis(200);
/// Interval at which other files with such a name are looked for.
const SEARCH: Duration = Duration::from_millis(100);
/// Files that a search looks at.
const MOST_FOUND: usize = 64;
/// Bytes that are hashed at once.
const PIECE: usize = 256 << 10;

/// Attributes and checksums of a file that is still being written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowingFileSpec {
    /// Size of the complete file in bytes.
    pub size: u64,
    /// Permissions of the complete file.
    pub mode: u32,
    /// Modification time of the complete file in seconds.
    pub mtime: u64,
    /// Bytes of a block; the last one may be shorter.
    pub block: u64,
    /// BLAKE3 of each block.
    pub hashes: Vec<[u8; 32]>,
}

/// A file that is still being written.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    root: PathRoot,
    /// Path of the complete file beneath the root.
    path: Vec<u8>,
    spec: GrowingFileSpec,
    state: Mutex<GrowingFileState>,
}

/// Progress of the file, which the requests of several threads share: the file if it was found, and
/// the time of the last search for it.
#[derive(Debug)]
struct GrowingFileState {
    /// The temporary, or the complete file.
    file: Option<Arc<File>>,
    /// Blocks of the file with the right checksum.
    checked: Vec<bool>,
    searched: Option<Instant>,
}

impl GrowingFileSpec {
    /// True if the checksums cover the file.
    pub fn is_valid(&self) -> bool {
        let blocks = self.size.checked_add(self.block.saturating_sub(1));
        let blocks = blocks.and_then(|size| size.checked_div(self.block));
        self.size > 0 && blocks == Some(self.hashes.len() as u64)
    }
}

impl GrowingFile {
    pub(crate) fn new(root: PathRoot, path: Vec<u8>, spec: GrowingFileSpec) -> Self {
        let checked = vec![false; spec.hashes.len()];
        Self {
            root,
            path,
            spec,
            state: Mutex::new(GrowingFileState {
                file: None,
                checked,
                searched: None,
            }),
        }
    }

    /// True if a client's path names the file.
    pub(crate) fn is_at(&self, path: &[u8]) -> bool {
        components(path).is_some_and(|asked| components(&self.path) == Some(asked))
    }

    /// Attributes of the complete file.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        let mut stat = fs::fstat(self.directory()?)?;
        stat.st_mode = FileType::RegularFile.as_raw_mode() | (self.spec.mode & 0o7777);
        stat.st_size = self.spec.size.try_into().unwrap_or_default();
        stat.st_nlink = 1;
        stat.st_mtime = self.spec.mtime.try_into().unwrap_or_default();
        stat.st_atime = stat.st_mtime;
        (stat.st_mtime_nsec, stat.st_atime_nsec) = (0, 0);
        Ok(stat)
    }

    /// Opens the directory of the file.
    ///
    /// # Errors
    /// The directory is gone.
    pub(crate) fn directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.root.open(split(&self.path).0, flags, Mode::empty())
    }

    /// Waits until the file has the data of a range, and returns it. `goes_on` is called while
    /// waiting, and ends the wait if it returns false.
    ///
    /// # Errors
    /// EAGAIN if the wait has ended.
    pub(crate) fn wait(
        &self,
        range: (u64, u64),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Arc<File>, Errno> {
        let until = Instant::now() + PATIENCE;
        // Before the first check, so that no change is missed.
        let changes = DirectoryWatch::of(self.directory()?);
        let concerns = |name: &[u8]| self.may_be_named(name);
        let mut longest = SEARCH;
        loop {
            if let Some(file) = self.now(range) {
                return Ok(file);
            }
            if Instant::now() > until || !goes_on() {
                return Err(Errno::AGAIN);
            }
            if changes.wait(&concerns, longest) {
                // A block is filled by many writes, each of which ends the wait: this limits the
                // rate of the checks.
                std::thread::sleep(LOOK);
            }
            longest = LONGEST_LOOK;
        }
    }

    /// True if a name beside the file is its own or that of a temporary of it.
    fn may_be_named(&self, name: &[u8]) -> bool {
        let (_, own) = split(&self.path);
        // A long name is shortened in a temporary's.
        name == own || sftp::final_name_in(name).is_some_and(|part| own.starts_with(part))
    }

    /// Returns the file if it has the data of a range.
    pub(crate) fn now(&self, (offset, len): (u64, u64)) -> Option<Arc<File>> {
        let last = offset.saturating_add(len.max(1) - 1);
        let last = last.min(self.spec.size.saturating_sub(1)) / self.spec.block.max(1);
        let first = (offset / self.spec.block.max(1)).min(last);
        self.ready(first as usize..=last as usize)
    }

    /// Returns the file if these blocks are complete.
    fn ready(&self, mut blocks: std::ops::RangeInclusive<usize>) -> Option<Arc<File>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = state.file.clone()
            && blocks
                .clone()
                .all(|block| state.check(&self.spec, &file, block, false))
        {
            return Some(file);
        }
        let due = state.searched.is_none_or(|at| at.elapsed() > SEARCH);
        if !due {
            return None;
        }
        state.searched = Some(Instant::now());
        if let Some(file) = state.file.clone()
            && blocks
                .clone()
                .all(|block| state.check(&self.spec, &file, block, true))
        {
            return Some(file);
        }
        let file = Arc::new(self.search(*blocks.start())?);
        state.checked = vec![false; self.spec.hashes.len()];
        state.file = Some(Arc::clone(&file));
        let complete = blocks.all(|block| state.check(&self.spec, &file, block, false));
        complete.then_some(file)
    }

    /// Looks for a file that has a block: the complete one, or a temporary of that name.
    fn search(&self, block: usize) -> Option<File> {
        let (_, name) = split(&self.path);
        let dir = self.directory().ok()?;
        let open = |name: &[u8]| {
            let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = File::from(fs::openat(&dir, name, how, Mode::empty()).ok()?);
            has_block(&self.spec, &opened, block, true).then_some(opened)
        };
        if let Some(complete) = open(name) {
            return Some(complete);
        }
        let entries = Dir::read_from(dir.as_fd()).ok()?.flatten();
        let names = entries.filter(|entry| self.may_be_named(entry.file_name().to_bytes()));
        names
            .take(MOST_FOUND)
            .find_map(|entry| open(entry.file_name().to_bytes()))
    }
}

impl GrowingFileState {
    fn check(&mut self, spec: &GrowingFileSpec, file: &File, block: usize, holes: bool) -> bool {
        let Some(checked) = self.checked.get_mut(block) else {
            return false;
        };
        *checked = *checked || has_block(spec, file, block, holes);
        *checked
    }
}

/// True if a regular file has the data of a block. Without `holes`, a block with a hole is not
/// read.
fn has_block(spec: &GrowingFileSpec, file: &File, block: usize, holes: bool) -> bool {
    let start = (block as u64).saturating_mul(spec.block);
    let end = start.saturating_add(spec.block).min(spec.size);
    let Ok(stat) = fs::fstat(file) else {
        return false;
    };
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if !regular || size < end {
        return false;
    }
    // A hole is usually a part that was not written yet, and need not be read each time.
    let hole = fs::seek(file, SeekFrom::Hole(start));
    if !holes && hole.is_ok_and(|hole| hole < end) {
        return false;
    }
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let room = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let room = piece.get_mut(..room).unwrap_or_default();
        match file.read_at(room, at) {
            Ok(0) | Err(_) => return false,
            Ok(n) => {
                hasher.update(room.get(..n).unwrap_or_default());
                at += n as u64;
            }
        }
    }
    spec.hashes.get(block) == Some(hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 64 << 10;

    fn spec(content: &[u8]) -> GrowingFileSpec {
        GrowingFileSpec {
            size: content.len() as u64,
            mode: 0o640,
            mtime: 1_000_000,
            block: BLOCK as u64,
            hashes: content
                .chunks(BLOCK)
                .map(|block| *blake3::hash(block).as_bytes())
                .collect(),
        }
    }

    fn content() -> Vec<u8> {
        let mut all = Vec::new();
        blake3::Hasher::new().finalize_xof().fill({
            all.resize(3 * BLOCK + 100, 0);
            &mut all
        });
        all
    }

    #[test]
    fn a_range_is_served_when_its_blocks_have_arrived_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let root = PathRoot::Beneath(File::open(folder.path()).unwrap().into());
        let content = content();
        let growing = GrowingFile::new(root, b"/big".to_vec(), spec(&content));
        assert!(growing.is_at(b"/./big") && !growing.is_at(b"/bigger"));
        assert!(growing.ready(0..=0).is_none());
        // An older file of that name, and somebody else's temporary.
        std::fs::write(folder.path().join("big"), vec![7; 4 * BLOCK]).unwrap();
        let other = sftp::tagged_name(b"big", 1);
        let other = String::from_utf8(other).unwrap();
        std::fs::write(folder.path().join(other), b"no").unwrap();
        assert!(growing.wait_once(0..=3).is_none());
        let ours = String::from_utf8(sftp::tagged_name(b"big", 2)).unwrap();
        let ours = File::create(folder.path().join(ours)).unwrap();
        ours.write_all_at(&content[3 * BLOCK..], 3 * BLOCK as u64)
            .unwrap();
        assert!(growing.wait_once(3..=3).is_some());
        assert!(growing.wait_once(2..=3).is_none());
        ours.write_all_at(&content[..3 * BLOCK], 0).unwrap();
        let file = growing.wait_once(0..=3).unwrap();
        let mut read = vec![0; content.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == content);
        let stat = growing.stat().unwrap();
        assert_eq!(stat.st_size as usize, content.len());
        assert_eq!((stat.st_mode & 0o7777, stat.st_mtime), (0o640, 1_000_000));
    }

    #[test]
    fn a_wait_ends_when_another_process_has_written_the_block() {
        let folder = tempfile::tempdir().unwrap();
        let root = PathRoot::Beneath(File::open(folder.path()).unwrap().into());
        let content = content();
        let growing = GrowingFile::new(root, b"/big".to_vec(), spec(&content));
        let ours = String::from_utf8(sftp::tagged_name(b"big", 2)).unwrap();
        let path = folder.path().join(ours);
        let last = 3 * BLOCK as u64;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| growing.wait((last, 10), &|| true));
            let ours = File::create(path).unwrap();
            ours.write_all_at(&content[3 * BLOCK..], last).unwrap();
            assert!(waiting.join().unwrap().is_ok());
            let stopped = growing.wait((0, 10), &|| false);
            assert_eq!(stopped.err(), Some(Errno::AGAIN));
        });
    }

    #[test]
    fn a_block_that_somebody_changed_is_not_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let root = PathRoot::Beneath(File::open(folder.path()).unwrap().into());
        let mut content = content();
        let growing = GrowingFile::new(root, b"/big".to_vec(), spec(&content));
        content[BLOCK + 5] ^= 1;
        std::fs::write(folder.path().join("big"), &content).unwrap();
        assert!(growing.wait_once(0..=0).is_some());
        assert!(growing.wait_once(1..=1).is_none());
    }

    #[test]
    fn checksums_that_do_not_cover_the_file_are_invalid() {
        let whole = spec(&content());
        assert!(whole.is_valid());
        for wrong in [
            GrowingFileSpec {
                size: 0,
                ..whole.clone()
            },
            GrowingFileSpec {
                block: 0,
                ..whole.clone()
            },
            GrowingFileSpec {
                size: u64::MAX,
                ..whole.clone()
            },
            GrowingFileSpec {
                hashes: Vec::new(),
                ..whole.clone()
            },
        ] {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
    }

    impl GrowingFile {
        /// Looks without the interval between two searches.
        fn wait_once(&self, blocks: std::ops::RangeInclusive<usize>) -> Option<Arc<File>> {
            self.state.lock().unwrap().searched = None;
            self.ready(blocks)
        }
    }
}
