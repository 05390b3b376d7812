//! Routes the SFTP requests of a client to the parts of the server that carry them out.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use sftp::{HOLE, Request, RequestId, ServerLimits, Told};

use super::accounts::ids_by_name;
use super::answers::AnswerQueue;
use super::client_tree::ClientTree;
use super::direct_write::WriteTarget;
use super::expected::check_expected;
use super::fsync_group::may_be_held;
use super::handles::OpenFileLimit;
use super::hashes::{HashRequest, hash};
use super::incoming::IncomingStream;
use super::listings::{ListingFormatter, opendir};
use super::metadata::{get_xattrs, hole_at, known_fields, set_metadata};
use super::open_files::OpenFiles;
use super::packed::{SessionCompression, read_zstd, write_zstd};
use super::reply::ReplyBuilder;
use super::request_error::{RequestError, Unsupported};
use super::set::set_open;
use super::transfer_log::{TransferCounters, TransferLog};
use super::tree::TreeWalks;
use super::whole_file::{SmallFileContext, SmallFileRequests};
use super::{durable, paths};
use crate::ExportedTree;
use crate::growing::GrowingFile;

/// Longest message that is accepted in bytes (SFTP_MAX_MSG_LENGTH of sftp-common.h), except for
/// WRITE.
pub(super) const LONGEST: u32 = 256 * 1024;
/// Maximum data bytes that a READ returns, leaving room for headers in a message.
pub(crate) const LONGEST_DATA: u32 = LONGEST - 1024;
/// Maximum data bytes of a WRITE. They are never gathered in memory, and file systems with huge
/// pages take long writes with less work (tmpfs zeroes the part of a page that a write does not
/// cover).
const LONGEST_WRITTEN: u32 = 1 << 20;
/// Longest message that carries a WRITE.
pub(super) const LONGEST_WRITE: u32 = LONGEST_WRITTEN + 1024;

/// Result of a request; a successful request has put its answer into its [`ReplyBuilder`].
pub(super) type RequestResult = Result<(), RequestError>;

/// State of one client, from INIT on. Each part owns what it needs for its requests.
pub(crate) struct SftpSession<'e> {
    tree: ClientTree<'e>,
    files: OpenFiles,
    whole_files: SmallFileRequests,
    listings: ListingFormatter,
    walks: TreeWalks,
    zstd: SessionCompression,
    log: TransferLog,
    /// Fields of ATTRS beyond those of the draft.
    told: Told,
    /// Source of further input that is read while a request takes long.
    incoming: Option<&'e IncomingStream<'e>>,
}

impl<'e> SftpSession<'e> {
    pub(crate) fn new(export: &'e ExportedTree, handles: OpenFileLimit) -> Self {
        Self {
            tree: ClientTree::new(export),
            files: OpenFiles::new(handles),
            whole_files: SmallFileRequests::default(),
            listings: ListingFormatter::new(),
            walks: TreeWalks::default(),
            zstd: SessionCompression::default(),
            log: TransferLog::new(export.least_logged()),
            told: Told::default(),
            incoming: None,
        }
    }

    /// Makes all ATTRS include these fields, as attributes@longhaul does.
    pub(crate) fn tell(&mut self, told: Told) {
        self.told = told;
    }

