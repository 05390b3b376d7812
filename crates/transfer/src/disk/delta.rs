//! Compares local blocks with checksums from the far end, to find data that need no transfer.

use std::io;

use schedule::delta::{BasisRangeComparison, compare};
use schedule::{DiskReply, DiskRequest};
use sftp::blocks::BasisBlockChecksums;

use super::pool::JobFile;

/// Bytes read and hashed at a time, small enough to stay in the processor's cache; a multiple of
/// the block size.
const PIECE: usize = 1 << 20;

/// Executes a `Compare` or a `Search` request.
pub(super) fn execute(request: DiskRequest, file: Option<&JobFile>) -> io::Result<DiskReply> {
    let source = match file {
        Some(JobFile::Source(source)) => &**source,
        Some(JobFile::Target(target)) if let Some(basis) = target.basis() => basis,
        _ => {
            return Err(io::Error::other(
                "internal error: the file was not open for reading",
            ));
        }
    };
    match request {
        DiskRequest::Compare {
            job,
            key,
            block,
            offset,
            len,
            basis,
        } => {
            let piece = PIECE.max(block as usize);
            let sums_of_piece = piece / block.max(1) as usize * BasisBlockChecksums::LEN;
            let mut sums = basis.chunks(sums_of_piece);
            let mut bytes = Vec::with_capacity(piece);
            let mut compared = BasisRangeComparison::default();
            let mut done = 0;
            while done < len {
                let at = offset + done as u64;
                let asked = piece.min(len - done);
                bytes.clear();
                source.append(at, asked, &mut bytes)?;
                source.sum(at, &bytes);
                done += bytes.len();
                let here = sums.next().unwrap_or_default();
                compared.append(compare(&key, block, at, &bytes, here));
                if bytes.len() < asked {
                    break;
                }
            }
            Ok(DiskReply::Compared {
                job,
                offset,
                len: done as u64,
                compared,
            })
        }
        DiskRequest::Search {
            job,
            basis,
            from,
            to,
            size,
        } => {
            let seen = size.min(to.saturating_add(basis.ahead() as u64));
            let mut bytes = Vec::new();
            let len = usize::try_from(seen.saturating_sub(from)).unwrap_or(usize::MAX);
            source.append(from, len, &mut bytes)?;
            let ends = seen == size;
            let found = basis.search(from, &bytes, (to - from) as usize, ends);
            Ok(DiskReply::Searched {
                job,
                from,
                to,
                found,
            })
        }
        _ => Err(io::Error::other(
            "internal error: not a request about a source",
        )),
    }
}
