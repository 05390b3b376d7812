//! Sums up the state of all shards.

use serde::Serialize;
use shard::{ShardFileRecord, ShardState, ShardWorkerCounts};

use super::PlanError;
use super::folder::PlanFolder;
use super::place::{here, is_gone};
use super::records::RecordPath;
use crate::disk::os_words;
use crate::report::EscapedName;

/// State of a shard plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlanStatus {
    /// Source operand.
    pub source: EscapedName,
    /// Target operand.
    pub target: EscapedName,
    /// Number of shards by state.
    pub shards: ShardStateCounts,
    /// Files and symlinks of the plan.
    pub entries: u64,
    /// Bytes of the plan's files.
    pub bytes: u64,
    /// Files and symlinks of the complete shards.
    pub entries_done: u64,
    /// Bytes of the complete shards.
    pub bytes_done: u64,
    /// Bytes that the last workers of the shards have sent.
    pub bytes_sent: u64,
    /// Entries that failed in the last attempt.
    pub failed: u64,
    /// Entries that have changed since the plan was made.
    pub changed: u64,
    /// True if the directories have their final permissions and times.
    pub sealed: bool,
    /// Shards in all states other than open and done.
    pub unfinished: Vec<ShardStatus>,
    /// Number of files that are split into ranges.
    pub split_files: u64,
    /// Split files of which some ranges are in incomplete shards.
    pub unfinished_files: Vec<SplitFileStatus>,
}

/// Number of shards in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardStateCounts {
    /// Number of shards of the plan.
    pub total: u64,
    /// Shards that were not started.
    pub open: u64,
    /// Shards that a worker is copying.
    pub running: u64,
    /// Shards that were started and have no worker now.
    pub stopped: u64,
    /// Shards of which entries failed.
    pub failed: u64,
    /// Complete shards.
    pub done: u64,
}

/// State of a file that is split into ranges.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SplitFileStatus {
    /// Path below the root.
    pub path: EscapedName,
    /// Number of ranges.
    pub ranges: u64,
    /// Ranges of complete shards.
    pub ranges_done: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Bytes of complete shards.
    pub bytes_done: u64,
    /// Shards that are not complete, in ascending order.
    pub missing_shards: Vec<u32>,
}

/// State of a shard that was started and is not complete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardStatus {
    /// Number of the shard.
    pub shard: u32,
    /// `running`, `stopped` or `failed`.
    pub state: &'static str,
    /// Number of workers so far.
    pub workers: u64,
    /// Host of the last worker.
    pub host: Option<String>,
    /// Process of the last worker.
    pub process: Option<u64>,
    /// Seconds since the last sign of the worker, by the clocks of this machine and the folder's
    /// server.
    pub seconds_ago: Option<u64>,
    /// Failed entries.
    pub failed: u64,
    /// Changed entries.
    pub changed: u64,
    /// First failure.
    pub reason: Option<EscapedName>,
}

impl ShardPlanStatus {
    /// Sums up the state of all shards.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn of(plan: &PlanFolder) -> Result<Self, PlanError> {
        let totals = plan.totals();
        let mut status = Self {
            source: EscapedName(plan.source().to_vec()),
            target: EscapedName(plan.target().to_vec()),
            shards: ShardStateCounts::default(),
            entries: totals.files + totals.symlinks,
            bytes: totals.bytes,
            entries_done: 0,
            bytes_done: 0,
            bytes_sent: 0,
            failed: 0,
            changed: 0,
            sealed: plan.is_sealed(),
            unfinished: Vec::new(),
            split_files: plan.split_files(),
            unfinished_files: Vec::new(),
        };
        let mut done = Vec::new();
        let here = here();
        for shard in 0..plan.shards() {
            status.shards.total += 1;
            let newest = plan.newest_lease(shard).map_err(|error| {
                let folder = EscapedName::from(&*plan.folder());
                PlanError::Io(format!(
                    "{folder}: cannot read the state of shard {shard}: {}",
                    os_words(&error)
                ))
            })?;
            let lease = newest.as_ref().and_then(|(_, lease)| lease.as_ref());
            done.push(lease.is_some_and(|lease| lease.state == ShardState::Done));
            let Some((fence, lease)) = newest else {
                status.shards.open += 1;
                continue;
            };
            let mut state = lease.as_ref().map_or(ShardState::Running, |l| l.state);
            if state == ShardState::Running
                && lease.as_ref().is_some_and(|l| is_gone(&l.place, &here))
            {
                state = ShardState::Stopped;
            }
            let figures = lease
                .as_ref()
                .map_or_else(ShardWorkerCounts::default, |l| l.figures);
            status.bytes_sent = status.bytes_sent.saturating_add(figures.bytes);
            status.failed = status.failed.saturating_add(figures.failed);
            status.changed = status.changed.saturating_add(figures.changed);
            match state {
                ShardState::Done => {
                    let totals = plan.totals_of(shard);
                    status.shards.done += 1;
                    status.entries_done += totals.files + totals.symlinks;
                    status.bytes_done += totals.bytes;
                    continue;
                }
                ShardState::Running => status.shards.running += 1,
                ShardState::Stopped => status.shards.stopped += 1,
                ShardState::Failed => status.shards.failed += 1,
            }
            let age = plan.lease_age(shard, fence);
            let reason = lease.as_ref().map(|lease| lease.reason.clone());
            status.unfinished.push(ShardStatus {
                shard,
                state: state.name(),
                workers: fence,
                seconds_ago: age.map(|age| age.as_secs()),
                failed: figures.failed,
                changed: figures.changed,
                reason: reason.filter(|reason| !reason.is_empty()).map(EscapedName),
                process: lease.as_ref().map(|lease| lease.place.process),
                host: lease.map(|lease| lease.place.host),
            });
        }
        status.unfinished_files = unfinished_files(plan, &done)?;
        Ok(status)
    }
}

/// Returns the split files of which some ranges are in shards that are not `done`.
fn unfinished_files(plan: &PlanFolder, done: &[bool]) -> Result<Vec<SplitFileStatus>, PlanError> {
    let mut unfinished = Vec::new();
    if plan.split_files() == 0 {
        return Ok(unfinished);
    }
    let mut records = plan.tree()?;
    let mut path = RecordPath::default();
    let mut file = SplitFileStatus::default();
    loop {
        let record = records.next()?;
        let below = path.step(&record);
        let (range, below) = match (record, below) {
            (ShardFileRecord::Range(_, range, _), Some(below)) => (range, below),
            (ShardFileRecord::End, _) => return Ok(unfinished),
            _ => continue,
        };
        file.ranges += 1;
        match done.get(range.shard as usize) {
            Some(true) => {
                file.ranges_done += 1;
                file.bytes_done += range.len;
            }
            _ => file.missing_shards.push(range.shard),
        }
        if range.end() == range.size {
            file.path = EscapedName(below);
            file.bytes = range.size;
            file.missing_shards.sort_unstable();
            let file = std::mem::take(&mut file);
            if !file.missing_shards.is_empty() {
                unfinished.push(file);
            }
        }
    }
}
