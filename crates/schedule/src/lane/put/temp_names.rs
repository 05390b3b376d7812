use sftp::{Status, StatusCode};

use super::LaneContext;
use super::ending::{UploadAttemptAbort, UploadRetryReason};
use crate::lane::messages::{self, CREATING, refused, refused_in_temp_dir};
use crate::{JobId, RefusedOperations, TempDir};

/// Number of temporary names tried: one of 50 random bits is hardly ever taken, and more tries
/// would only repeat another failure.
const NAME_TRIES: u8 = 2;
/// Length of a file name in bytes above which a server may refuse the temporary because of its
/// length.
const SHORT_NAME: usize = 64;
/// Reason for a file that is written in place.
const NO_TEMPORARY: &str = "cannot create a temporary file in its directory";

/// The server's answers about the temporaries of an upload.
#[derive(Debug, Default)]
pub(super) struct TempOpenAttempts {
    tries: u8,
    /// Create the temporary without the flag EXCL.
    unexclusive: bool,
    /// The last OPEN had the flag EXCL. Other uploads may have learned meanwhile that the server does
    /// not know it.
    was_exclusive: bool,
    /// Status with which OPEN of the temporary was refused; the final name is tried then.
    refused: Option<Status>,
}

impl TempOpenAttempts {
    /// Returns the number of names that were tried before.
    pub(super) fn tries(&self) -> u8 {
        self.tries
    }

    /// Returns true if the temporary is to be created with the flag EXCL.
    pub(super) fn choose_exclusive(&mut self, core: &LaneContext) -> bool {
        self.was_exclusive = !self.unexclusive && !core.refusals().exclusive;
        self.was_exclusive
    }

    /// Handles a refused OPEN of a temporary, which the user may want in a directory of its own.
    pub(super) fn refused(
        &mut self,
        core: &LaneContext,
        status: &Status,
        temp_dir: Option<&TempDir>,
    ) -> UploadAttemptAbort {
        // OpenSSH knows every flag, and reports a full disk as FAILURE.
        let known = core.in_order();
        let exclusive = self.was_exclusive;
        let in_temp_dir = temp_dir.is_some();
        let fault = || match temp_dir {
            Some(dir) => refused_in_temp_dir(dir, status),
            None => refused(CREATING, status),
        };
        match status.code {
            StatusCode::OP_UNSUPPORTED if exclusive => self.create_plainly(),
            StatusCode::FAILURE if self.tries < NAME_TRIES => {
                self.tries += 1;
                UploadAttemptAbort::Retry(UploadRetryReason::NewName)
            }
            StatusCode::FAILURE | StatusCode::NO_SUCH_FILE if known => {
                UploadAttemptAbort::Failed(fault())
            }
            // The user wants no file that is written under its final name.
            StatusCode::PERMISSION_DENIED | StatusCode::NO_SUCH_FILE if in_temp_dir => {
                UploadAttemptAbort::Failed(fault())
            }
            // Overwriting the old file would only truncate it.
            _ if messages::says_full(status) => UploadAttemptAbort::Failed(fault()),
            StatusCode::FAILURE | StatusCode::BAD_MESSAGE if exclusive && !known => {
                self.create_plainly()
            }
            _ if in_temp_dir => UploadAttemptAbort::Failed(fault()),
            // The server may admit the final name but no others, or an existing file in a directory
            // that is not writable: scp would have overwritten it.
            _ => {
                self.refused = Some(status.clone());
                UploadAttemptAbort::Retry(UploadRetryReason::InPlace)
            }
        }
    }

    /// Handles a refused OPEN like [`TempOpenAttempts::refused`] for an upload that cannot repeat it,
    /// since it has taken data of another host. No other name is tried: one is hardly ever taken.
    pub(super) fn refused_once(
        &mut self,
        core: &mut LaneContext,
        job: JobId,
        status: &Status,
        temp_dir: Option<&TempDir>,
    ) -> UploadAttemptAbort {
        self.tries = NAME_TRIES;
        let abort = self.refused(core, status, temp_dir);
        if self.unexclusive {
            // The upload that reads the data again creates its temporary without the flag.
            core.learn(job, no_exclusive(), "");
        }
        abort
    }

    /// Returns the reason why a file is written in place, if its temporary was refused.
    pub(super) fn why_in_place(&mut self) -> Option<String> {
        let status = self.refused.take()?;
        Some(format!("{NO_TEMPORARY} ({status})"))
    }

    /// Repeats OPEN without EXCL, which not every server supports. The name is random.
    fn create_plainly(&mut self) -> UploadAttemptAbort {
        self.unexclusive = true;
        UploadAttemptAbort::Retry(UploadRetryReason::NewName)
    }

    /// Handles a successful OPEN, of a `temporary` or of the target, which did not exist before
    /// (`fresh`) and has this path; returns the reason why it is written in place.
    pub(super) fn allowed(
        &mut self,
        core: &mut LaneContext,
        job: JobId,
        temporary: bool,
        (fresh, path): (bool, &[u8]),
    ) -> Option<String> {
        if temporary && self.unexclusive {
            core.learn(job, no_exclusive(), "");
        }
        let status = self.refused.take()?;
        // If the file exists, the server may admit only this name because the directory is not
        // writable.
        let name = path.iter().rev().take_while(|byte| **byte != b'/');
        if fresh && name.count() <= SHORT_NAME {
            let found = RefusedOperations::of_temporary(path);
            core.learn(job, found, &status.to_string());
            return None;
        }
        Some(format!("{NO_TEMPORARY} ({status})"))
    }
}

/// Returns the finding that the server does not know the flag EXCL.
fn no_exclusive() -> RefusedOperations {
    RefusedOperations {
        exclusive: true,
        ..RefusedOperations::default()
    }
}
