//! Names that differ at the source and are one at the target, whose file system ignores case or
//! normalizes Unicode. The file system decides: it is asked, with directories of these names if it
//! has no such entries yet.

use std::collections::{BTreeMap, BTreeSet};

use schedule::Attributes;
use sync::{
    EntryTree, Filter, SortedTree, SyncPlan, TreeEntryId, TreeEntryKind, alike_entries,
    parent_path, to_nfc,
};

use super::ends::{DIRECTORY, SyncEnds, SyncFileOperation};
use super::listing::{self, RootAttributes, RootToList};
use crate::copy::{NAME_PROBE, PlannedCopySide};
use crate::escape;
use crate::walk::join;

/// Directory in which the target's file system is asked. An interrupted run may leave it; the next
/// one removes it, and counts it as no entry.
const PROBE: &[u8] = b".longhaul-names";
/// Pairs about which the target is asked.
const MOST: usize = 10_000;

/// True for the name of a directory in which a copy or a sync asks about names.
pub(super) fn is_name_probe(name: &[u8]) -> bool {
    name == PROBE || sftp::final_name_in(name) == Some(NAME_PROBE)
}

/// Removes directories in which an interrupted run asked about names, at these paths below the
/// target's root. Files in them stay, and directories with files. What is no directory stays too:
/// anybody who may write there can make a symlink of that name.
pub(super) async fn remove_name_probes(ends: &mut SyncEnds<'_>, paths: &[Vec<u8>]) {
    let root = ends.root(PlannedCopySide::Target).to_vec();
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| join(&root, path)).collect();
    let looks = paths
        .iter()
        .cloned()
        .map(SyncFileOperation::Lstat)
        .collect();
    let kinds = ends.at_target(looks).await;
    for (path, kind) in paths.into_iter().zip(kinds) {
        if !matches!(kind, Ok(Some(kind)) if kind == DIRECTORY) {
            continue;
        }
        let attributes = RootAttributes::Known(Some(directory()));
        let probe = RootToList::new(PlannedCopySide::Target, path.clone(), attributes);
        let listed = listing::list(ends, vec![probe], &Filter::default()).await;
        let listed = listed.and_then(|mut listed| listed.pop());
        let below = listed.map_or_else(Vec::new, |listed| directories(listed.tree()));
        // The deepest come last.
        for dir in below.iter().rev().filter(|dir| is_in_probe(dir)) {
            let dir = SyncFileOperation::RemoveDir(join(&path, dir));
            ends.at_target(vec![dir]).await;
        }
        ends.at_target(vec![SyncFileOperation::RemoveDir(path)])
            .await;
    }
}

/// Returns true for the paths of directories that a run makes in a probe directory: a name, or a
/// number and a name below it.
fn is_in_probe(path: &[u8]) -> bool {
    path.iter().filter(|byte| **byte == b'/').count() <= 1
}

/// Attributes of a directory, of which nothing else is known.
fn directory() -> Attributes {
    Attributes {
        mode: Some(0o040_755),
        ..Attributes::default()
    }
}

/// Paths of the directories of a tree, each after the one that contains it.
fn directories(tree: &SortedTree) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    let mut open = vec![EntryTree::ROOT];
    while let Some(dir) = open.pop() {
        let below = tree.children(dir);
        let below = below.filter(|id| tree.tree().entry(*id).kind == TreeEntryKind::Directory);
        let before = open.len();
        open.extend(below);
        paths.extend(open.iter().skip(before).map(|id| tree.tree().path(*id)));
    }
    paths
}

/// Two names in one directory of the source that the target may treat as equal.
struct NamePair {
    one: TreeEntryId,
    other: TreeEntryId,
    /// Paths at the target that show whether both are one: the first one exists or is made, and the
    /// second one is looked for.
    known: Vec<u8>,
    looked_for: Vec<u8>,
    /// Probe directory to make first, and the directory in it for these two names.
    probe: Option<Vec<u8>>,
    own: Option<Vec<u8>>,
}

