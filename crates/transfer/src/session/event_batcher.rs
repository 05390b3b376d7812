use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schedule::{JobId, LaneEvent};

use super::SessionEvent;

/// Interval of progress events within a file.
const INTERVAL: Duration = Duration::from_millis(50);

/// Queues events for the handle and batches progress. An event for every write would wake the other
/// thread 4,000 times per gigabyte.
#[derive(Debug)]
pub(super) struct EventBatcher {
    queue: VecDeque<SessionEvent>,
    /// Progress not yet queued.
    progress: Option<(JobId, u64)>,
    /// Time of the last progress event that was sent.
    told: Instant,
}

impl EventBatcher {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            queue: VecDeque::new(),
            progress: None,
            told: now,
        }
    }

    /// Queues an event, behind all progress before it.
    pub(super) fn tell(&mut self, now: Instant, event: SessionEvent) {
        if let SessionEvent::Lane(LaneEvent::Progress(id, n)) = event {
            return self.tell_progress(now, id, n);
        }
        self.flush();
        self.queue.push_back(event);
    }

    fn tell_progress(&mut self, now: Instant, id: JobId, n: u64) {
        match &mut self.progress {
            Some((same, sum)) if *same == id => *sum += n,
            _ => {
                self.flush();
                self.progress = Some((id, n));
            }
        }
        self.handle_timeout(now);
    }

    /// Returns the next event for the handle.
    pub(super) fn poll_event(&mut self) -> Option<SessionEvent> {
        self.queue.pop_front()
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
            let progress = LaneEvent::Progress(id, n);
            self.queue.push_back(SessionEvent::Lane(progress));
        }
    }
}

#[cfg(test)]
#[path = "tests/event_batcher.rs"]
mod tests;
