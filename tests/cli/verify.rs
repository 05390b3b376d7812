//! `--verify` and `--manifest`: copied files are verified with whatever checksum program the far
//! end has.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul, names_in, scratch};
use testkit::missing::{find_program, sftp_server};
use testkit::tree::write_file;
use testkit::{Outcome, PeerBuilder, PeerKind, Run, Seed};

const CORRUPTING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/peers/corrupting_sftp_server.py"
);
const LARGE: usize = 20_000_000;

/// Names that a shell, a terminal or a checksum list could misinterpret.
const NAMES: [&[u8]; 10] = [
    b"plain",
    b"-rf",
    b"two words",
    b"new\nline",
    b"back\\slash",
    b"it's \"quoted\"",
    b"$(touch evil);`id`*?[a]",
    b"\xff\xfe",
    b"#%b\\0101%s",
    "\u{e9}\u{202e}".as_bytes(),
];

fn scene(builder: PeerBuilder) -> Option<Scene> {
    let scene = Scene::with(builder)?;
    if scene.client.is_scp() {
        return None;
    }
    fs::create_dir_all(scene.path("from/-d")).expect("our folder");
    for (n, name) in NAMES.iter().enumerate() {
        let name = Path::new(OsStr::from_bytes(name));
        write_file(
            &scene.path("from").join(name),
            &Seed::new(n as u64).bytes(n * 1000),
        );
        write_file(
            &scene.path("from/-d").join(name),
            &Seed::new(n as u64).bytes(n),
        );
    }
    write_file(&scene.path("from/large"), &Seed::new(99).bytes(LARGE));
    Some(scene)
}

fn cp(scene: &Scene, flags: &[&str]) -> Run {
    let run = scene.client.cp().arg("--verify").args(flags);
    run.timeout(Duration::from_secs(60))
}

#[track_caller]
fn assert_same(scene: &Scene, a: &str, b: &str, outcome: &Outcome) {
    let diff = Command::new("diff")
        .arg("-r")
        .args([scene.path(a), scene.path(b)])
        .output();
    let diff = diff.expect("diff");
    let said = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(diff.status.success(), "{said}\n{outcome}");
}

/// Copies the tree up and down, and returns both outputs.
#[track_caller]
fn there_and_back(scene: &Scene) -> [Outcome; 2] {
    let to_there = cp(scene, &["-r"])
        .arg(scene.path("from"))
        .arg(scene.remote("there"))
        .run();
    let to_there = to_there.expect_code(0);
    assert_same(scene, "from", "there", &to_there);
    let to_here = cp(scene, &["-r"])
        .arg(scene.remote("there"))
        .arg(scene.path("here"))
        .run();
    let to_here = to_here.expect_code(0);
    assert_same(scene, "from", "here", &to_here);
    [to_there, to_here]
}

/// Returns a folder with the only programs that the far end finds.
fn only(program: &str) -> Option<tempfile::TempDir> {
    let folder = scratch();
    let needed = ["sh", "dd", "head", "tail", "xargs", "getconf", "perl"];
    for name in needed.iter().chain([&program]) {
        if folder.path().join(name).exists() {
            continue;
        }
        match find_program(name) {
            Some(path) => symlink(path, folder.path().join(name)).expect("a link"),
            None if name == &program => return None,
            None => {}
        }
    }
    Some(folder)
}

#[test]
fn trees_are_verified_by_each_program_that_the_far_end_may_have() {
    let mut tried = 0;
    for program in ["xxhsum", "b3sum", "openssl", "sha256sum", "shasum"] {
        let Some(folder) = only(program) else {
            continue;
        };
        tried += 1;
        let path = format!("PATH={}", folder.path().display());
        let Some(scene) = scene(PeerBuilder::openssh().option("SetEnv", path)) else {
            return;
        };
        for outcome in there_and_back(&scene) {
            let said = format!("verified by {program} at the far end");
            assert!(outcome.err().contains(&said), "{program}: {outcome}");
            assert!(
                !outcome.err().contains("reading back"),
                "{program}: {outcome}"
            );
            let unproven = outcome.err().contains("memory, not ");
            assert!(unproven, "{program}: {outcome}");
        }
    }
    assert!(tried > 0, "this machine has none of the programs");
}

