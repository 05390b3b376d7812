//! Dispatches SFTP requests to the functions that carry them out.

use std::sync::Arc;

use bytes::Bytes;
use jiff::tz::TimeZone;
use rustix::fs::{self, AtFlags};
use sftp::{Limits, Request, RequestId, StatusCode, Told};
use sys::MappedWindows;

use crate::Export;
use crate::accounts::Accounts;
use crate::answers::AnswerQueue;
use crate::blocking_pool::BlockingPool;
use crate::deferred_close::DeferredClose;
use crate::direct_write::PlacedBytes;
use crate::drop_box::DropBoxFiles;
use crate::error::RequestError;
use crate::files::changes_nothing;
use crate::group_sync::{GroupSync, may_be_held};
use crate::handles::{Allowance, Handles};
use crate::hashes::HashRequest;
use crate::incoming::IncomingStream;
use crate::io_error_log::IoErrorLog;
use crate::packed::Packing;
use crate::reply::{PoolResult, Reply, settle};
use crate::set::set_open;
use crate::temporary::Parent;
use crate::transfers::LoggedNames;
use crate::tree::Trees;
use crate::whole_file::PutFileRequest;

/// Longest message that is accepted in bytes (SFTP_MAX_MSG_LENGTH of sftp-common.h), except for
/// WRITE.
pub(crate) const LONGEST: u32 = 256 * 1024;
/// Most data bytes that a READ returns, leaving room for headers in a message.
pub(crate) const LONGEST_DATA: u32 = LONGEST - 1024;
/// Most data bytes of a WRITE. They are never gathered in memory, and file systems with huge pages
/// take long writes with less work (tmpfs zeroes the part of a page that a write does not cover).
pub(crate) const LONGEST_WRITTEN: u32 = 1 << 20;
/// Longest message that carries a WRITE.
pub(crate) const LONGEST_WRITE: u32 = LONGEST_WRITTEN + 1024;

/// Result of a request; a successful request has put its answer into its [`Reply`].
pub(crate) type Answer = Result<(), RequestError>;

/// State of one client, from INIT on.
pub(crate) struct Session<'e> {
    pub(crate) export: &'e Export,
    pub(crate) handles: Handles,
    /// Mappings of files whose contents are sent directly from the page cache.
    pub(crate) windows: MappedWindows,
    /// The client has left; no more answers are sent.
    pub(crate) is_left: bool,
    pub(crate) accounts: Accounts,
    pub(crate) zone: TimeZone,
    pub(crate) own: DropBoxFiles,
    pub(crate) leaving: DeferredClose,
    pub(crate) moved: TransferCounters,
    /// Directory of the previous small file.
    pub(crate) parent: Option<Arc<Parent>>,
    /// Small files that will be made durable as a group.
    pub(crate) unsynced: GroupSync,
    pub(crate) trees: Trees,
    pub(crate) packing: Packing,
    /// Fields of ATTRS beyond those of the draft.
    pub(crate) told: Told,
    /// Source of further input that is read while a request takes long.
    pub(crate) incoming: Option<&'e IncomingStream<'e>>,
    /// Pool for requests that block on the disk, if other work can go on meanwhile.
    pub(crate) aside: Option<BlockingPool>,
    /// Bytes of the current WRITE that have already gone to its file.
    pub(crate) placed: PlacedBytes,
    /// Logged files whose names may still change by a rename.
    pub(crate) named: LoggedNames,
    /// Disk errors that are already logged.
    pub(crate) troubles: IoErrorLog,
}

/// Transfer counters of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounters {
    /// Number of files opened.
    pub files: u64,
    /// File bytes sent to the client.
    pub sent: u64,
    /// File bytes received from the client.
    pub received: u64,
}

impl<'e> Session<'e> {
    pub(crate) fn new(export: &'e Export, handles: Allowance) -> Self {
        Self {
            export,
            handles: Handles::new(handles),
            windows: MappedWindows::default(),
            is_left: false,
            accounts: Accounts::default(),
            zone: TimeZone::system(),
            own: DropBoxFiles::default(),
            leaving: DeferredClose::default(),
            moved: TransferCounters::default(),
            parent: None,
            unsynced: GroupSync::default(),
            trees: Trees::new(),
            packing: Packing::default(),
            told: Told::default(),
            incoming: None,
            aside: None,
            placed: PlacedBytes::default(),
            named: LoggedNames::default(),
            troubles: IoErrorLog::default(),
        }
    }

