//! A socket by its descriptor, as [`crate::watch`] uses it. The program owns the descriptor, so any
//! call may find it closed or reused.

use core::ffi::{CStr, c_int};

use crate::distance::tcp_info;
use crate::line::TcpCounters;
use crate::watch::TunableSocket;
use crate::{c, filter, real};

/// Descriptor of a socket; calls on one that is carried reach the socket to the network.
#[derive(Clone, Copy)]
pub(crate) struct Fd(pub(crate) c_int);

impl Fd {
    fn option(self, level: c_int, name: c_int, value: &mut [u8]) -> Option<usize> {
        filter::on_real(self.0, |fd| real::option(fd, level, name, value))
    }

    fn number(self, level: c_int, name: c_int) -> Option<c_int> {
        let mut value = [0; 4];
        let len = self.option(level, name, &mut value)?;
        (len == 4).then(|| c_int::from_ne_bytes(value))
    }

    fn set(self, level: c_int, name: c_int, value: &[u8]) -> bool {
        filter::on_real(self.0, |fd| real::set_option(fd, level, name, value))
    }

    /// Returns true if the connection is established, or closed by the peer only.
    pub(crate) fn is_connected(self) -> bool {
        let mut state = [0];
        real::option(self.0, c::IPPROTO_TCP, c::TCP_INFO, &mut state) == Some(1)
            && matches!(state, [1 | 8])
    }

    /// Returns true if the socket's type is a byte stream.
    pub(crate) fn is_stream(self) -> bool {
        self.number(c::SOL_SOCKET, c::SO_TYPE) == Some(c::SOCK_STREAM)
    }

    /// Reads and clears the error of a non-blocking connect(2).
    pub(crate) fn error(self) -> Option<c_int> {
        self.number(c::SOL_SOCKET, c::SO_ERROR)
    }

    /// Reads the kernel's counters.
    pub(crate) fn tcp(self) -> Option<TcpCounters> {
        let mut info = [0; 160];
        self.option(c::IPPROTO_TCP, c::TCP_INFO, &mut info)?;
        let u32_at = |at| field(&info, at).map_or(0, u32::from_ne_bytes);
        let u64_at = |at| field(&info, at).map_or(0, u64::from_ne_bytes);
        Some(TcpCounters {
            // SYN and FIN are acknowledged like bytes.
            sent: u64_at(tcp_info::BYTES_ACKED).saturating_sub(1),
            received: u64_at(tcp_info::BYTES_RECEIVED),
            rtt_us: u32_at(tcp_info::RTT),
            min_rtt_us: match u32_at(tcp_info::MIN_RTT) {
                u32::MAX => 0,
                us => us,
            },
            retransmitted: u32_at(tcp_info::TOTAL_RETRANS),
        })
    }

    /// The inode number, for kernels before 4.12, which have no socket cookies.
    fn inode(self) -> u64 {
        let mut path = [0; 32];
        let Some(path) = numbered(b"/proc/self/fd/", self.0, &mut path) else {
            return 0;
        };
        let mut room = [0; 40];
        let link = c::link(path, &mut room);
        let Some(number) = link.strip_prefix(b"socket:[") else {
            return 0;
        };
        let digits = number.iter().take_while(|b| b.is_ascii_digit());
        digits.fold(0, |number: u64, digit| {
            number
                .wrapping_mul(10)
                .wrapping_add(u64::from(digit - b'0'))
        })
    }
}

/// Builds a path that ends with a descriptor's number and a zero byte.
pub(crate) fn numbered<'a>(folder: &[u8], fd: c_int, room: &'a mut [u8; 32]) -> Option<&'a CStr> {
    let mut digits = [0; 10];
    let mut rest = fd.cast_unsigned();
    let mut used = 0;
    for digit in &mut digits {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    let number = digits.iter().take(used).rev();
    for (place, byte) in room.iter_mut().zip(folder.iter().chain(number).chain(&[0])) {
        *place = *byte;
    }
    CStr::from_bytes_until_nul(room).ok()
}

fn field<const N: usize>(info: &[u8], at: usize) -> Option<[u8; N]> {
    info.get(at..)?.first_chunk().copied()
}

impl TunableSocket for Fd {
    fn cookie(&self) -> u64 {
        let mut cookie = [0; 8];
        match real::option(self.0, c::SOL_SOCKET, c::SO_COOKIE, &mut cookie) {
            Some(8) => u64::from_ne_bytes(cookie),
            _ => self.inode(),
        }
    }

    fn rtt_us(&self) -> Option<u32> {
        let mut info = [0; 104];
        self.option(c::IPPROTO_TCP, c::TCP_INFO, &mut info)?;
        field(&info, tcp_info::RTT).map(u32::from_ne_bytes)
    }

    fn mark(&self) -> Option<u8> {
        // An IPv6 socket has both options, and uses IPv4's for mapped addresses.
        let of = |level, name| self.number(level, name).unwrap_or(0);
        let v6 = of(c::IPPROTO_IPV6, c::IPV6_TCLASS) as u8;
        let v4 = self.number(c::IPPROTO_IP, c::IP_TOS)? as u8;
        Some(if v4 >> 2 == 0 { v6 } else { v4 })
    }

    fn set_mark(&self, tos: u8) -> bool {
        let value = c_int::from(tos).to_ne_bytes();
        let v4 = self.set(c::IPPROTO_IP, c::IP_TOS, &value);
        let v6 = self.set(c::IPPROTO_IPV6, c::IPV6_TCLASS, &value);
        v4 || v6
    }

    fn set_congestion(&self, name: &str) -> bool {
        self.set(c::IPPROTO_TCP, c::TCP_CONGESTION, name.as_bytes())
    }

    fn set_notsent_lowat(&self, bytes: u32) -> bool {
        let value = bytes.to_ne_bytes();
        self.set(c::IPPROTO_TCP, c::TCP_NOTSENT_LOWAT, &value)
    }
}
