use super::*;
use crate::walk::NOT_REGULAR;
use std::os::unix::fs::symlink;

fn walk(root: &Path, follow: bool) -> Vec<String> {
    let strip = root.as_os_str().len();
    let show = |path: &[u8]| String::from_utf8_lossy(&path[strip..]).into_owned();
    let mut found: Vec<String> = LocalWalk::new(root.to_path_buf(), follow)
        .filter_map(|found| match found {
            WalkEntry::Directory { at, .. } => Some(format!("d {}", show(&at.path))),
            WalkEntry::File(at) => Some(format!("f {}", show(&at.path))),
            WalkEntry::Symlink(at) => Some(format!("l {}", show(&at.path))),
            WalkEntry::Listed(_) => None,
            WalkEntry::Special(path) => Some(format!("! {} {NOT_REGULAR}", show(&path))),
            WalkEntry::Problem { path, what } => Some(format!("! {} {what}", show(&path))),
        })
        .collect();
    found.sort();
    found
}

#[test]
fn everything_is_found_and_said_what_it_is() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let root = dir.path();
    fs::create_dir_all(root.join("a/b"))?;
    fs::write(root.join("a/b/f"), "x")?;
    fs::write(root.join(OsStr::from_bytes(b"n\xff")), "x")?;
    symlink("a", root.join("to_a"))?;
    symlink("nowhere", root.join("broken"))?;
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket"))?;
    assert_eq!(
        walk(root, true),
        [
            "! /broken symlink to nowhere, which does not exist; -a copies the link",
            "! /socket not a regular file",
            "d ",
            "d /a",
            "d /a/b",
            "d /to_a",
            "d /to_a/b",
            "f /a/b/f",
            "f /n\u{fffd}",
            "f /to_a/b/f",
        ]
    );
    assert_eq!(
        walk(root, false),
        [
            "! /socket not a regular file",
            "d ",
            "d /a",
            "d /a/b",
            "f /a/b/f",
            "f /n\u{fffd}",
            "l /broken",
            "l /to_a",
        ]
    );
    Ok(())
}

#[test]
fn directories_come_before_what_is_beside_them_and_in_them() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let root = dir.path();
    for number in 0..100 {
        fs::create_dir(root.join(format!("d{number}")))?;
        fs::write(root.join(format!("d{number}/f")), "")?;
        fs::write(root.join(format!("g{number}")), "")?;
    }
    let found: Vec<WalkEntry> = LocalWalk::new(root.to_path_buf(), true).collect();
    let is_dir = |found: &&WalkEntry| matches!(found, WalkEntry::Directory { .. });
    // The root, plus the directories reported ahead.
    let first = found.iter().take_while(is_dir).count();
    assert_eq!(first, 1 + DIRS_AHEAD);
    assert_eq!(found.iter().filter(is_dir).count(), 101);
    let files = found.iter().filter(|f| matches!(f, WalkEntry::File(_)));
    assert_eq!(files.count(), 200);
    let listed = found.iter().filter(|f| matches!(f, WalkEntry::Listed(_)));
    assert_eq!(listed.count(), 101);
    // Each directory is reported once, before its contents, and ends once, after them.
    let mut open = std::collections::BTreeSet::new();
    let mut over = std::collections::BTreeSet::new();
    for found in &found {
        match found {
            WalkEntry::Directory { id, .. } => assert!(open.insert(*id)),
            WalkEntry::Listed(id) => assert!(open.remove(id) && over.insert(*id)),
            WalkEntry::File(at) => assert!(open.contains(&at.parent.expect("in a directory"))),
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

#[test]
fn what_is_in_a_skipped_directory_is_left_out() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    for name in ["a", "b", "c"] {
        fs::create_dir_all(dir.path().join(name).join("below"))?;
        fs::write(dir.path().join(name).join("f"), "")?;
    }
    let mut walk = LocalWalk::new(dir.path().to_path_buf(), true);
    let mut found = Vec::new();
    while let Some(next) = walk.next() {
        if let WalkEntry::Directory { id, at, .. } = &next
            && at.name == b"b"
        {
            LocalWalk::skip(&mut walk, *id);
        }
        found.push(next);
    }
    let path = |f: &WalkEntry| match f {
        WalkEntry::File(at) | WalkEntry::Directory { at, .. } => Some(at.path.clone()),
        _ => None,
    };
    let inside = |f: &&WalkEntry| path(f).is_some_and(|p| p.windows(3).any(|w| w == b"/b/"));
    assert_eq!(found.iter().filter(inside).count(), 0);
    assert_eq!(found.iter().filter_map(path).count(), 1 + 3 + 4);
    Ok(())
}

#[test]
fn a_directory_that_has_gone_since_it_was_told_of_is_said_and_over() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    fs::create_dir(dir.path().join("a"))?;
    let mut walk = LocalWalk::new(dir.path().to_path_buf(), true);
    assert!(matches!(walk.next(), Some(WalkEntry::Directory { .. })));
    assert!(matches!(walk.next(), Some(WalkEntry::Directory { .. })));
    fs::remove_dir(dir.path().join("a"))?;
    assert!(matches!(walk.next(), Some(WalkEntry::Problem { .. })));
    assert!(matches!(
        walk.next(),
        Some(WalkEntry::Listed(WalkDirectoryId(1)))
    ));
    assert!(matches!(
        walk.next(),
        Some(WalkEntry::Listed(WalkDirectoryId(0)))
    ));
    assert!(walk.next().is_none());
    Ok(())
}

