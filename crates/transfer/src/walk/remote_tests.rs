use schedule::JobFailureKind;

use super::*;
use crate::walk::NOT_REGULAR;

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

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

fn real(path: &[u8]) -> Vec<u8> {
    match path {
        b"r/sub/up" => b"/home/r".to_vec(),
        b"r/side" => b"/elsewhere".to_vec(),
        other => panic!("{}", EscapedName(other.to_vec())),
    }
}

fn entries(path: &[u8]) -> Vec<(Vec<u8>, Attributes)> {
    let list: &[(&str, u32)] = match path {
        b"r" => &[
            ("f", FILE),
            ("sub", DIR),
            ("side", LINK),
            ("gone", LINK),
            ("fifo", 0o010_644),
        ],
        b"r/sub" => &[("up", LINK), ("g", LINK)],
        b"r/side" => &[("h", FILE)],
        other => panic!("{}", EscapedName(other.to_vec())),
    };
    list.iter()
        .map(|(n, m)| (n.as_bytes().to_vec(), mode(*m)))
        .collect()
}

fn answers(kind: &JobKind) -> Vec<WalkAnswer> {
    match kind {
        JobKind::List { path, .. } => vec![WalkAnswer::Entries(entries(&path.0)), WalkAnswer::Done],
        JobKind::RealPath { path } => vec![WalkAnswer::Path(real(&path.0)), WalkAnswer::Done],
        JobKind::Stat { path, .. } => match &path.0[..] {
            b"r/sub/g" => vec![WalkAnswer::Attributes(mode(FILE)), WalkAnswer::Done],
            b"r/gone" => vec![WalkAnswer::Failed("no such file".into())],
            _ => vec![WalkAnswer::Attributes(mode(DIR)), WalkAnswer::Done],
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_with_links_and_a_loop_is_walked_once() {
    let real = Some(b"/home/r".to_vec());
    let mut walk = RemoteWalk::new(b"r".to_vec(), real, mode(DIR), true, None);
    let mut seen = Vec::new();
    let mut open = BTreeSet::new();
    while !walk.is_over() {
        let mut requests = Vec::new();
        while let Some(request) = walk.poll_request() {
            requests.push(request);
        }
        for request in requests.into_iter().rev() {
            for answer in answers(&request.kind) {
                walk.handle(request.tag, answer);
            }
        }
        while let Some(found) = walk.poll_found() {
            seen.push(match found {
                WalkEntry::Directory { id, at, .. } => {
                    open.insert(id);
                    format!("d {}", EscapedName(at.path))
                }
                WalkEntry::File(at) => {
                    assert!(open.contains(&at.parent.expect("not the root")));
                    format!("f {}", EscapedName(at.path))
                }
                WalkEntry::Symlink(at) => format!("l {}", EscapedName(at.path)),
                WalkEntry::Listed(id) => {
                    assert!(open.remove(&id));
                    continue;
                }
                WalkEntry::Special(path) => format!("! {} {NOT_REGULAR}", EscapedName(path)),
                WalkEntry::Problem { path, what } => format!("! {} {what}", EscapedName(path)),
            });
        }
    }
    seen.sort();
    assert!(open.is_empty());
    assert_eq!(
        seen,
        [
            "! r/fifo not a regular file",
            "! r/gone no such file",
            "! r/sub/up symlink loop: the link leads back to r; -a copies the link",
            "d r",
            "d r/side",
            "d r/sub",
            "f r/f",
            "f r/side/h",
            "f r/sub/g",
        ]
    );
}

/// Bug: the sentence was compared, so that a server with words of its own got another one.
#[test]
fn a_dangling_symlink_is_named_as_one_whatever_the_server_says() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), true, None);
    let root = walk.poll_request().expect("the root");
    let entries = vec![(b"gone".to_vec(), mode(LINK))];
    walk.handle(root.tag, WalkAnswer::Entries(entries));
    walk.handle(root.tag, WalkAnswer::Done);
    let look = walk.poll_request().expect("the symlink");
    let said = "no such file or directory (file does not exist)";
    let error = FileError::new(said, JobFailureKind::NotFound);
    walk.handle(look.tag, WalkAnswer::Failed(error));
    let mut found = std::iter::from_fn(|| walk.poll_found());
    let what = found.find_map(|found| match found {
        WalkEntry::Problem { what, .. } => Some(what),
        _ => None,
    });
    assert!(what.is_some_and(|what| what.starts_with("symlink to a name that does not exist")));
}

