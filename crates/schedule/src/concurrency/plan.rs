//! Plans connections and channels before anything is measured.

use std::time::Duration;

use super::choose::SLOW_START_UP;
use super::history::IntervalHistory;
use super::start::SMALL;
use super::{
    ConcurrencyConfig, CopyTimeModel, LearnedConcurrency, RunMeasurements, TransferDirection,
};

/// Cost of a new connection in round trips: the login, and the slow start after it.
pub(super) const LOGIN: f64 = 6.0;
pub(super) const SLOW_START: f64 = 8.0;
/// Assumed capacity of a path in bytes per second (one gigabit), if only the size of local buffers
/// and of the file suggest more connections. At 114 ms this takes five connections; more filled the
/// path's queue until it lost packets. At 600 ms CUBIC leaves slow start at 2 MB/s, with a window
/// that a file's time is too short to open.
pub const USUAL_RATE: f64 = 117e6;
/// Allowance for the far end's buffer, which may be smaller and grows later: five downloads had 61
/// MB/s after three seconds, five uploads 119.
const FAR: f64 = 1.3;
/// Maximum number of connections to open without having measured their effect.
const SPECULATIVE: u32 = 16;
/// Usable share of a TCP buffer: the kernel includes its own overhead in the size.
const USABLE: f64 = 0.6;
/// Default maximum of Linux for a send buffer in bytes (tcp(7), tcp_wmem).
const STOCK_SEND_BUFFER: u64 = 4 << 20;
/// Window in bytes that OpenSSH gives a channel.
const STOCK_WINDOW: u64 = 2 << 20;
/// Maximum number of initial connections on a short path, even if more paid the last time: more are
/// added within a second if they pay, and each costs both ends more than it brings if both are one
/// machine. 13 connections wrote 290 MB/s into a file, one wrote 570.
const SHORT: u32 = 2;
/// Maximum number of initial connections if both ends are known to be one machine: two connections
/// that had paid once, beside a slow disk, moved 1.6 GB/s between two processors, one moved 2.1.
const ONE_MACHINE: u32 = 1;
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
/// Number of bytes for which one channel is enough: in
/// slow start the window is full before a second channel requested then is ready. On loopback two
/// sftp-servers create 10,000 files in 0.55 s and one in 0.62 (medians of seven); four take 0.59.
const ENOUGH: u64 = 2 * STOCK_WINDOW;
/// Round trip from which a login's waiting time matters more than its processor time.
const FAR_AWAY: Duration = Duration::from_millis(20);
/// Rate in bytes per second from which a path bears the slow starts of several connections.
const FAST: u64 = 30_000_000;
/// Round trip below which a channel's window limits nothing.
pub(super) const LONG: Duration = Duration::from_millis(4);

/// Number of connections, and of channels on each, that are opened without a trial.
#[derive(Debug)]
pub(super) struct InitialConcurrency {
    connections: u32,
    channels: u32,
    /// Round trip for which the plan was made.
    trip: Duration,
    /// Bytes announced for the session in advance.
    expected: u64,
    /// Largest announced number of files, and their bytes.
    announced: (u64, u64),
}

impl Default for InitialConcurrency {
    fn default() -> Self {
        Self {
            connections: 1,
            channels: 1,
            trip: Duration::ZERO,
            expected: 0,
            announced: (0, 0),
        }
    }
}

impl InitialConcurrency {
    /// Returns the number of connections.
    pub(super) fn connections(&self) -> u32 {
        self.connections
    }

    /// Returns the number of channels on each connection.
    pub(super) fn channels(&self) -> u32 {
        self.channels
    }

    /// Plans at least so many channels.
    pub(super) fn raise_channels(&mut self, channels: u32) {
        self.channels = self.channels.max(channels);
    }

    /// Returns true if the path was not known to be long when the plan was made.
    pub(super) fn is_outdated(&self, trip: Duration) -> bool {
        trip > self.trip.max(LONG) * 3
    }

