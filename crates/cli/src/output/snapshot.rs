use std::time::{Duration, Instant};

use transfer::report::{EscapedName, ProgressCounters};

use crate::output::rate::RecentRate;
use crate::output::units;
use crate::several::HostProgress;

/// Counters of a run, of one copy or of several.
pub(crate) trait RunCounters {
    /// Bytes confirmed by the receiving end.
    fn bytes_done(&self) -> u64;
    /// Bytes that this run has moved.
    fn bytes_moved(&self) -> u64;
    /// Bytes of all files found so far.
    fn bytes_total(&self) -> u64;
    /// Files done, including failed ones.
    fn files_done(&self) -> u64;
    /// Files found so far.
    fn files_total(&self) -> u64;
    /// True once totals no longer grow.
    fn totals_are_final(&self) -> bool;
    /// The line above the counters.
    fn current(&self) -> Option<EscapedName>;
    /// Progress of each host, if there are several copies.
    fn hosts(&self) -> Vec<HostProgress>;
}

impl RunCounters for ProgressCounters {
    fn bytes_done(&self) -> u64 {
        self.bytes_done()
    }

    fn bytes_moved(&self) -> u64 {
        self.bytes_moved()
    }

    fn bytes_total(&self) -> u64 {
        self.bytes_total()
    }

    fn files_done(&self) -> u64 {
        self.files_done()
    }

    fn files_total(&self) -> u64 {
        self.files_total()
    }

    fn totals_are_final(&self) -> bool {
        self.totals_are_final()
    }

    fn current(&self) -> Option<EscapedName> {
        self.current()
    }

    fn hosts(&self) -> Vec<HostProgress> {
        Vec::new()
    }
}

/// The counters at one moment, with the recent rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgressSnapshot {
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    pub(crate) files_done: u64,
    pub(crate) files_total: u64,
    pub(crate) totals_final: bool,
    /// Bytes a second.
    pub(crate) rate: u64,
    /// `None` while the totals grow or nothing moves.
    pub(crate) remaining: Option<Duration>,
    pub(crate) current: Option<EscapedName>,
    /// Each host, if there are several copies.
    pub(crate) hosts: Vec<HostProgress>,
}

/// A part of the progress text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressPart {
    /// Bytes done.
    Done,
    /// Bytes in all, behind the bytes done.
    Total,
    /// Bytes a second.
    Rate,
    /// The remaining time.
    Left,
    /// Files done and in all.
    Files,
}

impl ProgressSnapshot {
    pub(crate) fn take(progress: &impl RunCounters, rate: &mut RecentRate, now: Instant) -> Self {
        let (bytes_done, bytes_total) = (progress.bytes_done(), progress.bytes_total());
        let totals_final = progress.totals_are_final();
        rate.note(now, progress.bytes_moved());
        let left = bytes_total.saturating_sub(bytes_done);
        Self {
            bytes_done,
            bytes_total,
            files_done: progress.files_done(),
            files_total: progress.files_total(),
            totals_final,
            rate: rate.per_second(),
            remaining: rate.remaining(left).filter(|_| totals_final),
            current: progress.current(),
            hosts: progress.hosts(),
        }
    }

    /// Returns true if there are several copies.
    pub(crate) fn of_several(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Returns true if any data has arrived at the other end.
    pub(crate) fn has_begun(&self) -> bool {
        self.bytes_done > 0 || self.files_done > 0
    }

    /// The full text: ` 45%  1.2 GB of 2.7 GB  98 MB/s  00:15 left  3 of 20 files`. While the
    /// sources are still being walked the totals have a plus, and percentage and remaining time are
    /// left out.
    pub(crate) fn counts(&self) -> String {
        self.told(&[
            ProgressPart::Done,
            ProgressPart::Total,
            ProgressPart::Rate,
            ProgressPart::Left,
            ProgressPart::Files,
        ])
    }

    /// The progress text in versions of decreasing length, for narrow terminals.
    pub(crate) fn counts_from_long_to_short(&self) -> Vec<String> {
        use ProgressPart::{Done, Files, Left, Rate, Total};
        let parts: [&[ProgressPart]; 6] = [
            &[Done, Total, Rate, Left, Files],
            &[Done, Total, Rate, Left],
            &[Done, Rate, Left],
            &[Rate, Left],
            if self.totals_final {
                &[Rate]
            } else {
                &[Done, Rate]
            },
            if self.totals_final { &[] } else { &[Done] },
        ];
        parts.into_iter().map(|parts| self.told(parts)).collect()
    }

    fn told(&self, parts: &[ProgressPart]) -> String {
        let plus = if self.totals_final { "" } else { "+" };
        let mut told = Vec::new();
        if self.totals_final {
            told.push(format!("{:3}%", self.percent()));
        }
        let has = |part| parts.contains(&part);
        let (done, total) = (units::size(self.bytes_done), units::size(self.bytes_total));
        match (has(ProgressPart::Done), has(ProgressPart::Total)) {
            (true, true) => told.push(format!("{done} of {total}{plus}")),
            (true, false) => told.push(done),
            (false, _) => {}
        }
        if has(ProgressPart::Rate) {
            told.push(format!("{}/s", units::size(self.rate)));
        }
        if let Some(time) = self.remaining.filter(|_| has(ProgressPart::Left)) {
            told.push(format!("{} left", units::clock(time)));
        }
        if self.files_total != 1 && has(ProgressPart::Files) {
            let (done, total) = (self.files_done, self.files_total);
            told.push(format!("{done} of {total}{plus} files"));
        }
        told.join("  ")
    }

    /// Percentage of the bytes. It is 100 only when all are done, also if a file has grown since it
    /// was found.
    fn percent(&self) -> u64 {
        let done = u128::from(self.bytes_done.min(self.bytes_total));
        let percent = (done * 100)
            .checked_div(self.bytes_total.into())
            .unwrap_or(100);
        u64::try_from(percent).unwrap_or(100)
    }

    /// The current file, escaped for a terminal; empty if there is none.
    pub(crate) fn current(&self) -> String {
        self.current
            .as_ref()
            .map_or_else(String::new, EscapedName::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_that_grow_have_a_plus_and_no_end() {
        let snapshot = ProgressSnapshot {
            bytes_done: 1_200_000,
            bytes_total: 5_000_000,
            files_done: 2,
            files_total: 9,
            rate: 600_000,
            ..ProgressSnapshot::default()
        };
        assert_eq!(
            snapshot.counts(),
            "1.2 MB of 5.0 MB+  600 kB/s  2 of 9+ files"
        );
    }

    #[test]
    fn known_totals() {
        let mut snapshot = ProgressSnapshot {
            bytes_done: 999_999,
            bytes_total: 1_000_000,
            files_total: 1,
            totals_final: true,
            rate: 10,
            remaining: Some(Duration::from_secs(1)),
            ..ProgressSnapshot::default()
        };
        assert_eq!(
            snapshot.counts(),
            " 99%  1.0 MB of 1.0 MB  10 B/s  00:01 left"
        );
        snapshot.bytes_done = 2_000_000;
        assert!(snapshot.counts().starts_with("100%  2.0 MB of 1.0 MB"));
        assert!(
            ProgressSnapshot {
                totals_final: true,
                ..ProgressSnapshot::default()
            }
            .counts()
            .starts_with("100%")
        );
    }
}
