//! Sysctl lines that fit a kernel's version.

use crate::evidence::MachineFacts;

/// Largest value that is suggested for a socket buffer, in bytes.
const MOST: u64 = 256 << 20;
/// Kernel from which on `tcp_rmem` ends at 32 MB (commit 572be9bf9d0d).
const LARGE_RMEM: (u32, u32) = (6, 16);
/// Maximum of `tcp_rmem` before [`LARGE_RMEM`] and from then on.
const RMEM: (u64, u64) = (6 << 20, 32 << 20);
/// Maximum of `tcp_wmem` of every kernel.
const WMEM: u64 = 4 << 20;

/// Receive or send buffer of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpBufferKind {
    Receive,
    Send,
}

impl TcpBufferKind {
    pub(crate) fn sysctl(self) -> &'static str {
        match self {
            Self::Receive => "net.ipv4.tcp_rmem",
            Self::Send => "net.ipv4.tcp_wmem",
        }
    }

    fn middle(self) -> u32 {
        match self {
            Self::Receive => 131_072,
            Self::Send => 16_384,
        }
    }
}

/// Maximum of a buffer: measured, or the default of the kernel's version.
pub(crate) fn maximum(machine: &MachineFacts, buffer: TcpBufferKind) -> Option<u64> {
    match buffer {
        TcpBufferKind::Receive => machine.tcp_rmem.or_else(|| {
            let version = machine.kernel?;
            Some(match version >= LARGE_RMEM {
                true => RMEM.1,
                false => RMEM.0,
            })
        }),
        TcpBufferKind::Send => machine.tcp_wmem.or_else(|| machine.kernel.map(|_| WMEM)),
    }
}

/// Returns the command that makes a buffer large enough for `rate` over `rtt`, or `None` if its
/// maximum is large enough.
pub(crate) fn line(
    machine: &MachineFacts,
    buffer: TcpBufferKind,
    rate: f64,
    rtt: f64,
) -> Option<String> {
    // Half of a buffer is overhead; a sender needs twice the path's content to repeat losses.
    let needed = ((2.0 * rate * rtt) as u64).clamp(1 << 20, MOST);
    let needed = needed.next_power_of_two().min(MOST);
    let now = maximum(machine, buffer);
    if now.is_some_and(|now| now >= needed) {
        return None;
    }
    let (name, middle) = (buffer.sysctl(), buffer.middle());
    Some(format!("sysctl -w {name}=\"4096 {middle} {needed}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(major: u32, minor: u32) -> MachineFacts {
        MachineFacts {
            kernel: Some((major, minor)),
            ..MachineFacts::default()
        }
    }

    #[test]
    fn a_line_for_tcp_rmem_fits_the_kernels_version() {
        // 100 MB/s over 100 ms need 20 MB, twice what the path holds.
        let line = |m| line(&m, TcpBufferKind::Receive, 1e8, 0.1);
        let old = line(kernel(6, 12)).unwrap();
        assert_eq!(old, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\"");
        assert_eq!(line(kernel(6, 16)), None);
        assert_eq!(line(kernel(7, 0)), None);
    }

    #[test]
    fn a_line_never_lowers_a_buffer() {
        let large = MachineFacts {
            tcp_wmem: Some(64 << 20),
            ..kernel(6, 1)
        };
        assert_eq!(line(&large, TcpBufferKind::Send, 1e8, 0.1), None);
        assert!(line(&kernel(6, 18), TcpBufferKind::Send, 1e8, 0.1).is_some());
    }
}
