//! A tree copied into itself through a host that is this machine.
//!
//! `longhaul cp -r localhost:dir dir/inside` would find what it has just made, and copy that into
//! itself until the names are too long, as scp does. SFTP tells neither which host it is nor
//! which file a name means. But were it this machine, then both paths could be looked at here:
//! where the target lies in the source then, a directory with a name that nobody else has is made
//! here for a moment, and the server asked whether it sees it. So no other copy pays for this.
//!
//! What stays: servers that show other paths than ours (chroot), and two hosts that are one.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::engine::{End, Engine};
use super::guess::TargetIs;
use super::local::identity;
use super::names::name_in_target;
use super::source::{Avoid, Onto};
use crate::disk::temp_name;
use crate::walk::{join, local_path};

impl Engine<'_> {
    /// Has walks stay out of the target where it turns out to lie in one of `sources`.
    pub(super) fn avoid_itself(&mut self, sources: &[Vec<u8>], onto: &Onto) {
        let recursive = self.options.recursive || self.options.archive;
        let far = match (&self.source, &self.target) {
            (Some(_), None) => End::Source,
            (None, Some(_)) => End::Target,
            _ => return,
        };
        if !recursive {
            return;
        }
        let (path, into) = match onto {
            Onto::Into(path) => (path, true),
            Onto::Exactly(path) | Onto::Guess(path) => (path, false),
        };
        let Some((place, there)) = place_here(path, far == End::Target) else {
            return;
        };
        let inside = sources.iter().any(|source| {
            let target = match name_in_target(source).filter(|_| into) {
                Some(name) => place.join(OsStr::from_bytes(name)),
                None => place.clone(),
            };
            let here = as_here(source, far == End::Source);
            let here = here.and_then(|path| fs::canonicalize(path).ok());
            here.is_some_and(|source| source.is_dir() && target.starts_with(source))
        });
        if inside && self.sees(far, &there) {
            let path = place.as_os_str().as_bytes().to_vec();
            self.walks.avoid = Some(Avoid { path, into });
        }
    }

    /// Whether `source` would be written into itself: the server opens a file that is written in place
    /// with TRUNC, and nothing would be left to read. That is said.
    pub(super) fn is_emptied(&mut self, source: &[u8], onto: &Onto) -> bool {
        let recursive = self.options.recursive || self.options.archive;
        if !self.options.inplace || recursive || self.target.is_none() {
            return false;
        }
        let target = match onto {
            Onto::Exactly(path) => path.clone(),
            Onto::Guess(path) if !as_here(path, true).is_some_and(|at| at.is_dir()) => path.clone(),
            Onto::Into(dir) | Onto::Guess(dir) => match name_in_target(source) {
                Some(name) => join(dir, name),
                None => return false,
            },
        };
        let Some(there) = as_here(&target, true) else {
            return false;
        };
        let same = match (fs::metadata(local_path(source)), fs::metadata(&there)) {
            (Ok(source), Ok(target)) => identity(&source) == identity(&target),
            _ => false,
        };
        let parent = there.parent().and_then(|dir| fs::canonicalize(dir).ok());
        let emptied = same && parent.is_some_and(|dir| self.sees(End::Target, &dir));
        if emptied {
            let name = self.shown(End::Target, &target);
            self.fail(None, name, "source and target are the same file".to_owned());
        }
        emptied
    }

    /// Whether the host at `end` has `dir` of this machine.
    fn sees(&mut self, end: End, dir: &Path) -> bool {
        let name = temp_name(b"same-host");
        let probe = dir.join(OsStr::from_bytes(&name));
        if fs::create_dir(&probe).is_err() {
            return false;
        }
        let path = join(dir.as_os_str().as_bytes(), &name);
        let is = self.look_at(end, &path);
        let _ = fs::remove_dir(&probe);
        is == TargetIs::Directory
    }
}

/// Where a target is or will be, and a directory that is there already: itself or its parent.
/// Both canonical.
fn place_here(path: &[u8], remote: bool) -> Option<(PathBuf, PathBuf)> {
    let path = as_here(path, remote)?;
    if let Ok(place) = fs::canonicalize(&path) {
        return Some((place.clone(), place)).filter(|(_, there)| there.is_dir());
    }
    let name = path.file_name()?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).ok()?;
    Some((parent.join(name), parent))
}

/// A path as this machine would read it; a remote one begins in the home directory.
fn as_here(path: &[u8], remote: bool) -> Option<PathBuf> {
    let path = local_path(path);
    if !remote || path.is_absolute() {
        return Some(path);
    }
    let home = PathBuf::from(env::var_os("HOME")?);
    Some(home.join(path))
}
