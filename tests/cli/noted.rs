//! The log of `longhaul serve --listen`, and the result of ssh-audit.

use std::fs;
use std::time::{Duration, Instant};

use longhaul_tests::Scene;
use testkit::tree::write_file;
use testkit::{KeyKind, Outcome, Run, Seed, missing};

use crate::old_clients::BesideSshd;
use crate::operating::{configured, configured_with, put};
use crate::serving::openssh;

/// Uploads a file with sftp, and asserts that it is logged at this level.
#[track_caller]
fn put_and_told(scene: &Scene, len: usize, level: &str) {
    write_file(&scene.path("file"), &Seed::new(3).bytes(len));
    let there = scene.path(&format!("of-{len}")).display().to_string();
    put(scene, &there).expect_code(0);
    let line = scene.logged(&format!("of-{len} sent=0 received={len}"));
    assert!(
        line.contains(level) && line.contains("closed path="),
        "{line}"
    );
    assert!(line.contains("peer=127.0.0.1:"), "{line}");
    let user = format!("user={}", scene.peer.user());
    assert!(line.contains(&user), "{line}");
}

/// Each large transfer is logged; with -v, as in all tests, small ones are logged as well.
#[test]
fn each_transfer_has_its_line_unless_it_is_of_little() {
    let scene = configured("").0;
    put_and_told(&scene, 1_500_000, " INFO ");
    put_and_told(&scene, 7, " DEBUG ");
    scene.logs("session closed opened=1 sent=0 received=7");
    // longhaul's client uploads small files with one request.
    let by_us = |scene: &Scene, level: &str| {
        if !scene.client.is_scp() {
            scene.copies(&[], scene.path("file"), scene.remote("by\u{1b}us"));
            let line = scene.logged("by\\x1bus sent=0 received=7");
            assert!(line.contains(level), "{line}");
        }
    };
    by_us(&scene, " DEBUG ");
    // A file that is written under a temporary name is logged with its final name.
    if !scene.client.is_scp() {
        write_file(&scene.path("large"), &Seed::new(5).bytes(20_000_000));
        scene.copies(&[], scene.path("large"), scene.remote("the large one"));
        let line = scene.logged("renamed path=");
        let told = line.contains(" INFO ") && line.contains("/the large one\" from=\"");
        assert!(told, "{line}");
    }
    let scene = configured("log-files = 0\n").0;
    put_and_told(&scene, 7, " INFO ");
    by_us(&scene, " INFO ");
}

#[test]
fn a_transfer_that_breaks_off_has_a_line_that_says_so() {
    let scene = configured("log-files = 1\n").0;
    write_file(&scene.path("file"), &Seed::new(4).bytes(3_000_000));
    // At 8 Mbit/s the transfer takes three seconds.
    let slow = openssh(&scene, "scp").args(["-l", "8000"]);
    let slow = slow.arg(scene.remote("file")).arg(scene.path("back"));
    let running = slow.spawn();
    let begun = || fs::metadata(scene.path("back")).is_ok_and(|m| m.len() > 0);
    assert!(running.until(begun));
    running.interrupt();
    assert!(!running.wait().success());
    let line = scene.logged("left open path=");
    assert!(
        line.contains(" INFO ") && line.contains("/file sent="),
        "{line}"
    );
}

/// Runs ssh-audit against a server, including its connection rate test; `None` if it is not
/// installed.
fn audit(scene: &Scene) -> Option<Outcome> {
    let python = missing::built_peers().join("venv/bin/python");
    let installed = || {
        let run = Run::new(&python).args(["-c", "import ssh_audit"]);
        run.run().success()
    };
    if !python.is_file() || !installed() {
        missing::skip("ssh-audit", "run scripts/setup-tests.sh");
        return None;
    }
    let port = scene.peer.port().to_string();
    let run = Run::new(&python).args(["-m", "ssh_audit", "--level=warn"]);
    // On a machine with much to do, its own limit of five seconds for each answer is too short.
    let run = run.args(["-n", "--timeout=30", "-p", &port, "127.0.0.1"]);
    Some(run.timeout(Duration::from_secs(120)).run())
}

/// Asserts that ssh-audit has no warnings about the offered algorithms.
#[track_caller]
fn nothing_is_said_of(scene: &Scene) {
    let Some(outcome) = audit(scene) else {
        return;
    };
    assert!(outcome.success(), "{outcome}");
    for word in ["[warn]", "[fail]", "throttling"] {
        assert!(!outcome.out().contains(word), "{outcome}");
    }
}

#[test]
fn ssh_audit_has_nothing_to_warn_of() {
    nothing_is_said_of(&configured_with("", &[KeyKind::Ed25519]).0);
    nothing_is_said_of(&configured_with("", &[KeyKind::Rsa3072]).0);
}

/// The ECDSA key is not offered: ssh-audit warns about its curve and its nonces.
#[test]
fn ssh_audit_has_nothing_to_warn_of_beside_an_sshd() {
    if let Some(beside) = BesideSshd::start(&[]) {
        nothing_is_said_of(&beside.scene);
    }
}

#[test]
fn with_old_clients_ssh_audit_warns_of_what_is_known() {
    let (scene, _file, _folder) = configured("old-clients = true\n");
    let Some(outcome) = audit(&scene) else {
        return;
    };
    let out = outcome.out();
    let told = |word| out.lines().filter(move |l: &&str| l.contains(word));
    let known = [
        "post-quantum",
        "elliptic curves",
        "encrypt-and-MAC",
        "weak random number",
    ];
    for line in told("[warn]").chain(told("[fail]")) {
        assert!(known.iter().any(|known| line.contains(known)), "{line}");
    }
    for known in known {
        assert!(out.contains(known), "{known}: {outcome}");
    }
    assert!(!out.contains("throttling"), "{outcome}");
    // A client rejected by the rate limit is admitted a little later.
    let until = Instant::now() + Duration::from_secs(20);
    let login = || openssh(&scene, "sftp").arg("peer").stdin("").run();
    while !login().success() {
        assert!(Instant::now() < until, "{}", scene.peer.log());
    }
}
