//! Checks the files under final names while copies run and are interrupted.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks while a copy runs.
const EACH: Duration = Duration::from_millis(20);

/// Source, target, and the findings so far.
#[derive(Debug)]
pub(super) struct Witness {
    source: PathBuf,
    target: PathBuf,
    looked: Instant,
    /// Files that were found correct, with what would change if they were written again.
    right: BTreeMap<PathBuf, Identity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Identity {
    fn of(meta: &Metadata) -> Self {
        Self {
            inode: meta.ino(),
            size: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

impl Witness {
    /// Creates a witness for the copy of `source` to `target`.
    pub(super) fn new(source: PathBuf, target: PathBuf) -> Self {
        Self {
            source,
            target,
            looked: Instant::now(),
            right: BTreeMap::new(),
        }
    }

    /// Checks the target, unless the last check was just before.
    ///
    /// # Panics
    /// Panics if a final name has other content than its source.
    #[track_caller]
    pub(super) fn glance(&mut self) {
        if self.looked.elapsed() > EACH {
            self.look();
        }
    }

    /// Compares each file that is new under a final name with its source, byte by byte.
    ///
    /// # Panics
    /// Panics if a final name has other content than its source.
    #[track_caller]
    pub(super) fn look(&mut self) {
        for (name, meta) in files_below(&self.target) {
            let identity = Identity::of(&meta);
            let hidden = name
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            if hidden || self.right.get(&name) == Some(&identity) {
                continue;
            }
            if let Err(why) = same(&self.source.join(&name), &self.target.join(&name)) {
                panic!("{}: the final name {why}; {identity:?}", name.display());
            }
            self.right.insert(name, identity);
        }
        self.looked = Instant::now();
    }

    /// Checks that the target equals the source, and nothing is left over.
    ///
    /// # Panics
    /// Panics if they differ.
    #[track_caller]
    pub(super) fn whole(&mut self) {
        self.right.clear();
        self.look();
        let names = |folder: &Path| files_below(folder).into_keys().collect::<Vec<_>>();
        assert_eq!(
            names(&self.target),
            names(&self.source),
            "left over or missing"
        );
    }
}

fn same(source: &Path, target: &Path) -> Result<(), String> {
    let open = |path: &Path| File::open(path).map_err(|e| format!("cannot be opened: {e}"));
    let (mut source, mut target) = (open(source)?, open(target)?);
    let (mut ours, mut theirs, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        ours.clear();
        theirs.clear();
        for (file, into) in [(&mut source, &mut ours), (&mut target, &mut theirs)] {
            let read = file.take(1 << 20).read_to_end(into);
            read.map_err(|e| format!("cannot be read: {e}"))?;
        }
        if ours != theirs {
            let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let zeros = theirs[same..].iter().take_while(|b| **b == 0).count();
            return Err(format!(
                "differs from byte {} on, with {zeros} zeros there, and ends at {} instead of {}",
                at + same,
                at + theirs.len(),
                at + ours.len()
            ));
        }
        if ours.is_empty() {
            return Ok(());
        }
        at += ours.len();
    }
}

/// Returns the files below `folder` by their relative path.
pub(super) fn files_below(folder: &Path) -> BTreeMap<PathBuf, Metadata> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder.join(&inner)) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = inner.join(entry.file_name());
            // A file that was renamed meanwhile no longer exists.
            let Ok(meta) = entry.metadata() else { continue };
            match meta.is_dir() {
                true => folders.push(name),
                false => {
                    found.insert(name, meta);
                }
            }
        }
    }
    found
}
