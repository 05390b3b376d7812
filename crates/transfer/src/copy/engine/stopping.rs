//! Ends a copy early: after an interrupt, or with the loss of a session.

use std::time::Duration;

use schedule::{FailureKind, JobFailure, LaneEvent};

use super::CopyEngine;
use crate::connect::ConnectError;
use crate::copy::sides::{CopySide, RemoteSide};
use crate::copy::wait_conditions::{WaitConditions, wait_for};

/// Time that jobs may take to clean up after a cancel before the run ends without them.
const LONGEST_CLEANUP: Duration = Duration::from_secs(5);
/// Time after an interrupt until a copy with a journal ends, whatever is still on its way: the next
/// run sends again what was not confirmed by then. Longer than a round trip around the world.
const LONGEST_LEAVING: Duration = Duration::from_millis(700);

impl CopyEngine<'_> {
    /// Begins to end the copy if it was interrupted: jobs are ended at both ends.
    pub(in crate::copy) fn check_cancel(&mut self) {
        if !self.ports.environment().is_cancelled() || !self.ports.cancel() {
            return;
        }
        self.drop_what_waits();
        let leaves = self.keeper.goes_on();
        for side in self.ports.sides().iter() {
            match leaves {
                true => side.session().cancel_resumable("interrupted"),
                false => side.session().cancel("interrupted"),
            }
        }
        // A scheduler that ends a shard gives it time, in which files in flight are completed.
        let is_awaited = leaves && self.ports.options().journal_folder.is_none();
        self.leave_by = is_awaited.then(|| self.ports.now() + LONGEST_LEAVING);
        // The source of a copy between two hosts has nothing to clean up, and the data on its way
        // are of no use.
        if self.ports.source_is_remote() && self.ports.target_is_remote() {
            for id in self.ports.jobs().at(CopySide::Source) {
                let fault = JobFailure::new("interrupted", false);
                let fault = fault.of_kind(FailureKind::OtherHost);
                self.on_lane(LaneEvent::Failed(id, fault));
            }
        }
    }

    /// True if an interrupted copy ends now, without what is still on its way.
    pub(super) fn must_leave(&self) -> bool {
        self.leave_by.is_some_and(|by| self.ports.now() >= by)
    }

    /// Drops all work that has not begun.
    pub(super) fn drop_what_waits(&mut self) {
        self.walks.clear();
        self.tree.drop_held();
        self.files.drop_waiting();
        self.owners.drop_waiting();
        self.hard_links.forget();
        self.keeper.drop_waiting();
        self.verify.stop(&self.ports);
        self.after_verify();
    }

    /// Waits until a session has an event or the run is cancelled. Returns false if cleaning up
    /// after a cancel takes too long.
    pub(super) async fn wait_ready(&mut self) -> bool {
        let mut conditions = WaitConditions {
            sessions: self.ports.sides().open().map(RemoteSide::number).collect(),
            journal: self.keeper.goes_on() && self.keeper.waiting() > 0,
            ..WaitConditions::default()
        };
        if conditions.sessions.is_empty() {
            return false;
        }
        if !self.ports.is_cancelled() {
            conditions.cancel = true;
            conditions.until = self.verify.deadline();
            wait_for(self.ports.environment(), conditions).await;
            return true;
        }
        let cleaned = self.ports.now() + LONGEST_CLEANUP;
        let until = self.leave_by.unwrap_or(cleaned);
        conditions.until = Some(until);
        wait_for(self.ports.environment(), conditions).await;
        self.ports.sides_mut().take_events() || self.ports.now() < until
    }

    /// Notes the reason that later failures have in common, and drops all waiting work.
    pub(super) fn on_losing(&mut self, end: CopySide, why: &str) {
        if let Some(side) = self.ports.side(end) {
            let why = format!("{}: {why}", side.name());
            self.ports.lose(ConnectError::unreachable(why));
            self.drop_what_waits();
        }
    }

    /// Ends the copy after the loss of the session at `end`.
    pub(super) fn on_lost(&mut self, end: CopySide, why: String) {
        let Some(name) = self.ports.sides_mut().lose(end) else {
            return;
        };
        let why = format!("{name}: {why}");
        self.ports.lose(ConnectError::unreachable(why.clone()));
        self.drop_what_waits();
        for id in self.ports.jobs().at(end) {
            let what = why.clone();
            let fault = JobFailure::new(what, true).of_kind(FailureKind::ConnectionLost);
            self.on_lane(LaneEvent::Failed(id, fault));
        }
        for side in self.ports.sides().open() {
            match self.keeper.goes_on() {
                // The other one of two hosts keeps what the same command resumes.
                true => side.session().cancel_resumable(&why),
                false => side.session().cancel(&why),
            }
        }
    }
}
