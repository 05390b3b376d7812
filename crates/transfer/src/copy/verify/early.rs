//! Sums that are asked for while the file is still being copied, so that little is left to ask
//! when it is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use schedule::JobId;

use super::Verify;
use crate::copy::engine::{End, Engine, Purpose};
use crate::copy::file::FileId;
use crate::sums::{Algorithm, Digest, FileSums, Sum, request, whole_request};

/// Where no more than this was asked for in parts, or a quarter, the whole is asked for instead: by
/// a pipe 64 MiB cost what 400 MiB do without.
const LITTLE: u64 = 64 << 20;

/// A file that is being copied, of which sums are asked for.
pub(super) struct Moving {
    sums: Arc<FileSums>,
    attempt: u64,
    /// The temporary that the far end writes.
    temporary: Option<Vec<u8>>,
    /// What has passed, in the order in which it ended.
    ended: Vec<Sum>,
    told: BTreeMap<usize, Told>,
    whole: OfWhole,
}

/// What the far end was asked of a whole source while it is being copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum OfWhole {
    #[default]
    NotAsked,
    Asked,
    Told(Digest),
    /// It is that of what passed.
    Right,
}

/// What is known of one of a file's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was asked for.
    Asked,
    Right,
    Differs,
}

/// A sum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::copy) enum Of {
    Whole,
    /// Which one of those that passed.
    Run(usize),
}

/// What is asked for: which sum of which copy of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::copy) struct Ask {
    pub(super) file: FileId,
    pub(super) sum: Of,
    pub(super) attempt: u64,
    /// Before the file had its name.
    pub(super) early: bool,
}

impl Ask {
    /// Of a file that has its name.
    pub(super) fn new(file: FileId, sum: Of, attempt: u64) -> Self {
        Self {
            file,
            sum,
            attempt,
            early: false,
        }
    }
}

impl Verify {
    /// Another copy begins.
    fn attempt(&mut self) -> u64 {
        self.next_attempt += 1;
        self.next_attempt
    }

    /// The file is not being copied any more.
    pub(in crate::copy) fn forget(&mut self, id: FileId) {
        self.moving.remove(&id);
    }

    /// A file whose `sums` these are has its name: which copy of it that is, and what is known.
    pub(super) fn copied(
        &mut self,
        id: FileId,
        sums: Option<&Arc<FileSums>>,
    ) -> (u64, BTreeMap<usize, Told>, OfWhole) {
        let moved = self.moving.remove(&id);
        let same = |m: &Moving| sums.is_some_and(|sums| Arc::ptr_eq(sums, &m.sums));
        match moved.filter(same) {
            Some(moved) => (moved.attempt, moved.told, moved.whole),
            None => (self.attempt(), BTreeMap::new(), OfWhole::NotAsked),
        }
    }

    /// The far end's sum of a range of a file that is still being copied; `None` where it could
    /// not be read, and is asked for again later.
    pub(super) fn on_moving_sum(&mut self, ask: Ask, digest: Option<&Digest>, by: Algorithm) {
        let moving = self.moving.get_mut(&ask.file);
        let Some(moving) = moving.filter(|m| m.attempt == ask.attempt) else {
            return;
        };
        let Of::Run(at) = ask.sum else {
            moving.whole = digest.map_or(OfWhole::NotAsked, |d| OfWhole::Told(d.clone()));
            return;
        };
        let expected = moving.ended.get(at).and_then(|sum| sum.by(by));
        match digest {
            None => moving.told.remove(&at),
            Some(_) if digest == expected => moving.told.insert(at, Told::Right),
            Some(_) => moving.told.insert(at, Told::Differs),
        };
    }
}

