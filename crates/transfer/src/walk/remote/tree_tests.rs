use std::collections::BTreeSet;

use schedule::JobKind;

use super::*;
use crate::file_error::FileError;
use crate::walk::{EntryInfo, NOT_REGULAR, WalkEntry};

/// Answer of a server that lists no trees.
fn no_trees() -> FileError {
    FileError::new(schedule::NO_TREES, JobFailureKind::Unsupported)
}

fn mode(mode: u32) -> Attributes {
    Attributes {
        mode: Some(mode),
        ..Attributes::default()
    }
}

fn file(name: &str) -> TreeWalkStep {
    TreeWalkStep::Entry(name.as_bytes().to_vec(), mode(0o100_644))
}

fn enter(name: &str) -> TreeWalkStep {
    TreeWalkStep::Enter(name.as_bytes().to_vec(), mode(0o040_755))
}

fn walk() -> (RemoteWalk, u64) {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(0o040_755), false, None);
    walk.list_in_trees();
    let asked = walk.poll_request().expect("the root");
    assert!(matches!(asked.kind, JobKind::ListTree { .. }));
    (walk, asked.tag)
}

/// Returns the entries found. Asserts that each is found once and that no directory ends before its
/// contents.
fn found(walk: &mut RemoteWalk) -> Vec<String> {
    let mut seen = Vec::new();
    let mut open = BTreeSet::new();
    let name = |at: EntryInfo| String::from_utf8(at.path).expect("ours");
    while let Some(found) = walk.poll_found() {
        match found {
            WalkEntry::Directory { id, at, .. } => {
                assert!(open.insert(id));
                seen.push(format!("d {}", name(at)));
            }
            WalkEntry::File(at) => {
                assert!(open.contains(&at.parent.expect("not the root")));
                seen.push(format!("f {}", name(at)));
            }
            WalkEntry::Listed(id) => assert!(open.remove(&id)),
            WalkEntry::Special(path) => {
                let path = String::from_utf8(path).expect("ours");
                seen.push(format!("! {path} {NOT_REGULAR}"));
            }
            WalkEntry::Problem { path, what } => {
                let path = String::from_utf8(path).expect("ours");
                seen.push(format!("! {path} {what}"));
            }
            WalkEntry::Symlink(at) => seen.push(format!("l {}", name(at))),
        }
    }
    assert!(open.is_empty(), "{open:?} is not closed");
    seen.sort();
    seen
}

fn steps() -> Vec<TreeWalkStep> {
    vec![
        file("a"),
        enter("x"),
        file("b"),
        enter("y"),
        file("c"),
        TreeWalkStep::Leave,
        enter("locked"),
        TreeWalkStep::Failed("permission denied".to_owned()),
        TreeWalkStep::Leave,
        file("d"),
        TreeWalkStep::Leave,
        file("e"),
        TreeWalkStep::Leave,
    ]
}

const ALL: [&str; 10] = [
    "! r/x/locked permission denied",
    "d r",
    "d r/x",
    "d r/x/locked",
    "d r/x/y",
    "f r/a",
    "f r/e",
    "f r/x/b",
    "f r/x/d",
    "f r/x/y/c",
];

#[test]
fn a_tree_is_found_as_it_is_told() {
    for at_once in [1, 3, 100] {
        let (mut walk, tag) = walk();
        for part in steps().chunks(at_once) {
            walk.handle(tag, WalkAnswer::Tree(part.to_vec()));
        }
        walk.handle(tag, WalkAnswer::Done);
        assert_eq!(found(&mut walk), ALL);
        assert!(walk.is_over());
    }
}

/// Repeats the loss of the lane at every position, twice.
#[test]
fn what_is_told_again_is_found_once() {
    for first in 0..=13 {
        for second in 0..=13 {
            let (mut walk, tag) = walk();
            for lost in [first, second] {
                let told = steps().into_iter().take(lost).collect();
                walk.handle(tag, WalkAnswer::Tree(told));
                walk.handle(tag, WalkAnswer::Restarted);
            }
            walk.handle(tag, WalkAnswer::Tree(steps()));
            walk.handle(tag, WalkAnswer::Done);
            let mut found = found(&mut walk);
            // A directory that cannot be listed is reported for each attempt.
            found.dedup();
            assert_eq!(found, ALL, "{first} {second}");
            assert!(walk.is_over());
        }
    }
}

#[test]
fn what_has_vanished_when_it_is_told_again_is_closed() {
    for lost in 0..=13 {
        let (mut walk, tag) = walk();
        walk.handle(
            tag,
            WalkAnswer::Tree(steps().into_iter().take(lost).collect()),
        );
        walk.handle(tag, WalkAnswer::Restarted);
        let rest = vec![file("e"), TreeWalkStep::Leave];
        walk.handle(tag, WalkAnswer::Tree(rest));
        walk.handle(tag, WalkAnswer::Done);
        found(&mut walk);
        assert!(walk.is_over());
    }
}

