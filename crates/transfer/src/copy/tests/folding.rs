//! Targets whose file system takes two names of one source tree for one.

use std::collections::BTreeMap;

use testkit::sftp_model::{Kind, Rng};

use super::{Case, End};

/// Files below `src`, with their contents.
type Files = BTreeMap<String, Vec<u8>>;

/// Gives about a third of the source's files a sibling whose name differs in case, and returns all.
fn add_siblings(case: &Case, rng: &mut Rng) -> Files {
    let fs = &mut case.world.borrow_mut().hosts[0].host.fs;
    let mut files = Files::new();
    for name in fs.names() {
        let path = format!("/home/u/{name}");
        let (Some(file), Some(data)) = (name.strip_prefix("src/"), fs.data(&path)) else {
            continue;
        };
        files.insert(file.to_owned(), data.to_vec());
        let (dir, last) = file.rsplit_once('/').unwrap_or(("", file));
        if rng.below(3) == 0 {
            let sibling = format!("{dir}/{}", last.to_ascii_uppercase());
            let sibling = sibling.trim_start_matches('/');
            let data = format!("{sibling} of its own").into_bytes();
            fs.place(
                &format!("/home/u/src/{sibling}"),
                Kind::File(data.clone()),
                0o644,
            );
            files.insert(sibling.to_owned(), data);
        }
    }
    files
}

/// Contents of the sources that the target takes for one file, by their common name.
fn by_target(files: &Files) -> BTreeMap<String, Vec<&Vec<u8>>> {
    let mut groups: BTreeMap<String, Vec<&Vec<u8>>> = BTreeMap::new();
    for (name, data) in files {
        let group = groups.entry(name.to_ascii_lowercase()).or_default();
        group.push(data);
    }
    groups
}

/// Bug: of two files of a tree whose names are one at the target, the second replaced the first
/// without a word.
#[test]
fn names_of_one_tree_that_are_one_at_the_target_do_not_replace_each_other() {
    let mut downloads = 0;
    for seed in 0..40 {
        for folds in [true, false] {
            let mut case = Case::new(seed);
            if case.upload {
                continue;
            }
            downloads += 1;
            case.faults.clear();
            case.world.borrow().local.borrow_mut().folds_case = folds;
            let files = add_siblings(&case, &mut Rng::new(seed));
            let End::Over(summary) = case.run() else {
                panic!("seed {seed}: nothing kills it");
            };
            let told = case.told.borrow();
            let refused = told
                .iter()
                .filter(|line| line.contains("it would overwrite"));
            let groups = by_target(&files);
            let expected = if folds { groups.len() } else { files.len() };
            assert_eq!(summary.files as usize, expected, "seed {seed}: {told:?}");
            assert_eq!(refused.count(), files.len() - expected, "seed {seed}");
            let world = case.world.borrow();
            let local = world.local.borrow();
            let root = ["/home/u/dst/src", "/home/u/dst"];
            for (name, contents) in groups {
                let mut at = root.iter().map(|root| format!("{root}/{name}"));
                let found = at.find_map(|path| local.data(&path));
                let found = found.unwrap_or_else(|| panic!("seed {seed}: {name} is missing"));
                let is_one = contents.iter().any(|data| data.as_slice() == found);
                assert!(is_one, "seed {seed}: {name} is a mixture");
            }
        }
    }
    assert!(downloads > 20, "{downloads}");
}
