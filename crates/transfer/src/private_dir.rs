//! Folders that only the user can write, for all files that a later run trusts.
//!
//! Journals decide which files are skipped, renamed and removed, and host memory decides which data
//! are sent early. In a folder that others can write, they could control these decisions
//! (docs/journal.md, "State that is believed").

mod group;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, open, openat, readlinkat, renameat,
    stat, statat, unlinkat,
};
use rustix::io::Errno;

/// The number of symlinks followed before a path counts as a loop, as in the kernel (MAXSYMLINKS).
const MAX_SYMLINKS: u32 = 40;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// One of longhaul's own folders, by the XDG Base Directory Specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LonghaulDirKind {
    /// `$XDG_STATE_HOME/longhaul`, by default `~/.local/state/longhaul`: journals and keys.
    State,
    /// `$XDG_CACHE_HOME/longhaul`, by default `~/.cache/longhaul`: memory of hosts and processors,
    /// and the library of `longhaul wrap`.
    Cache,
    /// `$XDG_CONFIG_HOME/longhaul`, by default `~/.config/longhaul`.
    Config,
    /// `$XDG_RUNTIME_DIR/longhaul`, by default `run` in the folder of [`LonghaulDirKind::State`]: figures
    /// of running transfers.
    Runtime,
}

impl LonghaulDirKind {
    /// Returns the folder's path; `None` if neither the XDG variable, nor HOME, nor the password
    /// file has an absolute path.
    pub fn path(self) -> Option<PathBuf> {
        let (variable, below_home) = match self {
            Self::Runtime => {
                let runtime = absolute("XDG_RUNTIME_DIR").map(|base| base.join("longhaul"));
                return runtime.or_else(|| Some(Self::State.path()?.join("run")));
            }
            Self::State => ("XDG_STATE_HOME", ".local/state"),
            Self::Cache => ("XDG_CACHE_HOME", ".cache"),
            Self::Config => ("XDG_CONFIG_HOME", ".config"),
        };
        let base = absolute(variable).or_else(|| Some(home()?.join(below_home)))?;
        Some(base.join("longhaul"))
    }
}

fn absolute(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).map(PathBuf::from);
    value.filter(|path| path.is_absolute())
}

/// Returns `$HOME`, or if that is not set, the home directory of the password file.
pub(crate) fn home() -> Option<PathBuf> {
    absolute("HOME").or_else(|| crate::config::LocalUser::current().home)
}

