//! `longhaul serve --listen --root` with folders that move, links of /proc, and removed roots.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul, names_in};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use testkit::Running;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;

use crate::accounts::Machine;
use crate::resumed::is_scp;
use crate::serving::{openssh, sftp};

const INSIDE: &[u8] = b"what is inside";
const OUTSIDE: &[u8] = b"not for you";
/// Duration of the race between clients and moving folders.
const RACE: Duration = Duration::from_secs(4);

/// A scene whose server serves `root` as `/`.
pub(crate) fn beneath(root: &Path) -> Scene {
    let flags = ["--root".to_owned(), root.display().to_string()];
    Scene::with(PeerBuilder::longhaul(longhaul(), flags)).expect("longhaul is there")
}

/// A folder and a symlink to one outside the root change places all the time.
#[test]
fn what_goes_through_a_folder_that_becomes_a_symlink_stays_beneath_the_root() {
    if is_scp() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    let (dir, link) = (root.join("dir"), root.join("link"));
    fs::create_dir_all(&dir).expect("ours");
    fs::create_dir(&outside).expect("ours");
    write_file(&dir.join("file"), INSIDE);
    write_file(&outside.join("file"), OUTSIDE);
    write_file(&outside.join("of-others"), OUTSIDE);
    symlink("../outside", &link).expect("a link");
    let scene = beneath(&root);
    let mine = scene.path("mine");
    write_file(&mine, b"mine");
    let (mine, got) = (mine.display().to_string(), scene.path("got"));
    let tree = scene.path("tree");
    let mut commands = vec!["ls dir".to_owned()];
    for n in 0..40 {
        commands.extend([
            format!("get dir/file {}", got.join(n.to_string()).display()),
            format!("put {mine} dir/new{n}"),
            format!("mkdir dir/folder{n}"),
            "chmod 777 dir/file".to_owned(),
            format!("rename dir/new{n} dir/file{n}"),
            format!("rm dir/file{n}"),
            format!("rmdir dir/folder{n}"),
        ]);
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let (done, mut inside) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).expect("ours");
            }
        });
        let until = Instant::now() + RACE;
        // Failures are checked after the race.
        let mut leaked = Vec::new();
        while Instant::now() < until && leaked.is_empty() {
            fs::create_dir(&got).expect("ours");
            let said = sftp(&scene, &commands).out();
            if said.contains("of-others") {
                leaked.push(said);
            }
            // longhaul's client requests whole trees and files.
            for (from, to) in [
                ("peer:/dir", tree.as_path()),
                (&mine, Path::new("peer:/dir/tree")),
            ] {
                scene.client.cp().arg("-r").arg(from).arg(to).run();
            }
            for folder in [&got, &tree] {
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let content = fs::read(entry.path()).unwrap_or_default();
                    inside += u32::from(content == INSIDE);
                    if content == OUTSIDE {
                        leaked.push(format!("{:?} came out", entry.file_name()));
                    }
                }
                if folder.exists() {
                    fs::remove_dir_all(folder).expect("ours");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(leaked.is_empty(), "{leaked:?}");
    });
    assert!(inside > 0, "nothing ever came through");
    assert_eq!(names_in(&outside), ["file", "of-others"]);
    assert_eq!(fs::read(outside.join("file")).expect("it"), OUTSIDE);
    let mode = fs::metadata(outside.join("file"))
        .expect("it")
        .permissions();
    assert_ne!(mode.mode() & 0o777, 0o777);
}

/// If the root is `/`, it contains /proc.
#[test]
fn links_of_proc_lead_nowhere_even_where_everything_is_served() {
    if is_scp() {
        return;
    }
    let scene = beneath(Path::new("/"));
    write_file(&scene.path("file"), INSIDE);
    symlink("/proc/self/root", scene.path("link")).expect("a link");
    let (file, got) = (scene.path("file"), scene.path("got"));
    let (file, folder) = (file.display(), scene.scratch.path().display());
    let get = |path: &str| {
        sftp(&scene, &[&format!("get {path} {}", got.display())]);
        // longhaul's client reads it with a request of its own.
        let run = scene.client.cp().arg(format!("peer:{path}"));
        run.arg(scene.path("got-too")).run();
        let came = [&got, &scene.path("got-too")].map(|path| fs::remove_file(path).is_ok());
        assert_eq!(came[0], came[1], "{path}");
        came[0]
    };
    assert!(get(&file.to_string()), "what is no such link");
    let pid = scene.peer.pid();
    for path in [
        format!("/proc/self/root{file}"),
        format!("/proc/{pid}/root{file}"),
        format!("{folder}/link{file}"),
        "/proc/self/exe".to_owned(),
        "/proc/self/cwd/Cargo.toml".to_owned(),
        "/proc/self/fd/0".to_owned(),
        "/proc/self/fd/1".to_owned(),
    ] {
        assert!(!get(&path), "{path}");
    }
    let put = format!("put {file} /proc/self/root{folder}/planted");
    sftp(&scene, &[&put, &format!("ls /proc/self/root{folder}")]);
    assert!(!scene.path("planted").exists());
}

