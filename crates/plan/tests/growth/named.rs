//! What the looks of a transfer are named by.

use std::time::Duration;

use plan::{
    Change, ConnectionId, ConnectionSample, Direction, Evidence, Growth, GrowthConfig, LaneId,
    LaneSample, Learned, Limiter, TcpSample,
};

const RTT: Duration = Duration::from_millis(100);
const LOOK: u64 = 200;

/// One connection at 2 MB/s whose requests take three round trips.
fn evidence(look: u64, retransmitted: u64, bears_losses: bool, remaining: u64) -> Evidence {
    let bytes = 400_000 * look;
    let tcp = TcpSample {
        rtt: RTT,
        min_rtt: RTT,
        cwnd: 200_000,
        segments: 300 * look,
        retransmitted,
        busy: Duration::from_millis(LOOK * look),
        ..TcpSample::default()
    };
    let connection = ConnectionId(0);
    Evidence {
        now: testkit::sftp_model::epoch() + Duration::from_millis(LOOK * look),
        remaining: Some(remaining),
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
    }
}

/// What holds it back; `lost` says how many of the 300 segments of each look were sent again.
fn looks(lost: &[u64], bears_losses: bool) -> Limiter {
    let mut growth = Growth::new(GrowthConfig::new(Direction::Up));
    let mut again = 0;
    for (look, lost) in (1..).zip(lost) {
        again += lost;
        // Over too soon for more connections.
        growth.sample(&evidence(look, again, bears_losses, 1 << 20));
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

/// Behind a jump host a connection was closed at the end, and another login begun for it: the file
/// had its name before that was through.
#[test]
fn a_connection_that_is_lost_at_the_end_is_not_replaced() {
    let mut config = GrowthConfig::new(Direction::Up);
    config.connections = Some(2);
    for (left, another) in [(0, false), (100 << 20, true)] {
        let mut growth = Growth::new(config);
        let first = growth.sample(&evidence(1, 0, false, 100 << 20));
        assert_eq!(first, [Change::AddConnection]);
        let _ = growth.connection_opened(testkit::sftp_model::epoch(), ConnectionId(1));
        for look in 2..8 {
            let mut both = evidence(look, 0, false, 100 << 20);
            let mut second = both.connections[0].clone();
            second.connection = ConnectionId(1);
            both.connections.push(second);
            assert_eq!(growth.sample(&both), []);
        }
        let changes = growth.sample(&evidence(8, 0, false, left));
        assert_eq!(changes.contains(&Change::AddConnection), another, "{left}");
    }
}

/// On loopback, with `idle` of the processors; the requests take as long as those of a long path.
fn near(look: u64, idle: f64) -> Evidence {
    let mut evidence = evidence(look, 0, false, 1 << 30);
    evidence.idle = Some(idle);
    for on in &mut evidence.connections {
        let tcp = on.tcp.as_mut().expect("a TCP connection");
        tcp.rtt = Duration::from_micros(20);
        tcp.min_rtt = tcp.rtt;
    }
    evidence
}

fn logins(changes: &[Change]) -> usize {
    let login = |c: &&Change| matches!(c, Change::AddConnection);
    changes.iter().filter(login).count()
}

/// Beside a compiler the first answers took 60 ms on loopback: eight connections were begun, twelve
/// later, and remembered; a file that one connection wrote at 570 MB/s took twice as long.
#[test]
fn a_busy_machine_is_no_long_path() {
    let asked = |idle| {
        let mut config = GrowthConfig::new(Direction::Up);
        config.buffer = Some(4 << 20);
        let mut growth = Growth::new(config);
        (1..4)
            .map(|look| logins(&growth.sample(&near(look, idle))))
            .sum::<usize>()
    };
    assert_eq!(asked(0.0), 0);
    assert!(asked(0.9) > 2, "as behind a forwarded port");
}

#[test]
fn a_short_path_is_begun_with_few_whatever_was_learned() {
    let mut config = GrowthConfig::new(Direction::Up);
    let learned = Learned {
        direction: Direction::Up,
        connections: 13,
        channels: 2,
        rate: 367_473_035,
        rtt_us: 3,
        at: 1000,
    };
    config.learned = Some((learned, 2000));
    let mut growth = Growth::new(config);
    assert_eq!(logins(&growth.sample(&near(1, 0.0))), 1);

    // Two that had paid beside a slow disk took a quarter off the rate of a copy within memory.
    config.one_machine = true;
    let mut growth = Growth::new(config);
    assert_eq!(logins(&growth.sample(&near(1, 0.0))), 0);
}

/// Packets that a busy machine took too long to answer are sent again by TCP; ten connections were
/// begun for that.
#[test]
fn losses_that_cannot_be_felt_are_not_what_holds_it_back() {
    let mut growth = Growth::new(GrowthConfig::new(Direction::Up));
    for look in 1..8 {
        let mut evidence = near(look, 0.0);
        for on in &mut evidence.connections {
            on.tcp.as_mut().expect("a TCP connection").retransmitted = 3 * look;
        }
        assert_eq!(logins(&growth.sample(&evidence)), 0);
    }
    assert_ne!(growth.limiter(), Limiter::Loss);
}

/// With both ends on two processors a second connection was tried in each copy, and took a third off
/// the rate while it was there.
#[test]
fn what_is_idle_has_to_bear_another_connection_on_a_short_path() {
    let asked_of = |one_machine, processors, used: f64, idle| {
        let mut config = GrowthConfig::new(Direction::Up);
        config.processors = processors;
        config.one_machine = one_machine;
        let mut growth = Growth::new(config);
        (1..8)
            .map(|look| {
                let mut evidence = near(look, idle);
                evidence.lanes[0].latency = Duration::ZERO;
                evidence.cpu = Duration::from_millis(LOOK * look).mul_f64(used);
                logins(&growth.sample(&evidence))
            })
            .sum::<usize>()
    };
    let asked = |processors, used, idle| asked_of(false, processors, used, idle);
    assert_eq!(asked(2, 1.0, 0.16), 0);
    assert!(asked(2, 1.0, 0.5) > 0, "the far end is another machine");
    assert!(asked(16, 1.0, 0.8) > 0);
    assert!(asked(2, 0.2, 0.16) > 0, "it takes little");

    let asked = |processors, used, idle| asked_of(true, processors, used, idle);
    assert_eq!(asked(2, 0.6, 0.4), 0, "the far end takes as much");
    assert!(asked(4, 0.9, 0.5) > 0);
    assert!(asked(2, 0.1, 0.8) > 0, "as behind a forwarded port");
}
