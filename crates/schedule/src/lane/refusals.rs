use serde::{Deserialize, Serialize};

/// Operations that an SFTP server refuses for every file, as its answers have shown.
///
/// A refusal that may concern one file or directory only is not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedOperations {
    /// OPEN of temporary names, on servers that admit only certain names such as `*.csv`.
    #[serde(default)]
    pub temporaries: bool,
    /// OPEN with the flag EXCL.
    #[serde(default)]
    pub exclusive: bool,
    /// RENAME of a new file to a free name.
    #[serde(default)]
    pub renames: bool,
    /// SETSTAT and FSETSTAT of a new file.
    #[serde(default)]
    pub attributes: bool,
}

impl RefusedOperations {
    /// Returns true if uploads are written in place, since no temporary can be created or renamed.
    pub fn in_place(self) -> bool {
        self.temporaries || self.renames
    }

    /// Returns true if nothing is refused.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the union of both sets of refusals.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            temporaries: self.temporaries || other.temporaries,
            exclusive: self.exclusive || other.exclusive,
            renames: self.renames || other.renames,
            attributes: self.attributes || other.attributes,
        }
    }
}
