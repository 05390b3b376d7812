//! Error of a measurement: why it ended early, or why a request of it had no result.

use std::{fmt, io};

use sftp::Status;

use crate::session::{LinkError, RemoteCommandError};

/// Reason why a measurement ended early: its cause, and one sentence. Code decides by the cause;
/// the sentence is for people only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeasurementError {
    cause: MeasurementFailure,
    text: String,
}

/// Cause of a [`MeasurementError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeasurementFailure {
    /// The user interrupted the measurement.
    Interrupted,
    /// The time or the amount of data of all measurements was used up.
    BudgetUsedUp,
    /// The server did not answer a request in time.
    NoAnswer,
    /// The connection was lost.
    ConnectionLost,
    /// The server closed the channel, or sent on it what is not SFTP.
    ChannelEnded,
    /// The server refused a request or answered it wrongly. Other requests may go on.
    Refused,
    /// The server refused the file that a load writes or reads. Other requests may go on.
    DeviceRefused,
    /// The directory that the user named cannot be used.
    UnusableDirectory,
    /// No further connection was made.
    NoFurtherConnection,
    /// This machine lacks a resource.
    ThisMachine,
}

impl MeasurementError {
    pub(super) fn new(cause: MeasurementFailure, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { cause, text }
    }

    /// Creates the error for a measurement that the user interrupted.
    pub(super) fn interrupted() -> Self {
        Self::new(MeasurementFailure::Interrupted, "interrupted")
    }

    /// Creates the error for measurements without time.
    pub(super) fn time_used_up() -> Self {
        let text = "further measurements: the time was used up (--time)";
        Self::new(MeasurementFailure::BudgetUsedUp, text)
    }

    /// Creates the error for measurements that may move no more data.
    pub(super) fn data_used_up() -> Self {
        let text = "further measurements: the amount of data was used up (--data)";
        Self::new(MeasurementFailure::BudgetUsedUp, text)
    }

    /// Creates the error for a request without an answer.
    pub(super) fn no_answer() -> Self {
        let text = "the server did not answer in time";
        Self::new(MeasurementFailure::NoAnswer, text)
    }

    /// Creates the error for a lost connection.
    pub(super) fn lost(text: impl Into<String>) -> Self {
        Self::new(MeasurementFailure::ConnectionLost, text)
    }

    /// Creates the error for a channel that was closed.
    pub(super) fn channel_ended(text: impl Into<String>) -> Self {
        Self::new(MeasurementFailure::ChannelEnded, text)
    }

    /// Creates the error for a request that the server refused or answered wrongly.
    pub(super) fn refused(text: impl Into<String>) -> Self {
        Self::new(MeasurementFailure::Refused, text)
    }

    /// Returns the cause.
    pub(super) fn cause(&self) -> MeasurementFailure {
        self.cause
    }

    /// Returns true if the connection was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.cause == MeasurementFailure::ConnectionLost
    }

    /// Returns true if the server refused a request, and others may go on.
    pub(super) fn is_refusal(&self) -> bool {
        self.cause == MeasurementFailure::Refused
    }

    /// Returns true if this machine lacks a resource.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        self.cause == MeasurementFailure::ThisMachine
    }

    /// Returns true if the path may have broken: nothing came any more, or the connection ended.
    pub(super) fn may_be_broken_path(&self) -> bool {
        matches!(
            self.cause,
            MeasurementFailure::NoAnswer
                | MeasurementFailure::ConnectionLost
                | MeasurementFailure::ChannelEnded
        )
    }

    /// Returns true if the channel of the request cannot be used any more.
    pub(super) fn ends_channel(&self) -> bool {
        matches!(
            self.cause,
            MeasurementFailure::ConnectionLost | MeasurementFailure::ChannelEnded
        )
    }

    /// Replaces the cause by one that says more about the step.
    pub(super) fn of_cause(self, cause: MeasurementFailure) -> Self {
        Self { cause, ..self }
    }

    /// Names the step that failed.
    pub(super) fn at_step(self, step: impl fmt::Display) -> Self {
        Self {
            text: format!("{step}: {}", self.text),
            ..self
        }
    }

    /// Adds advice or a further reason.
    pub(super) fn with(self, more: impl fmt::Display) -> Self {
        Self {
            text: format!("{}; {more}", self.text),
            ..self
        }
    }
}

impl fmt::Display for MeasurementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for MeasurementError {}

impl From<LinkError> for MeasurementError {
    fn from(error: LinkError) -> Self {
        Self::lost(error.into_words())
    }
}

impl From<Status> for MeasurementError {
    fn from(refusal: Status) -> Self {
        Self::refused(refusal.to_string())
    }
}

impl From<RemoteCommandError> for MeasurementError {
    fn from(error: RemoteCommandError) -> Self {
        match error {
            RemoteCommandError::ConnectionLost(why) => Self::lost(why),
            error => Self::refused(error.to_string()),
        }
    }
}

impl From<io::Error> for MeasurementError {
    fn from(error: io::Error) -> Self {
        Self::new(MeasurementFailure::ThisMachine, error.to_string())
    }
}

impl From<MeasurementError> for String {
    fn from(error: MeasurementError) -> Self {
        error.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_stays_silence_whatever_is_said_about_it() {
        let silent = MeasurementError::no_answer().at_step("cannot open /dev/null on the server");
        assert!(!silent.is_refusal() && silent.may_be_broken_path());
        assert_eq!(
            silent.to_string(),
            "cannot open /dev/null on the server: the server did not answer in time"
        );
    }

    #[test]
    fn a_refusal_is_named_with_its_step_and_the_advice() {
        let refused = MeasurementError::refused("permission denied")
            .at_step("cannot open /dev/null on the server")
            .with("name a directory");
        assert!(refused.is_refusal() && !refused.may_be_broken_path());
        assert_eq!(
            refused.to_string(),
            "cannot open /dev/null on the server: permission denied; name a directory"
        );
    }
}
