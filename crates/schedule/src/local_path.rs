use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A path on this machine that a copy writes, divided where the part ends that the user has named.
///
/// Symlinks in the named part are the user's, and are followed. Below it a server, another user or an
/// earlier copy may have made them: the disk side follows none there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPath {
    named: PathBuf,
    below: PathBuf,
    dirlinks: bool,
}

impl LocalPath {
    /// A path that the user has named as a whole.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self {
            named: path.into(),
            ..Self::default()
        }
    }

    /// `below` beneath the directory `named`. With `dirlinks`, symlinks that lead to directories are
    /// followed there as well (`--keep-dirlinks`).
    pub fn beneath(named: impl Into<PathBuf>, below: impl Into<PathBuf>, dirlinks: bool) -> Self {
        Self {
            named: named.into(),
            below: below.into(),
            dirlinks,
        }
    }

    /// The part that the user has named.
    pub fn named_part(&self) -> &Path {
        &self.named
    }

    /// The part below it: empty, or names that are joined by slashes. `None` where it leads
    /// elsewhere, by `..` or from the root.
    pub fn below_part(&self) -> Option<&Path> {
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
        self.below.components().all(inside).then_some(&self.below)
    }

    /// Returns true where the user has named all of it.
    pub fn is_named(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// Returns true where symlinks to directories are followed below the named part.
    pub fn follows_dirlinks(&self) -> bool {
        self.dirlinks
    }

    /// The path as a whole, for messages.
    pub fn whole(&self) -> PathBuf {
        match self.is_named() {
            true => self.named.clone(),
            false => self.named.join(&self.below),
        }
    }
}

impl From<PathBuf> for LocalPath {
    fn from(path: PathBuf) -> Self {
        Self::named(path)
    }
}

impl From<&Path> for LocalPath {
    fn from(path: &Path) -> Self {
        Self::named(path)
    }
}

impl From<&str> for LocalPath {
    fn from(path: &str) -> Self {
        Self::named(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_does_not_lead_elsewhere() {
        let below = |path: &str| {
            let path = LocalPath::beneath("dst", path, false);
            path.below_part().map(Path::to_path_buf)
        };
        assert_eq!(below("a/b"), Some("a/b".into()));
        assert_eq!(below(""), Some("".into()));
        for elsewhere in ["/etc/passwd", "..", "a/../../b", "../b"] {
            assert_eq!(below(elsewhere), None, "{elsewhere}");
        }
    }
}
