//! Random trees, and the tree that a file system has at a path.

use std::collections::BTreeMap;

use testkit::Seed;
use testkit::sftp_model::{Fs, Kind, Node, Rng};

/// Entry below the root of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::copy::tests) struct TreeEntry {
    pub(in crate::copy::tests) kind: Kind,
    pub(in crate::copy::tests) mode: u32,
    pub(in crate::copy::tests) owner: (u32, u32),
    pub(in crate::copy::tests) modified: u32,
    pub(in crate::copy::tests) inode: u64,
}

/// Shape of a random tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::copy::tests) struct TreeSpec {
    pub(in crate::copy::tests) files: u64,
    pub(in crate::copy::tests) dirs: u64,
    /// Files of more than a request each.
    pub(in crate::copy::tests) large: u64,
    /// Entries have random modes, with which their owner can read them.
    pub(in crate::copy::tests) modes: bool,
}

impl TreeSpec {
    /// A few small files in a few directories.
    pub(in crate::copy::tests) const SMALL: Self = Self {
        files: 8,
        dirs: 3,
        large: 0,
        modes: false,
    };

    /// Small files and one that takes several requests.
    pub(in crate::copy::tests) const MIXED: Self = Self {
        large: 1,
        ..Self::SMALL
    };

    pub(super) fn place(self, fs: &mut Fs, root: &str, rng: &mut Rng) {
        let mut seed = Seed::new(rng.next_u64());
        let mut dirs = vec![absolute(root)];
        fs.place(&dirs[0], Kind::Dir, self.mode(rng, Kind::Dir));
        for nth in 0..self.dirs {
            let above = &dirs[rng.below(dirs.len() as u64) as usize];
            let dir = format!("{above}/d{nth}");
            fs.place(&dir, Kind::Dir, self.mode(rng, Kind::Dir));
            dirs.push(dir);
        }
        for nth in 0..self.files + self.large {
            let dir = &dirs[rng.below(dirs.len() as u64) as usize];
            let (name, len) = match (nth < self.files, rng.below(8)) {
                (false, _) => ("large", 300_000 + rng.below(900_000)),
                (true, 0) => ("f", 0),
                (true, 1) => ("f", rng.below(100_000)),
                (true, _) => ("f", rng.below(3000)),
            };
            let kind = Kind::File(seed.bytes(len as usize));
            let mode = self.mode(rng, Kind::File(Vec::new()));
            fs.clock += 1 + rng.below(1000) as u32;
            fs.place(&format!("{dir}/{name}{nth}"), kind, mode);
        }
    }

    fn mode(self, rng: &mut Rng, kind: Kind) -> u32 {
        let least = match kind {
            Kind::Dir => 0o500,
            _ => 0o400,
        };
        match (self.modes, &kind) {
            (true, _) => least | rng.below(0o1000) as u32,
            (false, Kind::Dir) => 0o755,
            (false, _) => 0o644,
        }
    }
}

fn absolute(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/home/u/{path}"),
    }
}

/// Entries at `root` and below it, by their path below it; the root itself has the path "".
pub(in crate::copy::tests) fn tree_at(fs: &Fs, root: &str) -> BTreeMap<String, TreeEntry> {
    let root = absolute(root);
    let below = |path: &[u8]| {
        let path = String::from_utf8_lossy(path).into_owned();
        let rest = path.strip_prefix(&root)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/').to_owned())
    };
    let entry = |(path, node): (&[u8], &Node)| {
        let inode = fs.lookup(path, false).ok()?;
        let entry = TreeEntry {
            kind: node.kind.clone(),
            mode: node.mode,
            owner: node.owner,
            modified: node.times.1,
            inode,
        };
        Some((below(path)?, entry))
    };
    fs.entries().filter_map(entry).collect()
}

/// Removes the entry at `root` and everything below it, whatever the modes.
pub(in crate::copy::tests) fn remove_tree(fs: &mut Fs, root: &str) {
    let root = absolute(root);
    let all: Vec<(String, bool)> = tree_at(fs, &root)
        .into_iter()
        .map(|(path, entry)| (path, entry.kind == Kind::Dir))
        .collect();
    for (path, is_dir) in all.into_iter().rev() {
        let path = format!("{root}/{path}");
        let path = path.trim_end_matches('/');
        let above = path.rsplit_once('/').map_or("/", |(dir, _)| dir).to_owned();
        let mode = fs.at(&above).map(|node| node.mode);
        set_mode(fs, &above, 0o755);
        let removed = fs.remove(path.as_bytes(), is_dir);
        assert_eq!(removed, Ok(()), "{path}");
        set_mode(fs, &above, mode.unwrap_or(0o755));
    }
}

fn set_mode(fs: &mut Fs, path: &str, mode: u32) {
    if let Some(node) = fs.at_mut(path) {
        node.mode = mode;
    }
}

/// Names of temporaries below the home directory.
pub(in crate::copy::tests) fn leftovers(fs: &Fs) -> Vec<String> {
    let is_temporary = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        sftp::final_name_in(name.as_bytes()).is_some()
    };
    fs.names().into_iter().filter(is_temporary).collect()
}
