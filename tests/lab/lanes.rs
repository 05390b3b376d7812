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
