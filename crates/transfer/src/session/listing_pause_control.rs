use std::time::{Duration, Instant};

/// Events queued for the handle from which listings pause; each event may hold 900 names.
const BACKLOG: usize = 512;
/// Interval at which a paused listing checks the event queue again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Decides when tree listings pause.
#[derive(Debug, Default)]
pub(super) struct ListingPauseControl {
    /// True if the session handle has requested a pause of listings.
    asked: bool,
    /// Listings pause because too many events are queued; the queue is checked again at this time.
    again: Option<Instant>,
}

impl ListingPauseControl {
    /// Takes the handle's request to pause or resume listings.
    pub(super) fn ask(&mut self, hold: bool) {
        self.asked = hold;
    }

    /// Returns true if listings pause now. `unread` is the number of events that the handle has
    /// not read.
    pub(super) fn look(&mut self, now: Instant, unread: usize) -> bool {
        let behind = unread > BACKLOG;
        self.again = behind.then(|| now + LOOK_AGAIN);
        behind || self.asked
    }

    /// Returns true if too many events were queued for the handle at the last look.
    pub(super) fn is_behind(&self) -> bool {
        self.again.is_some()
    }

    /// Time at which the event queue is checked again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_pause_while_the_handle_is_behind_or_asks_for_it() {
        let now = Instant::now();
        let mut hold = ListingPauseControl::default();
        assert!(!hold.look(now, BACKLOG));
        assert_eq!(hold.poll_timeout(), None);
        assert!(hold.look(now, BACKLOG + 1));
        assert!(hold.is_behind());
        assert_eq!(hold.poll_timeout(), Some(now + LOOK_AGAIN));
        hold.ask(true);
        assert!(hold.look(now, 0), "the handle asked for it");
        assert!(!hold.is_behind());
        assert_eq!(hold.poll_timeout(), None, "no event ends this pause");
        hold.ask(false);
        assert!(!hold.look(now, 0));
    }
}
