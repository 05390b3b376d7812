//! Options of `longhaul sync` on generated trees, with rsync as the oracle: each result, kept backup
//! and made link is rsync's.
//!
//! `LONGHAUL_SYNC_ROUNDS=20 cargo test --workspace --test cli sync_options` tries more trees.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::Scene;
use testkit::process::must;
use testkit::tree::{Compare, Tree, differences};
use testkit::{PeerKind, Seed};

use crate::sync::{Changes, change, entries, sync, write_file};

/// Trees for each option and way without `LONGHAUL_SYNC_ROUNDS`.
const ROUNDS: u64 = 1;

/// Files with these names are added to both trees, for the filters.
const FILTERED: [&str; 4] = ["x.o", "cache/inner", "build/out", "sub.o/file"];

/// Flags of a sync and those of the rsync with the same meaning.
struct Options {
    ours: &'static [&'static str],
    rsync: &'static [&'static str],
    /// The sync gets a list of some names of the source.
    lists: bool,
}

const OPTIONS: [Options; 14] = [
    same(&["--existing"]),
    same(&["--existing", "--delete"]),
    same(&["--ignore-existing"]),
    same(&["--ignore-existing", "--delete"]),
    same(&["-u"]),
    same(&["-u", "--delete"]),
    same(&["--size-only", "--delete"]),
    same(&["--checksum", "--delete"]),
    same(&["--max-size=1000", "--delete"]),
    same(&["--min-size=1000", "--delete"]),
    same(&[
        "--delete",
        "--exclude=*.o",
        "--exclude=cache/",
        "--exclude=/build",
    ]),
    same(&["--exclude=/*/*/"]),
    Options {
        lists: true,
        ..same(&[])
    },
    Options {
        lists: true,
        ..same(&["--delete"])
    },
];

const fn same(flags: &'static [&'static str]) -> Options {
    Options {
        ours: flags,
        rsync: flags,
        lists: false,
    }
}

/// Directories of one round.
struct Round<'a> {
    scene: &'a Scene,
    source: PathBuf,
    target: PathBuf,
    expected: PathBuf,
    up: bool,
}

impl<'a> Round<'a> {
    /// Makes two trees that differ at random, and a copy of the second one for rsync.
    fn new(scene: &'a Scene, seed: u64, up: bool, changes: Changes) -> Self {
        let place = |name: &str| scene.path(&format!("{name}-{seed}-{up}"));
        let round = Self {
            scene,
            source: place("source"),
            target: place("target"),
            expected: place("expected"),
            up,
        };
        let mut random = Seed::new(seed);
        Tree::full(seed).with_folder_links().make(&round.source);
        copy(&round.source, &round.target);
        for tree in [&round.source, &round.target] {
            let dirs = entries(tree).into_iter().filter(|path| is_dir(path));
            let dirs: Vec<PathBuf> = dirs.chain([tree.clone()]).collect();
            for name in FILTERED {
                let dir = &dirs[random.below(dirs.len() as u64) as usize];
                write_file(&dir.join(name), &random.bytes(50));
            }
            change(tree, &mut random, changes);
        }
        copy(&round.target, &round.expected);
        round
    }

    /// Runs rsync; false if it could not do everything.
    fn rsync(&self, flags: &[&OsStr]) -> bool {
        let mut command = Command::new("rsync");
        command.arg("-aH").args(flags).arg(self.source.join(""));
        let output = command.arg(self.expected.join("")).output();
        let code = output.expect("rsync is there").status.code();
        assert!(matches!(code, Some(0 | 23)), "{command:?}: {code:?}");
        code == Some(0)
    }

    /// Runs the sync. A path of the target's end is given as the sync takes it.
    fn sync(&self, flags: &[&OsStr]) -> testkit::Outcome {
        let remote = |path: &Path| longhaul_tests::remote("peer", path);
        let (from, to) = match self.up {
            true => (self.source.clone().into_os_string(), remote(&self.target)),
            false => (remote(&self.source), self.target.clone().into_os_string()),
        };
        let run = flags
            .iter()
            .fold(sync(self.scene, &[]), |run, flag| run.arg(flag));
        run.arg(from).arg(to).run()
    }

