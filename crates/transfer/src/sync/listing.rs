//! Lists one end of a sync into a tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use schedule::{Attributes, Job, JobId, LaneEvent};
use sftp::Link;
use sync::{Filter, Kind, NodeId, Selection, SortedTree, Tree};

use super::attributes::entry;
use crate::cancel::CancelToken;
use crate::copy::End;
use crate::session::{Session, SessionEvent};
use crate::walk::{
    DirId, ListAnswer, LocalWalk, NOT_REGULAR, RemoteWalk, WalkEntry, join, local_path,
    refused_name,
};

/// Trees that a longhaul server lists for one client at the same time.
const TREES: usize = 16;
/// Longest wait for an event before the run looks if it was cancelled.
const LOOKS: Duration = Duration::from_millis(100);
/// Longest `.gitignore` that is read, in bytes.
const MOST_RULES: u64 = 1 << 20;
/// Number of the first job of a listing, above those of the copy.
const FIRST_JOB: u64 = 1 << 40;

/// Entries of one end.
pub(super) struct Listing {
    pub(super) tree: SortedTree,
    /// Paths relative to the root, and why they could not be read.
    pub(super) problems: Vec<(Vec<u8>, String)>,
    /// Paths of the source that are not copied, whose counterparts stay.
    pub(super) kept: BTreeSet<Vec<u8>>,
    /// Identities of files with several hard links.
    pub(super) links: BTreeMap<NodeId, Link>,
    pub(super) filter: Filter,
}

/// A listing that could not be completed, with the reason in one sentence.
pub(super) enum ListError {
    Lost(String),
    Cancelled,
}

/// Directory to list, at one end.
pub(super) struct Root<'a> {
    pub(super) end: End,
    pub(super) path: Vec<u8>,
    /// `None` if there is no such directory yet.
    pub(super) attributes: Option<Attributes>,
    pub(super) session: Option<&'a Session>,
    /// Leave out directories on other file systems, for an end on this machine.
    pub(super) one_file_system: bool,
}

/// Lists the directory `root` and everything below it that `filter` selects. With `gitignore`, the
/// `.gitignore` files of an end on this machine are added to the filter.
pub(super) fn list(
    root: Root<'_>,
    filter: Filter,
    gitignore: bool,
    cancel: &CancelToken,
) -> Result<Listing, ListError> {
    let mut builder = Builder::new(&root, filter);
    let Some(attributes) = root.attributes else {
        return Ok(builder.finish());
    };
    match root.session {
        None => list_local(&root, gitignore, &mut builder, cancel)?,
        Some(session) => list_remote(&root, attributes, session, &mut builder, cancel)?,
    }
    Ok(builder.finish())
}

fn list_local(
    root: &Root<'_>,
    gitignore: bool,
    builder: &mut Builder,
    cancel: &CancelToken,
) -> Result<(), ListError> {
    let top = match root.path.is_empty() {
        true => PathBuf::from("."),
        false => local_path(&root.path),
    };
    let device = fs::metadata(&top).map(|meta| meta.dev()).ok();
    let mut walk = LocalWalk::new(top, false);
    while let Some(found) = walk.next() {
        if cancel.is_cancelled() {
            return Err(ListError::Cancelled);
        }
        if root.one_file_system
            && let WalkEntry::Directory { id, at } = &found
            && at.parent.is_some()
            && fs::symlink_metadata(local_path(&at.path))
                .map(|meta| meta.dev())
                .ok()
                != device
        {
            builder.leave_out(&at.path);
            LocalWalk::skip(&mut walk, *id);
            continue;
        }
        let dir = match &found {
            WalkEntry::Directory { at, .. } if gitignore => Some(at.path.clone()),
            _ => None,
        };
        match (builder.take(found), dir) {
            (Some(skipped), _) => LocalWalk::skip(&mut walk, skipped),
            (None, Some(dir)) => builder.read_gitignore(&dir),
            (None, None) => {}
        }
    }
    Ok(())
}

fn list_remote(
    root: &Root<'_>,
    attributes: Attributes,
    session: &Session,
    builder: &mut Builder,
    cancel: &CancelToken,
) -> Result<(), ListError> {
    let mut walk = RemoteWalk::new(root.path.clone(), None, attributes, false, None);
    let mut asked: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut next = FIRST_JOB;
    loop {
        if cancel.is_cancelled() {
            return Err(ListError::Cancelled);
        }
        while let Some(found) = walk.poll_found() {
            if let Some(skipped) = builder.take(found) {
                walk.skip(skipped);
            }
        }
        if walk.is_over() {
            return Ok(());
        }
        if session.lists_trees() {
            walk.list_in_trees();
        }
        walk.allow_tree(walk.trees_asked() < TREES);
        while let Some(request) = walk.poll_request() {
            let id = JobId(next);
            next += 1;
            asked.insert(id, request.tag);
            let kind = request.kind;
            session.submit(Job { id, kind }, None);
            walk.allow_tree(walk.trees_asked() < TREES);
        }
        match session.events().recv_timeout(LOOKS) {
            Ok(event) => handle(event, &mut walk, &mut asked)?,
            Err(error) if error.is_timeout() => continue,
            Err(_) => return Err(ListError::Lost("the session ended unexpectedly".to_owned())),
        }
        while let Ok(event) = session.events().try_recv() {
            handle(event, &mut walk, &mut asked)?;
        }
    }
}

