//! Two names of one machine: a copy or sync that would read what it writes is refused or harmless.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul, names_in};
use testkit::{Outcome, PeerKind, Run};

use crate::roots::beneath;
use crate::several_hosts::Hosts;
use crate::sync_harm::contents;

/// Hosts `h1` and `h2` of one machine, and `alias`, another name of `h1`.
fn hosts() -> Option<Hosts> {
    let mut hosts = Hosts::start(2)?;
    let peer = &hosts.peers[0];
    hosts.client.dir.add_host_at("alias", peer, peer.port());
    Some(hosts)
}

/// Pairs of names that lead to one machine: one name, two names of one login, and two servers.
const NAMES: [(&str, &str); 3] = [("h1", "h1"), ("h1", "alias"), ("h1", "h2")];

fn at(host: &str, path: &Path) -> String {
    format!("{host}:{}", path.display())
}

fn sync(hosts: &Hosts, words: &[&str]) -> Outcome {
    let run: Run = hosts.client.dir.run(longhaul()).arg("sync");
    let run = run.arg("-F").arg(hosts.client.dir.config()).args(words);
    run.timeout(Duration::from_secs(60)).run()
}

/// Seconds of a directory's modification time, which is all that SFTP can set.
fn time(path: &Path) -> i64 {
    fs::metadata(path).expect("ours").mtime()
}

/// Regression: `sync --delete h1:z/src h1:z` deleted its source, and `sync h1:z h1:z/in` copied the
/// target into itself at each run.
#[test]
fn a_sync_between_two_names_of_one_machine_deletes_no_source_and_nests_nothing() {
    let Some(hosts) = hosts() else { return };
    let z = hosts.path("z");
    hosts.write("z/src/sub/file", b"precious");
    hosts.write("z/other", b"other");
    symlink(&z, hosts.path("link")).expect("ours");
    symlink(z.join("src"), hosts.path("deep")).expect("ours");
    fs::create_dir(z.join("old")).expect("ours");
    let file = fs::File::open(&z).expect("ours");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_100_000_000);
    file.set_modified(long_ago).expect("ours");
    let before = contents(&z);
    for (one, other) in NAMES {
        for (from, to, flags, says) in [
            ("z/src", "z", &["--delete"][..], "contains SRC"),
            ("link/src", "z", &["--delete"], "contains SRC"),
            ("deep", "link/", &["--delete", "--yes"], "contains SRC"),
            ("z/src", "z/../z", &["--delete"], "contains SRC"),
            ("z/src/sub", "z", &["--delete"], "contains SRC"),
            ("z", "z/old", &[], "lies in SRC"),
            ("z", "z/new", &[], "lies in SRC"),
            ("link", "z/src/in", &["--delete"], "lies in SRC"),
            ("z", "link", &["--delete"], "the same directory"),
            ("deep", "z/src", &[], "the same directory"),
        ] {
            let (from, to) = (at(one, &hosts.path(from)), at(other, &hosts.path(to)));
            let words: Vec<&str> = flags.iter().copied().chain([&*from, &*to]).collect();
            let outcome = sync(&hosts, &words);
            outcome.expect_code(1).expect_err(&[says]);
            assert_eq!(contents(&z), before, "{words:?}");
            assert_eq!(time(&z), 1_100_000_000, "{words:?}");
        }
    }
    // One login is recognized in a dry run too, without creating anything.
    for other in ["h1", "alias"] {
        let words = ["-n", "--delete", &at("h1", &z.join("src")), &at(other, &z)];
        let outcome = sync(&hosts, &words).expect_code(1);
        outcome.expect_err(&["contains SRC"]);
    }
    assert_eq!(names_in(&z), ["old", "other", "src"]);
}

