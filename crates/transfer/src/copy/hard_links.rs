//! Hard links: a file with several names is copied once, and its other names become links to the
//! first.

use std::collections::BTreeMap;

use schedule::{FileState, JobKind, RemotePath};
use sftp::InodeId;

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::tree::PendingItem;
use crate::report::CopyEvent;

/// Files that may have more names, by device and inode number.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    files: BTreeMap<(u64, u64), LinkedNames>,
    /// Number of items that wait for the first name of their file.
    waiting: usize,
}

#[derive(Debug, Default)]
struct LinkedNames {
    /// Target path of the first name, once it is copied.
    stands: Option<Vec<u8>>,
    /// Items that will become further names of the file.
    waiting: Vec<PendingItem>,
    /// Number of names found.
    found: u32,
}

impl HardLinks {
    /// Forgets all files when the source changes.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Number of items that wait for the first name of their file.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}

fn key(link: &InodeId) -> (u64, u64) {
    (link.device, link.inode)
}

impl CopyEngine<'_> {
    /// Identity of an item's file, if its other names will be hard links to the first.
    pub(super) fn link_of(&self, item: &PendingItem) -> Option<InodeId> {
        let link = item.entry.attributes.link?;
        (self.options.hard_links && link.names > 1).then_some(link)
    }

    /// Links an item to a file that was copied, or defers it until that is done. Returns the first
    /// name of a file, which must be copied.
    pub(super) fn link_or_copy(&mut self, item: PendingItem) -> Option<PendingItem> {
        let Some(link) = self.link_of(&item) else {
            return Some(item);
        };
        let names = self.hard_links.files.entry(key(&link)).or_default();
        names.found = names.found.saturating_add(1);
        if names.found == 1 {
            return Some(item);
        }
        match names.stands.clone() {
            Some(of) => {
                if names.found >= link.names {
                    // All names were found.
                    self.hard_links.files.remove(&key(&link));
                }
                self.make_hard_link(item, of);
            }
            None => {
                names.waiting.push(item);
                self.hard_links.waiting += 1;
            }
        }
        None
    }

    /// Links the deferred names of a file to `target`, its first name.
    pub(super) fn link_others(&mut self, link: Option<InodeId>, target: &[u8]) {
        let Some(link) = link else { return };
        let Some(names) = self.hard_links.files.get_mut(&key(&link)) else {
            return;
        };
        let waiting = std::mem::take(&mut names.waiting);
        self.hard_links.waiting -= waiting.len();
        names.stands = Some(target.to_vec());
        if names.found >= link.names {
            self.hard_links.files.remove(&key(&link));
        }
        for item in waiting {
            self.make_hard_link(item, target.to_vec());
        }
    }

    /// Copies the next name after the first one of a file failed.
    pub(super) fn link_failed(&mut self, link: Option<InodeId>) {
        let Some(link) = link else { return };
        let Some(names) = self.hard_links.files.get_mut(&key(&link)) else {
            return;
        };
        match names.waiting.is_empty() {
            true => drop(self.hard_links.files.remove(&key(&link))),
            false => {
                let next = names.waiting.remove(0);
                self.hard_links.waiting -= 1;
                self.begin_file(next);
            }
        }
    }

    fn make_hard_link(&mut self, item: PendingItem, of: Vec<u8>) {
        if self.target_is_remote() {
            let (path, of) = (RemotePath(item.target.clone()), RemotePath(of));
            let kind = JobKind::MakeHardLink { path, of };
            self.submit(CopySide::Target, kind, JobPurpose::MakeHardLink(item));
            return;
        }
        let (path, of) = (
            self.named.local_path(&item.target),
            self.named.local_path(&of),
        );
        let made = self.local().make_hard_link(&path, &of);
        self.hard_link_over(item, made);
    }

    /// Handles the result of a hard link. If it failed, the file is copied and the loss is noted.
    pub(super) fn hard_link_over(&mut self, mut item: PendingItem, made: Result<(), String>) {
        if let Err(why) = made {
            self.not_kept.note_link(&why);
            item.entry.attributes.link = None;
            return self.begin_file(item);
        }
        self.name_made(&item.target, false);
        let id = self.files.take_id().0;
        self.progress.add_file(Some(0));
        self.progress.file_done();
        self.summary.files += 1;
        let source = self.shown(CopySide::Source, &item.entry.path);
        let target = self.shown(CopySide::Target, &item.target);
        self.tell(CopyEvent::FileStarted {
            id,
            source: source.clone(),
            target: target.clone(),
            size: Some(0),
        });
        self.tell(CopyEvent::FileDone {
            id,
            source,
            target,
            bytes: 0,
            state: FileState::Renamed,
            in_place: false,
            synced: self.options.fsync,
            verified: self.options.verify,
        });
        self.item_over(item.dir);
    }
}
