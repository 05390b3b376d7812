use sftp::OpenFlags;

use crate::JobFailure;

/// Reason why an attempt ends before the file has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UploadAttemptAbort {
    /// The job fails; this is the first cause.
    Failed(JobFailure),
    /// Another lane has completed the range, or the file must be written in place.
    Abandoned,
    /// The job starts over.
    Retry(UploadRetryReason),
}

/// Reason why an attempt is repeated in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadRetryReason {
    /// The temporary's name may have been taken; the protocol does not tell.
    NewName,
    /// The target is a symlink.
    Follow,
    /// Write in place.
    Direct(OpenFlags),
    /// Write in place, since no temporary can be created or renamed.
    InPlace,
    /// Check if the existing file may be written.
    Probe,
    /// Use the requests of stock SFTP.
    StockRequests,
}

impl UploadAttemptAbort {
    /// Adds a later reason: a failure counts most, and the first reason of a kind stays.
    pub(super) fn merge(&mut self, later: Self) {
        let rank = |ending: &Self| match ending {
            Self::Failed(_) => 2,
            Self::Abandoned => 1,
            Self::Retry(_) => 0,
        };
        if rank(&later) > rank(self) {
            *self = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_more_than_a_retry_and_the_first_of_both_stays() {
        let failed = |what: &str| UploadAttemptAbort::Failed(JobFailure::new(what, true));
        let mut ending = UploadAttemptAbort::Retry(UploadRetryReason::NewName);
        ending.merge(UploadAttemptAbort::Retry(UploadRetryReason::InPlace));
        assert_eq!(
            ending,
            UploadAttemptAbort::Retry(UploadRetryReason::NewName)
        );
        ending.merge(UploadAttemptAbort::Abandoned);
        assert_eq!(ending, UploadAttemptAbort::Abandoned);
        ending.merge(failed("first"));
        ending.merge(failed("second"));
        ending.merge(UploadAttemptAbort::Retry(UploadRetryReason::Probe));
        assert_eq!(ending, failed("first"));
    }
}
