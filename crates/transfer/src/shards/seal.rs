//! Gives split files their names, and sets the attributes of all directories once every shard is
//! complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use schedule::Attributes;
use shard::{ShardFileRecord, ShardState};

use super::attributes::of_record;
use super::check::BATCH;
use super::entries::FILLABLE;
use super::folder::PlanFolder;
use super::holding::{LeaseClaimResult, LeaseTerms, ShardLease, ShardLeaseError};
use super::ranges::seal_files;
use super::records::RecordPath;
use super::shown;
use crate::cancel::CancelToken;
use crate::copy::{PlannedCopy, PlannedCopySide};
use crate::disk::os_words;
use crate::sync::ends::{SyncFileOperation, carry_out};
use crate::walk::join;

/// Result of giving split files their names and setting the attributes of directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardSealResult {
    /// The split files have their names, and the directories their attributes, now or before.
    sealed: bool,
    /// Split files whose source has changed since the plan was made.
    changed: u64,
}

impl ShardSealResult {
    /// True if the split files have their names, and the directories their attributes.
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Number of split files whose source has changed since the plan was made.
    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    /// Notes split files whose source has changed since the plan was made.
    pub(super) fn add_changed(&mut self, files: u64) {
        self.changed += files;
    }

    /// The result once all that is complete has its name, if `sealed`.
    pub(super) fn end(self, sealed: bool) -> Self {
        Self { sealed, ..self }
    }
}

/// Gives the split files that are complete their names, under a lease. Then sets the modification
/// times and permissions of all directories if all shards are complete, and notes it in the plan's
/// folder. Two workers that set attributes at the same time set the same values.
pub(super) async fn seal(
    run: &mut PlannedCopy<'_>,
    plan: &Arc<PlanFolder>,
    terms: &LeaseTerms,
    cancel: &CancelToken,
) -> ShardSealResult {
    let mut result = ShardSealResult::default();
    if plan.is_sealed() {
        result.sealed = true;
        return result;
    }
    if plan.split_files() > 0 {
        let mut claim = || claim(plan, terms, cancel);
        match seal_files(run, plan, &mut claim).await {
            Ok(files) => {
                result.changed = files.changed;
                if !files.sealed || run.has_failed() {
                    return result;
                }
            }
            Err(error) => {
                run.fail(shown(&plan.folder()), error.to_string());
                return result;
            }
        }
    }
    match all_done(plan) {
        Ok(true) => {}
        Ok(false) => return result,
        Err(error) => {
            run.fail(shown(&plan.folder()), os_words(&error));
            return result;
        }
    }
    if !set_attributes(run, plan).await || run.stopped() {
        return result;
    }
    if let Err(error) = plan.write_sealed() {
        run.fail(shown(&plan.folder()), os_words(&error));
        return result;
    }
    result.sealed = true;
    result
}

/// Claims the lease under which files get their names; `None` if another worker has it.
fn claim(
    plan: &Arc<PlanFolder>,
    terms: &LeaseTerms,
    cancel: &CancelToken,
) -> Result<Option<ShardLease>, ShardLeaseError> {
    // The number behind the last shard.
    match plan.claim(plan.shards(), terms, cancel, &mut |_| {}) {
        Ok(LeaseClaimResult::Held(lease)) => Ok(Some(*lease)),
        Ok(LeaseClaimResult::Done(_))
        | Err(ShardLeaseError::Busy(_) | ShardLeaseError::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn all_done(plan: &PlanFolder) -> std::io::Result<bool> {
    for shard in 0..plan.shards() {
        if !is_done(plan, shard)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if a shard is complete.
pub(super) fn is_done(plan: &PlanFolder, shard: u32) -> std::io::Result<bool> {
    let newest = plan.newest_lease(shard)?;
    let state = newest.and_then(|(_, lease)| lease).map(|lease| lease.state);
    Ok(state == Some(ShardState::Done))
}

async fn set_attributes(run: &mut PlannedCopy<'_>, plan: &PlanFolder) -> bool {
    let mut records = match plan.tree() {
        Ok(records) => records,
        Err(error) => {
            run.fail(shown(&plan.folder()), error.to_string());
            return false;
        }
    };
    let root = run.root(PlannedCopySide::Target).to_vec();
    let mut path = RecordPath::default();
    let mut ops = Vec::new();
    let mut root_attributes = None;
    // A directory that its owner cannot enter comes after all below it.
    let mut closed: BTreeMap<usize, Vec<SyncFileOperation>> = BTreeMap::new();
    loop {
        let record = match records.next() {
            Ok(record) => record,
            Err(error) => {
                run.fail(shown(&plan.folder()), error.to_string());
                return false;
            }
        };
        let is_directory = matches!(record, ShardFileRecord::Enter(..));
        if let (Some(below), Some((_, attributes)), true) =
            (path.step(&record), of_record(&record), is_directory)
        {
            let attributes = Attributes {
                owner: None,
                ..attributes
            };
            let op = SyncFileOperation::set(join(&root, &below), attributes);
            let open = attributes
                .mode
                .is_none_or(|mode| mode & FILLABLE == FILLABLE);
            match (below.is_empty(), open) {
                (true, _) => root_attributes = Some(attributes),
                (false, true) => ops.push(op),
                (false, false) => {
                    let depth = below.iter().filter(|byte| **byte == b'/').count();
                    closed.entry(depth).or_default().push(op);
                }
            }
        }
        let ended = record == ShardFileRecord::End;
        if ops.len() >= BATCH || ended {
            set(run, std::mem::take(&mut ops)).await;
        }
        if ended {
            break;
        }
    }
    for ops in closed.into_values().rev() {
        set(run, ops).await;
    }
    if let Some(attributes) = root_attributes {
        let open = attributes
            .mode
            .is_none_or(|mode| mode & FILLABLE == FILLABLE);
        if !open {
            let op = SyncFileOperation::set(root.clone(), attributes);
            set(run, vec![op]).await;
        }
        // The root's own path is the one that the user named, symlinks included.
        run.set_root_times(&attributes).await;
    }
    !run.has_failed()
}

async fn set(run: &mut PlannedCopy<'_>, ops: Vec<SyncFileOperation>) {
    let paths: Vec<Vec<u8>> = ops
        .iter()
        .filter_map(|op| match op {
            SyncFileOperation::Set { path, .. } => Some(path.clone()),
            _ => None,
        })
        .collect();
    let results = carry_out(run, PlannedCopySide::Target, ops).await;
    for (path, result) in paths.iter().zip(results) {
        if let Err(why) = result
            && !run.stopped()
        {
            let name = run.shown(PlannedCopySide::Target, path);
            run.fail(
                name,
                why.with_prefix("cannot set its permissions and times"),
            );
        }
    }
}
