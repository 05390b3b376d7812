//! Sums by a longhaul at the far end, on the channels that are there (hash@longhaul): no command
//! and none of the file's bytes on the path.

use schedule::{ByteRange, JobId, JobKind, RemotePath};
use sftp::blocks::MOST_HASHED;

use super::early::{Ask, Of};
use super::remote_sums::State;
use crate::copy::engine::{Engine, Purpose};
use crate::sums::{Algorithm, Digest, Program};

/// What makes sums there, in the place of a program.
const OURS: Program = Program {
    command: "",
    name: "longhaul",
    algorithm: Algorithm::Blake3,
};
/// Questions in flight: of small files many are needed to keep a long path full.
const ASKED: usize = 256;

impl Program {
    /// It is asked by requests, for ranges of files alone.
    pub(super) fn is_ours(&self) -> bool {
        self.command.is_empty()
    }
}

impl Engine<'_> {
    /// Where a longhaul serves at the far end, it makes the sums: unless those of whole files are
    /// made here by now, which it does not make.
    pub(super) fn find_ours(&mut self) {
        let undecided = matches!(self.verify.far.state, State::Unknown | State::Asking { .. });
        let whole = self.verify.ledger.as_ref().is_none_or(|l| l.is_whole());
        if !undecided || whole {
            return;
        }
        let info = self.far_session().and_then(|session| session.far_info());
        if info.is_some_and(|info| info.has("hash@longhaul") && info.has("copy-data")) {
            self.stop_workers();
            // One processor: the requests of a channel are done one after the other.
            self.has_program(OURS, 1);
        }
    }

    /// Asks for the sums that there are to ask for.
    pub(super) fn ask_ours(&mut self) {
        while self.verify.far.asked_ours < ASKED
            && let Some(ask) = self.verify.far.todo.pop_front()
        {
            let Some((path, span, size)) = self.range_of(ask) else {
                continue;
            };
            let Some(end) = self.far_end() else { return };
            let path = RemotePath(path);
            let kind = JobKind::Sum { path, span, size };
            if self.submit(end, kind, Purpose::Sum(ask)).is_none() {
                // The run is ending.
                return;
            }
            self.verify.far.asked_ours += 1;
        }
    }

    /// Which bytes of which file a sum is of, and how long that file is to be.
    fn range_of(&self, ask: Ask) -> Option<(Vec<u8>, ByteRange, Option<u64>)> {
        let Of::Run(at) = ask.sum else { return None };
        let span = |from, len| ByteRange {
            offset: from,
            len: Some(len),
        };
        if let Some(checking) = self.verify.files.get(&ask.file)
            && checking.attempt == ask.attempt
        {
            let sum = checking.seen.sums.get(at)?;
            let size = Some(checking.seen.size);
            return Some((checking.path.clone(), span(sum.from, sum.len), size));
        }
        let (path, sum) = self.moving_range(ask, at)?;
        Some((path, span(sum.from, sum.len), None))
    }

    /// The far end has made a sum.
    pub(in crate::copy) fn on_our_sum(&mut self, job: JobId, sum: &[u8]) {
        let Some((_, Purpose::Sum(ask))) = self.jobs.get(&job) else {
            return;
        };
        let ask = *ask;
        let digest = match sum {
            [] => Digest::new(blake3::hash(&[]).as_bytes()),
            sum => Digest::new(sum),
        };
        self.on_sum(ask, Some(digest));
    }

    /// It was asked for a sum, and has made one or not.
    pub(in crate::copy) fn on_our_sum_over(&mut self, ask: Ask, made: bool) {
        let far = &mut self.verify.far;
        far.asked_ours = far.asked_ours.saturating_sub(1);
        if !made {
            self.on_sum(ask, None);
        }
    }
}

/// Whether one request makes the sum of so many bytes.
pub(super) fn fits(len: u64) -> bool {
    len <= u64::from(MOST_HASHED)
}