#[test]
fn a_symlink_to_a_directory_above_is_not_followed_for_ever() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    fs::create_dir_all(dir.path().join("a/b"))?;
    symlink("../..", dir.path().join("a/b/up"))?;
    let found = walk(dir.path(), true);
    assert_eq!(found.len(), 4);
    assert!(found[0].starts_with("! /a/b/up symlink loop"), "{found:?}");
    Ok(())
}

#[test]
fn a_tree_deeper_than_the_descriptors_is_walked() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut path = dir.path().to_path_buf();
    for _ in 0..1500 {
        path.push("d");
    }
    fs::create_dir_all(&path)?;
    fs::write(path.join("f"), "")?;
    for level in path.ancestors().take(1500) {
        fs::write(level.join("g"), "")?;
    }
    let found = walk(dir.path(), true);
    assert_eq!(found.len(), 1501 + 1501);
    assert!(!found.iter().any(|f| f.starts_with('!')));
    Ok(())
}

/// Regression test: names outside the source were listed through a symlink that replaced a
/// directory during the walk, and their directories appeared at the target.
#[test]
fn a_directory_that_is_swapped_for_a_symlink_is_not_listed() -> io::Result<()> {
    for deep in [false, true] {
        let dir = tempfile::tempdir()?;
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("a/b"))?;
        fs::create_dir_all(outside.join("b/secret"))?;
        let walk = LocalWalk::new(root.clone(), false);
        let mut found = Vec::new();
        for entry in walk {
            // `a`, or `a/b` below the swapped `a`, is reported and not listed yet.
            let told = if deep { &b"b"[..] } else { b"a" };
            if let WalkEntry::Directory { at, .. } = &entry
                && at.name == told
            {
                fs::rename(root.join("a"), root.join("old"))?;
                symlink(&outside, root.join("a"))?;
            }
            found.push(entry);
        }
        let secret =
            |f: &WalkEntry| matches!(f, WalkEntry::Directory { at, .. } if at.name == b"secret");
        assert!(!found.iter().any(secret), "{found:?}");
        // The directory that was open when it was swapped is listed to its end.
        let problem = |f: &WalkEntry| matches!(f, WalkEntry::Problem { .. });
        assert_eq!(found.iter().any(problem), !deep, "{found:?}");
    }
    Ok(())
}

/// Bug: directories whose path is longer than the system permits were not listed, so that a sync took
/// what it had copied there for missing.
#[test]
fn a_path_of_more_than_4095_bytes_is_listed() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = openat(CWD, dir.path(), flags, Mode::empty())?;
    let name = "d".repeat(200);
    for _ in 0..30 {
        rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU)?;
        at = openat(&at, name.as_str(), flags, Mode::empty())?;
    }
    let file = OFlags::WRONLY | OFlags::CREATE;
    openat(&at, "file", file, Mode::RUSR)?;
    let found: Vec<WalkEntry> = LocalWalk::new(dir.path().to_path_buf(), false).collect();
    let last = found.iter().rev().find_map(|entry| match entry {
        WalkEntry::File(at) => Some(at),
        _ => None,
    });
    let last = last.expect("the file is found");
    assert_eq!(
        (last.name.as_slice(), last.path.len() > 6000),
        (&b"file"[..], true)
    );
    assert_eq!(found.len(), 2 * 31 + 1);
    Ok(())
}
