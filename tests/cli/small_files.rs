//! Small files to and from longhaul's server, which takes each in one request: the result is equal
//! to that of stock SFTP requests, case by case.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use longhaul_tests::{longhaul, scratch};
use testkit::Run;
use testkit::tree::{Compare, Tree, assert_same, differences, write_file};

/// Creates a program that runs `longhaul serve --stdio`.
fn ours(folder: &Path) -> std::path::PathBuf {
    let program = folder.join("serve");
    let text = format!("#!/bin/sh\nexec {} serve --stdio\n", longhaul().display());
    write_file(&program, text.as_bytes());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    program
}

/// Creates everything that may exist at the target of a file.
fn targets(root: &Path) {
    let mode = |name: &str, mode: u32| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(root.join(name), mode).expect("ours");
    };
    fs::create_dir(root).expect("ours");
    for name in ["dir", "closed"] {
        fs::create_dir(root.join(name)).expect("ours");
    }
    for (name, bits) in [
        ("old", 0o644),
        ("script", 0o755),
        ("secret", 0o600),
        ("read-only", 0o444),
        ("real", 0o640),
        ("closed/old", 0o644),
    ] {
        write_file(&root.join(name), b"what was there before, and longer");
        mode(name, bits);
    }
    for (name, to) in [
        ("link", "real"),
        ("dangling", "made"),
        ("to-dir", "dir"),
        ("loop", "loop"),
    ] {
        symlink(to, root.join(name)).expect("ours");
    }
    fs::hard_link(root.join("old"), root.join("hard")).expect("ours");
    mode("closed", 0o555);
}

const NAMES: [&str; 14] = [
    "new",
    "old",
    "script",
    "secret",
    "read-only",
    "link",
    "dangling",
    "dir",
    "to-dir",
    "loop",
    "hard",
    "none/new",
    "closed/old",
    "closed/new",
];

const ALL: Compare = Compare {
    modes: true,
    times: false,
    follow: false,
};

#[test]
fn a_put_in_one_request_leaves_what_stock_requests_leave() {
    let Some(stock) = testkit::missing::sftp_server() else {
        return testkit::missing::skip("sftp-server", "Debian: openssh-sftp-server");
    };
    let folder = scratch();
    let serve = ours(folder.path());
    let source = folder.path().join("source");
    for flags in [&[][..], &["-p"], &["--inplace"], &["-a", "--fsync"]] {
        for (size, mode) in [(0, 0o600), (5, 0o755), (200_000, 0o444)] {
            write_file(&source, &vec![7; size]);
            let bits = fs::Permissions::from_mode(mode);
            fs::set_permissions(&source, bits).expect("ours");
            for name in NAMES {
                let mut ends = Vec::new();
                for (side, server) in [("stock", &stock), ("ours", &serve)] {
                    let root = folder.path().join(side);
                    targets(&root);
                    let run = Run::new(longhaul())
                        .args(["cp", "-q"])
                        .args(flags)
                        .arg("-D")
                        .arg(server)
                        .arg(&source)
                        .arg(format!("x:{}", root.join(name).display()));
                    let outcome = run.run();
                    ends.push((outcome.success(), outcome.err().lines().count()));
                }
                let (stock, here) = (folder.path().join("stock"), folder.path().join("ours"));
                let differ = differences(&stock, &here, ALL);
                assert!(differ.is_empty(), "{flags:?} {size} {name}: {differ:?}");
                assert_eq!(ends[0], ends[1], "{flags:?} {size} {name}");
                for root in [stock, here] {
                    let open = fs::Permissions::from_mode(0o755);
                    fs::set_permissions(root.join("closed"), open).expect("ours");
                    fs::remove_dir_all(root).expect("ours");
                }
            }
        }
    }
}

#[test]
fn a_tree_comes_and_goes_as_it_is() {
    let folder = scratch();
    let serve = ours(folder.path());
    let tree = folder.path().join("tree");
    Tree::full(3).make(&tree);
    // Deeper than the server walks in one listing.
    let deep = tree.join(["deep"; 40].join("/"));
    fs::create_dir_all(&deep).expect("ours");
    write_file(&deep.join("file"), b"far down");
    for flags in [&["-r"][..], &["-rp"], &["-a"]] {
        let (up, down) = (folder.path().join("up"), folder.path().join("down"));
        let copy = |from: String, to: String| {
            Run::new(longhaul())
                .args(["cp", "-q"])
                .args(flags)
                .arg("-D")
                .arg(&serve)
                .args([from, to])
                .run()
                .expect_code(0);
        };
        copy(tree.display().to_string(), format!("x:{}", up.display()));
        copy(format!("x:{}", up.display()), down.display().to_string());
        let compare = Compare {
            modes: flags != ["-r"],
            times: flags != ["-r"],
            follow: flags != ["-a"],
        };
        assert_same(&tree, &up, compare);
        assert_same(&tree, &down, compare);
        for root in [up, down] {
            fs::remove_dir_all(root).expect("ours");
        }
    }
}
