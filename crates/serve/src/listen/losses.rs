use std::time::{Duration, Instant};

use sys::TcpInfo;

/// How long packets are counted before anything is made of them, ...
const SPAN: Duration = Duration::from_millis(500);
/// ... and how many there must be at least.
const SEGMENTS: u32 = 500;
/// The share of packets that have to be lost (as `plan`'s growth has it for the other direction).
const SHARE: f64 = 0.0005;
/// Below this round trip a lost packet costs next to nothing.
const SHORT: Duration = Duration::from_millis(5);

/// Whether packets are lost on the way, and not because this connection fills a queue: CUBIC takes
/// each for congestion, at 1 % and 100 ms it moves 0.15 MB/s.
#[derive(Debug, Default)]
pub(super) struct Losses {
    since: Option<(Instant, u32, u32)>,
    told: bool,
}

impl Losses {
    /// True once, when it is so.
    pub(super) fn tell(&mut self, now: Instant, tcp: &TcpInfo) -> bool {
        if self.told {
            return false;
        }
        let counts = (now, tcp.data_segs_out, tcp.total_retrans);
        let (since, sent, again) = *self.since.get_or_insert(counts);
        let sent = tcp.data_segs_out.saturating_sub(sent);
        let again = tcp.total_retrans.saturating_sub(again);
        if now.saturating_duration_since(since) < SPAN || sent < SEGMENTS {
            return false;
        }
        self.since = Some(counts);
        let queue = tcp.rtt.saturating_sub(tcp.min_rtt);
        let queues = queue > (tcp.min_rtt / 4).max(SHORT);
        let lossy = f64::from(again) > f64::from(sent) * SHARE;
        self.told = lossy && !queues && tcp.min_rtt >= SHORT;
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(sent: u32, again: u32, rtt: u64, min_rtt: u64) -> bool {
        let (now, mut losses) = (Instant::now(), Losses::default());
        let tcp = |sent, again| TcpInfo {
            data_segs_out: sent,
            total_retrans: again,
            rtt: Duration::from_millis(rtt),
            min_rtt: Duration::from_millis(min_rtt),
            ..TcpInfo::default()
        };
        assert!(!losses.tell(now, &tcp(10, 0)));
        let told = losses.tell(now + SPAN, &tcp(10 + sent, again));
        // It is told once.
        assert!(!told || !losses.tell(now + 2 * SPAN, &tcp(10 + 2 * sent, 2 * again)));
        told
    }

    #[test]
    fn losses_on_a_long_path_without_a_queue_tell() {
        assert!(after(1000, 10, 102, 100));
        // A few, or too few to say.
        assert!(!after(10_000, 4, 102, 100));
        assert!(!after(100, 10, 102, 100));
        // The queue is full of ours.
        assert!(!after(1000, 10, 150, 100));
        // Next door.
        assert!(!after(1000, 10, 1, 1));
    }
}
