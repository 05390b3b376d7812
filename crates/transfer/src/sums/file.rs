//! Checksums of one file, computed as its data are transferred.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ledger::{ChecksumLedger, SumAlgorithmChoice, WantedDigest};
use super::tree::{HashTree, HashTreeNodes};
use super::xxh::WholeFileXxh;
use super::{Digest, Hasher, RangeChecksum, SumAlgorithm};
use crate::copy::ReadAt;

/// The maximum length of a run, so that a difference is located closely and the far end can start
/// before a large file is complete.
pub(crate) const RUN: u64 = 64 << 20;

/// Bytes read at a time when a file is read again.
const PART: usize = 256 << 10;

/// The checksums of one file's transferred data so far.
///
/// A run hashes its pieces in order. Several threads may hold adjacent pieces of one run: the pool
/// issues a ticket for each piece in order, and a thread waits for the preceding piece, which
/// another thread already has.
pub(crate) struct FileChecksums {
    state: Mutex<FileSumState>,
    turn: Condvar,
    by: Arc<SumAlgorithmChoice>,
    wants: WantedDigest,
}

#[derive(Default)]
struct FileSumState {
    next: u64,
    runs: Vec<SumRun>,
    sums: Vec<RangeChecksum>,
    tree: HashTree,
    xxh: WholeFileXxh,
    /// SHA-256 of the whole file, as long as data come in order.
    whole: Option<(u64, Hasher)>,
}

struct SumRun {
    id: u64,
    from: u64,
    /// The offset up to which tickets were issued.
    promised: u64,
    /// The offset up to which data were hashed.
    hashed: u64,
    /// The hasher; absent while a thread uses it.
    hasher: Option<Hasher>,
    /// True after a piece that was shorter than promised: later pieces belong to another run.
    ended: bool,
    /// The offset of a piece that never came; pieces after it are not awaited.
    stop: u64,
}

/// The checksums of a finished file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FinishedSums {
    sums: Vec<RangeChecksum>,
    /// The size of the file as far as it was transferred.
    size: u64,
    /// The sum of the whole file, by algorithms that can combine runs in any order.
    all: RangeChecksum,
    /// The digest for the manifest.
    whole: Option<Digest>,
}

impl FinishedSums {
    /// Checksums of the runs of a file of `size` bytes; `all` is that of the whole file, by
    /// algorithms that can combine runs in any order, and `whole` the digest for the manifest.
    pub(crate) fn new(
        sums: Vec<RangeChecksum>,
        size: u64,
        all: RangeChecksum,
        whole: Option<Digest>,
    ) -> Self {
        Self {
            sums,
            size,
            all,
            whole,
        }
    }

    /// Checksums of the runs.
    pub(crate) fn runs(&self) -> &[RangeChecksum] {
        &self.sums
    }

    /// The size of the file as far as it was transferred, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The sum of the whole file, by algorithms that can combine runs in any order.
    pub(crate) fn of_all(&self) -> &RangeChecksum {
        &self.all
    }

    /// The digest for the manifest.
    pub(crate) fn manifest_digest(&self) -> Option<&Digest> {
        self.whole.as_ref()
    }

    /// Sets the size of a file of which an earlier run has transferred parts.
    pub(crate) fn grow_to(&mut self, size: u64) {
        if size > self.size {
            self.size = size;
            self.sums.retain(|sum| sum.len > 0);
            (self.all, self.whole) = (RangeChecksum::default(), None);
        }
    }

    /// Returns the ranges that were not transferred, as in a resumed copy.
    pub(crate) fn holes(&self) -> Vec<(u64, u64)> {
        let mut sums: Vec<(u64, u64)> = self.sums.iter().map(|s| (s.from, s.end())).collect();
        sums.sort_unstable();
        let (mut holes, mut covered) = (Vec::new(), 0);
        for (from, end) in sums {
            if from > covered {
                holes.push((covered, from));
            }
            covered = covered.max(end);
        }
        if covered < self.size {
            holes.push((covered, self.size));
        }
        holes
    }

