//! Predicts a copy from its first packet on, and chooses the number of connections to begin with.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TransferDirection;
use super::losses::LossyCopy;

/// Round trip from which slow start and logins take noticeable time.
pub(super) const LONG: Duration = Duration::from_millis(20);
/// Maximum number of connections to begin with: six log in at once beside the first, which stays
/// below OpenSSH's MaxStartups (it drops from ten on) with two other users. An eighth would log in
/// after them and get its share of the data last.
pub const MOST_AT_START: u32 = 7;
/// Smallest copy in bytes that is worth a second login.
const LEAST: u64 = 512 << 10;
/// Bytes for each connection below which another one has too little to send.
const SHARE: u64 = 128 << 10;
/// Average size in bytes below which files count as small: their requests, and not the congestion
/// window, determine the time.
pub(super) const SMALL: u64 = 64 << 10;
/// Initial congestion window of Linux in bytes: ten segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0 * 1448.0;
/// Congestion window in bytes after the key exchange of an upload or the channel requests of a
/// download, which are sent in eight or nine segments (`ssh_link/opening.rs`).
const OPENED_WINDOW: f64 = INITIAL_WINDOW + 8.0 * 1448.0;
/// Time in seconds for the start and the end of the program and the work of one key exchange at
/// both ends.
const PROGRAM: f64 = 0.06;
/// Time in seconds that one more login takes from the others: key exchange and start of a process
/// at both ends.
const LOGIN: f64 = 0.012;
/// Gain in round trips, and as a share of the whole time, that justifies one more login on the
/// server.
const LEAST_GAIN: f64 = 0.15;
const LEAST_SHARE: f64 = 0.007;
/// [`LEAST_GAIN`] and [`LEAST_SHARE`] while the rate of the path is assumed. The slow starts of
/// five connections overflow a path of 100 Mbit/s: at 114 ms, 16 MiB up took 3.8 and 3.3 s (first
/// contact and known host) in place of 3.3 and 2.9 s with one; three took 3.3 and 2.8 s, and are
/// 0.07 s slower than five at 1 Gbit/s.
const LEAST_GAIN_ASSUMED: f64 = 0.5;
/// [`LEAST_GAIN_ASSUMED`] of a download, whose further connections begin late: three and four of
/// them lose the same on a slow path.
const LEAST_GAIN_DOWN: f64 = 0.35;
const LEAST_SHARE_ASSUMED: f64 = 0.01;
/// Share of the time of one connection that several must save to be used at all: on a path slower
/// than assumed, their slow starts overflow the queue together. Over 114 ms, four connections took
/// 16 MiB down in 1.93 and 1.79 s (first contact and known host) in place of 2.14 and 1.91 s at
/// 1 Gbit/s, and in 2.99 and 2.79 s in place of 2.80 and 2.56 s at 100 Mbit/s.
const WORTH: f64 = 0.08;
/// Largest number of round trips that the prediction follows.
const ROUNDS: u32 = 100_000;

/// Maximum number of connections to begin with on a server that lately refused a connection
/// (MaxStartups).
const AFTER_REFUSAL: u32 = 3;

/// Cost of further logins on a server, as seen in earlier copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoginCost {
    /// Time in milliseconds that the server took to start its SFTP server, beyond a round trip.
    pub start_up_ms: u32,
    /// A further connection was closed before its login, as by MaxStartups.
    pub refused_connection: bool,
    /// A further login was refused, as by a limit of one per user.
    pub refused_login: bool,
}

impl LoginCost {
    /// Returns the time that the server takes to start its SFTP server.
    pub fn start_up(&self) -> Duration {
        Duration::from_millis(self.start_up_ms.into())
    }

    /// Returns the maximum number of connections to begin with.
    pub fn most_at_start(&self) -> u32 {
        match (self.refused_login, self.refused_connection) {
            (true, _) => 1,
            (false, true) => AFTER_REFUSAL,
            (false, false) => MOST_AT_START,
        }
    }
}

/// A path, the size of a copy, and what is known of the host, from which the time of the copy is
/// predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTimeModel {
    /// Direction of the copy.
    pub direction: TransferDirection,
    /// Bytes to copy.
    pub bytes: u64,
    /// Round trip of the path.
    pub rtt: Duration,
    /// Capacity of the path in bytes per second.
    pub rate: f64,
    /// The path is known to be fast enough for the slow starts of several connections.
    pub proven: bool,
    /// Bytes that one connection can have in flight, as buffers and windows allow.
    pub in_flight: u64,
    /// The host memory knows the server, so that the login is sent in one flight.
    pub known: bool,
    /// Time that the server takes to start its SFTP server, beyond a round trip.
    pub start_up: Duration,
    /// Share of packets that the path loses at random.
    pub loss: f64,
}

