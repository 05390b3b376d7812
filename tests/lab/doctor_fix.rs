//! `longhaul doctor --fix` writes one Host block and nothing else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use longhaul_tests::longhaul;
use testkit::{Outcome, Run};

/// A result of an earlier run, in which CS1 is slow.
fn earlier(host: &str) -> String {
    let marks = r#"{"noise":[1.0],"marks":[{"class":"CS1","ratios":[0.1,0.1,0.1],
        "rate":1e6,"unmarked":1e7}]}"#;
    format!(
        r#"{{"kind":"longhaul-doctor","schema":1,"host":"{host}","seconds":1,
        "evidence":{{"marks":{marks}}}}}"#
    )
}

fn fix(home: &std::path::Path, host: &str, flags: &[&str]) -> Outcome {
    let file = home.join("earlier.json");
    fs::write(&file, earlier(host)).expect("a file");
    Run::new(longhaul())
        .args(["doctor", "--from"])
        .arg(&file)
        .arg("--fix")
        .args(flags)
        .env("HOME", home)
        .run()
}

#[test]
fn a_block_is_appended_once_and_the_link_and_mode_are_kept() {
    let home = tempfile::tempdir().expect("a folder");
    let real = home.path().join("dotfiles");
    fs::create_dir(home.path().join(".ssh")).expect("a folder");
    fs::write(&real, "Host old\n    Port 5\n").expect("a file");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("a mode");
    let link = home.path().join(".ssh/config");
    symlink(&real, &link).expect("a link");
    for _ in 0..2 {
        fix(home.path(), "me@backup", &["--yes"]).expect_code(0);
        let text = fs::read_to_string(&real).expect("the file");
        let (before, block) = text.split_once("\n\n").expect("a gap");
        assert_eq!(before, "Host old\n    Port 5");
        assert!(
            block.ends_with("\nHost backup\n    IPQoS none\n"),
            "{block}"
        );
        assert_eq!(text.matches("Host backup").count(), 1);
    }
    let mode = fs::metadata(&real).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(link.is_symlink());
}

#[test]
fn nothing_is_written_without_a_yes_or_for_a_host_that_is_no_name() {
    let home = tempfile::tempdir().expect("a folder");
    let config = home.path().join(".ssh/config");
    let outcome = fix(home.path(), "backup", &[]);
    assert_ne!(outcome.code, Some(0), "{outcome}");
    assert!(outcome.err().contains("--yes"), "{outcome}");
    let outcome = fix(home.path(), "x\\n  ProxyCommand id", &["--yes"]);
    assert_ne!(outcome.code, Some(0), "{outcome}");
    assert!(!config.exists());
}
