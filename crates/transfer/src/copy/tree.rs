mod directory_id;
mod existing;
mod finish_locally;
mod item;

use std::collections::{BTreeMap, VecDeque};

use schedule::{
    Attributes, ExpectedEntry, ExtraMetadata, JobFailureKind, JobKind, RemotePath, Xattrs,
};
use sftp::ListedEntry;

pub(super) use self::directory_id::CopyDirectoryId;
use self::finish_locally::finish_locally;
pub(super) use self::item::ItemAwaitingDirectory;
use super::context::CopyContext;
use super::durable::UnsyncedDirs;
use super::file::CopyFileId;
use super::jobs::JobPurpose;
use super::local::{symlink_in_the_way, without_parent};
use super::metadata::{MetadataPreservation, special_bits};
use super::sides::CopySide;
use super::source::WalkId;
use crate::file_error::FileError;
use crate::report::{CopyEvent, EscapedName};
use crate::walk::{EntryInfo, join};

/// Target directories that are not complete. A directory is made before its contents, and gets its
/// mode and times after them.
#[derive(Debug, Default)]
pub(super) struct IncompleteTargetDirs {
    dirs: BTreeMap<CopyDirectoryId, TargetDir>,
    held: usize,
    /// Number of files started before their directory is known to exist.
    early: usize,
    steps: VecDeque<DirectoryReadyStep>,
    /// An earlier run has left something that is removed from each directory.
    clears: bool,
    unsynced: UnsyncedDirs,
}

/// Work that has become possible because a directory was made or has failed.
#[derive(Debug)]
pub(super) enum DirectoryReadyStep {
    /// An item whose directory was made.
    Place(Box<ItemAwaitingDirectory>),
    /// The journal records that this directory was made.
    Record(Vec<u8>),
    /// The directories that an earlier run has made are forgotten.
    ForgetMade,
    /// A file that failed before its directory was known to exist starts again.
    FileAgain(CopyFileId),
    /// A file whose directory could not be made is dropped.
    FileDropped(CopyFileId),
    /// Leftovers of an earlier run in a directory are removed before the directory gets its mode,
    /// which may forbid that, and its times.
    Clear(CopyDirectoryId),
}

const LSETSTAT: &str = "lsetstat@openssh.com";

/// Largest number of files started behind an unanswered MKDIR. More than a new connection sends in
/// a round trip, but few, because each costs a query for an existing file, which a new directory
/// makes unnecessary.
const EARLY: usize = 64;
/// Mode bits that the owner of a directory at a server needs to fill it.
const FILL: u32 = 0o300;

/// Directory of the target that is not complete.
#[derive(Debug)]
pub(super) struct TargetDir {
    parent: Option<CopyDirectoryId>,
    target: Vec<u8>,
    attributes: Attributes,
    /// Extended attributes and access control lists to set.
    xattrs: Option<Box<Xattrs>>,
    state: DirState,
    /// The directory was there before the copy.
    existed: bool,
    /// The directory as it was listed or found then.
    found: ListedEntry,
    /// Mode of the directory, until its owner may fill it.
    found_mode: Option<u32>,
    /// The mode was set when the directory was made.
    has_mode: bool,
    /// The walk has no more entries of the directory.
    listed: bool,
    /// Leftovers of an earlier run in the directory are removed, or will be before it is finished.
    is_cleared: bool,
    metadata: DirMetadataRule,
    /// Number of unfinished entries in the directory.
    open: usize,
    /// Entries that wait until the directory is made.
    held: Vec<ItemAwaitingDirectory>,
    /// Subdirectories that wait until the directory is made.
    held_dirs: Vec<CopyDirectoryId>,
    /// Number of files started before the directory is known to exist.
    early: usize,
    /// Files among these that failed, perhaps only because the directory did not exist.
    failed_early: Vec<CopyFileId>,
}

impl TargetDir {
    /// Directory that gets these attributes of its source. `existing` is the one in a listing of the
    /// target.
    pub(super) fn new(
        parent: Option<CopyDirectoryId>,
        target: Vec<u8>,
        attributes: Attributes,
        existing: Option<ListedEntry>,
    ) -> Self {
        Self {
            parent,
            target,
            attributes,
            xattrs: None,
            state: DirState::Waiting,
            existed: existing.is_some(),
            found: existing.unwrap_or_default(),
            found_mode: None,
            has_mode: false,
            listed: false,
            is_cleared: false,
            metadata: DirMetadataRule::Always,
            open: 0,
            held: Vec::new(),
            held_dirs: Vec::new(),
            early: 0,
            failed_early: Vec::new(),
        }
    }

