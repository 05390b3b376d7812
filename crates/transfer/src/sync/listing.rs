//! Lists one end of a sync into a tree.

mod findings;
mod tree_builder;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use schedule::{Attributes, EntryKind, Job, JobId, LaneEvent};
use sftp::InodeId;
use sync::{Filter, SortedTree, TreeEntryId, has_alike};

pub(crate) use self::findings::DirectoryInodes;
use self::findings::ListingFindings;
use self::tree_builder::ListingTreeBuilder;
use super::UnicodeForm;
use crate::copy::{CALLERS_FIRST_JOB, PlannedCopy, PlannedCopySide, RootAttributesQuery};
use crate::file_error::FileError;
use crate::report::CopyEvent;
use crate::session::SessionEvent;
use crate::walk::{LocalWalk, RemoteWalk, WalkAnswer, join, local_path};

/// Trees that a longhaul server lists for one client at the same time.
const TREES: usize = 16;
/// Entries of this machine taken before the sessions are heard, and events of a session taken before
/// anything else is done.
const AT_ONCE: usize = 256;
/// Number of the first job of a listing.
const FIRST_JOB: u64 = CALLERS_FIRST_JOB.0;

/// Listed entries of one end, with its root's attributes and the problems of the listing.
pub(crate) struct ListedTree {
    /// `None` for a root that does not exist, and an error for one of which nothing is known.
    root: Result<Option<Attributes>, FileError>,
    tree: SortedTree,
    findings: ListingFindings,
}

impl ListedTree {
    /// Returns the attributes of the root; `None` if it does not exist, and then there are no
    /// entries.
    pub(crate) fn root(&self) -> Option<&Attributes> {
        self.root.as_ref().ok()?.as_ref()
    }

    /// Returns the reason why nothing is known of the root, and then there are no entries.
    pub(crate) fn root_error(&self) -> Option<&FileError> {
        self.root.as_ref().err()
    }

    /// Returns the entries.
    pub(crate) fn tree(&self) -> &SortedTree {
        &self.tree
    }

    /// Returns the filter with the rules of `.gitignore` files.
    pub(crate) fn filter(&self) -> &Filter {
        &self.findings.filter
    }

    /// Returns the number of entries that the filter left out, without the contents of
    /// directories.
    pub(crate) fn excluded(&self) -> u64 {
        self.findings.excluded
    }

    /// Returns the entries, and the paths of the source that are not copied, whose counterparts
    /// stay.
    pub(crate) fn into_tree(self) -> (SortedTree, BTreeSet<Vec<u8>>) {
        (self.tree, self.findings.into_kept())
    }

    /// Takes the paths relative to the root of what may be directories in which an interrupted run
    /// asked about names.
    pub(crate) fn take_probes(&mut self) -> Vec<Vec<u8>> {
        self.findings.take_probes()
    }

    /// Takes the device and inode of directories, as far as the end tells them.
    pub(crate) fn take_directories(&mut self) -> DirectoryInodes {
        self.findings.take_directories()
    }

    /// Takes the identities of files with several hard links.
    pub(crate) fn take_links(&mut self) -> BTreeMap<TreeEntryId, InodeId> {
        self.findings.take_links()
    }

    /// Forgets problems of entries that `source` does not have, which a sync without deletions leaves
    /// alone.
    pub(crate) fn keep_problems_of(&mut self, source: &SortedTree) {
        self.findings.keep_problems(|path| has_alike(source, path));
    }

    /// Reports what could not be listed at `end`, and warns of entries that are never copied.
    /// Returns the number of problems that hide entries.
    pub(crate) fn report_problems(&self, run: &mut PlannedCopy<'_>, end: PlannedCopySide) -> u64 {
        let mut hidden = 0;
        for (path, problem) in self.findings.problems() {
            let name = run.shown(end, &join(run.root(end), path));
            match problem.hides_entries() {
                true => {
                    hidden += 1;
                    run.fail(name, problem.to_string());
                }
                false => run.tell(CopyEvent::Warning {
                    path: Some(name),
                    message: problem.to_string(),
                }),
            }
        }
        hidden
    }
}

