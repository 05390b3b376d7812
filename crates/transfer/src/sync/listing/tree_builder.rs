//! Builds the tree of one end from the entries of a walk.

use std::fs;
use std::os::unix::fs::MetadataExt;

use schedule::{Attributes, EntryKind};
use sync::{
    EntryTree, Filter, FilterDecision, SortedTree, TreeEntry, TreeEntryId, TreeEntryKind,
    has_alike, parent_path, to_nfc,
};

use super::ListedTree;
use super::findings::{ListingFindings, ListingProblem};
use crate::copy::{PlannedCopySide, basename};
use crate::file_error::FileError;
use crate::name_probe::is_name_probe;
use crate::sync::UnicodeForm;
use crate::sync::attributes::entry;
use crate::sync::unlisted_directories::UnlistedDirectories;
use crate::walk::{
    LEFT_OUT, RESERVED, WalkDirectoryId, WalkEntry, join, local_path, nested_rules, refused_name,
};

/// Problem of a file of the source that takes no part, as its name is one of our temporaries.
const UNFINISHED: &str = "not copied: its name says that it is an unfinished file of longhaul (.NAME.xxxxxxxxxx.longhaul)";

/// Memory in bytes for what a listing finds beside the entries, and at most a sixteenth of this
/// machine's.
const MOST_FINDINGS: usize = 256 << 20;

/// Builds a tree from the entries of a walk.
pub(super) struct ListingTreeBuilder {
    end: PlannedCopySide,
    root: Vec<u8>,
    tree: EntryTree,
    dirs: UnlistedDirectories,
    /// Directory of the last entry, and its path. Many directories wait to be listed, whose paths
    /// would take much memory.
    last: Option<(TreeEntryId, Vec<u8>)>,
    findings: ListingFindings,
    full: bool,
    names: UnicodeForm,
}

impl ListingTreeBuilder {
    pub(super) fn new(
        end: PlannedCopySide,
        root: Vec<u8>,
        filter: Filter,
        names: UnicodeForm,
    ) -> Self {
        Self {
            end,
            root,
            tree: EntryTree::with_limit(most_tree_bytes()),
            dirs: UnlistedDirectories::default(),
            last: None,
            findings: ListingFindings::new(filter, MOST_FINDINGS.min(most_tree_bytes() / 4)),
            full: false,
            names,
        }
    }

    /// Notes which files have several hard links.
    pub(super) fn with_links(mut self) -> Self {
        self.findings.note_links(most_tree_bytes() / 2);
        self
    }

    /// Returns a name or path in another form than its own, if there is one.
    fn changed_form(&self, name: &[u8]) -> Option<Vec<u8>> {
        match self.names {
            UnicodeForm::Own => None,
            UnicodeForm::Nfc => to_nfc(name),
        }
    }

    /// Adds an entry of this machine. Directories on other devices than `device` are left out, and the
    /// contents of those that are not in `counterparts`.
    pub(super) fn take_local(
        &mut self,
        found: WalkEntry,
        device: Option<u64>,
        gitignore: bool,
        counterparts: Option<&SortedTree>,
    ) -> Option<WalkDirectoryId> {
        let WalkEntry::Directory { id, at, .. } = &found else {
            return self.take(found, counterparts);
        };
        let (id, path) = (*id, at.path.clone());
        if let Some(device) = device.filter(|_| at.parent.is_some())
            && fs::symlink_metadata(local_path(&path)).is_ok_and(|meta| meta.dev() != device)
        {
            self.leave_out(&path);
            return Some(id);
        }
        let skipped = self.take(found, counterparts);
        if gitignore && skipped.is_none() {
            self.read_gitignore(&path);
        }
        skipped
    }

    /// Adds an entry of a server. Directories on other devices than `device` are left out, and the
    /// contents of those that are not in `counterparts`.
    pub(super) fn take_remote(
        &mut self,
        found: WalkEntry,
        device: Option<u64>,
        counterparts: Option<&SortedTree>,
    ) -> Option<WalkDirectoryId> {
        let (WalkEntry::Directory { id, at, .. }, Some(device)) = (&found, device) else {
            return self.take(found, counterparts);
        };
        match at.attributes.link {
            _ if at.parent.is_none() => self.take(found, counterparts),
            Some(identity) if identity.device == device => self.take(found, counterparts),
            Some(_) => {
                self.leave_out(&at.path);
                Some(*id)
            }
            // Another server has taken over.
            None => {
                let what = "the server does not report on which file system this directory lies: \
                    its contents were left out";
                self.problem(&at.path, ListingProblem::hiding(what));
                Some(*id)
            }
        }
    }

