use wire::{Field, FieldReader, WireError};

/// Status code, SSH_FX_* (draft-ietf-secsh-filexfer-02 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatusCode(pub u32);

impl StatusCode {
    /// Success.
    pub const OK: Self = Self(0);
    /// End of file or of the directory.
    pub const EOF: Self = Self(1);
    /// ENOENT, ENOTDIR, ELOOP and the like.
    pub const NO_SUCH_FILE: Self = Self(2);
    /// EPERM, EACCES.
    pub const PERMISSION_DENIED: Self = Self(3);
    /// Errors without a code of their own: EEXIST, ENOSPC, EDQUOT, EISDIR, ENOTEMPTY, ...
    pub const FAILURE: Self = Self(4);
    /// Malformed request; also OpenSSH's code for EINVAL and ENAMETOOLONG.
    pub const BAD_MESSAGE: Self = Self(5);
    /// Client-side code that no server sends.
    pub const NO_CONNECTION: Self = Self(6);
    /// Client-side code that no server sends.
    pub const CONNECTION_LOST: Self = Self(7);
    /// Unknown request or extension.
    pub const OP_UNSUPPORTED: Self = Self(8);

    /// Returns the meaning in words, to stand after a colon.
    pub fn words(self) -> &'static str {
        match self {
            Self::OK => "no error",
            Self::EOF => "end of file",
            Self::NO_SUCH_FILE => "no such file or directory",
            Self::PERMISSION_DENIED => "permission denied",
            Self::FAILURE => "the server gave no reason (SSH_FX_FAILURE)",
            Self::BAD_MESSAGE => {
                "the server rejected the file name or the request (SSH_FX_BAD_MESSAGE): the name \
                 may be too long or have characters that it does not allow"
            }
            Self::NO_CONNECTION => "the server reported that it has no connection",
            Self::CONNECTION_LOST => "the server reported a lost connection",
            Self::OP_UNSUPPORTED => "the server does not support this operation",
            _ => "the server answered with an unknown error code",
        }
    }
}

impl<'a> Field<'a> for StatusCode {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u32().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

/// Error message and language tag of a STATUS, which servers before protocol version 3 omit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusText<'a> {
    /// Text for the user; the draft says UTF-8, which is not relied on.
    pub message: &'a [u8],
}

impl<'a> Field<'a> for StatusText<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        if r.left() == 0 {
            return Ok(Self::default());
        }
        let message = r.string()?;
        if r.left() > 0 {
            r.string()?;
        }
        Ok(Self { message })
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.message.write(out);
        b"".as_slice().write(out);
    }
}
