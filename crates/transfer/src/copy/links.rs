//! Prevents an attack with symlinks that a copy keeps (`-a`): a hostile source makes a symlink
//! through which another source of the command line would then be written (CVE-2019-6111).
//!
//! Inside a tree nothing is written through symlinks. Operands of the command line do follow
//! symlinks that the user has at the target, so the two kinds must be told apart.

use std::collections::BTreeSet;

/// Symlinks that this run has made at the top level of the target, and the target paths of the
/// command line's sources.
#[derive(Debug, Default)]
pub(super) struct TopLevelSymlinks {
    /// Symlinks that this run has made or requested.
    made: BTreeSet<Vec<u8>>,
    /// Target paths of the command line's sources.
    sources: BTreeSet<Vec<u8>>,
}

impl TopLevelSymlinks {
    /// Notes the target of a command-line source when it starts.
    pub(super) fn source_goes_to(&mut self, target: Vec<u8>) {
        self.sources.insert(target);
    }

    /// Notes that a symlink will be made at `target`. Returns false if another source goes there,
    /// which may already be on its way.
    pub(super) fn may_link(&mut self, target: &[u8], is_top_level: bool) -> bool {
        if self.sources.contains(target) {
            return false;
        }
        // A command-line source cannot get a deeper name.
        if is_top_level {
            self.made.insert(target.to_vec());
        }
        true
    }

    /// True if this run made the symlink at `target`.
    pub(super) fn has_made(&self, target: &[u8]) -> bool {
        self.made.contains(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Vec<u8> {
        path.as_bytes().to_vec()
    }

    /// A hostile source makes a symlink `x` that leads to the user's files, and the next source of
    /// the command line is called `x` too (CVE-2019-6111).
    #[test]
    fn no_symlink_is_made_where_another_source_goes() {
        let mut links = TopLevelSymlinks::default();
        links.source_goes_to(path("dst/x"));
        assert!(!links.may_link(b"dst/x", true));
        assert!(!links.may_link(b"dst/x", false));
        assert!(!links.has_made(b"dst/x"), "the source would be refused");
        assert!(
            links.may_link(b"dst/x/y", false),
            "a symlink below it is no danger"
        );
    }

    #[test]
    fn a_source_is_told_of_the_symlink_that_an_earlier_one_has_made_in_its_place() {
        let mut links = TopLevelSymlinks::default();
        assert!(links.may_link(b"dst/x", true));
        links.source_goes_to(path("dst/x"));
        assert!(links.has_made(b"dst/x"));
        assert!(!links.has_made(b"dst/y"));
        // A source of the command line has a name of one component, so that deeper ones need no
        // memory.
        assert!(links.may_link(b"dst/d/x", false));
        assert!(!links.has_made(b"dst/d/x"));
    }
}
