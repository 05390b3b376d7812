//! Requests on open files.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use sftp::{Attrs, OpenFlags, Request};
use wire::Block;

use crate::error::RequestError;
use crate::sftp::answer::{Answer, LONGEST_DATA, Session};
use crate::sftp::blocking_pool::{Outcome, ReadAttempt};
use crate::sftp::group_sync::close;
use crate::sftp::handles::OpenHandle;
use crate::sftp::reply::Reply;

/// Length below which a READ's answer shares its packet with other answers.
const GATHERED_BELOW: usize = 8 << 10;
/// Estimated bytes of a STATUS message.
pub(crate) const STATUS: usize = 32;

impl Session<'_> {
    pub(crate) fn open(
        &mut self,
        path: &[u8],
        flags: OpenFlags,
        attrs: &Attrs,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let mut how = open_flags(flags);
        if self.is_drop_box() && !self.is_own(path)? {
            // An existing file belongs to somebody else, so only creation is allowed.
            if !how.contains(OFlags::CREATE) {
                return Err(self.forbidden());
            }
            how |= OFlags::EXCL;
        }
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o666) & 0o7777);
        let room = self.handles.room()?;
        // Do not block on a FIFO's other end, because the client has other requests. EAGAIN means
        // that another process must give up a lease, which is waited for.
        let opened = match self.export.place.open(path, how | OFlags::NONBLOCK, mode) {
            Err(Errno::AGAIN) => self.export.place.open(path, how, mode),
            opened => opened,
        };
        let file = File::from(opened?);
        let stat = fs::fstat(&file)?;
        // O_NONBLOCK has no effect on a regular file.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::Fifo | FileType::RegularFile) {
            fs::fcntl_setfl(&file, how & OFlags::APPEND)?;
        }
        self.has_put(&file)?;
        let opened = OpenHandle::File {
            file: Arc::new(file),
            append: flags.contains(OpenFlags::APPEND),
            sent: 0,
            received: 0,
            path: path.to_vec(),
            told: false,
        };
        let handle = self.handles.insert(room, opened);
        self.moved.files += 1;
        reply.handle(&handle);
        Ok(())
    }

    pub(crate) fn close(&mut self, handle: &[u8]) -> Answer {
        let OpenHandle::File {
            file,
            path,
            sent,
            received,
            ..
        } = self.handles.remove(handle)?
        else {
            return Ok(());
        };
        self.windows.forget(&file);
        // A quota or a network file system may report an error only at close. A pool read that
        // still holds the file prevents that report.
        let closed = Arc::into_inner(file).map_or(Ok(()), close);
        if let Err(refused) = &closed {
            self.tell_of_path(&path, refused);
        }
        self.tell_closed(path, sent, received);
        closed
    }

    pub(crate) fn read(
        &mut self,
        handle: &[u8],
        offset: u64,
        len: u32,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let len = len.min(LONGEST_DATA) as usize;
        let all = |read: usize| match read == 0 && len > 0 {
            true => Err(RequestError::end_of_file()),
            false => Ok(read),
        };
        if len < GATHERED_BELOW {
            return reply.data(|out| {
                let append = |file: &File| sys::append_at(file, out, len, offset);
                all(self.read_with(handle, append)?).map(|_| ())
            });
        }
        let awaits = self.awaits();
        let mut block = reply.block(len);
        let file = self.handles.open_file(handle)?;
        // Behind an answer that is still awaited, the mapping would be held for long.
        if !awaits && self.windows.lay(file, offset, len, &mut block) {
            reply.long_data(block, len);
            self.has_sent(handle, len);
            return Ok(());
        }
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let found = match &mut self.aside {
            Some(aside) => aside.try_read(file, &mut slices, offset)?,
            None => ReadAttempt::Here(read_at(file, &mut slices, offset)?),
        };
        drop(slices);
        match (found, &mut self.aside) {
            (ReadAttempt::Here(read), _) => {
                reply.long_data(block, all(read)?);
                self.has_sent(handle, read);
            }
            (ReadAttempt::Elsewhere, Some(aside)) => {
                let (file, handle) = (Arc::clone(file), handle.to_vec());
                let ticket = aside.begin(move || read_aside(&file, handle, (offset, len), block));
                reply.awaits(ticket, len);
            }
            (ReadAttempt::Elsewhere, None) => {}
        }
        Ok(())
    }

    /// Makes a file durable on the blocking pool, so that other requests can go on.
    pub(crate) fn fsync(&mut self, handle: &[u8], reply: &mut Reply<'_>) -> Answer {
        let file = Arc::clone(self.handles.file(handle)?);
        let Some(aside) = &mut self.aside else {
            return Ok(fs::fsync(&*file)?);
        };
        let handle = handle.to_vec();
        let ticket = aside.begin(move || Outcome::Synced(handle, fs::fsync(&*file)));
        reply.awaits(ticket, STATUS);
        Ok(())
    }

    /// Counts bytes of a file that were sent.
    pub(crate) fn has_sent(&mut self, handle: &[u8], bytes: usize) {
        if let Ok(OpenHandle::File { sent, .. }) = self.handles.get_mut(handle) {
            *sent += bytes as u64;
        }
        self.moved.sent += bytes as u64;
    }

    /// Reads into `slices` up to the end of the file; returns the number of bytes.
    pub(crate) fn read_to(
        &mut self,
        handle: &[u8],
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<usize, RequestError> {
        self.read_with(handle, |file| Ok(read_at(file, slices, offset)?))
    }

    fn read_with(
        &mut self,
        handle: &[u8],
        read: impl FnOnce(&File) -> io::Result<usize>,
    ) -> Result<usize, RequestError> {
        let read = read(self.handles.open_file(handle)?)?;
        self.has_sent(handle, read);
        Ok(read)
    }

    /// Writes data that arrive in pieces, after those that already went directly to the file.
    pub(crate) fn write<'d>(
        &mut self,
        handle: &[u8],
        offset: u64,
        data: impl IntoIterator<Item = &'d [u8]>,
    ) -> Answer {
        let placed = std::mem::take(&mut self.placed);
        let OpenHandle::File {
            file,
            append,
            received,
            ..
        } = self.handles.get_mut(handle)?
        else {
            return Err(Errno::ISDIR.into());
        };
        if let Some(failed) = placed.failed {
            return Err(failed.into());
        }
        let offset = offset.saturating_add(placed.bytes);
        let mut slices: Vec<IoSlice<'_>> = data.into_iter().map(IoSlice::new).collect();
        let written = placed.bytes + write_at(file, &mut slices, (!*append).then_some(offset))?;
        *received += written;
        self.moved.received += written;
        Ok(())
    }
}

