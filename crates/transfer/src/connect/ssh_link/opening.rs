//! Opens TCP's congestion window before there are data to send.

use std::time::Duration;

use sys::TcpInfo;

use super::{SshLink, engine_error};
use crate::session::LinkError;

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

impl SshLink {
    /// Fills the congestion window with IGNORE messages while the login's answers are awaited: TCP
    /// doubles the window for each round trip in which it was full, otherwise data start with ten
    /// segments. The login's own messages have left before.
    ///
    /// Used with OpenSSH only, which ignores these messages in every phase, and only after the host
    /// key was accepted. True if there is something to write.
    pub(super) fn open_congestion_window(&mut self) -> Result<bool, LinkError> {
        if !self.opens_window {
            return Ok(false);
        }
        let Some(peer) = self.conn.peer() else {
            return Ok(false);
        };
        let login = self.sent_bytes.saturating_sub(self.filled as u64) < LOGIN;
        if peer.openssh().is_none() || self.restarts > 0 || !login || self.filled >= MOST {
            self.opens_window = false;
            return Ok(false);
        }
        let free = self.stream.tcp_info().map_or(0, |tcp| free(&tcp));
        let mut left = free.min(MOST - self.filled);
        let before = self.filled;
        while left > OWN {
            let len = (left - OWN).min(MESSAGE);
            if !self.conn.ignore(len).map_err(|e| engine_error(&e))? {
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