/// Tree of a sync to be listed: its end, root path and listing options.
pub(crate) struct RootToList {
    end: PlannedCopySide,
    path: Vec<u8>,
    attributes: RootAttributes,
    one_file_system: bool,
    gitignore: bool,
    links: bool,
    names: UnicodeForm,
    counterparts_only: bool,
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
            links: false,
            names: UnicodeForm::Own,
            counterparts_only: false,
        }
    }

    /// Enters no directory without a counterpart in the tree that is listed with it as the first one,
    /// as soon as that one is complete.
    pub(crate) fn with_counterparts_only(self) -> Self {
        Self {
            counterparts_only: true,
            ..self
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

    /// Notes which files have several hard links, as far as the end tells.
    pub(crate) fn with_links(self) -> Self {
        Self {
            links: true,
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
    /// The end refused to tell them.
    Unknown(FileError),
    /// The server is asked for them while it lists.
    Queried(RootAttributesQuery),
}

impl RootAttributes {
    /// Device of a remote root, if its server tells it and has answered.
    fn device(&self) -> Option<u64> {
        match self {
            Self::Known(Some(root)) => root.link.map(|identity| identity.device),
            Self::Known(None) | Self::Unknown(_) | Self::Queried(_) => None,
        }
    }
}

impl From<Result<Option<Attributes>, FileError>> for RootAttributes {
    fn from(found: Result<Option<Attributes>, FileError>) -> Self {
        match found {
            Ok(attributes) => Self::Known(attributes),
            Err(error) => Self::Unknown(error),
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
    let mut first: Option<ListedTree> = None;
    loop {
        if run.stopped() {
            return None;
        }
        let mut moved = false;
        let is_complete = |lister: &ActiveListing| lister.is_over() && !lister.is_no_directory();
        if first.is_none() && listers.len() > 1 && listers.first().is_some_and(is_complete) {
            first = Some(listers.remove(0).finish());
        }
        for lister in &mut listers {
            moved |= lister.step(run, first.as_ref().map(ListedTree::tree));
            // A server may answer for ever, and the run may be interrupted meanwhile.
            for _ in 0..AT_ONCE {
                match run.next_event(lister.builder.end()) {
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
            let listed = listers.into_iter().map(ActiveListing::finish);
            return Some(first.into_iter().chain(listed).collect());
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
    counterparts_only: bool,
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
            (RootAttributes::Known(None) | RootAttributes::Unknown(_), _) => {
                TreeWalkState::Finished
            }
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
        let builder = ListingTreeBuilder::new(root.end, root.path, filter, root.names);
        Self {
            gitignore: root.gitignore,
            counterparts_only: root.counterparts_only,
            builder: match root.links {
                true => builder.with_links(),
                false => builder,
            },
            root: root.attributes,
            walk,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.walk, TreeWalkState::Finished)
            && !matches!(self.root, RootAttributes::Queried(_))
    }

    /// Takes the answer about the root's attributes. Returns true if it has arrived just now.
    fn learn_root(&mut self, run: &mut PlannedCopy<'_>) -> bool {
        let RootAttributes::Queried(query) = self.root else {
            return false;
        };
        let answer = run.root_answer(query);
        let has_arrived = answer.is_some();
        if let Some(answer) = answer {
            self.root = answer.into();
        }
        has_arrived
    }

    /// True if the root is unusable: a file, a source that does not exist, or one of which nothing
    /// is known.
    fn is_no_directory(&self) -> bool {
        match &self.root {
            RootAttributes::Queried(_) => false,
            RootAttributes::Unknown(_) => true,
            RootAttributes::Known(None) => self.builder.end() == PlannedCopySide::Source,
            RootAttributes::Known(Some(root)) => root.kind() != EntryKind::Directory,
        }
    }

    fn finish(self) -> ListedTree {
        match self.root {
            RootAttributes::Known(Some(root)) => self.builder.finish(root),
            RootAttributes::Unknown(error) => self.builder.finish_empty(Err(error)),
            RootAttributes::Known(None) | RootAttributes::Queried(_) => {
                self.builder.finish_empty(Ok(None))
            }
        }
    }

    /// Takes some entries and sends requests; `first` is the tree that is listed with this one, if it is
    /// complete. Returns true if there may be more at once.
    fn step(&mut self, run: &PlannedCopy<'_>, first: Option<&SortedTree>) -> bool {
        let counterparts = first.filter(|_| self.counterparts_only);
        let builder = &mut self.builder;
        match &mut self.walk {
            TreeWalkState::Finished => false,
            TreeWalkState::Local { walk, device } => {
                for _ in 0..AT_ONCE {
                    let Some(found) = walk.next() else {
                        self.walk = TreeWalkState::Finished;
                        return true;
                    };
                    if let Some(skipped) =
                        builder.take_local(found, *device, self.gitignore, counterparts)
                    {
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
                    if let Some(skipped) = builder.take_remote(found, *device, counterparts) {
                        walk.skip(skipped);
                    }
                }
                if walk.is_over() {
                    self.walk = TreeWalkState::Finished;
                    return true;
                }
                if run.lists_trees(builder.end()) {
                    walk.list_in_trees();
                }
                walk.allow_tree(walk.trees_asked() < TREES);
                while let Some(request) = walk.poll_request() {
                    let id = JobId(*next);
                    *next += 1;
                    asked.insert(id, request.tag);
                    let kind = request.kind;
                    run.submit(builder.end(), Job { id, kind });
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
                (id, WalkAnswer::Failed(fault.into()))
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
