//! Another user of a server with longhaul swaps entries of the target for hard links of files from
//! elsewhere.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use longhaul_tests::both_ends::{BothEnds, events, far_end};
use longhaul_tests::{longhaul, names_in};
use testkit::{Outcome, Run, Running, Seed};

use crate::sync::{set_time, write_file};

/// Bytes of a file that is under way while an entry is swapped.
const SIZE: usize = 40_000_000;

/// Two machines with longhaul at the far end, unless this machine cannot have them.
fn started() -> Option<BothEnds> {
    let ends = BothEnds::start()?;
    ends.install();
    Some(ends)
}

/// `longhaul COMMAND FLAGS SOURCE TARGET`, with the longhaul at the far end.
fn run(ends: &BothEnds, command: &[&str], flags: &[&str], source: &str, target: &str) -> Run {
    let dir = &ends.scene.client.dir;
    let run = dir.run(longhaul()).args(command);
    let run = run.arg("-F").arg(dir.config());
    let run = run.args(["--json", "--far-end=exec"]).args(flags);
    run.arg(ends.scene.path(source))
        .arg(ends.scene.remote(target))
}

/// The temporary in this directory, once there is one.
fn temporary_in(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.as_os_str().as_encoded_bytes().ends_with(b".longhaul"))
}

/// Waits until the temporary of a copy that takes seconds is in this directory.
fn under_way(running: &Running, dir: &Path) -> PathBuf {
    assert!(running.until(|| temporary_in(dir).is_some()), "too slow");
    temporary_in(dir).expect("the copy is under way")
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Creates the tree `a`: a directory with a file that is under way for seconds, and a small file.
fn make_source(ends: &BothEnds) {
    let at = |name: &str| ends.scene.path(name);
    write_file(&at("a/sub/big"), &Seed::new(7).bytes(SIZE));
    write_file(&at("a/listed"), b"content");
    set_mode(&at("a/sub"), 0o777);
    set_mode(&at("a/listed"), 0o644);
}

/// Checks that the longhaul at the far end refused to change this many entries.
fn refused(outcome: &Outcome, times: usize) {
    assert_eq!(far_end(outcome)["depth"], "exec", "{outcome}");
    let events = events(outcome).into_iter();
    let errors = events.filter(|event| event["event"] != "summary");
    let found = errors.filter(|event| event.to_string().contains("not the expected entry"));
    assert_eq!(found.count(), times, "{outcome}");
}

/// Bug: a file or directory that was swapped during a sync or copy for a hard link of another file
/// gave that file mode, owner and access control list.
#[test]
fn a_hard_link_in_place_of_an_entry_got_its_mode() {
    let Some(ends) = started() else { return };
    let scene = &ends.scene;
    make_source(&ends);
    let sync: (&[&str], &[&str], &str, usize) = (&["sync"], &["--limit=20MB"], "a", 2);
    let cp: (&[&str], &[&str], &str, usize) = (&["cp", "-a"], &["--limit=20MB"], "a/.", 1);
    for (command, flags, source, times) in [sync, cp] {
        let (target, victim) = (scene.path("b"), scene.path("outside/victim"));
        write_file(&victim, b"precious");
        set_mode(&victim, 0o600);
        if command == ["sync"] {
            // Only its mode differs.
            write_file(&target.join("listed"), b"content");
            let time = fs::metadata(scene.path("a/listed")).expect("ours");
            let file = fs::File::options().write(true).open(target.join("listed"));
            let set = file.and_then(|file| file.set_modified(time.modified()?));
            set.expect("ours");
            set_mode(&target.join("listed"), 0o640);
        }
        let running = run(&ends, command, flags, source, "b").spawn();
        under_way(&running, &target.join("sub"));
        fs::rename(target.join("sub"), scene.path("aside")).expect("ours");
        fs::hard_link(&victim, target.join("sub")).expect("ours");
        if command == ["sync"] {
            fs::remove_file(target.join("listed")).expect("ours");
            fs::hard_link(&victim, target.join("listed")).expect("ours");
        }
        let outcome = running.wait().expect_code(1);
        assert_eq!(mode_of(&victim), 0o600, "{outcome}");
        refused(&outcome, times);
        for dir in ["aside", "b", "outside"] {
            fs::remove_dir_all(scene.path(dir)).expect("ours");
        }
    }
}

/// Bug: a file that was moved in place of a listed one, or another directory, got mode and owner, since
/// the server compared only type and number of links.
#[test]
fn a_moved_entry_in_place_of_a_listed_one_got_its_mode() {
    let Some(ends) = started() else { return };
    let scene = &ends.scene;
    make_source(&ends);
    write_file(&scene.path("b/listed"), b"content");
    for name in ["a/listed", "b/listed"] {
        set_time(&scene.path(name), 1_200_000_000);
    }
    set_mode(&scene.path("b/listed"), 0o640);
    for dir in ["b/sub", "outside/dir"] {
        fs::create_dir_all(scene.path(dir)).expect("ours");
    }
    write_file(&scene.path("outside/file"), b"secrets");
    set_mode(&scene.path("outside/file"), 0o600);
    set_mode(&scene.path("outside/dir"), 0o700);
    let running = run(&ends, &["sync"], &["--limit=20MB"], "a", "b").spawn();
    under_way(&running, &scene.path("b/sub"));
    let inode = |name: &str| fs::metadata(scene.path(name)).expect("ours").ino();
    let (file, dir) = (inode("outside/file"), inode("outside/dir"));
    fs::rename(scene.path("b/sub"), scene.path("aside")).expect("ours");
    fs::rename(scene.path("outside/dir"), scene.path("b/sub")).expect("ours");
    fs::rename(scene.path("outside/file"), scene.path("b/listed")).expect("ours");
    let outcome = running.wait().expect_code(1);
    assert_eq!(
        (inode("b/listed"), inode("b/sub")),
        (file, dir),
        "{outcome}"
    );
    assert_eq!(mode_of(&scene.path("b/listed")), 0o600, "{outcome}");
    let text = events(&outcome)
        .iter()
        .map(|event| event.to_string())
        .collect::<String>();
    assert!(text.contains("another owner, time or inode"), "{outcome}");
    // Inodes count for a server of root.
    if fs::metadata(scene.path("b")).expect("ours").uid() == 0 {
        assert_eq!(mode_of(&scene.path("b/sub")), 0o700, "{outcome}");
    }
}

/// A file of which all hard links are in the target gets its attributes as long as it gets no further
/// link; one that shares a link with a file outside is copied.
#[test]
fn a_file_with_several_hard_links_gets_its_mode() {
    let Some(ends) = started() else { return };
    let scene = &ends.scene;
    for name in ["a/file", "a/other", "a/shared", "b/file", "b/shared"] {
        write_file(&scene.path(name), b"content");
        set_time(&scene.path(name), 1_200_000_000);
        let mode = if name.starts_with('a') { 0o640 } else { 0o600 };
        set_mode(&scene.path(name), mode);
    }
    fs::hard_link(scene.path("b/file"), scene.path("b/other")).expect("ours");
    fs::hard_link(scene.path("b/shared"), scene.path("earlier")).expect("ours");
    let outcome = run(&ends, &["sync"], &[], "a", "b").run().expect_code(0);
    assert_eq!(far_end(&outcome)["depth"], "exec", "{outcome}");
    let links = |name: &str| fs::metadata(scene.path(name)).expect("ours").nlink();
    assert_eq!(
        (mode_of(&scene.path("b/other")), links("b/file")),
        (0o640, 2)
    );
    assert_eq!(
        (mode_of(&scene.path("b/shared")), links("b/shared")),
        (0o640, 1)
    );
    assert_eq!(mode_of(&scene.path("earlier")), 0o600);
}

/// Bug: the temporary of an interrupted upload was swapped for a hard link of a file with the same
/// content, which the resumed upload overwrote.
#[test]
fn a_hard_link_in_place_of_a_temporary_was_overwritten() {
    let Some(ends) = started() else { return };
    let scene = &ends.scene;
    let content = Seed::new(8).bytes(SIZE);
    write_file(&scene.path("big"), &content);
    fs::create_dir(scene.path("to")).expect("ours");
    let cp = |flags: &[&str]| run(&ends, &["cp"], flags, "big", "to/big");
    let running = cp(&["--limit=10MB"]).spawn();
    let temporary = under_way(&running, &scene.path("to"));
    let has_much = || fs::metadata(&temporary).is_ok_and(|meta| meta.len() > 20_000_000);
    assert!(running.until(has_much), "too slow");
    running.interrupt();
    running.wait().expect_code(130);
    let victim = scene.path("victim");
    fs::copy(&temporary, &victim).expect("ours");
    let time = fs::metadata(&temporary).and_then(|meta| meta.modified());
    let file = fs::File::options().write(true).open(&victim).expect("ours");
    file.set_modified(time.expect("a time")).expect("ours");
    let before = fs::read(&victim).expect("ours");
    fs::remove_file(&temporary).expect("ours");
    fs::hard_link(&victim, &temporary).expect("ours");
    let outcome = cp(&[]).run().expect_code(0);
    assert_eq!(far_end(&outcome)["depth"], "exec", "{outcome}");
    assert!(
        outcome.out().contains("starting this file over"),
        "{outcome}"
    );
    assert!(fs::read(&victim).expect("ours") == before, "{outcome}");
    assert!(fs::read(scene.path("to/big")).expect("copied") == content);
    assert_eq!(names_in(&scene.path("to")), ["big"]);
}
