//! `longhaul sync`: the target becomes equal to the source, only what differs is sent, and nothing is
//! deleted by mistake.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use longhaul_tests::both_ends::events;
use testkit::process::{Run, must};
use testkit::tree::{Compare, Tree, assert_same, differences};
use testkit::{DelayProxy, Outcome, PeerKind, Seed};

/// `longhaul sync` with the client's configuration.
pub(crate) fn sync(scene: &Scene, flags: &[&str]) -> Run {
    let program = longhaul_tests::longhaul();
    let run = scene.client.dir.run(program).arg("sync");
    run.arg("-F").arg(scene.client.dir.config()).args(flags)
}

/// Writes a file, with the folders above it.
/// One direction of a sync with one kind of server, with directories of its own.
pub(crate) struct SyncWay<'s> {
    scene: &'s Scene,
    kind: PeerKind,
    up: bool,
    source: PathBuf,
    target: PathBuf,
}

impl SyncWay<'_> {
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Another path.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scene.path(&format!("{name}-{}", self.up))
    }

    /// Runs the sync.
    pub(crate) fn run(&self, flags: &[&str]) -> Outcome {
        self.sync(&self.source, &self.target, flags)
    }

    /// Runs a sync of other directories in this direction.
    pub(crate) fn sync(&self, from: &Path, to: &Path, flags: &[&str]) -> Outcome {
        let remote = |path: &Path| longhaul_tests::remote("peer", path);
        let (from, to) = match self.up {
            true => (from.as_os_str().to_owned(), remote(to)),
            false => (remote(from), to.as_os_str().to_owned()),
        };
        sync(self.scene, flags).arg(from).arg(to).run()
    }
}

impl fmt::Display for SyncWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} up {}", self.kind, self.up)
    }
}

/// Runs a test as an upload and as a download, with a stock server and with longhaul.
pub(crate) fn each_way(test: impl Fn(&SyncWay<'_>)) {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        for up in [true, false] {
            let tree = |name: &str| scene.path(&format!("{name}-{up}"));
            test(&SyncWay {
                scene: &scene,
                kind,
                up,
                source: tree("a"),
                target: tree("b"),
            });
        }
    }
}

pub(crate) fn write_file(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of our own");
    testkit::tree::write_file(path, content);
}

pub(crate) fn summary(outcome: &Outcome) -> serde_json::Value {
    events(outcome).pop().expect("there are events")
}

/// Asserts that a sync with `--json` found nothing to change.
pub(crate) fn assert_nothing_planned(outcome: &Outcome, seed: u64) {
    let planned = events(outcome);
    let planned: Vec<_> = planned.iter().filter(|e| e["event"] == "planned").collect();
    assert!(planned.is_empty(), "seed {seed}: planned {planned:?}");
}

pub(crate) fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::open(path).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        .expect("a time");
}

/// Every entry below `root`, deepest last.
pub(crate) fn entries(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).expect("our folder").flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Writes a file with a time of its own: of two files of one size and one second, SFTP cannot tell
/// which is newer, and rsync can.
fn write_new(path: &Path, random: &mut Seed, size: usize) {
    write_file(path, &random.bytes(size));
    set_time(path, 1_100_000_000 + random.below(100_000_000));
}

/// Kinds of changes that [`change`] makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    All,
    WithoutMoves,
}

/// Changes a tree at random: new, removed and changed entries, other types, times and modes.
pub(crate) fn change(root: &Path, random: &mut Seed, changes: Changes) {
    for step in 0..12 {
        let all = entries(root);
        if all.is_empty() {
            return;
        }
        let at = &all[random.below(all.len() as u64) as usize];
        let Ok(meta) = fs::symlink_metadata(at) else {
            continue;
        };
        let dir = if meta.is_dir() {
            at.clone()
        } else {
            at.parent().expect("a folder").to_owned()
        };
        let remove = |path: &Path| match fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
            true => drop(fs::remove_dir_all(path)),
            false => drop(fs::remove_file(path)),
        };
        match random.below(8) {
            0 => remove(at),
            1 => {
                remove(at);
                write_new(at, random, 100);
            }
            2 => {
                remove(at);
                fs::create_dir(at).expect("a folder of our own");
                write_new(&at.join("inside"), random, 1);
            }
            3 => {
                remove(at);
                symlink("nowhere", at).expect("a symlink of our own");
            }
            4 if meta.is_file() => {
                let mode = 0o600 | (random.below(0o100) as u32);
                fs::set_permissions(at, fs::Permissions::from_mode(mode)).expect("a mode");
            }
            5 if meta.is_file() => set_time(at, 1_000_000_000 + random.below(1000)),
            6 if meta.is_file() && changes == Changes::All => {
                let to = dir.join(format!("moved-{step}"));
                let _ = fs::rename(at, to);
            }
            _ => write_new(&dir.join(format!("new-{step}")), random, 3000),
        }
    }
}

