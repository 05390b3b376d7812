//! Files that other programs mishandle.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use longhaul_tests::{Client, Scene, longhaul, names_in, remote, scratch};
use testkit::peer::PeerBuilder;
use testkit::process::must;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{PeerKind, Seed, missing};

#[test]
fn links_to_folders_are_followed_and_archive_keeps_all_links() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    Tree::full(1).with_folder_links().make(&scene.path("tree"));
    for (from, to, name) in [
        (
            scene.path("tree").into_os_string(),
            scene.remote("up"),
            "up",
        ),
        (
            scene.remote("tree"),
            scene.path("down").into_os_string(),
            "down",
        ),
    ] {
        // The dangling link fails with its name; the rest is copied.
        let outcome = scene.client.cp().args(["-r", "-p"]).arg(from).arg(to).run();
        outcome.expect_code(1).expect_err(&["dangling"]);
        let _ = fs::remove_file(scene.path("tree/links/dangling"));
        let inside = fs::read(scene.path(name).join("links/to-folder/inside"));
        assert_eq!(inside.expect("followed"), b"inside the target folder");
        assert_same(
            &scene.path("tree/odd"),
            &scene.path(name).join("odd"),
            Compare::PRESERVED,
        );
        symlink("nowhere", scene.path("tree/links/dangling")).expect("a symlink");
    }
    scene.copies(&["-a"], scene.path("tree"), scene.remote("archive-up"));
    scene.copies(&["-a"], scene.remote("tree"), scene.path("archive-down"));
    for name in ["archive-up", "archive-down"] {
        let lines =
            testkit::tree::differences(&scene.path("tree"), &scene.path(name), Compare::PRESERVED);
        // Recreating the dangling link has changed that folder's time in the source, not in a copy.
        assert!(lines.is_empty(), "{name}: {}", lines.join("\n"));
    }
}

#[test]
fn a_loop_of_links_ends() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("tree")).expect("our folder");
    write_file(&scene.path("tree/file"), b"content");
    symlink("..", scene.path("tree/up")).expect("a symlink");
    symlink("self", scene.path("tree/self")).expect("a symlink");
    let run = scene
        .client
        .cp()
        .arg("-r")
        .arg(scene.path("tree"))
        .arg(scene.remote("tree/copy"));
    let outcome = run.timeout(Duration::from_secs(40)).run();
    assert!(!outcome.timed_out, "{outcome}");
    assert!(
        scene.client.is_scp() || !outcome.success(),
        "it cannot be whole: {outcome}"
    );
}

#[test]
fn a_target_inside_the_source_ends() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    for (name, up) in [("one", true), ("two", false)] {
        Tree::small_files(1, 20).make(&scene.path(name));
        let inside = format!("{name}/inside");
        let (from, to) = if up {
            (scene.path(name).into_os_string(), scene.remote(&inside))
        } else {
            (scene.remote(name), scene.path(&inside).into_os_string())
        };
        let run = scene.client.cp().arg("-r").arg(from).arg(to);
        let outcome = run.timeout(Duration::from_secs(40)).run();
        if scene.client.is_scp() {
            continue;
        }
        assert!(!outcome.timed_out, "{outcome}");
        let said = outcome.expect_code(1).expect_err(&["copied into itself"]);
        assert_eq!(said.err().lines().count(), 2, "{said}");
        assert!(!scene.path(&inside).exists());
        let names = names_in(&scene.path(name));
        let probes = |name: &std::ffi::OsString| name.to_string_lossy().contains("longhaul");
        assert!(!names.iter().any(probes), "{names:?}");
    }
}

#[test]
fn file_and_folder_of_one_name() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    for folder in ["tree", "tree/clash", "target", "target/tree"] {
        fs::create_dir(scene.path(folder)).expect("our folder");
    }
    write_file(&scene.path("tree/clash/inside"), b"1");
    write_file(&scene.path("tree/other"), b"2");
    write_file(
        &scene.path("target/tree/clash"),
        b"a file where a folder should be",
    );
    let run = scene
        .client
        .cp()
        .arg("-r")
        .arg(scene.path("tree"))
        .arg(scene.remote("target"));
    let outcome = run.run().expect_code(1).expect_err(&["clash"]);
    assert_eq!(
        fs::read(scene.path("target/tree/clash")).expect("it stays"),
        b"a file where a folder should be"
    );
    if !scene.client.is_scp() {
        assert!(
            scene.path("target/tree/other").exists(),
            "the rest goes on: {outcome}"
        );
    }
}