    /// Adds an entry. Returns the directory whose contents are left out.
    fn take(
        &mut self,
        found: WalkEntry,
        counterparts: Option<&SortedTree>,
    ) -> Option<WalkDirectoryId> {
        match found {
            WalkEntry::Directory { id, at, .. } => {
                let Some(parent) = at.parent else {
                    self.tree.set_root(entry(&at.attributes));
                    self.open(id, EntryTree::ROOT);
                    return None;
                };
                // Walks of this machine enter such a directory, and those of servers report it.
                if refused_name(&at.name).is_some() {
                    self.reserved(&at.path);
                    return Some(id);
                }
                let added = self.add(parent, &at.name, &at.attributes);
                let is_entered = |node: &TreeEntryId| {
                    counterparts.is_none_or(|tree| has_alike(tree, &self.tree.path(*node)))
                };
                match added.filter(is_entered) {
                    Some(node) => {
                        self.open(id, node);
                        None
                    }
                    None => Some(id),
                }
            }
            WalkEntry::File(at) if schedule::is_temp_name(&at.name) => {
                self.temporary(&at.path);
                None
            }
            WalkEntry::File(at) | WalkEntry::Symlink(at) if refused_name(&at.name).is_some() => {
                self.reserved(&at.path);
                None
            }
            WalkEntry::File(at) | WalkEntry::Symlink(at) => {
                if let Some(parent) = at.parent {
                    self.add(parent, &at.name, &at.attributes);
                }
                None
            }
            WalkEntry::Listed(dir) => {
                let tree = &self.tree;
                self.dirs.remove(dir, |id| tree.path(id));
                None
            }
            WalkEntry::Special(path) => {
                self.problem(&path, ListingProblem::never_copied(LEFT_OUT));
                None
            }
            WalkEntry::Problem { path, what } => {
                self.problem(&path, ListingProblem::hiding(what));
                None
            }
        }
    }

    /// Notes that the entries of a directory follow.
    fn open(&mut self, id: WalkDirectoryId, node: TreeEntryId) {
        let tree = &self.tree;
        self.dirs.insert(id, node, |id| tree.path(id));
    }

    fn add(
        &mut self,
        parent: WalkDirectoryId,
        name: &[u8],
        attributes: &Attributes,
    ) -> Option<TreeEntryId> {
        let dir = self.dirs.get(parent)?;
        let own = name;
        let formed = self.changed_form(name);
        let name = formed.as_deref().unwrap_or(name);
        let above = match self.last.take() {
            Some((last, above)) if last == dir => above,
            _ => self.tree.path(dir),
        };
        let path = match above.is_empty() {
            true => name.to_vec(),
            false => [above.as_slice(), b"/", name].concat(),
        };
        self.last = Some((dir, above));
        let found = entry(attributes);
        let selection = match self.end {
            PlannedCopySide::Source => self.findings.filter.decide(&path, &found),
            PlannedCopySide::Target => self.findings.filter.decide_name(&path, found.kind),
        };
        // A list of names excludes nothing, and everything else is not listed.
        if selection != FilterDecision::Selected && !self.findings.filter.lists_names() {
            self.findings.excluded += 1;
        }
        match selection {
            FilterDecision::Selected => {}
            FilterDecision::Excluded => {
                self.tree.protect(dir);
                return None;
            }
            // The counterpart at the target stays as it is.
            FilterDecision::OutOfLimits => {
                self.findings.keep(path);
                return None;
            }
        }
        let Some(node) = self.tree.add(dir, name, found) else {
            if !std::mem::replace(&mut self.full, true) {
                let what = "the tree has more entries than one sync can compare; sync its \
                            directories one by one";
                self.findings
                    .add_problem(path, ListingProblem::hiding(what));
            }
            return None;
        };
        if formed.is_some() {
            self.tree.set_own_name(node, own);
        }
        let is_file = attributes.kind() == EntryKind::File;
        if let Some(link) = attributes.link.filter(|_| is_file) {
            self.findings.add_link(node, link);
        }
        let is_dir = attributes.kind() == EntryKind::Directory;
        if let Some(identity) = attributes.link.filter(|_| is_dir) {
            self.findings.add_directory(node, identity);
        }
        Some(node)
    }

    /// Returns the directory with this path relative to the root, if it is being listed.
    fn listed_at(&mut self, path: &[u8]) -> Option<TreeEntryId> {
        if let Some((dir, _)) = self.last.as_ref().filter(|(_, last)| last == path) {
            return Some(*dir);
        }
        let tree = &self.tree;
        let dir = self.dirs.find(path, |id| tree.path(id))?;
        self.last = Some((dir, path.to_vec()));
        Some(dir)
    }