/// Makes two trees that differ at random, and compares the result of a sync with rsync's.
fn like_rsync(kind: PeerKind, seeds: std::ops::Range<u64>) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    if testkit::missing::find_program("rsync").is_none() {
        return testkit::missing::skip("rsync", "apt-get install rsync");
    }
    for seed in seeds {
        let mut random = Seed::new(seed);
        let name = |of: &str| scene.path(&format!("{of}-{seed}"));
        let (source, target, expected) = (name("source"), name("target"), name("expected"));
        Tree::full(seed).with_folder_links().make(&source);
        must("cp", &["-a".as_ref(), source.as_ref(), target.as_ref()]);
        change(&source, &mut random, Changes::All);
        change(&target, &mut random, Changes::All);
        must("cp", &["-a".as_ref(), target.as_ref(), expected.as_ref()]);
        must(
            "rsync",
            &[
                "-aH".as_ref(),
                "--delete".as_ref(),
                source.join("").as_ref(),
                expected.join("").as_ref(),
            ],
        );
        let up = seed % 2 == 0;
        let remote = |path: &Path| longhaul_tests::remote("peer", path);
        let (from, to) = match up {
            true => (source.clone().into_os_string(), remote(&target)),
            false => (remote(&source), target.clone().into_os_string()),
        };
        let outcome = sync(&scene, &["--delete", "--yes"])
            .arg(&from)
            .arg(&to)
            .run();
        let outcome = outcome.expect_code(0);
        let differ = differences(&expected, &target, Compare::PRESERVED);
        assert!(
            differ.is_empty(),
            "seed {seed}, up {up}:\n{}\n{outcome}",
            differ.join("\n")
        );
        let again = sync(&scene, &["--delete", "--json", "-q"])
            .arg(&from)
            .arg(&to)
            .run();
        let again = again.expect_code(0);
        assert_nothing_planned(&again, seed);
        for path in [source, target, expected] {
            fs::remove_dir_all(path).expect("ours");
        }
    }
}

#[test]
fn the_result_is_rsyncs_over_openssh() {
    like_rsync(PeerKind::OpenSsh, 0..10);
}

#[test]
fn the_result_is_rsyncs_over_longhaul() {
    like_rsync(PeerKind::Longhaul, 100..106);
}

#[test]
fn a_slash_at_the_end_changes_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    for (from, to) in [("a", "b1"), ("a/", "b2"), ("a", "b3/"), ("a/", "b4/")] {
        let mut source = scene.path("a").into_os_string();
        source.push(from.strip_prefix('a').unwrap_or_default());
        sync(&scene, &[])
            .arg(source)
            .arg(scene.remote(to))
            .run()
            .expect_code(0);
        let to = to.trim_end_matches('/');
        assert_same(&scene.path("a"), &scene.path(to), Compare::PRESERVED);
    }
    // A second run does not nest either.
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b1"))
        .run()
        .expect_code(0);
    assert_same(&scene.path("a"), &scene.path("b1"), Compare::PRESERVED);
}

/// Bug: a sync counted no directory.
#[test]
fn directories_that_a_sync_makes_are_counted() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/x/y/file"), b"content");
    let run = sync(&scene, &["--json"]).arg(scene.path("a"));
    let outcome = run.arg(scene.remote("b")).run().expect_code(0);
    assert_eq!(summary(&outcome)["directories"], 3, "{outcome}");
}

#[test]
fn without_delete_what_only_the_target_has_stays() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    write_file(&scene.path("b/other"), b"mine");
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(fs::read(scene.path("b/other")).expect("kept"), b"mine");
    assert_eq!(fs::read(scene.path("b/f")).expect("copied"), b"one");
}

