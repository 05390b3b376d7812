//! Resolves client paths: without restriction, or only beneath a root directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::{Errno, Result};
use sys::{SymlinkPolicy, open_beneath};

/// Root of path resolution for a client.
#[derive(Debug)]
pub(crate) enum PathRoot {
    /// Paths resolve as for any process.
    Everything,
    /// Paths resolve as if this directory were `/` (RESOLVE_IN_ROOT of openat2(2)). The kernel does
    /// it, so an attacker who moves directories or creates symlinks at the same time gains nothing.
    Beneath(OwnedFd),
    /// As [`PathRoot::Beneath`], and only for paths that lead to these entries or into them.
    Only(OwnedFd, ServedEntries),
}

/// Entries beneath a root that alone are served.
#[derive(Debug)]
pub(crate) struct ServedEntries {
    paths: Vec<ServedPath>,
    /// Symlinks below the entries are followed. An entry itself may be a symlink in any case.
    follows: bool,
}

impl ServedEntries {
    /// Entries at these paths; one with a `..` is left out.
    pub(crate) fn new(paths: &[Vec<u8>], follows: bool) -> Self {
        let paths = paths.iter().filter_map(|path| components(path)).collect();
        Self { paths, follows }
    }

    /// Returns the entry that a path names or is below.
    fn above(&self, asked: &ServedPath) -> Option<&ServedPath> {
        self.paths.iter().find(|entry| asked.starts_with(entry))
    }
}

/// The part of a directory that is served: all of it, or what leads to entries below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedPart(Option<Vec<ServedPath>>);

impl ServedPart {
    /// True for all of the directory.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_none()
    }

    /// True if an entry of the directory may be named.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        let leads = |path: &ServedPath| path.first().is_some_and(|first| first == name);
        self.0.as_ref().is_none_or(|paths| paths.iter().any(leads))
    }

    /// The part of the directory `name` in this one that is served.
    pub(crate) fn of(&self, name: &[u8]) -> Self {
        let below = |path: &ServedPath| {
            let (first, rest) = path.split_first()?;
            (first == name).then(|| rest.to_vec())
        };
        let paths = self.0.as_ref().map(|paths| paths.iter().filter_map(below));
        let paths: Option<Vec<ServedPath>> = paths.map(Iterator::collect);
        Self(paths.filter(|paths| !paths.iter().any(Vec::is_empty)))
    }
}

/// Components of a path beneath a root, without `.` and empty ones.
pub(crate) type ServedPath = Vec<Vec<u8>>;

/// Splits a path beneath a root; `None` if it has a `..`, which may lead anywhere behind a symlink.
pub(crate) fn components(path: &[u8]) -> Option<ServedPath> {
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    parts
        .map(|part| (part != b"..").then(|| part.to_vec()))
        .collect()
}

impl PathRoot {
    /// Opens `path`.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        match self {
            Self::Everything => {
                let path = or_here(path);
                rustix::io::retry_on_intr(|| fs::open(path, flags | OFlags::CLOEXEC, mode))
            }
            Self::Beneath(root) => open_beneath(root, path, flags, mode, SymlinkPolicy::WithinRoot),
            Self::Only(root, served) => {
                self.check(path)?;
                let within = SymlinkPolicy::WithinRoot;
                let asked = components(path).unwrap_or_default();
                match served.above(&asked) {
                    Some(entry) if !served.follows && *entry != asked => {
                        let rest = asked.get(entry.len()..).unwrap_or_default().join(&b'/');
                        let entry = entry.join(&b'/');
                        let entry =
                            open_beneath(root, &entry, OFlags::PATH, Mode::empty(), within)?;
                        open_beneath(&entry, &rest, flags, mode, SymlinkPolicy::Refused)
                    }
                    _ => open_beneath(root, path, flags, mode, within),
                }
            }
        }
    }

    /// Returns the part of the directory at `path` that is served.
    pub(crate) fn served_part(&self, path: &[u8]) -> ServedPart {
        let (Self::Only(_, served), Some(asked)) = (self, components(path)) else {
            return ServedPart::default();
        };
        let paths = served.paths.iter();
        let below = paths.filter_map(|entry| Some(entry.strip_prefix(&asked[..])?.to_vec()));
        ServedPart(match served.above(&asked) {
            Some(_) => None,
            None => Some(below.collect()),
        })
    }

    /// True if only a part of the file system is served.
    pub(crate) fn is_restricted(&self) -> bool {
        !matches!(self, Self::Everything)
    }

    /// Fails for a path to something that is not served.
    pub(crate) fn check(&self, path: &[u8]) -> Result<()> {
        let Self::Only(_, served) = self else {
            return Ok(());
        };
        let asked = components(path).ok_or(Errno::ACCESS)?;
        let leads = |entry: &ServedPath| asked.starts_with(entry) || entry.starts_with(&asked);
        match served.paths.iter().any(leads) {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }

    /// Calls `act` with the parent directory of `path` and the last name, for calls that do not
    /// follow a symlink of that name.
    pub(crate) fn at<T>(
        &self,
        path: &[u8],
        act: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        match self {
            Self::Everything => act(CWD, or_here(path)),
            Self::Beneath(root) => at_beneath(root, path, SymlinkPolicy::WithinRoot, act),
            Self::Only(..) => {
                self.check(path)?;
                let (dir, name) = parent_and_name(path)?;
                let dir = self.open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                act(dir.as_fd(), name)
            }
        }
    }

    /// Absolute path without symlinks and dots; the last component need not exist.
    pub(crate) fn canonical(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.canonical_existing(path) {
            Err(Errno::NOENT) => {
                let (dir, name) = split(path);
                if matches!(name, b"" | b"." | b"..") {
                    return Err(Errno::NOENT);
                }
                let mut whole = self.canonical_existing(dir)?;
                if whole != b"/" {
                    whole.push(b'/');
                }
                whole.extend_from_slice(name);
                Ok(whole)
            }
            other => other,
        }
    }

    fn canonical_existing(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Everything => {
                let found = std::fs::canonicalize(OsStr::from_bytes(or_here(path)));
                let found = found.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
                Ok(found.into_os_string().into_vec())
            }
            Self::Beneath(root) | Self::Only(root, _) => {
                let found = name_of(&self.open(path, found_flags(true), Mode::empty())?)?;
                let root = name_of(root)?;
                let root = root.strip_suffix(b"/").unwrap_or(&root);
                // The file was moved out of the root meanwhile and has no name here.
                let inside = found.strip_prefix(root).ok_or(Errno::NOENT)?;
                match inside {
                    b"" => Ok(b"/".to_vec()),
                    [b'/', ..] => Ok(inside.to_vec()),
                    _ => Err(Errno::NOENT),
                }
            }
        }
    }
}

