//! Selects the entries of the sources that are copied: `--exclude` and its relatives.

use std::collections::BTreeMap;
use std::sync::Arc;

use schedule::Attributes;
use sync::{Filter, FilterDecision, TreeEntry as Found, TreeEntryKind};

use super::names::name_in_target;
use super::source::WalkId;
use crate::walk::{WalkEntry, compared_entry, join, nested_rules};

/// Filter of a copy's sources.
#[derive(Clone, Debug)]
pub struct SourceFilter {
    filter: Arc<Filter>,
    gitignore: bool,
}

impl SourceFilter {
    /// Creates the filter; with `gitignore`, `.gitignore` files of sources on this machine are
    /// obeyed.
    pub fn new(filter: Filter, gitignore: bool) -> Self {
        Self {
            filter: Arc::new(filter),
            gitignore,
        }
    }

    /// Returns true if a source of this name is left out, whatever kind of entry it is.
    pub fn leaves_out(&self, name: &[u8]) -> bool {
        !self.filter.lists_names() && self.filter.excludes_every_kind(name)
    }
}

impl PartialEq for SourceFilter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.filter, &other.filter) && self.gitignore == other.gitignore
    }
}

impl Eq for SourceFilter {}

/// Selects the entries of a run's walks that are copied, and counts the others.
#[derive(Debug)]
pub(super) struct WalkEntrySelection {
    filter: Filter,
    gitignore: bool,
    /// Length of each walk's root, without slashes at the end.
    roots: BTreeMap<WalkId, usize>,
    /// Number of entries that are not copied.
    excluded: u64,
}

impl WalkEntrySelection {
    pub(super) fn new(of: &SourceFilter) -> Self {
        Self {
            filter: Filter::clone(&of.filter),
            gitignore: of.gitignore,
            roots: BTreeMap::new(),
            excluded: 0,
        }
    }

    /// Number of entries that are not copied.
    pub(super) fn excluded(&self) -> u64 {
        self.excluded
    }

    /// True if only listed names are selected, and the sources themselves are none of them.
    pub(super) fn leaves_roots(&self) -> bool {
        self.filter.leaves_root()
    }

    /// Names of `--files-from` that no source has.
    pub(super) fn missing(&self) -> Vec<Vec<u8>> {
        self.filter.missing().map(<[u8]>::to_vec).collect()
    }

    /// Decides about a source that the user named, by its last component.
    pub(super) fn selects_root(&mut self, path: &[u8], attributes: &Attributes) -> bool {
        if self.filter.lists_names() {
            return true;
        }
        let Some(name) = name_in_target(path) else {
            return true;
        };
        let decided = match attributes.mode {
            Some(_) => self.filter.decide(name, &compared_entry(attributes)),
            // Only its name is known.
            None => self.filter.decide_name(name, TreeEntryKind::File),
        };
        let selected = decided == FilterDecision::Selected;
        self.excluded += u64::from(!selected);
        selected
    }

    /// Decides about an entry of a walk.
    pub(super) fn selects(&mut self, walk: WalkId, found: &WalkEntry, is_local: bool) -> bool {
        let selected = self.decide(walk, found, is_local);
        // A list of names excludes nothing, and everything else is not listed.
        self.excluded += u64::from(!selected && !self.filter.lists_names());
        selected
    }

    fn decide(&mut self, walk: WalkId, found: &WalkEntry, is_local: bool) -> bool {
        let (at, kind) = match found {
            WalkEntry::Directory { at, .. } => (at, TreeEntryKind::Directory),
            WalkEntry::File(at) => (at, TreeEntryKind::File),
            WalkEntry::Symlink(at) => (at, TreeEntryKind::Symlink),
            WalkEntry::Listed(_) => return true,
            WalkEntry::Special(path) | WalkEntry::Problem { path, .. } => {
                let below = self.below(walk, path).to_vec();
                return self.filter.decide_name(&below, TreeEntryKind::Other)
                    == FilterDecision::Selected;
            }
        };
        if at.parent.is_none() {
            let root = at.path.iter().rposition(|byte| *byte != b'/');
            self.roots.insert(walk, root.map_or(0, |last| last + 1));
        }
        let below = self.below(walk, &at.path).to_vec();
        let entry = Found {
            kind,
            ..compared_entry(&at.attributes)
        };
        let selected = self.filter.decide(&below, &entry) == FilterDecision::Selected;
        if selected && is_local && self.gitignore && kind == TreeEntryKind::Directory {
            nested_rules(&mut self.filter, &below, &join(&at.path, b".gitignore"));
        }
        selected
    }

