//! `longhaul plan` and `longhaul cp --plan`: shards that many workers copy, of which some are
//! killed, give the whole tree, and nothing that lies in a plan's folder leads out of the target.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use testkit::delay_proxy::Way;
use testkit::process::Run;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{DelayProxy, Outcome, PeerKind, Running, Seed};

/// `longhaul plan` with the client's configuration.
pub(super) fn plan(scene: &Scene) -> Run {
    let run = scene.client.dir.run(longhaul_tests::longhaul()).arg("plan");
    run.arg("-F").arg(scene.client.dir.config())
}

fn make(scene: &Scene, source: &str, target: &str, shards: &str) -> Outcome {
    let run = plan(scene)
        .arg(operand(scene, source))
        .arg(operand(scene, target));
    run.args(["--shards", shards, "-o"])
        .arg(scene.path("plan"))
        .run()
}

/// Path of this machine, or after `peer:` one of the server.
pub(super) fn operand(scene: &Scene, name: &str) -> std::ffi::OsString {
    match name.strip_prefix("peer:") {
        Some(name) => scene.remote(name),
        None => scene.path(name).into(),
    }
}

pub(super) fn worker(scene: &Scene, shard: u32) -> Run {
    let run = scene.client.cp().arg("--plan").arg(scene.path("plan"));
    run.args(["--shard", &shard.to_string()])
}

pub(super) fn status(scene: &Scene) -> serde_json::Value {
    let outcome = plan(scene)
        .args(["status", "--json"])
        .arg(scene.path("plan"));
    let outcome = outcome.run().expect_code(0);
    serde_json::from_str(&outcome.out()).expect("JSON")
}

/// Tree with what needs care: folders that their owner cannot write, empty ones, old times.
fn tree(root: &Path) {
    Tree::full(7).make(root);
    for n in 0..200 {
        write_file(&root.join(format!("many{n}")), format!("{n}").as_bytes());
    }
    fs::create_dir(root.join("closed")).expect("our folder");
    write_file(&root.join("closed/file"), b"inside");
    symlink("file", root.join("closed/link")).expect("a symlink of our own");
    fs::create_dir(root.join("empty")).expect("our folder");
    let closed = fs::Permissions::from_mode(0o555);
    fs::set_permissions(root.join("closed"), closed).expect("a mode");
    for name in ["closed", "empty", "."] {
        set_time(&root.join(name), 1_000_000_000);
    }
}

pub(super) fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::open(path).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        .expect("a time");
}

fn copies_all(kind: PeerKind, source: &str, target: &str) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    tree(&scene.path("from"));
    let made = make(&scene, source, target, "5").expect_code(0);
    assert!(made.out().contains("5 shards of"), "{made}");
    let again = make(&scene, source, target, "5").expect_code(0);
    assert!(again.out().contains("up to date"), "{again}");
    for shard in [3, 0, 4, 1] {
        worker(&scene, shard).run().expect_code(0);
    }
    // Bug: a shard that was complete already was said to have copied 0 files.
    let idle = worker(&scene, 3).run().expect_code(0);
    let idle = idle.expect_err(&["shard 3: already complete: nothing to copy"]);
    assert!(!idle.err().contains("copied 0 files"), "{idle}");
    let unfinished = plan(&scene).arg("verify").arg(scene.path("plan")).run();
    unfinished
        .expect_code(1)
        .expect_err(&["this plan is not finished"]);
    assert_eq!(status(&scene)["shards"]["done"], 4);
    let last = worker(&scene, 2).run().expect_code(0);
    last.expect_err(&["all 5 shards are complete"]);
    assert_same(&scene.path("from"), &scene.path("to"), Compare::PRESERVED);
    let verified = plan(&scene).arg("verify").arg(scene.path("plan")).run();
    verified.expect_code(0);
    let status = status(&scene);
    assert_eq!(status["shards"]["done"], 5, "{status}");
    assert_eq!(status["sealed"], true, "{status}");
    assert_eq!(status["bytes"], status["bytes_done"], "{status}");
    // A complete shard is not looked at again.
    let again = worker(&scene, 2).run().expect_code(0);
    again.expect_err(&["shard 2: already complete: nothing to copy"]);
}

