//! Compares what attributes cannot decide: the targets of symlinks, the contents of files whose times
//! are imprecise, and files that may have been moved.

use std::collections::BTreeSet;

use sync::{ComparisonRules, SortedTree, SyncAction, SyncPlan, TreeEntryId, TreeEntryKind};

use super::contents::{ContentComparer, ContentVerdict, FilePair};
use super::ends::{SyncFileOperation, carry_out};
use crate::copy::{PlannedCopy, PlannedCopySide};
use crate::report::CopyEvent;
use crate::walk::join;

/// Carries out operations at both ends of one run.
pub(super) struct OperationRunner<'a, 'run> {
    run: &'a mut PlannedCopy<'run>,
    contents: ContentComparer,
}

impl<'a, 'run> OperationRunner<'a, 'run> {
    pub(super) fn new(run: &'a mut PlannedCopy<'run>) -> Self {
        Self {
            run,
            contents: ContentComparer::default(),
        }
    }

    /// Reads the symlinks that exist under one path at both ends.
    pub(super) async fn read_symlinks(&mut self, source: &mut SortedTree, target: &mut SortedTree) {
        let mut both = Vec::new();
        for id in source.tree().of_kind(TreeEntryKind::Symlink) {
            let there = target.find(&source.tree().path(id));
            if let Some(there) =
                there.filter(|id| target.tree().entry(*id).kind == TreeEntryKind::Symlink)
            {
                both.push((id, there));
            }
        }
        let (here, there): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        self.read(PlannedCopySide::Source, source, &here).await;
        self.read(PlannedCopySide::Target, target, &there).await;
    }

    async fn read(&mut self, end: PlannedCopySide, tree: &mut SortedTree, links: &[TreeEntryId]) {
        let root = self.run.root(end).to_vec();
        let path = |id: &TreeEntryId| join(&root, &tree.tree().own_path(*id));
        let ops = links
            .iter()
            .map(|id| SyncFileOperation::ReadSymlink(path(id)))
            .collect();
        let texts = carry_out(self.run, end, ops).await;
        for (id, text) in links.iter().zip(texts) {
            if let Ok(Some(text)) = text {
                tree.set_link(*id, text);
            }
        }
    }

    /// Compares checksums where size and second are equal. Where an end computes none, the file
    /// counts as different.
    pub(super) async fn compare_unsure(&mut self, plan: &mut SyncPlan) {
        let unsure: Vec<(TreeEntryId, TreeEntryId)> = plan
            .steps()
            .iter()
            .filter(|step| matches!(step.action, SyncAction::Unsure(_)))
            .filter_map(|step| Some((step.source, step.target?)))
            .collect();
        if unsure.is_empty() {
            return;
        }
        let obstacle = self.contents.obstacle(self.run).await;
        if let Some((end, why)) = &obstacle
            && !self.run.stopped()
        {
            let files = match unsure.len() {
                1 => "1 file of equal size is".to_owned(),
                count => format!("{count} files of equal size are"),
            };
            let message = format!("cannot compare by checksum, so {files} copied again: {why}");
            let path = Some(self.run.shown(*end, self.run.root(*end)));
            self.run.tell(CopyEvent::Warning { path, message });
        }
        let equal = match obstacle {
            None => self.equal_pairs(plan, &unsure).await,
            Some(_) => BTreeSet::new(),
        };
        plan.settle(|step| equal.contains(&step.source));
    }

    /// Finds files that were moved at the source, and notes them in the plan. Without checksums,
    /// only files that keep their name count.
    pub(super) async fn find_moves(&mut self, plan: &mut SyncPlan, rules: &ComparisonRules) {
        let pairs = plan.find_moves(rules);
        if pairs.is_empty() {
            return;
        }
        let sums = self.contents.obstacle(self.run).await.is_none();
        let equal = match sums {
            true => self.equal_pairs(plan, &pairs).await,
            false => BTreeSet::new(),
        };
        let moved: Vec<(TreeEntryId, TreeEntryId)> = pairs
            .into_iter()
            .filter(|(to, from)| match sums {
                true => equal.contains(to),
                false => plan.source().tree().name(*to) == plan.target().tree().name(*from),
            })
            .collect();
        plan.settle_moves(&moved);
    }

    async fn equal_pairs(
        &mut self,
        plan: &SyncPlan,
        pairs: &[(TreeEntryId, TreeEntryId)],
    ) -> BTreeSet<TreeEntryId> {
        let roots = [PlannedCopySide::Source, PlannedCopySide::Target]
            .map(|end| self.run.root(end).to_vec());
        let files: Vec<FilePair> = pairs
            .iter()
            .map(|(source, target)| {
                FilePair::new(
                    join(&roots[0], &plan.source().tree().own_path(*source)),
                    join(&roots[1], &plan.target().tree().path(*target)),
                    plan.source().tree().entry(*source).size,
                )
            })
            .collect();
        let verdicts = self.contents.compare(self.run, &files).await;
        let equal = pairs.iter().zip(verdicts);
        let equal = equal.filter(|(_, verdict)| *verdict == ContentVerdict::Equal);
        equal.map(|((source, _), _)| *source).collect()
    }
}
