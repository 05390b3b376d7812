//! `longhaul plan` splits large files into ranges: several shards write one file, and one of them
//! names it, whatever is killed meanwhile.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::Scene;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{Outcome, PeerBuilder, PeerKind, Running, Seed};

use super::shards::{Slow, begun, kill, operand, plan, set_time, status, worker};

const LARGE: usize = 24 << 20;
/// Failure of a worker that finds no temporary where there was one.
const MISSING: &str = "the unfinished copy of this file was removed or changed";

fn make(scene: &Scene, source: &str, target: &str, shards: &str) -> Outcome {
    let run = plan(scene)
        .arg(operand(scene, source))
        .arg(operand(scene, target));
    let run = run.args(["--shards", shards, "--range-size", "1M", "-o"]);
    run.arg(scene.path("plan")).run()
}

/// One file that is larger than a shard, and small ones.
fn tree(scene: &Scene, size: usize) {
    fs::create_dir_all(scene.path("from/folder")).expect("our folder");
    write_file(&scene.path("from/folder/large"), &Seed::new(5).bytes(size));
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(scene.path("from/folder/large"), mode).expect("a mode");
    set_time(&scene.path("from/folder/large"), 1_100_000_000);
    for n in 0..20 {
        write_file(&scene.path(&format!("from/{n}")), format!("{n}").as_bytes());
    }
    set_time(&scene.path("from/folder"), 1_000_000_000);
}

/// Entries beside the split file at the target: its temporary, or its final name.
fn beside(scene: &Scene) -> Vec<String> {
    let entries = fs::read_dir(scene.path("to/folder")).expect("our folder");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn is_whole(scene: &Scene) {
    assert_same(&scene.path("from"), &scene.path("to"), Compare::PRESERVED);
    assert_eq!(beside(scene), ["large"]);
    let status = status(scene);
    assert_eq!(status["sealed"], true, "{status}");
    assert_eq!(status["bytes"], status["bytes_done"], "{status}");
    let verify = plan(scene).arg("verify").arg(scene.path("plan"));
    verify.run().expect_code(0);
}

fn several_shards_write_one_file(kind: PeerKind, source: &str, target: &str, flags: &[&str]) {
    let Some(scene) = Scene::beyond_scp(kind) else {
        return;
    };
    tree(&scene, LARGE);
    let made = make(&scene, source, target, "4").expect_code(0);
    let split = "1 file split over several shards";
    assert!(made.out().contains(split), "{made}");
    let again = make(&scene, source, target, "4").expect_code(0);
    assert!(again.out().contains("up to date"), "{again}");
    worker(&scene, 3).args(flags).run().expect_code(0);
    let partial = beside(&scene);
    assert!(partial.len() == 1 && partial[0] != "large", "{partial:?}");
    worker(&scene, 1).args(flags).run().expect_code(0);
    assert_eq!(beside(&scene), partial);
    let both: Vec<Running> = [2, 0]
        .map(|shard| worker(&scene, shard).args(flags).spawn())
        .into();
    for running in both {
        running.wait().expect_code(0);
    }
    is_whole(&scene);
    if kind == PeerKind::Longhaul {
        let checked = plan(&scene).args(["verify", "--checksum"]);
        checked.arg(scene.path("plan")).run().expect_code(0);
    }
}

#[test]
fn shards_write_ranges_of_one_file() {
    several_shards_write_one_file(PeerKind::OpenSsh, "from", "peer:to", &[]);
}

#[test]
fn shards_write_ranges_of_one_file_from_a_server() {
    several_shards_write_one_file(PeerKind::OpenSsh, "peer:from", "to", &[]);
}

#[test]
fn shards_write_ranges_of_one_file_to_a_longhaul() {
    several_shards_write_one_file(PeerKind::Longhaul, "from", "peer:to", &[]);
}

/// A worker with one channel opens a file once and used to write on to its end.
#[test]
fn shards_write_ranges_over_one_channel_each() {
    let one = ["--connections", "1", "--channels", "1"];
    several_shards_write_one_file(PeerKind::OpenSsh, "from", "peer:to", &one);
}

/// A killed worker's range is resumed by the next worker, and all others go on meanwhile.
#[test]
fn a_killed_range_is_resumed() {
    for (source, target) in [("from", "peer:to"), ("peer:from", "to")] {
        let Some(slow) = Slow::new(8 << 20, Duration::from_millis(20)) else {
            return;
        };
        let scene = &slow.scene;
        tree(scene, 2 * LARGE);
        make(scene, source, target, "4").expect_code(0);
        let mut others = Vec::new();
        for shard in [2, 0, 3] {
            others.push(worker(scene, shard).spawn());
        }
        let victim = worker(scene, 1).spawn();
        let before = slow.either();
        assert!(victim.until(|| slow.either() > before + (16 << 20)));
        kill(victim.pid());
        assert_eq!(victim.wait().code, None);
        let next = worker(scene, 1).run().expect_code(0);
        for other in others {
            other.wait().expect_code(0);
        }
        let sent = slow.either() - before;
        let most = 2 * LARGE as u64 + (10 << 20);
        assert!(sent < most, "{sent} bytes crossed the path: {next}");
        is_whole(scene);
    }
}

#[test]
fn a_second_worker_leaves_a_running_range_alone() {
    let Some(slow) = Slow::new(2 << 20, Duration::from_millis(20)) else {
        return;
    };
    let scene = &slow.scene;
    tree(scene, LARGE);
    make(scene, "from", "peer:to", "2").expect_code(0);
    let first = worker(scene, 0).args(["--lease", "6"]).spawn();
    begun(&slow, &first, 1 << 20);
    let second = worker(scene, 0).args(["--lease", "6"]).run();
    let second = second.expect_code(75);
    second.expect_err(&["shard 0: process ", "is copying this shard"]);
    worker(scene, 1).run().expect_code(0);
    first.wait().expect_code(0);
    is_whole(scene);
}

/// Plans three shards with a range each, in both directions, and copies the first one.
fn after_the_first_of_three(then: impl Fn(&Scene)) {
    for (source, target) in [("from", "peer:to"), ("peer:from", "to")] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        tree(&scene, LARGE);
        make(&scene, source, target, "3").expect_code(0);
        worker(&scene, 0).run().expect_code(0);
        then(&scene);
    }
}

