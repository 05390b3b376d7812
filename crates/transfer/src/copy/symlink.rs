//! Symlinks that are copied as symlinks.

use schedule::{Attributes, JobKind, RemotePath};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::tree::PendingItem;
use crate::report::CopyEvent;

impl CopyEngine<'_> {
    pub(super) fn begin_symlink(&mut self, held: PendingItem) {
        if self.source_is_remote() {
            let path = RemotePath(held.entry.path.clone());
            self.submit(
                CopySide::Source,
                JobKind::ReadSymlink { path },
                JobPurpose::ReadSymlink(held),
            );
            return;
        }
        match self.local().read_link(&held.entry.path) {
            Ok(path) => {
                let points_to = Some(path);
                self.make_symlink(PendingItem { points_to, ..held });
            }
            Err(what) => self.symlink_over(&held, Err(what), CopySide::Source),
        }
    }

    pub(super) fn make_symlink(&mut self, held: PendingItem) {
        let is_top_level = held.dir.is_none_or(|dir| self.tree.is_root(dir));
        if self.keeps_foreign_links() && !self.links.may_link(&held.target, is_top_level) {
            let what = "another source of this copy has the same target".to_owned();
            return self.symlink_over(&held, Err(what), CopySide::Target);
        }
        let points_to = held.points_to.clone().unwrap_or_default();
        let below = self.named.rest_of(&held.target).unwrap_or_default();
        if self.options.safe_links
            && self
                .withheld
                .leaves_link_out(&held.target, below, &points_to)
        {
            return self.item_over(held.dir);
        }
        let attributes = self.symlink_attributes(&held);
        if self.target_is_remote() {
            let path = RemotePath(held.target.clone());
            let kind = JobKind::MakeSymlink { path, points_to };
            self.submit(CopySide::Target, kind, JobPurpose::MakeSymlink(held));
            return;
        }
        let path = self.named.local_path(&held.target);
        let made = self.local().make_symlink(&path, &points_to, &attributes);
        self.symlink_over(&held, made, CopySide::Target);
    }

    /// True if symlinks are kept and a remote source chooses them.
    pub(super) fn keeps_foreign_links(&self) -> bool {
        self.options.archive && self.source_is_remote()
    }

    /// Attributes of a symlink that are kept.
    fn symlink_attributes(&self, held: &PendingItem) -> Attributes {
        let source = held.entry.attributes;
        Attributes {
            times: source.times,
            nanoseconds: source.nanoseconds,
            owner: source.owner.filter(|_| !self.owners.are_refused()),
            ..Attributes::default()
        }
    }

    /// Sets a symlink's times at the far end. Local symlinks get them when they are made.
    fn keep_symlink_times(&mut self, held: &PendingItem) {
        let attributes = self.symlink_attributes(held);
        if self.target_is_remote() && attributes.times.is_some() {
            let kind = JobKind::SetAttributes {
                path: RemotePath(held.target.clone()),
                attributes,
                follow: false,
                xattrs: None,
            };
            self.submit(CopySide::Target, kind, JobPurpose::SymlinkTimes);
        }
    }

    pub(super) fn symlink_over(
        &mut self,
        held: &PendingItem,
        result: Result<(), String>,
        end: CopySide,
    ) {
        let name = match end {
            CopySide::Source => self.shown(end, &held.entry.path),
            CopySide::Target => self.shown(end, &held.target),
        };
        match result {
            Ok(()) => {
                self.summary.symlinks += 1;
                self.keep_symlink_times(held);
                self.name_made(&held.target, false);
                self.tell(CopyEvent::SymlinkDone { target: name });
            }
            Err(what) => self.fail(None, name, what),
        }
        self.item_over(held.dir);
    }
}
