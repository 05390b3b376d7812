//! Tests that paths below a target are resolved without symlinks.

use super::*;
use std::os::unix::fs::symlink;

type Result = io::Result<()>;

/// Creates `target/a/b`, and `outside` with the same subdirectory.
fn tree() -> io::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    fs::create_dir_all(dir.path().join("target/a/b"))?;
    fs::create_dir_all(dir.path().join("outside/b"))?;
    Ok(dir)
}

fn path(dir: &tempfile::TempDir, below: &str) -> LocalTargetPath {
    LocalTargetPath::beneath(dir.path().join("target"), below, false)
}

fn write(directories: &OpenDirectoryCache, path: &LocalTargetPath) -> io::Result<()> {
    let at = directories.locate(path)?;
    at.open(OFlags::WRONLY | OFlags::CREATE, 0o600)?;
    Ok(())
}

fn is_loop(result: io::Result<impl Sized>) -> bool {
    let error = result.err();
    error.and_then(|e| Errno::from_io_error(&e)) == Some(Errno::LOOP)
}

#[test]
fn a_symlink_below_what_was_named_is_never_gone_through() -> Result {
    let dir = tree()?;
    symlink("../outside", dir.path().join("target/link"))?;
    symlink("a", dir.path().join("target/within"))?;
    let directories = OpenDirectoryCache::default();
    for through in ["link/f", "link/b/f", "within/f", "within/b/f"] {
        let located = directories.locate(&path(&dir, through));
        assert!(is_loop(located), "{through}");
    }
    // The last name is not followed when the entry is opened either.
    let link = directories.locate(&path(&dir, "link"))?;
    assert_eq!(link.look()?.as_ref().map(kind_of), Some(FileType::Symlink));
    assert!(link.open(OFlags::RDONLY, 0).is_err());
    // With dirlinks allowed, the symlink is followed.
    let target = dir.path().join("target");
    let asked = LocalTargetPath::beneath(target, "link/b/f", true);
    write(&directories, &asked)?;
    assert!(dir.path().join("outside/b/f").exists());
    Ok(())
}

#[test]
fn what_was_named_may_be_a_symlink_and_is_resolved_once() -> Result {
    let dir = tree()?;
    let named = dir.path().join("named");
    symlink("target", &named)?;
    let at = |below: &str| LocalTargetPath::beneath(&named, below, false);
    let directories = OpenDirectoryCache::default();
    write(&directories, &at("a/first"))?;
    fs::remove_file(&named)?;
    symlink("outside", &named)?;
    for below in ["second", "a/third", "a/b/fourth"] {
        write(&directories, &at(below))?;
        assert!(dir.path().join("target").join(below).exists(), "{below}");
    }
    assert_eq!(fs::read_dir(dir.path().join("outside"))?.count(), 1);
    Ok(())
}

#[test]
fn a_path_that_leads_elsewhere_is_refused() -> Result {
    let dir = tree()?;
    let directories = OpenDirectoryCache::default();
    for elsewhere in ["/etc/passwd", "../outside/f", "a/../../outside/f"] {
        let path = path(&dir, elsewhere);
        assert!(directories.locate(&path).is_err(), "{elsewhere}");
        assert!(directories.destination(&path).is_err(), "{elsewhere}");
        assert!(directories.directory(&path).is_err(), "{elsewhere}");
    }
    Ok(())
}