/// Ranges of two versions of a file would make a file that never existed.
#[test]
fn a_changed_source_is_refused_and_its_temporary_removed() {
    after_the_first_of_three(|scene| {
        worker(scene, 2).run().expect_code(0);
        set_time(&scene.path("from/folder/large"), 1_200_000_000);
        let changed = worker(scene, 1).run().expect_code(65);
        changed.expect_err(&[
            "from/folder/large: changed since the plan was made (it was modified)",
            "make a new plan",
        ]);
        assert_eq!(beside(scene), [""; 0]);
        // Bug: a new temporary lacked the ranges of the complete shards, and got the name.
        set_time(&scene.path("from/folder/large"), 1_100_000_000);
        let lost = worker(scene, 1).run().expect_code(65);
        lost.expect_err(&[MISSING]);
        assert_eq!(beside(scene), [""; 0]);
    });
}

/// Another plan in another folder sends the file again, as the message says, and no complete one.
#[test]
fn a_lost_temporary_is_sent_again_by_another_plan() {
    after_the_first_of_three(|scene| {
        let temporary = beside(scene).remove(0);
        fs::remove_file(scene.path("to/folder").join(temporary)).expect("our file");
        // Bug: the exit code asked the scheduler for another try.
        let refused = worker(scene, 1).run().expect_code(65);
        refused.expect_err(&[
            MISSING,
            "make a new plan of the same SRC and DST in another folder",
        ]);
        let planned = status(scene);
        let downloads = planned["source"]
            .as_str()
            .is_some_and(|s| s.starts_with("peer:"));
        let (source, target) = match downloads {
            true => ("peer:from", "to"),
            false => ("from", "peer:to"),
        };
        fs::rename(scene.path("plan"), scene.path("abandoned")).expect("our folder");
        make(scene, source, target, "3").expect_code(0);
        for shard in 0..3 {
            worker(scene, shard).run().expect_code(0);
        }
        is_whole(scene);
    });
}

