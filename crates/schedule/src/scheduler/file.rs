use std::collections::BTreeMap;
use std::time::Instant;

use super::spans::{ByteRanges, OPEN};
use super::split_record::SplitFileRecord;
use super::write_fence::WriteFence;
use super::{Hint, LaneId};
use crate::{Attributes, ByteRange, Fault, Job, JobId, JobKind, PutOptions, RemotePath, Temp};

/// One file that is cut over lanes.
#[derive(Debug)]
pub(super) struct SplitFile {
    pub(super) job: Job,
    pub(super) hint: Hint,
    pub(super) stage: Stage,
    /// Put: what fstat said. Get: what was known, then what the first range's open file has.
    pub(super) attributes: Attributes,
    /// A range has told what the open file has.
    pub(super) seen: bool,
    pub(super) temp: Option<Temp>,
    /// The CREATE of the temporary is under way or done.
    pub(super) headed: bool,
    /// Writes may come in any order.
    pub(super) seekable: bool,
    /// One lane at a time has it open at the far end, and moves all that is left in order.
    pub(super) one_handle: bool,
    /// The part that creates the temporary and sets its attributes, and whether it has.
    pub(super) alone: Option<JobId>,
    pub(super) set: bool,
    pub(super) unclaimed: ByteRanges,
    /// Written, and closed without an error.
    pub(super) safe: ByteRanges,
    pub(super) running: BTreeMap<JobId, RunningPart>,
    /// Where it ends, as far as anybody saw; and whether that was said more than once.
    pub(super) end: Option<u64>,
    pub(super) ends_differ: bool,
    /// Progress that was told.
    pub(super) told: u64,
    pub(super) fault: Option<Fault>,
    /// The disk has it open for this file, or is opening it.
    pub(super) held: bool,
    /// FinishTemp was lost with its lane: whether it was carried out nobody knows.
    pub(super) finish_lost: bool,
    /// Times that a lane was lost with a part of it.
    pub(super) losses: u32,
    pub(super) keeping: SplitFileRecord,
    pub(super) late: WriteFence,
}

/// A part of it on a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningPart {
    pub(super) lane: LaneId,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) progress: u64,
    /// Others have been given it as well.
    pub(super) overtaken: bool,
    pub(super) abandoned: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The disk opens the source, or creates the target.
    Opening,
    /// Parts are given out.
    Moving,
    /// On its way to its name.
    Naming,
    /// Parts end, then the temporary goes.
    GivingUp,
    /// The temporary is being removed, or the disk lets go, and then it is over.
    Cleaning(AfterDisk),
}

/// What follows when the disk has let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterDisk {
    /// It has failed.
    Fail,
    /// One lane does all of it.
    Whole,
    /// It begins anew.
    Again,
}

impl SplitFile {
    pub(super) fn new(job: Job, hint: Hint, attributes: Attributes) -> Self {
        Self {
            job,
            hint,
            stage: Stage::Opening,
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

    /// Bytes that no lane has.
    pub(super) fn left(&self) -> u64 {
        match self.stage {
            Stage::Opening | Stage::Moving => self.unclaimed.len_before(self.size()),
            _ => 0,
        }
    }

    /// Whether a part may be given out now.
    pub(super) fn claimable(&self) -> bool {
        let may = match self.is_put() {
            true => !self.headed || self.temp.is_some(),
            false => self.seekable || self.running.is_empty(),
        };
        let may = may && (!self.one_handle || self.running.is_empty());
        self.stage == Stage::Moving && may && !self.unclaimed.is_empty()
    }

    /// Takes about `len` of the first bytes that nobody has.
    pub(super) fn claim(&mut self, len: u64) -> Option<(u64, u64)> {
        let (from, to) = self.unclaimed.first()?;
        if self.one_handle {
            // What lies behind a gap and is there is moved again: to skip it would open the file once
            // more.
            self.unclaimed.remove(from, OPEN);
            return Some((from, OPEN));
        }
        // Whoever has the last bytes of what is known reads on to the end.
        let open = to == OPEN && from.saturating_add(len + len / 2) >= self.size();
        let until = match to.min(from.saturating_add(len)) {
            _ if open || !self.seekable => OPEN,
            // A crumb would be a job of its own.
            until if to != OPEN && to - until < len / 2 => to,
            until => until,
        };
        self.unclaimed.remove(from, until);
        Some((from, until.min(to)))
    }

    /// The job for what was claimed.
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
                // It shall not wait for the source's end: only its name is waited for.
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
        // The last hole is behind all that was written.
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

    /// The file ends at `at` as far as one part saw.
    pub(super) fn ends(&mut self, at: u64) {
        self.ends_differ |= self.end.is_some_and(|end| end != at);
        let end = self.end.map_or(at, |end| end.min(at));
        self.end = Some(end);
        self.unclaimed.remove(end, OPEN);
    }

    /// A part of it is done or not; what is not must be done again.
    pub(super) fn part_over(&mut self, job: JobId, done: bool) -> Option<RunningPart> {
        let part = self.running.remove(&job)?;
        let to = part.to.min(self.end.unwrap_or(OPEN));
        if done {
            self.safe.insert(part.from, to.max(part.from));
            self.unclaimed.remove(part.from, to);
        } else if self.stage == Stage::Moving {
            self.put_back(part.from, to);
        }
        Some(part)
    }

    /// To be given out again, except what is safe or others have.
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

    /// All bytes up to the end are safe.
    pub(super) fn is_complete(&self) -> bool {
        let made = !self.is_put() || self.temp.is_some();
        made && self.end.is_some_and(|end| self.safe.contains(0, end))
    }

    /// The safe bytes around `offset` that nobody writes any more. Who overtook or was overtaken, or
    /// was lost, may still write what others have done, and that may be corrupted on its way.
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

    /// Bytes confirmed that have not been told.
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
        if matches!(self.stage, Stage::Moving | Stage::Opening) {
            self.stage = Stage::GivingUp;
        }
        self.unclaimed = ByteRanges::default();
    }

    /// It will be written under its final name. A symlink there, which is to be replaced and not
    /// followed, is looked for first.
    pub(super) fn write_in_place(&mut self) {
        if let JobKind::Put { options, .. } = &mut self.job.kind {
            options.inplace = !options.replace_link;
        }
    }

    /// The name of the temporary that has to go.
    pub(super) fn temporary(&self) -> Option<RemotePath> {
        self.temp.as_ref().map(|t| t.temp.clone())
    }
}
