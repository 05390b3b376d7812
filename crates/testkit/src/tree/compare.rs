//! Comparison of two file trees, with the differences as text.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;

/// Properties to compare besides names, types, contents and link targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compare {
    /// Permission bits.
    pub modes: bool,
    /// Modification times of files and folders, in whole seconds.
    pub times: bool,
    /// The copy contains the targets of symlinks, as scp creates it.
    pub follow: bool,
}

impl Compare {
    /// Compares names, types and contents.
    pub const CONTENT: Self = Self {
        modes: false,
        times: false,
        follow: false,
    };
    /// Compares names, types, contents and modes.
    pub const MODES: Self = Self {
        modes: true,
        times: false,
        follow: false,
    };
    /// Compares modes and times too, as `-p` preserves them.
    pub const PRESERVED: Self = Self {
        modes: true,
        times: true,
        follow: false,
    };

    /// Compares symlinks on either side by their targets.
    pub const fn following(self) -> Self {
        Self {
            follow: true,
            ..self
        }
    }
}

/// Type of an entry, with the content that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    File { len: u64, hash: String },
    Folder,
    Link(PathBuf),
    Other(u32),
}

/// State of one entry; `mtime` is in seconds since 1970.
#[derive(Debug, Clone)]
struct Entry {
    kind: Kind,
    mode: u32,
    mtime: i64,
}

/// Entries of a tree by their path, with types, modes, times and hashes of contents, to compare
/// after a copy.
#[derive(Debug, Clone)]
pub struct Snapshot(BTreeMap<Vec<u8>, Entry>);

impl Snapshot {
    /// Reads the tree at `root`, which may be a single file. Returns an empty snapshot if `root`
    /// does not exist.
    ///
    /// # Panics
    /// Panics if anything in the tree cannot be read.
    pub fn of(root: &Path, follow: bool) -> Self {
        let mut entries = BTreeMap::new();
        if fs::symlink_metadata(root).is_ok() {
            read(root, Vec::new(), follow, &mut entries);
        }
        Self(entries)
    }

    /// Returns the number of files, folders and links, including the root.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports if the tree does not exist.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the relative names, with special bytes escaped.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().map(|name| shown(name)).collect()
    }

    /// Returns the differences, one per line.
    pub fn differences(&self, other: &Self, compare: Compare) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, entry) in &self.0 {
            match other.0.get(name) {
                None => lines.push(format!("{}: only on the left", shown(name))),
                Some(copy) => entry.differ(copy, compare, &shown(name), &mut lines),
            }
        }
        for name in other.0.keys().filter(|name| !self.0.contains_key(*name)) {
            lines.push(format!("{}: only on the right", shown(name)));
        }
        lines
    }
}

impl Entry {
    fn differ(&self, other: &Self, compare: Compare, name: &str, lines: &mut Vec<String>) {
        if self.kind != other.kind {
            lines.push(format!(
                "{name}: {} on the left, {} on the right",
                self.kind, other.kind
            ));
        }
        let link = matches!(self.kind, Kind::Link(_));
        if compare.modes && !link && self.mode != other.mode {
            lines.push(format!(
                "{name}: mode {:o} on the left, {:o} on the right",
                self.mode, other.mode
            ));
        }
        if compare.times && !link && self.mtime != other.mtime {
            lines.push(format!(
                "{name}: mtime {} on the left, {} on the right",
                self.mtime, other.mtime
            ));
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { len, hash } => write!(f, "a file of {len} bytes ({})", &hash[..12]),
            Self::Folder => write!(f, "a folder"),
            Self::Link(target) => write!(f, "a link to {target:?}"),
            Self::Other(kind) => write!(f, "something of type {kind:o}"),
        }
    }
}

/// Returns the differences between two trees, one per line.
pub fn differences(left: &Path, right: &Path, compare: Compare) -> Vec<String> {
    let [left, right] = [left, right].map(|root| Snapshot::of(root, compare.follow));
    left.differences(&right, compare)
}

/// Panics with the first differences unless both trees exist and are equal.
#[track_caller]
pub fn assert_same(left: &Path, right: &Path, compare: Compare) {
    assert!(left.exists(), "{} is not there", left.display());
    let lines = differences(left, right, compare);
    let first = lines
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n  ");
    assert!(
        lines.is_empty(),
        "{} and {} differ in {} places:\n  {first}",
        left.display(),
        right.display(),
        lines.len()
    );
}

fn read(path: &Path, name: Vec<u8>, follow: bool, into: &mut BTreeMap<Vec<u8>, Entry>) {
    let fail = |error| panic!("{}: {error}", path.display());
    let meta = if follow {
        fs::metadata(path)
    } else {
        fs::symlink_metadata(path)
    };
    let meta = meta
        .or_else(|_| fs::symlink_metadata(path))
        .unwrap_or_else(fail);
    let kind = if meta.is_dir() {
        for entry in
            fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        {
            let entry = entry.expect("a folder that can be listed");
            let mut inside = name.clone();
            inside.push(b'/');
            inside.extend_from_slice(entry.file_name().as_bytes());
            read(&entry.path(), inside, follow, into);
        }
        Kind::Folder
    } else if meta.is_file() {
        Kind::File {
            len: meta.len(),
            hash: hash(path),
        }
    } else if meta.is_symlink() {
        Kind::Link(
            fs::read_link(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
    } else {
        Kind::Other(meta.mode() & 0o170_000)
    };
    let mode = meta.permissions().mode() & 0o7777;
    into.insert(
        name,
        Entry {
            kind,
            mode,
            mtime: meta.mtime(),
        },
    );
}

fn hash(path: &Path) -> String {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut context = digest::Context::new(&digest::SHA256);
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file
            .read(&mut chunk)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        {
            0 => break,
            len => context.update(&chunk[..len]),
        }
    }
    context
        .finish()
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn shown(name: &[u8]) -> String {
    match name {
        [] => "(root)".to_owned(),
        _ => OsStr::from_bytes(name)
            .as_encoded_bytes()
            .escape_ascii()
            .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn the_same_seed_gives_the_same_tree_and_another_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
        Tree::full(1).make(&a);
        Tree::full(1).make(&b);
        Tree::full(2).make(&c);
        assert_same(&a, &b, Compare::PRESERVED);
        assert!(!differences(&a, &c, Compare::CONTENT).is_empty());
    }

    #[test]
    fn each_kind_of_difference_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        for root in [&a, &b] {
            Tree::full(1).make(root);
        }
        fs::write(b.join("size-1"), b"!").expect("writes");
        fs::remove_file(b.join("size-4096")).expect("removes");
        fs::write(b.join("extra\x1b"), b"").expect("writes");
        fs::set_permissions(b.join("modes/644"), fs::Permissions::from_mode(0o600)).expect("sets");
        let lines = differences(&a, &b, Compare::MODES).join("\n");
        for part in [
            "/size-1: a file of 1 bytes",
            "/size-4096: only on the left",
            "/extra\\x1b: only on the right",
            "/modes/644: mode 644 on the left, 600 on the right",
        ] {
            assert!(lines.contains(part), "{part} is not in\n{lines}");
        }
        assert_eq!(lines.lines().count(), 4, "{lines}");
    }
}
