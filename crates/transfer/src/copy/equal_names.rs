//! Sources that would get the same name in the target directory.
//!
//! scp copies one over the other, and one of them is lost without a message. longhaul refuses them
//! before anything is copied. Sources without a name of their own (`dir/.`) are meant to be merged:
//! their files are compared by target path as they are found.

use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt as _;

use super::alike_names::{MOST, alike_name, alike_sources, folds_names};
use super::context::CopyContext;
use super::local_file_ops::LocalFileOps;
use super::names::{RemotePathForm, name_in_target, written};
use super::sides::CopySide;
use super::source::WalkId;
use super::{CopyLocation, CopyOptions, HostId};
use crate::report::EscapedName;
use crate::walk::{join, local_path};
use sftp::pattern::{self, PathComponent};

/// Source operand, or one match of its pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceOperand {
    pub host: Option<HostId>,
    pub path: Vec<u8>,
}

/// Source and the name that it gets in the target directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSource {
    /// The source, as `host:path` if remote.
    pub source: EscapedName,
    /// Name of the source in the target; `None` if its contents are copied into the target itself.
    pub name: Option<Vec<u8>>,
}

/// Name that a source operand gets in the target directory, as far as it is known without asking
/// its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// The name.
    Known(Vec<u8>),
    /// The name depends on the files that a pattern matches.
    Matched,
    /// The contents of the source are copied into the target itself.
    Contents,
}

impl SourceName {
    /// Returns the name that an operand gets.
    pub fn of(place: &CopyLocation) -> Self {
        let source = match place {
            CopyLocation::Local(path) => SourceOperand {
                host: None,
                path: path.as_os_str().as_bytes().to_vec(),
            },
            CopyLocation::Remote { host, path } => SourceOperand {
                host: Some(*host),
                path: path.clone(),
            },
        };
        match source.known_name() {
            Some(name) => Self::Known(name),
            None if source.ends_in_pattern() => Self::Matched,
            None => Self::Contents,
        }
    }
}

/// Two sources with the same name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NameClash {
    first: SourceOperand,
    second: SourceOperand,
    name: Vec<u8>,
}

impl SourceOperand {
    /// The source for messages, as `host:path` if remote.
    pub(super) fn shown(&self, context: &CopyContext<'_>) -> EscapedName {
        match self.host {
            Some(host) => {
                let host = context.environment().name(host);
                EscapedName([host.as_bytes(), b":", self.path.as_slice()].concat())
            }
            None => EscapedName(self.path.clone()),
        }
    }

    /// True if both are certainly the same file, so that nothing is lost.
    fn is_same(&self, other: &Self, local: &dyn LocalFileOps) -> bool {
        if self.host != other.host {
            return false;
        }
        if plain(&self.path) == plain(&other.path) {
            return true;
        }
        let real = |path: &[u8]| local.canonical(&local_path(path));
        self.host.is_none() && real(&self.path).is_some_and(|path| real(&other.path) == Some(path))
    }

    /// True if the last component is a pattern.
    fn ends_in_pattern(&self) -> bool {
        let (RemotePathForm::Home { below: path, .. } | RemotePathForm::Plain(path)) =
            written(&self.path);
        let components = pattern::parse(without_slashes(&path)).unwrap_or_default();
        self.host.is_some() && matches!(components.last(), Some(PathComponent::Pattern(_)))
    }

    /// Name in the target directory, if known before the pattern is expanded.
    fn known_name(&self) -> Option<Vec<u8>> {
        let last = match self.host {
            None => self.path.clone(),
            Some(_) => match written(&self.path) {
                // The contents of a home directory go into the target.
                RemotePathForm::Home { below, .. } if below.is_empty() => return None,
                RemotePathForm::Home { below: path, .. } | RemotePathForm::Plain(path) => {
                    let path = without_slashes(&path);
                    match pattern::parse(path) {
                        None => pattern::unescape(path),
                        Some(components) => match components.into_iter().next_back() {
                            Some(PathComponent::Name(name)) => name,
                            _ => return None,
                        },
                    }
                }
            },
        };
        name_in_target(&last).map(<[u8]>::to_vec)
    }
}

/// Strips trailing slashes from a path.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/');
    path.get(..=end.unwrap_or(0)).unwrap_or_default()
}

