//! Errors of SFTP requests, by who is at fault and which check failed, until they become a STATUS.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;
use sftp::StatusCode;

/// Reason why a request failed, which decides the code and the text of its STATUS and the line of
/// the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The file or listing has ended.
    EndOfFile,
    /// The client sent a request that cannot be carried out.
    Invalid(Invalid),
    /// The administrator does not allow the request.
    Forbidden(Forbidden),
    /// The server does not support the request.
    Unsupported(Unsupported),
    /// A limit of this server is reached.
    Exhausted(Exhausted),
    /// The named entry is not the one that the client expects.
    Unexpected(Unexpected),
    /// The request does not apply to the type of the named entry.
    Unsuitable(Unsuitable),
    /// A system call failed, in this step of the request if it has several.
    System {
        step: Option<PutFileStep>,
        errno: Errno,
    },
    /// A write or read failed without an error number.
    Io(String),
    /// The request failed for this one of its paths, shown without control characters.
    OfPath(Box<Self>, String),
}

/// Declares a group of errors as a table: name, code and text of the STATUS.
macro_rules! reasons {
    ($($(#[$meta:meta])* $group:ident { $($name:ident = $code:ident $text:literal;)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum $group {
                $($name,)*
            }

            impl $group {
                fn status(self) -> (StatusCode, &'static str) {
                    match self {
                        $(Self::$name => (StatusCode::$code, $text),)*
                    }
                }
            }

            impl From<$group> for RequestError {
                fn from(reason: $group) -> Self {
                    Self::$group(reason)
                }
            }
        )*
    };
}

reasons! {
    /// A check of the client's request that failed; nothing was done.
    Invalid {
        CutName = BAD_MESSAGE "truncated name";
        CutNumber = BAD_MESSAGE "truncated number";
        CutPath = BAD_MESSAGE "truncated path";
        TooManyNames = BAD_MESSAGE "too many names in one request";
        TooManyPaths = BAD_MESSAGE "too many files in one sync request";
        KeyLength = BAD_MESSAGE "the key must have 32 bytes";
        BlockLength = BAD_MESSAGE "unsupported block length";
        RangeLength = BAD_MESSAGE "the range is too long";
        UnpackedLength = BAD_MESSAGE "the block exceeds the maximum length";
        PackedBlock = BAD_MESSAGE "the block is malformed";
        XattrList = BAD_MESSAGE "malformed attributes";
        XattrName = BAD_MESSAGE "attributes with this name are not supported";
        Handle = NO_SUCH_FILE "no such handle";
        Overlap = FAILURE "the ranges to copy overlap";
    }
    /// A rule of the administrator.
    Forbidden {
        ReadOnly = PERMISSION_DENIED "this folder is served read-only";
        DropBox = PERMISSION_DENIED "this folder is a drop box: only new files may be added";
    }
    /// The request needs a feature that this server lacks or provides by other requests.
    Unsupported {
        Request = OP_UNSUPPORTED "unsupported request";
        Flag = OP_UNSUPPORTED "unsupported flag";
        Sums = OP_UNSUPPORTED "unsupported checksum";
        OneRequest = OP_UNSUPPORTED "it needs more than one request";
    }
    /// A limit of this server.
    Exhausted {
        OpenFiles = FAILURE "too many open files";
        Trees = FAILURE "too many tree listings at once";
        Memory = FAILURE "out of memory for zstd";
        Names = FAILURE "the names exceed the size of an answer";
        Xattrs = FAILURE "its extended attributes exceed the size of an answer";
        // Held files get their names first; then the request is repeated.
        Group = FAILURE "another file with this name is still being written";
        Time = FAILURE "the client disconnected";
    }
    /// An entry that is not the one that the client expects; nothing was done. The texts begin with
    /// [`sftp::NOT_EXPECTED`].
    Unexpected {
        Entry = FAILURE "not the expected entry: another one has taken its place";
        Listed = FAILURE "not the expected entry: it has another owner, time or inode than the listed \
            one; check that nobody else has put it there, then run the same command again";
        Links = FAILURE "not the expected entry: it has got another hard link; check that nobody \
            else has put it there, then run the same command again";
    }
    /// A file or account that the request does not apply to.
    Unsuitable {
        Directory = FAILURE "it is a directory";
        DirectoryTarget = FAILURE "it is a directory at the far end: choose another name";
        NotRegular = FAILURE "only data of regular files can be copied";
        Special = FAILURE "it is neither a file nor a directory";
        User = NO_SUCH_FILE "no such user";
    }
}

