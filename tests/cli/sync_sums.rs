//! `longhaul sync` where checksums decide.

use std::fs;
use std::time::{Duration, SystemTime};

use longhaul_tests::Scene;
use testkit::tree::{Compare, assert_same};
use testkit::{PeerBuilder, PeerKind, Seed};

use crate::sync::{set_time, summary, sync, write_file};

#[test]
fn equal_size_and_second_with_other_content_is_found_where_checksums_are_cheap() {
    let Some(scene) = Scene::beyond_scp(PeerKind::Longhaul) else {
        return;
    };
    write_file(&scene.path("a/f"), b"one");
    write_file(&scene.path("b/f"), b"two");
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 5);
    let set = |path: &str, more: u32| {
        let file = fs::File::open(scene.path(path)).expect("ours");
        file.set_modified(time + Duration::from_nanos(more.into()))
            .expect("a time");
    };
    set("a/f", 0);
    set("b/f", 7);
    sync(&scene, &[])
        .arg(scene.path("a"))
        .arg(scene.remote("b"))
        .run()
        .expect_code(0);
    assert_eq!(fs::read(scene.path("b/f")).expect("there"), b"one");
}

#[test]
fn with_checksum_equal_times_hide_no_change() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            continue;
        };
        for (path, content) in [("a/f", b"one"), ("b/f", b"two")] {
            write_file(&scene.path(path), content);
            set_time(&scene.path(path), 1_500_000_000);
        }
        sync(&scene, &[])
            .arg(scene.path("a"))
            .arg(scene.remote("b"))
            .run()
            .expect_code(0);
        assert_eq!(fs::read(scene.path("b/f")).expect("there"), b"two");
        let outcome = sync(&scene, &["--checksum"])
            .arg(scene.path("a"))
            .arg(scene.remote("b"));
        outcome.run().expect_code(0);
        assert_eq!(fs::read(scene.path("b/f")).expect("there"), b"one");
    }
}

/// Regression: with --checksum, every file of equal size was sent again to a server without
/// longhaul. A program there answers now, in both directions and for names that programs print in
/// other forms.
#[test]
fn checksums_of_a_stock_server_come_from_a_program_there() {
    for up in [true, false] {
        let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
            return;
        };
        let mut random = Seed::new(7);
        let names = [
            "same",
            "large",
            "line\nbreak",
            "-dash",
            "back\\slash",
            "é",
            "other",
        ];
        for (number, name) in names.into_iter().enumerate() {
            let content = random.bytes(if name == "large" {
                3 << 20
            } else {
                100 + number
            });
            for (tree, seconds) in [("a", 1_500_000_000), ("b", 1_400_000_000)] {
                let path = scene.path(tree).join(name);
                let other = name == "other" && tree == "b";
                write_file(
                    &path,
                    &if other {
                        random.bytes(content.len())
                    } else {
                        content.clone()
                    },
                );
                set_time(&path, seconds);
            }
        }
        let (from, to) = match up {
            true => (scene.path("a").into_os_string(), scene.remote("b")),
            false => (scene.remote("a"), scene.path("b").into_os_string()),
        };
        let run = sync(&scene, &["--checksum", "--json", "-q"])
            .arg(from)
            .arg(to);
        let outcome = run.run().expect_code(0);
        assert_eq!(summary(&outcome)["files"], 1, "up {up}: {outcome}");
        assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
    }
}

/// A file that got another name is found by its checksum on a stock server as well.
#[test]
fn a_renamed_file_is_not_sent_again_to_a_stock_server() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for tree in ["a", "b"] {
        for (name, content) in [("one", &b"1"[..]), ("two", b"22")] {
            let name = if tree == "a" {
                format!("new-{name}")
            } else {
                name.to_owned()
            };
            write_file(&scene.path(tree).join(&name), content);
            set_time(&scene.path(tree).join(&name), 1_500_000_000);
        }
    }
    let run = sync(&scene, &["--delete", "--yes", "--json", "-q"]);
    let run = run.arg(scene.path("a")).arg(scene.remote("b"));
    let outcome = run.run().expect_code(0);
    assert_eq!(summary(&outcome)["bytes"], 0, "{outcome}");
    assert_same(&scene.path("a"), &scene.path("b"), Compare::PRESERVED);
}

#[test]
fn a_server_that_runs_no_commands_computes_no_checksums_and_that_is_said() {
    let builder = PeerBuilder::openssh().option("ForceCommand", "internal-sftp");
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    for tree in ["a", "b"] {
        write_file(&scene.path(tree).join("f"), b"x");
        set_time(&scene.path(tree).join("f"), 1_500_000_000);
    }
    let run = sync(&scene, &["--checksum"]).arg(scene.path("a"));
    let outcome = run.arg(scene.remote("b")).run().expect_code(0);
    outcome.expect_err(&["the far end cannot compute checksums", "1 file"]);
}
