//! Messages that a newcomer needs: each names its subject, and what to do.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use longhaul_tests::{Scene, names_in};
use testkit::{PeerBuilder, PeerKind};

use crate::sync::{summary, sync, write_file};

fn scene() -> Option<Scene> {
    Scene::beyond_scp(PeerKind::OpenSsh)
}

#[test]
fn a_link_to_nowhere_is_no_missing_file() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("src/file"), b"x");
    symlink("nowhere", scene.path("src/dangling")).expect("a link");
    symlink("nowhere", scene.path("alone")).expect("a link");
    let cp = || scene.client.cp().arg("-r");
    let up = cp().arg(scene.path("src")).arg(scene.remote("up"));
    up.run().expect_code(1).expect_err(&[
        "src/dangling: symlink to nowhere, which does not exist; -a copies the link",
    ]);
    let down = cp().arg(scene.remote("src")).arg(scene.path("down"));
    down.run().expect_code(1).expect_err(&[
        "src/dangling: symlink to a name that does not exist, or to itself; -a copies the link",
    ]);
    // A named source is followed even with -a.
    let alone = cp().arg(scene.path("alone")).arg(scene.remote("there"));
    let outcome = alone.run().expect_code(1);
    assert!(
        outcome
            .err()
            .contains("alone: symlink to nowhere, which does not exist\n"),
        "{outcome}"
    );
}

#[test]
fn a_listed_file_is_not_missing_without_r() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("src/3.txt"), b"3");
    write_file(&scene.path("list"), b"3.txt\n");
    let cp = scene.client.cp().arg("--files-from");
    let cp = cp.arg(scene.path("list")).arg(scene.path("src"));
    let outcome = cp.arg(scene.remote("to")).run().expect_code(1);
    outcome
        .expect_err(&["src: it is a directory: use -r to copy it"])
        .expect_err(&[
            "3.txt: listed in --files-from, but not copied: without -r, files in a source that is a \
             directory are left out; add -r",
        ]);
}

#[test]
fn what_filters_leave_out_is_counted() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("src/1.txt"), b"1");
    write_file(&scene.path("src/2"), b"2");
    fs::create_dir(scene.path("to")).expect("our folder");
    let cp = || scene.client.cp().args(["--exclude", "*.txt"]);
    let one = || cp().arg(scene.path("src/1.txt")).arg(scene.remote("to"));
    let outcome = one().run().expect_code(0);
    assert!(outcome.err().contains(", 1 excluded"), "{outcome}");
    let outcome = one().arg("--json").run().expect_code(0);
    assert_eq!(summary(&outcome)["excluded"], 1, "{outcome}");
    let tree = cp().arg("-r").arg(scene.path("src"));
    let outcome = tree.arg(scene.remote("tree")).run().expect_code(0);
    assert!(outcome.err().contains(", 1 excluded"), "{outcome}");
    let synced = || {
        let run = sync(&scene, &["--exclude", "*.txt"]);
        run.arg(scene.path("src")).arg(scene.remote("synced"))
    };
    let outcome = synced().run().expect_code(0);
    assert!(outcome.err().contains(", 1 excluded"), "{outcome}");
    let outcome = synced().arg("--json").run().expect_code(0);
    assert_eq!(summary(&outcome)["excluded"], 1, "{outcome}");
}

#[test]
fn a_jump_host_that_cannot_be_reached_is_called_one() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("file"), b"x");
    let cp = scene.client.cp().args(["-J", "127.0.0.1:1"]);
    let cp = cp.arg(scene.path("file")).arg(scene.remote("copy"));
    let outcome = cp.run().expect_code(255);
    outcome.expect_err(&["error: 127.0.0.1: cannot connect to this jump host at port 1: "]);
}

#[test]
fn what_gives_way_to_another_type_is_replaced_and_not_deleted() {
    let Some(scene) = scene() else { return };
    for name in ["a/1/file", "a/2/file", "a/same"] {
        write_file(&scene.path(name), b"x");
    }
    for name in ["b/1", "b/2"] {
        write_file(&scene.path(name), b"x");
    }
    let run = || sync(&scene, &[]).arg(scene.path("a"));
    let outcome = run().arg(scene.remote("b")).run().expect_code(0);
    let said = outcome.err();
    assert!(
        said.contains("2 replaced by another type of entry\n"),
        "{outcome}"
    );
    assert!(!said.contains("deleted"), "{outcome}");
    // The unchanged entries are counted in the first line.
    let outcome = run().arg(scene.remote("b")).run().expect_code(0);
    let both = outcome.out() + &outcome.err();
    assert_eq!(both.matches(" unchanged").count(), 1, "{outcome}");
}

