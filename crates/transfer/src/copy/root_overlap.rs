//! Finds out how the source and the target directory of a sync or a plan overlap.
//!
//! A sync into its own source copies the target into itself at each run, and `--delete` deletes a
//! source that lies in the target. The paths alone prove nothing, as in `self_copy`: two
//! directories overlap if their canonical paths do and both ends are one machine. Between two
//! hosts, that is certain if both names lead to one login. Otherwise an entry with a random name is
//! created at the target's end and looked for at the source's end.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use schedule::{Attributes, EntryKind, ExpectedEntry, JobKind, RemotePath};

use super::self_copy::{SameFileDetector, as_here, parent_of, place_of};
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use crate::disk::temp_name;
use crate::walk::{join, local_path};

/// Relation of a source and a target directory of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootOverlap {
    /// Both are the same directory.
    Same,
    /// The target lies in the source, at this relative path.
    TargetInside(Vec<u8>),
    /// The source lies in the target, at this relative path.
    SourceInside(Vec<u8>),
}

impl RootOverlap {
    /// Compares two canonical paths of one machine.
    fn of(source: &Path, target: &Path) -> Option<Self> {
        let relative = |path: &Path| path.as_os_str().as_bytes().to_vec();
        match (target.strip_prefix(source), source.strip_prefix(target)) {
            (Ok(_), Ok(_)) => Some(Self::Same),
            (Ok(below), _) => Some(Self::TargetInside(relative(below))),
            (_, Ok(below)) => Some(Self::SourceInside(relative(below))),
            _ => None,
        }
    }
}

/// Overlap of two directories, if the server is this machine.
pub(super) struct PossibleOverlap {
    overlap: RootOverlap,
    end: CopySide,
    /// Existing directory, as the user wrote it for the server.
    seen: Vec<u8>,
    /// Path of that directory on this machine, if the server is this machine.
    here: PathBuf,
}

impl PossibleOverlap {
    /// Existing directory on this machine that the check uses.
    pub(super) fn here(&self) -> &Path {
        &self.here
    }

    pub(super) fn into_overlap(self) -> RootOverlap {
        self.overlap
    }
}

