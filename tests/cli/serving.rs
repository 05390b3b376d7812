//! `longhaul serve --stdio` behind a real sshd, with several clients.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use longhaul_tests::{Scene, longhaul, names_in};
use testkit::peer::PeerBuilder;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Run, Seed};

/// Starts an sshd whose SFTP server is longhaul with `flags`.
pub(crate) fn served(flags: &str) -> Option<Scene> {
    let subsystem = format!("sftp {} serve --stdio {flags}", longhaul().display());
    let scene = Scene::with(PeerBuilder::openssh().option("Subsystem", subsystem))?;
    (!scene.client.is_scp()).then_some(scene)
}

/// Starts an sshd whose SFTP server serves a folder of its own, which is returned.
fn served_beneath(flags: &str) -> Option<(Scene, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a folder");
    let scene = served(&format!("--root {} {flags}", folder.path().display()))?;
    Some((scene, folder))
}

/// Prepares OpenSSH's client for the scene's server.
pub(crate) fn openssh(scene: &Scene, program: &str) -> Run {
    Run::new(program).arg("-F").arg(scene.client.dir.config())
}

/// Runs `sftp` with these commands; it continues after failures.
pub(crate) fn sftp(scene: &Scene, commands: &[&str]) -> testkit::Outcome {
    let batch = scene.path("batch");
    let lines: Vec<String> = commands.iter().map(|line| format!("-{line}\n")).collect();
    write_file(&batch, lines.concat().as_bytes());
    openssh(scene, "sftp")
        .arg("-b")
        .arg(&batch)
        .arg("peer")
        .run()
}

/// Compares everything that `-a` preserves.
const ALL: Compare = Compare {
    modes: true,
    times: true,
    follow: false,
};

#[test]
fn trees_go_there_and_come_back_as_they_are() {
    let Some(scene) = served("") else { return };
    a_tree_there_and_back(&scene);
}

/// Copies a tree up and down with everything that `-a` preserves.
#[track_caller]
pub(crate) fn a_tree_there_and_back(scene: &Scene) {
    Tree::full(1).make(&scene.path("tree"));
    scene.copies(&["-a"], scene.path("tree"), scene.remote("up"));
    scene.copies(&["-a"], scene.remote("up"), scene.path("down"));
    for name in ["up", "down"] {
        assert_same(&scene.path("tree"), &scene.path(name), ALL);
    }
}

#[test]
fn openssh_clients_find_what_they_expect() {
    let Some((scene, root)) = served_beneath("") else {
        return;
    };
    let content = Seed::new(1).bytes(3_000_000);
    write_file(&scene.path("file"), &content);
    let file = scene.path("file").display().to_string();
    let back = scene.path("back").display().to_string();
    let outcome = sftp(
        &scene,
        &[
            &format!("put {file} name"),
            "mkdir dir",
            "rename name dir/name",
            "symlink dir/name link",
            "ln dir/name hard",
            "chmod 600 hard",
            "cp hard copied",
            "df",
            "ls -la",
            &format!("get link {back}"),
            "rmdir dir",
            "rm hard",
            "pwd",
        ],
    );
    let outcome = outcome.expect_code(0);
    assert_eq!(fs::read(&back).expect("it came back"), content, "{outcome}");
    assert_eq!(
        fs::read(root.path().join("copied")).expect("copied there"),
        content
    );
    assert_eq!(names_in(root.path()), ["copied", "dir", "link"]);
    let mode = fs::metadata(root.path().join("dir/name"))
        .expect("it")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(text.contains("Remote working directory: /\n"), "{text}");
    let listed = |l: &str| l.starts_with("lrwxrwxrwx") && l.ends_with(" link");
    assert!(text.lines().any(listed), "{text}");
    let refused = "remote rmdir \"/dir\": Failure";
    assert!(outcome.err().contains(refused), "{outcome}");
    // scp uses SFTP as well.
    let outcome = openssh(&scene, "scp").arg(&file).arg("peer:/by-scp").run();
    outcome.expect_code(0);
    assert_eq!(fs::read(root.path().join("by-scp")).expect("it"), content);
}