/// Flags to find an entry, whatever its type; without `follow`, a symlink itself.
pub(crate) fn found_flags(follow: bool) -> OFlags {
    match follow {
        true => OFlags::PATH,
        false => OFlags::PATH | OFlags::NOFOLLOW,
    }
}

/// Calls `act` with the parent directory of `path` beneath `root` and the last name.
pub(crate) fn at_beneath<T>(
    root: &OwnedFd,
    path: &[u8],
    symlinks: SymlinkPolicy,
    act: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T>,
) -> Result<T> {
    let (dir, name) = parent_and_name(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let dir = open_beneath(root, dir, flags, Mode::empty(), symlinks)?;
    act(dir.as_fd(), name)
}

/// Splits a path beneath a root into its parent directory and its last name.
fn parent_and_name(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let (dir, name) = split(path);
    // `..` of the root directory is outside.
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        name => Ok((dir, name)),
    }
}

/// Name that the kernel reports for the descriptor.
fn name_of(fd: &OwnedFd) -> Result<Vec<u8>> {
    Ok(fs::readlink(proc_name(fd), Vec::new())?.into_bytes())
}

/// Path in /proc to the file of a descriptor, for calls that do not accept O_PATH descriptors.
pub(crate) fn proc_name(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn or_here(path: &[u8]) -> &[u8] {
    match path {
        b"" => b".",
        path => path,
    }
}

/// Splits a path into directory and name; trailing slashes are ignored.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_served_is_found() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["data/sub", "other", "data-2"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::os::unix::fs::symlink("../other", root.path().join("data/link")).unwrap();
        let fd: OwnedFd = std::fs::File::open(root.path()).unwrap().into();
        let served = [b"/data".to_vec(), b"/a/b".to_vec()];
        let only = PathRoot::Only(fd, ServedEntries::new(&served, true));
        let find = |path: &str| {
            only.open(path.as_bytes(), OFlags::PATH, Mode::empty())
                .err()
        };
        for path in ["/", ".", "", "/data", "data/", "/./data//sub", "/data/link"] {
            assert_eq!(find(path), None, "{path}");
        }
        for path in [
            "/other",
            "/data-2",
            "/dat",
            "/data/../other",
            "/data/link/..",
            "/x",
        ] {
            assert_eq!(find(path), Some(Errno::ACCESS), "{path}");
        }
        assert_eq!(find("/a"), Some(Errno::NOENT));
        assert!(only.at(b"/other/x", |_, _| Ok(())).is_err());
    }

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        let cases: [(&[u8], &[u8], &[u8]); 6] = [
            (b"a", b".", b"a"),
            (b"/a", b"/", b"a"),
            (b"a/b//", b"a", b"b"),
            (b"/a/../b", b"/a/..", b"b"),
            (b"/", b".", b""),
            (b"a/..", b"a", b".."),
        ];
        for (path, dir, name) in cases {
            assert_eq!(split(path), (dir, name), "{path:?}");
        }
    }
}