    /// Returns the runs that overlap others; it is unknown which of the overlapping data the sum of
    /// the whole file covers.
    pub(crate) fn twice(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.sums.len()).collect();
        order.sort_unstable_by_key(|at| self.sums[*at].from);
        let (mut twice, mut widest) = (BTreeSet::new(), None);
        for at in order {
            let sum = &self.sums[at];
            if let Some((end, before)) = widest
                && sum.from < end
            {
                twice.extend([at, before]);
            }
            if widest.is_none_or(|(end, _)| sum.end() > end) {
                widest = Some((sum.end(), at));
            }
        }
        twice.into_iter().collect()
    }

    /// Reads the missing ranges from `file`, and all of it if the manifest's digest is
    /// missing.
    pub(crate) fn complete(
        &mut self,
        file: &dyn ReadAt,
        ledger: &ChecksumLedger,
    ) -> io::Result<()> {
        if self.sums.is_empty() && self.size == 0 {
            self.sums.push(RangeChecksum {
                from: 0,
                len: 0,
                digests: Hasher::new(ledger.algorithm()).finish(),
            });
        }
        for (from, end) in self.holes() {
            let mut at = from;
            while at < end {
                let to = end.min(at + RUN);
                let mut hasher = Hasher::new(ledger.algorithm());
                let mut update = |bytes: &[u8]| hasher.update(bytes);
                read(file, at, to, &mut update)?;
                self.sums.push(RangeChecksum {
                    from: at,
                    len: to - at,
                    digests: hasher.finish(),
                });
                at = to;
            }
        }
        let by = match ledger.wants() {
            _ if self.whole.is_some() => return Ok(()),
            WantedDigest::Verify => return Ok(()),
            WantedDigest::Blake3 => SumAlgorithm::Blake3,
            WantedDigest::Sha256 => SumAlgorithm::Sha256,
        };
        let mut hasher = Hasher::new(Some(by));
        read(file, 0, self.size, &mut |bytes| hasher.update(bytes))?;
        self.whole = hasher.finish().pop().map(|(_, digest)| digest);
        Ok(())
    }
}

