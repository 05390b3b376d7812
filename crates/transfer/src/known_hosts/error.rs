//! Error of what surrounds the known hosts: a command that lists them, and lists of revoked keys.

use std::fmt;

use crate::config::ConfigError;

/// Reason why the known hosts are not complete, so that no host key can be accepted: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHostsError {
    text: String,
    is_setting: bool,
}

impl KnownHostsError {
    /// Creates the error of an option that names something unusable.
    pub(super) fn setting(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_setting: true,
        }
    }

    /// Creates the error of a program that has failed, which may succeed the next time.
    pub(super) fn program(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_setting: false,
        }
    }

    /// True if the user must correct an option, or a file that it names.
    pub fn is_setting(&self) -> bool {
        self.is_setting
    }
}

impl fmt::Display for KnownHostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for KnownHostsError {}

impl From<ConfigError> for KnownHostsError {
    fn from(error: ConfigError) -> Self {
        Self::setting(error.to_string())
    }
}
