//! Error of an operation on a file, at either end of a copy.

use std::{fmt, io};

use rustix::io::Errno;
use schedule::{FailedTemporary, JobFailure, JobFailureKind};

use crate::disk::local_fault;

/// Reason why an operation on a file failed: one sentence without the path, its cause, and the end
/// at fault. Code decides by the cause; the sentence is for people only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError(JobFailure);

impl FileError {
    /// Returns an error of this machine, or one that longhaul has found itself.
    pub(crate) fn new(what: impl Into<String>, kind: JobFailureKind) -> Self {
        Self(JobFailure::new(what, false).of_kind(kind))
    }

    /// Returns the sentence.
    pub(crate) fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the cause.
    pub(crate) fn kind(&self) -> JobFailureKind {
        self.0.kind
    }

    /// Returns true if the file or directory does not exist. All other errors leave that open.
    pub(crate) fn is_missing(&self) -> bool {
        self.0.kind == JobFailureKind::NotFound
    }

    /// Returns true if the temporary of the file was removed.
    pub(crate) fn is_temporary_removed(&self) -> bool {
        self.0.temporary == FailedTemporary::Removed
    }

    /// Returns true if the temporary of the file may be left at the far end.
    pub(crate) fn may_leave_temporary(&self) -> bool {
        self.0.temporary == FailedTemporary::MayBeLeft
    }

    /// Returns true if the sentence says that the file under the final name may be incomplete.
    pub(crate) fn tells_incomplete(&self) -> bool {
        self.0.tells_incomplete
    }

    /// Adds a clause to the sentence.
    pub(crate) fn push(&mut self, clause: &str) {
        self.0.what.push_str(clause);
    }

    /// Puts what was not done before the sentence: `cannot create the directory: permission denied`.
    #[must_use]
    pub(crate) fn with_prefix(mut self, not_done: &str) -> Self {
        self.0.what = format!("{not_done}: {}", self.0.what);
        self
    }
}

/// Returns `None` for an entry that does not exist, and other errors as they are.
pub(crate) fn if_exists<T>(found: Result<T, FileError>) -> Result<Option<T>, FileError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)
    }
}

impl std::error::Error for FileError {}

impl From<JobFailure> for FileError {
    fn from(fault: JobFailure) -> Self {
        Self(fault)
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self(local_fault(&error))
    }
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl From<String> for FileError {
    fn from(what: String) -> Self {
        Self::new(what, JobFailureKind::Other)
    }
}

impl From<&str> for FileError {
    fn from(what: &str) -> Self {
        Self::new(what, JobFailureKind::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_entry_that_does_not_exist_is_missing() {
        assert!(FileError::from(Errno::NOENT).is_missing());
        for other in [Errno::ACCESS, Errno::IO, Errno::NOTDIR, Errno::LOOP] {
            assert!(!FileError::from(other).is_missing(), "{other:?}");
        }
        let said = FileError::from("no such file or directory");
        assert!(!said.is_missing());
    }

    #[test]
    fn a_cause_outlives_the_words_before_it() {
        let error = FileError::from(Errno::NOSPC).with_prefix("cannot create the directory");
        assert_eq!(error.kind(), JobFailureKind::NoSpace);
        let said = "cannot create the directory: no space left on device";
        assert_eq!(error.to_string(), said);
    }
}
