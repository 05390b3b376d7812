//! Error and warning texts of a lane. The path is not included; the code that shows a text has it.

use sftp::{Reply, Status, StatusCode};

use crate::{JobFailure, JobFailureKind, TempDir};

pub(super) fn remote(what: impl Into<String>) -> JobFailure {
    JobFailure::new(what, true)
}

/// Returns the failure of a request that the server refused, in the server's words.
pub(super) fn answered(status: &Status) -> JobFailure {
    remote(status.to_string()).of_kind(cause(status))
}

/// Returns the failure of a listing that would never have been complete, for this reason.
pub(super) fn endless(why: &str) -> JobFailure {
    remote(why).of_kind(JobFailureKind::EndlessListing)
}

/// Returns the failure of a listing with more entries than its owner wants.
pub(super) fn longer_than_wanted() -> JobFailure {
    remote("the directory has too many entries to look through: listing stopped")
}

/// Returns the cause of a refusal. SFTP version 3 has no code for a full disk, which only the
/// server's message can tell.
pub(super) fn cause(status: &Status) -> JobFailureKind {
    match status.code {
        StatusCode::NO_SUCH_FILE => JobFailureKind::NotFound,
        StatusCode::PERMISSION_DENIED => JobFailureKind::PermissionDenied,
        StatusCode::OP_UNSUPPORTED => JobFailureKind::Unsupported,
        _ if says(status, &NO_SPACE) => JobFailureKind::NoSpace,
        _ => JobFailureKind::Other,
    }
}

/// Returns the fault for a refused request. SFTP version 3 has one code for most of errno, so the
/// cause can only be guessed, unless the server's message says more.
pub(super) fn refused(doing: &str, status: &Status) -> JobFailure {
    let hint = match (status.code, doing) {
        // Errors of another file system are reported in various words.
        (StatusCode::FAILURE, RENAMING_FROM_TEMP_DIR) => {
            "; --temp-dir must be on the same file system as the target"
        }
        (StatusCode::NO_SUCH_FILE, CREATING) => ": create its directory first",
        _ if status.is_explained() => "",
        (StatusCode::PERMISSION_DENIED, LISTING) => {
            ": give this account read and search permission (r and x) on it"
        }
        (StatusCode::PERMISSION_DENIED, MAKING_SYMLINK) => {
            ": this account may not write in its directory, or the server forbids symlinks"
        }
        (StatusCode::PERMISSION_DENIED | StatusCode::OP_UNSUPPORTED, REPLACING_BY_SYMLINK) => {
            ": the server or this account does not allow the rename: remove the entry there, then \
             copy again"
        }
        (StatusCode::FAILURE, WRITING | SYNCING | CLOSING) => DISK_MAY_BE_FULL,
        (StatusCode::FAILURE, CREATING) => {
            "; a directory may be in the way, or the file system may be read-only or full: see its \
             log"
        }
        (StatusCode::FAILURE, RENAMING) => {
            "; a directory may be in the way, or the disk may be full: see its log"
        }
        _ => "",
    };
    let what = format!("{doing}: {}", with_hint(status, hint));
    let failure = remote(what).of_kind(cause(status));
    match doing {
        OPENING | READING => of_source(failure),
        _ => failure,
    }
}

/// Returns the server's words, followed by a hint at the cause or, without one, by the advice that the
/// status has.
pub(super) fn with_hint(status: &Status, hint: &str) -> String {
    match hint {
        "" => status.to_string(),
        _ => format!("{}{hint}", status.words()),
    }
}

/// Returns the failure to read a source. The words of its server do not tell of the disk that is
/// written to.
pub(super) fn of_source(failure: JobFailure) -> JobFailure {
    match failure.kind {
        JobFailureKind::NoSpace => failure.of_kind(JobFailureKind::Other),
        _ => failure,
    }
}

/// Returns the fault for a file that cannot be opened under its final name.
pub(super) fn not_overwritten(status: &Status) -> JobFailure {
    if status.code != StatusCode::PERMISSION_DENIED {
        return refused(CREATING, status);
    }
    let what = format!(
        "cannot create or overwrite the file: {status}: the server may be read-only; otherwise check \
         the permissions of the file and of its directory, and its attributes (lsattr)"
    );
    remote(what).of_kind(cause(status))
}