#[test]
fn shards_make_the_whole_tree() {
    copies_all(PeerKind::OpenSsh, "from", "peer:to");
}

#[test]
fn shards_of_a_remote_source_make_the_whole_tree() {
    copies_all(PeerKind::OpenSsh, "peer:from", "to");
}

#[test]
fn shards_between_longhauls_make_the_whole_tree() {
    copies_all(PeerKind::Longhaul, "from", "peer:to");
}

#[test]
fn shards_between_two_file_systems_need_no_host() {
    copies_all(PeerKind::OpenSsh, "from", "to");
}

#[test]
fn a_changed_file_of_the_target_is_found() {
    // A stock server's account runs a checksum program.
    for kind in [PeerKind::Longhaul, PeerKind::OpenSsh] {
        a_changed_file_is_found_at(kind);
    }
}

fn a_changed_file_is_found_at(kind: PeerKind) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    tree(&scene.path("from"));
    // More than a server hashes at once. Such a file had no checksum.
    let large = fs::File::create(scene.path("from/large")).expect("our file");
    large.set_len(65 << 20).expect("a size");
    make(&scene, "from", "peer:to", "2").expect_code(0);
    for shard in [0, 1] {
        worker(&scene, shard).run().expect_code(0);
    }
    let verify = |flags: &[&str]| {
        let run = plan(&scene).arg("verify").args(flags);
        run.arg(scene.path("plan")).run()
    };
    // Other contents of the same size and time.
    write_file(&scene.path("to/many5"), b"6");
    let time = fs::metadata(scene.path("from/many5"))
        .expect("it is there")
        .modified();
    let file = fs::File::options().write(true).open(scene.path("to/many5"));
    file.expect("it is there")
        .set_modified(time.expect("a time"))
        .expect("a time");
    verify(&[]).expect_code(0);
    let found = verify(&["--checksum"]).expect_code(1);
    let found = found.expect_err(&["to/many5: differs from its source"]);
    assert!(
        !found.err().contains("cannot compare by checksum"),
        "{found}"
    );
    fs::remove_file(scene.path("to/many7")).expect("our file");
    write_file(&scene.path("to/many8"), b"longer");
    let found = verify(&[]).expect_code(1);
    found.expect_err(&[
        "to/many7: no such file",
        "to/many8: has 6 bytes, but the plan says 1",
    ]);
}

/// Bug: the session with a remote source had no channel yet, so its checksums were waited for in
/// vain. Two remote ends were never compared without longhaul on both.
#[test]
fn checksums_of_a_remote_source_are_not_waited_for_in_vain() {
    for (kind, target) in [
        (PeerKind::OpenSsh, "to"),
        (PeerKind::Longhaul, "to"),
        (PeerKind::OpenSsh, "peer:to"),
    ] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        fs::create_dir(scene.path("from")).expect("ours");
        for name in ["from/one", "from/other"] {
            write_file(&scene.path(name), b"1");
            set_time(&scene.path(name), 1_000_000_000);
        }
        make(&scene, "peer:from", target, "1").expect_code(0);
        worker(&scene, 0).run().expect_code(0);
        let verify = || {
            let run = plan(&scene).args(["verify", "--checksum"]);
            run.arg(scene.path("plan")).run()
        };
        verify().expect_code(0);
        write_file(&scene.path("to/one"), b"2");
        set_time(&scene.path("to/one"), 1_000_000_000);
        let found = verify().expect_code(1);
        let found = found.expect_err(&["to/one: differs from its source"]);
        assert!(!found.err().contains("to/other"), "{found}");
    }
}

