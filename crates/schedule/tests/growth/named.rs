//! Limiters that the samples of a transfer report.

use std::time::Duration;

use schedule::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionId, ConnectionSample,
    LaneId, LaneSample, LearnedConcurrency, Limiter, RunMeasurements, TcpSample, TransferDirection,
};

const RTT: Duration = Duration::from_millis(100);
const LOOK: u64 = 200;

/// One connection at 2 MB/s whose requests take three round trips.
fn evidence(look: u64, retransmitted: u64, bears_losses: bool, remaining: u64) -> RunMeasurements {
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
    RunMeasurements {
        now: testkit::sftp_model::epoch() + Duration::from_millis(LOOK * look),
        remaining: Some(remaining),
        moved: bytes,
        done: 0,
        cpu: Duration::ZERO,
        idle: Some(0.9),
        wanted_cpu: None,
        silent: Duration::ZERO,
        start_up: Duration::ZERO,
        starting: 0,
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
            unsent: 0,
            depth: 4 << 20,
            latency: 3 * RTT,
            stalls_disk: 0,
            stalls_depth: 0,
        }],
    }
}

/// Returns the limiter; `lost` holds the number of retransmitted segments out of 300 per sample.
fn looks(lost: &[u64], bears_losses: bool) -> Limiter {
    let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(TransferDirection::Up));
    let mut again = 0;
    for (look, lost) in (1..).zip(lost) {
        again += lost;
        // The rest is done too soon for more connections.
        growth.sample(&evidence(look, again, bears_losses, 1 << 20));
    }
    growth.limiter()
}

#[test]
fn what_waits_for_lost_packets_is_no_slow_server() {
    assert_eq!(looks(&[0; 12], false), Limiter::Server);
    // Some samples have no loss.
    assert_eq!(looks(&[3, 4, 0, 2, 3, 0, 0], false), Limiter::Loss);
    assert_eq!(looks(&[3, 4, 0, 2, 3, 0, 0], true), Limiter::Path);
    // One lost packet at the beginning says nothing about the end.
    let mut seldom = [0; 16];
    seldom[2] = 1;
    assert_eq!(looks(&seldom, false), Limiter::Server);
}

/// Behind a jump host a connection was closed at the end and another login started for it: the copy
/// was complete before the login was.
#[test]
fn a_connection_that_is_lost_at_the_end_is_not_replaced() {
    let mut config = ConcurrencyConfig::new(TransferDirection::Up);
    config.connections = Some(2);
    for (left, another) in [(0, false), (100 << 20, true)] {
        let mut growth = ConcurrencyController::new(config);
        let first = growth.sample(&evidence(1, 0, false, 100 << 20));
        assert_eq!(first, [ConcurrencyChange::AddConnection]);
        let _ = growth.connection_opened(testkit::sftp_model::epoch(), ConnectionId(1));
        for look in 2..8 {
            let mut both = evidence(look, 0, false, 100 << 20);
            let mut second = both.connections[0].clone();
            second.connection = ConnectionId(1);
            both.connections.push(second);
            assert_eq!(growth.sample(&both), []);
        }
        let changes = growth.sample(&evidence(8, 0, false, left));
        assert_eq!(
            changes.contains(&ConcurrencyChange::AddConnection),
            another,
            "{left}"
        );
    }
}

