//! Folders of journals and host memory, and copies that cannot have any.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::time::Duration;

use longhaul_tests::{Program, Scene, names_in};
use schedule::journal::ExistingFile;
use testkit::delay_proxy::Way;
use testkit::tree::write_file;
use testkit::{DelayProxy, PeerKind, Run, Seed, missing};

/// Large enough for a journal.
const SIZE: usize = 17 << 20;

fn scene() -> Option<Scene> {
    let scene = Scene::start(PeerKind::OpenSsh)?;
    if scene.client.program == Program::Scp {
        return None;
    }
    for folder in ["from", "to", "home"] {
        fs::create_dir(scene.path(folder)).expect("our folder");
    }
    write_file(&scene.path("from/large"), &Seed::new(3).bytes(SIZE));
    write_file(&scene.path("from/small"), b"small");
    Some(scene)
}

fn at_home(scene: &Scene, run: Run) -> Run {
    let run = run.env("HOME", scene.path("home"));
    ["XDG_CACHE_HOME", "XDG_STATE_HOME"]
        .into_iter()
        .fold(run, Run::env_remove)
}

/// Host memory and journals follow HOME. Before this, the memory was in the home of the password
/// file, and the journal below HOME.
#[test]
fn memories_and_journals_obey_home() {
    let Some(scene) = scene() else { return };
    let proxy = DelayProxy::to(scene.peer.addr()).rate(8_000_000).start();
    let mut scene = scene;
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    let cp = at_home(&scene, scene.client.cp());
    let cp = cp
        .arg(scene.path("from/large"))
        .arg(scene.remote("to/large"));
    let running = cp.spawn();
    assert!(
        running.until(|| proxy.carried(Way::Up) > 12_000_000),
        "too slow"
    );
    running.terminate();
    running.wait().expect_code(130);
    let home = scene.path("home");
    assert_eq!(names_in(&home.join(".cache/longhaul/hosts")).len(), 1);
    let state = home.join(".local/state/longhaul");
    let is_journal = |n: &OsString| n.as_encoded_bytes().ends_with(b".journal");
    assert!(names_in(&state).iter().any(is_journal));
    let mode = fs::metadata(&state).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn a_state_folder_that_others_can_write_is_not_used() {
    let Some(scene) = scene() else { return };
    let state = scene.path("shared");
    fs::create_dir_all(state.join("longhaul")).expect("our folder");
    fs::set_permissions(&state, Permissions::from_mode(0o777)).expect("ours");
    for (name, warnings) in [("small", 0), ("large", 1)] {
        let cp = scene.client.cp().env("XDG_STATE_HOME", &state);
        let cp = cp.arg(scene.path("from").join(name));
        let outcome = cp.arg(scene.remote("to/")).run().expect_code(0);
        let said = outcome.err();
        assert_eq!(
            said.matches("is writable by").count(),
            warnings,
            "{outcome}"
        );
        assert_eq!(said.matches("warning:").count(), warnings, "{outcome}");
    }
    assert!(names_in(&state.join("longhaul")).is_empty());
}

#[test]
fn without_a_home_a_copy_has_no_state_and_says_so_once_it_matters() {
    let Some(scene) = scene() else { return };
    if !missing::can_unshare_mounts() {
        missing::not_here("only root can hide the password file");
        return;
    }
    let Program::Longhaul(program) = &scene.client.program else {
        return;
    };
    for (name, warnings) in [("small", 0), ("large", 1)] {
        let script = missing::NO_PASSWORD_FILE;
        let run = scene.client.dir.run("unshare");
        let run = run.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        let run = run
            .arg(program)
            .arg("cp")
            .arg("-F")
            .arg(scene.client.dir.config());
        let run = run.arg(scene.remote("from").into_string().expect("ours") + "/" + name);
        let run = ["HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"]
            .into_iter()
            .fold(run, Run::env_remove);
        let outcome = run.arg(scene.path("to")).run().expect_code(0);
        let said = outcome.err();
        assert_eq!(
            said.matches("cannot be resumed").count(),
            warnings,
            "{outcome}"
        );
    }
}

/// A copy that has transferred nothing leaves no journal. Before this, a journal stayed, and the
/// printed command had nothing to resume.
#[test]
fn a_copy_that_began_nothing_leaves_no_journal() {
    let Some(scene) = scene() else { return };
    let state = scene.client.dir.path().join("state/longhaul");
    for up in [true, false] {
        let cp = scene.client.cp();
        let cp = match up {
            true => cp
                .arg(scene.path("from/large"))
                .arg(scene.remote("none/large")),
            false => cp
                .arg(scene.remote("from/large"))
                .arg(scene.path("none/large")),
        };
        let outcome = cp.run().expect_code(1);
        assert!(!outcome.err().contains("to resume"), "{outcome}");
        assert!(
            !state.exists() || names_in(&state).is_empty(),
            "up {up}: {outcome}"
        );
    }
}

/// Completed small files are not sent again after a kill. Before this, the server's clock was
/// queried behind all waiting files, so that a killed run had never learned it, and its small files
/// were sent again.
#[test]
fn small_files_that_are_done_are_not_sent_again_after_a_kill() {
    let Some(mut scene) = scene() else { return };
    let proxy = DelayProxy::to(scene.peer.addr()).rtt(Duration::from_millis(20));
    let proxy = proxy.rate(200_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    let files: u64 = 2200;
    fs::create_dir(scene.path("many")).expect("our folder");
    for n in 0..files {
        write_file(&scene.path(&format!("many/{n}")), &Seed::new(n).bytes(2000));
    }
    let cp = || {
        let cp = scene.client.cp().args(["--far-end=stock", "-r"]);
        cp.arg(scene.path("many")).arg(scene.remote("to/many"))
    };
    let done = || {
        let there = fs::read_dir(scene.path("to/many"))
            .into_iter()
            .flatten()
            .flatten();
        there
            .filter(|e| !e.file_name().as_encoded_bytes().starts_with(b"."))
            .count() as u64
    };
    // The number of files that the journal, as it is now, would let stand.
    let proven = || {
        let state = scene.client.dir.path().join("state/longhaul");
        let is_journal = |n: &OsString| n.as_encoded_bytes().ends_with(b".journal");
        let names = if state.is_dir() {
            names_in(&state)
        } else {
            Vec::new()
        };
        let journal = names.iter().find(|n| is_journal(n));
        let bytes = journal.and_then(|name| fs::read(state.join(name)).ok());
        let Some(read) = bytes.and_then(|bytes| schedule::journal::replay(&bytes).ok()) else {
            return 0;
        };
        let mut state = read.state;
        state.seal();
        let stands = |n: &u64| {
            let target = scene.path(&format!("to/many/{n}"));
            let file = state.file(target.as_os_str().as_bytes());
            let done = file.and_then(|(_, entry)| entry.done);
            done.zip(fs::metadata(&target).ok())
                .is_some_and(|(done, meta)| {
                    done.stands(ExistingFile {
                        size: meta.len(),
                        mtime: u64::try_from(meta.mtime()).unwrap_or(0) * 1_000_000_000,
                    })
                })
        };
        (0..files).filter(stands).count()
    };
    let running = cp().spawn();
    // Files of the last seconds before the kill are not proven.
    assert!(
        running.until(|| proven() >= 1000),
        "too slow, or the server's clock is not read: {} of {}",
        proven(),
        done()
    );
    let pid = running.pid().to_string();
    testkit::process::must("kill", &["-9".as_ref(), pid.as_ref()]);
    running.wait();
    let before = proxy.carried(Way::Up);
    cp().run().expect_code(0);
    let sent = proxy.carried(Way::Up) - before;
    // With its requests a file takes 2.7 kB, so that all take 6 MB; each completed one costs a
    // stat. So 1,200 files take 3.2 MB.
    assert!(sent < 3_900_000, "{sent} bytes");
    testkit::tree::assert_same(
        &scene.path("many"),
        &scene.path("to/many"),
        testkit::tree::Compare::CONTENT,
    );
}
