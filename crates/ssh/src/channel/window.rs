//! Send and receive window of a channel (RFC 4254 section 5.2).

use std::time::{Duration, Instant};

use crate::error::{Error, PeerMisbehaved};

/// Send window: bytes that we may still send.
#[derive(Clone, Debug)]
pub(super) struct SendWindow {
    /// Bytes granted less bytes sent. Negative if data was sent on a wrong prediction.
    left: i64,
    sent: i64,
    /// Longest payload sent so far.
    longest: usize,
    /// Largest value that `left` has had.
    largest: i64,
    /// Maximum data payload that the peer accepts.
    pub(super) max_packet: usize,
}

impl SendWindow {
    pub(super) fn closed() -> Self {
        Self {
            left: 0,
            sent: 0,
            longest: 0,
            largest: 0,
            max_packet: 0,
        }
    }

    /// Creates a window that is assumed before the peer has granted one.
    pub(super) fn assumed(window: u32, max_packet: usize) -> Self {
        Self {
            left: window.into(),
            sent: 0,
            longest: 0,
            largest: window.into(),
            max_packet,
        }
    }

    /// Applies the peer's confirmation, which replaces the assumed window. Returns false if packets
    /// were sent that the peer does not accept.
    ///
    /// OpenSSH confirms with window 0 and grants its window once the program runs.
    pub(super) fn confirm(&mut self, window: u32, max_packet: u32) -> bool {
        self.left = i64::from(window) - self.sent;
        self.largest = self.largest.max(self.left);
        self.max_packet = max_packet as usize;
        self.longest <= self.max_packet && (window == 0 || self.left >= 0)
    }

    /// Returns true if more was sent than the peer has granted, because the assumption was too
    /// high.
    pub(super) fn is_exceeded(&self) -> bool {
        self.left < 0
    }

    pub(super) fn adjust(&mut self, bytes: u32) -> Result<(), Error> {
        self.left += i64::from(bytes);
        if self.left > i64::from(u32::MAX) {
            // RFC 4254 section 5.2: the window must not exceed 2^32 - 1.
            return Err(PeerMisbehaved::WindowOverflow.into());
        }
        self.largest = self.largest.max(self.left);
        Ok(())
    }

    pub(super) fn take(&mut self, n: usize) {
        self.left -= n as i64;
        self.sent += n as i64;
        self.longest = self.longest.max(n);
    }

    /// Returns the bytes of a packet of `len` bytes that may be sent now; 0 is none.
    ///
    /// A packet waits for room instead of being split, which copies it, unless the peer's window is
    /// so small that it may never open far enough.
    pub(super) fn allows(&self, len: usize) -> usize {
        let left = usize::try_from(self.left).unwrap_or(0);
        let whole = len.min(self.max_packet);
        if whole <= left {
            whole
        } else if self.largest >= 2 * whole as i64 {
            0
        } else {
            left
        }
    }

    pub(super) fn largest(&self) -> u64 {
        u64::try_from(self.largest).unwrap_or(0)
    }

    pub(super) fn left(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }
}

/// Receive window: bytes that the peer may still send, adapted to the path.
#[derive(Clone, Debug)]
pub(super) struct ReceiveWindow {
    /// Bytes that the peer may still send.
    left: u32,
    /// Bytes consumed and not yet granted again.
    due: u32,
    /// Current window size in bytes.
    size: u32,
    max: u32,
    since: Option<Instant>,
    in_round: u32,
    /// Initial window size, and total bytes received.
    first: u32,
    taken: u64,
}

/// Least grant in bytes: three packets, as in OpenSSH (channels.c), since each grant is a packet.
const LEAST_GRANT: u32 = 3 * 32 * 1024;

impl ReceiveWindow {
    pub(super) fn new(size: u32, max: u32) -> Self {
        Self {
            left: size,
            due: 0,
            size,
            max: max.max(size),
            since: None,
            in_round: 0,
            first: size,
            taken: 0,
        }
    }