/// Returns the fault for a temporary that other jobs have begun and that cannot be opened again.
pub(super) fn not_reopened(status: &Status) -> JobFailure {
    if status.code != StatusCode::NO_SUCH_FILE {
        return refused("cannot reopen the temporary file", status);
    }
    let what = "the temporary file is gone: it, or its directory, was removed during the copy: \
                copy again";
    remote(what.to_owned()).of_kind(cause(status))
}

/// Returns the fault for a temporary that the server does not create in the directory of
/// `--temp-dir`.
pub(super) fn refused_in_temp_dir(dir: &TempDir, status: &Status) -> JobFailure {
    let hint = match status.code {
        StatusCode::NO_SUCH_FILE => {
            ": create this directory on the server, or leave out --temp-dir"
        }
        StatusCode::FAILURE if !status.is_explained() => {
            "; the file system may be read-only or full: see its log"
        }
        _ => "",
    };
    let dir = sftp::printable(dir.path(), 4096);
    let cause = match cause(status) {
        // It is the directory that is missing, and not the file's.
        JobFailureKind::NotFound => JobFailureKind::Other,
        cause => cause,
    };
    let said = with_hint(status, hint);
    let what = format!("cannot create a temporary file in {dir} (--temp-dir): {said}");
    remote(what).of_kind(cause)
}

/// Returns the message about a temporary that is left after this answer to REMOVE; `None` if it is gone.
pub(super) fn left_temporary(temp: &[u8], reply: &Reply) -> Option<String> {
    let status = status(reply).err()?;
    if status.code == StatusCode::NO_SUCH_FILE {
        return None;
    }
    let name = sftp::printable(temp, 4096);
    Some(format!(
        "cannot remove the temporary file {name}: remove it by hand"
    ))
}

/// Returns the warning for an old file that was moved aside and could not be removed.
pub(super) fn old_is_left(old: &[u8]) -> String {
    let old = sftp::printable(old, 4096);
    format!("cannot remove the old file, which was renamed to {old}: remove it by hand")
}

/// Returns true if the server's message says that nothing can be stored or changed at the target.
pub(super) fn says_full(status: &Status) -> bool {
    says(status, &NO_SPACE) || says(status, &["read-only file system"])
}

/// Words of servers whose disk is full or whose quota is used up.
const NO_SPACE: [&str; 3] = ["no space", "quota", "disk full"];

fn says(status: &Status, words: &[&str]) -> bool {
    let said = status.message.to_ascii_lowercase();
    words.iter().any(|words| said.contains(words))
}

/// Returns true if the server has changed nothing because it found another entry than the expected
/// one.
pub(super) fn is_unexpected(status: &Status) -> bool {
    status.code == StatusCode::FAILURE && status.message.starts_with(sftp::NOT_EXPECTED)
}

/// Returns true if a failure to make a name durable is only reported: a user who may not read a
/// directory may still put files there, and those exist.
pub(super) fn is_told_only(status: &Status) -> bool {
    status.code == StatusCode::PERMISSION_DENIED
}

pub(super) const SYNCING_NAME: &str = "cannot sync its directory";
pub(super) const LISTING: &str = "cannot list the directory";
pub(super) const MAKING_HARD_LINK: &str = "cannot make the hard link";
pub(super) const MAKING_SYMLINK: &str = "cannot make the symlink";
pub(super) const REPLACING_BY_SYMLINK: &str = "cannot replace the entry there by the symlink";
pub(super) const OPENING: &str = "cannot open the file";
pub(super) const READING: &str = "cannot read";
pub(super) const CREATING: &str = "cannot create the file";
pub(super) const WRITING: &str = "cannot write";
pub(super) const SETTING: &str = "cannot set its permissions, times or owner";
pub(super) const SYNCING: &str = "cannot sync the file";
pub(super) const CLOSING: &str = "cannot close the file";
pub(super) const RENAMING: &str = "cannot rename the temporary file";
pub(super) const RENAMING_FROM_TEMP_DIR: &str =
    "cannot move the temporary file from the --temp-dir directory to the target";
/// Hint at the causes of SSH_FX_FAILURE in requests that store data.
pub(super) const DISK_MAY_BE_FULL: &str =
    "; its disk may be full, or a quota used up: check both, then copy again";
pub(super) const READ_ONLY: &str = "permission denied: the existing file is read-only; make it \
    writable, or remove it";

/// Returns the STATUS of a reply as an error; a successful reply of another kind counts as OK.
pub(super) fn status(reply: &Reply) -> Result<(), &Status> {
    match reply {
        Reply::Status(status) if !status.is_ok() => Err(status),
        _ => Ok(()),
    }
}