#[test]
fn a_plan_whose_tree_has_changed_is_replaced_only_before_it_is_begun() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene.path("from"));
    make(&scene, "from", "peer:to", "2").expect_code(0);
    write_file(&scene.path("from/new"), b"new");
    let replaced = make(&scene, "from", "peer:to", "2").expect_code(0);
    assert!(
        replaced.out().contains("the older plan was replaced"),
        "{replaced}"
    );
    worker(&scene, 0).run().expect_code(0);
    make(&scene, "from", "peer:to", "2").expect_code(0);
    write_file(&scene.path("from/newer"), b"newer");
    let changed = make(&scene, "from", "peer:to", "2").expect_code(65);
    changed.expect_err(&[
        "the source has changed since this plan was made",
        "use another folder",
    ]);
    let other = make(&scene, "from", "peer:to", "3").expect_code(65);
    other.expect_err(&["this folder has another plan"]);
    // The plan that was begun is still good.
    worker(&scene, 1).run().expect_code(0);
    let inside = make(&scene, ".", "peer:to", "2").expect_code(65);
    inside.expect_err(&["the folder for the plan is inside the source"]);
}

/// A file that changes after the planning is named and not copied, and all others are.
#[test]
fn what_has_changed_since_the_plan_is_not_copied() {
    for source in ["from", "peer:from"] {
        let target = if source == "from" { "peer:to" } else { "to" };
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        fs::create_dir(scene.path("from")).expect("our folder");
        for n in 0..20 {
            write_file(&scene.path(&format!("from/{n}")), b"content");
        }
        make(&scene, source, target, "1").expect_code(0);
        write_file(&scene.path("from/3"), b"longer content");
        set_time(&scene.path("from/4"), 1_000_000_000);
        let changed = worker(&scene, 0).run().expect_code(65);
        changed.expect_err(&[
            "from/3: changed since the plan was made (its size was 7 bytes and is 14 now)",
            "from/4: changed since the plan was made (it was modified)",
        ]);
        assert_eq!(
            fs::read_dir(scene.path("to")).expect("our folder").count(),
            18
        );
        let status = status(&scene);
        assert_eq!(status["changed"], 2, "{status}");
        assert_eq!(status["shards"]["failed"], 1, "{status}");
    }
}

/// Bug: a machine that lacked the source ended with the code that tells a scheduler not to try
/// again, and no other machine copied the shard.
#[test]
fn a_source_that_one_machine_cannot_read_is_tried_again() {
    for (source, target) in [("from", "peer:to"), ("peer:from", "to")] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        fs::create_dir_all(scene.path("from/mounted")).expect("our folder");
        for name in ["from/1", "from/mounted/2"] {
            write_file(&scene.path(name), b"content");
        }
        make(&scene, source, target, "1").expect_code(0);
        fs::rename(scene.path("from/mounted/2"), scene.path("2")).expect("our file");
        let missing = worker(&scene, 0).run().expect_code(1);
        missing.expect_err(&[
            "from/mounted/2: not found by this machine (no such file or directory)",
            "run the shard again where the source can be read",
        ]);
        let counted = status(&scene);
        assert_eq!(
            (&counted["changed"], &counted["failed"]),
            (&0.into(), &1.into())
        );
        fs::rename(scene.path("2"), scene.path("from/mounted/2")).expect("our file");
        worker(&scene, 0).run().expect_code(0);
        assert!(scene.path("to/mounted/2").exists());
    }
}

/// Shards of a slow path, and the number of bytes that crossed it.
pub(super) struct Slow {
    pub(super) scene: Scene,
    proxy: DelayProxy,
}

impl Slow {
    pub(super) fn new(rate: u64, rtt: Duration) -> Option<Self> {
        let mut scene = Scene::beyond_scp(PeerKind::OpenSsh)?;
        let proxy = DelayProxy::to(scene.peer.addr())
            .rtt(rtt)
            .rate(rate)
            .start();
        let (dir, port) = (&mut scene.client.dir, proxy.port());
        dir.add_host_at("peer", &scene.peer, port);
        Some(Self { scene, proxy })
    }

    pub(super) fn carried(&self) -> u64 {
        self.proxy.carried(Way::Up)
    }

    /// Bytes in both directions.
    pub(super) fn either(&self) -> u64 {
        self.carried() + self.proxy.carried(Way::Down)
    }
}

/// Waits until a worker has its lease and the path has carried some of its data.
pub(super) fn begun(slow: &Slow, running: &Running, bytes: u64) {
    let before = slow.carried();
    assert!(running.until(|| slow.carried() > before + bytes));
}