impl<'a, Q: ServerInquiry<'a>> SameFileDetector<'_, Q> {
    /// Returns how the directories of a copy with one end on this machine would overlap if the
    /// server was this machine. Sends no request.
    pub(super) fn possible_overlap(&self, source: &[u8], target: &[u8]) -> Option<PossibleOverlap> {
        let (end, remote, near) = match (
            self.is_remote(CopySide::Source),
            self.is_remote(CopySide::Target),
        ) {
            (true, false) => (CopySide::Source, source, target),
            (false, true) => (CopySide::Target, target, source),
            _ => return None,
        };
        let relative = !remote.starts_with(b"/");
        let home = relative.then(|| self.home_there(end)).flatten();
        let local = self.context().local();
        let (far_place, here) = place_of(&*local, &as_here(remote, home.as_deref())?)?;
        let near = match near {
            b"" => b".",
            near => near,
        };
        let (near_place, _) = place_of(&*local, &local_path(near))?;
        let is_file = |place: &Path| {
            let stat = local.stat(place.as_os_str().as_bytes());
            stat.is_ok_and(|stat| !stat.is_directory())
        };
        // Only directories are synced, and the listing refuses others.
        if is_file(&far_place) || is_file(&near_place) {
            return None;
        }
        let overlap = match end {
            CopySide::Source => RootOverlap::of(&far_place, &near_place),
            CopySide::Target => RootOverlap::of(&near_place, &far_place),
        }?;
        let seen = match here == far_place {
            true => remote.to_vec(),
            false => parent_of(remote),
        };
        Some(PossibleOverlap {
            overlap,
            end,
            seen,
            here,
        })
    }

    /// True if the server is this machine, and both directories overlap as found.
    pub(super) async fn is_overlap(&mut self, possible: &PossibleOverlap) -> bool {
        self.is_one_directory(possible.end, &possible.seen, &possible.here)
            .await
    }

    /// Returns how two directories on hosts overlap, if both hosts are one machine. Without
    /// `probe`, nothing is created to find that out, and only one login counts as one machine.
    pub(super) async fn overlap_between(
        &mut self,
        source: &[u8],
        target: &[u8],
        probe: bool,
    ) -> Option<RootOverlap> {
        let source = self.real_path(CopySide::Source, source).await?;
        let target = self.real_place(CopySide::Target, target).await?;
        let overlap = RootOverlap::of(&local_path(&source), &local_path(&target))?;
        let is_one = self.context().is_one_login()
            || (probe && self.is_one_machine(&overlap, &source, &target).await);
        is_one.then_some(overlap)
    }

    /// True if the source's end sees an entry that is created at the target's end, in a directory
    /// that would be both ends' if they were one machine.
    async fn is_one_machine(
        &mut self,
        overlap: &RootOverlap,
        source: &[u8],
        target: &[u8],
    ) -> bool {
        for dir in shared_directories(overlap, source, target) {
            if let Some(seen) = self.is_probe_seen(&dir).await {
                return seen;
            }
        }
        // The account can write in none of them, but perhaps in directories of the source. A
        // directory of another machine with all these attributes is refused for nothing.
        let inside = matches!(overlap, RootOverlap::SourceInside(_));
        inside && self.looks_equal(source).await
    }

    /// Returns whether the source's end sees an entry created in `dir` at the target's end; `None`
    /// if none can be created, or the source's server does not tell. The directory keeps its time.
    pub(super) async fn is_probe_seen(&mut self, dir: &[u8]) -> Option<bool> {
        let before = self.attributes_at(CopySide::Target, dir).await;
        let before = before.filter(|is| is.kind() == EntryKind::Directory)?;
        let probe = join(dir, &temp_name(b"same-host"));
        if !self.make_probe(&probe).await {
            return None;
        }
        let seen = self.is_there(CopySide::Source, &probe).await;
        self.remove_probe(&probe).await;
        let kind = JobKind::SetAttributes {
            path: RemotePath(dir.to_vec()),
            attributes: Attributes {
                times: before.times,
                nanoseconds: before.nanoseconds,
                ..Attributes::default()
            },
            follow: true,
            xattrs: None,
            expected: ExpectedEntry::DIRECTORY,
        };
        // An account that may write in a directory need not own it.
        let _ = self.inquiry().ask(CopySide::Target, kind).await;
        seen
    }

    /// True if both ends report a directory of this path with the same mode, owner and time.
    async fn looks_equal(&mut self, path: &[u8]) -> bool {
        let at_source = self.attributes_at(CopySide::Source, path).await;
        let at_target = self.attributes_at(CopySide::Target, path).await;
        let known = |is: Attributes| (is.mode, is.owner, is.times.map(|(_, modified)| modified));
        at_source.is_some() && at_source.map(known) == at_target.map(known)
    }

    /// Attributes that the server at `end` reports of a path, through symlinks.
    pub(super) async fn attributes_at(&mut self, end: CopySide, path: &[u8]) -> Option<Attributes> {
        let kind = JobKind::Stat {
            path: RemotePath(path.to_vec()),
            follow: true,
        };
        self.inquiry().ask(end, kind).await.ok()?.attributes()
    }

    /// Canonical path of an entry that may not exist: that of the nearest directory above it, with
    /// the rest appended.
    pub(super) async fn real_place(&mut self, end: CopySide, path: &[u8]) -> Option<Vec<u8>> {
        let path = local_path(path);
        let all: Vec<Component<'_>> = path.components().collect();
        for existing in (0..=all.len()).rev() {
            let (above, rest) = all.split_at(existing);
            let above: PathBuf = match above {
                [] if path.is_absolute() => return None,
                [] => PathBuf::from("."),
                above => above.iter().collect(),
            };
            let real = match self.is_remote(end) {
                true => self.real_path(end, above.as_os_str().as_bytes()).await,
                false => self
                    .context()
                    .local()
                    .canonical(&above)
                    .map(|real| real.as_os_str().as_bytes().to_vec()),
            };
            if let Some(real) = real {
                let place = appended(local_path(&real), rest);
                return Some(place.as_os_str().as_bytes().to_vec());
            }
        }
        None
    }
}

