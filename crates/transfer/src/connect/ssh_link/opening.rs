//! Opens TCP's congestion window before there are data to send.

use std::time::Duration;

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
/// Bytes of a full segment that the SSH packet itself takes.
const OWN: usize = 64;

/// The opening of a connection's congestion window.
#[derive(Debug, Default)]
pub(super) struct CongestionWindowOpener {
    /// The window is being opened.
    active: bool,
    /// Bytes of IGNORE messages so far.
    filled: usize,
}

impl CongestionWindowOpener {
    /// `active` means that the upload is large enough to open the window in advance.
    pub(super) fn new(active: bool) -> Self {
        Self { active, filled: 0 }
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
    /// key was accepted. `first` means that the connection has not started over. True if there is
    /// something to write.
    ///
    /// # Errors
    ///
    /// Errors of the engine end the connection.
    pub(super) fn fill(
        &mut self,
        conn: &mut Connection,
        tcp: impl FnOnce() -> Option<TcpInfo>,
        sent: u64,
        first: bool,
    ) -> Result<bool, ssh::Error> {
        // Jobs that leave with the login fill the window themselves, and would wait behind the
        // messages for a round trip.
        if !self.active || conn.is_early() {
            return Ok(false);
        }
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
