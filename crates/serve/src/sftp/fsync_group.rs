//! Makes small files durable in groups, for put-file@longhaul with flag 4.
//!
//! A disk needs time for each fsync(2), and hardly more for many at once, because the file system
//! covers them with one journal commit. So files of consecutive requests are kept under their
//! temporary names, made durable together, then renamed and answered in the order of the requests.
//! Any other request ends the group first, so that no client can tell it from files that were put
//! one by one.

use std::sync::Arc;

use rustix::io::Errno;
use sftp::{PutFlags, Request, RequestId};

use super::answers::AnswerQueue;
use super::client_tree::ClientTree;
use super::durable::on_threads;
use super::reply::ReplyBuilder;
use super::request_error::{PutFileStep, RequestError, reason};
use super::session::RequestResult;
use super::temporary::{CachedParentDir, FinishedTemporaryFile};
use super::transfer_log::TransferLog;

/// Maximum number of files of a group. Twice as many took 0.24 s instead of 0.26 s for 2,000 files,
/// and the first file waits for the last.
const MOST: usize = 64;
/// Maximum bytes of a group; a disk writes that many in the time of one or two fsync calls.
const MOST_BYTES: u64 = 4 << 20;

/// Files that were received completely and wait for the group's fsync(2) and rename, with the sum
/// of their bytes. It is full at a limit of files, bytes or descriptors.
#[derive(Debug, Default)]
pub(super) struct FsyncGroup {
    files: Vec<TempFileAwaitingRename>,
    bytes: u64,
}

/// A file that is complete and has no final name yet.
#[derive(Debug)]
struct TempFileAwaitingRename {
    id: RequestId,
    path: Vec<u8>,
    written: FinishedTemporaryFile,
    /// Result of fsync and rename.
    done: RequestResult,
}

/// A directory in which files of the group were renamed.
struct RenamedDir {
    parent: Arc<CachedParentDir>,
    synced: Result<(), Errno>,
}

/// True if `request` puts a file whose answer may be held.
pub(super) fn may_be_held(request: &Request<'_>) -> bool {
    match request {
        Request::PutFile { flags, .. } | Request::PutFileZstd { flags, .. } => {
            flags.contains(PutFlags::FSYNC)
        }
        _ => false,
    }
}

impl FsyncGroup {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns true if the group is full, given that `free` further descriptors are available: each
    /// file needs one, and perhaps another for its directory.
    pub(super) fn is_full(&self, free: usize) -> bool {
        let count = self.files.len();
        count >= MOST || self.bytes >= MOST_BYTES || 2 * (count + 1) > free
    }

    /// True if a held file will get the name `name` in `parent`, or is stored under it now.
    pub(super) fn has(&self, parent: &CachedParentDir, name: &[u8]) -> bool {
        let mut files = self.files.iter();
        files.any(|file| file.written.takes(parent, name, &file.path))
    }

    /// True if a held file is about to replace a component of the path `dir`.
    pub(super) fn leads_through(&self, dir: &[u8]) -> bool {
        let behind = |path: &[u8]| dir.strip_prefix(path);
        let mut files = self.files.iter();
        files.any(|file| matches!(behind(&file.path), Some([] | [b'/', ..])))
    }

    /// Adds a file, and has the disk start writing it while others arrive.
    pub(super) fn hold(&mut self, id: RequestId, path: &[u8], written: FinishedTemporaryFile) {
        written.start_writeback();
        self.bytes += written.len();
        self.files.push(TempFileAwaitingRename {
            id,
            path: path.to_vec(),
            written,
            done: Ok(()),
        });
    }

    /// Ends the group: makes its files durable under their final names and answers their requests.
    pub(super) fn end(
        &mut self,
        tree: &ClientTree<'_>,
        log: &mut TransferLog,
        out: &mut AnswerQueue,
    ) {
        let mut files = std::mem::take(self).files;
        if files.is_empty() {
            return;
        }
        on_threads(&mut files, |held| held.done = held.written.sync());
        for held in &mut files {
            if held.done.is_ok() {
                held.done = held.written.rename(tree, &held.path);
            }
        }
        let named = sync_names(&files);
        for mut held in files {
            let mut reply = ReplyBuilder::new(held.id, out);
            let synced = held.done.and_then(|()| is_named(&held.written, &named));
            let done = synced.map(|lost| {
                log.put(&held.path, held.written.len());
                reply.warning(held.written.take_warning().or(lost));
            });
            if let Err(refused) = &done {
                log.failed_write(&held.path, refused);
            }
            reply.end(done);
        }
    }
}

/// Makes the new names durable, with one fsync per directory.
fn sync_names(files: &[TempFileAwaitingRename]) -> Vec<RenamedDir> {
    let mut named: Vec<RenamedDir> = Vec::new();
    for held in files.iter().filter(|held| held.done.is_ok()) {
        let parent = held.written.parent();
        if !named.iter().any(|named| named.parent.is(parent)) {
            named.push(RenamedDir {
                parent: Arc::clone(parent),
                synced: Ok(()),
            });
        }
    }
    on_threads(&mut named, |named| named.synced = named.parent.sync());
    named
}

/// Checks that the name of a file is durable. If the directory may not be synced, returns a note
/// for the client.
fn is_named(
    written: &FinishedTemporaryFile,
    named: &[RenamedDir],
) -> Result<Option<String>, RequestError> {
    let mut named = named.iter();
    let found = named.find(|named| named.parent.is(written.parent()));
    match found.map_or(Ok(()), |named| named.synced) {
        Ok(()) => Ok(None),
        Err(e @ (Errno::ACCESS | Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP)) => {
            Ok(Some(format!("{NAME_NOT_SYNCED}{}", reason(e))))
        }
        Err(e) => Err(PutFileStep::SyncName.failed(e)),
    }
}

/// Message for a file whose data are durable and whose name may not be.
const NAME_NOT_SYNCED: &str = "cannot sync its directory: ";

#[cfg(test)]
#[path = "fsync_group_tests.rs"]
mod tests;