/// Swaps directories for symlinks as fast as possible while files are written below them, through
/// caches that know the directories and through others that do not.
#[test]
fn whoever_swaps_directories_for_symlinks_meanwhile_gains_nothing() -> Result {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    let dir = tree()?;
    let (a, aside) = (dir.path().join("target/a"), dir.path().join("target/aside"));
    let (over, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let swapped = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| -> io::Result<()> {
            while !over.load(Ordering::Relaxed) {
                fs::rename(&a, &aside)?;
                symlink("../outside", &a)?;
                fs::remove_file(&a)?;
                fs::rename(&aside, &a)?;
                swaps.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let known = OpenDirectoryCache::default();
        let (mut n, mut written) = (0, 0);
        // On a busy machine, the directory can be away at each of many writes, and the other thread
        // can have no processor.
        let few = |written| written == 0 || swaps.load(Ordering::Relaxed) <= 10;
        while n < 2000 || (few(written) && n < 200_000 && !swapper.is_finished()) {
            for below in [format!("a/f{n}"), format!("a/b/f{n}")] {
                let path = path(&dir, &below);
                written += u32::from(write(&known, &path).is_ok());
                written += u32::from(write(&OpenDirectoryCache::default(), &path).is_ok());
            }
            n += 1;
        }
        over.store(true, Ordering::Relaxed);
        swapper.join()
    });
    swapped.expect("no panic of the swapping thread")?;
    assert!(swaps.into_inner() > 10);
    assert_eq!(fs::read_dir(dir.path().join("outside"))?.count(), 1);
    assert_eq!(fs::read_dir(dir.path().join("outside/b"))?.count(), 0);
    // Some files were written nevertheless, beside the directory `b` or in it.
    let entries = |below: &str| io::Result::Ok(fs::read_dir(dir.path().join(below))?.count());
    assert!(entries("target/a")? + entries("target/a/b")? > 1);
    Ok(())
}

#[test]
fn a_source_is_not_read_through_a_symlink_that_was_put_there_after_the_listing() -> Result {
    let dir = tree()?;
    let root = dir.path().join("target");
    let secret = dir.path().join("outside/secret");
    fs::write(&secret, "secret")?;
    fs::write(root.join("a/file"), "data")?;
    symlink("../../outside/secret", root.join("a/last"))?;
    symlink("../outside", root.join("way"))?;
    // The named root itself may be a symlink of the user's.
    let named = dir.path().join("named");
    symlink("target", &named)?;
    for root in [&root, &named] {
        let known = OpenDirectoryCache::default();
        // With -r alone symlinks are followed, as by scp.
        assert!(known.open_source(&root.join("a/last")).is_ok());
        known.follow_no_symlink_below(root.clone());
        assert!(known.open_source(&root.join("a/file")).is_ok());
        assert!(known.open_source(&root.join("a/last")).is_err());
        assert!(known.open_source(&root.join("way/secret")).is_err());
        // Another source of the same command.
        assert!(known.open_source(&secret).is_ok());
    }
    let here = OpenDirectoryCache::default();
    here.follow_no_symlink_below(".".into());
    for file in ["Cargo.toml", "./Cargo.toml", "src/lib.rs"] {
        assert!(here.open_source(Path::new(file)).is_ok(), "{file}");
    }
    Ok(())
}

#[test]
fn a_bounded_number_of_directories_is_held_open() -> Result {
    let dir = tree()?;
    let directories = OpenDirectoryCache::default();
    for n in 0..3 * MOST {
        let below = format!("a/d{n}");
        fs::create_dir(dir.path().join("target").join(&below))?;
        write(&directories, &path(&dir, &format!("{below}/f")))?;
    }
    assert_eq!(directories.state().below.len(), MOST);
    assert_eq!(directories.state().named.len(), 1);
    Ok(())
}

#[test]
fn a_directory_that_was_made_again_is_found_again() -> Result {
    let dir = tree()?;
    let directories = OpenDirectoryCache::default();
    let at = path(&dir, "a/f");
    write(&directories, &at)?;
    fs::remove_dir_all(dir.path().join("target/a"))?;
    fs::create_dir(dir.path().join("target/a"))?;
    assert!(write(&directories, &at).is_err());
    assert!(directories.forget(&at) && !directories.forget(&at));
    write(&directories, &at)?;
    assert!(dir.path().join("target/a/f").exists());
    Ok(())
}

#[test]
fn a_target_that_was_made_is_the_one_that_is_written_to() -> Result {
    let dir = tree()?;
    let (new, aside) = (dir.path().join("new"), dir.path().join("aside"));
    let directories = OpenDirectoryCache::default();
    directories.make_named(&new, 0o700)?;
    // Another user with write permission in the parent puts a symlink there.
    fs::rename(&new, &aside)?;
    symlink("outside", &new)?;
    write(&directories, &LocalTargetPath::beneath(&new, "f", false))?;
    assert!(aside.join("f").exists());
    assert_eq!(fs::read_dir(dir.path().join("outside"))?.count(), 1);
    // One that was missing, and that somebody else has made, is used unless it is a symlink.
    let directories = OpenDirectoryCache::default();
    let swapped = directories.adopt_named(&new).err();
    assert_eq!(
        swapped.map(|e| e.kind()),
        Some(io::ErrorKind::NotADirectory)
    );
    directories.adopt_named(&aside)?;
    // An existing directory was named by the user and is used.
    let there = directories.make_named(Path::new("."), 0o700).err();
    assert_eq!(there.map(|e| e.kind()), Some(io::ErrorKind::AlreadyExists));
    Ok(())
}

/// Directories whose path below the target is longer than the system permits could not be made, nor
/// get their mode and times, while files beside them were written.
#[test]
fn a_path_of_more_than_4095_bytes_could_not_be_entered() -> Result {
    let dir = tree()?;
    let directories = OpenDirectoryCache::default();
    let name = "n".repeat(250);
    for dirlinks in [false, true] {
        let at = |below: &str| LocalTargetPath::beneath(dir.path().join("target"), below, dirlinks);
        let mut below = format!("top-{dirlinks}");
        while below.len() < 9000 {
            let place = directories.locate(&at(&below))?;
            mkdirat(&place.dir, &place.name, Mode::from_raw_mode(0o755))?;
            assert!(
                directories.directory(&at(&below)).is_ok(),
                "{}",
                below.len()
            );
            below = format!("{below}/{name}");
        }
        write(&directories, &at(&below))?;
        let there = directories.look(&at(&below))?;
        assert!(there.is_some_and(|stat| kind_of(&stat) == FileType::RegularFile));
    }
    Ok(())
}

/// Bug: a user who could write in the target's directory put a hard link of a file from elsewhere in
/// place of a new symlink, and the file got the symlink's owner.
#[test]
fn a_file_in_place_of_a_symlink_got_its_owner() -> Result {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("file"), b"content")?;
    symlink("nowhere", dir.path().join("symlink"))?;
    let directories = OpenDirectoryCache::default();
    let user = rustix::process::geteuid();
    for (name, is_symlink) in [("symlink", true), ("file", false)] {
        let path = LocalTargetPath::beneath(dir.path(), name, false);
        let set = directories.locate(&path)?.with_symlink(|dir, name, flags| {
            rustix::fs::chownat(dir, name, Some(user), None, flags)
        });
        assert_eq!(set.is_ok_and(|set| set.is_ok()), is_symlink, "{name}");
    }
    Ok(())
}