#[test]
fn what_does_not_overlap_or_is_excluded_is_synced_between_two_names_of_one_machine() {
    for (one, other) in NAMES {
        let Some(hosts) = hosts() else { return };
        hosts.write("z/src/file", b"new");
        hosts.write("z/dst/file", b"old content");
        let (source, target) = (hosts.path("z/src"), hosts.path("z/dst"));
        let outcome = sync(
            &hosts,
            &["--delete", &at(one, &source), &at(other, &target)],
        );
        outcome.expect_code(0);
        assert_eq!(fs::read(target.join("file")).expect("ours"), b"new");
        let words = [
            "--exclude=/dst",
            &at(one, &hosts.path("z")),
            &at(other, &target),
        ];
        sync(&hosts, &words).expect_code(0);
        assert_eq!(fs::read(target.join("src/file")).expect("ours"), b"new");
        assert!(!target.join("dst").exists());
    }
}

/// scp truncates `h1:f` in the last two of these.
#[test]
fn a_copy_onto_or_into_itself_loses_nothing() {
    let Some(hosts) = hosts() else { return };
    let z = hosts.path("z");
    hosts.write("z/sub/file", b"precious");
    fs::create_dir(z.join("in")).expect("ours");
    symlink(&z, hosts.path("link")).expect("ours");
    for installed in [false, true] {
        if installed {
            hosts.install(1);
            hosts.install(2);
        }
        for (one, other) in NAMES {
            for (from, to, flags) in [
                ("z", "z/in", &["-r"][..]),
                ("z", "z/in", &["-a"]),
                ("z", "z/new", &["-r"]),
                ("link/.", "z", &["-r"]),
                ("link/.", "z", &["-a", "--inplace"]),
                ("z/sub/file", "z/sub/file", &[]),
                ("link/sub/file", "z/sub/", &["--inplace"]),
                ("z/sub/file", "link/sub/file", &["--inplace", "-r"]),
            ] {
                let (from, to) = (at(one, &hosts.path(from)), at(other, &hosts.path(to)));
                let words: Vec<&str> = flags.iter().copied().chain([&*from, &*to]).collect();
                let outcome = hosts.cp(&words).run();
                assert!(matches!(outcome.code, Some(0 | 1)), "{words:?}: {outcome}");
                let content = fs::read(z.join("sub/file")).expect("it is there");
                assert_eq!(content, b"precious", "{words:?}: {outcome}");
                // The copy in `in` or `new` has no copy of itself.
                let nested = ["in/z/in/z", "new/new", "in/z/new/new"];
                for nested in nested.map(|path| z.join(path)) {
                    assert!(!nested.join("sub").exists(), "{words:?}: {nested:?}");
                }
                let _ = fs::remove_dir_all(z.join("new"));
                let _ = fs::remove_dir_all(z.join("in/z"));
            }
        }
    }
}

/// Regression: with another root at one end, equal directories have different paths, and
/// `sync --delete root/src host:/` deleted its source.
#[test]
fn a_source_in_the_target_is_found_where_an_end_has_another_root() {
    if Scene::beyond_scp(PeerKind::Longhaul).is_none() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let scene = beneath(root.path());
    let source = root.path().join("host/src");
    crate::sync::write_file(&source.join("sub/file"), b"precious");
    crate::sync::write_file(&source.join("other"), b"other");
    // It looks like the source, and may go.
    crate::sync::write_file(&root.path().join("copy/sub/file"), b"precious");
    crate::sync::write_file(&root.path().join("copy/other"), b"other");
    let before = contents(root.path());
    let run = |flags: &[&str]| {
        let run = crate::sync::sync(&scene, &["--delete", "--yes"]).args(flags);
        run.arg(&source).arg("peer:/").run()
    };
    run(&[])
        .expect_code(1)
        .expect_err(&["peer:/host/src: is SRC"]);
    assert_eq!(contents(root.path()), before);
    run(&["--exclude=/host"]).expect_code(0);
    assert_eq!(
        fs::read(source.join("sub/file")).expect("ours"),
        b"precious"
    );
    assert_eq!(fs::read(root.path().join("other")).expect("ours"), b"other");
    assert!(!root.path().join("copy").exists());
}
