//! Lists one end of a sync into a tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use schedule::{Attributes, EntryKind, Job, JobId, LaneEvent};
use sftp::InodeId;
use sync::{
    EntryTree, Filter, FilterDecision, SortedTree, TreeEntry, TreeEntryId, TreeEntryKind,
    parent_path, to_nfc,
};

use super::UnicodeForm;
use super::attributes::entry;
use super::unlisted_directories::UnlistedDirectories;
use crate::copy::{CALLERS_FIRST_JOB, PlannedCopy, PlannedCopySide, RootAttributesQuery};
use crate::name_probe::is_name_probe;
use crate::session::SessionEvent;
use crate::walk::{
    LEFT_OUT, LocalWalk, NOT_REGULAR, RESERVED, RemoteWalk, WalkAnswer, WalkDirectoryId, WalkEntry,
    join, local_path, nested_rules, refused_name,
};

/// Trees that a longhaul server lists for one client at the same time.
const TREES: usize = 16;
/// Entries of this machine taken before the sessions are heard, and events of a session taken before
/// anything else is done.
const AT_ONCE: usize = 256;
/// Number of the first job of a listing.
const FIRST_JOB: u64 = CALLERS_FIRST_JOB.0;

/// Listed entries of one end, with its root's attributes and the problems of the listing.
pub(crate) struct ListedTree {
    root: Option<Attributes>,
    tree: SortedTree,
    problems: Vec<(Vec<u8>, String)>,
    kept: BTreeSet<Vec<u8>>,
    links: BTreeMap<TreeEntryId, InodeId>,
    probes: Vec<Vec<u8>>,
    filter: Filter,
    excluded: u64,
}

impl ListedTree {
    /// Returns the attributes of the root; `None` if it does not exist, and then there are no
    /// entries.
    pub(crate) fn root(&self) -> Option<&Attributes> {
        self.root.as_ref()
    }

    /// Returns the entries.
    pub(crate) fn tree(&self) -> &SortedTree {
        &self.tree
    }

    /// Returns paths relative to the root, and why they could not be read.
    pub(crate) fn problems(&self) -> &[(Vec<u8>, String)] {
        &self.problems
    }

    /// Returns the filter with the rules of `.gitignore` files.
    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns the number of entries that the filter left out, without the contents of
    /// directories.
    pub(crate) fn excluded(&self) -> u64 {
        self.excluded
    }

    /// Returns the entries, and the paths of the source that are not copied, whose counterparts
    /// stay.
    pub(crate) fn into_tree(self) -> (SortedTree, BTreeSet<Vec<u8>>) {
        (self.tree, self.kept)
    }

    /// Takes the paths relative to the root of what may be directories in which an interrupted run
    /// asked about names.
    pub(crate) fn take_probes(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.probes)
    }

    /// Takes the identities of files with several hard links.
    pub(crate) fn take_links(&mut self) -> BTreeMap<TreeEntryId, InodeId> {
        std::mem::take(&mut self.links)
    }
}

/// Tree of a sync to be listed: its end, root path and listing options.
pub(crate) struct RootToList {
    end: PlannedCopySide,
    path: Vec<u8>,
    attributes: RootAttributes,
    one_file_system: bool,
    gitignore: bool,
    names: UnicodeForm,
}

impl RootToList {
    /// A root of which everything is listed, with the names that it has.
    pub(crate) fn new(end: PlannedCopySide, path: Vec<u8>, attributes: RootAttributes) -> Self {
        Self {
            end,
            path,
            attributes,
            one_file_system: false,
            gitignore: false,
            names: UnicodeForm::Own,
        }
    }

    /// Leaves out directories on other file systems than that of the root, whose identity must be
    /// known.
    pub(crate) fn on_one_file_system(self) -> Self {
        Self {
            one_file_system: true,
            ..self
        }
    }

    /// Adds the rules of `.gitignore` files, for an end on this machine.
    pub(crate) fn with_gitignore(self) -> Self {
        Self {
            gitignore: true,
            ..self
        }
    }

    /// Sets the form in which names are compared and given to the target.
    pub(crate) fn with_names(self, names: UnicodeForm) -> Self {
        Self { names, ..self }
    }
}

