//! Names of a source that a server takes for one, because its file system ignores case or
//! normalizes Unicode. The server is asked only if two names in one directory are alike, once for
//! each kind of likeness.

use std::collections::HashMap;

use schedule::{JobKind, RemotePath};

use super::context::CopyContext;
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use super::source::{SourceRoot, TargetPath, WalkId};
use super::tree::{CopyDirectoryId, IncompleteTargetDirs};
use crate::file_error::FileError;
use crate::name_probe::{probe_names, unanswered};
use crate::walk::{WalkEntry, join};

/// Kinds of likeness about which a server is asked.
const KINDS: usize = 3;

/// Names that were found, by directory of the target.
#[derive(Default)]
pub(super) struct TargetNameIndex {
    /// The first of alike names, by their hash, for each directory that is not complete.
    dirs: HashMap<Vec<u8>, HashMap<u64, Box<[u8]>>>,
    /// Entry whose name is like an earlier one.
    held: Option<PossibleNameCollision>,
    /// True if the server takes names of a kind of likeness for one.
    answers: [Option<bool>; KINDS],
    /// The server could not be asked, and the user was told.
    told: bool,
}

/// Entry that waits until it is known if the server takes its name for an earlier one.
struct PossibleNameCollision {
    /// Target path with the earlier name.
    first: Vec<u8>,
    target: Vec<u8>,
    entry: NameCheckedEntry,
}

/// Entry that a copy has found.
pub(super) enum NameCheckedEntry {
    /// Entry of a walk whose root has this target.
    Walk(WalkId, WalkEntry, Vec<u8>),
    Root(SourceRoot),
}

impl NameCheckedEntry {
    /// Path at the source.
    fn source(&self) -> &[u8] {
        match self {
            Self::Walk(_, found, _) => match found {
                WalkEntry::Directory { at, .. } | WalkEntry::File(at) | WalkEntry::Symlink(at) => {
                    &at.path
                }
                WalkEntry::Listed(_) | WalkEntry::Special(_) | WalkEntry::Problem { .. } => &[],
            },
            Self::Root(root) => &root.path,
        }
    }
}

impl TargetNameIndex {
    /// True while an entry waits for an answer of the server.
    pub(super) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Notes the name of an entry of a directory. Returns the target path of an earlier entry with a
    /// name that is like it.
    fn note(&mut self, dir: &[u8], name: &[u8]) -> Option<Vec<u8>> {
        let names = match self.dirs.get_mut(dir) {
            Some(names) => names,
            None => self.dirs.entry(dir.to_vec()).or_default(),
        };
        let first = names
            .entry(sync::alike_hash(name))
            .or_insert_with(|| name.into());
        let alike = **first != *name && sync::alike_path(first) == sync::alike_path(name);
        alike.then(|| join(dir, first))
    }
}

