//! `longhaul serve --listen --allow`: programs that clients may run, above all rsync.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::stranger::Stranger;
use longhaul_tests::{Scene, longhaul, scratch};
use ssh::msg::{ChannelClose, ChannelData, ChannelEof, ChannelOpenConfirmation, ChannelRequest};
use testkit::peer::PeerBuilder;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{KeyKind, KeyPair, Outcome, Run, Seed, missing, wait};
use wire::{Field as _, RemainingBytes};

use crate::accounts::Machine;
use crate::hostile_clients::{friend, open_session, request};
use crate::serving::openssh;

/// Creates a folder with a shell script.
fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = scratch();
    let program = folder.path().join("program");
    write_file(&program, format!("#!/bin/sh\n{text}\n").as_bytes());
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), all.clone()).expect("ours");
    fs::set_permissions(&program, all).expect("ours");
    (folder, program)
}

fn allowing(programs: &[&str]) -> Scene {
    let flags = programs.iter().flat_map(|program| ["--allow", program]);
    Scene::with(PeerBuilder::longhaul(longhaul(), flags)).expect("longhaul is there")
}

/// Runs `ssh peer COMMAND`, which the far end parses as one line.
fn ssh(scene: &Scene, command: &str, stdin: &[u8]) -> Outcome {
    let run = openssh(scene, "ssh").args(["-T", "peer", command]);
    run.stdin(stdin.to_vec()).run()
}

/// Waits for a process to end.
#[track_caller]
fn is_gone(pid: &str) {
    let path = PathBuf::from("/proc").join(pid.trim());
    let zombie = || {
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        stat.contains(") Z ")
    };
    wait::until(
        Duration::from_secs(20),
        || !path.exists() || zombie(),
        || format!("{pid} runs"),
    );
}

/// Only rsync's server mode is permitted. Before this, the command of option -e was run.
#[test]
fn rsync_runs_nothing_else() {
    if missing::find_program("rsync").is_none() {
        missing::skip("rsync", "install the package rsync");
        return;
    }
    let scene = allowing(&["rsync"]);
    for command in [
        "rsync -e 'sh -c id>&2;exec' h:x .",
        "rsync --server --daemon .",
        "rsync --server --daemon --config=/tmp/x .",
        "rsync --rsh=sh h:x .",
        "rsync -a --server . x",
        "rsync",
    ] {
        let outcome = ssh(&scene, command, b"");
        outcome
            .expect_code(127)
            .expect_err(&["only as the server of another rsync"]);
    }
}

#[test]
fn rsync_goes_both_ways() {
    if missing::find_program("rsync").is_none() {
        missing::skip("rsync", "install the package rsync");
        return;
    }
    let scene = allowing(&["rsync"]);
    let tree = scene.path("tree");
    Tree::full(6).make(&tree);
    write_file(&tree.join("large"), &Seed::new(6).bytes(20_000_000));
    write_file(&tree.join("it's a name"), b"quoted");
    let config = scene.client.dir.config();
    let rsync = |from: String, to: String| {
        let shell = format!("ssh -F {}", config.display());
        let run = Run::new("rsync").args(["-a", "--checksum", "-e", &shell, &from, &to]);
        run.run()
    };
    let local = |name: &str| scene.path(name).display().to_string();
    let up = format!("peer:{}", local("up and away"));
    rsync(format!("{}/", local("tree")), up.clone()).expect_code(0);
    rsync(format!("{up}/"), local("back")).expect_code(0);
    for name in ["up and away", "back"] {
        assert_same(&tree, &scene.path(name), Compare::CONTENT);
    }
    // rsync itself reports a missing file, with its own status.
    let outcome = rsync(format!("peer:{}", local("missing")), local("nothing"));
    outcome
        .expect_code(23)
        .expect_err(&["missing", "No such file"]);
    let log = scene.peer.log();
    assert!(
        log.contains("program ended program=\"rsync\" status=0")
            // The bytes that it moved are counted.
            && log.contains("session closed opened=0 sent="),
        "{log}"
    );
    // Files are served as well, and longhaul's client does without the commands that it would have
    // run.
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"content");
    scene.copies(&["--verify"], scene.path("file"), scene.remote("there"));
}

