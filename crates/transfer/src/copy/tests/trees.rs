//! Source tree of a simulated copy, and what may stand at its target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use testkit::Seed;
use testkit::sftp_model::{Fs, Kind, Rng};

use super::faults::SimFault;
use super::world::World;
use crate::copy::{CopyLocation, HostId};

/// Number of small files.
const FILES: u64 = 300;

/// Form in which the command names its source and target.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// `src dst`, where `dst` is a directory.
    Into,
    /// `src dst`, where nothing is named `dst`.
    Named,
    /// `src/. dst`, where `dst` is a directory.
    Contents,
}

impl Form {
    pub(super) fn any(rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Self::Into,
            1 => Self::Named,
            _ => Self::Contents,
        }
    }

    pub(super) fn source(self, upload: bool) -> CopyLocation {
        let path = match self {
            Self::Contents => "src/.",
            _ => "src",
        };
        place(path, !upload)
    }

    pub(super) fn target(self, upload: bool) -> CopyLocation {
        place("dst", upload)
    }

    /// Directories that may be the copy of `src`.
    fn roots(self) -> &'static [&'static str] {
        match self {
            Self::Into => &["/home/u/dst/src"],
            // As with scp, a second command finds a directory and copies into it.
            Self::Named => &["/home/u/dst", "/home/u/dst/src"],
            Self::Contents => &["/home/u/dst"],
        }
    }
}

fn place(path: &str, remote: bool) -> CopyLocation {
    match remote {
        true => CopyLocation::Remote {
            host: HostId(0),
            path: path.as_bytes().to_vec(),
        },
        false => CopyLocation::Local(PathBuf::from(path)),
    }
}

/// Trees of a simulated copy.
pub(super) struct Trees {
    upload: bool,
    form: Form,
    /// Contents that a file below `src` had, the latest last, and its modification time.
    files: BTreeMap<String, Vec<Vec<u8>>>,
    dirs: BTreeSet<String>,
    /// Contents of files that stood at the target before.
    older: BTreeMap<String, Vec<u8>>,
    /// Contents that somebody else gave to files at the target.
    foreign: BTreeMap<String, Vec<u8>>,
    /// The receiving machine has lost its power.
    power_lost: bool,
    /// Files that have changed during the run that goes on.
    unsteady: BTreeSet<String>,
    changed: u64,
    seed: u64,
}

impl Trees {
    pub(super) fn make(
        world: &mut World,
        rng: &mut Rng,
        upload: bool,
        form: Form,
        large: u64,
    ) -> Self {
        let mut trees = Self {
            upload,
            form,
            files: BTreeMap::new(),
            dirs: BTreeSet::new(),
            older: BTreeMap::new(),
            foreign: BTreeMap::new(),
            power_lost: false,
            unsteady: BTreeSet::new(),
            changed: 0,
            seed: rng.next_u64(),
        };
        let mut dirs = vec![String::new()];
        for nth in 0..1 + rng.below(12) {
            let above = &dirs[rng.below(dirs.len() as u64) as usize];
            let dir = format!("{above}d{nth}/");
            trees.dirs.insert(dir.clone());
            dirs.push(dir);
        }
        let mut seed = Seed::new(trees.seed);
        let files = [30, FILES, FILES, FILES][rng.below(4) as usize];
        for nth in 0..files {
            let dir = &dirs[rng.below(dirs.len() as u64) as usize];
            let len = match rng.below(20) {
                0 => 0,
                1 => rng.below(300_000),
                _ => rng.below(9000),
            };
            trees
                .files
                .insert(format!("{dir}f{nth}"), vec![seed.bytes(len as usize)]);
        }
        trees
            .files
            .insert("large".to_owned(), vec![seed.bytes(large as usize)]);
        trees.place_source(world);
        trees.place_older(world, rng, &mut seed);
        trees
    }

    fn place_source(&self, world: &mut World) {
        let mut local = world.local.borrow_mut();
        let fs: &mut Fs = match self.upload {
            true => &mut local,
            false => &mut world.hosts[0].host.fs,
        };
        // The tree is older than the copy.
        let clock = std::mem::replace(&mut fs.clock, 1_600_000_000);
        fs.place("/home/u/src", Kind::Dir, 0o755);
        for dir in &self.dirs {
            fs.place(
                &format!("/home/u/src/{}", dir.trim_end_matches('/')),
                Kind::Dir,
                0o755,
            );
        }
        for (name, contents) in &self.files {
            let kind = Kind::File(contents[0].clone());
            fs.place(&format!("/home/u/src/{name}"), kind, 0o644);
        }
        fs.clock = clock;
    }

