use crate::FileCopyState;

/// Progress of an upload, as reported to the owner of the lane.
#[derive(Debug)]
pub(super) struct UploadProgress {
    state: FileCopyState,
    /// Bytes reported as confirmed, over all attempts.
    told: u64,
    /// Bytes answered OK or skipped in this attempt.
    confirmed: u64,
}

impl Default for UploadProgress {
    fn default() -> Self {
        Self {
            state: FileCopyState::Planned,
            told: 0,
            confirmed: 0,
        }
    }
}

impl UploadProgress {
    /// Counts `len` more confirmed bytes; returns the number that no earlier attempt has reported.
    pub(super) fn confirm(&mut self, len: u64) -> u64 {
        self.confirmed += len;
        let news = self.confirmed.saturating_sub(self.told);
        self.told += news;
        news
    }

    /// Returns true if this attempt has written bytes.
    pub(super) fn has_confirmed(&self) -> bool {
        self.confirmed > 0
    }

    /// Starts another attempt.
    pub(super) fn restart(&mut self) {
        self.confirmed = 0;
    }

    /// Returns true if `state` has not been reached before.
    pub(super) fn reaches(&mut self, state: FileCopyState) -> bool {
        let further = state > self.state;
        if further {
            self.state = state;
        }
        further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_second_attempt_are_reported_once_and_states_only_rise() {
        let mut progress = UploadProgress::default();
        assert_eq!((progress.confirm(10), progress.confirm(5)), (10, 5));
        progress.restart();
        assert_eq!((progress.confirm(12), progress.confirm(8)), (0, 5));
        assert!(progress.reaches(FileCopyState::Written));
        assert!(!progress.reaches(FileCopyState::Created));
        assert!(!progress.reaches(FileCopyState::Written));
    }
}