#[test]
fn where_no_command_may_run_files_are_read_back() {
    let programless = only("sh").expect("a shell");
    let path = format!("PATH={}", programless.path().display());
    for (option, value) in [
        ("ForceCommand", "internal-sftp"),
        ("ForceCommand", "echo This account has no shell."),
        ("SetEnv", path.as_str()),
        ("MaxSessions", "1"),
    ] {
        let builder = PeerBuilder::openssh().option("Subsystem", "sftp internal-sftp");
        let builder = match value.starts_with("echo") {
            // Only the subsystem is permitted.
            true => {
                let command = "case $SSH_ORIGINAL_COMMAND in internal-sftp) exec SERVER;; esac; \
                               echo This account has no shell.";
                let Some(server) = sftp_server() else {
                    continue;
                };
                let command = command.replace("SERVER", &server.display().to_string());
                builder.option(option, command)
            }
            false => builder.option(option, value),
        };
        let Some(scene) = scene(builder) else { return };
        for outcome in there_and_back(&scene) {
            let said = match option {
                "MaxSessions" => {
                    "by reading back, because the server allows no second session for checksums ("
                }
                _ => "by reading back, because ",
            };
            assert!(outcome.err().contains(said), "{option} {value}: {outcome}");
        }
    }
}

/// Returns a program that knows the checksum of "abc", and runs `what` for any other request.
fn pretending(what: &str) -> Option<tempfile::TempDir> {
    let folder = only("sh")?;
    let [head, sleep, seq] = ["head", "sleep", "seq"].map(find_program);
    let (head, sleep, seq) = (head?, sleep?, seq?);
    let text = format!(
        "#!/bin/sh\nHEAD={} SLEEP={} SEQ={}\nlast= ; for last; do :; done\n\
         [ \"$last\" = -H2 ] && [ \"$($HEAD -c 4)\" = abc ] && \
         echo '06b05ab6733a618578af5f94892f3950  stdin' && exit\n{what}\n",
        head.display(),
        sleep.display(),
        seq.display(),
    );
    let program = folder.path().join("xxhsum");
    write_file(&program, text.as_bytes());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).expect("a script");
    Some(folder)
}

/// Takes the time limit of 20 s without output.
#[test]
fn a_program_that_falls_silent_is_asked_no_more() {
    let what = "$SEQ 100000 >&2; exec $SLEEP 40";
    let why = "xxhsum at the far end stopped answering";
    assert_asked_no_more(what, why, &[true]);
}

/// Bug: a copy that was interrupted before its files were verified said that it had copied none, and
/// that unfinished files were removed.
#[test]
fn files_that_an_interrupt_left_unverified_were_called_unfinished() {
    let Some(folder) = pretending("exec $SLEEP 60") else {
        return;
    };
    let path = format!("PATH={}", folder.path().display());
    let Some(scene) = scene(PeerBuilder::openssh().option("SetEnv", path)) else {
        return;
    };
    let target = scene.path("to");
    let run = cp(&scene, &[]).arg(scene.path("from/plain"));
    let running = run
        .arg(scene.path("from/#%b\\0101%s"))
        .arg(scene.remote("to/"));
    fs::create_dir(&target).expect("our folder");
    let running = running.spawn();
    assert!(running.until(|| names_in(&target) == ["#%b\\0101%s", "plain"]));
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    let said = outcome.err();
    assert!(said.contains("interrupted: copied 2 files"), "{outcome}");
    let step = "2 copied files are complete under their names, but were not verified; to copy them \
                again and verify them: ";
    assert!(said.contains(step), "{outcome}");
    assert_eq!(names_in(&target), ["#%b\\0101%s", "plain"]);
}

/// Bug: a file that was complete, and not verified yet when the copy was interrupted, was copied again
/// by the same command.
#[test]
fn a_complete_file_was_copied_again_to_verify_it() {
    let Some(folder) = pretending("exec $SLEEP 60") else {
        return;
    };
    let path = format!("PATH={}", folder.path().display());
    let Some(scene) = scene(PeerBuilder::openssh().option("SetEnv", path)) else {
        return;
    };
    let run = || {
        let run = cp(&scene, &["-p"]).arg(scene.path("from/large"));
        run.arg(scene.remote("copy"))
    };
    let running = run().spawn();
    assert!(running.until(|| scene.path("copy").exists()));
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    let step = "1 copied file is complete under its name, but was not verified; to resume and verify \
                it: ";
    assert!(outcome.err().contains(step), "{outcome}");
    fs::remove_file(folder.path().join("xxhsum")).expect("our file");
    let outcome = run().run().expect_code(0);
    let resumed = "resuming the earlier copy: 1 file recorded as complete";
    assert!(outcome.err().contains(resumed), "{outcome}");
    assert!(
        outcome.err().contains("verified by reading back"),
        "{outcome}"
    );
}

