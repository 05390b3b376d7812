//! Settles what attributes alone do not: texts of symlinks, contents of files whose times are
//! unsure, and files that may have been moved.

use std::collections::BTreeSet;
use std::ops::Range;

use sync::{Action, Comparison, Kind, NodeId, Plan, SortedTree};

use super::ends::{Op, OpResult, Operations};
use super::programs::RemoteProgram;
use crate::copy::{End, PlannedCopy};
use crate::report::Event;
use crate::walk::join;

/// Longest range of which a server computes one checksum, in bytes.
const RANGE: u64 = sftp::blocks::MOST_HASHED as u64;

/// Most ranges of a file, 64 TiB. A larger file counts as different: two servers may state any size.
const MOST_RANGES: u64 = 1 << 20;
/// Ranges of several files whose checksums are computed before they are compared.
const BATCH: u64 = 1 << 16;

/// Returns the number of ranges of a file.
fn ranges(size: u64) -> u64 {
    size.div_ceil(RANGE)
}

/// Cuts files of these sizes into runs with at most [`BATCH`] ranges and files each, or a single
/// file. One with more than [`MOST_RANGES`] is not read and counts as one range.
fn batches(sizes: impl Iterator<Item = u64>) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut room = 0;
    for (at, size) in sizes.enumerate() {
        let needs = match ranges(size) {
            count if count <= MOST_RANGES => count.max(1),
            _ => 1,
        };
        match batches.last_mut().filter(|_| needs <= room) {
            Some(batch) => batch.end = at + 1,
            None => {
                batches.push(at..at + 1);
                room = BATCH.max(needs);
            }
        }
        room -= needs;
    }
    batches
}

/// Carries out operations at both ends of one run.
pub(super) struct Settling<'a, 'run> {
    run: &'a mut PlannedCopy<'run>,
    operations: &'a mut Operations,
    sums: SumSource,
}

/// Ways to compare contents without sending them.
#[derive(Clone, Copy, Debug)]
enum SumSource {
    Unknown,
    /// Both ends compute checksums of ranges.
    Ranges,
    /// An account of the remote end runs a program.
    Program(RemoteProgram),
    Nothing,
}

/// Two files with their size, of which the contents may be equal.
struct Pair {
    source: Vec<u8>,
    target: Vec<u8>,
    size: u64,
}

impl<'a, 'run> Settling<'a, 'run> {
    pub(super) fn new(run: &'a mut PlannedCopy<'run>, operations: &'a mut Operations) -> Self {
        let sums = SumSource::Unknown;
        Self {
            run,
            operations,
            sums,
        }
    }

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
        if matches!(self.sum_source().await, SumSource::Nothing) {
            let message = format!(
                "the far end computes no checksums, since it has no longhaul and the account runs \
                 no program for it: {} of equal size are copied again",
                match unsure.len() {
                    1 => "1 file".to_owned(),
                    count => format!("{count} files"),
                }
            );
            self.run.tell(Event::Warning {
                path: None,
                message,
            });
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
        let sums = !matches!(self.sum_source().await, SumSource::Nothing);
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

    async fn sum_source(&mut self) -> SumSource {
        if let SumSource::Unknown = self.sums {
            self.sums = match self.has_sums() {
                true => SumSource::Ranges,
                false => match RemoteProgram::find(self.run).await {
                    Some(program) => SumSource::Program(program),
                    None => SumSource::Nothing,
                },
            };
        }
        self.sums
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
        match self.sum_source().await {
            SumSource::Ranges => {}
            SumSource::Program(program) => {
                let equal = self.equal_files(program, &files).await;
                let ids = pairs.iter().map(|(source, _)| *source);
                return ids
                    .zip(equal)
                    .filter(|(_, is)| *is)
                    .map(|(id, _)| id)
                    .collect();
            }
            SumSource::Unknown | SumSource::Nothing => return BTreeSet::new(),
        }
        let mut equal = BTreeSet::new();
        for batch in batches(files.iter().map(|file| file.size)) {
            let files = files.get(batch.clone()).unwrap_or_default();
            let here = files.iter().map(|file| (&file.source, file.size));
            let here = self.sums(End::Source, here).await;
            let there = files.iter().map(|file| (&file.target, file.size));
            let there = self.sums(End::Target, there).await;
            let pairs = pairs.get(batch).unwrap_or_default();
            for (((id, _), file), (ours, theirs)) in
                pairs.iter().zip(files).zip(here.iter().zip(&there))
            {
                let same =
                    |(a, b): (&OpResult, &OpResult)| matches!((a, b), (Ok(a), Ok(b)) if a == b);
                if ranges(file.size) <= MOST_RANGES && ours.iter().zip(theirs).all(same) {
                    equal.insert(*id);
                }
            }
        }
        equal
    }

    /// Compares the checksums that a program computes with those of this machine's files.
    async fn equal_files(&mut self, program: RemoteProgram, files: &[Pair]) -> Vec<bool> {
        let (here, there): (Vec<&Vec<u8>>, Vec<Vec<u8>>) = files
            .iter()
            .map(|file| match program.end() {
                End::Source => (&file.target, file.source.clone()),
                End::Target => (&file.source, file.target.clone()),
            })
            .unzip();
        let sums = program.sums_there(self.run, &there).await;
        let mut equal = Vec::with_capacity(files.len());
        for ((file, here), there) in files.iter().zip(here).zip(sums) {
            equal.push(there.is_some() && program.sum_here(self.run, here, file.size) == there);
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
            let mut from = if ranges(size) <= MOST_RANGES { 0 } else { size };
            while from < size {
                let to = size.min(from.saturating_add(RANGE));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_servers_state_take_bounded_memory() {
        let large = BATCH * RANGE;
        let huge = MOST_RANGES * RANGE;
        let sizes = [0, u64::MAX, u64::MAX - 1, huge + 1, 1, large, 1, huge, 0];
        let cut = batches(sizes.into_iter());
        assert_eq!(cut, [0..5, 5..6, 6..7, 7..8, 8..9]);
        let many = batches(std::iter::repeat_n(RANGE, 3 << 16));
        assert_eq!(many.len(), 3);
        for batch in &cut {
            let needed = batch.clone().map(|at| ranges(sizes[at]));
            let read: u64 = needed.filter(|count| *count <= MOST_RANGES).sum();
            assert!(read <= BATCH || batch.len() == 1, "{batch:?}");
        }
    }
}
