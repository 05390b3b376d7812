//! Error of a copy between two hosts.

use std::{fmt, io};

use ssh::direct_control::DirectControlError;

use super::frames::InvalidFrameError;
use crate::connect::ConnectError;

/// Reason why a copy between two hosts, or a step of it, ended early: its cause, and one sentence or
/// clause. Code decides by the cause; the sentence is for people only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCopyError {
    cause: HostCopyFailure,
    text: String,
}

/// Cause of a [`HostCopyError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCopyFailure {
    /// A host sent what no honest one of this version sends. Another attempt would end in the same
    /// way.
    ProtocolViolation,
    /// Another reason, after which the copy may be tried again.
    Other,
}

impl HostCopyError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let (cause, text) = (HostCopyFailure::Other, text.into());
        Self { cause, text }
    }

    /// Creates the error for what no honest host sends.
    pub(super) fn violation(text: impl Into<String>) -> Self {
        let (cause, text) = (HostCopyFailure::ProtocolViolation, text.into());
        Self { cause, text }
    }

    /// Returns true if a host sent what no honest one sends.
    pub(super) fn is_violation(&self) -> bool {
        self.cause == HostCopyFailure::ProtocolViolation
    }
}

impl fmt::Display for HostCopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for HostCopyError {}

impl From<DirectControlError> for HostCopyError {
    fn from(error: DirectControlError) -> Self {
        Self::violation(error.to_string())
    }
}

impl From<InvalidFrameError> for HostCopyError {
    fn from(error: InvalidFrameError) -> Self {
        Self::violation(error.0)
    }
}

impl From<ConnectError> for HostCopyError {
    fn from(error: ConnectError) -> Self {
        Self::new(error)
    }
}

impl From<io::Error> for HostCopyError {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<aws_lc_rs::error::Unspecified> for HostCopyError {
    fn from(error: aws_lc_rs::error::Unspecified) -> Self {
        Self::new(error.to_string())
    }
}

impl From<HostCopyError> for String {
    fn from(error: HostCopyError) -> Self {
        error.text
    }
}
