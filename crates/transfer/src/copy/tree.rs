use std::collections::BTreeMap;

use schedule::{Attributes, ExtraMetadata, JobKind, RemotePath, Xattrs};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::file::FileId;
use super::local::SYMLINK;
use super::metadata::special_bits;
use super::source::WalkId;
use crate::report::CopyEvent;
use crate::walk::{EntryInfo, WalkDirectoryId};

/// Directory of the copy: its walk and its number in that walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirKey {
    pub walk: WalkId,
    pub dir: WalkDirectoryId,
}

/// Target directories that are not complete. A directory is made before its contents, and gets its
/// mode and times after them.
#[derive(Debug, Default)]
pub(super) struct TargetTree {
    dirs: BTreeMap<DirKey, TargetDir>,
    held: usize,
    /// Number of files started before their directory is known to exist.
    early: usize,
}

const LSETSTAT: &str = "lsetstat@openssh.com";

/// Largest number of files started behind an unanswered MKDIR. More than a new connection sends in
/// a round trip, but few, because each costs a query for an existing file, which a new directory
/// makes unnecessary.
const EARLY: usize = 64;

#[derive(Debug)]
struct TargetDir {
    parent: Option<DirKey>,
    target: Vec<u8>,
    attributes: Attributes,
    /// Extended attributes and access control lists to set.
    xattrs: Option<Box<Xattrs>>,
    state: DirState,
    existed: bool,
    /// The mode was set when the directory was made.
    has_mode: bool,
    /// The walk has no more entries of the directory.
    listed: bool,
    /// Number of unfinished entries in the directory.
    open: usize,
    /// Entries that wait until the directory is made.
    held: Vec<PendingItem>,
    /// Subdirectories that wait until the directory is made.
    held_dirs: Vec<DirKey>,
    /// Number of files started before the directory is known to exist.
    early: usize,
    /// Files among these that failed, perhaps only because the directory did not exist.
    failed_early: Vec<FileId>,
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

/// File or symlink whose directory may not exist yet.
#[derive(Clone, Debug)]
pub(super) struct PendingItem {
    pub entry: EntryInfo,
    pub target: Vec<u8>,
    pub dir: Option<DirKey>,
    pub symlink: bool,
    pub points_to: Option<Vec<u8>>,
}

/// Decision about an item, by the state of its directory.
enum ItemPlacement {
    Place,
    Hold,
    Drop,
}

impl TargetTree {
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
    pub(super) fn target(&self, dir: DirKey) -> Option<&[u8]> {
        self.dirs.get(&dir).map(|d| d.target.as_slice())
    }