/// Bug: after the loss of the only connection the copy waited 22 s for the checksum program on it.
/// A list of small files waited the same way, and was then read back.
#[test]
fn the_checksum_program_on_a_lost_connection_was_waited_for() {
    let Some(scene) = scene(PeerBuilder::openssh()) else {
        return;
    };
    fs::create_dir(scene.path("to")).expect("our folder");
    let run = cp(&scene, &["-r", "--limit=8M", "--connections=1"]);
    let run = run.arg(scene.path("from/.")).arg(scene.remote("to"));
    let running = run.spawn();
    let has_begun = || {
        let entries = fs::read_dir(scene.path("to")).expect("our folder");
        let sizes = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
        sizes.max().unwrap_or(0) > 5_000_000
    };
    assert!(running.until(has_begun));
    for session in scene.peer.sessions() {
        // It may have ended meanwhile.
        let _ = Command::new("kill")
            .args(["-9", &session.to_string()])
            .status();
    }
    let outcome = running.wait().expect_code(0);
    assert_same(&scene, "from", "to", &outcome);
    assert!(outcome.err().contains("reconnected"), "{outcome}");
    for words in [
        "stopped answering",
        "reading back",
        "no data from the server",
    ] {
        assert!(!outcome.err().contains(words), "{outcome}");
    }
}

#[test]
fn a_program_that_does_not_what_it_should_is_asked_no_more() {
    let wrong = "echo '00000000000000000000000000000000  stdin'";
    for (what, why) in [
        ("exec $SEQ 100000", "gave an unexpected answer"),
        ("echo; echo =; echo", ""),
        ("exit 1", ""),
        (wrong, "reads a different file than the SFTP server shows"),
    ] {
        assert_asked_no_more(what, why, &[true, false]);
    }
}

/// Copies to (`true`) or from a server whose programs are this script. Asserts the reason for
/// reading back.
#[track_caller]
fn assert_asked_no_more(what: &str, why: &str, ways: &[bool]) {
    let Some(folder) = pretending(what) else {
        return;
    };
    let path = format!("PATH={}", folder.path().display());
    let Some(scene) = scene(PeerBuilder::openssh().option("SetEnv", path)) else {
        return;
    };
    for up in ways {
        let outcome = cp(&scene, &[]).args(operands(&scene, *up)).run();
        let outcome = outcome.expect_code(0);
        assert_same(&scene, "from/large", "to", &outcome);
        assert!(outcome.err().contains(why), "{what}: {outcome}");
        assert!(
            outcome.err().contains("by reading back"),
            "{what}: {outcome}"
        );
        assert!(outcome.err().lines().count() < 8, "{what}: {outcome}");
        fs::remove_file(scene.path("to")).expect("the copy");
    }
}

#[test]
fn servers_that_are_not_openssh_are_verified_too() {
    for kind in [
        PeerKind::Dropbear,
        PeerKind::Paramiko,
        PeerKind::Asyncssh,
        PeerKind::Go,
    ] {
        let Some(scene) = scene(PeerBuilder::new(kind)) else {
            continue;
        };
        // Python's servers do not support names that are not UTF-8.
        for folder in ["from", "from/-d"] {
            let name = scene.path(folder).join(OsStr::from_bytes(b"\xff\xfe"));
            fs::remove_file(name).expect("our file");
        }
        there_and_back(&scene);
    }
}

/// A longhaul at the far end makes the checksums itself, independent of the installed programs.
#[test]
fn a_longhaul_there_makes_the_sums() {
    let server = format!("sftp {} serve --stdio", longhaul().display());
    for commands in [true, false] {
        let builder = PeerBuilder::openssh().option("Subsystem", &server);
        let command = format!("{} serve --stdio", longhaul().display());
        let builder = match commands {
            true => builder,
            false => builder.option("ForceCommand", command),
        };
        let Some(scene) = scene(builder) else { return };
        for outcome in there_and_back(&scene) {
            let said = "by longhaul at the far end (";
            assert!(outcome.err().contains(said), "{commands}: {outcome}");
        }
    }
}

/// Wrong data at the far end is detected by longhaul's checksums there.
#[test]
fn what_a_longhaul_there_has_wrongly_is_found_by_its_sums() {
    for (how, up) in [("write", true), ("read", false)] {
        let folder = scratch();
        let server = folder.path().join("ours.sh");
        let text = format!(
            "#!/bin/sh
exec {} serve --stdio
",
            longhaul().display()
        );
        write_file(&server, text.as_bytes());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&server, mode).expect("a script");
        let Some(scene) = corrupting_of(how, folder.path(), &server) else {
            return;
        };
        let run = cp(&scene, &["--compress=never"]);
        let outcome = run.args(operands(&scene, up)).run().expect_code(0);
        assert_same(&scene, "from/large", "to", &outcome);
        let said = outcome.err();
        assert!(said.contains("copying them again"), "{outcome}");
        assert!(said.contains("(1 repaired)"), "{outcome}");
        assert!(said.contains("by longhaul at the far end ("), "{outcome}");
    }
}

