use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use schedule::{JobId, LaneEvent};

use super::SessionEvent;

/// Interval of progress events within a file.
const INTERVAL: Duration = Duration::from_millis(50);

/// Sends events to the handle and batches progress. An event for every write would wake the other
/// thread 4,000 times per gigabyte.
#[derive(Debug)]
pub(super) struct EventBatcher {
    events: Sender<SessionEvent>,
    /// Progress not yet sent, and the time of the last progress event.
    progress: Option<(JobId, u64)>,
    told: Instant,
}

impl EventBatcher {
    pub(super) fn new(events: Sender<SessionEvent>, now: Instant) -> Self {
        Self {
            events,
            progress: None,
            told: now,
        }
    }

    pub(super) fn tell(&mut self, event: SessionEvent) {
        if let SessionEvent::Lane(LaneEvent::Progress(id, n)) = event {
            return self.tell_progress(id, n);
        }
        self.flush();
        self.send(event);
    }

    fn tell_progress(&mut self, id: JobId, n: u64) {
        match &mut self.progress {
            Some((same, sum)) if *same == id => *sum += n,
            _ => {
                self.flush();
                self.progress = Some((id, n));
            }
        }
        let now = Instant::now();
        if now.duration_since(self.told) >= INTERVAL {
            self.told = now;
            self.flush();
        }
    }

    /// Time at which the held progress must be sent.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.progress.map(|_| self.told + INTERVAL)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.told = now;
            self.flush();
        }
    }

    fn flush(&mut self) {
        if let Some((id, n)) = self.progress.take() {
            self.send(SessionEvent::Lane(LaneEvent::Progress(id, n)));
        }
    }

    fn send(&self, event: SessionEvent) {
        // The receiver is gone while the handle is being dropped.
        let _ = self.events.send(event);
    }
}
