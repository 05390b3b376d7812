//! Compares the contents of files at both ends by checksums, without sending them.

use std::ops::Range;

use super::ends::{FileOperationResult, SyncFileOperation, carry_out};
use super::programs::{ChecksumPrograms, has_longhaul};
use crate::copy::{PlannedCopy, PlannedCopySide};
use crate::file_error::FileError;

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
    source: Vec<u8>,
    target: Vec<u8>,
    size: u64,
}

impl FilePair {
    /// The paths of both files, and their size in bytes.
    pub(crate) fn new(source: Vec<u8>, target: Vec<u8>, size: u64) -> Self {
        Self {
            source,
            target,
            size,
        }
    }
}

/// Result of comparing the contents of a source file and its counterpart at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentVerdict {
    Equal,
    Differs,
    /// This end has no checksum of its file, for this reason.
    Unknown(PlannedCopySide, FileError),
}

/// Method of comparing contents without sending them.
#[derive(Clone, Debug)]
enum ContentComparisonMethod {
    /// Both ends compute checksums of ranges.
    Ranges,
    /// The accounts of the remote ends run programs.
    Programs(ChecksumPrograms),
    /// None, because this end computes none for this reason.
    Nothing(PlannedCopySide, FileError),
}

/// Compares contents by the methods that both ends support, which are determined once per run.
#[derive(Debug, Default)]
pub(crate) struct ContentComparer {
    sums: Option<ContentComparisonMethod>,
}

impl ContentComparer {
    /// Returns the end that computes no checksums for the other one, and the reason; `None` if
    /// contents can be compared.
    pub(crate) async fn obstacle(
        &mut self,
        run: &mut PlannedCopy<'_>,
    ) -> Option<(PlannedCopySide, FileError)> {
        match self.source(run).await {
            ContentComparisonMethod::Nothing(end, why) => Some((end, why)),
            ContentComparisonMethod::Ranges | ContentComparisonMethod::Programs(_) => None,
        }
    }

    async fn source(&mut self, run: &mut PlannedCopy<'_>) -> ContentComparisonMethod {
        if let Some(sums) = &self.sums {
            return sums.clone();
        }
        // A session without any job so far has no channel: its server is unknown, and it starts no
        // command.
        for end in [PlannedCopySide::Source, PlannedCopySide::Target] {
            run.settle(end).await;
        }
        let sums = match has_sums(run) {
            true => ContentComparisonMethod::Ranges,
            false => match ChecksumPrograms::find(run).await {
                Ok(programs) => ContentComparisonMethod::Programs(programs),
                Err((end, why)) => ContentComparisonMethod::Nothing(end, why),
            },
        };
        self.sums = Some(sums.clone());
        sums
    }

    /// Returns a verdict for each pair.
    pub(crate) async fn compare(
        &mut self,
        run: &mut PlannedCopy<'_>,
        files: &[FilePair],
    ) -> Vec<ContentVerdict> {
        match self.source(run).await {
            ContentComparisonMethod::Ranges => by_ranges(run, files).await,
            ContentComparisonMethod::Programs(programs) => by_programs(run, programs, files).await,
            ContentComparisonMethod::Nothing(end, why) => {
                vec![ContentVerdict::Unknown(end, why); files.len()]
            }
        }
    }
}

/// Returns true if both ends compute checksums.
fn has_sums(run: &PlannedCopy<'_>) -> bool {
    [PlannedCopySide::Source, PlannedCopySide::Target]
        .into_iter()
        .all(|end| run.is_local(end) || has_longhaul(run, end))
}

async fn by_ranges(run: &mut PlannedCopy<'_>, files: &[FilePair]) -> Vec<ContentVerdict> {
    let mut verdicts = Vec::with_capacity(files.len());
    for batch in batches(files.iter().map(|file| file.size)) {
        let files = files.get(batch).unwrap_or_default();
        let here = files.iter().map(|file| (&file.source, file.size));
        let here = range_sums(run, PlannedCopySide::Source, here).await;
        let there = files.iter().map(|file| (&file.target, file.size));
        let there = range_sums(run, PlannedCopySide::Target, there).await;
        for (file, (ours, theirs)) in files.iter().zip(here.iter().zip(&there)) {
            verdicts.push(match ranges(file.size) <= MOST_RANGES {
                true => verdict(ours, theirs),
                false => ContentVerdict::Unknown(PlannedCopySide::Source, "it is too large".into()),
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
            ops.push(SyncFileOperation::Sum { path, range, size });
            from = to;
        }
        counts.push(ops.len() - before);
    }
    let mut results = carry_out(run, end, ops).await.into_iter();
    counts
        .into_iter()
        .map(|count| results.by_ref().take(count).collect())
        .collect()
}

/// Compares the checksums that programs of the remote ends compute, and this machine for its own
/// files.
async fn by_programs(
    run: &mut PlannedCopy<'_>,
    programs: ChecksumPrograms,
    files: &[FilePair],
) -> Vec<ContentVerdict> {
    let [first, second] = match run.is_local(PlannedCopySide::Source) {
        true => [PlannedCopySide::Target, PlannedCopySide::Source],
        false => [PlannedCopySide::Source, PlannedCopySide::Target],
    };
    let file_at = |file: &FilePair, end| match end {
        PlannedCopySide::Source => (file.source.clone(), file.size),
        PlannedCopySide::Target => (file.target.clone(), file.size),
    };
    let asked: Vec<_> = files.iter().map(|file| file_at(file, first)).collect();
    let sums = programs.sums(run, first, &asked).await;
    // Files that the first end cannot read are not read at the second one.
    let both = files.iter().zip(&sums).filter(|(_, sum)| sum.is_ok());
    let asked: Vec<_> = both.map(|(file, _)| file_at(file, second)).collect();
    let mut others = programs.sums(run, second, &asked).await.into_iter();
    let mut verdicts = Vec::with_capacity(files.len());
    for sum in sums {
        verdicts.push(match sum.map(|sum| (sum, others.next())) {
            Err(why) => ContentVerdict::Unknown(first, why),
            Ok((sum, Some(Ok(other)))) if sum == other => ContentVerdict::Equal,
            Ok((_, Some(Err(why)))) => ContentVerdict::Unknown(second, why),
            Ok(_) => ContentVerdict::Differs,
        });
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