impl CopyTimeModel {
    /// Returns the predicted time of the copy in seconds with this number of connections, from the
    /// start of the program to its end.
    pub fn seconds(&self, connections: u32) -> f64 {
        let connections = connections.max(1);
        let rtt = self.rtt.as_secs_f64();
        let start_up = self.start_up.as_secs_f64();
        let further = f64::from(connections - 1);
        let trips = match self.loss > 0.0 {
            true => self.trips_with_losses(connections),
            false => self.trips(connections),
        };
        let starts = match self.known && connections == 1 {
            // The requests are sent with the login and wait for the start together.
            true => 0.0,
            false => start_up,
        };
        (trips + self.answers()) * rtt + PROGRAM + LOGIN * further + starts
    }

    /// Returns the round trips until the last byte is sent or has arrived.
    fn trips(&self, connections: u32) -> f64 {
        let further = f64::from(connections - 1);
        let per_trip = self.per_trip();
        let cap = self.cap();
        let (first_at, further_at) = self.first_data();
        let (mut window, mut further_window) = self.windows();
        let mut left = self.bytes as f64;
        let mut trips = first_at;
        for _ in 0..ROUNDS {
            let joined = match trips >= further_at {
                true => further,
                false => 0.0,
            };
            let sent = (window + joined * further_window).min(per_trip);
            if left <= sent {
                trips += left / sent;
                break;
            }
            left -= sent;
            trips += 1.0;
            window = (2.0 * window).min(cap);
            if joined > 0.0 {
                further_window = (2.0 * further_window).min(cap);
            }
        }
        trips
    }

    /// As [`Self::trips`] where the path loses packets.
    fn trips_with_losses(&self, connections: u32) -> f64 {
        let (first_at, further_at) = self.first_data();
        let (window, further_window) = self.windows();
        let further = (1..connections).map(|_| (further_at, further_window));
        LossyCopy {
            bytes: self.bytes as f64,
            loss: self.loss,
            rtt: self.rtt.as_secs_f64(),
            per_trip: self.per_trip(),
            cap: self.cap(),
            connections: std::iter::once((first_at, window)).chain(further).collect(),
        }
        .trips()
    }

    /// Bytes that the path carries in one round trip.
    fn per_trip(&self) -> f64 {
        (self.rate * self.rtt.as_secs_f64()).max(1.0)
    }

    /// Bytes that one connection can have in flight.
    fn cap(&self) -> f64 {
        (self.in_flight as f64).max(INITIAL_WINDOW)
    }

    /// Returns the number of connections, at most `most`, that copies in the shortest time. Each
    /// costs the server a login, and has to bring a gain for it.
    pub fn connections(&self, most: u32) -> u32 {
        let share = u32::try_from(self.bytes / SHARE).unwrap_or(u32::MAX);
        let most = most.min(share);
        if self.bytes < LEAST || self.rtt < LONG {
            return 1;
        }
        let times: Vec<f64> = (1..=most).map(|n| self.seconds(n)).collect();
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        if best > (1.0 - WORTH) * self.seconds(1) {
            return 1;
        }
        let (gain, share) = match self.proven {
            true => (LEAST_GAIN, LEAST_SHARE),
            false => match self.direction {
                TransferDirection::Up => (LEAST_GAIN_ASSUMED, LEAST_SHARE_ASSUMED),
                TransferDirection::Down => (LEAST_GAIN_DOWN, LEAST_SHARE_ASSUMED),
            },
        };
        let price = (gain * self.rtt.as_secs_f64()).max(share * best);
        let costs = (1..)
            .zip(times)
            .map(|(n, time)| (n, time + f64::from(n) * price));
        costs
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(1, |(n, _)| n)
    }

    /// Returns the round trips after which the first and further connections move data: when data
    /// leaves this machine, or arrives there.
    ///
    /// TCP's handshake takes one, identification and key exchange two, the login one, and SFTP's
    /// VERSION one. Further connections of an upload run beside the first login, log in once it
    /// succeeded, and open the file once it was created. A download requests them when it knows
    /// the size. On a known host they send their first requests with the login.
    fn first_data(&self) -> (f64, f64) {
        match (self.direction, self.known) {
            (TransferDirection::Up, true) => (3.0, 4.0),
            (TransferDirection::Up, false) => (5.0, 6.0),
            (TransferDirection::Down, true) => (4.0, 8.0),
            (TransferDirection::Down, false) => (6.0, 10.0),
        }
    }

    /// Returns the congestion windows in bytes of the first and further connections when they begin
    /// to move data.
    fn windows(&self) -> (f64, f64) {
        match (self.direction, self.known) {
            (TransferDirection::Up, true) => (OPENED_WINDOW, OPENED_WINDOW),
            // Messages without content open the windows further during the login.
            (TransferDirection::Up, false) => (3.0 * OPENED_WINDOW, 3.0 * OPENED_WINDOW),
            (TransferDirection::Down, _) => (OPENED_WINDOW, OPENED_WINDOW),
        }
    }