#[test]
fn a_listing_that_fails_closes_what_it_had_begun() {
    for lost in 0..13 {
        let (mut walk, tag) = walk();
        walk.handle(
            tag,
            WalkAnswer::Tree(steps().into_iter().take(lost).collect()),
        );
        walk.handle(tag, WalkAnswer::Failed("broken".into()));
        let found = found(&mut walk);
        assert!(found.iter().any(|f| f.ends_with("broken")), "{found:?}");
        assert!(walk.is_over());
    }
}

#[test]
fn what_is_skipped_is_left_out_with_all_below() {
    let (mut walk, tag) = walk();
    walk.handle(tag, WalkAnswer::Tree(steps().into_iter().take(3).collect()));
    let mut x = None;
    while let Some(found) = walk.poll_found() {
        if let WalkEntry::Directory { id, at, .. } = found
            && at.path == b"r/x"
        {
            x = Some(id);
        }
    }
    walk.skip(x.expect("it was found"));
    walk.handle(tag, WalkAnswer::Tree(steps().into_iter().skip(3).collect()));
    walk.handle(tag, WalkAnswer::Done);
    let mut rest = Vec::new();
    while let Some(found) = walk.poll_found() {
        if let WalkEntry::File(at) | WalkEntry::Directory { at, .. } = found {
            rest.push(at.path);
        }
    }
    assert_eq!(rest, [b"r/e".to_vec()]);
    assert!(walk.is_over());
}

/// The walk requests directories that the server does not enter: those too deep or behind a
/// symlink.
#[test]
fn what_was_not_entered_is_listed_by_itself() {
    let (mut walk, tag) = walk();
    let deep = TreeWalkStep::Entry(b"deep".to_vec(), mode(0o040_755));
    walk.handle(tag, WalkAnswer::Tree(vec![deep, TreeWalkStep::Leave]));
    walk.handle(tag, WalkAnswer::Done);
    let asked = walk.poll_request().expect("the deeper one");
    let JobKind::ListTree { path, .. } = asked.kind else {
        panic!("{:?}", asked.kind);
    };
    assert_eq!(path.0, b"r/deep");
    walk.handle(
        asked.tag,
        WalkAnswer::Tree(vec![file("f"), TreeWalkStep::Leave]),
    );
    walk.handle(asked.tag, WalkAnswer::Done);
    assert_eq!(found(&mut walk), ["d r", "d r/deep", "f r/deep/f"]);
}

/// The longhaul at the far end was killed during the listing, and the stock SFTP server takes over.
#[test]
fn what_is_left_of_a_tree_is_listed_one_by_one_where_no_server_lists_trees_any_more() {
    let (mut walk, tag) = walk();
    let part = vec![file("a"), enter("d"), file("b")];
    walk.handle(tag, WalkAnswer::Tree(part));
    walk.handle(tag, WalkAnswer::Restarted);
    walk.handle(tag, WalkAnswer::Failed(no_trees()));
    while let Some(asked) = walk.poll_request() {
        let JobKind::List { path, .. } = asked.kind else {
            panic!("{:?}", asked.kind);
        };
        let plain = |name: &str| (name.as_bytes().to_vec(), mode(0o100_644));
        let dir = |name: &str| (name.as_bytes().to_vec(), mode(0o040_755));
        let entries = match path.0.as_slice() {
            b"r" => vec![plain("a"), dir("d"), plain("later"), dir("e")],
            b"r/d" => vec![plain("b"), plain("c")],
            b"r/e" => vec![plain("f")],
            other => panic!("{other:?}"),
        };
        walk.handle(asked.tag, WalkAnswer::Entries(entries));
        walk.handle(asked.tag, WalkAnswer::Done);
    }
    let all = [
        "d r",
        "d r/d",
        "d r/e",
        "f r/a",
        "f r/d/b",
        "f r/d/c",
        "f r/e/f",
        "f r/later",
    ];
    assert_eq!(found(&mut walk), all);
    assert!(walk.is_over());
}

#[test]
fn names_of_our_own_are_left_out_of_a_tree_with_all_below() {
    let (mut walk, tag) = walk();
    let told = vec![
        file("a"),
        enter(".longhaul-x"),
        file("b"),
        enter("y"),
        TreeWalkStep::Leave,
        TreeWalkStep::Leave,
        file(".a.0123456789.longhaul"),
        file("c"),
        TreeWalkStep::Leave,
    ];
    walk.handle(tag, WalkAnswer::Tree(told));
    walk.handle(tag, WalkAnswer::Done);
    let found = found(&mut walk);
    let refused: Vec<_> = found.iter().filter(|line| line.starts_with('!')).collect();
    assert_eq!(refused.len(), 2, "{found:?}");
    assert_eq!(found[2..], ["d r", "f r/a", "f r/c"]);
}
