//! Decides whether lost lanes are the fault of a job that was on them.
//!
//! A job may be what ends them, as a file that the server cannot read without crashing. A host that
//! ends every channel is no job's fault: the owner of the scheduler notices that, by lanes that are
//! lost one after the other with nothing done in between, and gives the host up.

/// Number of lost lanes after which a job itself is assumed to be the cause, if other jobs were done
/// before each of them.
const MOST: u32 = 4;
/// Number of lost lanes after which a job is failed in any case, so that the work ends.
const MOST_AT_ALL: u32 = 8;

/// Number of lost lanes that a job was on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobLaneLosses {
    all: u32,
    /// Losses before which jobs had been done since the loss before.
    fruitful: u32,
}

impl JobLaneLosses {
    /// Losses of a job that was on one lost lane, or on none.
    pub(super) fn one(is_any: bool) -> Self {
        let mut losses = Self::default();
        if is_any {
            losses.note(false);
        }
        losses
    }

    /// Losses of a job that was on `all` lost lanes.
    pub(super) fn of(all: u32) -> Self {
        Self { all, fruitful: 0 }
    }

    /// Counts the loss of a lane. `fruitful` is true if something had been done since the previous
    /// loss.
    pub(super) fn note(&mut self, fruitful: bool) {
        self.all += 1;
        self.fruitful += u32::from(fruitful);
    }

    pub(super) fn count(self) -> u32 {
        self.all
    }

    /// True if the job is assumed to be the cause.
    pub(super) fn are_its_fault(self) -> bool {
        self.fruitful >= MOST || self.all >= MOST_AT_ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_blamed_only_if_others_were_done() {
        let after = |fruitful: &[bool]| {
            let mut losses = JobLaneLosses::default();
            fruitful.iter().for_each(|fruitful| losses.note(*fruitful));
            losses.are_its_fault()
        };
        assert!(!after(&[true; 3]) && after(&[true; 4]));
        assert!(!after(&[false; 7]) && after(&[false; 8]));
        assert!(!after(&[true, false, true, false, true, false]));
    }
}
