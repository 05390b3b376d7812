//! Rules from evidence to findings.

mod ends;
pub(crate) mod ladder;

use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::Evidence;

/// Applies all rules. The lowest limit comes first, then findings that cost only time, then limits
/// that are unsure, then notes.
pub(crate) fn apply(e: &Evidence) -> Vec<DiagnosisFinding> {
    let mut found = Vec::new();
    // A connection that breaks repeats packets until its end, which looks like loss.
    if e.stall.is_none() {
        // A direction that waits for acknowledgements queues, varies and falls for that reason.
        let starved = ends::return_path(e);
        for direction in [DataDirection::Upload, DataDirection::Download] {
            if starved
                .as_ref()
                .is_none_or(|f| f.direction != Some(direction))
            {
                ladder::add(e, direction, &mut found);
            }
        }
        found.extend(starved);
    }
    ends::add(e, &mut found);
    let key = |f: &DiagnosisFinding| f.limit.unwrap_or(f64::INFINITY);
    found.sort_by(|a, b| {
        let doubtful = |f: &DiagnosisFinding| (f.cause.is_note(), f.certainty == Certainty::Unsure);
        let doubt = doubtful(a).cmp(&doubtful(b));
        doubt.then(key(a).total_cmp(&key(b)))
    });
    found
}
