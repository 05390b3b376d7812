//! Connections that are being opened, and the server's reaction to earlier attempts.

use std::time::{Duration, Instant};

use super::{ConcurrencyChange, LoginCost};

/// Number of logins that may be in progress at an unknown server: MaxStartups drops from ten on,
/// and others may be logging in as well.
const AT_ONCE: u32 = 6;
const MOST_AT_ONCE: u32 = 8;
/// Number of refusals after which no connection is requested again.
const MOST_REFUSALS: u32 = 2;
const REFUSAL_REST: Duration = Duration::from_secs(3);

/// Decides when a controller may request further connections: a few logins at once, a pause after a
/// refused connection, and none after two of those or after a refused login.
#[derive(Debug)]
pub(super) struct LoginPacing {
    /// Number of requested connections that are not open yet.
    opening: u32,
    /// Number of connections that may be opening at once: more when a whole batch has come, one
    /// after a refusal.
    at_once: u32,
    refusals: u32,
    /// Time before which no connection is requested.
    not_before: Option<Instant>,
    /// No connection is requested any more.
    none: bool,
    /// Refusals of this run.
    cost: LoginCost,
}

impl LoginPacing {
    /// Creates the logins of a controller; `none` if there may be one connection only.
    pub(super) fn new(none: bool) -> Self {
        Self {
            opening: 0,
            at_once: AT_ONCE,
            refusals: 0,
            not_before: None,
            none,
            cost: LoginCost::default(),
        }
    }

    /// Returns the refusals of this run.
    pub(super) fn cost(&self) -> LoginCost {
        self.cost
    }

    /// Returns the number of connections that are being opened.
    pub(super) fn opening(&self) -> u32 {
        self.opening
    }

    /// Returns true if no further connection can be had.
    pub(super) fn are_over(&self) -> bool {
        self.none
    }

    /// Returns true if a connection may be requested.
    pub(super) fn may_connect(&self, now: Instant) -> bool {
        !self.none && self.not_before.is_none_or(|at| now >= at)
    }

    /// Records that the server has accepted many logins before.
    pub(super) fn are_known(&mut self) {
        self.at_once = MOST_AT_ONCE;
    }

    /// Requests up to `more` connections.
    pub(super) fn add(&mut self, now: Instant, more: u32, changes: &mut Vec<ConcurrencyChange>) {
        if !self.may_connect(now) {
            return;
        }
        let free = self.at_once.saturating_sub(self.opening);
        for _ in 0..more.min(free) {
            self.opening += 1;
            changes.push(ConcurrencyChange::AddConnection);
        }
    }

    /// Records that a requested connection is open.
    pub(super) fn opened(&mut self) {
        self.opening = self.opening.saturating_sub(1);
        if self.opening == 0 && self.refusals == 0 {
            self.at_once = MOST_AT_ONCE;
        }
    }

    /// Records that a connection was closed or reset before the login.
    pub(super) fn connection_refused(&mut self, now: Instant) {
        self.cost.refused_connection = true;
        self.opening = self.opening.saturating_sub(1);
        self.at_once = 1;
        // Further refusals of connections requested together with a refused one say nothing new.
        if self.not_before.is_some_and(|at| now < at) {
            return;
        }
        self.refusals += 1;
        self.not_before = Some(now + REFUSAL_REST * self.refusals);
        self.none |= self.refusals >= MOST_REFUSALS;
    }

    /// Records a refused login. Another attempt could lead to a penalty or a locked account.
    pub(super) fn login_refused(&mut self) {
        self.cost.refused_login = true;
        self.opening = self.opening.saturating_sub(1);
        self.refusals += 1;
        self.none = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(logins: &mut LoginPacing, now: Instant, more: u32) -> usize {
        let mut changes = Vec::new();
        logins.add(now, more, &mut changes);
        changes.len()
    }

    #[test]
    fn a_refused_connection_is_followed_by_single_ones_after_a_rest() {
        let mut now = testkit::sftp_model::epoch();
        let mut logins = LoginPacing::new(false);
        assert_eq!(add(&mut logins, now, 20), AT_ONCE as usize);
        for _ in 0..AT_ONCE {
            logins.connection_refused(now);
        }
        assert_eq!(logins.opening(), 0);
        assert_eq!(add(&mut logins, now, 20), 0, "it rests");
        now += REFUSAL_REST;
        assert_eq!(add(&mut logins, now, 20), 1, "the batch counts once");
        logins.connection_refused(now);
        assert!(logins.are_over() && !logins.may_connect(now + REFUSAL_REST * 9));
    }

    #[test]
    fn more_are_opened_at_once_after_a_batch_that_came() {
        let now = testkit::sftp_model::epoch();
        let mut logins = LoginPacing::new(false);
        let first = add(&mut logins, now, 20);
        (0..first).for_each(|_| logins.opened());
        assert_eq!(add(&mut logins, now, 20), MOST_AT_ONCE as usize);
        logins.login_refused();
        assert_eq!(add(&mut logins, now, 20), 0, "a refused login is the last");
    }
}