/// Attributes of the root of a listing.
pub(crate) enum RootAttributes {
    /// The attributes; `None` if there is no such directory yet.
    Known(Option<Attributes>),
    /// The server is asked for them while it lists.
    Queried(RootAttributesQuery),
}

impl RootAttributes {
    /// Device of a remote root, if its server tells it and has answered.
    fn device(&self) -> Option<u64> {
        match self {
            Self::Known(Some(root)) => root.link.map(|identity| identity.device),
            Self::Known(None) | Self::Queried(_) => None,
        }
    }
}

/// Lists directories and everything below them that `filter` selects, all at the same time.
/// Ends early if a root turns out not to be a directory. Returns `None` if the run ends before
/// that.
pub(crate) async fn list(
    run: &mut PlannedCopy<'_>,
    roots: Vec<RootToList>,
    filter: &Filter,
) -> Option<Vec<ListedTree>> {
    let new = |root| ActiveListing::new(run, root, filter.clone());
    let mut listers: Vec<ActiveListing> = roots.into_iter().map(new).collect();
    loop {
        if run.stopped() {
            return None;
        }
        let mut moved = false;
        for lister in &mut listers {
            moved |= lister.step(run);
            // A server may answer for ever, and the run may be interrupted meanwhile.
            for _ in 0..AT_ONCE {
                match run.next_event(lister.builder.end) {
                    Ok(Some(event)) => {
                        lister.handle(event);
                        moved = true;
                    }
                    Ok(None) => break,
                    Err(why) => {
                        run.lose(why);
                        return None;
                    }
                }
            }
            // The answer is an event of the copy, which has been handled above.
            moved |= lister.learn_root(run);
        }
        if listers.iter().all(ActiveListing::is_over)
            || listers.iter().any(ActiveListing::is_no_directory)
        {
            return Some(listers.into_iter().map(ActiveListing::finish).collect());
        }
        if !moved {
            run.wait().await;
        }
    }
}

/// Listing of one tree of a sync that has begun and is not complete.
struct ActiveListing {
    root: RootAttributes,
    builder: ListingTreeBuilder,
    walk: TreeWalkState,
    gitignore: bool,
}

enum TreeWalkState {
    Local {
        walk: LocalWalk,
        /// Device of the root, if other file systems are left out.
        device: Option<u64>,
    },
    Remote {
        walk: Box<RemoteWalk>,
        asked: BTreeMap<JobId, u64>,
        next: u64,
        /// Device of the root, if other file systems are left out.
        device: Option<u64>,
    },
    Finished,
}

impl ActiveListing {
    fn new(run: &PlannedCopy<'_>, root: RootToList, filter: Filter) -> Self {
        let walk = match (&root.attributes, run.is_local(root.end)) {
            (RootAttributes::Known(None), _) => TreeWalkState::Finished,
            (_, true) => {
                let top = match root.path.is_empty() {
                    true => PathBuf::from("."),
                    false => local_path(&root.path),
                };
                run.directories().follow_no_symlink_below(top.clone());
                let device = fs::metadata(&top).map(|meta| meta.dev()).ok();
                TreeWalkState::Local {
                    walk: LocalWalk::new(top, false),
                    device: device.filter(|_| root.one_file_system),
                }
            }
            (_, false) => {
                // The tree gets the root's attributes at the end.
                let none = Attributes::default();
                let mut walk = RemoteWalk::new(root.path.clone(), None, none, false, None);
                let device = root.attributes.device().filter(|_| root.one_file_system);
                if device.is_some() {
                    walk.stay_on_device();
                }
                TreeWalkState::Remote {
                    walk: Box::new(walk),
                    asked: BTreeMap::new(),
                    next: FIRST_JOB,
                    device,
                }
            }
        };
        Self {
            gitignore: root.gitignore,
            builder: ListingTreeBuilder::new(root.end, root.path, filter, root.names),
            root: root.attributes,
            walk,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.walk, TreeWalkState::Finished)
            && matches!(self.root, RootAttributes::Known(_))
    }

    /// Takes the answer about the root's attributes. Returns true if it has arrived just now.
    fn learn_root(&mut self, run: &mut PlannedCopy<'_>) -> bool {
        let RootAttributes::Queried(query) = self.root else {
            return false;
        };
        let answer = run.root_answer(query);
        let has_arrived = answer.is_some();
        if let Some(attributes) = answer {
            self.root = RootAttributes::Known(attributes);
        }
        has_arrived
    }

