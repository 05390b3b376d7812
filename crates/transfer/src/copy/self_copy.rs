//! Detects a copy between two machines that is a copy onto or into itself.
//!
//! `longhaul cp -r localhost:dir dir/inside` would find its own output and copy it into itself
//! until the names are too long, as scp does. `longhaul cp --inplace file localhost:file` would
//! truncate the file before reading it. SFTP identifies neither the host nor the file behind a
//! name, and equal paths prove nothing: other hosts have them too, and a relative path begins in
//! the home of the account that logged in. Two conditions must hold before a source is refused:
//!
//! 1. If the server is this machine, the target lies in the source or is the same file. This check
//!    sends no request and rules out nearly all copies.
//! 2. A uniquely named entry, created at one end, is visible at the other end under the path that
//!    the user wrote.
//!
//! Between two hosts, condition 1 uses the paths that the servers report (REALPATH), and with
//! `--inplace` the attributes of files: two names of one file have equal ones. A file system that two
//! machines have under different paths is not recognized. `root_overlap` applies the
//! conditions to the two directories of a sync.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use schedule::{Attributes, EntryKind, JobKind, RemotePath};

use super::CopyOptions;
use super::context::CopyContext;
use super::local_file_ops::LocalFileOps;
use super::names::name_in_target;
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use super::source::TargetPath;
use super::target_kind::ReportedTargetKind;
use crate::disk::temp_name;
use crate::walk::{join, local_path};

/// Number of sources up to which each one's canonical path is queried; beyond it, those of their
/// directories are.
const ASKED: usize = 8;

/// Relation of the target to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceTargetOverlap {
    /// The source is a directory that contains the target or will contain it.
    Inside,
    /// Both are the same directory.
    SameDirectory,
    /// Both are the same file.
    SameFile,
}

/// Options of the copy that decide which overlaps do harm.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelfCopyRules {
    /// Directories are copied.
    is_recursive: bool,
    /// Files are written under their final names.
    inplace: bool,
    /// The target's host is known to be the source's, and walks do not enter the target.
    avoids: bool,
}

impl SelfCopyRules {
    /// `avoids` tells if walks keep out of the target already.
    pub(super) fn new(options: &CopyOptions, avoids: bool) -> Self {
        Self {
            is_recursive: options.recursive || options.archive,
            inplace: options.inplace,
            avoids,
        }
    }
}

/// Sources that overlap with the target.
#[derive(Debug, Default)]
pub(super) struct OverlappingSources {
    /// Sources that are the target's own files or directories.
    pub same: Vec<Vec<u8>>,
    /// Canonical path of a target that lies in a source, and true if sources get their own names in
    /// it.
    pub inside: Option<(Vec<u8>, bool)>,
}

/// Finds out if paths at the two ends name one file or directory, because both ends are one
/// machine.
pub(super) struct SameFileDetector<'q, Q> {
    inquiry: &'q mut Q,
}

impl<'q, 'a, Q: ServerInquiry<'a>> SameFileDetector<'q, Q> {
    pub(super) fn new(inquiry: &'q mut Q) -> Self {
        Self { inquiry }
    }

    /// Asks the servers of both ends.
    pub(super) fn inquiry(&mut self) -> &mut Q {
        self.inquiry
    }

