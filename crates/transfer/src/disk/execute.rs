//! Executes the requests of lanes on local files.

use std::io;
use std::sync::Arc;

use schedule::{DiskReply, DiskRequest, Fault};
use wire::{Block, PacketBuf};

use super::basis_file::open_older;
use super::pool::JobFile;
use super::{
    CreateSettings, DirectoryCache, FinishSettings, LocalTarget, adopt_target, create_target,
    delta, holes, local_fault, packed,
};
use crate::sums::{SumLedger, SumTicket};

type Executed = Result<(DiskReply, Option<JobFile>), (Fault, Option<JobFile>)>;

/// Wraps a target that was just opened for writing.
fn opened(target: LocalTarget) -> JobFile {
    // Queried here, where no request waits: on NFS stat(2) flushes written data.
    target.piece();
    JobFile::Target(Arc::new(target))
}

/// Executes `request` on the job's `file`; returns the reply and the file to keep for the job.
pub(super) fn execute_on_files(
    request: DiskRequest,
    file: Option<JobFile>,
    ticket: Option<SumTicket>,
    ledger: Option<&SumLedger>,
    directories: &DirectoryCache,
) -> Executed {
    let failed = |e: io::Error| (local_fault(&e), None);
    match (request, file) {
        (
            DiskRequest::OpenSource {
                job,
                path,
                mut first,
                sparse,
                pack,
            },
            _,
        ) => {
            let (mut source, meta) = directories.open_source(&path).map_err(failed)?;
            if sparse {
                source.tell_holes();
            }
            source.sums = ledger.map(|ledger| ledger.open(job));
            let eof = source.read_first(&mut first).map_err(failed)?;
            if let Some(sums) = &source.sums {
                sums.add(0, payloads(&first));
            }
            if !eof {
                source.expect_more();
            }
            let packs = pack.is_some_and(|least| !eof || first.len() as u64 >= least);
            let packed = packs.then(|| packed::pack(&mut first)).flatten();
            let kept = (!eof).then(|| JobFile::Source(Arc::new(source)));
            Ok((
                DiskReply::Opened {
                    job,
                    meta,
                    first,
                    packed,
                    eof,
                },
                kept,
            ))
        }
        (
            DiskRequest::Read {
                job,
                offset,
                len,
                mut block,
            },
            Some(JobFile::Source(source)),
        ) => {
            if let Some(len) = source.hole(offset, len).map_err(failed)? {
                keep_zeros(ticket, len);
                return Ok((DiskReply::Hole { job, offset, len }, None));
            }
            let len = source.before_hole(offset, len).map_err(failed)?;
            source.read(offset, len, &mut block).map_err(failed)?;
            if let Some(ticket) = ticket {
                ticket.keep(payloads(&block));
            }
            Ok((DiskReply::Read { job, offset, block }, None))
        }
        (
            DiskRequest::ReadPacked {
                job,
                offset,
                len,
                block,
            },
            Some(JobFile::Source(source)),
        ) => {
            let reply = packed::read(&source, job, (offset, len), block, ticket);
            Ok((reply.map_err(failed)?, None))
        }
        (request @ (DiskRequest::Compare { .. } | DiskRequest::Search { .. }), file) => {
            let reply = delta::execute(request, file.as_ref()).map_err(failed)?;
            Ok((reply, None))
        }
        (
            DiskRequest::OpenOlder {
                job,
                target,
                keep,
                sparse,
            },
            _,
        ) => {
            let sums = || ledger.map(|ledger| ledger.open(job));
            let create = CreateSettings {
                directories,
                path: &target,
                inplace: false,
                keep: keep.map(|keep| (*keep, false)),
                mode: None,
                fresh: false,
            };
            let Some((mut target, size)) = open_older(create, sums) else {
                return Ok((DiskReply::Older { job, size: None }, None));
            };
            if sparse {
                target.keep_sparse();
            }
            let size = Some(size);
            let kept = opened(target);
            Ok((DiskReply::Older { job, size }, Some(kept)))
        }
        (DiskRequest::CopyOlder { job, from, at, len }, Some(JobFile::Target(target))) => {
            let copied = target.copy_older(from, at, len).map_err(failed)?;
            Ok((
                DiskReply::Copied {
                    job,
                    at,
                    len: copied,
                    whole: copied == len,
                },
                None,
            ))
        }
        (
            DiskRequest::CheckRebuilt {
                job,
                key,
                block,
                offset,
                len,
                sums,
            },
            Some(JobFile::Target(target)),
        ) => {
            let same = target.check_rebuilt(&key, block, (offset, len), &sums);
            Ok((
                DiskReply::Checked {
                    job,
                    offset,
                    len: len as u64,
                    same: same.map_err(failed)?,
                },
                None,
            ))
        }
        (
            DiskRequest::CreateTarget {
                job,
                target,
                inplace,
                size: _,
                keep,
                stays,
                sparse,
            },
            _,
        ) => {
            if let Some(mut target) = adopt_target(directories, &target, keep.as_deref()) {
                target.sums = ledger.map(|ledger| ledger.open(job));
                if sparse {
                    target.keep_sparse();
                }
                let kept = opened(target);
                return Ok((DiskReply::Adopted { job }, Some(kept)));
            }
            // Early allocation is omitted: on tmpfs it doubles the page faults of a write, and ext4
            // and xfs delay allocation until they know the size anyway.
            let create = CreateSettings {
                directories,
                path: &target,
                inplace,
                keep: keep.map(|keep| (*keep, stays)),
                mode: None,
                fresh: false,
            };
            let mut target = create_target(create).map_err(failed)?;
            target.sums = ledger.map(|ledger| ledger.open(job));
            if sparse {
                target.keep_sparse();
            }
            let seekable = target.is_seekable();
            let kept = opened(target);
            Ok((DiskReply::Created { job, seekable }, Some(kept)))
        }
        (
            DiskRequest::Write {
                job,
                offset,
                pieces,
            },
            Some(JobFile::Target(target)),
        ) => match target.write(offset, pieces) {
            Ok(len) => Ok((DiskReply::Written { job, offset, len }, None)),
            Err(e) => Err(failed(e)),
        },
        (DiskRequest::Skip { job, offset, len }, Some(JobFile::Target(target))) => {
            target.sum_zeros(offset, len);
            target.skip(offset, len).map_err(failed)?;
            Ok((DiskReply::Skipped { job, offset, len }, None))
        }
        (
            DiskRequest::FinishTarget {
                job,
                size,
                attributes,
                preserve,
                fsync,
                beyond,
            },
            Some(JobFile::Target(target)),
        ) => {
            let target = Arc::into_inner(target)
                .ok_or_else(|| failed(io::Error::other("the file is still being written")))?;
            let finish = FinishSettings {
                size,
                attributes,
                preserve,
                fsync,
                beyond,
            };
            let stored = target.finish(finish).map_err(failed)?;
            Ok((DiskReply::Finished { job, stored }, None))
        }
        (
            DiskRequest::StoreTarget {
                job,
                target,
                inplace,
                fresh,
                keep,
                pieces,
                packed: _,
                attributes,
                preserve,
                fsync,
                beyond,
                sparse,
            },
            _,
        ) => {
            // The file is complete, so it is created with its final permissions, unless extended
            // attributes or another owner will be set: the permissions may forbid the former.
            let mode = attributes.mode.unwrap_or(0o666) & 0o777;
            let create = CreateSettings {
                directories,
                path: &target,
                inplace,
                keep: keep.map(|keep| (*keep, false)),
                mode: beyond.is_empty().then_some(mode),
                fresh,
            };
            let mut target = create_target(create).map_err(failed)?;
            target.sums = ledger.map(|ledger| ledger.open(job));
            if sparse {
                target.keep_sparse();
            }
            let size = target.write(0, pieces).map_err(failed)?;
            let finish = FinishSettings {
                size,
                attributes,
                preserve,
                fsync,
                beyond,
            };
            let stored = target.finish(finish).map_err(failed)?;
            Ok((DiskReply::Finished { job, stored }, None))
        }
        (DiskRequest::SyncTarget { job }, Some(JobFile::Target(target))) => {
            let mtime = target.sync().map_err(failed)?;
            Ok((DiskReply::Synced { job, mtime }, None))
        }
        (DiskRequest::Leave { job }, file) => {
            if let Some(JobFile::Target(target)) = &file {
                target.leave();
            }
            drop(file);
            Ok((DiskReply::Released { job }, None))
        }
        // A joined part does not hold the last reference and must not remove the file.
        (DiskRequest::Discard { job }, Some(JobFile::Target(target))) => {
            if let Some(target) = Arc::into_inner(target) {
                target.discard();
            }
            Ok((DiskReply::Released { job }, None))
        }
        (DiskRequest::CloseSource { job } | DiskRequest::Discard { job }, file) => {
            drop(file);
            Ok((DiskReply::Released { job }, None))
        }
        (request, _) => {
            let what = match request {
                DiskRequest::Read { .. } | DiskRequest::ReadPacked { .. } => {
                    "internal error: the file was not open for reading"
                }
                _ => "internal error: the file was not open for writing",
            };
            Err(failed(io::Error::other(what)))
        }
    }
}

/// Adds a hole, which is not read, to the checksums.
pub(super) fn keep_zeros(ticket: Option<SumTicket>, len: u64) {
    if let Some(ticket) = ticket {
        let zeros = holes::zeros(len);
        ticket.keep(zeros.iter().map(AsRef::as_ref));
    }
}

fn payloads(block: &Block) -> impl Iterator<Item = &[u8]> + Clone {
    let packets: Vec<&PacketBuf> = block.packets().collect();
    packets.into_iter().map(PacketBuf::payload)
}
