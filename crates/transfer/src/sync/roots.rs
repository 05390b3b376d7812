//! Roots of a sync: what is listed at each end, and roots that cannot be synced.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use schedule::{Attributes, EntryKind, JobFailureKind};
use sync::{EntryTree, Filter, FilterDecision, SortedTree, TreeEntry, TreeEntryKind, parent_path};

use super::SyncOptions;
use super::ends::SyncEnds;
use super::listing::{ListedTree, RootAttributes, RootToList};
use super::read_only_dirs::OWNER_WRITE;
use crate::copy::{CopyLocation, FileSystemQuery, PlannedCopy, PlannedCopySide};
use crate::file_error::FileError;
use crate::walk::local_path;

/// The roots of both ends, as the options of a sync name them.
pub(super) struct SyncRoots<'a> {
    options: &'a SyncOptions,
    /// The target keeps hard links of the source.
    hard_links: bool,
    /// Query for the file system of a remote source.
    source_file_system: Option<FileSystemQuery>,
}

impl<'a> SyncRoots<'a> {
    pub(super) fn new(options: &'a SyncOptions, hard_links: bool) -> Self {
        Self {
            options,
            hard_links,
            source_file_system: None,
        }
    }

    /// Returns the file system of a remote source whose root was prepared, if its server tells it.
    pub(super) async fn source_file_system(&mut self, run: &mut PlannedCopy<'_>) -> Option<u64> {
        run.file_system(self.source_file_system.take()?).await
    }

    /// Returns an end to list. A server is asked for the root's attributes while it lists.
    pub(super) async fn prepare(
        &mut self,
        run: &mut PlannedCopy<'_>,
        end: PlannedCopySide,
    ) -> Option<RootToList> {
        let at_source = end == PlannedCopySide::Source;
        let one_file_system = self.options.entries.one_file_system && at_source;
        let attributes = if one_file_system {
            root_with_device(run, end).await?
        } else {
            match run.query_root(end) {
                Some(query) => RootAttributes::Queried(query),
                None => run.root_attributes(end).await.into(),
            }
        };
        if at_source {
            self.source_file_system = run.query_file_system(end);
        }
        let mut root = RootToList::new(end, run.root(end).to_vec(), attributes);
        if at_source {
            root = root.with_names(self.options.names);
        }
        if !at_source || self.hard_links {
            root = root.with_links();
        }
        if one_file_system {
            root = root.on_one_file_system();
        }
        if self.options.entries.gitignore && at_source {
            root = root.with_gitignore();
        }
        (!run.stopped()).then_some(root)
    }
}

/// Reports a root that cannot be synced, and returns `None` for one.
pub(super) fn check_roots(
    run: &mut PlannedCopy<'_>,
    source: Option<&ListedTree>,
    target: Option<&ListedTree>,
) -> Option<()> {
    for (end, listing) in [
        (PlannedCopySide::Target, target),
        (PlannedCopySide::Source, source),
    ] {
        if let Some(error) = listing.and_then(ListedTree::root_error) {
            let name = run.shown(end, run.root(end));
            let mut error = error.clone();
            if !run.is_local(end) {
                error = explained(error);
            } else if error.kind() == JobFailureKind::PermissionDenied {
                error.push(": check its permissions and those of the directories above it");
            }
            run.fail(name, error);
            return None;
        }
    }
    let kind = |listing: &ListedTree| listing.root().map(|root| root.kind());
    let source_error = match source.map(kind) {
        Some(None) => Some("no such directory"),
        None | Some(Some(EntryKind::Directory)) => None,
        Some(_) => Some("not a directory: sync works on directories; use longhaul cp for a file"),
    };
    let target_error = match target.map(kind) {
        None | Some(None | Some(EntryKind::Directory)) => None,
        Some(_) => Some("not a directory: name the directory to make equal to the source"),
    };
    // A remote source may not have answered yet when a local target is found to be a file.
    for (end, error) in [
        (PlannedCopySide::Target, target_error),
        (PlannedCopySide::Source, source_error),
    ] {
        if let Some(error) = error {
            let name = run.shown(end, run.root(end));
            run.fail(name, error.to_owned());
            return None;
        }
    }
    Some(())
}

/// Has the target's root keep its attributes, as with rsync where a list of names does not have the
/// source itself: it may be the home directory of an account.
pub(super) fn leave_root(source: &mut SortedTree, target: &SortedTree) {
    let mode = target.tree().entry(EntryTree::ROOT).mode;
    source.set_root(TreeEntry {
        // A sync that gives the owner write permission sets this mode afterwards.
        mode: mode.filter(|mode| mode & OWNER_WRITE == 0),
        ..TreeEntry::new(TreeEntryKind::Directory)
    });
}

