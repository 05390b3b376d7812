//! Requests on open files, and the part of them that runs on the blocking pool.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{self, FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use sftp::{Attrs, OpenFlags, Request};
use sys::MappedFileWindows;
use wire::PayloadBlock;

use crate::growing::GrowingFile;

use super::answers::AnswerQueue;
use super::client_tree::ClientTree;
use super::copied::{FilePosition, check_copy, copy, is_long};
use super::direct_write::{DirectWriteProgress, WriteTarget};
use super::expected::check_expected;
use super::file_io::{open_flags, read_at, write_at};
use super::handles::{HandleTable, OpenFile, OpenFileLimit};
use super::pooled_requests::{BlockingOutcome, PooledRequests, ReadAttempt, changes_nothing};
use super::reply::{BlockingPoolResult, ReplyBuilder, settle};
use super::request_error::{RequestError, Unexpected};
use super::session::{LONGEST_DATA, RequestResult};
use super::temporary::close;
use super::transfer_log::TransferLog;

/// Length below which a READ's answer shares its packet with other answers.
const GATHERED_BELOW: usize = 8 << 10;
/// Estimated bytes of a STATUS message.
const STATUS: usize = 32;

/// The open files and directories of a client, and the work on them that is not finished.
pub(super) struct OpenFiles {
    handles: HandleTable,
    /// Mappings of files whose contents are sent directly from the page cache.
    windows: MappedFileWindows,
    /// Pool for requests that block on the disk, if other work can go on meanwhile.
    pool: Option<PooledRequests>,
    /// Bytes of the current WRITE that have already gone to its file.
    placed: DirectWriteProgress,
    /// True if the client has disconnected, so that no further answers are sent.
    is_left: bool,
}

impl OpenFiles {
    pub(super) fn new(handles: OpenFileLimit) -> Self {
        Self {
            handles: HandleTable::new(handles),
            windows: MappedFileWindows::default(),
            pool: None,
            placed: DirectWriteProgress::default(),
            is_left: false,
        }
    }

    pub(super) fn handles(&self) -> &HandleTable {
        &self.handles
    }

    pub(super) fn handles_mut(&mut self) -> &mut HandleTable {
        &mut self.handles
    }

    /// Enables the blocking pool. With `told` false, the caller waits for the requests in the pool.
    pub(super) fn use_pool(&mut self, told: bool) {
        self.is_left = !told;
        self.pool = Some(PooledRequests::new(told));
    }

    /// Ends long requests in the pool, because the client has disconnected. Returns true if a long
    /// copy was under way.
    pub(super) fn leave(&mut self) -> bool {
        self.is_left = true;
        self.pool.as_mut().is_some_and(PooledRequests::leave)
    }