    /// Places a target directory, with older files in some cases.
    fn place_older(&mut self, world: &mut World, rng: &mut Rng, seed: &mut Seed) {
        if let Form::Named = self.form {
            return;
        }
        let mut local = world.local.borrow_mut();
        let fs: &mut Fs = match self.upload {
            false => &mut local,
            true => &mut world.hosts[0].host.fs,
        };
        fs.place("/home/u/dst", Kind::Dir, 0o755);
        if rng.below(2) == 0 {
            return;
        }
        let root = self.form.roots()[0];
        if root != "/home/u/dst" {
            fs.place(root, Kind::Dir, 0o755);
        }
        let top: Vec<&String> = self
            .files
            .keys()
            .filter(|name| !name.contains('/'))
            .collect();
        for name in top {
            if rng.below(2) == 0 {
                let data = seed.bytes(rng.below(5000) as usize);
                fs.place(&format!("{root}/{name}"), Kind::File(data.clone()), 0o644);
                self.older.insert(name.clone(), data);
            }
        }
    }

    /// Notes a fault that changes what may stand at the target.
    pub(super) fn suffered(&mut self, fault: SimFault, durable: bool) {
        self.power_lost |= match fault {
            SimFault::HostRestarted => self.upload && !durable,
            SimFault::LocalRestarted => !self.upload && !durable,
            _ => false,
        };
    }

    /// Changes a file that the copy has finished, between two runs.
    pub(super) fn change_target(&mut self, world: &mut World, change: SimFault) {
        let (SimFault::TargetChanged(nth) | SimFault::TargetDamaged(nth)) = change else {
            return;
        };
        let at = nth % self.files.len() as u64;
        let Some(name) = self.files.keys().nth(at as usize).cloned() else {
            return;
        };
        let mut local = world.local.borrow_mut();
        let fs: &mut Fs = match self.upload {
            false => &mut local,
            true => &mut world.hosts[0].host.fs,
        };
        let clock = fs.clock;
        let paths = self.form.roots().iter();
        let path = paths.map(|root| format!("{root}/{name}"));
        for path in path {
            let Some(node) = fs.at_mut(&path) else {
                continue;
            };
            let Kind::File(data) = &mut node.kind else {
                continue;
            };
            match (change, data.first_mut()) {
                (SimFault::TargetDamaged(_), Some(byte)) => *byte ^= 1,
                _ => {
                    data.extend_from_slice(b"foreign");
                    node.times.1 = clock;
                }
            }
            self.foreign.insert(name.clone(), data.clone());
        }
    }