/// Directory and name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", path.get(1..).unwrap_or_default()),
        Some(at) => (
            path.get(..at).unwrap_or_default(),
            path.get(at + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

/// Kind of the likeness of two names: case, normalization, or something else.
fn likeness(one: &[u8], other: &[u8]) -> usize {
    let lower = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
    let form = |name: &[u8]| sync::to_nfc(name).unwrap_or_else(|| name.to_vec());
    match (lower(one) == lower(other), form(one) == form(other)) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 2,
    }
}

impl TargetNameIndex {
    /// Returns an entry if it may begin now. Otherwise it waits, and [`Self::take_question`] asks
    /// about it. Names of a complete directory are forgotten, unless `merges` says that another
    /// source may be merged into it.
    pub(super) fn hold_if_alike(
        &mut self,
        tree: &IncompleteTargetDirs,
        merges: bool,
        entry: NameCheckedEntry,
    ) -> Option<NameCheckedEntry> {
        let alike = match &entry {
            NameCheckedEntry::Walk(walk, WalkEntry::Listed(dir), _) => {
                let key = CopyDirectoryId::new(*walk, *dir);
                if let Some(dir) = tree.target(key).filter(|_| !merges) {
                    self.dirs.remove(dir);
                }
                None
            }
            NameCheckedEntry::Walk(_, WalkEntry::Special(_) | WalkEntry::Problem { .. }, _) => None,
            NameCheckedEntry::Walk(
                walk,
                WalkEntry::Directory { at, .. } | WalkEntry::File(at) | WalkEntry::Symlink(at),
                root,
            ) => {
                let (dir, name) = match at.parent {
                    Some(parent) => (
                        tree.target(CopyDirectoryId::new(*walk, parent)),
                        &at.name[..],
                    ),
                    None => {
                        let (dir, name) = split(root);
                        (Some(dir), name)
                    }
                };
                dir.and_then(|dir| {
                    let first = self.note(dir, name)?;
                    Some((first, join(dir, name)))
                })
            }
            NameCheckedEntry::Root(root) => match &root.onto {
                TargetPath::Guess(_) => None,
                onto => {
                    let target = onto.target(&root.path);
                    let (dir, name) = split(&target);
                    let first = self.note(dir, name);
                    first.map(|first| (first, target))
                }
            },
        };
        let Some((first, target)) = alike else {
            return Some(entry);
        };
        self.held = Some(PossibleNameCollision {
            first,
            target,
            entry,
        });
        None
    }

    /// Takes the question about the entry that waits.
    pub(super) fn take_question(&mut self) -> Option<AlikeNames> {
        let entry = self.held.take()?;
        let kind = likeness(split(&entry.first).1, split(&entry.target).1);
        let answer = self.answers.get(kind).copied().flatten();
        Some(AlikeNames {
            entry,
            kind,
            answer,
        })
    }

    /// Notes the answer. Returns the entry if it may begin, and otherwise reports it.
    pub(super) fn judge(
        &mut self,
        context: &mut CopyContext<'_>,
        asked: AlikeNames,
    ) -> NameCollisionVerdict {
        let AlikeNames {
            entry,
            kind,
            answer,
        } = asked;
        if let Some(place) = self.answers.get_mut(kind) {
            *place = answer;
        }
        if context.stopped() {
            return NameCollisionVerdict::Dropped;
        }
        let first = context.shown(CopySide::Target, &entry.first);
        if answer.is_none() && !std::mem::replace(&mut self.told, true) {
            let name = context.shown(CopySide::Target, &entry.target);
            context.warn(Some(name), unanswered(&first.to_string()));
        }
        if answer != Some(true) {
            return NameCollisionVerdict::Begins(Box::new(entry.entry));
        }
        let what = format!(
            "not copied: it would overwrite {first}, because the file system of the target \
             ignores case or normalizes names; rename one of them"
        );
        context.fail_at(CopySide::Source, entry.entry.source(), what);
        match entry.entry {
            NameCheckedEntry::Walk(walk, WalkEntry::Directory { id, .. }, _) => {
                NameCollisionVerdict::DirectoryRefused(CopyDirectoryId::new(walk, id))
            }
            _ => NameCollisionVerdict::Dropped,
        }
    }
}

/// Decision about an entry that waited because its name collides with another: it begins, or is
/// left out.
pub(super) enum NameCollisionVerdict {
    Begins(Box<NameCheckedEntry>),
    /// The directory and all its contents are left out.
    DirectoryRefused(CopyDirectoryId),
    /// The entry is left out.
    Dropped,
}

/// Query whether the server treats the names of two entries as one.
pub(super) struct AlikeNames {
    entry: PossibleNameCollision,
    kind: usize,
    /// True if the server treats them as one; `None` if unknown.
    answer: Option<bool>,
}

impl AlikeNames {
    /// Asks the server, unless it has answered for names of this kind: makes an empty directory whose
    /// name ends as the one does, and looks for it under the other. The answer stays unknown if it
    /// cannot be made.
    pub(super) async fn ask<'a>(&mut self, server: &mut impl ServerInquiry<'a>) {
        if self.answer.is_some() {
            return;
        }
        let other = split(&self.entry.target).1;
        let (dir, one) = split(&self.entry.first);
        let named = server.context().named().path().to_vec();
        let above = split(&named).0;
        let Some(names) = probe_names(one, other) else {
            return;
        };
        for place in [dir, &named, above] {
            let place = match place {
                b"" => b".",
                place => place,
            };
            let [probe, looked_for] = names.each_ref().map(|name| join(place, name));
            if make_empty(server, &probe).await.is_err() {
                continue;
            }
            let look = JobKind::Stat {
                path: RemotePath(looked_for),
                follow: false,
            };
            self.answer = match server.ask(CopySide::Target, look).await {
                Ok(_) => Some(true),
                Err(error) => error.is_missing().then_some(false),
            };
            let path = RemotePath(probe);
            let _ = server
                .ask(CopySide::Target, JobKind::RemoveDir { path })
                .await;
            return;
        }
    }
}

