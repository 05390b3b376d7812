//! What is asked of open files.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use sftp::{Attrs, OpenFlags, Request, StatusCode};
use wire::Block;

use crate::answer::{Answer, LONGEST_DATA, Session};
use crate::aside::{Aside, Found, Outcome};
use crate::error::Refused;
use crate::handles::Open;
use crate::reply::Reply;
use crate::unsynced::close;

/// copy-data reads so much at a time.
const COPIED_AT_ONCE: usize = 1 << 20;
/// copy_file_range(2) is asked for so much first, and for twice as much each time that it took little,
/// as where file systems share blocks, ...
#[cfg(target_os = "linux")]
const LEAST_IN_KERNEL: usize = 4 << 20;
/// ... up to this.
#[cfg(target_os = "linux")]
const MOST_IN_KERNEL: usize = 1 << 30;
/// Between two pieces of a copy the client is listened to: a longer one would keep it waiting.
#[cfg(target_os = "linux")]
const LONG: Duration = Duration::from_millis(5);
/// What less is asked for than this shares its packet with other answers.
const GATHERED_BELOW: usize = 8 << 10;
/// A copy of no more than this takes no longer than a few WRITEs.
const SHORT: u64 = 4 << 20;
/// Bytes of a STATUS, about.
const STATUS: usize = 32;

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
            // Whatever is there already is somebody else's.
            if !how.contains(OFlags::CREATE) {
                return Err(self.forbidden());
            }
            how |= OFlags::EXCL;
        }
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o666) & 0o7777);
        // Whoever opens a FIFO does not wait for its other end: the client has other requests. A file
        // of which somebody else has to give up a lease is waited for.
        let opened = match self.export.place.open(path, how | OFlags::NONBLOCK, mode) {
            Err(Errno::AGAIN) => self.export.place.open(path, how, mode),
            opened => opened,
        };
        let file = File::from(opened?);
        let stat = fs::fstat(&file)?;
        // It makes no difference to a regular file.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::Fifo | FileType::RegularFile) {
            fs::fcntl_setfl(&file, how & OFlags::APPEND)?;
        }
        self.has_put(&file)?;
        let handle = self.handles.insert(Open::File {
            file: Arc::new(file),
            append: flags.contains(OpenFlags::APPEND),
            sent: 0,
            received: 0,
            path: path.to_vec(),
            told: false,
        })?;
        self.moved.files += 1;
        reply.handle(&handle);
        Ok(())
    }

    pub(crate) fn close(&mut self, handle: &[u8]) -> Answer {
        let Open::File {
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
        // A quota, or a server behind this one, may speak up only now. Where somebody still reads it
        // nothing is left to be said.
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
            true => Err(Refused::end_of_file()),
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
        // Behind an answer that is waited for it would lie there for long.
        if !awaits && self.windows.lay(file, offset, len, &mut block) {
            reply.long_data(block, len);
            self.has_sent(handle, len);
            return Ok(());
        }
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let found = match &mut self.aside {
            Some(aside) => aside.try_read(file, &mut slices, offset)?,
            None => Found::Here(read_at(file, &mut slices, offset)?),
        };
        drop(slices);
        match (found, &mut self.aside) {
            (Found::Here(read), _) => {
                reply.long_data(block, all(read)?);
                self.has_sent(handle, read);
            }
            (Found::Elsewhere, Some(aside)) => {
                let (file, handle) = (Arc::clone(file), handle.to_vec());
                let ticket = aside.begin(move || read_aside(&file, handle, (offset, len), block));
                reply.awaits(ticket, len);
            }
            (Found::Elsewhere, None) => {}
        }
        Ok(())
    }

    /// Makes a file durable. Others of the client's have their turn meanwhile.
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

    /// Notes what has left of a file.
    pub(crate) fn has_sent(&mut self, handle: &[u8], bytes: usize) {
        if let Ok(Open::File { sent, .. }) = self.handles.get_mut(handle) {
            *sent += bytes as u64;
        }
        self.moved.sent += bytes as u64;
    }

    /// Reads to `slices`, as far as the file goes; how many bytes.
    pub(crate) fn read_to(
        &mut self,
        handle: &[u8],
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Refused> {
        self.read_with(handle, |file| Ok(read_at(file, slices, offset)?))
    }

    fn read_with(
        &mut self,
        handle: &[u8],
        read: impl FnOnce(&File) -> io::Result<usize>,
    ) -> Result<usize, Refused> {
        let read = read(self.handles.open_file(handle)?)?;
        self.has_sent(handle, read);
        Ok(read)
    }

    /// The data come in pieces.
    pub(crate) fn write<'d>(
        &mut self,
        handle: &[u8],
        offset: u64,
        data: impl IntoIterator<Item = &'d [u8]>,
    ) -> Answer {
        let Open::File {
            file,
            append,
            received,
            ..
        } = self.handles.get_mut(handle)?
        else {
            return Err(Errno::ISDIR.into());
        };
        let mut slices: Vec<IoSlice<'_>> = data.into_iter().map(IoSlice::new).collect();
        let written = write_at(file, &mut slices, (!*append).then_some(offset))?;
        *received += written;
        self.moved.received += written;
        Ok(())
    }

    /// copy-data of draft-ietf-secsh-filexfer-extensions-00 section 7: to the end where `len` is 0. Of
    /// files only: what has no end would be copied for ever. A long one is carried out aside, where others have
    /// their turn meanwhile.
    pub(crate) fn copy_data(
        &mut self,
        (from, from_offset): (&[u8], u64),
        len: u64,
        (to_handle, to_offset): (&[u8], u64),
        reply: &mut Reply<'_>,
    ) -> Answer {
        let (from, to) = (self.handles.file(from)?, self.handles.file(to_handle)?);
        let whole = match len {
            0 => u64::MAX,
            len => len,
        };
        let (a, b) = (fs::fstat(&**from)?, fs::fstat(&**to)?);
        if FileType::from_raw_mode(a.st_mode) != FileType::RegularFile {
            let words = "only what is in a regular file is copied";
            return Err(Refused::new(StatusCode::FAILURE, words));
        }
        let same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let meet = from_offset < to_offset.saturating_add(whole)
            && to_offset < from_offset.saturating_add(whole);
        if same && meet {
            return Err(Refused::new(
                StatusCode::FAILURE,
                "the ranges to copy between overlap",
            ));
        }
        let (out, into) = ((Arc::clone(from), from_offset), (Arc::clone(to), to_offset));
        let until = self.aside.as_ref().map(Aside::until).unwrap_or_default();
        match &mut self.aside {
            Some(aside) if aside.is_told() && whole > SHORT => {
                let handle = to_handle.to_vec();
                let ticket = aside.begin_long(move || {
                    let (out, into) = ((&*out.0, out.1), (&*into.0, into.1));
                    Outcome::Copied(handle, copy(out, len, into, &|| !until.is_over()))
                });
                reply.awaits(ticket, STATUS);
                Ok(())
            }
            _ => {
                let goes_on = || {
                    self.meanwhile();
                    !until.is_over()
                };
                copy((&out.0, out.1), len, (&into.0, into.1), &goes_on)
            }
        }
    }
}