#[test]
fn a_dry_run_names_every_change_and_makes_none() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/new"), b"n");
    write_file(&scene.path("a/changed"), b"longer");
    write_file(&scene.path("b/changed"), b"old");
    write_file(&scene.path("b/gone/deep"), b"g");
    must(
        "cp",
        &[
            "-a".as_ref(),
            scene.path("b").as_ref(),
            scene.path("before").as_ref(),
        ],
    );
    let outcome = sync(&scene, &["-n", "--delete"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    let outcome = outcome.run().expect_code(0);
    let out = outcome.out();
    for line in ["+ new", "- gone/deep", "- gone/"] {
        assert!(out.lines().any(|l| l == line), "{line} in {out}");
    }
    assert!(
        out.lines().any(|l| l.starts_with("~ changed (size")),
        "{out}"
    );
    assert!(
        out.lines()
            .next()
            .is_some_and(|l| l.contains("/a/ -> peer:")),
        "{out}"
    );
    assert_same(&scene.path("before"), &scene.path("b"), Compare::PRESERVED);
}

#[test]
fn a_moved_folder_is_renamed_and_not_sent_again() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let mut random = Seed::new(1);
    for n in 0..8 {
        write_file(
            &scene.path(&format!("a/old/deep/{n}")),
            &random.bytes(1 << 20),
        );
    }
    write_file(&scene.path("a/stays"), b"x");
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    let inode = |path: &str| fs::metadata(scene.path(path)).expect("there").ino();
    let before = inode("b/old/deep/3");
    fs::rename(scene.path("a/old"), scene.path("a/new")).expect("ours");
    let outcome = sync(&scene, &["--delete", "--json", "-q"]);
    let outcome = outcome
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(summary(&outcome)["bytes"], 0, "{outcome}");
    assert_eq!(inode("b/new/deep/3"), before, "renamed, not copied");
    assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
}

#[test]
fn gitignore_files_of_the_source_decide_at_both_ends() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for (file, content) in [
        ("a/.gitignore", "*.log\n/target/\n"),
        ("a/sub/.gitignore", "!important.log\n"),
        ("a/x.log", ""),
        ("a/sub/important.log", ""),
        ("a/target/big", ""),
        ("a/main.rs", ""),
    ] {
        write_file(&scene.path(file), content.as_bytes());
    }
    write_file(&scene.path("b/target/cache"), b"theirs");
    let run = sync(&scene, &["--delete", "--gitignore"]);
    run.arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert!(scene.path("b/target/cache").exists() && !scene.path("b/target/big").exists());
    assert!(scene.path("b/sub/important.log").exists() && !scene.path("b/x.log").exists());
}

#[test]
fn a_file_over_max_size_keeps_its_counterpart() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/large"), &[7; 5000]);
    write_file(&scene.path("a/small"), b"s");
    write_file(&scene.path("b/large"), b"older and small");
    let run = sync(&scene, &["--delete", "--max-size", "1kB"]);
    run.arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(
        fs::read(scene.path("b/large")).expect("kept"),
        b"older and small"
    );
    assert!(scene.path("b/small").exists());
}

#[test]
fn files_from_syncs_what_is_listed_and_names_what_is_missing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for file in ["a/one", "a/dir/two", "a/dir/three", "a/other"] {
        write_file(&scene.path(file), b"x");
    }
    write_file(&scene.path("list"), b"one\ndir\nmissing\n");
    let list = scene.path("list");
    let list = list.to_str().expect("plain");
    let run = sync(&scene, &["--files-from", list])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    run.run()
        .expect_code(1)
        .expect_err(&["missing: listed in --files-from, but not found"]);
    assert!(scene.path("b/dir/three").exists() && scene.path("b/one").exists());
    assert!(!scene.path("b/other").exists());
}

/// Bug: the target itself, which may be the home directory of an account, got permissions and time of
/// the source, so that others could read it.
#[test]
fn a_list_of_files_changed_the_directory_above_them() {
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        for name in ["one", "dir/two"] {
            write_file(&source.join(name), b"x");
        }
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        set_mode(source, 0o777);
        set_mode(&source.join("dir"), 0o750);
        write_file(&way.path("list"), b"one\ndir\n");
        let list = way.path("list");
        let list = list.to_str().expect("plain");
        for (there, flags) in [(0o700, &[][..]), (0o500, &["--delete", "--yes"])] {
            write_file(&target.join("dir/gone"), b"x");
            set_mode(target, there);
            set_time(source, 1_000_000_000);
            let run = |flags: &[&str]| way.run(&[&["--files-from", list], flags].concat());
            run(flags).expect_code(0);
            assert_eq!(mode(target), there, "{way}");
            assert_eq!(mode(&target.join("dir")), 0o750, "{way}");
            let modified = fs::metadata(target).expect("it is there").mtime();
            assert_ne!(modified, 1_000_000_000, "{way}");
            let again = run(&["--dry-run"]).expect_code(0);
            assert!(again.out().contains("0 files to copy"), "{again}");
            set_mode(target, 0o700);
            fs::remove_dir_all(target).expect("ours");
        }
    });
}

