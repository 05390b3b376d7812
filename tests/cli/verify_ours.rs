//! `--verify` where the far end is a longhaul, which makes the sums itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::both_ends::BothEnds;
use longhaul_tests::{Scene, names_in};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{Outcome, Seed};

use crate::serving::served;

/// Names that a shell or a list of sums could take for something else, and a file that is cut.
fn make_tree(scene: &Scene) {
    let names: [&[u8]; 5] = [b"-rf", b"new\nline", b"back\\slash", b"\xff\xfe", b"empty"];
    for (n, name) in names.iter().enumerate() {
        let path = scene.path("from").join(Path::new(OsStr::from_bytes(name)));
        let len = if *name == b"empty" { 0 } else { n * 1000 + 1 };
        fs::create_dir_all(scene.path("from")).expect("our folder");
        write_file(&path, &Seed::new(n as u64).bytes(len));
    }
    write_file(&scene.path("from/large"), &Seed::new(99).bytes(90_000_000));
}

/// There and back.
#[track_caller]
fn copies(scene: &Scene, flags: &[&str]) -> [Outcome; 2] {
    let run = |from: &OsStr, to: &OsStr| {
        let run = scene.client.cp().args(["-r", "--verify"]).args(flags);
        let run = run.arg(from).arg(to).timeout(Duration::from_secs(60));
        run.run().expect_code(0)
    };
    let up = run(scene.path("from").as_os_str(), &scene.remote("there"));
    let down = run(&scene.remote("there"), scene.path("back").as_os_str());
    for copy in ["there", "back"] {
        let copy = scene.path(copy);
        assert_same(&scene.path("from"), &copy, Compare::CONTENT);
        let names = names_in(&copy).len();
        fs::remove_dir_all(&copy).expect("our folder");
        assert_eq!(names, 6, "no temporary is left");
    }
    [up, down]
}

#[track_caller]
fn assert_by_longhaul(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let said = outcome.err();
        assert!(said.contains("by longhaul there (BLAKE3)"), "{outcome}");
        assert!(!said.contains("reading back"), "{outcome}");
    }
}

#[test]
fn a_longhaul_there_makes_the_sums_and_no_other_program() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    make_tree(&ends.scene);
    // At first contact, when it is found beside the server's own, and when it is remembered.
    for flags in [&["--far-end=exec"][..], &[], &["--far-end=direct"]] {
        assert_by_longhaul(&copies(&ends.scene, flags));
    }
}

#[test]
fn so_does_one_that_is_the_sftp_server_where_no_command_runs() {
    let Some(scene) = served("") else { return };
    make_tree(&scene);
    assert_by_longhaul(&copies(&scene, &[]));
}

#[test]
fn without_it_programs_make_them_as_before() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends.scene);
    for outcome in copies(&ends.scene, &["--far-end=stock"]) {
        let said = outcome.err();
        assert!(said.contains("verified by "), "{outcome}");
        assert!(!said.contains("by longhaul"), "{outcome}");
    }
}