    /// Returns true once a substantial amount has arrived: half of the initial window.
    pub(super) fn is_used(&self) -> bool {
        self.taken >= u64::from(self.first / 2)
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Accounts for `n` received bytes.
    ///
    /// # Errors
    /// They exceed the window.
    pub(super) fn receive(&mut self, n: usize) -> Result<(), Error> {
        let n = u32::try_from(n).map_err(|_| PeerMisbehaved::WindowExceeded)?;
        self.left = self
            .left
            .checked_sub(n)
            .ok_or(PeerMisbehaved::WindowExceeded)?;
        self.taken = self.taken.saturating_add(n.into());
        Ok(())
    }

    /// Reports that `n` bytes were processed.
    ///
    /// If a whole window is consumed within two round trips, the window may be limiting the sender,
    /// and is doubled.
    pub(super) fn consume(&mut self, now: Instant, n: usize, rtt: Option<Duration>) {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.due = self.due.saturating_add(n);
        self.in_round = self.in_round.saturating_add(n);
        let since = *self.since.get_or_insert(now);
        if self.in_round < self.size {
            return;
        }
        let took = now.saturating_duration_since(since);
        if rtt.is_some_and(|rtt| took <= 2 * rtt) && self.size < self.max {
            let grown = self.size.saturating_mul(2).min(self.max);
            self.due = self.due.saturating_add(grown - self.size);
            self.size = grown;
        }
        self.since = Some(now);
        self.in_round = 0;
    }

    /// Raises the window to `bytes` that were requested at once, so that it does not limit them
    /// whatever the measured round trip: the path behind a jump host or a ProxyCommand is longer
    /// than the connection's own.
    pub(super) fn at_least(&mut self, bytes: u32) {
        let grown = bytes.min(self.max);
        if grown > self.size {
            self.due = self.due.saturating_add(grown - self.size);
            self.size = grown;
        }
    }

    /// Raises the window above the socket's receive window of `socket` bytes; a smaller one would
    /// limit the sender before TCP does. It gets a quarter on top, since consumed bytes are granted
    /// in parts.
    pub(super) fn follow(&mut self, socket: u32) {
        self.at_least(socket.saturating_add(socket / 4));
    }

    /// Returns the bytes to grant now, if they are worth a packet.
    pub(super) fn take_grant(&mut self) -> Option<u32> {
        let worth = (self.size / 8).max(LEAST_GRANT).min(self.size / 2 + 1);
        if self.due < worth {
            return None;
        }
        let grant = std::mem::take(&mut self.due);
        self.left = self.left.saturating_add(grant);
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    #[test]
    fn a_confirmation_takes_the_place_of_the_assumption() {
        let mut window = SendWindow::assumed(2 << 20, 32768);
        window.take(1000);
        window.confirm(0, 32768);
        assert_eq!(window.allows(1), 0);
        window.adjust(2 << 20).unwrap();
        assert_eq!(window.left(), (2 << 20) - 1000);
    }

    #[test]
    fn a_packet_waits_for_a_large_window_and_is_cut_for_a_small_one() {
        let mut large = SendWindow::closed();
        large.confirm(100_000, 32768);
        large.take(90_000);
        assert_eq!(large.allows(32768), 0);
        let mut small = SendWindow::closed();
        small.confirm(10_000, 32768);
        assert_eq!(small.allows(32768), 10_000);
    }

    #[test]
    fn a_hostile_adjust_is_refused() {
        let mut window = SendWindow::closed();
        window.confirm(u32::MAX, 32768);
        assert_eq!(window.adjust(1), Err(PeerMisbehaved::WindowOverflow.into()));
    }

    #[test]
    fn the_window_grows_only_while_it_holds_the_sender() {
        let rtt = Duration::from_millis(100);
        let mut window = ReceiveWindow::new(2 << 20, 15 << 20);
        let mut now = start();
        for _ in 0..10 {
            now += rtt;
            let n = window.size() as usize;
            window.consume(now, n, Some(rtt));
        }
        assert_eq!(window.size(), 15 << 20);
        let mut slow = ReceiveWindow::new(2 << 20, 15 << 20);
        slow.consume(now, 1, Some(rtt));
        for _ in 0..10 {
            now += 5 * rtt;
            let n = slow.size() as usize;
            slow.consume(now, n, Some(rtt));
        }
        assert_eq!(slow.size(), 2 << 20);
    }

    #[test]
    fn the_window_takes_what_the_reader_asked_for_up_to_its_bound() {
        let mut window = ReceiveWindow::new(2 << 20, 15 << 20);
        window.at_least(5 << 20);
        assert_eq!(window.take_grant(), Some(3 << 20));
        window.at_least(4 << 20);
        assert_eq!((window.size(), window.take_grant()), (5 << 20, None));
        window.at_least(100 << 20);
        assert_eq!(window.take_grant(), Some(10 << 20));
    }

    /// The case without kernel measurements (`--no-window-poll`).
    #[test]
    fn without_a_round_trip_the_window_stays_as_it_begins() {
        let (mut window, mut now) = (ReceiveWindow::new(2 << 20, 64 << 20), start());
        for _ in 0..1000 {
            let n = window.left as usize;
            window.receive(n).unwrap();
            window.consume(now, n, None);
            window.take_grant().unwrap();
            now += Duration::from_millis(1);
        }
        assert_eq!((window.size(), window.left), (2 << 20, 2 << 20));
    }

    #[test]
    fn the_window_follows_the_socket_within_its_bound() {
        let mut window = ReceiveWindow::new(2 << 20, 15 << 20);
        assert!(!window.is_used());
        window.receive(1 << 20).unwrap();
        assert!(window.is_used());
        window.follow(4 << 20);
        assert_eq!(window.size(), 5 << 20);
        window.follow(1 << 20);
        assert_eq!(window.size(), 5 << 20);
        window.follow(u32::MAX);
        assert_eq!(window.size(), 15 << 20);
    }

    #[test]
    fn what_was_consumed_is_granted_again() {
        let mut window = ReceiveWindow::new(1 << 20, 1 << 20);
        window.receive(1 << 20).unwrap();
        assert!(window.receive(1).is_err());
        let mut window = ReceiveWindow::new(1 << 20, 1 << 20);
        window.receive(200_000).unwrap();
        window.consume(start(), 200_000, None);
        assert_eq!(window.take_grant(), Some(200_000));
        assert_eq!(window.take_grant(), None);
    }
}
