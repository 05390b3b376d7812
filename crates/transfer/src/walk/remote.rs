mod found_entry;
mod stack;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use schedule::{Attributes, EntryKind, JobKind, RemotePath, TreeWalkStep};

use self::found_entry::{EntryBelow, EntryBelowKind, FoundEntry};
use self::stack::DirectoryStack;
use self::tree::TreeListing;
use super::sample::TreeSample;
use super::{
    EntryInfo, INTO_ITSELF, UNKNOWN_TYPE, WalkDirectoryId, WalkEntry, append, join, refused_name,
};
use crate::file_error::FileError;
use crate::report::EscapedName;

/// Directories listed at the same time until it is known how many entries they return; few enough
/// to hold their entries in memory.
const LISTS: usize = 16;
/// Directories listed at the same time once they have returned few entries. A listing takes up to
/// three round trips: 2,400 directories of six files each, listed 16 at a time, took 53 s over 114
/// ms.
const MOST_LISTS: usize = 256;
/// Symlinks queried at the same time.
const STATS: usize = 256;
/// Entries waiting to be taken from which no further listing starts.
const WAITING: usize = 2048;
/// Entries waiting to be taken from which tree listings pause; they resume at half as many, which
/// is one round trip of entries at the rate at which small files are copied.
const HELD: usize = 4 * WAITING;
/// Bytes of paths waiting to be taken from which the two bounds above are lower: 8,192 entries with
/// paths of 16 KiB would take 256 MiB.
const PATHS: usize = 8 << 20;
/// Names of a listing that are remembered to skip repeats: more than arrive in the one flight after
/// which a lane that predicts handles abandons a longer directory and another lane lists it again.
const NAMES: usize = 4096;
/// Number of symlinks between the root and a directory from which it counts as a loop, as in the
/// kernel (MAXSYMLINKS).
const MAX_SYMLINKS: u32 = 40;
/// Longest path of a directory whose listing is believed, in bytes. OpenSSH's sftp-server silently
/// leaves out entries whose path is longer than Linux's PATH_MAX, and a name has up to 255 bytes.
const LONGEST_LISTED: usize = 4096 - 257;
/// Longest path in bytes. Linux accepts 4,096, so only an endless tree is deeper.
const LONGEST_PATH: usize = 16 << 10;
/// Largest number of directories on the way to a listed one. A path of 4,096 bytes has no more.
const MOST_LEVELS: u32 = 2048;
/// Number of directories beyond one of the two bounds above after which the tree counts as endless.
/// In a tree whose directories contain themselves several times, each level would double them.
const MOST_TOO_DEEP: u32 = 4;
/// Number of deep directories ([`RemoteDirectory::is_deep`]) that may be listed incompletely or have
/// their contents left out, as where the target has too long a path, before the tree counts as
/// endless.
const MOST_LEFT_OUT: u32 = 64;
/// Number of levels, and bytes of a path, from which directories are listed one at a time: an
/// endless tree then reaches its bounds with few directories that wait and few entries copied.
const DEEP_LEVELS: u32 = 64;
const DEEP_PATH: usize = 1024;
/// Bytes of memory for directories that wait to be listed; enough for a million of the usual size.
const MOST_WAITING: usize = 256 << 20;

/// Unit in which a walk requests listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingMode {
    /// Single directories; trees once the server is known to list them.
    Directories,
    Trees,
    /// Single directories, because the server turned out not to list trees.
    NoTrees,
}

/// Walks a remote tree: [`RemoteWalk::poll_request`] returns requests, [`RemoteWalk::handle`] takes
/// answers, and [`RemoteWalk::poll_found`] returns entries.
#[derive(Debug)]
pub struct RemoteWalk {
    follow: bool,
    mode: ListingMode,
    next_tag: u64,
    next_dir: u64,
    to_list: DirectoryStack,
    /// Length of the longest path so far.
    longest: usize,
    /// Number of directories beyond the bounds of a path.
    too_deep: u32,
    /// Number of deep directories whose contents are not copied, or not all of them.
    left_out: u32,
    /// Partly listed directories, with the names reported so far, for which tree listing has become
    /// unavailable.
    to_list_on: Vec<(Arc<RemoteDirectory>, ListedNameHashes)>,
    to_look: VecDeque<(SymlinkQuery, Arc<RemoteDirectory>, Vec<u8>, Attributes)>,
    asked: BTreeMap<u64, PendingListing>,
    lists: usize,
    /// Number of finished listings, and of the entries they returned.
    listed: (usize, usize),
    sample: TreeSample,
    /// Number of trees being listed, and true if another one may start.
    trees_asked: usize,
    trees_may: bool,
    /// Trees are listed without directories on other file systems.
    same_device: bool,
    /// Finished listings whose symlinks are still being queried.
    closing: BTreeMap<WalkDirectoryId, (bool, usize)>,
    found: VecDeque<FoundEntry>,
    /// Directory of the last entry that was returned, and its path.
    last: Option<(WalkDirectoryId, Vec<u8>)>,
    /// Directories of trees whose contents are not wanted.
    skipped: BTreeSet<WalkDirectoryId>,
    holds: bool,
    avoid: Option<Vec<u8>>,
}