#[test]
fn a_target_folder_that_may_not_be_written() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if missing::is_root() {
        // Root may write anywhere except where the kernel forbids it.
        write_file(&scene.path("file"), b"content");
        for target in ["/proc/file", "/sys/file"] {
            for (from, to) in [
                (
                    scene.path("file").into_os_string(),
                    remote("peer", Path::new(target)),
                ),
                (scene.remote("file"), target.into()),
            ] {
                let outcome = scene.client.cp().arg(from).arg(to).run();
                outcome.expect_code(1).expect_err(&[target]);
            }
        }
        return;
    }
    fs::create_dir(scene.path("closed")).expect("our folder");
    fs::set_permissions(scene.path("closed"), fs::Permissions::from_mode(0o555)).expect("ours");
    write_file(&scene.path("file"), b"content");
    for (from, to) in [
        (
            scene.path("file").into_os_string(),
            scene.remote("closed/copy"),
        ),
        (
            scene.remote("file"),
            scene.path("closed/copy").into_os_string(),
        ),
    ] {
        let outcome = scene.client.cp().arg(from).arg(to).run();
        outcome
            .expect_code(1)
            .expect_err(&["permission denied"])
            .expect_err(&["closed/copy"]);
    }
}

/// Sockets, pipes and devices are named and skipped.
#[test]
fn what_is_no_file_is_named_and_the_rest_copied() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("tree")).expect("our folder");
    write_file(&scene.path("tree/good"), b"content");
    let _socket = std::os::unix::net::UnixListener::bind(scene.path("tree/socket")).expect("ours");
    let run = scene
        .client
        .cp()
        .arg("-r")
        .arg(scene.path("tree"))
        .arg(scene.remote("up"));
    let outcome = run.run().expect_err(&["socket"]);
    assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
    assert_eq!(
        fs::read(scene.path("up/good")).expect("it is there"),
        b"content"
    );
    let run = scene
        .client
        .cp()
        .arg("-r")
        .arg(scene.remote("tree"))
        .arg(scene.path("down"));
    let outcome = run.run().expect_err(&["socket"]);
    assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
    assert_eq!(
        fs::read(scene.path("down/good")).expect("it is there"),
        b"content"
    );
}

/// Shell script with a file size limit: every write beyond it fails, as on a full disk, without
/// special rights. The signal of the limit ends OpenSSH's programs unless it is ignored.
const LIMITED: &str = "trap '' XFSZ; ulimit -f 2000; exec \"$@\"";
const LIMITED_WITH_SIGNAL: &str = "ulimit -f 2000; exec \"$@\"";

#[test]
fn no_room_for_an_upload() {
    let Some(server) = missing::sftp_server() else {
        return;
    };
    let place = scratch();
    let wrapper = place.path().join("limited");
    let script = format!("#!/bin/sh\nset -- {}\n{LIMITED}\n", server.display());
    write_file(&wrapper, script.as_bytes());
    let subsystem = format!("sftp /bin/sh {}", wrapper.display());
    let builder = PeerBuilder::openssh().option("Subsystem", subsystem);
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    fs::create_dir(scene.path("tree")).expect("our folder");
    write_file(&scene.path("tree/big"), &Seed::new(1).bytes(6_000_000));
    write_file(&scene.path("tree/small"), b"content");
    let run = scene
        .client
        .cp()
        .arg("-r")
        .arg(scene.path("tree"))
        .arg(scene.remote("copy"));
    let outcome = run.run().expect_code(1).expect_err(&["big"]);
    assert_eq!(
        fs::read(scene.path("copy/small")).expect("it is there"),
        b"content"
    );
    if !scene.client.is_scp() {
        assert_eq!(names_in(&scene.path("copy")), ["small"], "{outcome}");
    }
}

#[test]
fn no_room_for_a_download() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    fs::create_dir(scene.path("tree")).expect("our folder");
    write_file(&scene.path("tree/big"), &Seed::new(1).bytes(6_000_000));
    write_file(&scene.path("tree/small"), b"content");
    let longhaul_tests::Program::Longhaul(program) = &scene.client.program else {
        return;
    };
    let run = scene
        .client
        .dir
        .run("sh")
        .args(["-c", LIMITED_WITH_SIGNAL, "sh"])
        .arg(program)
        .arg("cp");
    let run = run.arg("-F").arg(scene.client.dir.config()).arg("-r");
    let outcome = run.arg(scene.remote("tree")).arg(scene.path("copy")).run();
    let outcome = outcome.expect_code(1).expect_err(&["big"]);
    assert_eq!(names_in(&scene.path("copy")), ["small"], "{outcome}");
}

