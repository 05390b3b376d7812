//! Errors of private keys, as sentences for the user.

use std::fmt;
use std::io;
use std::path::Path;

use crate::agent::AgentError;
use crate::escape;
use crate::prompt::PromptError;

/// The reason why a key cannot be used; one sentence that names its file or the agent.
#[derive(Debug)]
pub struct IdentityError {
    what: String,
    kind: IdentityErrorKind,
}

#[derive(Debug, PartialEq, Eq)]
enum IdentityErrorKind {
    Missing,
    WrongPassphrase,
    Other,
}

impl IdentityError {
    pub(super) fn new(path: &Path, why: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {why}", escape::path(path)),
            kind: IdentityErrorKind::Other,
        }
    }

    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => IdentityErrorKind::Missing,
            _ => IdentityErrorKind::Other,
        };
        Self {
            kind,
            ..Self::new(path, format_args!("cannot read the file: {error}"))
        }
    }

    pub(super) fn wrong_passphrase(path: &Path) -> Self {
        Self {
            kind: IdentityErrorKind::WrongPassphrase,
            ..Self::new(path, "wrong passphrase")
        }
    }

    pub(super) fn no_passphrase(path: &Path) -> Self {
        Self::new(
            path,
            "no passphrase given for this private key: run the command again and enter it, or \
             load the key with ssh-add",
        )
    }

    pub(super) fn not_asked(path: &Path, error: &PromptError) -> Self {
        Self::new(
            path,
            format_args!(
                "the key needs a passphrase, but {error}; load it into an agent with ssh-add"
            ),
        )
    }

    pub(super) fn agent(error: AgentError) -> Self {
        Self {
            what: error.to_string(),
            kind: IdentityErrorKind::Other,
        }
    }

    pub(super) fn no_such_offer() -> Self {
        Self {
            what: "internal error: the offered key is missing".into(),
            kind: IdentityErrorKind::Other,
        }
    }

    /// True if the file does not exist.
    pub fn is_missing(&self) -> bool {
        self.kind == IdentityErrorKind::Missing
    }

    /// True if the passphrase is wrong.
    pub fn is_wrong_passphrase(&self) -> bool {
        self.kind == IdentityErrorKind::WrongPassphrase
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for IdentityError {}
