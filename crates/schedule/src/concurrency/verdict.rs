use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Limiter, LimiterEvidence};

/// Maximum number of samples kept; beyond it every second one is dropped, and half as many new ones
/// are kept.
const MOST: usize = 512;

/// Rate in bytes per second below which nothing moves but keepalives.
const NOTHING: f64 = 500.0;
/// Time between two samples from which on nothing is known of it.
const GAP: Duration = Duration::from_secs(3);
/// Time without data from which on it is told. A lossy path is silent for one or two seconds while
/// TCP waits for its retransmission timeout.
const STALL: Duration = Duration::from_secs(3);

/// Log of limiters, one per sample. The verdict is the limiter of most of the transfer's last half,
/// when the rate had settled.
#[derive(Clone, Debug)]
pub struct LimiterLog {
    looks: Vec<LimiterSample>,
    /// Number of samples of which one is kept.
    stride: u32,
    passed: u32,
    last: Option<LimiterSample>,
    /// Time of the last sample before those in which nothing moved, if the last is one of these.
    still_since: Option<Instant>,
    /// Sum of the stalls that are over, as the samples show them.
    stalled: Duration,
    /// Sum of the silences that were stalls.
    silent: Duration,
}

/// Limiter of one interval, with the measurements that show it.
#[derive(Clone, Copy, Debug)]
struct LimiterSample {
    at: Instant,
    limiter: Limiter,
    evidence: LimiterEvidence,
}

impl Default for LimiterLog {
    fn default() -> Self {
        Self {
            looks: Vec::new(),
            stride: 1,
            passed: 0,
            last: None,
            still_since: None,
            stalled: Duration::ZERO,
            silent: Duration::ZERO,
        }
    }
}

impl LimiterLog {
    /// Takes a time in which nothing arrived though answers were due, beyond a pause of up to `pause`
    /// that a limit causes. Returns true if it was a stall, which no limiter explains.
    ///
    /// Samples alone do not tell each stall: a machine that other programs keep busy at the same time
    /// is named as the limiter of an interval in which the server had stopped.
    pub fn note_silence(&mut self, lasted: Duration, pause: Duration) -> bool {
        let is_stall = lasted >= STALL.saturating_add(pause);
        if is_stall {
            self.silent += lasted;
        }
        is_stall
    }

    /// Adds a sample.
    pub fn add(&mut self, at: Instant, limiter: Limiter, evidence: LimiterEvidence) {
        let limiter = match is_still(limiter, &evidence) {
            true => {
                // No samples are taken while there is nothing to move.
                let before = self.last.as_ref().map(|last| last.at);
                let before = before.filter(|before| at.duration_since(*before) < GAP);
                if before.is_none() {
                    self.stalled = self.sampled_stalls();
                    self.still_since = None;
                }
                self.still_since.get_or_insert_with(|| before.unwrap_or(at));
                // The figures of other limiters are about data that move.
                match limiter {
                    Limiter::Server => limiter,
                    _ => Limiter::Unknown,
                }
            }
            false => {
                self.stalled = self.sampled_stalls();
                self.still_since = None;
                limiter
            }
        };
        let look = LimiterSample {
            at,
            limiter,
            evidence,
        };
        self.last = Some(look);
        self.passed += 1;
        if self.passed < self.stride {
            return;
        }
        self.passed = 0;
        self.looks.push(look);
        if self.looks.len() >= MOST {
            let mut odd = false;
            self.looks.retain(|_| {
                odd = !odd;
                odd
            });
            self.stride *= 2;
        }
    }

    /// Returns the time in stalls, in each of which nothing moved for three seconds or more though
    /// neither this machine nor a limit prevented it.
    pub fn stalled(&self) -> Duration {
        self.sampled_stalls().max(self.silent)
    }

    /// Returns the time in stalls that the samples show.
    fn sampled_stalls(&self) -> Duration {
        let until = |since: Instant| {
            self.last
                .map(|last| last.at.saturating_duration_since(since))
        };
        let lasts = self.still_since.and_then(until).unwrap_or_default();
        match lasts >= STALL {
            true => self.stalled + lasts,
            false => self.stalled,
        }
    }

