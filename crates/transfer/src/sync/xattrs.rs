//! Compares the extended attributes and access control lists of entries that are equal otherwise
//! (`--xattrs`, `--acls`), and sets them without sending data.

use std::collections::{BTreeSet, VecDeque};

use schedule::{Attributes, MetadataFlags};
use sftp::xattrs::{Xattr, kind};
use sync::{
    ComparisonRules, DifferenceReasons, EntryTree, FoundDifference, SyncAction, SyncPlan,
    TreeEntryId,
};

use super::ends::{FileOperationResult, SyncEnds, SyncFileOperation};
use super::expected_file::ExpectedFile;
use crate::copy::PlannedCopySide;
use crate::file_error::FileError;
use crate::walk::join;

/// Entries whose digests are kept at a time.
pub(super) const COMPARED: usize = 16 * 1024;
/// Files whose lists are kept at a time.
const SET: usize = 4096;
/// Bytes of names and values after which no further list is kept; the files get theirs later.
const SET_BYTES: usize = 32 << 20;
/// Attribute by which a file grants privileges to whoever runs it.
const CAPABILITY: &[u8] = b"security.capability";

type Digest = [u8; 32];

/// Digests of the extended attributes and access control lists of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct XattrDigests {
    xattrs: Digest,
    acls: Digest,
    /// There is a capability.
    grants: bool,
}

impl XattrDigests {
    /// Digests the attributes whose names pass `compared`. Their order does not matter.
    fn of(mut list: Vec<Xattr>, compared: impl Fn(&[u8]) -> bool) -> Self {
        list.retain(|(name, _)| compared(name));
        list.sort_unstable();
        let grants = list.iter().any(|(name, _)| name == CAPABILITY);
        let is_acl = |(name, _): &Xattr| kind(name, true) == Some(MetadataFlags::ACLS);
        let (acls, xattrs): (Vec<_>, Vec<_>) = list.into_iter().partition(is_acl);
        Self {
            xattrs: digest(&xattrs),
            acls: digest(&acls),
            grants,
        }
    }

    /// Returns what differs at the target.
    fn differences(&self, target: &Self) -> DifferenceReasons {
        let mut why = DifferenceReasons::default();
        if self.xattrs != target.xattrs {
            why = why.with(DifferenceReasons::XATTRS);
        }
        if self.acls != target.acls {
            why = why.with(DifferenceReasons::ACLS);
        }
        why
    }
}

fn digest(list: &[Xattr]) -> Digest {
    let mut bytes = Vec::new();
    sftp::xattrs::write(list, &mut bytes);
    *blake3::hash(&bytes).as_bytes()
}

/// Result of the comparison of two entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ComparedXattrs {
    pub why: DifferenceReasons,
    /// The source grants privileges by a capability.
    pub grants: bool,
}

/// Compares extended attributes, access control lists or both.
#[derive(Clone, Copy, Debug)]
pub(super) struct XattrComparer {
    kinds: MetadataFlags,
}

impl XattrComparer {
    /// Returns `None` if nothing is asked for, or one of the ends cannot compare it.
    pub(super) async fn find(ends: &mut SyncEnds<'_>) -> Option<Self> {
        let kinds = ends.compared_xattrs().await;
        (!kinds.is_empty()).then_some(Self { kinds })
    }

    /// Notes in the plan which entries with equal data differ.
    pub(super) async fn compare_plan(
        self,
        ends: &mut SyncEnds<'_>,
        plan: &mut SyncPlan,
        rules: &ComparisonRules,
        target_exists: bool,
    ) {
        if !target_exists {
            return;
        }
        let roots = [PlannedCopySide::Source, PlannedCopySide::Target];
        let roots = roots.map(|end| ends.root(end).to_vec());
        let mut found = Vec::new();
        for pairs in plan.with_equal_data(rules).chunks(COMPARED) {
            let path_at = |root: &Vec<u8>, is_root: bool, below: Vec<u8>| match is_root {
                true => root.clone(),
                false => join(root, &below),
            };
            let paths = pairs.iter().map(|(ours, theirs)| {
                let below = plan.source().tree().own_path(*ours);
                let source = path_at(&roots[0], *ours == EntryTree::ROOT, below);
                let below = plan.target().tree().path(*theirs);
                (
                    source,
                    path_at(&roots[1], *theirs == EntryTree::ROOT, below),
                )
            });
            let compared = self.compare(ends, paths.collect()).await;
            for ((source, target), compared) in pairs.iter().zip(compared) {
                if !compared.why.is_empty() || compared.grants {
                    found.push(FoundDifference {
                        source: *source,
                        target: *target,
                        why: compared.why,
                        grants: compared.grants,
                    });
                }
            }
        }
        plan.note(&found, rules);
    }