#[derive(Debug)]
struct RemoteDirectory {
    id: WalkDirectoryId,
    /// Name in the parent directory; the path of the root. Many directories wait to be listed, so
    /// that each holds its name only.
    name: Vec<u8>,
    /// Length of the path in bytes.
    path_len: usize,
    /// Number of directories between the root and this one.
    levels: u32,
    parent: Option<Arc<Self>>,
    /// Canonical path, if a symlink was on the way.
    real: Option<Vec<u8>>,
    symlinks: u32,
}

impl RemoteDirectory {
    /// Path by which the server knows the directory.
    fn path(&self) -> Vec<u8> {
        let mut names = vec![self.name.as_slice()];
        let mut above = self.parent.as_deref();
        while let Some(dir) = above {
            names.push(&dir.name);
            above = dir.parent.as_deref();
        }
        let mut path = Vec::with_capacity(self.path_len);
        for name in names.into_iter().rev() {
            append(&mut path, name);
        }
        path
    }

    /// True if the directory lies so deep that no other is listed at the same time.
    fn is_deep(&self) -> bool {
        self.levels > DEEP_LEVELS || self.path_len > DEEP_PATH
    }
}

#[derive(Debug)]
enum PendingListing {
    List(Arc<RemoteDirectory>, ListedNameHashes),
    Tree(TreeListing),
    Look(SymlinkQuery, Arc<RemoteDirectory>, Vec<u8>, Attributes),
}

/// Hashes of the names that a listing has returned, because a restarted listing repeats some. A
/// server that lists names with equal hashes only hides entries that it need not have listed.
#[derive(Debug, Default)]
struct ListedNameHashes(HashSet<u64>);

impl ListedNameHashes {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_new(&mut self, name: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let hash = hasher.finish();
        match self.0.len() < NAMES {
            true => self.0.insert(hash),
            false => !self.0.contains(&hash),
        }
    }
}

/// Query about a symlink: first its target's attributes, then, for a directory, its canonical path.
#[derive(Clone, Copy, Debug)]
enum SymlinkQuery {
    Stat,
    Real,
}

/// Request to the server.
#[derive(Debug)]
pub struct WalkRequest {
    /// Tag for [`RemoteWalk::handle`].
    pub tag: u64,
    /// A List, ListTree, Stat or RealPath job.
    pub kind: JobKind,
}

/// Answer to a [`WalkRequest`]. Entries may arrive in several parts before `Done`, and the first
/// ones again if a listing restarted.
#[derive(Debug)]
pub enum WalkAnswer {
    /// Part of a listing.
    Entries(Vec<(Vec<u8>, Attributes)>),
    /// Name in a listing that no file can have.
    LeftOut(Vec<u8>),
    /// Part of a tree.
    Tree(Vec<TreeWalkStep>),
    /// The listing starts over.
    Restarted,
    /// Answer to a Stat; `Done` follows.
    Attributes(Attributes),
    /// Answer to a RealPath; `Done` follows.
    Path(Vec<u8>),
    /// The request is complete.
    Done,
    /// The request failed, for this reason.
    Failed(FileError),
}

impl WalkAnswer {
    pub(crate) fn end(result: Result<(), FileError>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::Failed(error),
        }
    }
}

