//! What a long path teaches one run, and the next one begins with.

use std::fs;
use std::time::Duration;

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
fn small_files_that_are_worth_several_logins_do_not_wait_for_what_goes_straight() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(longhaul(), bin.path().join("longhaul")).unwrap();
    let content = Seed::new(3).bytes(128 << 10);
    fs::create_dir(temporary.path().join("tree")).unwrap();
    for n in 0..320 {
        fs::write(temporary.path().join(format!("tree/{n}")), &content).unwrap();
    }
    fs::write(temporary.path().join("file"), content.repeat(320)).unwrap();
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

/// What sends a download is the far end, and no sshd asks for a congestion control that bears losses.
#[test]
fn small_files_go_straight_after_all_where_packets_are_lost() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(longhaul(), bin.path().join("longhaul")).unwrap();
    let content = Seed::new(3).bytes(128 << 10);
    fs::create_dir(temporary.path().join("tree")).unwrap();
    for n in 0..300 {
        fs::write(temporary.path().join(format!("tree/{n}")), &content).unwrap();
    }
    let (here, program) = (temporary.path().display(), longhaul());
    let copy = format!("{} cp -v -r far:{here}/tree {here}/down", program.display());
    let path = format!("SetEnv=PATH={}:/usr/bin:/bin", bin.path().display());
    let permitted = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let bbr = permitted.is_ok_and(|all| all.contains("bbr"));
    let allow: &[&str] = if bbr { &["--allow-cc", "bbr"] } else { &[] };
    let outcome = lab
        .env("XDG_CACHE_HOME", temporary.path().join("cache"))
        .args(["--rtt", "30ms", "--rate", "1Gbit", "--loss", "1%"])
        .args(["--cc", "cubic"])
        .args(allow)
        .args(["--sshd", "--sshd-option", &path, "-q", "--"])
        .args(["sh", "-c", &copy])
        // What the lossy logins hold takes 15 s on a machine that is idle.
        .timeout(Duration::from_secs(150))
        .run()
        .expect_code(0);
    outcome.expect_err(&["data go over a direct connection"]);
    for n in 0..300 {
        let copy = fs::read(temporary.path().join(format!("down/{n}"))).unwrap();
        assert!(copy == content, "{n}");
    }
}
