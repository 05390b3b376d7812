//! Starts each source: queries it, then starts a file or a walk.

use std::path::PathBuf;

use schedule::{Attributes, EntryKind, JobKind, RemotePath};

use super::context::CopyContext;
use super::jobs::JobPurpose;
use super::local_file_ops::LocalStat;
use super::owner::EntryAwaitingOwner;
use super::self_copy::place_of;
use super::sides::CopySide;
use super::source::{ActiveWalks, SourceRoot, WalkId, source_lists_trees};
use crate::file_error::FileError;
use crate::walk::{INTO_ITSELF, NOT_REGULAR, RemoteWalk, local_path};

impl ActiveWalks {
    /// Begins a source: its walk, or the file, which is returned.
    pub(super) fn begin_root(
        &mut self,
        context: &mut CopyContext<'_>,
        root: SourceRoot,
    ) -> Option<EntryAwaitingOwner> {
        match context.source_is_remote() {
            true => self.begin_remote_root(context, root),
            false => self.begin_local_root(context, root),
        }
    }

    /// Begins a source on this machine: its walk, or the file, which is returned.
    fn begin_local_root(
        &mut self,
        context: &mut CopyContext<'_>,
        root: SourceRoot,
    ) -> Option<EntryAwaitingOwner> {
        let path = local_path(&root.path);
        let stat = match context.local().stat(&root.path) {
            Ok(stat) => stat,
            Err(what) => {
                let name = context.shown(CopySide::Source, &root.path);
                context.fail(None, name, what);
                return None;
            }
        };
        if !self.selects_root(&root.path, &stat.attributes) {
            return None;
        }
        if stat.is_directory() {
            if !may_recurse(context, &root.path) {
                return None;
            }
            if !context.target_is_remote() && is_same_directory(context, &root, &stat) {
                return None;
            }
            if self.is_same(&root.path) {
                fail_same(context, &root, "the same directory");
                return None;
            }
            let target = root.onto.target(&root.path);
            let avoid = match !context.target_is_remote() {
                true => Some(local_path(&target)),
                false => self.avoid_for(&root.path).map(|path| local_path(&path)),
            };
            let local = context.local();
            let is_inside = |avoid: &PathBuf| {
                let place = place_of(&*local, avoid).map(|(place, _)| place);
                let source = local.canonical(&path);
                place.zip(source).is_some_and(|(p, s)| p.starts_with(s))
            };
            if !self.is_filtered() && avoid.as_ref().is_some_and(is_inside) {
                let name = context.shown(CopySide::Source, &root.path);
                context.fail(None, name, INTO_ITSELF.to_owned());
                return None;
            }
            let id = self.next_id();
            self.name_root(context, id, &root.path);
            let walk = context
                .local()
                .walk(path, !context.options().archive, avoid);
            self.begin_local(id, walk, target);
        } else if stat.is_file() && self.is_same(&root.path) {
            fail_same(context, &root, "the same file");
        } else if stat.is_file() {
            return Some(EntryAwaitingOwner::Root(root, stat.attributes));
        } else {
            let name = context.shown(CopySide::Source, &root.path);
            context.fail(None, name, NOT_REGULAR.to_owned());
        }
        None
    }