/// Passes the bytes from `from` to `to` to `take`.
fn read(file: &dyn ReadAt, from: u64, to: u64, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; PART];
    let mut at = from;
    while at < to {
        let most = PART.min(usize::try_from(to - at).unwrap_or(PART));
        match file.read_at(at, &mut buffer[..most]) {
            Ok(0) => return Err(io::Error::other(schedule::SOURCE_SHRANK)),
            Ok(n) => {
                take(&buffer[..n]);
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A piece's place in a run. Dropping it unused ends the run before the piece.
pub(crate) struct ChecksumPieceTicket {
    file: Arc<FileChecksums>,
    run: u64,
    offset: u64,
    len: u64,
    kept: bool,
}

impl FileChecksums {
    pub(crate) fn new(ledger: &ChecksumLedger) -> Arc<Self> {
        let wants = ledger.wants();
        let by = ledger.choice();
        Arc::new(Self {
            state: Mutex::new(FileSumState {
                whole: wants
                    .whole_in_order()
                    .then(|| (0, Hasher::new(Some(SumAlgorithm::Sha256)))),
                ..FileSumState::default()
            }),
            turn: Condvar::new(),
            by,
            wants,
        })
    }

    fn lock(&self) -> MutexGuard<'_, FileSumState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues a ticket for a piece of up to `len` bytes at `offset`.
    pub(crate) fn promise(self: &Arc<Self>, offset: u64, len: u64) -> ChecksumPieceTicket {
        let mut state = self.lock();
        let goes_on = |r: &&mut SumRun| {
            r.promised == offset
                && !r.ended
                && r.stop == u64::MAX
                && r.promised - r.from < RUN
                && len > 0
        };
        let run = match state.runs.iter_mut().find(goes_on) {
            Some(run) => {
                run.promised += len;
                run.id
            }
            None => {
                let id = state.next;
                state.next += 1;
                state.runs.push(SumRun {
                    id,
                    from: offset,
                    promised: offset + len,
                    hashed: offset,
                    hasher: Some(Hasher::of_run(self.by.get(), self.by.whole())),
                    ended: false,
                    stop: u64::MAX,
                });
                id
            }
        };
        ChecksumPieceTicket {
            file: Arc::clone(self),
            run,
            offset,
            len,
            kept: false,
        }
    }

    /// Adds data at `offset` that need no separate ticket.
    pub(crate) fn add<'a>(
        self: &Arc<Self>,
        offset: u64,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let len = slices.clone().map(|s| s.len() as u64).sum();
        // No file is longer, regardless of a server's claim.
        let fits = offset
            .checked_add(len)
            .is_some_and(|end| end <= i64::MAX as u64);
        if len > 0 && fits {
            self.promise(offset, len).keep(slices);
        }
    }

    /// Ends the runs between `from` and `to` that have no pieces in flight.
    pub(crate) fn settle(&self, from: u64, to: u64) {
        let mut state = self.lock();
        let is = |r: &SumRun| {
            from <= r.from && r.hashed <= to && r.hashed == r.promised && r.hasher.is_some()
        };
        while let Some(at) = state.runs.iter().position(is) {
            let run = state.runs.swap_remove(at);
            state.close(run);
        }
    }

    /// Returns the sums of ended runs from index `first` on; indexes do not change.
    pub(crate) fn ended(&self, first: usize) -> Vec<RangeChecksum> {
        let state = self.lock();
        state.sums.get(first..).unwrap_or_default().to_vec()
    }

    /// Ends all runs and returns the checksums.
    pub(crate) fn finish(&self) -> FinishedSums {
        let mut state = self.lock();
        for run in std::mem::take(&mut state.runs) {
            state.close(run);
        }
        let size = state.sums.iter().map(RangeChecksum::end).max().unwrap_or(0);
        if state.sums.is_empty() {
            let digests = Hasher::new(self.by.get()).finish();
            let (from, len) = (0, 0);
            state.sums.push(RangeChecksum { from, len, digests });
        }
        let blake = state.tree.root(size);
        let xxh = state.xxh.finish(size);
        let all = RangeChecksum {
            from: 0,
            len: size,
            digests: [
                (SumAlgorithm::Xxh128, xxh),
                (SumAlgorithm::Blake3, blake.clone()),
            ]
            .into_iter()
            .filter_map(|(by, digest)| Some((by, digest?)))
            .collect(),
        };
        let whole = match self.wants {
            WantedDigest::Verify => None,
            WantedDigest::Blake3 => blake,
            WantedDigest::Sha256 => match state.whole.take() {
                Some((at, hasher)) if at == size => hasher.finish().pop().map(|(_, d)| d),
                _ => None,
            },
        };
        FinishedSums::new(std::mem::take(&mut state.sums), size, all, whole)
    }
}

impl FileSumState {
    fn run(&mut self, id: u64) -> Option<&mut SumRun> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    fn close(&mut self, run: SumRun) {
        let len = run.hashed - run.from;
        if let Some(mut hasher) = run.hasher.filter(|_| len > 0) {
            hasher.give_end(run.from, &mut self.xxh);
            self.sums.push(RangeChecksum {
                from: run.from,
                len,
                digests: hasher.finish(),
            });
        }
    }
}

impl ChecksumPieceTicket {
    /// Hashes the piece, which may be shorter than promised at the end of the file.
    pub(crate) fn keep<'a>(mut self, slices: impl Iterator<Item = &'a [u8]> + Clone) {
        self.kept = true;
        let file = Arc::clone(&self.file);
        let tree = match file.by.get() {
            None | Some(SumAlgorithm::Blake3) => true,
            Some(_) => file.wants == WantedDigest::Blake3,
        };
        let nodes = tree.then(|| HashTreeNodes::of(self.offset, slices.clone()));
        let mut state = file.lock();
        if let Some(nodes) = nodes {
            state.tree.add(nodes);
        }
        // The thread that holds the hasher has the preceding piece.
        let (id, offset) = (self.run, self.offset);
        let waits = |s: &mut FileSumState| {
            s.run(id)
                .is_some_and(|r| r.awaits(offset) && (r.hashed != offset || r.hasher.is_none()))
        };
        let wait = file.turn.wait_while(state, waits);
        state = wait.unwrap_or_else(PoisonError::into_inner);
        let found = state.run(id).filter(|r| r.awaits(offset));
        let Some(mut hasher) = found.and_then(|r| r.hasher.take()) else {
            // The piece is beyond the end of its run; missing ranges are read from the file later.
            return;
        };
        let whole = state.whole.take_if(|(at, _)| *at == offset);
        drop(state);
        hasher.settle(file.by.get(), file.by.whole());
        let mut n = 0;
        for slice in slices.clone() {
            hasher.update(slice);
            n += slice.len() as u64;
        }
        let whole = whole.map(|(at, mut hasher)| {
            slices.for_each(|slice| hasher.update(slice));
            (at + n, hasher)
        });
        let mut state = file.lock();
        if whole.is_some() {
            state.whole = whole;
        }
        if let Some(from) = state.run(id).map(|run| run.from) {
            hasher.give(from, &mut state.xxh);
        }
        if let Some(run) = state.run(id) {
            run.hashed += n;
            run.hasher = Some(hasher);
            run.ended |= n < self.len || run.hashed >= run.stop;
        }
        state.close_ended(id);
        drop(state);
        file.turn.notify_all();
    }
}

impl SumRun {
    fn awaits(&self, offset: u64) -> bool {
        !self.ended && offset < self.stop
    }
}

impl FileSumState {
    fn close_ended(&mut self, id: u64) {
        let over = |r: &SumRun| r.ended || (r.hashed == r.promised && r.hashed - r.from >= RUN);
        if let Some(at) = self.runs.iter().position(|r| r.id == id && over(r)) {
            let run = self.runs.swap_remove(at);
            self.close(run);
        }
    }
}

impl Drop for ChecksumPieceTicket {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut state = self.file.lock();
        if let Some(run) = state.run(self.run) {
            // The preceding pieces are still to come.
            run.stop = run.stop.min(self.offset);
            run.ended |= run.hashed >= run.stop;
        }
        state.close_ended(self.run);
        drop(state);
        self.file.turn.notify_all();
    }
}

