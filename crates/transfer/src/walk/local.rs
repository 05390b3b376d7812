use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, ReadDir};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{DirId, Entry, Found, NOT_REGULAR};
use crate::disk::{attributes, identity, os_words};
use crate::report::Name;

/// Directories kept open at once. Those above are read to their end into memory, so that a deep
/// tree does not use up the descriptors.
const OPEN: usize = 200;

/// Walks a local tree in the order of readdir, as scp does, without recursion.
///
/// Plain paths and not descriptors of directories: every file is opened by path again on the
/// disk threads, the target at the other end has the same PATH_MAX, and scp's users expect a
/// symlink that changes under them to be followed.
#[derive(Debug)]
pub struct LocalWalk {
    follow: bool,
    root: Option<PathBuf>,
    stack: Vec<Frame>,
    next: u64,
    /// A directory that must not be walked into: where the copy goes, which may not be there
    /// yet.
    avoid: Option<PathBuf>,
    avoided: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Frame {
    id: DirId,
    path: PathBuf,
    entries: Entries,
    /// Device and inode, to know it when a symlink leads back.
    identity: (u64, u64),
}

#[derive(Debug)]
enum Entries {
    Open(ReadDir),
    Read(std::vec::IntoIter<io::Result<OsString>>),
}

impl Entries {
    fn next(&mut self) -> Option<io::Result<OsString>> {
        match self {
            Self::Open(dir) => dir.next().map(|e| e.map(|e| e.file_name())),
            Self::Read(names) => names.next(),
        }
    }
}

impl LocalWalk {
    /// A walk of `root` that follows symlinks, or keeps them (the root itself is followed
    /// always).
    pub fn new(root: PathBuf, follow: bool) -> Self {
        Self {
            follow,
            root: Some(root),
            stack: Vec::new(),
            next: 0,
            avoid: None,
            avoided: None,
        }
    }

    /// Does not walk into the directory at this path, and says so.
    pub fn avoid(&mut self, path: PathBuf) {
        self.avoid = Some(path);
    }

    /// Leaves out what is in directory `id`, if nothing of it was taken yet.
    pub fn skip(&mut self, id: DirId) {
        if self.stack.last().is_some_and(|frame| frame.id == id) {
            self.stack.pop();
        }
    }

    fn look(&mut self, parent: Option<DirId>, name: Vec<u8>, path: PathBuf) -> Found {
        let follow = self.follow || parent.is_none();
        let meta = if follow {
            fs::metadata(&path)
        } else {
            fs::symlink_metadata(&path)
        };
        match meta {
            Ok(meta) => self.sort(parent, name, path, &meta),
            Err(e) => problem(&path, os_words(&e)),
        }
    }

    fn sort(
        &mut self,
        parent: Option<DirId>,
        name: Vec<u8>,
        path: PathBuf,
        meta: &Metadata,
    ) -> Found {
        let entry = |path: &Path| Entry {
            parent,
            name,
            path: path.as_os_str().as_bytes().to_vec(),
            attributes: attributes(meta),
            identity: meta.is_file().then(|| identity(meta)),
        };
        if meta.is_dir() {
            match self.enter(&path, meta) {
                Ok(id) => Found::Directory {
                    id,
                    at: entry(&path),
                },
                Err(what) => problem(&path, what),
            }
        } else if meta.is_file() {
            Found::File(entry(&path))
        } else if meta.is_symlink() {
            Found::Symlink(entry(&path))
        } else {
            problem(&path, NOT_REGULAR.to_owned())
        }
    }

    fn enter(&mut self, path: &Path, meta: &Metadata) -> Result<DirId, String> {
        let identity = (meta.dev(), meta.ino());
        if let (Some(path), None) = (&self.avoid, self.avoided) {
            let meta = fs::metadata(path).ok();
            self.avoided = meta.map(|m| (m.dev(), m.ino()));
        }
        if self.avoided == Some(identity) {
            return Err(
                "this is where the copy goes: a directory cannot be copied into itself".to_owned(),
            );
        }
        if let Some(above) = self.stack.iter().find(|f| f.identity == identity) {
            let above = Name::from(above.path.as_path());
            return Err(format!("a loop of symlinks: this is {above} again"));
        }
        let entries = fs::read_dir(path).map_err(|e| os_words(&e))?;
        self.close_far_above();
        let id = DirId(self.next);
        self.next += 1;
        self.stack.push(Frame {
            id,
            path: path.to_path_buf(),
            entries: Entries::Open(entries),
            identity,
        });
        Ok(id)
    }