/// Removes `.` and empty components from a path.
pub(super) fn plain(path: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    if path.starts_with(b"/") {
        all.push(b'/');
    }
    for component in path.split(|b| *b == b'/') {
        if !component.is_empty() && component != b"." {
            all = join(&all, component);
        }
    }
    all
}

/// Clause about a source with the name of the `first` one, and the number of `more` such
/// sources there are.
pub fn equal_names(first: &EscapedName, name: &[u8], more: usize) -> String {
    let name = EscapedName(name.to_vec());
    let more = match more {
        0 => String::new(),
        1 => " (another source clashes as well)".to_owned(),
        more => format!(" ({more} other sources clash as well)"),
    };
    format!("has the same name (\"{name}\") as {first}, so one would overwrite the other{more}")
}

/// Sources that have the name of an earlier one and are not the same file.
fn clashes(
    local: &dyn LocalFileOps,
    sources: &[SourceOperand],
    name: impl Fn(&SourceOperand) -> Option<Vec<u8>>,
) -> Vec<NameClash> {
    let mut seen: HashMap<Vec<u8>, &SourceOperand> = HashMap::new();
    let mut clashes = Vec::new();
    for source in sources {
        let Some(name) = name(source) else { continue };
        match seen.entry(name) {
            Entry::Vacant(place) => {
                place.insert(source);
            }
            Entry::Occupied(first) if first.get().is_same(source, local) => {}
            Entry::Occupied(first) => clashes.push(NameClash {
                first: (*first.get()).clone(),
                second: source.clone(),
                name: first.key().clone(),
            }),
        }
    }
    clashes
}

/// Sources seen so far, by name in the target directory.
#[derive(Debug, Default)]
pub(super) struct SeenSourceNames(HashMap<Vec<u8>, Vec<SourceOperand>>);

impl SeenSourceNames {
    /// Returns false, after a warning, for a source that was named before.
    pub(super) fn is_first(
        &mut self,
        context: &mut CopyContext<'_>,
        source: SourceOperand,
    ) -> bool {
        let name = name_in_target(&source.path).unwrap_or_default().to_vec();
        let others = self.0.entry(name).or_default();
        let files = context.local();
        if others.iter().any(|other| other.is_same(&source, &*files)) {
            let name = source.shown(context);
            context.warn(Some(name), "named twice, copied once".to_owned());
            return false;
        }
        others.push(source);
        true
    }
}

/// Files and directories found below the sources, by target path.
#[derive(Debug, Default)]
pub(super) struct ClaimedTargets {
    // Two hashes with different keys make one of 128 bits, so the names need not be kept.
    hashers: (RandomState, RandomState),
    targets: HashMap<(u64, u64), TargetClaim>,
    roots: HashMap<WalkId, EscapedName>,
    /// Claims by a hash that is equal for all paths that some file system takes for one; `None`
    /// where the target takes no two names for one.
    alike: Option<AlikeClaims>,
    /// Number of times that the target was asked whether it takes two paths for one.
    asked: usize,
}

/// Claimed paths, by the hash of [`sync::alike_path`].
type AlikeClaims = HashMap<u64, Vec<Box<[u8]>>>;

#[derive(Clone, Copy, Debug)]
struct TargetClaim {
    root: WalkId,
    is_directory: bool,
}

impl TargetClaim {
    /// True if both are directories, whose contents are merged.
    fn merges_with(self, other: Self) -> bool {
        self.is_directory && other.is_directory
    }
}

/// Reason why a target cannot be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetNameConflict {
    /// This source has claimed the target.
    Source(EscapedName),
    /// This target was claimed, and the file system takes both for one.
    Alike(Vec<u8>),
}

impl ClaimedTargets {
    /// `folds` is true if the target may take names for one that differ in case or normalization.
    pub(super) fn new(folds: bool) -> Self {
        Self {
            alike: folds.then(HashMap::new),
            ..Self::default()
        }
    }

    pub(super) fn name_root(&mut self, root: WalkId, name: EscapedName) {
        self.roots.insert(root, name);
    }

