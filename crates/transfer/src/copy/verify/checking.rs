//! What is known of a file that stands under its name, and what is still to be asked of the far end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::early::{Of, OfWhole, Told};
use crate::disk::Check;
use crate::sums::{Algorithm, Digest, Seen};

/// A file that is being compared.
pub(super) struct Checking {
    /// At the far end, or here where both ends are.
    pub(super) path: Vec<u8>,
    pub(super) seen: Seen,
    /// Which copy of it; what is asked says so, too.
    pub(super) attempt: u64,
    /// What is known of its sums.
    told: BTreeMap<usize, Told>,
    whole: OfWhole,
    /// Ranges that differ there.
    pub(super) differs: bool,
    stage: Stage,
    pub(super) was_read_back: bool,
}

/// What a file waits for.
enum Stage {
    /// Nobody has looked at what is known of it yet.
    Queued,
    /// These sums, of which at least one is not as it should be where `failed`.
    Asked { waits: BTreeSet<Of>, failed: bool },
    /// Being read back.
    ReadBack(Arc<Check>),
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Wait,
    /// The file had another name when it was asked for.
    AskAgain,
    /// Something differs, or cannot be read there.
    ReadBack,
    /// Every byte is proven.
    Right,
}

impl Checking {
    pub(super) fn new(
        path: Vec<u8>,
        seen: Seen,
        attempt: u64,
        told: BTreeMap<usize, Told>,
        whole: OfWhole,
    ) -> Self {
        Self {
            path,
            seen,
            attempt,
            told,
            whole,
            differs: false,
            stage: Stage::Queued,
            was_read_back: false,
        }
    }

    /// The sums to be asked for now, by the program's algorithm; `None` where reading back alone
    /// can tell.
    pub(super) fn ask_for(&mut self, by: Algorithm) -> Option<Vec<Of>> {
        let by_whole = self.judge_whole(by);
        self.ask(by, by_whole)
    }

    /// The same where the far end makes sums of ranges alone, of those that `fits` says.
    pub(super) fn ask_for_runs(
        &mut self,
        by: Algorithm,
        fits: impl Fn(u64) -> bool,
    ) -> Option<Vec<Of>> {
        let all = self.seen.sums.iter().all(|sum| fits(sum.len));
        self.ask(by, false).filter(|_| all)
    }

    fn ask(&mut self, by: Algorithm, by_whole: bool) -> Option<Vec<Of>> {
        let sums = &self.seen.sums;
        let mut open = match by_whole {
            true => self.seen.twice(),
            false => (0..sums.len()).collect(),
        };
        open.retain(|at| self.told.get(at) != Some(&Told::Right));
        self.differs |= self.told.values().any(|t| *t == Told::Differs);
        let unknown = open.iter().any(|at| sums[*at].by(by).is_none());
        if self.differs || unknown {
            return None;
        }
        let whole = (by_whole && self.whole != OfWhole::Right).then_some(Of::Whole);
        let waits: BTreeSet<Of> = whole
            .into_iter()
            .chain(open.into_iter().map(Of::Run))
            .collect();
        let unasked = |sum: &Of| match sum {
            Of::Whole => self.whole == OfWhole::NotAsked,
            Of::Run(at) => self.told.get(at) != Some(&Told::Asked),
        };
        let asks = waits.iter().copied().filter(unasked).collect();
        self.stage = Stage::Asked {
            waits,
            failed: false,
        };
        Some(asks)
    }

    /// Whether the sum of the whole is compared, and of runs those that share bytes: where the far
    /// end was asked for that, or for not much of the file yet.
    fn judge_whole(&mut self, by: Algorithm) -> bool {
        let sums = &self.seen.sums;
        // What passed before the algorithm was known may have that of the whole alone.
        let needed = sums.len() > 1 || sums.iter().any(|sum| sum.by(by).is_none());
        let expected = self.seen.all.by(by).filter(|_| needed);
        let asked: u64 = self.told.keys().map(|at| sums[*at].len).sum();
        let by_whole = match (&self.whole, expected) {
            (_, None) => false,
            (OfWhole::NotAsked, _) => asked <= self.seen.size / 2,
            _ => true,
        };
        tracing::debug!("{} sums, {asked} bytes of them asked for", sums.len());
        if let (true, OfWhole::Told(digest)) = (by_whole, &self.whole) {
            match expected == Some(digest) {
                true => self.whole = OfWhole::Right,
                false => self.differs = true,
            }
        }
        by_whole
    }

    /// The far end's sum, `None` where it could not read the file. `early` says that it was asked
    /// for before the file had its name.
    pub(super) fn answer(
        &mut self,
        sum: Of,
        digest: Option<Digest>,
        early: bool,
        by: Algorithm,
    ) -> Verdict {
        let seen = match sum {
            Of::Whole => Some(&self.seen.all),
            Of::Run(at) => self.seen.sums.get(at),
        };
        let right = digest.is_some() && seen.and_then(|s| s.by(by)) == digest.as_ref();
        let Stage::Asked { waits, failed } = &mut self.stage else {
            // Not looked at yet: it is one answer of those that it needs. The whole of a file was
            // once taken for proven by the first of them.
            self.note(sum, digest, right);
            return Verdict::Wait;
        };
        // Of a file whose whole is compared, runs may be answered that were asked for before.
        if !waits.contains(&sum) {
            return Verdict::Wait;
        }
        if digest.is_none() && early {
            return Verdict::AskAgain;
        }
        waits.remove(&sum);
        // What cannot be read there is read back, which says why.
        *failed |= !right;
        self.differs |= digest.is_some() && !right;
        match (waits.is_empty(), *failed) {
            (false, _) => Verdict::Wait,
            (true, true) => Verdict::ReadBack,
            (true, false) => Verdict::Right,
        }
    }

