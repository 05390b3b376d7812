//! Checksums by a longhaul at the far end over the existing channels (hash@longhaul): needs no
//! command, and no file data crosses the path.

use schedule::{ByteRange, JobId, JobKind, RemotePath};
use sftp::blocks::MOST_HASHED;

use super::early::{SumRequest, SumSelector};
use crate::copy::engine::{CopyEngine, JobPurpose};
use crate::sums::{Digest, SumAlgorithm, SumProgram};

/// Stands for the remote longhaul in place of a checksum program.
const OURS: SumProgram = SumProgram {
    command: "",
    name: "longhaul",
    algorithm: SumAlgorithm::Blake3,
};
/// Number of checksum requests in flight; small files need many to keep a long path full.
const ASKED: usize = 256;

impl SumProgram {
    /// True for the remote longhaul, which sums only ranges and is asked by SFTP requests.
    pub(super) fn is_ours(&self) -> bool {
        self.command.is_empty()
    }
}

impl CopyEngine<'_> {
    /// Uses a longhaul at the far end for checksums, unless checksums of whole files are in use
    /// here, which a longhaul does not make.
    pub(super) fn find_ours(&mut self) {
        let undecided = self.verify.far.is_undecided();
        let whole = self.verify.ledger.as_ref().is_none_or(|l| l.is_whole());
        if !undecided || whole {
            return;
        }
        let info = self.far_session().and_then(|session| session.far_info());
        if info.is_some_and(|info| info.has("hash@longhaul") && info.has("copy-data")) {
            self.stop_workers();
            // One processor, because a channel's requests are done one after the other.
            self.has_program(OURS, 1);
        }
    }

    /// Submits the pending checksum requests.
    pub(super) fn ask_ours(&mut self) {
        while let Some(ask) = self.verify.far.next_of_ours(ASKED) {
            let Some((path, span, size)) = self.range_of(ask) else {
                continue;
            };
            let Some(end) = self.far_end() else { return };
            let path = RemotePath(path);
            let kind = JobKind::Sum { path, span, size };
            if self.submit(end, kind, JobPurpose::Sum(ask)).is_none() {
                // The run is ending.
                return;
            }
            self.verify.far.ours_begins();
        }
    }

    /// Path and range of a checksum, and the expected file size.
    fn range_of(&self, ask: SumRequest) -> Option<(Vec<u8>, ByteRange, Option<u64>)> {
        let SumSelector::Run(at) = ask.sum else {
            return None;
        };
        let span = |from, len| ByteRange {
            offset: from,
            len: Some(len),
        };
        if let Some(checking) = self.verify.files.get(&ask.file)
            && checking.is_attempt(ask.attempt)
        {
            let sum = checking.seen().sums.get(at)?;
            let size = Some(checking.size());
            return Some((checking.path().to_vec(), span(sum.from, sum.len), size));
        }
        let (path, sum) = self.moving_range(ask, at)?;
        Some((path, span(sum.from, sum.len), None))
    }

    /// Handles a checksum from the remote longhaul.
    pub(in crate::copy) fn on_our_sum(&mut self, job: JobId, sum: &[u8]) {
        let Some((_, JobPurpose::Sum(ask))) = self.ports.jobs().get(&job) else {
            return;
        };
        let ask = *ask;
        let digest = match sum {
            [] => Digest::new(blake3::hash(&[]).as_bytes()),
            sum => Digest::new(sum),
        };
        self.on_sum(ask, Some(digest));
    }

    /// Handles the end of a request; `made` means that a checksum arrived.
    pub(in crate::copy) fn on_our_sum_over(&mut self, ask: SumRequest, made: bool) {
        self.verify.far.ours_ends();
        if !made {
            self.on_sum(ask, None);
        }
    }
}

/// True if one request can sum `len` bytes.
pub(super) fn fits(len: u64) -> bool {
    len <= u64::from(MOST_HASHED)
}
