//! Executes the requests of lanes on local files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use schedule::{DiskReply, DiskRequest, JobId, LocalTargetPath};
use wire::{PacketBuf, PayloadBlock};

use super::error::SharedTempLostError;
use super::pool::JobFile;
use super::target::open_older;
use super::{
    CreateSettings, LocalSource, LocalTarget, OpenDirectoryCache, TargetFinishSettings,
    adopt_target, create_target, delta, holes, packed,
};
use crate::sums::{ChecksumLedger, ChecksumPieceTicket};

/// Reply to a request, and the file to keep for its job.
pub(super) type ExecuteResult = io::Result<(DiskReply, Option<JobFile>)>;

/// Executes `request` on the job's `file`.
pub(super) fn execute_on_files(
    request: DiskRequest,
    file: Option<JobFile>,
    ticket: Option<ChecksumPieceTicket>,
    ledger: Option<&ChecksumLedger>,
    directories: &OpenDirectoryCache,
) -> ExecuteResult {
    let execution = DiskRequestExecution {
        job: request.job(),
        ticket,
        ledger,
        directories,
    };
    match request {
        DiskRequest::Compare { .. } | DiskRequest::Search { .. } => {
            Ok((delta::execute(request, file.as_ref())?, None))
        }
        DiskRequest::OpenSource { .. }
        | DiskRequest::OpenBasis { .. }
        | DiskRequest::CreateTarget { .. }
        | DiskRequest::StoreTarget { .. } => execution.open(request),
        DiskRequest::Leave { .. }
        | DiskRequest::Discard { .. }
        | DiskRequest::CloseSource { .. } => execution.release(&request, file),
        request => match file {
            Some(JobFile::Source(source)) => execution.use_source(request, &source),
            Some(JobFile::Target(target)) => execution.use_target(request, target),
            _ => Err(not_open_for(&request)),
        },
    }
}

/// Error of a file whose size is known and that has another one.
fn other_size() -> io::Error {
    io::Error::other("its size differs from that of the source")
}

/// Error of a file whose other ranges are written by other processes.
fn no_shared() -> io::Error {
    io::Error::other(SharedTempLostError)
}

/// Error of a request whose job has no suitable file.
fn not_open_for(request: &DiskRequest) -> io::Error {
    io::Error::other(match request {
        DiskRequest::Read { .. } | DiskRequest::ReadPacked { .. } => {
            "internal error: the file was not open for reading"
        }
        _ => "internal error: the file was not open for writing",
    })
}

/// One disk request, with everything that its operation may use.
struct DiskRequestExecution<'a> {
    job: JobId,
    /// Place of a read in the order of checksums.
    ticket: Option<ChecksumPieceTicket>,
    ledger: Option<&'a ChecksumLedger>,
    directories: &'a OpenDirectoryCache,
}