    /// Adds an unfinished file of a copy. One of the source takes no part, and keeps its
    /// counterpart.
    fn temporary(&mut self, path: &[u8]) {
        let below = self.below(path);
        if self.is_added_at_target(&below, TreeEntryKind::Temporary) {
            return;
        }
        let excluded = self
            .findings
            .filter
            .decide_name(&below, TreeEntryKind::Temporary)
            == FilterDecision::Excluded;
        if self.end == PlannedCopySide::Source && !excluded {
            let what = ListingProblem::never_copied(UNFINISHED);
            self.findings.add_problem(below.clone(), what);
        }
        self.findings.keep(below);
    }

    /// Adds an entry of the target that is never copied, unless it is excluded: another entry may
    /// replace it, and it may be deleted.
    fn is_added_at_target(&mut self, below: &[u8], kind: TreeEntryKind) -> bool {
        let excluded = self.findings.filter.decide_name(below, kind) == FilterDecision::Excluded;
        if self.end != PlannedCopySide::Target || excluded {
            return false;
        }
        let name = basename(below);
        let dir = self.listed_at(parent_path(below));
        dir.is_some_and(|dir| self.tree.add(dir, name, TreeEntry::new(kind)).is_some())
    }

    /// Returns a path relative to the root.
    fn below(&self, path: &[u8]) -> Vec<u8> {
        let root = if self.root.is_empty() {
            b"."
        } else {
            self.root.as_slice()
        };
        let below = path.strip_prefix(root).unwrap_or(path);
        let slashes = below.iter().take_while(|byte| **byte == b'/').count();
        let below = below.get(slashes..).unwrap_or_default();
        self.changed_form(below).unwrap_or_else(|| below.to_vec())
    }

    /// Leaves out an entry at both ends.
    fn leave_out(&mut self, path: &[u8]) {
        let below = self.below(path);
        self.findings.keep(below);
    }

    fn read_gitignore(&mut self, dir: &[u8]) {
        let below = self.below(dir);
        nested_rules(&mut self.findings.filter, &below, &join(dir, b".gitignore"));
    }

    fn problem(&mut self, path: &[u8], problem: ListingProblem) {
        let below = self.below(path);
        let name = basename(&below);
        if schedule::is_temp_name(name) {
            return self.temporary(path);
        }
        if refused_name(name).is_some() {
            return self.reserved(path);
        }
        let is_special = !problem.hides_entries();
        if is_special && self.is_added_at_target(&below, TreeEntryKind::Other) {
            return;
        }
        // What takes no part at one end keeps its counterpart, and at the target its directory.
        if self
            .findings
            .filter
            .decide_name(&below, TreeEntryKind::Other)
            == FilterDecision::Excluded
        {
            self.findings.keep(below);
            return;
        }
        if is_special {
            self.findings.keep(below.clone());
        }
        if !is_special || self.end == PlannedCopySide::Source {
            self.findings.add_problem(below, problem);
        }
    }

    /// Leaves out an entry with a name of our own files, which takes no part at either end.
    fn reserved(&mut self, path: &[u8]) {
        let below = self.below(path);
        let name = basename(&below);
        let selection = self
            .findings
            .filter
            .decide_name(&below, TreeEntryKind::Directory);
        match self.end {
            _ if selection == FilterDecision::Excluded => {}
            PlannedCopySide::Source => {
                let what = match schedule::is_temp_name(name) {
                    true => UNFINISHED,
                    false => RESERVED,
                };
                let what = ListingProblem::never_copied(what);
                self.findings.add_problem(below.clone(), what);
            }
            PlannedCopySide::Target if is_name_probe(name) => {
                self.findings.add_probe(below.clone())
            }
            PlannedCopySide::Target => {}
        }
        self.findings.keep(below);
    }

    /// End that is listed.
    pub(super) fn end(&self) -> PlannedCopySide {
        self.end
    }

    /// Ends the listing of a directory with the attributes `root`.
    pub(super) fn finish(mut self, root: Attributes) -> ListedTree {
        self.tree.set_root(entry(&root));
        self.finish_with(Ok(Some(root)))
    }

    /// Ends the listing of a root without entries: it does not exist, which is no problem, or
    /// nothing is known of it.
    pub(super) fn finish_empty(self, root: Result<Option<Attributes>, FileError>) -> ListedTree {
        Self::new(self.end, self.root, self.findings.filter, self.names).finish_with(root)
    }

    fn finish_with(self, root: Result<Option<Attributes>, FileError>) -> ListedTree {
        let mut tree = self.tree.sorted();
        if self.end == PlannedCopySide::Target {
            for path in self.findings.kept() {
                tree.protect_above(path);
            }
        }
        ListedTree {
            root,
            tree,
            findings: self.findings,
        }
    }
}

