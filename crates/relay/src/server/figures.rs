//! Counters of a relay since its start.

use std::sync::atomic::{AtomicU64, Ordering};

/// End of a connection, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOutcome {
    Closed,
    ClientReset,
    ServerReset,
    NoTarget,
    Refused,
    Slow,
    Idle,
    Failed,
    /// The connection was a further stripe of a pair, and was handed to it.
    Joined,
}

impl ConnectionOutcome {
    /// All kinds of ends with their labels in the statistics.
    pub(crate) const ALL: [(Self, &'static str); 9] = [
        (Self::Closed, "closed"),
        (Self::ClientReset, "reset by the client"),
        (Self::ServerReset, "reset by the server"),
        (Self::NoTarget, "no target"),
        (Self::Refused, "refused"),
        (Self::Slow, "too slow to enter"),
        (Self::Idle, "idle"),
        (Self::Failed, "failed here"),
        (Self::Joined, "joined"),
    ];
}

/// Counters of a relay since its start.
#[derive(Debug, Default)]
pub(crate) struct RelayCounters {
    accepted: AtomicU64,
    turned_away: AtomicU64,
    /// Bytes to the server, and to the client.
    bytes: [AtomicU64; 2],
    /// Retransmitted segments to the client, and to the server.
    retransmissions: [AtomicU64; 2],
    ends: [AtomicU64; ConnectionOutcome::ALL.len()],
}

impl RelayCounters {
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds bytes moved to the server and to the client.
    pub(crate) fn moved(&self, bytes: [u64; 2]) {
        add(&self.bytes, bytes);
    }

    /// Adds the retransmitted segments of a closed connection, to the client and to the server.
    pub(crate) fn sent_again(&self, segments: [u64; 2]) {
        add(&self.retransmissions, segments);
    }

    pub(crate) fn ended(&self, kind: ConnectionOutcome) {
        if let Some(count) = self.ends.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the connections accepted and rejected.
    pub(crate) fn entries(&self) -> [u64; 2] {
        [&self.accepted, &self.turned_away].map(load)
    }

    /// Returns the bytes moved to the server and to the client.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.bytes.each_ref().map(load)
    }

    /// Returns the retransmitted segments of closed connections, to the client and to the server.
    pub(crate) fn retransmissions(&self) -> [u64; 2] {
        self.retransmissions.each_ref().map(load)
    }

    /// Returns the number of ends of each kind, in the order of [`ConnectionOutcome::ALL`].
    pub(crate) fn ends(&self) -> [u64; ConnectionOutcome::ALL.len()] {
        self.ends.each_ref().map(load)
    }
}

fn add(to: &[AtomicU64; 2], more: [u64; 2]) {
    for (figure, more) in to.iter().zip(more).filter(|(_, more)| *more > 0) {
        figure.fetch_add(more, Ordering::Relaxed);
    }
}

fn load(figure: &AtomicU64) -> u64 {
    figure.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_under_their_own_name() {
        for (nth, (kind, _)) in ConnectionOutcome::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, nth, "{kind:?}");
        }
    }
}
