//! Hard links: a file with several names is copied once, and its other names become links to the
//! first.

use std::collections::BTreeMap;

use schedule::{FileCopyState, JobKind, RemotePath};
use sftp::InodeId;

use super::CopyOptions;
use super::context::CopyContext;
use super::file::CopyFileId;
use super::jobs::JobPurpose;
use super::sides::CopySide;
use super::tree::ItemAwaitingDirectory;
use crate::file_error::FileError;
use crate::report::CopyEvent;

/// Files that may have more names, by device and inode number.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    files: BTreeMap<(u64, u64), LinkedNames>,
    /// Number of items that wait for the first name of their file.
    waiting: usize,
    /// Other names of a file become hard links.
    wanted: bool,
}

/// Result of making a hard link.
#[derive(Debug)]
pub(super) struct HardLinkResult {
    pub item: ItemAwaitingDirectory,
    pub result: Result<(), FileError>,
}

/// Decision about an item that may be a further name of a file.
#[derive(Debug)]
pub(super) enum HardLinkDecision {
    /// The first name of a file, or a file with one name: it is copied.
    Copy(ItemAwaitingDirectory),
    /// The link was made or has failed.
    Made(HardLinkResult),
    /// The item waits for the first name of its file, or for the server.
    Waits,
}

#[derive(Debug, Default)]
struct LinkedNames {
    /// Target path of the first name, once it is copied.
    stands: Option<Vec<u8>>,
    /// Items that will become further names of the file.
    waiting: Vec<ItemAwaitingDirectory>,
    /// Number of names found.
    found: u32,
}

impl HardLinks {
    pub(super) fn new(options: &CopyOptions) -> Self {
        Self {
            wanted: options.hard_links,
            ..Self::default()
        }
    }

    /// Forgets all files when the source changes.
    pub(super) fn forget(&mut self) {
        self.files.clear();
        self.waiting = 0;
    }

    /// Notes that the target has a file of the source at `target`, so that each of its names that is
    /// found becomes a hard link to that one.
    pub(super) fn note_first(&mut self, link: &InodeId, target: Vec<u8>) {
        let names = self.files.entry(key(link)).or_default();
        names.stands = Some(target);
        names.found = 1;
    }

    /// Number of items that wait for the first name of their file.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}

fn key(link: &InodeId) -> (u64, u64) {
    (link.device, link.inode)
}

impl HardLinks {
    /// Identity of an item's file, if its other names will be hard links to the first.
    pub(super) fn link_of(&self, item: &ItemAwaitingDirectory) -> Option<InodeId> {
        let link = item.entry.attributes.link?;
        (self.wanted && link.names > 1).then_some(link)
    }

    /// Links an item to a file that was copied, or defers it until that is done.
    pub(super) fn place(
        &mut self,
        context: &mut CopyContext<'_>,
        item: ItemAwaitingDirectory,
    ) -> HardLinkDecision {
        let Some(link) = self.link_of(&item) else {
            return HardLinkDecision::Copy(item);
        };
        let names = self.files.entry(key(&link)).or_default();
        names.found = names.found.saturating_add(1);
        if names.found == 1 {
            return HardLinkDecision::Copy(item);
        }
        let Some(of) = names.stands.clone() else {
            names.waiting.push(item);
            self.waiting += 1;
            return HardLinkDecision::Waits;
        };
        if names.found >= link.names {
            // All names were found.
            self.files.remove(&key(&link));
        }
        match make(context, item, of) {
            Some(made) => HardLinkDecision::Made(made),
            None => HardLinkDecision::Waits,
        }
    }

    /// Links the deferred names of a file to `target`, its first name. Returns the links that were
    /// made at once.
    pub(super) fn first_copied(
        &mut self,
        context: &mut CopyContext<'_>,
        link: Option<InodeId>,
        target: &[u8],
    ) -> Vec<HardLinkResult> {
        let Some(link) = link else { return Vec::new() };
        let Some(names) = self.files.get_mut(&key(&link)) else {
            return Vec::new();
        };
        let waiting = std::mem::take(&mut names.waiting);
        self.waiting -= waiting.len();
        names.stands = Some(target.to_vec());
        if names.found >= link.names {
            self.files.remove(&key(&link));
        }
        let make = |item| make(context, item, target.to_vec());
        waiting.into_iter().filter_map(make).collect()
    }

    /// Returns the next name to copy after the first one of a file failed.
    pub(super) fn first_failed(&mut self, link: Option<InodeId>) -> Option<ItemAwaitingDirectory> {
        let link = link?;
        let names = self.files.get_mut(&key(&link))?;
        if names.waiting.is_empty() {
            self.files.remove(&key(&link));
            return None;
        }
        self.waiting -= 1;
        Some(names.waiting.remove(0))
    }

    /// Reports a hard link that was made as file `id`.
    pub(super) fn report(
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        item: &ItemAwaitingDirectory,
    ) {
        context.progress().add_file(Some(0));
        context.progress().file_done();
        context.summary_mut().files += 1;
        // The first name is among the files that this tells to be synced, all of them or none.
        let synced = context.summary().synced;
        let source = context.shown(CopySide::Source, &item.entry.path);
        let target = context.shown(CopySide::Target, &item.target);
        context.tell(CopyEvent::FileStarted {
            id: id.0,
            source: source.clone(),
            target: target.clone(),
            size: Some(0),
        });
        context.tell(CopyEvent::FileDone {
            id: id.0,
            source,
            target,
            bytes: 0,
            state: FileCopyState::Renamed,
            in_place: false,
            synced,
            verified: context.options().verify,
        });
    }
}

/// Makes `item` a hard link to `of`. Returns `None` if the server is asked to do so.
fn make(
    context: &mut CopyContext<'_>,
    item: ItemAwaitingDirectory,
    of: Vec<u8>,
) -> Option<HardLinkResult> {
    if context.target_is_remote() {
        let (path, of) = (RemotePath(item.target.clone()), RemotePath(of));
        let tag = context.link_tag(&item.target);
        let kind = JobKind::MakeHardLink { path, of, tag };
        context.submit(
            CopySide::Target,
            kind,
            JobPurpose::MakeHardLink(Box::new(item)),
        );
        return None;
    }
    let (path, of) = (
        context.named().local_path(&item.target),
        context.named().local_path(&of),
    );
    let result = context.local().make_hard_link(&path, &of);
    Some(HardLinkResult { item, result })
}