/// Says what to do about a root that the server does not show.
fn explained(mut error: FileError) -> FileError {
    if error.kind() == JobFailureKind::PermissionDenied {
        error = error.with_prefix("cannot look at this directory");
        error.push(
            ". Give the account search permission (x) on the directories above it; if it has that, \
             the server may forbid STAT and LSTAT (sftp-server -P), which sync needs",
        );
    }
    error
}

/// Reports a target that does not exist and cannot be created, since the directory above it does
/// not exist either, and returns `None` for one.
pub(super) async fn check_parent(ends: &mut SyncEnds<'_>) -> Option<()> {
    let target = PlannedCopySide::Target;
    let parent = parent_path(ends.root(target)).to_vec();
    if parent.is_empty() {
        return Some(());
    }
    let found = if ends.is_local(target) {
        let found = std::fs::metadata(local_path(&parent));
        found.map(|_| ()).map_err(FileError::from)
    } else {
        ends.look(target, parent.clone()).await
    };
    match found {
        Err(mut error) if error.is_missing() => {
            error.push(": sync creates DST, but no directories above it: create them first");
            let name = ends.shown(target, &parent);
            ends.fail(name, error);
            None
        }
        // The copy says what else is wrong with it.
        _ => Some(()),
    }
}

/// Returns the root's attributes, and `None` after reporting a server that does not tell its
/// file system.
async fn root_with_device(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
) -> Option<RootAttributes> {
    run.settle(end).await;
    let root = run.root_attributes(end).await;
    let is_untold = |root: &Option<Attributes>| root.is_some_and(|root| root.link.is_none());
    if run.is_local(end) || !root.as_ref().is_ok_and(is_untold) {
        return Some(root.into());
    }
    let server = run.server(end);
    let what = match server.is_some_and(|server| server.has("attributes@longhaul")) {
        true => {
            "the longhaul on this host is too old for --one-file-system: install this version \
             there, or leave out the other file systems with --exclude"
        }
        false => {
            "--one-file-system needs longhaul on this host, since SFTP does not tell on which \
             file system a directory lies: install it there, or leave out the other file \
             systems with --exclude"
        }
    };
    let name = run.shown(end, run.root(end));
    run.fail(name, what.to_owned());
    None
}

/// Returns a directory without slashes at its end, which mean nothing to a sync: a journal is found
/// again however the command names the directory.
pub(super) fn without_slash(place: &CopyLocation) -> CopyLocation {
    let bare = |path: &[u8]| {
        let end = path.iter().rposition(|byte| *byte != b'/');
        let end = end.map_or_else(|| path.len().min(1), |last| last + 1);
        path.get(..end).unwrap_or_default().to_vec()
    };
    match place {
        CopyLocation::Local(path) => {
            CopyLocation::Local(local_path(&bare(path.as_os_str().as_bytes())))
        }
        CopyLocation::Remote { host, path } => CopyLocation::Remote {
            host: *host,
            path: bare(path),
        },
    }
}

/// True if the filter leaves out the directory at this path below a root, or one above it.
pub(super) fn leaves_out(mut filter: Filter, dir: &[u8]) -> bool {
    let ends = dir.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut ends = ends.map(|(at, _)| at).chain([dir.len()]);
    ends.any(|end| {
        let path = dir.get(..end).unwrap_or_default();
        !path.is_empty()
            && filter.decide_name(path, TreeEntryKind::Directory) == FilterDecision::Excluded
    })
}

/// Returns true for the home directory of an account and for the root of a file system, which hold
/// more than what a sync is about.
pub(super) fn is_home(target: &CopyLocation) -> bool {
    match target {
        CopyLocation::Local(path) => {
            let real = |path: &Path| path.canonicalize().ok();
            let home = crate::private_dir::home().and_then(|home| real(&home));
            let path = real(path);
            path.is_some() && (path == home || path.as_deref() == Some(Path::new("/")))
        }
        CopyLocation::Remote { path, .. } => {
            let parts = path.split(|byte| *byte == b'/');
            let mut parts = parts.filter(|part| !part.is_empty() && *part != b".");
            match (parts.next(), parts.next()) {
                (None, _) => true,
                (Some(part), None) => part == b"~" && path.first() == Some(&b'~'),
                _ => false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::HostId;

    #[test]
    fn a_home_directory_is_known_by_all_its_names() {
        let remote = |path: &str| {
            is_home(&CopyLocation::Remote {
                host: HostId(0),
                path: path.as_bytes().to_vec(),
            })
        };
        for path in ["", ".", "./", "././", "~", "~/", "~/.", "/", "//", "/."] {
            assert!(remote(path), "{path}");
        }
        for path in ["a", "./a", "~/a", "/a", "./~", "/~", "~other", "..", "a/."] {
            assert!(!remote(path), "{path}");
        }
        assert!(is_home(&CopyLocation::Local("/usr/..".into())));
        assert!(!is_home(&CopyLocation::Local("/usr".into())));
    }
}