#[test]
fn input_output_errors_and_status_are_the_programs() {
    let (_folder, program) = script(
        "echo \"$# $1\" >&2; pwd >&2; echo \"$HOME $USER ${SSH_AUTH_SOCK-none}\" >&2; cat; exit 7",
    );
    let name = program.display().to_string();
    let scene = allowing(&[&name]);
    let content = Seed::new(9).bytes(9_000_000);
    let outcome = ssh(&scene, &format!("{name} 'a  b' c\\ d"), &content).expect_code(7);
    assert!(outcome.stdout == content, "{} bytes", outcome.stdout.len());
    let user = scene.peer.user();
    outcome.expect_err(&["2 a  b\n", &format!(" {user} none\n")]);
    // A program that kills itself, without input.
    let (_folder, program) = script("exec <&-; kill -9 $$");
    let name = program.display().to_string();
    let scene = allowing(&[&name]);
    ssh(&scene, &name, &content).expect_code(137);
    // Output that ends before the program does.
    let (_folder, program) = script("exec >&- 2>&-; sleep 0.3; exit 3");
    let name = program.display().to_string();
    let scene = allowing(&[&name]);
    ssh(&scene, &name, b"").expect_code(3);
}

#[test]
fn nothing_else_is_run() {
    let (folder, program) = script("touch \"$(dirname \"$0\")/ran\"");
    let name = program.display().to_string();
    let scene = allowing(&["true", &name]);
    ssh(&scene, "true", b"").expect_code(0);
    for (command, why) in [
        ("touch x", "this server runs only true, "),
        ("/bin/true", "this server runs only true, "),
        ("TRUE", "this server runs only true, "),
        ("A=b true", "this server runs only true, "),
        ("", "This server transfers files only"),
        ("true; touch x", "has a shell metacharacter"),
        ("true $(id)", "has a shell metacharacter"),
        ("true `id`", "has a shell metacharacter"),
        ("true > x", "has a shell metacharacter"),
        ("true *", "has a shell metacharacter"),
        ("true \"$a\"", "has a shell metacharacter"),
        ("true ~", "has a shell keyword"),
        ("true 'a", "has unbalanced quotes"),
        ("true a\\", "ends with a backslash"),
    ] {
        let outcome = ssh(&scene, command, b"");
        assert!(!outcome.success(), "{command}: {outcome}");
        outcome.expect_err(&[why]);
    }
    assert!(!folder.path().join("ran").exists());
    // Disabled unless allowed; a shell is never available.
    let scene = allowing(&[]);
    ssh(&scene, "true", b"").expect_err(&["This server transfers files only"]);
}

#[test]
fn a_program_ends_with_its_channel_and_its_connection() {
    // A program with a child, both of which ignore signals.
    let (folder, program) = script(
        "trap '' TERM HUP; sleep 600 & echo $$ > \"$1/parent\"; echo $! > \"$1/child\"; \
         echo ready; while :; do wait; sleep 1; done",
    );
    let name = program.display().to_string();
    let scene = allowing(&[&name]);
    let command = format!("{name} {}", folder.path().display());
    let pid = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let started = || pid("parent").ends_with('\n') && pid("child").ends_with('\n');
    let socket = folder.path().join("mux").display().to_string();
    let mux = |run: Run| run.args(["-S", &socket]);
    let master = mux(openssh(&scene, "ssh")).args(["-M", "-N", "peer"]);
    let master = master.spawn();
    assert!(master.until(|| folder.path().join("mux").exists()));
    for alone in [true, false] {
        let run = openssh(&scene, "ssh");
        // On a connection of its own, or on a channel of a connection that stays.
        let run = if alone { run } else { mux(run) };
        let running = run.args(["-T", "peer", &command]).spawn();
        assert!(running.until(started), "{}", scene.peer.log());
        running.terminate();
        running.wait();
        is_gone(&pid("parent"));
        is_gone(&pid("child"));
        fs::remove_file(folder.path().join("parent")).expect("its");
        fs::remove_file(folder.path().join("child")).expect("its");
        let told = || {
            scene
                .peer
                .log()
                .matches("ended because its channel was closed")
                .count()
        };
        assert!(master.until(|| told() == 1 + usize::from(!alone)));
    }
    master.terminate();
    master.wait();
}

