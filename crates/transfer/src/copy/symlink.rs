//! Symlinks that are copied as symlinks.

use schedule::{Attributes, JobKind, RemotePath};

use super::engine::{CopyEnd, Engine, JobPurpose};
use super::tree::HeldItem;
use crate::report::Event;

impl Engine<'_> {
    pub(super) fn begin_symlink(&mut self, held: HeldItem) {
        if self.source_is_remote() {
            let path = RemotePath(held.entry.path.clone());
            self.submit(
                CopyEnd::Source,
                JobKind::ReadSymlink { path },
                JobPurpose::ReadSymlink(held),
            );
            return;
        }
        match self.local().read_link(&held.entry.path) {
            Ok(path) => {
                let points_to = Some(path);
                self.make_symlink(HeldItem { points_to, ..held });
            }
            Err(what) => self.symlink_over(&held, Err(what), CopyEnd::Source),
        }
    }

    pub(super) fn make_symlink(&mut self, held: HeldItem) {
        let is_top_level = held.dir.is_none_or(|dir| self.tree.is_root(dir));
        if self.keeps_foreign_links() && !self.links.may_link(&held.target, is_top_level) {
            let what = "another source of this copy has the same target".to_owned();
            return self.symlink_over(&held, Err(what), CopyEnd::Target);
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
            self.submit(CopyEnd::Target, kind, JobPurpose::MakeSymlink(held));
            return;
        }
        let path = self.named.local_path(&held.target);
        let made = self.local().make_symlink(&path, &points_to, &attributes);
        self.symlink_over(&held, made, CopyEnd::Target);
    }

    /// True if symlinks are kept and a remote source chooses them.
    pub(super) fn keeps_foreign_links(&self) -> bool {
        self.options.archive && self.source_is_remote()
    }

    /// Attributes of a symlink that are kept.
    fn symlink_attributes(&self, held: &HeldItem) -> Attributes {
        let source = held.entry.attributes;
        Attributes {
            times: source.times,
            nanoseconds: source.nanoseconds,
            owner: source.owner.filter(|_| !self.owners.are_refused()),
            ..Attributes::default()
        }
    }

    /// Sets a symlink's times at the far end. Local symlinks get them when they are made.
    fn keep_symlink_times(&mut self, held: &HeldItem) {
        let attributes = self.symlink_attributes(held);
        if self.target_is_remote() && attributes.times.is_some() {
            let kind = JobKind::SetAttributes {
                path: RemotePath(held.target.clone()),
                attributes,
                follow: false,
                xattrs: None,
            };
            self.submit(CopyEnd::Target, kind, JobPurpose::SymlinkTimes);
        }
    }

    pub(super) fn symlink_over(
        &mut self,
        held: &HeldItem,
        result: Result<(), String>,
        end: CopyEnd,
    ) {
        let name = match end {
            CopyEnd::Source => self.shown(end, &held.entry.path),
            CopyEnd::Target => self.shown(end, &held.target),
        };
        match result {
            Ok(()) => {
                self.summary.symlinks += 1;
                self.keep_symlink_times(held);
                self.name_made(&held.target, false);
                self.tell(Event::SymlinkDone { target: name });
            }
            Err(what) => self.fail(None, name, what),
        }
        self.item_over(held.dir);
    }
}