    /// Completes and renames the unfinished large file at the target, as the requests do that a killed
    /// run has sent after its last record. Returns false if there is none.
    pub(super) fn complete_large(&self, world: &mut World) -> bool {
        let mut local = world.local.borrow_mut();
        let fs: &mut Fs = match self.upload {
            false => &mut local,
            true => &mut world.hosts[0].host.fs,
        };
        let is_large = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or_default();
            sftp::final_name_in(name.as_bytes()).is_some_and(|name| name == b"large")
        };
        let names = fs.names();
        let (Some(temp), Some([.., data])) = (
            names.iter().find(|path| is_large(path)),
            self.files.get("large").map(Vec::as_slice),
        ) else {
            return false;
        };
        let folder = temp.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = format!("{folder}/large");
        let renamed = fs.rename(temp.as_bytes(), path.as_bytes(), true);
        renamed.expect("the temporary is there");
        if let Some(node) = fs.at_mut(&path) {
            node.kind = Kind::File(data.clone());
        }
        true
    }

    /// Gives a source file other contents.
    pub(super) fn change(&mut self, world: &mut World, nth: u64) {
        let at = nth % (self.files.len() as u64 + 20);
        let name = self.files.keys().nth(at as usize);
        let name = name.map_or("large", String::as_str).to_owned();
        let Some(contents) = self.files.get_mut(&name) else {
            return;
        };
        let mut seed = Seed::new(self.seed ^ nth);
        let last = contents.last().map_or(0, Vec::len);
        let len = match nth % 3 {
            0 => last,
            1 => last / 2,
            _ => last + 1000,
        };
        let data = seed.bytes(len);
        self.changed += (last + len) as u64;
        let path = format!("/home/u/src/{name}");
        let mut local = world.local.borrow_mut();
        let fs: &mut Fs = match self.upload {
            true => &mut local,
            false => &mut world.hosts[0].host.fs,
        };
        let clock = fs.clock;
        if let Some(node) = fs.at_mut(&path) {
            node.kind = Kind::File(data.clone());
            node.times = (clock, clock);
        }
        contents.push(data);
        self.unsteady.insert(name);
    }

    /// Notes that a run begins.
    pub(super) fn next_run(&mut self) {
        self.unsteady.clear();
    }

    /// Bytes of all files.
    pub(super) fn size(&self) -> u64 {
        let sizes = self.files.values().filter_map(|all| all.last());
        sizes.map(|data| data.len() as u64).sum()
    }

    /// Bytes that a changed source costs beside the limit.
    pub(super) fn changed_bytes(&self) -> u64 {
        2 * self.changed
    }

    fn with_target<T>(&self, world: &World, look: impl FnOnce(&Fs) -> T) -> T {
        match self.upload {
            true => look(&world.hosts[0].host.fs),
            false => look(&world.local.borrow()),
        }
    }

    /// Checks that every file under its final name is whole.
    pub(super) fn check_final_names(&self, world: &World) {
        if self.power_lost {
            // Without fsync the disk may have the name and not the data.
            return;
        }
        self.with_target(world, |fs| {
            for root in self.form.roots() {
                for (name, contents) in &self.files {
                    let Some(found) = fs.data(&format!("{root}/{name}")) else {
                        continue;
                    };
                    let whole = contents.iter().any(|data| data.as_slice() == found);
                    let is_found = |data: &Vec<u8>| data.as_slice() == found;
                    let older = self.older.get(name).is_some_and(is_found)
                        || self.foreign.get(name).is_some_and(is_found);
                    assert!(
                        // A source that changed while it was read is copied once more.
                        whole || older || contents.len() > 1,
                        "{name} has its final name and {} bytes that are not those of the source",
                        found.len()
                    );
                }
            }
        });
    }

    /// Inodes of the files at the target, by path.
    pub(super) fn inodes(&self, world: &World) -> BTreeMap<String, u64> {
        self.with_target(world, |fs| {
            let roots = self.form.roots().iter();
            let paths =
                roots.flat_map(|root| self.files.keys().map(move |n| format!("{root}/{n}")));
            let inode = |path: String| {
                let inode = fs.lookup(path.as_bytes(), false).ok()?;
                Some((path, inode))
            };
            paths.filter_map(inode).collect()
        })
    }

    /// Paths of the files at the target that are neither those of the source nor older.
    pub(super) fn incomplete(&self, world: &World) -> Vec<String> {
        self.with_target(world, |fs| {
            let mut incomplete = Vec::new();
            for root in self.form.roots() {
                for (name, contents) in &self.files {
                    let path = format!("{root}/{name}");
                    let Some(found) = fs.data(&path) else {
                        continue;
                    };
                    let older = self.older.get(name);
                    let known = contents.iter().chain(older);
                    if known.into_iter().all(|data| data.as_slice() != found) {
                        incomplete.push(path);
                    }
                }
            }
            incomplete
        })
    }

    /// Checks that the target is the source.
    pub(super) fn check_complete(&self, world: &World) {
        self.with_target(world, |fs| {
            let wrong = |root: &str| {
                let is_wrong = |(name, contents): &(&String, &Vec<Vec<u8>>)| {
                    let found = fs.data(&format!("{root}/{name}"));
                    let Some(found) = found else { return true };
                    let steady = !self.unsteady.contains(*name);
                    steady && contents.last().map(Vec::as_slice) != Some(found)
                };
                let wrong: Vec<&String> = self
                    .files
                    .iter()
                    .filter(is_wrong)
                    .map(|(name, _)| name)
                    .collect();
                let missing = self.dirs.iter().find(|dir| {
                    let path = format!("{root}/{}", dir.trim_end_matches('/'));
                    fs.at(&path).is_none_or(|node| node.kind != Kind::Dir)
                });
                (
                    wrong.len(),
                    wrong.into_iter().take(5).cloned().collect::<Vec<_>>(),
                    missing,
                )
            };
            let roots = self.form.roots();
            let all: Vec<_> = roots.iter().map(|root| wrong(root)).collect();
            let right = all
                .iter()
                .any(|(wrong, _, missing)| *wrong == 0 && missing.is_none());
            assert!(right, "the copy is complete and the tree is wrong: {all:?}");
        });
    }
}
