//! Downloads from an SFTP server that lies: files are written only where the user said
//! (CVE-2019-6111), and its text cannot control the terminal (CVE-2019-6109).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Client, scratch};
use tempfile::TempDir;
use testkit::missing;
use testkit::process::{Outcome, Run};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/lying_sftp_server.py");

/// Folder `in` for downloads, with `outside` beside it.
struct Scene {
    client: Client,
    scratch: TempDir,
}

impl Scene {
    fn new() -> Option<Self> {
        if missing::find_program("python3").is_none() {
            missing::skip("python3", "apt-get install python3");
            return None;
        }
        let (client, scratch) = (Client::new(), scratch());
        if client.is_scp() {
            return None;
        }
        fs::create_dir_all(scratch.path().join("a/b/in")).expect("a folder to copy to");
        fs::create_dir(scratch.path().join("outside")).expect("a folder beside it");
        Some(Self { client, scratch })
    }

    fn outside(&self) -> PathBuf {
        self.scratch.path().join("outside")
    }

    fn run(&self, lie: &str) -> Run {
        self.client
            .cp()
            .env("LIE", lie)
            .env("OUTSIDE", self.outside())
            .in_folder(self.scratch.path().join("a/b"))
            .timeout(Duration::from_secs(30))
            .args(["-D", SERVER])
    }

    /// Returns every path in the scratch folder, without the folders that existed before.
    fn found(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(self.scratch.path(), self.scratch.path(), &mut found);
        found.retain(|p| !["a", "a/b", "a/b/in", "outside"].contains(&p.as_str()));
        found.sort();
        found
    }
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        found.push(
            path.strip_prefix(root)
                .expect("below the root")
                .display()
                .to_string(),
        );
        if path.is_dir() && !path.is_symlink() {
            walk(root, &path, found);
        }
    }
}

fn steers(outcome: &Outcome) -> bool {
    let said = outcome.out() + &outcome.err();
    said.chars()
        .any(|c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}')
}

#[test]
fn cve_2019_6111_names_cannot_lead_out_of_the_directory() {
    for flags in [&["-r"][..], &["-a"]] {
        let Some(scene) = Scene::new() else { return };
        let outcome = scene.run("names").args(flags).args(["h:dir", "in"]).run();
        let expected = ["a/b/in/dir", "a/b/in/dir/fine"];
        assert_eq!(scene.found(), expected, "{outcome}");
        assert!(!steers(&outcome), "{outcome}");
    }
}

#[test]
fn cve_2019_6111_a_single_file_gets_the_name_the_user_gave() {
    let Some(scene) = Scene::new() else { return };
    let outcome = scene.run("other").args(["h:file", "in"]).run();
    assert_eq!(scene.found(), ["a/b/in/file"], "{outcome}");
    let outcome = scene.run("other").args(["h:file", "mine"]).run();
    assert_eq!(scene.found(), ["a/b/in/file", "a/b/mine"], "{outcome}");
}

#[test]
fn cve_2019_6111_a_pattern_matches_only_names_of_its_kind() {
    let Some(scene) = Scene::new() else { return };
    let outcome = scene.run("names").args(["h:dir/e*", "in"]).run();
    assert_eq!(scene.found(), [""; 0], "{outcome}");
}

/// A name that is listed first as a symlink and later as a directory could be written through.
#[test]
fn a_name_listed_twice_is_not_written_through() {
    for (lie, flags) in [("link", "-a"), ("link", "-r"), ("linkfile", "-a")] {
        let Some(scene) = Scene::new() else { return };
        let outcome = scene.run(lie).args([flags, "h:dir", "in"]).run();
        let outside = fs::read_dir(scene.outside()).unwrap().count();
        assert_eq!(outside, 0, "{lie} {flags}: {outcome}\n{:?}", scene.found());
        if lie == "linkfile" {
            // To an existing file, too.
            let target = scene.outside().join("file");
            fs::write(&target, "mine").unwrap();
            fs::remove_dir_all(scene.scratch.path().join("a/b/in")).unwrap();
            let run = scene.run(lie).env("OUTSIDE", &target);
            let outcome = run.args([flags, "h:dir", "in"]).run();
            assert_eq!(fs::read(&target).unwrap(), b"mine", "{outcome}");
        }
    }
}

