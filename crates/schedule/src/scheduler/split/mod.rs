//! Files that are cut over lanes.

mod checkpoints;
mod ending;
mod files;
mod lost_writer_lanes;
mod record;

use std::collections::BTreeMap;
use std::time::Instant;

use self::checkpoints::UnjournaledBytes;
use self::lost_writer_lanes::LostWriterLanes;
use self::record::SplitFileRecord;
use super::{JobHint, LaneId, total};
use crate::byte_ranges::{ByteRanges, OPEN};
use crate::{
    Attributes, ByteRange, FileCopyOptions, Job, JobFailure, JobId, JobKind, LocalEnd, RemotePath,
    SharedTemp, UploadTemp,
};

/// State of one file that is cut over lanes.
#[derive(Debug)]
pub(super) struct SplitFile {
    job: Job,
    hint: JobHint,
    stage: SplitStage,
    /// Attributes. Put: from fstat of the source. Get: from the listing, then from the first
    /// range's open file.
    attributes: Attributes,
    /// True once a range has reported the attributes of the open file.
    seen: bool,
    temp: Option<UploadTemp>,
    head: TempCreationPart,
    access: FileAccessRules,
    unclaimed: ByteRanges,
    /// Ranges that were written and whose handles were closed without an error.
    safe: ByteRanges,
    running: BTreeMap<JobId, RunningFilePart>,
    end: ReportedFileEnd,
    /// Bytes of progress that were reported to the owner.
    told: u64,
    fault: Option<JobFailure>,
    /// The disk side has the file open for this job, or is opening it.
    held: bool,
    /// The disk side has created or adopted the target.
    has_target: bool,
    /// FinishTemp was lost with its lane, so the rename may or may not have happened.
    finish_lost: bool,
    /// Number of lanes that were lost with a part of the file.
    losses: u32,
    keeping: SplitFileRecord,
    fence: LostWriterLanes,
}

/// The part that creates the temporary.
#[derive(Debug, Default)]
struct TempCreationPart {
    /// The CREATE of the temporary is in flight or done.
    begun: bool,
    /// Part that also writes everything and sets the attributes, and its completion (`set`).
    alone: Option<JobId>,
    set: bool,
}

/// Restrictions on the order in which the bytes of a file may be moved.
#[derive(Debug)]
struct FileAccessRules {
    /// Writes may come in any order.
    seekable: bool,
    /// One lane at a time has the file open at the far end and moves all remaining bytes in order.
    one_handle: bool,
    /// The local file is a relay to another host, which holds each byte once and in order.
    relayed: bool,
}

impl FileAccessRules {
    /// Returns true if one lane at a time moves all remaining bytes in order.
    fn is_in_order(&self) -> bool {
        self.one_handle || self.relayed
    }
}

/// End of the file as its parts found it.
#[derive(Debug, Default)]
struct ReportedFileEnd {
    /// Smallest end offset that a part has reported.
    at: Option<u64>,
    /// Parts have reported several ends.
    differ: bool,
    /// A part has reported that the source has grown.
    has_grown: bool,
}

/// All files of a scheduler that are cut.
#[derive(Debug)]
pub(super) struct SplitFiles {
    files: BTreeMap<JobId, SplitFile>,
    /// Fences of temporaries that another job will continue.
    left_fences: BTreeMap<RemotePath, LostWriterLanes>,
    checkpoints: UnjournaledBytes,
}

/// A range that was taken for a part, with its job.
#[derive(Debug)]
pub(super) struct ClaimedRange {
    from: u64,
    to: u64,
    kind: JobKind,
}

/// Range of a split file that a lane is moving.
#[derive(Clone, Debug)]
struct RunningFilePart {
    lane: LaneId,
    from: u64,
    to: u64,
    progress: u64,
    /// Bytes that were answered OK.
    written: ByteRanges,
    /// The lane has opened the version of the source that the others read.
    has_our_version: bool,
    /// The range has been assigned to other lanes as well.
    overtaken: bool,
    abandoned: bool,
}

