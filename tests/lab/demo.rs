//! `make demo` with a few bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::{longhaul, names_in};
use testkit::Run;

use crate::have;

/// Prepares the demo; `None`, after reporting the skip, without OpenSSH.
fn demo(temporary: &Path) -> Option<Run> {
    have(&[("sshd", "openssh-server"), ("scp", "openssh-client")]).then(|| {
        Run::new(env!("CARGO_BIN_EXE_demo"))
            .env("LONGHAUL_BIN", longhaul())
            .env("DEMO_QUICK", "1")
            .env("TMPDIR", temporary)
            .env_remove("DEMO_RESULTS")
            .env_remove("DEMO_LIMIT")
            .timeout(Duration::from_secs(120))
    })
}

#[test]
fn the_demo_copies_charts_keeps_its_times_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let results = tempfile::tempdir().unwrap();
    let results = results.path().join("demo.tsv");
    let Some(demo) = demo(temporary.path()) else {
        return;
    };
    let outcome = demo.env("DEMO_RESULTS", &results).run().expect_code(0);
    let out = outcome.out();
    assert_eq!(out.matches("times as fast").count(), 4, "{outcome}");
    assert_eq!(out.matches("written and renamed").count(), 4, "{outcome}");
    assert!(!out.contains('\x1b'), "{outcome}");
    let kept = fs::read_to_string(results).expect("the times");
    let lines: Vec<&str> = kept.lines().collect();
    assert!(
        lines[0].starts_with("# ") && lines[0].contains("OpenSSH"),
        "{kept}"
    );
    assert_eq!(lines.len(), 9, "{kept}");
    assert!(names_in(temporary.path()).is_empty(), "{outcome}");
}

#[test]
fn on_a_terminal_the_demo_has_colors_unless_they_are_unwanted() {
    let temporary = tempfile::tempdir().unwrap();
    for (no_color, colored) in [("", true), ("1", false)] {
        let Some(demo) = demo(temporary.path()) else {
            return;
        };
        let demo = demo.env("NO_COLOR", no_color).env("TERM", "xterm");
        let outcome = demo.in_terminal().run().expect_code(0);
        let out = outcome.out();
        assert_eq!(out.contains("\x1b[32m█"), colored, "{outcome}");
        // Progress of scp, and the closing line of longhaul.
        assert!(out.contains("100%"), "{outcome}");
        assert!(out.contains("written and renamed"), "{outcome}");
    }
}

#[test]
fn without_a_lab_the_demo_says_why_and_takes_the_proxy() {
    let temporary = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let wrapper = other.path().join("longhaul");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != lab ] || {{ echo 'longhaul lab: none today' >&2; exit 125; }}\n\
         exec '{}' \"$@\"\n",
        longhaul().display()
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(demo) = demo(temporary.path()) else {
        return;
    };
    let outcome = demo.env("LONGHAUL_BIN", wrapper).run().expect_code(0);
    let out = outcome.out();
    assert!(
        out.starts_with("No emulated network here (none today)"),
        "{outcome}"
    );
    assert_eq!(out.matches("times as fast").count(), 4, "{outcome}");
    assert!(names_in(temporary.path()).is_empty(), "{outcome}");
}

/// Runs without any program of OpenSSH: no sshd, no scp, no ssh-keygen.
#[test]
fn the_demo_needs_nothing_installed() {
    let sshd = testkit::missing::find_program("sshd");
    let hidden = match &sshd {
        Some(sshd) => format!("mount --bind /dev/null '{}' && ", sshd.display()),
        None => String::new(),
    };
    let usable = Run::new("unshare")
        .args(["--mount", "true"])
        .run()
        .success();
    if sshd.is_some() && !usable {
        testkit::missing::not_here("an installed sshd can be hidden in a mount namespace alone");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let few = tempfile::tempdir().unwrap();
    for name in ["id", "true", "sh"] {
        let program = testkit::missing::find_program(name).expect("every machine has it");
        std::os::unix::fs::symlink(program, few.path().join(name)).unwrap();
    }
    let script = format!("{hidden} PATH='{}' exec \"$0\"", few.path().display());
    let outcome = Run::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_demo"))
        .env("LONGHAUL_BIN", longhaul())
        .env("DEMO_QUICK", "1")
        .env("TMPDIR", temporary.path())
        .env_remove("DEMO_RESULTS")
        .env_remove("DEMO_LIMIT")
        .timeout(Duration::from_secs(120))
        .run()
        .expect_code(0);
    let out = outcome.out();
    assert!(out.starts_with("longhaul alone"), "{outcome}");
    assert_eq!(out.matches("written and renamed").count(), 4, "{outcome}");
}
