//! Writes local files: a temporary that is renamed, a file in place, or a stream.

mod basis_file;
mod replace;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, fchmod, futimens, openat,
};
use rustix::io::Errno;
use schedule::{Attributes, ExtraMetadata, LocalTargetPath, Parts, ResumeData, StoredTarget};

use super::directories::{NameInDirectory, OpenDirectoryCache, WriteDestination, kind_of};
use super::metadata;
use super::write_coalescer::piece_of;
use super::{failed_to, holes, os_words, temp_name};
use crate::sums::FileChecksums;

use basis_file::BasisFile;
pub(super) use basis_file::open_older;
use replace::{OverwrittenFile, replace};

/// Permissions of an incomplete file.
const PRIVATE: u32 = 0o600;

/// A local file that is written. Dropping it unfinished removes its temporary.
#[derive(Debug)]
pub(crate) struct LocalTarget {
    file: File,
    form: TargetForm,
    // The end of the furthest write, by which an older, longer file is truncated.
    end: AtomicU64,
    // A write failed, so the file must not get its final name.
    incomplete: AtomicBool,
    /// The checksums of the data written, if wanted.
    sums: Option<Arc<FileChecksums>>,
    /// True if blocks of zeros become holes.
    sparse: bool,
    /// The basis file, if the target is rebuilt from one.
    older: Option<BasisFile>,
    /// True if unwritten parts read as zeros.
    fresh: bool,
    /// True if the file is on a memory file system; set at the first query.
    in_memory: OnceLock<bool>,
    /// The preferred write size; see [`LocalTarget::piece`].
    piece: OnceLock<u64>,
}

#[derive(Debug)]
enum TargetForm {
    /// A file beside the final name that is renamed to it.
    Temporary(TargetTemporary),
    /// A regular file that is written under its final name: `created` by this run, and `unwritable`
    /// if its directory allows no new files.
    InPlace {
        created: bool,
        unwritable: bool,
        /// Permission bits that the directory withholds from new files.
        withheld: u32,
    },
    /// A device, FIFO or terminal: bytes are written in order and nothing has to be finished.
    Stream(Mutex<OutOfOrderData>),
}

#[derive(Debug)]
struct TargetTemporary {
    /// The temporary's location; the final name is in the same directory.
    at: NameInDirectory,
    target: NameInDirectory,
    // The file that the rename replaces.
    replaced: Option<ReplacedAttributes>,
    // The temporary's own permission bits, if known.
    mode: Option<u32>,
    renamed: bool,
    // True if the journal lists the temporary: a later run resumes or removes it.
    stays: AtomicBool,
}

/// The properties of a replaced file that its successor keeps, as if the file had been overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacedAttributes {
    mode: u32,
    owner: (u32, u32),
    /// The number of hard links.
    names: u64,
}

impl ReplacedAttributes {
    #[allow(
        clippy::useless_conversion,
        reason = "the types differ between architectures"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            // Setuid and setgid are left out, since they were granted to other contents.
            mode: stat.st_mode & 0o1777,
            owner: (stat.st_uid, stat.st_gid),
            names: stat.st_nlink.into(),
        }
    }
}

impl Drop for TargetTemporary {
    fn drop(&mut self) {
        if !self.renamed && !*self.stays.get_mut() {
            let _ = self.at.remove();
        }
    }
}

/// Data for a stream that arrived out of order.
#[derive(Debug, Default)]
struct OutOfOrderData {
    next: u64,
    early: BTreeMap<u64, Vec<Bytes>>,
}

/// The settings for finishing a target, as in [`schedule::DiskRequest::FinishTarget`].
#[derive(Clone, Debug)]
pub(crate) struct TargetFinishSettings {
    pub size: u64,
    pub attributes: Attributes,
    pub preserve: bool,
    pub fsync: bool,
    pub beyond: ExtraMetadata,
}

/// The settings for creating a target.
#[derive(Debug)]
pub(crate) struct CreateSettings<'a> {
    pub directories: &'a OpenDirectoryCache,
    pub path: &'a LocalTargetPath,
    /// True to write under the final name.
    pub inplace: bool,
    /// The journal's rule for the temporary's name, and true if the temporary survives an
    /// interruption.
    pub keep: Option<(ResumeData, bool)>,
    /// Permission bits that the file may have from its creation on.
    pub mode: Option<u32>,
    /// True if this run created the directory, so that no file exists there. Saves a lookup, a
    /// ninth of a small file's cost.
    pub fresh: bool,
}

