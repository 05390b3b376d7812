//! Estimates the data of changed files that were sent whole and of which a longhaul at the far end
//! would have received only the differences.

use sync::{SyncAction, SyncPlan, TreeEntryKind};

use super::programs;
use crate::copy::{DeltaUse, PlannedCopy, PlannedCopySide};

/// Bytes from which it is worth a command at the far end and a line.
const WORTH: u64 = 8 << 20;

/// Returns the bytes of changed files that went whole to or from a host that has rsync and no
/// longhaul; `None` if they are few.
pub(super) async fn bytes_sent_whole(run: &mut PlannedCopy<'_>, plan: &SyncPlan) -> Option<u64> {
    let end = match (
        run.is_local(PlannedCopySide::Source),
        run.is_local(PlannedCopySide::Target),
    ) {
        (true, false) => PlannedCopySide::Target,
        (false, true) => PlannedCopySide::Source,
        _ => return None,
    };
    if programs::has_longhaul(run, end) || run.delta() == DeltaUse::Never {
        return None;
    }
    let whole = bytes_with_differences(plan);
    (whole >= WORTH && programs::has_rsync(run, end).await).then_some(whole)
}

/// Returns the bytes of the changed files that a delta would have rebuilt.
fn bytes_with_differences(plan: &SyncPlan) -> u64 {
    let mut whole = 0_u64;
    for step in plan.steps() {
        let (SyncAction::Replace(_), Some(target)) = (step.action, step.target) else {
            continue;
        };
        let ours = plan.source().tree().entry(step.source);
        let theirs = plan.target().tree().entry(target);
        let both = [ours, theirs].map(|entry| match entry.kind {
            TreeEntryKind::File => entry.size,
            _ => 0,
        });
        if schedule::delta::may_be_forms(both[0], both[1]) {
            whole = whole.saturating_add(ours.size);
        }
    }
    whole
}
