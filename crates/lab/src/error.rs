use std::fmt;
use std::io;

/// Why there is no lab, or no longer one: a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabError(pub(crate) String);

impl LabError {
    /// With this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// `what` failed: the system's reason follows.
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
