//! Delivers the reason of a disconnect to the client before its socket is closed.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Time that a client has to close the connection after DISCONNECT was sent.
const MOMENT: Duration = Duration::from_millis(500);

/// Reads and discards input of a client after DISCONNECT, until it closes the connection or
/// [`MOMENT`] has passed. Closing a socket with unread input resets the connection (RFC 2525
/// section 2.17), and a client that is still sending would lose the reason.
pub(super) fn hear_out(stream: &TcpStream) {
    let until = Instant::now() + MOMENT;
    let mut unheard = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        if left.is_zero() || !matches!(poll(&mut fds, time.as_ref()), Ok(1..) | Err(Errno::INTR)) {
            return;
        }
        match rustix::io::read(stream, &mut unheard) {
            Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Time that a refused client has to read the reason.
const READING: Duration = Duration::from_secs(2);
/// Refused clients that read the reason at the same time; further ones see a reset. ssh-audit takes a
/// server that answers 20 connections a second for one that does not slow a flood of key exchanges
/// down (CVE-2002-20001), and each client that is kept open holds a descriptor.
const MOST_READING: usize = 8;

/// Refused clients that were sent the reason, kept open until they have read it.
///
/// A socket that is closed with unread input is reset, and the client would see a reset in place of
/// the reason, because its identification is already on the way.
#[derive(Debug, Default)]
pub(super) struct LingeringRefusedClients {
    /// Clients to which DISCONNECT was sent, in order.
    reading: VecDeque<(Instant, TcpStream)>,
}

impl LingeringRefusedClients {
    /// Sends a client the reason for the refusal: an identification and a DISCONNECT, which clients
    /// display (OpenSSH: `Received disconnect from ...: too many connections`). OpenSSH shows lines
    /// before the identification (RFC 4253 section 4.2) only with -v.
    pub(super) fn tell(&mut self, stream: TcpStream, why: &str, now: Instant) {
        self.forget(now);
        if self.reading.len() >= MOST_READING {
            return;
        }
        // A client that accepts no bytes is not waited for.
        let sent = rustix::net::send(&stream, &disconnect(why), rustix::net::SendFlags::DONTWAIT);
        if sent.is_err() || stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        self.reading.push_back((now, stream));
    }

    /// Closes connections older than [`READING`]; returns the time until the next one is due.
    pub(super) fn forget(&mut self, now: Instant) -> Option<Duration> {
        while let Some((since, _)) = self.reading.front() {
            let left = (*since + READING).saturating_duration_since(now);
            if !left.is_zero() {
                return Some(left);
            }
            self.reading.pop_front();
        }
        None
    }
}

/// Builds an identification and a packet with SSH_MSG_DISCONNECT before any key exchange (RFC 4253
/// sections 6 and 11.1).
fn disconnect(why: &str) -> Vec<u8> {
    const TOO_MANY_CONNECTIONS: u32 = 12;
    let mut payload = vec![1];
    payload.extend(TOO_MANY_CONNECTIONS.to_be_bytes());
    for text in [why, ""] {
        payload.extend((text.len() as u32).to_be_bytes());
        payload.extend(text.as_bytes());
    }
    // Length, padding length, payload and padding fill blocks of eight bytes, with at least four
    // bytes of padding.
    let padding = 4 + (8 - (5 + payload.len() + 4) % 8) % 8;
    let mut all = concat!("SSH-2.0-longhaul_", env!("CARGO_PKG_VERSION"), "\r\n")
        .as_bytes()
        .to_vec();
    all.extend(((1 + payload.len() + padding) as u32).to_be_bytes());
    all.push(padding as u8);
    all.extend(payload);
    all.extend(std::iter::repeat_n(0, padding));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 38 connections in a tenth of a second were answered, and each held a descriptor for 2 s.
    #[test]
    fn a_flood_is_not_answered() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (mut refused, now) = (LingeringRefusedClients::default(), Instant::now());
        let mut turn_away = |at_time| {
            let _client = TcpStream::connect(at).unwrap();
            refused.tell(listener.accept().unwrap().0, "too many", at_time);
            refused.reading.len()
        };
        let told = (0..20).map(|_| turn_away(now)).last();
        assert_eq!(told, Some(MOST_READING));
        assert_eq!(turn_away(now + READING), 1);
    }

    #[test]
    fn what_is_told_is_a_packet() {
        for len in 0..40 {
            let why = "x".repeat(len);
            let all = disconnect(&why);
            let at = all.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
            let packet = &all[at..];
            assert_eq!(packet.len() % 8, 0);
            let length = u32::from_be_bytes(packet[..4].try_into().unwrap()) as usize;
            assert_eq!(length + 4, packet.len());
            assert!(packet[4] >= 4 && packet[5] == 1);
            assert_eq!(&packet[14..14 + len], why.as_bytes());
        }
    }
}
