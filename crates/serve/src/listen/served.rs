use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ssh::transport::DisabledProtection;

use super::accounts::expand;
use super::program::{AllowedProgram, Owner};
use super::rules::Account;
use crate::error::ExportError;
use crate::export::LOG_FILES;
use crate::{Access, Export};

/// What whoever has logged in is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedFiles {
    /// Nothing but what lies beneath this directory.
    pub root: Option<PathBuf>,
    /// What may be done there.
    pub access: Access,
    /// Whoever does nothing for so long is asked to leave.
    pub idle: Option<Duration>,
    /// Whoever takes nothing of what waits for so long is given up.
    pub slow: Duration,
    /// No cipher behind the login, for clients that were told the same ...
    pub without_cipher: bool,
    /// ... and no MAC then.
    pub without_mac: bool,
    /// Windows follow the round trip and the socket, of which the kernel is asked now and then.
    pub window_poll: bool,
    /// Where packets are lost, the socket may have a congestion control that bears it.
    pub bear_losses: bool,
    /// Files of which so many bytes are moved have a line of the log each.
    pub log_files: u64,
    /// Programs that may be run, where everything the account may see is served.
    pub allowed: Vec<AllowedProgram>,
    /// Whose they are.
    pub owner: Option<Owner>,
}

impl Default for ServedFiles {
    fn default() -> Self {
        Self {
            root: None,
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

impl ServedFiles {
    /// What is done without behind the login.
    pub(super) fn renounced(&self) -> DisabledProtection {
        match (self.without_cipher, self.without_mac) {
            (false, _) => DisabledProtection::Nothing,
            (true, false) => DisabledProtection::Cipher,
            (true, true) => DisabledProtection::CipherAndMac,
        }
    }

    /// Whether there is a program to be run. One would see all that the account sees, and so there
    /// is none beneath a root or where less than everything may be done.
    pub fn runs_programs(&self) -> bool {
        !self.allowed.is_empty() && self.root.is_none() && self.access == Access::Full
    }

    /// Whether that of this name is among them.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.runs_programs() && self.allowed.iter().any(|allowed| allowed.is_called(name))
    }

    /// The same with %h and %u of the root replaced for this account.
    pub(super) fn for_account(&self, account: &Account) -> Self {
        Self {
            root: self.root.as_ref().map(|root| expand(root, account)),
            owner: Some(Owner {
                name: account.name.clone(),
                home: account.home.clone(),
            }),
            ..self.clone()
        }
    }

    /// Opens it, with the rights of this process.
    ///
    /// # Errors
    /// It is not there, or not to be entered.
    pub fn open(&self) -> Result<Export, ExportError> {
        let export = match &self.root {
            Some(root) => Export::beneath(root, self.access)?,
            None => Export::everything(self.access),
        };
        Ok(export.log_files(self.log_files))
    }
}