    /// True if the request may be carried out now.
    pub(crate) fn lets(&self, request: &Request<'_>) -> bool {
        let aside = self.aside.as_ref().is_none_or(|aside| aside.lets(request));
        aside && !(self.is_still_sent() && self.may_change(request))
    }

    /// True if answered file data are not yet read from the page cache: a change of the file would
    /// change them.
    pub(crate) fn is_still_sent(&self) -> bool {
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

    /// True if the blocking pool has requests of this session.
    pub(crate) fn awaits(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| !aside.is_free())
    }

    /// Puts the results of the blocking pool into their places among the answers.
    pub(crate) fn hear(&mut self, out: &mut AnswerQueue) {
        if let Some(aside) = &mut self.aside {
            aside.hear();
        }
        while let Some(arrived) = self.aside.as_mut().and_then(BlockingPool::next) {
            match settle(out, arrived) {
                Some(PoolResult::Read(handle, Ok(read))) => self.has_sent(&handle, read),
                Some(PoolResult::Read(handle, Err(e))) => self.tell_of_open(&handle, e, true),
                Some(PoolResult::Synced(handle, Err(e))) => self.tell_of_open(&handle, e, false),
                Some(PoolResult::Copied(handle, Some(e))) => self.tell_of_open(&handle, e, false),
                Some(PoolResult::Synced(_, Ok(())) | PoolResult::Copied(_, None)) | None => {}
            }
        }
    }

    /// Called between parts of a long request; reads further input so that the client is not
    /// blocked.
    pub(crate) fn meanwhile(&self) {
        if let Some(incoming) = self.incoming {
            incoming.keep();
        }
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
        let mut reply = Reply::new(id, out);
        let mut done = self.allowed(request, data, &mut reply);
        if done.is_err() && !self.unsynced.is_empty() {
            // Retry after ending the group: held files may occupy the name, descriptors or disk
            // space that this request needs.
            self.end_set(out);
            reply = Reply::new(id, out);
            done = self.allowed(request, data, &mut reply);
        }
        if let Err(refused) = &done {
            self.tell_of_disk(&request, refused);
        }
        reply.end(done);
        if !self.unsynced.is_empty() && self.unsynced.is_full(self.handles.free()) {
            self.end_set(out);
        }
    }

    fn allowed(&mut self, request: Request<'_>, data: &[Bytes], reply: &mut Reply<'_>) -> Answer {
        match (self.export.access.allows(&request), request) {
            (false, _) => Err(self.forbidden()),
            (
                true,
                Request::Write {
                    handle,
                    offset,
                    data: [],
                },
            ) => self.write(handle, offset, data.iter().map(|bytes| &bytes[..])),
            (true, request) => self.carry_out(request, reply),
        }
    }