/// A verified folder that is held open, so that a later change of its path has no effect.
#[derive(Debug)]
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// The folder does not exist, or another user could have written its contents.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::reach(path, false)
    }

    /// Opens the folder at `path`, and creates it and its missing parents with mode 0700. The home
    /// directory is not created.
    ///
    /// # Errors
    /// Those of [`PrivateDir::open`], or the folder cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::reach(path, true)
    }

    fn reach(path: &Path, make: bool) -> io::Result<Self> {
        let fd = PrivatePathWalk::to(path, make)?;
        let stat = fstat(&fd)?;
        let loose = WRITABLE_BY_OTHERS | WRITABLE_BY_GROUP;
        if stat.st_uid != own_uid() {
            return Err(distrusted(
                path,
                "belongs to another user: change the owner or remove it",
            ));
        }
        if stat.st_mode & loose != 0 {
            let why = "is writable by other users: run chmod go-w on it";
            return Err(distrusted(path, why));
        }
        let path = path.to_path_buf();
        Ok(Self { fd, path })
    }

    /// Returns the path that was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file of the folder for reading, and with `write` for writing too.
    ///
    /// # Errors
    /// The file does not exist, or is not a regular file of this user with a single hard link and
    /// no write permission for others.
    pub fn file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // Opening a FIFO would block until it has a writer.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty())?);
        let meta = file.metadata()?;
        if meta.nlink() == 0 {
            return Err(Errno::NOENT.into());
        }
        let loose = meta.mode() & (WRITABLE_BY_OTHERS | WRITABLE_BY_GROUP) != 0;
        let why = match () {
            () if !meta.is_file() => "is not a regular file: remove it",
            () if meta.uid() != own_uid() => {
                "belongs to another user: change the owner or remove it"
            }
            () if meta.nlink() != 1 => "has more than one hard link: remove the others",
            () if loose => "is writable by other users: run chmod go-w on it",
            () => return Ok(file),
        };
        Err(distrusted(&self.path.join(name), why))
    }

    /// Creates a new file with mode 0600.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn create_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(openat(&self.fd, name, flags | OFlags::NOFOLLOW, mode)?.into())
    }

    /// Renames a file within the folder.
    ///
    /// # Errors
    /// Those of renameat(2).
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes the files whose names begin with `prefix`, except the `most` that were modified last.
    ///
    /// # Errors
    /// The folder cannot be read. A file that cannot be removed is left.
    pub fn keep_newest(&self, prefix: &str, most: usize) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = openat(&self.fd, ".", flags, Mode::empty())?;
        let mut files = Vec::new();
        for entry in Dir::new(listed)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name.as_encoded_bytes().starts_with(prefix.as_bytes())
                && let Ok(stat) = statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW)
            {
                files.push((Reverse((stat.st_mtime, stat.st_mtime_nsec)), name));
            }
        }
        if files.len() > most {
            files.sort_unstable();
            for (_, name) in files.drain(most..) {
                let _ = self.remove(&name);
            }
        }
        Ok(())
    }

    /// Removes a file of the folder.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }
}

/// Walks to a folder, component by component.
struct PrivatePathWalk {
    dir: OwnedFd,
    /// The path of `dir`, for messages.
    at: PathBuf,
    left: VecDeque<OsString>,
    symlinks: u32,
    make: bool,
}

impl PrivatePathWalk {
    fn to(path: &Path, make: bool) -> io::Result<OwnedFd> {
        // A home directory that only HOME names is checked from `/` on.
        let listed = crate::config::LocalUser::current().home;
        let (base, below) = match listed.filter(|home| path.starts_with(home)) {
            // The system administrator decides on the location of home directories, as for sshd's
            // StrictModes.
            Some(home) => (
                home.clone(),
                path.strip_prefix(&home).unwrap_or(path).to_path_buf(),
            ),
            None => (
                PathBuf::from("/"),
                path.strip_prefix("/").unwrap_or(path).to_path_buf(),
            ),
        };
        let mut walk = Self {
            dir: open(
                &base,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?,
            at: base,
            left: components(&below).collect(),
            symlinks: 0,
            make,
        };
        check_directory(&walk.at, &walk.dir)?;
        while let Some(name) = walk.left.pop_front() {
            walk.enter(&name)?;
        }
        Ok(walk.dir)
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if self.make => {
                match mkdirat(&self.dir, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                openat(&self.dir, name, flags, Mode::empty())?
            }
            opened => opened?,
        };
        let stat = fstat(&opened)?;
        let path = self.at.join(name);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return self.follow(name, &path, &stat);
        }
        check_directory(&path, &opened)?;
        self.dir = opened;
        self.at = path;
        Ok(())
    }

    fn follow(&mut self, name: &OsStr, path: &Path, stat: &Stat) -> io::Result<()> {
        if !is_trusted(stat.st_uid) {
            return Err(distrusted(
                path,
                "is a symlink that belongs to another user: change the owner or remove it",
            ));
        }
        self.symlinks += 1;
        if self.symlinks > MAX_SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(&self.dir, name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.dir = open(
                "/",
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            self.at = PathBuf::from("/");
        }
        for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
            self.left.push_front(component);
        }
        Ok(())
    }
}

/// Returns names and `..`, without the root and `.`.
fn components(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    })
}

