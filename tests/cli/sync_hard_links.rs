//! `longhaul sync --hard-links`: names of one file at the source are names of one file at the target,
//! whatever the target had before, as `rsync -aH --delete` does it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use longhaul_tests::Scene;
use longhaul_tests::processes::memory;
use testkit::delay_proxy::Way;
use testkit::process::must;
use testkit::tree::{Compare, assert_same, differences};
use testkit::{DelayProxy, Outcome, PeerBuilder, PeerKind, Seed};

use crate::sync::{assert_nothing_planned, entries, set_time, summary, sync, write_file};

/// Sets of names below `root` that are one file, with two names or more.
fn links(root: &Path) -> BTreeSet<BTreeSet<PathBuf>> {
    let mut files: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    for path in entries(root) {
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        if meta.is_file() {
            let name = path.strip_prefix(root).expect("it lies there").to_owned();
            files.entry(meta.ino()).or_default().insert(name);
        }
    }
    files
        .into_values()
        .filter(|names| names.len() > 1)
        .collect()
}

/// Fills a directory with files of equal size, some with several names.
fn fill(root: &Path, random: &mut Seed) {
    for n in 0..6 {
        let path = root
            .join(["", "dir", "dir/deep"][n % 3])
            .join(format!("f{n}"));
        write_file(&path, &random.bytes(100));
        set_time(&path, 1_100_000_000 + n as u64);
        for link in 0..random.below(3) {
            let dir = root.join(["", "dir"][random.below(2) as usize]);
            fs::create_dir_all(&dir).expect("our folder");
            fs::hard_link(&path, dir.join(format!("l{n}{link}"))).expect("a link");
        }
    }
}

/// Splits and merges files with several names at random, and changes some.
fn change(root: &Path, random: &mut Seed) {
    for step in 0..6 {
        let files = entries(root).into_iter().filter(|path| path.is_file());
        let files: Vec<PathBuf> = files.collect();
        let pick = |random: &mut Seed| files[random.below(files.len() as u64) as usize].clone();
        let (one, other) = (pick(random), pick(random));
        match random.below(8) {
            // A name becomes a file of its own with equal data.
            0 | 1 => {
                let copy = root.join("copy");
                must("cp", &["-p".as_ref(), one.as_ref(), copy.as_ref()]);
                fs::rename(copy, one).expect("ours");
            }
            2 if one != other => {
                fs::remove_file(&other).expect("ours");
                fs::hard_link(&one, &other).expect("a link");
            }
            3 => fs::remove_file(&one).expect("ours"),
            4 => {
                write_file(&one, &random.bytes(100 + step));
                set_time(&one, 1_000_000_000 + random.below(1_000_000));
            }
            5 => fs::rename(&one, one.with_file_name(format!("moved{step}"))).expect("ours"),
            6 => set_time(&one, 1_000_000_000 + random.below(1_000_000)),
            7 => {
                let mode = 0o600 | random.below(0o100) as u32;
                fs::set_permissions(&one, fs::Permissions::from_mode(mode)).expect("ours");
            }
            _ => {}
        }
    }
}

/// Syncs trees whose links differ at random, and compares the result with rsync's.
fn like_rsync(kind: PeerKind, seeds: std::ops::Range<u64>) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    if testkit::missing::find_program("rsync").is_none() {
        return testkit::missing::skip("rsync", "apt-get install rsync");
    }
    for seed in seeds {
        let mut random = Seed::new(seed);
        let up = seed % 2 == 0;
        let place = |of: &str| scene.path(&format!("{of}-{seed}"));
        let (source, target, expected) = (place("source"), place("target"), place("expected"));
        fill(&source, &mut random);
        must("cp", &["-a".as_ref(), source.as_ref(), target.as_ref()]);
        change(&source, &mut random);
        change(&target, &mut random);
        must("cp", &["-a".as_ref(), target.as_ref(), expected.as_ref()]);
        let (from, to) = (source.join(""), expected.join(""));
        let flags = ["-aH", "--delete"].map(AsRef::as_ref);
        must("rsync", &[flags[0], flags[1], from.as_ref(), to.as_ref()]);
        let remote = |path: &Path| longhaul_tests::remote("peer", path);
        let (from, to) = match up {
            true => (source.clone().into_os_string(), remote(&target)),
            false => (remote(&source), target.clone().into_os_string()),
        };
        let run = sync(&scene, &["-H", "--delete", "--yes"]);
        let outcome = run.arg(&from).arg(&to).run().expect_code(0);
        let differ = differences(&source, &target, Compare::PRESERVED).join("\n");
        assert!(
            differ.is_empty(),
            "seed {seed}, up {up}:\n{differ}\n{outcome}"
        );
        let (ours, theirs) = (links(&target), links(&expected));
        for names in links(&source) {
            for linked in [&theirs, &ours] {
                let found = linked.iter().any(|found| found.is_superset(&names));
                assert!(
                    found,
                    "seed {seed}, up {up}: {names:?} in {linked:?}\n{outcome}"
                );
            }
        }
        let run = sync(&scene, &["-H", "--delete", "--json", "-q"]);
        let again = run.arg(&from).arg(&to).run().expect_code(0);
        assert_nothing_planned(&again, seed);
        assert_eq!(summary(&again)["bytes"], 0, "seed {seed}: {again}");
        assert_same(&source, &target, Compare::PRESERVED);
        for path in [source, target, expected] {
            fs::remove_dir_all(path).expect("ours");
        }
    }
}

