//! The files at this end that are copied: in memory if there is room, in private folders that are
//! removed with the measurement.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use measure::bench::{BenchData, StorageKind};
use rustix::fs::statvfs;
use transfer::LonghaulDirKind;
use transfer::bench::data;

use crate::command_error::CommandError;
use crate::flags::low::BenchArgs;

/// Free bytes that a folder needs before files are put there.
const LEAST: u64 = 64 << 20;
/// The in-memory file system of a Linux machine.
const MEMORY: &str = "/dev/shm";

/// A folder that is removed with its contents when it is dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn make(within: &Path, name: &str) -> io::Result<Self> {
        let path = within.join(name);
        // Created here, exclusively and for this user only, so that no other user can place a link
        // in it.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The files of the measurement at this end.
pub(super) struct LocalBenchFiles {
    memory: Option<ScratchFolder>,
    disk: ScratchFolder,
    /// The repeated content of each kind of data.
    pieces: BTreeMap<BenchData, Vec<u8>>,
    /// The name of the files at both ends.
    name: String,
}

impl LocalBenchFiles {
    /// Creates empty folders in memory and below `disk`, which is created if missing.
    ///
    /// # Errors
    /// Neither memory nor disk can be written to; one sentence.
    pub(super) fn new(disk: &Path) -> Result<Self, CommandError> {
        let number = std::hash::RandomState::new().build_hasher().finish();
        let name = format!("longhaul-bench-{number:016x}");
        let named = |error: io::Error| format!("{}: {error}", disk.display());
        fs::create_dir_all(disk).map_err(named)?;
        let memory = Path::new(MEMORY);
        let memory = match free(memory) >= LEAST {
            true => ScratchFolder::make(memory, &name).ok(),
            false => None,
        };
        Ok(Self {
            memory,
            disk: ScratchFolder::make(disk, &name).map_err(named)?,
            pieces: BTreeMap::new(),
            name,
        })
    }

    /// The random name of this measurement, for files at the other end.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Describes, for the report, the place of files in memory.
    pub(super) fn memory(&self) -> String {
        match self.memory {
            Some(_) => format!("files in {MEMORY}"),
            None => format!("files on disk, as {MEMORY} has too little free space"),
        }
    }

    /// Free bytes in a place.
    pub(super) fn free_bytes(&self, place: StorageKind) -> u64 {
        free(self.folder(place))
    }

    /// The content that files of this kind repeat.
    ///
    /// # Errors
    /// The user's file cannot be read; one sentence.
    pub(super) fn piece(
        &mut self,
        kind: BenchData,
        file: Option<&Path>,
    ) -> Result<&[u8], CommandError> {
        let place = match self.pieces.entry(kind) {
            Entry::Occupied(made) => return Ok(made.into_mut()),
            Entry::Vacant(place) => place,
        };
        let piece = match (kind, file) {
            (BenchData::Text, _) => data::text(),
            (BenchData::Gzipped, _) => data::gzipped(),
            (BenchData::File, Some(file)) => {
                let named = |error| format!("{}: {error}", file.display());
                data::of_file(file).map_err(named)?
            }
            (BenchData::Random | BenchData::File, _) => data::random(),
        };
        Ok(place.insert(piece))
    }

    /// Creates or resizes the file of this kind and place so that it has `size` bytes.
    ///
    /// # Errors
    /// There is no room for it, or another reason; one sentence.
    pub(super) fn source(
        &self,
        kind: BenchData,
        place: StorageKind,
        size: u64,
    ) -> Result<PathBuf, CommandError> {
        let path = self.folder(place).join(kind.name());
        let piece = self.pieces.get(&kind).map_or(&[][..], Vec::as_slice);
        let named = |error: io::Error| format!("{}: {error}", path.display());
        // Mode 0600: the user's own data stay private.
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(named)?;
        let has = file.metadata().map_err(named)?.len();
        if has > size {
            file.set_len(size).map_err(named)?;
        } else {
            data::write(piece, has, size, &mut file).map_err(named)?;
        }
        if place == StorageKind::Disk {
            File::sync_data(&file).map_err(named)?;
        }
        Ok(path)
    }

    /// The path that downloads are written to.
    pub(super) fn target(&self, place: StorageKind) -> PathBuf {
        self.folder(place).join("back")
    }

    fn folder(&self, place: StorageKind) -> &Path {
        match (place, &self.memory) {
            (StorageKind::Memory, Some(memory)) => &memory.0,
            _ => &self.disk.0,
        }
    }
}

/// The folder on disk: `--dir`, or `bench` in the user's cache.
pub(super) fn disk(args: &BenchArgs) -> PathBuf {
    let cache = || {
        let cache = LonghaulDirKind::Cache.path();
        let cache = cache.unwrap_or_else(|| std::env::temp_dir().join("longhaul"));
        cache.join("bench")
    };
    args.folder.clone().unwrap_or_else(cache)
}

fn free(folder: &Path) -> u64 {
    statvfs(folder).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_grow_and_shrink_and_go() {
        let disk = tempfile::tempdir().unwrap();
        let mut files = LocalBenchFiles::new(&disk.path().join("a/b")).unwrap();
        files.piece(BenchData::Random, None).unwrap();
        for size in [5000, 70_000, 300] {
            let path = files
                .source(BenchData::Random, StorageKind::Disk, size)
                .unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), size);
            assert_eq!(fs::read(&path).unwrap(), data::random()[..size as usize]);
        }
        drop(files);
        assert_eq!(fs::read_dir(disk.path().join("a/b")).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let disk = tempfile::tempdir().unwrap();
        let mut files = LocalBenchFiles::new(disk.path()).unwrap();
        let absent = Path::new("/nonexistent/f");
        let why = files.piece(BenchData::File, Some(absent)).unwrap_err();
        let why = why.to_string();
        assert!(why.starts_with("/nonexistent/f: "), "{why}");
        assert!(LocalBenchFiles::new(Path::new("/dev/null/x")).is_err());
    }
}
