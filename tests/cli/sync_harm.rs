//! Sources that are broken in a random way: `longhaul sync --delete` loses nothing of the target.
//!
//! `LONGHAUL_SYNC_ROUNDS=200 cargo test --workspace --test cli sync_harm` tries more of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use longhaul_tests::Scene;
use testkit::process::must;
use testkit::{PeerKind, Seed};

use crate::sync::{entries, sync, write_file};

/// Rounds without `LONGHAUL_SYNC_ROUNDS`.
const ROUNDS: u64 = 8;

#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A directory at some depth cannot be listed, because its path is too long.
    Unlistable,
    /// The source has lost all its entries.
    Emptied,
    /// The source's file system is not mounted: the mount point is on another one.
    Unmounted,
}

#[test]
fn a_broken_source_deletes_nothing_in_any_round() {
    let rounds = std::env::var("LONGHAUL_SYNC_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        for round in (0..rounds).filter(|round| (round % 2 == 0) == (kind == PeerKind::OpenSsh)) {
            harm_once(&scene, round);
        }
    }
}

/// Regression: each run copied the target into itself once more, and with --delete a source inside
/// the target was deleted.
#[test]
fn a_target_in_the_source_and_a_source_in_the_target_are_refused() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("a/file"), b"content");
    write_file(&scene.path("a/sub/own"), b"own");
    let before = contents(&scene.path("a"));
    let time = fs::metadata(scene.path("a")).and_then(|meta| meta.modified());
    for (from, to, flags, says) in [
        ("a", "a", &["--delete"][..], Some("the same directory")),
        ("a", "a/sub", &["--delete"], Some("lies in SRC")),
        ("a", "a/new", &[], Some("lies in SRC")),
        ("a/sub", "a", &["--delete"], Some("contains SRC")),
        ("a", "a/sub", &["--delete", "-n"], None),
    ] {
        for up in [true, false] {
            let (from, to) = match up {
                true => (scene.path(from).into_os_string(), scene.remote(to)),
                false => (scene.remote(from), scene.path(to).into_os_string()),
            };
            let outcome = sync(&scene, flags).arg(from).arg(to).run();
            if let Some(says) = says {
                outcome.expect_code(1).expect_err(&[says]);
            }
            assert_eq!(contents(&scene.path("a")), before, "{flags:?} up {up}");
        }
    }
    let after = fs::metadata(scene.path("a")).and_then(|meta| meta.modified());
    assert_eq!(time.expect("ours"), after.expect("ours"));
    // An excluded target takes no part.
    let run = sync(&scene, &["--exclude", "/sub"]).arg(scene.path("a"));
    run.arg(scene.remote("a/sub")).run().expect_code(0);
    assert_eq!(
        fs::read(scene.path("a/sub/file")).expect("it was copied"),
        b"content"
    );
}

fn harm_once(scene: &Scene, round: u64) {
    let mut random = Seed::new(round);
    let (tree, place, target) = (scene.path("tree"), scene.path("a"), scene.path("b"));
    for old in [&tree, &target] {
        let _ = fs::remove_dir_all(old);
    }
    let _ = fs::remove_file(&place);
    for n in 0..20 + random.below(30) {
        let mut path = tree.clone();
        for _ in 0..random.below(5) {
            path.push(format!("d{}", random.below(3)));
        }
        write_file(&path.join(format!("f{n}")), &random.bytes(100));
    }
    // The source is named by a link, so that another file system can take its place.
    symlink(&tree, &place).expect("ours");
    let up = random.below(2) == 0;
    let run = |flags: &[&str]| {
        let (from, to) = match up {
            true => (place.clone().into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), target.clone().into_os_string()),
        };
        sync(scene, flags).arg(from).arg(to).run()
    };
    run(&["--delete"]).expect_code(0);
    write_file(&target.join("only/here"), b"precious");
    let before = contents(&target);
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("a temporary file system");
    let harm = match random.below(3) {
        0 => Harm::Unlistable,
        1 => Harm::Unmounted,
        _ => Harm::Emptied,
    };
    match harm {
        Harm::Unlistable => make_unlistable(&tree, &mut random),
        Harm::Emptied => {
            let _ = fs::remove_dir_all(&tree);
            fs::create_dir(&tree).expect("ours");
        }
        Harm::Unmounted => {
            write_file(&elsewhere.path().join("lost+found/x"), b"x");
            fs::remove_file(&place).expect("ours");
            symlink(elsewhere.path(), &place).expect("ours");
        }
    }
    // A second run, as of a timer, meets the same source.
    for _ in 0..2 {
        let outcome = run(&["--delete"]);
        let said = outcome.err().contains("nothing is deleted");
        assert!(said, "round {round}, {harm:?}, up {up}: {outcome}");
        assert!(
            matches!(outcome.code, Some(1 | 25)),
            "round {round}: {outcome}"
        );
        // The target may have got directories that no path reaches, so it is not listed again.
        for (path, content) in &before {
            let kept = fs::read(path).ok();
            assert_eq!(
                kept.as_ref(),
                Some(content),
                "round {round}, {harm:?}, up {up}: {path:?}"
            );
        }
    }
    must("rm", &["-rf".as_ref(), tree.as_ref()]);
}

/// Puts a chain of directories that is longer than a path may be into some directory.
fn make_unlistable(tree: &Path, random: &mut Seed) {
    let dirs: Vec<PathBuf> = entries(tree)
        .into_iter()
        .filter(|path| path.is_dir())
        .collect();
    let at = usize::try_from(random.below(dirs.len() as u64 + 1)).expect("few directories");
    let name = "d".repeat(200);
    let mode = rustix::fs::Mode::RWXU;
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
    let mut dir = fs::File::open(dirs.get(at).map_or(tree, PathBuf::as_path)).expect("ours");
    for _ in 0..25 {
        rustix::fs::mkdirat(&dir, &name, mode).expect("a folder of our own");
        let below = rustix::fs::openat(&dir, &name, flags, mode).expect("it was made");
        dir = fs::File::from(below);
    }
}

/// Contents of all files below `root`.
pub(crate) fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = entries(root).into_iter().filter(|path| path.is_file());
    files
        .map(|path| {
            let content = fs::read(&path).expect("ours");
            (path, content)
        })
        .collect()
}