#[test]
fn links_are_rsyncs_over_openssh() {
    like_rsync(PeerKind::OpenSsh, 0..8);
}

#[test]
fn links_are_rsyncs_over_longhaul() {
    like_rsync(PeerKind::Longhaul, 100..112);
}

fn is_linked(scene: &Scene, one: &str, other: &str) -> bool {
    let inode = |name: &str| fs::metadata(scene.path(name)).expect("it is there").ino();
    inode(one) == inode(other)
}

/// Runs a sync with -H up, dry first. Returns the lines of the dry run and the result.
fn up(scene: &Scene) -> (String, Outcome) {
    let run = |flags: &[&str]| {
        let run = sync(scene, flags).arg(scene.path("a"));
        run.arg(scene.remote("b")).run().expect_code(0)
    };
    let dry = run(&["-H", "-n"]);
    (dry.out().to_owned(), run(&["-H", "--json", "-q"]))
}

/// Bug: a name that was missing at the target was sent again, and names that were separate files
/// there stayed separate.
#[test]
fn a_name_is_linked_to_the_file_that_the_target_has() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        write_file(&scene.path("a/dir/one"), b"content");
        set_time(&scene.path("a/dir/one"), 1_100_000_000);
        for name in ["a/dir/two", "a/three"] {
            fs::hard_link(scene.path("a/dir/one"), scene.path(name)).expect("a link");
        }
        let (from, to) = (scene.path("a"), scene.path("b"));
        // Without -d, cp gives each name a file of its own.
        must("cp", &["-rp".as_ref(), from.as_ref(), to.as_ref()]);
        fs::remove_file(scene.path("b/three")).expect("ours");
        let (dry, outcome) = up(&scene);
        for line in [
            "+ three (hard link to dir/one)",
            "~ dir/two (hard link to dir/one)",
        ] {
            assert!(dry.lines().any(|l| l == line), "{kind:?}: {line} in {dry}");
        }
        assert!(dry.contains(": 0 files to copy"), "{kind:?}: {dry}");
        assert_eq!(summary(&outcome)["bytes"], 0, "{kind:?}: {outcome}");
        assert!(is_linked(&scene, "b/dir/one", "b/dir/two"), "{kind:?}");
        assert!(is_linked(&scene, "b/dir/one", "b/three"), "{kind:?}");
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
    }
}

/// The source has two files, and one changes: it must not be written through the target's link.
#[test]
fn a_file_of_a_group_that_the_source_has_not_changes_alone() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        for name in ["a/one", "a/two"] {
            write_file(&scene.path(name), b"content");
            set_time(&scene.path(name), 1_100_000_000);
        }
        let (from, to) = (scene.path("a"), scene.path("b"));
        must("cp", &["-a".as_ref(), from.as_ref(), to.as_ref()]);
        fs::remove_file(scene.path("b/two")).expect("ours");
        fs::hard_link(scene.path("b/one"), scene.path("b/two")).expect("a link");
        write_file(&scene.path("a/two"), b"changed content");
        let _ = up(&scene);
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
        assert!(!is_linked(&scene, "b/one", "b/two"), "{kind:?}");
    }
}

/// Bug: an account that runs no commands does not tell which names are one file.
#[test]
fn names_are_linked_where_the_server_does_not_tell_its_links() {
    let peer = PeerBuilder::openssh().option("ForceCommand", "internal-sftp");
    let Some(scene) = Scene::with(peer) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("a/one"), b"content");
    fs::hard_link(scene.path("a/one"), scene.path("a/two")).expect("a link");
    let (from, to) = (scene.path("a"), scene.path("b"));
    must("cp", &["-rp".as_ref(), from.as_ref(), to.as_ref()]);
    for _ in 0..2 {
        let (_, outcome) = up(&scene);
        assert_eq!(summary(&outcome)["bytes"], 0, "{outcome}");
        assert!(is_linked(&scene, "b/one", "b/two"));
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
    }
}

#[test]
fn a_server_without_hard_links_is_one_warning() {
    let subsystem = "sftp internal-sftp -P hardlink";
    let Some(scene) = Scene::with(PeerBuilder::openssh().option("Subsystem", subsystem)) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("a/one"), b"content");
    for name in ["a/two", "a/three"] {
        fs::hard_link(scene.path("a/one"), scene.path(name)).expect("a link");
    }
    let run = || {
        let run = sync(&scene, &["-H"]).arg(scene.path("a"));
        run.arg(scene.remote("b")).run().expect_code(0)
    };
    for copied in [true, false] {
        let outcome = run();
        let says = "the server cannot make hard links (--hard-links): 3 ";
        assert_eq!(outcome.err().matches("hard links").count(), 1, "{outcome}");
        assert!(outcome.err().contains(says), "{copied}: {outcome}");
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
    }
}

