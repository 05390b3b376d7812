use std::fmt;
use std::io;

/// The reason for a failure of the lab: a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabError(pub(crate) String);

impl LabError {
    /// Creates an error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// Creates an error from a failed system call: `what`, then the system's reason.
    pub(crate) fn system(what: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        Self(format!("{what}: {}", error.into()))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LabError {}
