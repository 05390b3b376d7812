//! Parts of a remote walk that the server lists in one stream.

use std::sync::Arc;

use schedule::{Attributes, JobFailureKind, TreeWalkStep};

use super::{
    ListedNameHashes, ListingMode, PendingListing, RemoteDirectory, RemoteWalk, WalkAnswer,
};
use crate::walk::join;

/// Tree that is being listed.
#[derive(Debug)]
pub(super) struct TreeListing {
    /// Directories from the topmost to the current one.
    open: Vec<OpenDirListing>,
    /// Number of levels below the current directory whose contents are ignored.
    ignored: usize,
    /// Directories that were open when the listing restarted, the next one last.
    again: Vec<OpenDirListing>,
}

/// Directory that is being listed, and the names it has returned.
#[derive(Debug)]
struct OpenDirListing {
    dir: Arc<RemoteDirectory>,
    names: ListedNameHashes,
}

impl TreeListing {
    pub(super) fn new(dir: Arc<RemoteDirectory>) -> Self {
        let names = ListedNameHashes::default();
        Self {
            open: vec![OpenDirListing { dir, names }],
            ignored: 0,
            again: Vec::new(),
        }
    }

    /// Prepares for the restart of the listing after its lane was lost.
    fn begin_again(&mut self) {
        let before = self.open.drain(..).rev();
        self.again.extend(before);
        self.ignored = 0;
        self.open.extend(self.again.pop());
    }
}

impl RemoteWalk {
    pub(super) fn handle_tree(&mut self, tag: u64, mut tree: TreeListing, answer: WalkAnswer) {
        match answer {
            WalkAnswer::Tree(steps) => {
                if let [OpenDirListing { names, .. }] = tree.open.as_slice()
                    && names.is_empty()
                {
                    self.sample.directory();
                }
                let mut above = None;
                for step in steps {
                    self.step(&mut tree, &mut above, step);
                }
                self.asked.insert(tag, PendingListing::Tree(tree));
                return;
            }
            WalkAnswer::Restarted => {
                tree.begin_again();
                self.asked.insert(tag, PendingListing::Tree(tree));
                return;
            }
            WalkAnswer::Failed(error) if error.kind() == JobFailureKind::Unsupported => {
                return self.list_one_by_one(tree);
            }
            WalkAnswer::Failed(error) => {
                let last = tree.open.last().or_else(|| tree.again.first());
                if let Some(path) = last.map(|open| open.dir.path()) {
                    let what = error.to_string();
                    self.found_problem(path, what);
                }
            }
            _ => {}
        }
        self.lists -= 1;
        self.trees_asked -= 1;
        for open in tree.again.drain(..).chain(tree.open.drain(..).rev()) {
            self.end(&open.dir);
        }
    }

    /// Switches to listing directory by directory after the lane that lists trees was lost and
    /// another server took over.
    fn list_one_by_one(&mut self, mut tree: TreeListing) {
        self.mode = ListingMode::NoTrees;
        self.lists -= 1;
        self.trees_asked -= 1;
        for open in tree.again.drain(..).chain(tree.open.drain(..).rev()) {
            match self.skipped.contains(&open.dir.id) {
                true => self.end(&open.dir),
                false => self.to_list_on.push((open.dir, open.names)),
            }
        }
    }

    /// Takes a step of a tree. `above` is the path of the directory that is being listed, if known.
    fn step(&mut self, tree: &mut TreeListing, above: &mut Option<Vec<u8>>, step: TreeWalkStep) {
        if self.to_list.is_overrun() {
            return;
        }
        let Some(open) = tree.open.last_mut() else {
            return;
        };
        let ignored = tree.ignored > 0;
        match step {
            TreeWalkStep::Enter(..) if ignored => tree.ignored += 1,
            TreeWalkStep::Leave if ignored => tree.ignored -= 1,
            TreeWalkStep::Count { files, bytes } => self.sample.counted(files, bytes),
            _ if ignored => {}
            TreeWalkStep::Entry(name, attributes) => {
                if open.names.is_new(&name) && !self.skipped.contains(&open.dir.id) {
                    let dir = Arc::clone(&open.dir);
                    let above = above.get_or_insert_with(|| dir.path());
                    self.sort(&dir, above, name, attributes);
                }
            }
            TreeWalkStep::Enter(name, attributes) => {
                self.sample.directory();
                *above = None;
                self.enter_tree(tree, name, attributes);
            }
            TreeWalkStep::Leave => {
                *above = None;
                let Some(left) = tree.open.pop() else { return };
                // Directories below it that were open before no longer exist.
                for gone in tree.again.drain(..) {
                    self.end(&gone.dir);
                }
                self.end(&left.dir);
            }
            TreeWalkStep::Failed(what) => {
                let path = open.dir.path();
                self.found_problem(path, what);
            }
        }
    }

    fn enter_tree(&mut self, tree: &mut TreeListing, name: Vec<u8>, attributes: Attributes) {
        let Some(open) = tree.open.last_mut() else {
            return;
        };
        let dir = Arc::clone(&open.dir);
        let path = join(&dir.path(), &name);
        if self.skipped.contains(&dir.id) {
            tree.ignored = 1;
        } else if open.names.is_new(&name) {
            let real = dir.real.as_ref().map(|real| join(real, &name));
            match self.enter(Some(&dir), name, path, real, dir.symlinks, attributes) {
                Some(below) => tree.open.push(OpenDirListing {
                    dir: below,
                    names: ListedNameHashes::default(),
                }),
                None => tree.ignored = 1,
            }
        } else if tree
            .again
            .last()
            .is_some_and(|open| open.dir.path() == path)
        {
            tree.open.extend(tree.again.pop());
        } else {
            // Its contents were reported before.
            tree.ignored = 1;
        }
    }

    /// Notes that all entries of `dir` were reported.
    fn end(&mut self, dir: &RemoteDirectory) {
        match self.skipped.remove(&dir.id) {
            true => {
                self.closing.remove(&dir.id);
            }
            false => {
                self.closing.entry(dir.id).or_default().0 = true;
                self.close(dir.id);
            }
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