/// A tenth of a second in which the machine was busy with something else left 4 MB/s of 40: the
/// rest seemed to take long, and another login was started for a copy that was almost done.
#[test]
fn a_stall_of_one_interval_is_no_reason_for_another_login() {
    let total: u64 = 60_000_000;
    let asked = |rates: &[u64], total: u64| {
        let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(TransferDirection::Up));
        let (mut moved, mut added) = (0, 0);
        for (look, rate) in (1..).zip(rates) {
            moved += rate * LOOK / 1000;
            let mut evidence = evidence(look, 0, false, total.saturating_sub(moved));
            evidence.moved = moved;
            evidence.connections[0].bytes = moved;
            evidence.lanes[0].latency = RTT;
            added += logins(&growth.sample(&evidence));
        }
        added
    };
    let steady = [40_000_000; 5];
    let stalled = [40_000_000, 40_000_000, 40_000_000, 40_000_000, 4_000_000];
    assert_eq!(asked(&stalled, total), 0);
    assert!(asked(&steady, 10 * total) > 0, "much is left");
    // A collapse is not measured either if much is left.
    assert_eq!(
        asked(&[0, 4, 8, 16, 1].map(|n| n * 1_000_000), 10 * total),
        0
    );
    // A path that stays slow is.
    let slow = [40, 40, 4, 4, 4, 4, 4].map(|n| n * 1_000_000);
    assert!(asked(&slow, 10 * total) > 0);
}

/// Only the first hundred names of a listing were known at the first sample, and the rest was not
/// worth several connections by itself.
#[test]
fn what_a_listing_adds_at_the_start_is_planned_for() {
    let mut config = ConcurrencyConfig::new(TransferDirection::Down);
    config.buffer = Some(6 << 20);
    let mut growth = ConcurrencyController::new(config);
    let still = |look, left| {
        let mut evidence = evidence(look, 0, false, left);
        evidence.moved = 0;
        evidence.connections[0].bytes = 0;
        evidence
    };
    growth.expect(20, 2_000_000);
    assert_eq!(logins(&growth.sample(&still(1, 2_000_000))), 0);
    growth.expect(20, 2_100_000);
    assert!(growth.next_sample().is_some(), "nothing new");
    growth.expect(300, 30_000_000);
    assert!(growth.next_sample().is_none(), "at once");
    assert!(logins(&growth.sample(&still(2, 30_000_000))) >= 2);
}

#[test]
fn connections_opened_in_advance_are_used() {
    let asked = |left, preconnected| {
        let mut config = ConcurrencyConfig::new(TransferDirection::Up);
        config.buffer = Some(4 << 20);
        config.preconnected = preconnected;
        let mut growth = ConcurrencyController::new(config);
        logins(&growth.sample(&evidence(1, 0, false, left)))
    };
    let planned = asked(64 << 20, 0);
    assert!(planned >= 3);
    assert_eq!(asked(64 << 20, 2), planned);
    assert_eq!(asked(64 << 20, planned as u32 + 1), planned + 1);
    assert_eq!(asked(100, 3), 0, "nothing to send");
}

/// Returns evidence from loopback with a share `idle` of the processors; the requests take as long
/// as on a long path.
fn near(look: u64, idle: f64) -> RunMeasurements {
    let mut evidence = evidence(look, 0, false, 1 << 30);
    evidence.idle = Some(idle);
    for on in &mut evidence.connections {
        let tcp = on.tcp.as_mut().expect("a TCP connection");
        tcp.rtt = Duration::from_micros(20);
        tcp.min_rtt = tcp.rtt;
    }
    evidence
}

fn logins(changes: &[ConcurrencyChange]) -> usize {
    let login = |c: &&ConcurrencyChange| matches!(c, ConcurrencyChange::AddConnection);
    changes.iter().filter(login).count()
}

/// Beside a compiler the first answers took 60 ms on loopback: eight connections were opened,
/// twelve later, and remembered; a file that one connection wrote at 570 MB/s took twice as long.
#[test]
fn a_busy_machine_is_no_long_path() {
    let asked = |idle| {
        let mut config = ConcurrencyConfig::new(TransferDirection::Up);
        config.buffer = Some(4 << 20);
        let mut growth = ConcurrencyController::new(config);
        (1..4)
            .map(|look| logins(&growth.sample(&near(look, idle))))
            .sum::<usize>()
    };
    assert_eq!(asked(0.0), 0);
    assert!(asked(0.9) > 2, "as behind a forwarded port");
}

