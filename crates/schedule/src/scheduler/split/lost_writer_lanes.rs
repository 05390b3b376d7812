//! Delays the rename of a file until no lost lane can still write it. Requests of a lost lane may
//! be executed after the rename, through a handle of the same file, and would overwrite changes
//! that others have made to it.

use std::collections::BTreeMap;
use std::time::Instant;

use super::super::LaneId;

/// Lost lanes that had a part of a file and may still write it.
#[derive(Debug, Default)]
pub(super) struct LostWriterLanes {
    lanes: BTreeMap<LaneId, Instant>,
}

impl LostWriterLanes {
    pub(super) fn lost(&mut self, lane: LaneId, until: Instant) {
        self.lanes.insert(lane, until);
    }

    /// Returns true if no lost lane can write the file any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.lanes.values().all(|until| *until <= now)
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.lanes.values().max().copied()
    }

    /// Records that a lane writes nothing after `until`, or nothing at all any more.
    pub(super) fn ends(&mut self, lane: LaneId, until: Option<Instant>) {
        match (until, self.lanes.get_mut(&lane)) {
            (Some(until), Some(at)) => *at = until.min(*at),
            (None, Some(_)) => {
                self.lanes.remove(&lane);
            }
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_fence_stands_until_the_last_lost_lane_is_through() {
        let now = testkit::sftp_model::epoch();
        let [one, other] = [1, 2].map(|channel| LaneId {
            channel,
            ..LaneId::default()
        });
        let mut fence = LostWriterLanes::default();
        assert!(fence.is_over(now));
        fence.lost(one, now + Duration::from_secs(4));
        fence.lost(other, now + Duration::from_secs(9));
        fence.ends(other, Some(now + Duration::from_secs(1)));
        fence.ends(other, Some(now + Duration::from_secs(6)));
        assert_eq!(fence.until(), Some(now + Duration::from_secs(4)));
        assert!(!fence.is_over(now + Duration::from_secs(3)));
        fence.ends(one, None);
        assert!(fence.is_over(now + Duration::from_secs(1)));
    }
}
