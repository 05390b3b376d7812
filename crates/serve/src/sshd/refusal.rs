//! Reasons why a login is refused, for the log. The client learns none of them.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ssh::key::{CertificateError, KeyError};

/// Reason why a key or certificate does not log in to an account.
#[derive(Debug)]
pub(super) enum KeyRefusal {
    /// The account may not log in.
    Account(Arc<AccountRefusal>),
    /// A server that is not root's serves this account only.
    OtherAccount(String),
    /// The list of keys cannot be used.
    File(KeyListError),
    /// The key is on no line of the file.
    NotListed(&'static str),
    /// The authority of the certificate is on no line of the file.
    AuthorityNotListed(&'static str),
    /// The last line with the key or authority does not accept it.
    Line {
        number: usize,
        file: &'static str,
        why: LineRefusal,
    },
    /// Neither of two files accepts the certificate.
    Both(Box<Self>, Box<Self>),
    /// The key is none of those of serve --once, or it has expired.
    NotExpected,
    /// The key cannot make signatures of the client's algorithm.
    Algorithm,
    /// The signature does not verify.
    Signature(KeyError),
    /// The flags of the security key's signature do not suffice.
    Touch(UnmetSecurityKeyRequirement),
    /// A limit of connections is reached.
    Full(&'static str),
    /// The account process refuses the key, for this reason.
    ByProcess(String),
}

/// Requirement that a security key's proof does not meet: user presence, user verification, or
/// being a security key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmetSecurityKeyRequirement {
    Presence,
    Verification,
    /// The key is no security key, which alone could verify its user.
    SecurityKey,
}

/// Reason why a line does not accept a key or certificate.
#[derive(Debug)]
pub(super) enum LineRefusal {
    /// A line of a list of authorities has options.
    OptionsOfAuthority,
    Option(KeyOptionRefusal),
    /// The line is for certificates, and the client has the authority's key.
    ForCertificates,
    /// The line is for the key, and the client has a certificate of it.
    ForKey,
    Certificate(CertificateRefusal),
}

/// Reason why the options of a line rule a login out.
#[derive(Debug)]
pub(super) enum KeyOptionRefusal {
    From,
    UnreadableExpiry,
    Expired,
    /// The option may be a restriction that this server does not know.
    Unknown(String),
    Unquoted,
    BehindQuotes,
    OpenQuotes,
}

/// Reason why a certificate of a listed authority does not log in.
#[derive(Debug)]
pub(super) enum CertificateRefusal {
    NotACertificate,
    Invalid(CertificateError),
    SourceAddress,
    UnreadableSourceAddress,
}

/// Reason why a list of keys cannot be used.
#[derive(Debug)]
pub(super) struct KeyListError {
    path: PathBuf,
    why: KeyFileProblem,
}

/// Reason of a [`KeyListError`]. Owner and mode are checked like StrictModes of sshd, on the file
/// and its directories.
#[derive(Debug)]
pub(super) enum KeyFileProblem {
    Io(io::Error),
    NotAFile,
    OtherOwner,
    Writable,
    TooLong,
}

/// Reason why an account may not log in.
#[derive(Debug)]
pub(super) enum AccountRefusal {
    /// No account can have such a name.
    Name,
    Unreadable(nix::Error),
    Missing,
    /// The setting `users` does not name the account.
    NotAmongUsers,
    /// The shell only ends the session.
    NologinShell(PathBuf),
    NoShell(PathBuf),
    Shadow(io::Error),
    Locked,
    Expired,
    /// nologin(5)
    Nologin,
}

impl KeyFileProblem {
    /// Error of the file or directory at this path.
    pub(super) fn of(self, path: impl Into<PathBuf>) -> KeyListError {
        let path = path.into();
        KeyListError { path, why: self }
    }
}

impl Display for KeyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(why) => why.fmt(f),
            Self::OtherAccount(name) => write!(f, "this server admits only {name}"),
            Self::File(why) => why.fmt(f),
            Self::NotListed(file) => write!(f, "the key is not in {file}"),
            Self::AuthorityNotListed(file) => {
                write!(f, "the authority that signed it is not in {file}")
            }
            Self::Line { number, file, why } => write!(f, "line {number} of {file} {why}"),
            Self::Both(first, second) => write!(f, "{first}; {second}"),
            Self::NotExpected => f.write_str("the one-time key is unknown, used or expired"),
            Self::Algorithm => f.write_str("the signature algorithm does not match the key"),
            Self::Signature(e) => e.fmt(f),
            Self::Touch(why) => why.fmt(f),
            Self::Full(why) => f.write_str(why),
            Self::ByProcess(why) => f.write_str(why),
        }
    }
}