#[test]
fn a_second_worker_leaves_a_running_shard_alone() {
    let Some(slow) = Slow::new(2 << 20, Duration::from_millis(20)) else {
        return;
    };
    let scene = &slow.scene;
    fs::create_dir(scene.path("from")).expect("our folder");
    for n in 0..20 {
        write_file(
            &scene.path(&format!("from/{n}")),
            &Seed::new(n + 1).bytes(400_000),
        );
    }
    make(scene, "from", "peer:to", "1").expect_code(0);
    let first = worker(scene, 0).args(["--lease", "6"]).spawn();
    begun(&slow, &first, 1_000_000);
    let second = worker(scene, 0)
        .args(["--lease", "6"])
        .run()
        .expect_code(75);
    second.expect_err(&["shard 0: process ", "is copying this shard", "try again"]);
    assert_eq!(status(scene)["shards"]["running"], 1);
    // SIGTERM leaves a shard for the next worker, who goes on where this one was.
    first.terminate();
    first.wait().expect_code(75);
    assert_eq!(status(scene)["shards"]["stopped"], 1);
    let before = slow.carried();
    worker(scene, 0).run().expect_code(0);
    assert!(slow.carried() - before < 7_000_000);
    assert_same(&scene.path("from"), &scene.path("to"), Compare::PRESERVED);
}

/// A worker that was paused beyond its lease finds a follower, and stops.
#[test]
fn a_worker_that_wakes_after_its_lease_stops() {
    let Some(slow) = Slow::new(2 << 20, Duration::from_millis(20)) else {
        return;
    };
    let scene = &slow.scene;
    fs::create_dir(scene.path("from")).expect("our folder");
    for n in 0..40 {
        write_file(
            &scene.path(&format!("from/{n}")),
            &Seed::new(n + 1).bytes(400_000),
        );
    }
    make(scene, "from", "peer:to", "1").expect_code(0);
    let first = worker(scene, 0).args(["--lease", "3"]).spawn();
    begun(&slow, &first, 300_000);
    first.pause(true);
    let second = worker(scene, 0).args(["--lease", "3"]).run().expect_code(0);
    second.expect_err(&["is copying it or has died; waiting up to 3 s"]);
    first.pause(false);
    let first = first.wait().expect_code(75);
    first.expect_err(&["shard 0: "]);
    assert_same(&scene.path("from"), &scene.path("to"), Compare::PRESERVED);
    assert_eq!(status(scene)["shards"]["done"], 1);
}

/// Workers that are killed at random moments and started again send little twice.
#[test]
fn killed_workers_are_followed_and_little_is_sent_twice() {
    const SHARDS: u32 = 6;
    const IN_FLIGHT: u64 = 6 << 20;
    let Some(slow) = Slow::new(24 << 20, Duration::from_millis(10)) else {
        return;
    };
    let scene = &slow.scene;
    let mut random = Seed::new(11);
    let mut total = 0;
    for folder in 0..20 {
        fs::create_dir_all(scene.path(&format!("from/{folder}"))).expect("our folder");
        for n in 0..100 {
            let size = random_size(&mut random, n);
            let content = random.bytes(size);
            total += content.len() as u64;
            write_file(&scene.path(&format!("from/{folder}/{n}")), &content);
        }
    }
    make(scene, "from", "peer:to", &SHARDS.to_string()).expect_code(0);
    let mut kills = 0;
    let before = slow.carried();
    let mut open: Vec<u32> = (0..SHARDS).collect();
    while !open.is_empty() {
        let running: Vec<(u32, Running)> = open
            .iter()
            .take(2)
            .map(|shard| (*shard, worker(scene, *shard).arg("-q").spawn()))
            .collect();
        for (shard, running) in running {
            if kills < 8 {
                let moment = slow.carried() + random.below(total / 10);
                if running.until(|| slow.carried() >= moment) {
                    kill(running.pid());
                    kills += 1;
                }
            }
            let outcome = running.wait();
            match outcome.code {
                Some(0) => open.retain(|left| *left != shard),
                None => {}
                _ => panic!("{outcome}"),
            }
        }
        // The next round begins elsewhere.
        let next = open.len().min(1);
        open.rotate_left(next);
    }
    let killed = slow.carried() - before;
    assert_same(&scene.path("from"), &scene.path("to"), Compare::PRESERVED);
    assert_eq!(status(scene)["sealed"], true);
    assert!(kills >= 4, "only {kills} kills");
    // The same shards without kills, to leave out what the protocol takes.
    fs::remove_dir_all(scene.path("to")).expect("our folder");
    fs::remove_dir_all(scene.path("plan")).expect("our folder");
    make(scene, "from", "peer:to", &SHARDS.to_string()).expect_code(0);
    let before = slow.carried();
    for shard in 0..SHARDS {
        worker(scene, shard).run().expect_code(0);
    }
    let smooth = slow.carried() - before;
    let twice = killed.saturating_sub(smooth);
    println!("{kills} kills: {twice} of {total} bytes sent twice");
    // What a killed worker had in flight: the windows of its lanes, and files that were not
    // renamed.
    let most = kills * IN_FLIGHT;
    assert!(twice <= most, "{twice} of {total} bytes were sent twice");
}

