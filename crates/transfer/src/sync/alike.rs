//! Names that differ at the source and are one at the target, whose file system ignores case or
//! normalizes Unicode. The file system decides: it is asked, with directories of these names if it
//! has no such entries yet.

use std::collections::BTreeSet;

use sync::{
    EntryTree, SortedTree, SyncPlan, TreeEntryId, TreeEntryKind, alike_entries, parent_path, to_nfc,
};

use super::ends::{SyncEnds, SyncFileOperation};
use crate::copy::PlannedCopySide;
use crate::escape;
use crate::name_probe::{probe_names, unanswered};
use crate::report::EscapedName;
use crate::walk::{join, join_below};

/// Pairs about which the target is asked.
const MOST: usize = 10_000;

/// Removes empty directories with which an interrupted run asked about names, at these paths below
/// the target's root.
pub(super) async fn remove_name_probes(ends: &mut SyncEnds<'_>, paths: &[Vec<u8>]) {
    let root = ends.root(PlannedCopySide::Target).to_vec();
    let dirs = paths.iter().map(|path| join(&root, path));
    let ops = dirs.map(SyncFileOperation::RemoveDir).collect();
    ends.at_target(ops).await;
}

/// Two names in one directory of the source that the target may treat as equal.
struct NamePair {
    one: TreeEntryId,
    other: TreeEntryId,
    /// Paths at the target that show whether both are one: the first one exists or is made, and the
    /// second one is looked for.
    known: Vec<u8>,
    looked_for: Vec<u8>,
    /// The first one is a directory to make, and to remove again.
    is_probe: bool,
}

/// Way to find out if the target treats two names as equal.
enum NameQuestion {
    Asked(NamePair),
    /// The target has both, or cannot be asked now.
    Answered,
    /// No probe can have the names.
    TooLong,
}

fn shown(ends: &SyncEnds<'_>, source: &SortedTree, id: TreeEntryId) -> EscapedName {
    let path = join(ends.root(PlannedCopySide::Source), &source.tree().path(id));
    ends.shown(PlannedCopySide::Source, &path)
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
        let mut pairs = Vec::new();
        for (one, other) in alike_entries(source).into_iter().take(MOST) {
            match self.question(&root, source, target, one, other) {
                NameQuestion::Asked(pair) => pairs.push(pair),
                NameQuestion::TooLong => {
                    let [first, name] = [one, other].map(|id| shown(ends, source, id));
                    ends.warn(Some(name), unanswered(&first.to_string()));
                }
                NameQuestion::Answered => {}
            }
        }
        if pairs.is_empty() {
            return false;
        }
        let probes = pairs.iter().filter(|pair| pair.is_probe);
        let probes: Vec<Vec<u8>> = probes.map(|pair| pair.known.clone()).collect();
        let make = probes.iter().cloned().map(SyncFileOperation::make_dir);
        ends.at_target(make.collect()).await;
        let looks = pairs
            .iter()
            .map(|pair| SyncFileOperation::Lstat(pair.looked_for.clone()));
        let folded = ends.at_target(looks.collect()).await;
        let remove = probes.into_iter().map(SyncFileOperation::RemoveDir);
        ends.at_target(remove.collect()).await;
        let mut any = false;
        for (pair, result) in pairs.iter().zip(folded) {
            if result.is_err() {
                continue;
            }
            any = true;
            let [one, other] = [pair.one, pair.other].map(|id| shown(ends, source, id));
            let one = escape::beside(&other.0, &one.0);
            let what = format!(
                "has the same name at the target as {one}, because the file system there ignores \
                 case or normalizes names: nothing was copied; rename one of them, or exclude it"
            );
            ends.fail(other, what);
        }
        any
    }

    /// Decides how to ask about two names.
    fn question(
        &self,
        root: &[u8],
        source: &SortedTree,
        target: &SortedTree,
        one: TreeEntryId,
        other: TreeEntryId,
    ) -> NameQuestion {
        let ours = source.tree();
        let [first, second] = [one, other].map(|id| ours.path(id));
        let has = |path: &[u8]| target.find(path).is_some();
        let (known, looked_for) = match (has(&first), has(&second)) {
            (true, true) => return NameQuestion::Answered,
            (true, false) => (join(root, &first), join(root, &second)),
            (false, true) => (join(root, &second), join(root, &first)),
            // It would have to create something.
            (false, false) if self.dry_run => return NameQuestion::Answered,
            (false, false) => {
                let place = self.probe_place(root, target, &ours.path(ours.parent(one)));
                let Some(names) = probe_names(ours.name(one), ours.name(other)) else {
                    return NameQuestion::TooLong;
                };
                let [known, looked_for] = names.map(|name| join(&place, &name));
                return NameQuestion::Asked(NamePair {
                    one,
                    other,
                    known,
                    looked_for,
                    is_probe: true,
                });
            }
        };
        NameQuestion::Asked(NamePair {
            one,
            other,
            known,
            looked_for,
            is_probe: false,
        })
    }

    /// Directory in which to ask about the names of `dir`: the target's directory of that name, or
    /// the nearest one above it that exists.
    fn probe_place(&self, root: &[u8], target: &SortedTree, dir: &[u8]) -> Vec<u8> {
        if !self.target_exists {
            let end = root.iter().rposition(|byte| *byte == b'/');
            return match end {
                Some(0) => b"/".to_vec(),
                Some(end) => root.get(..end).unwrap_or_default().to_vec(),
                None => Vec::new(),
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
                return join_below(root, dir);
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
        if result.is_err_and(|error| error.is_missing()) {
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
