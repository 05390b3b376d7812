//! Coalesces adjacent writes of a file into one.
//!
//! Data arrive in protocol units of at most 255 KiB, while page caches are fastest with aligned
//! pieces: partially written pages are touched twice, and file systems that allocate large units
//! (tmpfs with huge pages, XFS, ext4 from Linux 6.16) zero a unit first if a write does not cover
//! it. 1 GiB to ext4 takes 0.17 s of processor time in pieces of 256 KiB and 0.21 s in pieces of
//! 255 KiB (`cargo run --release -p longhaul-transfer --example write_pieces -- FOLDER`).
//!
//! If st_blksize of stat(2) is larger (2 MiB on tmpfs with huge pages), pieces have that size. 4
//! GiB into such a tmpfs over loopback took 1.12 s instead of 1.36 without a cipher, and 1.72
//! instead of 1.83 with AES-GCM.

use std::collections::VecDeque;

use bytes::Bytes;
use schedule::{DiskReply, DiskRequest, JobFailure, JobId};

/// The default piece size; pieces end at its multiples. Larger pieces cost less processor time per
/// byte, but the sender waits meanwhile and less of them fits the processor's cache: an encrypted
/// download into memory lost 8 % with 1 MiB on two cores.
const PIECE: u64 = 256 << 10;
/// The largest piece size that a file system's st_blksize can select.
const LARGEST: u64 = 2 << 20;
/// A disk thread's write ends at a multiple of this; larger than [`PIECE`], since the loop does not
/// wait for it.
const OF_THREAD: u64 = 1 << 20;

/// Returns the piece size for a file with this st_blksize.
pub(super) fn piece_of(blksize: u64) -> u64 {
    blksize.clamp(PIECE, LARGEST).next_power_of_two()
}

/// Adjacent data of a job that are not written yet, and the requests that they came from.
#[derive(Debug)]
pub(super) struct WriteCoalescer {
    /// The piece size; pieces end at its multiples.
    piece: u64,
    offset: u64,
    len: u64,
    pieces: VecDeque<Bytes>,
    /// Offset and length of each unanswered request.
    asked: VecDeque<(u64, u64)>,
}

