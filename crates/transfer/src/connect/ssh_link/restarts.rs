/// Decides if a connection may start over without predictions.
#[derive(Debug, Default)]
pub(super) struct RestartState {
    predictions: PredictionUse,
    /// The number of restarts.
    count: u32,
    policy: RestartPolicy,
    progress: LoginProgress,
}

/// Progress of a connection: logging in, or at work since data of a channel have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoginProgress {
    #[default]
    LoggingIn,
    /// Data of a channel have arrived, so that no guess at the login was wrong.
    Working,
}

/// Permission to predict channel numbers and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PredictionUse {
    #[default]
    On,
    /// A prediction has failed, or predictions can no longer be correct.
    Off,
}

/// Permission to start over without predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RestartPolicy {
    #[default]
    Allowed,
    /// A second refused login may cost a penalty.
    Never,
}

impl RestartState {
    /// Makes the connection fail instead of starting over.
    pub(super) fn forbid(&mut self) {
        self.policy = RestartPolicy::Never;
    }

    /// True if the connection may start over.
    pub(super) fn are_allowed(&self) -> bool {
        self.policy == RestartPolicy::Allowed
    }

    /// Notes that data of a channel have arrived.
    pub(super) fn note_data(&mut self) {
        self.progress = LoginProgress::Working;
    }

    /// True if the connection has not started over yet, and no guess at the login has been
    /// confirmed.
    pub(super) fn is_first_login(&self) -> bool {
        self.count == 0 && self.progress == LoginProgress::LoggingIn
    }

    /// True if channel numbers and windows may be predicted.
    pub(super) fn may_predict(&self) -> bool {
        self.predictions == PredictionUse::On
    }

    /// Stops predicting.
    pub(super) fn stop_predicting(&mut self) {
        self.predictions = PredictionUse::Off;
    }

    /// Counts a restart, after which nothing is predicted.
    pub(super) fn restarted(&mut self) {
        self.count += 1;
        self.stop_predicting();
    }

    /// The number of restarts so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_may_be_wrong_until_data_arrive_or_the_connection_starts_over() {
        let mut restarts = RestartState::default();
        assert!(restarts.is_first_login() && restarts.may_predict());
        restarts.note_data();
        assert!(!restarts.is_first_login() && restarts.may_predict());
        let mut restarts = RestartState::default();
        restarts.restarted();
        assert!(!restarts.is_first_login() && !restarts.may_predict());
        assert_eq!(restarts.count(), 1);
    }

    #[test]
    fn a_further_connection_never_starts_over() {
        let mut restarts = RestartState::default();
        assert!(restarts.are_allowed());
        restarts.forbid();
        assert!(!restarts.are_allowed());
    }
}
