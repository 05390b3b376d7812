//! Copies one shard of a plan.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use shard::{ShardState, ShardWorkerCounts};

use super::check::verdicts;
use super::entries::{ShardRecordSource, ShardWalk};
use super::folder::PlanFolder;
use super::holding::{LeaseTerms, ShardLease};
use super::planning::overlap;
use super::seal::ShardSealResult;
use super::{PlanError, ShardCopyResult, ShardOutcome, ranges, seal, shown};
use crate::cancel::CancelToken;
use crate::copy::{
    CopyOptions, CopyRequest, JournalFolder, PlannedCopy, PlannedCopySide, SessionConnector,
    with_environment,
};
use crate::report::{CopyEvent, CopyOutcome, CopySummary, ProgressCounters};

/// Shard to copy, which this worker holds; or a complete one, after which the directories may lack
/// their attributes.
#[derive(Debug)]
pub enum ShardCopyTask {
    /// Copy the shard.
    Held(Box<ShardLease>),
    /// The shard is complete: only gives split files their names, and sets the attributes of the
    /// directories if all shards are complete.
    Done(Arc<PlanFolder>, LeaseTerms),
}

/// Copies a shard on this thread, and sets the attributes of all directories after the last one.
/// `events` is called on this thread; `progress` may be read from any.
pub fn copy(
    shard: ShardCopyTask,
    request: &CopyRequest,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> ShardCopyResult {
    match shard {
        ShardCopyTask::Held(lease) => {
            let request = with_journal(request, &lease);
            with_environment(connect, cancel, async |environment| {
                let begun =
                    PlannedCopy::begin(&request, &request.options, environment, progress, events)
                        .await;
                match begun {
                    Ok(run) => copy_held(run, *lease, cancel).await,
                    Err(summary) => end(*lease, *summary, ShardCopyFigures::default()),
                }
            })
        }
        ShardCopyTask::Done(plan, terms) => {
            let options = CopyOptions {
                journal: false,
                inplace: false,
                temp_dir: None,
                ..request.options.clone()
            };
            with_environment(connect, cancel, async |environment| {
                let begun =
                    PlannedCopy::begin(request, &options, environment, progress, events).await;
                let mut run = match begun {
                    Ok(run) => run,
                    Err(summary) => return seal_only(*summary, ShardSealResult::default()),
                };
                let sealed = seal::seal(&mut run, &plan, &terms, cancel).await;
                seal_only(run.finish(), sealed)
            })
        }
    }
}

/// Puts the journal into the plan's folder, where the next worker finds it on any machine.
fn with_journal(request: &CopyRequest, lease: &ShardLease) -> CopyRequest {
    let mut request = request.clone();
    let key = format!("{} {}", lease.plan().id(), lease.shard());
    if lease.plan().split_files() > 0 {
        // All workers of a split file must agree on the place of its temporary.
        request.options.inplace = false;
        request.options.temp_dir = None;
    }
    request.options.journal_folder = Some(JournalFolder {
        path: lease.plan().folder(),
        key: key.into_bytes(),
    });
    request
}

fn seal_only(summary: CopySummary, seal: ShardSealResult) -> ShardCopyResult {
    let (sealed, changed) = (seal.is_sealed(), seal.changed());
    let end = match summary.outcome {
        CopyOutcome::Complete => ShardOutcome::Done,
        CopyOutcome::Partial => partial(changed, &summary),
        CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_) | CopyOutcome::Interrupted => {
            ShardOutcome::Stopped
        }
    };
    ShardCopyResult {
        summary,
        end,
        unchanged: 0,
        sealed,
    }
}

/// Outcome of a copy of which entries failed, `changed` of them because their sources have changed.
fn partial(changed: u64, summary: &CopySummary) -> ShardOutcome {
    match (changed, summary.unusable_temporaries) {
        (0, 0) => ShardOutcome::Failed,
        (changed, lost) if changed + lost < summary.failed => ShardOutcome::Failed,
        (changed, 0) => ShardOutcome::Changed(changed),
        _ => ShardOutcome::Unwritable,
    }
}

/// Figures of a shard's copy beside those of its summary.
#[derive(Default)]
struct ShardCopyFigures {
    unchanged: u64,
    changed: u64,
    broken: Option<ShardOutcome>,
}

async fn copy_held(
    mut run: PlannedCopy<'_>,
    lease: ShardLease,
    cancel: &CancelToken,
) -> ShardCopyResult {
    let terms = lease.terms();
    let lease = Rc::new(lease);
    let changed = Rc::new(Cell::new(0));
    let mut work = ShardCopyFigures::default();
    match carry_out(&mut run, &lease, &changed).await {
        Ok(unchanged) => work.unchanged = unchanged,
        Err(broken) => {
            if let ShardOutcome::Unusable(error) = &broken {
                let folder = shown(&lease.plan().folder());
                let error = error.to_string();
                // Some errors begin with the path of a file in the folder.
                let within = error.strip_prefix(&folder.to_string());
                let within = within.map(|rest| rest.trim_start_matches(['/', ':', ' ']));
                run.fail(folder, within.unwrap_or(&error));
            }
            work.broken = Some(broken);
        }
    }
    work.changed = changed.get();
    let plan = lease.plan().clone();
    let Some(lease) = Rc::into_inner(lease) else {
        // The walk, which shared the lease, ended with the copy.
        let summary = run.finish();
        let why = "internal error: the list of the shard's files did not end".to_owned();
        return ShardCopyResult {
            summary,
            end: ShardOutcome::Superseded(why),
            unchanged: work.unchanged,
            sealed: false,
        };
    };
    if run.has_failed() || run.stopped() || work.broken.is_some() {
        return end(lease, run.finish(), work);
    }
    // The shard is complete before the directories get their attributes: whoever completes the last
    // shard sees all others complete.
    let (files, bytes) = run.copied();
    let figures = figures(files, bytes, &work, 0);
    if let Err(error) = lease.end(ShardState::Done, figures, None) {
        return ShardCopyResult {
            summary: run.finish(),
            end: ShardOutcome::Superseded(error.to_string()),
            unchanged: work.unchanged,
            sealed: false,
        };
    }
    let sealed = seal::seal(&mut run, &plan, &terms, cancel).await;
    let mut result = seal_only(run.finish(), sealed);
    result.unchanged = work.unchanged;
    result
}