    /// True if the root is known to be unusable: a file, or a source that does not exist.
    fn is_no_directory(&self) -> bool {
        match &self.root {
            RootAttributes::Queried(_) => false,
            RootAttributes::Known(None) => self.builder.end == PlannedCopySide::Source,
            RootAttributes::Known(Some(root)) => root.kind() != EntryKind::Directory,
        }
    }

    fn finish(self) -> ListedTree {
        let (end, path) = (self.builder.end, self.builder.root.clone());
        match self.root {
            RootAttributes::Known(Some(root)) => {
                let mut builder = self.builder;
                builder.tree.set_root(entry(&root));
                builder.finish(Some(root))
            }
            // The listing of a missing directory has failed, which is no problem.
            _ => {
                let names = self.builder.names;
                ListingTreeBuilder::new(end, path, self.builder.filter, names).finish(None)
            }
        }
    }

    /// Takes some entries and sends requests. Returns true if there may be more at once.
    fn step(&mut self, run: &PlannedCopy<'_>) -> bool {
        let builder = &mut self.builder;
        match &mut self.walk {
            TreeWalkState::Finished => false,
            TreeWalkState::Local { walk, device } => {
                for _ in 0..AT_ONCE {
                    let Some(found) = walk.next() else {
                        self.walk = TreeWalkState::Finished;
                        return true;
                    };
                    if let Some(skipped) = builder.take_local(found, *device, self.gitignore) {
                        LocalWalk::skip(walk, skipped);
                    }
                }
                true
            }
            TreeWalkState::Remote {
                walk,
                asked,
                next,
                device,
            } => {
                while let Some(found) = walk.poll_found() {
                    if let Some(skipped) = builder.take_remote(found, *device) {
                        walk.skip(skipped);
                    }
                }
                if walk.is_over() {
                    self.walk = TreeWalkState::Finished;
                    return true;
                }
                if run.lists_trees(builder.end) {
                    walk.list_in_trees();
                }
                walk.allow_tree(walk.trees_asked() < TREES);
                while let Some(request) = walk.poll_request() {
                    let id = JobId(*next);
                    *next += 1;
                    asked.insert(id, request.tag);
                    let kind = request.kind;
                    run.submit(builder.end, Job { id, kind });
                    walk.allow_tree(walk.trees_asked() < TREES);
                }
                false
            }
        }
    }

    fn handle(&mut self, event: SessionEvent) {
        let TreeWalkState::Remote { walk, asked, .. } = &mut self.walk else {
            return;
        };
        let (id, answer) = match event {
            SessionEvent::Lane(LaneEvent::Entries(id, entries)) => {
                (id, WalkAnswer::Entries(entries))
            }
            SessionEvent::Lane(LaneEvent::Tree(id, steps)) => (id, WalkAnswer::Tree(steps)),
            SessionEvent::Lane(LaneEvent::LeftOut(id, name)) => (id, WalkAnswer::LeftOut(name)),
            SessionEvent::Restarted(id) => (id, WalkAnswer::Restarted),
            SessionEvent::Lane(LaneEvent::Done(id)) => (id, WalkAnswer::Done),
            SessionEvent::Lane(LaneEvent::Failed(id, fault)) => {
                (id, WalkAnswer::Failed(fault.what))
            }
            _ => return,
        };
        let over = matches!(answer, WalkAnswer::Done | WalkAnswer::Failed(_));
        if let Some(tag) = asked.get(&id) {
            walk.handle(*tag, answer);
        }
        if over {
            asked.remove(&id);
        }
    }
}

/// Builds a tree from the entries of a walk.
struct ListingTreeBuilder {
    end: PlannedCopySide,
    root: Vec<u8>,
    tree: EntryTree,
    dirs: UnlistedDirectories,
    /// Directory of the last entry, and its path. Many directories wait to be listed, whose paths
    /// would take much memory.
    last: Option<(TreeEntryId, Vec<u8>)>,
    filter: Filter,
    problems: Vec<(Vec<u8>, String)>,
    kept: BTreeSet<Vec<u8>>,
    links: BTreeMap<TreeEntryId, InodeId>,
    probes: Vec<Vec<u8>>,
    full: bool,
    excluded: u64,
    names: UnicodeForm,
}

