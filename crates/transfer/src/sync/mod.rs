//! Makes a target equal to a source: lists both ends, decides what differs (crate `sync`), and
//! copies only that. Deletions come last, and only if both listings were complete.

mod alike;
pub(crate) mod attributes;
mod backup;
pub(crate) mod contents;
pub(crate) mod ends;
mod entries;
mod expected_file;
mod hard_links;
mod link_dest;
mod link_survey;
pub(crate) mod listing;
mod owners;
mod programs;
mod read_only_dirs;
mod remembered;
mod roots;
mod run;
mod savings;
mod settle;
mod source_inside;
mod target_path;
mod unlisted_directories;
mod xattrs;

use std::path::PathBuf;

use sync::{ComparisonRules, DeletionLimits, Filter};

use crate::copy::{CopyLocation, CopyOptions};
use crate::report::CopySummary;

pub use run::run;

/// Source, target and options of a sync.
#[derive(Clone, Debug)]
pub struct SyncRequest {
    /// Directory to read.
    pub source: CopyLocation,
    /// Directory to make equal to the source; created if it does not exist.
    pub target: CopyLocation,
    /// Options for copying the entries that differ.
    pub copy: CopyOptions,
    /// Options of the comparison and of deletions.
    pub options: SyncOptions,
}

/// Options of a sync.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// Entries that take part.
    pub entries: SyncEntrySelection,
    /// Rules of the comparison. The grain is learnt.
    pub comparison: ComparisonRules,
    /// Delete entries that exist at the target only, within these limits.
    pub deletions: Option<DeletionLimits>,
    /// Directory at the target to which replaced and deleted entries are moved.
    pub backup: Option<PathBuf>,
    /// Directory at the target with an earlier copy, whose equal files are linked and not copied
    /// (`--link-dest`).
    pub link_dest: Option<PathBuf>,
    /// Form of the names of the source (`--unicode`).
    pub names: UnicodeForm,
    /// Tell the entries in which nothing differs.
    pub list_unchanged: bool,
    /// Show what would be done, and change nothing.
    pub dry_run: bool,
}

/// Entries that take part in a sync.
#[derive(Clone, Debug, Default)]
pub struct SyncEntrySelection {
    /// Rules for paths, sizes and times.
    pub filter: Filter,
    /// Read `.gitignore` files of the source (`--gitignore`).
    pub gitignore: bool,
    /// Stay on the file system of the source's root (`-x`). A remote source needs longhaul.
    pub one_file_system: bool,
}

/// Unicode form in which names of the source are compared and given to the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnicodeForm {
    /// The bytes of the source.
    #[default]
    Own,
    /// Composed characters, which all but Apple's HFS+ use.
    Nfc,
}

/// Result of a sync of two trees.
#[derive(Clone, Debug)]
pub struct SyncResult {
    /// Result of the copy.
    pub summary: CopySummary,
    /// Entries without a difference.
    pub equal: u64,
    /// Entries deleted at the target.
    pub deleted: u64,
    /// Entries of the target that were removed for one of another type.
    pub replaced: u64,
    /// Files renamed at the target instead of copied.
    pub moved: u64,
    /// Files linked to those of `--link-dest` instead of copied, and names with equal data that
    /// became hard links.
    pub linked: u64,
    /// Bytes of changed files that were sent whole to a host with rsync and without longhaul.
    pub sent_whole: Option<u64>,
    /// Reason why nothing was deleted or done.
    pub refused: Option<String>,
}
