//! Which request does what.

use std::sync::Arc;

use bytes::Bytes;
use jiff::tz::TimeZone;
use rustix::fs::{self, AtFlags};
use sftp::{Limits, Request, RequestId, StatusCode, Told};
use sys::Windows;

use crate::Export;
use crate::accounts::Accounts;
use crate::answers::Answers;
use crate::blocking_pool::BlockingPool;
use crate::deferred_close::DeferredClose;
use crate::direct_write::PlacedBytes;
use crate::drop_box::DropBoxFiles;
use crate::error::Refused;
use crate::files::changes_nothing;
use crate::group_sync::{GroupSync, may_be_held};
use crate::handles::{Allowance, Handles};
use crate::hashes::Asked;
use crate::incoming::IncomingStream;
use crate::io_error_log::IoErrorLog;
use crate::packed::Packing;
use crate::reply::{Reply, Settled, settle};
use crate::set::set_open;
use crate::temporary::Parent;
use crate::transfers::Named;
use crate::tree::Trees;
use crate::whole_file::Put;

/// The longest message that is taken (SFTP_MAX_MSG_LENGTH of sftp-common.h), but for a WRITE.
pub(crate) const LONGEST: u32 = 256 * 1024;
/// What a READ answers at most: a message holds headers too.
pub(crate) const LONGEST_DATA: u32 = LONGEST - 1024;
/// What a WRITE may carry: its data are never gathered in memory, and file systems that give out many pages at
/// once take them with less work (tmpfs with huge pages zeroes what a write has not of one).
pub(crate) const LONGEST_WRITTEN: u32 = 1 << 20;
/// A message with that.
pub(crate) const LONGEST_WRITE: u32 = LONGEST_WRITTEN + 1024;

/// How a request ended; what it has to tell is in its [`Reply`] then.
pub(crate) type Answer = Result<(), Refused>;

/// One client, from INIT on.
pub(crate) struct Session<'e> {
    pub(crate) export: &'e Export,
    pub(crate) handles: Handles,
    /// What of their files is sent from where the kernel has it.
    pub(crate) windows: Windows,
    /// The client has left, and nothing more is sent.
    pub(crate) is_left: bool,
    pub(crate) accounts: Accounts,
    pub(crate) zone: TimeZone,
    pub(crate) own: DropBoxFiles,
    pub(crate) leaving: DeferredClose,
    pub(crate) moved: TransferCounters,
    /// Where the small file before lay.
    pub(crate) parent: Option<Arc<Parent>>,
    /// Small files that are made durable together with those behind them.
    pub(crate) unsynced: GroupSync,
    pub(crate) trees: Trees,
    pub(crate) packing: Packing,
    /// What ATTRS tell beside the draft's fields.
    pub(crate) told: Told,
    /// Where more of the client is to be read from while a request takes long.
    pub(crate) incoming: Option<&'e IncomingStream<'e>>,
    /// What waits for a disk, where it need not keep others waiting.
    pub(crate) aside: Option<BlockingPool>,
    /// What of the WRITE that is arriving has gone to its file.
    pub(crate) placed: PlacedBytes,
    /// What has a line of the log with a name that it may not keep.
    pub(crate) named: Named,
    /// What was said in the log of disks.
    pub(crate) troubles: IoErrorLog,
}

/// What a client has moved so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounters {
    /// Files opened.
    pub files: u64,
    /// Bytes of them sent to the client.
    pub sent: u64,
    /// Bytes received for them.
    pub received: u64,
}

impl<'e> Session<'e> {
    pub(crate) fn new(export: &'e Export, handles: Allowance) -> Self {
        Self {
            export,
            handles: Handles::new(handles),
            windows: Windows::default(),
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
            named: Named::default(),
            troubles: IoErrorLog::default(),
        }
    }

    /// Whether this one may be carried out now.
    pub(crate) fn lets(&self, request: &Request<'_>) -> bool {
        let aside = self.aside.as_ref().is_none_or(|aside| aside.lets(request));
        aside && !(self.is_still_sent() && self.may_change(request))
    }

    /// Whether what was answered is not read yet: it would be what the files have become.
    pub(crate) fn is_still_sent(&self) -> bool {
        !self.is_left && self.windows.are_busy()
    }

    fn may_change(&self, request: &Request<'_>) -> bool {
        match request {
            // What was written may turn out now to have failed, which only the last to close it is told.
            Request::Close { handle } => self.handles.has_received(handle),
            request => !changes_nothing(request),
        }
    }

    /// Whether something is carried out aside.
    pub(crate) fn awaits(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| !aside.is_free())
    }

    /// Answers to what was carried out aside are put in their places.
    pub(crate) fn hear(&mut self, out: &mut Answers) {
        if let Some(aside) = &mut self.aside {
            aside.hear();
        }
        while let Some(arrived) = self.aside.as_mut().and_then(BlockingPool::next) {
            match settle(out, arrived) {
                Some(Settled::Read(handle, Ok(read))) => self.has_sent(&handle, read),
                Some(Settled::Read(handle, Err(e))) => self.tell_of_open(&handle, e, true),
                Some(Settled::Synced(handle, Err(e))) => self.tell_of_open(&handle, e, false),
                Some(Settled::Copied(handle, Some(e))) => self.tell_of_open(&handle, e, false),
                Some(Settled::Synced(_, Ok(())) | Settled::Copied(_, None)) | None => {}
            }
        }
    }

    /// Between two parts of a request that takes long.
    pub(crate) fn meanwhile(&self) {
        if let Some(incoming) = self.incoming {
            incoming.keep();
        }
    }

    /// Carries a request out and appends the answer to `out`, or holds it until the set that it is
    /// of has ended. What a WRITE has not in itself is in `data`.
    pub(crate) fn answer(
        &mut self,
        id: RequestId,
        request: Request<'_>,
        data: &[Bytes],
        out: &mut Answers,
    ) {
        if !may_be_held(&request) {
            self.end_set(out);
        }
        let mut reply = Reply::new(id, out);
        let mut done = self.allowed(request, data, &mut reply);
        if done.is_err() && !self.unsynced.is_empty() {
            // Without those that are held it may be another matter: they have names that it takes,
            // descriptors, and room on the disk.
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
            // It may move or remove that directory.
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
            // OpenSSH's order: what it says, then where it is.
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
                let put = Put {
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
                let put = Put {
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
                let asked = Asked {
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
            R::OtherExtension { .. } | R::Other { .. } => Err(Refused::new(
                StatusCode::OP_UNSUPPORTED,
                "this server does not know the request",
            )),
        }
    }
}