    /// Returns the time from the first sample to the last.
    pub fn lasted(&self) -> Duration {
        match (self.looks.first(), &self.last) {
            (Some(first), Some(last)) => last.at.saturating_duration_since(first.at),
            _ => Duration::ZERO,
        }
    }

    /// Returns the limiter of most of the transfer's last half with the mean figures of its
    /// samples; connections and lanes are those of the last. `None` without samples.
    pub fn verdict(&self) -> Option<(Limiter, LimiterEvidence)> {
        let half = self.looks.first()?.at + self.lasted() / 2;
        let late = || {
            let known = self.looks.iter().filter(|l| l.limiter != Limiter::Unknown);
            known.filter(|l| l.at >= half)
        };
        let mut held: BTreeMap<Limiter, u32> = BTreeMap::new();
        for look in late() {
            *held.entry(look.limiter).or_default() += 1;
        }
        let Some((limiter, times)) = held.into_iter().max_by_key(|(_, times)| *times) else {
            let last = self.last.as_ref()?;
            return Some((Limiter::Unknown, last.evidence));
        };
        let found = late().filter(|look| look.limiter == limiter);
        Some((limiter, mean(found.map(|look| look.evidence), times)))
    }
}

/// True if nothing moved in the interval, and neither a limit nor this machine was the reason.
fn is_still(limiter: Limiter, evidence: &LimiterEvidence) -> bool {
    let is_ours = matches!(
        limiter,
        Limiter::UserLimit | Limiter::OtherTraffic | Limiter::LocalCpu | Limiter::LocalDisk
    );
    evidence.rate < NOTHING && !is_ours
}