impl RemoteWalk {
    /// Creates a walk of the directory `root`, whose canonical path is `real`, that follows
    /// symlinks or keeps them. The directory with the canonical path `avoid` is not entered but
    /// reported as a problem.
    pub fn new(
        root: Vec<u8>,
        real: Option<Vec<u8>>,
        attributes: Attributes,
        follow: bool,
        avoid: Option<Vec<u8>>,
    ) -> Self {
        let mut walk = Self {
            follow,
            mode: ListingMode::Directories,
            next_tag: 0,
            next_dir: 0,
            to_list: DirectoryStack::new(MOST_WAITING),
            longest: 0,
            too_deep: 0,
            left_out: 0,
            to_list_on: Vec::new(),
            to_look: VecDeque::new(),
            asked: BTreeMap::new(),
            lists: 0,
            listed: (0, 0),
            sample: TreeSample::default(),
            trees_asked: 0,
            trees_may: true,
            same_device: false,
            closing: BTreeMap::new(),
            found: VecDeque::new(),
            last: None,
            skipped: BTreeSet::new(),
            holds: false,
            avoid,
        };
        if let Some(root) = walk.enter(None, Vec::new(), root, real, 0, attributes) {
            walk.list_later(root);
        }
        walk
    }

    /// Switches to listing whole trees, which the server must support. Has no effect if a directory
    /// must be avoided, since the server would enter it. Listings in progress continue unchanged.
    pub fn list_in_trees(&mut self) {
        if self.may_list_in_trees() {
            self.mode = ListingMode::Trees;
        }
    }

    /// Has the server leave out the contents of directories on other file systems where it lists
    /// whole trees. The caller skips these directories by their identities.
    pub fn stay_on_device(&mut self) {
        self.same_device = true;
    }

    /// True if [`RemoteWalk::list_in_trees`] would change anything.
    pub fn may_list_in_trees(&self) -> bool {
        self.mode == ListingMode::Directories && self.avoid.is_none()
    }

    /// Number of trees being listed.
    pub fn trees_asked(&self) -> usize {
        self.trees_asked
    }

    /// Sets if [`RemoteWalk::poll_request`] may request another tree; a server lists a limited
    /// number at once.
    pub fn allow_tree(&mut self, may: bool) {
        self.trees_may = may;
    }

    /// True if another listing may start.
    fn may_list(&self) -> bool {
        let most = match self.listed {
            (0, _) => LISTS,
            (lists, entries) => (WAITING * lists / (entries + 1)).clamp(LISTS, MOST_LISTS),
        };
        let most = if self.to_list.is_deep() { 1 } else { most };
        self.found.len() < self.bounded(WAITING)
            && match self.mode {
                ListingMode::Trees => self.trees_may,
                _ => self.lists < most,
            }
    }

    /// Lowers a number of waiting entries if their paths are long.
    fn bounded(&self, entries: usize) -> usize {
        // An entry has its name and its path, which are at most of this length.
        entries.min(PATHS / (2 * self.longest).max(1)).max(LISTS)
    }

    /// Estimated number of files and bytes, as far as known.
    pub fn foreseen(&self) -> (u64, u64) {
        self.sample.of_all(self.to_list.len() as u64)
    }

    /// True if so many entries wait to be taken that tree listings should pause.
    pub fn holds(&mut self) -> bool {
        let most = self.bounded(HELD);
        let bound = if self.holds { most / 2 } else { most };
        self.holds = self.found.len() + self.to_look.len() > bound;
        self.holds
    }

    /// True if nothing more will be found.
    pub fn is_over(&self) -> bool {
        self.found.is_empty()
            && self.to_list.is_empty()
            && self.to_list_on.is_empty()
            && self.to_look.is_empty()
            && self.asked.is_empty()
    }

    /// Leaves out the contents of directory `id`, if its listing has not started.
    pub fn skip(&mut self, id: WalkDirectoryId) {
        match self.to_list.remove(id) {
            Some(dir) if dir.is_deep() => self.leave_out(&dir),
            None if self.mode == ListingMode::Trees => {
                self.skipped.insert(id);
            }
            _ => {}
        }
    }

    /// Returns the next entry found.
    pub fn poll_found(&mut self) -> Option<WalkEntry> {
        let found = match self.found.pop_front()? {
            FoundEntry::Whole(found) => return Some(found),
            FoundEntry::Below(found) => found,
        };
        let above = match self.last.take() {
            Some((id, path)) if id == found.dir.id => path,
            _ => found.dir.path(),
        };
        let id = found.dir.id;
        let entry = found.into_entry(&above);
        self.last = Some((id, above));
        Some(entry)
    }