#[test]
fn a_short_path_is_begun_with_few_whatever_was_learned() {
    let mut config = ConcurrencyConfig::new(TransferDirection::Up);
    let learned = LearnedConcurrency {
        direction: TransferDirection::Up,
        connections: 13,
        channels: 2,
        rate: 367_473_035,
        rtt_us: 3,
        at: 1000,
    };
    config.learned = Some((learned, 2000));
    let mut growth = ConcurrencyController::new(config);
    assert_eq!(logins(&growth.sample(&near(1, 0.0))), 1);

    // Two that had paid beside a slow disk cost a quarter of the rate of a copy within memory.
    config.one_machine = true;
    let mut growth = ConcurrencyController::new(config);
    assert_eq!(logins(&growth.sample(&near(1, 0.0))), 0);
}

/// TCP retransmits packets that a busy machine acknowledges too late; ten connections were opened
/// because of that.
#[test]
fn losses_that_cannot_be_felt_are_not_what_holds_it_back() {
    let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(TransferDirection::Up));
    for look in 1..8 {
        let mut evidence = near(look, 0.0);
        for on in &mut evidence.connections {
            on.tcp.as_mut().expect("a TCP connection").retransmitted = 3 * look;
        }
        assert_eq!(logins(&growth.sample(&evidence)), 0);
    }
    assert_ne!(growth.limiter(), Limiter::Loss);
}