#[test]
fn nothing_leads_out_of_a_root() {
    let Some((scene, root)) = served_beneath("") else {
        return;
    };
    let secret = scene.path("secret");
    write_file(&secret, b"not for you");
    let outside = scene.path("outside");
    fs::create_dir(&outside).expect("our folder");
    symlink(&secret, root.path().join("to-file")).expect("a link");
    symlink(&outside, root.path().join("to-folder")).expect("a link");
    symlink("../../../../../..", root.path().join("up")).expect("a link");
    symlink("/proc/self/root", root.path().join("magic")).expect("a link");
    write_file(&root.path().join("own"), b"own");
    let (secret, outside) = (secret.display().to_string(), outside.display().to_string());
    let own = root.path().join("own").display().to_string();
    let got = scene.path("got").display().to_string();
    for path in [
        "to-file",
        &secret,
        &format!("up{secret}"),
        &format!("magic{secret}"),
        &format!("/..{secret}"),
        &format!("../../../../../../..{secret}"),
        "/proc/self/environ",
    ] {
        sftp(&scene, &[&format!("get {path} {got}")]);
        assert!(!Path::new(&got).exists(), "{path} came out");
    }
    let commands: Vec<String> = ["to-folder", outside.as_str(), &format!("up{outside}")]
        .iter()
        .flat_map(|folder| {
            [
                format!("put {own} {folder}/new"),
                format!("mkdir {folder}/dir"),
                format!("symlink x {folder}/link"),
                format!("rename own {folder}/moved"),
                format!("ln own {folder}/linked"),
            ]
        })
        .chain([
            format!("rm up{secret}"),
            format!("chmod 777 up{secret}"),
            "rm ..".to_owned(),
            "rename own ..".to_owned(),
            "rmdir /".to_owned(),
        ])
        .collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    sftp(&scene, &commands);
    assert!(names_in(Path::new(&outside)).is_empty());
    assert_eq!(
        fs::read(&secret).expect("it is still there"),
        b"not for you"
    );
    let mode = fs::metadata(&secret).expect("it").permissions().mode();
    assert_ne!(mode & 0o777, 0o777);
    assert_eq!(fs::read(own).expect("it is still there"), b"own");
}

#[test]
fn a_drop_box_takes_new_files_and_tells_and_gives_nothing() {
    let Some((scene, root)) = served_beneath("--write-only") else {
        return;
    };
    write_file(&root.path().join("theirs"), b"theirs");
    fs::create_dir(root.path().join("dir")).expect("our folder");
    Tree::full(2).make(&scene.path("tree"));
    write_file(&scene.path("file"), b"mine");
    let cp = |from: &str, to: &str| {
        let run = scene.client.cp().arg("-r").arg(scene.path(from));
        run.arg(format!("peer:{to}")).run()
    };
    cp("file", "/new").expect_code(0);
    cp("tree", "/dir").expect_code(0);
    let follow = Compare {
        modes: false,
        times: false,
        follow: true,
    };
    assert_same(&scene.path("tree"), &root.path().join("dir/tree"), follow);
    // One server process for each channel, without shared state.
    write_file(&scene.path("large"), &Seed::new(3).bytes(24 << 20));
    let several = scene.client.cp().args(["--connections=2", "--channels=2"]);
    let several = several.arg(scene.path("large")).arg("peer:/large").run();
    let several = several.expect_code(0);
    let there = fs::read(root.path().join("large")).expect("it is there");
    let here = fs::read(scene.path("large")).expect("ours");
    assert!(there == here, "{several}");
    // Neither existing files nor those of another connection are replaced.
    for name in ["theirs", "new"] {
        let before = fs::read(root.path().join(name)).expect("it");
        write_file(&scene.path("file"), b"other");
        cp("file", &format!("/{name}")).expect_code(1);
        assert_eq!(fs::read(root.path().join(name)).expect("it"), before);
    }
    let got = scene.path("got").display().to_string();
    let outcome = sftp(
        &scene,
        &[
            "ls",
            &format!("get theirs {got}"),
            "rm theirs",
            "rename theirs mine",
            "ln theirs mine",
            "chmod 777 theirs",
            "ls dir",
        ],
    );
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(!said.lines().any(|line| line.contains("tree")), "{said}");
    assert!(!Path::new(&got).exists());
    assert_eq!(names_in(root.path()), ["dir", "large", "new", "theirs"]);
}