    fn carry_out(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Answer {
        use Request as R;
        if !matches!(
            request,
            R::PutFile { .. } | R::GetFile { .. } | R::PutFileZstd { .. } | R::GetFileZstd { .. }
        ) {
            // The request may move or remove that directory.
            self.parent = None;
        }
        match request {
            R::Open { path, flags, attrs } => self.open(path, flags, &attrs, reply),
            R::Close { handle } => self.close(handle),
            R::Read {
                handle,
                offset,
                len,
            } => self.read(handle, offset, len, reply),
            R::Write {
                handle,
                offset,
                data,
            } => self.write(handle, offset, [data]),
            R::Fstat { handle } => {
                reply.attributes(&fs::fstat(self.handles.get(handle)?.fd())?, self.told);
                Ok(())
            }
            R::Fsetstat { handle, attrs } => Ok(set_open(self.handles.file(handle)?, &attrs)?),
            R::Fsync { handle } => self.fsync(handle, reply),
            R::Fstatvfs { handle } => self.space(self.handles.get(handle)?.fd(), reply),
            R::CopyData {
                from,
                from_offset,
                len,
                to,
                to_offset,
            } => self.copy_data((from, from_offset), len, (to, to_offset), reply),
            R::Opendir { path } => self.opendir(path, reply),
            R::Readdir { handle } => self.readdir(handle, reply),
            R::Stat { path } => self.stat(path, true, reply),
            R::Lstat { path } => self.stat(path, false, reply),
            R::Setstat { path, attrs } => self.set(path, true, &attrs),
            R::Lsetstat { path, attrs } => self.set(path, false, &attrs),
            R::Statvfs { path } => self.space(self.export.place.find(path, true)?, reply),
            R::Mkdir { path, attrs } => self.mkdir(path, &attrs),
            R::Remove { path } => self.remove(path, AtFlags::empty()),
            R::Rmdir { path } => self.remove(path, AtFlags::REMOVEDIR),
            R::Rename { from, to } | R::PosixRename { from, to } => {
                self.rename(from, to, matches!(request, R::PosixRename { .. }))?;
                self.tell_renamed(from, to);
                Ok(())
            }
            // OpenSSH's order: the target first, then the name of the link.
            R::Symlink { first, second } => self.symlink(first, second),
            R::Hardlink { from, to } => self.hardlink(from, to),
            R::Readlink { path } => self.readlink(path, reply),
            R::Realpath { path } => self.realpath(path, reply),
            R::ExpandPath { path } => self.expand(path, reply),
            R::HomeDirectory { user } => {
                reply.path(&self.home(user)?);
                Ok(())
            }
            R::UsersGroupsById { users, groups } => self.names_of_ids(users, groups, reply),
            R::Limits {} => {
                reply.extended(&Limits {
                    packet: LONGEST_WRITE.into(),
                    read: LONGEST_DATA.into(),
                    write: LONGEST_WRITTEN.into(),
                    handles: self.handles.most() as u64,
                });
                Ok(())
            }
            R::PutFile {
                path,
                flags,
                tag,
                mode,
                attrs,
                data,
            } => {
                let put = PutFileRequest {
                    path,
                    flags,
                    tag,
                    mode,
                    attrs,
                    data,
                };
                self.put_file(&put, reply)
            }
            R::GetFile { path, len } => self.get_file(path, len, false, reply),
            R::PutFileZstd {
                path,
                flags,
                tag,
                mode,
                attrs,
                len,
                data,
            } => {
                let put = PutFileRequest {
                    path,
                    flags,
                    tag,
                    mode,
                    attrs,
                    data,
                };
                self.put_file_zstd(&put, len, reply)
            }
            R::GetFileZstd { path, len } => self.get_file(path, len, true, reply),
            R::ListTree { tree, flags, path } => self.list_tree(tree, flags, path, reply),
            R::WriteZstd {
                handle,
                offset,
                len,
                data,
            } => self.write_zstd(handle, offset, len, data),
            R::ReadZstd {
                handle,
                offset,
                len,
            } => self.read_zstd(handle, offset, len, reply),
            R::Hash {
                handle,
                offset,
                len,
                block,
                kind,
                key,
            } => {
                let asked = HashRequest {
                    offset,
                    len,
                    block,
                    kind,
                    key,
                };
                self.hash(handle, &asked, reply)
            }
            R::Attributes { told } => self.tell(told),
            R::GetXattrs { path, flags } => self.get_xattrs(path, flags, reply),
            R::SetMetadata {
                of,
                flags,
                attrs,
                xattrs,
            } => self.set_metadata((of, flags), &attrs, xattrs, reply),
            R::IdsByName { users, groups } => self.ids_by_name(users, groups, reply),
            R::ReadSparse {
                handle,
                offset,
                len,
                pack,
            } => self.read_sparse(handle, (offset, len), pack, reply),
            R::FsyncSet { paths } => self.fsync_set(paths.0),
            R::OtherExtension { .. } | R::Other { .. } => Err(RequestError::new(
                StatusCode::OP_UNSUPPORTED,
                "this server does not know the request",
            )),
        }
    }
}
