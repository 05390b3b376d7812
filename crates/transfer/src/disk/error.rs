//! Texts and faults for errors of local operations.

use std::{fmt, io};

use schedule::{JobFailure, JobFailureKind, SHARED_TEMP_LOST};

pub use sys::os_words;

/// Returns the fault of a local operation.
pub fn local_fault(error: &io::Error) -> JobFailure {
    let is_shared = error
        .get_ref()
        .is_some_and(|inner| inner.is::<SharedTempLostError>());
    let kind = match is_shared {
        true => JobFailureKind::SharedTemp,
        false => cause(error),
    };
    JobFailure::new(os_words(error), false).of_kind(kind)
}

fn cause(error: &io::Error) -> JobFailureKind {
    match error.kind() {
        io::ErrorKind::NotFound => JobFailureKind::NotFound,
        io::ErrorKind::PermissionDenied => JobFailureKind::PermissionDenied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            JobFailureKind::NoSpace
        }
        io::ErrorKind::Unsupported => JobFailureKind::Unsupported,
        _ => JobFailureKind::Other,
    }
}

/// The temporary that several processes write is missing here, or another one.
#[derive(Debug)]
pub(super) struct SharedTempLostError;

impl fmt::Display for SharedTempLostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHARED_TEMP_LOST)
    }
}

impl std::error::Error for SharedTempLostError {}

/// Adds the failed operation to an error: `cannot set its length: no space left on device`.
pub(crate) fn failed_to(what: &str, error: &io::Error) -> io::Error {
    let words = format!("cannot {what}: {}", os_words(error));
    io::Error::new(error.kind(), words)
}