    /// True if the directory is the counterpart of a source, or of the root of a plan.
    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    pub(super) fn target(&self) -> &[u8] {
        &self.target
    }

    /// Leaves the metadata of the directory as it is, if it is there already.
    pub(super) fn leave_existing(&mut self) {
        self.metadata = DirMetadataRule::IfNew;
    }

    /// Notes that an interrupted run of this copy has made the directory.
    pub(super) fn was_made_earlier(&mut self) {
        self.metadata = DirMetadataRule::MadeEarlier;
    }

    /// True if the directory keeps its own metadata.
    fn keeps_own(&self) -> bool {
        self.existed && self.metadata == DirMetadataRule::IfNew
    }

    /// True if the copy has made the directory, in this run or an interrupted one.
    fn is_of_copy(&self) -> bool {
        !self.existed || self.metadata == DirMetadataRule::MadeEarlier
    }

    /// True if the directory gets its source's mode at the end although it exists already.
    fn changes_existing_mode(&self, preserves: bool) -> bool {
        let is_own = self.metadata == DirMetadataRule::MadeEarlier;
        (preserves && !self.keeps_own() || is_own) && self.attributes.mode.is_some()
    }

    /// True if the owner can fill the directory once it has the mode of its source.
    pub(super) fn is_filled_by_owner(&self) -> bool {
        self.attributes.mode.is_none_or(|mode| mode & FILL == FILL)
    }
}

/// Case in which a directory gets the metadata of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirMetadataRule {
    Always,
    /// If this run makes it; an existing one keeps its own.
    IfNew,
    /// As if this run made it, since an interrupted run of this copy did.
    MadeEarlier,
}

/// Conclusion from a file's failure about its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureScope {
    /// The failure concerns the file itself.
    File,
    /// Undecided until the directory is made or has failed.
    Undecided,
    /// The directory could not be made, which was reported.
    Directory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirState {
    /// The parent is being made.
    Waiting,
    Making,
    Ready,
    /// The directory could not be made, which was reported; its contents are not copied.
    Failed,
    Finishing,
}

/// Decision about an item, by the state of its directory.
enum ItemPlacement {
    Place,
    Hold,
    Drop,
}

impl IncompleteTargetDirs {
    /// Notes if an earlier run has left something that is removed from each directory. Not if
    /// sources are merged: the first one completes a directory into which another one is copied.
    pub(super) fn set_clears(&mut self, clears: bool) {
        self.clears |= clears;
    }

    /// Number of items that wait for their directory.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Drops all waiting items when the run ends early.
    pub(super) fn drop_held(&mut self) {
        self.dirs.clear();
        self.held = 0;
        self.early = 0;
    }

    /// Target path of a directory.
    pub(super) fn target(&self, dir: CopyDirectoryId) -> Option<&[u8]> {
        self.dirs.get(&dir).map(|d| d.target.as_slice())
    }

    /// Name of a directory's target in messages.
    pub(super) fn shown(
        &self,
        context: &CopyContext<'_>,
        dir: CopyDirectoryId,
    ) -> Option<EscapedName> {
        let target = self.target(dir)?;
        Some(context.shown(CopySide::Target, target))
    }

    /// Target path of an entry of a walk whose root is copied to `root`; `None` if its directory
    /// has no target.
    pub(super) fn target_of(
        &self,
        walk: WalkId,
        entry: &EntryInfo,
        root: &[u8],
    ) -> Option<Vec<u8>> {
        match entry.parent {
            Some(parent) => {
                let dir = self.target(CopyDirectoryId::new(walk, parent))?;
                Some(join(dir, &entry.name))
            }
            None => Some(root.to_vec()),
        }
    }