    /// Returns true if an entry may be copied to `target`. Reports a failure if another source has
    /// claimed it.
    pub(super) fn admits(
        &mut self,
        context: &mut CopyContext<'_>,
        root: WalkId,
        source: &[u8],
        target: &[u8],
        is_directory: bool,
    ) -> bool {
        let files = context.local();
        let dir = local_path(context.named().path());
        let are_one = |one: &[u8], other: &[u8]| files.are_one_at(&dir, one, other);
        let Some(conflict) = self.claim(target, root, is_directory, are_one) else {
            return true;
        };
        let target = context.shown(CopySide::Target, target);
        let what = match conflict {
            TargetNameConflict::Source(other) => format!(
                "not copied: {target} is already the copy of {other}; copy the sources to \
                 different directories"
            ),
            TargetNameConflict::Alike(other) => format!(
                "not copied: it would {} {}, because the file system of the target ignores case or \
                 normalizes names; rename one of them",
                match is_directory {
                    true => "be merged with",
                    false => "overwrite",
                },
                context.shown(CopySide::Target, &other)
            ),
        };
        context.fail_at(CopySide::Source, source, what);
        false
    }

    /// Claims a target for an entry found in `root`. `are_one` says if the target's file system
    /// takes two names for one. Returns the reason if the target is claimed already; directories of
    /// the same name are merged.
    fn claim(
        &mut self,
        target: &[u8],
        root: WalkId,
        is_directory: bool,
        are_one: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Option<TargetNameConflict> {
        let claim = TargetClaim { root, is_directory };
        let key = (
            self.hashers.0.hash_one(target),
            self.hashers.1.hash_one(target),
        );
        if let Some(first) = self.targets.get(&key) {
            let shared = first.root == root || first.merges_with(claim);
            let name = || self.roots.get(&first.root).cloned().unwrap_or_default();
            return (!shared).then(|| TargetNameConflict::Source(name()));
        }
        let conflict = self.claim_alike(target, are_one);
        if conflict.is_none() {
            self.targets.insert(key, claim);
        }
        conflict
    }

    /// Claims a target whose path nothing else has, unless the file system takes an earlier one for
    /// the same.
    fn claim_alike(
        &mut self,
        target: &[u8],
        are_one: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Option<TargetNameConflict> {
        let alike = self.alike.as_mut()?;
        let key = self.hashers.0.hash_one(sync::alike_path(target));
        let earlier = alike.entry(key).or_default();
        for path in earlier.iter() {
            self.asked += 1;
            if self.asked > MOST || are_one_path(path, target, &are_one) {
                return Some(TargetNameConflict::Alike(path.to_vec()));
            }
        }
        earlier.push(target.into());
        None
    }
}

/// True if two paths have as many components, and the file system takes those for one in pairs.
fn are_one_path(one: &[u8], other: &[u8], are_one: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let components = |path: &[u8]| path.split(|byte| *byte == b'/').count();
    let slash = |byte: &u8| *byte == b'/';
    let mut pairs = one.split(slash).zip(other.split(slash));
    components(one) == components(other)
        && pairs.all(|(one, other)| one == other || are_one(one, other))
}

/// Sources of a command, whose names in the target directory are compared.
pub(super) struct NamedOperands<'s> {
    sources: &'s [SourceOperand],
}

impl<'s> NamedOperands<'s> {
    pub(super) fn new(sources: &'s [SourceOperand]) -> Self {
        Self { sources }
    }

    /// Refuses operands whose names are equal whatever their patterns match. Returns false if there
    /// are any.
    pub(super) fn differ_as_written(&self, context: &mut CopyContext<'_>) -> bool {
        let options = context.options();
        let name = |source: &SourceOperand| {
            let name = source.known_name();
            name.filter(|name| !leaves_out(options, name))
        };
        let clashes = clashes(&*context.local(), self.sources, name);
        refuse(context, &clashes)
    }

    /// Returns the register in which files below the sources claim their targets; `None` if no two
    /// can have the same. Two can if sources are merged because one has no name of its own, or if
    /// the target's file system ignores case or normalizes names.
    pub(super) fn claims(
        &self,
        context: &CopyContext<'_>,
        target: &CopyLocation,
    ) -> Option<ClaimedTargets> {
        let unnamed = |source: &SourceOperand| name_in_target(&source.path).is_none();
        let merges = self.sources.len() > 1 && self.sources.iter().any(unnamed);
        let files = context.local();
        let folds = (merges || context.is_recursive()) && folds_names(are_one_in(&*files, target));
        (merges || folds).then(|| ClaimedTargets::new(folds))
    }

