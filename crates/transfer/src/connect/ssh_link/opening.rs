//! Opens TCP's congestion window, this side's or the server's, before there are data to send.

use std::time::{Duration, Instant};

use ssh::Connection;
use sys::TcpInfo;

/// The shortest round trip at which slow start is noticeable.
const LONG: Duration = Duration::from_millis(20);
/// Bytes per connection: three windows, the first of ten segments and each twice the one before.
/// The login and the opening of a channel have no more round trips.
const MOST: usize = 100 << 10;
/// Bytes of a login and of the channel requests; data follow after them.
const LOGIN: u64 = 24 << 10;
/// Bytes of one message: every server accepts packets of 35,000 bytes (RFC 4253 section 6.1).
const MESSAGE: usize = 16 << 10;
/// Pause after which jobs that leave with the login are taken to be complete. A file in memory is
/// read in less.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of a full segment that the SSH packet itself takes.
const OWN: usize = 64;
/// Segments into which the messages of the key exchange are divided. Linux doubles a congestion
/// window of ten segments if at least six were in flight (net/ipv4/tcp_input.c,
/// tcp_is_cwnd_limited); those beyond ten would wait for a round trip.
const SEGMENTS: usize = 9;
/// Smallest queue that contains a KEXINIT, in bytes.
const KEXINIT: usize = 512;
/// Keepalives whose answers fill a server's first congestion window together with the four or five
/// segments of its login and its channel. One more answer than the window has room for would delay
/// the data by a round trip.
const KEEPALIVES: usize = 5;
/// Bytes of a download that are acknowledged at once: by then slow start has reached 4 MiB.
const SLOW_START: u64 = 4 << 20;

/// Direction in which a connection will carry so much data that slow start matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BulkDirection {
    /// No direction, or not known.
    #[default]
    Neither,
    /// To the server: at least 256 KiB ([`crate::sample::is_much`]).
    Upload,
    /// From the server; the size is not known before the login.
    Download,
}

/// Opens the congestion window of a connection, this side's or the server's, before there are data
/// to send.
#[derive(Debug, Default)]
pub(super) struct CongestionWindowOpener {
    bulk: BulkDirection,
    /// The sender's window is still being opened.
    active: bool,
    /// Bytes of each segment of the key exchange, once its messages are queued.
    segment: Option<usize>,
    /// Bytes of IGNORE messages so far.
    filled: usize,
    /// Time since which there was nothing to write, while jobs may leave with the login.
    idle: Option<Instant>,
}

impl CongestionWindowOpener {
    pub(super) fn new(bulk: BulkDirection) -> Self {
        Self {
            bulk,
            active: bulk != BulkDirection::Neither,
            segment: None,
            filled: 0,
            idle: None,
        }
    }

    /// Notes that messages of the login or of jobs are to be written.
    pub(super) fn note_output(&mut self) {
        self.idle = None;
    }

    /// Returns the time at which the window is to be filled although jobs may leave with the login.
    pub(super) fn due(&self) -> Option<Instant> {
        self.idle.filter(|_| self.active).map(|since| since + PAUSE)
    }

    /// Largest write of the key exchange of an upload, in bytes, with `queued` bytes to write.
    /// Before NEWKEYS nothing may be sent that fills the window, but the window counts segments, so
    /// the messages leave in small ones.
    pub(super) fn segment(
        &mut self,
        queued: usize,
        tcp: impl FnOnce() -> Option<TcpInfo>,
    ) -> Option<usize> {
        if self.bulk != BulkDirection::Upload || self.segment.is_none() && queued < KEXINIT {
            return None;
        }
        let tcp = tcp()?;
        let room = tcp.unacked + 1 < tcp.snd_cwnd;
        if tcp.rtt < LONG || !room {
            return None;
        }
        Some(
            *self
                .segment
                .get_or_insert_with(|| queued.div_ceil(SEGMENTS)),
        )
    }

    /// Sends keepalives with the first requests of a download's first channel, so that the answers
    /// open the server's congestion window: it would begin with ten segments otherwise. sshd writes
    /// each answer at once (serverloop.c, server_input_global_request), and the request for a
    /// session has switched Nagle's algorithm off. True if there is something to write.
    pub(super) fn ask(
        &mut self,
        conn: &mut Connection,
        tcp: impl FnOnce() -> Option<TcpInfo>,
    ) -> bool {
        let open = conn.is_early() || conn.is_authenticated();
        if self.bulk != BulkDirection::Download || !self.active || !open {
            return false;
        }
        self.active = false;
        let openssh = conn.peer().is_some_and(|peer| peer.openssh().is_some());
        if !openssh || tcp().is_none_or(|tcp| tcp.rtt < LONG) {
            return false;
        }
        for _ in 0..KEEPALIVES {
            conn.channels().send_keepalive();
        }
        true
    }

    /// True while the acknowledgements of a download must not be delayed after `received` bytes: in
    /// slow start each delay of 40 ms delays the growth of the server's window.
    pub(super) fn acknowledges(&self, received: u64) -> bool {
        self.bulk == BulkDirection::Download && received < SLOW_START
    }