    /// Notes that the directory existed before the copy, with these attributes.
    pub(super) fn existed(&mut self, dir: CopyDirectoryId, found: &Attributes) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.existed = true;
            dir.found_mode = found.mode;
            // Not the owner: another source of the run may have set it.
            dir.found = ListedEntry {
                inode: found.link.map(|identity| (identity.device, identity.inode)),
                ..ListedEntry::ANY
            };
        }
    }

    /// Delays the end of a directory until one more query about it is answered.
    pub(super) fn waits_for_more(&mut self, dir: CopyDirectoryId) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.open += 1;
        }
    }

    /// Stores the extended attributes to set on a directory.
    pub(super) fn has_xattrs(&mut self, dir: CopyDirectoryId, xattrs: Option<Box<Xattrs>>) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.xattrs = xattrs;
        }
    }

    /// True if this run created the directory.
    pub(super) fn is_fresh(&self, dir: CopyDirectoryId) -> bool {
        self.dirs
            .get(&dir)
            .is_some_and(|d| d.state == DirState::Ready && !d.existed)
    }

    /// True if the directory is itself a source.
    pub(super) fn is_root(&self, dir: CopyDirectoryId) -> bool {
        self.dirs.get(&dir).is_some_and(|d| d.parent.is_none())
    }

    /// Attributes the failure of a file to the file or its directory `dir`. An undecided file is
    /// kept until the directory is made or has failed.
    pub(super) fn blame(&mut self, dir: Option<CopyDirectoryId>, file: CopyFileId) -> FailureScope {
        let Some(dir) = dir.and_then(|dir| self.dirs.get_mut(&dir)) else {
            return FailureScope::File;
        };
        match dir.state {
            DirState::Making => {
                dir.failed_early.push(file);
                FailureScope::Undecided
            }
            DirState::Failed => FailureScope::Directory,
            _ => FailureScope::File,
        }
    }

    /// Decides about an item by the state of its directory. With `early`, a file may follow the
    /// unanswered request that makes the directory.
    fn place(
        &mut self,
        dir: CopyDirectoryId,
        held: &ItemAwaitingDirectory,
        early: bool,
    ) -> ItemPlacement {
        let Some(dir) = self.dirs.get_mut(&dir) else {
            return ItemPlacement::Drop;
        };
        match dir.state {
            DirState::Making if early && !held.symlink && self.early < EARLY => {
                dir.open += 1;
                dir.early += 1;
                self.early += 1;
                ItemPlacement::Place
            }
            DirState::Waiting | DirState::Making => {
                dir.open += 1;
                dir.held.push(held.clone());
                self.held += 1;
                ItemPlacement::Hold
            }
            DirState::Ready => {
                dir.open += 1;
                ItemPlacement::Place
            }
            DirState::Failed | DirState::Finishing => ItemPlacement::Drop,
        }
    }
}

impl IncompleteTargetDirs {
    /// Makes a directory that was found, at once if it need not wait for its parent, unless the
    /// target is known to have it. Returns false if that is impossible and its contents can be
    /// skipped.
    pub(super) fn begin_dir(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
        mut dir: TargetDir,
    ) -> bool {
        let mut is_parent_ready = true;
        dir.state = DirState::Making;
        if let Some(parent) = dir.parent {
            let in_order = self.may_fill_early(context, parent);
            let Some(above) = self.dirs.get_mut(&parent) else {
                return false;
            };
            is_parent_ready = above.state == DirState::Ready;
            match above.state {
                DirState::Failed | DirState::Finishing => return false,
                DirState::Waiting => dir.state = DirState::Waiting,
                DirState::Making if !in_order => dir.state = DirState::Waiting,
                DirState::Making | DirState::Ready => {}
            }
            above.open += 1;
            if dir.state == DirState::Waiting {
                above.held_dirs.push(key);
            }
        }
        // The listing tells what the answer to a MKDIR would, without two round trips for each level
        // of the tree. On this machine they cost nothing.
        dir.existed = dir.existed
            && is_parent_ready
            && context.target_is_remote()
            && !dir.is_of_copy()
            && !context.named().was_missing(&dir.target);
        if dir.existed {
            dir.state = DirState::Ready;
        }
        let makes = dir.state == DirState::Making;
        self.dirs.insert(key, dir);
        if makes {
            self.make_dir(context, metadata, key);
        }
        self.dirs
            .get(&key)
            .is_some_and(|d| d.state != DirState::Failed)
    }

