//! Copies files and trees with scp's semantics: what goes where, in which order, and what is said
//! about it. Sessions and disk do the work.

mod answers;
mod changed;
mod durable;
mod engine;
mod equal_names;
mod file;
mod hard_links;
mod links;
mod local;
mod metadata;
mod names;
mod owner;
mod pattern;
mod relayed;
mod resolve;
mod resume;
mod roots;
mod self_copy;
mod source;
mod symlink;
mod target_kind;
mod target_path;
mod transfer_estimate;
mod tree;
mod verify;
mod withheld;
mod xattrs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use self::engine::Engine;
pub use self::transfer_estimate::{Count, TransferEstimate};
use crate::cancel::CancelToken;
use crate::report::{Event, Progress, Summary};
use crate::session::Session;
use crate::sums::Ledger;

/// A host of the run: an index into the caller's own table of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

/// A source or the target of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this machine.
    Local(PathBuf),
    /// On a host; the path as the user wrote it: relative to the login directory, perhaps with
    /// `~`, and in a source perhaps with the `*`, `?` and `[...]` of glob(3).
    Remote {
        /// Where.
        host: HostId,
        /// Bytes, not always UTF-8; empty is the login directory.
        path: Vec<u8>,
    },
}

/// How to copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Directories with all they contain (`-r`).
    pub recursive: bool,
    /// Keep times and permissions (`-p`).
    pub preserve: bool,
    /// Recursive, preserving, all mode bits, symlinks as symlinks, owners where permitted.
    pub archive: bool,
    /// Write under the final name at once.
    pub inplace: bool,
    /// Make each file durable before its rename.
    pub fsync: bool,
    /// Write down what is done, so that the same copy goes on after an interruption.
    pub journal: bool,
    /// Take nothing over of what an earlier run wrote down, and remove what it left.
    pub afresh: bool,
    /// Send only what the far end does not have in an older form of a file.
    pub delta: Delta,
    /// Compare each file with its source when it is there; needs [`Connect::ledger`].
    pub verify: bool,
    /// Write the sums of all files here; needs [`Connect::ledger`].
    pub manifest: Option<PathBuf>,
    /// Owners are the same numbers, whatever they are called (`archive`).
    pub numeric_ids: bool,
    /// Keep extended attributes.
    pub xattrs: bool,
    /// Keep access control lists.
    pub acls: bool,
    /// Files that have several names among what is copied are one file there as well.
    pub hard_links: bool,
    /// Symlinks to directories that stand below the target are gone through.
    pub keep_dirlinks: bool,
    /// Symlinks that lead out of what is copied are not made.
    pub safe_links: bool,
    /// Setuid, setgid and sticky bits that a server tells are kept (`archive`).
    pub preserve_setuid: bool,
    /// Holes stay holes, and blocks of zeros become some.
    pub sparse: bool,
    /// Wait until it is known what serves at the far end: what is to be kept takes a longhaul.
    pub settle: bool,
}

/// Whether what a server of ours has in an older form of a file is copied there instead of sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delta {
    /// Where that takes less time.
    #[default]
    Auto,
    /// Wherever it can be done.
    Always,
    /// Files are sent.
    Never,
}

/// What to copy where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// At least one.
    pub sources: Vec<Place>,
    /// Where to.
    pub target: Place,
    /// How.
    pub options: CopyOptions,
}

/// Opens sessions: over our own engine, or over a program that was given for it.
pub trait Connect {
    /// A session with `host`, verified and authenticated, or one sentence why there is none.
    /// Called at most once for each host and side, on the thread of the run. `coming` is what is
    /// to be sent there, if anything is.
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, String>;

    /// Where the sessions put the sums of what passes.
    fn ledger(&self) -> Option<Arc<Ledger>> {
        None
    }

    /// The user who logs in to the host, if that is known.
    fn login(&self, _host: HostId) -> Option<String> {
        None
    }

    /// The host as the user wrote it, for messages (`user@host`).
    fn name(&self, host: HostId) -> String;

    /// The same with all that tells it from others, such as the port.
    fn identity(&self, host: HostId) -> String {
        self.name(host)
    }
}

/// Runs a copy to its end on this thread. `events` is called on this thread; `progress` may be
/// read from any.
pub fn run(
    request: CopyRequest,
    connect: &dyn Connect,
    progress: &Progress,
    events: &mut dyn FnMut(Event),
    cancel: &CancelToken,
) -> Summary {
    let start = Instant::now();
    let options = request.options.clone();
    let mut engine = Engine::new(&options, connect, progress, events, cancel);
    engine.run(request);
    engine.into_summary(start.elapsed())
}