impl Engine<'_> {
    fn moving_file(&self, job: JobId) -> Option<FileId> {
        match self.jobs.get(&job)? {
            (end, Purpose::File(id, _)) if Some(*end) == self.far_end() => Some(*id),
            _ => None,
        }
    }

    /// What passes of `job`, if sums of it can be asked for.
    fn moving(&mut self, job: JobId) -> Option<(FileId, &mut Moving)> {
        if !self.verify.wanted || self.verify.far.is_given_up() {
            return None;
        }
        let id = self.moving_file(job)?;
        let sums = self.verify.ledger.as_ref()?.get(job)?;
        let known = self.verify.moving.get(&id);
        if known.is_none_or(|m| !Arc::ptr_eq(&m.sums, &sums)) {
            let moving = Moving {
                sums,
                attempt: self.verify.attempt(),
                temporary: None,
                ended: Vec::new(),
                told: BTreeMap::new(),
                whole: OfWhole::NotAsked,
            };
            self.verify.moving.insert(id, moving);
        }
        Some((id, self.verify.moving.get_mut(&id)?))
    }

    /// The far end writes `job` into this.
    pub(in crate::copy) fn note_temporary(&mut self, job: JobId, path: &[u8]) {
        if let Some((_, moving)) = self.moving(job) {
            moving.temporary = Some(path.to_vec());
        }
    }

    /// Of a file under way these bytes are where they belong, and nothing that was written there
    /// is unanswered.
    pub(in crate::copy) fn verify_early(&mut self, job: JobId, from: u64, to: u64) {
        let upload = self.far_end() == Some(End::Target);
        // What ends in a hole has its length last: a program there would find less than was skipped.
        if upload && self.options.sparse {
            return;
        }
        self.find_ours();
        let by_whole = self.verify.compares_whole();
        let size = self
            .moving_file(job)
            .and_then(|id| self.files.get(&id)?.size);
        let size = size.unwrap_or(0);
        let Some((file, moving)) = self.moving(job) else {
            return;
        };
        if upload && moving.temporary.is_none() {
            return;
        }
        moving.sums.settle(from, to);
        let asked: u64 = moving.told.keys().map(|at| moving.ended[*at].len).sum();
        if by_whole && asked <= LITTLE.max(size / 4) {
            // A source is there as a whole; a target is asked for when it is.
            if !upload && moving.whole == OfWhole::NotAsked {
                moving.whole = OfWhole::Asked;
                let sum = Of::Whole;
                let attempt = moving.attempt;
                let early = true;
                self.verify.far.todo.push_back(Ask {
                    file,
                    sum,
                    attempt,
                    early,
                });
            }
            return;
        }
        let more = moving.sums.ended(moving.ended.len());
        moving.ended.extend(more);
        let attempt = moving.attempt;
        let mut asks = Vec::new();
        for (at, sum) in moving.ended.iter().enumerate() {
            if sum.from >= from && sum.end() <= to && !moving.told.contains_key(&at) {
                asks.push(Ask {
                    file,
                    sum: Of::Run(at),
                    attempt,
                    early: true,
                });
            }
        }
        for ask in &asks {
            if let Of::Run(at) = ask.sum {
                moving.told.insert(at, Told::Asked);
            }
        }
        self.verify.far.todo.extend(asks);
    }

    /// The sum of a file that is being copied, and where its bytes are now.
    pub(super) fn moving_range(&self, ask: Ask, at: usize) -> Option<(Vec<u8>, &Sum)> {
        let moving = self.verify.moving.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = self.files.get(&ask.file)?;
        let path = moving.temporary.as_ref().unwrap_or(&task.source);
        Some((path.clone(), moving.ended.get(at)?))
    }

    /// The request for a sum of a file that is being copied, and of how many bytes that is.
    pub(super) fn line_of_moving(&self, ask: Ask) -> Option<(Vec<u8>, u64)> {
        let moving = self.verify.moving.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = self.files.get(&ask.file)?;
        let size = task.size.unwrap_or(u64::MAX);
        let Of::Run(at) = ask.sum else {
            return Some((whole_request(&task.source), task.size.unwrap_or(0)));
        };
        let sum = moving.ended.get(at)?;
        let line = match &moving.temporary {
            Some(temporary) => request(temporary, Some(&task.target), sum, size),
            None => request(&task.source, None, sum, size),
        };
        Some((line, sum.len))
    }
}
