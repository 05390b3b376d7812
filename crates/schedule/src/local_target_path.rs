use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A local path that a copy writes, split at the end of the part that the user named.
///
/// Symlinks in the named part belong to the user and are followed. Symlinks below it may have been
/// made by a server, another user or an earlier copy; the disk side follows none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalTargetPath {
    named: PathBuf,
    below: PathBuf,
    dirlinks: bool,
}

impl LocalTargetPath {
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
        // As `Path::components` has it, which takes several times as long for a deep path.
        let bytes = self.below.as_os_str().as_encoded_bytes();
        let mut parts = bytes.split(|b| *b == b'/');
        let starts_inside = !matches!(bytes, [b'/', ..] | b"." | [b'.', b'/', ..]);
        let inside = starts_inside && parts.all(|part| part != b"..");
        inside.then_some(&self.below)
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

impl From<PathBuf> for LocalTargetPath {
    fn from(path: PathBuf) -> Self {
        Self::named(path)
    }
}

impl From<&Path> for LocalTargetPath {
    fn from(path: &Path) -> Self {
        Self::named(path)
    }
}

impl From<&str> for LocalTargetPath {
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
            let path = LocalTargetPath::beneath("dst", path, false);
            path.below_part().map(Path::to_path_buf)
        };
        assert_eq!(below("a/b"), Some("a/b".into()));
        assert_eq!(below(""), Some("".into()));
        for elsewhere in ["/etc/passwd", "..", "a/../../b", "../b"] {
            assert_eq!(below(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn paths_are_inside_exactly_if_all_components_are_names() {
        let parts = ["", ".", "..", "a", "b", "...", ".a", "..a"];
        for n in 0..parts.len().pow(4) {
            let nth = |k: u32| parts[n / parts.len().pow(k) % parts.len()];
            let path = [nth(0), nth(1), nth(2), nth(3)].join("/");
            let names = |part| matches!(part, std::path::Component::Normal(_));
            let inside = Path::new(&path).components().all(names);
            let below = LocalTargetPath::beneath("dst", &*path, false);
            assert_eq!(below.below_part().is_some(), inside, "{path}");
        }
    }
}
