//! `longhaul sync` where checksums decide.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use longhaul_tests::{Client, Scene, longhaul, remote, scratch};
use tempfile::TempDir;
use testkit::tree::{Compare, assert_same};
use testkit::{Outcome, PeerBuilder, PeerKind, PeerServer, Seed};

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
    outcome.expect_err(&[
        "peer:",
        "/b: cannot compare by checksum, so 1 file of equal size is copied again: no longhaul is \
         used there, and the account runs no checksum program",
    ]);
}

/// Script that prints the XXH128 of "abc" for every file, as `xxhsum -H2` does for this input.
const XXH128_OF_ABC: &str = "echo 06b05ab6733a618578af5f94892f3950";
/// Script that hides an installed program.
const FAILS: &str = "exit 1";

/// sshd whose account finds some programs before those of the system.
struct Host {
    _peer: PeerServer,
    bin: TempDir,
}

impl Host {
    /// Starts sshd with more settings, under `name` for the client.
    fn start(name: &str, client: &mut Client, more: &[(&str, &str)]) -> Option<Self> {
        let bin = scratch();
        let path = format!("PATH={}:/usr/bin:/bin", bin.path().display());
        let mut builder = PeerBuilder::openssh().option("SetEnv", path);
        for (key, value) in more {
            builder = builder.option(key, *value);
        }
        let peer = builder.authorize(&client.dir).start()?;
        client.dir.add_host(name, &peer);
        Some(Self { _peer: peer, bin })
    }

    /// Installs a script as a program of the account.
    fn install(&self, name: &str, script: &str) {
        let all = fs::Permissions::from_mode(0o755);
        let file = self.bin.path().join(name);
        write_file(&file, format!("#!/bin/sh\n{script}\n").as_bytes());
        fs::set_permissions(self.bin.path(), all.clone()).expect("our folder");
        fs::set_permissions(&file, all).expect("our file");
    }
}

/// Makes two files at both ends with other times, of which one has other contents.
fn make_equal_sizes(folder: &std::path::Path) {
    for (tree, seconds) in [("s", 1_500_000_000), ("t", 1_400_000_000)] {
        // Programs print the second name in another form.
        for (name, content) in [("same", "1"), ("line\nbreak", "2"), ("other", tree)] {
            let path = folder.join(tree).join(name);
            write_file(&path, content.as_bytes());
            set_time(&path, seconds);
        }
    }
}

fn sync_between(client: &Client, folder: &std::path::Path, flags: &[&str]) -> Outcome {
    let run = client.dir.run(longhaul()).args(["sync", "--checksum"]);
    let run = run.arg("-F").arg(client.dir.config()).args(flags);
    let run = run.arg(remote("c", &folder.join("s")));
    run.arg(remote("d", &folder.join("t"))).run()
}

/// Bug: between two remote hosts of which one had no longhaul, every file of equal size was sent
/// again, and the reason that was given was false: both hosts had checksum programs.
#[test]
fn files_of_equal_size_between_two_hosts_are_compared_by_their_programs() {
    for case in ["stock", "longhaul at one end", "other first programs"] {
        let (mut client, folder) = (Client::new(), scratch());
        let Some(c) = Host::start("c", &mut client, &[]) else {
            return;
        };
        let Some(d) = Host::start("d", &mut client, &[]) else {
            return;
        };
        if client.is_scp() {
            return;
        }
        match case {
            "longhaul at one end" => {
                d.install("longhaul", &format!("exec {} \"$@\"", longhaul().display()));
            }
            "other first programs" => {
                c.install("xxhsum", XXH128_OF_ABC);
                d.install("xxhsum", FAILS);
                d.install("b3sum", FAILS);
            }
            _ => {}
        }
        make_equal_sizes(folder.path());
        let flags = match case {
            "longhaul at one end" => &["--json", "-q", "--far-end=exec"][..],
            _ => &["--json", "-q"],
        };
        let outcome = sync_between(&client, folder.path(), flags).expect_code(0);
        let said = summary(&outcome);
        assert_eq!(said["files"], 1, "{case}: {outcome}");
        let longhauls = said["far_ends"].as_array().expect("a list").iter();
        let longhauls = longhauls.filter(|far| far["depth"] == "exec").count();
        let expected = usize::from(case == "longhaul at one end");
        assert_eq!(longhauls, expected, "{case}: {outcome}");
        let [source, target] = ["s", "t"].map(|tree| folder.path().join(tree));
        assert_same(&source, &target, Compare::PRESERVED);
    }
}

/// Bug: the warning blamed "the far end", of which there are two, and said that it had neither
/// longhaul nor a program, whatever was missing.
#[test]
fn of_two_hosts_the_one_without_checksums_is_named() {
    for (restricted, tree) in [("c", "s"), ("d", "t")] {
        let (mut client, folder) = (Client::new(), scratch());
        let mut start = |name| {
            let no_commands = &[("ForceCommand", "internal-sftp")][..];
            let more = if name == restricted { no_commands } else { &[] };
            Host::start(name, &mut client, more)
        };
        let (Some(_c), Some(_d)) = (start("c"), start("d")) else {
            return;
        };
        if client.is_scp() {
            return;
        }
        make_equal_sizes(folder.path());
        let outcome = sync_between(&client, folder.path(), &[]).expect_code(0);
        let root = folder.path().join(tree);
        outcome.expect_err(&[&format!(
            "{restricted}:{}: cannot compare by checksum, so 3 files of equal size are copied \
             again: no longhaul is used there, and the account runs no checksum program",
            root.display()
        )]);
    }
}
