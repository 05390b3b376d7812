//! Trees, walked as a stream: memory grows with the depth and the widest directory at hand, not
//! with the tree.

mod local;
mod remote;
mod sample;
mod tree;

use schedule::Attributes;
use schedule::journal::SourceId;

pub use local::LocalWalk;
pub(crate) use local::local_path;
pub use remote::{Answer, RemoteWalk, Request};

/// A directory found by a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirId(pub u64);

/// What a walk found. A directory comes before what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A directory that will be walked into.
    Directory {
        /// Names it in what follows.
        id: DirId,
        /// Where it is.
        at: Entry,
    },
    /// A regular file.
    File(Entry),
    /// A symlink, where symlinks are kept.
    Symlink(Entry),
    /// No more entries of this directory follow.
    Listed(DirId),
    /// Something that will not be copied: a sentence without the path.
    Problem {
        /// What.
        path: Vec<u8>,
        /// Why.
        what: String,
    },
}

/// An entry of a directory, or the root of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The directory it is in; `None` for the root.
    pub parent: Option<DirId>,
    /// Its name there; empty for the root.
    pub name: Vec<u8>,
    /// How it is reached.
    pub path: Vec<u8>,
    /// Of what it is, or points to where symlinks are followed.
    pub attributes: Attributes,
    /// What makes it the same file as before, of one on this machine.
    pub identity: Option<SourceId>,
}

/// What [`Found::Problem`] says of sockets, FIFOs and devices, in scp's words.
pub(crate) const NOT_REGULAR: &str = "not a regular file";

/// Why an entry of a listing is not copied if its name is one of longhaul's own: a server could
/// plant journals of older versions, and temporaries.
pub(crate) fn refused_name(name: &[u8]) -> Option<&'static str> {
    const JOURNAL: &str = "not copied: longhaul keeps names that begin with .longhaul- for its own \
                           files; rename it at the source";
    const TEMPORARY: &str = "not copied: this is the temporary of a longhaul copy that is under \
                             way or was interrupted; remove or rename it at the source";
    if name.starts_with(b".longhaul-") {
        return Some(JOURNAL);
    }
    schedule::is_temp_name(name).then_some(TEMPORARY)
}

/// `dir/name`, without doubling the slash.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