    /// Descriptor that becomes readable when a request in the pool has finished.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.pool.as_ref()?.waker()
    }

    /// True if a request in the pool has finished and its result is not yet received.
    pub(super) fn has_news(&self) -> bool {
        self.pool.as_ref().is_some_and(PooledRequests::has_news)
    }

    /// True if requests of this client are in the pool.
    pub(super) fn awaits(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| !pool.is_free())
    }

    /// True if the request may be carried out now.
    pub(super) fn lets(&self, request: &Request<'_>) -> bool {
        let pool = self.pool.as_ref().is_none_or(|pool| pool.lets(request));
        pool && !(self.is_still_sent() && self.may_change(request))
    }

    /// True if answered file data are not yet read from the page cache: a change of the file would
    /// change them.
    pub(super) fn is_still_sent(&self) -> bool {
        !self.is_left && self.windows.are_busy()
    }

    fn may_change(&self, request: &Request<'_>) -> bool {
        match request {
            // CLOSE may report a delayed write error, which only the last handle to be closed
            // receives.
            Request::Close { handle } => self.handles.has_received(handle),
            request => !changes_nothing(request),
        }
    }

    /// Puts the results of the pool into their places among the answers.
    pub(super) fn hear(&mut self, log: &mut TransferLog, out: &mut AnswerQueue) {
        if let Some(pool) = &mut self.pool {
            pool.hear();
        }
        while let Some(arrived) = self.pool.as_mut().and_then(PooledRequests::next) {
            let (handle, failed, reads) = match settle(out, arrived) {
                Some(BlockingPoolResult::Read(handle, Ok(read))) => {
                    self.count_sent(&handle, read, log);
                    continue;
                }
                Some(BlockingPoolResult::Read(handle, Err(e))) => (handle, e, true),
                Some(BlockingPoolResult::Synced(handle, Err(e))) => (handle, e, false),
                Some(BlockingPoolResult::Copied(handle, Some(e))) => (handle, e, false),
                Some(
                    BlockingPoolResult::Synced(_, Ok(())) | BlockingPoolResult::Copied(_, None),
                )
                | None => {
                    continue;
                }
            };
            log.failed_handle(&mut self.handles, &handle, &failed.into(), reads);
        }
    }

    /// Gives back the mappings of files that were sent.
    pub(super) fn trim(&mut self) {
        self.windows.trim();
    }

    /// Answers OPEN.
    pub(super) fn open(
        &mut self,
        tree: &mut ClientTree<'_>,
        path: &[u8],
        (flags, attrs): (OpenFlags, &Attrs),
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let mut how = open_flags(flags);
        let is_own = tree.is_drop_box() && tree.owns_name(path)?;
        if tree.is_drop_box() && !is_own {
            // An existing file belongs to somebody else, so only creation is allowed.
            if !how.contains(OFlags::CREATE) {
                return Err(tree.forbidden());
            }
            how |= OFlags::EXCL;
        }
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o666) & 0o7777);
        let expects = attrs.expected.is_some() && !how.contains(OFlags::CREATE);
        if expects {
            // The file is emptied once it is known to be the expected one.
            how = how.difference(OFlags::TRUNC) | OFlags::NOFOLLOW;
        }
        if is_own {
            // Another channel may swap the directories on the path: what was opened is looked at before
            // it is emptied, and nothing is created.
            how = how.difference(OFlags::TRUNC);
            if !how.contains(OFlags::EXCL) {
                how = how.difference(OFlags::CREATE);
            }
        }
        let room = self.handles.reserve()?;
        // Do not block on a FIFO's other end, because the client has other requests. EAGAIN means
        // that another process must give up a lease, which is waited for.
        let opened = match tree.open(path, how | OFlags::NONBLOCK, mode) {
            Err(Errno::AGAIN) => tree.open(path, how, mode),
            opened => opened,
        };
        let file = File::from(match opened {
            Err(Errno::LOOP) if expects => return Err(Unexpected::Entry.into()),
            opened => opened?,
        });
        if is_own {
            tree.check_own(path, &file, &fstat(&file)?)?;
        }
        if expects {
            check_expected(&file, attrs)?;
        }
        if (expects || is_own) && flags.contains(OpenFlags::TRUNC) {
            fs::ftruncate(&file, 0)?;
        }
        // O_NONBLOCK has no effect on a regular file.
        let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
        if !matches!(kind, FileType::Fifo | FileType::RegularFile) {
            fs::fcntl_setfl(&file, how & OFlags::APPEND)?;
        }
        if !is_own {
            tree.claim(&file)?;
        }
        let open = OpenFile::new(file, path, flags.contains(OpenFlags::APPEND));
        let handle = self.handles.insert(room, open);
        reply.handle(&handle);
        Ok(())
    }

    /// Answers OPEN of a file that is still being written.
    pub(super) fn open_growing(
        &mut self,
        growing: &Arc<GrowingFile>,
        path: &[u8],
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let room = self.handles.reserve()?;
        let directory = File::from(growing.directory()?);
        let open = OpenFile::growing(directory, path, Arc::clone(growing));
        let handle = self.handles.insert(room, open);
        reply.handle(&handle);
        Ok(())
    }

    /// Answers READ of a file that is still being written, on the pool if the data are not there
    /// yet.
    fn read_growing(
        &mut self,
        growing: &Arc<GrowingFile>,
        handle: &[u8],
        (offset, len): (u64, usize),
        log: &mut TransferLog,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let mut block = reply.block(len);
        let range = (offset, len as u64);
        match (growing.now(range), &mut self.pool) {
            (None, Some(pool)) => {
                let (growing, handle) = (Arc::clone(growing), handle.to_vec());
                let until = pool.until();
                let ticket =
                    pool.begin_waiting(move || match growing.wait(range, &|| !until.is_over()) {
                        Ok(file) => read_aside(&file, handle, (offset, len), block),
                        Err(e) => BlockingOutcome::Read(handle, block, Err(e)),
                    });
                reply.awaits(ticket, len);
                Ok(())
            }
            (found, _) => {
                let file = match found {
                    Some(file) => file,
                    None => growing.wait(range, &|| true)?,
                };
                let slices = block.grow(len).into_iter();
                let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
                let read = read_at(&file, &mut slices, offset)?;
                drop(slices);
                if read == 0 && len > 0 {
                    return Err(RequestError::EndOfFile);
                }
                reply.long_data(block, read);
                self.count_sent(handle, read, log);
                Ok(())
            }
        }
    }

    /// Carries out CLOSE.
    pub(super) fn close(&mut self, handle: &[u8], log: &mut TransferLog) -> RequestResult {
        let Some(open) = self.handles.remove(handle)? else {
            return Ok(());
        };
        let (file, path, sent, received) = open.into_closing();
        self.windows.forget(&file);
        // A quota or a network file system may report an error only at close. A pool read that
        // still holds the file prevents that report.
        let closed = Arc::into_inner(file).map_or(Ok(()), close);
        if let Err(refused) = &closed {
            log.failed_write(&path, refused);
        }
        log.closed(path, sent, received);
        closed
    }

    /// Answers READ: from the page cache if possible, else on the pool.
    pub(super) fn read(
        &mut self,
        handle: &[u8],
        (offset, len): (u64, u32),
        log: &mut TransferLog,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let len = len.min(LONGEST_DATA) as usize;
        if let Some(growing) = self.handles.open(handle)?.as_growing() {
            let growing = Arc::clone(growing);
            return self.read_growing(&growing, handle, (offset, len), log, reply);
        }
        let all = |read: usize| match read == 0 && len > 0 {
            true => Err(RequestError::EndOfFile),
            false => Ok(read),
        };
        if len < GATHERED_BELOW {
            return reply.data(|out| {
                let append = |file: &File| sys::append_at(file, out, len, offset);
                all(self.read_with(handle, log, append)?).map(|_| ())
            });
        }
        let awaits = self.awaits();
        let mut block = reply.block(len);
        let file = self.handles.open_file(handle)?;
        // Behind an answer that is still awaited, the mapping would be held for long.
        if !awaits && self.windows.lay(file, offset, len, &mut block) {
            reply.long_data(block, len);
            self.count_sent(handle, len, log);
            return Ok(());
        }
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let found = match &mut self.pool {
            Some(pool) => pool.try_read(file, &mut slices, offset)?,
            None => ReadAttempt::Done(read_at(file, &mut slices, offset)?),
        };
        drop(slices);
        match (found, &mut self.pool) {
            (ReadAttempt::Done(read), _) => {
                reply.long_data(block, all(read)?);
                self.count_sent(handle, read, log);
            }
            (ReadAttempt::WouldBlock, Some(pool)) => {
                let (file, handle) = (Arc::clone(file), handle.to_vec());
                let ticket = pool.begin(move || read_aside(&file, handle, (offset, len), block));
                reply.awaits(ticket, len);
            }
            (ReadAttempt::WouldBlock, None) => {}
        }
        Ok(())
    }

    /// Reads into `slices` up to the end of the file; returns the number of bytes.
    pub(super) fn read_to(
        &mut self,
        handle: &[u8],
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
        log: &mut TransferLog,
    ) -> Result<usize, RequestError> {
        self.read_with(handle, log, |file| Ok(read_at(file, slices, offset)?))
    }

    fn read_with(
        &mut self,
        handle: &[u8],
        log: &mut TransferLog,
        read: impl FnOnce(&File) -> io::Result<usize>,
    ) -> Result<usize, RequestError> {
        let read = read(self.handles.open_file(handle)?)?;
        self.count_sent(handle, read, log);
        Ok(read)
    }

    /// Counts bytes of a file that were sent.
    pub(super) fn count_sent(&mut self, handle: &[u8], bytes: usize, log: &mut TransferLog) {
        self.handles.count_sent(handle, bytes as u64);
        log.count_sent(bytes as u64);
    }

    /// Carries out WRITE with data that arrive in pieces, after those that already went directly to
    /// the file.
    pub(super) fn write<'d>(
        &mut self,
        handle: &[u8],
        offset: u64,
        data: impl IntoIterator<Item = &'d [u8]>,
        log: &mut TransferLog,
    ) -> RequestResult {
        let placed = std::mem::take(&mut self.placed);
        let open = self.handles.open_file_mut(handle)?;
        let placed = placed.finish()?;
        let offset = open.write_offset(offset.saturating_add(placed));
        let mut slices: Vec<IoSlice<'_>> = data.into_iter().map(IoSlice::new).collect();
        let written = placed + write_at(open.file(), &mut slices, offset)?;
        open.count_received(written);
        log.count_received(written);
        Ok(())
    }

    /// Makes a range of the file a hole, with the length of the file unchanged; returns false if
    /// that is not possible.
    pub(super) fn punch_hole(
        &self,
        handle: &[u8],
        offset: u64,
        len: usize,
    ) -> Result<bool, RequestError> {
        let open = self.handles.open(handle)?;
        let offset = open.write_offset(offset);
        Ok(offset.is_some_and(|offset| sys::punch_hole(open.file(), offset, len as u64)))
    }

    /// Bytes of the arriving WRITE that have already gone to its file.
    pub(super) fn placed(&self) -> u64 {
        self.placed.bytes()
    }

    /// Target of the next data of an arriving WRITE, of which `left` bytes are to come, if they may
    /// go to the file without passing through memory.
    pub(super) fn target(
        &mut self,
        handle: &[u8],
        offset: u64,
        left: usize,
    ) -> Option<WriteTarget> {
        let open = self.handles.open_file_mut(handle).ok()?;
        let offset = open.write_offset(self.placed.next_offset(offset)?)?;
        let is_regular =
            |stat: fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if self.placed.bytes() == 0 && !fstat(&**open.file()).is_ok_and(is_regular) {
            return None;
        }
        Some(WriteTarget::new(Arc::clone(open.file()), offset, left))
    }

    /// Records that `n` more bytes are on their way to the file, or that an earlier write failed.
    pub(super) fn note_placed(&mut self, n: usize, done: Result<(), Errno>) {
        self.placed.add(n, done);
    }

    /// Makes a file durable on the blocking pool, so that other requests can go on.
    pub(super) fn fsync(&mut self, handle: &[u8], reply: &mut ReplyBuilder<'_>) -> RequestResult {
        let file = Arc::clone(self.handles.file(handle)?);
        let Some(pool) = &mut self.pool else {
            return Ok(fs::fsync(&*file)?);
        };
        let handle = handle.to_vec();
        let ticket = pool.begin(move || BlockingOutcome::Synced(handle, fs::fsync(&*file)));
        reply.awaits(ticket, STATUS);
        Ok(())
    }

    /// Carries out copy-data (draft-ietf-secsh-filexfer-extensions-00 section 7); `len` 0 means to
    /// the end. A long copy runs on the blocking pool, so that other channels get their turn.
    /// Another one ends when `goes_on`, which is called between its parts, returns false.
    pub(super) fn copy_data(
        &mut self,
        (from, from_offset): (&[u8], u64),
        len: u64,
        (to_handle, to_offset): (&[u8], u64),
        goes_on: impl Fn() -> bool,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let (from, to) = (self.handles.file(from)?, self.handles.file(to_handle)?);
        let from = FilePosition::new(Arc::clone(from), from_offset);
        let to = FilePosition::new(Arc::clone(to), to_offset);
        check_copy(&from, len, &to)?;
        let until = self
            .pool
            .as_ref()
            .map(PooledRequests::until)
            .unwrap_or_default();
        match &mut self.pool {
            Some(pool) if pool.is_told() && is_long(len) => {
                let handle = to_handle.to_vec();
                let ticket = pool.begin_long(move || {
                    BlockingOutcome::Copied(handle, copy(&from, len, &to, &|| !until.is_over()))
                });
                reply.awaits(ticket, STATUS);
                Ok(())
            }
            _ => copy(&from, len, &to, &|| goes_on() && !until.is_over()),
        }
    }

    /// Deadline of requests in the pool.
    #[cfg(test)]
    pub(super) fn deadline(&self) -> Option<super::pooled_requests::LongRequestDeadline> {
        self.pool.as_ref().map(PooledRequests::until)
    }
}

fn read_aside(
    file: &File,
    handle: Vec<u8>,
    (offset, len): (u64, usize),
    mut block: PayloadBlock,
) -> BlockingOutcome {
    block.clear();
    let slices = block.grow(len).into_iter();
    let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
    let read = read_at(file, &mut slices, offset);
    drop(slices);
    BlockingOutcome::Read(handle, block, read)
}