    /// Copies the files with a capability that would be moved at the target: a renamed file does not
    /// get one, since another process may have put another file there.
    pub(super) async fn copy_granting(self, ends: &mut SyncEnds<'_>, plan: &mut SyncPlan) {
        let moves = plan.steps().iter().filter_map(|step| match step.action {
            SyncAction::MoveFrom(_) => Some(step.source),
            _ => None,
        });
        let moves: Vec<TreeEntryId> = moves.collect();
        let root = ends.root(PlannedCopySide::Source).to_vec();
        let mut granting = BTreeSet::new();
        for moves in moves.chunks(COMPARED) {
            let path = |id: &TreeEntryId| join(&root, &plan.source().tree().own_path(*id));
            let paths = moves.iter().map(path).collect();
            let ours = self.digests(ends, PlannedCopySide::Source, paths).await;
            let grants =
                |digests: &Option<XattrDigests>| digests.as_ref().is_some_and(|d| d.grants);
            let found = moves
                .iter()
                .zip(&ours)
                .filter(|(_, digests)| grants(digests));
            granting.extend(found.map(|(id, _)| *id));
        }
        plan.unsettle_moves(&granting);
    }

    /// Returns what differs between the entries of each pair (source, target). An entry that cannot
    /// be read counts as equal, and is noted.
    pub(super) async fn compare(
        self,
        ends: &mut SyncEnds<'_>,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Vec<ComparedXattrs> {
        let (sources, targets): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let ours = self.digests(ends, PlannedCopySide::Source, sources).await;
        let theirs = self.digests(ends, PlannedCopySide::Target, targets).await;
        let pairs = ours.into_iter().zip(theirs);
        let differences = pairs.map(|pair| match pair {
            (Some(ours), Some(theirs)) => ComparedXattrs {
                why: ours.differences(&theirs),
                grants: ours.grants,
            },
            _ => ComparedXattrs::default(),
        });
        differences.collect()
    }

    async fn digests(
        self,
        ends: &mut SyncEnds<'_>,
        end: PlannedCopySide,
        paths: Vec<Vec<u8>>,
    ) -> Vec<Option<XattrDigests>> {
        let compared = ends.compared_xattr_names();
        let mut digests = vec![None; paths.len()];
        let mut unread = Vec::new();
        let heard = |at: usize, list: Result<Vec<Xattr>, FileError>| match list {
            Ok(list) => {
                if let Some(digest) = digests.get_mut(at) {
                    *digest = Some(XattrDigests::of(list, &compared));
                }
            }
            Err(why) => unread.push((at, why)),
        };
        ends.read_xattrs(end, &paths, self.kinds, heard).await;
        for (at, why) in unread {
            let path = paths.get(at).map(Vec::as_slice).unwrap_or_default();
            ends.note_unread_xattrs(end, path, &why);
        }
        digests
    }
}

/// A file with equal data whose attributes are set.
#[derive(Clone, Debug)]
pub(super) struct AttributeChange {
    /// Path at the source.
    pub source: Vec<u8>,
    /// Path at the target.
    pub target: Vec<u8>,
    /// Attributes of the source that the file gets.
    pub attributes: Attributes,
    /// The owner at the target may not write the file, and so not set its extended attributes.
    pub is_read_only: bool,
    /// The file at the target.
    pub expected: ExpectedFile,
}