    /// Sessions of both ends and files of this machine.
    pub(super) fn context(&self) -> &CopyContext<'a> {
        self.inquiry.context()
    }

    pub(super) fn is_remote(&self, end: CopySide) -> bool {
        self.context().sides().is_remote(end)
    }

    /// Finds a target that lies in one of `sources`, and the sources that are the target's own
    /// files.
    pub(super) async fn avoid_itself(
        mut self,
        rules: SelfCopyRules,
        sources: &[Vec<u8>],
        onto: &TargetPath,
    ) -> OverlappingSources {
        let mut found = OverlappingSources::default();
        if !rules.is_recursive && !rules.inplace {
            return found;
        }
        let ends = (
            self.is_remote(CopySide::Source),
            self.is_remote(CopySide::Target),
        );
        match ends {
            (true, false) => self.avoid_here(rules, &mut found, sources, onto).await,
            (false, true) => self.avoid_there(rules, &mut found, sources, onto).await,
            (true, true) if !rules.avoids => {
                self.avoid_between(rules, &mut found, sources, onto).await;
            }
            _ => {}
        }
        found
    }

    /// Checks a download, whose target is on this machine.
    async fn avoid_here(
        &mut self,
        rules: SelfCopyRules,
        found: &mut OverlappingSources,
        sources: &[Vec<u8>],
        onto: &TargetPath,
    ) {
        let (path, into) = parts(onto);
        let local = self.context().local();
        let Some((place, there)) = place_of(&*local, &local_path(path)) else {
            return;
        };
        let relative = sources.iter().any(|source| !source.starts_with(b"/"));
        let home = relative
            .then(|| self.home_there(CopySide::Source))
            .flatten();
        for source in sources {
            let target = below(&place, source, into);
            let Some(guess) = as_here(source, home.as_deref()) else {
                continue;
            };
            let Some((overlap, real)) = self.overlap(rules, &guess, &target) else {
                continue;
            };
            // A directory on this machine, and its path at the server.
            let (here, seen) = match overlap {
                SourceTargetOverlap::SameFile => {
                    (real.parent().unwrap_or(&real), parent_of(source))
                }
                SourceTargetOverlap::SameDirectory => (&*real, source.clone()),
                SourceTargetOverlap::Inside => match there.strip_prefix(&real) {
                    Ok(way) if way.as_os_str().is_empty() => (&*there, source.clone()),
                    Ok(way) => (&*there, join(source, way.as_os_str().as_bytes())),
                    Err(_) => continue,
                },
            };
            if !self.is_one_directory(CopySide::Source, &seen, here).await {
                continue;
            }
            match overlap {
                SourceTargetOverlap::SameFile | SourceTargetOverlap::SameDirectory => {
                    found.same.push(source.clone());
                }
                // The walk compares with canonical paths of the server.
                SourceTargetOverlap::Inside => {
                    let Some(dir) = self.real_path(CopySide::Source, &seen).await else {
                        continue;
                    };
                    let way = place.strip_prefix(&there).unwrap_or_else(|_| Path::new(""));
                    let path = match way.as_os_str().is_empty() {
                        true => dir,
                        false => join(&dir, way.as_os_str().as_bytes()),
                    };
                    found.inside = Some((path, into));
                }
            }
        }
    }

    /// Checks an upload, whose target is on a host.
    async fn avoid_there(
        &mut self,
        rules: SelfCopyRules,
        found: &mut OverlappingSources,
        sources: &[Vec<u8>],
        onto: &TargetPath,
    ) {
        let (path, into) = parts(onto);
        let relative = !path.starts_with(b"/");
        let home = relative
            .then(|| self.home_there(CopySide::Target))
            .flatten();
        let local = self.context().local();
        let here = as_here(path, home.as_deref());
        let Some((place, there)) = here.and_then(|path| place_of(&*local, &path)) else {
            return;
        };
        let into = into || (matches!(onto, TargetPath::Guess(_)) && is_dir(&*local, &place));
        // Existing directory, as the user wrote it.
        let seen = match there == place {
            true => path.clone(),
            false => parent_of(path),
        };
        let mut is_one = None;
        for source in sources {
            let target = below(&place, source, into);
            let Some((overlap, _)) = self.overlap(rules, &local_path(source), &target) else {
                continue;
            };
            let one = match is_one {
                Some(one) => one,
                None => self.is_one_directory(CopySide::Target, &seen, &there).await,
            };
            is_one = Some(one);
            if !one {
                return;
            }
            match overlap {
                SourceTargetOverlap::SameFile | SourceTargetOverlap::SameDirectory => {
                    found.same.push(source.clone());
                }
                SourceTargetOverlap::Inside => {
                    let path = place.as_os_str().as_bytes().to_vec();
                    found.inside = Some((path, into));
                }
            }
        }
    }

    /// Checks a copy between two logins, which may lead to one machine.
    async fn avoid_between(
        &mut self,
        rules: SelfCopyRules,
        found: &mut OverlappingSources,
        sources: &[Vec<u8>],
        onto: &TargetPath,
    ) {
        let (path, into) = parts(onto);
        let Some(place) = self.real_place(CopySide::Target, path).await else {
            return;
        };
        let inside = match sources.len() <= ASKED {
            true => self.some_holds(sources, &place, into).await,
            false => self.parents_hold(sources, &place, into).await,
        };
        let alike = match rules.inplace && !inside && sources.len() <= ASKED {
            true => self.files_like_target(sources, &place, into).await,
            false => Vec::new(),
        };
        if !inside && alike.is_empty() {
            return;
        }
        let dir = match self.inquiry.look_at(CopySide::Target, &place).await {
            Ok(ReportedTargetKind::Directory) => place.clone(),
            _ => parent_of(&place),
        };
        let is_one = match self.is_probe_seen(&dir).await {
            Some(seen) => seen,
            // Files in a directory that cannot be written may be writable.
            None => self.context().is_one_login(),
        };
        match (is_one, inside) {
            (true, true) => found.inside = Some((place, into)),
            (true, false) => found.same.extend(alike),
            (false, _) => {}
        }
    }

    /// Sources that may be their own targets under other names: files that both ends report with the
    /// same attributes. SFTP tells no inode numbers; a longhaul may tell those of hard links.
    async fn files_like_target(
        &mut self,
        sources: &[Vec<u8>],
        place: &[u8],
        into: bool,
    ) -> Vec<Vec<u8>> {
        let known = |is: Attributes| {
            let modified = is.times.map(|(_, modified)| modified);
            (is.size, is.mode, is.owner, modified, is.link)
        };
        let mut alike = Vec::new();
        for source in sources {
            let is_file = |is: &Attributes| is.kind() == EntryKind::File && is.size != Some(0);
            let there = self.attributes_at(CopySide::Source, source).await;
            let Some(there) = there.filter(is_file) else {
                continue;
            };
            let target = below(&local_path(place), source, into);
            let target = target.as_os_str().as_bytes();
            let at_target = self.attributes_at(CopySide::Target, target).await;
            if at_target.map(known) == Some(known(there)) {
                alike.push(source.clone());
            }
        }
        alike
    }

    /// True if the target lies in one of the sources, judged by their canonical paths.
    async fn some_holds(&mut self, sources: &[Vec<u8>], place: &[u8], into: bool) -> bool {
        let mut holds = false;
        for source in sources {
            let target = below(&local_path(place), source, into);
            let real = self.real_path(CopySide::Source, source).await;
            holds |= real.is_some_and(|real| target.starts_with(local_path(&real)));
        }
        holds
    }

    /// True if the target lies in one of many sources, judged by the canonical paths of their
    /// directories.
    async fn parents_hold(&mut self, sources: &[Vec<u8>], place: &[u8], into: bool) -> bool {
        let place = local_path(place);
        let mut known: Option<(PathBuf, Option<PathBuf>)> = None;
        for source in sources {
            let path = local_path(source);
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                continue;
            };
            let parent = match parent.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => parent.to_path_buf(),
            };
            if known.as_ref().is_none_or(|(of, _)| *of != parent) {
                let path = parent.as_os_str().as_bytes();
                let real = self.real_path(CopySide::Source, path).await;
                known = Some((parent, real.map(|real| local_path(&real))));
            }
            if let Some((_, Some(real))) = &known
                && below(&place, source, into).starts_with(real.join(name))
            {
                return true;
            }
        }
        false
    }

    /// Returns how the target at the local path `target` overlaps the source at `source`, with the
    /// source's canonical path.
    fn overlap(
        &self,
        rules: SelfCopyRules,
        source: &Path,
        target: &Path,
    ) -> Option<(SourceTargetOverlap, PathBuf)> {
        let local = self.context().local();
        let source = local.canonical(source)?;
        let stat = local.stat(source.as_os_str().as_bytes()).ok()?;
        if stat.is_directory() {
            let overlap = match local.canonical(target) {
                Some(target) if target == source => SourceTargetOverlap::SameDirectory,
                _ => SourceTargetOverlap::Inside,
            };
            let inside = rules.is_recursive && target.starts_with(&source)
                || overlap == SourceTargetOverlap::SameDirectory;
            return inside.then_some((overlap, source));
        }
        // Without --inplace the file is replaced by a copy of itself, and nothing is lost.
        let there = local.stat(target.as_os_str().as_bytes()).ok();
        let there = there.filter(|_| rules.inplace)?;
        there
            .is_same(&stat)
            .then_some((SourceTargetOverlap::SameFile, source))
    }

    /// Local path of the home directory of the account that logged in at `end`.
    pub(super) fn home_there(&self, end: CopySide) -> Option<PathBuf> {
        let login = self.context().side(end).and_then(|side| side.login());
        self.context().local().home(login)
    }

    /// Canonical path of an existing entry.
    pub(super) async fn real_path(&mut self, end: CopySide, path: &[u8]) -> Option<Vec<u8>> {
        let kind = JobKind::RealPath {
            path: RemotePath(path.to_vec()),
        };
        let real = self.inquiry.ask(end, kind).await.ok()?.into_path()?;
        real.starts_with(b"/").then_some(real)
    }

    /// True if `dir` on the host at `end` is the local directory `here`.
    pub(super) async fn is_one_directory(
        &mut self,
        end: CopySide,
        dir: &[u8],
        here: &Path,
    ) -> bool {
        let name = temp_name(b"same-host");
        let (there, here) = (join(dir, &name), here.join(OsStr::from_bytes(&name)));
        let local = self.context().local();
        if local.create_dir(&here) == Ok(true) {
            let sees = self.is_there(end, &there).await;
            local.remove_dir(&here);
            return sees == Some(true);
        }
        // This account cannot write there, but the one that logged in may.
        if end != CopySide::Target || !self.make_probe(&there).await {
            return false;
        }
        let seen = local.exists(&here);
        self.remove_probe(&there).await;
        seen
    }

    /// Creates the probe, a symlink: it takes one request to make and one to remove, and holds no
    /// data.
    pub(super) async fn make_probe(&mut self, path: &[u8]) -> bool {
        let kind = JobKind::MakeSymlink {
            path: RemotePath(path.to_vec()),
            points_to: b".".to_vec(),
            tag: None,
        };
        self.inquiry.ask(CopySide::Target, kind).await.is_ok()
    }

    pub(super) async fn remove_probe(&mut self, path: &[u8]) {
        let path = RemotePath(path.to_vec());
        // A failure leaves nothing more to try.
        let _ = self
            .inquiry
            .ask(CopySide::Target, JobKind::Remove { path })
            .await;
    }

    /// True if there is an entry at `path`; `None` if the server does not tell.
    pub(super) async fn is_there(&mut self, end: CopySide, path: &[u8]) -> Option<bool> {
        let is = self.inquiry.look_at(end, path).await.ok()?;
        Some(is != ReportedTargetKind::Missing)
    }
}