    /// Makes the plan; `costs` is the time until another connection moves its share. Returns true
    /// if it uses the result of an earlier run.
    pub(super) fn make(
        &mut self,
        config: &ConcurrencyConfig,
        history: &IntervalHistory,
        evidence: &RunMeasurements,
        costs: Duration,
    ) -> bool {
        let rtt = history.trip();
        self.trip = rtt;
        let (mut connections, mut channels) = (1, 1);
        if let (Some(buffer), Some(left), true) = (config.buffer, evidence.remaining, rtt >= LONG) {
            connections = worth(config, buffer, left, rtt);
            let starts = self.for_start(config, (buffer, left), rtt, evidence.start_up);
            connections = connections.max(starts);
            if config.direction == TransferDirection::Up && left > STOCK_WINDOW * 4 {
                channels = windows_of_buffer(config).clamp(1, 3);
            }
        }
        let learned = learned_here(config, rtt);
        if let Some(learned) = learned {
            let mut paid = learned.connections;
            if rtt < LONG {
                paid = paid.min(match config.one_machine {
                    true => ONE_MACHINE,
                    false => SHORT,
                });
            }
            if let Some(limit) = config.limit {
                // Use only as many as the user's rate limit can fill.
                let shared = limit.saturating_mul(paid.into()) / learned.rate.max(1);
                let needed = shared.saturating_add(1);
                paid = paid.min(u32::try_from(needed).unwrap_or(u32::MAX));
            }
            // A small copy ends before more connections than that could help.
            let little = evidence.remaining.is_some_and(|left| {
                let lasts = left as f64 / learned.rate.max(1) as f64;
                lasts < costs.as_secs_f64()
            });
            if little {
                paid = paid.min(connections);
            }
            // The number planned for an unknown host is the minimum: with fewer that were enough at
            // full speed, slow start took longer, and a known host was slower than an unknown one.
            connections = connections.max(paid);
            channels = channels.max(learned.channels);
        }
        if connections > 1 {
            // Their handshakes are over, so each costs only its login.
            connections = connections.max(config.preconnected.saturating_add(1));
        }
        self.connections = config.connections.unwrap_or(connections);
        self.channels = config.channels.unwrap_or(channels);
        learned.is_some()
    }

    /// Plans at least so many connections, unless their number is fixed.
    pub(super) fn raise_connections(&mut self, config: &ConcurrencyConfig, connections: u32) {
        if config.connections.is_none() {
            self.connections = self.connections.max(connections);
        }
    }

    /// Returns the number of connections to begin with for `left` bytes.
    pub(super) fn start_for(
        &self,
        config: &ConcurrencyConfig,
        history: &IntervalHistory,
        left: u64,
        start_up: Duration,
    ) -> u32 {
        let rtt = history.trip();
        match config.buffer {
            Some(buffer) if rtt >= LONG => self.for_start(config, (buffer, left), rtt, start_up),
            _ => 1,
        }
    }

    /// Returns the number of bytes of the largest announcement.
    pub(super) fn announced_bytes(&self) -> u64 {
        self.announced.1
    }

    /// Returns the number of connections with which `left` bytes are copied soonest from the first
    /// moment on, if logins are cheap and their files are large enough to be cut or shared.
    fn for_start(
        &self,
        config: &ConcurrencyConfig,
        (buffer, left): (u64, u64),
        rtt: Duration,
        start_up: Duration,
    ) -> u32 {
        let (files, bytes) = self.announced;
        let small = files > 1 && bytes / files < SMALL;
        let cost = config.login_cost;
        let start_up = start_up.max(cost.start_up());
        let dear = config.interactive || config.one_machine || start_up > SLOW_START_UP;
        if small || dear || config.background || config.limit.is_some() {
            return 1;
        }
        let buffer = buffer.min(STOCK_SEND_BUFFER);
        let model = CopyTimeModel {
            direction: config.direction,
            bytes: left,
            rtt,
            rate: USUAL_RATE,
            proven: learned_here(config, rtt).is_some_and(|l| l.rate >= FAST),
            in_flight: (buffer as f64 * USABLE) as u64,
            known: config.learned.is_some(),
            start_up,
            loss: 0.0,
        };
        model.connections(cost.most_at_start().min(config.most_connections))
    }