/// The client sends the last byte, EOF and CLOSE at once, as libssh2 does: more than a pipe holds,
/// and the program reads slowly.
#[test]
fn what_came_before_close_reaches_the_program() {
    let (folder, program) =
        script("sleep 0.3; cat > \"$1/got\"; sleep 0.3; echo done > \"$1/done\"");
    let name = program.display().to_string();
    let scene = {
        let builder = PeerBuilder::longhaul(longhaul(), ["--allow", &name]);
        let builder = builder.authorize_line(Stranger::public_line());
        Scene::with(builder).expect("longhaul is there")
    };
    let mut friend = friend(&scene);
    let command = format!("{name} {}", folder.path().display());
    let mut exec = Vec::new();
    command.as_bytes().write(&mut exec);
    friend.say(&open_session()).expect("it is there");
    friend.say(&request(b"exec", &exec)).expect("it is there");
    let content = Seed::new(11).bytes(400_000);
    for data in content.chunks(30_000) {
        let data = ChannelData { recipient: 0, data };
        friend.say(&data.to_bytes()).expect("it is there");
    }
    let recipient = 0;
    friend
        .say(&ChannelEof { recipient }.to_bytes())
        .expect("it is there");
    friend
        .say(&ChannelClose { recipient }.to_bytes())
        .expect("it is there");
    wait::until(
        Duration::from_secs(20),
        || folder.path().join("done").exists(),
        || scene.peer.log(),
    );
    assert!(fs::read(folder.path().join("got")).expect("it") == content);
    scene.logs("program ended");
    // The connection is unaffected.
    friend.say(&open_session()).expect("it is there");
    while friend.hear().expect("it is there").first() != Some(&ChannelOpenConfirmation::NUMBER) {}
}

#[test]
fn who_closes_one_program_after_the_other_has_no_more_of_them() {
    const ALL: usize = 25;
    let (_folder, program) = script("exec sleep 600");
    let name = program.display().to_string();
    let builder = PeerBuilder::longhaul(longhaul(), ["--allow", &name]);
    let builder = builder.authorize_line(Stranger::public_line());
    let scene = Scene::with(builder).expect("longhaul is there");
    let mut friend = friend(&scene);
    let mut exec = Vec::new();
    name.as_bytes().write(&mut exec);
    for recipient in 0..ALL as u32 {
        friend.say(&open_session()).expect("it is there");
        let run = ChannelRequest {
            recipient,
            name: b"exec",
            want_reply: false,
            data: RemainingBytes(&exec),
        };
        let (eof, close) = (ChannelEof { recipient }, ChannelClose { recipient });
        for message in [run.to_bytes(), eof.to_bytes(), close.to_bytes()] {
            friend.say(&message).expect("it is there");
        }
    }
    let count = |what: &str| scene.peer.log().matches(what).count();
    wait::until(
        Duration::from_secs(20),
        || count(" runs program=") >= ALL,
        || scene.peer.log(),
    );
    // The last log line is the start of one, before it ends.
    assert!(
        count("ended because its channel was closed") >= ALL - 11,
        "{}",
        scene.peer.log()
    );
}

