//! Files that have several names: copied once, the other names are made of the first.

use std::collections::BTreeMap;

use schedule::{FileState, JobKind, RemotePath};
use sftp::Link;

use super::engine::{End, Engine, Purpose};
use super::local;
use super::tree::Held;
use crate::report::Event;

/// The files of which more names may come, by file system and number.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    files: BTreeMap<(u64, u64), Names>,
    /// Items that wait for the first name of theirs.
    waiting: usize,
}

#[derive(Debug, Default)]
struct Names {
    /// Where it stands at the target, once it does.
    stands: Option<Vec<u8>>,
    /// What is to be another name of it.
    waiting: Vec<Held>,
    /// Names that were found.
    found: u32,
}

impl HardLinks {
    /// Names that come later are of other files: the source is another.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Items that wait for the first name of their file.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}

fn key(link: &Link) -> (u64, u64) {
    (link.device, link.inode)
}

impl Engine<'_> {
    /// Which file an item is, if other names of it are to be made of the first.
    pub(super) fn link_of(&self, item: &Held) -> Option<Link> {
        let link = item.entry.attributes.link?;
        (self.options.hard_links && link.names > 1).then_some(link)
    }

    /// Makes an item another name of a file that was copied, or keeps it until that is; gives back
    /// the first of its names, which is to be copied.
    pub(super) fn link_or_copy(&mut self, item: Held) -> Option<Held> {
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
                    // No more will come.
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

    /// The first name of a file stands at `target`.
    pub(super) fn link_others(&mut self, link: Option<Link>, target: &[u8]) {
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

    /// The first name of a file was not copied: the next one is.
    pub(super) fn link_failed(&mut self, link: Option<Link>) {
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

    fn make_hard_link(&mut self, item: Held, of: Vec<u8>) {
        if self.target.is_some() {
            let (path, of) = (RemotePath(item.target.clone()), RemotePath(of));
            let kind = JobKind::MakeHardLink { path, of };
            self.submit(End::Target, kind, Purpose::MakeHardLink(item));
            return;
        }
        let (path, of) = (self.target_path(&item.target), self.target_path(&of));
        let made = local::make_hard_link(&self.directories(), &path, &of);
        self.hard_link_over(item, made);
    }

    /// What cannot be a link is a copy, and that is said.
    pub(super) fn hard_link_over(&mut self, mut item: Held, made: Result<(), String>) {
        if let Err(why) = made {
            self.not_kept.note_link(&why);
            item.entry.attributes.link = None;
            return self.begin_file(item);
        }
        self.name_made(&item.target, false);
        let id = self.next_file;
        self.next_file += 1;
        self.progress.add_file(Some(0));
        self.progress.file_done();
        self.summary.files += 1;
        let source = self.shown(End::Source, &item.entry.path);
        let target = self.shown(End::Target, &item.target);
        self.tell(Event::FileStarted {
            id,
            source: source.clone(),
            target: target.clone(),
            size: Some(0),
        });
        self.tell(Event::FileDone {
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
