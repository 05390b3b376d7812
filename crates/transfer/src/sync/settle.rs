//! Settles what attributes alone do not: texts of symlinks, contents of files whose times are
//! unsure, and files that may have been moved.

use std::collections::BTreeSet;

use sync::{Action, Comparison, Kind, NodeId, Plan, SortedTree};

use super::ends::{Op, OpResult, Operations};
use crate::copy::{End, PlannedCopy};
use crate::walk::join;

/// Longest range of which a server computes one checksum, in bytes.
const RANGE: u64 = sftp::blocks::MOST_HASHED as u64;

/// Carries out operations at both ends of one run.
pub(super) struct Settling<'a, 'run> {
    pub(super) run: &'a mut PlannedCopy<'run>,
    pub(super) operations: &'a mut Operations,
}

/// Two files with their size, of which the contents may be equal.
struct Pair {
    source: Vec<u8>,
    target: Vec<u8>,
    size: u64,
}

impl Settling<'_, '_> {
    /// Reads the symlinks that exist under one path at both ends.
    pub(super) async fn read_symlinks(&mut self, source: &mut SortedTree, target: &mut SortedTree) {
        let mut both = Vec::new();
        for id in source.tree().symlinks() {
            let there = target.find(&source.tree().path(id));
            if let Some(there) = there.filter(|id| target.tree().entry(*id).kind == Kind::Symlink) {
                both.push((id, there));
            }
        }
        let (here, there): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        self.read(End::Source, source, &here).await;
        self.read(End::Target, target, &there).await;
    }

    async fn read(&mut self, end: End, tree: &mut SortedTree, links: &[NodeId]) {
        let root = self.run.root(end).to_vec();
        let path = |id: &NodeId| join(&root, &tree.tree().path(*id));
        let ops = links.iter().map(|id| Op::ReadSymlink(path(id))).collect();
        let texts = self.operations.carry_out(self.run, end, ops).await;
        for (id, text) in links.iter().zip(texts) {
            if let Ok(Some(text)) = text {
                tree.set_link(*id, text);
            }
        }
    }

    /// Compares checksums where size and second are equal. Where an end computes none, the file
    /// counts as different.
    pub(super) async fn compare_unsure(&mut self, plan: &mut Plan) {
        let unsure: Vec<(NodeId, NodeId)> = plan
            .steps()
            .iter()
            .filter(|step| matches!(step.action, Action::Unsure(_)))
            .filter_map(|step| Some((step.source, step.target?)))
            .collect();
        if unsure.is_empty() {
            return;
        }
        let equal = self.equal_pairs(plan, &unsure).await;
        plan.settle(|step| equal.contains(&step.source));
    }

    /// Finds files that were moved at the source, and notes them in the plan. Without checksums,
    /// only files that keep their name count.
    pub(super) async fn find_moves(&mut self, plan: &mut Plan, rules: &Comparison) {
        let pairs = plan.find_moves(rules);
        if pairs.is_empty() {
            return;
        }
        let sums = self.has_sums();
        let equal = match sums {
            true => self.equal_pairs(plan, &pairs).await,
            false => BTreeSet::new(),
        };
        let moved: Vec<(NodeId, NodeId)> = pairs
            .into_iter()
            .filter(|(to, from)| match sums {
                true => equal.contains(to),
                false => plan.source().tree().name(*to) == plan.target().tree().name(*from),
            })
            .collect();
        plan.settle_moves(&moved);
    }

    /// True if both ends compute checksums.
    fn has_sums(&self) -> bool {
        [End::Source, End::Target].into_iter().all(|end| {
            let server = self.run.server(end);
            self.run.is_local(end) || server.is_some_and(|info| info.has("hash@longhaul"))
        })
    }

    async fn equal_pairs(&mut self, plan: &Plan, pairs: &[(NodeId, NodeId)]) -> BTreeSet<NodeId> {
        let roots = [End::Source, End::Target].map(|end| self.run.root(end).to_vec());
        let files: Vec<Pair> = pairs
            .iter()
            .map(|(source, target)| Pair {
                source: join(&roots[0], &plan.source().tree().path(*source)),
                target: join(&roots[1], &plan.target().tree().path(*target)),
                size: plan.source().tree().entry(*source).size,
            })
            .collect();
        if !self.has_sums() {
            return BTreeSet::new();
        }
        let here = self
            .sums(
                End::Source,
                files.iter().map(|file| (&file.source, file.size)),
            )
            .await;
        let there = self
            .sums(
                End::Target,
                files.iter().map(|file| (&file.target, file.size)),
            )
            .await;
        let mut equal = BTreeSet::new();
        for ((id, _), (ours, theirs)) in pairs.iter().zip(here.iter().zip(&there)) {
            let same = |(a, b): (&OpResult, &OpResult)| matches!((a, b), (Ok(a), Ok(b)) if a == b);
            if ours.iter().zip(theirs).all(same) {
                equal.insert(*id);
            }
        }
        equal
    }

    /// Computes the checksums of each file's ranges.
    async fn sums<'f>(
        &mut self,
        end: End,
        files: impl Iterator<Item = (&'f Vec<u8>, u64)>,
    ) -> Vec<Vec<OpResult>> {
        let mut ops = Vec::new();
        let mut counts = Vec::new();
        for (path, size) in files {
            let before = ops.len();
            let mut from = 0;
            while from < size {
                let to = size.min(from + RANGE);
                let (path, range) = (path.clone(), from..to);
                ops.push(Op::Sum { path, range, size });
                from = to;
            }
            counts.push(ops.len() - before);
        }
        let results = self.operations.carry_out(self.run, end, ops).await;
        let mut results = results.into_iter();
        counts
            .into_iter()
            .map(|count| results.by_ref().take(count).collect())
            .collect()
    }
}