    /// Returns the next request, if one may be sent now.
    pub fn poll_request(&mut self) -> Option<WalkRequest> {
        if self.asked.len() - self.lists < STATS
            && let Some((look, dir, name, attributes)) = self.to_look.pop_front()
        {
            let path = RemotePath(join(&dir.path(), &name));
            let kind = match look {
                SymlinkQuery::Stat => JobKind::Stat { path, follow: true },
                SymlinkQuery::Real => JobKind::RealPath { path },
            };
            return Some(self.ask(kind, PendingListing::Look(look, dir, name, attributes)));
        }
        if self.may_list() {
            if let Some((dir, names)) = self.to_list_on.pop() {
                self.lists += 1;
                let path = RemotePath(dir.path());
                return Some(self.ask(
                    JobKind::List { path, most: None },
                    PendingListing::List(dir, names),
                ));
            }
            let dir = self.to_list.pop()?;
            self.lists += 1;
            let path = RemotePath(dir.path());
            let trees = self.mode == ListingMode::Trees;
            self.trees_asked += usize::from(trees);
            return Some(match trees {
                true => {
                    let count = dir.parent.is_none();
                    self.ask(
                        JobKind::ListTree {
                            path,
                            count,
                            same_device: self.same_device,
                        },
                        PendingListing::Tree(TreeListing::new(dir)),
                    )
                }
                false => self.ask(
                    JobKind::List { path, most: None },
                    PendingListing::List(dir, ListedNameHashes::default()),
                ),
            });
        }
        None
    }

    fn ask(&mut self, kind: JobKind, asked: PendingListing) -> WalkRequest {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asked.insert(tag, asked);
        WalkRequest { tag, kind }
    }

    /// Handles an answer.
    pub fn handle(&mut self, tag: u64, answer: WalkAnswer) {
        let Some(asked) = self.asked.remove(&tag) else {
            return;
        };
        match asked {
            PendingListing::List(dir, names) => self.handle_list(tag, dir, names, answer),
            PendingListing::Tree(tree) => self.handle_tree(tag, tree, answer),
            PendingListing::Look(look, dir, name, attributes) => {
                self.handle_look(tag, look, dir, name, attributes, answer);
            }
        }
    }

    fn handle_list(
        &mut self,
        tag: u64,
        dir: Arc<RemoteDirectory>,
        mut names: ListedNameHashes,
        answer: WalkAnswer,
    ) {
        match answer {
            WalkAnswer::Entries(entries) => {
                self.listed.1 += entries.len();
                if names.is_empty() {
                    self.sample.directory();
                }
                let above = dir.path();
                for (name, attributes) in entries {
                    if names.is_new(&name) {
                        self.sort(&dir, &above, name, attributes);
                    }
                }
                self.asked.insert(tag, PendingListing::List(dir, names));
                return;
            }
            WalkAnswer::LeftOut(name) => {
                if names.is_new(&name) {
                    let path = dir.path();
                    let what = schedule::left_out(&name);
                    self.found_problem(path, what);
                }
                self.asked.insert(tag, PendingListing::List(dir, names));
                return;
            }
            // The first entries are sent again.
            WalkAnswer::Restarted => {
                self.asked.insert(tag, PendingListing::List(dir, names));
                return;
            }
            WalkAnswer::Failed(error) => self.found_problem(dir.path(), error.to_string()),
            _ => {}
        }
        self.listed.0 += 1;
        self.lists -= 1;
        self.closing.entry(dir.id).or_default().0 = true;
        self.close(dir.id);
    }

    /// Adds `dir` to the directories to list. If too many wait, the walk ends with an error.
    fn list_later(&mut self, dir: Arc<RemoteDirectory>) {
        let last = Arc::clone(&dir);
        if let Err(waiting) = self.to_list.push(dir) {
            let what = format!(
                "more than {waiting} directories are waiting to be listed: listing stopped; copy \
                 the subdirectories one by one"
            );
            self.end_early(last.path(), what);
        }
    }

    /// Reports a directory that is not listed because only an endless tree has it. Several of them
    /// end the walk.
    fn too_deep(&mut self, path: Vec<u8>, what: String) {
        self.too_deep += 1;
        if self.too_deep < MOST_TOO_DEEP {
            return self.found_problem(path, what);
        }
        let what = format!("{what}; the tree seems to have no end: listing stopped");
        self.end_early(path, what);
    }

    /// Notes a deep directory that is not copied whole. Too many of them end the walk.
    fn leave_out(&mut self, dir: &RemoteDirectory) {
        self.left_out += 1;
        if self.left_out == MOST_LEFT_OUT {
            let what = format!(
                "{MOST_LEFT_OUT} directories as deep as this one cannot be copied whole; the tree \
                 seems to have no end: listing stopped"
            );
            self.end_early(dir.path(), what);
        }
    }

