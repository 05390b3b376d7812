use std::collections::BTreeMap;
use std::time::Instant;

use super::spans::{ByteRanges, OPEN};
use super::split_record::SplitFileRecord;
use super::write_fence::WriteFence;
use super::{Hint, LaneId};
use crate::{Attributes, ByteRange, Fault, Job, JobId, JobKind, PutOptions, RemotePath, Temp};

/// State of one file that is cut over lanes.
#[derive(Debug)]
pub(super) struct SplitFile {
    pub(super) job: Job,
    pub(super) hint: Hint,
    pub(super) stage: SplitStage,
    /// Attributes. Put: from fstat of the source. Get: from the listing, then from the first
    /// range's open file.
    pub(super) attributes: Attributes,
    /// True once a range has reported the attributes of the open file.
    pub(super) seen: bool,
    pub(super) temp: Option<Temp>,
    /// True while the CREATE of the temporary is in flight or done.
    pub(super) headed: bool,
    /// Writes may come in any order.
    pub(super) seekable: bool,
    /// One lane at a time has the file open at the far end and moves all remaining bytes in order.
    pub(super) one_handle: bool,
    /// Part that creates the temporary and sets its attributes (`alone`), and its completion
    /// (`set`).
    pub(super) alone: Option<JobId>,
    pub(super) set: bool,
    pub(super) unclaimed: ByteRanges,
    /// Ranges that were written and whose handles were closed without an error.
    pub(super) safe: ByteRanges,
    pub(super) running: BTreeMap<JobId, RunningPart>,
    /// Smallest end offset that a part has reported; `ends_differ` is true if parts reported
    /// several.
    pub(super) end: Option<u64>,
    pub(super) ends_differ: bool,
    /// Bytes of progress that were reported.
    pub(super) told: u64,
    pub(super) fault: Option<Fault>,
    /// The disk side has the file open for this job, or is opening it.
    pub(super) held: bool,
    /// FinishTemp was lost with its lane, so the rename may or may not have happened.
    pub(super) finish_lost: bool,
    /// Number of lanes that were lost with a part of the file.
    pub(super) losses: u32,
    pub(super) keeping: SplitFileRecord,
    pub(super) late: WriteFence,
}

/// A part of the file that a lane has.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningPart {
    pub(super) lane: LaneId,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) progress: u64,
    /// The range has been assigned to other lanes as well.
    pub(super) overtaken: bool,
    pub(super) abandoned: bool,
}

/// Stage of a cut file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitStage {
    /// The disk side opens the source or creates the target.
    Opening,
    /// Parts are assigned to lanes.
    Moving,
    /// The rename to the final name is in flight.
    Naming,
    /// Running parts end, then the temporary is removed.
    GivingUp,
    /// The temporary is being removed, or the disk side closes the file; `AfterDisk` follows.
    Cleaning(AfterDisk),
}

/// Next step after the disk side has closed the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterDisk {
    /// Report the failure.
    Fail,
    /// Queue the file as a whole for one lane.
    Whole,
    /// Start the file over.
    Again,
}

impl SplitFile {
    pub(super) fn new(job: Job, hint: Hint, attributes: Attributes) -> Self {
        Self {
            job,
            hint,
            stage: SplitStage::Opening,
            attributes,
            seen: false,
            temp: None,
            headed: false,
            seekable: true,
            one_handle: false,
            alone: None,
            set: false,
            unclaimed: ByteRanges::all(),
            safe: ByteRanges::default(),
            running: BTreeMap::new(),
            end: None,
            ends_differ: false,
            told: 0,
            fault: None,
            held: true,
            finish_lost: false,
            losses: 0,
            keeping: SplitFileRecord::default(),
            late: WriteFence::default(),
        }
    }

    pub(super) fn is_put(&self) -> bool {
        matches!(self.job.kind, JobKind::Put { .. })
    }

    pub(super) fn options(&self) -> PutOptions {
        self.options_ref().cloned().unwrap_or_default()
    }