/// A symlink from the first source is at the place of the second one.
#[test]
fn one_source_is_not_written_through_a_symlink_of_another() {
    for lie in ["rootlink", "rootdir"] {
        for sources in [["h:dir/.", "h:x"], ["h:x", "h:dir/."]] {
            let Some(scene) = Scene::new() else { return };
            let outside = match lie {
                "rootlink" => scene.outside().join("file"),
                _ => scene.outside(),
            };
            let run = scene.run(lie).env("OUTSIDE", &outside);
            let outcome = run.arg("-a").args(sources).arg("in").run();
            let found = scene.found();
            let out = found.iter().filter(|path| path.starts_with("outside"));
            assert_eq!(out.count(), 0, "{lie} {sources:?}: {outcome}\n{found:?}");
        }
    }
}

/// The old file was moved aside, and the server dies before the new one gets its name.
#[test]
fn where_the_old_file_is_is_said() {
    let Some(scene) = Scene::new() else { return };
    let file = scene.scratch.path().join("a/b/new");
    fs::write(&file, b"content").unwrap();
    let outcome = scene.run("stranded").args(["new", "h:old"]).run();
    let said = outcome.expect_err(&["the old file was renamed to old/.new."]);
    assert_ne!(said.code, Some(0), "{said}");
}

/// A symlink that the user has created at the target is followed, as with scp.
#[test]
fn a_symlink_of_the_users_own_is_followed() {
    let Some(scene) = Scene::new() else { return };
    let link = scene.scratch.path().join("a/b/mine");
    symlink(scene.outside(), link).unwrap();
    scene
        .run("other")
        .args(["h:file", "mine/"])
        .run()
        .expect_code(0);
    assert!(scene.outside().join("file").is_file());
}

#[test]
fn cve_2019_6109_names_and_errors_do_not_steer_the_terminal() {
    for flags in [&["-r"][..], &["-rv"], &["-r", "--json"]] {
        let Some(scene) = Scene::new() else { return };
        let outcome = scene.run("escape").args(flags).args(["h:dir", "in"]).run();
        assert_ne!(outcome.code, Some(0), "{outcome}");
        assert!(!steers(&outcome), "{:?}", outcome.out() + &outcome.err());
    }
}

#[test]
fn lengths_that_are_not_true_end_in_errors_or_in_what_was_sent() {
    let sources = [
        &["h:dir"][..],
        &["h:huge"],
        &["h:huge", "h:huge0", "h:huge1"],
    ];
    for (flags, sources) in ["-r", "-rav", "-r --json", "-r -l 9999999"]
        .iter()
        .flat_map(|flags| sources.iter().map(move |sources| (flags, *sources)))
    {
        let Some(scene) = Scene::new() else { return };
        let run = scene.run("sizes").args(flags.split(' ')).args(sources);
        let outcome = run.arg("in").run();
        for path in scene.found() {
            let path = scene.scratch.path().join(path);
            if path.is_file() {
                let data = fs::read(&path).unwrap();
                assert_eq!(data, b"evil\n", "{}: {outcome}", path.display());
            }
        }
        // 101 is the exit code of a panic.
        assert!(outcome.code.is_some_and(|code| code < 100), "{outcome}");
    }
}

#[test]
fn a_directory_without_end_ends_in_an_error() {
    let Some(scene) = Scene::new() else { return };
    let outcome = scene.run("endless").args(["-r", "h:dir", "in"]).run();
    assert_ne!(outcome.code, Some(0), "{outcome}");
}

/// A server that expanded `~user/name` chose the local name: `~bob/notes` replaced `.ssh`.
#[test]
fn cve_2019_6111_a_server_that_expands_a_home_names_no_local_file() {
    let Some(scene) = Scene::new() else { return };
    for lie in ["expand", "expand-pattern", "expand-parent"] {
        for (source, written) in [
            (
                "evil:~bob/notes",
                &["a/b/in/notes", "a/b/in/notes/other"][..],
            ),
            ("evil:~bob/ot*", &["a/b/in/other"]),
            ("evil:~bob", &["a/b/in/other"]),
        ] {
            let outcome = scene.run(lie).args(["-r", source, "in"]).run();
            assert_eq!(outcome.code, Some(0), "{lie} {source}\n{}", outcome.err());
            assert_eq!(scene.found(), written, "{lie} {source}");
            let folder = scene.scratch.path().join("a/b/in");
            fs::remove_dir_all(&folder).expect("our folder");
            fs::create_dir(&folder).expect("our folder");
        }
    }
    let outcome = scene
        .run("expand-relative")
        .args(["-r", "evil:~bob/notes", "in"])
        .run();
    outcome
        .expect_code(1)
        .expect_err(&["~bob: the server answered with a path that is not absolute"]);
    assert_eq!(scene.found(), Vec::<String>::new());
}
