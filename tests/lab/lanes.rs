//! What a long path teaches one run, and the next one begins with.

use std::fs;

use longhaul_tests::longhaul;
use testkit::Seed;

use crate::{have, lab};

#[test]
fn a_second_copy_begins_with_the_connections_that_the_first_one_found() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let here = temporary.path().display();
    fs::write(
        temporary.path().join("file"),
        Seed::new(3).bytes(80_000_000),
    )
    .unwrap();
    let copy = format!("{} cp -v {here}/file far:{here}/copy", longhaul().display());
    let outcome = lab
        .env("XDG_CACHE_HOME", temporary.path().join("cache"))
        .args(["--path", "transatlantic", "--sshd", "-q", "--"])
        .args(["sh", "-c", &format!("{copy} && echo again >&2 && {copy}")])
        .run()
        .expect_code(0);
    let said = outcome.err();
    let (first, second) = said.split_once("again\n").expect("two copies");
    let known = "as many as paid the last time";
    assert!(!first.contains(known), "{outcome}");
    assert!(first.contains("adding"), "{outcome}");
    assert!(second.contains(known), "{outcome}");
}

/// Further logins begin sooner than what starts the other server could answer, and to leave them for it costs
/// more than it brings. A single file has no use for further logins, and goes straight.
#[test]
fn a_tree_that_is_worth_several_logins_does_not_wait_for_what_goes_straight() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(longhaul(), bin.path().join("longhaul")).unwrap();
    let content = Seed::new(3).bytes(1 << 20);
    fs::create_dir(temporary.path().join("tree")).unwrap();
    for n in 0..40 {
        fs::write(temporary.path().join(format!("tree/{n}")), &content).unwrap();
    }
    fs::write(temporary.path().join("file"), content.repeat(40)).unwrap();
    let here = temporary.path().display();
    let cp = |from: &str, to: &str| {
        let program = longhaul();
        format!(
            "{} cp -v -r {from} {to} && echo DONE >&2",
            program.display()
        )
    };
    let all = [
        cp(&format!("{here}/tree"), &format!("far:{here}/up")),
        cp(&format!("far:{here}/up"), &format!("{here}/down")),
        // The longhaul there is known by now.
        cp(&format!("{here}/tree"), &format!("far:{here}/again")),
        cp(&format!("{here}/file"), &format!("far:{here}/copy")),
    ];
    let path = format!("SetEnv=PATH={}:/usr/bin:/bin", bin.path().display());
    let outcome = lab
        .env("XDG_CACHE_HOME", temporary.path().join("cache"))
        .args(["--rtt", "60ms", "--rate", "1Gbit", "--sshd"])
        .args(["--sshd-option", &path, "-q", "--"])
        .args(["sh", "-c", &all.join(" && ")])
        .run()
        .expect_code(0);
    let said = outcome.err();
    let runs: Vec<&str> = said.split("DONE\n").collect();
    for (n, run) in runs.iter().take(4).enumerate() {
        let tree = n < 3;
        let straight = run.contains("data go over a direct connection");
        assert_eq!(straight, !tree, "{n}: {outcome}");
        let ours = run.contains("at the far end");
        assert!(
            ours && (!tree || run.contains("adding 3 connections")),
            "{n}: {outcome}"
        );
    }
}
