use std::collections::{BTreeMap, BTreeSet, VecDeque};

use schedule::{Attributes, JobKind};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::equal_names::ClaimedTargets;
use super::local_ops::LocalTreeWalk;
use super::names::name_in_target;
use super::owner::EntryAwaitingOwner;
use super::planned::PlannedEntries;
use super::ports::CopyPorts;
use super::selection::{SourceFilter, SourceSelection};
use super::self_copy::SelfCopies;
use super::server_names::FoundEntry;
use super::tree::{DirKey, PendingItem};
use crate::walk::{
    EntryInfo, ListAnswer, NOT_REGULAR, RemoteWalk, WalkDirectoryId, WalkEntry, join,
};

/// Number of trees walked at the same time; more would only use more memory.
const WALKS: usize = 16;
/// Number of trees listed at the same time in all walks, which is the number that a longhaul server
/// lists for one client.
const TREES: usize = 16;

/// Answers to early listings above which no more are requested.
const HELD_AHEAD: usize = 256;

/// A source that was queried: its canonical path, and its attributes or the reason that there are
/// none.
type LookedAt = (SourceRoot, Option<Vec<u8>>, Result<Attributes, String>);

/// Identifies a walk of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WalkId(pub(super) u64);

/// Source to copy.
#[derive(Clone, Debug)]
pub(super) struct SourceRoot {
    pub path: Vec<u8>,
    pub onto: TargetPath,
}

/// Target path of a source.
#[derive(Clone, Debug)]
pub(super) enum TargetPath {
    /// Into this directory, under the source's own name.
    Into(Vec<u8>),
    /// To this name.
    Exactly(Vec<u8>),
    /// Into this directory if it is one, otherwise to this name; not known yet.
    Guess(Vec<u8>),
}

impl TargetPath {
    pub(super) fn target(&self, source: &[u8]) -> Vec<u8> {
        match self {
            Self::Into(dir) => match name_in_target(source) {
                Some(name) => join(dir, name),
                None => dir.clone(),
            },
            Self::Exactly(path) | Self::Guess(path) => path.clone(),
        }
    }
}

/// Walks in progress.
#[derive(Default)]
pub(super) struct ActiveWalks {
    next: u64,
    /// Sources that are not begun.
    roots: VecDeque<SourceRoot>,
    local: Option<(WalkId, Box<dyn LocalTreeWalk>, Vec<u8>)>,
    /// Entries that were chosen before.
    planned: Option<(WalkId, PlannedEntries, Vec<u8>)>,
    remote: BTreeMap<WalkId, RemoteRoot>,
    /// Listings of roots that were requested together with the roots' attributes.
    ahead: BTreeMap<WalkId, EarlyListing>,
    /// True if the source was requested to pause its listings.
    holds: bool,
    /// Estimated number of files that was reported to the session.
    foreseen: u64,
    /// Directory at the source that walks must not enter.
    avoid: Option<SelfCopyGuard>,
    /// Claims of files on target paths; `None` where no two can have the same.
    claims: Option<ClaimedTargets>,
    /// Selection of the files to copy; `None` if all are copied.
    selection: Option<SourceSelection>,
    /// Sources that are identical to their target.
    same: BTreeSet<Vec<u8>>,
}

/// Target of the copy, if source and target are on the same host.
#[derive(Clone, Debug)]
struct SelfCopyGuard {
    /// Canonical path of the target.
    path: Vec<u8>,
    /// Sources are copied into the target, under their own names.
    into: bool,
}

#[derive(Debug)]
enum RemoteRoot {
    /// The root is being queried: its attributes, its canonical path, and the number of open
    /// queries.
    Querying {
        root: SourceRoot,
        attributes: Option<Attributes>,
        real: Option<Vec<u8>>,
        asked: u8,
        fault: Option<String>,
    },
    Walking(Box<RemoteWalk>, Vec<u8>),
}

/// Listing that started before its walk.
#[derive(Debug)]
enum EarlyListing {
    /// The walk has not requested the listing yet; these answers have arrived.
    Held {
        answers: Vec<ListAnswer>,
        /// True if the listing covers the whole tree.
        tree: bool,
    },
    /// The listing answers the walk's request with this number.
    Asked(u64),
}

impl ActiveWalks {
    pub(super) fn new(filter: Option<&SourceFilter>) -> Self {
        Self {
            selection: filter.map(SourceSelection::new),
            ..Self::default()
        }
    }

