use std::collections::{BTreeMap, BTreeSet, VecDeque};

use schedule::{Attributes, JobKind};

use super::context::CopyContext;
use super::equal_names::ClaimedTargets;
use super::jobs::JobPurpose;
use super::local_file_ops::LocalTreeWalk;
use super::names::name_in_target;
use super::planned::PlannedEntries;
use super::selection::{SourceFilter, WalkEntrySelection};
use super::self_copy::OverlappingSources;
use super::sides::CopySide;
use super::target_name_index::NameCheckedEntry;
use super::tree::CopyDirectoryId;
use crate::file_error::FileError;
use crate::walk::{RemoteWalk, WalkAnswer, WalkEntry, join};

/// Number of trees walked at the same time; more would only use more memory.
const WALKS: usize = 16;
/// Number of trees listed at the same time in all walks, which is the number that a longhaul server
/// lists for one client.
const TREES: usize = 16;

/// Answers to early listings above which no more are requested.
const HELD_AHEAD: usize = 256;

/// A source that was queried: its canonical path, and its attributes or the reason that there are
/// none.
type LookedAt = (SourceRoot, Option<Vec<u8>>, Result<Attributes, FileError>);

/// Identifies a walk of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WalkId(pub(super) u64);

/// A source to copy, and the path at the target that it is copied to.
#[derive(Clone, Debug)]
pub(super) struct SourceRoot {
    pub path: Vec<u8>,
    pub onto: TargetPath,
}

/// Path in the target to which a source is copied, as far as it is known.
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
    avoid: Option<SelfCopyCheck>,
    /// Claims of files on target paths; `None` where no two can have the same.
    claims: Option<ClaimedTargets>,
    /// Selection of the files to copy; `None` if all are copied.
    selection: Option<WalkEntrySelection>,
    /// Sources that are identical to their target.
    same: BTreeSet<Vec<u8>>,
}

/// Target of the copy, if source and target are on the same host.
#[derive(Clone, Debug)]
struct SelfCopyCheck {
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
        fault: Option<FileError>,
    },
    Walking(Box<RemoteWalk>, Vec<u8>),
}

/// Listing that started before its walk.
#[derive(Debug)]
enum EarlyListing {
    /// The walk has not requested the listing yet; these answers have arrived.
    Held {
        answers: Vec<WalkAnswer>,
        /// True if the listing covers the whole tree.
        tree: bool,
    },
    /// The listing answers the walk's request with this number.
    Asked(u64),
}

