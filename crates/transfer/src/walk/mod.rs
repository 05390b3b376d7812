//! Walks trees as a stream: memory grows with the depth and the widest directory being read, not
//! with the size of the tree.

mod local;
mod remote;
mod rules;
mod sample;

use schedule::Attributes;
use schedule::journal::SourceFileStamp;
use sftp::ListedEntry;

pub use local::LocalWalk;
pub(crate) use local::{dangling, local_path};
pub use remote::{RemoteWalk, WalkAnswer, WalkRequest};
pub(crate) use rules::{compared_entry, nested_rules};

/// Identifies a directory found by a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalkDirectoryId(pub u64);

/// Entry found by a walk. A directory comes before its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkEntry {
    /// Directory that will be entered.
    Directory {
        /// Identifies the directory in later items.
        id: WalkDirectoryId,
        /// Entry of the directory.
        at: EntryInfo,
        /// The directory in a listing of the target, if that has it as well: it need not be made then.
        /// Only the entries of a plan know that.
        existing: Option<Box<ListedEntry>>,
    },
    /// Regular file.
    File(EntryInfo),
    /// Symlink, if symlinks are kept.
    Symlink(EntryInfo),
    /// The directory has no more entries.
    Listed(WalkDirectoryId),
    /// Socket, FIFO or device with this path, which no copy can carry.
    Special(Vec<u8>),
    /// Entry that will not be copied.
    Problem {
        /// Path of the entry.
        path: Vec<u8>,
        /// Reason, in one sentence without the path.
        what: String,
    },
}

/// Entry of a directory, or the root of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// Parent directory; `None` for the root.
    pub parent: Option<WalkDirectoryId>,
    /// Name in the parent directory; empty for the root.
    pub name: Vec<u8>,
    /// Path by which it is reached.
    pub path: Vec<u8>,
    /// Attributes of the entry, or of a symlink's target if symlinks are followed.
    pub attributes: Attributes,
    /// Identity of a local file, to detect changes.
    pub identity: Option<SourceFileStamp>,
}

/// Reason not to copy a source that is a socket, FIFO or device, in scp's words.
pub(crate) const NOT_REGULAR: &str = "not a regular file";
/// Reason in [`WalkEntry::Problem`] for an entry with a mode that has no type.
const UNKNOWN_TYPE: &str = "not copied: the server does not say if it is a file or a directory";
/// Warning for a socket, FIFO or device below a source. No copy can carry it, so it is no failure; a source
/// that is such an entry itself has failed.
pub(crate) const LEFT_OUT: &str = "not copied: it is a socket, a FIFO or a device";

/// Reason not to copy a directory that contains its target.
pub(crate) const INTO_ITSELF: &str =
    "the target is inside this directory: a directory cannot be copied into itself";

/// Reason not to copy an entry with a name of our own files that are no temporaries.
pub(crate) const RESERVED: &str = "not copied: names that begin with .longhaul- are reserved for longhaul's own files; \
     rename it at the source";

/// Returns the reason not to copy an entry whose name is reserved for longhaul. A server could
/// otherwise plant temporaries, and journals in the format of older versions.
pub(crate) fn refused_name(name: &[u8]) -> Option<&'static str> {
    const TEMPORARY: &str = "not copied: it is the temporary of a running or interrupted longhaul copy; remove or \
         rename it at the source";
    if name.starts_with(b".longhaul-") {
        return Some(RESERVED);
    }
    schedule::is_temp_name(name).then_some(TEMPORARY)
}

/// Joins `dir` and `name` with exactly one slash.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    append(&mut path, name);
    path
}

/// Joins a root and a path below it, which is empty for the root itself.
pub(crate) fn join_below(root: &[u8], path: &[u8]) -> Vec<u8> {
    match path.is_empty() {
        true => root.to_vec(),
        false => join(root, path),
    }
}

/// Appends a name to a path with exactly one slash.
fn append(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