    /// Ends the walk with an error about `path`. What is being listed is ignored.
    fn end_early(&mut self, path: Vec<u8>, what: String) {
        self.to_list.overrun();
        self.to_list_on.clear();
        self.to_look.clear();
        self.found_problem(path, what);
    }

    /// Handles an entry of the directory `dir`, whose path is `above`.
    fn sort(
        &mut self,
        dir: &Arc<RemoteDirectory>,
        above: &[u8],
        name: Vec<u8>,
        attributes: Attributes,
    ) {
        if self.to_list.is_overrun() {
            return;
        }
        self.longest = self.longest.max(dir.path_len + 1 + name.len());
        if let Some(what) = refused_name(&name) {
            let kind = EntryBelowKind::Problem(what);
            return self.found_below(dir, name, attributes, kind);
        }
        let kind = match attributes.kind() {
            EntryKind::File => {
                self.sample.file(attributes.size.unwrap_or(0));
                EntryBelowKind::File
            }
            EntryKind::Directory => {
                let real = dir.real.as_ref().map(|real| join(real, &name));
                let path = join(above, &name);
                let below = self.enter(Some(dir), name, path, real, dir.symlinks, attributes);
                if let Some(below) = below {
                    self.list_later(below);
                }
                return;
            }
            EntryKind::Symlink if !self.follow => EntryBelowKind::Symlink,
            // Query entries whose type the server did not report, too.
            EntryKind::Symlink => return self.look(SymlinkQuery::Stat, dir, name, attributes),
            EntryKind::Other if attributes.mode.is_none() => {
                return self.look(SymlinkQuery::Stat, dir, name, attributes);
            }
            EntryKind::Other => left_out(&attributes),
        };
        self.found_below(dir, name, attributes, kind);
    }

    fn found_below(
        &mut self,
        dir: &Arc<RemoteDirectory>,
        name: Vec<u8>,
        attributes: Attributes,
        kind: EntryBelowKind,
    ) {
        self.found.push_back(FoundEntry::Below(EntryBelow {
            dir: Arc::clone(dir),
            name,
            attributes,
            kind,
        }));
    }

    fn found_problem(&mut self, path: Vec<u8>, what: impl Into<String>) {
        let what = what.into();
        let problem = WalkEntry::Problem { path, what };
        self.found.push_back(FoundEntry::Whole(problem));
    }

    fn look(
        &mut self,
        look: SymlinkQuery,
        dir: &Arc<RemoteDirectory>,
        name: Vec<u8>,
        attributes: Attributes,
    ) {
        self.closing.entry(dir.id).or_default().1 += 1;
        self.to_look
            .push_back((look, Arc::clone(dir), name, attributes));
    }

    fn handle_look(
        &mut self,
        tag: u64,
        look: SymlinkQuery,
        dir: Arc<RemoteDirectory>,
        name: Vec<u8>,
        old: Attributes,
        answer: WalkAnswer,
    ) {
        let path = join(&dir.path(), &name);
        match (look, answer) {
            (_, WalkAnswer::Entries(_) | WalkAnswer::LeftOut(_) | WalkAnswer::Tree(_)) => {}
            (_, WalkAnswer::Restarted) => {
                self.asked
                    .insert(tag, PendingListing::Look(look, dir, name, old));
                return;
            }
            (SymlinkQuery::Stat, WalkAnswer::Attributes(attributes)) => {
                // `Done` follows with the attributes of the symlink's target.
                self.asked
                    .insert(tag, PendingListing::Look(look, dir, name, attributes));
                return;
            }
            (SymlinkQuery::Stat, WalkAnswer::Done) if old.kind() == EntryKind::Directory => {
                self.look(SymlinkQuery::Real, &dir, name, old);
            }
            (SymlinkQuery::Stat, WalkAnswer::Done) if old.kind() == EntryKind::File => {
                self.found_below(&dir, name, old, EntryBelowKind::File);
            }
            (SymlinkQuery::Real, WalkAnswer::Path(real)) => {
                match self.loop_of(&dir, &real) {
                    Some(what) => self.found_problem(path, what),
                    None => {
                        let symlinks = dir.symlinks + 1;
                        let (name, real) = (name.clone(), Some(real));
                        let below = self.enter(Some(&dir), name, path, real, symlinks, old);
                        if let Some(below) = below {
                            self.list_later(below);
                        }
                    }
                }
                // The `Done` that follows finds no request.
            }
            (SymlinkQuery::Stat, WalkAnswer::Failed(error))
                if old.kind() == EntryKind::Symlink && error.is_missing() =>
            {
                // OpenSSH has this code for a loop, too.
                let what =
                    "symlink to a name that does not exist, or to itself; -a copies the link"
                        .to_owned();
                self.found_problem(path, what);
            }
            (_, WalkAnswer::Failed(error)) => self.found_problem(path, error.to_string()),
            (_, _) => self.found_below(&dir, name, old, left_out(&old)),
        }
        if let Some((_, looks)) = self.closing.get_mut(&dir.id) {
            *looks = looks.saturating_sub(1);
        }
        self.close(dir.id);
    }

