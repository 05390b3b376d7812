//! Lease protocol: who may copy a shard, without a common clock.
//!
//! A worker claims a shard by creating the file of the next fencing number, which only one worker
//! can. It renews its lease, and another worker may create the next number once it has watched the
//! lease for its whole time without a renewal, or knows that the holder's process is gone. Clocks
//! of different machines are never compared.
//!
//! A holder stops when it sees a larger fencing number, or when it could not renew for half of the
//! time: it has stopped before the other half is over, in which a follower still waits.

use std::time::Duration;

use crate::{Lease, ShardState, ShardWorkerCounts};

/// Largest fencing number.
const MOST_FENCES: u64 = 1 << 40;
/// Time of a lease that cannot be read, in seconds: that of its default.
const UNREADABLE: u64 = 30;

/// Decision about a shard that a worker wants to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// Create the lease with this fencing number. If it exists by then, look again.
    Take(u64),
    /// Look again, at the latest after this time.
    Wait(Duration),
    /// Another worker renews its lease.
    Held,
    /// The shard is complete.
    Done(ShardWorkerCounts),
    /// There is no fencing number left.
    Exhausted,
}

/// Worker that wants a shard.
#[derive(Clone, Debug, Default)]
pub struct Claimant {
    /// Fencing number and beat of a lease, and when it was first seen.
    seen: Option<(u64, Option<u64>, Duration)>,
}

impl Claimant {
    /// Decides by the newest lease: its fencing number, its contents if they can be read, and true
    /// if the holder's process is known to be gone. `now` is any clock of this worker that only
    /// goes forward.
    pub fn look(
        &mut self,
        now: Duration,
        newest: Option<(u64, Option<&Lease>, bool)>,
    ) -> ClaimDecision {
        let Some((fence, lease, gone)) = newest else {
            return ClaimDecision::Take(1);
        };
        let next = match fence < MOST_FENCES {
            true => ClaimDecision::Take(fence + 1),
            false => ClaimDecision::Exhausted,
        };
        match lease.map(|lease| lease.state) {
            Some(ShardState::Done) => {
                return ClaimDecision::Done(lease.map(|lease| lease.figures).unwrap_or_default());
            }
            Some(ShardState::Stopped | ShardState::Failed) => return next,
            Some(ShardState::Running) if gone => return next,
            Some(ShardState::Running) | None => {}
        }
        let beat = lease.map(|lease| lease.beat);
        let time = Duration::from_secs(lease.map_or(UNREADABLE, |lease| lease.seconds));
        match self.seen {
            None => {
                self.seen = Some((fence, beat, now));
                ClaimDecision::Wait(time)
            }
            Some((seen_fence, seen_beat, since)) if (seen_fence, seen_beat) == (fence, beat) => {
                match time.saturating_sub(now.saturating_sub(since)) {
                    Duration::ZERO => next,
                    left => ClaimDecision::Wait(left),
                }
            }
            Some(_) => ClaimDecision::Held,
        }
    }
}

/// Next action of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Write the lease with this beat.
    Renew(u64),
    /// Nothing for this time.
    Rest(Duration),
    /// Stop: another worker has this fencing number.
    Superseded(u64),
    /// Stop: the lease could not be renewed in time.
    Expired,
}

/// Worker that holds a lease.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    fence: u64,
    time: Duration,
    /// When the last successful renewal began.
    renewed: Duration,
    beat: u64,
}

impl LeaseHolder {
    /// Returns the holder of a lease of this fencing number, whose creation began at `now` and
    /// which expires after `time` without renewals.
    pub fn new(fence: u64, time: Duration, now: Duration) -> Self {
        Self {
            fence,
            time,
            renewed: now,
            beat: 0,
        }
    }

    /// Returns the fencing number.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Decides by the largest fencing number that exists, if the folder could be read.
    pub fn turn(&self, now: Duration, newest: Option<u64>) -> LeaseAction {
        if let Some(newest) = newest.filter(|newest| *newest > self.fence) {
            return LeaseAction::Superseded(newest);
        }
        let since = now.saturating_sub(self.renewed);
        if since >= self.time / 2 {
            return LeaseAction::Expired;
        }
        match (self.time / 6).saturating_sub(since) {
            Duration::ZERO => LeaseAction::Renew(self.beat + 1),
            left => LeaseAction::Rest(left),
        }
    }

    /// Notes that the lease was renewed by a write that began at `began`.
    pub fn renewed(&mut self, began: Duration) {
        self.renewed = self.renewed.max(began);
        self.beat += 1;
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
