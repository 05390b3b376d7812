//! Plans further logins for copies of many small files, before the transfer itself shows a need.

use std::time::{Duration, Instant};

use super::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionSample, Direction,
    RunMeasurements, TcpSample,
};
use crate::ConnectionId;

/// Overhead of a file on the path in bytes: OPEN, WRITE or READ, CLOSE, rename and answers.
const FILE: u64 = 600;
/// Minimum number of files; fewer ones may each be cut, and the gain of more connections is
/// measured.
const FILES: u64 = 16;
/// Number of bytes from which further logins start at once. With 2,000 files of 4 KiB at 114 ms the
/// first connection has sent all before its slow start ends; three more, opened with it, left slow
/// start early (probably HyStart, RFC 9406) and turned 2.4 s into 2.7 s.
const MANY: u64 = 32 << 20;
/// Minimum number of connections for that many bytes.
const CONNECTIONS: u32 = 4;
/// OpenSSH's channel window in bytes, and the number of bytes for which one channel is enough: in
/// slow start the window is full before a second channel requested then is ready. On loopback two
/// sftp-servers create 10,000 files in 0.55 s and one in 0.62 (medians of seven); four take 0.59.
const WINDOW: u64 = 2 << 20;
const ENOUGH: u64 = 2 * WINDOW;
/// Round trip from which a login's waiting time matters more than its processor time.
const LONG: Duration = Duration::from_millis(20);

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

impl ConcurrencyController {
    /// Announces `files` files with `bytes` bytes; if the plan changes, the next sample is due at
    /// once.
    pub fn expect(&mut self, files: u64, bytes: u64) {
        self.announced = self.announced.max((files, bytes));
        if files < FILES {
            return;
        }
        let expected = files.saturating_mul(FILE).saturating_add(bytes);
        if expected > self.expected {
            self.expected = expected;
            let starts = match self.is_starting() {
                true => self.start_for(self.announced.1),
                false => 1,
            };
            if self.planned.0 < self.for_many().max(starts) {
                self.next = None;
            }
        }
    }

    /// Raises the plan to the number that the announced files are worth.
    pub(super) fn plan_for_many(&mut self) {
        self.planned.0 = self.planned.0.max(self.for_many());
        let up = self.config.direction == Direction::Up;
        if up && self.expected > ENOUGH && self.config.channels.is_none() {
            self.planned.1 = self.planned.1.max(2);
        }
    }

    /// Returns true if the announced files are, or may become, worth several initial connections,
    /// and further logins are possible.
    pub fn may_begin_with_several(&self) -> bool {
        self.expected > 0 && self.begins_at_once()
    }

    fn is_long(&self) -> bool {
        self.measure.trip().is_none_or(|rtt| rtt >= LONG)
    }

    /// Returns true if connections may be opened before the effect of one is known.
    fn begins_at_once(&self) -> bool {
        let fixed = self.config.connections.is_some() || self.config.limit.is_some();
        self.is_long() && !fixed && !self.no_connections
    }

    fn for_many(&self) -> u32 {
        if self.expected < MANY || !self.begins_at_once() {
            return 0;
        }
        let worth = match (self.config.buffer, self.measure.trip()) {
            (Some(buffer), Some(rtt)) => self.worth(buffer, self.expected, rtt),
            _ => CONNECTIONS,
        };
        worth.max(CONNECTIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LaneId, LaneSample};

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
        assert_eq!(added(Direction::Up, None, &some), 1);
        assert_eq!(added(Direction::Up, Some(1), &some), 0);
        assert_eq!(added(Direction::Up, None, &[(500, 2 << 20)]), 0);
        assert_eq!(added(Direction::Down, None, &some), 0, "no window is ours");
    }

    #[test]
    fn only_many_files_are_worth_logins_at_once() {
        let config = ConcurrencyConfig::new(Direction::Up);
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
            ..ConcurrencyConfig::new(Direction::Up)
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
        let config = ConcurrencyConfig::new(Direction::Up);
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
        let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(Direction::Down));
        growth.next = Some(testkit::sftp_model::epoch());
        growth.expect(100, 1 << 20);
        assert!(growth.next_sample().is_some());
        growth.expect(100_000, 400 << 20);
        assert!(growth.next_sample().is_none());
    }
}