/// Step of a request that puts a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutFileStep {
    Create,
    Write,
    SyncData,
    SyncName,
    Close,
    Rename,
}

impl PutFileStep {
    /// Error of the step.
    pub(super) fn failed(self, errno: Errno) -> RequestError {
        let step = Some(self);
        RequestError::System { step, errno }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Create => "create the file",
            Self::Write => "write",
            Self::SyncData => "sync the file",
            Self::SyncName => "sync its directory",
            Self::Close => "close the file",
            Self::Rename => "rename the temporary file",
        }
    }
}

impl RequestError {
    /// Code of the STATUS.
    pub(crate) fn code(&self) -> StatusCode {
        match self {
            Self::EndOfFile => StatusCode::EOF,
            Self::System { errno, .. } => code_of(*errno),
            Self::Io(_) => StatusCode::FAILURE,
            Self::OfPath(why, _) => why.code(),
            Self::Invalid(reason) => reason.status().0,
            Self::Forbidden(reason) => reason.status().0,
            Self::Unsupported(reason) => reason.status().0,
            Self::Exhausted(reason) => reason.status().0,
            Self::Unexpected(reason) => reason.status().0,
            Self::Unsuitable(reason) => reason.status().0,
        }
    }

    /// Text of the STATUS.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::EndOfFile => "End of file".into(),
            Self::System { step, errno } => match step {
                None => errno_text(*errno).into(),
                Some(step) => format!("cannot {}: {}", step.text(), reason(*errno)).into(),
            },
            Self::Io(text) => text.into(),
            Self::OfPath(why, path) => format!("{}: {path}", why.text()).into(),
            Self::Invalid(reason) => reason.status().1.into(),
            Self::Forbidden(reason) => reason.status().1.into(),
            Self::Unsupported(reason) => reason.status().1.into(),
            Self::Exhausted(reason) => reason.status().1.into(),
            Self::Unexpected(reason) => reason.status().1.into(),
            Self::Unsuitable(reason) => reason.status().1.into(),
        }
    }

    /// Error of the disk, if it failed or is full, which is not the client's fault.
    pub(super) fn of_disk(&self) -> Option<Errno> {
        match self {
            Self::System { errno, .. } => {
                let of_disk = matches!(*errno, Errno::NOSPC | Errno::DQUOT | Errno::IO);
                of_disk.then_some(*errno)
            }
            Self::OfPath(why, _) => why.of_disk(),
            _ => None,
        }
    }
}

impl From<Errno> for RequestError {
    fn from(errno: Errno) -> Self {
        Self::System { step: None, errno }
    }
}

impl From<io::Error> for RequestError {
    fn from(e: io::Error) -> Self {
        match Errno::from_io_error(&e) {
            Some(errno) => errno.into(),
            None => Self::Io(e.to_string()),
        }
    }
}

/// Codes of sftp-server.c (errno_to_portable), since clients expect their meaning.
fn code_of(errno: Errno) -> StatusCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => StatusCode::NO_SUCH_FILE,
        Errno::PERM | Errno::ACCESS | Errno::FAULT => StatusCode::PERMISSION_DENIED,
        Errno::NAMETOOLONG | Errno::INVAL => StatusCode::BAD_MESSAGE,
        Errno::NOSYS => StatusCode::OP_UNSUPPORTED,
        _ => StatusCode::FAILURE,
    }
}

/// The system's text for an error, without its number, which means nothing to users.
fn errno_text(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The system's text for an error, to continue a sentence.
pub(super) fn reason(errno: Errno) -> String {
    let text = errno_text(errno);
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_error_is_found_below_its_step_and_its_path() {
        let full = PutFileStep::Write.failed(Errno::NOSPC);
        assert_eq!(full.text(), "cannot write: no space left on device");
        let of_path = RequestError::OfPath(Box::new(full), "a".to_owned());
        assert_eq!(of_path.of_disk(), Some(Errno::NOSPC));
        assert_eq!(of_path.code(), StatusCode::FAILURE);
        assert!(of_path.text().ends_with("device: a"), "{}", of_path.text());
        assert_eq!(RequestError::from(Errno::NOENT).of_disk(), None);
        let forbidden = RequestError::from(Forbidden::ReadOnly);
        assert_eq!(forbidden.of_disk(), None);
        assert_eq!(forbidden.code(), StatusCode::PERMISSION_DENIED);
    }
}
