//! Roots of a sync: what is listed at each end, and roots that cannot be synced.

use schedule::{Attributes, EntryKind};

use super::UnicodeForm;
use super::listing::{ListedTree, RootAttributes, RootToList};
use super::run::SyncRun;
use crate::copy::PlannedCopySide;

impl SyncRun<'_> {
    /// Returns an end to list. A server is asked for the root's attributes while it lists.
    pub(super) async fn root(&mut self, end: PlannedCopySide) -> Option<RootToList> {
        let at_source = end == PlannedCopySide::Source;
        let one_file_system = self.options.entries.one_file_system && at_source;
        let attributes = if one_file_system {
            RootAttributes::Known(self.root_with_device(end).await?)
        } else {
            match self.run.query_root(end) {
                Some(query) => RootAttributes::Queried(query),
                None => RootAttributes::Known(self.run.root_attributes(end).await),
            }
        };
        if at_source {
            self.source_file_system = self.run.query_file_system(end);
        }
        let root = RootToList {
            end,
            path: self.run.root(end).to_vec(),
            attributes,
            one_file_system,
            gitignore: self.options.entries.gitignore && at_source,
            names: match at_source {
                true => self.options.names,
                false => UnicodeForm::Own,
            },
        };
        (!self.run.stopped()).then_some(root)
    }

    /// Returns the root's attributes, and `None` after reporting a server that does not tell its
    /// file system.
    async fn root_with_device(&mut self, end: PlannedCopySide) -> Option<Option<Attributes>> {
        self.run.settle(end).await;
        let root = self.run.root_attributes(end).await;
        let is_untold = root.is_some_and(|root| root.link.is_none());
        if self.run.is_local(end) || !is_untold {
            return Some(root);
        }
        let server = self.run.server(end);
        let what = match server.is_some_and(|server| server.has("attributes@longhaul")) {
            true => {
                "the longhaul on this host is too old for --one-file-system: install this version \
                 there, or leave out the other file systems with --exclude"
            }
            false => {
                "--one-file-system needs longhaul on this host, since SFTP does not tell on which \
                 file system a directory lies: install it there, or leave out the other file \
                 systems with --exclude"
            }
        };
        let name = self.run.shown(end, self.run.root(end));
        self.run.fail(name, what.to_owned());
        None
    }

    /// Reports a root that cannot be synced, and returns `None` for one.
    pub(super) fn check_roots(
        &mut self,
        source: Option<&ListedTree>,
        target: Option<&ListedTree>,
    ) -> Option<()> {
        let kind = |listing: &ListedTree| listing.root.map(|root| root.kind());
        let source_error = match source.map(kind) {
            Some(None) => Some("no such directory"),
            None | Some(Some(EntryKind::Directory)) => None,
            Some(_) => {
                Some("not a directory: sync works on directories; use longhaul cp for a file")
            }
        };
        let target_error = match target.map(kind) {
            None | Some(None | Some(EntryKind::Directory)) => None,
            Some(_) => Some("not a directory: name the directory to make equal to the source"),
        };
        for (end, error) in [
            (PlannedCopySide::Source, source_error),
            (PlannedCopySide::Target, target_error),
        ] {
            if let Some(error) = error {
                let name = self.run.shown(end, self.run.root(end));
                self.run.fail(name, error.to_owned());
                return None;
            }
        }
        Some(())
    }
}