#[test]
fn a_flag_that_is_given_is_not_advised() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("a/name"), b"x");
    write_file(&scene.path("b/name/inside"), b"x");
    let go = |flags: &[&str]| {
        let run = sync(&scene, flags).arg(scene.path("a"));
        run.arg(scene.remote("b")).run().expect_code(1).err()
    };
    let stands = "name: a directory that is not empty is in the way and was not replaced: ";
    for (flags, advice) in [
        (&[][..], "--delete replaces it"),
        (&["--delete", "--max-delete", "0"], "deletions were refused"),
        (
            &["--delete", "--exclude", "inside"],
            "it has excluded entries",
        ),
    ] {
        let said = go(flags);
        assert!(said.contains(&format!("{stands}{advice}")), "{said}");
    }
}

#[test]
fn doctor_finds_a_missing_folder_before_it_measures() {
    let Some(scene) = scene() else { return };
    let program = longhaul_tests::longhaul();
    let doctor = || {
        let run = scene.client.dir.run(&program).arg("doctor");
        run.arg("-F").arg(scene.client.dir.config())
    };
    let outcome = doctor().arg("peer:/nonexistent").run().expect_code(1);
    outcome.expect_err(&["peer:/nonexistent: no such file or directory"]);
    let page = scene.path("none/page.html");
    let outcome = doctor().arg("--html").arg(page).arg("peer").run();
    let outcome = outcome.expect_code(1);
    let said = outcome.err();
    assert!(
        said.contains("--html: ") && said.contains("no such file"),
        "{outcome}"
    );
    assert!(outcome.out().is_empty(), "{outcome}");
}

/// Bug: a loop was named without a word on what to do.
#[test]
fn a_loop_of_links_is_named_with_a_way_out() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("round")).expect("our folder");
    write_file(&scene.path("round/file"), b"content");
    symlink(".", scene.path("round/here")).expect("a symlink");
    symlink("self", scene.path("round/self")).expect("a symlink");
    for (from, to) in [("round", "peer:up"), ("peer:round", "down")] {
        let at = |name: &str| match name.strip_prefix("peer:") {
            Some(name) => scene.remote(name),
            None => scene.path(name).into_os_string(),
        };
        let run = scene.client.cp().arg("-r").arg(at(from)).arg(at(to));
        let outcome = run.timeout(Duration::from_secs(40)).run().expect_code(1);
        outcome.expect_err(&["round/here: symlink loop", "-a copies the link"]);
        assert_eq!(
            names_in(&scene.path(to.trim_start_matches("peer:"))),
            ["file"]
        );
    }
}

/// Bug: the same files were copied at each sync, and nothing said why.
#[test]
fn a_sync_without_times_says_that_the_next_one_copies_again() {
    let subsystem = "sftp internal-sftp -P setstat,fsetstat,lsetstat";
    let builder = PeerBuilder::openssh().option("Subsystem", subsystem);
    let Some(scene) = Scene::with(builder).filter(|scene| !scene.client.is_scp()) else {
        return;
    };
    fs::create_dir(scene.path("src")).expect("our folder");
    write_file(&scene.path("src/file"), b"content");
    crate::shards::set_time(&scene.path("src/file"), 1_100_000_000);
    let copies = || {
        let run = sync(&scene, &[]);
        run.arg(scene.path("src"))
            .arg(scene.remote("dst"))
            .run()
            .expect_code(0)
    };
    let again = "the next sync copies these files again";
    for _ in 0..2 {
        let outcome = copies();
        assert_eq!(outcome.err().matches(again).count(), 1, "{outcome}");
    }
}

/// Bug: "permission denied" alone, from a server that takes nothing at all.
#[test]
fn a_directory_that_a_server_refuses_comes_with_a_hint() {
    let builder = PeerBuilder::openssh().option("Subsystem", "sftp internal-sftp -R");
    let Some(scene) = Scene::with(builder).filter(|scene| !scene.client.is_scp()) else {
        return;
    };
    fs::create_dir(scene.path("src")).expect("our folder");
    let run = scene.client.cp().arg("-r").arg(scene.path("src"));
    let outcome = run.arg(scene.remote("dst")).run().expect_code(1);
    outcome.expect_err(&[
        "cannot create the directory: permission denied",
        "the server is read-only",
    ]);
}

/// Bug: requests left with the login, and their temporaries were said to be left at the far end.
#[test]
fn a_refused_login_leaves_no_temporaries() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("file"), b"x");
    let copy = || {
        let cp = scene.client.cp().arg(scene.path("file"));
        cp.arg(scene.remote("there")).run()
    };
    // The key is known to work from the second copy on.
    copy().expect_code(0);
    copy().expect_code(0);
    let keys = scene.peer.folder().join("authorized_keys");
    fs::write(&keys, b"").expect("our server's file");
    let outcome = copy().expect_code(255);
    let outcome = outcome.expect_err(&["permission denied", "key offered"]);
    let said = outcome.err();
    assert!(!said.contains("left"), "{outcome}");
    assert_eq!(said.matches("permission denied").count(), 1, "{outcome}");
}