fn random_size(random: &mut Seed, n: u64) -> usize {
    let size = match n {
        0 => 1_000_000 + random.below(4_000_000),
        _ => random.below(40_000),
    };
    usize::try_from(size).expect("small")
}

pub(super) fn kill(pid: u32) {
    testkit::process::must("kill", &["-9".as_ref(), pid.to_string().as_ref()]);
}

/// Files of the plan's folder, with the header first.
fn files_of_plan(scene: &Scene) -> Vec<PathBuf> {
    let entries = fs::read_dir(scene.path("plan")).expect("our folder");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0));
    files.sort();
    files
}

#[test]
fn a_damaged_plan_is_not_used() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("from")).expect("our folder");
    write_file(&scene.path("from/file"), b"content");
    // The file system of the plan may be mounted late, or on other machines only.
    let missing = worker(&scene, 0).run().expect_code(1);
    missing.expect_err(&["plan: no such file or directory: check the path"]);
    make(&scene, "from", "peer:to", "1").expect_code(0);
    for file in files_of_plan(&scene) {
        if file.extension().is_some_and(|kind| kind == "tree") {
            continue;
        }
        let whole = fs::read(&file).expect("our file");
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        for broken in [&changed[..], &whole[..middle], &b""[..]] {
            fs::write(&file, broken).expect("our file");
            let refused = worker(&scene, 0).run().expect_code(65);
            assert!(!scene.path("to/file").exists(), "{refused}");
            let verify = plan(&scene).arg("verify").arg(scene.path("plan"));
            verify.run().expect_code(65);
        }
        fs::remove_file(&file).expect("our file");
        let gone = worker(&scene, 0).run();
        assert_eq!(gone.code, Some(65), "{gone}");
        fs::write(&file, &whole).expect("our file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    }
    let header = scene.path("plan/plan");
    let text = fs::read_to_string(&header).expect("our file");
    fs::write(&header, text.replace("longhaul-plan 1", "longhaul-plan 7")).expect("our file");
    let newer = worker(&scene, 0).run().expect_code(65);
    newer.expect_err(&["the plan has version 7"]);
    fs::write(&header, &text).expect("our file");
    worker(&scene, 1)
        .run()
        .expect_code(2)
        .expect_err(&["no shard 1"]);
    // Others could change it.
    fs::set_permissions(&header, fs::Permissions::from_mode(0o666)).expect("a mode");
    let loose = worker(&scene, 0).run().expect_code(65);
    loose.expect_err(&["is writable by other users"]);
    fs::set_permissions(&header, fs::Permissions::from_mode(0o600)).expect("a mode");
    worker(&scene, 0).run().expect_code(0);
}

/// A symlink that lies at the target leads no shard out of it.
#[test]
fn a_symlink_at_the_target_is_not_followed() {
    for (source, target) in [("peer:from", "to"), ("from", "peer:to")] {
        leads_no_shard_out(source, target);
    }
}

fn leads_no_shard_out(source: &str, target: &str) {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for folder in ["from/d", "to", "outside"] {
        fs::create_dir_all(scene.path(folder)).expect("our folder");
    }
    write_file(&scene.path("from/d/file"), b"content");
    fs::set_permissions(scene.path("outside"), fs::Permissions::from_mode(0o700)).expect("ours");
    symlink(scene.path("outside"), scene.path("to/d")).expect("a symlink of our own");
    make(&scene, source, target, "1").expect_code(0);
    worker(&scene, 0).run().expect_code(1);
    assert_eq!(
        fs::read_dir(scene.path("outside"))
            .expect("our folder")
            .count(),
        0
    );
    let outside = fs::metadata(scene.path("outside")).expect("our folder");
    assert_eq!(outside.mode() & 0o777, 0o700);
    assert_eq!(
        fs::metadata(scene.path("plan")).expect("our folder").mode() & 0o777,
        0o700
    );
}

/// Bug: the commands that `plan` and the last shard advise lacked `-F` and quotes, so that they
/// reached other hosts, or had no meaning.
#[test]
fn the_advised_commands_name_the_configuration_and_quote_the_folder() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("source")).expect("our folder");
    write_file(&scene.path("source/file"), b"content");
    let folder = scene.path("the plan");
    let made = plan(&scene)
        .arg(scene.path("source"))
        .arg(scene.remote("target"));
    let made = made.args(["--shards", "1", "-o"]).arg(&folder).run();
    let config = scene.client.dir.config().display().to_string();
    let folder = folder.display();
    let made = made.expect_code(0);
    let advised = format!("cp -F {config} --plan '{folder}' --shard 0");
    assert!(made.out().contains(&advised), "{made}");
    let copy = scene.client.cp().arg("--plan").arg(format!("{folder}"));
    let copied = copy.args(["--shard", "0"]).run().expect_code(0);
    let advised = format!("plan verify -F {config} '{folder}'");
    let said = [copied.out(), copied.err()].concat();
    assert!(said.contains(&advised), "{copied}");
}

