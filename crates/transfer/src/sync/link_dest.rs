//! Links files to equal files of an earlier copy at the target (`--link-dest`) instead of sending
//! them.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sync::{
    ComparisonResult, ComparisonRules, Filter, MetadataRules, SyncAction, SyncPlan,
    TimeGranularity, TreeEntryId, TreeEntryKind,
};

use super::ends::{SyncEnds, SyncFileOperation};
use super::listing::{self, RootAttributes, RootToList};
use super::target_path::{leads_through_symlink, path_below_target};
use super::xattrs::{COMPARED, XattrComparer};
use crate::copy::PlannedCopySide;
use crate::file_error::{FileError, if_exists};
use crate::walk::{join, local_path};

/// Directory with an earlier copy (`--link-dest`).
pub(super) struct LinkDest {
    dir: Vec<u8>,
    /// Files that were linked.
    linked: u64,
}

impl LinkDest {
    /// Takes the directory as the user wrote it; a relative one is relative to `target`, as in
    /// rsync.
    pub(super) fn new(given: &Path, target: &[u8]) -> Self {
        let given = given.as_os_str().as_bytes();
        let dir = match given.starts_with(b"/") {
            true => given.to_vec(),
            false => join(target, given),
        };
        Self {
            dir: without_dots(&dir),
            linked: 0,
        }
    }

    /// Returns the path of the directory.
    pub(super) fn path(&self) -> &[u8] {
        &self.dir
    }

    /// Returns the number of files that were linked.
    pub(super) fn linked(&self) -> u64 {
        self.linked
    }

    /// Plans links for new files of which the directory has one that is equal by `comparison`.
    pub(super) async fn plan(
        &self,
        ends: &mut SyncEnds<'_>,
        plan: &mut SyncPlan,
        comparison: &ComparisonRules,
        xattrs: Option<XattrComparer>,
    ) {
        let dir = &self.dir;
        if is_behind_symlink(ends, dir).await {
            return;
        }
        let attributes = match ends.query(PlannedCopySide::Target, dir.clone()) {
            Some(query) => RootAttributes::Queried(query),
            None => {
                let meta = std::fs::metadata(local_path(dir)).map_err(FileError::from);
                let found = meta.map(|meta| crate::disk::attributes(&meta));
                if_exists(found).into()
            }
        };
        let root = RootToList::new(PlannedCopySide::Target, dir.clone(), attributes);
        let listed = listing::list(ends, vec![root], &Filter::default()).await;
        let Some(earlier) = listed.and_then(|mut listed| listed.pop()) else {
            return;
        };
        if earlier
            .root()
            .is_none_or(|root| root.kind() != schedule::EntryKind::Directory)
        {
            let path = Some(ends.shown(PlannedCopySide::Target, dir));
            let why = earlier.root_error().map(FileError::what);
            let why = why.unwrap_or("no such directory");
            let message = format!("{why}: nothing is linked to files in it (--link-dest)");
            ends.warn(path, message);
            return;
        }
        let rules = ComparisonRules {
            grain: TimeGranularity::of(earlier.tree()),
            metadata: MetadataRules {
                // A link shares the permissions of the earlier file.
                permissions: true,
                ignore_special_bits: !ends.keeps_special_bits(),
                ..comparison.metadata
            },
            ..comparison.clone()
        };
        let source = plan.source().tree();
        let has_equal = |id: &TreeEntryId| {
            let there = earlier.tree().find(&source.path(*id));
            there.is_some_and(|there| {
                let (ours, theirs) = (source.entry(*id), earlier.tree().tree().entry(there));
                theirs.kind == TreeEntryKind::File
                    && rules.compare(ours, theirs) == ComparisonResult::Equal
            })
        };
        let steps = plan.steps().iter();
        let created = steps.filter(|step| step.action == SyncAction::Create);
        let mut equal: BTreeSet<TreeEntryId> =
            created.map(|step| step.source).filter(has_equal).collect();
        if let Some(xattrs) = xattrs {
            // A link shares them as well.
            let root = ends.root(PlannedCopySide::Source).to_vec();
            let ids: Vec<TreeEntryId> = equal.iter().copied().collect();
            for ids in ids.chunks(COMPARED) {
                let pairs = ids.iter().map(|id| {
                    let ours = join(&root, &source.own_path(*id));
                    (ours, join(dir, &source.path(*id)))
                });
                let found = xattrs.compare(ends, pairs.collect()).await;
                let found = ids
                    .iter()
                    .zip(found)
                    .filter(|(_, found)| !found.why.is_empty());
                for (id, _) in found {
                    equal.remove(id);
                }
            }
        }
        plan.link(|id| equal.contains(&id));
    }