fn handle(
    event: SessionEvent,
    walk: &mut RemoteWalk,
    asked: &mut BTreeMap<JobId, u64>,
) -> Result<(), ListError> {
    let mut tell = |id: JobId, answer| {
        if let Some(tag) = asked.get(&id) {
            walk.handle(*tag, answer);
        }
    };
    match event {
        SessionEvent::Lane(LaneEvent::Entries(id, entries)) => {
            tell(id, ListAnswer::Entries(entries));
        }
        SessionEvent::Lane(LaneEvent::Tree(id, steps)) => tell(id, ListAnswer::Tree(steps)),
        SessionEvent::Lane(LaneEvent::LeftOut(id, name)) => tell(id, ListAnswer::LeftOut(name)),
        SessionEvent::Restarted(id) => tell(id, ListAnswer::Restarted),
        SessionEvent::Lane(LaneEvent::Done(id)) => {
            tell(id, ListAnswer::Done);
            asked.remove(&id);
        }
        SessionEvent::Lane(LaneEvent::Failed(id, fault)) => {
            tell(id, ListAnswer::Failed(fault.what));
            asked.remove(&id);
        }
        SessionEvent::Lost(why) => return Err(ListError::Lost(why)),
        _ => {}
    }
    Ok(())
}

/// Builds a tree from the entries of a walk.
struct Builder {
    end: End,
    root: Vec<u8>,
    tree: Tree,
    dirs: BTreeMap<DirId, (NodeId, Vec<u8>)>,
    filter: Filter,
    problems: Vec<(Vec<u8>, String)>,
    kept: BTreeSet<Vec<u8>>,
    links: BTreeMap<NodeId, Link>,
    full: bool,
}

impl Builder {
    fn new(root: &Root<'_>, filter: Filter) -> Self {
        Self {
            end: root.end,
            root: root.path.clone(),
            tree: Tree::new(),
            dirs: BTreeMap::new(),
            filter,
            problems: Vec::new(),
            kept: BTreeSet::new(),
            links: BTreeMap::new(),
            full: false,
        }
    }

    /// Adds an entry. Returns the directory whose contents are left out.
    fn take(&mut self, found: WalkEntry) -> Option<DirId> {
        match found {
            WalkEntry::Directory { id, at } => {
                let Some(parent) = at.parent else {
                    self.tree.set_root(entry(&at.attributes));
                    self.dirs.insert(id, (Tree::ROOT, Vec::new()));
                    return None;
                };
                match self.add(parent, &at.name, &at.attributes) {
                    Some((node, path)) => {
                        self.dirs.insert(id, (node, path));
                        None
                    }
                    None => Some(id),
                }
            }
            WalkEntry::File(at) | WalkEntry::Symlink(at) => {
                if let Some(parent) = at.parent {
                    self.add(parent, &at.name, &at.attributes);
                }
                None
            }
            WalkEntry::Listed(dir) => {
                self.dirs.remove(&dir);
                None
            }
            WalkEntry::Problem { path, what } => {
                self.problem(&path, what);
                None
            }
        }
    }

    fn add(
        &mut self,
        parent: DirId,
        name: &[u8],
        attributes: &Attributes,
    ) -> Option<(NodeId, Vec<u8>)> {
        let (dir, above) = self.dirs.get(&parent)?;
        let dir = *dir;
        let path = match above.is_empty() {
            true => name.to_vec(),
            false => [above.as_slice(), b"/", name].concat(),
        };
        let found = entry(attributes);
        let selection = match self.end {
            End::Source => self.filter.decide(&path, &found),
            End::Target => self.filter.decide_name(&path, found.kind),
        };
        match selection {
            Selection::Selected => {}
            Selection::Excluded => {
                self.tree.protect(dir);
                return None;
            }
            // The counterpart at the target stays as it is.
            Selection::OutOfLimits => {
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
        if let Some(link) = attributes.link {
            self.links.insert(node, link);
        }
        Some((node, path))
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
        below.get(slashes..).unwrap_or_default().to_vec()
    }

    /// Leaves out an entry at both ends.
    fn leave_out(&mut self, path: &[u8]) {
        let below = self.below(path);
        self.kept.insert(below);
    }

    /// Adds the rules of a directory's `.gitignore`, if it has one. A line that is no pattern is
    /// ignored, as git does.
    fn read_gitignore(&mut self, dir: &[u8]) {
        let file = local_path(&join(dir, b".gitignore"));
        let is_file = fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_file());
        let text = File::open(&file).ok().filter(|_| is_file).and_then(|file| {
            let mut text = Vec::new();
            file.take(MOST_RULES).read_to_end(&mut text).ok()?;
            Some(text)
        });
        if let Some(text) = text {
            let below = self.below(dir);
            let _ = self.filter.add_nested(&below, &text, &file);
        }
    }

    fn problem(&mut self, path: &[u8], what: String) {
        let below = self.below(path);
        let name = below
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        let is_ours = refused_name(name).is_some();
        let known = what == NOT_REGULAR || is_ours;
        // What takes no part at one end keeps its counterpart, and at the target its directory.
        if self.filter.decide_name(&below, Kind::Other) == Selection::Excluded {
            self.kept.insert(below);
            return;
        }
        if known {
            self.kept.insert(below.clone());
        }
        if !known || (self.end == End::Source && !is_ours) {
            self.problems.push((below, what));
        }
    }

    fn finish(self) -> Listing {
        let mut tree = self.tree.sorted();
        if self.end == End::Target {
            for path in &self.kept {
                tree.protect_above(path);
            }
        }
        Listing {
            tree,
            problems: self.problems,
            kept: self.kept,
            links: self.links,
            filter: self.filter,
        }
    }
}

/// Returns true if a problem means that entries may be missing from the listing.
pub(super) fn hides_entries(what: &str) -> bool {
    what != NOT_REGULAR
}
