//! Texts and faults for errors of local operations.

use std::{fmt, io};

use schedule::{JobFailure, JobFailureKind, SHARED_TEMP_LOST};

/// Returns the system's error text without the number: `permission denied`.
pub fn os_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.find(" (os error") {
        Some(at) => &text[..at],
        None => &text,
    };
    let mut chars = text.chars();
    match chars.next() {
        // Lower-cases "Is a directory", but keeps "input/output error" as it is.
        Some(first)
            if chars
                .as_str()
                .starts_with(|c: char| c.is_lowercase() || c == ' ') =>
        {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

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
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => JobFailureKind::NoSpace,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn errors_read_as_part_of_a_sentence() {
        assert_eq!(os_words(&Errno::ACCESS.into()), "permission denied");
        assert_eq!(os_words(&Errno::ISDIR.into()), "is a directory");
        assert_eq!(os_words(&Errno::IO.into()), "input/output error");
        assert_eq!(os_words(&io::Error::other("Own words")), "own words");
    }
}
