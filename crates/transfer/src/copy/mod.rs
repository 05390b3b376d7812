//! Copies files and trees with scp's semantics: the targets, the order and the messages. Sessions
//! and disk do the work.

mod alike_names;
mod command_line_target;
mod context;
mod copy_report;
mod durable;
mod engine;
mod entry_listing;
mod environment;
mod equal_names;
mod expand;
mod file;
mod hard_links;
mod home;
mod jobs;
mod leaving;
mod limits;
mod links;
mod local;
mod local_file_ops;
mod metadata;
mod names;
mod operand_copy;
mod owner;
mod owner_access;
mod planned;
mod relayed;
mod resolve;
mod resume;
mod root_overlap;
mod roots;
mod selection;
mod self_copy;
mod server_inquiry;
mod sides;
mod source;
mod source_group;
mod symlink;
mod target_kind;
mod target_name_index;
#[cfg(test)]
mod tests;
mod this_machine;
mod threads;
mod transfer_estimate;
mod tree;
mod verify;
mod wait_conditions;
mod withheld;
mod xattrs;

use std::path::PathBuf;
use std::sync::Arc;

use schedule::TempDir;
use serde::{Deserialize, Serialize};

pub use self::alike_names::{alike_name, alike_sources, are_one_at};
pub(crate) use self::entry_listing::{LISTED, LISTINGS, listing};
pub(crate) use self::environment::RemoteCommandStep;
pub use self::equal_names::{NamedSource, SourceName, equal_names};
pub(crate) use self::file::SharedTemporaryFile;
pub(crate) use self::local_file_ops::ReadAt;
pub(crate) use self::names::basename;
use self::operand_copy::OperandCopy;
pub(crate) use self::owner::ids_by_name;
pub(crate) use self::planned::{
    CALLERS_FIRST_JOB, FileSystemQuery, PlannedCopy, PlannedCopySide, RootAttributesQuery,
    with_environment,
};
pub(crate) use self::root_overlap::RootOverlap;
pub use self::selection::SourceFilter;
use self::threads::ThreadedEnvironment;
pub use self::transfer_estimate::{FileCount, TransferEstimate};
use crate::cancel::CancelToken;
use crate::connect::ConnectError;
use crate::report::{CopyEvent, CopySummary, ProgressCounters};
use crate::session::Session;
use crate::sums::ChecksumLedger;

/// Host of the run: an index into the caller's own table of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

/// Source or target of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyLocation {
    /// Path on this machine.
    Local(PathBuf),
    /// Path on a host as the user wrote it: relative to the login directory, perhaps with `~`, and
    /// in a source perhaps with the `*`, `?` and `[...]` of glob(3).
    Remote {
        /// Index of the host.
        host: HostId,
        /// Path in bytes, not always UTF-8; empty means the login directory.
        path: Vec<u8>,
    },
}

/// Options of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CopyOptions {
    /// Copy directories with all their contents (`-r`).
    pub recursive: bool,
    /// Keep times and permissions (`-p`).
    pub preserve: bool,
    /// Recursive, preserving, all mode bits, symlinks as symlinks, owners if permitted.
    pub archive: bool,
    /// Write under the final name at once.
    pub inplace: bool,
    /// Directory at the receiving end for temporaries; it must be on the target's file system.
    pub temp_dir: Option<TempDir>,
    /// Make each file durable before its rename.
    pub fsync: bool,
    /// Keep a journal, so that the same command resumes after an interruption.
    pub journal: bool,
    /// Folder of the journal, instead of the user's state folder.
    #[serde(skip)]
    pub journal_folder: Option<JournalFolder>,
    /// Ignore the journal of an earlier run and remove its leftovers.
    pub afresh: bool,
    /// Send only the parts that differ from an older file at the receiver.
    pub delta: DeltaUse,
    /// Compare each file with its source after the copy; needs [`SessionConnector::ledger`].
    pub verify: bool,
    /// Write the checksums of all files to this path; needs [`SessionConnector::ledger`].
    pub manifest: Option<PathBuf>,
    /// Keep numeric owner IDs instead of mapping names (`archive`).
    pub numeric_ids: bool,
    /// Keep extended attributes.
    pub xattrs: bool,
    /// Keep access control lists.
    pub acls: bool,
    /// Keep hard links between the copied files.
    pub hard_links: bool,
    /// Follow symlinks to directories below the target.
    pub keep_dirlinks: bool,
    /// Leave out symlinks that lead out of the copied tree.
    pub safe_links: bool,
    /// Keep setuid, setgid and sticky bits that a server reports (`archive`).
    pub preserve_setuid: bool,
    /// Keep holes, and turn blocks of zeros into holes.
    pub sparse: bool,
    /// Copy only what this filter selects.
    #[serde(skip)]
    pub filter: Option<SourceFilter>,
    /// Wait until the server at the far end is known, because the metadata to keep needs a
    /// longhaul.
    pub settle: bool,
    /// Sources on hosts follow sources on this machine, and may have been meant as targets.
    #[serde(skip)]
    pub may_fan_out: bool,
    /// Requirement that the local target is a directory.
    #[serde(skip)]
    pub target_directory: TargetDirectory,
    /// Number of this part of a command that copies its sources in several parts, each with a
    /// journal of its own; 0 for all of it.
    #[serde(skip)]
    pub part: u8,
}

