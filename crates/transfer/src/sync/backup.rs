//! Keeps replaced and deleted files in the directory of `--backup-dir`.
//!
//! An earlier sync may have moved a symlink of the source into the backup directory, so that no
//! symlink below it is followed: its directories are made one by one, and one that is a symlink is
//! refused. A file that cannot be kept is neither replaced nor deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::{fmt, io};

use sync::{EntryTree, SortedTree, SyncAction, SyncPlan, TreeEntryId, TreeEntryKind, parent_path};

use super::ends::{FileOperationResult, SyncEnds, SyncFileOperation};
use super::target_path::path_below_target;
use crate::copy::{PlannedCopySide, RootOverlap};
use crate::file_error::FileError;
use crate::walk::{join, local_path};

/// Location of the backup directory at the target's end, as a base and a path below it.
#[derive(Clone, Debug)]
pub(super) struct BackupRoot {
    /// Directory that the user named, below which no symlink is followed: the target, or the backup
    /// directory itself.
    base: Vec<u8>,
    /// Path of the backup directory below `base`; empty if that is the backup directory itself.
    below: Vec<u8>,
    /// Files were to be kept, so that directories may have been made.
    used: bool,
    /// Nothing existed at a place outside the target: a symlink there is not the user's.
    is_new: bool,
}

impl BackupRoot {
    /// Paths below the target of the directories in which the backup directory and those above it
    /// may have been made, which changes their times. The root's is empty.
    pub(super) fn changed_dirs(&self) -> Vec<Vec<u8>> {
        let inside = self.inside().filter(|_| self.used).unwrap_or_default();
        let ends = inside.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = ends.filter_map(|(end, _)| inside.get(..end));
        let root = (!inside.is_empty()).then_some(&[][..]);
        root.into_iter().chain(above).map(<[u8]>::to_vec).collect()
    }

    /// Path of the backup directory, if it lies outside the target.
    pub(super) fn beside(&self) -> Option<&[u8]> {
        self.below.is_empty().then_some(&self.base)
    }

    /// Path of the backup directory below the target, if it lies there.
    pub(super) fn inside(&self) -> Option<&[u8]> {
        (!self.below.is_empty()).then_some(&self.below)
    }

    /// Returns the path below `base` that keeps `file`, a path below the target.
    fn relative(&self, file: &[u8]) -> Vec<u8> {
        join(&self.below, file)
    }

    fn path(&self, file: &[u8]) -> Vec<u8> {
        join(&self.base, &self.relative(file))
    }
}

/// Reason why replaced files could not be kept in the backup directory, or would change others: one
/// clause about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackupDirError(&'static str);

impl fmt::Display for BackupDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BackupDirError {}

/// Relation of the backup directory to the target.
#[derive(Debug, PartialEq, Eq)]
enum BackupPlace {
    /// The backup directory lies in the target, at this relative path.
    Inside(Vec<u8>),
    /// The backup directory lies outside the target.
    Beside,
}

/// Decides about the backup directory `dir`, as the user wrote it, from the canonical paths of the
/// target and of the directory, as far as the server tells them, and from its path below the target.
///
/// # Errors
/// A clause that says why nothing can be kept there.
fn place_of(
    dir: &Path,
    target: Option<&[u8]>,
    real: Option<&[u8]>,
    below: Option<&Path>,
) -> Result<BackupPlace, BackupDirError> {
    let itself = || BackupDirError("is DST itself, where nothing would be kept");
    let (Some(target), Some(real)) = (target, real) else {
        let mut parts = dir.components();
        let is_plain = parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let names = dir.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        });
        let names = names.collect::<Vec<_>>().join(&b'/');
        return match (is_plain, names.is_empty()) {
            (true, true) => Err(itself()),
            (true, false) => Ok(BackupPlace::Inside(names)),
            (false, _) => Ok(BackupPlace::Beside),
        };
    };
    let (target, real) = (local_path(target), local_path(real));
    if real == target || below.is_some_and(|below| below.as_os_str().is_empty()) {
        return Err(itself());
    }
    if target.starts_with(&real) {
        return Err(BackupDirError(
            "contains DST, where backups could replace files",
        ));
    }
    // A symlink below the target may come from an earlier source, and is refused later.
    Ok(match below {
        Some(below) => BackupPlace::Inside(below.as_os_str().as_bytes().to_vec()),
        None => BackupPlace::Beside,
    })
}

