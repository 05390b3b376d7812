//! TCP connection statistics from the kernel.

use std::os::fd::AsFd;
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::distance::tcp_info as at;

/// TCP_INFO (tcp(7), `struct tcp_info` of linux/tcp.h), without the fields not used here. Fields
/// that an older kernel does not have are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip; zero before the first measurement.
    pub rtt: Duration,
    /// The lowest round trip.
    pub min_rtt: Duration,
    /// The receiver's estimate of the round trip.
    pub rcv_rtt: Duration,
    /// Largest segment size for sending, in bytes.
    pub snd_mss: u32,
    /// Largest segment size of the peer, in bytes.
    pub rcv_mss: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Slow start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Data segments sent, retransmissions included.
    pub data_segs_out: u32,
    /// Segments retransmitted.
    pub total_retrans: u32,
    /// Bytes in the send buffer that were not yet sent.
    pub notsent_bytes: u32,
    /// Most recent delivery rate, in bytes per second.
    pub delivery_rate: u64,
    /// Time with data to send.
    pub busy: Duration,
    /// Part of `busy` in which the receiver's window limited sending.
    pub rwnd_limited: Duration,
    /// Part of `busy` in which the send buffer limited sending.
    pub sndbuf_limited: Duration,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments received, acknowledgements included.
    pub segs_in: u32,
    /// Data segments received.
    pub data_segs_in: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// Bytes that the application reads in one round trip; receive buffer autotuning follows it.
    pub rcv_space: u32,
    /// Receive window advertised to the sender, in bytes (Linux 6.2).
    pub rcv_wnd: u32,
    /// The peer's receive window, in bytes (Linux 6.2).
    pub snd_wnd: u32,
    /// Events of reordering.
    pub reord_seen: u32,
    /// Segments delivered to the peer, acknowledged or reported as received (SACK).
    pub delivered: u32,
    /// Duplicate segments that the peer reported: they were sent again in vain.
    pub dsack_dups: u32,
    /// TCP options of the connection: 1 timestamps, 2 SACK, 4 window scaling.
    pub options: u8,
}

/// Returns TCP_INFO of a connected socket; `None` if the system does not provide it.
#[cfg(target_os = "linux")]
pub fn tcp_info(socket: impl AsFd) -> Option<TcpInfo> {
    let raw = linux::read(socket)?;
    let us = |offset| Duration::from_micros(raw.u32(offset).into());
    let long_us = |offset| Duration::from_micros(raw.u64(offset));
    Some(TcpInfo {
        snd_mss: raw.u32(16),
        rcv_mss: raw.u32(20),
        unacked: raw.u32(24),
        rtt: us(at::RTT),
        snd_ssthresh: raw.u32(76),
        snd_cwnd: raw.u32(80),
        rcv_rtt: us(92),
        rcv_space: raw.u32(96),
        total_retrans: raw.u32(at::TOTAL_RETRANS),
        bytes_acked: raw.u64(at::BYTES_ACKED),
        bytes_received: raw.u64(at::BYTES_RECEIVED),
        notsent_bytes: raw.u32(144),
        // The kernel reports ~0 before the first measurement.
        min_rtt: Some(raw.u32(at::MIN_RTT))
            .filter(|us| *us != u32::MAX)
            .map(|us| Duration::from_micros(us.into()))
            .unwrap_or_default(),
        segs_in: raw.u32(140),
        data_segs_in: raw.u32(152),
        data_segs_out: raw.u32(156),
        delivery_rate: raw.u64(160),
        busy: long_us(168),
        rwnd_limited: long_us(176),
        sndbuf_limited: long_us(184),
        rcv_ooopack: raw.u32(224),
        rcv_wnd: raw.u32(232),
        snd_wnd: raw.u32(228),
        reord_seen: raw.u32(220),
        delivered: raw.u32(192),
        dsack_dups: raw.u32(216),
        options: raw.u8(5),
    })
}

/// Always `None`: this system has no TCP_INFO.
#[cfg(not(target_os = "linux"))]
pub fn tcp_info(_: impl AsFd) -> Option<TcpInfo> {
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{AsFd, AsRawFd};

    /// Bytes of `struct tcp_info` as the kernel wrote them. Offsets are those of linux/tcp.h, which
    /// only grows at its end; the libc crate's structure has only the older fields.
    pub(super) struct RawTcpInfo {
        bytes: [u8; LEN],
        len: usize,
    }

    const LEN: usize = 256;

    #[allow(unsafe_code, reason = "getsockopt(TCP_INFO) has no safe wrapper")]
    pub(super) fn read(socket: impl AsFd) -> Option<RawTcpInfo> {
        let mut bytes = [0; LEN];
        let mut len = LEN as libc::socklen_t;
        // SAFETY: the pointers are to locals that outlive the call, `len` is the size of `bytes`,
        // and the descriptor is open while it is borrowed.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let len = usize::try_from(len).unwrap_or(0).min(LEN);
        (done == 0).then_some(RawTcpInfo { bytes, len })
    }

    impl RawTcpInfo {
        fn field<const N: usize>(&self, at: usize) -> [u8; N] {
            let field = self.bytes[..self.len].get(at..at + N);
            field.and_then(|f| f.try_into().ok()).unwrap_or([0; N])
        }

        pub(super) fn u8(&self, at: usize) -> u8 {
            let [byte] = self.field(at);
            byte
        }

        pub(super) fn u32(&self, at: usize) -> u32 {
            u32::from_ne_bytes(self.field(at))
        }

        pub(super) fn u64(&self, at: usize) -> u64 {
            u64::from_ne_bytes(self.field(at))
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_fields_are_where_the_kernel_puts_them() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        let mut part = vec![0; 100_000];
        for _ in 0..10 {
            client.write_all(&part)?;
            server.read_exact(&mut part)?;
        }
        // The last acknowledgement may still be in flight.
        server.write_all(b"x")?;
        client.read_exact(&mut part[..1])?;
        let sent = tcp_info(&client).expect("Linux tells");
        let received = tcp_info(&server).expect("Linux tells");
        // Linux counts the SYN as one acknowledged byte.
        assert!(
            (1_000_000..=1_000_001).contains(&sent.bytes_acked),
            "{sent:?}"
        );
        assert_eq!(received.bytes_received, 1_000_000);
        assert_eq!(
            (sent.unacked, sent.notsent_bytes, sent.total_retrans),
            (0, 0, 0)
        );
        assert_eq!(sent.data_segs_out, received.data_segs_in);
        let round_trip = Duration::from_nanos(1)..Duration::from_secs(5);
        assert!(
            round_trip.contains(&sent.rtt) && round_trip.contains(&sent.min_rtt),
            "{sent:?}"
        );
        assert!(sent.snd_cwnd >= 2 && sent.snd_mss >= 500 && sent.delivery_rate > 0);
        assert!(sent.rwnd_limited <= sent.busy, "{sent:?}");
        // Linux uses all three options on loopback, unless an administrator disabled them.
        assert!(sent.options & 7 == 7 || sent.snd_wnd < 1 << 16, "{sent:?}");
        // Kernels before 6.2 report zero.
        let window = received.rcv_wnd;
        assert!(
            window == 0 || (50_000..64 << 20).contains(&window),
            "{window}"
        );
        Ok(())
    }
}
