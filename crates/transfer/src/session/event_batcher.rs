use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use schedule::{JobId, LaneEvent};

use super::SessionEvent;

/// How often progress within a file is told.
const INTERVAL: Duration = Duration::from_millis(50);

/// Events on their way to the handle. Progress is gathered: to tell of each write wakes the other
/// thread 4,000 times a gigabyte.
#[derive(Debug)]
pub(super) struct EventBatcher {
    events: Sender<SessionEvent>,
    /// Progress that has not been told yet, and when some was last.
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

    /// When progress that is held back has to be told.
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
        // Nobody listens any more when the handle is being dropped.
        let _ = self.events.send(event);
    }
}