    pub(super) fn options_ref(&self) -> Option<&PutOptions> {
        match &self.job.kind {
            JobKind::Put { options, .. } | JobKind::Get { options, .. } => Some(options),
            _ => None,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.attributes.size.unwrap_or(0)
    }

    /// Returns the number of bytes that no lane has.
    pub(super) fn left(&self) -> u64 {
        match self.stage {
            SplitStage::Opening | SplitStage::Moving => self.unclaimed.len_before(self.size()),
            _ => 0,
        }
    }

    /// Returns true if a part may be assigned now.
    pub(super) fn claimable(&self) -> bool {
        let may = match self.is_put() {
            true => !self.headed || self.temp.is_some(),
            false => self.seekable || self.running.is_empty(),
        };
        let may = may && (!self.one_handle || self.running.is_empty());
        self.stage == SplitStage::Moving && may && !self.unclaimed.is_empty()
    }

    /// Takes about `len` of the first unassigned bytes.
    pub(super) fn claim(&mut self, len: u64) -> Option<(u64, u64)> {
        let (from, to) = self.unclaimed.first()?;
        if self.one_handle {
            // Ranges that exist beyond a gap are moved again: to skip them would mean opening the
            // file once more.
            self.unclaimed.remove(from, OPEN);
            return Some((from, OPEN));
        }
        // The lane with the last known bytes reads on to the end of the file.
        let open = to == OPEN && from.saturating_add(len + len / 2) >= self.size();
        let until = match to.min(from.saturating_add(len)) {
            _ if open || !self.seekable => OPEN,
            // A small remainder would become a job of its own.
            until if to != OPEN && to - until < len / 2 => to,
            until => until,
        };
        self.unclaimed.remove(from, until);
        Some((from, until.min(to)))
    }

    /// Returns the job for a claimed range.
    pub(super) fn part(&self, from: u64, to: u64) -> Option<JobKind> {
        let file = self.job.id;
        let span = ByteRange {
            offset: from,
            len: (to != OPEN).then(|| to - from),
        };
        match (&self.job.kind, &self.temp) {
            (JobKind::Put { .. }, Some(temp)) => Some(JobKind::PutRange {
                file,
                attributes: self.attributes,
                temp: temp.temp.clone(),
                span,
            }),
            (
                JobKind::Put {
                    target, options, ..
                },
                None,
            ) => Some(JobKind::CreateTemp {
                file,
                target: target.clone(),
                attributes: self.attributes,
                // Bounded, since other lanes wait for the temporary's name and not for the end of
                // the source.
                len: match self.one_handle {
                    true => OPEN,
                    false => to.min(self.size().max(1)) - from,
                },
                alone: self.one_handle,
                options: options.clone(),
            }),
            (JobKind::Get { source, .. }, _) => Some(JobKind::GetRange {
                file,
                source: source.clone(),
                known: self.attributes,
                span,
                sparse: self.options().sparse,
            }),
            _ => None,
        }
    }

    pub(super) fn finish(&self) -> Option<JobKind> {
        let mut options = self.options();
        // A hole at the end lies behind all written data, so the size must be set.
        let cut = self
            .end
            .filter(|end| *end < self.size() || self.ends_differ || options.sparse);
        options.fsync |= self.sync_before_name();
        Some(JobKind::FinishTemp {
            temp: self.temp.clone()?,
            attributes: self.attributes,
            cut,
            set: self.set,
            options,
        })
    }

    /// Records that a part found the end of the file at `at`.
    pub(super) fn ends(&mut self, at: u64) {
        self.ends_differ |= self.end.is_some_and(|end| end != at);
        let end = self.end.map_or(at, |end| end.min(at));
        self.end = Some(end);
        self.unclaimed.remove(end, OPEN);
    }

    /// Records the end of a part; if it failed, its range becomes unassigned again.
    pub(super) fn part_over(&mut self, job: JobId, done: bool) -> Option<RunningPart> {
        let part = self.running.remove(&job)?;
        let to = part.to.min(self.end.unwrap_or(OPEN));
        if done {
            self.safe.insert(part.from, to.max(part.from));
            self.unclaimed.remove(part.from, to);
        } else if self.stage == SplitStage::Moving {
            self.put_back(part.from, to);
        }
        Some(part)
    }

    /// Makes a range unassigned again, except bytes that are safe or that running parts have.
    pub(super) fn put_back(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let mut again = ByteRanges::default();
        again.insert(from, to);
        for (from, to) in self.safe.iter() {
            again.remove(from, to);
        }
        for other in self
            .running
            .values()
            .filter(|r| !r.overtaken && !r.abandoned)
        {
            again.remove(other.from, other.to);
        }
        for (from, to) in again.iter() {
            self.unclaimed.insert(from, to);
        }
    }

    /// Returns true if all bytes up to the end are safe.
    pub(super) fn is_complete(&self) -> bool {
        let made = !self.is_put() || self.temp.is_some();
        made && self.end.is_some_and(|end| self.safe.contains(0, end))
    }

    /// Returns the safe range around `offset` that no lane writes any more. A lane that overtook
    /// another, was overtaken or was lost may still write bytes that others have completed, and
    /// those may be corrupted on the way.
    pub(super) fn settled(&self, now: Instant, offset: u64) -> Option<(u64, u64)> {
        let (from, to) = self.safe.around(offset)?;
        if !self.is_put() {
            return Some((from, to));
        }
        if !self.late.is_over(now) {
            return None;
        }
        let mut settled = ByteRanges::default();
        settled.insert(from, to);
        for part in self.running.values() {
            settled.remove(part.from, part.to);
        }
        settled.around(offset)
    }

    /// Returns the number of confirmed bytes that have not been reported.
    pub(super) fn news(&mut self) -> u64 {
        let most = self.end.unwrap_or(0).max(self.size());
        let of_part = |r: &RunningPart| {
            let len = r.to.min(most).saturating_sub(r.from);
            r.progress.min(len)
        };
        let running = self.running.values().filter(|r| !r.overtaken);
        let safe = std::iter::once(self.safe.len_before(most));
        self.tell_up_to(super::total(safe.chain(running.map(of_part))).min(most))
    }

    pub(super) fn tell_up_to(&mut self, sum: u64) -> u64 {
        let news = sum.saturating_sub(self.told);
        self.told += news;
        news
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
        if matches!(self.stage, SplitStage::Moving | SplitStage::Opening) {
            self.stage = SplitStage::GivingUp;
        }
        self.unclaimed = ByteRanges::default();
    }

    /// Switches the file to writing under its final name. A symlink that is to be replaced rather
    /// than followed is checked first.
    pub(super) fn write_in_place(&mut self) {
        if let JobKind::Put { options, .. } = &mut self.job.kind {
            options.inplace = !options.replace_link;
        }
    }

    /// Returns the path of the temporary, if there is one.
    pub(super) fn temporary(&self) -> Option<RemotePath> {
        self.temp.as_ref().map(|t| t.temp.clone())
    }
}