/// `--verify` does not read split files, and claimed nothing about them.
#[test]
fn a_worker_that_verifies_says_what_proves_split_files() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene, LARGE);
    make(&scene, "from", "peer:to", "2").expect_code(0);
    for shard in [0, 1] {
        let outcome = worker(&scene, shard).arg("--verify").run().expect_code(0);
        outcome.expect_err(&[
            "split files are not verified by --verify",
            "longhaul plan verify --checksum",
        ]);
    }
    let outcome = worker(&scene, 0).run().expect_code(0);
    assert!(!outcome.err().contains("not verified"), "{outcome}");
}

/// A file that changes after its ranges were written gets no name either.
#[test]
fn a_source_that_changed_before_the_naming_is_refused() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let shards = named_too_late(&scene);
    set_time(&scene.path("from/folder/large"), 1_200_000_000);
    let changed = worker(&scene, shards - 1).run().expect_code(65);
    changed.expect_err(&["from/folder/large: changed since the plan was made"]);
    assert_eq!(beside(&scene), [""; 0]);
}

/// Copies all shards, and takes the name of the file away as if the last worker had been killed
/// before it gave it. Returns the number of shards.
fn named_too_late(scene: &Scene) -> u32 {
    tree(scene, LARGE);
    make(scene, "from", "peer:to", "3").expect_code(0);
    worker(scene, 0).run().expect_code(0);
    let temporary = beside(scene).pop().expect("the temporary");
    for shard in [1, 2] {
        worker(scene, shard).run().expect_code(0);
    }
    let folder = scene.path("to/folder");
    fs::rename(folder.join("large"), folder.join(temporary)).expect("our file");
    fs::remove_file(scene.path("plan/sealed")).expect("our file");
    3
}

#[test]
fn a_file_without_its_name_gets_it_from_the_next_worker_of_any_shard() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    named_too_late(&scene);
    let unfinished = plan(&scene).arg("status").arg(scene.path("plan")).run();
    assert!(
        unfinished.out().contains("run any shard again"),
        "{unfinished}"
    );
    worker(&scene, 0).run().expect_code(0);
    is_whole(&scene);
}

/// The worker that names the file is killed while it does.
#[test]
fn a_killed_naming_is_repeated() {
    let Some(slow) = Slow::new(64 << 20, Duration::from_millis(300)) else {
        return;
    };
    let scene = &slow.scene;
    tree(scene, LARGE);
    make(scene, "from", "peer:to", "2").expect_code(0);
    worker(scene, 1).run().expect_code(0);
    let last = worker(scene, 0).spawn();
    // The lease behind those of the shards is that of the naming.
    let naming = scene.path("plan/00002.lease-1");
    assert!(last.until(|| naming.exists()));
    kill(last.pid());
    assert_eq!(last.wait().code, None);
    assert_eq!(status(scene)["sealed"], false);
    assert_eq!(status(scene)["shards"]["done"], 2);
    let (one, other) = (worker(scene, 0).spawn(), worker(scene, 1).spawn());
    one.wait().expect_code(0);
    other.wait().expect_code(0);
    is_whole(scene);
}

/// Bug: a worker made a temporary again that had been removed, and the ranges of complete shards
/// were zeros in the named file.
#[test]
fn a_removed_temporary_is_not_made_again_without_the_ranges_of_complete_shards() {
    after_the_first_of_three(|scene| {
        let temporary = beside(scene).remove(0);
        fs::remove_file(scene.path("to/folder").join(temporary)).expect("our file");
        for shard in [1, 2] {
            let refused = worker(scene, shard).run().expect_code(65);
            refused.expect_err(&[MISSING]);
        }
        assert_eq!(beside(scene), [""; 0]);
    });
}