/// Returns the peak number of concurrent listings for a root with 1,000 directories of `files`
/// files each.
fn most_at_a_time(files: usize) -> usize {
    let name = |n: usize| n.to_string().into_bytes();
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let (mut most, mut listed) = (0, 0);
    while !walk.is_over() {
        let asked: Vec<WalkRequest> = std::iter::from_fn(|| walk.poll_request()).collect();
        most = most.max(asked.len());
        for request in asked {
            let JobKind::List { path, .. } = &request.kind else {
                panic!("{request:?}");
            };
            let entries: Vec<_> = match &path.0[..] {
                b"r" => (0..1000).map(|n| (name(n), mode(DIR))).collect(),
                _ => (0..files).map(|n| (name(n), mode(FILE))).collect(),
            };
            walk.handle(request.tag, WalkAnswer::Entries(entries));
            walk.handle(request.tag, WalkAnswer::Done);
        }
        while let Some(found) = walk.poll_found() {
            listed += usize::from(matches!(found, WalkEntry::Listed(_)));
        }
    }
    assert_eq!(listed, 1001);
    most
}

/// Performance bug: 2,400 directories of six files each took 53 s over 114 ms.
#[test]
fn directories_that_bring_little_are_listed_many_at_a_time() {
    assert_eq!(most_at_a_time(2), MOST_LISTS);
    assert!((40..MOST_LISTS).contains(&most_at_a_time(40)));
    assert_eq!(most_at_a_time(500), LISTS);
}

/// The first visit to a host starts on the stock server and finds a longhaul later.
#[test]
fn what_is_left_of_a_walk_goes_on_in_trees_as_many_as_are_allowed() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let root = walk.poll_request().expect("the root");
    assert!(matches!(root.kind, JobKind::List { .. }));
    walk.list_in_trees();
    let entries = [b"a", b"b", b"c"].map(|name| (name.to_vec(), mode(DIR)));
    walk.handle(root.tag, WalkAnswer::Entries(entries.into()));
    walk.handle(root.tag, WalkAnswer::Done);
    let mut trees = Vec::new();
    for may in [true, true, false] {
        walk.allow_tree(may);
        let asked = walk.poll_request();
        assert_eq!(asked.is_some(), may);
        trees.extend(asked);
    }
    assert!(
        trees
            .iter()
            .all(|asked| matches!(asked.kind, JobKind::ListTree { .. }))
    );
    assert_eq!(walk.trees_asked(), 2);
    let file = TreeWalkStep::Entry(b"f".to_vec(), mode(FILE));
    let last = trees.pop().expect("two");
    walk.handle(
        last.tag,
        WalkAnswer::Tree(vec![file.clone(), TreeWalkStep::Leave]),
    );
    walk.handle(last.tag, WalkAnswer::Done);
    assert_eq!(walk.trees_asked(), 1);
    // The longhaul is gone: the rest is listed directory by directory until the end.
    let first = trees.pop().expect("one");
    walk.handle(first.tag, WalkAnswer::Failed(no_trees()));
    walk.list_in_trees();
    let plainly: Vec<WalkRequest> = std::iter::from_fn(|| walk.poll_request()).collect();
    assert_eq!((plainly.len(), walk.trees_asked()), (2, 0));
    for asked in plainly {
        assert!(matches!(asked.kind, JobKind::List { .. }));
        walk.handle(
            asked.tag,
            WalkAnswer::Entries(vec![(b"f".to_vec(), mode(FILE))]),
        );
        walk.handle(asked.tag, WalkAnswer::Done);
    }
    let found: Vec<WalkEntry> = std::iter::from_fn(|| walk.poll_found()).collect();
    let files = found
        .iter()
        .filter(|found| matches!(found, WalkEntry::File(_)));
    assert_eq!(files.count(), 3);
    assert!(walk.is_over());
}

/// Security: a server could plant files that a later run trusts.
#[test]
fn names_of_our_own_are_not_copied() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), true, None);
    let own = [
        (".longhaul-0123456789.journal", FILE),
        (".longhaul-x", DIR),
        (".longhaul-link", LINK),
        (".file.0123456789.longhaul", FILE),
        (".file.0123456789.longhaul", LINK),
    ];
    let others = [
        (".longhaul", FILE),
        ("a.longhaul", FILE),
        ("longhaul-x", FILE),
    ];
    let asked = walk.poll_request().expect("the root");
    let listed = own.into_iter().chain(others);
    let listed = listed.map(|(name, bits)| (name.as_bytes().to_vec(), mode(bits)));
    walk.handle(asked.tag, WalkAnswer::Entries(listed.collect()));
    walk.handle(asked.tag, WalkAnswer::Done);
    assert!(
        walk.poll_request().is_none(),
        "nothing of ours is looked at"
    );
    let (mut refused, mut found) = (Vec::new(), Vec::new());
    while let Some(next) = walk.poll_found() {
        match next {
            WalkEntry::Problem { path, what } => {
                assert!(what.starts_with("not copied: "), "{what}");
                refused.push(path);
            }
            WalkEntry::File(at) => found.push(at.name),
            WalkEntry::Directory { at, .. } => assert_eq!(at.path, b"r"),
            WalkEntry::Symlink(at) => panic!("{at:?}"),
            WalkEntry::Special(path) => panic!("{path:?}"),
            WalkEntry::Listed(_) => {}
        }
    }
    // A repeated name is the same entry.
    assert_eq!(refused.len(), own.len() - 1);
    assert_eq!(found, others.map(|(name, _)| name.as_bytes().to_vec()));
    assert!(walk.is_over());
}