/// Stage of a cut file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitStage {
    /// The disk side opens the source or creates the target.
    Opening,
    /// The upload waits for the download of its file from another host. It takes no lane: the
    /// download may be queued behind one that waits for an upload on that lane.
    AwaitingSource,
    /// Parts are assigned to lanes.
    Moving,
    /// The rename to the final name is in flight.
    Naming,
    /// Running parts end, then the temporary is removed.
    GivingUp,
    /// The temporary is being removed, or the disk side closes the file; `AfterDiskClose` follows.
    Cleaning(AfterDiskClose),
}

/// Next step after the disk side has closed the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterDiskClose {
    /// Report the failure.
    Fail,
    /// Queue the file as a whole for one lane.
    Whole,
    /// Start the file over.
    Restart,
}

impl SplitFile {
    fn new(job: Job, hint: JobHint, attributes: Attributes, one_handle: bool) -> Self {
        Self {
            job,
            hint,
            stage: SplitStage::Opening,
            attributes,
            seen: false,
            temp: None,
            head: TempCreationPart::default(),
            access: FileAccessRules {
                seekable: true,
                one_handle,
                relayed: hint.relayed,
            },
            unclaimed: ByteRanges::all(),
            safe: ByteRanges::default(),
            running: BTreeMap::new(),
            end: ReportedFileEnd::default(),
            told: 0,
            fault: None,
            held: true,
            has_target: false,
            finish_lost: false,
            losses: 0,
            keeping: SplitFileRecord::default(),
            fence: LostWriterLanes::default(),
        }
    }

    pub(super) fn is_put(&self) -> bool {
        matches!(self.job.kind, JobKind::Put { .. })
    }

    /// True if the file is copied between two hosts through this machine.
    pub(super) fn is_relayed(&self) -> bool {
        self.access.relayed
    }

    pub(super) fn options(&self) -> FileCopyOptions {
        self.job.kind.put_options().cloned().unwrap_or_default()
    }

    pub(super) fn size(&self) -> u64 {
        self.attributes.size.unwrap_or(0)
    }

    /// Returns the number of bytes that no lane has.
    fn left(&self) -> u64 {
        match self.is_in_progress() {
            true => self.unclaimed.len_before(self.size()),
            false => 0,
        }
    }

    /// Returns true if a part may be assigned now.
    pub(super) fn claimable(&self) -> bool {
        let may = match self.is_put() {
            true => !self.head.begun || self.temp.is_some(),
            false => self.access.seekable || self.running.is_empty(),
        };
        let may = may && (!self.access.is_in_order() || self.running.is_empty());
        self.stage == SplitStage::Moving && may && !self.unclaimed.is_empty()
    }

    /// Takes about `len` of the first unassigned bytes.
    fn claim(&mut self, len: u64) -> Option<(u64, u64)> {
        let (from, to) = self.unclaimed.first()?;
        if self.access.is_in_order() && self.shared().is_none() {
            // Ranges that exist beyond a gap are moved again: to skip them would mean opening the
            // file once more.
            self.unclaimed.remove(from, OPEN);
            return Some((from, OPEN));
        }
        // The lane with the last known bytes reads on to the end of the file.
        let open = to == OPEN && from.saturating_add(len + len / 2) >= self.size();
        let until = match to.min(from.saturating_add(len)) {
            _ if open || !self.access.seekable => OPEN,
            // A small remainder would become a job of its own.
            until if to != OPEN && to - until < len / 2 => to,
            until => until,
        };
        self.unclaimed.remove(from, until);
        Some((from, until.min(to)))
    }