    fn close_far_above(&mut self) {
        let Some(far) = self.stack.len().checked_sub(OPEN) else {
            return;
        };
        if let Some(frame) = self.stack.get_mut(far)
            && let Entries::Open(dir) = &mut frame.entries
        {
            let names: Vec<_> = dir.map(|e| e.map(|e| e.file_name())).collect();
            frame.entries = Entries::Read(names.into_iter());
        }
    }
}

impl Iterator for LocalWalk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if let Some(root) = self.root.take() {
            return Some(self.look(None, Vec::new(), root));
        }
        let frame = self.stack.last_mut()?;
        match frame.entries.next() {
            Some(Ok(name)) => {
                let path = frame.path.join(&name);
                let parent = Some(frame.id);
                Some(self.look(parent, name.as_bytes().to_vec(), path))
            }
            Some(Err(e)) => Some(problem(&frame.path, os_words(&e))),
            None => {
                let id = frame.id;
                self.stack.pop();
                Some(Found::Listed(id))
            }
        }
    }
}

fn problem(path: &Path, what: String) -> Found {
    Found::Problem {
        path: path.as_os_str().as_bytes().to_vec(),
        what,
    }
}

/// A path from bytes.
pub(crate) fn local_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn walk(root: &Path, follow: bool) -> Vec<String> {
        let strip = root.as_os_str().len();
        let show = |path: &[u8]| String::from_utf8_lossy(&path[strip..]).into_owned();
        let mut found: Vec<String> = LocalWalk::new(root.to_path_buf(), follow)
            .filter_map(|found| match found {
                Found::Directory { at, .. } => Some(format!("d {}", show(&at.path))),
                Found::File(at) => Some(format!("f {}", show(&at.path))),
                Found::Symlink(at) => Some(format!("l {}", show(&at.path))),
                Found::Listed(_) => None,
                Found::Problem { path, what } => Some(format!("! {} {what}", show(&path))),
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn everything_is_found_and_said_what_it_is() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let root = dir.path();
        fs::create_dir_all(root.join("a/b"))?;
        fs::write(root.join("a/b/f"), "x")?;
        fs::write(root.join(OsStr::from_bytes(b"n\xff")), "x")?;
        symlink("a", root.join("to_a"))?;
        symlink("nowhere", root.join("broken"))?;
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket"))?;
        assert_eq!(
            walk(root, true),
            [
                "! /broken no such file or directory",
                "! /socket not a regular file",
                "d ",
                "d /a",
                "d /a/b",
                "d /to_a",
                "d /to_a/b",
                "f /a/b/f",
                "f /n\u{fffd}",
                "f /to_a/b/f",
            ]
        );
        assert_eq!(
            walk(root, false),
            [
                "! /socket not a regular file",
                "d ",
                "d /a",
                "d /a/b",
                "f /a/b/f",
                "f /n\u{fffd}",
                "l /broken",
                "l /to_a",
            ]
        );
        Ok(())
    }

    #[test]
    fn a_symlink_to_a_directory_above_is_not_followed_for_ever() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::create_dir_all(dir.path().join("a/b"))?;
        symlink("../..", dir.path().join("a/b/up"))?;
        let found = walk(dir.path(), true);
        assert_eq!(found.len(), 4);
        assert!(
            found[0].starts_with("! /a/b/up a loop of symlinks"),
            "{found:?}"
        );
        Ok(())
    }

    #[test]
    fn a_tree_deeper_than_the_descriptors_is_walked() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let mut path = dir.path().to_path_buf();
        for _ in 0..1500 {
            path.push("d");
        }
        fs::create_dir_all(&path)?;
        fs::write(path.join("f"), "")?;
        for level in path.ancestors().take(1500) {
            fs::write(level.join("g"), "")?;
        }
        let found = walk(dir.path(), true);
        assert_eq!(found.len(), 1501 + 1501);
        assert!(!found.iter().any(|f| f.starts_with('!')));
        Ok(())
    }
}