    /// Begins a source on a host: queries it, or returns a file that need not be queried.
    fn begin_remote_root(
        &mut self,
        context: &mut CopyContext<'_>,
        root: SourceRoot,
    ) -> Option<EntryAwaitingOwner> {
        if self.is_same(&root.path) {
            // With --inplace, files with equal attributes may be one file.
            let what = match context.options().inplace && context.target_is_remote() {
                true => {
                    "the same file or directory, or their size, time, mode and owner are equal, so \
                     that they may be: remove the target, or leave out --inplace"
                }
                false => "the same file or directory",
            };
            fail_same(context, &root, what);
            return None;
        }
        if context.keeps_foreign_links() {
            let target = root.onto.target(&root.path);
            context.named_mut().source_goes_to(target);
        }
        let looks = context.is_recursive() || context.target_is_remote();
        if !looks {
            if !self.selects_root(&root.path, &Attributes::default()) {
                return None;
            }
            // Skip the query: the download reports if the source is not a file.
            return Some(EntryAwaitingOwner::Root(root, Attributes::default()));
        }
        let id = self.next_id();
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
            if context
                .submit(CopySide::Source, kind, JobPurpose::Root(id))
                .is_some()
            {
                asked += 1;
            }
        }
        // For a source that is not a directory the listing fails, which is ignored.
        if context.is_recursive() {
            let path = RemotePath(root.path.clone());
            // A server's tree listing would not stop at a target on the same host.
            let may_stop = context.target_is_remote() || self.avoids();
            let tree = !may_stop && self.lists_another(context);
            let list = match tree {
                true => JobKind::ListTree {
                    path,
                    count: true,
                    same_device: false,
                },
                false => JobKind::List { path, most: None },
            };
            if context
                .submit(CopySide::Source, list, JobPurpose::Listing(id))
                .is_some()
            {
                self.list_ahead(id, tree);
            }
        }
        self.look_at(id, root, asked);
        None
    }

    /// Handles the answer to one of the two queries about a root.
    pub(super) fn on_root(
        &mut self,
        context: &mut CopyContext<'_>,
        id: WalkId,
        result: Result<(), FileError>,
    ) -> Option<EntryAwaitingOwner> {
        let (root, real, attributes) = self.looked_at(id, result)?;
        let name = context.shown(CopySide::Source, &root.path);
        let is_directory = attributes
            .as_ref()
            .is_ok_and(|a| a.kind() == EntryKind::Directory);
        if !is_directory {
            self.forget_listing(id);
        }
        let attributes = match attributes {
            Ok(attributes) => attributes,
            Err(what) => {
                context.fail(None, name, what);
                return None;
            }
        };
        if !self.selects_root(&root.path, &attributes) {
            self.forget_listing(id);
            return None;
        }
        match attributes.kind() {
            EntryKind::Directory if may_recurse(context, &root.path) => {
                let target = root.onto.target(&root.path);
                let follow = !context.options().archive;
                let avoid = self.avoid_for(&root.path);
                let within = |real: &Vec<u8>| {
                    let avoid = avoid.as_deref().map(local_path);
                    avoid.is_some_and(|avoid| avoid.starts_with(local_path(real)))
                };
                if real.as_ref().is_some_and(within) {
                    // A listing read before the target was made does not contain it, so the warning
                    // that it is left out would be missing.
                    self.forget_listing(id);
                    if !self.is_filtered() {
                        context.fail(None, name, INTO_ITSELF.to_owned());
                        return None;
                    }
                }
                self.name_root(context, id, &root.path);
                let walk = RemoteWalk::new(root.path, real, attributes, follow, avoid);
                let trees = source_lists_trees(context);
                self.begin_walk(id, walk, target, trees);
            }
            EntryKind::Directory => {}
            EntryKind::File if real.is_some() && real == self.avoid_for(&root.path) => {
                fail_same(context, &root, "the same file");
            }
            EntryKind::File => return Some(EntryAwaitingOwner::Root(root, attributes)),
            // Without a file type the download itself shows if it is a file.
            EntryKind::Other if attributes.mode.is_none() => {
                return Some(EntryAwaitingOwner::Root(root, attributes));
            }
            _ => context.fail(None, name, NOT_REGULAR.to_owned()),
        }
        None
    }
}

fn is_same_directory(context: &mut CopyContext<'_>, root: &SourceRoot, stat: &LocalStat) -> bool {
    let target = root.onto.target(&root.path);
    let there = context.local().stat(&target);
    let same = there.is_ok_and(|there| there.is_same(stat));
    if same {
        fail_same(context, root, "the same directory");
    }
    same
}

fn fail_same(context: &mut CopyContext<'_>, root: &SourceRoot, what: &str) {
    let name = context.shown(CopySide::Source, &root.path);
    context.fail(None, name, format!("source and target are {what}"));
}

fn may_recurse(context: &mut CopyContext<'_>, path: &[u8]) -> bool {
    let may = context.is_recursive();
    if !may {
        let name = context.shown(CopySide::Source, path);
        let what = match context.options().may_fan_out && context.source_is_remote() {
            true => {
                "it is a directory, and is read as a source: only the last argument is the \
                 destination, as in scp: to copy to all of the hosts, add --fan-out"
            }
            false => "it is a directory: use -r to copy it",
        };
        context.fail(None, name, what.to_owned());
    }
    may
}
