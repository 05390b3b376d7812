use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::TcpInfo;

/// Shortest time over which packets are counted before losses are judged.
const SPAN: Duration = Duration::from_millis(500);
/// Smallest number of packets over which losses are judged.
const SEGMENTS: u32 = 500;
/// Share of lost packets above which the path counts as lossy (the client uses the same value for
/// its direction).
const SHARE: f64 = 0.0005;
/// Round trip below which a lost packet costs next to nothing.
const SHORT: Duration = Duration::from_millis(5);

/// Detects packet losses that are not caused by a queue that the client's own connections fill.
/// CUBIC takes each loss for congestion: with 1 % loss and 100 ms it moves 0.15 MB/s.
///
/// All connections of a client share one detector: during slow start each alone has sent too little
/// for a verdict, and a later connection need not lose a packet of its own first.
#[derive(Debug, Default)]
pub(super) struct LossDetector(Mutex<PacketLossCounts>);

/// Packets sent and retransmitted by all connections of a client since loss was last judged.
#[derive(Debug, Default)]
struct PacketLossCounts {
    since: Option<Instant>,
    sent: u32,
    again: u32,
    told: bool,
}

/// Counters of sent and retransmitted segments that one connection reported last, to compute the
/// difference.
#[derive(Debug, Default)]
pub(super) struct LastLossCounters {
    sent: u32,
    again: u32,
}

impl LossDetector {
    /// Adds the counters of one connection; returns true once losses not caused by congestion were
    /// detected, and from then on.
    pub(super) fn tell(&self, now: Instant, before: &mut LastLossCounters, tcp: &TcpInfo) -> bool {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.told {
            return true;
        }
        let since = *counted.since.get_or_insert(now);
        counted.sent += tcp.data_segs_out.saturating_sub(before.sent);
        counted.again += tcp.total_retrans.saturating_sub(before.again);
        *before = LastLossCounters {
            sent: tcp.data_segs_out,
            again: tcp.total_retrans,
        };
        if now.saturating_duration_since(since) < SPAN || counted.sent < SEGMENTS {
            return false;
        }
        let queue = tcp.rtt.saturating_sub(tcp.min_rtt);
        let queues = queue > (tcp.min_rtt / 4).max(SHORT);
        let lossy = f64::from(counted.again) > f64::from(counted.sent) * SHARE;
        *counted = PacketLossCounts {
            since: Some(now),
            told: lossy && !queues && tcp.min_rtt >= SHORT,
            ..PacketLossCounts::default()
        };
        counted.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(sent: u32, again: u32, rtt: u64, min_rtt: u64) -> TcpInfo {
        TcpInfo {
            data_segs_out: sent,
            total_retrans: again,
            rtt: Duration::from_millis(rtt),
            min_rtt: Duration::from_millis(min_rtt),
            ..TcpInfo::default()
        }
    }

    fn after(sent: u32, again: u32, rtt: u64, min_rtt: u64) -> bool {
        let (now, losses, mut told) = (
            Instant::now(),
            LossDetector::default(),
            LastLossCounters::default(),
        );
        assert!(!losses.tell(now, &mut told, &tcp(10, 0, rtt, min_rtt)));
        losses.tell(now + SPAN, &mut told, &tcp(10 + sent, again, rtt, min_rtt))
    }

    #[test]
    fn losses_on_a_long_path_without_a_queue_tell() {
        assert!(after(1000, 10, 102, 100));
        // Few losses, or too few packets for a verdict.
        assert!(!after(10_000, 4, 102, 100));
        assert!(!after(100, 10, 102, 100));
        // The queue is full of this client's packets.
        assert!(!after(1000, 10, 150, 100));
        // The path is too short for losses to matter.
        assert!(!after(1000, 10, 1, 1));
    }

    #[test]
    fn what_one_connection_lost_is_known_to_the_next() {
        let (now, losses) = (Instant::now(), LossDetector::default());
        let mut told = [const { LastLossCounters { sent: 0, again: 0 } }; 4];
        for told in &mut told {
            assert!(!losses.tell(now, told, &tcp(10, 0, 100, 100)));
        }
        // No connection alone has sent enough.
        let later = told.each_mut().map(|told| {
            let share = SEGMENTS / 4 + 10;
            losses.tell(now + SPAN, told, &tcp(share, 3, 101, 100))
        });
        assert_eq!(later, [false, false, false, true]);
        // Afterwards every connection knows, including a new one.
        assert!(losses.tell(now + SPAN, &mut told[0], &tcp(200, 3, 101, 100)));
        assert!(losses.tell(
            now + SPAN,
            &mut LastLossCounters::default(),
            &tcp(0, 0, 0, 0)
        ));
    }
}