/// True if carrying out this request early cannot change the answer to any earlier request.
pub(crate) fn changes_nothing(request: &Request<'_>) -> bool {
    use Request as R;
    match request {
        R::Open { flags, .. } => *flags == OpenFlags::READ,
        R::Read { .. }
        | R::Fstat { .. }
        | R::Stat { .. }
        | R::Lstat { .. }
        | R::Opendir { .. }
        | R::Readdir { .. }
        | R::Readlink { .. }
        | R::Realpath { .. } => true,
        _ => false,
    }
}

fn read_aside(
    file: &File,
    handle: Vec<u8>,
    (offset, len): (u64, usize),
    mut block: Block,
) -> Outcome {
    block.clear();
    let slices = block.grow(len).into_iter();
    let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
    let read = read_at(file, &mut slices, offset);
    drop(slices);
    Outcome::Read(handle, block, read)
}

/// Reads into `slices` up to the end of the file. A short read is not an error: clients request the
/// rest again.
fn read_at(file: &File, slices: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::preadv(file, slices, offset))
}

/// Writes all of `slices`, at the end of the file if `offset` is `None`; returns the number of
/// bytes.
pub(crate) fn write_at(
    file: &File,
    mut slices: &mut [IoSlice<'_>],
    offset: Option<u64>,
) -> Result<u64, Errno> {
    let mut done = 0;
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = &slices[..slices.len().min(sys::IOV_MAX)];
        let n = retry_on_intr(|| match offset {
            Some(offset) => rustix::io::pwritev(file, some, offset.saturating_add(done)),
            None => rustix::io::writev(file, some),
        })?;
        if n == 0 {
            return Err(Errno::IO);
        }
        done += n as u64;
        IoSlice::advance_slices(&mut slices, n);
    }
    Ok(done)
}

fn open_flags(flags: OpenFlags) -> OFlags {
    let has = |flag| flags.contains(flag);
    let mut how = match (has(OpenFlags::READ), has(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let more = [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREAT, OFlags::CREATE),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::EXCL, OFlags::EXCL),
    ];
    for (asked, flag) in more {
        if has(asked) {
            how |= flag;
        }
    }
    // A terminal that a client opens must not become this process's controlling terminal.
    how | OFlags::NOCTTY
}
