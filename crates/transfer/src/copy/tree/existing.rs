//! Directories that existed before this run: permissions to fill them, and what an interrupted run of
//! the copy has made.

use schedule::{Attributes, ExpectedEntry, JobFailureKind, JobKind, RemotePath};

use super::{CopyDirectoryId, DirMetadataRule, DirectoryReadyStep, FILL, IncompleteTargetDirs};
use crate::copy::context::CopyContext;
use crate::copy::jobs::JobPurpose;
use crate::copy::owner_access;
use crate::copy::sides::CopySide;
use crate::file_error::FileError;

impl IncompleteTargetDirs {
    /// Has the journal record a directory that the copy makes, unless it made the one above as well.
    pub(super) fn record(&mut self, key: CopyDirectoryId) {
        let Some(dir) = self.dirs.get(&key) else {
            return;
        };
        let parent = dir.parent.and_then(|parent| self.dirs.get(&parent));
        if parent.is_none_or(|parent| !parent.is_of_copy()) {
            let target = dir.target.clone();
            self.steps.push_back(DirectoryReadyStep::Record(target));
        }
    }

    /// True if a symlink stands in place of a directory that an earlier run has made.
    pub(super) fn meets_symlink(&self, key: CopyDirectoryId, made: &Result<(), FileError>) -> bool {
        let is_link = |error: &FileError| error.kind() == JobFailureKind::SymlinkInTheWay;
        let rule = self.dirs.get(&key).map(|dir| dir.metadata);
        made.as_ref().is_err_and(is_link) && rule == Some(DirMetadataRule::MadeEarlier)
    }

    /// Forgets what an earlier run has made: a symlink stands in place of one of its directories, and
    /// what it leads to is not the copy's.
    pub(super) fn forget_earlier(&mut self) {
        for dir in self.dirs.values_mut() {
            if dir.metadata == DirMetadataRule::MadeEarlier {
                dir.metadata = DirMetadataRule::Always;
            }
        }
        self.steps.push_front(DirectoryReadyStep::ForgetMade);
    }

    /// Gives the owner of an existing directory the permissions to fill it, if its mode is set
    /// afterwards. Returns false if it needs none. A server that refuses them refuses the entries
    /// too, and says why.
    pub(super) fn grants_access(
        &mut self,
        context: &mut CopyContext<'_>,
        key: CopyDirectoryId,
    ) -> bool {
        let Some(dir) = self.dirs.get_mut(&key) else {
            return false;
        };
        let is_mode_set = dir.changes_existing_mode(context.preserves());
        let Some(mode) = dir.found_mode.take().filter(|_| is_mode_set) else {
            return false;
        };
        let (path, found) = (RemotePath(dir.target.clone()), dir.found);
        let follow = self.sets_through_link(context, key);
        let Some(kind) = owner_access::job(path, mode, found, follow) else {
            return false;
        };
        let asked = context.submit(CopySide::Target, kind, JobPurpose::GrantAccess(key));
        asked.is_some()
    }

    /// Sets the mode of a new directory at once if the mode allows filling it and no times are
    /// kept. Doing it at the end would add a round trip for which nothing else waits.
    pub(super) fn set_mode_now(&mut self, context: &mut CopyContext<'_>, key: CopyDirectoryId) {
        let preserve = context.preserves();
        let Some(dir) = self.dirs.get_mut(&key) else {
            return;
        };
        let Some(mode) = dir.attributes.mode.filter(|mode| mode & FILL == FILL) else {
            return;
        };
        if preserve || dir.existed || !context.target_is_remote() {
            return;
        }
        dir.has_mode = true;
        let target = dir.target.clone();
        let follow = self.sets_through_link(context, key);
        let kind = JobKind::SetAttributes {
            path: RemotePath(target.clone()),
            attributes: Attributes {
                mode: Some(mode & 0o1777),
                ..Attributes::default()
            },
            follow,
            xattrs: None,
            expected: ExpectedEntry::DIRECTORY,
        };
        let name = context.shown(CopySide::Target, &target);
        context.submit(CopySide::Target, kind, JobPurpose::DirMode(name));
    }
}