/// Longest file name in bytes on Linux.
const NAME_MAX: usize = 255;

/// Creates the temporary for a target, or opens it in place, as in
/// [`schedule::DiskRequest::CreateTarget`].
///
/// # Errors
/// Those of the system, including its refusal to write a read-only file.
pub(crate) fn create_target(create: CreateSettings<'_>) -> io::Result<LocalTarget> {
    match create.at_once() {
        // A cached directory may have been removed and created again.
        Err(e) if e.kind() == io::ErrorKind::NotFound && create.directories.forget(create.path) => {
            create.at_once()
        }
        created => created,
    }
}

impl CreateSettings<'_> {
    fn at_once(&self) -> io::Result<LocalTarget> {
        if self.fresh && !self.inplace {
            return self.temporary(self.directories.locate(self.path)?, None);
        }
        let at = match self.directories.destination(self.path)? {
            WriteDestination::At(at) => at,
            WriteDestination::SpecialFile(path) => return open_as_it_is(&path),
        };
        let found = at.look()?;
        match found.map(|stat| (kind_of(&stat), stat)) {
            Some((FileType::Directory, _)) => Err(Errno::ISDIR.into()),
            Some((FileType::RegularFile, _)) if self.inplace => open_in_place(&at, false),
            Some((FileType::RegularFile, stat)) => {
                self.temporary(at, Some(ReplacedAttributes::of(&stat)))
            }
            Some((kind, _)) if kind != FileType::Symlink && self.path.is_named() => {
                open_stream(|flags| at.open(flags, 0))
            }
            Some(_) if self.inplace => {
                at.remove()?;
                create_in_place(&at)
            }
            // The rename replaces the symlink, FIFO, socket or device by the file.
            Some(_) => self.temporary(at, None),
            None if self.inplace => create_in_place(&at),
            None => self.temporary(at, None),
        }
    }

    fn temporary(
        &self,
        target: NameInDirectory,
        replaced: Option<ReplacedAttributes>,
    ) -> io::Result<LocalTarget> {
        // The temporary's name fits, and the rename would fail after all data have arrived.
        if target.name_bytes().len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        // The replaced file may be readable by its owner only.
        let mode = match (replaced, self.mode) {
            (None, Some(mode)) => mode,
            _ => PRIVATE,
        };
        for tries in 0..16 {
            let temp = match &self.keep {
                Some((keep, _)) if tries < 3 => keep.temporary(target.name_bytes(), tries),
                _ => temp_name(target.name_bytes()),
            };
            let at = self.directories.temporary(&target, &temp)?;
            match create_new(&at, mode) {
                Ok(file) => {
                    let temporary = TargetTemporary {
                        mode: Some(at.dir.created_mode(mode)),
                        at,
                        target,
                        replaced,
                        renamed: false,
                        stays: AtomicBool::new(self.keep.as_ref().is_some_and(|(_, stays)| *stays)),
                    };
                    return Ok(LocalTarget::new(file, TargetForm::Temporary(temporary)));
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                // A writable file in a directory that is not writable is overwritten, as scp does.
                Err(e)
                    if e.kind() == io::ErrorKind::PermissionDenied
                        && replaced.is_some()
                        && !self.directories.has_temp_dir() =>
                {
                    return open_in_place(&target, true);
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::EXIST.into())
    }
}

/// Opens a path of the user as the kernel resolves it.
fn open_as_it_is(path: &Path) -> io::Result<LocalTarget> {
    if fs::metadata(path)?.is_file() {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(CWD, path, flags, Mode::empty())?.into();
        return Ok(LocalTarget::in_place(file, false, false, 0));
    }
    open_stream(|flags| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()))
}

fn open_stream(open: impl FnOnce(OFlags) -> Result<OwnedFd, Errno>) -> io::Result<LocalTarget> {
    // O_NONBLOCK applies to the open only: a FIFO without a reader would block this thread forever.
    let fd = open(OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK).map_err(|e| match e {
        Errno::NXIO => io::Error::other(
            "no process has this FIFO or device open for reading: start the reader first",
        ),
        e => e.into(),
    })?;
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(LocalTarget::new(
        fd.into(),
        TargetForm::Stream(Mutex::default()),
    ))
}

fn open_in_place(at: &NameInDirectory, unwritable: bool) -> io::Result<LocalTarget> {
    let file = at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0)?.into();
    Ok(LocalTarget::in_place(file, false, unwritable, 0))
}