#[test]
fn a_full_disk() {
    if !missing::can_unshare_mounts() {
        missing::not_here("only root can make a file system that is full");
        return;
    }
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let longhaul_tests::Program::Longhaul(program) = &scene.client.program else {
        return;
    };
    write_file(&scene.path("big"), &Seed::new(1).bytes(6_000_000));
    fs::create_dir(scene.path("disk")).expect("our folder");
    // The disk exists only for this process and its children; files left on it are printed at the
    // end.
    let script = "mount -t tmpfs -o size=2m none \"$0\" || exit 99; \"$@\"; code=$?; \
                  ls -A \"$0\" | sed 's/^/left: /' >&2; exit $code";
    let run = scene
        .client
        .dir
        .run("unshare")
        .args(["--mount", "sh", "-c", script]);
    let run = run.arg(scene.path("disk")).arg(program).arg("cp").arg("-F");
    let run = run.arg(scene.client.dir.config()).arg(scene.remote("big"));
    let outcome = run.arg(scene.path("disk/copy")).run().expect_code(1);
    let outcome = outcome
        .expect_err(&["no space left"])
        .expect_err(&["disk/copy", "big"]);
    assert!(!outcome.err().contains("left: "), "{outcome}");
}

/// A sparse file whose length exceeds 32 bits, on a file system in memory.
#[test]
fn a_sparse_file_over_4_gib() {
    const LEN: u64 = (4 << 30) + 12_345;
    let memory = Path::new("/dev/shm");
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let room = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    if room < LEN + (1 << 30) {
        missing::not_here("/dev/shm has no room for 5 GiB");
        return;
    }
    let place = tempfile::Builder::new()
        .prefix("longhaul-sparse-")
        .tempdir_in(memory);
    let place = place.expect("a folder in memory");
    let (source, copy) = (place.path().join("source"), place.path().join("copy"));
    let marks = [0, 1 << 20, (2 << 30) - 3, (4 << 30) - 3, LEN - 6];
    let file = File::create(&source).expect("our file");
    file.set_len(LEN).expect("our file");
    for mark in marks {
        file.write_all_at(b"marked", mark).expect("our file");
    }
    let run = scene.client.cp().arg(&source).arg(remote("peer", &copy));
    run.timeout(Duration::from_secs(240)).run().expect_code(0);
    let copied = File::open(&copy).expect("it is there");
    assert_eq!(copied.metadata().expect("our file").len(), LEN);
    for mark in marks {
        let mut bytes = [0; 6];
        copied.read_exact_at(&mut bytes, mark).expect("our file");
        assert_eq!(&bytes, b"marked", "at {mark}");
        let mut bytes = [1; 64];
        copied
            .read_exact_at(&mut bytes, (3 << 30) + mark / 8)
            .expect("our file");
        assert_eq!(bytes, [0; 64]);
    }
}

/// Bug: `cp a file/` replaced the file.
#[test]
fn a_file_that_is_named_as_a_directory_is_not_replaced() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("source"), b"new");
    write_file(&scene.path("file"), b"kept");
    let (here, there) = (
        scene.path("source").into_os_string(),
        scene.remote("source"),
    );
    let targets = [scene.path("file").into_os_string(), scene.remote("file")];
    for (source, target) in [
        (&here, &targets[0]),
        (&here, &targets[1]),
        (&there, &targets[0]),
        (&there, &targets[1]),
    ] {
        for end in ["/", "//", "/."] {
            let mut named = target.clone();
            named.push(end);
            let outcome = scene.client.cp().arg(source).arg(&named).run();
            let outcome = outcome.expect_code(1);
            let said = outcome.err();
            let why = ["not a directory", "no such directory"];
            assert!(why.iter().any(|why| said.contains(why)), "{outcome}");
            assert_eq!(fs::read(scene.path("file")).expect("ours"), b"kept");
        }
    }
}

