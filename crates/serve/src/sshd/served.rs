use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ssh::transport::DisabledProtection;

use super::accounts::expand;
use super::program::{AllowedProgram, ProgramAccount};
use super::rules::Account;
use crate::error::ExportError;
use crate::export::LOG_FILES;
use crate::{Access, ExportedTree, GrowingFileSpec};

/// Paths beneath a root that alone are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedPaths {
    /// The paths.
    pub paths: Vec<Vec<u8>>,
    /// Symlinks below them are followed.
    pub follows: bool,
}

/// Files and programs that a logged-in client may use, with the limits of its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedClientSettings {
    /// Serve only this directory tree.
    pub root: Option<PathBuf>,
    /// Paths beneath the root that are served; all if `None`.
    pub only: Option<ServedPaths>,
    /// The only served path is a file that is still being written.
    pub growing: Option<GrowingFileSpec>,
    /// Access that clients have to the files.
    pub access: Access,
    /// Time after which an idle client is disconnected.
    pub idle: Option<Duration>,
    /// Time after which a client that reads none of its waiting data is disconnected.
    pub slow: Duration,
    /// Allow the `none` cipher after the login, for clients that ask for it as well.
    pub without_cipher: bool,
    /// Allow the `none` MAC in addition to the `none` cipher.
    pub without_mac: bool,
    /// Adjust windows to the round trip and the socket's window, which the kernel is asked for
    /// periodically.
    pub window_poll: bool,
    /// Allow a congestion control that tolerates packet loss on sockets that lose packets.
    pub bear_losses: bool,
    /// Number of transferred bytes from which a file gets its own log line.
    pub log_files: u64,
    /// Programs that may be run if everything that the account can see is served.
    pub allowed: Vec<AllowedProgram>,
    /// The account that owns the programs.
    pub owner: Option<ProgramAccount>,
}

impl Default for ServedClientSettings {
    fn default() -> Self {
        Self {
            root: None,
            only: None,
            growing: None,
            access: Access::Full,
            idle: None,
            slow: Duration::from_secs(300),
            without_cipher: false,
            without_mac: false,
            window_poll: true,
            bear_losses: false,
            log_files: LOG_FILES,
            allowed: Vec::new(),
            owner: None,
        }
    }
}

impl ServedClientSettings {
    /// Protection that a client may disable after the login.
    pub(super) fn renounced(&self) -> DisabledProtection {
        match (self.without_cipher, self.without_mac) {
            (false, _) => DisabledProtection::Nothing,
            (true, false) => DisabledProtection::Cipher,
            (true, true) => DisabledProtection::CipherAndMac,
        }
    }

    /// True if clients may run programs. A program sees everything that the account sees, so none
    /// runs with a root or with less than full access.
    pub fn runs_programs(&self) -> bool {
        !self.allowed.is_empty() && self.root.is_none() && self.access == Access::Full
    }

    /// True if the program with this name may be run.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.runs_programs() && self.allowed.iter().any(|allowed| allowed.is_called(name))
    }

    /// Copies the settings with %h and %u of the root expanded for this account.
    pub(super) fn for_account(&self, account: &Account) -> Self {
        Self {
            root: self.root.as_ref().map(|root| expand(root, account)),
            owner: Some(ProgramAccount::new(&account.name, &account.home)),
            ..self.clone()
        }
    }

    /// Opens the served tree with the rights of this process.
    ///
    /// # Errors
    /// The root does not exist or cannot be entered.
    pub fn open(&self) -> Result<ExportedTree, ExportError> {
        let export = match &self.root {
            Some(root) => {
                let export = ExportedTree::beneath(root, self.access)?;
                let export = match &self.only {
                    Some(only) => export.only(&only.paths, only.follows),
                    None => export,
                };
                match (
                    &self.growing,
                    self.only.as_ref().map(|only| &only.paths[..]),
                ) {
                    (Some(spec), Some([path])) => {
                        let grown = export.with_growing(path.clone(), spec.clone());
                        grown.map_err(|e| ExportError::Open(root.clone(), e))?
                    }
                    _ => export,
                }
            }
            None => ExportedTree::everything(self.access),
        };
        Ok(export.log_files(self.log_files))
    }
}