fn parts(onto: &TargetPath) -> (&Vec<u8>, bool) {
    match onto {
        TargetPath::Into(path) => (path, true),
        TargetPath::Exactly(path) | TargetPath::Guess(path) => (path, false),
    }
}

/// Parent directory of a path on a host.
pub(super) fn parent_of(path: &[u8]) -> Vec<u8> {
    match local_path(path).parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.as_os_str().as_bytes().to_vec(),
        _ => b".".to_vec(),
    }
}

/// Target path of a source.
fn below(place: &Path, source: &[u8], into: bool) -> PathBuf {
    match name_in_target(source).filter(|_| into) {
        Some(name) => place.join(OsStr::from_bytes(name)),
        None => place.to_path_buf(),
    }
}

/// Path of a target that may not exist yet, and the existing directory: the target itself or its
/// parent. Both are canonical.
pub(super) fn place_of(local: &dyn LocalFileOps, path: &Path) -> Option<(PathBuf, PathBuf)> {
    if let Some(place) = local.canonical(path) {
        if is_dir(local, &place) {
            return Some((place.clone(), place));
        }
        let parent = place.parent()?.to_path_buf();
        return Some((place, parent));
    }
    let name = path.file_name()?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = local.canonical(parent)?;
    Some((parent.join(name), parent))
}

fn is_dir(local: &dyn LocalFileOps, path: &Path) -> bool {
    let there = local.stat(path.as_os_str().as_bytes());
    there.is_ok_and(|stat| stat.is_directory())
}

/// Local interpretation of a remote path; a relative one begins in `home`.
pub(super) fn as_here(path: &[u8], home: Option<&Path>) -> Option<PathBuf> {
    let path = local_path(path);
    match path.is_absolute() {
        true => Some(path),
        false => Some(home?.join(path)),
    }
}