impl ListingTreeBuilder {
    fn new(end: PlannedCopySide, root: Vec<u8>, filter: Filter, names: UnicodeForm) -> Self {
        Self {
            end,
            root,
            tree: EntryTree::with_limit(most_tree_bytes()),
            dirs: UnlistedDirectories::default(),
            last: None,
            filter,
            problems: Vec::new(),
            kept: BTreeSet::new(),
            links: BTreeMap::new(),
            probes: Vec::new(),
            full: false,
            excluded: 0,
            names,
        }
    }

    /// Returns a name or path in another form than its own, if there is one.
    fn changed_form(&self, name: &[u8]) -> Option<Vec<u8>> {
        match self.names {
            UnicodeForm::Own => None,
            UnicodeForm::Nfc => to_nfc(name),
        }
    }

    /// Adds an entry of this machine. Directories on other devices than `device` are left out.
    fn take_local(
        &mut self,
        found: WalkEntry,
        device: Option<u64>,
        gitignore: bool,
    ) -> Option<WalkDirectoryId> {
        let WalkEntry::Directory { id, at, .. } = &found else {
            return self.take(found);
        };
        let (id, path) = (*id, at.path.clone());
        if let Some(device) = device.filter(|_| at.parent.is_some())
            && fs::symlink_metadata(local_path(&path)).is_ok_and(|meta| meta.dev() != device)
        {
            self.leave_out(&path);
            return Some(id);
        }
        let skipped = self.take(found);
        if gitignore && skipped.is_none() {
            self.read_gitignore(&path);
        }
        skipped
    }

    /// Adds an entry of a server. Directories on other devices than `device` are left out.
    fn take_remote(&mut self, found: WalkEntry, device: Option<u64>) -> Option<WalkDirectoryId> {
        let (WalkEntry::Directory { id, at, .. }, Some(device)) = (&found, device) else {
            return self.take(found);
        };
        match at.attributes.link {
            _ if at.parent.is_none() => self.take(found),
            Some(identity) if identity.device == device => self.take(found),
            Some(_) => {
                self.leave_out(&at.path);
                Some(*id)
            }
            // Another server has taken over.
            None => {
                let what = "the server does not report on which file system this directory lies: \
                    its contents were left out";
                self.problem(&at.path, what.to_owned());
                Some(*id)
            }
        }
    }