    /// Returns the job for a claimed range.
    fn part(&self, from: u64, to: u64) -> Option<JobKind> {
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
                len: match self.access.is_in_order() {
                    true => OPEN,
                    false => to.min(self.size().max(1)) - from,
                },
                alone: self.access.one_handle,
                options: options.clone(),
            }),
            (JobKind::Get { source, .. }, _) => Some(JobKind::GetRange {
                file,
                source: source.clone(),
                known: self.attributes,
                span,
                sparse: self.options().sparse,
                local_end: match self.access.relayed {
                    true => LocalEnd::OtherHost,
                    false => LocalEnd::File,
                },
            }),
            _ => None,
        }
    }

    fn finish(&self) -> Option<JobKind> {
        if let Some(SharedTemp::Range(..)) = self.shared() {
            let temp = self.temporary()?;
            return Some(JobKind::SyncTemp { temp });
        }
        let mut options = self.options();
        // A hole at the end lies behind all written data, so the size must be set.
        let cut = self
            .end
            .at
            .filter(|end| *end < self.size() || self.end.differ || options.sparse);
        options.fsync |= self.sync_before_name();
        Some(JobKind::FinishTemp {
            temp: self.temp.clone()?,
            attributes: self.attributes,
            cut,
            set: self.head.set,
            options,
        })
    }

    /// Takes the attributes of the source that a part opened. Returns false if that is another
    /// version than the one that other parts read.
    fn accepts_version(&mut self, seen: &Attributes) -> bool {
        let own = &mut self.attributes;
        let same = (own.size, own.times.map(|t| t.1)) == (seen.size, seen.times.map(|t| t.1));
        let first = !std::mem::replace(&mut self.seen, true);
        if first && (same || !self.keeping.is_adopted()) {
            own.size = seen.size.or(own.size);
            own.mode = seen.mode.or(own.mode);
            own.times = seen.times.or(own.times);
            own.nanoseconds = seen.nanoseconds.or(own.nanoseconds);
            return true;
        }
        same || self.stage != SplitStage::Moving
    }

    /// Notes that a part found the source larger than at the start. Returns true for the first one.
    fn notes_growth(&mut self) -> bool {
        !std::mem::replace(&mut self.end.has_grown, true)
    }

    /// Records that a part found the end of the file at `at`.
    fn ends(&mut self, at: u64) {
        self.end.differ |= self.end.at.is_some_and(|end| end != at);
        let end = self.end.at.map_or(at, |end| end.min(at));
        self.end.at = Some(end);
        self.unclaimed.remove(end, OPEN);
    }

    /// Records the end of a part; if it failed, its range becomes unassigned again.
    fn part_over(&mut self, job: JobId, done: bool) -> Option<RunningFilePart> {
        let part = self.running.remove(&job)?;
        let to = part.to.min(self.end.at.unwrap_or(OPEN));
        if done {
            self.safe.insert(part.from, to.max(part.from));
            self.unclaimed.remove(part.from, to);
        } else if self.stage == SplitStage::Moving {
            self.put_back(part.from, to);
        }
        Some(part)
    }

    /// Notes bytes of a part that were answered OK.
    fn part_wrote(&mut self, job: JobId, offset: u64, len: u64) {
        if let Some(part) = self.running.get_mut(&job) {
            part.written.insert(offset, offset.saturating_add(len));
        }
    }

    /// Notes that the lane of a part has opened the version of the source that the others read.
    fn part_has_our_version(&mut self, job: JobId) {
        if let Some(part) = self.running.get_mut(&job) {
            part.has_our_version = true;
        }
    }

    /// Records the loss of a part with its lane. Bytes that were answered OK stay, so that paths on
    /// which no connection lasts for a whole part are passed as well.
    fn part_lost(&mut self, job: JobId) -> Option<RunningFilePart> {
        if let Some(part) = self.running.get(&job)
            && self.stage == SplitStage::Moving
            && self.access.seekable
            && !self.access.is_in_order()
            && !self.lacks_temp()
            && (self.is_put() || part.has_our_version)
        {
            let end = part.to.min(self.end.at.unwrap_or(OPEN));
            for (from, to) in part.written.iter() {
                let (from, to) = (from.max(part.from), to.min(end));
                if from < to {
                    self.safe.insert(from, to);
                }
            }
        }
        self.part_over(job, false)
    }

    /// Makes a range unassigned again, except bytes that are safe or that running parts have.
    fn put_back(&mut self, from: u64, to: u64) {
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
        made && self.end.at.is_some_and(|end| self.safe.contains(0, end))
    }

    /// Returns the range around `offset` that is complete and that no lane can still write. A lane
    /// that overtook another, was overtaken or was lost may still write bytes that others have
    /// completed, and those may be corrupted on the way.
    fn settled(&self, now: Instant, offset: u64) -> Option<(u64, u64)> {
        let (from, to) = self.safe.around(offset)?;
        if !self.is_put() {
            return Some((from, to));
        }
        if !self.fence.is_over(now) {
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
    fn news(&mut self) -> u64 {
        let most = self.end.at.unwrap_or(0).max(self.size());
        // A sync makes bytes of a running part safe; they count once.
        let of_part = |r: &RunningFilePart| {
            let to = r.to.min(most).max(r.from);
            let safe = self.safe.len_before(to) - self.safe.len_before(r.from);
            r.progress.min(to - r.from).saturating_sub(safe)
        };
        let running = self.running.values().filter(|r| !r.overtaken);
        let safe = std::iter::once(self.safe.len_before(most));
        self.tell_up_to(total(safe.chain(running.map(of_part))).min(most))
    }

    fn tell_up_to(&mut self, sum: u64) -> u64 {
        let news = sum.saturating_sub(self.told);
        self.told += news;
        news
    }

    fn fail(&mut self, fault: JobFailure) {
        self.fault.get_or_insert(fault);
        if self.is_in_progress() {
            self.stage = SplitStage::GivingUp;
        }
        self.unclaimed = ByteRanges::default();
    }

    /// Switches the file to writing under its final name. A symlink that is to be replaced rather
    /// than followed is checked first.
    fn write_in_place(&mut self) {
        if let JobKind::Put { options, .. } = &mut self.job.kind {
            options.inplace = !options.existing.replace_node;
        }
    }

    /// Returns the path of the temporary, if there is one.
    fn temporary(&self) -> Option<RemotePath> {
        self.temp.as_ref().map(|t| t.temp.clone())
    }

    /// Returns true if only a lost lane delays the rename.
    fn waits_for_name(&self) -> bool {
        self.stage == SplitStage::Moving && self.running.is_empty() && self.is_complete()
    }

    /// Returns true unless the file gets its final name or is given up.
    fn is_in_progress(&self) -> bool {
        matches!(
            self.stage,
            SplitStage::Opening | SplitStage::AwaitingSource | SplitStage::Moving
        )
    }

    /// Returns true if parts are assigned to lanes.
    pub(super) fn is_moving(&self) -> bool {
        self.stage == SplitStage::Moving
    }

    /// Returns true if the disk side opens the file.
    pub(super) fn is_opening(&self) -> bool {
        self.stage == SplitStage::Opening
    }

    /// Returns true if the file gets its final name.
    pub(super) fn is_naming(&self) -> bool {
        self.stage == SplitStage::Naming
    }

    /// Returns true if an upload has no temporary yet.
    pub(super) fn lacks_temp(&self) -> bool {
        self.is_put() && self.temp.is_none()
    }

    /// Returns the parts that other lanes could take over: job, lane, and the remaining range.
    pub(super) fn parts_to_repeat(&self) -> impl Iterator<Item = (JobId, LaneId, u64)> {
        let may = self.is_moving()
            && self.access.seekable
            && !self.access.is_in_order()
            && !self.lacks_temp();
        let running = self.running.iter().filter(move |_| may);
        running
            .filter(|(_, part)| !part.overtaken && !part.abandoned)
            .map(|(id, part)| {
                let len = part.to.min(self.size()).saturating_sub(part.from);
                (*id, part.lane, len)
            })
    }

    /// Makes the range of a running part assignable to other lanes as well; true if it is.
    pub(super) fn overtake(&mut self, part: JobId) -> bool {
        let Some(running) = self.running.get_mut(&part) else {
            return false;
        };
        running.overtaken = true;
        let end = self.end.at.unwrap_or(u64::MAX);
        let (from, to) = (running.from, running.to.min(end));
        self.put_back(from, to);
        self.claimable()
    }

    /// Returns true if the part was abandoned, and its file only waits for its end.
    pub(super) fn is_abandoned(&self, part: JobId) -> bool {
        self.running.get(&part).is_some_and(|part| part.abandoned)
    }
}
