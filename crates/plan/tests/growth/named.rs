//! What the looks of a transfer are named by.

use std::time::Duration;

use plan::{
    ConnectionId, ConnectionSample, Direction, Evidence, Growth, GrowthConfig, LaneId, LaneSample,
    Limiter, TcpSample,
};

const RTT: Duration = Duration::from_millis(100);
const LOOK: u64 = 200;

/// One connection at 2 MB/s whose requests take three round trips; `lost` says how many of the 300
/// segments of each look were sent again.
fn looks(lost: &[u64], bears_losses: bool) -> Limiter {
    let mut growth = Growth::new(GrowthConfig::new(Direction::Up));
    let (mut again, start) = (0, testkit::sftp_model::epoch());
    for (look, lost) in (1..).zip(lost) {
        again += lost;
        let bytes = 400_000 * look;
        let tcp = TcpSample {
            rtt: RTT,
            min_rtt: RTT,
            cwnd: 200_000,
            segments: 300 * look,
            retransmitted: again,
            busy: Duration::from_millis(LOOK * look),
            ..TcpSample::default()
        };
        let connection = ConnectionId(0);
        growth.sample(&Evidence {
            now: start + Duration::from_millis(LOOK * look),
            // Over too soon for more connections.
            remaining: Some(1 << 20),
            moved: bytes,
            done: 0,
            cpu: Duration::ZERO,
            idle: Some(0.9),
            bears_losses,
            connections: vec![ConnectionSample {
                connection,
                bytes,
                tcp: Some(tcp),
            }],
            lanes: vec![LaneSample {
                lane: LaneId {
                    connection,
                    channel: 0,
                },
                bytes,
                window: 2 << 20,
                window_blocked: Duration::ZERO,
                in_flight: 1 << 20,
                depth: 4 << 20,
                latency: 3 * RTT,
                stalls_disk: 0,
                stalls_depth: 0,
            }],
        });
    }
    growth.limiter()
}

#[test]
fn what_waits_for_lost_packets_is_no_slow_server() {
    assert_eq!(looks(&[0; 12], false), Limiter::Server);
    // Not in each look is one lost.
    assert_eq!(looks(&[3, 4, 0, 2, 3, 0, 0], false), Limiter::Loss);
    assert_eq!(looks(&[3, 4, 0, 2, 3, 0, 0], true), Limiter::Path);
    // One packet at the beginning says nothing of the end.
    let mut seldom = [0; 16];
    seldom[2] = 1;
    assert_eq!(looks(&seldom, false), Limiter::Server);
}
