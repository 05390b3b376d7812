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

use crate::beneath::{PathRoot, at_beneath, found_flags, split};

/// Maximum number of roots of a client. A sync names its target and the directories of
/// `--backup-dir` and `--link-dest`.
const MOST: usize = 8;
/// Longest path of a root in bytes; the kernel opens no longer one (PATH_MAX).
const LONGEST: usize = 4095;

/// Flags to open a root or a part of its path.
const ROOT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Path resolution of one client: what the export allows, and below held roots without symlinks.
#[derive(Debug)]
pub(crate) struct ClientPathResolver<'e> {
    export: &'e PathRoot,
    held: Vec<HeldRoot>,
}

/// A directory that the client named as a root, held open once it exists.
#[derive(Debug)]
struct HeldRoot {
    path: Vec<u8>,
    /// Set once the directory exists; until then every use tries to open it.
    directory: OnceLock<OwnedFd>,
    /// Start of the path of a directory that was missing when it was named.
    existing: Option<ExistingRootPrefix>,
}

/// The part of a path that existed when it was named as a root. What appears behind it later was not
/// there for the client to name, so a symlink in the rest is not followed.
#[derive(Debug)]
struct ExistingRootPrefix {
    path: Vec<u8>,
    directory: OwnedFd,
    /// Path of the root beneath `directory`.
    rest: Vec<u8>,
}

/// A path relative to a root directory that is held open.
#[derive(Clone, Copy)]
struct PathBelowRoot<'a> {
    root: &'a HeldRoot,
    /// Rest of the path, which is not empty.
    rest: &'a [u8],
}

