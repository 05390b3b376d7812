use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Duration of one history entry (RFC 6817 section 3.4.2: one minute).
const SLOT: Duration = Duration::from_secs(60);
/// Number of entries kept (RFC 6817's BASE_HISTORY: ten minutes); a longer delay after that counts
/// as another route.
const SLOTS: usize = 10;

/// Lowest delays of the last minutes: the delay of the path without queues.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseDelays {
    slots: VecDeque<(Instant, Duration)>,
}

impl BaseDelays {
    fn note(&mut self, now: Instant, delay: Duration) {
        match self.slots.back_mut() {
            Some((since, least)) if now.saturating_duration_since(*since) < SLOT => {
                *least = delay.min(*least);
            }
            _ => self.slots.push_back((now, delay)),
        }
        if self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
    }

    /// Records `delay` and returns the part of it that queues added; `None` without a measurement.
    pub(super) fn queueing(&mut self, now: Instant, delay: Option<Duration>) -> Option<Duration> {
        let delay = delay?;
        self.note(now, delay);
        Some(delay.saturating_sub(self.least()?))
    }

    pub(super) fn least(&self) -> Option<Duration> {
        self.slots.iter().map(|(_, least)| *least).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_delay_counts_at_once_and_a_longer_route_after_ten_minutes() {
        let ms = Duration::from_millis;
        let start = testkit::sftp_model::epoch();
        let mut base = BaseDelays::default();
        assert_eq!(base.least(), None);
        base.note(start, ms(40));
        base.note(start + ms(10), ms(30));
        assert_eq!(base.least(), Some(ms(30)));
        for second in 1..600 {
            base.note(start + Duration::from_secs(second), ms(80));
            assert_eq!(base.least(), Some(ms(30)), "{second}");
        }
        base.note(start + Duration::from_secs(601), ms(80));
        assert_eq!(base.least(), Some(ms(80)));
    }
}
