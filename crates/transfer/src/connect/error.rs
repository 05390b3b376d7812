use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::config::ConfigError;
use crate::connect::tcp::DialError;
use crate::known_hosts::{HostKeyError, KnownHostsError};

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
    /// The host, unless `text` names it.
    subject: Option<String>,
    text: String,
    /// The host accepted the TCP connection and reset it at once.
    is_reset: bool,
}

impl ConnectError {
    /// `text` is one sentence, with the host's name unless [`Self::about`] adds it.
    pub fn new(fault: ResponsibleParty, check: ConnectStep, text: impl Into<String>) -> Self {
        Self {
            fault,
            check,
            subject: None,
            text: text.into(),
            is_reset: false,
        }
    }

    /// Creates the error for a setting of the user.
    pub fn configuration(text: impl Into<String>) -> Self {
        Self::new(ResponsibleParty::User, ConnectStep::Configuration, text)
    }

    /// Creates the error for a host that cannot be reached.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self::new(ResponsibleParty::Path, ConnectStep::Reach, text)
    }

    /// Creates the error for a TCP connection that was not made, because of `error`.
    pub(super) fn not_connected(error: &DialError, text: impl Into<String>) -> Self {
        let fault = match error {
            DialError::Unreachable(error) if is_local(error) => ResponsibleParty::ThisMachine,
            _ => ResponsibleParty::Path,
        };
        let reset = io::ErrorKind::ConnectionReset;
        Self {
            is_reset: matches!(error, DialError::Unreachable(e) if e.kind() == reset),
            ..Self::new(fault, ConnectStep::Reach, text)
        }
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

    /// True if a connection of ssh to the host that is already open may be used instead: the host
    /// key was accepted, and the login refused.
    pub fn allows_shared_connection(&self) -> bool {
        self.check == ConnectStep::Login
    }

    /// True if the host accepted the TCP connection and reset it at once: one that is not reached, or
    /// has no such port, answers with another error.
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Adds the subject in front of the sentence, unless it is there already.
    pub fn about(self, subject: impl fmt::Display) -> Self {
        let subject = subject.to_string();
        if self.subject.as_ref() == Some(&subject) {
            return self;
        }
        Self {
            text: self.to_string(),
            subject: Some(subject),
            ..self
        }
    }

    /// Returns the sentence for a message that already names `subject`.
    pub fn said_of(self, subject: &str) -> String {
        match self.subject.as_deref() == Some(subject) {
            true => self.text,
            false => self.to_string(),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Some(subject) => write!(f, "{subject}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> Self {
        Self::configuration(error.to_string())
    }
}

impl From<HostKeyError> for ConnectError {
    fn from(error: HostKeyError) -> Self {
        let fault = match &error {
            HostKeyError::Unknown { .. } | HostKeyError::Declined { .. } => ResponsibleParty::User,
            HostKeyError::Unreadable { .. } => ResponsibleParty::ThisMachine,
            HostKeyError::Changed { .. }
            | HostKeyError::Revoked { .. }
            | HostKeyError::Address(_) => ResponsibleParty::Host,
        };
        Self::new(fault, ConnectStep::HostKey, error.to_string())
    }
}

impl From<KnownHostsError> for ConnectError {
    fn from(error: KnownHostsError) -> Self {
        match error.is_setting() {
            true => Self::configuration(error.to_string()),
            false => Self::this_machine(ConnectStep::HostKey, error.to_string()),
        }
    }
}

impl From<ConnectError> for String {
    fn from(error: ConnectError) -> Self {
        error.to_string()
    }
}

/// True if this machine could not make a socket, for lack of resources or of the address that the
/// user wants it to have.
fn is_local(error: &io::Error) -> bool {
    let local = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::ADDRNOTAVAIL,
    ];
    local
        .iter()
        .any(|local| error.raw_os_error() == Some(local.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: each refused host key was the host's fault, also one that only the user can accept.
    #[test]
    fn an_unknown_host_key_was_taken_for_a_wrong_one() {
        let (host, shown) = ("h".to_owned(), "SHA256:x".to_owned());
        let place = crate::known_hosts::KnownHostsLinePosition {
            file: "known_hosts".into(),
            line: 1,
        };
        let revoked = HostKeyError::Revoked {
            host: host.clone(),
            place,
            shown: shown.clone(),
        };
        let revoked = ConnectError::from(revoked);
        let address = ConnectError::from(HostKeyError::Address("another key".to_owned()));
        for wrong in [revoked, address] {
            assert_eq!(wrong.fault(), ResponsibleParty::Host);
            assert!(!wrong.allows_shared_connection());
        }
        let unknown = ConnectError::from(HostKeyError::Unknown {
            host,
            shown_type: "ED25519".to_owned(),
            shown,
            why: "no prompt".to_owned(),
        });
        assert_eq!(unknown.fault(), ResponsibleParty::User);
        // StrictHostKeyChecking and the file of known hosts may pin the key.
        assert!(!unknown.allows_shared_connection());
    }

    /// Bug: "p: p: cannot connect to port 22", after a server had closed the first attempt.
    #[test]
    fn a_subject_is_named_once() {
        let error = ConnectError::unreachable("cannot connect").about("p");
        assert_eq!(error.clone().about("p").to_string(), "p: cannot connect");
        assert_eq!(error.clone().said_of("p"), "cannot connect");
        assert_eq!(error.clone().said_of("q"), "p: cannot connect");
        assert_eq!(error.about("q").to_string(), "q: p: cannot connect");
    }

    #[test]
    fn an_error_keeps_its_cause_when_a_subject_is_added() {
        let error = ConnectError::unreachable("connection refused").about("backup");
        assert_eq!(error.to_string(), "backup: connection refused");
        assert_eq!(error.fault(), ResponsibleParty::Path);
        assert_eq!(error.check(), ConnectStep::Reach);
    }
}