    /// Makes the links. What cannot be linked is copied, and one warning says why.
    pub(super) async fn carry_out(
        &mut self,
        ends: &mut SyncEnds<'_>,
        mut plan: SyncPlan,
        target_exists: bool,
    ) -> SyncPlan {
        let tree = plan.source().tree();
        let steps = plan.steps().iter();
        let linked: Vec<TreeEntryId> = steps
            .filter(|step| step.action == SyncAction::Link)
            .map(|step| step.source)
            .collect();
        if linked.is_empty() {
            return plan;
        }
        let root = ends.root(PlannedCopySide::Target).to_vec();
        if !target_exists {
            let path = root.clone();
            let (mode, is_new) = (0o777, true);
            let make = SyncFileOperation::MakeNamedDir { path, mode, is_new };
            let made = ends.at_target(vec![make]).await;
            if made.iter().any(Result::is_err) {
                // The copy reports why.
                plan.unlink(&linked.into_iter().collect());
                return plan;
            }
        }
        let above = linked.iter().map(|id| tree.path(tree.parent(*id)));
        ends.make_directories(&root, above.collect()).await;
        let ops = linked.iter().map(|id| SyncFileOperation::Link {
            of: join(&self.dir, &tree.path(*id)),
            to: join(&root, &tree.path(*id)),
        });
        let results = ends.at_target(ops.collect()).await;
        let mut failed = BTreeSet::new();
        let mut reason = None;
        for (id, result) in linked.into_iter().zip(results) {
            match result {
                Ok(_) => self.linked += 1,
                Err(why) => {
                    failed.insert(id);
                    reason.get_or_insert(why);
                }
            }
        }
        if let Some(why) = reason.filter(|_| !ends.stopped()) {
            let files = match failed.len() {
                1 => "1 file is".to_owned(),
                count => format!("{count} files are"),
            };
            let message = format!("{files} copied instead of linked (--link-dest): {why}");
            let path = Some(ends.shown(PlannedCopySide::Target, &self.dir));
            ends.warn(path, message);
        }
        plan.unlink(&failed);
        plan
    }
}

/// True if a symlink below the target leads to the directory, which is told: an earlier sync may have
/// brought it, to files that are not its source's.
async fn is_behind_symlink(ends: &mut SyncEnds<'_>, dir: &[u8]) -> bool {
    let path = local_path(dir);
    let Some(below) = path_below_target(ends, &path).await else {
        return false;
    };
    let is_behind = leads_through_symlink(ends, &path, &below).await;
    if is_behind {
        let shown = Some(ends.shown(PlannedCopySide::Target, dir));
        let message =
            "a symlink in DST leads there: nothing is linked to files in it (--link-dest)";
        ends.warn(shown, message.to_owned());
    }
    is_behind
}

/// Resolves `.` and `..` in a path by its text.
fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        let above = parts.last().is_some_and(|last| *last != b"..");
        match part {
            b"" | b"." => {}
            b".." if above => drop(parts.pop()),
            // There is nothing above the root.
            b".." if path.starts_with(b"/") => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    match (path.starts_with(b"/"), joined.is_empty()) {
        (true, _) => [b"/", joined.as_slice()].concat(),
        (false, true) => b".".to_vec(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_resolved_by_text() {
        for (path, expected) in [
            ("/srv/b/../a/", "/srv/a"),
            ("b/../../a", "../a"),
            ("b/..", "."),
            ("/../a/./c", "/a/c"),
        ] {
            assert_eq!(without_dots(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