/// Bug: a worker whose machine lacked the source removed the temporary that other workers had
/// filled.
#[test]
fn a_source_that_is_missing_for_a_while_costs_no_ranges() {
    after_the_first_of_three(|scene| {
        let temporary = beside(scene);
        let root = fs::File::open(scene.path("from")).expect("our folder");
        let time = root.metadata().and_then(|meta| meta.modified());
        fs::rename(scene.path("from/folder"), scene.path("elsewhere")).expect("our folder");
        let missing = worker(scene, 1).run().expect_code(1);
        missing.expect_err(&["from/folder/large: not found by this machine"]);
        assert_eq!(beside(scene), temporary);
        let status = status(scene);
        let file = &status["unfinished_files"][0];
        assert_eq!(file["path"], "folder/large", "{status}");
        assert_eq!(
            file["missing_shards"],
            serde_json::json!([1, 2]),
            "{status}"
        );
        fs::rename(scene.path("elsewhere"), scene.path("from/folder")).expect("our folder");
        root.set_modified(time.expect("a time"))
            .expect("our folder");
        for shard in [1, 2] {
            worker(scene, shard).run().expect_code(0);
        }
        is_whole(scene);
    });
}

/// Two plans of one tree and one target have the same contents.
#[test]
fn two_plans_of_one_tree_do_not_write_one_temporary() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene, LARGE);
    make(&scene, "from", "peer:to", "2").expect_code(0);
    worker(&scene, 0).run().expect_code(0);
    fs::rename(scene.path("plan"), scene.path("other")).expect("our folder");
    make(&scene, "from", "peer:to", "2").expect_code(0);
    worker(&scene, 1).run().expect_code(0);
    assert_eq!(beside(&scene).len(), 2);
    worker(&scene, 0).run().expect_code(0);
    let status = status(&scene);
    assert_eq!(status["sealed"], true, "{status}");
    let [from, to] = ["from", "to"].map(|root| scene.path(root).join("folder/large"));
    assert!(fs::read(from).expect("our file") == fs::read(to).expect("the copy"));
}

/// A second name of the user's own file in place of the temporary.
#[test]
fn a_hard_link_at_the_temporary_is_not_written() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene, LARGE);
    make(&scene, "peer:from", "to", "2").expect_code(0);
    worker(&scene, 0).run().expect_code(0);
    let temporary = scene.path("to/folder").join(beside(&scene).remove(0));
    fs::remove_file(&temporary).expect("our file");
    write_file(&scene.path("precious"), b"precious");
    fs::hard_link(scene.path("precious"), &temporary).expect("a link of our own");
    is_refused_twice(&scene);
}

/// Runs a worker that must not write `precious`, after and before a worker has noted that the
/// temporary was created.
fn is_refused_twice(scene: &Scene) {
    for noted in [true, false] {
        if !noted {
            let entries = fs::read_dir(scene.path("plan")).expect("our folder");
            let names = entries.flatten().map(|entry| entry.path());
            let is_note = |path: &PathBuf| path.to_string_lossy().contains(".temporary-");
            let notes: Vec<PathBuf> = names.filter(is_note).collect();
            assert_eq!(notes.len(), 1, "{notes:?}");
            fs::remove_file(&notes[0]).expect("our file");
        }
        // What has the name may be removed before a worker has noted the temporary.
        let code = if noted { 65 } else { 1 };
        worker(scene, 1).run().expect_code(code);
        let precious = fs::read(scene.path("precious")).expect("our file");
        assert_eq!(precious, b"precious");
    }
}

/// Something else under the name of the temporary is neither followed nor replaced.
#[test]
fn a_symlink_at_the_temporary_is_not_followed() {
    after_the_first_of_three(|scene| {
        let temporary = scene.path("to/folder").join(beside(scene).remove(0));
        fs::remove_file(&temporary).expect("our file");
        write_file(&scene.path("precious"), b"precious");
        symlink(scene.path("precious"), &temporary).expect("a symlink of our own");
        is_refused_twice(scene);
    });
}