    fn make_dir(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
    ) {
        let Some(dir) = self.dirs.get_mut(&key) else {
            return;
        };
        dir.state = DirState::Making;
        if context.named().was_missing(&dir.target) {
            self.record(key);
        }
        let Some(dir) = self.dirs.get(&key) else {
            return;
        };
        let is_made_earlier = dir.metadata == DirMetadataRule::MadeEarlier;
        // Default mode of a new directory before the umask, if the server reported none.
        let mode = dir.attributes.mode.unwrap_or(0o777);
        if context.target_is_remote() {
            let path = RemotePath(dir.target.clone());
            // The owner must be able to fill it.
            let mode = (mode & 0o1777) | FILL;
            let follow = self.follows(context, key);
            let kind = JobKind::MakeDir { path, mode, follow };
            context.submit(CopySide::Target, kind, JobPurpose::MakeDir(key));
            return;
        }
        // A symlink made by this run was chosen by the source (CVE-2019-6111).
        let target = dir.target.clone();
        let path = context.named().local_path(&target);
        let follow = match path.is_named() {
            _ if is_made_earlier => false,
            // A symlink that was there is what the user named.
            true => !context.named().was_missing(&target),
            false => context.options().keep_dirlinks && !context.named().has_made_link(&target),
        };
        let made = context.local().make_directory(&path, mode, follow);
        let Some(dir) = self.dirs.get_mut(&key) else {
            return;
        };
        match made {
            Ok(created) => {
                dir.existed = !created;
                if dir.existed && dir.changes_existing_mode(context.preserves()) {
                    context.local().grant_owner_access(&path);
                }
                self.on_made(context, metadata, key, Ok(()));
            }
            Err(what) => self.on_made(context, metadata, key, Err(what)),
        }
    }

    /// True if a symlink to a directory is accepted at the far end: at the path that the user
    /// named, or everywhere with --keep-dirlinks. A symlink that this run has made, or that a
    /// remote source may have chosen, never is.
    fn follows(&self, context: &CopyContext<'_>, key: CopyDirectoryId) -> bool {
        self.dirs.get(&key).is_some_and(|dir| {
            if dir.metadata == DirMetadataRule::MadeEarlier {
                return false;
            }
            let named = dir.parent.is_none() && context.named().is(&dir.target);
            let dirlinks = context.options().keep_dirlinks
                && (dir.parent.is_none() || !context.keeps_foreign_links());
            (named || dirlinks) && !context.named().has_made_link(&dir.target)
        })
    }

    /// True if requests for the contents of a directory may leave before its own MKDIR is
    /// answered. A path through a symlink that is not followed would lead elsewhere, so nothing
    /// but a directory may stand there.
    fn may_fill_early(&self, context: &CopyContext<'_>, key: CopyDirectoryId) -> bool {
        if !context.target_answers_in_order() {
            return false;
        }
        let is_below_fresh = self.is_below_fresh(context, key);
        let is_missing = |dir: &TargetDir| context.named().was_missing(&dir.target);
        let is_fresh = is_below_fresh || self.dirs.get(&key).is_some_and(is_missing);
        // The owner of an existing directory may have to get write permission first.
        let preserves = context.preserves();
        let changes = |dir: &TargetDir| dir.changes_existing_mode(preserves);
        if !is_fresh && self.dirs.get(&key).is_some_and(changes) {
            return false;
        }
        self.follows(context, key) || !context.keeps_foreign_links() && is_below_fresh
    }

    /// True if this run has made a directory above, or makes the root, so that only this run has
    /// made what stands below.
    fn is_below_fresh(&self, context: &CopyContext<'_>, key: CopyDirectoryId) -> bool {
        let mut at = self.dirs.get(&key).and_then(|dir| dir.parent);
        while let Some(dir) = at.and_then(|key| self.dirs.get(&key)) {
            let missing = dir.parent.is_none() && context.named().was_missing(&dir.target);
            match dir.state {
                DirState::Ready => return !dir.existed,
                _ if missing => return true,
                _ => at = dir.parent,
            }
        }
        false
    }

