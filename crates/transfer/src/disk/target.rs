use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use plan::{Attributes, Beyond, Keep, Stored};
use rustix::fs::{
    Access, CWD, Mode, OFlags, Timespec, Timestamps, access, fchmod, futimens, openat,
};
use rustix::io::Errno;

use super::gathered::piece_of;
use super::metadata;
use super::older::Older;
use super::{holes, temp_name};
use crate::sums::FileSums;

/// Permissions of what is not all there yet.
const PRIVATE: u32 = 0o600;
/// Symlinks followed before a target counts as a loop (Linux's own bound).
const MAX_SYMLINKS: usize = 40;

/// A local file that is written. Dropped unfinished, it removes its temporary.
#[derive(Debug)]
pub(crate) struct Target {
    pub(super) file: File,
    form: Form,
    // The end of the furthest write, to cut an older, longer file or leave the size alone.
    pub(super) end: AtomicU64,
    // A write failed: what is here must not get the final name.
    incomplete: AtomicBool,
    /// Of what is written, where sums are wanted.
    pub(super) sums: Option<Arc<FileSums>>,
    /// Blocks of zeros become holes.
    pub(super) sparse: bool,
    /// What it is rebuilt from.
    pub(super) older: Option<Older>,
    /// What is not written of it reads as zeros.
    fresh: bool,
    /// It is on a file system that is memory, once somebody has asked.
    in_memory: OnceLock<bool>,
    /// See [`Target::piece`].
    piece: OnceLock<u64>,
}

#[derive(Debug)]
enum Form {
    /// Written beside the final name and renamed to it.
    Temporary(Temporary),
    /// A regular file written under its final name; whether this run created it, and whether that is
    /// since nothing can be made beside it.
    InPlace { created: bool, unwritable: bool },
    /// A device, FIFO or terminal: bytes go in order, there is nothing to finish.
    Stream(Mutex<Stream>),
}

#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    target: PathBuf,
    // The file that the rename replaces.
    replaced: Option<Replaced>,
    // Its own bits, where they are known.
    mode: Option<u32>,
    renamed: bool,
    // It is written down: whoever goes on with it finds it, or removes it.
    stays: AtomicBool,
}

/// What stays of a file that another takes the place of, as if that had been written into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    mode: u32,
    owner: (u32, u32),
}

impl Replaced {
    pub(super) fn of(meta: &fs::Metadata) -> Self {
        Self {
            // Not the bits that have it run as somebody: they were given to other contents.
            mode: meta.mode() & 0o1777,
            owner: (meta.uid(), meta.gid()),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed && !*self.stays.get_mut() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes that came before their turn.
#[derive(Debug, Default)]
struct Stream {
    next: u64,
    early: BTreeMap<u64, Vec<Bytes>>,
}

/// How a target is finished; as [`plan::DiskRequest::FinishTarget`].
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub(crate) size: u64,
    pub(crate) attributes: Attributes,
    pub(crate) preserve: bool,
    pub(crate) fsync: bool,
    pub(crate) beyond: Beyond,
}

/// Creates the temporary for `target`, or opens it in place; as
/// [`plan::DiskRequest::CreateTarget`]. `keep` is how its name is written down, and whether it
/// stays.
pub(crate) fn create_target(
    target: &Path,
    inplace: bool,
    replace_link: bool,
    keep: Option<(Keep, bool)>,
) -> io::Result<Target> {
    create_target_as(target, inplace, replace_link, keep, PRIVATE)
}

/// The same; a temporary has these permission bits from the beginning, but for the umask.
pub(crate) fn create_target_as(
    target: &Path,
    inplace: bool,
    replace_link: bool,
    keep: Option<(Keep, bool)>,
    mode: u32,
) -> io::Result<Target> {
    let (target, found) = match replace_link {
        true => (target.to_path_buf(), fs::symlink_metadata(target)),
        false => follow(target)?,
    };
    let existing = match found {
        // The rename puts the file in its place.
        Ok(meta) if meta.is_symlink() => None,
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if ends_with_slash(&target) && existing.is_none() {
        return Err(io::Error::other("no such directory"));
    }
    match existing {
        Some(meta) if meta.is_dir() => Err(Errno::ISDIR.into()),
        Some(meta) if !meta.is_file() => open_stream(&target),
        Some(_) if inplace => open_in_place(&target, false),
        None if inplace => create_in_place(&target),
        existing => {
            if existing.is_some() {
                // The rename would not ask: a read-only file stays one, as with open(2).
                access(&target, Access::WRITE_OK)?;
            }
            let replaced = existing.as_ref().map(Replaced::of);
            // The one that is replaced may be nobody else's to read.
            let mode = replaced.map_or(mode, |_| PRIVATE);
            create_temporary(target, replaced, keep, mode)
        }
    }
}

/// The same where nothing stands, since this run has made the directory: a look takes a ninth of what a
/// small file costs.
pub(crate) fn create_fresh(
    target: &Path,
    keep: Option<(Keep, bool)>,
    mode: u32,
) -> io::Result<Target> {
    create_temporary(target.to_path_buf(), None, keep, mode)
}

/// `path` with every symlink at its end followed, whether or not the last one leads anywhere, and
/// what is there.
fn follow(path: &Path) -> io::Result<(PathBuf, io::Result<fs::Metadata>)> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SYMLINKS {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => {
                let points_to = fs::read_link(&path)?;
                path = match path.parent() {
                    Some(parent) => parent.join(points_to),
                    None => points_to,
                };
            }
            found => return Ok((path, found)),
        }
    }
    Err(Errno::LOOP.into())
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn open_stream(target: &Path) -> io::Result<Target> {
    // O_NONBLOCK only while opening: a FIFO nobody reads would hold this thread for ever.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = openat(CWD, target, flags, Mode::empty()).map_err(|e| match e {
        Errno::NXIO => io::Error::other("nobody has this FIFO or device open for reading"),
        e => e.into(),
    })?;
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(Target::new(fd.into(), Form::Stream(Mutex::default())))
}