/// Bug: the server opened the FIFO, and waited for ever for somebody to read from it.
#[test]
fn a_fifo_below_the_target_is_replaced() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        let (from, to) = (scene.path("from"), scene.path("to"));
        fs::create_dir(&from).expect("our folder");
        fs::create_dir(&to).expect("our folder");
        write_file(&from.join("file"), b"content");
        let here = |path: &Path| path.as_os_str().to_owned();
        let there = |path: &Path| remote("peer", path);
        for flags in [&["-r"][..], &["-r", "--inplace"], &[]] {
            for (source, target) in [
                (here(&from.join(".")), there(&to)),
                (there(&from.join(".")), here(&to)),
                (there(&from.join(".")), there(&to)),
            ] {
                let _ = fs::remove_file(to.join("file"));
                must("mkfifo", &[to.join("file").as_ref()]);
                let run = match flags.is_empty() {
                    true => crate::sync::sync(&scene, &[]),
                    false => scene.client.cp().args(flags),
                };
                run.arg(source).arg(target).run().expect_code(0);
                let meta = fs::symlink_metadata(to.join("file")).expect("it is there");
                assert!(meta.is_file(), "{kind:?} {flags:?}");
                assert_same(&from, &to, Compare::CONTENT);
            }
        }
    }
}

/// Bug: a file of this name was taken for a directory that does not exist.
#[test]
fn a_file_may_be_called_tilde() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        let from = scene.path("from");
        fs::create_dir_all(from.join("sub")).expect("our folder");
        write_file(&from.join("~"), b"content");
        write_file(&from.join("sub/~"), b"more");
        let here = |name: &str| scene.path(name).into_os_string();
        let there = |name: &str| scene.remote(name);
        for (at, (source, target)) in [
            (here("from"), there("to")),
            (there("from"), here("to")),
            (there("from"), there("to")),
        ]
        .into_iter()
        .enumerate()
        {
            for flags in [&["-r"][..], &[]] {
                let run = match flags.is_empty() {
                    true => crate::sync::sync(&scene, &[]),
                    false => scene.client.cp().args(flags),
                };
                run.arg(&source).arg(&target).run().expect_code(0);
                assert_same(&from, &scene.path("to"), Compare::CONTENT);
                fs::remove_dir_all(scene.path("to")).expect("ours");
            }
            let single = scene.client.cp().arg(here("from/~"));
            if at == 0 {
                single.arg(there("./~")).run().expect_code(0);
                assert_eq!(fs::read(scene.path("~")).expect("it is there"), b"content");
            }
        }
    }
}

/// Bug: sftp-server waited for ever for a reader of the FIFO, or failed at its first seek.
#[test]
fn a_fifo_as_the_target_is_refused_where_the_server_cannot_write_it() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    let (fifo, link) = (scene.path("fifo"), scene.path("link"));
    must("mkfifo", &[fifo.as_ref()]);
    symlink(&fifo, &link).expect("our symlink");
    for target in ["fifo", "link"] {
        for source in [scene.path("file").into_os_string(), scene.remote("file")] {
            let run = scene.client.cp().arg(source).arg(scene.remote(target));
            let outcome = run.run().expect_code(1);
            outcome.expect_err(&[&format!("{target}: it is a FIFO")]);
        }
    }
}

pub(crate) fn ways(scene: &Scene, up: bool) -> (std::ffi::OsString, std::ffi::OsString) {
    if up {
        (scene.path("file").into_os_string(), scene.remote("copy"))
    } else {
        (scene.remote("file"), scene.path("copy").into_os_string())
    }
}

/// The final name gets a new file: a process that has the old one open keeps its content.
#[test]
fn the_final_name_appears_at_once_and_inplace_writes_into_the_file() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(1).bytes(100_000));
    for up in [true, false] {
        for inplace in [false, true] {
            write_file(&scene.path("copy"), b"before");
            let before = fs::metadata(scene.path("copy")).expect("our file").ino();
            let (from, to) = ways(&scene, up);
            let flags: &[&str] = if inplace { &["--inplace"] } else { &[] };
            scene.copies(flags, from, to);
            let after = fs::metadata(scene.path("copy")).expect("our file").ino();
            assert_eq!(before == after, inplace, "up {up}, inplace {inplace}");
            assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
        }
    }
    assert_eq!(
        names_in(scene.scratch.path()),
        ["copy", "file"],
        "no temporary is left"
    );
}