    fn loop_of(&self, dir: &Arc<RemoteDirectory>, real: &[u8]) -> Option<String> {
        if dir.symlinks >= MAX_SYMLINKS {
            return Some(format!(
                "more than {MAX_SYMLINKS} symlinks on the way to it; -a copies the links"
            ));
        }
        let mut above = Some(dir);
        while let Some(dir) = above {
            if dir.real.as_deref() == Some(real) {
                let path = EscapedName(dir.path());
                return Some(format!(
                    "symlink loop: the link leads back to {path}; -a copies the link"
                ));
            }
            above = dir.parent.as_ref();
        }
        None
    }

    /// Reports a directory and queues it for listing, unless it must be avoided.
    fn enter(
        &mut self,
        parent: Option<&Arc<RemoteDirectory>>,
        name: Vec<u8>,
        path: Vec<u8>,
        real: Option<Vec<u8>>,
        symlinks: u32,
        attributes: Attributes,
    ) -> Option<Arc<RemoteDirectory>> {
        if real.is_some() && real == self.avoid {
            let what = INTO_ITSELF.to_owned();
            self.found_problem(path, what);
            return None;
        }
        if let Some(what) = refused_name(&name).filter(|_| parent.is_some()) {
            let what = what.to_owned();
            self.found_problem(path, what);
            return None;
        }
        let levels = parent.map_or(0, |parent| parent.levels + 1);
        if path.len() > LONGEST_PATH || levels > MOST_LEVELS {
            let what = match levels > MOST_LEVELS {
                true => format!("more than {MOST_LEVELS} levels deep: not listed"),
                false => format!("the path has more than {LONGEST_PATH} bytes: not listed"),
            };
            let path = parent.map_or(path, |parent| parent.path());
            self.too_deep(path, what);
            return None;
        }
        // What lies deeper is below a directory that was reported.
        let is_listed = parent.is_none_or(|parent| parent.path_len <= LONGEST_LISTED);
        let is_incomplete = path.len() > LONGEST_LISTED && is_listed;
        if is_incomplete {
            let what = "the path is too long: the server may omit entries of this directory";
            let (path, what) = (path.clone(), what.to_owned());
            self.found_problem(path, what);
        }
        let id = WalkDirectoryId(self.next_dir);
        self.next_dir += 1;
        let dir = Arc::new(RemoteDirectory {
            id,
            name: match parent {
                Some(_) => name.clone(),
                None => path.clone(),
            },
            path_len: path.len(),
            levels,
            parent: parent.cloned(),
            real,
            symlinks,
        });
        if is_incomplete {
            self.leave_out(&dir);
        }
        let parent = parent.map(|p| p.id);
        let at = EntryInfo {
            parent,
            name,
            path,
            attributes,
            identity: None,
        };
        let existing = None;
        let directory = WalkEntry::Directory { id, at, existing };
        self.found.push_back(FoundEntry::Whole(directory));
        Some(dir)
    }

    fn close(&mut self, id: WalkDirectoryId) {
        if let Some((true, 0)) = self.closing.get(&id) {
            self.closing.remove(&id);
            self.found
                .push_back(FoundEntry::Whole(WalkEntry::Listed(id)));
        }
    }
}

/// Returns the kind of an entry that is no file, directory or symlink, and is not copied.
fn left_out(attributes: &Attributes) -> EntryBelowKind {
    match attributes.mode.is_some_and(|mode| mode & 0o170_000 != 0) {
        true => EntryBelowKind::Special,
        false => EntryBelowKind::Problem(UNKNOWN_TYPE),
    }
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