/// Returns a server that corrupts data in transit, in the direction `how`.
fn corrupting(how: &str, folder: &Path) -> Option<Scene> {
    corrupting_of(how, folder, &sftp_server()?)
}

/// Returns a server that corrupts data in transit before this SFTP server.
fn corrupting_of(how: &str, folder: &Path, server: &Path) -> Option<Scene> {
    find_program("python3")?;
    let script = folder.join("server.sh");
    let text = format!(
        "#!/bin/sh\nHOW={how} MARK={0}/mark SERVER={1} SOURCE={0}/source exec {CORRUPTING}\n",
        folder.display(),
        server.display(),
    );
    write_file(&script, text.as_bytes());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("a script");
    scene(PeerBuilder::openssh().option("Subsystem", format!("sftp {}", script.display())))
}

fn operands(scene: &Scene, up: bool) -> [OsString; 2] {
    match up {
        true => [scene.path("from/large").into(), scene.remote("to")],
        false => [scene.remote("from/large"), scene.path("to").into()],
    }
}

#[test]
fn what_was_corrupted_on_its_way_is_named_and_copied_again() {
    for (how, up) in [("write", true), ("read", false)] {
        let folder = scratch();
        let Some(scene) = corrupting(how, folder.path()) else {
            return;
        };
        let outcome = cp(&scene, &[]).args(operands(&scene, up)).run();
        let outcome = outcome.expect_code(0);
        assert_same(&scene, "from/large", "to", &outcome);
        let said = outcome.err();
        let named = if up {
            "to: verification failed: bytes "
        } else {
            "from/large: verification failed: bytes "
        };
        assert!(
            said.contains(named) && said.contains("copying them again"),
            "{outcome}"
        );
        assert!(said.contains("(1 repaired)"), "{outcome}");
        // The reported range contains the corrupted byte.
        let range = said.split_once(": bytes ").expect("a range").1;
        let words: Vec<&str> = range.split(' ').collect();
        let (from, to): (u64, u64) = (words[0].parse().unwrap(), words[2].parse().unwrap());
        assert!(
            (from..to).contains(&1_500_000) && to <= LARGE as u64,
            "{outcome}"
        );
    }
}