fn listed(walk: &mut RemoteWalk, entries: Vec<(Vec<u8>, Attributes)>) -> bool {
    let Some(request) = walk.poll_request() else {
        return false;
    };
    walk.handle(request.tag, WalkAnswer::Entries(entries));
    walk.handle(request.tag, WalkAnswer::Done);
    true
}

fn problems(walk: &mut RemoteWalk) -> Vec<String> {
    let mut problems = Vec::new();
    while let Some(found) = walk.poll_found() {
        if let WalkEntry::Problem { what, .. } = found {
            problems.push(what);
        }
    }
    problems
}

#[test]
fn directories_within_directories_without_end_are_not_followed_for_ever() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let mut depth = 0;
    let mut said = Vec::new();
    while listed(&mut walk, vec![(vec![b'd'; 200], mode(DIR))]) {
        depth += 1;
        assert!(depth < 200);
        said.extend(problems(&mut walk));
    }
    assert!(walk.is_over());
    assert_eq!(said.len(), 2);
    assert!(said[0].contains("may omit entries"), "{said:?}");
    assert!(said[1].contains("16384 bytes"), "{said:?}");
}

#[test]
fn directories_that_wait_are_bounded() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    walk.to_list.set_most_bytes(100_000);
    let mut said = Vec::new();
    for turn in 0..1000 {
        let dirs = (0..100).map(|n| (format!("d{turn}-{n}").into_bytes(), mode(DIR)));
        if !listed(&mut walk, dirs.collect()) {
            break;
        }
        assert!(walk.to_list.len() < 1000 && walk.to_list.bytes() <= 100_000);
        said.extend(problems(&mut walk));
    }
    assert!(walk.is_over());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("directories are waiting to be listed"),
        "{said:?}"
    );
}

#[test]
fn a_name_that_no_file_can_have_is_a_problem_and_told_once() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let tag = walk.poll_request().map(|request| request.tag).unwrap();
    walk.handle(tag, WalkAnswer::LeftOut(b"r/f".to_vec()));
    walk.handle(tag, WalkAnswer::Restarted);
    walk.handle(tag, WalkAnswer::LeftOut(b"r/f".to_vec()));
    walk.handle(tag, WalkAnswer::Done);
    let said = problems(&mut walk);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("\"r/f\""), "{said:?}");
}

#[test]
fn symlinks_that_wait_to_be_looked_at_hold_listings() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), true, None);
    let tag = walk.poll_request().map(|request| request.tag).unwrap();
    assert!(!walk.holds());
    let links = (0..10_000).map(|n| (format!("l{n}").into_bytes(), mode(LINK)));
    walk.handle(tag, WalkAnswer::Entries(links.collect()));
    assert!(walk.holds());
}

/// Names of 4 KB filled a gigabyte before any bound in entries was reached.
#[test]
fn long_names_that_wait_take_no_more_memory_than_short_ones() {
    for len in [10, 255, 1023] {
        let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
        let tag = walk.poll_request().map(|request| request.tag).unwrap();
        while walk.poll_found().is_some() {}
        let (mut bytes, mut n) = (0, 0);
        while !walk.holds() {
            let names = (0..50).map(|_| {
                n += 1;
                bytes += 2 * len;
                (format!("{n:0>len$}").into_bytes(), mode(FILE))
            });
            let names: Vec<_> = names.collect();
            walk.handle(tag, WalkAnswer::Entries(names));
        }
        assert!(bytes < 9 << 20, "{len}: {bytes}");
        assert!(n > 3000, "{len}: {n}");
        while walk.poll_found().is_some() {}
        assert!(!walk.holds());
    }
}

