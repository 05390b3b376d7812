//! Resumes a range of a temporary that other processes write as well.

use schedule::journal::SourceId;
use schedule::{PartialFile, ResumeData, SharedTemp};

use super::super::engine::CopyEngine;
use super::super::file::{FileId, SharedFile};
use super::FileStartDecision;

impl CopyEngine<'_> {
    /// Starts the work on a shared temporary. All bytes outside of this process's range count as
    /// written, and so do those that the journal lists within it. The journal's own tag is not that
    /// of the temporary, so that no cleanup of this process removes what others write.
    pub(super) fn keep_shared(&mut self, id: FileId, shared: SharedFile) -> FileStartDecision {
        let Some(task) = self.files.get(&id) else {
            return FileStartDecision::Later;
        };
        if task.resume().has_begun() {
            return FileStartDecision::Now;
        }
        let target = task.target().to_vec();
        let known = task.identity();
        let source = known.or_else(|| self.source_id(task.source(), task.attributes()));
        let (from, to) = match shared.work {
            SharedTemp::Range(from, to) => (from, to),
            SharedTemp::Seal => (shared.size, shared.size),
        };
        let mut ranges = vec![(0, from), (to, shared.size)];
        let is_range = from < to;
        let source = source.filter(|_| self.keeper.is_on() && is_range);
        let earlier = source.and_then(|source| self.earlier_ranges(&target, source));
        let mut taken = 0;
        for (start, end) in earlier.iter().flat_map(|(_, ranges)| ranges) {
            let (start, end) = ((*start).max(from), (*end).min(to));
            if start < end {
                taken += end - start;
                ranges.push((start, end));
            }
        }
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let left = PartialFile {
            ranges,
            mtime: 0,
            source: source.map_or((0, 0), |source| (source.size, source.mtime)),
        };
        let keep = ResumeData {
            tag: shared.tag,
            again: 0,
            left: Some(left),
            shared: Some(shared.work),
        };
        let Some(task) = self.files.get_mut(&id) else {
            return FileStartDecision::Later;
        };
        task.resume_mut().takes(taken);
        match (source, earlier) {
            (None, _) => task.resume_mut().begin_unrecorded(keep),
            (Some(_), Some((of, _))) => task.resume_mut().begin(of, keep),
            (Some(source), None) => {
                let tag = self.environment.random();
                return self.begin_recorded(id, target, source, (tag, keep));
            }
        }
        FileStartDecision::Now
    }

    /// Takes the journal entry of a file: its number and its written ranges. An entry of another
    /// version of the source is forgotten.
    fn earlier_ranges(
        &mut self,
        target: &[u8],
        source: SourceId,
    ) -> Option<(u64, Vec<(u64, u64)>)> {
        let (of, entry) = self.keeper.state.file(target)?;
        let same = entry.source == source && entry.done.is_none() && !self.keeper.afresh;
        let ranges = entry.proven();
        self.keeper.state.take(of);
        same.then_some((of, ranges))
    }
}
