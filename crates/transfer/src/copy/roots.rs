//! Starts each source: queries it, then starts a file or a walk.

use schedule::{Attributes, EntryKind, JobKind, RemotePath};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::local_ops::LocalStat;
use super::owner::EntryAwaitingOwner;
use super::source::{SourceRoot, TargetPath, WalkId};
use super::tree::PendingItem;
use crate::walk::{EntryInfo, NOT_REGULAR, RemoteWalk, local_path};

impl CopyEngine<'_> {
    pub(super) fn begin_local(&mut self, root: SourceRoot) {
        let path = local_path(&root.path);
        let stat = match self.local().stat(&root.path) {
            Ok(stat) => stat,
            Err(what) => {
                let name = self.shown(CopySide::Source, &root.path);
                return self.fail(None, name, what);
            }
        };
        if !self.walks.selects_root(&root.path, &stat.attributes) {
            return;
        }
        if stat.is_directory() {
            if !self.may_recurse(&root.path) {
                return;
            }
            if !self.target_is_remote() && self.is_same_directory(&root, &stat) {
                return;
            }
            if self.walks.is_same(&root.path) {
                return self.fail_same(&root, "the same directory");
            }
            let target = root.onto.target(&root.path);
            let id = self.walks.next_id();
            self.name_root(id, &root.path);
            let avoid = match !self.target_is_remote() {
                true => Some(local_path(&target)),
                false => self
                    .walks
                    .avoid_for(&root.path)
                    .map(|path| local_path(&path)),
            };
            let walk = self.local().walk(path, !self.options.archive, avoid);
            self.walks.begin_local(id, walk, target);
        } else if stat.is_file() && self.walks.is_same(&root.path) {
            self.fail_same(&root, "the same file");
        } else if stat.is_file() {
            self.begin_owned(EntryAwaitingOwner::Root(root, stat.attributes));
        } else {
            let name = self.shown(CopySide::Source, &root.path);
            self.fail(None, name, NOT_REGULAR.to_owned());
        }
    }

    fn is_same_directory(&mut self, root: &SourceRoot, stat: &LocalStat) -> bool {
        let target = root.onto.target(&root.path);
        let there = self.local().stat(&target);
        let same = there.is_ok_and(|there| there.is_same(stat));
        if same {
            self.fail_same(root, "the same directory");
        }
        same
    }

    fn fail_same(&mut self, root: &SourceRoot, what: &str) {
        let name = self.shown(CopySide::Source, &root.path);
        self.fail(None, name, format!("source and target are {what}"));
    }

    fn may_recurse(&mut self, path: &[u8]) -> bool {
        let may = self.options.recursive || self.options.archive;
        if !may {
            let name = self.shown(CopySide::Source, path);
            let what = match self.options.may_fan_out && self.source_is_remote() {
                true => {
                    "it is a directory, and a source here, as in scp: to copy to every host, add \
                     --fan-out"
                }
                false => "it is a directory: use -r to copy it",
            };
            self.fail(None, name, what.to_owned());
        }
        may
    }

    pub(super) fn begin_root_item(&mut self, root: SourceRoot, attributes: Attributes) {
        let target = root.onto.target(&root.path);
        let id = self.walks.next_id();
        self.name_root(id, &root.path);
        if !self.may_claim(id, &root.path, &target, false) {
            return;
        }
        let item = PendingItem {
            target,
            entry: EntryInfo {
                parent: None,
                name: Vec::new(),
                path: root.path,
                attributes,
                identity: None,
            },
            dir: None,
            symlink: false,
            points_to: None,
        };
        match root.onto {
            TargetPath::Guess(target) => self.begin_guessed(item, target),
            _ => self.begin_item(item),
        }
    }

    pub(super) fn begin_remote(&mut self, root: SourceRoot) {
        if self.walks.is_same(&root.path) {
            return self.fail_same(&root, "the same file or directory");
        }
        if self.ports.keeps_foreign_links() {
            self.ports
                .named_mut()
                .source_goes_to(root.onto.target(&root.path));
        }
        let looks = self.options.recursive || self.options.archive || self.target_is_remote();
        if !looks {
            if !self.walks.selects_root(&root.path, &Attributes::default()) {
                return;
            }
            // Skip the query: the download reports if the source is not a file.
            return self.begin_owned(EntryAwaitingOwner::Root(root, Attributes::default()));
        }
        let id = self.walks.next_id();
        let stat = JobKind::Stat {
            path: RemotePath(root.path.clone()),
            follow: true,
        };
        // The canonical path detects symlink loops and a target within the source.
        let real = JobKind::RealPath {
            path: RemotePath(root.path.clone()),
        };
        let mut asked = 0;
        for kind in [stat, real] {
            if self
                .submit(CopySide::Source, kind, JobPurpose::Root(id))
                .is_some()
            {
                asked += 1;
            }
        }
        // For a source that is not a directory the listing fails, which is ignored.
        if self.options.recursive || self.options.archive {
            let path = RemotePath(root.path.clone());
            // A server's tree listing would not stop at a target on the same host.
            let tree = !self.target_is_remote() && self.source_lists_another();
            let list = match tree {
                true => JobKind::ListTree {
                    path,
                    count: true,
                    same_device: false,
                },
                false => JobKind::List { path },
            };
            if self
                .submit(CopySide::Source, list, JobPurpose::Listing(id))
                .is_some()
            {
                self.walks.list_ahead(id, tree);
            }
        }
        self.walks.look_at(id, root, asked);
    }

    /// Handles the answer to one of the two queries about a root.
    pub(super) fn on_root(&mut self, id: WalkId, result: Result<(), String>) {
        let Some((root, real, attributes)) = self.walks.looked_at(id, result) else {
            return;
        };
        let name = self.shown(CopySide::Source, &root.path);
        let is_directory = attributes
            .as_ref()
            .is_ok_and(|a| a.kind() == EntryKind::Directory);
        if !is_directory {
            self.walks.forget_listing(id);
        }
        let attributes = match attributes {
            Ok(attributes) => attributes,
            Err(what) => return self.fail(None, name, what),
        };
        if !self.walks.selects_root(&root.path, &attributes) {
            self.walks.forget_listing(id);
            return;
        }
        match attributes.kind() {
            EntryKind::Directory if self.may_recurse(&root.path) => {
                let target = root.onto.target(&root.path);
                let follow = !self.options.archive;
                let avoid = self.walks.avoid_for(&root.path);
                // A listing read before the target was made does not contain it, so the warning
                // that it is left out would be missing.
                let within = |real: &Vec<u8>| avoid.as_ref().is_some_and(|a| a.starts_with(real));
                if real.as_ref().is_some_and(within) {
                    self.walks.forget_listing(id);
                }
                self.name_root(id, &root.path);
                let walk = RemoteWalk::new(root.path, real, attributes, follow, avoid);
                let trees = self.source_lists_trees();
                self.walks.begin_walk(id, walk, target, trees);
                self.estimates
                    .foresee(self.ports.sides(), self.walks.grown_estimate());
            }
            EntryKind::Directory => {}
            EntryKind::File if real.is_some() && real == self.walks.avoid_for(&root.path) => {
                self.fail_same(&root, "the same file");
            }
            EntryKind::File => self.begin_owned(EntryAwaitingOwner::Root(root, attributes)),
            // Without a file type the download itself shows if it is a file.
            EntryKind::Other if attributes.mode.is_none() => {
                self.begin_owned(EntryAwaitingOwner::Root(root, attributes));
            }
            _ => self.fail(None, name, NOT_REGULAR.to_owned()),
        }
    }
}