/// A server that refuses these requests of SFTP.
fn refusing(requests: &str) -> Option<Scene> {
    let subsystem = format!("sftp internal-sftp -P {requests}");
    let builder = PeerBuilder::openssh().option("Subsystem", &subsystem);
    let scene = Scene::with(builder)?;
    (!scene.client.is_scp()).then_some(scene)
}

/// Bug: "cannot create its temporary: permission denied", exit 1, and an empty temporary stayed.
#[test]
fn a_server_that_sets_no_sizes_is_named_as_the_cause() {
    let Some(scene) = refusing("setstat,fsetstat,lsetstat") else {
        return;
    };
    tree(&scene, LARGE);
    make(&scene, "from", "peer:to", "2").expect_code(0);
    for shard in [0, 1] {
        let refused = worker(&scene, shard).run().expect_code(65);
        let refused = refused.expect_err(&[
            "folder/large: several shards cannot write this file, because the server does not set",
            "--range-size",
        ]);
        assert_eq!(beside(&scene), [""; 0], "{refused}");
    }
    assert!(scene.path("to/7").exists());
}

/// Bug: the file was written again under its name, and the temporary of all its bytes stayed.
#[test]
fn a_server_that_renames_nothing_keeps_no_temporary() {
    let Some(scene) = refusing("rename,posix-rename") else {
        return;
    };
    tree(&scene, LARGE);
    make(&scene, "from", "peer:to", "2").expect_code(0);
    for shard in [0, 1] {
        worker(&scene, shard).run().expect_code(0);
    }
    is_whole(&scene);
}

/// Bug: each range counted as a file, and the directories above it once more for its name.
#[test]
fn the_files_of_all_shards_are_those_of_the_plan() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene, LARGE);
    let made = make(&scene, "from", "peer:to", "2").expect_code(0);
    assert!(made.out().contains(": 21 files"), "{made}");
    assert!(made.out().contains(", 2 directories;"), "{made}");
    let figures = |shard| {
        let outcome = worker(&scene, shard).arg("--json").run().expect_code(0);
        let summary = outcome.out().lines().last().map(serde_json::from_str);
        let summary: serde_json::Value = summary.expect("a summary").expect("JSON");
        ["files", "ranges", "directories"].map(|figure| summary[figure].as_u64())
    };
    let (one, two) = (figures(0), figures(1));
    let sum = one[0].zip(two[0]).map(|(one, two)| one + two);
    assert_eq!(sum, Some(21), "{one:?} {two:?}");
    for [_, ranges, directories] in [one, two] {
        assert_eq!(ranges, Some(1));
        assert!(
            (Some(1)..=Some(2)).contains(&directories),
            "{directories:?}"
        );
    }
    let again = worker(&scene, 1).run().expect_code(0);
    assert!(!again.err().contains("part"), "{again}");
}

/// Bug: the reason came after thousands of lines about missing entries, and the shards that lack
/// were in no order.
#[test]
fn what_lacks_is_told_in_order() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    tree(&scene, LARGE);
    write_file(&scene.path("from/second"), &Seed::new(6).bytes(LARGE));
    make(&scene, "from", "peer:to", "4").expect_code(0);
    let status = status(&scene);
    for file in status["unfinished_files"].as_array().expect("a list") {
        let missing = file["missing_shards"].as_array().expect("a list");
        let missing: Vec<_> = missing.iter().map(serde_json::Value::as_u64).collect();
        assert!(missing.is_sorted(), "{status}");
    }
    let verify = plan(&scene).arg("verify").arg(scene.path("plan"));
    let verify = verify.run().expect_code(1);
    let said = verify.err();
    let first = said.lines().next().unwrap_or_default();
    assert!(first.contains("this plan is not finished"), "{verify}");
}
