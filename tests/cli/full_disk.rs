//! Full disk at `longhaul serve --listen`: the copying client and the server's log get the reason,
//! and other clients are not affected.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Scene, longhaul, names_in};
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{Seed, missing, wait};

use crate::hindered::{Disk, OLD, write_script};
use crate::resumed::is_scp;
use crate::serving::{openssh, sftp};
use crate::shards::{plan, worker};

const FULL: &str = "no space left on device";

/// Server that sees a small disk as the folder `disk`, in a mount namespace of its own.
struct Full {
    scene: Scene,
    disk: Disk,
    at: PathBuf,
    _folder: tempfile::TempDir,
}

impl Full {
    fn new(mib: u64, flags: &[&str]) -> Option<Self> {
        if is_scp() || !missing::can_unshare_mounts() {
            missing::not_here("only root can mount a small file system");
            return None;
        }
        let folder = longhaul_tests::scratch();
        let at = folder.path().join("disk");
        let disk = Disk::new(&at, mib);
        let script = folder.path().join("server");
        let (enter, program) = (disk.enter().join(" "), longhaul());
        let text = format!("#!/bin/sh\nexec {enter} {} \"$@\"\n", program.display());
        write_script(&script, &text);
        let scene = Scene::with(PeerBuilder::longhaul(script, flags.iter().copied()))?;
        Some(Self {
            scene,
            disk,
            at,
            _folder: folder,
        })
    }

    /// Returns the path as an operand of the client.
    fn there(&self, name: &str) -> String {
        format!("peer:{}", self.at.join(name).display())
    }

    /// Counts the log lines that report a full disk for this file.
    fn warned(&self, path: &Path) -> usize {
        let log = self.scene.peer.log();
        let of_it = |line: &&str| {
            line.contains(" WARN ")
                && line.contains(FULL)
                && line.contains(&*path.to_string_lossy())
        };
        log.lines().filter(of_it).count()
    }
}

#[test]
fn a_disk_that_is_full_at_the_server_is_said_to_both_ends_and_disturbs_nobody_else() {
    // Without cipher and MAC the data takes another path to the disk.
    for flags in [&[][..], &["--insecure-none-mac"]] {
        is_full(flags);
    }
}

fn is_full(flags: &[&str]) {
    let Some(full) = Full::new(30, flags) else {
        return;
    };
    let scene = &full.scene;
    let content = Seed::new(7).bytes(60 << 20);
    write_file(&scene.path("large"), &content);
    let mut other = openssh(scene, "sftp").arg("peer").in_terminal().spawn();
    assert!(other.shows("sftp>"), "{}", scene.peer.log());
    let cp = || {
        let run = scene.client.cp().args(flags).arg(scene.path("large"));
        run.arg(full.there("file")).run()
    };
    let outcome = cp().expect_code(1);
    let said = outcome.err().to_lowercase();
    assert!(said.contains(FULL), "{outcome}");
    let errors = said.lines().filter(|l| l.starts_with("longhaul: "));
    assert!(
        errors.count() <= 2,
        "one sentence, and how it goes on: {outcome}"
    );
    // The existing file is unchanged, and the small part of the new one is not kept.
    assert_eq!(fs::read(full.disk.path("file")).expect("it"), OLD);
    assert_eq!(names_in(&full.disk.path("")), ["file"]);
    // The file is copied in pieces, each of which is opened separately.
    let warned = || full.warned(&full.at.join(".file."));
    wait::until(
        Duration::from_secs(60),
        || warned() > 0,
        || scene.peer.log(),
    );
    let warned = warned();
    assert!((1..=15).contains(&warned), "{}", scene.peer.log());
    // Another client can still write to another disk, and read from this one.
    let (from, to) = (scene.path("large"), scene.path("copied"));
    other.type_in(&format!("put {} {}\n", from.display(), to.display()));
    other.type_in(&format!("ls {}\npwd\n", full.at.display()));
    assert!(other.shows("Remote working directory"));
    assert!(fs::read(to).expect("it was put") == content);
    drop(other);
    full.disk.remount("size=100m");
    cp().expect_code(0);
    assert!(fs::read(full.disk.path("file")).expect("it") == content);
    assert_eq!(names_in(&full.disk.path("")), ["file"]);
}

