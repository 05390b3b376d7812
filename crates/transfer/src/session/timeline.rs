//! Records the session's connections and files in the timeline, if there is one.

use std::time::Instant;

use schedule::LaneEvent;

use super::driver::SessionLoop;

impl SessionLoop {
    /// Records the state that a file has reached.
    pub(super) fn record_state(&self, event: &LaneEvent) {
        if let (Some(timeline), LaneEvent::State(job, state)) = (&self.options.timeline, event) {
            timeline.file(*job, *state);
        }
    }

    /// Samples each connection of which a sample is due.
    pub(super) fn record_connections(&mut self, now: Instant) {
        if self.options.timeline.is_none() {
            return;
        }
        for on in &mut self.connections {
            let Some(sampler) = on.sampler.as_mut().filter(|s| s.is_due(now)) else {
                continue;
            };
            let (mut answered, mut blocked, mut awaits) = (false, false, false);
            for lane in self.lanes.iter().filter(|l| l.id.connection == on.id) {
                answered |= lane.greeted.is_some();
                blocked |= lane.blocked_since.is_some();
                awaits |= lane.lane.stats().bytes_in_flight > 0;
            }
            sampler.sample(now, &on.link.sample(), (answered, blocked, awaits));
        }
    }
}
