//! Events that name the changes of a plan.

use sync::{EntryTree, SyncAction, SyncPlan, SyncStep, TreeEntryKind};

use crate::report::{CopyEvent, EscapedName, SyncChange};

/// Returns the event that names a planned change.
pub(super) fn planned_event(plan: &SyncPlan, step: &SyncStep) -> CopyEvent {
    let (change, reasons) = match step.action {
        SyncAction::Create => (SyncChange::Create, Vec::new()),
        SyncAction::Replace(why) | SyncAction::SetAttributes(why) | SyncAction::Unsure(why) => {
            (SyncChange::Update, why.words().collect())
        }
        SyncAction::MoveFrom(_) => (SyncChange::Move, Vec::new()),
        SyncAction::Link => (SyncChange::Link, Vec::new()),
        SyncAction::HardLink { why, .. } => (SyncChange::HardLink, why.words().collect()),
    };
    let from = match step.action {
        SyncAction::MoveFrom(from) => Some(EscapedName(plan.target().tree().path(from))),
        SyncAction::HardLink { first, .. } => Some(EscapedName(plan.source().tree().path(first))),
        _ => None,
    };
    let mut path = plan.source().tree().path(step.source);
    if step.source == EntryTree::ROOT {
        path = b".".to_vec();
    }
    let is_dir = plan.source().tree().entry(step.source).kind == TreeEntryKind::Directory;
    CopyEvent::Planned {
        change,
        path: directory_name(path, is_dir),
        from,
        reasons,
    }
}

/// Returns the name of an entry, with a slash at the end of a directory.
pub(super) fn directory_name(mut path: Vec<u8>, is_dir: bool) -> EscapedName {
    if is_dir {
        path.push(b'/');
    }
    EscapedName(path)
}
