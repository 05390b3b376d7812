use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use schedule::{DiskReply, DiskRequest, Fault, FileMeta, JobId, StoredTarget};
use wire::Block;

use super::pool::Shared;
use crate::sums::FileSums;

/// Bytes held between the hosts before writes are left unanswered, which stops further reads
/// from the source: two bandwidth-delay products of a gigabit path around the world.
const HELD: u64 = 64 << 20;

/// The memory between two hosts: the target of a Get on one session and the source of a Put on
/// another. Bind it to both jobs ([`super::DiskPool::bind`]).
pub struct Relay {
    state: Mutex<State>,
    /// Of what passes, where sums are wanted.
    sums: Option<Arc<FileSums>>,
}

#[derive(Default)]
struct State {
    meta: FileMeta,
    /// Arrived and not yet read, by offset.
    pieces: BTreeMap<u64, Bytes>,
    held: u64,
    /// Answers that wait until there is room.
    withheld: VecDeque<(Arc<Shared>, DiskReply, u64)>,
    reads: Vec<Waiting>,
    /// The whole size, once the writer is done.
    end: Option<u64>,
    /// The writer gave up.
    broken: Option<Fault>,
    /// The reader gave up.
    abandoned: bool,
    /// The reader has begun; what it read is gone.
    opened: bool,
    /// The reader wanted to begin again.
    reopened: bool,
}

struct Waiting {
    shared: Arc<Shared>,
    job: JobId,
    offset: u64,
    len: usize,
    block: Block,
    open: bool,
}

impl Relay {
    /// A relay for a file with these attributes.
    pub fn new(meta: FileMeta) -> Arc<Self> {
        Self::summed(meta, None)
    }

    /// The same, which sums what passes.
    pub(crate) fn summed(meta: FileMeta, sums: Option<Arc<FileSums>>) -> Arc<Self> {
        let state = State {
            meta,
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            sums,
        })
    }

    /// The source failed: so does what reads from here.
    pub fn break_off(&self, fault: Fault) {
        let mut state = self.lock();
        state.broken.get_or_insert(fault);
        state.settle();
    }

    /// The target failed: nothing more need be held.
    pub fn abandon(&self) {
        self.lock().abandon();
    }

    /// Whether the reader wanted to begin again, which takes another relay.
    pub fn was_reopened(&self) -> bool {
        self.lock().reopened
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request; answers now or once there are data or room.
    pub(super) fn handle(&self, request: DiskRequest, shared: &Arc<Shared>) {
        let writes = match &request {
            DiskRequest::Write { offset, pieces, .. } => Some((*offset, pieces)),
            DiskRequest::StoreTarget { pieces, .. } => Some((0, pieces)),
            _ => None,
        };
        if let (Some(sums), Some((offset, pieces))) = (&self.sums, writes) {
            sums.add(offset, pieces.iter().map(AsRef::as_ref));
        }
        let mut state = self.lock();
        match request {
            DiskRequest::OpenSource { job, first, .. } => {
                if std::mem::replace(&mut state.opened, true) {
                    state.reopened = true;
                    let fault = Fault {
                        what: "the file has to be read again from its beginning".to_owned(),
                        remote: true,
                    };
                    shared.reply(DiskReply::Failed { job, fault });
                    return;
                }
                let len = first.room();
                state.read(shared, job, 0, len, first, true);
            }
            DiskRequest::Read {
                job,
                offset,
                len,
                block,
            } => state.read(shared, job, offset, len, block, false),
            // What is passed on is not packed, and was unpacked.
            DiskRequest::ReadPacked {
                job,
                offset,
                len,
                block,
            } => state.read(shared, job, offset, len, block, false),
            // Nobody rebuilds what is passed on.
            DiskRequest::Compare { job, .. }
            | DiskRequest::Search { job, .. }
            | DiskRequest::OpenOlder { job, .. }
            | DiskRequest::CopyOlder { job, .. }
            | DiskRequest::CheckRebuilt { job, .. }
            | DiskRequest::Skip { job, .. }
            | DiskRequest::WritePacked { job, .. } => {
                shared.reply(DiskReply::Released { job });
            }
            DiskRequest::CloseSource { job } => {
                state.abandon();
                shared.reply(DiskReply::Released { job });
            }
            DiskRequest::CreateTarget { job, .. } => {
                // What reads from here takes the bytes in order.
                let seekable = false;
                shared.reply(DiskReply::Created { job, seekable });
            }
            DiskRequest::Join { job, .. } => shared.reply(DiskReply::Joined { job }),
            DiskRequest::Write {
                job,
                offset,
                pieces,
            } => {
                let len = pieces.iter().map(|p| p.len() as u64).sum();
                let written = DiskReply::Written { job, offset, len };
                state.write(shared, written, job, offset, pieces);
            }
            DiskRequest::StoreTarget { job, pieces, .. } => {
                let stored = StoredTarget::default();
                let finished = DiskReply::Finished { job, stored };
                state.end = Some(pieces.iter().map(|p| p.len() as u64).sum());
                state.write(shared, finished, job, 0, pieces);
            }
            DiskRequest::FinishTarget { job, size, .. } => {
                state.end = Some(size);
                state.settle();
                let stored = StoredTarget::default();
                shared.reply(DiskReply::Finished { job, stored });
            }
            DiskRequest::SyncTarget { job } => shared.reply(DiskReply::Synced { job, mtime: 0 }),
            DiskRequest::Discard { job } | DiskRequest::Leave { job } => {
                // Of the reader or of the writer: both end the relay.
                state.broken.get_or_insert_with(|| Fault {
                    what: "the other host failed".to_owned(),
                    remote: true,
                });
                state.abandon();
                state.settle();
                shared.reply(DiskReply::Released { job });
            }
        }
    }
}