/// With both ends on two processors a second connection was tried in each copy, and cost a third of
/// the rate while it existed.
#[test]
fn what_is_idle_has_to_bear_another_connection_on_a_short_path() {
    let asked_of = |one_machine, processors, used: f64, idle| {
        let mut config = ConcurrencyConfig::new(TransferDirection::Up);
        config.processors = processors;
        config.one_machine = one_machine;
        let mut growth = ConcurrencyController::new(config);
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

/// Returns the limiter of a transfer with [`evidence`] modified by `change`, over a path of 20 ms;
/// more connections bring nothing in any case.
fn named(direction: TransferDirection, change: impl Fn(&mut RunMeasurements, u64)) -> Limiter {
    let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(direction));
    for look in 1..60 {
        let mut evidence = evidence(look, 0, false, 1 << 30);
        for on in &mut evidence.connections {
            let tcp = on.tcp.as_mut().expect("a TCP connection");
            (tcp.rtt, tcp.min_rtt) = (Duration::from_millis(20), Duration::from_millis(20));
            tcp.rcv_rtt = tcp.rtt;
        }
        evidence.lanes[0].latency = Duration::from_millis(20);
        evidence.lanes[0].in_flight = 64 << 10;
        change(&mut evidence, look);
        for added in growth.sample(&evidence) {
            if added == ConcurrencyChange::AddConnection {
                let _ = growth.connection_opened(evidence.now, ConnectionId(0));
            }
        }
    }
    growth.limiter()
}

#[test]
fn a_server_held_to_a_tenth_of_a_processor_is_not_the_path() {
    // An upload's data wait in the server's buffers and windows, after TCP has acknowledged all.
    let up = |in_flight, unsent, unacked| {
        named(TransferDirection::Up, move |evidence, _| {
            evidence.lanes[0].in_flight = in_flight;
            evidence.lanes[0].unsent = unsent;
            let tcp = evidence.connections[0].tcp.as_mut();
            tcp.expect("a TCP connection").unacked = unacked;
        })
    };
    assert_eq!(up(2 << 20, 0, 0), Limiter::Server);
    assert_eq!(up(4 << 20, 2 << 20, 0), Limiter::Server);
    // On a busy machine even a thread with little work waits for a processor each time.
    let busy = named(TransferDirection::Up, |evidence, look| {
        evidence.lanes[0].in_flight = 2 << 20;
        evidence.idle = Some(0.0);
        evidence.wanted_cpu = Some(Duration::from_millis(LOOK * look));
    });
    assert_eq!(busy, Limiter::Server);
    // Data that wait locally or are in flight do not count against the server.
    assert_eq!(up(4 << 20, 2 << 20, 2 << 20), Limiter::Path);
    assert_eq!(up(64 << 10, 0, 0), Limiter::Path);
    // A download arrives in 10 of every 100 ms.
    let down = |silent: f64| {
        named(TransferDirection::Down, move |evidence, look| {
            evidence.silent = Duration::from_millis(LOOK * look).mul_f64(silent);
        })
    };
    assert_eq!(down(0.5), Limiter::Server);
    assert_ne!(down(0.1), Limiter::Server);
}

/// An sftp-server that takes 20 ms for each READ of 32 KiB.
#[test]
fn a_server_that_is_slow_for_each_request_is_not_the_path() {
    let down = |latency, rate: u64| {
        named(TransferDirection::Down, move |evidence, look| {
            evidence.lanes[0].latency = Duration::from_millis(latency);
            evidence.moved = rate * LOOK * look / 1000;
            evidence.connections[0].bytes = evidence.moved;
        })
    };
    assert_eq!(down(40, 1_600_000), Limiter::Server);
    assert_ne!(down(22, 1_600_000), Limiter::Server);
    // Several requests are answered in that time.
    assert_ne!(down(35, 90_000_000), Limiter::Server);
}

#[test]
fn a_client_held_to_a_tenth_of_a_processor_or_beside_the_server_on_one_is_not_the_path() {
    let cpu = |wanted: f64, used: f64, idle| {
        named(TransferDirection::Up, move |evidence, look| {
            let passed = Duration::from_millis(LOOK * look);
            evidence.wanted_cpu = Some(passed.mul_f64(wanted));
            evidence.cpu = passed.mul_f64(used);
            evidence.idle = Some(idle);
        })
    };
    // A quota: the process ran for a tenth of the time and waited for the rest.
    assert_eq!(cpu(0.98, 0.1, 0.9), Limiter::LocalCpu);
    // Both ends on one processor: this end is idle while the other works.
    assert_eq!(cpu(0.6, 0.9, 0.02), Limiter::LocalCpu);
    // Other programs keep the machine busy.
    assert_eq!(cpu(0.1, 0.1, 0.0), Limiter::Path);
    // Bug: on a short path this was called the processor too, although longhaul used 0.0 cores.
    let near = |wanted: f64| {
        named(TransferDirection::Up, move |evidence, look| {
            let passed = Duration::from_millis(LOOK * look);
            evidence.wanted_cpu = Some(passed.mul_f64(wanted));
            evidence.cpu = passed.mul_f64(0.02);
            evidence.idle = Some(0.0);
            let tcp = evidence.connections[0].tcp.as_mut();
            let tcp = tcp.expect("a TCP connection");
            (tcp.rtt, tcp.min_rtt) = (Duration::from_micros(100), Duration::from_micros(100));
        })
    };
    assert_ne!(near(0.03), Limiter::LocalCpu);
    assert_eq!(near(0.5), Limiter::LocalCpu);
    assert_eq!(cpu(0.3, 0.2, 0.6), Limiter::Path);
}

/// 24 login shells of one copy waited for each other's lock in a start-up script.
#[test]
fn a_login_shell_that_is_slow_to_start_is_started_for_what_is_worth_it() {
    let asked = |left: u64, starting, start_up| {
        let mut config = ConcurrencyConfig::new(TransferDirection::Up);
        config.buffer = Some(4 << 20);
        let mut growth = ConcurrencyController::new(config);
        let mut all = 0;
        for look in 1..5 {
            let mut evidence = evidence(look, 0, false, left);
            evidence.start_up = Duration::from_millis(start_up);
            evidence.starting = starting;
            evidence.moved = 0;
            evidence.connections[0].bytes = 0;
            all += growth.sample(&evidence).len();
        }
        all
    };
    assert!(asked(1 << 30, 1, 50) > 2);
    assert_eq!(asked(1 << 30, 1, 1000), 0, "the first has not answered");
    assert!(asked(1 << 30, 0, 1000) > 2);
    assert_eq!(asked(64 << 20, 0, 1000), 0, "it is over before");
}