/// Returns the warning for an impossible name in a listing.
pub fn left_out(name: &[u8]) -> String {
    let shown = sftp::printable(name, 256);
    format!("skipping an invalid file name from the server: \"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prevents "No space left on device; its disk may be full or a quota used up".
    #[test]
    fn nothing_is_guessed_where_the_server_says_why() {
        let status = |message: &str| Status {
            code: StatusCode::FAILURE,
            message: message.to_owned(),
        };
        let bare = refused(WRITING, &status("Failure")).what;
        assert!(
            bare.ends_with(
                "; its disk may be full, or a quota used up: check both, then copy again"
            )
        );
        let said = refused(WRITING, &status("no space left on device")).what;
        assert_eq!(said, "cannot write: no space left on device");
    }

    /// Bug: the words of a source's server were taken for a full disk at the target, and a fan-out did
    /// not look for another way.
    #[test]
    fn a_source_that_speaks_of_a_full_disk_is_no_full_target() {
        let status = Status {
            code: StatusCode::FAILURE,
            message: "No space left on device".to_owned(),
        };
        for (doing, kind) in [
            (READING, JobFailureKind::Other),
            (OPENING, JobFailureKind::Other),
            (WRITING, JobFailureKind::NoSpace),
        ] {
            assert_eq!(refused(doing, &status).kind, kind, "{doing}");
        }
    }

    #[test]
    fn a_refusal_has_the_cause_that_the_server_tells() {
        let cause = |code, message: &str| {
            let message = message.to_owned();
            answered(&Status { code, message }).kind
        };
        for (code, message, expected) in [
            (StatusCode::NO_SUCH_FILE, "", JobFailureKind::NotFound),
            (
                StatusCode::PERMISSION_DENIED,
                "Permission denied",
                JobFailureKind::PermissionDenied,
            ),
            (StatusCode::OP_UNSUPPORTED, "", JobFailureKind::Unsupported),
            (
                StatusCode::FAILURE,
                "No space left on device",
                JobFailureKind::NoSpace,
            ),
            (
                StatusCode::FAILURE,
                "Disk quota exceeded",
                JobFailureKind::NoSpace,
            ),
            (
                StatusCode::FAILURE,
                "Read-only file system",
                JobFailureKind::Other,
            ),
            (StatusCode::FAILURE, "Failure", JobFailureKind::Other),
        ] {
            assert_eq!(cause(code, message), expected, "{message}");
        }
    }

    #[test]
    fn a_missing_directory_for_temporaries_is_named() {
        let status = Status {
            code: StatusCode::NO_SUCH_FILE,
            message: "No such file".to_owned(),
        };
        assert_eq!(
            refused_in_temp_dir(&TempDir::new(b"/the/dir"), &status).what,
            "cannot create a temporary file in /the/dir (--temp-dir): no such file or directory: \
             create this directory on the server, or leave out --temp-dir"
        );
    }

    /// Bug: "permission denied" alone did not say which permission a directory needs, or that a server
    /// may forbid symlinks.
    #[test]
    fn a_refused_listing_or_symlink_was_not_explained() {
        let denied = |doing, message: &str| {
            let message = message.to_owned();
            let code = StatusCode::PERMISSION_DENIED;
            refused(doing, &Status { code, message }).what
        };
        assert_eq!(
            denied(LISTING, "Permission denied"),
            "cannot list the directory: permission denied: give this account read and search \
             permission (r and x) on it"
        );
        let said = denied(MAKING_SYMLINK, "");
        assert!(said.ends_with("or the server forbids symlinks"), "{said}");
        let said = denied(LISTING, "this server takes files only");
        assert!(said.ends_with("(this server takes files only)"), "{said}");
    }

    /// Bug: the advice was cut from the words of the status by its text, which may come from a server.
    #[test]
    fn the_advice_of_a_status_gives_way_to_a_hint_and_its_words_do_not() {
        let status = |message: &str| Status {
            code: StatusCode::FAILURE,
            message: message.to_owned(),
        };
        let hint = "; a hint";
        for (message, bare, hinted) in [
            (
                "Failure",
                "the server gave no reason (SSH_FX_FAILURE): see its log",
                "the server gave no reason (SSH_FX_FAILURE); a hint",
            ),
            (
                "no quorum: see its log",
                "no quorum: see its log",
                "no quorum: see its log; a hint",
            ),
        ] {
            assert_eq!(with_hint(&status(message), ""), bare);
            assert_eq!(with_hint(&status(message), hint), hinted);
        }
    }
}