    /// True if the attributes of a directory at the far end are set through a symlink. A server
    /// without lsetstat@openssh.com has just created a new directory, so SETSTAT is used for it.
    fn sets_through_link(&self, context: &CopyContext<'_>, key: CopyDirectoryId) -> bool {
        let lacks = context
            .side(CopySide::Target)
            .and_then(|side| side.session().server_info())
            .is_none_or(|server| !server.has(LSETSTAT));
        self.follows(context, key) || lacks && self.dirs.get(&key).is_some_and(|dir| !dir.existed)
    }

    pub(super) fn on_made(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
        result: Result<(), FileError>,
    ) {
        if result.is_ok() && self.grants_access(context, key) {
            return;
        }
        if self.meets_symlink(key, &result) {
            self.forget_earlier();
            if self.follows(context, key) {
                return self.make_dir(context, metadata, key);
            }
        }
        let Some(dir) = self.dirs.get_mut(&key) else {
            return;
        };
        let held = std::mem::take(&mut dir.held);
        let held_dirs = std::mem::take(&mut dir.held_dirs);
        let failed = std::mem::take(&mut dir.failed_early);
        self.early -= std::mem::take(&mut dir.early);
        self.held -= held.len();
        match result {
            Ok(()) => {
                dir.state = DirState::Ready;
                let is_recorded = context.named().was_missing(&dir.target);
                if !is_recorded && !dir.existed {
                    self.record(key);
                }
                self.set_mode_now(context, key);
                for below in held_dirs {
                    self.make_dir(context, metadata, below);
                }
                for file in failed {
                    self.steps.push_back(DirectoryReadyStep::FileAgain(file));
                }
                for item in held {
                    self.steps
                        .push_back(DirectoryReadyStep::Place(Box::new(item)));
                }
                self.check_dir(context, metadata, Some(key));
            }
            Err(error) => {
                dir.state = DirState::Failed;
                dir.open -= held.len();
                let target = dir.target.clone();
                let parent_failed = dir.parent.is_some_and(|p| {
                    self.dirs
                        .get(&p)
                        .is_some_and(|d| d.state == DirState::Failed)
                });
                if !parent_failed {
                    let target = context.shown(CopySide::Target, &target);
                    let error = match error.kind() {
                        JobFailureKind::SymlinkInTheWay => symlink_in_the_way(),
                        JobFailureKind::NotFound => without_parent(),
                        _ => error,
                    };
                    let error = error.with_prefix("cannot create the directory");
                    context.fail(None, target, error);
                }
                for file in failed {
                    self.steps.push_back(DirectoryReadyStep::FileDropped(file));
                }
                for below in held_dirs {
                    self.on_made(
                        context,
                        metadata,
                        below,
                        Err("its directory could not be created".into()),
                    );
                }
                self.check_dir(context, metadata, Some(key));
            }
        }
    }

    /// Defers an item until its directory is made. Returns the item if it need not wait.
    pub(super) fn begin_item(
        &mut self,
        context: &CopyContext<'_>,
        item: ItemAwaitingDirectory,
    ) -> Option<ItemAwaitingDirectory> {
        let place = match item.dir {
            Some(dir) => {
                let here = !context.source_is_remote() && context.target_is_remote();
                let early = here && self.may_fill_early(context, dir);
                self.place(dir, &item, early)
            }
            None => ItemPlacement::Place,
        };
        matches!(place, ItemPlacement::Place).then_some(item)
    }

    /// Takes the next work that has become possible.
    pub(super) fn next_step(&mut self) -> Option<DirectoryReadyStep> {
        self.steps.pop_front()
    }

    /// Notes that a symlink or hard link got this name and is complete.
    pub(super) fn name_made(&mut self, context: &mut CopyContext<'_>, path: &[u8]) {
        self.unsynced.name_made(context, path, false);
    }

    /// Requests durability for all names that were made. Returns false if there are none or no
    /// session can do it.
    pub(super) fn sync_names(&mut self, context: &mut CopyContext<'_>) -> bool {
        self.unsynced.sync(context)
    }

    /// Notes that the walk has no more entries of a directory.
    pub(super) fn listed(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
    ) {
        if let Some(dir) = self.dirs.get_mut(&key) {
            dir.listed = true;
        }
        self.check_dir(context, metadata, Some(key));
    }

    /// Notes that an entry of `dir` is finished.
    pub(super) fn item_over(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        dir: Option<CopyDirectoryId>,
    ) {
        if let Some(found) = dir.and_then(|key| self.dirs.get_mut(&key)) {
            found.open -= 1;
            self.check_dir(context, metadata, dir);
        }
    }