/// Bug: a find(1) at the far end that printed nothing was waited for in silence, for up to two minutes.
#[test]
fn a_silent_far_command_is_named_while_it_is_waited_for() {
    let folder = longhaul_tests::scratch();
    let (find, go) = (folder.path().join("find"), folder.path().join("go"));
    must("mkfifo", &[go.as_ref()]);
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *-prune*) exit 0;; esac\nread _ < '{}'\n",
        go.display()
    );
    crate::hindered::write_script(&find, &script);
    let path = std::env::var("PATH").expect("a path of programs");
    let path = format!("PATH={}:{path}", folder.path().display());
    let Some(scene) = Scene::with(PeerBuilder::openssh().option("SetEnv", path)) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("a/file"), b"content");
    fs::hard_link(scene.path("a/file"), scene.path("a/other")).expect("a link");
    write_file(&scene.path("b/file"), b"before");
    let run = sync(&scene, &["-H"]).arg(scene.path("a"));
    let running = run.arg(scene.remote("b")).spawn();
    assert!(running.shows("nothing received for 10 s: waiting for find(1)"));
    fs::write(&go, "\n").expect("the script reads it");
    running.wait().expect_code(0);
    assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
}

/// Attack: find(1) at the far end, or what is called so there, writes without end. Output that was not
/// looked at yet filled the memory: 2 GB in 12 s.
#[test]
fn endless_output_of_a_far_command_does_not_fill_the_memory() {
    let folder = longhaul_tests::scratch();
    let find = folder.path().join("find");
    let script = "#!/bin/sh\ncase \"$*\" in *-prune*) exit 0;; esac\nexec cat /dev/zero\n";
    crate::hindered::write_script(&find, script);
    let path = std::env::var("PATH").expect("a path of programs");
    let path = format!("PATH={}:{path}", folder.path().display());
    let Some(mut scene) = Scene::with(PeerBuilder::openssh().option("SetEnv", path)) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let proxy = DelayProxy::to(scene.peer.addr()).start();
    let client = &mut scene.client;
    client.dir.add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("a/file"), b"content");
    fs::hard_link(scene.path("a/file"), scene.path("a/other")).expect("a link");
    write_file(&scene.path("b/file"), b"before");
    let to = longhaul_tests::remote("peer", &scene.path("b"));
    let running = sync(&scene, &["-H"]).arg(scene.path("a")).arg(to).spawn();
    let used = || memory(running.pid(), "Pss:");
    let mut most = 0;
    let much = running.until(|| {
        most = most.max(used());
        proxy.carried(Way::Down) > 300 << 20 || most > 120 << 20
    });
    assert!(much && most < 120 << 20, "{most} bytes");
    running.interrupt();
    running.wait().expect_code(130);
}

/// Bug: a user who could write in DST made a file there a hard link of another one outside, with the
/// size and time of the source's file, and the sync gave the other one its mode and owner. With an
/// earlier copy that shares its files, the sync changed that one.
#[test]
fn a_hard_link_outside_the_target_got_the_mode_of_the_source() {
    for up in [true, false] {
        for there in [PeerKind::OpenSsh, PeerKind::Longhaul] {
            let Some(scene) = Scene::beyond_scp(there) else {
                return;
            };
            // A stock server does not tell links.
            if up && there == PeerKind::OpenSsh {
                continue;
            }
            for (name, mode) in [
                ("source/f", 0o640),
                ("source/old", 0o640),
                ("outside", 0o600),
            ] {
                write_file(&scene.path(name), b"content");
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(scene.path(name), mode).expect("ours");
                set_time(&scene.path(name), 1_100_000_000);
            }
            fs::create_dir(scene.path("target")).expect("ours");
            fs::hard_link(scene.path("outside"), scene.path("target/f")).expect("ours");
            fs::hard_link(scene.path("outside"), scene.path("target/moved")).expect("ours");
            let operands = match up {
                true => [
                    scene.path("source").into_os_string(),
                    scene.remote("target"),
                ],
                false => [
                    scene.remote("source"),
                    scene.path("target").into_os_string(),
                ],
            };
            let run = operands
                .iter()
                .fold(sync(&scene, &["--delete", "--yes"]), |run, word| {
                    run.arg(word)
                });
            run.run().expect_code(0);
            let mode = |name: &str| {
                let meta = fs::metadata(scene.path(name)).expect("it is there");
                meta.permissions().mode() & 0o777
            };
            assert_eq!(mode("outside"), 0o600, "{there:?} {up}");
            assert_eq!(mode("target/f"), 0o640, "{there:?} {up}");
            assert_eq!(mode("target/old"), 0o640, "{there:?} {up}");
        }
    }
}
