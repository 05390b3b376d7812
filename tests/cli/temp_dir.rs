//! `--temp-dir`: temporaries of files in a folder that the user names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use longhaul_tests::{Program, Scene, names_in, scratch};
use testkit::delay_proxy::Way;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed, missing};

/// Large enough for a journal, and for several parts.
const SIZE: usize = 45 << 20;

fn scene() -> Option<Scene> {
    let scene = Scene::start(PeerKind::OpenSsh)?;
    if scene.client.program == Program::Scp {
        return None;
    }
    for folder in ["from", "to", "temporaries"] {
        fs::create_dir(scene.path(folder)).expect("our folder");
    }
    write_file(&scene.path("from/file"), &Seed::new(5).bytes(SIZE));
    Some(scene)
}

fn flag(folder: &Path) -> String {
    format!("--temp-dir={}", folder.display())
}

#[test]
fn a_copy_that_is_killed_is_resumed_from_the_folder_for_temporaries() {
    for up in [true, false] {
        let Some(mut scene) = scene() else { return };
        let proxy = DelayProxy::to(scene.peer.addr()).rate(8_000_000).start();
        let port = proxy.port();
        scene.client.dir.add_host_at("peer", &scene.peer, port);
        let way = if up { Way::Up } else { Way::Down };
        let cp = || {
            let cp = scene.client.cp().arg(flag(&scene.path("temporaries")));
            match up {
                true => cp.arg(scene.path("from/file")).arg(scene.remote("to/file")),
                false => cp.arg(scene.remote("from/file")).arg(scene.path("to/file")),
            }
        };
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
        let boot = boot.trim();
        let state = scene.client.dir.path().join("state/longhaul");
        let recorded = || {
            let names = if state.is_dir() {
                names_in(&state)
            } else {
                Vec::new()
            };
            let journal = names
                .iter()
                .find(|n| n.as_encoded_bytes().ends_with(b".journal"));
            let bytes = journal.and_then(|name| fs::read(state.join(name)).ok());
            // Until the server's boot ID is known, what it has only in memory does not count.
            let has_boot = |b: &Vec<u8>| b.windows(boot.len()).any(|part| part == boot.as_bytes());
            let bytes = bytes.filter(|b| !up || has_boot(b));
            let state = bytes.and_then(|bytes| schedule::journal::replay(&bytes).ok());
            let proven = state.map(|replay| {
                let begun = replay
                    .state
                    .unfinished()
                    .flat_map(|(_, entry)| entry.proven());
                begun.map(|(from, to)| to - from).sum::<u64>()
            });
            proven.unwrap_or(0)
        };
        let running = cp().spawn();
        assert!(
            running.until(|| recorded() > 16_000_000),
            "up {up}: too slow"
        );
        let pid = running.pid().to_string();
        testkit::process::must("kill", &["-9".as_ref(), pid.as_ref()]);
        running.wait();
        assert_eq!(names_in(&scene.path("to")).len(), 0, "up {up}");
        assert_eq!(names_in(&scene.path("temporaries")).len(), 1, "up {up}");
        let before = proxy.carried(way);
        let said = cp().run().expect_code(0);
        let again = proxy.carried(way) - before;
        assert!(
            again < SIZE as u64 - 7_000_000,
            "up {up}: {again} bytes: {said}"
        );
        let (from, to) = (scene.path("from"), scene.path("to"));
        assert_same(&from, &to, Compare::CONTENT);
        assert_eq!(names_in(&scene.path("temporaries")).len(), 0, "up {up}");
    }
}

/// Returns a folder on another file system than the scene's; `None` after reporting the skip.
fn elsewhere(scene: &Scene) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok();
    let device = |path: &Path| fs::metadata(path).expect("there").dev();
    let here = device(scene.scratch.path());
    let other = folder.filter(|folder| device(folder.path()) != here);
    if other.is_none() {
        missing::not_here("/dev/shm is no file system of its own");
    }
    other
}

#[test]
fn a_folder_on_another_file_system_is_refused_and_the_old_file_stays() {
    let Some(scene) = scene() else { return };
    let Some(other) = elsewhere(&scene) else {
        return;
    };
    write_file(&scene.path("from/small"), b"new");
    for (up, name) in [
        (true, "small"),
        (true, "file"),
        (false, "small"),
        (false, "file"),
    ] {
        write_file(&scene.path("to").join(name), b"old");
        let cp = scene.client.cp().arg(flag(other.path()));
        let cp = match up {
            true => cp
                .arg(scene.path("from").join(name))
                .arg(scene.remote("to")),
            false => cp
                .arg(scene.remote("from/").into_string().expect("ours") + name)
                .arg(scene.path("to")),
        };
        let outcome = cp
            .run()
            .expect_code(1)
            .expect_err(&["--temp-dir"])
            .expect_err(&["file system"]);
        let old = fs::read(scene.path("to").join(name)).expect("it stays");
        assert_eq!(old, b"old", "{outcome}");
        assert_eq!(names_in(other.path()).len(), 0, "{outcome}");
    }
}

#[test]
fn a_folder_that_is_missing_is_an_error_that_names_the_flag() {
    let Some(scene) = scene() else { return };
    let gone = scratch();
    let folder = flag(&gone.path().join("none"));
    for up in [true, false] {
        let cp = scene.client.cp().arg(&folder);
        let cp = match up {
            true => cp.arg(scene.path("from/file")).arg(scene.remote("to")),
            false => cp.arg(scene.remote("from/file")).arg(scene.path("to")),
        };
        cp.run()
            .expect_code(1)
            .expect_err(&["--temp-dir"])
            .expect_err(&["no such file"]);
        assert_eq!(names_in(&scene.path("to")).len(), 0);
    }
    let both = scene.client.cp().args(["--inplace", &folder]);
    let both = both.arg(scene.path("from/file")).arg(scene.remote("to"));
    both.run().expect_code(2).expect_err(&["--temp-dir"]);
}