/// Compares the shard with both ends and copies the missing files. Returns the number of files that
/// were at the target already.
async fn carry_out(
    run: &mut PlannedCopy<'_>,
    lease: &Rc<ShardLease>,
    changed: &Rc<Cell<u64>>,
) -> Result<u64, ShardOutcome> {
    let plan = lease.plan();
    let unusable = |error: PlanError| ShardOutcome::Unusable(error);
    let root = run.root(PlannedCopySide::Target).to_vec();
    if let Some(why) = overlap(run, &root).await {
        let why = format!("{}: {why}", run.shown(PlannedCopySide::Target, &root));
        return Err(unusable(PlanError::Unusable(why)));
    }
    let target = run.root_attributes(PlannedCopySide::Target).await;
    let may_exist = !matches!(target, Ok(None));
    let records = plan.records(lease.shard()).map_err(unusable)?;
    let mut verdicts = verdicts(run, records, may_exist).await?;
    if plan.split_files() > 0 {
        let records = plan.records(lease.shard()).map_err(unusable)?;
        let prepared = ranges::prepare(run, plan, records, &mut verdicts).await;
        prepared.map_err(unusable)?;
        if run.stopped() {
            return Err(ShardOutcome::Stopped);
        }
    }
    let is_unchanged =
        |verdict: &&super::check::EntryVerdict| **verdict == super::check::EntryVerdict::Unchanged;
    let unchanged = verdicts.iter().filter(is_unchanged).count() as u64;
    let walk = ShardWalk::new(
        ShardRecordSource::File(Box::new(plan.records(lease.shard()).map_err(unusable)?)),
        verdicts,
        Rc::clone(lease),
        (
            run.root(PlannedCopySide::Source).to_vec(),
            run.is_local(PlannedCopySide::Source),
        ),
        Rc::clone(changed),
    );
    run.copy(Box::new(walk)).await;
    Ok(unchanged)
}

fn figures(files: u64, bytes: u64, work: &ShardCopyFigures, failed: u64) -> ShardWorkerCounts {
    ShardWorkerCounts {
        files,
        bytes,
        unchanged: work.unchanged,
        failed,
        changed: work.changed,
    }
}

/// Ends the lease of a shard that is not complete.
fn end(lease: ShardLease, summary: CopySummary, work: ShardCopyFigures) -> ShardCopyResult {
    let stopped = || work.broken.clone().unwrap_or(ShardOutcome::Stopped);
    let (state, end) = match &summary.outcome {
        CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_) | CopyOutcome::Interrupted => {
            (ShardState::Stopped, stopped())
        }
        CopyOutcome::Complete => (ShardState::Stopped, stopped()),
        CopyOutcome::Partial => {
            let end = partial(work.changed, &summary);
            (ShardState::Failed, work.broken.clone().unwrap_or(end))
        }
    };
    let bytes = summary.bytes + summary.unfinished;
    let figures = figures(summary.files, bytes, &work, summary.failed);
    let first = summary.failures.first();
    let reason = match &summary.outcome {
        CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why) => {
            Some(why.clone().into_bytes())
        }
        _ => first.map(|failure| {
            let name = failure.path.0.as_slice();
            [name, b": ", failure.reason.as_bytes()].concat()
        }),
    };
    let lost = lease.lost();
    let ended = lease.end(state, figures, reason.as_deref());
    let end = match (lost, ended) {
        (Some(why), _) => ShardOutcome::Superseded(why),
        (None, Err(error)) if matches!(end, ShardOutcome::Stopped) => {
            ShardOutcome::Superseded(error.to_string())
        }
        _ => end,
    };
    ShardCopyResult {
        summary,
        end,
        unchanged: work.unchanged,
        sealed: false,
    }
}

#[cfg(test)]
mod tests {
    use schedule::SHARED_TEMP_LOST;

    use super::*;
    use crate::report::{EscapedName, FAILURES_KEPT, ItemFailure};

    /// Bug: the exit code came from the texts of the failures, of which a summary has the first
    /// thousand: of 1,500 ranges without their temporaries only these counted, and a scheduler tried
    /// the shard again for ever.
    #[test]
    fn the_exit_code_of_a_shard_was_read_from_the_first_thousand_texts() {
        let failure = |reason: &str| ItemFailure::new(EscapedName(b"f".to_vec()), reason);
        let end = |failed, unusable_temporaries, reason: &str| {
            let summary = CopySummary {
                failed,
                unusable_temporaries,
                failures: vec![failure(reason); FAILURES_KEPT],
                ..CopySummary::default()
            };
            partial(0, &summary)
        };
        let many = 1500;
        assert!(matches!(end(many, many, ""), ShardOutcome::Unwritable));
        assert!(matches!(end(many, many - 1, ""), ShardOutcome::Failed));
        // A server may say the same words about anything.
        let kept = FAILURES_KEPT as u64;
        assert!(matches!(
            end(kept, 0, SHARED_TEMP_LOST),
            ShardOutcome::Failed
        ));
    }
}
