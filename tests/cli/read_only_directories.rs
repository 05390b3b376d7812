//! Directories of the target that their owner may not write, as an ordinary user.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use longhaul_tests::{Scene, longhaul, scratch};
use tempfile::TempDir;
use testkit::{Outcome, PeerBuilder, Run, missing};

use crate::sync::write_file;

/// ID of user and group that own the target if the tests run as root.
const USER: u32 = 65_534;

/// Place of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here,
    Stock,
    Longhaul,
}

/// Source and target, and the way to the target as an ordinary user.
struct Ordinary {
    place: Place,
    scene: Option<Scene>,
    files: TempDir,
}

impl fmt::Display for Ordinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.place)
    }
}

/// Returns a command line that runs `program` as an ordinary user.
fn as_user(program: &Path) -> String {
    let program = program.display();
    match missing::is_root() {
        true => format!("setpriv --reuid {USER} --regid {USER} --clear-groups {program}"),
        false => program.to_string(),
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
}

impl Ordinary {
    fn start(place: Place) -> Option<Self> {
        let files = scratch();
        set_mode(files.path(), 0o755);
        let script = files.path().join("bin/longhaul");
        let (program, rest) = match place {
            Place::Stock => (missing::sftp_server()?, ""),
            Place::Here | Place::Longhaul => (longhaul(), " \"$@\""),
        };
        let home = files.path().join("home");
        fs::create_dir(&home).expect("our folder");
        let text = format!(
            "#!/bin/sh\nexport HOME={}\nexec {}{rest}\n",
            home.display(),
            as_user(&program)
        );
        write_file(&script, text.as_bytes());
        set_mode(&script, 0o755);
        if missing::is_root() {
            chown(&home, Some(USER), Some(USER)).expect("root may");
        }
        let server = PeerBuilder::openssh();
        let server = match place {
            Place::Here => None,
            Place::Stock => Some(server.option("Subsystem", format!("sftp {}", script.display()))),
            Place::Longhaul => {
                let path = script.parent().expect("a folder").display();
                Some(server.option("SetEnv", format!("PATH={path}:/usr/bin:/bin")))
            }
        };
        let scene = match server {
            Some(server) => Some(Scene::with(server)?),
            None => None,
        };
        if scene.as_ref().is_some_and(|scene| scene.client.is_scp()) {
            return None;
        }
        Some(Self {
            place,
            scene,
            files,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Gives the target and all below it to the ordinary user.
    fn give_target(&self) {
        if missing::is_root() {
            let target = self.path("target");
            let owner = format!("{USER}:{USER}");
            let run = Run::new("chown").args(["-hR", &owner]).arg(target);
            run.run().expect_code(0);
        }
    }

    fn run(&self, words: &[&str], source: &str) -> Outcome {
        let source = self.path(source);
        let target = self.path("target");
        let Some(scene) = &self.scene else {
            let run = Run::new(self.path("bin/longhaul")).args(words);
            return run.arg(source).arg(target).run();
        };
        let far = match self.place {
            Place::Longhaul => "--far-end=exec",
            _ => "--far-end=stock",
        };
        let (command, flags) = words.split_first().expect("a command");
        let run = scene.client.dir.run(longhaul()).arg(command);
        let run = run.arg("-F").arg(scene.client.dir.config());
        let run = run.arg(far).args(flags).arg(source);
        run.arg(longhaul_tests::remote("peer", &target)).run()
    }
}

fn each_place(test: impl Fn(&Ordinary)) {
    for place in [Place::Here, Place::Stock, Place::Longhaul] {
        if let Some(ordinary) = Ordinary::start(place) {
            test(&ordinary);
        }
    }
}

/// Creates the directory tree of a source, and the same one in the target, with old files and
/// directories that their owner may not write.
fn make_trees(user: &Ordinary, closed: u32) {
    for (root, dirs) in [
        (
            "source",
            &["", "open", "closed", "closed/deep", "closed/new"][..],
        ),
        ("target", &["", "open", "closed", "closed/deep"]),
    ] {
        for dir in dirs {
            let dir = user.path(root).join(dir);
            for name in ["old", "large-old"] {
                // A sync tells the files apart by their sizes.
                let len = usize::from(root == "target") + if name == "old" { 100 } else { 900_000 };
                write_file(&dir.join(name), &vec![root.as_bytes()[0]; len]);
            }
            symlink(root, dir.join("link")).expect("ours");
            if root == "source" {
                write_file(&dir.join("fresh"), b"fresh");
            }
        }
    }
    let (source, target) = (user.path("source"), user.path("target"));
    user.give_target();
    for dir in ["closed/new", "closed/deep", "closed"] {
        set_mode(&source.join(dir), 0o555);
    }
    close(&target, closed);
}

fn close(target: &Path, mode: u32) {
    for dir in ["closed/deep", "closed", "open"] {
        set_mode(&target.join(dir), mode);
    }
    if mode & 0o100 != 0 {
        set_mode(target, mode);
    }
}

/// Asserts that the target has the files of the source, under their names and with its modes, and
/// that no file was overwritten in place.
fn assert_is_copied(user: &Ordinary, inode: u64, outcome: &Outcome) {
    let (source, target) = (user.path("source"), user.path("target"));
    let compare = Run::new("rsync").args(["-rlptni", "--checksum", "--delete"]);
    let compare = compare.arg(format!("{}/", source.display()));
    let compare = compare.arg(format!("{}/", target.display())).run();
    assert_eq!(compare.expect_code(0).out(), "", "{user}: {outcome}");
    assert_eq!(mode(&target.join("closed")), 0o555, "{user}");
    let now = fs::metadata(target.join("closed/old")).expect("it is there");
    assert_ne!(now.ino(), inode, "{user}: written in place: {outcome}");
}

/// Makes both trees anew; returns the inode of a file in a closed directory of the target.
fn remake_trees(user: &Ordinary, closed: u32) -> u64 {
    for name in ["source", "target"] {
        let path = user.path(name);
        if path.exists() {
            let open = Run::new("chmod").args(["-R", "u+rwx"]).arg(&path);
            open.run().expect_code(0);
            fs::remove_dir_all(path).expect("ours");
        }
    }
    make_trees(user, 0o755);
    let old = fs::metadata(user.path("target/closed/old")).expect("ours");
    close(&user.path("target"), closed);
    old.ino()
}

/// Bug: new entries were refused, and existing files overwritten in place, where rsync makes the
/// directory writable and sets its mode in the end.
#[test]
fn a_read_only_directory_of_the_target_took_no_new_entries() {
    each_place(|user| {
        for closed in [0o555, 0o111, 0o300, 0] {
            let inode = remake_trees(user, closed);
            let outcome = user.run(&["cp", "-a"], "source/.").expect_code(0);
            assert_is_copied(user, inode, &outcome);
        }
    });
}

/// Bug: what the source has in such a directory was refused, although the directory got the mode of
/// its source. rsync makes it writable.
#[test]
fn a_sync_did_not_fill_a_directory_that_it_could_not_list() {
    each_place(|user| {
        if user.place == Place::Here {
            return;
        }
        for closed in [0o111, 0] {
            let inode = remake_trees(user, closed);
            // A target that cannot be listed ends the sync.
            set_mode(&user.path("target"), 0o755);
            let outcome = user.run(&["sync"], "source").expect_code(1);
            let outcome = outcome.expect_err(&["cannot list the directory"]);
            assert_is_copied(user, inode, &outcome);
        }
    });
}

/// scp changes no modes of directories without -p.
#[test]
fn a_read_only_directory_stays_closed_without_preservation() {
    each_place(|user| {
        make_trees(user, 0o555);
        let outcome = user.run(&["cp", "-r"], "source/.").expect_code(1);
        outcome.expect_err(&["permission denied"]);
        assert!(!user.path("target/fresh").exists(), "{user}");
        assert_eq!(mode(&user.path("target")), 0o555, "{user}");
    });
}