/// Appends components of a path to a canonical one.
fn appended(mut path: PathBuf, rest: &[Component<'_>]) -> PathBuf {
    for part in rest {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// Directories that both ends have if they are one machine: the target, and the next ones down to
/// or up to the source.
fn shared_directories(overlap: &RootOverlap, source: &[u8], target: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![target.to_vec()];
    match overlap {
        RootOverlap::Same => {}
        RootOverlap::SourceInside(_) => all.push(source.to_vec()),
        RootOverlap::TargetInside(_) => {
            let (source, target) = (local_path(source), local_path(target));
            let above = target.ancestors().skip(1);
            let above = above.take_while(|dir| dir.starts_with(&source));
            all.extend(above.map(|dir| dir.as_os_str().as_bytes().to_vec()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str, target: &str) -> Option<RootOverlap> {
        RootOverlap::of(Path::new(source), Path::new(target))
    }

    #[test]
    fn paths_overlap_by_whole_components() {
        assert_eq!(of("/a", "/a"), Some(RootOverlap::Same));
        let inside = RootOverlap::TargetInside(b"b/c".to_vec());
        assert_eq!(of("/a", "/a/b/c"), Some(inside));
        let inside = RootOverlap::SourceInside(b"b".to_vec());
        assert_eq!(of("/a/b", "/a"), Some(inside));
        assert_eq!(of("/a", "/ab"), None);
        assert_eq!(of("/a/b", "/a/c"), None);
        let all = RootOverlap::SourceInside(b"a".to_vec());
        assert_eq!(of("/a", "/"), Some(all));
    }

    #[test]
    fn a_probe_goes_where_both_ends_would_see_it() {
        let places = |source: &str, target: &str| {
            let overlap = of(source, target).expect("they overlap");
            let all = shared_directories(&overlap, source.as_bytes(), target.as_bytes());
            let text = |dir: Vec<u8>| String::from_utf8(dir).expect("ours");
            all.into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(places("/s", "/s"), ["/s"]);
        assert_eq!(places("/z/s", "/z"), ["/z", "/z/s"]);
        assert_eq!(places("/s", "/s/a/b"), ["/s/a/b", "/s/a", "/s"]);
    }

    #[test]
    fn a_missing_path_is_appended_without_its_dots() {
        let rest: Vec<_> = Path::new("x/../y/./z").components().collect();
        assert_eq!(
            appended(PathBuf::from("/real"), &rest),
            Path::new("/real/y/z")
        );
    }

    /// Compares with the components of the paths: one lies in the other if it begins with it.
    #[test]
    fn directories_overlap_if_one_begins_with_all_names_of_the_other() {
        let mut seed = testkit::Seed::new(8);
        let mut random = || -> Vec<String> {
            (0..seed.below(4))
                .map(|_| ["a", "b", "ab"][seed.below(3) as usize].to_owned())
                .collect()
        };
        let mut seen = [0; 4];
        for _ in 0..5000 {
            let (source, target) = (random(), random());
            let path = |names: &[String]| format!("/{}", names.join("/"));
            let below = |long: &[String], short: &[String]| {
                let is_below = long.len() > short.len() && long.starts_with(short);
                is_below.then(|| long[short.len()..].join("/").into_bytes())
            };
            let expected = match (below(&target, &source), below(&source, &target)) {
                _ if source == target => Some(RootOverlap::Same),
                (Some(way), _) => Some(RootOverlap::TargetInside(way)),
                (_, Some(way)) => Some(RootOverlap::SourceInside(way)),
                _ => None,
            };
            assert_eq!(of(&path(&source), &path(&target)), expected);
            seen[expected.as_ref().map_or(0, |found| match found {
                RootOverlap::Same => 1,
                RootOverlap::TargetInside(_) => 2,
                RootOverlap::SourceInside(_) => 3,
            })] += 1;
            let Some(overlap) = expected else { continue };
            let (source, target) = (path(&source), path(&target));
            let dirs = shared_directories(&overlap, source.as_bytes(), target.as_bytes());
            assert_eq!(dirs[0], target.as_bytes(), "the target comes first");
            for dir in &dirs {
                let dir = local_path(dir);
                let is_shared = dir == Path::new(&target)
                    || dir == Path::new(&source)
                    || dir.starts_with(&source);
                assert!(is_shared, "{dir:?} is another directory on another machine");
            }
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    }
}
