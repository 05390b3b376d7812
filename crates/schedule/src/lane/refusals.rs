use serde::{Deserialize, Serialize};

/// Operations that an SFTP server refuses whatever the file is, as its answers have shown.
///
/// A refusal that may be about one file or one directory is not one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// OPEN of names other than final ones, as where only `*.csv` is admitted.
    #[serde(default)]
    pub temporaries: bool,
    /// OPEN with the flag EXCL.
    #[serde(default)]
    pub exclusive: bool,
    /// RENAME, of a file that was just created to a name that is free.
    #[serde(default)]
    pub renames: bool,
    /// SETSTAT and FSETSTAT, of a file that was just created.
    #[serde(default)]
    pub attributes: bool,
}

impl Refusals {
    /// Whether uploads are written in place, since no temporary can be made or renamed.
    pub fn in_place(self) -> bool {
        self.temporaries || self.renames
    }

    /// Whether nothing is refused.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Both together.
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