/// A range for which there is no room fails. The file gets its name when a later run has written it.
#[test]
fn a_range_that_finds_no_room_leaves_its_file_without_a_name() {
    let Some(full) = Full::new(30, &[]) else {
        return;
    };
    let scene = &full.scene;
    let content = Seed::new(10).bytes(48 << 20);
    fs::create_dir(scene.path("from")).expect("ours");
    write_file(&scene.path("from/large"), &content);
    let made = plan(scene).arg(scene.path("from")).arg(full.there("to"));
    let made = made.args(["--shards", "2", "--range-size", "1M", "-o"]);
    made.arg(scene.path("plan")).run().expect_code(0);
    worker(scene, 0).run().expect_code(0);
    for _ in 0..2 {
        let outcome = worker(scene, 1).run().expect_code(1);
        assert!(outcome.err().to_lowercase().contains(FULL), "{outcome}");
        let names = names_in(&full.disk.path("to"));
        assert!(names.len() == 1 && names[0] != "large", "{names:?}");
    }
    full.disk.remount("size=100m");
    worker(scene, 1).run().expect_code(0);
    assert_eq!(names_in(&full.disk.path("to")), ["large"]);
    assert!(fs::read(full.disk.path("to/large")).expect("it") == content);
}

/// Small files are sent in a request of their own.
#[test]
fn small_files_that_find_no_room_leave_no_halves() {
    let Some(full) = Full::new(4, &[]) else {
        return;
    };
    let scene = &full.scene;
    let content = Seed::new(8).bytes(100_000);
    fs::create_dir(scene.path("tree")).expect("ours");
    for n in 0..100 {
        write_file(&scene.path(&format!("tree/{n}")), &content);
    }
    let run = scene
        .client
        .cp()
        .args(["--connections", "1", "--channels", "1"]);
    let run = run.arg("-r").arg(scene.path("tree"));
    let outcome = run.arg(full.there("tree")).run().expect_code(1);
    assert!(outcome.err().to_lowercase().contains(FULL), "{outcome}");
    let mut whole = 0;
    for name in names_in(&full.disk.path("tree")) {
        let name = name.to_string_lossy();
        if name.parse::<u32>().is_ok() {
            let there = fs::read(full.disk.path(&format!("tree/{name}"))).expect("it");
            assert!(there == content, "{name} is half there");
            whole += 1;
        }
    }
    assert!((10..60).contains(&whole), "{whole}");
    // One line for each of the first files, and one for all others.
    let counted = || {
        let log = scene.peer.log();
        let line = log
            .lines()
            .find(|l| l.contains("more files could not be read or written"));
        let files = line?.split("files=").nth(1)?;
        files.split_whitespace().next()?.parse::<usize>().ok()
    };
    wait::up_to(Duration::from_secs(10), || counted().is_some());
    let (named, more) = (full.warned(&full.at.join("tree")), counted());
    assert_eq!(named, 16, "{}", scene.peer.log());
    assert!(
        more.is_some_and(|more| (100 - whole - 16..=100 - whole).contains(&more)),
        "{more:?}: {}",
        scene.peer.log()
    );
}

/// Other clients write in place with many requests in flight: one line for all of them.
#[test]
fn a_client_that_goes_on_writing_to_a_full_disk_fills_no_log() {
    let Some(full) = Full::new(4, &[]) else {
        return;
    };
    let scene = &full.scene;
    write_file(&scene.path("large"), &Seed::new(9).bytes(20 << 20));
    let put = |name: &str| {
        let to = full.at.join(name);
        let from = scene.path("large");
        let outcome = sftp(
            scene,
            &[&format!("put {} {}", from.display(), to.display())],
        );
        assert!(outcome.err().contains("Failure"), "{outcome}");
        to
    };
    for (sessions, name) in [(1, "one"), (2, "two")] {
        let to = put(name);
        // What a connection logs is there when its end is.
        let log = || scene.peer.log();
        let ended = || log().matches("disconnected").count() == sessions;
        wait::until(Duration::from_secs(60), ended, log);
        assert_eq!(full.warned(&to), 1, "{}", log());
    }
}