/// Bug: a plan onto or into its own source was accepted, and copied the source into itself.
#[test]
fn a_plan_into_its_own_source_is_refused() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir_all(scene.path("from/deep")).expect("our folder");
    write_file(&scene.path("from/file"), b"content");
    symlink(scene.path("from"), scene.path("name")).expect("a symlink of our own");
    let inside = "DST is inside SRC";
    for (source, target, says) in [
        ("from", "from/", "the same directory"),
        ("from", "name", "the same directory"),
        ("name", "from/new", inside),
        ("from", "from/deep/new/newer", inside),
        ("peer:from", "peer:from/./", "the same directory"),
        ("peer:from", "peer:from/new", inside),
        ("peer:from", "from/new", inside),
        ("peer:from", "from", "the same directory"),
    ] {
        let refused = make(&scene, source, target, "1");
        assert_ne!(refused.code, Some(0), "{source} {target}: {refused}");
        refused.expect_err(&[says]);
        assert!(!scene.path("plan").exists(), "{source} {target}");
    }
    // Only the worker knows that the target's host is this machine.
    make(&scene, "from", "peer:from/new", "1").expect_code(0);
    let refused = worker(&scene, 0).run().expect_code(65);
    refused.expect_err(&[inside]);
    assert_eq!(
        longhaul_tests::names_in(&scene.path("from")),
        ["deep", "file"]
    );
}

/// Bug: a plan that failed at the start left an empty folder, in which there seemed to be a plan.
#[test]
fn a_plan_that_failed_leaves_no_folder() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let to = |folder: &str| {
        let run = plan(&scene)
            .arg(scene.path("missing"))
            .arg(scene.path("to"));
        let run = run
            .args(["--shards", "2", "-o"])
            .arg(scene.path(folder))
            .run();
        run.expect_code(1).expect_err(&["no such directory"]);
    };
    to("new/folder");
    assert!(!scene.path("new").exists());
    fs::create_dir(scene.path("old")).expect("our folder");
    to("old/folder");
    assert_eq!(longhaul_tests::names_in(&scene.path("old")), [""; 0]);
}
