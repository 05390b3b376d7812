//! Source tree of a simulated copy between two hosts, and what stands at its target before.

use std::collections::{BTreeMap, BTreeSet};

use testkit::Seed;
use testkit::sftp_model::{Kind, Rng};

use crate::copy::tests::world::World;

const SOURCE: usize = 0;
const TARGET: usize = 1;

/// Entry that stood in the place of a file before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    Smaller,
    Larger,
    ReadOnly,
    /// A symlink to a file elsewhere.
    Symlink,
    /// A file with a second name elsewhere.
    HardLinked,
}

struct SourceFile {
    /// Contents so far, the latest last.
    versions: Vec<Vec<u8>>,
    existing: Existing,
    /// Contents that stood at the target.
    older: Vec<u8>,
}

/// Trees of a simulated copy between two hosts.
pub(super) struct RelayedTrees {
    files: BTreeMap<String, SourceFile>,
    /// Files that have changed during the run that goes on.
    unsteady: BTreeSet<String>,
    seed: u64,
}

fn source(name: &str) -> String {
    format!("/home/u/src/{name}")
}

fn target(name: &str) -> String {
    format!("/home/u/dst/{name}")
}

/// Path of the file to which a symlink points, or of the second name of a file.
fn elsewhere(name: &str) -> String {
    format!("/home/u/else/{}", name.replace('/', "_"))
}

/// True if a path in a message is that of this file.
fn is_named(path: &str, name: &str) -> bool {
    let ends = [format!("dst/{name}"), format!("src/./{name}")];
    ends.iter().any(|end| path.ends_with(end.as_str()))
}

impl RelayedTrees {
    pub(super) fn make(world: &mut World, rng: &mut Rng) -> Self {
        let mut trees = Self {
            files: BTreeMap::new(),
            unsteady: BTreeSet::new(),
            seed: rng.next_u64(),
        };
        let has_older = rng.below(3) > 0;
        let has_read_only = rng.below(3) == 0;
        let small = [3, 12, 40][rng.below(3) as usize];
        let large = rng.below(4);
        let mut seed = Seed::new(trees.seed);
        for nth in 0..small + large {
            let len = match rng.below(12) {
                _ if nth >= small => (1 << 20) + rng.below(3 << 19),
                0 => 0,
                1 => 200_000 + rng.below(500_000),
                _ => rng.below(9000),
            };
            // A tree is listed by name: large files come first, or last.
            let name = match (nth >= small, rng.below(2), rng.below(4)) {
                (true, 0, _) => format!("a{nth}"),
                (true, ..) => format!("z{nth}"),
                (_, _, 0) => format!("d/f{nth}"),
                _ => format!("f{nth}"),
            };
            let existing = match rng.below(12) {
                _ if !has_older => Existing::Nothing,
                0 | 1 => Existing::Smaller,
                2 => Existing::Larger,
                3 | 4 if has_read_only => Existing::ReadOnly,
                5 => Existing::Symlink,
                6 => Existing::HardLinked,
                _ => Existing::Nothing,
            };
            let file = SourceFile {
                older: seed.bytes(match existing {
                    Existing::Nothing => 0,
                    Existing::Larger => len as usize + 5000,
                    _ => len as usize / 2,
                }),
                versions: vec![seed.bytes(len as usize)],
                existing,
            };
            trees.files.insert(name, file);
        }
        // Root may write a file that nobody else may.
        world.hosts[TARGET].host.fs.ignores_modes = trees.seed.is_multiple_of(2);
        trees.place(world);
        trees
    }

    fn place(&self, world: &mut World) {
        for host in &mut world.hosts {
            // The trees are older than the copy.
            host.host.fs.clock = 1_600_000_000;
        }
        let fs = &mut world.hosts[SOURCE].host.fs;
        for dir in ["/home/u/src", "/home/u/src/d"] {
            fs.place(dir, Kind::Dir, 0o755);
        }
        for (name, file) in &self.files {
            let kind = Kind::File(file.versions[0].clone());
            fs.place(&source(name), kind, 0o644);
        }
        let fs = &mut world.hosts[TARGET].host.fs;
        for dir in ["/home/u/dst", "/home/u/dst/d", "/home/u/else"] {
            fs.place(dir, Kind::Dir, 0o755);
        }
        for (name, file) in &self.files {
            let data = Kind::File(file.older.clone());
            match file.existing {
                Existing::Nothing => {}
                Existing::Smaller | Existing::Larger => fs.place(&target(name), data, 0o644),
                Existing::ReadOnly => fs.place(&target(name), data, 0o444),
                Existing::Symlink => {
                    fs.place(&elsewhere(name), data, 0o644);
                    let to = Kind::Symlink(elsewhere(name).into_bytes());
                    fs.place(&target(name), to, 0o777);
                }
                Existing::HardLinked => {
                    fs.place(&elsewhere(name), data, 0o644);
                    let (of, name) = (elsewhere(name), target(name));
                    let linked = fs.hard_link(of.as_bytes(), name.as_bytes());
                    assert_eq!(linked, Ok(()));
                }
            }
        }
    }

