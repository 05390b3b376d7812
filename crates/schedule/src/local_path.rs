use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A local path that a copy writes, split at the end of the part that the user named.
///
/// Symlinks in the named part belong to the user and are followed. Symlinks below it may have been
/// made by a server, another user or an earlier copy; the disk side follows none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPath {
    named: PathBuf,
    below: PathBuf,
    dirlinks: bool,
}

impl LocalPath {
    /// Creates a path that the user named in full.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self {
            named: path.into(),
            ..Self::default()
        }
    }

    /// Creates the path `below` beneath the directory `named`. With `dirlinks`, symlinks to
    /// directories are followed below it as well (`--keep-dirlinks`).
    pub fn beneath(named: impl Into<PathBuf>, below: impl Into<PathBuf>, dirlinks: bool) -> Self {
        Self {
            named: named.into(),
            below: below.into(),
            dirlinks,
        }
    }

    /// Returns the part that the user named.
    pub fn named_part(&self) -> &Path {
        &self.named
    }

    /// Returns the part below the named one: empty, or names joined by slashes. `None` if it leaves
    /// the named part by `..` or starts at the root.
    pub fn below_part(&self) -> Option<&Path> {
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
        self.below.components().all(inside).then_some(&self.below)
    }

    /// Returns true if the user named the whole path.
    pub fn is_named(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// Returns true if symlinks to directories are followed below the named part.
    pub fn follows_dirlinks(&self) -> bool {
        self.dirlinks
    }

    /// Returns the whole path, for messages.
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
