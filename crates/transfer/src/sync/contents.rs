//! Compares the contents of files at both ends by checksums, without sending them.

use std::ops::Range;

use super::ends::{FileOperation, FileOperationResult, OperationCounter};
use super::programs::ChecksumProgram;
use crate::copy::{PlannedCopy, PlannedCopySide};

/// Longest range of which a server computes one checksum, in bytes.
const RANGE: u64 = sftp::blocks::MOST_HASHED as u64;

/// Maximum number of ranges of a file, 64 TiB. A larger file counts as different: two servers may
/// state any size.
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

/// Two files of equal size whose contents may be equal.
pub(crate) struct FilePair {
    pub(crate) source: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) size: u64,
}

/// Result for a pair of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentVerdict {
    Equal,
    Differs,
    /// This end has no checksum of its file, for this reason.
    Unknown(PlannedCopySide, String),
}

/// Ways to compare contents without sending them.
#[derive(Clone, Copy, Debug)]
enum SumSource {
    /// Both ends compute checksums of ranges.
    Ranges,
    /// An account of the remote end runs a program.
    Program(ChecksumProgram),
    /// None, for this reason.
    Nothing(&'static str),
}

/// Compares contents by the methods that both ends support, which are determined once per run.
#[derive(Debug, Default)]
pub(crate) struct ContentComparison {
    sums: Option<SumSource>,
}

impl ContentComparison {
    /// Returns true if an end can compute checksums for the other one.
    pub(crate) async fn is_possible(&mut self, run: &mut PlannedCopy<'_>) -> bool {
        !matches!(self.source(run).await, SumSource::Nothing(_))
    }

    async fn source(&mut self, run: &mut PlannedCopy<'_>) -> SumSource {
        if let Some(sums) = self.sums {
            return sums;
        }
        // A session without any job so far has no channel: its server is unknown, and it starts no
        // command.
        for end in [PlannedCopySide::Source, PlannedCopySide::Target] {
            run.settle(end).await;
        }
        let sums = match has_sums(run) {
            true => SumSource::Ranges,
            false => match ChecksumProgram::find(run).await {
                Ok(program) => SumSource::Program(program),
                Err(why) => SumSource::Nothing(why),
            },
        };
        self.sums = Some(sums);
        sums
    }

    /// Returns a verdict for each pair.
    pub(crate) async fn compare(
        &mut self,
        run: &mut PlannedCopy<'_>,
        operations: &mut OperationCounter,
        files: &[FilePair],
    ) -> Vec<ContentVerdict> {
        match self.source(run).await {
            SumSource::Ranges => by_ranges(run, operations, files).await,
            SumSource::Program(program) => by_program(run, program, files).await,
            SumSource::Nothing(why) => {
                let end = match run.is_local(PlannedCopySide::Source) {
                    true => PlannedCopySide::Target,
                    false => PlannedCopySide::Source,
                };
                vec![ContentVerdict::Unknown(end, why.to_owned()); files.len()]
            }
        }
    }
}

/// Returns true if both ends compute checksums.
fn has_sums(run: &PlannedCopy<'_>) -> bool {
    [PlannedCopySide::Source, PlannedCopySide::Target]
        .into_iter()
        .all(|end| {
            let server = run.server(end);
            run.is_local(end) || server.is_some_and(|info| info.has("hash@longhaul"))
        })
}

async fn by_ranges(
    run: &mut PlannedCopy<'_>,
    operations: &mut OperationCounter,
    files: &[FilePair],
) -> Vec<ContentVerdict> {
    let mut verdicts = Vec::with_capacity(files.len());
    for batch in batches(files.iter().map(|file| file.size)) {
        let files = files.get(batch).unwrap_or_default();
        let here = files.iter().map(|file| (&file.source, file.size));
        let here = range_sums(run, operations, PlannedCopySide::Source, here).await;
        let there = files.iter().map(|file| (&file.target, file.size));
        let there = range_sums(run, operations, PlannedCopySide::Target, there).await;
        for (file, (ours, theirs)) in files.iter().zip(here.iter().zip(&there)) {
            verdicts.push(match ranges(file.size) <= MOST_RANGES {
                true => verdict(ours, theirs),
                false => {
                    ContentVerdict::Unknown(PlannedCopySide::Source, "it is too large".to_owned())
                }
            });
        }
    }
    verdicts
}

fn verdict(ours: &[FileOperationResult], theirs: &[FileOperationResult]) -> ContentVerdict {
    for (end, sums) in [
        (PlannedCopySide::Source, ours),
        (PlannedCopySide::Target, theirs),
    ] {
        if let Some(Err(why)) = sums.iter().find(|sum| sum.is_err()) {
            return ContentVerdict::Unknown(end, why.clone());
        }
    }
    match ours == theirs {
        true => ContentVerdict::Equal,
        false => ContentVerdict::Differs,
    }
}

/// Computes the checksums of each file's ranges.
async fn range_sums<'f>(
    run: &mut PlannedCopy<'_>,
    operations: &mut OperationCounter,
    end: PlannedCopySide,
    files: impl Iterator<Item = (&'f Vec<u8>, u64)>,
) -> Vec<Vec<FileOperationResult>> {
    let mut ops = Vec::new();
    let mut counts = Vec::new();
    for (path, size) in files {
        let before = ops.len();
        let mut from = if ranges(size) <= MOST_RANGES { 0 } else { size };
        while from < size {
            let to = size.min(from.saturating_add(RANGE));
            let (path, range) = (path.clone(), from..to);
            ops.push(FileOperation::Sum { path, range, size });
            from = to;
        }
        counts.push(ops.len() - before);
    }
    let mut results = operations.carry_out(run, end, ops).await.into_iter();
    counts
        .into_iter()
        .map(|count| results.by_ref().take(count).collect())
        .collect()
}

/// Compares the checksums that a program computes with those of this machine's files.
async fn by_program(
    run: &mut PlannedCopy<'_>,
    program: ChecksumProgram,
    files: &[FilePair],
) -> Vec<ContentVerdict> {
    let (here, there): (Vec<&Vec<u8>>, Vec<Vec<u8>>) = files
        .iter()
        .map(|file| match program.end() {
            PlannedCopySide::Source => (&file.target, file.source.clone()),
            PlannedCopySide::Target => (&file.source, file.target.clone()),
        })
        .unzip();
    let bytes = files
        .iter()
        .fold(0, |sum: u64, file| sum.saturating_add(file.size));
    let sums = program.sums_there(run, &there, bytes).await;
    let mut verdicts = Vec::with_capacity(files.len());
    for ((file, here), there) in files.iter().zip(here).zip(sums) {
        let Some(there) = there else {
            let why = "the checksum program there cannot read it".to_owned();
            verdicts.push(ContentVerdict::Unknown(program.end(), why));
            continue;
        };
        verdicts.push(
            match program.sum_here(run, here, file.size) == Some(there) {
                true => ContentVerdict::Equal,
                false => ContentVerdict::Differs,
            },
        );
    }
    verdicts
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