#[test]
fn what_is_served_read_only_stays_as_it_is() {
    let Some((scene, root)) = served_beneath("--read-only") else {
        return;
    };
    Tree::full(3).make(&root.path().join("tree"));
    write_file(&scene.path("file"), b"new");
    let outcome = scene
        .client
        .cp()
        .args(["-a", "peer:/tree"])
        .arg(scene.path("got"))
        .run();
    outcome.expect_code(0);
    assert_same(&root.path().join("tree"), &scene.path("got"), ALL);
    let before = names_in(&root.path().join("tree"));
    let outcome = scene
        .client
        .cp()
        .arg(scene.path("file"))
        .arg("peer:/tree/file")
        .run();
    let outcome = outcome.expect_code(1);
    assert!(outcome.err().contains("read-only"), "{outcome}");
    sftp(
        &scene,
        &[
            "rm tree/*",
            "mkdir tree/x",
            "rename tree t",
            "symlink a tree/b",
        ],
    );
    assert_eq!(names_in(&root.path().join("tree")), before);
    assert_eq!(names_in(root.path()), ["tree"]);
}

/// CVE-2017-15906: in sftp-server's read-only mode, an OPEN for reading could create or truncate a
/// file.
#[test]
fn cve_2017_15906_an_open_for_reading_creates_and_cuts_nothing_read_only() {
    const READ: u32 = 1;
    const CREAT: u32 = 8;
    const TRUNC: u32 = 16;
    const EXCL: u32 = 32;
    let root = tempfile::tempdir().expect("a folder");
    write_file(&root.path().join("there"), b"content");
    let message = |kind: u8, rest: &[u8]| {
        let length = u32::try_from(rest.len() + 1).expect("short");
        [&length.to_be_bytes()[..], &[kind], rest].concat()
    };
    let mut input = message(1, &3_u32.to_be_bytes());
    let flags = [CREAT, TRUNC, CREAT | TRUNC, CREAT | EXCL];
    for (at, more) in flags.into_iter().enumerate() {
        for name in ["there", "new"] {
            let mut open = u32::try_from(at).expect("short").to_be_bytes().to_vec();
            let length = u32::try_from(name.len()).expect("short");
            open.extend(length.to_be_bytes());
            open.extend_from_slice(name.as_bytes());
            open.extend((READ | more).to_be_bytes());
            open.extend(0_u32.to_be_bytes());
            input.extend(message(3, &open));
        }
    }
    let run = Run::new(longhaul()).args(["serve", "--stdio", "--read-only", "--root"]);
    let outcome = run.arg(root.path()).stdin(input).run();
    assert!(!outcome.stdout.is_empty(), "it has answered: {outcome}");
    assert_eq!(names_in(root.path()), ["there"], "{outcome}");
    let there = fs::read(root.path().join("there")).expect("ours");
    assert_eq!(there, b"content", "{outcome}");
}

#[test]
fn a_root_that_is_none_is_one_sentence() {
    let outcome = Run::new(longhaul())
        .args(["serve", "--stdio", "--root", "/nowhere/at/all"])
        .run();
    let outcome = outcome.expect_code(1);
    let wanted = "error: cannot serve /nowhere/at/all: No such file or directory";
    assert!(outcome.err().starts_with(wanted), "{outcome}");
    let outcome = Run::new(longhaul()).arg("serve").run();
    outcome.expect_code(2).expect_err(&["--stdio"]);
}