/// Copies `len` bytes, or all there are where that is 0, while it `goes_on`.
fn copy(
    (from, from_offset): (&File, u64),
    len: u64,
    (to, to_offset): (&File, u64),
    goes_on: &impl Fn() -> bool,
) -> Answer {
    let whole = match len {
        0 => u64::MAX,
        len => len,
    };
    // Where file systems share blocks that costs nothing; elsewhere one copy less.
    let (out, into) = ((from, from_offset), (to, to_offset));
    let mut done = copy_in_kernel(out, whole, into, goes_on);
    let mut buffer = match done < whole {
        true => vec![0; COPIED_AT_ONCE],
        false => Vec::new(),
    };
    while done < whole {
        if !goes_on() {
            return Err(Refused::new(StatusCode::FAILURE, "the client has left"));
        }
        let most = usize::try_from(whole - done).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let at = from_offset.saturating_add(done);
        let read = retry_on_intr(|| rustix::io::pread(from, &mut buffer[..most], at))?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], to_offset.saturating_add(done))?;
        done += read as u64;
    }
    match len == 0 || done == len {
        true => Ok(()),
        false => Err(Refused::end_of_file()),
    }
}

/// Copies as far as the kernel does by itself; returns how many bytes. What it cannot do, and what
/// fails, is another's to do, or to fail.
#[cfg(target_os = "linux")]
fn copy_in_kernel(
    (from, from_offset): (&File, u64),
    len: u64,
    (to, to_offset): (&File, u64),
    goes_on: &impl Fn() -> bool,
) -> u64 {
    let (mut done, mut at_once) = (0, LEAST_IN_KERNEL);
    while done < len && goes_on() {
        let (mut a, mut b) = (
            from_offset.saturating_add(done),
            to_offset.saturating_add(done),
        );
        let most = usize::try_from(len - done).unwrap_or(usize::MAX);
        let begun = Instant::now();
        match fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), most.min(at_once)) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n as u64,
        }
        at_once = match begun.elapsed() < LONG {
            true => MOST_IN_KERNEL.min(at_once * 2),
            false => LEAST_IN_KERNEL,
        };
    }
    done
}

#[cfg(not(target_os = "linux"))]
fn copy_in_kernel(_: (&File, u64), _: u64, _: (&File, u64), _: &impl Fn() -> bool) -> u64 {
    0
}

/// Whether nothing that was asked before could answer otherwise once this was carried out.
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

/// Fills `slices` as far as the file goes. A short read says nothing to clients: what follows they
/// ask for again.
fn read_at(file: &File, slices: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::preadv(file, slices, offset))
}

/// Writes all of `slices`, at the end of a file that is appended to; returns how many bytes.
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
    // Whoever opens a terminal here shall not get it.
    how | OFlags::NOCTTY
}