fn create_in_place(at: &NameInDirectory) -> io::Result<LocalTarget> {
    let umask = 0o777 & !at.dir.created_mode(0o777);
    Ok(LocalTarget::in_place(
        create_new(at, PRIVATE)?,
        true,
        false,
        umask,
    ))
}

fn create_new(at: &NameInDirectory, mode: u32) -> io::Result<File> {
    // A rebuilt file is read back, so it is opened for reading too.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    Ok(at.open(flags, mode)?.into())
}

impl LocalTarget {
    fn new(file: File, form: TargetForm) -> Self {
        let fresh = matches!(
            form,
            TargetForm::Temporary(_) | TargetForm::InPlace { created: true, .. }
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

    fn in_place(file: File, created: bool, unwritable: bool, withheld: u32) -> Self {
        let form = TargetForm::InPlace {
            created,
            unwritable,
            withheld,
        };
        Self::new(file, form)
    }

    /// Continues the temporary of an earlier run.
    pub(super) fn adopted(
        file: File,
        at: NameInDirectory,
        target: NameInDirectory,
        replaced: Option<ReplacedAttributes>,
    ) -> Self {
        let end = file.metadata().map_or(0, |meta| meta.len());
        let temporary = TargetTemporary {
            at,
            target,
            replaced,
            mode: None,
            renamed: false,
            stays: AtomicBool::new(true),
        };
        let mut adopted = Self::new(file, TargetForm::Temporary(temporary));
        adopted.fresh = false;
        adopted.end.store(end, Ordering::Relaxed);
        adopted
    }

    /// Makes the written data durable; returns the modification time in nanoseconds.
    pub(crate) fn sync(&self) -> io::Result<u64> {
        if let TargetForm::Stream(_) = self.form {
            return Ok(0);
        }
        self.file.sync_data()?;
        Ok(mtime(&self.file.metadata()?))
    }

    /// Keeps the temporary when the target is dropped.
    pub(crate) fn keep_temporary(&self) {
        if let TargetForm::Temporary(temporary) = &self.form {
            temporary.stays.store(true, Ordering::Relaxed);
        }
    }

    /// Removes the temporary.
    pub(crate) fn discard(self) {
        if let TargetForm::Temporary(temporary) = &self.form {
            temporary.stays.store(false, Ordering::Relaxed);
        }
    }

    /// Opens the temporary again to read it; `None` for a file that is written in place.
    ///
    /// # Errors
    /// The temporary cannot be opened, or another file has its name.
    pub(super) fn reopen_temporary(&self) -> io::Result<Option<File>> {
        let TargetForm::Temporary(temporary) = &self.form else {
            return Ok(None);
        };
        let file = File::from(temporary.at.open(OFlags::RDONLY | OFlags::NONBLOCK, 0)?);
        let (own, found) = (self.file.metadata()?, file.metadata()?);
        match (own.dev(), own.ino()) == (found.dev(), found.ino()) {
            true => Ok(Some(file)),
            false => Err(io::Error::other(
                "another file now has the name of the temporary file: run the same command again",
            )),
        }
    }

    /// True if the file is a temporary that a rename completes.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self.form, TargetForm::Temporary(_))
    }

    /// True if the target should have had a temporary, but its directory allows no new files.
    fn is_unwritable(&self) -> bool {
        matches!(
            self.form,
            TargetForm::InPlace {
                unwritable: true,
                ..
            }
        )
    }

    /// True if writes may come in any order.
    pub(crate) fn is_seekable(&self) -> bool {
        !matches!(self.form, TargetForm::Stream(_))
    }

    /// True if a write only copies within memory and cannot wait for a disk.
    pub(super) fn takes_at_once(&self) -> bool {
        let plain = self.sums.is_none() && !self.sparse && self.is_seekable();
        plain && *self.in_memory.get_or_init(|| sys::is_in_memory(&self.file))
    }

    /// Returns the preferred write size in bytes ([`piece_of`]).
    pub(super) fn piece(&self) -> u64 {
        *self.piece.get_or_init(|| {
            let meta = self.file.metadata();
            piece_of(meta.map_or(0, |meta| meta.blksize()))
        })
    }

    /// Writes `bytes` at `offset`; the caller writes in order.
    pub(crate) fn write_slice(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let TargetForm::Stream(_) = &self.form {
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

    /// Collects the checksums of the data from now on.
    pub(super) fn collect_sums(&mut self, sums: Option<Arc<FileChecksums>>) {
        self.sums = sums;
    }

    /// Makes blocks of zeros holes from now on.
    pub(crate) fn keep_sparse(&mut self) {
        self.sparse = true;
    }

    /// Writes `pieces` at `offset`; returns the number of bytes written.
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

    /// Marks the target as incomplete, because data for it were lost.
    pub(super) fn spoil(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    fn write_pieces(&self, offset: u64, pieces: Vec<Bytes>) -> io::Result<u64> {
        let len: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        if let TargetForm::Stream(stream) = &self.form {
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

    /// Writes the data and skips blocks of zeros.
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

    /// Adds a hole to the checksums, if wanted.
    pub(super) fn sum_zeros(&self, offset: u64, len: u64) {
        if let Some(sums) = &self.sums {
            for (at, len) in holes::chunks(offset, len) {
                sums.add(at, holes::zeros(len).iter().map(AsRef::as_ref));
            }
        }
    }

    /// Makes `len` bytes at `offset` read as zeros: a hole if possible, else written zeros.
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

    /// Sets size, owner, extended attributes, mode, access control lists and times, syncs if
    /// requested, closes, and renames to the final name. Returns warnings for the user.
    pub(crate) fn finish(self, finish: TargetFinishSettings) -> io::Result<StoredTarget> {
        let mut stored = StoredTarget {
            in_place: !self.is_temporary(),
            why_in_place: self
                .is_unwritable()
                .then(|| schedule::UNWRITABLE.to_owned()),
            ..StoredTarget::default()
        };
        if let TargetForm::Stream(_) = self.form {
            return Ok(stored);
        }
        // The finish may have been queued before the write failed.
        if self.incomplete.load(Ordering::Relaxed) {
            return Err(io::Error::other(
                "only part of the data could be written, because an earlier write failed: copy the file \
                 again",
            ));
        }
        let failed = |what: &'static str| move |e: io::Error| failed_to(what, &e);
        self.set_size(finish.size)
            .map_err(failed("set its length"))?;
        stored.belonged = self.keep_owner(&finish)?;
        metadata::before_mode(&self.file, &finish.beyond, &mut stored.not_kept);
        if let TargetForm::Temporary(TargetTemporary {
            replaced: Some(replaced),
            target,
            ..
        }) = &self.form
        {
            metadata::keep_attributes(&self.file, target, &finish.beyond, &mut stored.not_kept);
            stored.other_names = replaced.names.saturating_sub(1);
        }
        if let Err(e) = self.set_mode(&finish) {
            stored.not_kept.push((Parts::MODE, os_words(&e)));
        }
        metadata::behind_mode(&self.file, &finish.beyond, &mut stored.not_kept);
        if finish.preserve
            && let Some(times) = timestamps(&finish.attributes)
            && let Err(e) = futimens(&self.file, &times)
        {
            stored.not_kept.push((Parts::TIMES, os_words(&e.into())));
        }
        if finish.fsync {
            self.file.sync_all().map_err(failed("sync the file"))?;
        }
        let Self { file, mut form, .. } = self;
        close(file)?;
        if let TargetForm::Temporary(temporary) = &mut form {
            match replace(temporary, finish.size)? {
                None => temporary.renamed = true,
                Some(over) => finish_over(over, &finish, &mut stored)?,
            }
            if finish.fsync {
                let synced = temporary.target.dir.sync();
                synced.map_err(failed("sync its directory"))?;
            }
        }
        Ok(stored)
    }

    /// Sets owner and group of the replaced file, unless others were requested. Returns them if
    /// they could not be set.
    fn keep_owner(&self, finish: &TargetFinishSettings) -> io::Result<Option<(u32, u32)>> {
        let TargetForm::Temporary(TargetTemporary {
            replaced: Some(replaced),
            ..
        }) = &self.form
        else {
            return Ok(None);
        };
        // A setuid or setgid file belongs to the copying user or to the requested owner.
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
            TargetForm::Temporary(_) | TargetForm::InPlace { created: true, .. }
        ) && self.end.load(Ordering::Relaxed) == size;
        if exact {
            Ok(())
        } else {
            self.file.set_len(size)
        }
    }

    fn set_mode(&self, finish: &TargetFinishSettings) -> io::Result<()> {
        let source = finish.attributes.mode;
        let new = source.unwrap_or(0o666) & 0o777;
        let mode = match (&self.form, source) {
            (_, Some(mode)) if finish.preserve => Some(mode & 0o7777),
            (TargetForm::Temporary(t), _) => Some(match t.replaced {
                Some(old) => old.mode,
                None => t.at.dir.created_mode(new),
            }),
            (
                TargetForm::InPlace {
                    created: true,
                    withheld,
                    ..
                },
                _,
            ) => Some(new & !withheld),
            _ => None,
        };
        let has = match &self.form {
            TargetForm::Temporary(temporary) => temporary.mode,
            _ => None,
        };
        if let Some(mode) = mode.filter(|_| mode != has) {
            fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

impl TargetTemporary {
    /// True if a file exists under the final name.
    pub(super) fn replaces(&self) -> bool {
        self.replaced.is_some()
    }
}

/// Finishes a file that was overwritten instead of replaced; it keeps its own owner and access
/// control list.
fn finish_over(
    over: OverwrittenFile,
    finish: &TargetFinishSettings,
    stored: &mut StoredTarget,
) -> io::Result<()> {
    let OverwrittenFile { file, why } = over;
    *stored = StoredTarget {
        in_place: true,
        why_in_place: Some(schedule::not_replaced(why)),
        ..StoredTarget::default()
    };
    metadata::before_mode(&file, &finish.beyond, &mut stored.not_kept);
    if let Some(mode) = finish.attributes.mode.filter(|_| finish.preserve)
        && let Err(e) = fchmod(&file, Mode::from_raw_mode(mode & 0o7777))
    {
        stored.not_kept.push((Parts::MODE, os_words(&e.into())));
    }
    metadata::behind_mode(&file, &finish.beyond, &mut stored.not_kept);
    if let Some(times) = timestamps(&finish.attributes).filter(|_| finish.preserve)
        && let Err(e) = futimens(&file, &times)
    {
        stored.not_kept.push((Parts::TIMES, os_words(&e.into())));
    }
    if finish.fsync {
        file.sync_all()?;
    }
    close(file)
}

impl OutOfOrderData {
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

/// Closes the file. On NFS and with quotas, only close(2) may report that data were lost.
fn close(file: File) -> io::Result<()> {
    #[cfg(test)]
    if let Some(e) = tests::CLOSE_FAILS.get() {
        return Err(e.into());
    }
    nix::unistd::close(OwnedFd::from(file)).map_err(io::Error::from)
}

fn write_full(file: &File, mut slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
    let mut done = 0;
    // Leading empty slices would look like a write of zero bytes.
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

/// Returns access and modification time for futimens(3) and utimensat(2), if known.
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

/// Returns the modification time of a stat(2) result in nanoseconds since 1970.
#[allow(
    clippy::useless_conversion,
    reason = "the types differ between architectures"
)]
pub(crate) fn mtime_of(stat: &Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanoseconds = u64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Returns the modification time in nanoseconds since 1970.
pub(crate) fn mtime(meta: &fs::Metadata) -> u64 {
    let seconds = u64::try_from(meta.mtime()).unwrap_or(0);
    let nanoseconds = u64::try_from(meta.mtime_nsec()).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
