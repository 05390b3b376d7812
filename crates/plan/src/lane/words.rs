//! What went wrong, in words. The path is not in them: whoever shows them has it.

use sftp::{Reply, Status, StatusCode};

use crate::Fault;

pub(super) fn remote(what: impl Into<String>) -> Fault {
    Fault {
        what: what.into(),
        remote: true,
    }
}

/// Version 3 has one code for most of errno, so its cause can only be guessed at.
pub(super) fn refused(doing: &str, status: &Status) -> Fault {
    let hint = match (status.code, doing) {
        (StatusCode::FAILURE, WRITING | SYNCING | CLOSING) => {
            "; its disk may be full or a quota used up"
        }
        (StatusCode::FAILURE, CREATING) => {
            "; a directory may stand there, its disk be full or a quota used up"
        }
        (StatusCode::FAILURE, RENAMING) => "; a directory may stand there",
        _ => "",
    };
    remote(format!("{doing}: {status}{hint}"))
}

pub(super) const CREATING: &str = "cannot create the file";
pub(super) const WRITING: &str = "cannot write";
pub(super) const SYNCING: &str = "cannot make the data durable";
pub(super) const CLOSING: &str = "cannot close the file";
pub(super) const RENAMING: &str = "cannot rename the temporary";

/// The STATUS in a reply; a success of another kind counts as OK.
pub(super) fn status(reply: &Reply) -> Result<(), &Status> {
    match reply {
        Reply::Status(status) if !status.is_ok() => Err(status),
        _ => Ok(()),
    }
}