#[test]
fn output_that_nobody_reads_waits() {
    let (folder, program) =
        script("echo $$ > \"$1/pid\"; exec dd if=/dev/zero bs=64K count=100000000");
    let name = program.display().to_string();
    let scene = allowing(&[&name]);
    let command = format!("{name} {}", folder.path().display());
    let running = openssh(&scene, "ssh");
    let running = running.args(["-T", "peer", &command]).spawn();
    let pid = || fs::read_to_string(folder.path().join("pid")).unwrap_or_default();
    assert!(running.until(|| pid().ends_with('\n')));
    running.pause(true);
    let written = || {
        let io = fs::read_to_string(format!("/proc/{}/io", pid().trim())).expect("it runs");
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    assert!(running.until(|| written() > 0));
    let (quiet, patience) = (Duration::from_millis(300), Duration::from_secs(60));
    let still = wait::steady(quiet, patience, written);
    assert!(still.is_some(), "{} bytes", written());
    // The server serves other clients meanwhile.
    ssh(&scene, "id", b"").expect_err(&["this server runs only"]);
    running.pause(false);
    running.terminate();
    running.wait();
    is_gone(&pid());
}

#[test]
fn programs_and_less_than_everything_exclude_each_other() {
    let folder = scratch();
    let key = KeyPair::generate(folder.path(), "key", KeyKind::Ed25519);
    let key = key.private.display().to_string();
    let config = folder.path().join("serve.toml");
    let file = config.display().to_string();
    let table = "[[key]]\nfingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n\
                 access = \"write-only\"\n";
    let why = "they can access all files of the account";
    for (text, flags) in [
        ("", &["--allow", "true", "--root", "/tmp"][..]),
        ("", &["--allow", "true", "--read-only"]),
        ("", &["--allow", "true", "--write-only"]),
        ("root = \"/tmp\"\n", &["--allow", "true"]),
        ("allow = [\"true\"]\n", &["--read-only"]),
        (table, &["--allow", "true"]),
    ] {
        write_file(&config, text.as_bytes());
        let run = Run::new(longhaul()).args(["serve", "--listen", "127.0.0.1:0"]);
        let run = run
            .args(["--host-key", &key, "--config", &file])
            .args(flags);
        run.run().expect_code(1).expect_err(&[why]);
    }
    write_file(&config, format!("allow = [\"true\"]\n{table}").as_bytes());
    let check = Run::new(longhaul()).args(["serve", "check", &file]);
    let place = format!("{file}:1: ");
    check.run().expect_code(1).expect_err(&[&place, why]);
    for missing in ["no-such-program-at-all", "bin/true", "/etc/passwd", ""] {
        let run = Run::new(longhaul()).args(["serve", "--listen", "127.0.0.1:0"]);
        let run = run.args(["--host-key", &key, "--allow", missing]);
        run.run().expect_code(1).expect_err(&["cannot allow"]);
    }
    let run = Run::new(longhaul()).args(["serve", "--stdio", "--allow", "true"]);
    run.run().expect_code(2).expect_err(&["needs --listen"]);
}

#[test]
fn a_program_has_the_accounts_rights_and_no_more() {
    let (_folder, program) =
        script("id -u; id -G; grep NoNewPrivs /proc/self/status; pwd; echo $HOME");
    let name = program.display().to_string();
    let Some(machine) = Machine::start(&["--allow", &name]) else {
        return;
    };
    let outcome = machine.ssh("alice", &name).expect_code(0);
    let home = machine.home("alice").display().to_string();
    let wanted = format!("54001\n54001 54100\nNoNewPrivs:\t1\n{home}\n{home}\n");
    assert_eq!(outcome.out(), wanted);
    // Other accounts can run nothing, and programs that are not allowed are not run either.
    let outcome = machine.ssh("alice", "id");
    outcome
        .expect_code(127)
        .expect_err(&["this server runs only"]);
    machine.ssh("gone", &name).expect_code(255);
}

/// Namespaces cannot be created by any system call. unshare(2) was blocked, and clone(2) with the
/// same flags was not.
#[test]
fn no_call_makes_a_namespace() {
    if missing::find_program("python3").is_none() {
        missing::skip("python3", "install the package python3");
        return;
    }
    let python = r#"
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
NEWUSER, SIGCHLD = 0x10000000, 17
def call(*arguments):
    ctypes.set_errno(0)
    if libc.syscall(*arguments) == 0:
        os._exit(0)
    print(ctypes.get_errno())
call(clone, NEWUSER | SIGCHLD, 0, 0, 0, 0)
call(435, 0, 0)
libc.unshare(NEWUSER) and print(ctypes.get_errno())
"#;
    let (_folder, program) = script(&format!("exec python3 -c '{python}'"));
    let name = program.display().to_string();
    let Some(machine) = Machine::start(&["--allow", &name]) else {
        return;
    };
    // EPERM, and ENOSYS for clone3(2).
    let outcome = machine.ssh("alice", &name).expect_code(0);
    assert_eq!(outcome.out(), "1\n38\n1\n");
}