impl ActiveWalks {
    pub(super) fn new(filter: Option<&SourceFilter>) -> Self {
        Self {
            selection: filter.map(WalkEntrySelection::new),
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
    pub(super) fn looked_at(
        &mut self,
        id: WalkId,
        result: Result<(), FileError>,
    ) -> Option<LookedAt> {
        let Some(RemoteRoot::Querying { asked, fault, .. }) = self.remote.get_mut(&id) else {
            return None;
        };
        *asked -= 1;
        if let Err(error) = result {
            fault.get_or_insert(error);
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
        let unknown = || "the server gave no information about it".into();
        let attributes = attributes.ok_or_else(|| fault.unwrap_or_else(unknown));
        Some((root, real, attributes))
    }

    /// Keeps walks out of the target, so that a copy into its own source ends. `path` is its
    /// canonical path; `into` tells that sources are copied into it under their own names.
    pub(super) fn avoid(&mut self, path: Vec<u8>, into: bool) {
        self.avoid = Some(SelfCopyCheck { path, into });
    }

    /// Notes how sources and target overlap.
    pub(super) fn note_overlaps(&mut self, overlaps: OverlappingSources) {
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

    /// Has each file claim its target; with `None`, no two can have the same.
    pub(super) fn claim_targets(&mut self, claims: Option<ClaimedTargets>) {
        self.claims = claims;
    }

    /// True if two files may have the same target, as where sources are merged.
    pub(super) fn claims_targets(&self) -> bool {
        self.claims.is_some()
    }

    /// Returns true if an entry found in `root` may be copied to `target`. Reports a failure if
    /// another source has claimed it.
    pub(super) fn may_claim(
        &mut self,
        context: &mut CopyContext<'_>,
        root: WalkId,
        source: &[u8],
        target: &[u8],
        is_directory: bool,
    ) -> bool {
        let claims = self.claims.as_mut();
        claims.is_none_or(|claims| claims.admits(context, root, source, target, is_directory))
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
            self.skip(CopyDirectoryId::new(walk, *id));
        }
        selected
    }

    /// True if `--files-from` lists only names below the sources, whose counterparts at the target
    /// keep their metadata, as in rsync.
    pub(super) fn leaves_roots(&self) -> bool {
        let selection = self.selection.as_ref();
        selection.is_some_and(WalkEntrySelection::leaves_roots)
    }

    /// True if filters may leave entries out, which then may be the target itself.
    pub(super) fn is_filtered(&self) -> bool {
        self.selection.is_some()
    }

    /// Number of entries that were not selected.
    pub(super) fn excluded(&self) -> u64 {
        self.selection
            .as_ref()
            .map_or(0, WalkEntrySelection::excluded)
    }

    /// Reports the names of `--files-from` that no source has.
    pub(super) fn report_missing(&self, context: &mut CopyContext<'_>) {
        let selection = self.selection.as_ref();
        for name in selection
            .map(WalkEntrySelection::missing)
            .unwrap_or_default()
        {
            let what = match context.is_recursive() {
                true => "listed in --files-from, but not found in any source: correct the list",
                false => {
                    "listed in --files-from, but not copied: without -r, files in a source that is a \
                     directory are left out; add -r"
                }
            };
            context.fail_at(CopySide::Source, &name, what.to_owned());
        }
    }

    /// Leaves the contents of a directory out of a walk.
    pub(super) fn skip(&mut self, dir: CopyDirectoryId) {
        if let Some((_, walk, _)) = &mut self.local {
            walk.skip(dir.dir());
        }
        if let Some(RemoteRoot::Walking(walk, _)) = self.remote.get_mut(&dir.walk()) {
            walk.skip(dir.dir());
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

    pub(super) fn handle(&mut self, id: WalkId, tag: u64, answer: WalkAnswer) {
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
    pub(super) fn listed_ahead(&mut self, id: WalkId, answer: WalkAnswer) {
        let over = matches!(answer, WalkAnswer::Done | WalkAnswer::Failed(_));
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
            // A walk that keeps out of a directory does not take a tree, and lists its root itself.
            Some(EarlyListing::Held { answers, tree }) if !tree || walk.may_list_in_trees() => {
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
    pub(super) fn lists_another(&self, context: &CopyContext<'_>) -> bool {
        self.trees_asked() < TREES && source_lists_trees(context)
    }

    /// Notes the name of a source that may be merged, at the start of its walk or file.
    pub(super) fn name_root(&mut self, context: &CopyContext<'_>, root: WalkId, path: &[u8]) {
        if let Some(claims) = &mut self.claims {
            claims.name_root(root, context.shown(CopySide::Source, path));
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

    /// True if sources may still yield entries.
    pub(super) fn has_more(&self) -> bool {
        !self.roots.is_empty() || !self.is_empty()
    }

    /// Takes the next selected entry of the walks, or the next source to begin. Returns `None` if
    /// there is none now.
    pub(super) fn next_entry(&mut self, context: &CopyContext<'_>) -> Option<NameCheckedEntry> {
        let is_local = !context.source_is_remote();
        while let Some((id, found, target)) = self.next_found() {
            if self.selects(id, &found, is_local) {
                return Some(NameCheckedEntry::Walk(id, found, target));
            }
        }
        let busy = self.local.is_some() || self.planned.is_some();
        if busy || self.remote.len() >= WALKS {
            return None;
        }
        let root = self.roots.pop_front();
        if root.is_none() && self.is_empty() {
            context.progress().set_totals_final();
        }
        root.map(NameCheckedEntry::Root)
    }

    fn next_found(&mut self) -> Option<(WalkId, WalkEntry, Vec<u8>)> {
        if let Some((id, entries, target)) = &mut self.planned {
            if let Some(found) = entries.next() {
                return Some((*id, found, target.clone()));
            }
            self.planned = None;
            return None;
        }
        if let Some((id, walk, target)) = &mut self.local {
            if let Some(found) = walk.next() {
                return Some((*id, found, target.clone()));
            }
            self.local = None;
            return None;
        }
        let mut over = None;
        for (id, remote) in &mut self.remote {
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
            self.remote.remove(&id);
        }
        None
    }

    /// Submits the requests of the walks.
    pub(super) fn ask(&mut self, context: &mut CopyContext<'_>) {
        let mut questions = Vec::new();
        let mut holds = self.held_ahead() > HELD_AHEAD;
        // The first visit to a host starts on the stock server and may have found a longhaul since.
        let may = self.walking().any(RemoteWalk::may_list_in_trees);
        let trees = may && source_lists_trees(context);
        let mut listed = self.trees_asked();
        for (id, remote) in &mut self.remote {
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
        if holds != self.holds
            && let Some(side) = context.side(CopySide::Source)
        {
            self.holds = holds;
            side.session().hold_lists(holds);
        }
        for (id, request) in questions {
            context.submit(
                CopySide::Source,
                request.kind,
                JobPurpose::Walk(id, request.tag),
            );
        }
    }
}

/// True if the source lists whole trees, or is expected to.
pub(super) fn source_lists_trees(context: &CopyContext<'_>) -> bool {
    let source = context.side(CopySide::Source);
    source.is_some_and(|side| side.session().lists_trees())
}

#[cfg(test)]
mod tests {
    use schedule::{JobFailureKind, JobKind, TreeWalkStep};

    use super::*;

    /// Answer of a server that lists no trees.
    fn no_trees() -> FileError {
        FileError::new(schedule::NO_TREES, JobFailureKind::Unsupported)
    }

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
            if let JobKind::List { path, .. } = request.kind {
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
                WalkAnswer::Entries(vec![(b"below".to_vec(), of_mode(0o040_755))]),
                WalkAnswer::Entries(vec![(b"file".to_vec(), of_mode(0o100_644))]),
                WalkAnswer::Done,
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
            walks.listed_ahead(id, WalkAnswer::Tree(vec![file("a")]));
            walks.listed_ahead(id, WalkAnswer::Restarted);
            walks.listed_ahead(
                id,
                WalkAnswer::Tree(vec![file("a"), file("b"), TreeWalkStep::Leave]),
            );
            walks.listed_ahead(id, WalkAnswer::Done);
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
        walks.listed_ahead(id, WalkAnswer::Failed(no_trees()));
        walks.begin_walk(id, walk(), b"to".to_vec(), false);
        assert_eq!(asked(&mut walks, id), [b"top".to_vec()]);
    }

    #[test]
    fn what_is_no_directory_was_listed_for_nothing() {
        let mut walks = ActiveWalks::default();
        let id = walks.next_id();
        walks.list_ahead(id, false);
        walks.forget_listing(id);
        walks.listed_ahead(id, WalkAnswer::Failed("no directory".into()));
        assert!(walks.ahead.is_empty());
        walks.begin_walk(id, walk(), b"to".to_vec(), false);
        assert_eq!(asked(&mut walks, id), [b"top".to_vec()]);
    }
}
