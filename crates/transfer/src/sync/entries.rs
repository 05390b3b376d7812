//! The entries of a plan, as a walk of the source would report them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use sftp::{InodeId, ListedEntry};
use sync::{EntryTree, SortedTree, SyncAction, SyncPlan, TreeEntryId, TreeEntryKind};

use super::attributes::attributes;
use super::listing::DirectoryInodes;
use crate::disk::{identity, os_words};
use crate::walk::{EntryInfo, WalkDirectoryId, WalkEntry, join, local_path};

/// Walks the entries of a plan whose data or attributes are copied, with the directories above
/// them.
pub(super) struct SyncPlanWalk {
    plan: Arc<SyncPlan>,
    root: Vec<u8>,
    local: bool,
    /// Identities of files with several names; `None` if each name becomes a file of its own.
    links: Option<BTreeMap<TreeEntryId, InodeId>>,
    /// Device and inode of the target's directories.
    target_inodes: DirectoryInodes,
    /// Entries to report, and directories that lead to them, by their number.
    wanted: Vec<bool>,
    /// Entries that the target lacks, or has as something else, by their number.
    is_new: Vec<bool>,
    stack: Vec<PlannedDirectory>,
    begun: bool,
}

/// Permissions with which the owner can list a directory and look at its entries.
const LISTABLE: u16 = 0o500;

struct PlannedDirectory {
    dir: TreeEntryId,
    /// The directory in the listing of the target.
    target: Option<TreeEntryId>,
    path: Vec<u8>,
    rest: std::vec::IntoIter<TreeEntryId>,
}

impl SyncPlanWalk {
    pub(super) fn new(
        plan: Arc<SyncPlan>,
        root: Vec<u8>,
        local: bool,
        links: Option<BTreeMap<TreeEntryId, InodeId>>,
        target_inodes: DirectoryInodes,
    ) -> Self {
        let tree = plan.source().tree();
        let mut wanted = vec![false; tree.len() + 1];
        let mut is_new = vec![false; tree.len() + 1];
        for step in plan.steps() {
            let copied = match step.action {
                SyncAction::Create
                | SyncAction::Replace(_)
                | SyncAction::Unsure(_)
                | SyncAction::HardLink {
                    has_data: false, ..
                } => {
                    is_new[step.source.index()] = true;
                    true
                }
                // A directory gets its attributes after its contents.
                SyncAction::SetAttributes(_) => {
                    tree.entry(step.source).kind == TreeEntryKind::Directory
                }
                // Only the directories above it change.
                SyncAction::MoveFrom(_) | SyncAction::Link | SyncAction::HardLink { .. } => true,
            };
            let mut at = match step.action {
                SyncAction::MoveFrom(_)
                | SyncAction::Link
                | SyncAction::HardLink { has_data: true, .. } => tree.parent(step.source),
                _ => step.source,
            };
            while copied && !std::mem::replace(&mut wanted[at.index()], true) {
                at = tree.parent(at);
            }
        }
        Self {
            plan,
            root,
            local,
            links,
            target_inodes,
            wanted,
            is_new,
            stack: Vec::new(),
            begun: false,
        }
    }

    /// True if there is anything to report besides the root.
    pub(super) fn has_any(&self) -> bool {
        self.wanted.iter().any(|wanted| *wanted)
    }

    fn source(&self) -> &SortedTree {
        self.plan.source()
    }

    /// Entry of the target with the name of a directory, if its parent, which is being reported, has
    /// one there.
    fn in_target(&self, id: TreeEntryId, parent: Option<TreeEntryId>) -> Option<TreeEntryId> {
        if parent.is_none() {
            return Some(EntryTree::ROOT);
        }
        let above = self.stack.last()?.target?;
        self.plan
            .target()
            .child(above, self.source().tree().name(id))
    }

    /// A directory as the target listed it. The root may be a symlink to it.
    fn listed(&self, dir: Option<TreeEntryId>) -> ListedEntry {
        let dir = dir.filter(|dir| *dir != EntryTree::ROOT);
        ListedEntry {
            inode: dir.and_then(|dir| self.target_inodes.get(&dir)).copied(),
            ..ListedEntry::ANY
        }
    }