#[test]
fn a_link_that_leads_nowhere_stays_and_what_it_leads_to_is_made() {
    let ours = PeerBuilder::longhaul(longhaul(), [""; 0]);
    for builder in [PeerBuilder::new(PeerKind::OpenSsh), ours] {
        let Some(scene) = Scene::with(builder) else {
            continue;
        };
        let content = Seed::new(1).bytes(20_000_000);
        fs::create_dir(scene.path("to")).expect("our folder");
        for len in [10, 300_000, content.len()] {
            write_file(&scene.path("file"), &content[..len]);
            for up in [true, false] {
                let _ = fs::remove_file(scene.path("copy"));
                let _ = fs::remove_file(scene.path("to/made"));
                symlink("to/made", scene.path("copy")).expect("a symlink");
                let (from, to) = ways(&scene, up);
                scene.copies(&[], from, to);
                let link = fs::symlink_metadata(scene.path("copy")).expect("it is there");
                assert!(link.is_symlink(), "up {up}, {len}");
                let made = scene.path("to/made");
                assert_same(&scene.path("file"), &made, Compare::CONTENT);
            }
        }
        assert_eq!(names_in(&scene.path("to")), ["made"]);
    }
}

#[test]
fn what_is_written_in_place_is_told_as_that() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"content");
    for up in [true, false] {
        for inplace in [true, false] {
            let (from, to) = ways(&scene, up);
            let flags: &[&str] = if inplace { &["--inplace"] } else { &[] };
            let cp = scene.client.cp().arg("--json").args(flags);
            let outcome = cp.arg(from).arg(to).run().expect_code(0);
            let told = format!("\"in_place\":{inplace},");
            let state = if inplace { "closed" } else { "renamed" };
            for said in [told, format!("\"state\":\"{state}\"")] {
                assert!(outcome.out().contains(&said), "up {up}: {outcome}");
            }
        }
    }
}

/// A replaced file keeps its owner and loses setuid. Before this, it became the copier's, and
/// setuid ran it with the copier's rights.
#[test]
fn a_file_that_is_replaced_stays_its_owners_and_runs_as_nobody() {
    if !missing::is_root() {
        missing::not_here("only root has files of others");
        return;
    }
    let ours = PeerBuilder::longhaul(longhaul(), [""; 0]);
    for builder in [PeerBuilder::new(PeerKind::OpenSsh), ours] {
        let Some(scene) = Scene::with(builder) else {
            continue;
        };
        if scene.client.is_scp() {
            return;
        }
        for (len, flags) in [
            (10, &[][..]),
            (10, &["-p"]),
            (10, &["--inplace"]),
            (300_000, &["-p"]),
            (9_000_000, &[]),
            (9_000_000, &["--delta"]),
        ] {
            write_file(&scene.path("file"), &Seed::new(1).bytes(len));
            for up in [true, false] {
                write_file(&scene.path("copy"), &Seed::new(2).bytes(len));
                chown(scene.path("copy"), Some(1234), Some(4321)).expect("as root");
                let mode = fs::Permissions::from_mode(0o4755);
                fs::set_permissions(scene.path("copy"), mode).expect("ours");
                let (from, to) = ways(&scene, up);
                let run = scene.client.cp().args(flags).arg(from).arg(to);
                let outcome = run.run().expect_code(0);
                let meta = fs::metadata(scene.path("copy")).expect("it is there");
                let said = format!("{flags:?} {len} up {up}\n{outcome}");
                assert_eq!((meta.uid(), meta.gid()), (1234, 4321), "{said}");
                let runs = meta.mode() & 0o6000 != 0;
                // Root's writes keep the setuid bit, as with scp.
                assert!(!runs || flags == ["--inplace"], "{said}");
                assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
                assert!(!outcome.err().contains("belonged"), "{said}");
            }
        }
    }
}

/// In place, the file would be emptied before it is read.
#[test]
fn a_file_is_not_copied_onto_itself() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    write_file(&path("a"), b"content");
    symlink("a", path("link")).expect("a symlink");
    fs::hard_link(path("a"), path("hard")).expect("a link");
    for flags in [&[][..], &["--inplace"]] {
        for (from, to) in [("a", "a"), ("a", "link"), ("link", "a"), ("a", "hard")] {
            let run = client.cp().args(flags).arg(path(from)).arg(path(to));
            let outcome = run.run().expect_code(1);
            outcome.expect_err(&["are the same file"]);
            assert_eq!(fs::read(path("a")).expect("it is there"), b"content");
        }
    }
}

