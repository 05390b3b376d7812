//! Directories that a client has named by hold-root@longhaul, and path resolution below them.
//!
//! A path below such a root is resolved from a descriptor of the root, and a symlink in it is an
//! error. Another process that swaps a directory below the root for a symlink, between two requests
//! or during one, therefore leads no request elsewhere.
//!
//! Held roots only restrict: a path to something that is not served fails as without them, and so
//! does one below a root that was moved out of a restricted export.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::{Errno, Result};
use sys::{SymlinkPolicy, open_beneath};

use crate::beneath::{PathRoot, at_beneath, found_flags};

/// Maximum number of roots of a client. A sync names its target and the directories of
/// `--backup-dir` and `--link-dest`.
const MOST: usize = 8;
/// Longest path of a root in bytes; the kernel opens no longer one (PATH_MAX).
const LONGEST: usize = 4095;

/// Path resolution of one client: what the export allows, and below held roots without symlinks.
#[derive(Debug)]
pub(crate) struct ClientPaths<'e> {
    export: &'e PathRoot,
    held: Vec<HeldRoot>,
}

/// A directory named by the client.
#[derive(Debug)]
struct HeldRoot {
    path: Vec<u8>,
    /// Set once the directory exists; until then every use tries to open it.
    directory: OnceLock<OwnedFd>,
}

/// A path below a held root.
#[derive(Clone, Copy)]
struct PathBelowRoot<'a> {
    root: &'a HeldRoot,
    /// Rest of the path, which is not empty.
    rest: &'a [u8],
}

impl<'e> ClientPaths<'e> {
    pub(crate) fn new(export: &'e PathRoot) -> Self {
        Self {
            export,
            held: Vec::new(),
        }
    }

    /// Root directory of the export.
    pub(crate) fn export(&self) -> &'e PathRoot {
        self.export
    }

    /// Resolves paths below `path` from a descriptor of that directory from now on. The directory
    /// may be missing: it is opened when it exists. Returns false if the directory was held before.
    ///
    /// # Errors
    /// ENAMETOOLONG or EMFILE if a limit is exceeded.
    pub(crate) fn hold(&mut self, path: &[u8]) -> Result<bool> {
        if path.len() > LONGEST {
            return Err(Errno::NAMETOOLONG);
        }
        if self.root_at(path).is_some() {
            return Ok(false);
        }
        if self.held.len() >= MOST {
            return Err(Errno::MFILE);
        }
        self.held.push(HeldRoot {
            path: path.to_vec(),
            directory: OnceLock::new(),
        });
        if let Some(root) = self.held.last() {
            // A missing directory is opened later, and any other error shows at the first use.
            let _ = self.directory(root);
        }
        Ok(true)
    }

    /// Opens `path`.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.export.check(path)?;
        let refused = SymlinkPolicy::Refused;
        if let Some(root) = self.root_at(path)
            && !flags.contains(OFlags::NOFOLLOW)
            && let Ok(directory) = self.directory(root)
        {
            return open_beneath(directory, b".", flags, mode, refused);
        }
        let Some(PathBelowRoot { root, rest }) = self.below(path) else {
            return self.export.open(path, flags, mode);
        };
        open_beneath(self.directory(root)?, rest, flags, mode, refused)
    }

    /// Opens `path` with O_PATH, whatever its type; without `follow`, a symlink itself.
    pub(crate) fn find(&self, path: &[u8], follow: bool) -> Result<OwnedFd> {
        self.open(path, found_flags(follow), Mode::empty())
    }

    /// Calls `act` with the parent directory of `path` and the last name, for calls that do not
    /// follow a symlink of that name.
    pub(crate) fn at<T>(
        &self,
        path: &[u8],
        act: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let Some(PathBelowRoot { root, rest }) = self.below(path) else {
            return self.export.at(path, act);
        };
        self.export.check(path)?;
        at_beneath(self.directory(root)?, rest, SymlinkPolicy::Refused, act)
    }

    /// Absolute path without symlinks and dots; the last component need not exist. Nothing is
    /// opened for use by it, so held roots make no difference.
    pub(crate) fn canonical(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.export.canonical(path)
    }

    /// Finds the root that `path` names.
    fn root_at(&self, path: &[u8]) -> Option<&HeldRoot> {
        let is_at = |root: &&HeldRoot| strip(path, &root.path).is_some_and(<[u8]>::is_empty);
        self.held.iter().find(is_at)
    }

    /// Finds the innermost root that `path` is below.
    fn below<'s>(&'s self, path: &'s [u8]) -> Option<PathBelowRoot<'s>> {
        let below = self.held.iter().filter_map(|root| {
            let rest = strip(path, &root.path)?;
            (!rest.is_empty()).then_some(PathBelowRoot { root, rest })
        });
        below.min_by_key(|below| below.rest.len())
    }

    /// Descriptor of a root, which is opened once.
    ///
    /// # Errors
    /// The root cannot be opened, or ESTALE if its path leads to another directory in a restricted
    /// export: the held one may have been moved out of the export.
    fn directory<'s>(&'s self, root: &'s HeldRoot) -> Result<&'s OwnedFd> {
        let Some(directory) = root.directory.get() else {
            let opened = self.open_root(root)?;
            return Ok(root.directory.get_or_init(|| opened));
        };
        if self.export.is_restricted() && !is_same(directory, &self.open_root(root)?)? {
            return Err(Errno::STALE);
        }
        Ok(directory)
    }

    /// Opens a root. A root below another root is opened beneath that one.
    fn open_root(&self, root: &HeldRoot) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let Some(PathBelowRoot { root: outer, rest }) = self.below(&root.path) else {
            return self.export.open(&root.path, flags, Mode::empty());
        };
        self.export.check(&root.path)?;
        let outer = self.directory(outer)?;
        open_beneath(outer, rest, flags, Mode::empty(), SymlinkPolicy::Refused)
    }
}