    /// Adds an entry. Returns the directory whose contents are left out.
    fn take(&mut self, found: WalkEntry) -> Option<WalkDirectoryId> {
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
                match self.add(parent, &at.name, &at.attributes) {
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
            WalkEntry::Problem { path, what } => {
                self.problem(&path, what);
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
            PlannedCopySide::Source => self.filter.decide(&path, &found),
            PlannedCopySide::Target => self.filter.decide_name(&path, found.kind),
        };
        // A list of names excludes nothing, and everything else is not listed.
        if selection != FilterDecision::Selected && !self.filter.lists_names() {
            self.excluded += 1;
        }
        match selection {
            FilterDecision::Selected => {}
            FilterDecision::Excluded => {
                self.tree.protect(dir);
                return None;
            }
            // The counterpart at the target stays as it is.
            FilterDecision::OutOfLimits => {
                self.kept.insert(path);
                return None;
            }
        }
        let Some(node) = self.tree.add(dir, name, found) else {
            if !std::mem::replace(&mut self.full, true) {
                let what = "the tree has more entries than one sync can compare; sync its \
                            directories one by one";
                self.problems.push((path, what.to_owned()));
            }
            return None;
        };
        if formed.is_some() {
            self.tree.set_own_name(node, own);
        }
        let is_file = attributes.kind() == EntryKind::File;
        if let Some(link) = attributes.link.filter(|_| is_file) {
            self.links.insert(node, link);
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
        let excluded =
            self.filter.decide_name(&below, TreeEntryKind::Temporary) == FilterDecision::Excluded;
        if self.end == PlannedCopySide::Source && !excluded {
            self.problems.push((below.clone(), UNFINISHED.to_owned()));
        }
        self.kept.insert(below);
    }

    /// Adds an entry of the target that is never copied, unless it is excluded: another entry may
    /// replace it, and it may be deleted.
    fn is_added_at_target(&mut self, below: &[u8], kind: TreeEntryKind) -> bool {
        let excluded = self.filter.decide_name(below, kind) == FilterDecision::Excluded;
        if self.end != PlannedCopySide::Target || excluded {
            return false;
        }
        let name = last_name(below);
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
        self.kept.insert(below);
    }

    fn read_gitignore(&mut self, dir: &[u8]) {
        let below = self.below(dir);
        nested_rules(&mut self.filter, &below, &join(dir, b".gitignore"));
    }

    fn problem(&mut self, path: &[u8], what: String) {
        let below = self.below(path);
        let name = last_name(&below);
        if schedule::is_temp_name(name) {
            return self.temporary(path);
        }
        if refused_name(name).is_some() {
            return self.reserved(path);
        }
        let is_special = what == NOT_REGULAR;
        if is_special && self.is_added_at_target(&below, TreeEntryKind::Other) {
            return;
        }
        // What takes no part at one end keeps its counterpart, and at the target its directory.
        if self.filter.decide_name(&below, TreeEntryKind::Other) == FilterDecision::Excluded {
            self.kept.insert(below);
            return;
        }
        if is_special {
            self.kept.insert(below.clone());
        }
        if !is_special || self.end == PlannedCopySide::Source {
            self.problems.push((below, what));
        }
    }

    /// Leaves out an entry with a name of our own files, which takes no part at either end.
    fn reserved(&mut self, path: &[u8]) {
        let below = self.below(path);
        let name = last_name(&below);
        let selection = self.filter.decide_name(&below, TreeEntryKind::Directory);
        match self.end {
            _ if selection == FilterDecision::Excluded => {}
            PlannedCopySide::Source => {
                let what = match schedule::is_temp_name(name) {
                    true => UNFINISHED,
                    false => RESERVED,
                };
                self.problems.push((below.clone(), what.to_owned()));
            }
            PlannedCopySide::Target if is_name_probe(name) => self.probes.push(below.clone()),
            PlannedCopySide::Target => {}
        }
        self.kept.insert(below);
    }

    fn finish(self, root: Option<Attributes>) -> ListedTree {
        let mut tree = self.tree.sorted();
        if self.end == PlannedCopySide::Target {
            for path in &self.kept {
                tree.protect_above(path);
            }
        }
        ListedTree {
            root,
            tree,
            problems: self.problems,
            kept: self.kept,
            links: self.links,
            probes: self.probes,
            filter: self.filter,
            excluded: self.excluded,
        }
    }
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Problem of a file of the source that takes no part, as its name is one of our temporaries.
const UNFINISHED: &str = "not copied: its name says that it is an unfinished file of longhaul (.NAME.xxxxxxxxxx.longhaul)";

/// Returns true if a problem means that entries may be missing from the listing.
pub(crate) fn hides_entries(what: &str) -> bool {
    ![NOT_REGULAR, UNFINISHED, RESERVED].contains(&what)
}

/// Returns the warning about a problem that hides no entries.
pub(crate) fn warning(what: String) -> String {
    match what == NOT_REGULAR {
        true => LEFT_OUT.to_owned(),
        false => what,
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
            exists: false,
        }
    }

    #[test]
    fn a_directory_on_another_device_is_left_out_and_an_unknown_one_hides_entries() {
        let (root, names) = (b"/root".to_vec(), UnicodeForm::Own);
        let mut builder =
            ListingTreeBuilder::new(PlannedCopySide::Source, root, Filter::default(), names);
        let mut take = |id, name, device| {
            let found = directory(id, name, device);
            builder.take_remote(found, Some(7))
        };
        assert_eq!(take(0, "", Some(7)), None);
        assert_eq!(take(1, "here", Some(7)), None);
        assert_eq!(take(2, "mounted", Some(8)), Some(WalkDirectoryId(2)));
        assert_eq!(take(3, "unknown", None), Some(WalkDirectoryId(3)));
        let listing = builder.finish(None);
        assert!(listing.tree.find(b"here").is_some() && listing.tree.tree().len() == 1);
        assert!(listing.kept.contains(b"mounted".as_slice()));
        let [(path, what)] = listing.problems.as_slice() else {
            panic!("{:?}", listing.problems);
        };
        assert!(path == b"unknown" && hides_entries(what), "{what}");
    }
}