    /// Sets the sources to begin.
    pub(super) fn begin_with(&mut self, roots: VecDeque<SourceRoot>) {
        self.roots = roots;
    }

    pub(super) fn next_id(&mut self) -> WalkId {
        self.next += 1;
        WalkId(self.next)
    }

    /// Begins the walk of a local root.
    pub(super) fn begin_local(
        &mut self,
        id: WalkId,
        walk: Box<dyn LocalTreeWalk>,
        target: Vec<u8>,
    ) {
        self.local = Some((id, walk, target));
    }

    /// Begins to yield entries that were chosen before.
    pub(super) fn begin_planned(&mut self, entries: PlannedEntries, target: Vec<u8>) -> WalkId {
        let id = self.next_id();
        self.planned = Some((id, entries, target));
        id
    }

    /// Notes that `asked` queries about a remote root are open.
    pub(super) fn look_at(&mut self, id: WalkId, root: SourceRoot, asked: u8) {
        let looking = RemoteRoot::Querying {
            root,
            attributes: None,
            real: None,
            asked,
            fault: None,
        };
        self.remote.insert(id, looking);
    }

    /// Handles the end of a query about a remote root. After the last one, returns the root, its
    /// canonical path, and its attributes or the reason why they are unknown.
    pub(super) fn looked_at(&mut self, id: WalkId, result: Result<(), String>) -> Option<LookedAt> {
        let Some(RemoteRoot::Querying { asked, fault, .. }) = self.remote.get_mut(&id) else {
            return None;
        };
        *asked -= 1;
        if let Err(what) = result {
            fault.get_or_insert(what);
        }
        if *asked > 0 {
            return None;
        }
        let Some(RemoteRoot::Querying {
            root,
            attributes,
            real,
            fault,
            ..
        }) = self.remote.remove(&id)
        else {
            return None;
        };
        let unknown = || "the server gave no information about it".to_owned();
        let attributes = attributes.ok_or_else(|| fault.unwrap_or_else(unknown));
        Some((root, real, attributes))
    }

    /// Lets walks not enter the target, whose canonical path is `path`, with `into` or the places
    /// of the sources in it.
    pub(super) fn avoid(&mut self, path: Vec<u8>, into: bool) {
        self.avoid = Some(SelfCopyGuard { path, into });
    }

    /// Notes how sources and target overlap.
    pub(super) fn note_overlaps(&mut self, overlaps: SelfCopies) {
        self.same.extend(overlaps.same);
        if let Some((path, into)) = overlaps.inside {
            self.avoid(path, into);
        }
    }

    /// True if a directory is not entered.
    pub(super) fn avoids(&self) -> bool {
        self.avoid.is_some()
    }

    /// True if `source` is its own target.
    pub(super) fn is_same(&self, source: &[u8]) -> bool {
        self.same.contains(source)
    }

    /// Forgets how sources and target overlap.
    pub(super) fn forget_overlaps(&mut self) {
        self.avoid = None;
        self.same.clear();
    }

    /// Has each file claim its target, for sources that are merged, and where the target may take
    /// names for one that differ in case or normalization (`folds`).
    pub(super) fn claim_targets(&mut self, folds: bool) {
        self.claims = Some(ClaimedTargets::new(folds));
    }

    /// Claims of files on target paths; `None` where no two can have the same.
    pub(super) fn claims(&mut self) -> Option<&mut ClaimedTargets> {
        self.claims.as_mut()
    }

    /// True if a source that the user named is copied.
    pub(super) fn selects_root(&mut self, path: &[u8], attributes: &Attributes) -> bool {
        let selection = self.selection.as_mut();
        selection.is_none_or(|selection| selection.selects_root(path, attributes))
    }

    /// True if an entry of a walk is copied. The contents of a directory that is not copied are
    /// left out of the walk.
    pub(super) fn selects(&mut self, walk: WalkId, found: &WalkEntry, is_local: bool) -> bool {
        let selection = self.selection.as_mut();
        let selected = selection.is_none_or(|selection| selection.selects(walk, found, is_local));
        if let (false, WalkEntry::Directory { id, .. }) = (selected, found) {
            self.skip(walk, *id);
        }
        selected
    }

    /// True if filters may leave entries out, which then may be the target itself.
    pub(super) fn is_filtered(&self) -> bool {
        self.selection.is_some()
    }