/// Directories that cannot be used, by their path below the base, with the reason.
type UnusableDirs = BTreeMap<Vec<u8>, FileError>;

/// Entry of the target and its path below the root.
type BackedUpEntry = (TreeEntryId, Vec<u8>);

/// Result of moving files to the backup directory.
pub(super) struct BackupMoveResult {
    moved: u64,
    /// Files that stay since they could not be moved.
    kept: BTreeSet<TreeEntryId>,
}

impl BackupMoveResult {
    /// Returns the number of files that were moved.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the files that stay since they could not be moved.
    pub(super) fn into_kept(self) -> BTreeSet<TreeEntryId> {
        self.kept
    }
}

/// Finds the unusable directory that is or contains `dir`.
fn unusable<'a>(dirs: &'a UnusableDirs, mut dir: &[u8]) -> Option<(&'a Vec<u8>, &'a FileError)> {
    loop {
        if let Some(found) = dirs.get_key_value(dir) {
            return Some(found);
        }
        if dir.is_empty() {
            return None;
        }
        dir = parent_path(dir);
    }
}

/// Longest file name in bytes on Linux (NAME_MAX).
const NAME_MAX: usize = 255;

/// Name under which the older backup waits until the newer one has taken its place.
fn aside(path: &[u8]) -> Vec<u8> {
    let at = path.len() - parent_path(path).len();
    let name = path.get(path.len() - at..).unwrap_or_default();
    let name = name.strip_prefix(b"/").unwrap_or(name);
    let mut aside = [b".", name, b".older.longhaul"].concat();
    if aside.len() > NAME_MAX {
        // Letters of a checksum tell apart long names that begin alike.
        let sum = blake3::hash(name);
        let tag = sum.as_bytes().first_chunk().copied().unwrap_or_default();
        aside = sftp::tagged_name(name, u64::from_be_bytes(tag));
    }
    match path.starts_with(b"/") && parent_path(path).is_empty() {
        true => join(b"/", &aside),
        false => join(parent_path(path), &aside),
    }
}

/// True if nothing stands at a path of the target's end, no symlink either.
async fn is_missing(ends: &mut SyncEnds<'_>, path: &[u8]) -> bool {
    if ends.is_local(PlannedCopySide::Target) {
        let found = local_path(path).symlink_metadata();
        return found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    }
    let look = SyncFileOperation::Lstat(path.to_vec());
    let found = ends.at_target(vec![look]).await.pop();
    found.is_some_and(|found| found.is_err_and(|error| error.is_missing()))
}

