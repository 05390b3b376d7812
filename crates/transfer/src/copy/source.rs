use std::collections::BTreeMap;
use std::fs;

use plan::{Attributes, EntryKind, JobKind, RemotePath};

use super::engine::{End, Engine, Purpose};
use super::local::identity;
use super::names::name_in_target;
use super::tree::{DirKey, Held};
use crate::disk::os_words;
use crate::walk::{
    Answer, DirId, Entry, Found, LocalWalk, NOT_REGULAR, RemoteWalk, join, local_path,
};

/// Trees walked at the same time; more would only hold more.
const WALKS: usize = 16;

/// A walk of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WalkId(pub(super) u64);

/// A source to be copied.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) path: Vec<u8>,
    pub(super) onto: Onto,
}

/// Where a source goes.
#[derive(Clone, Debug)]
pub(super) enum Onto {
    /// Into this directory, under its own name.
    Into(Vec<u8>),
    /// To this name.
    Exactly(Vec<u8>),
    /// Into it if it is a directory, else to this name: not known yet.
    Guess(Vec<u8>),
}

impl Onto {
    fn target(&self, source: &[u8]) -> Vec<u8> {
        match self {
            Self::Into(dir) => match name_in_target(source) {
                Some(name) => join(dir, name),
                None => dir.clone(),
            },
            Self::Exactly(path) | Self::Guess(path) => path.clone(),
        }
    }
}

/// The walks under way.
#[derive(Debug, Default)]
pub(super) struct Walks {
    next: u64,
    local: Option<(WalkId, LocalWalk, Vec<u8>)>,
    remote: BTreeMap<WalkId, Remote>,
    /// A directory at the source that must not be walked into.
    pub(super) avoid: Option<Avoid>,
}

/// Where the copy goes, when source and target are on the same host.
#[derive(Clone, Debug)]
pub(super) struct Avoid {
    /// Canonical.
    pub(super) path: Vec<u8>,
    /// Sources go into it, under their names.
    pub(super) into: bool,
}

#[derive(Debug)]
enum Remote {
    /// Being looked at: the root, what it is, where it really is, and questions without answer.
    Looking {
        root: Root,
        attributes: Option<Attributes>,
        real: Option<Vec<u8>>,
        asked: u8,
        fault: Option<String>,
    },
    Walking(Box<RemoteWalk>, Vec<u8>),
}

impl Walks {
    fn next_id(&mut self) -> WalkId {
        self.next += 1;
        WalkId(self.next)
    }

    pub(super) fn clear(&mut self) {
        self.local = None;
        self.remote.clear();
    }

    fn is_empty(&self) -> bool {
        self.local.is_none() && self.remote.is_empty()
    }

    pub(super) fn handle(&mut self, id: WalkId, tag: u64, answer: Answer) {
        if let Some(Remote::Walking(walk, _)) = self.remote.get_mut(&id) {
            walk.handle(tag, answer);
        }
    }

    pub(super) fn root_is(&mut self, id: WalkId, is: Attributes) {
        if let Some(Remote::Looking { attributes, .. }) = self.remote.get_mut(&id) {
            *attributes = Some(is);
        }
    }

    pub(super) fn root_really(&mut self, id: WalkId, path: Vec<u8>) {
        if let Some(Remote::Looking { real, .. }) = self.remote.get_mut(&id) {
            *real = Some(path);
        }
    }
}