    /// Path of an entry relative to the root of its walk.
    fn below<'a>(&self, walk: WalkId, path: &'a [u8]) -> &'a [u8] {
        let root = self.roots.get(&walk).copied().unwrap_or(0);
        let below = path.get(root..).unwrap_or_default();
        let slashes = below.iter().take_while(|byte| **byte == b'/').count();
        below.get(slashes..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sync::{FilterBuilder, RuleOrigin};

    use super::*;
    use crate::walk::{EntryInfo, WalkDirectoryId};

    fn file(path: &str, parent: Option<u64>) -> WalkEntry {
        let name = path.rsplit('/').next().unwrap_or_default();
        WalkEntry::File(EntryInfo {
            parent: parent.map(WalkDirectoryId),
            name: name.into(),
            path: path.into(),
            attributes: Attributes::default(),
            identity: None,
        })
    }

    fn directory(path: &str, id: u64, parent: Option<u64>) -> WalkEntry {
        let WalkEntry::File(at) = file(path, parent) else {
            unreachable!("just made")
        };
        WalkEntry::Directory {
            id: WalkDirectoryId(id),
            at,
            existing: None,
        }
    }

    #[test]
    fn patterns_begin_at_the_root_of_each_source() {
        let mut builder = FilterBuilder::default();
        for rule in ["/top", "*.o", "!keep.o", "sub/"] {
            builder.rule(rule, RuleOrigin::Flag("--exclude")).unwrap();
        }
        let filter = SourceFilter::new(builder.build().unwrap(), false);
        let mut selection = WalkEntrySelection::new(&filter);
        for (number, root) in ["a/src", "b//", "/"].iter().enumerate() {
            let walk = WalkId(number as u64);
            let at = |path: &str| format!("{}/{path}", root.trim_end_matches('/'));
            assert!(selection.selects(walk, &directory(root, 0, None), false));
            for (path, selected) in [
                ("top", false),
                ("x/top", true),
                ("x.o", false),
                ("y/keep.o", true),
                ("sub", true),
            ] {
                let found = file(&at(path), Some(0));
                assert_eq!(selection.selects(walk, &found, false), selected, "{path}");
            }
            assert!(!selection.selects(walk, &directory(&at("x/sub"), 1, Some(0)), false));
        }
        assert!(!selection.selects_root(b"dir/x.o", &Attributes::default()));
        assert!(selection.selects_root(b"dir/keep.o", &Attributes::default()));
        assert!(selection.selects_root(b"..", &Attributes::default()));
    }

    /// Everything that a filter leaves out is counted once; a list of names excludes nothing.
    #[test]
    fn left_out_entries_are_counted_once() {
        let mut builder = FilterBuilder::default();
        for rule in ["*.o", "cache/"] {
            builder.rule(rule, RuleOrigin::Flag("--exclude")).unwrap();
        }
        let filter = SourceFilter::new(builder.build().unwrap(), false);
        let mut selection = WalkEntrySelection::new(&filter);
        let walk = WalkId(1);
        assert!(selection.selects(walk, &directory("src", 0, None), false));
        let found = [
            (directory("src/cache", 1, Some(0)), false),
            (file("src/a.o", Some(0)), false),
            (file("src/cache.c", Some(0)), true),
            (file("src/cache", Some(0)), true),
            (WalkEntry::Special(b"src/pipe.o".to_vec()), false),
            (WalkEntry::Special(b"src/pipe".to_vec()), true),
            (WalkEntry::Listed(WalkDirectoryId(0)), true),
        ];
        for (entry, selected) in &found {
            assert_eq!(
                selection.selects(walk, entry, false),
                *selected,
                "{entry:?}"
            );
        }
        let left_out = found.iter().filter(|(_, selected)| !selected).count();
        assert_eq!(selection.excluded(), left_out as u64);
        assert!(filter.leaves_out(b"a.o"));
        assert!(
            !filter.leaves_out(b"cache"),
            "a file of this name is copied"
        );
    }
}