impl BackupRoot {
    /// Finds the place of the backup directory `dir`, as the user wrote it. Only with `probe` may a
    /// file be created to tell if two paths are one. `leaves_out` tells if the sync leaves out a
    /// directory at a path below its source.
    ///
    /// # Errors
    /// A clause that says why replaced files could not be kept there, or would change other files.
    pub(super) async fn find(
        ends: &mut SyncEnds<'_>,
        dir: &Path,
        probe: bool,
        leaves_out: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, BackupDirError> {
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let path = match dir.is_absolute() {
            true => dir.as_os_str().as_bytes().to_vec(),
            false => join(&root, dir.as_os_str().as_bytes()),
        };
        let target = ends.real_place(PlannedCopySide::Target, &root).await;
        let real = ends.real_place(PlannedCopySide::Target, &path).await;
        let below = path_below_target(ends, &local_path(&path)).await;
        let place = place_of(dir, target.as_deref(), real.as_deref(), below.as_deref())?;
        let inside = matches!(place, BackupPlace::Inside(_));
        let what = match ends.overlap_with(&path, probe).await {
            Some(RootOverlap::Same) => Some("is SRC, where backups would replace files"),
            Some(RootOverlap::SourceInside(_)) => {
                Some("contains SRC, where backups could replace files")
            }
            Some(RootOverlap::TargetInside(below)) if !inside && !leaves_out(&below) => {
                Some("lies in SRC, and its files would be copied by the next sync")
            }
            _ => None,
        };
        match (what, place) {
            (Some(what), _) => Err(BackupDirError(what)),
            (None, BackupPlace::Inside(below)) => Ok(Self {
                base: root,
                below,
                used: false,
                is_new: false,
            }),
            (None, BackupPlace::Beside) => Ok(Self {
                is_new: is_missing(ends, &path).await,
                base: path,
                below: Vec::new(),
                used: false,
            }),
        }
    }

    /// Keeps the files that will be replaced, under a second name where the target can link them.
    /// Steps whose files cannot be kept are dropped from the plan. Files that are written
    /// `in_place` are moved.
    pub(super) async fn keep_replaced(
        &mut self,
        ends: &mut SyncEnds<'_>,
        plan: &mut SyncPlan,
        in_place: bool,
    ) {
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let replaced = plan.steps().iter().filter_map(|step| match step.action {
            SyncAction::Replace(_)
            | SyncAction::Unsure(_)
            | SyncAction::HardLink {
                has_data: false, ..
            } => step.target,
            _ => None,
        });
        let tree = plan.target().tree();
        // Entries in the way of another type were moved before, and are gone.
        let moved: BTreeSet<TreeEntryId> = plan.in_the_way().iter().copied().collect();
        let files: Vec<BackedUpEntry> = replaced
            .filter(|id| tree.entry(*id).kind != TreeEntryKind::Directory && !moved.contains(id))
            .map(|id| (id, tree.path(id)))
            .collect();
        let (files, mut failed) = self.prepare(ends, plan.target(), files).await;
        // A file that is written in place would change under both names.
        let unlinked = match in_place {
            true => files,
            false => {
                let link = |(_, path): &BackedUpEntry| SyncFileOperation::Link {
                    of: join(&root, path),
                    to: self.path(path),
                };
                let results = ends.at_target(files.iter().map(link).collect()).await;
                let mut unlinked = Vec::new();
                for (file, result) in files.into_iter().zip(results) {
                    match result {
                        Ok(_) => ends.note_second_name(join(&root, &file.1)),
                        Err(_) => unlinked.push(file),
                    }
                }
                unlinked
            }
        };
        failed.extend(self.rename(ends, unlinked).await.kept);
        plan.withhold(&failed);
    }

    /// Moves files to the backup directory instead of deleting them.
    pub(super) async fn move_files(
        &mut self,
        ends: &mut SyncEnds<'_>,
        target: &SortedTree,
        files: &[BackedUpEntry],
    ) -> BackupMoveResult {
        let (files, mut failed) = self.prepare(ends, target, files.to_vec()).await;
        let mut moved = self.rename(ends, files).await;
        moved.kept.append(&mut failed);
        moved
    }

    /// Creates the directories that keep `files`. Returns the files that have one, and those that
    /// do not, which are reported.
    async fn prepare(
        &mut self,
        ends: &mut SyncEnds<'_>,
        target: &SortedTree,
        files: Vec<BackedUpEntry>,
    ) -> (Vec<BackedUpEntry>, BTreeSet<TreeEntryId>) {
        self.used |= !files.is_empty();
        let dirs = self.make_directories(ends, target, &files).await;
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let (mut usable, mut failed) = (Vec::new(), BTreeSet::new());
        for (id, path) in files {
            let relative = self.relative(&path);
            let Some((dir, why)) = unusable(&dirs, parent_path(&relative)) else {
                usable.push((id, path));
                continue;
            };
            failed.insert(id);
            if !ends.stopped() {
                let name = ends.shown(PlannedCopySide::Target, &join(&root, &path));
                let dir = match dir.is_empty() {
                    true => self.base.clone(),
                    false => join(&self.base, dir),
                };
                let dir = sftp::printable(&dir, 4096);
                let what = format!(
                    "not replaced or deleted, because it cannot be moved to the backup directory \
                     {dir}"
                );
                ends.fail(name, why.clone().with_prefix(&what));
            }
        }
        (usable, failed)
    }

    /// Creates the backup directory and those below it, each after the one that contains it. They
    /// are as private as those of the target.
    async fn make_directories(
        &self,
        ends: &mut SyncEnds<'_>,
        target: &SortedTree,
        files: &[BackedUpEntry],
    ) -> UnusableDirs {
        let mut failed = UnusableDirs::new();
        if files.is_empty() {
            return failed;
        }
        if self.below.is_empty() {
            let path = self.base.clone();
            let mode = self.mode(target, b"");
            let made = ends.at_target(vec![SyncFileOperation::MakeNamedDir {
                path,
                mode,
                is_new: self.is_new,
            }]);
            if let Some(Err(why)) = made.await.pop() {
                failed.insert(Vec::new(), why);
                return failed;
            }
        }
        let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
        let mut levels: BTreeMap<usize, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for (_, file) in files {
            let relative = self.relative(file);
            let mut at = parent_path(&relative);
            while !at.is_empty() && levels.entry(depth(at)).or_default().insert(at.to_vec()) {
                at = parent_path(at);
            }
        }
        for paths in levels.into_values() {
            let usable = |path: &Vec<u8>| unusable(&failed, path).is_none();
            let paths: Vec<Vec<u8>> = paths.into_iter().filter(usable).collect();
            let make = |path: &Vec<u8>| SyncFileOperation::MakeDir {
                path: join(&self.base, path),
                mode: self.mode(target, path),
            };
            let results = ends.at_target(paths.iter().map(make).collect()).await;
            for (path, result) in paths.into_iter().zip(results) {
                if let Err(why) = result {
                    failed.insert(path, why);
                }
            }
        }
        failed
    }

    /// Returns the permission bits for the directory `relative`: those of the target's directory
    /// whose files are kept there, or of the target itself for directories above. They are the
    /// owner's alone where not everybody has some, because the group is another one.
    fn mode(&self, target: &SortedTree, relative: &[u8]) -> u32 {
        let path = relative.strip_prefix(self.below.as_slice());
        let dir = path.and_then(|path| target.find(path));
        let entry = target.tree().entry(dir.unwrap_or(EntryTree::ROOT));
        match u32::from(entry.mode.unwrap_or(0)) {
            mode if mode & 0o007 == 0 => 0o700,
            mode => mode & 0o777 | 0o700,
        }
    }

    /// Renames files into the backup directory. What an earlier sync has put there is replaced, and
    /// removed only after the rename. Files that stay are reported.
    async fn rename(&self, ends: &mut SyncEnds<'_>, files: Vec<BackedUpEntry>) -> BackupMoveResult {
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let rename = |(_, path): &BackedUpEntry| SyncFileOperation::Rename {
            from: join(&root, path),
            to: self.path(path),
        };
        let mut results = ends.at_target(files.iter().map(rename).collect()).await;
        let taken: Vec<usize> = (0..results.len())
            .filter(|n| results[*n].is_err())
            .collect();
        let looks = taken
            .iter()
            .map(|n| SyncFileOperation::Lstat(self.path(&files[*n].1)));
        let found = ends.at_target(looks.collect()).await;
        // A directory stays where it is.
        let older = |found: &FileOperationResult| matches!(found, Ok(kind) if kind.is_none());
        let taken = taken.into_iter().zip(found);
        let taken: Vec<usize> = taken.filter(|(_, f)| older(f)).map(|(n, _)| n).collect();
        let put = |n: &usize, back: bool| {
            let (older, aside) = (self.path(&files[*n].1), aside(&self.path(&files[*n].1)));
            let (from, to) = if back { (aside, older) } else { (older, aside) };
            SyncFileOperation::Rename { from, to }
        };
        let moved = ends
            .at_target(taken.iter().map(|n| put(n, false)).collect())
            .await;
        let free = taken.into_iter().zip(moved);
        let free: Vec<usize> = free.filter(|(_, r)| r.is_ok()).map(|(n, _)| n).collect();
        let again = ends
            .at_target(free.iter().map(|n| rename(&files[*n])).collect())
            .await;
        let mut last = Vec::new();
        for (n, result) in free.into_iter().zip(again) {
            last.push(match &result {
                Ok(_) => SyncFileOperation::Remove(aside(&self.path(&files[n].1))),
                Err(_) => put(&n, true),
            });
            results[n] = result;
        }
        ends.at_target(last).await;
        let kept = files.iter().zip(&results).filter(|(_, r)| r.is_err());
        let kept: BTreeSet<TreeEntryId> = kept.map(|((id, _), _)| *id).collect();
        let paths: Vec<Vec<u8>> = files.iter().map(|(_, path)| join(&root, path)).collect();
        let what = "not replaced or deleted, because it cannot be moved to the backup directory, \
            which must be on the file system of DST";
        ends.report_failures(&paths, &results, what);
        BackupMoveResult {
            moved: (files.len() - kept.len()) as u64,
            kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `--backup-dir .` and its like renamed each file to itself, or were copied and
    /// deleted with the target.
    #[test]
    fn a_backup_directory_is_in_the_target_or_beside_it_and_nowhere_else() {
        let place = |dir: &str, real: &str, below: Option<&str>| {
            let target: Option<&[u8]> = Some(b"/srv/z");
            let below = below.map(Path::new);
            place_of(Path::new(dir), target, Some(real.as_bytes()), below)
        };
        let inside = |below: &str| Ok(BackupPlace::Inside(below.into()));
        let old = place("/srv/z/old", "/srv/z/old", Some("old"));
        assert_eq!(old, inside("old"));
        // The symlink is refused when the directory is made.
        assert_eq!(place("link", "/elsewhere", Some("link")), inside("link"));
        let planted = place("/srv/z/link", "/elsewhere", Some("link"));
        assert_eq!(planted, inside("link"));
        let elsewhere = place("/elsewhere", "/elsewhere", None);
        assert_eq!(elsewhere, Ok(BackupPlace::Beside));
        assert_eq!(place("../old", "/srv/old", None), Ok(BackupPlace::Beside));
        for (dir, real, below, why) in [
            (".", "/srv/z", Some(""), "DST itself"),
            ("a/..", "/srv/z", Some(""), "DST itself"),
            ("/srv/z", "/srv/z", Some(""), "DST itself"),
            ("link", "/srv/z", Some("link"), "DST itself"),
            ("..", "/srv", None, "contains DST"),
            ("/", "/", None, "contains DST"),
            ("link", "/srv", Some("link"), "contains DST"),
        ] {
            let error = place(dir, real, below).expect_err(dir);
            assert!(error.to_string().contains(why), "{dir}: {error}");
        }
        // A server that tells no paths.
        assert!(place_of(Path::new("."), None, None, None).is_err());
        let old = place_of(Path::new("old"), None, None, None);
        assert_eq!(old, Ok(BackupPlace::Inside(b"old".to_vec())));
    }

    #[test]
    fn an_older_backup_waits_beside_the_newer_one() {
        assert_eq!(aside(b"/bak/d/f"), b"/bak/d/.f.older.longhaul");
        assert_eq!(aside(b"f"), b".f.older.longhaul");
        assert_eq!(aside(b"/f"), b"/.f.older.longhaul");
        let long = |last: &str| aside(format!("/bak/{}{last}", "ä".repeat(126)).as_bytes());
        assert!(long("ab1").len() <= 255 + 5 && long("ab1") != long("ab2"));
    }

    #[test]
    fn directories_above_the_backup_directory_get_their_times_back() {
        let dirs = |below: &[u8], used| {
            let (base, below) = (b"dst".to_vec(), below.to_vec());
            let is_new = false;
            BackupRoot {
                base,
                below,
                used,
                is_new,
            }
            .changed_dirs()
        };
        assert_eq!(dirs(b".old", true), [b"".to_vec()]);
        let above = [b"".to_vec(), b"a".to_vec(), b"a/b".to_vec()];
        assert_eq!(dirs(b"a/b/.old", true), above);
        assert!(dirs(b"a/b/.old", false).is_empty() && dirs(b"", true).is_empty());
    }

    #[test]
    fn a_directory_below_an_unusable_one_is_unusable() {
        let dirs = UnusableDirs::from([(b"bak/d".to_vec(), "no".into())]);
        assert!(unusable(&dirs, b"bak/d/e/f").is_some());
        assert!(unusable(&dirs, b"bak/d").is_some());
        assert!(unusable(&dirs, b"bak/dd").is_none());
        let all = UnusableDirs::from([(Vec::new(), "no".into())]);
        assert!(unusable(&all, b"any").is_some());
    }
}
