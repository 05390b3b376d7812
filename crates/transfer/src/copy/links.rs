//! What a hostile source may not do with the symlinks of a copy that keeps them (`-a`): lead one
//! source of the command line through a symlink that another has made (CVE-2019-6111).
//!
//! Within a tree nothing is written through symlinks. What is named on the command line goes
//! through those that the user has at the target, so the two have to be told apart.

use std::collections::BTreeSet;

use super::engine::Engine;
use super::tree::DirKey;

/// Names at the top of the copy.
#[derive(Debug, Default)]
pub(super) struct TopLevelLinks {
    /// Symlinks that this run has made, or has asked the target to make.
    made: BTreeSet<Vec<u8>>,
    /// Where sources of the command line go.
    sources: BTreeSet<Vec<u8>>,
}

impl Engine<'_> {
    /// A source that was named on the command line is begun.
    pub(super) fn source_goes_to(&mut self, target: Vec<u8>) {
        if self.keeps_foreign_links() {
            self.links.sources.insert(target);
        }
    }

    /// Notes that a symlink is made at `target`; false where another source goes, which may be
    /// on its way there already.
    pub(super) fn may_link(&mut self, target: &[u8], dir: Option<DirKey>) -> bool {
        if !self.keeps_foreign_links() {
            return true;
        }
        if self.links.sources.contains(target) {
            return false;
        }
        // What lies deeper has no name that a source of the command line can get.
        if dir.is_none_or(|dir| self.tree.is_root(dir)) {
            self.links.made.insert(target.to_vec());
        }
        true
    }

    /// Whether the symlink at `target` is of this run's making.
    pub(super) fn has_linked(&self, target: &[u8]) -> bool {
        self.links.made.contains(target)
    }

    /// Symlinks are kept, and somebody else says what they are.
    pub(super) fn keeps_foreign_links(&self) -> bool {
        self.options.archive && self.source.is_some()
    }
}
