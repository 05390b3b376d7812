use std::fmt;

use crate::config::ConfigError;

/// The party that can remove the cause of a failed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsibleParty {
    /// The user: a flag, a setting, a key or a password.
    User,
    /// This machine: a program, a file or a resource of it.
    ThisMachine,
    /// The host: its SSH server or its administrator.
    Host,
    /// The path to the host, jump hosts included.
    Path,
}

/// Step at which a connection failed, in the order of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectStep {
    /// The settings of the user and of ssh_config.
    Configuration,
    /// Reaching the host: name, address, socket, proxy.
    Reach,
    /// The key exchange and the host key.
    HostKey,
    /// The login.
    Login,
    /// Starting the SFTP session or command after the login.
    Session,
}

/// Reason that there is no connection to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    fault: ResponsibleParty,
    check: ConnectStep,
    text: String,
}

impl ConnectError {
    /// `text` is one sentence with the host's name.
    pub fn new(fault: ResponsibleParty, check: ConnectStep, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { fault, check, text }
    }

    /// Creates the error for a setting of the user.
    pub fn configuration(text: impl Into<String>) -> Self {
        Self::new(ResponsibleParty::User, ConnectStep::Configuration, text)
    }

    /// Creates the error for a host that cannot be reached.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self::new(ResponsibleParty::Path, ConnectStep::Reach, text)
    }

    /// Creates the error for a resource that this machine lacks at this step.
    pub fn this_machine(check: ConnectStep, text: impl Into<String>) -> Self {
        Self::new(ResponsibleParty::ThisMachine, check, text)
    }

    /// The party that can remove the cause.
    pub fn fault(&self) -> ResponsibleParty {
        self.fault
    }

    /// Step that failed.
    pub fn check(&self) -> ConnectStep {
        self.check
    }

    /// True if the user's settings are wrong, so that another try would fail too.
    pub fn is_misconfiguration(&self) -> bool {
        (self.check, self.fault) == (ConnectStep::Configuration, ResponsibleParty::User)
    }

    /// Adds the subject in front of the sentence.
    pub fn about(self, subject: impl fmt::Display) -> Self {
        Self {
            text: format!("{subject}: {}", self.text),
            ..self
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConnectError {}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> Self {
        Self::configuration(error.to_string())
    }
}

impl From<ConnectError> for String {
    fn from(error: ConnectError) -> Self {
        error.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_cause_when_a_subject_is_added() {
        let error = ConnectError::unreachable("connection refused").about("backup");
        assert_eq!(error.to_string(), "backup: connection refused");
        assert_eq!(error.fault(), ResponsibleParty::Path);
        assert_eq!(error.check(), ConnectStep::Reach);
    }
}