impl<'e> ClientPathResolver<'e> {
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
    /// may be missing: it is opened when it exists, and then without symlinks in the missing part of
    /// its path. Returns false if the directory was held before.
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
            existing: None,
        });
        let Some(root) = self.held.last() else {
            return Ok(true);
        };
        // A missing directory is opened later, and any other error shows at the first use.
        if matches!(self.directory(root), Err(Errno::NOENT)) && self.below(path).is_none() {
            let existing = self.existing_part(path);
            if let Some(root) = self.held.last_mut() {
                root.existing = existing;
            }
        }
        Ok(true)
    }

    /// Opens the longest part of `path` that exists; `None` if the entry behind it is a symlink to
    /// something that is missing, which the client has named, or if nothing of it can be opened.
    fn existing_part(&self, path: &[u8]) -> Option<ExistingRootPrefix> {
        let (mut path, mut rest) = (path, Vec::new());
        loop {
            if self
                .export
                .open(path, found_flags(false), Mode::empty())
                .is_ok()
            {
                return None;
            }
            let (parent, name) = split(path);
            rest = match rest.is_empty() {
                true => name.to_vec(),
                false => [name, b"/", &rest].concat(),
            };
            match self.export.open(parent, ROOT, Mode::empty()) {
                Ok(directory) => {
                    return Some(ExistingRootPrefix {
                        path: parent.to_vec(),
                        directory,
                        rest,
                    });
                }
                Err(Errno::NOENT) if parent.len() < path.len() => path = parent,
                Err(_) => return None,
            }
        }
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
        if let Some(PathBelowRoot { root, rest }) = self.below(path) {
            return open_beneath(self.directory(root)?, rest, flags, mode, refused);
        }
        match self.way_to_root(path) {
            Some((part, rest)) => open_beneath(self.still_there(part)?, rest, flags, mode, refused),
            None => self.export.open(path, flags, mode),
        }
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
        let (directory, rest) = if let Some(PathBelowRoot { root, rest }) = self.below(path) {
            (self.directory(root)?, rest)
        } else if let Some((part, rest)) = self.way_to_root(path) {
            (self.still_there(part)?, rest)
        } else {
            return self.export.at(path, act);
        };
        self.export.check(path)?;
        at_beneath(directory, rest, SymlinkPolicy::Refused, act)
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

    /// Finds the innermost root that `path` is below. A sibling, such as `root/../backup` from a
    /// relative `--backup-dir`, is not below the root. A `..` after another component is below it,
    /// and is refused.
    fn below<'s>(&'s self, path: &'s [u8]) -> Option<PathBelowRoot<'s>> {
        let below = self.held.iter().filter_map(|root| {
            let rest = strip(path, &root.path)?;
            let is_below = !rest.is_empty() && first_name(rest).0 != b"..";
            is_below.then_some(PathBelowRoot { root, rest })
        });
        below.min_by_key(|below| below.rest.len())
    }

    /// Finds the root that was missing and that `path` names or leads to, and the rest of `path`
    /// behind the part that existed.
    fn way_to_root<'s>(&'s self, path: &'s [u8]) -> Option<(&'s ExistingRootPrefix, &'s [u8])> {
        self.held.iter().find_map(|root| {
            let part = root.existing.as_ref()?;
            strip(&root.path, path)?;
            let rest = strip(path, &part.path)?;
            (!rest.is_empty()).then_some((part, rest))
        })
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
        let (outer, rest) = match (self.below(&root.path), &root.existing) {
            (Some(PathBelowRoot { root: outer, rest }), _) => (self.directory(outer)?, rest),
            (None, Some(part)) => (self.still_there(part)?, &part.rest[..]),
            (None, None) => return self.export.open(&root.path, ROOT, Mode::empty()),
        };
        self.export.check(&root.path)?;
        open_beneath(outer, rest, ROOT, Mode::empty(), SymlinkPolicy::Refused)
    }

    /// Descriptor of an existing part of a path.
    ///
    /// # Errors
    /// ESTALE if its path leads to another directory in a restricted export.
    fn still_there<'s>(&self, part: &'s ExistingRootPrefix) -> Result<&'s OwnedFd> {
        if self.export.is_restricted() {
            let now = self.export.open(&part.path, ROOT, Mode::empty())?;
            if !is_same(&part.directory, &now)? {
                return Err(Errno::STALE);
            }
        }
        Ok(&part.directory)
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
    use crate::beneath::ServedEntries;
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
        let mut paths = ClientPathResolver::new(&everything);
        let find = |paths: &ClientPathResolver<'_>, name: &str, follow| {
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

    /// Bug: `--backup-dir ../bk` failed with EXDEV, since the directory was resolved below the target.
    #[test]
    fn a_sibling_that_is_named_by_way_of_a_root_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("root/d")).unwrap();
        let everything = PathRoot::Everything;
        let mut paths = ClientPathResolver::new(&everything);
        for root in ["root", "root/../bk"] {
            assert!(paths.hold(bytes_of(&at(root))).unwrap());
        }
        let make = |paths: &ClientPathResolver<'_>, name: &str| {
            let mode = Mode::from_raw_mode(0o700);
            paths.at(bytes_of(&at(name)), |dir, name| {
                rustix::fs::mkdirat(dir, name, mode)
            })
        };
        assert_eq!(make(&paths, "root/../bk"), Ok(()));
        assert_eq!(make(&paths, "root/../bk/d"), Ok(()));
        assert!(at("bk/d").is_dir());
        symlink(at("root"), at("bk/link")).unwrap();
        assert_eq!(make(&paths, "root/../bk/link/x"), Err(Errno::LOOP));
        assert!(make(&paths, "root/d/../../outside").is_err());
    }

    /// Bug: a root that was missing when it was named was opened through a symlink that another
    /// user had put there before it was made.
    #[test]
    fn a_missing_root_is_not_opened_through_a_symlink_that_appears_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for dir in ["outside/d", "real"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        symlink("real", at("named")).unwrap();
        symlink(at("missing"), at("dangling")).unwrap();
        let export = PathRoot::Beneath(fs::File::open(folder.path()).unwrap().into());
        for (everything, served) in [(true, &PathRoot::Everything), (false, &export)] {
            let mut paths = ClientPathResolver::new(served);
            let path_of = |name: &str| match everything {
                true => bytes_of(&at(name)).to_vec(),
                false => format!("/{name}").into_bytes(),
            };
            let roots = ["new", "named/new/", "deep/in/new", "later"];
            for root in roots {
                assert_eq!(paths.hold(&path_of(root)), Ok(true));
            }
            for name in ["new", "real/new", "deep"] {
                symlink(at("outside"), at(name)).unwrap();
            }
            fs::create_dir_all(at("outside/in/new/d")).unwrap();
            fs::create_dir_all(at("later/d")).unwrap();
            for root in ["new", "named/new", "deep/in/new"] {
                for below in ["d", "in"] {
                    let path = path_of(&format!("{root}/{below}"));
                    let found = paths.find(&path, true).err();
                    assert!(
                        matches!(found, Some(Errno::LOOP | Errno::NOTDIR)),
                        "{root} {found:?}"
                    );
                }
            }
            for on_the_way in ["new", "deep", "deep/in", "deep/in/new"] {
                let found = paths.find(&path_of(on_the_way), true).err();
                assert!(
                    matches!(found, Some(Errno::LOOP | Errno::NOTDIR)),
                    "{on_the_way}"
                );
            }
            let made = paths.at(&path_of("deep/in"), |_, _| Ok(()));
            assert!(matches!(made, Err(Errno::LOOP | Errno::NOTDIR)));
            assert_eq!(paths.find(&path_of("new"), false).err(), None);
            assert_eq!(paths.find(&path_of("later/d"), true).err(), None);
            // Made after all, they are opened.
            for name in ["new", "real/new", "deep"] {
                fs::remove_file(at(name)).unwrap();
            }
            for root in ["new", "real/new", "deep/in/new"] {
                fs::create_dir_all(at(root).join("d")).unwrap();
            }
            for root in ["new", "named/new", "deep/in/new"] {
                let path = path_of(&format!("{root}/d"));
                assert_eq!(paths.find(&path, true).err(), None, "{root}");
            }
            for made in ["new", "real/new", "deep", "later", "outside/in"] {
                fs::remove_dir_all(at(made)).unwrap();
            }
        }
        // A symlink that was there before leads where it leads, once that exists.
        let everything = PathRoot::Everything;
        let mut paths = ClientPathResolver::new(&everything);
        paths.hold(bytes_of(&at("dangling"))).unwrap();
        fs::create_dir_all(at("missing/d")).unwrap();
        assert_eq!(paths.find(bytes_of(&at("dangling/d")), true).err(), None);
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
        let only = PathRoot::Only(root, ServedEntries::new(&[b"/data/sub".to_vec()], true));
        let mut paths = ClientPathResolver::new(&only);
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
        let mut paths = ClientPathResolver::new(&export);
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
        let mut paths = ClientPathResolver::new(&everything);
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