    /// Number of entries that were not selected.
    pub(super) fn excluded(&self) -> u64 {
        self.selection.as_ref().map_or(0, SourceSelection::excluded)
    }

    /// Names of `--files-from` that no source has.
    pub(super) fn missing(&self) -> Vec<Vec<u8>> {
        let selection = self.selection.as_ref();
        selection.map(SourceSelection::missing).unwrap_or_default()
    }

    /// Leaves the contents of a directory out of a walk.
    pub(super) fn skip(&mut self, id: WalkId, dir: WalkDirectoryId) {
        if let Some((_, walk, _)) = &mut self.local {
            walk.skip(dir);
        }
        if let Some(RemoteRoot::Walking(walk, _)) = self.remote.get_mut(&id) {
            walk.skip(dir);
        }
    }

    /// Estimated number of files and bytes of all walks, if it grew by more than a quarter since it
    /// was last returned.
    pub(super) fn grown_estimate(&mut self) -> Option<(u64, u64)> {
        let sum =
            |(a, b): (u64, u64), (c, d): (u64, u64)| (a.saturating_add(c), b.saturating_add(d));
        let all = self.walking().map(RemoteWalk::foreseen);
        let (files, bytes) = all.fold((0, 0), sum);
        if files <= self.foreseen.saturating_mul(5) / 4 {
            return None;
        }
        self.foreseen = files;
        Some((files, bytes))
    }

    /// Forgets the estimate that a session was told.
    pub(super) fn forget_estimate(&mut self) {
        self.foreseen = 0;
    }

    /// Path that a walk of `root` must not enter.
    pub(super) fn avoid_for(&self, root: &[u8]) -> Option<Vec<u8>> {
        let avoid = self.avoid.as_ref()?;
        Some(match name_in_target(root).filter(|_| avoid.into) {
            Some(name) => join(&avoid.path, name),
            None => avoid.path.clone(),
        })
    }

    pub(super) fn clear(&mut self) {
        self.roots.clear();
        self.local = None;
        self.planned = None;
        self.remote.clear();
        self.ahead.clear();
    }

    fn walking(&self) -> impl Iterator<Item = &RemoteWalk> {
        self.remote.values().filter_map(|remote| match remote {
            RemoteRoot::Walking(walk, _) => Some(&**walk),
            RemoteRoot::Querying { .. } => None,
        })
    }

    /// Number of trees being listed.
    fn trees_asked(&self) -> usize {
        let ahead = |ahead: &&EarlyListing| matches!(ahead, EarlyListing::Held { tree: true, .. });
        let begun = self.walking().map(RemoteWalk::trees_asked);
        begun.sum::<usize>() + self.ahead.values().filter(ahead).count()
    }

    /// Number of answers held from listings whose directory is not confirmed yet.
    fn held_ahead(&self) -> usize {
        let held = |ahead: &EarlyListing| match ahead {
            EarlyListing::Held { answers, .. } => answers.len(),
            EarlyListing::Asked(_) => 0,
        };
        self.ahead.values().map(held).sum()
    }

    fn is_empty(&self) -> bool {
        self.local.is_none() && self.planned.is_none() && self.remote.is_empty()
    }

    pub(super) fn handle(&mut self, id: WalkId, tag: u64, answer: ListAnswer) {
        if let Some(RemoteRoot::Walking(walk, _)) = self.remote.get_mut(&id) {
            walk.handle(tag, answer);
        }
    }

    /// Notes an early listing of a root, or of the tree below it.
    pub(super) fn list_ahead(&mut self, id: WalkId, tree: bool) {
        let answers = Vec::new();
        self.ahead.insert(id, EarlyListing::Held { answers, tree });
    }

    /// Handles an answer of an early listing.
    pub(super) fn listed_ahead(&mut self, id: WalkId, answer: ListAnswer) {
        let over = matches!(answer, ListAnswer::Done | ListAnswer::Failed(_));
        match self.ahead.get_mut(&id) {
            Some(EarlyListing::Held { answers, .. }) => answers.push(answer),
            Some(EarlyListing::Asked(tag)) => {
                let tag = *tag;
                if over {
                    self.ahead.remove(&id);
                }
                self.handle(id, tag, answer);
            }
            None => {}
        }
    }