/// Bug: OpenSSH's server leaves out entries whose path is longer than PATH_MAX, and a download of a
/// deep tree ended as complete without them.
#[test]
fn a_path_at_which_a_server_may_omit_entries_is_a_problem() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let mut problems = Vec::new();
    for _ in 0..25 {
        let Some(request) = walk.poll_request() else {
            break;
        };
        let dir = (vec![b'd'; 200], mode(DIR));
        walk.handle(request.tag, WalkAnswer::Entries(vec![dir]));
        walk.handle(request.tag, WalkAnswer::Done);
        while let Some(found) = walk.poll_found() {
            if let WalkEntry::Problem { path, what } = found {
                assert!(what.contains("may omit entries"), "{what}");
                problems.push(path.len());
            }
        }
    }
    assert_eq!(problems, [1 + 20 * 201]);
}

/// Walks a tree in which each directory has two directories of `len` bytes and a file. Returns the
/// number of listings, the largest number of directories that waited, and the problems.
fn endless_tree(len: usize) -> (usize, usize, Vec<String>) {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let (mut lists, mut most, mut said) = (0, 0, Vec::new());
    while !walk.is_over() {
        let asked: Vec<WalkRequest> = std::iter::from_fn(|| walk.poll_request()).collect();
        for request in asked {
            lists += 1;
            let dirs = [b'd', b'e'].map(|name| (vec![name; len], mode(DIR)));
            let file = (b"f".to_vec(), mode(FILE));
            let entries = dirs.into_iter().chain([file]).collect();
            walk.handle(request.tag, WalkAnswer::Entries(entries));
            walk.handle(request.tag, WalkAnswer::Done);
        }
        most = most.max(walk.to_list.len());
        said.extend(problems(&mut walk));
        assert!(lists < 200_000, "{len}");
    }
    (lists, most, said)
}

/// Bug: a tree whose directories contained themselves twice was walked without end, and with long
/// names 24,245 directories waited, which took 1.3 GB.
#[test]
fn a_tree_without_end_whose_directories_have_several_ends_in_an_error() {
    for len in [1, 5, 200, 255] {
        let (lists, most, said) = endless_tree(len);
        assert!(lists < 100_000 && most < 70_000, "{len}: {lists}, {most}");
        let last = said.last().expect("an error");
        assert!(last.contains("seems to have no end"), "{len}: {last}");
        assert!(said.len() <= 2 + MOST_TOO_DEEP as usize, "{said:?}");
    }
}

/// A path of 4,096 bytes, as deep as Linux can name.
#[test]
fn a_tree_as_deep_as_a_path_can_be_is_walked() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    for _ in 0..1900 {
        assert!(listed(&mut walk, vec![(b"d".to_vec(), mode(DIR))]));
        assert!(problems(&mut walk).is_empty());
    }
    let deepest = walk.poll_request().expect("the deepest");
    let JobKind::List { path, .. } = deepest.kind else {
        panic!("{deepest:?}");
    };
    assert_eq!(
        path.0,
        ["r"]
            .into_iter()
            .chain(["d"; 1900])
            .collect::<Vec<_>>()
            .join("/")
            .into_bytes()
    );
}

#[test]
fn paths_are_made_of_names_with_one_slash_each() {
    for (root, path) in [("/", "/d"), ("", "d"), ("r/", "r/d"), ("r", "r/d")] {
        let root = root.as_bytes().to_vec();
        let mut walk = RemoteWalk::new(root, None, mode(DIR), false, None);
        listed(&mut walk, vec![(b"d".to_vec(), mode(DIR))]);
        let below = walk.poll_request().expect("the directory");
        let JobKind::List { path: asked, .. } = below.kind else {
            panic!("{below:?}");
        };
        assert_eq!(asked.0, path.as_bytes());
    }
}

/// Bug: a download of such a tree left out each directory whose path was too long for the target, and
/// so never came to one that was too deep.
#[test]
fn a_tree_without_end_ends_where_the_target_has_too_long_paths() {
    let mut walk = RemoteWalk::new(b"r".to_vec(), None, mode(DIR), false, None);
    let (mut lists, mut last) = (0, String::new());
    while let Some(request) = walk.poll_request() {
        lists += 1;
        assert!(lists < 20_000, "{last}");
        let dirs = [b'd', b'e'].map(|name| (vec![name; 5], mode(DIR)));
        walk.handle(request.tag, WalkAnswer::Entries(dirs.into()));
        walk.handle(request.tag, WalkAnswer::Done);
        while let Some(found) = walk.poll_found() {
            match found {
                WalkEntry::Directory { id, at, .. } if at.path.len() > 3000 => walk.skip(id),
                WalkEntry::Problem { what, .. } => last = what,
                _ => {}
            }
        }
    }
    assert!(last.contains("seems to have no end"), "{last}");
}
