//! Errors of SFTP requests, by who is at fault and which check failed, until they become a STATUS.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;
use sftp::StatusCode;

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The file or listing has ended.
    EndOfFile,
    /// The client sent a request that cannot be carried out.
    Invalid(Invalid),
    /// The administrator does not allow the request.
    Forbidden(Forbidden),
    /// This server cannot do what the request asks for.
    Unsupported(Unsupported),
    /// A limit of this server is reached.
    Exhausted(Exhausted),
    /// The request does not apply to what has this name.
    Unsuitable(Unsuitable),
    /// A system call failed, in this step of the request if it has several.
    System {
        step: Option<FileStep>,
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
        CutName = BAD_MESSAGE "a name is cut short";
        CutNumber = BAD_MESSAGE "a number is cut short";
        CutPath = BAD_MESSAGE "a path is cut short";
        TooManyNames = BAD_MESSAGE "so many names are not looked up at once";
        TooManyPaths = BAD_MESSAGE "so many are not made durable at once";
        KeyLength = BAD_MESSAGE "the key has 32 bytes";
        BlockLength = BAD_MESSAGE "blocks of this length are not summed";
        RangeLength = BAD_MESSAGE "the range is too long";
        UnpackedLength = BAD_MESSAGE "the block claims to be longer than a block may be";
        PackedBlock = BAD_MESSAGE "the block is not what it claims";
        XattrList = BAD_MESSAGE "the attributes make no sense";
        XattrName = BAD_MESSAGE "attributes of such a name are not copied";
        Handle = NO_SUCH_FILE "no such handle is open";
        Overlap = FAILURE "the ranges to copy between overlap";
    }
    /// A rule of the administrator.
    Forbidden {
        ReadOnly = PERMISSION_DENIED "nothing can be changed here: it is served read-only";
        DropBox = PERMISSION_DENIED "only new files can be put here: it is a drop box";
    }
    /// Something that this server does not have, or leaves to other requests.
    Unsupported {
        Request = OP_UNSUPPORTED "this server does not know the request";
        Flag = OP_UNSUPPORTED "this server does not know the flag";
        Sums = OP_UNSUPPORTED "this server has no such sums";
        OneRequest = OP_UNSUPPORTED "this takes more than one request";
    }
    /// A limit of this server.
    Exhausted {
        OpenFiles = FAILURE "too many files are open at once";
        Trees = FAILURE "too many trees are listed at once";
        Memory = FAILURE "this server has no memory for zstd";
        Names = FAILURE "so many names do not fit into one answer";
        Xattrs = FAILURE "it has more extended attributes than fit into an answer";
        // Held files get their names first; then the request is repeated.
        Group = FAILURE "another file goes there first";
        Time = FAILURE "the client has left";
    }
    /// A file or account that the request does not apply to.
    Unsuitable {
        Directory = FAILURE "it is a directory";
        DirectoryTarget = FAILURE "it is a directory at the far end";
        NotRegular = FAILURE "only what is in a regular file is copied";
        Special = FAILURE "it is neither a file nor a directory";
        User = NO_SUCH_FILE "there is no such user";
    }
}

/// Step of a request that puts a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStep {
    Create,
    Write,
    SyncData,
    SyncName,
    Close,
    Rename,
}

impl FileStep {
    /// Error of the step.
    pub(super) fn failed(self, errno: Errno) -> RequestError {
        let step = Some(self);
        RequestError::System { step, errno }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Create => "create the file",
            Self::Write => "write",
            Self::SyncData => "make the data durable",
            Self::SyncName => "make the name durable",
            Self::Close => "close the file",
            Self::Rename => "rename the temporary",
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
        let full = FileStep::Write.failed(Errno::NOSPC);
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
