//! Names of the greatest length that Linux permits, 255 bytes, and longer ones.

use std::fs;
use std::path::Path;

use longhaul_tests::{Client, Scene, names_in, scratch};
use testkit::missing;
use testkit::tree::{Compare, assert_same};
use testkit::{PeerKind, Seed};

use crate::resumed::is_scp;
use crate::sync::{sync, write_file};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/lying_sftp_server.py");

/// Names of 255 bytes that differ in their ends, or have special characters.
fn longest() -> [String; 5] {
    let names = [
        format!("{}1", "x".repeat(254)),
        format!("{}2", "x".repeat(254)),
        format!("{}y", "ä".repeat(127)),
        format!(".{}yz", "漢".repeat(84)),
        format!("{}\\{}", "b".repeat(100), "c".repeat(154)),
    ];
    assert!(names.iter().all(|name| name.len() == 255));
    names
}

/// Writes files with such names, large and small, and a directory.
fn make(root: &Path, content: &str) {
    let names = longest();
    for (n, name) in names.iter().enumerate() {
        write_file(&root.join(name), format!("{content} {n}").as_bytes());
        write_file(&root.join("sub").join(name).join(name), content.as_bytes());
    }
    write_file(
        &root.join("large").join(&names[2]),
        &Seed::new(7).bytes(17 << 20),
    );
}

/// Bug: the temporary's name was longer than the system permits if the name had a backslash.
#[test]
fn files_with_the_longest_names_are_copied_both_ways() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    make(&scene.path("from"), "content");
    for existing in [false, true] {
        let up = scene
            .client
            .cp()
            .args(["-r"])
            .arg(scene.path("from").join("."));
        let down = scene.client.cp().args(["-r"]).arg(scene.remote("from/."));
        for (run, to) in [
            (up.arg(scene.remote("up")), "up"),
            (down.arg(scene.path("down")), "down"),
        ] {
            if !existing {
                fs::create_dir(scene.path(to)).expect("our folder");
            }
            run.run().expect_code(0);
            assert_same(&scene.path("from"), &scene.path(to), Compare::CONTENT);
        }
        make(&scene.path("from"), "changed content");
    }
}

#[test]
fn files_with_the_longest_names_are_synced_both_ways() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for content in ["content", "changed content"] {
        make(&scene.path("from"), content);
        for [from, to] in [
            [scene.path("from").into_os_string(), scene.remote("up")],
            [scene.remote("from"), scene.path("down").into_os_string()],
        ] {
            let run = sync(&scene, &["--delete", "--yes", "--backup-dir", "../old"]);
            run.arg(from).arg(to).run().expect_code(0);
        }
        for to in ["up", "down"] {
            assert_same(&scene.path("from"), &scene.path(to), Compare::CONTENT);
        }
    }
    let kept = fs::read(scene.path("old").join(&longest()[2])).expect("it is kept");
    assert_eq!(kept, b"content 2");
}

/// A server may have names that this system does not permit.
#[test]
fn a_file_whose_name_is_too_long_here_is_named_and_the_rest_is_copied() {
    if is_scp() {
        return;
    }
    if missing::find_program("python3").is_none() {
        missing::skip("python3", "apt-get install python3");
        return;
    }
    let (client, place) = (Client::new(), scratch());
    let run = client.cp().env("LIE", "long").in_folder(place.path());
    let run = run.args(["-D", SERVER, "-r", "h:dir", "in"]);
    let outcome = run.run().expect_code(1);
    assert_eq!(names_in(&place.path().join("in")), ["fine"], "{outcome}");
    let said = outcome.err();
    for name in ["f".repeat(256), "d".repeat(300), "l".repeat(256)] {
        let lines: Vec<&str> = said
            .lines()
            .filter(|line| line.contains(&name[..200]))
            .collect();
        assert_eq!(lines.len(), 1, "{outcome}");
        assert!(lines[0].contains("file name too long"), "{outcome}");
    }
}

/// Lists a tree with modes and times, relative to it: its paths may be too long for this process.
fn listed(root: &Path) -> Vec<String> {
    let mut find = std::process::Command::new("find");
    let find = find.current_dir(root).args(["-printf", "%P %m %Ts\n"]);
    let out = find.output().expect("find(1)");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8_lossy(&out.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Directories below a local path of 4,096 bytes are made with their modes and times, through the
/// descriptor of the target.
#[test]
fn directories_below_a_path_of_4096_bytes_are_made() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let deep = |at: std::path::PathBuf, levels: usize| {
        (0..levels).fold(at, |at, _| at.join("n".repeat(250)))
    };
    let bottom = deep(scene.path("from"), 14);
    fs::create_dir_all(bottom.join("sub")).expect("our folder");
    write_file(&bottom.join("sub/file"), b"content");
    fs::set_permissions(&bottom, std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .expect("ours");
    for name in ["copied", "synced"] {
        let to = deep(scene.path(name), 5);
        fs::create_dir_all(&to).expect("our folder");
        let run = match name {
            "copied" => scene.client.cp().arg("-a"),
            _ => sync(&scene, &[]),
        };
        let at = to.join("new");
        let outcome = run.arg(scene.remote("from")).arg(&at).run();
        let outcome = outcome.expect_code(0);
        assert_eq!(listed(&at), listed(&scene.path("from")), "{outcome}");
    }
}