/// Fails unless only trusted users can change the meaning of a name in this directory. Group write
/// permission is allowed to a group that has only this user.
fn check_directory(path: &Path, dir: &OwnedFd) -> io::Result<()> {
    let stat = fstat(dir)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    if !is_trusted(stat.st_uid) {
        return Err(distrusted(
            path,
            "belongs to another user: change the owner or remove it",
        ));
    }
    let mode = stat.st_mode;
    if mode & STICKY != 0 {
        // Others can neither rename nor remove entries of this user.
        return Ok(());
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(distrusted(
            path,
            "is writable by every user: run chmod o-w on it",
        ));
    }
    if mode & WRITABLE_BY_GROUP != 0 && !group::is_private(dir.as_fd(), stat.st_gid) {
        let why = "is writable by a group that may have other members: run chmod g-w on it";
        return Err(distrusted(path, why));
    }
    Ok(())
}

/// True for this user, root, and the owner of `/`, which is root as seen in a user namespace.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == own_uid() || stat("/").is_ok_and(|root| root.st_uid == uid)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn distrusted(path: &Path, why: &str) -> io::Error {
    let path = crate::report::EscapedName::from(path);
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{path} {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn opened(path: &Path) -> Result<(), String> {
        let opened = PrivateDir::open(path);
        opened.map(drop).map_err(|e| crate::disk::os_words(&e))
    }

    #[test]
    fn a_folder_is_made_for_this_user_alone() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        assert_eq!(
            PrivateDir::open(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let made = PrivateDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        let name = OsStr::new("file");
        drop(made.create_file(name).unwrap());
        assert_eq!(
            fs::metadata(path.join(name)).unwrap().mode() & 0o7777,
            0o600
        );
        assert!(made.create_file(name).is_err());
        made.rename(name, OsStr::new("other")).unwrap();
        made.remove(OsStr::new("other")).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn folders_that_others_can_write_are_not_believed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&path)
            .unwrap();
        assert_eq!(opened(&path), Ok(()));
        let ours = File::open(above.path()).unwrap();
        let gid = ours.metadata().unwrap().gid();
        for (folder, bits, refused) in [
            (&path, 0o777, true),
            (&path, 0o775, true),
            (&path, 0o1777, true),
            (&above.path().join("a"), 0o777, true),
            // /tmp is such a folder: other users can neither remove nor rename its entries.
            (&above.path().join("a"), 0o1777, false),
            // With umask 002, all folders of a user have these bits, for a group of the user's own.
            (
                &above.path().join("a"),
                0o775,
                !group::is_private(ours.as_fd(), gid),
            ),
        ] {
            mode(folder, bits);
            let said = opened(&path);
            assert_eq!(said.is_err(), refused, "{folder:?} {bits:o}: {said:?}");
            if let Err(said) = said {
                assert!(said.contains("is writable by"), "{said}");
                assert!(PrivateDir::create(&path).is_err());
            }
            mode(folder, 0o755);
        }
    }

    /// A member of the group could rename the folder and put another in its place.
    #[test]
    fn folders_below_one_that_a_shared_group_can_write_are_not_believed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        // No user has this group's name.
        if chown(above.path().join("a"), None, Some(54_321)).is_err() {
            // Only root can give a folder to any group.
            return;
        }
        for (bits, refused) in [
            (0o755, false),
            (0o775, true),
            (0o2775, true),
            (0o1775, false),
        ] {
            mode(&above.path().join("a"), bits);
            assert_eq!(opened(&path).is_err(), refused, "{bits:o}");
            assert_eq!(PrivateDir::create(&path).is_err(), refused, "{bits:o}");
        }
    }

    /// The bits of a group are the mask of an access control list, which may name anybody.
    #[test]
    fn folders_below_one_with_an_access_control_list_are_not_believed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        let entry = |tag: u16, perm: u16, id: u32| {
            let (tag, perm) = (tag.to_le_bytes(), perm.to_le_bytes());
            [&tag[..], &perm[..], &id.to_le_bytes()[..]].concat()
        };
        const NOBODY: u32 = u32::MAX;
        // acl(5): the owner, user 12345, the owning group, the mask and others.
        let acl = [
            2u32.to_le_bytes().to_vec(),
            entry(0x01, 7, NOBODY),
            entry(0x02, 7, 12_345),
            entry(0x04, 5, NOBODY),
            entry(0x10, 7, NOBODY),
            entry(0x20, 5, NOBODY),
        ]
        .concat();
        let (name, flags) = ("system.posix_acl_access", rustix::fs::XattrFlags::empty());
        if rustix::fs::setxattr(above.path().join("a"), name, &acl, flags).is_err() {
            // The file system has no access control lists.
            return;
        }
        let said = opened(&path).unwrap_err();
        assert!(said.contains("is writable by a group"), "{said}");
        mode(&above.path().join("a"), 0o755);
        assert_eq!(opened(&path), Ok(()));
    }

    #[test]
    fn folders_and_symlinks_of_another_user_are_not_believed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        let link = above.path().join("link");
        symlink("a/../a/./b", &link).unwrap();
        assert_eq!(opened(&link), Ok(()));
        let loops = above.path().join("loop");
        symlink("loop", &loops).unwrap();
        assert!(
            opened(&loops.join("b"))
                .unwrap_err()
                .contains("symbolic links")
        );
        let absolute = above.path().join("absolute");
        symlink(above.path().join("a"), &absolute).unwrap();
        assert_eq!(opened(&absolute.join("b")), Ok(()));
        if chown(&path, Some(12_345), None).is_err() {
            // Only root can change a file's owner.
            return;
        }
        assert!(
            opened(&path)
                .unwrap_err()
                .ends_with("belongs to another user: change the owner or remove it")
        );
        assert!(opened(&link).is_err());
        chown(&path, Some(0), None).unwrap();
        chown(above.path().join("a"), Some(12_345), None).unwrap();
        assert!(opened(&path).is_err());
        chown(above.path().join("a"), Some(0), None).unwrap();
        assert_eq!(opened(&link), Ok(()));
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        assert!(
            opened(&link).unwrap_err().ends_with(
                "is a symlink that belongs to another user: change the owner or remove it"
            )
        );
    }

    #[test]
    fn files_are_of_this_user_alone_and_have_one_name() {
        let above = tempfile::tempdir().unwrap();
        let dir = PrivateDir::create(&above.path().join("a")).unwrap();
        let (name, path) = (OsStr::new("file"), above.path().join("a/file"));
        fs::write(&path, b"believed").unwrap();
        assert!(dir.file(name, true).is_ok());
        for bits in [0o602, 0o620] {
            mode(&path, bits);
            assert!(dir.file(name, false).is_err(), "{bits:o}");
        }
        mode(&path, 0o644);
        assert!(dir.file(name, false).is_ok());
        let second = above.path().join("second");
        fs::hard_link(&path, &second).unwrap();
        assert!(dir.file(name, false).is_err());
        fs::remove_file(&path).unwrap();
        symlink(&second, &path).unwrap();
        assert!(dir.file(name, false).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(dir.file(name, false).is_err());
    }

    /// Bug: each sync to another target left a file in the state folder for ever.
    #[test]
    fn files_that_each_run_may_add_were_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = PrivateDir::create(&folder.path().join("state")).unwrap();
        for (name, at) in [
            ("sync-a", 3),
            ("sync-b", 1),
            ("sync-c", 2),
            ("a.journal", 0),
        ] {
            let file = dir.create_file(OsStr::new(name)).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at);
            file.set_modified(time).unwrap();
        }
        dir.keep_newest("sync-", 3).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
        dir.keep_newest("sync-", 2).unwrap();
        let has = |name: &str| dir.path().join(name).exists();
        assert!(has("sync-a") && has("sync-c") && has("a.journal") && !has("sync-b"));
    }
}