    /// Bytes of IGNORE messages so far, which do not measure the path.
    pub(super) fn filled(&self) -> u64 {
        self.filled as u64
    }

    /// Fills the congestion window with IGNORE messages while the login's answers are awaited: TCP
    /// doubles the window for each round trip in which it was full, otherwise data start with ten
    /// segments. The login's own messages have left before. `sent` is the number of bytes sent.
    ///
    /// Used with OpenSSH only, which ignores these messages in every phase, and only after the host
    /// key was accepted. `first` means that the connection has not started over. Jobs that leave
    /// with the login go first, and would wait behind the messages for a round trip: then the window
    /// is filled after a pause. True if there is something to write.
    ///
    /// # Errors
    ///
    /// Errors of the engine end the connection.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        conn: &mut Connection,
        tcp: impl FnOnce() -> Option<TcpInfo>,
        sent: u64,
        first: bool,
    ) -> Result<bool, ssh::Error> {
        if self.bulk != BulkDirection::Upload || !self.active {
            return Ok(false);
        }
        if conn.is_early() {
            let since = *self.idle.get_or_insert(now);
            if now.saturating_duration_since(since) < PAUSE {
                return Ok(false);
            }
        }
        self.idle = None;
        let Some(peer) = conn.peer() else {
            return Ok(false);
        };
        let login = sent.saturating_sub(self.filled()) < LOGIN;
        if peer.openssh().is_none() || !first || !login || self.filled >= MOST {
            self.active = false;
            return Ok(false);
        }
        let free = tcp().map_or(0, |tcp| free(&tcp));
        let mut left = free.min(MOST - self.filled);
        let before = self.filled;
        while left > OWN {
            let len = (left - OWN).min(MESSAGE);
            if !conn.ignore(len)? {
                break;
            }
            left -= len + OWN;
            self.filled += len + OWN;
        }
        Ok(self.filled > before)
    }
}

/// Returns the bytes that the congestion window has room for; zero if filling it is not worthwhile.
fn free(tcp: &TcpInfo) -> usize {
    if tcp.rtt < LONG || tcp.total_retrans > 0 || tcp.notsent_bytes > 0 {
        return 0;
    }
    let segments = tcp.snd_cwnd.saturating_sub(tcp.unacked) as usize;
    // The login's last messages may still be in flight: more than half the window must be free.
    match segments * 2 > tcp.snd_cwnd as usize {
        true => segments * tcp.snd_mss as usize,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt: u64, unacked: u32) -> TcpInfo {
        TcpInfo {
            rtt: Duration::from_millis(rtt),
            snd_cwnd: 10,
            snd_mss: 1448,
            unacked,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn a_key_exchange_fills_most_of_the_first_window_and_never_more() {
        let mut up = CongestionWindowOpener::new(BulkDirection::Upload);
        assert_eq!(up.segment(24, || Some(path(114, 0))), None);
        let (mut left, mut segments) = (2248, 0);
        while left > 0 {
            let segment = up.segment(left, || Some(path(114, segments)));
            left -= segment.unwrap().min(left);
            segments += 1;
        }
        assert!((6..10).contains(&segments), "{segments} segments");
        assert_eq!(up.segment(2248, || Some(path(114, 9))), None);
    }

    #[test]
    fn a_key_exchange_is_not_divided_where_that_gains_nothing() {
        let segment =
            |bulk, rtt| CongestionWindowOpener::new(bulk).segment(2248, || Some(path(rtt, 0)));
        assert_eq!(segment(BulkDirection::Upload, 1), None);
        assert_eq!(segment(BulkDirection::Download, 114), None);
        assert_eq!(segment(BulkDirection::Neither, 114), None);
    }

    #[test]
    fn acknowledgements_are_delayed_again_after_slow_start() {
        let down = CongestionWindowOpener::new(BulkDirection::Download);
        assert!(down.acknowledges(1 << 20));
        assert!(!down.acknowledges(SLOW_START));
        assert!(!CongestionWindowOpener::new(BulkDirection::Upload).acknowledges(1));
    }

    #[test]
    fn a_window_is_filled_once_a_round_trip_on_a_long_clean_path() {
        let idle = TcpInfo {
            rtt: Duration::from_millis(114),
            snd_cwnd: 10,
            snd_mss: 1448,
            unacked: 1,
            ..TcpInfo::default()
        };
        assert_eq!(free(&idle), 9 * 1448);
        let full = TcpInfo {
            unacked: 10,
            ..idle
        };
        assert_eq!(free(&full), 0);
        let short = TcpInfo {
            rtt: Duration::from_millis(1),
            ..idle
        };
        assert_eq!(free(&short), 0);
        let lossy = TcpInfo {
            total_retrans: 1,
            ..idle
        };
        assert_eq!(free(&lossy), 0);
        let slow = TcpInfo {
            notsent_bytes: 1,
            ..idle
        };
        assert_eq!(free(&slow), 0);
    }
}