#[test]
fn a_filter_file_that_cannot_be_read_or_parsed_names_file_and_line() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("rules"), b"*.o\n[z-a]\n");
    fs::create_dir(scene.path("a")).expect("ours");
    for (file, says) in [("rules", "rules, line 2"), ("nothing", "no such file")] {
        let file = scene.path(file);
        let file = file.to_str().expect("plain");
        let run = sync(&scene, &["--filter-from", file]).arg(scene.path("a"));
        run.arg(scene.remote("b"))
            .run()
            .expect_code(2)
            .expect_err(&[says]);
    }
}

#[test]
fn a_sync_of_equal_trees_plans_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for n in 0..3000 {
        write_file(&scene.path(&format!("a/{}/{n}", n % 30)), b"");
    }
    must(
        "cp",
        &[
            "-a".as_ref(),
            scene.path("a").as_ref(),
            scene.path("b").as_ref(),
        ],
    );
    let run = sync(&scene, &["--json", "-q"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"));
    let outcome = run.run().expect_code(0);
    let planned = events(&outcome);
    let planned = planned
        .iter()
        .find(|e| e["event"] == "sync_planned")
        .expect("a plan");
    assert_eq!(
        (&planned["files"], &planned["equal"]),
        (&0.into(), &3030.into())
    );
}

#[test]
fn operands_that_cannot_be_synced_are_one_sentence() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/f"), b"x");
    let a = || scene.path("a").into_os_string();
    for (from, to, code, says) in [
        (
            a(),
            scene.path("b").into_os_string(),
            2,
            "both directories are on this machine",
        ),
        (
            scene.remote("a"),
            scene.remote("a"),
            2,
            "the same directory",
        ),
        (
            scene.path("a/f").into_os_string(),
            scene.remote("b"),
            1,
            "use longhaul cp for a file",
        ),
        (
            scene.path("none").into_os_string(),
            scene.remote("b"),
            1,
            "no such directory",
        ),
        (a(), scene.remote("a/f"), 1, "not a directory"),
    ] {
        sync(&scene, &[])
            .arg(from)
            .arg(to)
            .run()
            .expect_code(code)
            .expect_err(&[says]);
    }
}

/// Regression: `-i` took the `n` behind it as the name of a key file, and `-in --delete`, rsync's dry
/// run with itemized changes, deleted.
#[test]
fn an_itemized_dry_run_in_rsyncs_letters_deletes_nothing() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/kept"), b"x");
    write_file(&scene.path("b/gone"), b"y");
    let go = |flags: &[&str]| {
        let run = sync(&scene, flags).arg("--delete");
        run.arg(scene.path("a")).arg(scene.remote("b")).run()
    };
    for letters in ["-in", "-ni", "-avhin", "-n"] {
        let outcome = go(&[letters]);
        let outcome = outcome
            .expect_code(0)
            .expect_err(&["nothing was changed (--dry-run)"]);
        let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert!(printed.contains("- gone"), "{letters}: {outcome}");
        assert!(scene.path("b/gone").exists(), "{letters}");
        assert!(!scene.path("b/kept").exists(), "{letters}");
    }
    // A key before the operands, as scp's -i: three operands, and nothing happens.
    let outcome = sync(&scene, &["-i", "key", "--delete"])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run();
    outcome
        .expect_code(2)
        .expect_err(&["--identity FILE names a key file"]);
    assert!(scene.path("b/gone").exists());
    go(&["-avhi"]).expect_code(0);
    assert!(!scene.path("b/gone").exists() && scene.path("b/kept").exists());
}

/// Bug: each level of the tree cost two round trips before the first file, though a listing of the
/// target had shown all of its directories.
#[test]
fn a_changed_file_deep_in_a_tree_waited_two_round_trips_for_each_level() {
    let Some(mut scene) = Scene::beyond_scp(PeerKind::Longhaul) else {
        return;
    };
    let mut deep = PathBuf::new();
    (0..30).for_each(|level| deep.push(format!("level{level}")));
    for side in ["from", "to"] {
        write_file(&scene.path(side).join(&deep).join("file"), b"old");
    }
    let rtt = Duration::from_millis(100);
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(rtt).start();
    let dir = &mut scene.client.dir;
    dir.add_host_at("peer", &scene.peer, proxy.port());
    let mut trips = f64::INFINITY;
    // A busy machine adds to each run.
    for content in ["first", "second!", "the third"] {
        let from = scene.path("from").join(&deep).join("file");
        write_file(&from, content.as_bytes());
        let run = sync(&scene, &["-q"]).arg(scene.path("from"));
        let outcome = run.arg(scene.remote("to")).run().expect_code(0);
        let to = fs::read(scene.path("to").join(&deep).join("file"));
        assert_eq!(to.expect("a copy"), content.as_bytes());
        trips = trips.min(outcome.elapsed.as_secs_f64() / rtt.as_secs_f64());
        if trips < 30.0 {
            break;
        }
    }
    assert!(trips < 30.0, "{trips:.1} round trips for 30 levels");
}