impl DiskRequestExecution<'_> {
    /// Executes a request that opens files.
    fn open(self, request: DiskRequest) -> ExecuteResult {
        match request {
            DiskRequest::OpenSource {
                path,
                first,
                sparse,
                pack,
                ..
            } => self.open_source(&path, first, sparse, pack),
            DiskRequest::OpenBasis {
                target,
                keep,
                sparse,
                ..
            } => {
                let create = CreateSettings {
                    keep: keep.map(|keep| (*keep, false)),
                    ..self.create(&target)
                };
                Ok(self.open_older(create, sparse))
            }
            DiskRequest::CreateTarget {
                target,
                inplace,
                keep,
                stays,
                sparse,
                ..
            } => {
                let create = CreateSettings {
                    inplace,
                    keep: keep.map(|keep| (*keep, stays)),
                    ..self.create(&target)
                };
                self.create_or_adopt(create, sparse)
            }
            request => self.store(request),
        }
    }

    /// Settings for a new temporary beside `path`.
    fn create<'p>(&'p self, path: &'p LocalTargetPath) -> CreateSettings<'p> {
        CreateSettings {
            directories: self.directories,
            path,
            inplace: false,
            keep: None,
            mode: None,
            fresh: false,
        }
    }

    /// Opens a source and reads its first bytes.
    fn open_source(
        &self,
        path: &Path,
        mut first: PayloadBlock,
        sparse: bool,
        pack: Option<u64>,
    ) -> ExecuteResult {
        let (mut source, meta) = self.directories.open_source(path)?;
        if sparse {
            source.tell_holes();
        }
        source.collect_sums(self.ledger.map(|ledger| ledger.open(self.job)));
        let eof = source.read_first(&mut first)?;
        source.add_to_sums(0, || payloads(&first));
        if !eof {
            source.expect_more();
        }
        let packs = pack.is_some_and(|least| !eof || first.len() as u64 >= least);
        let packed = packs.then(|| packed::pack(&mut first)).flatten();
        let kept = (!eof).then(|| JobFile::Source(Arc::new(source)));
        let reply = DiskReply::Opened {
            job: self.job,
            meta,
            first,
            packed,
            eof,
        };
        Ok((reply, kept))
    }

    /// Opens the basis file of a delta and the temporary beside it.
    fn open_older(&self, create: CreateSettings<'_>, sparse: bool) -> (DiskReply, Option<JobFile>) {
        let job = self.job;
        let sums = || self.ledger.map(|ledger| ledger.open(job));
        let Some((mut target, size)) = open_older(create, sums) else {
            return (DiskReply::BasisOpened { job, size: None }, None);
        };
        if sparse {
            target.keep_sparse();
        }
        let size = Some(size);
        (DiskReply::BasisOpened { job, size }, Some(opened(target)))
    }

    /// Opens the temporary of an earlier run, or creates one.
    fn create_or_adopt(&self, create: CreateSettings<'_>, sparse: bool) -> ExecuteResult {
        let job = self.job;
        let keep = create.keep.as_ref().map(|(keep, _)| keep);
        if let Some(mut target) = adopt_target(self.directories, create.path, keep) {
            self.prepare(&mut target, sparse);
            return Ok((DiskReply::Adopted { job }, Some(opened(target))));
        }
        if keep.is_some_and(|keep| keep.shared.is_some()) {
            return Err(no_shared());
        }
        // Early allocation is omitted: on tmpfs it doubles the page faults of a write, and ext4
        // and xfs delay allocation until they know the size anyway.
        let mut target = create_target(create)?;
        self.prepare(&mut target, sparse);
        let seekable = target.is_seekable();
        Ok((DiskReply::Created { job, seekable }, Some(opened(target))))
    }

    /// Prepares a target for its first write.
    fn prepare(&self, target: &mut LocalTarget, sparse: bool) {
        target.collect_sums(self.ledger.map(|ledger| ledger.open(self.job)));
        if sparse {
            target.keep_sparse();
        }
    }

    /// Stores a small file in one step.
    fn store(&self, request: DiskRequest) -> ExecuteResult {
        let DiskRequest::StoreTarget {
            target,
            inplace,
            fresh,
            keep,
            pieces,
            attributes,
            preserve,
            fsync,
            beyond,
            sparse,
            ..
        } = request
        else {
            return Err(not_open_for(&request));
        };
        // A file whose content is known is too large for this.
        if self.directories.expected().is_some() {
            return Err(other_size());
        }
        // The file is complete, so it is created with its final permissions, unless extended
        // attributes or another owner will be set: the permissions may forbid the former.
        let mode = attributes.mode.unwrap_or(0o666) & 0o777;
        let create = CreateSettings {
            inplace,
            keep: keep.map(|keep| (*keep, false)),
            mode: beyond.is_empty().then_some(mode),
            fresh,
            ..self.create(&target)
        };
        let mut target = create_target(create)?;
        self.prepare(&mut target, sparse);
        let size = target.write(0, pieces)?;
        let finish = TargetFinishSettings {
            size,
            attributes,
            preserve,
            fsync,
            beyond,
        };
        self.finish(target, finish)
    }

    /// Gives `target` its final metadata and name.
    fn finish(&self, target: LocalTarget, finish: TargetFinishSettings) -> ExecuteResult {
        let job = self.job;
        if let Some(expected) = self.directories.expected()
            && let Some(file) = target.reopen_temporary()?
        {
            match finish.size == expected.size() {
                true => expected.check(&file)?,
                false => return Err(other_size()),
            }
        }
        let stored = target.finish(finish)?;
        Ok((DiskReply::Finished { job, stored }, None))
    }

    /// Executes a request that reads the job's source.
    fn use_source(self, request: DiskRequest, source: &LocalSource) -> ExecuteResult {
        match request {
            DiskRequest::Read {
                offset, len, block, ..
            } => self.read(source, (offset, len), block),
            DiskRequest::ReadPacked {
                offset, len, block, ..
            } => {
                let reply = packed::read(source, self.job, (offset, len), block, self.ticket)?;
                Ok((reply, None))
            }
            DiskRequest::AwaitSource { job } => Ok((DiskReply::SourceReady { job }, None)),
            request => Err(not_open_for(&request)),
        }
    }

    /// Reads a range of the source, or reports the hole at its start.
    fn read(
        self,
        source: &LocalSource,
        range: (u64, usize),
        mut block: PayloadBlock,
    ) -> ExecuteResult {
        let (offset, len) = range;
        let job = self.job;
        if let Some(len) = source.hole(offset, len)? {
            keep_zeros(self.ticket, len);
            return Ok((DiskReply::Hole { job, offset, len }, None));
        }
        let len = source.before_hole(offset, len)?;
        source.read(offset, len, &mut block)?;
        if let Some(ticket) = self.ticket {
            ticket.keep(payloads(&block));
        }
        Ok((DiskReply::Read { job, offset, block }, None))
    }

    /// Executes a request that writes or completes the job's target.
    fn use_target(self, request: DiskRequest, target: Arc<LocalTarget>) -> ExecuteResult {
        let reply = match request {
            DiskRequest::Write {
                job,
                offset,
                pieces,
            } => {
                if let Some(expected) = self.directories.expected()
                    && offset >= expected.size()
                {
                    return Err(other_size());
                }
                let len = target.write(offset, pieces)?;
                DiskReply::Written { job, offset, len }
            }
            DiskRequest::Skip { job, offset, len } => {
                target.sum_zeros(offset, len);
                target.skip(offset, len)?;
                DiskReply::Skipped { job, offset, len }
            }
            DiskRequest::CopyBasis { job, from, at, len } => {
                let copied = target.copy_older(from, at, len)?;
                DiskReply::Copied {
                    job,
                    at,
                    len: copied,
                    whole: copied == len,
                }
            }
            DiskRequest::CheckRebuilt {
                job,
                key,
                block,
                offset,
                len,
                sums,
            } => DiskReply::Checked {
                job,
                offset,
                len: len as u64,
                same: target.check_rebuilt(&key, block, (offset, len), &sums)?,
            },
            DiskRequest::SyncTarget { job } => {
                let mtime = target.sync()?;
                DiskReply::Synced { job, mtime }
            }
            DiskRequest::FinishTarget {
                size,
                attributes,
                preserve,
                fsync,
                beyond,
                ..
            } => {
                let target = Arc::into_inner(target).ok_or_else(|| {
                    io::Error::other("the file is still being written by this copy")
                })?;
                let finish = TargetFinishSettings {
                    size,
                    attributes,
                    preserve,
                    fsync,
                    beyond,
                };
                return self.finish(target, finish);
            }
            request => return Err(not_open_for(&request)),
        };
        Ok((reply, None))
    }

    /// Executes a request that ends the job's use of `file`.
    fn release(&self, request: &DiskRequest, file: Option<JobFile>) -> ExecuteResult {
        match (request, file) {
            (DiskRequest::Leave { fsync, .. }, Some(JobFile::Target(target))) => {
                target.keep_temporary();
                if *fsync {
                    target.sync()?;
                }
            }
            // A joined part does not hold the last reference and must not remove the file.
            (DiskRequest::Discard { .. }, Some(JobFile::Target(target))) => {
                if let Some(target) = Arc::into_inner(target) {
                    target.discard();
                }
            }
            _ => {}
        }
        Ok((DiskReply::Released { job: self.job }, None))
    }
}

/// Wraps a target that was just opened for writing.
fn opened(target: LocalTarget) -> JobFile {
    // Queried here, where no request waits: on NFS stat(2) flushes written data.
    target.piece();
    JobFile::Target(Arc::new(target))
}

/// Adds a hole, which is not read, to the checksums.
pub(super) fn keep_zeros(ticket: Option<ChecksumPieceTicket>, len: u64) {
    if let Some(ticket) = ticket {
        let zeros = holes::zeros(len);
        ticket.keep(zeros.iter().map(AsRef::as_ref));
    }
}

fn payloads(block: &PayloadBlock) -> impl Iterator<Item = &[u8]> + Clone {
    let packets: Vec<&PacketBuf> = block.packets().collect();
    packets.into_iter().map(PacketBuf::payload)
}