    /// Finishes `dir` if all its contents are done.
    fn check_dir(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: Option<CopyDirectoryId>,
    ) {
        let mut next = key;
        while let Some(key) = next {
            next = None;
            let Some(dir) = self.dirs.get_mut(&key) else {
                return;
            };
            if !dir.listed || dir.open > 0 {
                return;
            }
            match dir.state {
                DirState::Ready if self.clears && !dir.is_cleared => {
                    dir.is_cleared = true;
                    dir.open += 1;
                    return self.steps.push_back(DirectoryReadyStep::Clear(key));
                }
                DirState::Ready => {
                    dir.state = DirState::Finishing;
                    self.finish_dir(context, metadata, key);
                }
                DirState::Failed => {
                    let parent = dir.parent;
                    self.dirs.remove(&key);
                    if let Some(above) = parent.and_then(|p| self.dirs.get_mut(&p)) {
                        above.open -= 1;
                        next = parent;
                    }
                }
                DirState::Waiting | DirState::Making | DirState::Finishing => return,
            }
        }
    }

    fn finish_dir(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
    ) {
        let preserve = context.preserves();
        let owns = context.options().archive && metadata.sets_owners();
        let Some(dir) = self.dirs.get(&key) else {
            return;
        };
        if dir.keeps_own() {
            return self.on_finished(context, metadata, key, Ok(()));
        }
        let (target, mode) = (dir.target.clone(), dir.attributes.mode);
        let rules = special_bits(context);
        let mode = mode.map(|mode| {
            let shown = || context.shown(CopySide::Target, &target);
            metadata.withheld().kept_directory_mode(rules, mode, shown)
        });
        let Some(dir) = self.dirs.get_mut(&key) else {
            return;
        };
        let owner = dir.attributes.owner.filter(|_| owns);
        let xattrs = dir.xattrs.take();
        if !context.target_is_remote() {
            let beyond = ExtraMetadata {
                owner,
                xattrs,
                ..ExtraMetadata::default()
            };
            let result = finish_locally(context, metadata, dir, mode, &beyond);
            return self.on_finished(context, metadata, key, result);
        }
        let same = dir.has_mode || !dir.is_of_copy() && !preserve;
        let found = dir.found;
        // Like scp, a new directory gets its source's mode bits whatever the server's umask.
        let attributes = Attributes {
            mode: mode.filter(|_| !same),
            owner,
            times: dir.attributes.times.filter(|_| preserve),
            nanoseconds: dir.attributes.nanoseconds.filter(|_| preserve),
            ..Attributes::default()
        };
        let nothing = (attributes.mode, attributes.times, owner) == (None, None, None);
        if nothing && xattrs.is_none() {
            self.on_finished(context, metadata, key, Ok(()));
            return;
        }
        let kind = JobKind::SetAttributes {
            path: RemotePath(target),
            attributes,
            follow: self.sets_through_link(context, key),
            xattrs,
            expected: ExpectedEntry {
                listed: found,
                ..ExpectedEntry::DIRECTORY
            },
        };
        context.submit(CopySide::Target, kind, JobPurpose::FinishDir(key));
        // If the server works in order, the parent may follow at once. Waiting a round trip for
        // each level took most of the time of a small, deep tree.
        if context.target_answers_in_order()
            && let Some(dir) = self.dirs.get_mut(&key)
        {
            let parent = dir.parent.take();
            self.item_over(context, metadata, parent);
        }
    }

    pub(super) fn on_finished(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        key: CopyDirectoryId,
        result: Result<(), FileError>,
    ) {
        let Some(dir) = self.dirs.remove(&key) else {
            return;
        };
        let target = context.shown(CopySide::Target, &dir.target);
        match result {
            Ok(()) => {
                context.summary_mut().directories += 1;
                if !dir.existed {
                    self.unsynced.name_made(context, &dir.target, true);
                }
                context.tell(CopyEvent::DirectoryDone { target });
            }
            Err(error) => {
                let error = error.with_prefix("cannot set the mode and times of the directory");
                context.fail(None, target, error);
            }
        }
        self.item_over(context, metadata, dir.parent);
    }
}