    /// True if nobody can read answers any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.incoming.is_some_and(IncomingStream::is_abandoned)
    }

    /// Has `incoming` read further input while a request takes long, so that the client is not
    /// blocked.
    pub(super) fn read_ahead(&mut self, incoming: &'e IncomingStream<'e>) {
        self.incoming = Some(incoming);
    }

    /// The client's open files, and the requests on the blocking pool.
    pub(super) fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// Enables the blocking pool ([`OpenFiles::use_pool`]).
    pub(super) fn use_pool(&mut self, told: bool) {
        self.files.use_pool(told);
    }

    /// Ends listings and long requests, because the client has disconnected. Returns true if a long
    /// copy was under way.
    pub(super) fn leave(&mut self) -> bool {
        self.walks = TreeWalks::default();
        self.files.leave()
    }

    /// Descriptor that becomes readable when a request in the pool has finished.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.files.waker()
    }

    /// Transfer counters of the client so far.
    pub(crate) fn moved(&self) -> TransferCounters {
        self.log.counters()
    }

    /// True if a file or directory is open.
    pub(crate) fn has_open(&self) -> bool {
        self.files.handles().has_open()
    }

    /// Closes all handles.
    pub(crate) fn close_all(&mut self) {
        self.files.handles_mut().clear();
    }

    /// Gives back the mappings of files that were sent.
    pub(super) fn trim(&mut self) {
        self.files.trim();
    }

    /// Reads an open file into `slices`, up to the end of the file; returns the number of bytes.
    pub(crate) fn read_to(
        &mut self,
        handle: &[u8],
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<usize, RequestError> {
        self.files.read_to(handle, offset, slices, &mut self.log)
    }

    /// Begins a turn with new input and discards cached results, since the client may have waited
    /// for a change.
    pub(super) fn begin_turn(&mut self, out: &mut AnswerQueue) {
        self.whole_files.forget_directory();
        self.hear(out);
    }

    /// Puts the results of the blocking pool into their places among the answers.
    pub(super) fn hear(&mut self, out: &mut AnswerQueue) {
        self.files.hear(&mut self.log, out);
    }

    /// Returns true if small files wait to be synced to disk together with later ones.
    pub(super) fn holds(&self) -> bool {
        self.whole_files.holds()
    }

    /// Makes held files durable and answers them.
    pub(super) fn end_set(&mut self, out: &mut AnswerQueue) {
        self.whole_files.end_group(&self.tree, &mut self.log, out);
    }

    /// Target of the next data of the WRITE that arrives, of which `left` bytes are to come, if
    /// they may go there directly: nothing has to be carried out before.
    pub(super) fn target(&mut self, request: &Request<'_>, left: usize) -> Option<WriteTarget> {
        let Request::Write { handle, offset, .. } = *request else {
            return None;
        };
        if self.holds() || !self.files.lets(request) || !self.tree.allows(request) {
            return None;
        }
        self.files.target(handle, offset, left)
    }

    /// Records that `n` more bytes are on their way to the target, or that an earlier write failed.
    pub(super) fn note_placed(&mut self, n: usize, done: Result<(), Errno>) {
        self.files.note_placed(n, done);
    }

    /// Carries out a request and appends the answer to `out`, or holds the answer until its group
    /// of small files is durable. `data` holds the part of a WRITE that is not in `request`.
    pub(crate) fn answer(
        &mut self,
        id: RequestId,
        request: Request<'_>,
        data: &[Bytes],
        out: &mut AnswerQueue,
    ) {
        if !may_be_held(&request) {
            self.end_set(out);
        }
        let mut reply = ReplyBuilder::new(id, out);
        let mut done = self.allowed(request, data, &mut reply);
        if done.is_err() && self.holds() {
            // Retry after ending the group: held files may occupy the name, descriptors or disk
            // space that this request needs.
            self.end_set(out);
            reply = ReplyBuilder::new(id, out);
            done = self.allowed(request, data, &mut reply);
        }
        if let Err(refused) = &done {
            let handles = self.files.handles_mut();
            self.log.failed(handles, &request, refused);
        }
        reply.end(done);
        if self.whole_files.is_full(self.files.handles().free()) {
            self.end_set(out);
        }
    }

    fn allowed(
        &mut self,
        request: Request<'_>,
        data: &[Bytes],
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        if !self.tree.allows(&request) {
            return Err(self.tree.forbidden());
        }
        match request {
            Request::Write {
                handle,
                offset,
                data: [],
            } => {
                let data = data.iter().map(|bytes| &bytes[..]);
                self.files.write(handle, offset, data, &mut self.log)
            }
            request => self.carry_out(request, reply),
        }
    }

    /// Routes a request to the part that carries it out. Every request is listed, so that a new one
    /// is not forgotten.
    fn carry_out(&mut self, request: Request<'_>, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        use Request as R;
        if !is_whole_file(&request) {
            // The request may move or remove the directory of the last whole file.
            self.whole_files.forget_directory();
        }
        match request {
            R::Open { .. }
            | R::Close { .. }
            | R::Fstat { .. }
            | R::Fsetstat { .. }
            | R::Fstatvfs { .. }
            | R::Fsync { .. }
            | R::CopyData { .. }
            | R::Hash { .. } => self.on_open(request, reply),
            R::Read { .. }
            | R::Write { .. }
            | R::WriteZstd { .. }
            | R::ReadZstd { .. }
            | R::ReadSparse { .. } => self.on_data(request, reply),
            R::Opendir { .. }
            | R::Readdir { .. }
            | R::ListTree { .. }
            | R::UsersGroupsById { .. }
            | R::IdsByName { .. } => self.on_listing(request, reply),
            R::Stat { .. }
            | R::Lstat { .. }
            | R::Setstat { .. }
            | R::Lsetstat { .. }
            | R::Mkdir { .. }
            | R::Remove { .. }
            | R::Rmdir { .. }
            | R::Rename { .. }
            | R::PosixRename { .. }
            | R::Symlink { .. }
            | R::Hardlink { .. }
            | R::Readlink { .. }
            | R::Realpath { .. }
            | R::ExpandPath { .. }
            | R::HomeDirectory { .. }
            | R::Statvfs { .. }
            | R::FsyncSet { .. }
            | R::HoldRoot { .. }
            | R::GetXattrs { .. }
            | R::SetMetadata { .. } => self.on_path(request, reply),
            R::Limits {} => {
                self.limits(reply);
                Ok(())
            }
            R::Attributes { told } => {
                self.told = known_fields(told)?;
                Ok(())
            }
            R::OtherExtension { .. } | R::Other { .. } => Err(Unsupported::Request.into()),
            R::PutFile { .. }
            | R::GetFile { .. }
            | R::PutFileZstd { .. }
            | R::GetFileZstd { .. } => self.on_whole_file(request, reply),
        }
    }

    fn on_whole_file(
        &mut self,
        request: Request<'_>,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let (tree, zstd, log) = (&mut self.tree, &mut self.zstd, &mut self.log);
        let context = SmallFileContext::new(tree, zstd, log, self.told);
        self.whole_files.answer(request, context, reply)
    }

    fn on_open(&mut self, request: Request<'_>, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        use Request as R;
        let incoming = self.incoming;
        let between = || incoming.into_iter().for_each(IncomingStream::keep);
        match request {
            R::Open { path, .. } => {
                if let Some(growing) = self.tree.growing_at(path) {
                    self.files.open_growing(growing, path, reply)?;
                    self.log.count_opened();
                    return Ok(());
                }
            }
            R::Fstat { handle } => {
                if let Some(growing) = self.growing_of(handle) {
                    return self.stat_growing(&growing, reply);
                }
            }
            R::Hash {
                handle,
                offset,
                len,
                ..
            } => self.wait_for_growing(handle, (offset, len.into()))?,
            _ => {}
        }
        let files = &mut self.files;
        match request {
            R::Open { path, flags, attrs } => {
                files.open(&mut self.tree, path, (flags, &attrs), reply)?;
                self.log.count_opened();
                Ok(())
            }
            R::Close { handle } => files.close(handle, &mut self.log),
            R::Fstat { handle } => paths::fstat(files.handles().fd(handle)?, self.told, reply),
            R::Fsetstat { handle, attrs } => {
                let file = files.handles().file(handle)?;
                check_expected(file, &attrs)?;
                Ok(set_open(file, &attrs)?)
            }
            R::Fstatvfs { handle } => paths::statvfs(files.handles().fd(handle)?, reply),
            R::Fsync { handle } => files.fsync(handle, reply),
            R::CopyData {
                from,
                from_offset,
                len,
                to,
                to_offset,
            } => {
                let goes_on = || {
                    between();
                    !incoming.is_some_and(IncomingStream::is_abandoned)
                };
                files.copy_data((from, from_offset), len, (to, to_offset), goes_on, reply)
            }
            R::Hash {
                handle,
                offset,
                len,
                block,
                kind,
                key,
            } => {
                let file = files.handles().file(handle)?;
                let asked = HashRequest::new((offset, len, block), kind, key);
                hash(file, &asked, &between, reply)
            }
            _ => Err(Unsupported::Request.into()),
        }
    }

    fn on_data(&mut self, request: Request<'_>, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        use Request as R;
        if let R::ReadZstd {
            handle,
            offset,
            len,
        }
        | R::ReadSparse {
            handle,
            offset,
            len,
            ..
        } = request
        {
            self.wait_for_growing(handle, (offset, len.into()))?;
        }
        let (files, zstd, log) = (&mut self.files, &mut self.zstd, &mut self.log);
        match request {
            R::Read {
                handle,
                offset,
                len,
            } => files.read(handle, (offset, len), log, reply),
            R::Write {
                handle,
                offset,
                data,
            } => files.write(handle, offset, [data], log),
            R::WriteZstd {
                handle,
                offset,
                len,
                data,
            } => write_zstd(files, zstd, (handle, offset), (data, len), log),
            R::ReadZstd {
                handle,
                offset,
                len,
            } => read_zstd(files, zstd, handle, (offset, len), log, reply),
            R::ReadSparse {
                handle,
                offset,
                len,
                pack,
            } => match (hole_at(files.handles().open_file(handle)?, offset)?, pack) {
                (Some(hole), _) => {
                    reply.extended(&(HOLE, hole));
                    Ok(())
                }
                (None, true) => read_zstd(files, zstd, handle, (offset, len), log, reply),
                (None, false) => files.read(handle, (offset, len), log, reply),
            },
            _ => Err(Unsupported::Request.into()),
        }
    }

    /// The file of a handle, if it is still being written.
    fn growing_of(&self, handle: &[u8]) -> Option<Arc<GrowingFile>> {
        self.files
            .handles()
            .open(handle)
            .ok()?
            .as_growing()
            .cloned()
    }

    fn stat_growing(&self, growing: &GrowingFile, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        reply.attributes(&growing.stat()?, self.told);
        Ok(())
    }

    /// Waits until a range of a file is there, if the file is still being written. READ does so on
    /// the blocking pool.
    fn wait_for_growing(&mut self, handle: &[u8], range: (u64, u64)) -> RequestResult {
        let Some(growing) = self.growing_of(handle) else {
            return Ok(());
        };
        let incoming = self.incoming;
        let goes_on = || {
            incoming.into_iter().for_each(IncomingStream::keep);
            true
        };
        let file = growing.wait(range, &goes_on)?;
        self.files
            .handles_mut()
            .open_file_mut(handle)?
            .set_file(file);
        Ok(())
    }

    fn on_listing(&mut self, request: Request<'_>, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        use Request as R;
        let (handles, told) = (self.files.handles_mut(), self.told);
        match request {
            R::Opendir { path } => opendir(&self.tree, handles, path, reply),
            R::Readdir { handle } => {
                let dir = handles.open_dir_mut(handle)?;
                self.listings
                    .next(dir, told, self.tree.paths().export(), reply)
            }
            R::ListTree { tree, flags, path } => {
                let within = (&self.tree, &*handles);
                let asked = (tree, flags, path);
                self.walks
                    .answer(asked, told, within, &mut self.zstd, reply)
            }
            R::UsersGroupsById { users, groups } => {
                self.listings.accounts().names_of_ids(users, groups, reply)
            }
            R::IdsByName { users, groups } => ids_by_name(users, groups, reply),
            _ => Err(Unsupported::Request.into()),
        }
    }

    fn on_path(&mut self, request: Request<'_>, reply: &mut ReplyBuilder<'_>) -> RequestResult {
        use Request as R;
        if let R::Stat { path } | R::Lstat { path } = request
            && let Some(growing) = self.tree.growing_at(path)
        {
            return self.stat_growing(growing, reply);
        }
        let told = self.told;
        let tree = &mut self.tree;
        match request {
            R::Stat { path } => paths::stat(tree, (path, true), told, reply),
            R::Lstat { path } => paths::stat(tree, (path, false), told, reply),
            R::Setstat { path, attrs } => paths::setstat(tree, path, true, &attrs),
            R::Lsetstat { path, attrs } => paths::setstat(tree, path, false, &attrs),
            R::Mkdir { path, attrs } => paths::mkdir(tree, path, &attrs),
            R::Remove { path } => tree.remove(path, AtFlags::empty()),
            R::Rmdir { path } => tree.remove(path, AtFlags::REMOVEDIR),
            R::Rename { from, to } | R::PosixRename { from, to } => {
                tree.rename(from, to, matches!(request, R::PosixRename { .. }))?;
                self.log.renamed(from, to);
                Ok(())
            }
            // OpenSSH's order: the target first, then the name of the link.
            R::Symlink { first, second } => paths::symlink(tree.paths(), first, second),
            R::Hardlink { from, to } => paths::hardlink(tree.paths(), from, to),
            R::Readlink { path } => paths::readlink(tree.paths(), path, reply),
            R::Realpath { path } => paths::realpath(tree.paths(), path, reply),
            R::ExpandPath { path } => paths::expand(tree.paths(), path, reply),
            R::HomeDirectory { user } => paths::home(tree.paths(), user, reply),
            R::Statvfs { path } => paths::statvfs(tree.paths().find(path, true)?, reply),
            R::FsyncSet { paths } => durable::fsync_set(tree, &mut self.log, paths.0),
            R::HoldRoot { path } => tree.hold_root(path, self.files.handles()),
            R::GetXattrs { path, flags } => get_xattrs(tree.paths(), path, flags, reply),
            R::SetMetadata {
                of,
                flags,
                attrs,
                xattrs,
            } => {
                let within = (&*tree, self.files.handles());
                set_metadata(within, (of, flags), &attrs, xattrs, reply)
            }
            _ => Err(Unsupported::Request.into()),
        }
    }

    fn limits(&self, reply: &mut ReplyBuilder<'_>) {
        reply.extended(&ServerLimits {
            packet: LONGEST_WRITE.into(),
            read: LONGEST_DATA.into(),
            write: LONGEST_WRITTEN.into(),
            handles: self.files.handles().most() as u64,
        });
    }
}

/// True if the request puts or gets a whole file.
fn is_whole_file(request: &Request<'_>) -> bool {
    use Request as R;
    matches!(
        request,
        R::PutFile { .. } | R::GetFile { .. } | R::PutFileZstd { .. } | R::GetFileZstd { .. }
    )
}

/// Logs files that were not closed.
impl Drop for SftpSession<'_> {
    fn drop(&mut self) {
        self.log.left_open(self.files.handles());
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