    /// Announces `files` files with `bytes` bytes; returns true if they are more than before.
    pub(super) fn expect(&mut self, files: u64, bytes: u64) -> bool {
        self.announced = self.announced.max((files, bytes));
        if files < FILES {
            return false;
        }
        let expected = files.saturating_mul(FILE).saturating_add(bytes);
        let more = expected > self.expected;
        self.expected = self.expected.max(expected);
        more
    }

    /// Returns true if files were announced.
    pub(super) fn expects_files(&self) -> bool {
        self.expected > 0
    }

    /// Returns the number of connections that the announced files are worth, if connections may be
    /// opened before the effect of one is known (`may`).
    pub(super) fn for_many(
        &self,
        config: &ConcurrencyConfig,
        history: &IntervalHistory,
        may: bool,
    ) -> u32 {
        if self.expected < MANY || !may {
            return 0;
        }
        let worth = match (config.buffer, history.known_trip()) {
            (Some(buffer), Some(rtt)) => worth(config, buffer, self.expected, rtt),
            _ => CONNECTIONS,
        };
        worth.max(CONNECTIONS)
    }

    /// Raises the plan to `connections`, and to the channels that the announced files are worth.
    pub(super) fn raise_for_many(&mut self, config: &ConcurrencyConfig, connections: u32) {
        self.connections = self.connections.max(connections);
        let up = config.direction == TransferDirection::Up;
        if up && self.expected > ENOUGH && config.channels.is_none() {
            self.raise_channels(2);
        }
    }
}

/// Returns true if a login's waiting time matters more than its processor time.
pub(super) fn is_far_away(history: &IntervalHistory) -> bool {
    history.known_trip().is_none_or(|rtt| rtt >= FAR_AWAY)
}

/// Returns the number of connections that pay for `left` bytes, if only the size `buffer` of
/// local buffers suggests more.
fn worth(config: &ConcurrencyConfig, buffer: u64, left: u64, rtt: Duration) -> u32 {
    // Highest possible rate of one connection, and the time for the rest at it. The far end's
    // send buffer is unknown, but is hardly ever larger than the default.
    let buffer = match config.direction {
        TransferDirection::Up => buffer,
        TransferDirection::Down => buffer.min(STOCK_SEND_BUFFER),
    };
    let cap = buffer as f64 * USABLE / rtt.as_secs_f64();
    // One connection is enough for the user's limit.
    let enough = config.limit.is_some_and(|limit| limit as f64 <= cap);
    let lasts = left as f64 / cap;
    let costs = (LOGIN + SLOW_START) * rtt.as_secs_f64();
    if lasts <= 2.0 * costs || enough {
        return 1;
    }
    let fill = match config.direction {
        TransferDirection::Up => USUAL_RATE / cap,
        TransferDirection::Down => FAR * USUAL_RATE / cap,
    };
    let fill = fill.round() as u32;
    ((lasts / costs) as u32).min(fill).clamp(1, SPECULATIVE)
}

/// Returns the number of channels whose windows hold as much as a connection can have in
/// flight.
pub(super) fn windows_of_buffer(config: &ConcurrencyConfig) -> u32 {
    let buffer = config.buffer.unwrap_or_default();
    (buffer as f64 * USABLE / STOCK_WINDOW as f64).ceil() as u32
}

/// Returns the result of an earlier run, if it holds for this path.
fn learned_here(config: &ConcurrencyConfig, rtt: Duration) -> Option<LearnedConcurrency> {
    let (learned, now) = config.learned?;
    let holds = learned.direction == config.direction && learned.holds(now, rtt);
    holds.then_some(learned)
}