    /// Gives a source file other contents, of another length in most cases.
    pub(super) fn change(&mut self, world: &mut World, nth: u64) {
        // Large files come up more often than their number.
        let large = |(_, file): &(&String, &SourceFile)| file.versions[0].len() >= 1 << 20;
        let mut names: Vec<&String> = self.files.keys().collect();
        for (name, _) in self.files.iter().filter(large) {
            names.extend([name; 8]);
        }
        let name = names[(nth % names.len() as u64) as usize].clone();
        let Some(file) = self.files.get_mut(&name) else {
            return;
        };
        let last = file.versions.last().map_or(0, Vec::len);
        let len = match nth % 4 {
            0 => last,
            1 => last / 2,
            2 => last + 1000,
            _ => last + 900_000,
        };
        let data = Seed::new(self.seed ^ nth).bytes(len);
        let fs = &mut world.hosts[SOURCE].host.fs;
        let clock = fs.clock;
        if let Some(node) = fs.at_mut(&source(&name)) {
            node.kind = Kind::File(data.clone());
            node.times = (clock, clock);
        }
        file.versions.push(data);
        self.unsteady.insert(name);
    }

    /// Notes that a run begins.
    pub(super) fn next_run(&mut self) {
        self.unsteady.clear();
    }

    /// True if no file has changed during the run.
    pub(super) fn is_steady(&self) -> bool {
        self.unsteady.is_empty()
    }

    /// Checks that every file under its final name is whole. Files that may be written in place are
    /// left out if `in_place`.
    pub(super) fn check_final_names(&self, world: &World, in_place: bool) {
        let fs = &world.hosts[TARGET].host.fs;
        for (name, file) in &self.files {
            // A source that changed while it was read is copied once more.
            let in_place =
                in_place || matches!(file.existing, Existing::Symlink | Existing::ReadOnly);
            if in_place || file.versions.len() > 1 {
                continue;
            }
            let Some(found) = fs.data(&target(name)) else {
                continue;
            };
            let is_older = file.existing != Existing::Nothing && file.older == found;
            assert!(
                is_older || file.versions[0] == found,
                "{name} ({:?}) has its final name and {} bytes that are not those of the source",
                file.existing,
                found.len()
            );
        }
    }

    /// True if the path that a message names is that of a file that is read-only at the target.
    pub(super) fn is_read_only(&self, path: &str) -> bool {
        self.was_there(path, &[Existing::ReadOnly])
    }

    /// Checks that no file with a second name was written in place; returns their number.
    pub(super) fn check_other_names(&self, world: &World) -> usize {
        let linked = |(_, file): &(&String, &SourceFile)| file.existing == Existing::HardLinked;
        let linked = self.files.iter().filter(linked);
        let check = |(name, file): (&String, &SourceFile)| {
            let found = world.hosts[TARGET].host.fs.data(&elsewhere(name));
            assert!(found == Some(&file.older), "{name} was written in place");
        };
        linked.map(check).count()
    }

    /// Returns true if only a rename could replace what the target had for `path`.
    pub(super) fn needs_rename(&self, path: &str) -> bool {
        self.was_there(path, &[Existing::ReadOnly, Existing::Symlink])
    }

    fn was_there(&self, path: &str, kinds: &[Existing]) -> bool {
        let is_it = |(name, file): (&String, &SourceFile)| {
            kinds.contains(&file.existing) && is_named(path, name)
        };
        self.files.iter().any(is_it)
    }

    /// Number of files that were read-only at the target before the copy.
    pub(super) fn read_only_files(&self) -> usize {
        let is_it = |file: &&SourceFile| file.existing == Existing::ReadOnly;
        self.files.values().filter(is_it).count()
    }

    /// Checks that the target is the source, apart from files that have `failed`.
    pub(super) fn check_complete(&self, world: &World, failed: &[String]) {
        let fs = &world.hosts[TARGET].host.fs;
        for (name, file) in &self.files {
            if failed.iter().any(|path| is_named(path, name)) {
                continue;
            }
            let found = fs.data(&target(name));
            let is_right = found == file.versions.last().map(Vec::as_slice);
            assert!(
                is_right || self.unsteady.contains(name),
                "the copy is complete and {name} ({:?}) is wrong: {:?} bytes",
                file.existing,
                found.map(<[u8]>::len)
            );
        }
    }

    /// Checks that the second name of a file that was replaced has its old contents, or the new ones.
    pub(super) fn check_second_names(&self, world: &World) {
        let fs = &world.hosts[TARGET].host.fs;
        let linked = |(_, file): &(&String, &SourceFile)| file.existing == Existing::HardLinked;
        for (name, file) in self.files.iter().filter(linked) {
            let found = fs.data(&elsewhere(name));
            let mut known = file.versions.iter().chain([&file.older]);
            assert!(
                known.any(|data| found == Some(data.as_slice())),
                "the second name of {name} has neither the old nor the new contents"
            );
        }
    }
}