fn open_in_place(target: &Path, unwritable: bool) -> io::Result<Target> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = openat(CWD, target, flags, Mode::empty())?;
    let created = false;
    Ok(Target::new(
        fd.into(),
        Form::InPlace {
            created,
            unwritable,
        },
    ))
}

fn create_in_place(target: &Path) -> io::Result<Target> {
    let file = create_new(target, PRIVATE)?;
    let (created, unwritable) = (true, false);
    Ok(Target::new(
        file,
        Form::InPlace {
            created,
            unwritable,
        },
    ))
}

fn create_temporary(
    target: PathBuf,
    replaced: Option<Replaced>,
    keep: Option<(Keep, bool)>,
    mode: u32,
) -> io::Result<Target> {
    let name = target
        .file_name()
        .ok_or_else(|| io::Error::from(Errno::ISDIR))?;
    for tries in 0..16 {
        let temp = match &keep {
            Some((keep, _)) if tries < 3 => keep.temporary(name.as_bytes(), tries),
            _ => temp_name(name.as_bytes()),
        };
        let path = target.with_file_name(OsStr::from_bytes(&temp));
        match create_new(&path, mode) {
            Ok(file) => {
                let temporary = Temporary {
                    path,
                    target,
                    replaced,
                    mode: Some(mode & !sys::umask()),
                    renamed: false,
                    stays: AtomicBool::new(keep.as_ref().is_some_and(|(_, stays)| *stays)),
                };
                return Ok(Target::new(file, Form::Temporary(temporary)));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            // A file that may be written in a directory that may not: scp writes into it.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && replaced.is_some() => {
                return open_in_place(&target, true);
            }
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST.into())
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    // What is rebuilt is read once more.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::from_raw_mode(mode))?.into())
}

impl Target {
    fn new(file: File, form: Form) -> Self {
        let fresh = matches!(
            form,
            Form::Temporary(_) | Form::InPlace { created: true, .. }
        );
        Self {
            file,
            form,
            end: AtomicU64::new(0),
            incomplete: AtomicBool::new(false),
            sums: None,
            sparse: false,
            older: None,
            fresh,
            in_memory: OnceLock::new(),
            piece: OnceLock::new(),
        }
    }

    /// Opened as it is.
    pub(super) fn adopted(
        file: File,
        path: PathBuf,
        target: PathBuf,
        replaced: Option<Replaced>,
    ) -> Self {
        let end = file.metadata().map_or(0, |meta| meta.len());
        let temporary = Temporary {
            path,
            target,
            replaced,
            mode: None,
            renamed: false,
            stays: AtomicBool::new(true),
        };
        let mut adopted = Self::new(file, Form::Temporary(temporary));
        adopted.fresh = false;
        adopted.end.store(end, Ordering::Relaxed);
        adopted
    }

    /// Makes durable what was written; returns the modification time, in nanoseconds.
    pub(crate) fn sync(&self) -> io::Result<u64> {
        if let Form::Stream(_) = self.form {
            return Ok(0);
        }
        self.file.sync_data()?;
        Ok(mtime(&self.file.metadata()?))
    }

    /// The temporary stays.
    pub(crate) fn leave(&self) {
        if let Form::Temporary(temporary) = &self.form {
            temporary.stays.store(true, Ordering::Relaxed);
        }
    }

    /// Removes the temporary.
    pub(crate) fn discard(self) {
        if let Form::Temporary(temporary) = &self.form {
            temporary.stays.store(false, Ordering::Relaxed);
        }
    }

    /// Whether it gets its final name by a rename.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self.form, Form::Temporary(_))
    }

    /// Whether it was to have a temporary, and nothing can be made beside it.
    fn is_unwritable(&self) -> bool {
        matches!(
            self.form,
            Form::InPlace {
                unwritable: true,
                ..
            }
        )
    }

    /// Whether writes may come in any order.
    pub(crate) fn is_seekable(&self) -> bool {
        !matches!(self.form, Form::Stream(_))
    }

    /// Whether a write is a copy within memory and nothing else: it waits for no disk.
    pub(super) fn takes_at_once(&self) -> bool {
        let plain = self.sums.is_none() && !self.sparse && self.is_seekable();
        plain && *self.in_memory.get_or_init(|| sys::is_in_memory(&self.file))
    }

    /// How long the pieces are that it takes best ([`piece_of`]).
    pub(super) fn piece(&self) -> u64 {
        *self.piece.get_or_init(|| {
            let meta = self.file.metadata();
            piece_of(meta.map_or(0, |meta| meta.blksize()))
        })
    }

    /// Writes a copy of `bytes` at `offset`, the next bytes in order.
    pub(crate) fn write_slice(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Form::Stream(_) = &self.form {
            return (&self.file).write_all(bytes);
        }
        if self.sparse {
            return self.write_sparse(offset, &[Bytes::copy_from_slice(bytes)]);
        }
        write_full(&self.file, &mut [IoSlice::new(bytes)], offset)?;
        self.end
            .fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of zeros become holes from now on.
    pub(crate) fn keep_sparse(&mut self) {
        self.sparse = true;
    }

    /// Writes `pieces` at `offset`; returns the bytes written.
    pub(crate) fn write(&self, offset: u64, pieces: Vec<Bytes>) -> io::Result<u64> {
        if let Some(sums) = &self.sums {
            sums.add(offset, pieces.iter().map(AsRef::as_ref));
        }
        let written = self.write_pieces(offset, pieces);
        if written.is_err() {
            self.incomplete.store(true, Ordering::Relaxed);
        }
        written
    }

    /// What was to be written of it is not there.
    pub(super) fn spoil(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    fn write_pieces(&self, offset: u64, pieces: Vec<Bytes>) -> io::Result<u64> {
        let len: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        if let Form::Stream(stream) = &self.form {
            let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.early.insert(offset, pieces);
            stream.drain(&self.file)?;
        } else if self.sparse {
            self.write_sparse(offset, &pieces)?;
        } else {
            let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|p| IoSlice::new(p)).collect();
            write_full(&self.file, &mut slices, offset)?;
            self.end.fetch_max(offset + len, Ordering::Relaxed);
        }
        Ok(len)
    }

    /// Writes what is not zeros.
    fn write_sparse(&self, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        let whole = match pieces {
            [piece] => piece.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        for (at, len, zeros) in holes::runs(offset, &whole) {
            let place = offset + at as u64;
            if zeros {
                self.skip(place, len as u64)?;
            } else {
                write_full(&self.file, &mut [IoSlice::new(&whole[at..at + len])], place)?;
                self.end.fetch_max(place + len as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Sums a hole as what passes is summed, where that is wanted.
    pub(super) fn sum_zeros(&self, offset: u64, len: u64) {
        if let Some(sums) = &self.sums {
            for (at, len) in holes::chunks(offset, len) {
                sums.add(at, holes::zeros(len).iter().map(AsRef::as_ref));
            }
        }
    }

    /// There are `len` zeros at `offset`, the next bytes in order where that matters.
    pub(crate) fn skip(&self, offset: u64, len: u64) -> io::Result<()> {
        let seekable = self.is_seekable();
        if seekable && (self.fresh || sys::punch_hole(&self.file, offset, len)) {
            return Ok(());
        }
        let write = |(at, len)| {
            let zeros = holes::zeros(len);
            if !seekable {
                return self.write_pieces(at, zeros).map(drop);
            }
            let mut slices: Vec<IoSlice<'_>> = zeros.iter().map(|p| IoSlice::new(p)).collect();
            write_full(&self.file, &mut slices, at)?;
            self.end.fetch_max(at + len, Ordering::Relaxed);
            Ok(())
        };
        let written = holes::chunks(offset, len).try_for_each(write);
        if written.is_err() {
            self.spoil();
        }
        written
    }

    /// Sets size, owner, extended attributes, mode, access control lists and times, syncs when
    /// asked, closes, renames to the final name. Returns what there is to tell of it.
    pub(crate) fn finish(self, finish: Finish) -> io::Result<Stored> {
        let mut stored = Stored {
            in_place: !self.is_temporary(),
            unwritable: self.is_unwritable(),
            ..Stored::default()
        };
        if let Form::Stream(_) = self.form {
            return Ok(stored);
        }
        // The finish may have been asked for before the write was known to fail.
        if self.incomplete.load(Ordering::Relaxed) {
            return Err(io::Error::other("not all of it could be written"));
        }
        self.set_size(finish.size)?;
        stored.belonged = self.keep_owner(&finish)?;
        metadata::before_mode(&self.file, &finish.beyond, &mut stored.not_kept);
        if let Form::Temporary(Temporary {
            replaced: Some(_),
            target,
            ..
        }) = &self.form
        {
            metadata::keep_acls(&self.file, target, &finish.beyond, &mut stored.not_kept);
        }
        self.set_mode(&finish)?;
        metadata::behind_mode(&self.file, &finish.beyond, &mut stored.not_kept);
        if finish.preserve
            && let Some(times) = timestamps(&finish.attributes)
        {
            futimens(&self.file, &times)?;
        }
        if finish.fsync {
            self.file.sync_all()?;
        }
        let Self { file, mut form, .. } = self;
        close(file)?;
        if let Form::Temporary(temporary) = &mut form {
            fs::rename(&temporary.path, &temporary.target)?;
            temporary.renamed = true;
            if finish.fsync {
                sync_parent(&temporary.target)?;
            }
        }
        Ok(stored)
    }

    /// Gives it the owner and group of the file that it replaces, unless it is to have others. Returns
    /// those where they could not be kept.
    fn keep_owner(&self, finish: &Finish) -> io::Result<Option<(u32, u32)>> {
        let Form::Temporary(Temporary {
            replaced: Some(replaced),
            ..
        }) = &self.form
        else {
            return Ok(None);
        };
        // What is to run as its owner runs as whoever has copied it, or as who was named.
        let runs = finish.preserve
            && finish
                .attributes
                .mode
                .is_some_and(|mode| mode & 0o6000 != 0);
        if runs || finish.beyond.owner.is_some() {
            return Ok(None);
        }
        let meta = self.file.metadata()?;
        let kept = metadata::keep_owner(&self.file, (meta.uid(), meta.gid()), replaced.owner);
        Ok((!kept).then_some(replaced.owner))
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let exact = matches!(
            self.form,
            Form::Temporary(_) | Form::InPlace { created: true, .. }
        ) && self.end.load(Ordering::Relaxed) == size;
        if exact {
            Ok(())
        } else {
            self.file.set_len(size)
        }
    }

    fn set_mode(&self, finish: &Finish) -> io::Result<()> {
        let source = finish.attributes.mode;
        let as_created = || source.unwrap_or(0o666) & 0o777 & !sys::umask();
        let mode = match (&self.form, source) {
            (_, Some(mode)) if finish.preserve => Some(mode & 0o7777),
            (Form::Temporary(t), _) => Some(t.replaced.map_or_else(as_created, |old| old.mode)),
            (Form::InPlace { created: true, .. }, _) => Some(as_created()),
            _ => None,
        };
        let has = match &self.form {
            Form::Temporary(temporary) => temporary.mode,
            _ => None,
        };
        if let Some(mode) = mode.filter(|_| mode != has) {
            fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

impl Stream {
    fn drain(&mut self, mut file: &File) -> io::Result<()> {
        while let Some(pieces) = self.early.remove(&self.next) {
            for piece in pieces {
                file.write_all(&piece)?;
                self.next += piece.len() as u64;
            }
        }
        Ok(())
    }
}

/// Over NFS, and where there are quotas, only this may tell that what was written is not kept.
fn close(file: File) -> io::Result<()> {
    #[cfg(test)]
    if let Some(e) = tests::CLOSE_FAILS.get() {
        return Err(e.into());
    }
    nix::unistd::close(OwnedFd::from(file)).map_err(io::Error::from)
}

fn write_full(file: &File, mut slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
    let mut done = 0;
    // Empty pieces at the front would look like a write that wrote nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = slices.len().min(sys::IOV_MAX);
        match rustix::io::pwritev(file, &slices[..some], offset + done) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                done += n as u64;
                IoSlice::advance_slices(&mut slices, n);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Access and modification time for futimens and utimensat, if they are known.
pub(crate) fn timestamps(attributes: &Attributes) -> Option<Timestamps> {
    let (accessed, modified) = attributes.times?;
    let (accessed_part, modified_part) = attributes.nanoseconds.unwrap_or_default();
    let time = |seconds: u32, part: u32| Timespec {
        tv_sec: i64::from(seconds),
        tv_nsec: part.into(),
    };
    Some(Timestamps {
        last_access: time(accessed, accessed_part),
        last_modification: time(modified, modified_part),
    })
}

/// Modification time in nanoseconds since 1970.
pub(crate) fn mtime(meta: &fs::Metadata) -> u64 {
    let seconds = u64::try_from(meta.mtime()).unwrap_or(0);
    let nanoseconds = u64::try_from(meta.mtime_nsec()).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Makes a rename in `path`'s directory durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