impl Engine<'_> {
    /// Whether there is anything left to find.
    pub(super) fn has_more(&self) -> bool {
        !self.roots.is_empty() || !self.walks.is_empty()
    }

    /// Takes one more thing from the sources and begins it; false when there is none now.
    pub(super) fn feed(&mut self) -> bool {
        if let Some((id, found, target)) = self.next_found() {
            self.on_found(id, found, &target);
            return true;
        }
        if self.walks.local.is_some() || self.walks.remote.len() >= WALKS {
            return false;
        }
        match self.roots.pop_front() {
            Some(root) if self.source.is_some() => self.begin_remote(root),
            Some(root) => self.begin_local(root),
            None => {
                if self.walks.is_empty() {
                    self.progress.set_totals_final();
                }
                return false;
            }
        }
        true
    }

    fn next_found(&mut self) -> Option<(WalkId, Found, Vec<u8>)> {
        if let Some((id, walk, target)) = &mut self.walks.local {
            if let Some(found) = walk.next() {
                return Some((*id, found, target.clone()));
            }
            self.walks.local = None;
            return None;
        }
        let mut over = None;
        for (id, remote) in &mut self.walks.remote {
            let Remote::Walking(walk, target) = remote else {
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

    /// Lets walks ask what they want to know.
    pub(super) fn ask_for_walks(&mut self) {
        let mut questions = Vec::new();
        for (id, remote) in &mut self.walks.remote {
            if let Remote::Walking(walk, _) = remote {
                while let Some(request) = walk.poll_request() {
                    questions.push((*id, request));
                }
            }
        }
        for (id, request) in questions {
            self.submit(End::Source, request.kind, Purpose::Walk(id, request.tag));
        }
    }

    fn on_found(&mut self, id: WalkId, found: Found, root: &[u8]) {
        match found {
            Found::Directory { id: dir, at } => {
                let key = DirKey { walk: id, dir };
                let parent = at.parent.map(|parent| Self::key(id, parent));
                let target = self.target_of(id, &at, root);
                let is_root = at.parent.is_none();
                let begun = match target {
                    Some(target) => self.begin_dir(key, parent, target, at.attributes),
                    None => false,
                };
                if !begun {
                    self.skip(id, dir);
                    self.listed(key);
                } else if is_root && self.target.is_none() {
                    // A tree copied into itself would never end.
                    if let Some((_, walk, target)) = &mut self.walks.local
                        && let Ok(meta) = fs::metadata(local_path(target))
                    {
                        walk.avoid(identity(&meta));
                    }
                }
            }
            Found::File(entry) => self.place_item(id, entry, root, false),
            Found::Symlink(entry) => self.place_item(id, entry, root, true),
            Found::Listed(dir) => self.listed(Self::key(id, dir)),
            Found::Problem { path, what } => {
                let path = self.shown(End::Source, &path);
                self.fail(None, path, what);
            }
        }
    }

    fn skip(&mut self, id: WalkId, dir: DirId) {
        if let Some((_, walk, _)) = &mut self.walks.local {
            walk.skip(dir);
        }
        if let Some(Remote::Walking(walk, _)) = self.walks.remote.get_mut(&id) {
            walk.skip(dir);
        }
    }

    fn place_item(&mut self, id: WalkId, entry: Entry, root: &[u8], symlink: bool) {
        let Some(target) = self.target_of(id, &entry, root) else {
            return;
        };
        let dir = entry.parent.map(|parent| Self::key(id, parent));
        self.begin_item(Held {
            entry,
            target,
            dir,
            symlink,
            points_to: None,
        });
    }

    /// Where an entry of a walk goes; `None` if its directory goes nowhere.
    fn target_of(&self, id: WalkId, entry: &Entry, root: &[u8]) -> Option<Vec<u8>> {
        match entry.parent {
            Some(parent) => {
                let dir = self.tree.target(Self::key(id, parent))?;
                Some(join(dir, &entry.name))
            }
            None => Some(root.to_vec()),
        }
    }

    fn begin_local(&mut self, root: Root) {
        let path = local_path(&root.path);
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) => {
                let name = self.shown(End::Source, &root.path);
                return self.fail(None, name, os_words(&e));
            }
        };
        let attributes = crate::disk::attributes(&meta);
        if meta.is_dir() {
            if !self.may_recurse(&root.path) {
                return;
            }
            if self.target.is_none() && self.is_same_directory(&root, &meta) {
                return;
            }
            let target = root.onto.target(&root.path);
            let id = self.walks.next_id();
            let walk = LocalWalk::new(path, !self.options.archive);
            self.walks.local = Some((id, walk, target));
        } else if meta.is_file() {
            self.begin_root_file(root, attributes);
        } else {
            let name = self.shown(End::Source, &root.path);
            self.fail(None, name, NOT_REGULAR.to_owned());
        }
    }

    fn is_same_directory(&mut self, root: &Root, meta: &fs::Metadata) -> bool {
        let target = root.onto.target(&root.path);
        let same = fs::metadata(local_path(&target)).is_ok_and(|t| identity(&t) == identity(meta));
        if same {
            let name = self.shown(End::Source, &root.path);
            let what = "source and target are the same directory";
            self.fail(None, name, what.to_owned());
        }
        same
    }

    fn may_recurse(&mut self, path: &[u8]) -> bool {
        let may = self.options.recursive || self.options.archive;
        if !may {
            let name = self.shown(End::Source, path);
            self.fail(None, name, "a directory is copied with -r only".to_owned());
        }
        may
    }

    fn begin_root_file(&mut self, root: Root, attributes: Attributes) {
        let item = Held {
            target: root.onto.target(&root.path),
            entry: Entry {
                parent: None,
                name: Vec::new(),
                path: root.path,
                attributes,
            },
            dir: None,
            symlink: false,
            points_to: None,
        };
        match root.onto {
            Onto::Guess(target) => self.begin_guessed(item, target),
            _ => self.begin_item(item),
        }
    }

    fn begin_remote(&mut self, root: Root) {
        let looks = self.options.recursive || self.options.archive || self.target.is_some();
        if !looks {
            // No need to look: the download says if it is no file.
            return self.begin_root_file(root, Attributes::default());
        }
        let id = self.walks.next_id();
        let stat = JobKind::Stat {
            path: RemotePath(root.path.clone()),
            follow: true,
        };
        // To know a symlink that leads back, and the target within the source.
        let real = JobKind::RealPath {
            path: RemotePath(root.path.clone()),
        };
        let mut asked = 0;
        for kind in [stat, real] {
            if self.submit(End::Source, kind, Purpose::Root(id)).is_some() {
                asked += 1;
            }
        }
        let looking = Remote::Looking {
            root,
            attributes: None,
            real: None,
            asked,
            fault: None,
        };
        self.walks.remote.insert(id, looking);
    }

    /// One of the two questions about a root is over.
    pub(super) fn on_root(&mut self, id: WalkId, result: Result<(), String>) {
        let Some(Remote::Looking { asked, fault, .. }) = self.walks.remote.get_mut(&id) else {
            return;
        };
        *asked -= 1;
        if let Err(what) = result {
            fault.get_or_insert(what);
        }
        if *asked > 0 {
            return;
        }
        let Some(Remote::Looking {
            root,
            attributes,
            real,
            fault,
            ..
        }) = self.walks.remote.remove(&id)
        else {
            return;
        };
        let name = self.shown(End::Source, &root.path);
        let Some(attributes) = attributes else {
            let what = fault.unwrap_or_else(|| "the server told nothing of it".to_owned());
            return self.fail(None, name, what);
        };
        match attributes.kind() {
            EntryKind::Directory if self.may_recurse(&root.path) => {
                let target = root.onto.target(&root.path);
                let follow = !self.options.archive;
                let avoid = self.walks.avoid.clone().map(|avoid| {
                    match name_in_target(&root.path).filter(|_| avoid.into) {
                        Some(name) => join(&avoid.path, name),
                        None => avoid.path,
                    }
                });
                let walk = RemoteWalk::new(root.path, real, attributes, follow, avoid);
                self.walks
                    .remote
                    .insert(id, Remote::Walking(Box::new(walk), target));
            }
            EntryKind::Directory => {}
            EntryKind::File => self.begin_root_file(root, attributes),
            // Without a type the download itself tells.
            EntryKind::Other if attributes.mode.is_none() => {
                self.begin_root_file(root, attributes);
            }
            _ => self.fail(None, name, NOT_REGULAR.to_owned()),
        }
    }
}