    /// Refuses sources whose names are equal after pattern expansion, or whose `names` are one at a
    /// target on this machine. Returns false if there are any.
    pub(super) fn differ(
        &self,
        context: &mut CopyContext<'_>,
        names: &[NamedSource],
        target: &CopyLocation,
    ) -> bool {
        let name = |source: &SourceOperand| name_in_target(&source.path).map(<[u8]>::to_vec);
        let files = context.local();
        if !refuse(context, &clashes(&*files, self.sources, name)) {
            return false;
        }
        let Some((first, second)) = alike_sources(names, are_one_in(&*files, target)) else {
            return true;
        };
        let what = alike_name(first);
        let what = format!("{what}: nothing was copied; copy them to different directories");
        context.fail(None, second.source.clone(), what);
        false
    }

    /// Returns the sources with their names in the target directory.
    pub(super) fn names(&self, context: &CopyContext<'_>) -> Vec<NamedSource> {
        let named = |source: &SourceOperand| NamedSource {
            source: source.shown(context),
            name: name_in_target(&source.path).map(<[u8]>::to_vec),
        };
        self.sources.iter().map(named).collect()
    }
}

/// Test if the target takes two names for one; only a target on this machine can be asked.
fn are_one_in(files: &dyn LocalFileOps, target: &CopyLocation) -> impl Fn(&[u8], &[u8]) -> bool {
    move |one, other| match target {
        CopyLocation::Local(dir) => files.are_one_at(dir, one, other),
        CopyLocation::Remote { .. } => false,
    }
}

/// True if a source is left out by its name alone.
pub(super) fn leaves_out(options: &CopyOptions, path: &[u8]) -> bool {
    let filter = options.filter.as_ref();
    let name = name_in_target(path);
    filter
        .zip(name)
        .is_some_and(|(filter, name)| filter.leaves_out(name))
}

/// Reports sources with equal names. Returns true if there are none.
fn refuse(context: &mut CopyContext<'_>, clashes: &[NameClash]) -> bool {
    let advice = match context.is_recursive() {
        true => {
            "copy them to different directories, or write DIR/. to merge the contents of \
             directories"
        }
        false => "copy them to different directories",
    };
    if let Some(clash) = clashes.first() {
        let first = clash.first.shown(context);
        let what = equal_names(&first, &clash.name, clashes.len() - 1);
        let second = clash.second.shown(context);
        context.fail(
            None,
            second,
            format!("{what}: nothing was copied; {advice}"),
        );
    }
    clashes.is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cancel::CancelToken;
    use crate::copy::this_machine::LocalFiles;

    fn here_files() -> LocalFiles {
        LocalFiles::new(Arc::default(), &CancelToken::default())
    }

    fn here(path: &str) -> SourceOperand {
        SourceOperand {
            host: None,
            path: path.as_bytes().to_vec(),
        }
    }

    fn at(host: usize, path: &str) -> SourceOperand {
        SourceOperand {
            host: Some(HostId(host)),
            ..here(path)
        }
    }

    #[test]
    fn operands_with_one_name_are_found_before_anything_is_asked() {
        for (sources, name) in [
            ([here("a/x"), here("b/x")], Some("x")),
            ([here("a/x/"), here("b/./x//")], Some("x")),
            ([at(0, "x"), here("x")], Some("x")),
            ([at(0, "a/x"), at(0, "b/x")], Some("x")),
            ([at(0, "x"), at(1, "x")], Some("x")),
            ([at(0, "run-*/out"), at(1, "y/out/")], Some("out")),
            ([at(0, "run-*/out/"), here("out")], Some("out")),
            ([at(0, "~joe/x"), at(0, "x")], Some("x")),
            ([at(0, "a\\*b"), here("a*b")], Some("a*b")),
            // The same file in two spellings.
            ([at(0, "x"), at(0, "./x/")], None),
            ([at(0, "~/x"), at(0, "y")], None),
            // The matches are not known yet.
            ([at(0, "*.c"), at(1, "*.c")], None),
            ([at(0, "~joe/"), here("~joe")], None),
            // These are merged.
            ([here("a/."), here("b/.")], None),
            ([here("a/.."), here("..")], None),
            ([here("a/x"), here("a/X")], None),
        ] {
            let found = clashes(&here_files(), &sources, SourceOperand::known_name);
            let found = found.first().map(|clash| clash.name.clone());
            let name = name.map(|name| name.as_bytes().to_vec());
            assert_eq!(found, name, "{sources:?}");
        }
    }

    #[test]
    fn a_name_that_only_the_host_knows_is_told_from_no_name() {
        let of = |path: &str| {
            SourceName::of(&CopyLocation::Remote {
                host: HostId(0),
                path: path.into(),
            })
        };
        assert_eq!(of("/log/*"), SourceName::Matched);
        assert_eq!(of("~joe/*.c/"), SourceName::Matched);
        assert_eq!(of("/l*/out"), SourceName::Known(b"out".to_vec()));
        for contents in [".", "/log/.", "~", "", "~joe", "/l*/..", "/"] {
            assert_eq!(of(contents), SourceName::Contents, "{contents}");
        }
    }

    #[test]
    fn each_source_beyond_the_first_of_a_name_is_told() {
        let sources = [
            at(0, "1/out"),
            at(0, "2/out"),
            at(0, "3/out"),
            at(0, "3/in"),
        ];
        let found = clashes(&here_files(), &sources, SourceOperand::known_name);
        let pairs: Vec<_> = found.iter().map(|c| (&c.first, &c.second)).collect();
        assert_eq!(
            pairs,
            [(&sources[0], &sources[1]), (&sources[0], &sources[2])]
        );
    }

    fn ignores_case(one: &[u8], other: &[u8]) -> bool {
        one.eq_ignore_ascii_case(other)
    }

    /// A hostile source must not make the target be asked without end.
    #[test]
    fn the_target_is_asked_about_a_bounded_number_of_paths() {
        let asked = std::cell::Cell::new(0);
        let ask = |_: &[u8], _: &[u8]| {
            asked.set(asked.get() + 1);
            false
        };
        let mut claims = ClaimedTargets::new(true);
        let path = |dots: usize| [b"a".as_slice(), &b".".repeat(dots)].concat();
        let mut claim = |dots| claims.claim(&path(dots), WalkId(1), false, ask);
        let refused = (0..200).filter(|dots| claim(*dots).is_some()).count();
        assert!(refused > 100, "{refused}");
        assert_eq!(asked.get(), MOST);
    }

    #[test]
    fn merged_sources_share_no_file_whose_names_the_target_takes_for_one() {
        let (one, two) = (WalkId(1), WalkId(2));
        for folds in [false, true] {
            let mut claims = ClaimedTargets::new(folds);
            claims.name_root(one, EscapedName(b"one".to_vec()));
            let mut claim = |path: &[u8], root| claims.claim(path, root, false, ignores_case);
            let taken = folds.then(|| TargetNameConflict::Alike(b"d/error".to_vec()));
            assert_eq!(claim(b"d/error", one), None);
            assert_eq!(claim(b"D/Error", two), taken);
            // Within one source too.
            assert_eq!(claim(b"d/ERROR", one), taken);
            // Alike on some file systems, and not on this one.
            assert_eq!(claim(b"d/error.", one), None);
        }
    }

    /// Bug: files of two directories were mixed in one, which no message said.
    #[test]
    fn directories_whose_names_the_target_takes_for_one_are_not_merged() {
        let (one, two) = (WalkId(1), WalkId(2));
        let mut claims = ClaimedTargets::new(true);
        let mut claim = |path: &[u8], root| claims.claim(path, root, true, ignores_case);
        assert_eq!(claim(b"Logs", one), None);
        let taken = Some(TargetNameConflict::Alike(b"Logs".to_vec()));
        assert_eq!(claim(b"logs", one), taken);
        assert_eq!(claim(b"logs", two), taken);
        assert_eq!(claim(b"Logs", two), None);
    }

    #[test]
    fn merged_sources_share_directories_and_no_file() {
        let mut claims = ClaimedTargets::default();
        let (one, two) = (WalkId(1), WalkId(2));
        claims.name_root(one, EscapedName(b"one".to_vec()));
        let first = Some(TargetNameConflict::Source(EscapedName(b"one".to_vec())));
        let mut claim =
            |path: &[u8], root, is_directory| claims.claim(path, root, is_directory, |_, _| false);
        assert_eq!(claim(b"d/sub", one, true), None);
        assert_eq!(claim(b"d/sub", two, true), None);
        assert_eq!(claim(b"d/f", one, false), None);
        assert_eq!(claim(b"d/f", two, false), first);
        assert_eq!(claim(b"d/f", two, true), first);
        assert_eq!(claim(b"d/sub", two, false), first);
        assert_eq!(claim(b"d/g", two, false), None);
        // A source that is copied again may claim its own targets.
        assert_eq!(claim(b"d/f", one, false), None);
    }

    /// Two sources clash if they get one name and are not certainly one file: the first of each
    /// name goes with each later one.
    #[test]
    fn each_source_clashes_with_the_first_of_its_name_and_no_other() {
        let mut seed = testkit::Seed::new(6);
        for _ in 0..2000 {
            let count = seed.below(6) as usize;
            let random = |_| {
                let dir = ["", "d/", "./", "e//"][seed.below(4) as usize];
                let name = ["x", "y", "x/", "./y"][seed.below(4) as usize];
                at(seed.below(2) as usize, &format!("{dir}{name}"))
            };
            let sources: Vec<SourceOperand> = (0..count).map(random).collect();
            let mut expected = Vec::new();
            for (nth, source) in sources.iter().enumerate() {
                let same = |other: &&SourceOperand| other.known_name() == source.known_name();
                let first = sources[..nth].iter().find(same);
                let is_one = |first: &&SourceOperand| {
                    first.host == source.host && plain(&first.path) == plain(&source.path)
                };
                if let Some(first) = first.filter(|first| !is_one(first)) {
                    expected.push((first.clone(), source.clone()));
                }
            }
            let found = clashes(&here_files(), &sources, SourceOperand::known_name);
            let found: Vec<_> = found
                .into_iter()
                .map(|clash| (clash.first, clash.second))
                .collect();
            assert_eq!(found, expected, "{sources:?}");
        }
    }

    /// The first of several merged sources that claims a path keeps it; directories are shared.
    #[test]
    fn a_path_belongs_to_the_first_source_that_claims_it() {
        let mut seed = testkit::Seed::new(7);
        for _ in 0..300 {
            let mut claims = ClaimedTargets::default();
            let roots = [WalkId(1), WalkId(2), WalkId(3)];
            for root in roots {
                claims.name_root(root, EscapedName(format!("source {}", root.0).into_bytes()));
            }
            let mut owners: HashMap<String, (WalkId, bool)> = HashMap::new();
            for _ in 0..40 {
                let path = format!("d/{}", seed.below(6));
                let root = roots[seed.below(3) as usize];
                let is_directory = seed.below(2) == 0;
                let found = claims.claim(path.as_bytes(), root, is_directory, |_, _| false);
                let (owner, was_directory) = *owners.entry(path).or_insert((root, is_directory));
                let is_free = owner == root || was_directory && is_directory;
                let name = EscapedName(format!("source {}", owner.0).into_bytes());
                let expected = (!is_free).then_some(TargetNameConflict::Source(name));
                assert_eq!(found, expected);
            }
        }
    }

    /// Paths are one if their components are in pairs: `a/b` and `A/B`, and never `a/b` and `a`.
    #[test]
    fn paths_are_one_by_their_components() {
        for (one, other, is_one) in [
            ("a/b", "A/B", true),
            ("a/b", "a/b", true),
            ("a/b", "A", false),
            ("a", "A/b", false),
            ("a/b", "b/A", false),
            ("/a", "/A", true),
            ("a/", "A", false),
            ("", "", true),
        ] {
            let found = are_one_path(one.as_bytes(), other.as_bytes(), ignores_case);
            assert_eq!(found, is_one, "{one} {other}");
        }
    }

    #[test]
    fn spellings_of_one_path_are_one_source() {
        for (path, expected) in [
            ("a", "a"),
            ("./a", "a"),
            ("a/./b//c/", "a/b/c"),
            ("/", "/"),
            ("//a", "/a"),
            ("/./a", "/a"),
            (".", ""),
            // A symlink may stand before the dots.
            ("a/../b", "a/../b"),
        ] {
            assert_eq!(plain(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
