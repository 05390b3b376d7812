//! Keeps hard links (`--hard-links`): the names of one file at the source become names of one file at
//! the target, also where the target has some of the names already.

use std::collections::{BTreeMap, BTreeSet};

use sftp::InodeId;
use sync::{
    ComparisonRules, FileIdentity, LinkedEntries, SyncAction, SyncPlan, SyncStep, TreeEntryId,
    TreeEntryKind,
};

use super::ends::{SyncEnds, SyncFileOperation};
use super::link_survey::links_there;
use crate::copy::PlannedCopySide;
use crate::walk::join;

/// Identities of the files with several names at one end, by entry.
pub(super) type InodeIds = BTreeMap<TreeEntryId, InodeId>;

/// Hard links of the source, which the target gets as well.
pub(super) struct SourceHardLinks {
    source: InodeIds,
    /// Names to link to whose data the target has already.
    present: BTreeSet<TreeEntryId>,
    /// Names that were linked to a file of the target before the copy.
    linked: u64,
}

impl SourceHardLinks {
    /// Plans hard links for the names of one file at the source. `source` and `target` are what the
    /// listings tell; commands ask the servers that tell nothing. Returns `None`, after a warning if
    /// there are such names, if the target's server cannot make hard links.
    pub(super) async fn plan(
        ends: &mut SyncEnds<'_>,
        plan: &mut SyncPlan,
        [mut source, target]: [InodeIds; 2],
        rules: &ComparisonRules,
    ) -> Option<Self> {
        if !tells_links(ends, PlannedCopySide::Source)
            && let Some(found) = links_there(ends, PlannedCopySide::Source, plan.source()).await
        {
            source = found;
            ends.note_source_links_known();
        }
        let names = linked_entries(&source);
        if !can_link(ends) {
            let several = names_of_one_file(&names);
            if several > 0 {
                let path = ends.shown(PlannedCopySide::Target, ends.root(PlannedCopySide::Target));
                let message = format!(
                    "the server cannot make hard links (--hard-links): {several} hard-linked names \
                     become separate files"
                );
                ends.warn(Some(path), message);
            }
            return None;
        }
        let mut target = tells_links(ends, PlannedCopySide::Target).then_some(target);
        if target.is_none() && depends_on_target(plan, &names) {
            target = links_there(ends, PlannedCopySide::Target, plan.target()).await;
        }
        let target = target.as_ref().map(linked_entries);
        plan.keep_hard_links(&names, target.as_ref(), rules);
        let mut present = firsts(plan);
        for step in plan.steps() {
            if !matches!(step.action, SyncAction::SetAttributes(_)) {
                present.remove(&step.source);
            }
        }
        Some(Self {
            source,
            present,
            linked: 0,
        })
    }

    /// Returns the number of names that were linked to a file of the target before the copy.
    pub(super) fn linked(&self) -> u64 {
        self.linked
    }

    /// Returns the identities of the source's files, for the copy.
    pub(super) fn source(&self) -> &InodeIds {
        &self.source
    }

    /// Links names with equal data, and tells the copy which files of the target the other names
    /// are linked to. Names that cannot be linked stay as separate files.
    pub(super) async fn carry_out(&mut self, ends: &mut SyncEnds<'_>, plan: &mut SyncPlan) {
        let root = ends.root(PlannedCopySide::Target).to_vec();
        let tree = plan.source().tree();
        let path = |id: TreeEntryId| join(&root, &tree.path(id));
        for first in self.files_of_target(plan) {
            if let Some(link) = self.source.get(&first) {
                ends.note_linked_file(*link, path(first));
            }
        }
        let mut names = Vec::new();
        let mut ops = Vec::new();
        for step in plan.steps() {
            if let SyncAction::HardLink {
                first,
                has_data: true,
                ..
            } = step.action
            {
                names.push(step.source);
                ops.push(SyncFileOperation::ReplaceByLink {
                    of: path(first),
                    to: path(step.source),
                });
            }
        }
        let results = ends.at_target(ops).await;
        let mut failed = BTreeSet::new();
        for (id, result) in names.into_iter().zip(results) {
            match result {
                Ok(_) => self.linked += 1,
                Err(why) => {
                    failed.insert(id);
                    if !ends.stopped() {
                        ends.note_lost_link(why.what(), Some(&path(id)));
                    }
                }
            }
        }
        plan.leave_separate(&failed);
    }

    /// Returns the names to link to that the target has without a copy, after files were moved and
    /// linked to those of an earlier copy.
    fn files_of_target(&self, plan: &SyncPlan) -> BTreeSet<TreeEntryId> {
        let mut found = firsts(plan);
        let arrived = plan.steps().iter().filter_map(|step| match step.action {
            SyncAction::MoveFrom(_) | SyncAction::Link => Some(step.source),
            _ => None,
        });
        let arrived: BTreeSet<TreeEntryId> = arrived.filter(|id| found.contains(id)).collect();
        found.retain(|id| self.present.contains(id) || arrived.contains(id));
        found
    }
}

/// Returns the files that have more names than the listed tree has of them.
pub(super) fn linked_outside(links: &InodeIds) -> BTreeSet<TreeEntryId> {
    let mut listed: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for link in links.values() {
        *listed.entry((link.device, link.inode)).or_default() += 1;
    }
    let is_outside = |link: &InodeId| {
        let names = listed.get(&(link.device, link.inode));
        names.is_none_or(|names| *names < link.names)
    };
    let outside = links.iter().filter(|(_, link)| is_outside(link));
    outside.map(|(id, _)| *id).collect()
}

/// Returns the names to which others are linked.
fn firsts(plan: &SyncPlan) -> BTreeSet<TreeEntryId> {
    let steps = plan.steps().iter();
    let firsts = steps.filter_map(|step| match step.action {
        SyncAction::HardLink { first, .. } => Some(first),
        _ => None,
    });
    firsts.collect()
}

fn linked_entries(links: &InodeIds) -> LinkedEntries {
    let identity = |link: &InodeId| FileIdentity {
        device: link.device,
        inode: link.inode,
    };
    links
        .iter()
        .map(|(id, link)| (*id, identity(link)))
        .collect()
}

/// Number of names that share their file with another one of them.
fn names_of_one_file(names: &LinkedEntries) -> usize {
    let mut counts: BTreeMap<FileIdentity, usize> = BTreeMap::new();
    for identity in names.values() {
        *counts.entry(*identity).or_default() += 1;
    }
    counts.into_values().filter(|count| *count > 1).sum()
}

/// True if links of the target decide what is done: names of one file may be linked there, and
/// attributes may be set through links.
fn depends_on_target(plan: &SyncPlan, names: &LinkedEntries) -> bool {
    let sets_attributes = |step: &SyncStep| {
        let entry = plan.source().tree().entry(step.source);
        let sets = matches!(step.action, SyncAction::SetAttributes(_));
        sets && entry.kind == TreeEntryKind::File
    };
    let has_files = !plan.target().tree().is_empty();
    has_files && (names_of_one_file(names) > 0 || plan.steps().iter().any(sets_attributes))
}

/// True unless the target's server is known to make no hard links.
fn can_link(ends: &SyncEnds<'_>) -> bool {
    let server = ends.server(PlannedCopySide::Target);
    server.is_none_or(|info| info.has("hardlink@openssh.com"))
}

/// True if an end tells which names belong to one file.
fn tells_links(ends: &SyncEnds<'_>, end: PlannedCopySide) -> bool {
    let server = ends.server(end);
    ends.is_local(end) || server.is_some_and(|info| info.has("attributes@longhaul"))
}