    /// Returns the round trips from the last byte to the end: the answers and the rename of an
    /// upload. A download ends when the last byte has arrived.
    fn answers(&self) -> f64 {
        match self.direction {
            TransferDirection::Up => 2.0,
            TransferDirection::Down => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIGABIT: f64 = 117e6;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn path(direction: TransferDirection, bytes: u64, rtt: Duration, rate: f64) -> CopyTimeModel {
        CopyTimeModel {
            direction,
            bytes,
            rtt,
            rate,
            proven: false,
            in_flight: (4 << 20) * 6 / 10,
            known: false,
            start_up: ms(30),
            loss: 0.0,
        }
    }

    #[test]
    fn the_number_follows_size_and_path() {
        use TransferDirection::{Down, Up};
        for (direction, bytes, rtt, rate, expected) in [
            // Too little to send, whatever the path.
            (Up, 100 << 10, ms(114), GIGABIT, 1..=1),
            (Down, 100 << 10, ms(600), GIGABIT, 1..=1),
            // One round trip is worth less than a login.
            (Up, 64 * MIB, ms(1), GIGABIT, 1..=1),
            (Down, 256 * MIB, ms(10), GIGABIT, 1..=1),
            // Slow start decides.
            (Up, MIB, ms(114), GIGABIT, 1..=1),
            (Up, 16 * MIB, ms(114), GIGABIT, 3..=3),
            (Down, MIB, ms(114), GIGABIT, 1..=1),
            (Down, 16 * MIB, ms(114), GIGABIT, 3..=4),
            // Send buffers decide.
            (Up, 64 * MIB, ms(114), GIGABIT, 5..=7),
            (Up, 256 * MIB, ms(114), GIGABIT, 5..=7),
            (Down, 64 * MIB, ms(114), GIGABIT, 5..=7),
            (Down, 256 * MIB, ms(114), GIGABIT, 5..=7),
            (Up, 64 * MIB, ms(250), GIGABIT, 7..=7),
            // A slow path is soon full.
            (Up, 64 * MIB, ms(114), GIGABIT / 10.0, 1..=4),
            (Up, 64 * MIB, ms(20), GIGABIT, 1..=4),
        ] {
            let n = path(direction, bytes, rtt, rate).connections(MOST_AT_START);
            assert!(
                expected.contains(&n),
                "{direction:?} {bytes} {rtt:?} {rate}: {n}"
            );
        }
    }

    /// Five connections took 13 % longer than one for 16 MiB at 100 Mbit/s, and three did not.
    #[test]
    fn a_path_that_may_be_slow_gets_fewer() {
        for size in [16, 32, 64] {
            let assumed = path(TransferDirection::Up, size * MIB, ms(114), GIGABIT);
            let proven = CopyTimeModel {
                proven: true,
                ..assumed
            };
            let few = assumed.connections(MOST_AT_START);
            let many = proven.connections(MOST_AT_START);
            assert!(few < many, "{size}: {few}, {many}");
            let costs = assumed.seconds(few) / assumed.seconds(many);
            assert!(costs < 1.05, "{size}: {costs}");
        }
    }

    #[test]
    fn a_server_that_refused_logins_gets_fewer() {
        let cost = LoginCost::default();
        assert_eq!(cost.most_at_start(), MOST_AT_START);
        let dropped = LoginCost {
            refused_connection: true,
            ..cost
        };
        assert_eq!(dropped.most_at_start(), AFTER_REFUSAL);
        let refused = LoginCost {
            refused_login: true,
            ..dropped
        };
        assert_eq!(refused.most_at_start(), 1);
    }

    #[test]
    fn a_known_host_is_faster_and_more_bytes_are_slower() {
        for direction in [TransferDirection::Up, TransferDirection::Down] {
            let mut before = 0.0;
            for size in [1, 16, 64, 256] {
                let first = path(direction, size * MIB, ms(114), GIGABIT);
                let known = CopyTimeModel {
                    known: true,
                    ..first
                };
                for n in 1..=MOST_AT_START {
                    assert!(
                        known.seconds(n) < first.seconds(n) + 0.1,
                        "{direction:?} {size}"
                    );
                }
                let best = first.seconds(first.connections(MOST_AT_START));
                assert!(best > before, "{direction:?} {size}");
                before = best;
            }
        }
    }

    #[test]
    fn a_limit_is_kept_and_nothing_diverges() {
        let model = path(TransferDirection::Up, u64::MAX, ms(600), 1.0);
        assert!(model.seconds(0).is_finite());
        for most in 0..=2 {
            let large = path(TransferDirection::Up, 256 * MIB, ms(114), GIGABIT);
            assert!(large.connections(most) <= most.max(1));
        }
    }

    /// One connection moves its buffer in a round trip: 18 MB/s at 114 ms.
    #[test]
    fn one_connection_is_held_by_its_buffer() {
        let model = path(TransferDirection::Up, 256 * MIB, ms(114), GIGABIT);
        let rate = model.bytes as f64 / model.seconds(1);
        assert!((15e6..22e6).contains(&rate), "{rate}");
        let several = model.seconds(model.connections(MOST_AT_START));
        assert!(several < 4.5, "{several}");
    }
}