/// Gives each two names of a probe directory a directory of their own, since other pairs have the
/// same names.
fn separate(pairs: &mut [NamePair], source: &SortedTree) {
    let name = |id| source.tree().name(id).to_vec();
    let mut numbers: BTreeMap<[Vec<u8>; 3], usize> = BTreeMap::new();
    for pair in pairs {
        let Some(probe) = &pair.probe else { continue };
        let (one, other) = (name(pair.one), name(pair.other));
        let next = numbers.len();
        let key = [probe.clone(), one.clone(), other.clone()];
        let number = *numbers.entry(key).or_insert(next);
        let own = join(probe, number.to_string().as_bytes());
        pair.known = join(&own, &one);
        pair.looked_for = join(&own, &other);
        pair.own = Some(own);
    }
}

/// Asks the target's file system whether it treats names as equal.
pub(super) struct NameEqualityProbes {
    target_exists: bool,
    dry_run: bool,
}

impl NameEqualityProbes {
    /// In a dry run nothing is created.
    pub(super) fn new(target_exists: bool, dry_run: bool) -> Self {
        Self {
            target_exists,
            dry_run,
        }
    }

    /// Reports a failure for each pair of source entries that would be one at the target. Returns
    /// true if there is any.
    pub(super) async fn are_one_at_target(
        &self,
        ends: &mut SyncEnds<'_>,
        source: &SortedTree,
        target: &SortedTree,
    ) -> bool {
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let mut pairs: Vec<NamePair> = alike_entries(source)
            .into_iter()
            .take(MOST)
            .filter_map(|(one, other)| self.pair(&root, source, target, one, other))
            .collect();
        if pairs.is_empty() {
            return false;
        }
        separate(&mut pairs, source);
        let probes: BTreeSet<Vec<u8>> = pairs.iter().filter_map(|p| p.probe.clone()).collect();
        let each = pairs.iter().filter_map(|p| p.own.clone());
        let each: BTreeSet<Vec<u8>> = each.collect();
        let ops = |make: fn(Vec<u8>) -> SyncFileOperation,
                   paths: &BTreeSet<Vec<u8>>|
         -> Vec<SyncFileOperation> { paths.iter().cloned().map(make).collect() };
        let made = pairs.iter().filter(|pair| pair.probe.is_some());
        let made: BTreeSet<Vec<u8>> = made.map(|pair| pair.known.clone()).collect();
        ends.at_target(ops(SyncFileOperation::MakeDir, &probes))
            .await;
        ends.at_target(ops(SyncFileOperation::MakeDir, &each)).await;
        ends.at_target(ops(SyncFileOperation::MakeDir, &made)).await;
        let looks = pairs
            .iter()
            .map(|pair| SyncFileOperation::Lstat(pair.looked_for.clone()));
        let folded = ends.at_target(looks.collect()).await;
        ends.at_target(ops(SyncFileOperation::RemoveDir, &made))
            .await;
        ends.at_target(ops(SyncFileOperation::RemoveDir, &each))
            .await;
        ends.at_target(ops(SyncFileOperation::RemoveDir, &probes))
            .await;
        let mut any = false;
        for (pair, result) in pairs.iter().zip(folded) {
            if result.is_err() {
                continue;
            }
            any = true;
            let root = ends.root(PlannedCopySide::Source).to_vec();
            let [one, other] = [pair.one, pair.other].map(|id| {
                let path = join(&root, &source.tree().path(id));
                ends.shown(PlannedCopySide::Source, &path)
            });
            let one = escape::beside(&other.0, &one.0);
            let what = format!(
                "has the same name at the target as {one}, because the file system there ignores \
                 case or normalizes names: nothing was copied; rename one of them, or exclude it"
            );
            ends.fail(other, what);
        }
        any
    }

    /// Returns how to ask about two names; `None` if the target has both, or only a dry run would
    /// have to create something.
    fn pair(
        &self,
        root: &[u8],
        source: &SortedTree,
        target: &SortedTree,
        one: TreeEntryId,
        other: TreeEntryId,
    ) -> Option<NamePair> {
        let ours = source.tree();
        let [first, second] = [one, other].map(|id| ours.path(id));
        let has = |path: &[u8]| target.find(path).is_some();
        let (known, looked_for) = match (has(&first), has(&second)) {
            (true, true) => return None,
            (true, false) => (join(root, &first), join(root, &second)),
            (false, true) => (join(root, &second), join(root, &first)),
            (false, false) if self.dry_run => return None,
            (false, false) => {
                let probe = self.probe_place(root, target, &ours.path(ours.parent(one)));
                return Some(NamePair {
                    one,
                    other,
                    known: join(&probe, ours.name(one)),
                    looked_for: join(&probe, ours.name(other)),
                    probe: Some(probe),
                    own: None,
                });
            }
        };
        Some(NamePair {
            one,
            other,
            known,
            looked_for,
            probe: None,
            own: None,
        })
    }