/// Returns the mean of `count` samples; connections, lanes and lowest round trip are those of the
/// last.
fn mean(all: impl Iterator<Item = LimiterEvidence>, count: u32) -> LimiterEvidence {
    let (part, count) = (1.0 / f64::from(count.max(1)), count.max(1));
    let mut mean = LimiterEvidence::default();
    for e in all {
        (mean.connections, mean.lanes, mean.min_rtt) = (e.connections, e.lanes, e.min_rtt);
        mean.rtt += e.rtt / count;
        mean.server += e.server / count;
        mean.per_connection += e.per_connection / u64::from(count);
        mean.rate += e.rate * part;
        mean.loss += e.loss * part;
        mean.rwnd_limited += e.rwnd_limited * part;
        mean.sndbuf_limited += e.sndbuf_limited * part;
        mean.window_blocked += e.window_blocked * part;
        mean.cpu += e.cpu * part;
        mean.disk_stalls += e.disk_stalls * part;
        mean.wanted_cpu += e.wanted_cpu * part;
        mean.silent += e.silent * part;
        mean.held += e.held / u64::from(count);
        mean.idle = e.idle.map(|idle| mean.idle.unwrap_or(0.0) + idle * part);
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(looks: &[(Limiter, usize)]) -> LimiterLog {
        let looks: Vec<_> = looks.iter().map(|(of, times)| (*of, *times, 5e6)).collect();
        log_of_rates(&looks)
    }

    /// Log of samples of limiter and rate, ten a second.
    fn log_of_rates(looks: &[(Limiter, usize, f64)]) -> LimiterLog {
        let mut at = testkit::sftp_model::epoch();
        let mut log = LimiterLog::default();
        for (limiter, times, rate) in looks {
            for _ in 0..*times {
                at += Duration::from_millis(100);
                let evidence = LimiterEvidence {
                    rate: *rate,
                    loss: 0.01,
                    ..LimiterEvidence::default()
                };
                log.add(at, *limiter, evidence);
            }
        }
        log
    }

    #[test]
    fn the_beginning_and_short_spells_do_not_count() {
        use Limiter::{LocalDisk, Loss, Path, ServerWindow, Startup};
        assert_eq!(LimiterLog::default().verdict(), None);
        let looks = [
            (Startup, 5),
            (ServerWindow, 40),
            (Path, 30),
            (LocalDisk, 6),
            (Path, 20),
            (Loss, 4),
        ];
        let (limiter, evidence) = log(&looks).verdict().unwrap();
        assert_eq!(limiter, Path);
        assert!((evidence.rate - 5e6).abs() < 1.0 && (evidence.loss - 0.01).abs() < 1e-9);
        let unknown = log(&[(Limiter::Unknown, 3)]).verdict().unwrap();
        assert_eq!(unknown.0, Limiter::Unknown);
    }

    /// Bug: an hour in which there was nothing to send counted as a stall.
    #[test]
    fn time_without_samples_is_no_stall() {
        let mut log = log_of_rates(&[(Limiter::Path, 50, 5e6)]);
        let last = log.last.expect("it has samples");
        let evidence = LimiterEvidence {
            rate: 0.0,
            ..last.evidence
        };
        log.add(last.at + Duration::from_secs(3600), Limiter::Path, evidence);
        assert_eq!(log.stalled(), Duration::ZERO);
    }

    /// Bug: after a stop of the server for 12 s the copy was said to be limited by the path, because
    /// most samples were of that time.
    #[test]
    fn time_in_which_nothing_moved_was_blamed_on_the_path() {
        use Limiter::{Loss, Path, Server, UserLimit};
        let stopped = log_of_rates(&[(Loss, 50, 1e6), (Path, 120, 0.0), (Loss, 20, 1e6)]);
        assert_eq!(stopped.verdict().unwrap().0, Loss);
        assert_eq!(stopped.stalled(), Duration::from_secs(12));
        let to_the_end = log_of_rates(&[(Loss, 50, 1e6), (Path, 120, 0.0)]);
        assert_eq!(to_the_end.verdict().unwrap().0, Limiter::Unknown);
        assert_eq!(to_the_end.stalled(), Duration::from_secs(12));
        // A server that holds data is named as well.
        let held = log_of_rates(&[(Server, 50, 1e6), (Server, 120, 0.0)]);
        assert_eq!(held.stalled(), Duration::from_secs(12));
        assert_eq!(held.verdict().unwrap().0, Server);
        // Short pauses are no stall, and a pause because of a limit is not one either.
        let pauses = [(Loss, 5, 1e6), (Loss, 20, 0.0)].repeat(5);
        assert_eq!(log_of_rates(&pauses).stalled(), Duration::ZERO);
        let limited = log_of_rates(&[(UserLimit, 50, 1e6), (UserLimit, 120, 0.0)]);
        assert_eq!(limited.stalled(), Duration::ZERO);
        assert_eq!(limited.verdict().unwrap().0, UserLimit);
    }

    /// Bug: a download whose server had stopped for 8 s was said to be limited by this machine's
    /// processor, which a compiler kept busy meanwhile.
    #[test]
    fn a_stop_of_the_server_beside_other_programs_was_no_stall() {
        use Limiter::LocalCpu;
        let mut log = log_of_rates(&[(LocalCpu, 10, 5e6), (LocalCpu, 80, 0.0), (LocalCpu, 2, 5e6)]);
        assert_eq!(log.stalled(), Duration::ZERO);
        let lasted = Duration::from_secs(8);
        assert!(log.note_silence(lasted, Duration::ZERO));
        assert_eq!(log.stalled(), lasted);
        // What the samples show as well is counted once.
        let mut both = log_of_rates(&[(Limiter::Path, 10, 5e6), (Limiter::Path, 80, 0.0)]);
        assert!(both.note_silence(lasted, Duration::ZERO));
        assert_eq!(both.stalled(), lasted);
        // A short silence is none, and a low limit pauses for longer.
        assert!(!log.note_silence(Duration::from_secs(2), Duration::ZERO));
        assert!(!log.note_silence(lasted, Duration::from_secs(10)));
        assert_eq!(log.stalled(), lasted);
    }

    #[test]
    fn days_take_no_more_memory_than_minutes() {
        let log = log(&[(Limiter::Loss, 40_000), (Limiter::Path, 100_000)]);
        assert!(log.looks.len() < MOST);
        assert_eq!(log.verdict().unwrap().0, Limiter::Path);
        assert_eq!(log.lasted().as_secs(), 13_999);
    }
}