    /// Notes that the directory existed before the copy.
    pub(super) fn existed(&mut self, dir: DirKey) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.existed = true;
        }
    }

    /// Delays the end of a directory until one more query about it is answered.
    pub(super) fn waits_for_more(&mut self, dir: DirKey) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.open += 1;
        }
    }

    /// Stores the extended attributes to set on a directory.
    pub(super) fn has_xattrs(&mut self, dir: DirKey, xattrs: Option<Box<Xattrs>>) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.xattrs = xattrs;
        }
    }

    /// True if this run created the directory.
    pub(super) fn is_fresh(&self, dir: DirKey) -> bool {
        self.dirs
            .get(&dir)
            .is_some_and(|d| d.state == DirState::Ready && !d.existed)
    }

    /// True if the directory is itself a source.
    pub(super) fn is_root(&self, dir: DirKey) -> bool {
        self.dirs.get(&dir).is_some_and(|d| d.parent.is_none())
    }

    /// Attributes the failure of a file to the file or its directory `dir`. An undecided file is
    /// kept until the directory is made or has failed.
    pub(super) fn blame(&mut self, dir: Option<DirKey>, file: FileId) -> FailureScope {
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
    fn place(&mut self, dir: DirKey, held: &PendingItem, early: bool) -> ItemPlacement {
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

impl CopyEngine<'_> {
    /// Makes a directory that was found, at once if it need not wait for its parent. Returns false
    /// if that is impossible and its contents can be skipped.
    pub(super) fn begin_dir(
        &mut self,
        key: DirKey,
        parent: Option<DirKey>,
        target: Vec<u8>,
        attributes: Attributes,
    ) -> bool {
        let mut state = DirState::Making;
        if let Some(parent) = parent {
            let in_order = self.may_fill_early(parent);
            let Some(above) = self.tree.dirs.get_mut(&parent) else {
                return false;
            };
            match above.state {
                DirState::Failed | DirState::Finishing => return false,
                DirState::Waiting => state = DirState::Waiting,
                DirState::Making if !in_order => state = DirState::Waiting,
                DirState::Making | DirState::Ready => {}
            }
            above.open += 1;
            if state == DirState::Waiting {
                above.held_dirs.push(key);
            }
        }
        self.tree.dirs.insert(
            key,
            TargetDir {
                parent,
                target,
                attributes,
                xattrs: None,
                state,
                existed: false,
                has_mode: false,
                listed: false,
                open: 0,
                held: Vec::new(),
                held_dirs: Vec::new(),
                early: 0,
                failed_early: Vec::new(),
            },
        );
        if state == DirState::Making {
            self.make_dir(key);
        }
        self.tree
            .dirs
            .get(&key)
            .is_some_and(|d| d.state != DirState::Failed)
    }

    /// True if the server answers requests in order, as OpenSSH and longhaul do. A directory may
    /// then be made in a parent whose own MKDIR is not answered yet.
    fn server_works_in_order(&self) -> bool {
        self.side(CopySide::Target)
            .and_then(|side| side.session().server_info())
            .is_some_and(sftp::ServerInfo::answers_in_order)
    }

    fn make_dir(&mut self, key: DirKey) {
        let Some(dir) = self.tree.dirs.get_mut(&key) else {
            return;
        };
        dir.state = DirState::Making;
        // Default mode of a new directory before the umask, if the server reported none.
        let mode = dir.attributes.mode.unwrap_or(0o777);
        if self.ports.sides().is_remote(CopySide::Target) {
            let path = RemotePath(dir.target.clone());
            // The owner must be able to fill it.
            let mode = (mode & 0o1777) | 0o300;
            let follow = self.follows(key);
            let kind = JobKind::MakeDir { path, mode, follow };
            self.submit(CopySide::Target, kind, JobPurpose::MakeDir(key));
            return;
        }
        // A symlink made by this run was chosen by the source (CVE-2019-6111).
        let target = dir.target.clone();
        let path = self.ports.named().local_path(&target);
        let follow = match path.is_named() {
            // A symlink that was there is what the user named.
            true => !self.ports.named().was_missing(&target),
            false => self.options.keep_dirlinks && !self.ports.named().has_made_link(&target),
        };
        let made = self.local().make_directory(&path, mode, follow);
        let Some(dir) = self.tree.dirs.get_mut(&key) else {
            return;
        };
        match made {
            Ok(created) => {
                dir.existed = !created;
                self.on_made(key, Ok(()));
            }
            Err(what) => self.on_made(key, Err(what)),
        }
    }

    /// True if a symlink to a directory is accepted at the far end: at the path that the user
    /// named, or everywhere with --keep-dirlinks. A symlink that this run has made, or that a
    /// remote source may have chosen, never is.
    fn follows(&self, key: DirKey) -> bool {
        self.tree.dirs.get(&key).is_some_and(|dir| {
            let named = dir.parent.is_none() && self.ports.named().is(&dir.target);
            let dirlinks = self.options.keep_dirlinks
                && (dir.parent.is_none() || !self.ports.keeps_foreign_links());
            (named || dirlinks) && !self.ports.named().has_made_link(&dir.target)
        })
    }

    /// True if requests for the contents of a directory may leave before its own MKDIR is
    /// answered. A path through a symlink that is not followed would lead elsewhere, so nothing
    /// but a directory may stand there.
    fn may_fill_early(&self, key: DirKey) -> bool {
        if !self.server_works_in_order() {
            return false;
        }
        self.follows(key) || !self.ports.keeps_foreign_links() && self.is_below_fresh(key)
    }

    /// True if this run has made a directory above, or makes the root, so that only this run has
    /// made what stands below.
    fn is_below_fresh(&self, key: DirKey) -> bool {
        let mut at = self.tree.dirs.get(&key).and_then(|dir| dir.parent);
        while let Some(dir) = at.and_then(|key| self.tree.dirs.get(&key)) {
            let missing = dir.parent.is_none() && self.ports.named().was_missing(&dir.target);
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
    fn sets_through_link(&self, key: DirKey) -> bool {
        let lacks = self
            .side(CopySide::Target)
            .and_then(|side| side.session().server_info())
            .is_none_or(|server| !server.has(LSETSTAT));
        self.follows(key) || lacks && self.tree.dirs.get(&key).is_some_and(|dir| !dir.existed)
    }

    pub(super) fn on_made(&mut self, key: DirKey, result: Result<(), String>) {
        let Some(dir) = self.tree.dirs.get_mut(&key) else {
            return;
        };
        let held = std::mem::take(&mut dir.held);
        let held_dirs = std::mem::take(&mut dir.held_dirs);
        let failed = std::mem::take(&mut dir.failed_early);
        self.tree.early -= std::mem::take(&mut dir.early);
        self.tree.held -= held.len();
        match result {
            Ok(()) => {
                dir.state = DirState::Ready;
                self.set_mode_now(key);
                for below in held_dirs {
                    self.make_dir(below);
                }
                for file in failed {
                    self.file_again(file);
                }
                for item in held {
                    self.begin_placed(item);
                }
                self.check_dir(Some(key));
            }
            Err(what) => {
                dir.state = DirState::Failed;
                dir.open -= held.len();
                let target = dir.target.clone();
                let parent_failed = dir.parent.is_some_and(|p| {
                    self.tree
                        .dirs
                        .get(&p)
                        .is_some_and(|d| d.state == DirState::Failed)
                });
                if !parent_failed {
                    let target = self.shown(CopySide::Target, &target);
                    let what = match what == schedule::SYMLINK_IN_THE_WAY {
                        true => SYMLINK.to_owned(),
                        false => what,
                    };
                    let what = format!("cannot create the directory: {what}");
                    self.fail(None, target, what);
                }
                for file in failed {
                    self.file_dropped(file);
                }
                for below in held_dirs {
                    self.on_made(below, Err("its directory could not be created".to_owned()));
                }
                self.check_dir(Some(key));
            }
        }
    }

    /// Sets the mode of a new directory at once if the mode allows filling it and no times are
    /// kept. Doing it at the end would add a round trip for which nothing else waits.
    fn set_mode_now(&mut self, key: DirKey) {
        let preserve = self.options.preserve || self.options.archive;
        let Some(dir) = self.tree.dirs.get_mut(&key) else {
            return;
        };
        let Some(mode) = dir.attributes.mode.filter(|mode| mode & 0o300 == 0o300) else {
            return;
        };
        if preserve || dir.existed || !self.ports.sides().is_remote(CopySide::Target) {
            return;
        }
        dir.has_mode = true;
        let target = dir.target.clone();
        let follow = self.sets_through_link(key);
        let kind = JobKind::SetAttributes {
            path: RemotePath(target.clone()),
            attributes: Attributes {
                mode: Some(mode & 0o1777),
                ..Attributes::default()
            },
            follow,
            xattrs: None,
        };
        let name = self.shown(CopySide::Target, &target);
        self.submit(CopySide::Target, kind, JobPurpose::DirMode(name));
    }

    /// Starts an item, or defers it until its directory is made.
    pub(super) fn begin_item(&mut self, item: PendingItem) {
        let place = match item.dir {
            Some(dir) => {
                let here = !self.source_is_remote() && self.target_is_remote();
                let early = here && self.may_fill_early(dir);
                self.tree.place(dir, &item, early)
            }
            None => ItemPlacement::Place,
        };
        if let ItemPlacement::Place = place {
            self.begin_placed(item);
        }
    }

    fn begin_placed(&mut self, item: PendingItem) {
        if item.symlink {
            self.begin_symlink(item);
        } else if let Some(item) = self.link_or_copy(item) {
            self.begin_file(item);
        }
    }

    /// Notes that the walk has no more entries of a directory.
    pub(super) fn listed(&mut self, key: DirKey) {
        if let Some(dir) = self.tree.dirs.get_mut(&key) {
            dir.listed = true;
        }
        self.check_dir(Some(key));
    }

    /// Notes that an entry of `dir` is finished.
    pub(super) fn item_over(&mut self, dir: Option<DirKey>) {
        if let Some(found) = dir.and_then(|key| self.tree.dirs.get_mut(&key)) {
            found.open -= 1;
            self.check_dir(dir);
        }
    }

    /// Finishes `dir` if all its contents are done.
    fn check_dir(&mut self, key: Option<DirKey>) {
        let mut next = key;
        while let Some(key) = next {
            next = None;
            let Some(dir) = self.tree.dirs.get_mut(&key) else {
                return;
            };
            if !dir.listed || dir.open > 0 {
                return;
            }
            match dir.state {
                DirState::Ready => {
                    dir.state = DirState::Finishing;
                    self.finish_dir(key);
                }
                DirState::Failed => {
                    let parent = dir.parent;
                    self.tree.dirs.remove(&key);
                    if let Some(above) = parent.and_then(|p| self.tree.dirs.get_mut(&p)) {
                        above.open -= 1;
                        next = parent;
                    }
                }
                DirState::Waiting | DirState::Making | DirState::Finishing => return,
            }
        }
    }

    fn finish_dir(&mut self, key: DirKey) {
        let preserve = self.options.preserve || self.options.archive;
        let owns = self.options.archive && self.metadata.sets_owners();
        let Some(dir) = self.tree.dirs.get(&key) else {
            return;
        };
        let (target, mode) = (dir.target.clone(), dir.attributes.mode);
        let shown = self.shown(CopySide::Target, &target);
        let rules = special_bits(&self.ports);
        let mode = mode.map(|mode| {
            self.metadata
                .withheld()
                .kept_directory_mode(rules, mode, || shown)
        });
        let Some(dir) = self.tree.dirs.get_mut(&key) else {
            return;
        };
        let owner = dir.attributes.owner.filter(|_| owns);
        let xattrs = dir.xattrs.take();
        if !self.ports.sides().is_remote(CopySide::Target) {
            let beyond = ExtraMetadata { owner, xattrs };
            let created = !dir.existed;
            let attributes = Attributes {
                mode,
                ..dir.attributes
            };
            let path = self.ports.named().local_path(&target);
            let (options, local) = (self.options, self.local());
            let done = local.finish_directory(&path, &attributes, created, options, &beyond);
            let result = done.map(|not_kept| {
                for (parts, why) in not_kept {
                    self.metadata.note_lost(parts, &why);
                }
            });
            self.on_finished(key, result);
            return;
        }
        let same = dir.has_mode || dir.existed && !preserve;
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
            self.on_finished(key, Ok(()));
            return;
        }
        let kind = JobKind::SetAttributes {
            path: RemotePath(target),
            attributes,
            follow: self.sets_through_link(key),
            xattrs,
        };
        self.submit(CopySide::Target, kind, JobPurpose::FinishDir(key));
        // If the server works in order, the parent may follow at once. Waiting a round trip for
        // each level took most of the time of a small, deep tree.
        if self.server_works_in_order()
            && let Some(dir) = self.tree.dirs.get_mut(&key)
        {
            let parent = dir.parent.take();
            self.item_over(parent);
        }
    }

    pub(super) fn on_finished(&mut self, key: DirKey, result: Result<(), String>) {
        let Some(dir) = self.tree.dirs.remove(&key) else {
            return;
        };
        let target = self.shown(CopySide::Target, &dir.target);
        match result {
            Ok(()) => {
                self.ports.summary_mut().directories += 1;
                if !dir.existed {
                    self.name_made(&dir.target, true);
                }
                self.tell(CopyEvent::DirectoryDone { target });
            }
            Err(what) => self.fail(None, target, format!("cannot set mode and times: {what}")),
        }
        self.item_over(dir.parent);
    }
}