    /// Starts the walk of a root that is a directory, using its early listing. With `trees`, the
    /// rest is listed as whole trees.
    pub(super) fn begin_walk(
        &mut self,
        id: WalkId,
        mut walk: RemoteWalk,
        target: Vec<u8>,
        trees: bool,
    ) {
        let held = match self.ahead.remove(&id) {
            Some(EarlyListing::Held { answers, tree }) => {
                if tree {
                    walk.list_in_trees();
                }
                walk.poll_request().map(|asks| (asks.tag, answers))
            }
            _ => None,
        };
        if trees {
            walk.list_in_trees();
        }
        let walking = RemoteRoot::Walking(Box::new(walk), target);
        self.remote.insert(id, walking);
        if let Some((tag, answers)) = held {
            self.ahead.insert(id, EarlyListing::Asked(tag));
            for answer in answers {
                self.listed_ahead(id, answer);
            }
        }
    }

    /// Drops the early listing of a root that is not a directory.
    pub(super) fn forget_listing(&mut self, id: WalkId) {
        self.ahead.remove(&id);
    }

    /// True if the source can list another tree at the same time.
    pub(super) fn lists_another(&self, ports: &CopyPorts<'_>) -> bool {
        self.trees_asked() < TREES && source_lists_trees(ports)
    }

    /// Notes the name of a source that may be merged, at the start of its walk or file.
    pub(super) fn name_root(&mut self, ports: &CopyPorts<'_>, root: WalkId, path: &[u8]) {
        if let Some(claims) = self.claims() {
            claims.name_root(root, ports.shown(CopySide::Source, path));
        }
    }

    pub(super) fn root_is(&mut self, id: WalkId, is: Attributes) {
        if let Some(RemoteRoot::Querying { attributes, .. }) = self.remote.get_mut(&id) {
            *attributes = Some(is);
        }
    }

    pub(super) fn root_really(&mut self, id: WalkId, path: Vec<u8>) {
        if let Some(RemoteRoot::Querying { real, .. }) = self.remote.get_mut(&id) {
            *real = Some(path);
        }
    }
}

