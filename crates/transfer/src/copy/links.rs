//! Prevents an attack with symlinks that a copy keeps (`-a`): a hostile source makes a symlink
//! through which another source of the command line would then be written (CVE-2019-6111).
//!
//! Inside a tree nothing is written through symlinks. Operands of the command line do follow
//! symlinks that the user has at the target, so the two kinds must be told apart.

use std::collections::BTreeSet;

use super::engine::Engine;
use super::tree::DirKey;

/// Names at the top level of the copy.
#[derive(Debug, Default)]
pub(super) struct TopLevelLinks {
    /// Symlinks that this run has made or requested.
    made: BTreeSet<Vec<u8>>,
    /// Target paths of the command line's sources.
    sources: BTreeSet<Vec<u8>>,
}

impl Engine<'_> {
    /// Notes the target of a command-line source when it starts.
    pub(super) fn source_goes_to(&mut self, target: Vec<u8>) {
        if self.keeps_foreign_links() {
            self.links.sources.insert(target);
        }
    }

    /// Notes that a symlink will be made at `target`. Returns false if another source goes there,
    /// which may already be on its way.
    pub(super) fn may_link(&mut self, target: &[u8], dir: Option<DirKey>) -> bool {
        if !self.keeps_foreign_links() {
            return true;
        }
        if self.links.sources.contains(target) {
            return false;
        }
        // A command-line source cannot get a deeper name.
        if dir.is_none_or(|dir| self.tree.is_root(dir)) {
            self.links.made.insert(target.to_vec());
        }
        true
    }

    /// True if this run made the symlink at `target`.
    pub(super) fn has_linked(&self, target: &[u8]) -> bool {
        self.links.made.contains(target)
    }

    /// True if symlinks are kept and a remote source chooses them.
    pub(super) fn keeps_foreign_links(&self) -> bool {
        self.options.archive && self.source.is_some()
    }
}
