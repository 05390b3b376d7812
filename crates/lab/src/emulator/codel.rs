//! FQ-CoDel (RFC 8290): a connection without packets in the queue passes the others, and each other
//! connection loses packets while its own wait for too long (CoDel, RFC 8289).
//!
//! The time that a packet will wait is known when it enters the emulated queue, so that it is
//! dropped there and not when it leaves: a sender learns of it earlier by the target.

use std::collections::BTreeMap;

use super::limits::FlowKey;

/// Longest wait that is no standing queue.
const TARGET: u64 = 5_000_000;
/// Time for which packets must wait longer before the first one is dropped.
const INTERVAL: u64 = 100_000_000;
/// Bytes of a connection that pass the others at once.
const QUANTUM: u64 = 1514;
/// Maximum number of connections with a state of their own.
const MOST_FLOWS: usize = 65_536;

/// State of the connections in one queue, at most 65,536. Packets of further ones wait their turn
/// and are not dropped early.
#[derive(Debug, Default)]
pub(super) struct FqCodel {
    flows: BTreeMap<FlowKey, CodelFlow>,
}

/// CoDel state of one connection. Times are in nanoseconds.
#[derive(Debug, Default)]
struct CodelFlow {
    /// Departure of its last packet.
    empty_at: u64,
    /// Time at which the waits will have been too long for [`INTERVAL`].
    first_above: Option<u64>,
    /// Time of the next drop while packets are dropped.
    drop_next: Option<u64>,
    /// Drops since the waits became too long.
    count: u32,
}

/// Decision of [`FqCodel::decide`] about a packet as it enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueDecision {
    /// The packet leaves at its turn.
    Wait,
    /// The packet passes those of other connections.
    Pass,
    /// The packet is dropped.
    Drop,
}

impl FqCodel {
    /// Decides on a packet of `bytes` that would leave at `departs` behind all others.
    pub(super) fn decide(
        &mut self,
        flow: Option<FlowKey>,
        bytes: u64,
        now: u64,
        departs: u64,
    ) -> QueueDecision {
        let known = |key: &FlowKey| self.flows.contains_key(key);
        let Some(key) = flow.filter(|key| known(key) || self.flows.len() < MOST_FLOWS) else {
            return QueueDecision::Wait;
        };
        let flow = self.flows.entry(key).or_default();
        if flow.empty_at <= now && bytes <= QUANTUM {
            flow.empty_at = now.saturating_add(1);
            flow.recovered();
            return QueueDecision::Pass;
        }
        if flow.drops(now, departs.saturating_sub(now)) {
            return QueueDecision::Drop;
        }
        flow.empty_at = departs;
        QueueDecision::Wait
    }
}

impl CodelFlow {
    fn recovered(&mut self) {
        self.first_above = None;
        self.drop_next = None;
    }

    /// True if a packet that would wait for `wait` is dropped.
    fn drops(&mut self, now: u64, wait: u64) -> bool {
        if wait < TARGET {
            self.recovered();
            return false;
        }
        let first = *self
            .first_above
            .get_or_insert_with(|| now.saturating_add(INTERVAL));
        if now < first {
            return false;
        }
        match self.drop_next {
            Some(next) if now < next => false,
            Some(next) => {
                self.count = self.count.saturating_add(1);
                self.drop_next = Some(next.saturating_add(self.pause()));
                true
            }
            None => {
                // Soon after the last series the rate of drops is nearly the one that helped.
                self.count = match self.count > 2 {
                    true => self.count - 2,
                    false => 1,
                };
                self.drop_next = Some(now.saturating_add(self.pause()));
                true
            }
        }
    }

    fn pause(&self) -> u64 {
        (INTERVAL as f64 / f64::from(self.count.max(1)).sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    const MS: u64 = 1_000_000;

    fn flow(port: u16) -> Option<FlowKey> {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Some((here, port, here, 22))
    }

    #[test]
    fn a_connection_without_packets_in_the_queue_passes_the_others() {
        let mut queue = FqCodel::default();
        assert_eq!(
            queue.decide(flow(1), 64_000, 0, 50 * MS),
            QueueDecision::Wait
        );
        assert_eq!(queue.decide(flow(2), 100, MS, 51 * MS), QueueDecision::Pass);
        assert_eq!(queue.decide(flow(1), 100, MS, 51 * MS), QueueDecision::Wait);
    }

    #[test]
    fn a_standing_queue_loses_packets_ever_more_often_and_a_short_one_none() {
        let drops = |wait: u64| {
            let mut queue = FqCodel::default();
            // The first packet passes, and the second one begins the connection's own queue.
            let times = [0, 0].into_iter().chain((1..2000).map(|ms| ms * MS));
            let dropped =
                |now: &u64| queue.decide(flow(1), 1500, *now, now + wait) == QueueDecision::Drop;
            times.filter(dropped).collect::<Vec<_>>()
        };
        assert!(drops(4 * MS).is_empty());
        let long = drops(20 * MS);
        assert!((90 * MS..120 * MS).contains(&long[0]), "{long:?}");
        let gaps: Vec<_> = long.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() > 20 && gaps[20] < gaps[0] / 2, "{gaps:?}");
    }
}