impl CopyEngine<'_> {
    /// True if sources may still yield entries.
    pub(super) fn has_more(&self) -> bool {
        !self.walks.roots.is_empty() || !self.walks.is_empty() || self.owners.holds()
    }

    /// Takes the next entry from the sources and starts it. Returns false if there is none now.
    pub(super) fn feed(&mut self) -> bool {
        if self.server_names.is_holding() {
            return false;
        }
        match self.feed_waiting() {
            Some(false) => {}
            None => return false,
            Some(true) => return true,
        }
        if let Some((id, found, target)) = self.next_found() {
            let is_local = !self.source_is_remote();
            if self.walks.selects(id, &found, is_local) {
                self.begin_unless_alike(FoundEntry::Walk(id, found, target));
            }
            return true;
        }
        let busy = self.walks.local.is_some() || self.walks.planned.is_some();
        if busy || self.walks.remote.len() >= WALKS {
            return false;
        }
        match self.walks.roots.pop_front() {
            Some(root) => self.begin_unless_alike(FoundEntry::Root(root)),
            None => {
                if self.walks.is_empty() {
                    self.progress.set_totals_final();
                }
                return false;
            }
        }
        true
    }

    fn begin_unless_alike(&mut self, entry: FoundEntry) {
        if let Some(entry) = self.hold_if_alike(entry) {
            self.begin_found(entry);
        }
    }

    /// Begins an entry that was found.
    pub(super) fn begin_found(&mut self, entry: FoundEntry) {
        match entry {
            FoundEntry::Walk(id, found, target) => {
                self.begin_owned(EntryAwaitingOwner::Found(id, found, target));
            }
            FoundEntry::Root(root) if self.source_is_remote() => self.begin_remote(root),
            FoundEntry::Root(root) => self.begin_local(root),
        }
    }

    fn next_found(&mut self) -> Option<(WalkId, WalkEntry, Vec<u8>)> {
        if let Some((id, entries, target)) = &mut self.walks.planned {
            if let Some(found) = entries.next() {
                return Some((*id, found, target.clone()));
            }
            self.walks.planned = None;
            return None;
        }
        if let Some((id, walk, target)) = &mut self.walks.local {
            if let Some(found) = walk.next() {
                return Some((*id, found, target.clone()));
            }
            self.walks.local = None;
            return None;
        }
        let mut over = None;
        for (id, remote) in &mut self.walks.remote {
            let RemoteRoot::Walking(walk, target) = remote else {
                continue;
            };
            if let Some(found) = walk.poll_found() {
                return Some((*id, found, target.clone()));
            }
            if walk.is_over() {
                over = Some(*id);
            }
        }
        if let Some(id) = over {
            self.walks.remote.remove(&id);
        }
        None
    }

    /// Submits the requests of the walks.
    pub(super) fn ask_for_walks(&mut self) {
        let mut questions = Vec::new();
        let mut holds = self.walks.held_ahead() > HELD_AHEAD;
        // The first visit to a host starts on the stock server and may have found a longhaul since.
        let may = self.walks.walking().any(RemoteWalk::may_list_in_trees);
        let trees = may && source_lists_trees(&self.ports);
        let mut listed = self.walks.trees_asked();
        for (id, remote) in &mut self.walks.remote {
            if let RemoteRoot::Walking(walk, _) = remote {
                if trees {
                    walk.list_in_trees();
                }
                holds |= walk.holds();
                loop {
                    walk.allow_tree(listed < TREES);
                    let Some(request) = walk.poll_request() else {
                        break;
                    };
                    listed += usize::from(matches!(request.kind, JobKind::ListTree { .. }));
                    questions.push((*id, request));
                }
            }
        }
        if holds != self.walks.holds
            && let Some(side) = self.ports.sides().get(CopySide::Source)
        {
            self.walks.holds = holds;
            side.session().hold_lists(holds);
        }
        for (id, request) in questions {
            self.ports.submit(
                CopySide::Source,
                request.kind,
                JobPurpose::Walk(id, request.tag),
            );
        }
    }

    pub(super) fn on_found(&mut self, id: WalkId, found: WalkEntry, root: &[u8]) {
        if let WalkEntry::Directory { at, .. } | WalkEntry::File(at) | WalkEntry::Symlink(at) =
            &found
        {
            let paths = at.path.len() + root.len();
            self.ports.jobs_mut().note_paths(paths);
        }
        match found {
            WalkEntry::Directory { id: dir, at } => {
                let key = DirKey { walk: id, dir };
                let parent = at.parent.map(|parent| Self::key(id, parent));
                let target = self.target_of(id, &at, root);
                self.metadata
                    .note_times(&self.ports, &at.path, &at.attributes);
                let begun = match target {
                    Some(target) => {
                        self.may_claim(id, &at.path, &target, true)
                            && self.begin_dir(key, parent, target, at.attributes)
                    }
                    None => false,
                };
                if begun {
                    self.ask_dir_xattrs(key, &at.path);
                }
                if !begun {
                    self.walks.skip(id, dir);
                    self.listed(key);
                }
            }
            WalkEntry::File(entry) => self.place_item(id, entry, root, false),
            WalkEntry::Symlink(entry) => self.place_item(id, entry, root, true),
            WalkEntry::Listed(dir) => self.listed(Self::key(id, dir)),
            WalkEntry::Problem { path, what } => {
                let path = self.shown(CopySide::Source, &path);
                match self.options.archive && what == NOT_REGULAR {
                    // A copy of a home directory meets sockets, which no copy can carry.
                    true => {
                        let what = "not copied: it is a socket, a FIFO or a device";
                        self.warn(Some(path), what.to_owned());
                    }
                    false => self.fail(None, path, what),
                }
            }
        }
    }

    fn place_item(&mut self, id: WalkId, entry: EntryInfo, root: &[u8], symlink: bool) {
        let Some(target) = self.target_of(id, &entry, root) else {
            return;
        };
        if !self.may_claim(id, &entry.path, &target, false) {
            return;
        }
        let dir = entry.parent.map(|parent| Self::key(id, parent));
        self.begin_item(PendingItem {
            entry,
            target,
            dir,
            symlink,
            points_to: None,
        });
    }

    /// Target path of an entry of a walk; `None` if its directory has no target.
    fn target_of(&self, id: WalkId, entry: &EntryInfo, root: &[u8]) -> Option<Vec<u8>> {
        match entry.parent {
            Some(parent) => {
                let dir = self.tree.target(Self::key(id, parent))?;
                Some(join(dir, &entry.name))
            }
            None => Some(root.to_vec()),
        }
    }
}

/// True if the source lists whole trees, or is expected to.
pub(super) fn source_lists_trees(ports: &CopyPorts<'_>) -> bool {
    let source = ports.side(CopySide::Source);
    source.is_some_and(|side| side.session().lists_trees())
}

#[cfg(test)]
mod tests {
    use schedule::{JobKind, TreeWalkStep};

    use super::*;