/// True if two descriptors are of one directory.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> Result<bool> {
    let (one, other) = (fstat(one)?, fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Returns the rest of `path` below `root`, compared by components; empty for `root` itself.
fn strip<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let is_absolute = |path: &[u8]| path.first() == Some(&b'/');
    if is_absolute(path) != is_absolute(root) {
        return None;
    }
    let mut rest = path;
    let names = root.split(|byte| *byte == b'/');
    for name in names.filter(|name| !matches!(*name, b"" | b".")) {
        let (first, behind) = first_name(rest);
        if first != name {
            return None;
        }
        rest = behind;
    }
    let (first, _) = first_name(rest);
    let begin = rest.iter().position(|byte| *byte != b'/');
    Some(match first {
        b"" => b"",
        _ => begin.map_or(b"", |begin| &rest[begin..]),
    })
}

/// Splits a path behind its first component; `.` and empty ones are skipped.
fn first_name(mut path: &[u8]) -> (&[u8], &[u8]) {
    loop {
        let end = path.iter().position(|byte| *byte == b'/');
        let (name, behind) = path.split_at(end.unwrap_or(path.len()));
        let behind = behind.strip_prefix(b"/").unwrap_or_default();
        match name {
            b"" | b"." if !behind.is_empty() => path = behind,
            b"." => return (b"", behind),
            name => return (name, behind),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::beneath::components;
    use crate::testing::bytes_of;

    #[test]
    fn a_path_below_a_root_is_compared_by_components() {
        type Case = (&'static [u8], &'static [u8], Option<&'static [u8]>);
        let cases: [Case; 16] = [
            (b"/a/b/c", b"/a/b", Some(b"c")),
            (b"/a/b/c/d/", b"/a/b/", Some(b"c/d/")),
            (b"/a//./b///c", b"//a/b", Some(b"c")),
            (b"/a/b", b"/a/b/", Some(b"")),
            (b"/a/b/./", b"/a/b", Some(b"")),
            (b"/a/b/.", b"/a/b", Some(b"")),
            (b"/a/bc", b"/a/b", None),
            (b"/a", b"/a/b", None),
            (b"a/b", b"/a", None),
            (b"/a/b", b"a", None),
            (b"a/b", b"a", Some(b"b")),
            (b"./a/b", b"", Some(b"a/b")),
            (b"a", b".", Some(b"a")),
            (b"", b"", Some(b"")),
            (b"/", b"/", Some(b"")),
            (b"/a/b/../../etc", b"/a/b", Some(b"../../etc")),
        ];
        for (path, root, rest) in cases {
            let shown = String::from_utf8_lossy(path);
            let found = strip(path, root).map(|rest| rest.strip_prefix(b"./").unwrap_or(rest));
            assert_eq!(found, rest, "{shown}");
        }
    }

    #[test]
    fn below_a_root_no_symlink_is_followed_and_the_root_itself_may_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for dir in ["real/d", "outside", "bak"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        fs::write(at("outside/f"), b"x").unwrap();
        symlink(at("real"), at("root")).unwrap();
        symlink(at("outside"), at("real/link")).unwrap();
        symlink(at("outside"), at("real/inner")).unwrap();
        let everything = PathRoot::Everything;
        let mut paths = ClientPaths::new(&everything);
        let find = |paths: &ClientPaths<'_>, name: &str, follow| {
            paths.find(bytes_of(&at(name)), follow).err()
        };
        assert_eq!(find(&paths, "root/link/f", true), None);
        for root in ["root", "root/inner", "root/later"] {
            paths.hold(bytes_of(&at(root))).unwrap();
        }
        assert_eq!(find(&paths, "root", true), None);
        assert_eq!(find(&paths, "root/d", true), None);
        assert_eq!(find(&paths, "root/link", false), None);
        for name in ["root/link", "root/link/f", "root/inner/f", "root/inner"] {
            assert_eq!(find(&paths, name, true), Some(Errno::LOOP), "{name}");
        }
        assert!(find(&paths, "root/d/../../outside/f", true).is_some());
        let gone = paths.at(bytes_of(&at("root/link/f")), |_, _| Ok(()));
        assert_eq!(gone, Err(Errno::LOOP));
        assert_eq!(find(&paths, "root/later/x", true), Some(Errno::NOENT));
        fs::create_dir_all(at("real/later/x")).unwrap();
        assert_eq!(find(&paths, "root/later/x", true), None);
    }

    /// Bug: a root below another root was opened without a look at what is served, so that a
    /// confined client could list any directory.
    #[test]
    fn a_held_root_opens_nothing_that_is_not_served() {
        let folder = tempfile::tempdir().unwrap();
        for dir in ["data/sub/d", "data/secret"] {
            fs::create_dir_all(folder.path().join(dir)).unwrap();
        }
        let root = fs::File::open(folder.path()).unwrap().into();
        let only = PathRoot::Only(root, vec![components(b"/data/sub").unwrap()]);
        let mut paths = ClientPaths::new(&only);
        for root in [&b"/data"[..], b"/data/secret", b"/data/sub"] {
            paths.hold(root).unwrap();
        }
        let listed = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = |path: &[u8]| paths.open(path, listed, Mode::empty()).err();
        for path in [&b"/data/secret"[..], b"/data/./secret/", b"/data/secret/x"] {
            assert_eq!(open(path), Some(Errno::ACCESS));
        }
        for path in [&b"/data"[..], b"/data/sub", b"/data/sub/d"] {
            assert_eq!(open(path), None);
        }
    }

    /// Bug: a client kept what was moved out of its export for as long as it stayed.
    #[test]
    fn a_held_root_that_is_moved_out_of_the_export_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("export/dir/inner/d")).unwrap();
        let export = PathRoot::Beneath(fs::File::open(at("export")).unwrap().into());
        let mut paths = ClientPaths::new(&export);
        for root in [&b"/dir"[..], b"/dir/inner"] {
            assert_eq!(paths.hold(root), Ok(true));
        }
        let find = |path: &[u8]| paths.find(path, true).err();
        assert_eq!(find(b"/dir/inner/d"), None);
        fs::rename(at("export/dir/inner"), at("moved-inner")).unwrap();
        assert_eq!(find(b"/dir/inner/d"), Some(Errno::NOENT));
        fs::create_dir_all(at("export/dir/inner/d")).unwrap();
        assert_eq!(find(b"/dir/inner/d"), Some(Errno::STALE));
        fs::rename(at("export/dir"), at("moved")).unwrap();
        for path in [&b"/dir/inner"[..], b"/dir/inner/d", b"/dir/x"] {
            assert_eq!(find(path), Some(Errno::NOENT));
            assert_eq!(paths.at(path, |_, _| Ok(())), Err(Errno::NOENT));
        }
    }

    #[test]
    fn the_number_and_length_of_roots_are_limited() {
        let everything = PathRoot::Everything;
        let mut paths = ClientPaths::new(&everything);
        for first in [true, false] {
            for n in 0..MOST {
                let held = paths.hold(format!("/none/{n}").as_bytes());
                assert_eq!(held, Ok(first));
            }
        }
        assert_eq!(paths.hold(b"/none//7/."), Ok(false));
        assert_eq!(paths.hold(b"/none/more"), Err(Errno::MFILE));
        assert_eq!(paths.hold(&[b'a'; 5000]), Err(Errno::NAMETOOLONG));
    }
}