/// If the root vanishes, an open session gets "No such file" for each file, and a new client gets the
/// reason.
#[test]
fn a_root_that_vanishes_is_said_to_whoever_is_there_and_whoever_comes() {
    for user in [None, Some("alice")] {
        let base = tempfile::tempdir().expect("a folder");
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(base.path(), all).expect("ours");
        let root = base.path().join("root");
        fs::create_dir(&root).expect("ours");
        write_file(&root.join("file"), INSIDE);
        chown(&root, Some(54_001), Some(54_001)).expect("root may");
        let flags = ["--root", &root.display().to_string()];
        let Some(machine) = Machine::start_as(user, &flags) else {
            return;
        };
        let session = || machine.sftp_with(&machine.key, "alice", &[]).in_terminal();
        let mut there = session().spawn();
        assert!(there.shows("sftp>"), "{}", machine.daemon.log());
        fs::remove_dir_all(&root).expect("ours");
        let mine = base.path().join("mine");
        write_file(&mine, b"mine");
        let ends = |there: &mut Running, command: &str, words: &str| {
            there.type_in(&format!("{command}\n"));
            assert!(there.shows(words), "{command}");
        };
        ends(&mut there, "get file", "\"/file\" not found");
        let put = format!("put {} new", mine.display());
        ends(&mut there, &put, "dest open \"/new\": No such file");
        // The session continues nevertheless.
        ends(&mut there, "pwd", "Remote working directory: /");
        let outcome = machine.sftp_with(&machine.key, "alice", &["-b", "-"]);
        let outcome = outcome.stdin("pwd\n").run().expect_code(255);
        let sentence = format!("cannot serve {}: No such file", root.display());
        assert!(outcome.err().contains(&sentence), "{outcome}");
        testkit::wait::until(
            Duration::from_secs(20),
            || machine.daemon.log().contains(&sentence),
            || machine.daemon.log(),
        );
        // Once the root exists again, it is served to new clients.
        fs::create_dir(&root).expect("ours");
        chown(&root, Some(54_001), Some(54_001)).expect("root may");
        let run = machine.sftp_with(&machine.key, "alice", &["-b", "-"]);
        run.stdin("pwd\n").run().expect_code(0);
        drop(there);
    }
}

/// Neither a listing nor a lookup by name in a drop box reveals files of others.
#[test]
fn a_drop_box_names_nobodys_files() {
    let root = tempfile::tempdir().expect("a folder");
    write_file(&root.path().join("of-others"), OUTSIDE);
    fs::create_dir(root.path().join("folder-of-others")).expect("ours");
    write_file(&root.path().join("folder-of-others/deep"), OUTSIDE);
    let flags = ["--write-only", "--root"].map(str::to_owned);
    let flags = flags.into_iter().chain([root.path().display().to_string()]);
    let scene = Scene::with(PeerBuilder::longhaul(longhaul(), flags)).expect("longhaul is there");
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"mine");
    let file = scene.path("file").display().to_string();
    let own = format!("put {file} mine");
    let outcome = sftp(
        &scene,
        &[
            &own,
            "ls",
            "ls -la",
            "ls -la /",
            "ls folder-of-others",
            "ls *",
            "ls of*",
            "df",
        ],
    );
    for name in ["of-others", "folder-of-others", "deep"] {
        let told = outcome.out();
        let told = told.lines().filter(|line| !line.starts_with("sftp>"));
        let told: Vec<&str> = told.filter(|line| line.contains(name)).collect();
        assert!(told.is_empty(), "{outcome}");
    }
    let got = scene.path("got");
    let run = scene.client.cp().args(["-r", "peer:/"]).arg(&got).run();
    assert!(!run.success(), "{run}");
    assert!(!run.out().contains("of-others") && !run.err().contains("of-others"));
    assert!(!got.exists() || names_in(&got).is_empty());
    let listed = openssh(&scene, "scp")
        .args(["-r", "peer:/."])
        .arg(&got)
        .run();
    assert!(!listed.success(), "{listed}");
    assert!(!got.exists() || names_in(&got).is_empty());
    assert_eq!(
        names_in(root.path()),
        ["folder-of-others", "mine", "of-others"]
    );
}