    fn of_mode(mode: u32) -> Attributes {
        Attributes {
            mode: Some(mode),
            ..Attributes::default()
        }
    }

    fn walk() -> RemoteWalk {
        RemoteWalk::new(b"top".to_vec(), None, of_mode(0o040_755), true, None)
    }

    fn asked(walks: &mut ActiveWalks, id: WalkId) -> Vec<Vec<u8>> {
        let Some(RemoteRoot::Walking(walk, _)) = walks.remote.get_mut(&id) else {
            panic!("no walk");
        };
        let mut asked = Vec::new();
        while let Some(request) = walk.poll_request() {
            if let JobKind::List { path } = request.kind {
                asked.push(path.0);
            }
        }
        asked
    }

    fn found(walks: &mut ActiveWalks, id: WalkId) -> usize {
        let Some(RemoteRoot::Walking(walk, _)) = walks.remote.get_mut(&id) else {
            panic!("no walk");
        };
        std::iter::from_fn(|| walk.poll_found()).count()
    }

    #[test]
    fn a_root_that_was_listed_ahead_is_not_listed_again() {
        for before in 0..3 {
            let mut answers = vec![
                ListAnswer::Entries(vec![(b"below".to_vec(), of_mode(0o040_755))]),
                ListAnswer::Entries(vec![(b"file".to_vec(), of_mode(0o100_644))]),
                ListAnswer::Done,
            ];
            let late = answers.split_off(before);
            let mut walks = ActiveWalks::default();
            let id = walks.next_id();
            walks.list_ahead(id, false);
            for answer in answers {
                walks.listed_ahead(id, answer);
            }
            walks.begin_walk(id, walk(), b"to".to_vec(), false);
            for answer in late {
                walks.listed_ahead(id, answer);
            }
            assert_eq!(asked(&mut walks, id), [b"top/below".to_vec()], "{before}");
            // The root, its two entries, and its end.
            assert_eq!(found(&mut walks, id), 4, "{before}");
            assert!(walks.ahead.is_empty());
        }
    }

    #[test]
    fn a_tree_that_was_listed_ahead_is_not_listed_again() {
        let file = |name: &str| TreeWalkStep::Entry(name.as_bytes().to_vec(), of_mode(0o100_644));
        let answers = |walks: &mut ActiveWalks, id| {
            walks.listed_ahead(id, ListAnswer::Tree(vec![file("a")]));
            walks.listed_ahead(id, ListAnswer::Restarted);
            walks.listed_ahead(
                id,
                ListAnswer::Tree(vec![file("a"), file("b"), TreeWalkStep::Leave]),
            );
            walks.listed_ahead(id, ListAnswer::Done);
        };
        for early in [true, false] {
            let mut walks = ActiveWalks::default();
            let id = walks.next_id();
            walks.list_ahead(id, true);
            assert_eq!(walks.trees_asked(), 1);
            if early {
                answers(&mut walks, id);
            }
            walks.begin_walk(id, walk(), b"to".to_vec(), false);
            if !early {
                assert_eq!(walks.trees_asked(), 1, "it is counted once");
                answers(&mut walks, id);
            }
            assert_eq!(asked(&mut walks, id), Vec::<Vec<u8>>::new());
            // The root, its two entries, and its end.
            assert_eq!(found(&mut walks, id), 4, "{early}");
            assert!(walks.ahead.is_empty() && walks.trees_asked() == 0);
        }
    }

    #[test]
    fn a_server_that_lists_no_trees_after_all_is_asked_for_the_directory() {
        let mut walks = ActiveWalks::default();
        let id = walks.next_id();
        walks.list_ahead(id, true);
        walks.listed_ahead(id, ListAnswer::Failed(schedule::NO_TREES.to_owned()));
        walks.begin_walk(id, walk(), b"to".to_vec(), false);
        assert_eq!(asked(&mut walks, id), [b"top".to_vec()]);
    }

    #[test]
    fn what_is_no_directory_was_listed_for_nothing() {
        let mut walks = ActiveWalks::default();
        let id = walks.next_id();
        walks.list_ahead(id, false);
        walks.forget_listing(id);
        walks.listed_ahead(id, ListAnswer::Failed("no directory".to_owned()));
        assert!(walks.ahead.is_empty());
        walks.begin_walk(id, walk(), b"to".to_vec(), false);
        assert_eq!(asked(&mut walks, id), [b"top".to_vec()]);
    }
}