impl Display for UnmetSecurityKeyRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Presence => "the security key was not touched",
            Self::Verification => "the security key did not verify its user (verify-required)",
            Self::SecurityKey => "verify-required needs a security key",
        })
    }
}

/// Continues a sentence about the line.
impl Display for LineRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OptionsOfAuthority => {
                f.write_str("has options, which are not allowed in a list of authorities")
            }
            Self::Option(why) => why.fmt(f),
            Self::ForCertificates => f.write_str(
                "accepts certificates signed by the key, not the key itself (cert-authority)",
            ),
            Self::ForKey => {
                f.write_str("lists its authority as a plain key, without cert-authority")
            }
            Self::Certificate(why) => write!(f, "lists its authority, but {why}"),
        }
    }
}

/// Continues a sentence about the line.
impl Display for KeyOptionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::From => "accepts the key from other addresses only (from=)",
            Self::UnreadableExpiry => "has a malformed expiry-time",
            Self::Expired => "has expired (expiry-time=)",
            Self::Unknown(name) => {
                let name = wire::escape::name(name.as_bytes());
                return write!(f, "has the unsupported option {name}");
            }
            Self::Unquoted => "has an option value without quotes",
            Self::BehindQuotes => "has characters after the quotes of an option",
            Self::OpenQuotes => "has an option with unbalanced quotes",
        })
    }
}

impl Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotACertificate => f.write_str("the key is not a certificate"),
            Self::Invalid(e) => e.fmt(f),
            Self::SourceAddress => {
                f.write_str("the certificate is for other addresses (source-address)")
            }
            Self::UnreadableSourceAddress => {
                f.write_str("the certificate has a malformed source-address")
            }
        }
    }
}

impl Display for KeyListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.why {
            KeyFileProblem::Io(e) => f.write_str(&sys::os_words(e)),
            KeyFileProblem::NotAFile => f.write_str("it is not a file"),
            KeyFileProblem::OtherOwner => {
                f.write_str("it belongs to another user, so no key is accepted: run chown on it")
            }
            KeyFileProblem::Writable => {
                f.write_str("other users can write it, so no key is accepted: run chmod go-w on it")
            }
            KeyFileProblem::TooLong => f.write_str("the file is too large for a list of keys"),
        }
    }
}

impl Display for AccountRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("not a valid account name"),
            Self::Unreadable(e) => write!(f, "cannot read the accounts: {e}"),
            Self::Missing => f.write_str("no such account"),
            Self::NotAmongUsers => f.write_str("it is not in the option users"),
            Self::NologinShell(shell) => write!(f, "its shell is {}", shell.display()),
            Self::NoShell(shell) => write!(f, "its shell {} is not executable", shell.display()),
            Self::Shadow(e) => {
                write!(
                    f,
                    "cannot check in /etc/shadow if the account is locked: {e}"
                )
            }
            Self::Locked => f.write_str(
                "it is locked: its password starts with ! (usermod -p '*' permits keys but no \
                 password)",
            ),
            Self::Expired => f.write_str("it has expired (chage -l shows when)"),
            Self::Nologin => f.write_str("logins are disabled (nologin file)"),
        }
    }
}

impl From<KeyListError> for KeyRefusal {
    fn from(why: KeyListError) -> Self {
        Self::File(why)
    }
}

impl From<UnmetSecurityKeyRequirement> for KeyRefusal {
    fn from(why: UnmetSecurityKeyRequirement) -> Self {
        Self::Touch(why)
    }
}

impl From<KeyOptionRefusal> for LineRefusal {
    fn from(why: KeyOptionRefusal) -> Self {
        Self::Option(why)
    }
}
