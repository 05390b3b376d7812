//! Plans further logins for copies of many small files, before the transfer itself shows a need.

use std::time::{Duration, Instant};

use super::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionSample, RunMeasurements,
    TcpSample,
};
use crate::ConnectionId;

/// Returns the total number of connections planned at the first sample for so many files and bytes,
/// over a path with round trip `rtt`; `now` may be any time.
///
/// For callers that open connections before there is anything to sample.
pub fn begins_with(
    config: ConcurrencyConfig,
    (files, bytes): (u64, u64),
    rtt: Duration,
    now: Instant,
) -> u32 {
    let mut growth = ConcurrencyController::new(config);
    growth.expect(files, bytes);
    let tcp = TcpSample {
        rtt,
        min_rtt: rtt,
        ..TcpSample::default()
    };
    let changes = growth.sample(&RunMeasurements {
        now,
        remaining: Some(bytes),
        moved: 0,
        done: 0,
        cpu: Duration::ZERO,
        idle: None,
        wanted_cpu: None,
        silent: Duration::ZERO,
        start_up: Duration::ZERO,
        starting: 0,
        bears_losses: false,
        connections: vec![ConnectionSample {
            connection: ConnectionId(0),
            bytes: 0,
            tcp: Some(tcp),
        }],
        lanes: Vec::new(),
    });
    let added = |c: &&ConcurrencyChange| matches!(c, ConcurrencyChange::AddConnection);
    1 + changes.iter().filter(added).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LaneId, LaneSample, TransferDirection};

    fn first_look(config: ConcurrencyConfig, announced: &[(u64, u64)]) -> usize {
        let added = |c: &&ConcurrencyChange| matches!(c, ConcurrencyChange::AddConnection);
        first_changes(config, announced)
            .iter()
            .filter(added)
            .count()
    }

    fn first_changes(
        config: ConcurrencyConfig,
        announced: &[(u64, u64)],
    ) -> Vec<ConcurrencyChange> {
        let mut growth = ConcurrencyController::new(config);
        for (files, bytes) in announced {
            growth.expect(*files, *bytes);
        }
        growth.sample(&RunMeasurements {
            now: testkit::sftp_model::epoch(),
            remaining: Some(0),
            moved: 0,
            done: 0,
            cpu: Duration::ZERO,
            idle: None,
            wanted_cpu: None,
            silent: Duration::ZERO,
            start_up: Duration::ZERO,
            starting: 0,
            bears_losses: false,
            connections: vec![ConnectionSample {
                connection: ConnectionId(0),
                bytes: 0,
                tcp: None,
            }],
            lanes: vec![LaneSample {
                lane: LaneId {
                    connection: ConnectionId(0),
                    channel: 0,
                },
                bytes: 0,
                window: 2 << 20,
                window_blocked: Duration::ZERO,
                in_flight: 0,
                unsent: 0,
                depth: 4 << 20,
                latency: Duration::ZERO,
                stalls_disk: 0,
                stalls_depth: 0,
            }],
        })
    }

    #[test]
    fn a_second_channel_is_there_before_the_window_of_the_first_is_full() {
        let added = |direction, channels, announced: &[(u64, u64)]| {
            let config = ConcurrencyConfig {
                channels,
                ..ConcurrencyConfig::new(direction)
            };
            let changes = first_changes(config, announced);
            let channel = |c: &&ConcurrencyChange| matches!(c, ConcurrencyChange::AddChannel(_));
            changes.iter().filter(channel).count()
        };
        let some = [(2_000, 8 << 20)];
        assert_eq!(added(TransferDirection::Up, None, &some), 1);
        assert_eq!(added(TransferDirection::Up, Some(1), &some), 0);
        assert_eq!(added(TransferDirection::Up, None, &[(500, 2 << 20)]), 0);
        assert_eq!(
            added(TransferDirection::Down, None, &some),
            0,
            "no window is ours"
        );
    }

    #[test]
    fn only_many_files_are_worth_logins_at_once() {
        let config = ConcurrencyConfig::new(TransferDirection::Up);
        assert_eq!(first_look(config, &[]), 0);
        assert_eq!(first_look(config, &[(2_000, 8 << 20)]), 0);
        assert_eq!(
            first_look(config, &[(2_000, 8 << 20), (100_000, 400 << 20)]),
            3
        );
        assert_eq!(
            first_look(config, &[(1, 4 << 30)]),
            0,
            "one file may be cut"
        );
    }

    #[test]
    fn as_many_are_begun_ahead_as_at_the_first_look() {
        let config = ConcurrencyConfig {
            buffer: Some(4 << 20),
            ..ConcurrencyConfig::new(TransferDirection::Up)
        };
        let long = Duration::from_millis(114);
        let begins =
            |config, coming, rtt| begins_with(config, coming, rtt, testkit::sftp_model::epoch());
        assert_eq!(begins(config, (100_000, 400 << 20), long), 5);
        assert_eq!(begins(config, (1, 4 << 30), long), 6, "it is cut");
        assert_eq!(begins(config, (2_000, 8 << 20), long), 1);
        assert_eq!(begins(config, (0, 0), long), 1);
        let short = Duration::from_micros(200);
        assert_eq!(begins(config, (100_000, 400 << 20), short), 1);
        let one = ConcurrencyConfig {
            connections: Some(1),
            ..config
        };
        assert_eq!(begins(one, (100_000, 400 << 20), long), 1);
        let asked = ConcurrencyConfig {
            interactive: true,
            ..config
        };
        assert_eq!(begins(asked, (100_000, 400 << 20), long), 1);
    }

    #[test]
    fn who_has_to_be_asked_or_has_fixed_it_is_left_alone() {
        let config = ConcurrencyConfig::new(TransferDirection::Up);
        let many = [(100_000, 400 << 20)];
        let alone = ConcurrencyConfig {
            interactive: true,
            ..config
        };
        assert_eq!(first_look(alone, &many), 0);
        let fixed = ConcurrencyConfig {
            connections: Some(1),
            ..config
        };
        assert_eq!(first_look(fixed, &many), 0);
    }

    #[test]
    fn news_of_many_files_is_looked_at_at_once() {
        let mut growth =
            ConcurrencyController::new(ConcurrencyConfig::new(TransferDirection::Down));
        growth.next = Some(testkit::sftp_model::epoch());
        growth.expect(100, 1 << 20);
        assert!(growth.next_sample().is_some());
        growth.expect(100_000, 400 << 20);
        assert!(growth.next_sample().is_none());
    }
}