    fn note(&mut self, sum: Of, digest: Option<Digest>, right: bool) {
        match (sum, digest) {
            (Of::Whole, digest) => self.whole = digest.map_or(OfWhole::NotAsked, OfWhole::Told),
            (Of::Run(at), None) => {
                self.told.remove(&at);
            }
            (Of::Run(at), Some(_)) => {
                let told = if right { Told::Right } else { Told::Differs };
                self.told.insert(at, told);
            }
        }
    }

    /// Nothing is left to be asked.
    pub(super) fn is_right(&self) -> bool {
        matches!(&self.stage, Stage::Asked { waits, .. } if waits.is_empty())
    }

    /// It waits for the sum of a single run, of which nothing was asked before.
    pub(super) fn is_one_sum(&self) -> bool {
        let one = |waits: &BTreeSet<Of>| waits.len() == 1 && waits.contains(&Of::Run(0));
        self.seen.sums.len() == 1
            && self.told.is_empty()
            && matches!(&self.stage, Stage::Asked { waits, .. } if one(waits))
    }

    /// What was told of it counts no more.
    pub(super) fn begin_anew(&mut self) {
        self.stage = Stage::Queued;
        self.told.clear();
        self.whole = OfWhole::NotAsked;
        self.differs = false;
    }

    /// Reading it back begins, by an algorithm that all its sums have.
    pub(super) fn begin_check(&mut self) -> Option<Arc<Check>> {
        let all = [Algorithm::Xxh128, Algorithm::Blake3, Algorithm::Sha256];
        let sums = &self.seen.sums;
        let by = all
            .into_iter()
            .find(|by| sums.iter().all(|sum| sum.by(*by).is_some()))?;
        let check = Arc::new(Check::new(sums.clone(), self.seen.size, by));
        self.stage = Stage::ReadBack(Arc::clone(&check));
        self.was_read_back = true;
        Some(check)
    }

    pub(super) fn check(&self) -> Option<&Arc<Check>> {
        match &self.stage {
            Stage::ReadBack(check) => Some(check),
            _ => None,
        }
    }

    pub(super) fn is_read_back(&self) -> bool {
        self.check().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::Sum;

    const BY: Algorithm = Algorithm::Xxh128;

    fn digest(n: u8) -> Option<Digest> {
        Digest::from_hex(format!("{n:032x}").as_bytes(), BY)
    }

    fn sum(from: u64, len: u64, n: u8) -> Sum {
        Sum {
            from,
            len,
            digests: digest(n).map(|digest| (BY, digest)).into_iter().collect(),
        }
    }

    /// Two runs of 1000 bytes, of which `told` was asked for while it was being copied; the sum of
    /// the whole is known where `all`.
    fn checking(told: &[usize], all: bool) -> Checking {
        let seen = Seen {
            sums: vec![sum(0, 1000, 1), sum(1000, 1000, 2)],
            size: 2000,
            all: if all { sum(0, 2000, 9) } else { Sum::default() },
            whole: None,
        };
        let told = told.iter().map(|at| (*at, Told::Asked)).collect();
        Checking::new(b"file".to_vec(), seen, 1, told, OfWhole::NotAsked)
    }

    #[test]
    fn an_answer_that_comes_before_anybody_looked_is_not_all_there_is() {
        let mut file = checking(&[0, 1], false);
        assert_eq!(file.answer(Of::Run(0), digest(1), true, BY), Verdict::Wait);
        assert_eq!(file.ask_for(BY), Some(vec![]));
        assert!(!file.is_right());
        assert_eq!(file.answer(Of::Run(1), digest(2), true, BY), Verdict::Right);

        let mut file = checking(&[0, 1], false);
        file.answer(Of::Run(0), digest(7), true, BY);
        assert_eq!(file.ask_for(BY), None, "it differs");
    }

    #[test]
    fn what_nobody_waits_for_proves_nothing() {
        let mut file = checking(&[0], true);
        assert_eq!(file.ask_for(BY), Some(vec![Of::Whole]));
        assert_eq!(file.answer(Of::Run(0), digest(1), true, BY), Verdict::Wait);
        assert_eq!(file.answer(Of::Run(0), digest(1), true, BY), Verdict::Wait);
        assert!(!file.is_right());
        assert_eq!(file.answer(Of::Whole, digest(9), false, BY), Verdict::Right);
    }

    #[test]
    fn one_that_is_read_back_is_judged_by_that_alone() {
        let mut file = checking(&[0, 1], false);
        file.answer(Of::Run(0), digest(7), true, BY);
        assert_eq!(file.ask_for(BY), None);
        assert!(file.begin_check().is_some());
        // Once it was read back twice at a time, and each read spoilt what the other had.
        assert_eq!(file.answer(Of::Run(1), digest(2), true, BY), Verdict::Wait);
        assert!(file.is_read_back());
    }

    #[test]
    fn every_wrong_or_unreadable_sum_is_read_back_when_all_have_come() {
        for wrong in [digest(7), None] {
            let mut file = checking(&[], false);
            assert_eq!(file.ask_for(BY), Some(vec![Of::Run(0), Of::Run(1)]));
            let early = file.answer(Of::Run(0), None, true, BY);
            assert_eq!(early, Verdict::AskAgain, "it had its other name");
            assert_eq!(file.answer(Of::Run(0), wrong, false, BY), Verdict::Wait);
            let last = file.answer(Of::Run(1), digest(2), false, BY);
            assert_eq!(last, Verdict::ReadBack);
        }
    }
}