/// Folder in which several machines keep the journals of their copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFolder {
    /// Path of the folder, which only this user may write.
    pub path: PathBuf,
    /// Identifies the copy among those with equal operands.
    pub key: Vec<u8>,
}

/// Requirement that a local target is a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetDirectory {
    /// The target must be a directory only if there are several sources.
    #[default]
    AsInScp,
    /// Other copies have the same target, or the same directory above it: it must be a directory,
    /// and is created in its parent if nothing exists there. A symlink in the place of what did not
    /// exist when the command began is not the user's.
    Shared {
        /// Nothing existed there.
        is_new: bool,
        /// The parent did not exist either, and is created.
        parent_is_new: bool,
    },
}

/// Use of a basis file at a remote longhaul instead of sending the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaUse {
    /// Use delta if that takes less time.
    #[default]
    Auto,
    /// Use delta wherever possible.
    Always,
    /// Always send whole files.
    Never,
}

/// Sources, target and options of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// Sources; at least one.
    pub sources: Vec<CopyLocation>,
    /// Target of the copy.
    pub target: CopyLocation,
    /// Options of the copy.
    pub options: CopyOptions,
}

/// Opens sessions, over longhaul's own SSH client or over a program that the user named.
pub trait SessionConnector {
    /// Opens a session with `host`, verified and authenticated. Called at most once for each host
    /// and side, on the thread of the run. `coming` estimates the data to send there, if any.
    ///
    /// # Errors
    ///
    /// Says why there is no session, and who can help.
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError>;

    /// Ledger in which the sessions collect checksums of the data that passes.
    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        None
    }

    /// Called once all sources of a copy are known, before anything is copied; may wait for other
    /// copies. `differ` is false if two of the sources have the same name. Returns false if nothing
    /// may be copied.
    fn admit(&self, _sources: &[NamedSource], differ: bool, _cancel: &CancelToken) -> bool {
        differ
    }

    /// Tells the user something about the host: one sentence without its name.
    fn warn(&self, _host: HostId, _line: String) {}

    /// Account that logs in to the host, if known.
    fn login(&self, _host: HostId) -> Option<String> {
        None
    }

    /// Host name as the user wrote it, for messages (`user@host`).
    fn name(&self, host: HostId) -> String;

    /// Host name with all that distinguishes it from others, such as the port.
    fn identity(&self, host: HostId) -> String {
        self.name(host)
    }

    /// True if both hosts are certainly one machine, and the same account logs in there.
    fn are_one(&self, one: HostId, other: HostId) -> bool {
        one == other
    }
}

/// Runs a copy to its end on this thread and returns its summary. `events` is called on this
/// thread; `progress` may be read from any.
pub fn run(
    request: CopyRequest,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> CopySummary {
    let options = request.options.clone();
    let environment = ThreadedEnvironment::new(connect, cancel);
    let copy = OperandCopy::new(request, &options, &environment, progress, events);
    environment.drive(copy.into_summary())
}

/// Removes what an interrupted run of a copy to this machine has left: its temporaries and its
/// journal.
pub fn discard(request: CopyRequest, connect: &dyn SessionConnector, cancel: &CancelToken) {
    let options = request.options.clone();
    let progress = ProgressCounters::default();
    let mut events = |_: CopyEvent| {};
    let environment = ThreadedEnvironment::new(connect, cancel);
    let copy = OperandCopy::new(request, &options, &environment, &progress, &mut events);
    environment.drive(copy.discard());
}
