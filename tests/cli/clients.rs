//! `longhaul serve --listen` with programs for mounting and synchronizing.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul};
use testkit::peer::PeerBuilder;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Run, Seed, missing};

fn listening() -> Scene {
    with_flags(&[])
}

fn with_flags(flags: &[&str]) -> Scene {
    let flags = flags.iter().copied();
    Scene::with(PeerBuilder::longhaul(longhaul(), flags)).expect("longhaul is there")
}

/// Reports if a program is installed; otherwise reports the skip.
fn has(program: &str) -> bool {
    let found = missing::find_program(program).is_some();
    if !found {
        missing::skip(program, "run scripts/setup-tests.sh");
    }
    found
}

#[test]
fn lftp_mirrors_a_tree_there_and_back() {
    if !has("lftp") {
        return;
    }
    let scene = listening();
    Tree::full(3).make(&scene.path("tree"));
    let config = scene.client.dir.config();
    let commands = format!(
        "set sftp:connect-program 'ssh -a -x -F {config}'; set cmd:fail-exit yes; \
         open sftp://peer; mirror -R {tree} {up}; mirror {up} {back}; bye",
        config = config.display(),
        tree = scene.path("tree").display(),
        up = scene.path("up").display(),
        back = scene.path("back").display(),
    );
    let run = Run::new("lftp").args(["-c", &commands]);
    run.env("HOME", scene.scratch.path()).run().expect_code(0);
    for copy in ["up", "back"] {
        assert_same(&scene.path("tree"), &scene.path(copy), Compare::CONTENT);
    }
}

#[test]
fn rclone_copies_there_and_back_and_checks() {
    if !has("rclone") {
        return;
    }
    // Debian 12 has version 1.60, with Go's SSH library of that time.
    let scene = with_flags(&["--old-clients"]);
    Tree::full(4).make(&scene.path("tree"));
    let rclone = || {
        let run = Run::new("rclone").env("RCLONE_CONFIG", scene.path("rclone.conf"));
        let run = run.args(["--links", "--sftp-host", "127.0.0.1", "--sftp-port"]);
        let run = run.arg(scene.peer.port().to_string()).arg("--sftp-user");
        let run = run.arg(scene.peer.user()).arg("--sftp-key-file");
        run.arg(&scene.client.dir.key().private)
            .arg("--sftp-known-hosts-file")
            .arg(scene.path("rclone-known"))
    };
    let known = fs::read_to_string(scene.client.dir.known_hosts()).expect("ours");
    write_file(&scene.path("rclone-known"), known.as_bytes());
    let there = format!(":sftp:{}", scene.path("up").display());
    let (tree, back) = (scene.path("tree"), scene.path("back"));
    rclone()
        .arg("copy")
        .arg(&tree)
        .arg(&there)
        .run()
        .expect_code(0);
    rclone()
        .arg("check")
        .arg(&tree)
        .arg(&there)
        .run()
        .expect_code(0);
    rclone()
        .arg("copy")
        .arg(&there)
        .arg(&back)
        .run()
        .expect_code(0);
    rclone()
        .arg("check")
        .arg(&tree)
        .arg(&back)
        .run()
        .expect_code(0);
}

#[test]
fn sshfs_mounts_it() {
    if !has("sshfs") {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        missing::not_here("the kernel has no /dev/fuse");
        return;
    }
    let scene = listening();
    let (shown, mounted) = (scene.path("shown"), scene.path("mounted"));
    for folder in [&shown, &mounted] {
        fs::create_dir(folder).expect("ours");
    }
    let run = Run::new("sshfs")
        .arg("-f")
        .arg("-F")
        .arg(scene.client.dir.config());
    let run = run.arg(format!("peer:{}", shown.display())).arg(&mounted);
    let sshfs = run.spawn();
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    let before = device(&shown);
    if !sshfs.until(|| device(&mounted).is_some_and(|now| Some(now) != before)) {
        missing::not_here("nothing may be mounted here");
        return;
    }
    let content = Seed::new(6).bytes(3_000_000);
    write_file(&mounted.join("file"), &content);
    let back = fs::read(mounted.join("file")).map(|back| back == content);
    let renamed = fs::rename(mounted.join("file"), mounted.join("name"));
    let listed = fs::read_dir(&mounted).map(Iterator::count);
    let unmount = |words: &[&str]| {
        let run = Run::new(words[0]).args(&words[1..]).arg(&mounted);
        missing::find_program(words[0]).is_some() && run.run().success()
    };
    let unmounted =
        unmount(&["fusermount3", "-u"]) || unmount(&["fusermount", "-u"]) || unmount(&["umount"]);
    assert!(unmounted, "it stays mounted");
    sshfs.wait().expect_code(0);
    assert!(back.expect("it is read") && renamed.is_ok());
    assert_eq!(listed.expect("it is listed"), 1);
    assert!(fs::read(shown.join("name")).expect("it") == content);
}

#[test]
fn a_client_of_go_s_sftp_package_does_all_it_can() {
    let client = missing::built_peers().join("bin/go-client");
    if !client.is_file() {
        missing::skip("the Go client", "run scripts/setup-tests.sh");
        return;
    }
    let scene = listening();
    write_file(&scene.path("file"), &Seed::new(6).bytes(3_000_000));
    fs::create_dir(scene.path("folder")).expect("ours");
    let run = Run::new(client).arg("--address");
    let run = run.arg(scene.peer.addr().to_string()).arg("--user");
    let run = run.arg(scene.peer.user()).arg("--key");
    let run = run.arg(&scene.client.dir.key().private).arg("--host-key");
    let run = run.arg(scene.peer.host_keys()[0].public()).arg("--file");
    let run = run.arg(scene.path("file")).arg("--folder");
    run.arg(scene.path("folder")).run().expect_code(0);
}

/// OpenSSH's own test scripts. docs/design/0006-serve.md lists the scripts, and what they cannot
/// check for longhaul.
#[test]
fn openssh_s_own_scripts_for_sftp_pass() {
    let script = "openssh-source/regress/test-exec.sh";
    let Some(script) = missing::newest_peer(script) else {
        missing::not_here(&format!("LONGHAUL_PEERS names no folder with {script}"));
        return;
    };
    let tree = script.ancestors().nth(2).expect("a folder");
    let outcome = Run::new(missing::checkout().join("scripts/openssh-regress.sh"))
        .arg(tree)
        .env("LONGHAUL_BIN", longhaul())
        .timeout(Duration::from_secs(300));
    outcome.run().expect_code(0);
}