/// Memory for the entries and names of one end: a quarter of this machine's, since a server may list
/// names without end.
fn most_tree_bytes() -> usize {
    #[cfg(target_os = "linux")]
    {
        let memory = rustix::system::sysinfo();
        let unit = u64::from(memory.mem_unit).max(1);
        let bytes = memory.totalram.saturating_mul(unit);
        usize::try_from(bytes / 4).unwrap_or(usize::MAX)
    }
    #[cfg(not(target_os = "linux"))]
    usize::MAX
}

#[cfg(test)]
mod tests {
    use sftp::InodeId;

    use super::*;
    use crate::walk::EntryInfo as Found;

    /// A directory `name` of the root on this device, if the server tells devices.
    fn directory(id: u64, name: &str, device: Option<u64>) -> WalkEntry {
        let link = device.map(|device| InodeId {
            device,
            inode: id,
            names: 2,
        });
        let is_root = name.is_empty();
        WalkEntry::Directory {
            id: WalkDirectoryId(id),
            at: Found {
                parent: (!is_root).then_some(WalkDirectoryId(0)),
                name: name.as_bytes().to_vec(),
                path: join(b"/root", name.as_bytes()),
                attributes: Attributes {
                    mode: Some(0o040_755),
                    link,
                    ..Attributes::default()
                },
                identity: None,
            },
            existing: None,
        }
    }

    #[test]
    fn a_directory_on_another_device_is_left_out_and_an_unknown_one_hides_entries() {
        let (root, names) = (b"/root".to_vec(), UnicodeForm::Own);
        let mut builder =
            ListingTreeBuilder::new(PlannedCopySide::Source, root, Filter::default(), names);
        let mut take = |id, name, device| {
            let found = directory(id, name, device);
            builder.take_remote(found, Some(7), None)
        };
        assert_eq!(take(0, "", Some(7)), None);
        assert_eq!(take(1, "here", Some(7)), None);
        assert_eq!(take(2, "mounted", Some(8)), Some(WalkDirectoryId(2)));
        assert_eq!(take(3, "unknown", None), Some(WalkDirectoryId(3)));
        let listing = builder.finish_with(Ok(None));
        assert!(listing.tree.find(b"here").is_some() && listing.tree.tree().len() == 1);
        assert!(listing.findings.kept().contains(b"mounted".as_slice()));
        let [(path, problem)] = listing.findings.problems() else {
            panic!("{:?}", listing.findings.problems());
        };
        let is_unknown = path == b"unknown" && problem.hides_entries();
        assert!(is_unknown, "{problem}");
    }

    /// Bug: without `--delete`, everything below the target was listed: all of the server for `/`.
    #[test]
    fn a_directory_without_a_counterpart_was_entered() {
        let mut source = EntryTree::new();
        let dir = TreeEntry::new(TreeEntryKind::Directory);
        for name in [b"kept".as_slice(), b"Other"] {
            source.add(EntryTree::ROOT, name, dir.clone());
        }
        let source = source.sorted();
        let (root, names) = (b"/root".to_vec(), UnicodeForm::Own);
        let mut builder =
            ListingTreeBuilder::new(PlannedCopySide::Target, root, Filter::default(), names);
        let mut take = |id, name| {
            let found = directory(id, name, None);
            builder.take(found, Some(&source)).is_none()
        };
        assert!(take(0, ""));
        // A file system may take "other" for "Other".
        assert!(take(1, "kept") && take(2, "other"));
        assert!(!take(3, "foreign"));
    }

    /// Bug: a directory that the server refused to list, in longhaul's own words for a socket, counted
    /// as a socket: the sync went on, and deleted at the target what it did not see at the source.
    #[test]
    fn a_server_chose_the_words_that_hide_nothing() {
        let (root, names) = (b"/root".to_vec(), UnicodeForm::Own);
        let mut builder =
            ListingTreeBuilder::new(PlannedCopySide::Source, root, Filter::default(), names);
        for what in [crate::walk::NOT_REGULAR, UNFINISHED, RESERVED, LEFT_OUT] {
            let problem = WalkEntry::Problem {
                path: b"/root/directory".to_vec(),
                what: what.to_owned(),
            };
            builder.take(problem, None);
        }
        builder.take(WalkEntry::Special(b"/root/socket".to_vec()), None);
        let listing = builder.finish_with(Ok(None));
        let problems = listing.findings.problems();
        let hiding = problems.iter().filter(|(_, p)| p.hides_entries());
        assert_eq!((hiding.count(), problems.len()), (4, 5));
    }
}