impl std::fmt::Debug for FileChecksums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSums").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n / 3 + n * n) as u8).collect()
    }

    fn once(bytes: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
        std::iter::once(bytes)
    }

    fn xxh(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(Some(SumAlgorithm::Xxh128));
        hasher.update(bytes);
        hasher.finish().remove(0).1
    }

    fn ledger(wants: WantedDigest) -> ChecksumLedger {
        let ledger = ChecksumLedger::new(wants);
        ledger.choose(Some(SumAlgorithm::Xxh128));
        ledger
    }

    /// Asserts that each sum matches its bytes and that together they cover all.
    #[track_caller]
    fn assert_proves(seen: &FinishedSums, data: &[u8]) {
        assert_eq!(seen.size, data.len() as u64);
        let mut sums = seen.sums.clone();
        sums.sort_by_key(|s| s.from);
        let mut covered = 0;
        for sum in &sums {
            assert!(sum.from <= covered, "a hole before {}", sum.from);
            covered = covered.max(sum.end());
            let bytes = &data[sum.from as usize..sum.end() as usize];
            assert_eq!(sum.by(SumAlgorithm::Xxh128), Some(&xxh(bytes)));
        }
        assert_eq!(covered, data.len() as u64);
    }

    #[test]
    fn what_an_earlier_run_has_sent_is_read_and_proven_too() {
        let data = data(300_000);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, &data).unwrap();
        let ledger = ledger(WantedDigest::Verify);
        // The middle, or nothing, passed in this run.
        for passed in [100_000..200_000, 0..0] {
            let sums = FileChecksums::new(&ledger);
            sums.add(passed.start as u64, once(&data[passed]));
            let mut seen = sums.finish();
            seen.grow_to(data.len() as u64);
            let file = std::fs::File::open(&path).unwrap();
            seen.complete(&file, &ledger).unwrap();
            assert_proves(&seen, &data);
        }
        let mut nothing = FinishedSums::default();
        let empty = tempfile::tempfile().unwrap();
        nothing.complete(&empty, &ledger).unwrap();
        assert_eq!(nothing.sums.len(), 1, "an empty file is compared as well");
    }

    #[test]
    fn pieces_of_one_run_are_hashed_in_order_by_several_threads() {
        let data = data(1_000_000);
        for wants in [
            WantedDigest::Verify,
            WantedDigest::Blake3,
            WantedDigest::Sha256,
        ] {
            let file = FileChecksums::new(&ledger(wants));
            let pieces: Vec<(usize, &[u8])> = data.chunks(9216).enumerate().collect();
            let promised = Mutex::new(pieces.into_iter());
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        loop {
                            let mut next = promised.lock().unwrap();
                            let Some((n, bytes)) = next.next() else {
                                return;
                            };
                            let offset = (n * 9216) as u64;
                            let ticket = file.promise(offset, 9216);
                            drop(next);
                            ticket.keep(once(bytes));
                        }
                    });
                }
            });
            let seen = file.finish();
            assert_eq!(seen.sums.len(), 1);
            assert_proves(&seen, &data);
            assert_eq!(
                seen.whole.is_some(),
                wants != WantedDigest::Verify,
                "{wants:?}"
            );
        }
    }

    #[test]
    fn parts_that_overlap_are_each_summed() {
        let data = data(300_000);
        let file = FileChecksums::new(&ledger(WantedDigest::Blake3));
        for (from, to) in [(0, 100_352), (200_704, 300_000), (51_200, 200_704)] {
            file.add(from as u64, once(&data[from..to]));
        }
        let seen = file.finish();
        assert_proves(&seen, &data);
        assert!(seen.whole.is_some());
    }

    /// Regression test: the thread with the next piece must not wait forever.
    #[test]
    fn a_piece_that_never_comes_holds_nobody() {
        let data = data(30_000);
        let file = FileChecksums::new(&ledger(WantedDigest::Verify));
        let tickets: Vec<ChecksumPieceTicket> =
            (0..3).map(|n| file.promise(n * 10_000, 10_000)).collect();
        let mut tickets = tickets.into_iter();
        let (first, lost, last) = (tickets.next(), tickets.next(), tickets.next());
        std::thread::scope(|scope| {
            scope.spawn(|| last.unwrap().keep(once(&data[20_000..])));
            drop(lost);
            first.unwrap().keep(once(&data[..10_000]));
        });
        let seen = file.finish();
        assert_eq!((seen.sums[0].from, seen.sums[0].len), (0, 10_000));
        assert_eq!(seen.sums.len(), 1);
    }

    #[test]
    fn runs_have_a_largest_length_and_an_empty_file_has_a_sum() {
        let file = FileChecksums::new(&ledger(WantedDigest::Verify));
        let piece = vec![7; 24 << 20];
        for n in 0..4_u64 {
            file.add(n * (24 << 20), once(&piece));
        }
        let lens: Vec<u64> = file.finish().sums.iter().map(|s| s.len >> 20).collect();
        assert_eq!(lens, [72, 24]);
        let empty = FileChecksums::new(&ledger(WantedDigest::Verify)).finish();
        assert_eq!((empty.size, empty.sums.len()), (0, 1));
        assert_eq!(empty.sums[0].by(SumAlgorithm::Xxh128), Some(&xxh(b"")));
    }
}