async fn make_empty<'a>(server: &mut impl ServerInquiry<'a>, path: &[u8]) -> Result<(), FileError> {
    let make = JobKind::MakeDir {
        path: RemotePath(path.to_vec()),
        mode: 0o700,
        follow: false,
    };
    server.ask(CopySide::Target, make).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_names_of_one_directory_are_found_however_many_there_are() {
        let mut names = TargetNameIndex::default();
        let mut note = |path: &str| {
            let (dir, name) = split(path.as_bytes());
            names.note(dir, name)
        };
        for n in 0..1000 {
            assert_eq!(note(&format!("d/file{n}")), None);
        }
        assert_eq!(note("d/FILE7"), Some(b"d/file7".to_vec()));
        assert_eq!(note("d/file7"), None);
        assert_eq!(note("D/FILE7"), None);
        assert_eq!(note("top"), None);
        assert_eq!(note("TOP"), Some(b"top".to_vec()));
        assert_eq!(note("/top"), None);
        assert_eq!(note("/Top"), Some(b"/top".to_vec()));
    }

    #[test]
    fn a_server_is_asked_once_for_each_kind_of_likeness() {
        let kind = |one: &str, other: &str| likeness(one.as_bytes(), other.as_bytes());
        assert_eq!(kind("x", "X"), kind("\u{e9}", "\u{c9}"));
        assert_ne!(kind("x", "X"), kind("\u{e9}", "e\u{301}"));
        assert_ne!(kind("x", "X"), kind("x", "x."));
    }

    /// A name is like the first one of its directory that differs from it only in case.
    #[test]
    fn a_name_is_like_the_first_of_its_directory_and_of_no_other() {
        let mut seed = testkit::Seed::new(9);
        let mut alike = 0;
        for _ in 0..300 {
            let mut index = TargetNameIndex::default();
            let mut firsts: HashMap<(usize, String), String> = HashMap::new();
            for _ in 0..30 {
                let dir = seed.below(2) as usize;
                let name: String = (0..1 + seed.below(2))
                    .map(|_| ['a', 'A', 'b', 'B'][seed.below(4) as usize])
                    .collect();
                let dirs = ["one", "two"];
                let key = (dir, name.to_lowercase());
                let first = firsts.entry(key).or_insert_with(|| name.clone());
                let expected =
                    (*first != name).then(|| format!("{}/{first}", dirs[dir]).into_bytes());
                let found = index.note(dirs[dir].as_bytes(), name.as_bytes());
                assert_eq!(found, expected, "{name}");
                alike += usize::from(found.is_some());
            }
        }
        assert!(alike > 500, "{alike}");
    }

    #[test]
    fn a_path_is_split_at_its_last_slash() {
        for (path, expected) in [
            ("a/b/c", ("a/b", "c")),
            ("/c", ("/", "c")),
            ("c", ("", "c")),
            ("a/", ("a", "")),
            ("/", ("/", "")),
            ("", ("", "")),
        ] {
            let (dir, name) = split(path.as_bytes());
            assert_eq!(
                (dir, name),
                (expected.0.as_bytes(), expected.1.as_bytes()),
                "{path}"
            );
        }
    }
}