/// Bug: where sshd refuses a login by DISCONNECT (MaxAuthTries), temporaries of requests that left
/// with the login were said to be left, though the server had carried out none.
#[test]
fn a_login_that_ends_by_disconnect_leaves_no_temporaries() {
    let Some(scene) = Scene::with(PeerBuilder::openssh().option("MaxAuthTries", "1")) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"x");
    let copy = || {
        let cp = scene.client.cp().arg(scene.path("file"));
        cp.arg(scene.remote("there")).run()
    };
    // The key is known to work from the second copy on.
    copy().expect_code(0);
    copy().expect_code(0);
    let keys = scene.peer.folder().join("authorized_keys");
    fs::write(&keys, b"").expect("our server's file");
    // sshd closes with unread data, and the kernel's reset can overtake its DISCONNECT. Then nobody knows
    // what the server has done.
    let is_told_of_none = || {
        let outcome = copy().expect_code(255);
        let outcome = outcome.expect_err(&["too many authentication failures"]);
        !outcome.err().contains("left")
    };
    assert!((0..10).any(|_| is_told_of_none()), "each names leftovers");
}

/// Bug: `sync -n` promised what the sync could not do, and the sync named what lies below first.
#[test]
fn a_target_whose_parents_are_missing_is_named_once() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("src/sub/file"), b"x");
    for flags in [&["-n"][..], &[]] {
        for (source, target) in [
            (scene.remote("src"), scene.path("none/dst").into()),
            (scene.path("src").into(), scene.remote("none/dst")),
        ] {
            let outcome = sync(&scene, flags).arg(source).arg(target).run();
            let outcome = outcome.expect_code(1);
            let outcome = outcome.expect_err(&[
                "none: no such file or directory: sync creates DST, but no directories above it",
            ]);
            let said = outcome.err();
            assert_eq!(said.matches("error: ").count(), 1, "{outcome}");
        }
    }
    assert!(!scene.path("none").exists());
    // A symlink to a directory is a parent.
    fs::create_dir(scene.path("real")).expect("our folder");
    symlink("real", scene.path("link")).expect("a link");
    let up = sync(&scene, &[]).arg(scene.path("src"));
    up.arg(scene.remote("link/up")).run().expect_code(0);
    let down = sync(&scene, &[]).arg(scene.remote("src"));
    down.arg(scene.path("link/down")).run().expect_code(0);
    assert!(scene.path("real/up/sub/file").exists() && scene.path("real/down/sub/file").exists());
}

/// Bug: a full disk behind standard output ended a sync as if the user had interrupted it.
#[test]
fn a_plan_that_cannot_be_written_is_a_failure_and_no_interruption() {
    let Some(scene) = scene() else { return };
    write_file(&scene.path("src/file"), b"x");
    for flag in ["-i", "--json"] {
        let command = r#"exec "$0" "$@" >/dev/full"#;
        let run = scene.client.dir.run("sh").arg("-c").arg(command);
        let run = run.arg(longhaul_tests::longhaul()).args(["sync", flag]);
        let run = run.arg("-F").arg(scene.client.dir.config());
        let run = run.arg(scene.path("src")).arg(scene.remote(flag));
        let outcome = run.run().expect_code(1);
        outcome.expect_err(&["cannot write to standard output: no space left"]);
    }
}

/// Bug: the last requests of a copy, which remove what an earlier one has left, were not waited for.
#[test]
fn temporaries_of_a_few_small_files_do_not_stay() {
    let Some(scene) = scene() else { return };
    for name in ["a", "b", "c"] {
        write_file(&scene.path(&format!("src/{name}")), &[7; 900_000]);
    }
    let copy = |flags: &[&str]| {
        let cp = scene.client.cp().arg("-r").args(flags);
        cp.arg(scene.path("src")).arg(scene.remote("dst"))
    };
    let temporaries = || {
        let names = fs::read_dir(scene.path("dst")).into_iter().flatten();
        let names = names.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(".longhaul"))
            .count()
    };
    let running = copy(&["--limit", "300KB/s"]).spawn();
    assert!(running.until(|| temporaries() > 0));
    let pid = rustix::process::Pid::from_raw(running.pid().cast_signed()).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our process");
    running.wait();
    assert!(temporaries() > 0);
    copy(&[]).run().expect_code(0);
    assert_eq!(temporaries(), 0);
    assert_eq!(names_in(&scene.path("dst")), ["a", "b", "c"]);
}