/// Bug: other owners at the source were never seen, though new files got them.
#[test]
fn owners_follow_those_of_the_source_where_root_may_set_them() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    each_way(|way| {
        let (source, target) = (way.source(), way.target());
        write_file(&source.join("dir/file"), b"content");
        write_file(&source.join("changed"), b"content");
        symlink("file", source.join("dir/link")).expect("our symlink");
        let run = |flags: &[&str]| way.run(flags);
        run(&[]).expect_code(0);
        for (path, owner) in [("dir", 4001), ("dir/file", 4002), ("dir/link", 4003)] {
            let path = source.join(path);
            std::os::unix::fs::lchown(path, Some(owner), Some(owner + 10)).expect("ours");
        }
        let dry = run(&["-n"]).expect_code(0);
        for name in ["dir/", "dir/file", "dir/link"] {
            let line = format!("~ {name} (owner)");
            assert!(dry.out().contains(&line), "{way} {line}: {dry}");
        }
        let done = run(&[]).expect_code(0);
        let owner = |path: PathBuf| {
            let meta = fs::symlink_metadata(path).expect("it is there");
            (meta.uid(), meta.gid())
        };
        for path in ["changed", "dir", "dir/file", "dir/link"] {
            let owners = (owner(source.join(path)), owner(target.join(path)));
            assert_eq!(owners.0, owners.1, "{way} {path}: {done}");
        }
        let again = run(&["-n"]).expect_code(0);
        assert!(!again.out().contains("(owner)"), "{way}: {again}");
    });
}

/// Attack: a file with the size and time of a setuid program of the source got its owner and bits.
#[test]
fn a_setuid_program_is_copied_and_not_only_given_its_bits() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        for (path, content) in [("a/su", "program"), ("b/su", "planted")] {
            write_file(&scene.path(path), content.as_bytes());
            set_time(&scene.path(path), 1_600_000_000);
        }
        let mode = |mode: u32| fs::Permissions::from_mode(mode);
        fs::set_permissions(scene.path("a/su"), mode(0o4755)).expect("ours");
        let run = sync(&scene, &[]).arg(scene.path("a"));
        run.arg(scene.remote("b")).run().expect_code(0);
        assert_eq!(
            fs::read(scene.path("b/su")).expect("it is there"),
            b"program"
        );
        let meta = fs::metadata(scene.path("b/su")).expect("it is there");
        assert_eq!(meta.permissions().mode() & 0o7777, 0o4755, "{kind:?}");
    }
}

/// Bug: a slash at the end made it another command, which did not resume, and left the unfinished
/// file for ever.
#[test]
fn an_interrupted_sync_is_resumed_with_a_slash_too() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/file"), &vec![7; 30_000_000]);
    let (from, to) = (scene.path("a"), scene.path("b"));
    let remote = |slash: &str| {
        let mut path = longhaul_tests::remote("peer", &to);
        path.push(slash);
        path
    };
    let running = sync(&scene, &["--limit=64Mbit"])
        .arg(&from)
        .arg(remote(""))
        .spawn();
    let bytes = || -> u64 {
        let sizes = entries(&to)
            .into_iter()
            .filter_map(|path| fs::metadata(path).ok());
        sizes.map(|meta| meta.len()).sum()
    };
    assert!(running.until(|| to.exists() && bytes() > 10_000_000));
    running.interrupt();
    running.wait().expect_code(130);
    let mut slashed = from.clone().into_os_string();
    slashed.push("//");
    let outcome = sync(&scene, &["--delete", "--json"])
        .arg(slashed)
        .arg(remote("/"));
    let outcome = outcome.run().expect_code(0);
    assert!(outcome.out().contains("\"event\":\"resumed\""), "{outcome}");
    assert_same(&from, &to, Compare::PRESERVED);
    // One that no journal knows stays, and is named.
    write_file(&to.join(".x.0123456789.longhaul"), b"unfinished");
    let outcome = sync(&scene, &["--delete"]).arg(&from).arg(remote(""));
    let outcome = outcome.run().expect_code(0);
    outcome.expect_err(&[".x.0123456789.longhaul: this unfinished file of another copy stays"]);
}