#[test]
fn what_is_corrupted_each_time_is_a_failure_that_names_file_and_range() {
    let folder = scratch();
    let Some(scene) = corrupting("always", folder.path()) else {
        return;
    };
    let run = cp(&scene, &["--json", "--manifest"]).arg(scene.path("sums"));
    let outcome = run.args(operands(&scene, true)).run();
    let outcome = outcome.expect_code(1);
    let events = outcome.out();
    assert_eq!(
        events.matches(r#""event":"mismatch""#).count(),
        3,
        "{outcome}"
    );
    assert!(outcome.err().contains("after 3 copies"), "{outcome}");
    assert_eq!(
        fs::read(scene.path("sums")).expect("a manifest"),
        b"",
        "{outcome}"
    );
}

#[test]
fn a_source_that_changes_while_it_is_copied_is_copied_again() {
    let folder = scratch();
    let Some(scene) = corrupting("source", folder.path()) else {
        return;
    };
    let source = folder.path().join("source");
    fs::copy(scene.path("from/large"), &source).expect("a copy");
    let outcome = cp(&scene, &[])
        .arg(longhaul_tests::remote("peer", &source))
        .arg(scene.path("to"))
        .run();
    let outcome = outcome.expect_code(0);
    let same = fs::read(&source).expect("it") == fs::read(scene.path("to")).expect("its copy");
    assert!(same, "{outcome}");
    assert!(outcome.err().contains("repaired"), "{outcome}");
}

#[test]
fn a_program_that_sees_another_file_system_is_not_believed() {
    let Some(server) = sftp_server() else { return };
    let folder = scratch();
    let subsystem = format!("sftp {} -d {}", server.display(), folder.path().display());
    let Some(scene) = scene(PeerBuilder::openssh().option("Subsystem", subsystem)) else {
        return;
    };
    // The same relative path below the login directory is another file.
    let name = "longhaul-verify-test-other";
    let outcome = cp(&scene, &[])
        .arg(scene.path("from/large"))
        .arg(format!("peer:{name}"))
        .run();
    let outcome = outcome.expect_code(0);
    assert!(folder.path().join(name).exists(), "{outcome}");
    assert!(outcome.err().contains("by reading back"), "{outcome}");
}

#[test]
fn what_is_no_file_cannot_be_verified_and_local_copies_can() {
    let Some(scene) = scene(PeerBuilder::openssh()) else {
        return;
    };
    let outcome = cp(&scene, &["-r"])
        .arg(scene.path("from"))
        .arg(scene.path("copy"))
        .run();
    let outcome = outcome.expect_code(0);
    assert_same(&scene, "from", "copy", &outcome);
    assert!(
        outcome.err().contains("verified by reading back"),
        "{outcome}"
    );
    let outcome = cp(&scene, &[])
        .arg(scene.path("from/large"))
        .arg("peer:/dev/null")
        .run();
    let outcome = outcome.expect_code(1);
    assert!(outcome.err().contains("cannot be verified"), "{outcome}");
    // From one host to another: checksums of the data that passed here are compared with the second
    // host.
    let outcome = cp(&scene, &["-r"])
        .arg(scene.remote("from"))
        .arg(scene.remote("other"))
        .run();
    let outcome = outcome.expect_code(0);
    assert_same(&scene, "from", "other", &outcome);
    assert!(outcome.err().contains("verified by "), "{outcome}");
}

#[test]
fn several_sources_are_verified() {
    let Some(scene) = scene(PeerBuilder::openssh()) else {
        return;
    };
    fs::create_dir_all(scene.path("to")).expect("our folder");
    let outcome = cp(&scene, &[])
        .args([scene.path("from/plain"), scene.path("from/-rf")])
        .arg(scene.remote("to"))
        .run();
    let outcome = outcome.expect_code(0);
    assert!(!outcome.err().contains("warning"), "{outcome}");
    assert_same(&scene, "from/plain", "to/plain", &outcome);
    assert_same(&scene, "from/-rf", "to/-rf", &outcome);
}

/// SHA-256 manifests are checked with the system's program, and BLAKE3 manifests with b3sum if it
/// is installed; the tests of sums::tree compare BLAKE3 with the blake3 crate.
#[test]
fn manifests_are_checked_by_the_standard_tools() {
    let Some(scene) = scene(PeerBuilder::openssh()) else {
        return;
    };
    for (hash, program) in [("sha256", "sha256sum"), ("blake3", "b3sum")] {
        for up in [true, false] {
            let there = format!("there-{hash}-{up}");
            let sums = scene.path(&format!("sums-{hash}-{up}"));
            let run = scene
                .client
                .cp()
                .args(["-r", "--hash", hash, "--manifest"])
                .arg(&sums);
            let outcome = match up {
                true => run.arg(scene.path("from")).arg(scene.remote(&there)).run(),
                false => run.arg(scene.remote("from")).arg(scene.path(&there)).run(),
            };
            let outcome = outcome.expect_code(0);
            let written = fs::read(&sums).expect("a manifest");
            let lines = written.iter().filter(|b| **b == b'\n').count();
            assert_eq!(lines, 2 * NAMES.len() + 1, "{outcome}");
            if find_program(program).is_none() {
                continue;
            }
            if program == "b3sum" {
                // The program rejects names that are not UTF-8.
                let utf8 = |line: &&[u8]| std::str::from_utf8(line).is_ok();
                let some: Vec<&[u8]> = written.split(|b| *b == b'\n').filter(utf8).collect();
                fs::write(&sums, some.join(&b'\n')).expect("our file");
            }
            let check = Command::new(program)
                .args(["-c", "--quiet"])
                .arg(&sums)
                .output();
            let check = check.expect("it runs");
            let said = String::from_utf8_lossy(&check.stderr).into_owned();
            let more = String::from_utf8_lossy(&check.stdout).into_owned();
            assert!(check.status.success(), "{program}: {said}{more}\n{outcome}");
        }
    }
}

#[test]
fn a_manifest_that_cannot_be_written_is_said_before_anything_is_copied() {
    let Some(scene) = scene(PeerBuilder::openssh()) else {
        return;
    };
    let run = cp(&scene, &["--manifest", "/no/such/folder/sums"]);
    let outcome = run.args(operands(&scene, true)).run();
    let outcome = outcome.expect_code(1);
    assert!(
        outcome.err().contains("cannot write the manifest"),
        "{outcome}"
    );
    assert!(!scene.path("to").exists(), "{outcome}");
}