/// Sets the attributes of files, with the extended attributes and access control lists that
/// `comparer` compares: chmod(2) has changed the mask of such a list, and chown(2) has removed
/// capabilities. Returns the results in the order of `files`.
pub(super) async fn set_attributes(
    ends: &mut SyncEnds<'_>,
    comparer: Option<XattrComparer>,
    files: Vec<AttributeChange>,
) -> Vec<FileOperationResult> {
    let set = |file: &AttributeChange, xattrs| SyncFileOperation::Set {
        path: file.target.clone(),
        attributes: file.attributes,
        xattrs,
        expected: file.expected,
    };
    let Some(XattrComparer { kinds }) = comparer else {
        let ops = files.iter().map(|file| set(file, None)).collect();
        return ends.at_target(ops).await;
    };
    let mut results = vec![Err("interrupted".into()); files.len()];
    let mut left: VecDeque<usize> = (0..files.len()).collect();
    while !left.is_empty() && !ends.stopped() {
        let places: Vec<usize> = left.drain(..left.len().min(SET)).collect();
        let batch = places.iter().filter_map(|at| files.get(*at));
        if kinds.contains(MetadataFlags::XATTRS) {
            make_writable(ends, batch.clone()).await;
        }
        let paths = batch.clone().map(|file| file.source.clone()).collect();
        let lists = lists(ends, paths, kinds).await;
        let mut ops = Vec::new();
        let mut set_now = Vec::new();
        for ((at, file), list) in places.iter().zip(batch).zip(lists) {
            let takeable = match list {
                None => {
                    left.push_back(*at);
                    continue;
                }
                Some(Ok(mut list)) => {
                    // Files with a capability are copied.
                    list.retain(|(name, _)| name != CAPABILITY);
                    ends.takeable_xattrs(&file.source, list)
                }
                Some(Err(why)) => {
                    ends.note_unread_xattrs(PlannedCopySide::Source, &file.source, &why);
                    None
                }
            };
            set_now.push(*at);
            ops.push(set(file, takeable));
        }
        for (at, result) in set_now.into_iter().zip(ends.at_target(ops).await) {
            if let Some(slot) = results.get_mut(at) {
                *slot = result;
            }
        }
    }
    results
}

/// Lets the owner write the files without that permission; their modes are set afterwards.
async fn make_writable<'a>(
    ends: &mut SyncEnds<'_>,
    files: impl Iterator<Item = &'a AttributeChange>,
) {
    if ends.sets_owners() {
        return;
    }
    let shut = files.filter(|file| file.is_read_only);
    let ops = shut.map(|file| {
        let mode = file.attributes.mode.map(|mode| mode & !0o7000 | 0o200);
        let writable = Attributes {
            mode,
            ..Attributes::default()
        };
        SyncFileOperation::Set {
            path: file.target.clone(),
            attributes: writable,
            xattrs: None,
            expected: file.expected,
        }
    });
    // A failure shows when the attributes are set.
    ends.at_target(ops.collect()).await;
}

/// Reads the lists of files of the source. `None` for those after which no more are kept in memory;
/// the first answer is always kept.
async fn lists(
    ends: &mut SyncEnds<'_>,
    paths: Vec<Vec<u8>>,
    kinds: MetadataFlags,
) -> Vec<Option<Result<Vec<Xattr>, FileError>>> {
    let mut lists = vec![Some(Err("internal error: no answer".into())); paths.len()];
    let mut bytes = 0;
    let heard = |at: usize, list: Result<Vec<Xattr>, FileError>| {
        let Some(slot) = lists.get_mut(at) else {
            return;
        };
        *slot = (bytes < SET_BYTES).then(|| {
            let pairs = list.iter().flatten();
            bytes += pairs
                .map(|(name, value)| name.len() + value.len())
                .sum::<usize>();
            list
        });
    };
    ends.read_xattrs(PlannedCopySide::Source, &paths, kinds, heard)
        .await;
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(list: &[(&str, &str)]) -> XattrDigests {
        let list = list.iter();
        let list = list.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        XattrDigests::of(list.collect(), |name| name != b"user.ignored")
    }

    #[test]
    fn names_and_values_are_compared_in_any_order() {
        let acl = ("system.posix_acl_access", "x");
        let both = digests(&[("user.a", "1"), acl, ("user.ignored", "2")]);
        assert!(
            both.differences(&digests(&[acl, ("user.a", "1")]))
                .is_empty()
        );
        for (list, why) in [
            (&[("user.a", "2"), acl][..], DifferenceReasons::XATTRS),
            (&[acl], DifferenceReasons::XATTRS),
            (
                &[("user.a", "1"), ("user.b", ""), acl],
                DifferenceReasons::XATTRS,
            ),
            (&[("user.a", "1")], DifferenceReasons::ACLS),
            (&[], DifferenceReasons::XATTRS.with(DifferenceReasons::ACLS)),
        ] {
            assert_eq!(both.differences(&digests(list)), why, "{list:?}");
            assert_eq!(digests(list).differences(&both), why, "{list:?}");
        }
    }

    #[test]
    fn a_capability_grants_privileges_unless_it_is_not_compared() {
        let list = [("security.capability", "x"), ("user.a", "1")];
        assert!(digests(&list).grants && !digests(&list[1..]).grants);
        let list = list.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        assert!(!XattrDigests::of(list.to_vec(), |name| name != CAPABILITY).grants);
    }
}
