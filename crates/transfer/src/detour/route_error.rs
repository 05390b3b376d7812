//! Error of a way to a host that was to be measured.

use std::fmt;

use crate::connect::{ConnectError, ResponsibleParty};
use crate::probe::MeasurementError;

/// Reason why there are no figures of a way: the party that can remove the cause, and one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteError {
    fault: ResponsibleParty,
    text: String,
}

impl RouteError {
    /// Creates the error for a way that does not lead to the host, or not in time.
    pub(crate) fn of_path(text: impl Into<String>) -> Self {
        let (fault, text) = (ResponsibleParty::Path, text.into());
        Self { fault, text }
    }

    /// Returns the party that can remove the cause.
    pub(super) fn fault(&self) -> ResponsibleParty {
        self.fault
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RouteError {}

impl From<ConnectError> for RouteError {
    fn from(error: ConnectError) -> Self {
        let fault = error.fault();
        let text = error.into();
        Self { fault, text }
    }
}

impl From<MeasurementError> for RouteError {
    fn from(error: MeasurementError) -> Self {
        let fault = match error.is_of_this_machine() {
            true => ResponsibleParty::ThisMachine,
            false => ResponsibleParty::Path,
        };
        let text = error.into();
        Self { fault, text }
    }
}