#[test]
fn times_that_sftp_does_not_have_are_told_of() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let file = File::create(scene.path("file")).expect("ours");
    for (at, told) in [
        (SystemTime::UNIX_EPOCH, false),
        (SystemTime::UNIX_EPOCH - Duration::from_secs(86_400), true),
        (SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32), true),
    ] {
        file.set_modified(at).expect("ours");
        let cp = scene.client.cp().arg("-p").arg(scene.path("file"));
        let outcome = cp.arg(scene.remote("copy")).run().expect_code(0);
        let said = outcome.err().contains("not kept: times (");
        assert_eq!(said, told, "{outcome}");
    }
}

#[test]
fn targets_that_are_no_files_are_written_into() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    scene.copies(&[], scene.remote("file"), "/dev/null");
    scene.copies(&[], scene.path("file"), "peer:/dev/null");
    let null = fs::metadata("/dev/null").expect("it is still there");
    assert!(!null.is_file(), "/dev/null was replaced by a file");
}

#[test]
fn durable_when_asked() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(1).bytes(1_000_000));
    for up in [true, false] {
        let _ = fs::remove_file(scene.path("copy"));
        let (from, to) = ways(&scene, up);
        let outcome = scene
            .client
            .cp()
            .arg("--fsync")
            .arg(from)
            .arg(to)
            .run()
            .expect_code(0);
        assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
        drop(outcome);
    }
}

#[test]
fn many_small_files() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    Tree::small_files(9, 1500).make(&scene.path("tree"));
    scene.copies(&["-r", "-p"], scene.path("tree"), scene.remote("up"));
    assert_same(&scene.path("tree"), &scene.path("up"), Compare::PRESERVED);
    scene.copies(&["-r", "-p"], scene.remote("tree"), scene.path("down"));
    let compare = if scene.client.is_scp() {
        Compare::MODES
    } else {
        Compare::PRESERVED
    };
    assert_same(&scene.path("tree"), &scene.path("down"), compare);
}

/// scp omits these bits from `-p` in both directions. `-a` keeps them on the user's own files; a
/// server must not make a download setuid unless a flag permits it.
#[test]
fn setuid_and_sticky_bits_of_ones_own_are_kept_by_archive_alone() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our file");
    };
    fs::create_dir(scene.path("tree")).expect("our folder");
    write_file(&scene.path("tree/file"), b"content");
    set(&scene.path("tree/file"), 0o6755);
    set(&scene.path("tree"), 0o3755);
    let (plain, special) = ((0o755, 0o1755), (0o6755, 0o3755));
    for (name, flags, own, servers) in [
        ("preserved", &["-r", "-p"][..], plain, plain),
        ("archived", &["-a"], special, plain),
        ("named", &["-a", "--preserve-setuid"], special, special),
    ] {
        if scene.client.is_scp() && flags[0] == "-a" {
            continue;
        }
        let [up, down, here] = ["up", "down", "here"].map(|way| format!("{name}-{way}"));
        scene.copies(flags, scene.path("tree"), scene.remote(&up));
        scene.copies(flags, scene.remote("tree"), scene.path(&down));
        scene.copies(flags, scene.path("tree"), scene.path(&here));
        for (copy, (file, folder)) in [(up, own), (down, servers), (here, own)] {
            assert_eq!(mode(&scene.path(&copy).join("file")), file, "{copy}");
            assert_eq!(mode(&scene.path(&copy)), folder, "{copy}");
        }
    }
}

/// Remembered facts about a target may become outdated.
#[test]
fn a_place_that_was_a_file_may_become_a_directory_and_a_file_again() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let place = scene.path("place");
    for (round, text) in ["one", "two", "three", "four", "five"].iter().enumerate() {
        let directory = round == 2 || round == 3;
        match round {
            2 => {
                fs::remove_file(&place).expect("ours");
                fs::create_dir(&place).expect("ours");
            }
            4 => fs::remove_dir_all(&place).expect("ours"),
            _ => {}
        }
        write_file(&scene.path("file"), text.as_bytes());
        let cp = scene.client.cp().arg(scene.path("file"));
        cp.arg(scene.remote("place")).run().expect_code(0);
        let there = match directory {
            true => place.join("file"),
            false => place.clone(),
        };
        assert_eq!(fs::read(there).expect("it is there"), text.as_bytes());
        if directory {
            assert_eq!(names_in(&place), ["file"]);
        }
    }
}