impl State {
    /// Takes bytes of `job`, which is told `done` when there is room for more.
    fn write(
        &mut self,
        shared: &Arc<Shared>,
        done: DiskReply,
        job: JobId,
        offset: u64,
        pieces: Vec<Bytes>,
    ) {
        let mut at = offset;
        for piece in pieces {
            let len = piece.len() as u64;
            if len > 0 && !self.abandoned {
                self.pieces.insert(at, piece);
                self.held += len;
            }
            at += len;
        }
        if self.abandoned {
            let fault = Fault {
                what: "the other host failed".to_owned(),
                remote: true,
            };
            shared.reply(DiskReply::Failed { job, fault });
        } else {
            let len = at - offset;
            self.withheld.push_back((Arc::clone(shared), done, len));
        }
        self.settle();
    }

    fn read(
        &mut self,
        shared: &Arc<Shared>,
        job: JobId,
        offset: u64,
        len: usize,
        block: Block,
        open: bool,
    ) {
        self.reads.push(Waiting {
            shared: Arc::clone(shared),
            job,
            offset,
            len,
            block,
            open,
        });
        self.settle();
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        self.pieces.clear();
        self.held = 0;
        for (shared, reply, _) in self.withheld.drain(..) {
            shared.reply(reply);
        }
    }

    /// Answers the reads whose data are here and the writes for which there is room.
    fn settle(&mut self) {
        let mut still = Vec::new();
        for read in std::mem::take(&mut self.reads) {
            if let Some(fault) = &self.broken {
                let (job, fault) = (read.job, fault.clone());
                read.shared.reply(DiskReply::Failed { job, fault });
            } else if let Some(len) = self.ready(read.offset, read.len) {
                self.answer(read, len);
            } else {
                still.push(read);
            }
        }
        self.reads = still;
        while self.held <= HELD || self.reads_wait_for_more() {
            let Some((shared, reply, _)) = self.withheld.pop_front() else {
                break;
            };
            shared.reply(reply);
        }
    }

    /// Withholding answers while the reader waits could leave both waiting: what it needs may be
    /// what the writer has not asked for yet.
    fn reads_wait_for_more(&self) -> bool {
        !self.reads.is_empty()
    }

    /// How many bytes a read at `offset` gets, if all of them are here.
    fn ready(&self, offset: u64, len: usize) -> Option<usize> {
        let wanted = match self.end {
            Some(end) => (len as u64).min(end.saturating_sub(offset)),
            None => len as u64,
        };
        let mut at = offset;
        while at < offset + wanted {
            let (start, piece) = self.pieces.range(..=at).next_back()?;
            let end = start + piece.len() as u64;
            if end <= at {
                return None;
            }
            at = end;
        }
        usize::try_from(wanted).ok()
    }

    fn answer(&mut self, read: Waiting, len: usize) {
        let Waiting {
            shared,
            job,
            offset,
            mut block,
            open,
            len: asked,
        } = read;
        let mut at = offset;
        for mut slice in block.grow(len) {
            while !slice.is_empty() {
                let n = self.take(at, slice);
                if n == 0 {
                    break;
                }
                slice = &mut slice[n..];
                at += n as u64;
            }
        }
        // A short block is the end of the file to the reader, so it may be short for that only.
        if at < offset + len as u64 {
            let fault = Fault {
                what: "bytes between the two hosts were lost here: this is a bug".to_owned(),
                remote: false,
            };
            shared.reply(DiskReply::Failed { job, fault });
            return;
        }
        let reply = if open {
            let meta = self.meta;
            let eof = len < asked;
            let first = block;
            DiskReply::Opened {
                job,
                meta,
                first,
                packed: None,
                eof,
            }
        } else {
            DiskReply::Read { job, offset, block }
        };
        shared.reply(reply);
    }

    /// Moves bytes at `at` into `to`; returns how many came from the piece there.
    fn take(&mut self, at: u64, to: &mut [u8]) -> usize {
        let Some((&start, _)) = self.pieces.range(..=at).next_back() else {
            return 0;
        };
        let Some(mut piece) = self.pieces.remove(&start) else {
            return 0;
        };
        let skip = (at - start) as usize;
        if skip >= piece.len() {
            self.pieces.insert(start, piece);
            return 0;
        }
        if skip > 0 {
            self.pieces.insert(start, piece.split_to(skip));
        }
        let n = piece.len().min(to.len());
        piece.copy_to_slice(&mut to[..n]);
        if !piece.is_empty() {
            self.pieces.insert(at + n as u64, piece);
        }
        self.held = self.held.saturating_sub(n as u64);
        n
    }
}