    /// Panics unless the target is as rsync made its copy.
    fn assert_equal(&self, what: &str, outcome: &testkit::Outcome) {
        let mut differ = differences(&self.expected, &self.target, Compare::PRESERVED);
        // rsync takes no attributes of a source of which it copies listed names.
        if what.contains("--files-from") {
            differ.retain(|line| !line.starts_with("(root)"));
        }
        let source = self.source.display();
        assert!(
            differ.is_empty(),
            "{what}, {source}:\n{}\n{outcome}",
            differ.join("\n")
        );
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for path in [&self.source, &self.target, &self.expected] {
                let _ = fs::remove_dir_all(path);
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    must("cp", &["-a".as_ref(), from.as_ref(), to.as_ref()]);
}

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Calls `one` with a scene, a seed and the way, for both kinds of server and both ways.
fn each_round(mut one: impl FnMut(&Scene, u64, bool)) {
    each_round_with(PeerKind::OpenSsh, &mut one);
    each_round_with(PeerKind::Longhaul, &mut one);
}

/// Calls `one` with a scene, a seed and the way, for both ways.
fn each_round_with(kind: PeerKind, mut one: impl FnMut(&Scene, u64, bool)) {
    let rounds = std::env::var("LONGHAUL_SYNC_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    if testkit::missing::find_program("rsync").is_none() {
        return testkit::missing::skip("rsync", "apt-get install rsync");
    }
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    let first = match kind {
        PeerKind::Longhaul => 2000,
        _ => 1000,
    };
    for seed in first..first + rounds {
        one(&scene, seed, true);
        one(&scene, seed, false);
    }
}

#[test]
fn each_option_gives_the_result_of_rsyncs_with_openssh() {
    each_option(PeerKind::OpenSsh);
}

#[test]
fn each_option_gives_the_result_of_rsyncs_with_longhaul() {
    each_option(PeerKind::Longhaul);
}

fn each_option(kind: PeerKind) {
    each_round_with(kind, |scene, seed, up| {
        for (at, options) in OPTIONS.iter().enumerate() {
            let seed = seed + 10_000 * at as u64;
            let round = Round::new(scene, seed, up, Changes::All);
            let list = scene.path("list");
            let mut ours: Vec<&OsStr> = options.ours.iter().map(OsStr::new).collect();
            let mut rsync: Vec<&OsStr> = options.rsync.iter().map(OsStr::new).collect();
            if options.lists {
                write_list(&round, seed, &list);
                let listed = ["--files-from".as_ref(), list.as_os_str()];
                ours.extend(listed);
                rsync.extend(listed);
                // With a list, rsync's -a does not go into directories.
                rsync.extend([OsStr::new("-r"), OsStr::new("--from0")]);
            }
            if options.ours.contains(&"--delete") {
                ours.push("--yes".as_ref());
            }
            let complete = round.rsync(&rsync);
            let outcome = round.sync(&ours);
            if !complete {
                // A directory with excluded entries stands in the way of a file.
                assert_ne!(outcome.code, Some(0), "{:?}: {outcome}", options.ours);
                continue;
            }
            let outcome = outcome.expect_code(0);
            round.assert_equal(&format!("{ours:?}"), &outcome);
        }
    });
}

/// Writes a list of a few entries of the source, one of which contains another.
fn write_list(round: &Round<'_>, seed: u64, list: &Path) {
    let mut random = Seed::new(seed);
    let all = entries(&round.source);
    let mut names = BTreeSet::new();
    for _ in 0..8 {
        let path = &all[random.below(all.len() as u64) as usize];
        names.insert(path.strip_prefix(&round.source).expect("below").to_owned());
    }
    let names = names.iter().map(|name| name.as_os_str().as_encoded_bytes());
    let text: Vec<u8> = names.flat_map(|name| [name, b"\0"].concat()).collect();
    write_file(list, &text);
}

/// A backup directory keeps replaced and deleted files as rsync's does.
#[test]
fn a_backup_directory_keeps_what_rsyncs_keeps() {
    each_round(|scene, seed, up| {
        // A moved file is renamed, where rsync keeps one and copies the other.
        let round = Round::new(scene, seed, up, Changes::WithoutMoves);
        let [ours, rsyncs] = ["ours", "rsyncs"].map(|of| scene.path(&format!("{of}-{seed}-{up}")));
        let dir = |path: &Path| format!("--backup-dir={}", path.display());
        let flags = ["--delete".to_owned(), "--backup".to_owned(), dir(&rsyncs)];
        if !round.rsync(&flags.each_ref().map(OsStr::new)) {
            return;
        }
        let flags = ["--delete".to_owned(), "--yes".to_owned(), dir(&ours)];
        let outcome = round.sync(&flags.each_ref().map(OsStr::new));
        let outcome = outcome.expect_code(0);
        round.assert_equal("--backup-dir", &outcome);
        // rsync keeps empty directories and their attributes as well.
        let files = |root: &Path| -> BTreeSet<(PathBuf, Vec<u8>)> {
            let files = entries(root).into_iter().filter(|path| !is_dir(path));
            let content = |path: &Path| match fs::read_link(path) {
                Ok(text) => text.into_os_string().into_encoded_bytes(),
                Err(_) => fs::read(path).expect("ours"),
            };
            let below = |path: &Path| path.strip_prefix(root).expect("below").to_owned();
            files.map(|path| (below(&path), content(&path))).collect()
        };
        let (ours, rsyncs) = (files(&ours), files(&rsyncs));
        let names = |set: BTreeSet<(PathBuf, Vec<u8>)>| -> Vec<PathBuf> {
            set.into_iter().map(|(path, _)| path).collect()
        };
        let only = (&ours - &rsyncs, &rsyncs - &ours);
        let only = (names(only.0), names(only.1));
        assert!(
            only.0.is_empty() && only.1.is_empty(),
            "{only:?}: {outcome}"
        );
    });
}

#[test]
fn link_dest_links_the_files_that_rsync_links() {
    each_round(|scene, seed, up| {
        let round = Round::new(scene, seed, up, Changes::All);
        let earlier = scene.path(&format!("earlier-{seed}-{up}"));
        fs::rename(&round.target, &earlier).expect("ours");
        fs::remove_dir_all(&round.expected).expect("ours");
        let flag = format!("--link-dest={}", earlier.display());
        assert!(round.rsync(&[flag.as_ref()]));
        let outcome = round.sync(&[flag.as_ref()]).expect_code(0);
        round.assert_equal("--link-dest", &outcome);
        let linked = |root: &Path| -> BTreeSet<PathBuf> {
            let inode = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.ino()).ok();
            let files = entries(root).into_iter().filter_map(|path| {
                let meta = fs::symlink_metadata(&path).ok()?;
                let below = path.strip_prefix(root).ok()?.to_owned();
                let same = inode(&earlier.join(&below)) == Some(meta.ino());
                (meta.is_file() && same).then_some(below)
            });
            files.collect()
        };
        assert_eq!(linked(&round.expected), linked(&round.target), "{outcome}");
        fs::remove_dir_all(&earlier).expect("ours");
    });
}