fn length(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

impl WriteCoalescer {
    /// Creates an empty coalescer with this piece size ([`piece_of`]).
    pub(super) fn new(piece: u64) -> Self {
        Self {
            piece,
            offset: 0,
            len: 0,
            pieces: VecDeque::new(),
            asked: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Adds data for `offset` if they are adjacent to the data held.
    ///
    /// # Errors
    /// The data are not adjacent and are returned.
    pub(super) fn add(&mut self, offset: u64, pieces: Vec<Bytes>) -> Result<(), Vec<Bytes>> {
        if self.is_empty() {
            (self.offset, self.len) = (offset, 0);
        } else if offset != self.offset + self.len {
            return Err(pieces);
        }
        let len = length(&pieces);
        self.pieces.extend(pieces);
        self.len += len;
        self.asked.push_back((offset, len));
        Ok(())
    }

    /// Merges `pieces` with the adjacent writes at the front of `queue` until the data reach the
    /// next multiple of the piece size or of 1 MiB, whichever is larger; `pieces` then holds all. A single write stays unchanged.
    pub(super) fn gather(
        &mut self,
        offset: u64,
        pieces: &mut Vec<Bytes>,
        queue: &mut VecDeque<DiskRequest>,
    ) {
        let mut end = offset + length(pieces);
        let most = self.piece.max(OF_THREAD);
        let ends = (offset / most + 1) * most;
        let mut alone = true;
        while end < ends
            && let Some(DiskRequest::Write { offset: at, .. }) = queue.front()
            && *at == end
            && let Some(DiskRequest::Write { pieces: more, .. }) = queue.pop_front()
        {
            if std::mem::take(&mut alone) {
                self.asked.push_back((offset, end - offset));
            }
            let len = length(&more);
            self.asked.push_back((end, len));
            end += len;
            pieces.extend(more);
        }
    }

    /// Takes the data up to the last piece boundary, with their offset; `None` if no piece is
    /// complete.
    pub(super) fn take_whole(&mut self) -> Option<(u64, Vec<Bytes>)> {
        let end = (self.offset + self.len) / self.piece * self.piece;
        let len = end.checked_sub(self.offset).filter(|len| *len > 0)?;
        Some(self.take(len))
    }

    /// Takes all data, with their offset.
    pub(super) fn take_all(&mut self) -> (u64, Vec<Bytes>) {
        self.take(self.len)
    }

    fn take(&mut self, len: u64) -> (u64, Vec<Bytes>) {
        let (offset, mut left) = (self.offset, len);
        let mut taken = Vec::with_capacity(self.pieces.len());
        while let Some(mut piece) = self.pieces.pop_front() {
            if piece.len() as u64 > left {
                let part = piece.split_to(left as usize);
                self.pieces.push_front(piece);
                if !part.is_empty() {
                    taken.push(part);
                }
                break;
            }
            left -= piece.len() as u64;
            taken.push(piece);
        }
        self.offset += len;
        self.len -= len;
        (offset, taken)
    }

    /// Returns the answers to the requests that are fully written.
    pub(super) fn written(&mut self, job: JobId) -> impl Iterator<Item = DiskReply> {
        let upto = self.offset;
        std::iter::from_fn(move || {
            let (offset, len) = *self.asked.front().filter(|(at, len)| at + len <= upto)?;
            self.asked.pop_front();
            Some(DiskReply::Written { job, offset, len })
        })
    }

    /// Returns the answers to all requests: written, or failed with this fault.
    pub(super) fn answered(
        &mut self,
        job: JobId,
        fault: Option<JobFailure>,
    ) -> impl Iterator<Item = DiskReply> {
        let answer = move |(offset, len)| match fault.clone() {
            None => DiskReply::Written { job, offset, len },
            Some(fault) => DiskReply::Failed { job, fault },
        };
        self.pieces.clear();
        std::mem::take(&mut self.asked).into_iter().map(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);
    const CHUNK: u64 = 255 << 10;

    fn answered(gathered: &mut WriteCoalescer) -> Vec<u64> {
        let replies = gathered.written(JOB);
        let offset = |reply| match reply {
            DiskReply::Written { offset, .. } => offset,
            other => panic!("{other:?}"),
        };
        replies.map(offset).collect()
    }

    #[test]
    fn what_follows_is_written_in_pieces_that_end_at_multiples() {
        let mut gathered = WriteCoalescer::new(PIECE);
        let content: Vec<u8> = (0..3 << 20).map(|n| (n / 999) as u8).collect();
        let (mut file, mut told) = (vec![0; content.len()], Vec::new());
        let mut put = |(offset, pieces): (u64, Vec<Bytes>), ends: bool| {
            let bytes = pieces.concat();
            let end = offset as usize + bytes.len();
            assert!(!bytes.is_empty() && (ends || (end as u64).is_multiple_of(PIECE)));
            file[offset as usize..end].copy_from_slice(&bytes);
        };
        for at in (0..content.len()).step_by(CHUNK as usize) {
            let chunk = &content[at..content.len().min(at + CHUNK as usize)];
            let pieces = chunk.chunks(100_000).map(Bytes::copy_from_slice).collect();
            gathered.add(at as u64, pieces).expect("it goes on there");
            if let Some(whole) = gathered.take_whole() {
                put(whole, false);
                told.extend(answered(&mut gathered));
                let ends = |at: &u64| (at + CHUNK).min(content.len() as u64);
                assert!(told.iter().all(|at| ends(at) <= gathered.offset));
            }
        }
        if !gathered.is_empty() {
            put(gathered.take_all(), true);
        }
        told.extend(answered(&mut gathered));
        assert!(gathered.is_empty() && file == content);
        let all: Vec<u64> = (0..content.len() as u64).step_by(CHUNK as usize).collect();
        assert_eq!(told, all);
    }

    #[test]
    fn what_does_not_follow_comes_back_and_what_fails_is_answered() {
        let mut gathered = WriteCoalescer::new(PIECE);
        gathered.add(10, vec![Bytes::from_static(b"ab")]).unwrap();
        assert!(gathered.add(13, vec![Bytes::from_static(b"c")]).is_err());
        gathered.add(12, vec![Bytes::from_static(b"c")]).unwrap();
        assert_eq!(gathered.take_whole(), None);
        let fault = JobFailure::new("full", false);
        assert_eq!(gathered.answered(JOB, Some(fault)).count(), 2);
    }

    #[test]
    fn pieces_are_as_large_as_the_file_system_has_it() {
        for (told, piece) in [
            (0, PIECE),
            (512, PIECE),
            (4096, PIECE),
            (384 << 10, 512 << 10),
            (1 << 20, 1 << 20),
            (2 << 20, 2 << 20),
            (u64::MAX, LARGEST),
        ] {
            assert_eq!(piece_of(told), piece);
        }
        let mut gathered = WriteCoalescer::new(LARGEST);
        let mib = Bytes::from(vec![0; 1 << 20]);
        gathered.add(1 << 20, vec![mib.clone()]).unwrap();
        let (offset, pieces) = gathered.take_whole().unwrap();
        assert_eq!((offset, length(&pieces)), (1 << 20, 1 << 20));
        gathered.add(2 << 20, vec![mib.clone()]).unwrap();
        assert_eq!(gathered.take_whole(), None);
        gathered.add(3 << 20, vec![mib]).unwrap();
        let (offset, pieces) = gathered.take_whole().unwrap();
        assert_eq!((offset, length(&pieces)), (2 << 20, 2 << 20));
    }

    #[test]
    fn a_request_for_nothing_is_answered_too() {
        let mut gathered = WriteCoalescer::new(PIECE);
        gathered.add(5, Vec::new()).unwrap();
        assert!(!gathered.is_empty());
        assert_eq!(gathered.take_all(), (5, Vec::new()));
        assert_eq!(answered(&mut gathered), [5]);
    }
}