    /// Probe directory for the names of `dir`: in the target's directory of that name, or the
    /// nearest one above it that exists.
    fn probe_place(&self, root: &[u8], target: &SortedTree, dir: &[u8]) -> Vec<u8> {
        if !self.target_exists {
            let end = root.iter().rposition(|byte| *byte == b'/');
            return match end {
                Some(0) => join(b"/", PROBE),
                Some(end) => join(root.get(..end).unwrap_or_default(), PROBE),
                None => PROBE.to_vec(),
            };
        }
        let mut dir = dir;
        loop {
            let there = match dir.is_empty() {
                true => Some(EntryTree::ROOT),
                false => target.find(dir),
            };
            let is_dir = |id| target.tree().entry(id).kind == TreeEntryKind::Directory;
            if dir.is_empty() || there.is_some_and(is_dir) {
                return join(&join(root, dir), PROBE);
            }
            dir = parent_path(dir);
        }
    }
}

/// Reports a failure for each pair of source entries whose names `--unicode=nfc` makes one.
/// Returns true if there is any.
pub(super) fn are_one_in_nfc(ends: &mut SyncEnds<'_>, source: &SortedTree) -> bool {
    let tree = source.tree();
    for (one, other) in source.joined() {
        let [one, other] = [one, other].map(|id| tree.own_path(*id));
        let one = escape::beside(&other, &one);
        let path = join(ends.root(PlannedCopySide::Source), &other);
        let path = ends.shown(PlannedCopySide::Source, &path);
        let what = format!(
            "has the same name as {one} after Unicode normalization (NFC): rename one of them, or \
             exclude it; nothing was copied"
        );
        ends.fail(path, what);
    }
    !source.joined().is_empty()
}

/// Excludes from deletion the target's entries whose names its file system treats as equal to
/// names in the source, and warns about them: deleting them would delete the files just copied.
pub(super) async fn spare_alike(ends: &mut SyncEnds<'_>, plan: &mut SyncPlan) {
    let root = ends.root(PlannedCopySide::Target).to_vec();
    // What the target lists under both names is two entries.
    let alike: Vec<(TreeEntryId, TreeEntryId)> = plan
        .alike_deletions()
        .into_iter()
        .filter(|(source, _)| {
            plan.target()
                .find(&plan.source().tree().path(*source))
                .is_none()
        })
        .collect();
    let looks = alike.iter().map(|(source, _)| {
        let path = plan.source().tree().path(*source);
        SyncFileOperation::Lstat(join(&root, &path))
    });
    let found = ends.at_target(looks.collect()).await;
    let mut spared = BTreeSet::new();
    let mut other_forms = Vec::new();
    for ((source, target), result) in alike.into_iter().zip(found) {
        if result.is_err_and(|why| why == "no such file or directory") {
            let path = plan.source().tree().path(source);
            if to_nfc(&path) == Some(plan.target().tree().path(target)) {
                other_forms.push(path);
            }
            continue;
        }
        spared.insert(target);
        let here = plan.target().tree().path(target);
        let path = join(&root, &here);
        let alike = escape::beside(&here, &plan.source().tree().path(source));
        let message = format!(
            "not renamed to {alike}, the name in the source: the target's file system treats \
             both names as one"
        );
        let path = Some(ends.shown(PlannedCopySide::Target, &path));
        ends.warn(path, message);
    }
    plan.spare(&spared);
    advise_nfc(ends, &other_forms);
}

/// Warns of entries that are deleted under one name and copied under another that looks the
/// same.
fn advise_nfc(ends: &mut SyncEnds<'_>, paths: &[Vec<u8>]) {
    let Some(first) = paths.first() else { return };
    let count = match paths.len() {
        1 => "1 name is".to_owned(),
        count => format!("{count} names are"),
    };
    let message = format!(
        "{count} deleted and copied anew, since DST has another form of Unicode ({}): \
         --unicode=nfc treats both forms as one name",
        escape::exact(first)
    );
    ends.warn(None, message);
}