    fn enter(&mut self, dir: TreeEntryId, target: Option<TreeEntryId>, path: Vec<u8>) {
        let children = self.source().children(dir);
        let wanted: Vec<TreeEntryId> = children.filter(|id| self.wanted[id.index()]).collect();
        self.stack.push(PlannedDirectory {
            dir,
            target,
            path,
            rest: wanted.into_iter(),
        });
    }

    fn report(&mut self, id: TreeEntryId, parent: Option<TreeEntryId>, path: Vec<u8>) -> WalkEntry {
        let tree = self.source().tree();
        let entry = tree.entry(id);
        let kind = entry.kind;
        let mut found = EntryInfo {
            parent: parent.map(dir_id),
            name: match parent {
                Some(_) => tree.name(id).to_vec(),
                None => Vec::new(),
            },
            attributes: attributes(entry),
            identity: None,
            path,
        };
        let links = self.links.as_ref();
        found.attributes.link = links.and_then(|links| links.get(&id)).copied();
        // A root without a time is none of the listed names, and keeps its attributes.
        if self.local && (parent.is_some() || entry.modified.is_some()) {
            // It may have changed since it was listed, and the copy needs all of its attributes.
            let meta = match parent {
                Some(_) => fs::symlink_metadata(local_path(&found.path)),
                None => fs::metadata(local_path(&found.path)),
            };
            match meta {
                Ok(meta)
                    if super::attributes::entry(&crate::disk::attributes(&meta)).kind != kind =>
                {
                    let what = "its type has changed since it was listed; run the sync again";
                    return WalkEntry::Problem {
                        path: found.path,
                        what: what.to_owned(),
                    };
                }
                Ok(meta) => {
                    found.attributes = crate::disk::attributes(&meta);
                    found.attributes.link = found.attributes.link.filter(|_| links.is_some());
                    found.identity = meta.is_file().then(|| identity(&meta));
                }
                Err(error) => {
                    return WalkEntry::Problem {
                        path: found.path,
                        what: os_words(&error),
                    };
                }
            }
        }
        match kind {
            TreeEntryKind::Directory => {
                let is_new = self.is_new[id.index()];
                let target = self.in_target(id, parent).filter(|_| !is_new);
                // A directory that its owner may not list gets permissions before it is filled, as
                // one that was found to exist.
                let mode = target.and_then(|id| self.plan.target().tree().entry(id).mode);
                let is_listed = mode.is_none_or(|mode| mode & LISTABLE == LISTABLE);
                self.enter(id, target, found.path.clone());
                WalkEntry::Directory {
                    id: dir_id(id),
                    at: found,
                    existing: (!is_new && is_listed).then(|| Box::new(self.listed(target))),
                }
            }
            TreeEntryKind::Symlink => WalkEntry::Symlink(found),
            TreeEntryKind::File | TreeEntryKind::Other | TreeEntryKind::Temporary => {
                WalkEntry::File(found)
            }
        }
    }
}

/// Returns the paths of the target's entries that the plan creates, below its root.
pub(super) fn created_below(root: &[u8], plan: &SyncPlan) -> impl Iterator<Item = Vec<u8>> {
    let steps = plan.steps().iter();
    let created = steps.filter(|step| matches!(step.action, SyncAction::Create));
    created.map(|step| join(root, &plan.source().tree().path(step.source)))
}

fn dir_id(id: TreeEntryId) -> WalkDirectoryId {
    WalkDirectoryId(id.index() as u64)
}

impl Iterator for SyncPlanWalk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        if !std::mem::replace(&mut self.begun, true) {
            let root = self.root.clone();
            return Some(self.report(EntryTree::ROOT, None, root));
        }
        let frame = self.stack.last_mut()?;
        let dir = frame.dir;
        match frame.rest.next() {
            Some(id) => {
                let path = join(&frame.path, self.plan.source().tree().own_name(id));
                Some(self.report(id, Some(dir), path))
            }
            None => {
                self.stack.pop();
                Some(WalkEntry::Listed(dir_id(dir)))
            }
        }
    }
}
