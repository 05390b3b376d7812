use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::ExportError;
use crate::{Access, Export};

/// What whoever has logged in is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Nothing but what lies beneath this directory.
    pub root: Option<PathBuf>,
    /// What may be done there.
    pub access: Access,
}

impl Served {
    /// Opens it, with the rights of this process.
    ///
    /// # Errors
    /// It is not there, or not to be entered.
    pub fn open(&self) -> Result<Export, ExportError> {
        match &self.root {
            Some(root) => Export::beneath(root, self.access),
            None => Ok(Export::everything(self.access)),
        }
    }
}
